//! Checksums: what flips is refused, what a kill leaves is not, and nothing else changes.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one stretch is meant")]

use super::*;
use crate::volume::transfer::write_all_at;
use crate::{CrashLoss, CrashVolume, DirectClient, FailingVolume, OpenMode, OperationKind, VolumeFault};
use bivouac_wire::subfile::SubfileHeader;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: usize = SUM_BLOCK as usize;

fn file_of(volume: &Arc<dyn Volume>, id: SubfileId) -> Arc<dyn VolumeFile> {
    volume.open(&names::name_of(id), OpenMode::Existing).unwrap()
}

/// Flips a bit of a subfile's data, as a disk would.
fn flip(volume: &Arc<dyn Volume>, id: SubfileId, at: u64) {
    let file = file_of(volume, id);
    let mut byte = [0];
    file.read_vectored_at(&mut [IoSliceMut::new(&mut byte)], SUMMED_DATA_AT + at).unwrap();
    byte[0] ^= 0x20;
    write_all_at(&*file, &[IoSlice::new(&byte)], SUMMED_DATA_AT + at).unwrap();
}

fn try_read(store: &DataStore, id: SubfileId, offset: u64, len: usize) -> StoreResult<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let (first, second) = bytes.split_at_mut(len / 3);
    let bufs = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
    let (count, _) = store.read(id, offset, bufs)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn is_wrong<T: std::fmt::Debug>(outcome: StoreResult<T>) -> bool {
    match outcome {
        Err(error @ StoreError::WrongBlock { .. }) => {
            assert_eq!(error.errno(), Errno::EIO);
            true
        }
        Ok(_) => false,
        Err(error) => panic!("{error}"),
    }
}

fn reconcile(store: &DataStore) {
    while store.settle_sums() {}
}

fn scrub(store: &DataStore, id: SubfileId) -> Scrubbed {
    store.scrub(id, 0, u64::MAX).unwrap()
}

fn pattern(len: usize, fill: u8) -> Vec<u8> {
    (0..len).map(|at| fill.wrapping_add((at % 253) as u8) | 1).collect()
}

/// S393, S394.
#[test]
fn a_flipped_bit_is_refused_named_and_goes_with_the_block_that_is_written_anew() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    let bytes = pattern(5 * BLOCK + 100, 3);
    write(&store, id(1), 0, 0, &bytes).unwrap();
    assert_eq!(try_read(&store, id(1), 0, 99_999).unwrap(), bytes);
    flip(&volume, id(1), 2 * BLOCK as u64 + 17);
    let error = try_read(&store, id(1), 0, 99_999).unwrap_err();
    assert!(error.to_string().contains("bytes 8192 to 12288"), "{error}");
    assert!(is_wrong(try_read(&store, id(1), 2 * BLOCK as u64 + 18, 1)), "a part of the block, too");
    assert_eq!(try_read(&store, id(1), 3 * BLOCK as u64, 9999).unwrap(), bytes[3 * BLOCK..3 * BLOCK + 8292]);
    assert_eq!(try_read(&store, id(1), 5, 2 * BLOCK - 5).unwrap(), bytes[5..2 * BLOCK]);
    let known = WrongPart { id: id(1), range: 2 * SUM_BLOCK..3 * SUM_BLOCK };
    assert_eq!((store.refused(), store.wrong(9), store.wrong_bytes()), (2, vec![known.clone()], SUM_BLOCK));
    assert_eq!(scrub(&store, id(1)).wrong, [known.range]);
    assert!(is_wrong(write(&store, id(1), 0, 2 * SUM_BLOCK + 9, b"part")), "damage would be summed up");
    write(&store, id(1), 0, 2 * SUM_BLOCK, &[7; BLOCK]).unwrap();
    assert_eq!(try_read(&store, id(1), 2 * SUM_BLOCK, BLOCK).unwrap(), [7; BLOCK]);
    assert_eq!((store.wrong(9), scrub(&store, id(1)).wrong), (vec![], vec![]));
}

/// S393.
#[test]
fn what_others_cut_off_is_refused_and_gets_no_sum_that_fits() {
    for end in [0, 1, 2 * BLOCK + 50, 3 * BLOCK] {
        let volume = memory();
        let store = summed_on(&volume, 0, 8);
        write(&store, id(1), 0, 0, &pattern(3 * BLOCK + 100, 3)).unwrap();
        file_of(&volume, id(1)).set_len(SUMMED_DATA_AT + end as u64).unwrap();
        drop(store);
        let store = summed_on(&volume, 0, 8);
        let first = end / BLOCK * BLOCK;
        assert_eq!(try_read(&store, id(1), 0, first).unwrap(), pattern(3 * BLOCK + 100, 3)[..first]);
        for at in [end, 3 * BLOCK + 50, 3 * BLOCK + 99] {
            assert!(is_wrong(try_read(&store, id(1), at as u64, 1)), "{end} {at}");
            assert!(
                is_wrong(write(&store, id(1), 0, at as u64, b"x")),
                "{end} {at}: damage would be summed up"
            );
        }
        assert!(is_wrong(try_read(&store, id(1), 0, 4 * BLOCK)), "{end}");
        assert_eq!(try_read(&store, id(1), 4 * SUM_BLOCK, BLOCK).unwrap(), [0; 0], "a hole stays one");
        write(&store, id(1), 0, 3 * SUM_BLOCK, &[7; BLOCK]).unwrap();
        assert_eq!(try_read(&store, id(1), 3 * SUM_BLOCK, BLOCK).unwrap(), [7; BLOCK]);
    }
}

