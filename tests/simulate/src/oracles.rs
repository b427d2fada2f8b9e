//! What must hold of what was seen, and of what the volumes keep.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use bivouac_fsck::{Kind, OfflineArgs, Outcome as Judgement, Progress, RepairOptions, check_offline};
use bivouac_sim_kernel as sim;
use bivouac_wire::FormationMap;

use crate::history::{
    Entry, NameOp, Names, Region, RegionOp, Register, RegisterOp, Said, Stripe, StripeOp, Target, Verdict,
    explain,
};
use crate::scenario::{BLOCKS, CHANGING, Deed, KEYS, REGIONS, STRIPES};
use crate::world::{Done, Outcome, REGION_BLOCKS, stripes_of};

/// What is wrong with what was seen; nothing if all of it can be explained.
#[must_use]
pub fn judge(history: &[Done]) -> Vec<String> {
    let mut wrong = Vec::new();
    for stripe in 0..STRIPES {
        let entries = stripe_entries(history, stripe);
        let start = vec![0; usize::from(BLOCKS)];
        wrong.extend(said(&format!("stripe {stripe}"), explain(&Stripe, start, &entries), &entries));
    }
    for key in 0..KEYS {
        let entries = register_entries(history, key);
        wrong.extend(said(&format!("attribute {key}"), explain(&Register, None, &entries), &entries));
    }
    for region in 0..REGIONS {
        let entries = region_entries(history, region);
        let start = vec![vec![0]; REGION_BLOCKS];
        wrong.extend(said(&format!("region {region}"), explain(&Region, start, &entries), &entries));
    }
    let entries = name_entries(history);
    wrong.extend(said("names", explain(&Names, BTreeMap::new(), &entries), &entries));
    wrong.extend(records(history));
    wrong
}

fn said<O: std::fmt::Debug>(what: &str, verdict: Verdict, entries: &[Entry<O>]) -> Option<String> {
    match verdict {
        Verdict::Explained => None,
        Verdict::Unknown => {
            println!("note: the search for an order of {what} was given up");
            None
        }
        Verdict::Impossible(order) => {
            let line = |at: usize| {
                let Entry { call, ret, maybe, op, .. } = &entries[at];
                format!("    {call}..{ret}{}: {op:?}\n", if *maybe { " perhaps" } else { "" })
            };
            let explained: String = order.iter().map(|at| line(*at)).collect();
            let rest: String = (0..entries.len()).filter(|at| !order.contains(at)).map(line).collect();
            Some(format!("no order explains {what}. As far as one goes:\n{explained}  but not:\n{rest}"))
        }
    }
}

fn entry<O>(done: &Done, op: O) -> Entry<O> {
    let maybe = matches!(done.outcome, Outcome::Unknown);
    Entry {
        call: done.call,
        ret: if maybe { u64::MAX } else { done.ret.unwrap_or(u64::MAX) },
        maybe,
        op,
        after: None,
    }
}

fn stripe_entries(history: &[Done], stripe: u8) -> Vec<Entry<StripeOp>> {
    let mut entries = Vec::new();
    for done in history {
        match (done.deed, &done.outcome) {
            (Deed::Read(of), Outcome::Marks(marks)) if of == stripe => {
                entries.push(entry(done, StripeOp::Read(marks.clone())));
            }
            (Deed::Write(of, at, count), Outcome::Said(Said::Ok)) if of == stripe => {
                let marks = vec![done.mark; usize::from(count)];
                entries.push(entry(done, StripeOp::Write(usize::from(at), marks)));
            }
            // Of one that failed any part may be there.
            (Deed::Write(of, at, count), Outcome::Unknown) if of == stripe => {
                entries.extend(
                    (at..at + count).map(|at| entry(done, StripeOp::Write(usize::from(at), vec![done.mark]))),
                );
            }
            _ => {}
        }
    }
    entries
}

