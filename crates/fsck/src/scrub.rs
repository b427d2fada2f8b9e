//! Compares content with its checksums while the formation is in use: what lies where nobody has read it for long is
//! found before it is needed.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bivouac_client::Client;
use bivouac_layout::{file_offset, seats_of};
use bivouac_types::limits::{SCRUB_PIECE, SCRUB_STEP_MAX};
use bivouac_types::{Attr, Errno, FsResult, Ino, Layout, NodeId, SeatIndex};
use bivouac_wire::{ListSubfilesRequest, ScrubRequest};

use crate::finding::{Finding, Kind};
use crate::paths::Paths;
use crate::source::volumes;

/// Subfiles that are listed at once.
const PAGE: u32 = 512;
/// Nodes that are looked at at the same time, at most.
const NODES_AT_ONCE: usize = 64;
/// How often a node that is slowed down is asked for a piece, per second.
const STEPS_PER_S: u64 = 4;

/// What is to be compared, and how.
#[derive(Clone, Debug, Default)]
pub struct ScrubArgs {
    /// These files only.
    pub files: Option<Vec<Attr>>,
    /// Bytes that each node compares per second at most; as many as it can if not given.
    pub rate: Option<u64>,
}

/// Bytes of a file that are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongContent {
    /// The file.
    pub ino: Ino,
    /// First byte in the file.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// Where they are.
    pub node: NodeId,
    /// The seat that they are on.
    pub seat: SeatIndex,
}

/// What comparing found.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Subfiles that were looked at.
    pub subfiles: u64,
    /// Bytes that were compared.
    pub compared: u64,
    /// Bytes that had no checksums since a process wrote them itself or was killed, and have some now.
    pub settled: u64,
    /// Bytes that could not be compared: without checksums, or being written by processes themselves.
    pub skipped: u64,
    /// What is wrong, by file.
    pub wrong: Vec<WrongContent>,
    /// What could not be looked at: sentences.
    pub failed: Vec<String>,
}

impl ScrubReport {
    /// Whether there is content, and none of it has checksums.
    pub fn has_compared_nothing(&self) -> bool {
        let is_all_skipped = self.skipped > 0 && self.compared == 0 && self.settled == 0;
        is_all_skipped && self.wrong.is_empty() && self.failed.is_empty()
    }
}

/// A part of a file on a seat.
struct Part {
    ino: Ino,
    seat: SeatIndex,
    layout: Layout,
}