/// S393.
#[test]
fn damage_of_the_sums_themselves_is_noticed_too() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &pattern(3 * BLOCK, 3)).unwrap();
    write_all_at(&*file_of(&volume, id(1)), &[IoSlice::new(&[0x55; 4])], 2112 + 4).unwrap();
    assert!(is_wrong(try_read(&store, id(1), 0, 3 * BLOCK)));
    assert_eq!(scrub(&store, id(1)).wrong, [SUM_BLOCK..2 * SUM_BLOCK]);
}

/// S395.
#[test]
fn without_checksums_nothing_is_compared_and_says_so() {
    let volume = memory();
    let store = store_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &pattern(3 * BLOCK, 3)).unwrap();
    let found = scrub(&store, id(1));
    assert_eq!((found.compared, found.skipped, found.next), (0, 3 * SUM_BLOCK, None));
    assert!(!store.usage()[0].checksum);
    // What is there stays as it is, whatever new subfiles get.
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 5, b"more").unwrap();
    write(&store, id(2), 0, 5, b"new").unwrap();
    assert!(store.usage()[0].checksum);
    assert_eq!(scrub(&store, id(1)).compared, 0);
    assert_eq!(scrub(&store, id(2)).compared, SUM_BLOCK);
    assert_eq!(read(&store, id(1), 5, 4), b"more");
}

#[test]
fn a_small_file_takes_no_more_room_for_its_sums() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, b"x").unwrap();
    assert_eq!((used(&store), occupied(&store)), (8192, 8192));
    let stat = store.stat(id(1)).unwrap().unwrap();
    assert_eq!((stat.len, stat.allocated, stat.front, stat.data_at), (1, 8192, 4096, SUMMED_DATA_AT));
    write(&store, id(2), 0, 0, &pattern(8 << 20, 1)).unwrap();
    let stat = store.stat(id(2)).unwrap().unwrap();
    assert_eq!((stat.front, stat.allocated), (3 << 12, (8 << 20) + (3 << 12)), "4 bytes for 4 KiB");
    assert_eq!(used(&store), occupied(&store));
}

/// A wide file that is mostly holes.
#[test]
fn holes_cost_nothing_and_are_compared_as_zeros() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    let far = 900u64 << 30;
    write(&store, id(1), 0, far + 5, b"end").unwrap();
    assert_eq!((used(&store), occupied(&store)), (3 * 4096, 3 * 4096));
    assert_eq!(try_read(&store, id(1), far - 4096, 4096 + 5).unwrap(), [0; 4096 + 5]);
    let found = scrub(&store, id(1));
    assert!(found.compared < 4 << 20 && found.wrong.is_empty(), "{found:?}");
    flip(&volume, id(1), far / 2);
    assert!(is_wrong(try_read(&store, id(1), far / 2, 1)), "garbage in a hole");
    assert_eq!(scrub(&store, id(1)).wrong, [far / 2..far / 2 + SUM_BLOCK]);
    // Behind the last block that can have a sum.
    let behind = super::super::sums::BLOCKS_MAX * SUM_BLOCK;
    write(&store, id(1), 0, behind - 2, b"abcd").unwrap();
    assert_eq!(try_read(&store, id(1), behind - 3, 5).unwrap(), b"\0abcd");
}

/// S396.
#[test]
fn what_cannot_be_cut_cleanly_stays_wrong() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &pattern(3 * BLOCK, 1)).unwrap();
    flip(&volume, id(1), SUM_BLOCK + 1);
    store.trim(id(1), &SPEC, 1, SUM_BLOCK + 2000).unwrap();
    assert!(is_wrong(try_read(&store, id(1), 0, 9999)), "a cut does not make it sound");
    assert_eq!(try_read(&store, id(1), 0, BLOCK).unwrap(), pattern(BLOCK, 1));
    store.trim(id(1), &SPEC, 2, SUM_BLOCK).unwrap();
    write(&store, id(1), 2, SUM_BLOCK + 5, b"new").unwrap();
    assert_eq!(try_read(&store, id(1), SUM_BLOCK, 99).unwrap(), b"\0\0\0\0\0new");
}

/// S397.
#[test]
fn a_write_that_failed_leaves_no_good_block_wrong() {
    for n in 0..60 {
        let inner = memory();
        let store = summed_on(&inner, 0, 8);
        write(&store, id(1), 0, 0, &pattern(3 * BLOCK, 1)).unwrap();
        drop(store);
        let volume: Arc<dyn Volume> = Arc::new(FailingVolume::nth(inner.clone(), n, Errno::EIO));
        let options = DataOptions { handles_max: 1, checksum: Checksum::On };
        if let Ok(store) = DataStore::with_volumes(vec![(volume, 0)], FORMATION, &options) {
            let _ = write(&store, id(1), 0, 100, &pattern(2 * BLOCK, 9));
            let _ = store.punch(id(1), &change(0, 50));
            let _ = store.zero(id(1), &SPEC, &change(4000, 5000));
            let _ = store.trim(id(1), &SPEC, 1, 7000);
            let _ = write(&store, id(1), 1, 8000, &pattern(BLOCK, 9));
            drop(try_read(&store, id(1), 0, 4 * BLOCK).inspect_err(|error| {
                assert!(!matches!(error, StoreError::WrongBlock { .. }), "operation {n}: {error}");
            }));
        }
        let store = summed_on(&inner, 0, 8);
        try_read(&store, id(1), 0, 4 * BLOCK).unwrap_or_else(|error| panic!("operation {n}: {error}"));
        reconcile(&store);
        assert_eq!(scrub(&store, id(1)).wrong, [], "operation {n}");
        assert_eq!(used(&store), occupied(&store));
    }
}