/// Writes and reads of a region. Where it may be coherent meanwhile, those of each stripe are on their own.
fn region_entries(history: &[Done], region: u8) -> Vec<Entry<RegionOp>> {
    let mut entries = Vec::new();
    for done in history {
        let parts = match region == CHANGING && !is_strict(history, done) {
            true => stripes_of(region),
            false => vec![0..REGION_BLOCKS],
        };
        match (done.deed, &done.outcome) {
            (Deed::Look(of), Outcome::Marks(marks)) if of == region => {
                let seen = |part: Range<usize>| RegionOp::Read(part.start, marks[part].to_vec());
                entries.extend(parts.into_iter().map(|part| entry(done, seen(part))));
            }
            (Deed::Fill(of), Outcome::Said(Said::Ok)) if of == region => {
                entries.extend(parts.into_iter().map(|part| entry(done, RegionOp::Write(part, done.mark))));
            }
            // It was given up, or its client is lost: a part of it may be there, from one moment on.
            (Deed::Fill(of), Outcome::Unknown) if of == region => {
                let some = |part| RegionOp::WriteSome(part, done.mark);
                entries.extend(parts.into_iter().map(|part| entry(done, some(part))));
            }
            _ => {}
        }
    }
    entries
}

/// Whether the file whose contract is changed is surely strict from the call of an operation to its end.
fn is_strict(history: &[Done], op: &Done) -> bool {
    let changes = || history.iter().filter(|done| matches!(done.deed, Deed::Contract(_)));
    let over = |done: &Done| entry(done, ()).ret;
    // It is strict in the beginning.
    let begun = changes().filter(|done| done.deed == Deed::Contract(true));
    let begun = begun.filter(|done| over(done) <= op.call).map(|done| done.call).max().unwrap_or(0);
    let ended =
        |done: &Done| done.deed == Deed::Contract(false) && over(done) > begun && done.call < over(op);
    !changes().any(ended)
}

fn register_entries(history: &[Done], key: u8) -> Vec<Entry<RegisterOp>> {
    let op = |done: &Done| match (done.deed, &done.outcome) {
        (Deed::Set(of), Outcome::Said(Said::Ok) | Outcome::Unknown) if of == key => {
            Some(RegisterOp::Set(done.mark))
        }
        (Deed::Unset(of), Outcome::Said(said)) if of == key => {
            Some(RegisterOp::Unset(Some(*said == Said::Ok)))
        }
        (Deed::Unset(of), Outcome::Unknown) if of == key => Some(RegisterOp::Unset(None)),
        (Deed::Get(of), Outcome::Value(value)) if of == key => Some(RegisterOp::Get(*value)),
        _ => None,
    };
    history.iter().filter_map(|done| Some(entry(done, op(done)?))).collect()
}

fn name_entries(history: &[Done]) -> Vec<Entry<NameOp>> {
    let mut entries: Vec<Entry<NameOp>> = Vec::new();
    for (number, done) in history.iter().enumerate() {
        let made = |is_dir: bool| match &done.outcome {
            Outcome::Found(Some((ino, _))) => Some((Target::Seen(*ino, is_dir), Said::Ok)),
            Outcome::Unknown => Some((Target::Unseen(number, is_dir), Said::Ok)),
            Outcome::Said(said) => Some((Target::Unseen(number, is_dir), *said)),
            _ => None,
        };
        let result = match &done.outcome {
            Outcome::Said(said) => Some(*said),
            Outcome::Unknown => Some(Said::Ok),
            _ => None,
        };
        match done.deed {
            Deed::Make(name) | Deed::Mkdir(name) => {
                let made = made(matches!(done.deed, Deed::Mkdir(_)));
                entries.extend(made.map(|(target, said)| entry(done, NameOp::Make(name, target, said))));
            }
            Deed::Unlink(name) => {
                entries.extend(result.map(|said| entry(done, NameOp::Remove(name, false, said))))
            }
            Deed::Rmdir(name) => {
                entries.extend(result.map(|said| entry(done, NameOp::Remove(name, true, said))))
            }
            Deed::Stat(name) => {
                if let Outcome::Found(found) = done.outcome {
                    entries.push(entry(done, NameOp::Look(name, found)));
                }
            }
            Deed::Rename(from, to) => {
                let Some(said) = result else { continue };
                entries.push(entry(done, NameOp::RenameTo(from, to, said)));
                if said == Said::Ok {
                    let first = entries.len() - 1;
                    entries.push(Entry { after: Some(first), ..entry(done, NameOp::RenameFrom(from)) });
                }
            }
            Deed::Link(from, to) => {
                let Some((ino, is_dir)) = done.linked else { continue };
                let Some(said) = result else { continue };
                entries.push(entry(done, NameOp::Look(from, Some((ino, is_dir)))));
                // It was seen, whatever became of the other half.
                if let Some(look) = entries.last_mut() {
                    (look.maybe, look.ret) = (false, done.ret.unwrap_or(u64::MAX));
                }
                entries.push(entry(done, NameOp::Link(ino, to, said)));
            }
            _ => {}
        }
    }
    entries
}

