//! Files in front of site storage, exercised at random beside a model that is bytes in memory: volumes that hold a fraction of
//! them, flushes, fetches, restarts, and changes at the source; and one operation in the middle of another.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::at_site::{Camp, FILE, STRIPE, bind_with, bytes};
use crate::formation::{Formation, op, wait_until};
use bivouac_client::OpCtx;
use bivouac_types::{Errno, FsResult, Ino, SetAttr};
use bivouac_wire::Op;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use tempfile::TempDir;

const NODES: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Longest file: some stripes of each target, and a part of one.
const LEN_MAX: usize = 6 * STRIPE + 1000;
/// Of each volume: less than half of what all files may have, so that reading one makes another go.
const CAPACITY: u64 = 5 * STRIPE as u64;
/// How long one operation waits in the middle for another, which may have to wait for it.
const MEANWHILE: Duration = Duration::from_millis(100);
/// Messages in front of which another operation is put.
const WITHIN: [Op; 7] =
    [Op::MarkFlush, Op::FlushParts, Op::FindOrigin, Op::Trim, Op::Write, Op::RemoveSubfiles, Op::AdjustLinks];

#[derive(Clone, Debug)]
enum Act {
    /// Offset, length, first byte.
    Write(usize, usize, usize, u8),
    Resize(usize, usize),
    Unlink(usize),
    /// A file takes the place of another.
    Rename(usize, usize),
    Read(usize),
    Bring(usize),
    Flush,
}

#[derive(Clone, Debug)]
enum Step {
    /// By a client.
    Do(usize, Act),
    /// The second, by the other client, in front of the first message of this kind of the first.
    Within(usize, Act, usize, Act),
    /// Another file takes its place at the source, after everything was flushed.
    There(usize, usize, u8),
    Restart,
}

/// What is to be read of each name.
type Model = BTreeMap<usize, Vec<u8>>;

fn apply(model: &mut Model, act: &Act) {
    match *act {
        Act::Write(name, at, len, seed) => {
            let file = model.entry(name).or_default();
            if file.len() < at + len {
                file.resize(at + len, 0);
            }
            file[at..at + len].copy_from_slice(&bytes(len, seed));
        }
        Act::Resize(name, len) => {
            if let Some(file) = model.get_mut(&name) {
                file.resize(len, 0);
            }
        }
        Act::Unlink(name) => drop(model.remove(&name)),
        Act::Rename(from, to) => {
            if let Some(file) = model.remove(&from) {
                model.insert(to, file);
            }
        }
        Act::Read(_) | Act::Bring(_) | Act::Flush => {}
    }
}

/// Runs one operation until its outcome is known, as the network layer of a real client does. A full volume is told to
/// the caller after room was made by a flush, as a user would.
fn surely<R>(camp: &Camp, node: usize, mut act: impl FnMut(&OpCtx) -> FsResult<R>) -> Result<R, Errno> {
    let mut ctx = op(camp.client(node));
    let mut last = String::new();
    for _ in 0..1000 {
        match act(&ctx) {
            Err(error) if error.errno() == Errno::ENOSPC => {
                last = error.to_string();
                drop(camp.flush(node, true))
            }
            Err(error) if [Errno::EIO, Errno::EINPROGRESS].contains(&error.errno()) => {
                last = error.to_string();
                ctx.retry = true
            }
            outcome => return outcome.map_err(|error| error.errno()),
        }
    }
    panic!("an operation does not come to an end: {last}");
}

fn find(camp: &Camp, node: usize, name: usize) -> Option<Ino> {
    match surely(camp, node, |_| camp.client(node).lookup(camp.partition.dir, NAMES[name].as_bytes())) {
        Ok(attr) => Some(attr.ino),
        Err(errno) => {
            assert_eq!(errno, Errno::ENOENT);
            None
        }
    }
}