#[test]
fn short_transfers_are_compared_as_whole_ones() {
    let inner = memory();
    let volume: Arc<dyn Volume> = Arc::new(FailingVolume::new(inner.clone(), |op| match op.kind {
        OperationKind::Read | OperationKind::Write => VolumeFault::Short(1000),
        _ => VolumeFault::Pass,
    }));
    let store = summed_on(&volume, 0, 8);
    let bytes = pattern(3 * BLOCK + 50, 1);
    write(&store, id(1), 0, 0, &bytes).unwrap();
    write(&store, id(1), 0, 10, &bytes[10..9000]).unwrap();
    assert_eq!(try_read(&store, id(1), 3, 99_999).unwrap(), bytes[3..]);
    flip(&inner, id(1), 9000);
    assert!(is_wrong(try_read(&store, id(1), 3, 99_999)));
    assert_eq!(scrub(&store, id(1)).wrong, [2 * SUM_BLOCK..3 * SUM_BLOCK]);
}

fn change(offset: u64, len: u64) -> SpaceChange<'static> {
    SpaceChange { epoch: 0, offset, len, grow: offset + len, ticket: 1, awaited: ChangeCondition::ALWAYS }
}

/// The writes between kills, and the content of the file after each.
fn history(store: &DataStore, mut done: impl FnMut(&[u8])) {
    let mut model = Vec::new();
    let mut put = |store: &DataStore, epoch, at: usize, bytes: &[u8], model: &mut Vec<u8>| {
        write(store, id(1), epoch, at as u64, bytes).unwrap();
        model.resize(model.len().max(at + bytes.len()), 0);
        model[at..at + bytes.len()].copy_from_slice(bytes);
        done(model);
    };
    put(store, 0, 0, b"abcdef", &mut model);
    put(store, 0, 3, &pattern(3 * BLOCK, 1), &mut model);
    put(store, 0, 5000, &pattern(BLOCK, 2), &mut model);
    put(store, 0, 6 * BLOCK + 7, b"behind a hole", &mut model);
    store.trim(id(1), &SPEC, 1, 5100).unwrap();
    model.truncate(5100);
    put(store, 1, 2 * BLOCK, b"again", &mut model);
    store.punch(id(1), &SpaceChange { epoch: 1, ..change(100, 4500) }).unwrap();
    model[100..4600].fill(0);
    put(store, 1, 50, &pattern(60, 4), &mut model);
    store.zero(id(1), &SPEC, &SpaceChange { epoch: 1, ..change(0, 9000) }).unwrap();
    model.fill(0);
    model.resize(9000, 0);
    put(store, 1, 0, &pattern(9000, 5), &mut model);
}

/// S398: a kill after every change of the volume, and in the middle of every write.
#[test]
fn a_kill_at_any_moment_makes_no_good_block_wrong() {
    let volume = Arc::new(CrashVolume::default());
    let as_volume: Arc<dyn Volume> = volume.clone();
    let store = summed_on(&as_volume, 0, 1);
    let mut acknowledged = vec![(volume.steps(), Vec::new())];
    history(&store, |content| acknowledged.push((volume.steps(), content.to_vec())));
    for steps in 0..=volume.steps() {
        for torn in [None, Some(0), Some(2), Some(17), Some(31), Some(1000), Some(5000)] {
            let loss = torn.map_or(CrashLoss::Nothing, CrashLoss::Torn);
            let crashed: Arc<dyn Volume> = Arc::new(volume.after(steps, loss).unwrap());
            let store = summed_on(&crashed, 0, 10);
            let what = format!("after {steps} changes, {torn:?}");
            let content = match try_read(&store, id(1), 0, 99_999) {
                // The header is within a page: a kill leaves it old or new.
                Err(StoreError::Corrupt { .. }) if torn.is_some() => continue,
                content => content.unwrap_or_else(|error| panic!("{what}: {error}")),
            };
            if let (None, Some((_, exact))) = (torn, acknowledged.iter().find(|(at, _)| *at == steps)) {
                assert!(content == *exact, "{what}");
            }
            reconcile(&store);
            let found = scrub(&store, id(1));
            assert!(found.wrong.is_empty() && found.settled == 0, "{what}: {found:?}");
            assert!(try_read(&store, id(1), 0, 99_999).unwrap() == content, "{what}");
            assert_eq!(used(&store), occupied(&store), "{what}");
            // What was settled is as sound as the rest.
            for at in (0..content.len()).step_by(BLOCK) {
                flip(&crashed, id(1), at as u64);
                assert!(is_wrong(try_read(&store, id(1), at as u64, 1)), "{what}");
                flip(&crashed, id(1), at as u64);
            }
            write(&store, id(1), 1, 30, b"goes on").unwrap();
            assert_eq!(read(&store, id(1), 30, 7), b"goes on", "{what}");
        }
    }
}