/// Records are there once, in the order in which they were acknowledged, and stay where they are.
fn records(history: &[Done]) -> Vec<String> {
    let mut wrong = Vec::new();
    let appends: Vec<&Done> = history.iter().filter(|done| done.deed == Deed::Append).collect();
    let reads = history.iter().filter_map(|done| match &done.outcome {
        Outcome::Records(marks) => Some((done, marks)),
        _ => None,
    });
    let mut longest: Vec<u32> = Vec::new();
    for (read, marks) in reads {
        let common = longest.len().min(marks.len());
        if longest[..common] != marks[..common] {
            wrong.push(format!("records changed their places: {longest:?}, and then {marks:?}"));
        }
        if marks.len() > longest.len() {
            longest.clone_from(marks);
        }
        for append in &appends {
            let times = marks.iter().filter(|mark| **mark == append.mark).count();
            let is_acknowledged = matches!(append.outcome, Outcome::Said(Said::Ok));
            let before = append.ret.is_some_and(|ret| ret < read.call);
            if times > 1 {
                wrong.push(format!("record {} is there {times} times: {marks:?}", append.mark));
            }
            if times == 0 && is_acknowledged && before {
                wrong.push(format!("record {} was acknowledged and is not there: {marks:?}", append.mark));
            }
        }
        if let Some(alien) = marks.iter().find(|mark| !appends.iter().any(|append| append.mark == **mark)) {
            wrong.push(format!("nobody appended record {alien}: {marks:?}"));
        }
    }
    let place = |mark: u32| longest.iter().position(|other| *other == mark);
    for first in &appends {
        for second in &appends {
            let ordered = matches!(first.outcome, Outcome::Said(Said::Ok))
                && first.ret.is_some_and(|ret| ret < second.call);
            if let (true, Some(a), Some(b)) = (ordered, place(first.mark), place(second.mark))
                && a > b
            {
                wrong.push(format!(
                    "record {} was acknowledged before {} began, and is behind it",
                    first.mark, second.mark
                ));
            }
        }
    }
    wrong
}

struct Quiet;

impl Progress for Quiet {
    fn at(&self, _: &str, _: u64) {}
}

/// What a check of the volumes finds; nothing has them any more.
#[must_use]
pub fn check_volumes(volumes: Vec<PathBuf>, map: &FormationMap) -> Vec<String> {
    let arguments = OfflineArgs { volumes, map: Some(map.clone()), repair: false, compare: true };
    match check_offline(&arguments, RepairOptions::default(), &Quiet) {
        Ok(report) => {
            let _explained_by_kills = (Kind::Unreferenced, Judgement::Left);
            let findings =
                report.findings.iter().map(|finding| format!("fsck: {:?}: {finding}", finding.kind));
            findings.chain(report.unchecked.iter().map(|what| format!("fsck: not checked: {what}"))).collect()
        }
        Err(error) => vec![format!("fsck: {error}")],
    }
}

/// The mark that all of a block has.
pub fn one_mark(block: &[u8]) -> u32 {
    let marks: Vec<u32> =
        block.chunks(4).map(|mark| mark.try_into().map_or(u32::MAX, u32::from_le_bytes)).collect();
    let first = marks.first().copied().unwrap_or(u32::MAX);
    if marks.iter().any(|mark| *mark != first) {
        sim::fail(&format!("a block is torn: {first} and others of {} marks", marks.len()));
    }
    first
}