/// Whether it was done: one that meets another may find that its file is gone.
fn perform(camp: &Camp, node: usize, act: &Act) -> bool {
    let (client, dir) = (camp.client(node), camp.partition.dir);
    let gone = |outcome: Result<(), Errno>| match outcome {
        Ok(()) => true,
        Err(errno) => {
            assert!([Errno::ENOENT, Errno::ESTALE].contains(&errno), "{act:?}: {errno:?}");
            false
        }
    };
    match *act {
        Act::Write(name, at, len, seed) => {
            let made = surely(camp, node, |ctx| {
                client.create(ctx, dir, NAMES[name].as_bytes(), &FILE, false, false).map(|made| made.attr.ino)
            });
            let ino = made.unwrap();
            let data = bytes(len, seed);
            let written = surely(camp, node, |ctx| client.write(ctx, ino, at as u64, &data, false));
            client.close(ino);
            gone(written.map(drop))
        }
        Act::Resize(name, len) => {
            let set = SetAttr { size: Some(len as u64), ..SetAttr::default() };
            let Some(ino) = find(camp, node, name) else { return false };
            gone(surely(camp, node, |ctx| client.setattr(ctx, ino, &set)).map(drop))
        }
        Act::Unlink(name) => {
            gone(surely(camp, node, |ctx| client.unlink(ctx, dir, NAMES[name].as_bytes())).map(drop))
        }
        Act::Rename(from, to) => {
            let (from, to) = (NAMES[from].as_bytes(), NAMES[to].as_bytes());
            gone(surely(camp, node, |ctx| client.rename(ctx, dir, from, dir, to, 0)).map(drop))
        }
        Act::Read(name) => {
            let Some(ino) = find(camp, node, name) else { return false };
            let mut bytes = vec![0; LEN_MAX];
            gone(surely(camp, node, |_| client.read(ino, 0, &mut bytes)).map(drop))
        }
        Act::Bring(name) => {
            let Some(ino) = find(camp, node, name) else { return false };
            gone(surely(camp, node, |_| client.site.bring_file(ino)))
        }
        Act::Flush => {
            // One that was removed, or replaced, meanwhile is no failure of anybody's.
            drop(camp.flush(node, true));
            true
        }
    }
}

fn check(camp: &Camp, model: &Model) {
    for node in 0..NODES {
        for name in 0..NAMES.len() {
            let read = find(camp, node, name).map(|ino| {
                let mut bytes = vec![0xee; LEN_MAX + 10];
                let len = surely(camp, node, |_| camp.client(node).read(ino, 0, &mut bytes)).unwrap();
                bytes.truncate(len);
                bytes
            });
            let expected = model.get(&name);
            assert_eq!(read.as_ref().map(Vec::len), expected.map(Vec::len), "length of {name} at {node}");
            let (Some(read), Some(expected)) = (read, expected) else { continue };
            let differs = read.iter().zip(expected).position(|(a, b)| a != b);
            let seen = differs.map(|at| (at, read[at], expected[at]));
            assert_eq!(seen, None, "content of {name} at {node}");
        }
    }
}

/// All that is here is there.
fn check_flushed(camp: &Camp, model: &Model) {
    assert_eq!(camp.flush(0, true), []);
    wait_until("all is saved", || camp.is_saved());
    for (name, expected) in model {
        let there = fs::read(camp.at(NAMES[*name])).unwrap();
        assert!(there == *expected, "{name} at the source: {} of {}", there.len(), expected.len());
    }
}

fn run(steps: &[Step], policy: &str) {
    let (formation, site) = (Formation::with_capacity(NODES as u16, 4096, CAPACITY), TempDir::new().unwrap());
    let mut model = Model::new();
    for (name, len) in [(0, 4 * STRIPE + 77), (1, STRIPE)] {
        model.insert(name, bytes(len, 1));
        fs::write(site.path().join(NAMES[name]), &model[&name]).unwrap();
    }
    let partition =
        bind_with(&formation, "part", site.path(), &format!("mirror-deletes=yes\n{policy}")).unwrap();
    let mut camp = Arc::new(Camp { formation, partition, site });
    for step in steps {
        match step {
            Step::Do(node, act) => {
                if perform(&camp, *node, act) {
                    apply(&mut model, act);
                }
            }
            Step::Within(node, outer, within, inner) => {
                within_another(&camp, &mut model, *node, outer, *within, inner)
            }
            Step::There(name, len, seed) => {
                check_flushed(&camp, &model);
                if model.contains_key(name) {
                    // As programs do it that save a file: another one takes its place.
                    let content = bytes(*len, *seed);
                    fs::write(camp.at("new"), &content).unwrap();
                    fs::rename(camp.at("new"), camp.at(NAMES[*name])).unwrap();
                    let ino = find(&camp, 0, *name).unwrap();
                    surely(&camp, 0, |ctx| camp.client(0).open(ctx, ino, 0)).unwrap();
                    camp.client(0).close(ino);
                    model.insert(*name, content);
                }
            }
            Step::Restart => Arc::get_mut(&mut camp).unwrap().formation.restart(),
        }
        check(&camp, &model);
    }
    check_flushed(&camp, &model);
    Arc::get_mut(&mut camp).unwrap().formation.restart();
    check(&camp, &model);
}