/// S398: a kill of who puts sums to what an earlier kill left.
#[test]
fn a_second_kill_does_no_harm_either() {
    let volume = Arc::new(CrashVolume::default());
    let as_volume: Arc<dyn Volume> = volume.clone();
    let store = summed_on(&as_volume, 0, 1);
    write(&store, id(1), 0, 0, &pattern(3 * BLOCK, 1)).unwrap();
    write(&store, id(1), 0, 100, &pattern(2 * BLOCK, 7)).unwrap();
    for steps in 0..=volume.steps() {
        let first = Arc::new(volume.after(steps, CrashLoss::Torn(1500)).unwrap());
        let before = first.steps();
        let as_volume: Arc<dyn Volume> = first.clone();
        let store = summed_on(&as_volume, 0, 10);
        let content = try_read(&store, id(1), 0, 99_999).unwrap();
        reconcile(&store);
        for again in before..=first.steps() {
            for loss in [CrashLoss::Nothing, CrashLoss::Torn(5)] {
                let crashed: Arc<dyn Volume> = Arc::new(first.after(again, loss).unwrap());
                let store = summed_on(&crashed, 0, 10);
                assert!(try_read(&store, id(1), 0, 99_999).unwrap() == content, "after {steps} and {again}");
                reconcile(&store);
                assert_eq!(scrub(&store, id(1)).wrong, []);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { ino: u64, offset: u64, len: usize },
    Trim { ino: u64, len: u64 },
    Punch { ino: u64, offset: u64, len: u64 },
    Zero { ino: u64, offset: u64, len: u64 },
    Reserve { ino: u64, offset: u64, len: u64 },
    Read { ino: u64, offset: u64, len: usize },
    Flip { ino: u64, at: u64 },
    Scrub { ino: u64 },
    Remove { ino: u64 },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let ino = || 1u64..3;
    let at = || prop_oneof![0u64..40_000, (0u64..9).prop_map(|block| block * SUM_BLOCK)];
    let len = || prop_oneof![1u64..200, 1u64..9000, (1u64..4).prop_map(|blocks| blocks * SUM_BLOCK)];
    prop_oneof![
        8 => (ino(), at(), len()).prop_map(|(ino, offset, len)| Step::Write { ino, offset, len: len as usize }),
        1 => (ino(), at()).prop_map(|(ino, len)| Step::Trim { ino, len }),
        1 => (ino(), at(), len()).prop_map(|(ino, offset, len)| Step::Punch { ino, offset, len }),
        1 => (ino(), at(), len()).prop_map(|(ino, offset, len)| Step::Zero { ino, offset, len }),
        1 => (ino(), at(), len()).prop_map(|(ino, offset, len)| Step::Reserve { ino, offset, len }),
        4 => (ino(), at(), len()).prop_map(|(ino, offset, len)| Step::Read { ino, offset, len: len as usize }),
        2 => (ino(), at()).prop_map(|(ino, at)| Step::Flip { ino, at }),
        1 => ino().prop_map(|ino| Step::Scrub { ino }),
        1 => ino().prop_map(|ino| Step::Remove { ino }),
        1 => Just(Step::Reopen),
    ]
}

/// Content, epoch, and the blocks that were flipped.
#[derive(Default)]
struct Model {
    data: Vec<u8>,
    epoch: u32,
    wrong: BTreeSet<u64>,
}

impl Model {
    /// Returns whether a part of a wrong block is in a range, and not all of it.
    fn cuts_wrong(&self, offset: u64, end: u64) -> bool {
        self.wrong.iter().any(|block| {
            let (first, last) = (block * SUM_BLOCK, (block + 1) * SUM_BLOCK);
            first < end && offset < last && (offset > first || end < last)
        })
    }

    fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.data.resize(self.data.len().max(end), 0);
        self.data[offset as usize..end].copy_from_slice(bytes);
        self.heal(offset, end as u64);
    }

    fn heal(&mut self, offset: u64, end: u64) {
        self.wrong.retain(|block| block * SUM_BLOCK < offset || (block + 1) * SUM_BLOCK > end);
    }

    fn zero(&mut self, offset: u64, end: u64) {
        let end = end.min(self.data.len() as u64);
        if offset < end {
            self.data[offset as usize..end as usize].fill(0);
        }
    }
}

fn apply(
    store: &DataStore,
    volume: &Arc<dyn Volume>,
    models: &mut BTreeMap<u64, Model>,
    step: &Step,
    fill: u8,
) {
    let epoch = |models: &BTreeMap<u64, Model>, ino| models.get(&ino).map_or(0, |model| model.epoch);
    match *step {
        Step::Write { ino, offset, len } => {
            let bytes = pattern(len, fill);
            let outcome = write(store, id(ino), epoch(models, ino), offset, &bytes);
            let model = models.entry(ino).or_default();
            let refused = model.cuts_wrong(offset, offset + len as u64);
            assert_eq!(is_wrong(outcome), refused);
            if !refused {
                model.fill(offset, &bytes);
            }
        }
        Step::Trim { ino, len } => {
            let next = epoch(models, ino) + 1;
            store.trim(id(ino), &SPEC, next, len).unwrap();
            let model = models.entry(ino).or_default();
            model.epoch = next;
            model.data.truncate(len as usize);
            model.wrong.retain(|block| block * SUM_BLOCK < len);
        }
        Step::Punch { ino, offset, len } => {
            let how = SpaceChange { epoch: epoch(models, ino), ..change(offset, len) };
            store.punch(id(ino), &how).unwrap();
            if let Some(model) = models.get_mut(&ino) {
                model.zero(offset, offset + len);
                model.heal(offset, offset + len);
            }
        }
        Step::Zero { ino, offset, len } => {
            let how = SpaceChange { epoch: epoch(models, ino), ..change(offset, len) };
            store.zero(id(ino), &SPEC, &how).unwrap();
            let model = models.entry(ino).or_default();
            model.data.resize(model.data.len().max((offset + len) as usize), 0);
            model.zero(offset, offset + len);
            model.heal(offset, offset + len);
        }
        Step::Reserve { ino, offset, len } => {
            let how = SpaceChange { epoch: epoch(models, ino), ..change(offset, len) };
            store.reserve(id(ino), &SPEC, &how).unwrap();
            let model = models.entry(ino).or_default();
            model.data.resize(model.data.len().max((offset + len) as usize), 0);
        }
        Step::Flip { ino, at } => {
            let Some(model) = models.get_mut(&ino).filter(|model| at < model.data.len() as u64) else {
                return;
            };
            if model.wrong.insert(at / SUM_BLOCK) {
                flip(volume, id(ino), at);
            }
        }
        Step::Read { ino, offset, len } => check_read(store, models.get(&ino), id(ino), offset, len),
        Step::Scrub { ino } => {
            let found = scrub(store, id(ino));
            let wrong: BTreeSet<u64> =
                found.wrong.iter().flat_map(|range| range.start / SUM_BLOCK..range.end / SUM_BLOCK).collect();
            assert_eq!(wrong, models.get(&ino).map(|model| model.wrong.clone()).unwrap_or_default());
        }
        Step::Remove { ino } => {
            assert_eq!(store.remove(id(ino)).unwrap(), models.remove(&ino).is_some());
        }
        Step::Reopen => {}
    }
}

fn check_read(store: &DataStore, model: Option<&Model>, id: SubfileId, offset: u64, len: usize) {
    let empty = Model::default();
    let model = model.unwrap_or(&empty);
    let end = (offset + len as u64).min(model.data.len() as u64);
    let touches = |block: &u64| block * SUM_BLOCK < end && offset < (block + 1) * SUM_BLOCK;
    match try_read(store, id, offset, len) {
        Ok(bytes) => {
            assert!(!model.wrong.iter().any(touches) || offset >= end, "a wrong block was served");
            let start = model.data.len().min(offset as usize);
            assert!(bytes == model.data[start..start.max(end as usize)], "other bytes at {offset}");
        }
        error => assert!(is_wrong(error) && model.wrong.iter().any(touches), "a sound block was refused"),
    }
}

fn run(volume: &Arc<dyn Volume>, steps: &[Step]) {
    let mut store = summed_on(volume, 0, 2);
    let mut models = BTreeMap::new();
    for (fill, step) in steps.iter().enumerate() {
        if matches!(step, Step::Reopen) {
            store = summed_on(volume, 0, 2);
        }
        apply(&store, volume, &mut models, step, fill as u8);
    }
    reconcile(&store);
    for (ino, model) in &models {
        (0..=model.data.len() as u64 / SUM_BLOCK)
            .for_each(|block| check_read(&store, Some(model), id(*ino), block * SUM_BLOCK, BLOCK));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// S393 and S398, against a model: flips are never served, what was not flipped always is.
    #[test]
    fn flips_are_never_served_and_nothing_else_is_refused(steps in proptest::collection::vec(step(), 0..40)) {
        run(&memory(), &steps);
    }

    #[test]
    fn nor_on_tmpfs(steps in proptest::collection::vec(step(), 0..25)) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let identity = VolumeIdentity { formation: FORMATION, node: NodeId(0), index: 0 };
        let volume: Arc<dyn Volume> = Arc::new(DirVolume::open(dir.path(), identity, false).unwrap());
        run(&volume, &steps);
    }
}

#[test]
fn what_does_not_fit_leaves_no_room_taken_for_sums() {
    for capacity in [0, 40 << 20] {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::new(64 << 20));
        let store = summed_on(&volume, capacity, 8);
        write(&store, id(1), 0, 5000, b"abc").unwrap();
        let before = (used(&store), occupied(&store));
        for offset in [0, 1 << 30] {
            let how = change(offset, 1 << 30);
            assert!(store.reserve(id(1), &SPEC, &how).unwrap_err().is_full());
            assert!(store.zero(id(1), &SPEC, &how).unwrap_err().is_full());
            assert_eq!((used(&store), occupied(&store)), before, "{capacity} {offset}");
        }
        store.reserve(id(1), &SPEC, &change(1 << 30, 12 << 20)).unwrap();
        store.take_back(id(1), 1).unwrap();
        assert_eq!((used(&store), occupied(&store)), before);
        assert_eq!(scrub(&store, id(1)).wrong, []);
    }
}

/// S404: what was synced is on the disk with its sums.
#[test]
fn a_loss_of_power_takes_only_what_was_not_synced() {
    let volume = Arc::new(CrashVolume::default());
    let as_volume: Arc<dyn Volume> = volume.clone();
    let store = summed_on(&as_volume, 0, 1);
    write(&store, id(1), 0, 0, &pattern(3 * BLOCK, 1)).unwrap();
    store.sync(id(1)).unwrap();
    write(&store, id(1), 0, 3 * SUM_BLOCK, &pattern(BLOCK, 2)).unwrap();
    let crashed: Arc<dyn Volume> = Arc::new(volume.after(volume.steps(), CrashLoss::Unsynced).unwrap());
    let store = summed_on(&crashed, 0, 1);
    assert_eq!(try_read(&store, id(1), 0, 3 * BLOCK).unwrap(), pattern(3 * BLOCK, 1));
    flip(&crashed, id(1), 0);
    assert!(is_wrong(try_read(&store, id(1), 0, 1)));
}

/// A process that writes by itself, and tells where, or is killed.
#[derive(Debug, Default)]
struct Writer {
    over: std::sync::atomic::AtomicBool,
    written: parking_lot::Mutex<Option<Written>>,
}

impl DirectClient for Writer {
    fn close(&self) {
        self.over.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn drain(&self, _: std::time::Duration) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.over.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn written(&self) -> Written {
        self.written.lock().unwrap_or(Written::Anywhere)
    }
}

/// A store on a directory with a subfile of 1 MiB, and what a process was granted of it.
fn lent() -> (tempfile::TempDir, Arc<dyn Volume>, DataStore, Arc<Writer>, Granted, std::fs::File) {
    use std::os::fd::AsFd;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let identity = VolumeIdentity { formation: FORMATION, node: NodeId(0), index: 0 };
    let volume: Arc<dyn Volume> = Arc::new(DirVolume::open(dir.path(), identity, false).unwrap());
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &pattern(1 << 20, 1)).unwrap();
    let writer: Arc<Writer> = Arc::default();
    let holder: Arc<dyn DirectClient> = writer.clone();
    let granted = store.grant(id(1), Access::Write, 0..10, &holder).unwrap().unwrap();
    let file = granted.file.as_fd().unwrap().as_fd().try_clone_to_owned().unwrap();
    (dir, volume, store, writer, granted, file.into())
}

/// S399.
#[test]
fn what_a_process_wrote_itself_gets_sums_and_the_rest_keeps_them() {
    use std::os::unix::fs::FileExt;
    let (_dir, volume, store, writer, granted, file) = lent();
    assert_eq!(granted.file.data_offset(), SUMMED_DATA_AT);
    let shift = granted.marks_shift.unwrap();
    assert!(1 << shift < 1 << 20 && granted.window.end <= 256 << shift, "{shift}");
    file.write_all_at(b"direct", SUMMED_DATA_AT + 5).unwrap();
    *writer.written.lock() = Some(Written::Parts { shift, map: [1, 0, 0, 0] });
    assert_eq!(store.scrub(id(1), 0, u64::MAX).unwrap().compared, 0, "as long as he has it");
    flip(&volume, id(1), 1 << shift);
    let mut expected = pattern(1 << 20, 1);
    expected[5..11].copy_from_slice(b"direct");
    assert_eq!(try_read(&store, id(1), 0, 1 << shift).unwrap(), expected[..1 << shift]);
    assert!(writer.is_over());
    assert!(is_wrong(try_read(&store, id(1), 1 << shift, 1)), "nobody wrote there");
    reconcile(&store);
    let found = scrub(&store, id(1));
    assert_eq!((found.settled, found.wrong), (0, vec![1 << shift..(1 << shift) + SUM_BLOCK]));
    flip(&volume, id(1), 9);
    assert!(is_wrong(try_read(&store, id(1), 0, 1)), "it has sums again");
    let holder: Arc<dyn DirectClient> = Arc::new(Writer::default());
    store.revoke(id(1)).unwrap();
    assert!(store.grant(id(1), Access::Read, 0..1, &holder).unwrap().is_none(), "he would compare nothing");
}

/// S399: who reads itself compares nothing.
#[test]
fn damage_that_is_known_ends_all_grants_at_once() {
    type Damage = fn(&DataStore, &Arc<dyn Volume>);
    let damages: [(&str, Damage); 4] = [
        ("a read", |store, volume| {
            flip(volume, id(1), 5);
            assert!(is_wrong(try_read(store, id(1), 0, 1)));
        }),
        ("a scrub", |store, volume| {
            flip(volume, id(1), 1 << 19);
            assert_eq!(scrub(store, id(1)).wrong.len(), 1);
        }),
        ("a read behind the end", |store, volume| {
            file_of(volume, id(1)).set_len(0).unwrap();
            assert_eq!(try_read(store, id(1), 0, 1).unwrap_err().errno(), Errno::EIO);
        }),
        ("a look for data", |store, volume| {
            file_of(volume, id(1)).set_len(5000).unwrap();
            assert_eq!(store.next_data(id(1), 0).unwrap_err().errno(), Errno::EIO);
        }),
    ];
    for (what, damage) in damages {
        let (_dir, volume, store, _writer, _granted, _file) = lent();
        store.revoke(id(1)).unwrap();
        reconcile(&store);
        let readers: Vec<Arc<Writer>> = (0..2).map(|_| Arc::default()).collect();
        for reader in &readers {
            let holder: Arc<dyn DirectClient> = reader.clone();
            assert!(store.grant(id(1), Access::Read, 0..1, &holder).unwrap().is_some(), "{what}");
        }
        damage(&store, &volume);
        assert!(readers.iter().all(|reader| reader.is_over()), "{what}: somebody reads on");
        let holder: Arc<dyn DirectClient> = Arc::new(Writer::default());
        let again = store.grant(id(1), Access::Read, 0..1, &holder);
        assert!(again.map_or(true, |granted| granted.is_none()), "{what}: granted again");
    }
}

/// S393: no kill, no other start, and the local file is shorter than it was.
#[test]
fn what_is_cut_off_beneath_a_store_is_no_hole() {
    let front = SUMMED_DATA_AT;
    for cut in [0, 1, 100, 2200, 4095, 4096, 5000, 8192, 1 << 20, front - 1, front, front + 100, front + 9000]
    {
        for first in [0, 3 << 20] {
            let volume = memory();
            let store = summed_on(&volume, 0, 8);
            let bytes = pattern(5 * BLOCK + 100, 3);
            write(&store, id(1), 0, first, &bytes).unwrap();
            file_of(&volume, id(1)).set_len(cut).unwrap();
            // Of a file without a header nothing is found any more; a sparse one without its entries is empty.
            let is_found_later = cut >= 4096 && (first == 0 || cut != 4096);
            let check = |store: &DataStore| {
                for at in (0..bytes.len() as u64).step_by(1000) {
                    let len = 1000.min(bytes.len() - at as usize);
                    match try_read(store, id(1), first + at, len) {
                        Ok(read) => {
                            assert_eq!(read, bytes[at as usize..at as usize + len], "{cut} {first} {at}")
                        }
                        Err(error) => assert_eq!(error.errno(), Errno::EIO, "{cut} {first} {at}"),
                    }
                }
                assert!(try_read(store, id(1), first, 9 * BLOCK).is_err(), "{cut} {first}");
                let data = store.next_data(id(1), first + 4 * SUM_BLOCK);
                assert!(
                    data.map_or(true, |(data, _)| data.is_some()),
                    "{cut} {first}: a hole, for who copies"
                );
                let found = store.scrub(id(1), 0, u64::MAX);
                assert!(found.map_or(true, |found| !found.wrong.is_empty()), "{cut} {first}");
            };
            check(&store);
            // Nobody makes it look whole.
            let part = write(&store, id(1), 0, first + 5 * SUM_BLOCK, b"part of a block");
            assert_eq!(part.unwrap_err().errno(), Errno::EIO, "{cut} {first}");
            check(&store);
            if cut < front {
                assert!(write(&store, id(1), 0, first, &[7; BLOCK]).is_err(), "{cut} {first}");
                assert!(store.trim(id(1), &SPEC, 1, first + 9 * SUM_BLOCK).is_err(), "{cut} {first}");
                check(&store);
            }
            if is_found_later {
                drop(store);
                let store = summed_on(&volume, 0, 8);
                check(&store);
                assert!(store.remove(id(1)).unwrap());
                continue;
            }
            // Cut to nothing it is whole again.
            store.trim(id(1), &SPEC, 2, 0).unwrap();
            write(&store, id(1), 2, 5, b"anew").unwrap();
            assert_eq!(try_read(&store, id(1), 0, 99).unwrap(), b"\0\0\0\0\0anew");
            drop(store);
            assert_eq!(try_read(&summed_on(&volume, 0, 8), id(1), 5, 99).unwrap(), b"anew");
        }
    }
}

/// S393: what lies in front of the content is damaged, too, and daemons come and go.
#[test]
fn damage_in_front_of_the_content_makes_no_wrong_block_right() {
    const BLOCKS: usize = 40;
    let bytes = pattern(BLOCKS * BLOCK, 3);
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &bytes).unwrap();
    drop(store);
    flip(&volume, id(1), 7 * SUM_BLOCK + 9);
    let file = file_of(&volume, id(1));
    let entries = 2112..2112 + 4 * BLOCKS as u64;
    for at in (2048..2088).chain(entries) {
        let mut byte = [0];
        file.read_vectored_at(&mut [IoSliceMut::new(&mut byte)], at).unwrap();
        write_all_at(&*file, &[IoSlice::new(&[!byte[0]])], at).unwrap();
        let store = summed_on(&volume, 0, 8);
        reconcile(&store);
        let found = scrub(&store, id(1));
        assert!(found.wrong.iter().any(|wrong| wrong.contains(&(7 * SUM_BLOCK))), "{at}: {found:?}");
        assert!(is_wrong(try_read(&store, id(1), 7 * SUM_BLOCK, BLOCK)), "{at}");
        for block in (0..BLOCKS).filter(|block| *block != 7) {
            match try_read(&store, id(1), block as u64 * SUM_BLOCK, BLOCK) {
                Ok(read) => assert!(read == bytes[block * BLOCK..][..BLOCK], "{at} {block}"),
                Err(error) => assert_eq!(error.errno(), Errno::EIO, "{at} {block}"),
            }
        }
        drop(store);
        write_all_at(&*file, &[IoSlice::new(&byte)], at).unwrap();
    }
}