/// Compares what there is, on all nodes at the same time. `progress` is told of each step: bytes done, compared or not.
///
/// # Errors
/// When the seats of a file are not known. What cannot be looked at is in the report.
pub fn scrub(client: &Client, args: &ScrubArgs, progress: &(dyn Fn(u64) + Sync)) -> FsResult<ScrubReport> {
    let places = volumes(client.map());
    let nodes: Vec<NodeId> = {
        let mut nodes: Vec<NodeId> = places.iter().map(|(node, _)| *node).collect();
        nodes.dedup();
        nodes
    };
    let chosen = args.files.as_ref().map(|files| parts_of(client, files)).transpose()?;
    let (next, report) = (AtomicUsize::new(0), Mutex::new(ScrubReport::default()));
    let run = Run { client, rate: args.rate, progress, report: &report };
    std::thread::scope(|scope| {
        let work = || {
            while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                let pace = Pace::new(args.rate);
                let outcome = match &chosen {
                    Some(parts) => {
                        let here = parts.iter().filter(|(at, _)| at == node);
                        here.for_each(|(_, part)| run.subfile(*node, part, &pace));
                        Ok(())
                    }
                    None => places
                        .iter()
                        .filter(|(at, _)| at == node)
                        .try_for_each(|(_, volume)| run.volume(*node, *volume, &pace)),
                };
                if let Err(error) = outcome {
                    run.note(|report| report.failed.push(format!("{node}: {error}")));
                }
            }
        };
        for _ in 0..NODES_AT_ONCE.min(nodes.len()) {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.wrong.sort_unstable_by_key(|wrong| (wrong.ino, wrong.from));
    Ok(report)
}

/// Where files are.
fn parts_of(client: &Client, files: &[Attr]) -> FsResult<Vec<(NodeId, Part)>> {
    let (mut parts, mut seen) = (Vec::new(), HashSet::new());
    for attr in files.iter().filter(|attr| seen.insert(attr.ino)) {
        for seat in seats_of(&attr.layout) {
            let part = Part { ino: attr.ino, seat, layout: attr.layout };
            parts.push((client.partitions.seat_place(seat)?.node, part));
        }
    }
    Ok(parts)
}

struct Run<'a> {
    client: &'a Client,
    rate: Option<u64>,
    progress: &'a (dyn Fn(u64) + Sync),
    report: &'a Mutex<ScrubReport>,
}

impl Run<'_> {
    fn note(&self, change: impl FnOnce(&mut ScrubReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All subfiles of a volume.
    fn volume(&self, node: NodeId, volume: u16, pace: &Pace) -> FsResult<()> {
        let mut after = None;
        loop {
            let page =
                self.client.nodes().list_subfiles(node, &ListSubfilesRequest { volume, after, max: PAGE })?;
            after = page.subfiles.last().map(|found| (found.ino, found.seat));
            for found in page.subfiles {
                match found.header {
                    Some(header) => {
                        let part = Part { ino: found.ino, seat: found.seat, layout: header.layout };
                        self.subfile(node, &part, pace);
                    }
                    None => self.note(|report| {
                        let (ino, problem) = (found.ino, found.problem);
                        report.failed.push(format!("inode {ino} on {node}: {problem}"));
                    }),
                }
            }
            if page.end || after.is_none() {
                return Ok(());
            }
        }
    }

    fn subfile(&self, node: NodeId, part: &Part, pace: &Pace) {
        self.note(|report| report.subfiles += 1);
        let bytes =
            self.rate.map_or(SCRUB_STEP_MAX, |rate| (rate / STEPS_PER_S).clamp(SCRUB_PIECE, SCRUB_STEP_MAX));
        let mut from = 0;
        loop {
            let request = ScrubRequest { ino: part.ino, seat: part.seat, from, bytes };
            let found = match self.client.nodes().scrub_subfile(node, &request) {
                Ok(found) => found,
                Err(error) if error.errno() == Errno::ENOENT => return,
                Err(error) => {
                    let text = format!("inode {} on {node}: {error}", part.ino);
                    return self.note(|report| report.failed.push(text));
                }
            };
            let wrong = found.wrong.iter().flat_map(|(from, to)| part.in_file(node, *from..*to));
            self.note(|report| {
                report.compared += found.compared;
                report.settled += found.settled;
                report.skipped += found.skipped;
                report.wrong.extend(wrong);
            });
            let done = found.compared + found.settled;
            (self.progress)(done);
            pace.wait(done);
            match found.next.filter(|next| *next > from) {
                Some(next) => from = next,
                None => return,
            }
        }
    }
}

impl Part {
    /// Where a stretch of the subfile is in its file.
    fn in_file(&self, node: NodeId, range: Range<u64>) -> Vec<WrongContent> {
        wrong_in_file(&self.layout, self.ino, self.seat, node, range)
    }
}

/// Where a stretch of a subfile is in its file: stripe by stripe.
pub(crate) fn wrong_in_file(
    layout: &Layout,
    ino: Ino,
    seat: SeatIndex,
    node: NodeId,
    range: Range<u64>,
) -> Vec<WrongContent> {
    let column = seats_of(layout).position(|other| other == seat).unwrap_or(0) as u16;
    let stripe = u64::from(layout.stripe.max(1));
    let (mut at, mut found) = (range.start, Vec::<WrongContent>::new());
    while at < range.end {
        let end = ((at / stripe + 1) * stripe).min(range.end);
        let from = file_offset(layout, column, at).unwrap_or(at);
        let to = from.saturating_add(end - at);
        match found.last_mut().filter(|last| last.to == from) {
            Some(last) => last.to = to,
            None => found.push(WrongContent { ino, from, to, node, seat }),
        }
        at = end;
    }
    found
}

/// As checks report it.
pub(crate) fn wrong_content(paths: &Paths<'_>, wrong: &WrongContent) -> Finding {
    let WrongContent { ino, from, to, node, seat } = wrong;
    let cause = format!(
        "bytes {from} to {to}, on {node}, seat {seat}, are not what was written: they are not served"
    );
    let finding = Finding::new(Kind::WrongContent, paths.path(*ino), cause).of([*ino]);
    finding.remedy("restore the file from a copy, or write these bytes anew")
}

/// Keeps to a rate.
struct Pace {
    rate: Option<u64>,
    since: Instant,
    done: AtomicU64,
}

impl Pace {
    fn new(rate: Option<u64>) -> Pace {
        Pace { rate: rate.map(|rate| rate.max(1)), since: Instant::now(), done: AtomicU64::new(0) }
    }

    /// So many bytes more were done: waits until they may have been.
    fn wait(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(done as f64 / rate as f64);
            while let Some(left) = due.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero()) {
                std::thread::park_timeout(left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_a_subfile_is_several_of_its_file() {
        let layout = Layout { stripe: 8192, width: 2, base: SeatIndex(1), seats: 2 };
        let found = wrong_in_file(&layout, Ino(7), SeatIndex(0), NodeId(3), 4096..12_288);
        let ranges: Vec<(u64, u64)> = found.iter().map(|wrong| (wrong.from, wrong.to)).collect();
        assert_eq!(ranges, [(12_288, 16_384), (24_576, 28_672)]);
        let alone = Layout { stripe: 8192, width: 1, base: SeatIndex(0), seats: 2 };
        let found = wrong_in_file(&alone, Ino(7), SeatIndex(0), NodeId(3), 4096..12_288);
        assert_eq!((found.len(), found[0].from, found[0].to), (1, 4096, 12_288));
    }
}