/// Both are done, in this order or in the other one; what is known of which of them was first is what is there.
fn within_another(camp: &Arc<Camp>, model: &mut Model, node: usize, outer: &Act, within: usize, inner: &Act) {
    let (say_done, done) = mpsc::channel();
    let (other, act) = (Arc::clone(camp), inner.clone());
    let meanwhile = move || {
        let thread = std::thread::spawn(move || perform(&other, 1 - node, &act));
        let (say_over, over) = mpsc::channel();
        std::thread::spawn(move || {
            say_done.send(thread.join()).unwrap();
            let _waits_no_more = say_over.send(());
        });
        // It may have to wait for the one that it is in the middle of.
        let _either_way = over.recv_timeout(MEANWHILE);
    };
    *camp.formation.switchboard.before.lock() = Some((WITHIN[within] as u16, Box::new(meanwhile)));
    let outer_done = perform(camp, node, outer);
    let not_run = camp.formation.switchboard.before.lock().take();
    let inner_done = match not_run {
        Some(_) => perform(camp, 1 - node, inner),
        None => done.recv().unwrap().unwrap(),
    };
    let one_by_one = |acts: [(&Act, bool); 2]| {
        let mut after = model.clone();
        acts.into_iter().filter(|(_, done)| *done).for_each(|(act, _)| apply(&mut after, act));
        after
    };
    let (first, second) = ((outer, outer_done), (inner, inner_done));
    let candidates = [one_by_one([first, second]), one_by_one([second, first])];
    let lens =
        |model: &Model| (0..NAMES.len()).map(|name| model.get(&name).map(Vec::len)).collect::<Vec<_>>();
    let here = snapshot(camp);
    let fits = candidates.contains(&here) || is_of_both(&here, &candidates);
    let expected = candidates.iter().map(lens).collect::<Vec<_>>();
    assert!(fits, "neither order: {:?}, expected {expected:?}", lens(&here));
    *model = here;
}

/// Two writes that overlap are each whole within a stripe only (S3).
fn is_of_both(here: &Model, [one, other]: &[Model; 2]) -> bool {
    let is_of_both = |(name, bytes): (&usize, &Vec<u8>)| {
        let (Some(one), Some(other)) = (one.get(name), other.get(name)) else { return false };
        let mut stripes = bytes.chunks(STRIPE).zip(one.chunks(STRIPE)).zip(other.chunks(STRIPE));
        let same_len = bytes.len() == one.len() && bytes.len() == other.len();
        same_len && stripes.all(|((here, one), other)| here == one || here == other)
    };
    here.len() == one.len() && here.iter().all(is_of_both)
}

fn snapshot(camp: &Camp) -> Model {
    let read = |name: usize| {
        let ino = find(camp, 0, name)?;
        let mut bytes = vec![0xee; LEN_MAX + 10];
        let len = surely(camp, 0, |_| camp.client(0).read(ino, 0, &mut bytes)).unwrap();
        bytes.truncate(len);
        Some((name, bytes))
    };
    (0..NAMES.len()).filter_map(read).collect()
}

fn name() -> impl Strategy<Value = usize> {
    0..NAMES.len()
}

/// Often where stripes begin.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![(0..=6usize).prop_map(|stripe| stripe * STRIPE), 0..LEN_MAX]
}

fn act() -> impl Strategy<Value = Act> {
    let write = (name(), place(), 1..2 * STRIPE, any::<u8>());
    prop_oneof![
        4 => write.prop_map(|(name, at, len, seed)| {
            let at = at.min(LEN_MAX - 1);
            Act::Write(name, at, len.min(LEN_MAX - at), seed)
        }),
        3 => (name(), place()).prop_map(|(name, len)| Act::Resize(name, len.min(LEN_MAX))),
        1 => name().prop_map(Act::Unlink),
        1 => (name(), name()).prop_map(|(from, to)| Act::Rename(from, to)),
        3 => name().prop_map(Act::Read),
        3 => name().prop_map(Act::Bring),
        4 => Just(Act::Flush),
    ]
}

/// What writes, within what does not: the outcome is known.
fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..NODES, act()).prop_map(|(node, act)| Step::Do(node, act)),
        6 => (0..NODES, act(), 0..WITHIN.len(), act())
            .prop_map(|(node, outer, within, inner)| Step::Within(node, outer, within, inner)),
        1 => (name(), 0..LEN_MAX, any::<u8>()).prop_map(|(name, len, seed)| Step::There(name, len, seed)),
        1 => Just(Step::Restart),
    ]
}

/// The same steps each time; others, by chance, where it is said how many cases.
fn runner() -> TestRunner {
    let config =
        ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return TestRunner::new(config);
    }
    let same = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(ProptestConfig { cases: 12, ..config }, same)
}

/// S161, S162, S165, S174.
#[test]
fn files_in_front_of_a_source_behave_like_the_model() {
    let policies = vec!["", "", "write=on-close", "write=through", "write=delayed"];
    let cases = (proptest::collection::vec(step(), 1..20), prop::sample::select(policies));
    let outcome = runner().run(&cases, |(steps, policy)| {
        run(&steps, policy);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