/// S399: daemon and process are killed while the process writes.
#[test]
fn a_direct_write_that_was_killed_makes_no_good_block_wrong() {
    use std::os::unix::fs::FileExt;
    let (_dir, volume, store, _writer, _granted, file) = lent();
    file.write_all_at(&[9; 10_000], SUMMED_DATA_AT + 300_000).unwrap();
    file.write_all_at(&[8; 100], SUMMED_DATA_AT + (1 << 20) + 77).unwrap();
    drop(store);
    let store = summed_on(&volume, 0, 8);
    let mut expected = pattern(1 << 20, 1);
    expected[300_000..310_000].fill(9);
    expected.resize((1 << 20) + 77, 0);
    expected.extend([8; 100]);
    assert!(try_read(&store, id(1), 0, 2 << 20).unwrap() == expected);
    reconcile(&store);
    let found = scrub(&store, id(1));
    assert_eq!((found.settled, found.wrong.len()), (0, 0));
    flip(&volume, id(1), 300_000);
    assert!(is_wrong(try_read(&store, id(1), 300_000, 1)));
    assert_eq!(used(&store), occupied(&store));
}

/// S399: it stands still in the middle of a write, and goes on under the next daemon.
#[test]
fn who_is_still_inside_when_the_daemon_comes_back_may_write_anywhere() {
    use std::os::unix::fs::FileExt;
    let (_dir, volume, store, _writer, _granted, file) = lent();
    drop(store);
    let store = summed_on(&volume, 0, 8);
    let stuck: Arc<dyn DirectClient> = Arc::new(Writer::default());
    store.adopt(id(1), stuck).unwrap();
    reconcile(&store);
    file.write_all_at(&[9; 10_000], SUMMED_DATA_AT + 5000).unwrap();
    assert_eq!(try_read(&store, id(1), 5000, 10_000).unwrap(), [9; 10_000]);
    reconcile(&store);
    assert_eq!(scrub(&store, id(1)).wrong, []);
}

/// S393.
#[test]
fn a_file_that_has_sums_is_not_sent_from_where_it_lies() {
    let (_dir, volume, store, _writer, _granted, _file) = lent();
    store.revoke(id(1)).unwrap();
    let sent = |store: &DataStore, id| store.send_part(id, 9, &(0..10), |_, _| true).unwrap();
    assert!(!sent(&store, id(1)));
    let plain = store_on(&volume, 0, 8);
    write(&plain, id(2), 0, 0, &[1; 100]).unwrap();
    assert!(sent(&plain, id(2)));
}

/// S400: with a header anew they were read as holes.
#[test]
fn a_first_page_that_became_zeros_makes_no_holes_of_what_it_had_sums_of() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &pattern(3 << 20, 1)).unwrap();
    drop(store);
    let offline = Subfiles::new(volume.clone(), 0, FORMATION);
    let (page, _) = offline.page(None, 9).unwrap();
    let header = page[0].header.as_ref().unwrap().clone();
    write_all_at(&*file_of(&volume, id(1)), &[IoSlice::new(&[0; 4096])], 0).unwrap();
    assert!(offline.has_sums(id(1)), "by where its bytes are");
    offline.write_header(id(1), &header).unwrap();
    assert!(offline.page(None, 9).unwrap().0[0].header.as_ref().unwrap().sums);
    let wrong = offline.scrub(id(1), |_| ()).unwrap().wrong;
    assert!(wrong.first().is_some_and(|wrong| wrong.start == 0), "{wrong:?}");
    let store = summed_on(&volume, 0, 8);
    let mut out = [1u8; 4096];
    let error = store.read(id(1), 0, &mut [IoSliceMut::new(&mut out)]).unwrap_err();
    assert_eq!(error.errno(), Errno::EIO);
    assert_eq!(read(&store, id(1), 2 << 20, 9), pattern(3 << 20, 1)[2 << 20..(2 << 20) + 9]);
}

/// S400.
#[test]
fn the_volumes_of_a_stopped_formation_can_be_compared() {
    let volume = memory();
    let store = summed_on(&volume, 0, 8);
    write(&store, id(1), 0, 0, &pattern(3 << 20, 1)).unwrap();
    drop(store);
    let offline = Subfiles::new(volume.clone(), 0, FORMATION);
    assert!(offline.has_sums(id(1)));
    let found = offline.scrub(id(1), |_| ()).unwrap();
    assert_eq!((found.compared, found.wrong.len(), found.next), (3 << 20, 0, None));
    flip(&volume, id(1), 2 << 20);
    assert_eq!(offline.scrub(id(1), |_| ()).unwrap().wrong, [2 << 20..(2 << 20) + SUM_BLOCK]);
    // A header is written anew beside the sums.
    let (page, _) = offline.page(None, 9).unwrap();
    let header = page[0].header.as_ref().unwrap();
    offline.write_header(id(1), &SubfileHeader { trim_epoch: 9, ..header.clone() }).unwrap();
    assert_eq!(offline.scrub(id(1), |_| ()).unwrap().wrong.len(), 1);
}
