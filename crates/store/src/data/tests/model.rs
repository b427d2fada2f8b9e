//! Random operations on some subfiles against arrays of bytes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Write {
        ino: u64,
        older: bool,
        offset: u64,
        len: usize,
        pieces: usize,
    },
    /// Places of so many bytes each, behind gaps of so many bytes.
    Places {
        ino: u64,
        offset: u64,
        len: usize,
        gaps: Vec<u64>,
    },
    Trim {
        ino: u64,
        raise: u32,
        len_max: u64,
    },
    Remove {
        ino: u64,
    },
    Read {
        ino: u64,
        offset: u64,
        len: usize,
    },
    Stat {
        ino: u64,
    },
    Reopen,
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, 0u64..20_000, (0u64..12).prop_map(|page| page * 4096), 4090u64..4100, 0u64..80_000]
}

fn step() -> impl Strategy<Value = Step> {
    let ino = || 1u64..4;
    prop_oneof![
        8 => (ino(), prop::bool::weighted(0.1), offset(), 1usize..9000, 1usize..4)
            .prop_map(|(ino, older, offset, len, pieces)| Step::Write { ino, older, offset, len, pieces }),
        3 => (ino(), offset(), 1usize..700, prop::collection::vec(0u64..4096, 1..30))
            .prop_map(|(ino, offset, len, gaps)| Step::Places { ino, offset, len, gaps }),
        2 => (ino(), 0u32..3, offset()).prop_map(|(ino, raise, len_max)| Step::Trim { ino, raise, len_max }),
        1 => ino().prop_map(|ino| Step::Remove { ino }),
        2 => (ino(), offset(), 0usize..9000).prop_map(|(ino, offset, len)| Step::Read { ino, offset, len }),
        1 => ino().prop_map(|ino| Step::Stat { ino }),
        1 => Just(Step::Reopen),
    ]
}

/// Data and epoch.
type Model = BTreeMap<u64, (Vec<u8>, u32)>;

fn check_write(store: &DataStore, model: &mut Model, step: &Step, fill: u8) {
    let Step::Write { ino, older, offset, len, pieces } = *step else { return };
    let bytes: Vec<u8> = (0..len).map(|i| fill.wrapping_add((i % 251) as u8) | 1).collect();
    let slices: Vec<IoSlice<'_>> = bytes.chunks(len.div_ceil(pieces)).map(IoSlice::new).collect();
    let current = model.get(&ino).map_or(1000, |(_, epoch)| *epoch);
    let epoch = if older { current - 1 } else { current };
    let result = store.write(id(ino), &SPEC, epoch, offset, &slices);
    if older && model.contains_key(&ino) {
        assert!(matches!(result, Err(StoreError::StaleEpoch { current: now }) if now == current));
        return;
    }
    assert_eq!(result.unwrap(), epoch);
    let (data, _) = model.entry(ino).or_insert((Vec::new(), epoch));
    let end = offset as usize + len;
    if data.len() < end {
        data.resize(end, 0);
    }
    data[offset as usize..end].copy_from_slice(&bytes);
}

fn check_places(store: &DataStore, model: &mut Model, step: &Step, fill: u8) {
    let Step::Places { ino, offset, len, ref gaps } = *step else { return };
    let mut at = offset;
    let extents: Vec<(u64, u32)> = gaps
        .iter()
        .map(|gap| {
            let place = (at, len as u32);
            at += len as u64 + gap;
            place
        })
        .collect();
    let bytes: Vec<u8> = (0..len * gaps.len()).map(|i| fill.wrapping_add((i % 251) as u8) | 1).collect();
    let slices: Vec<IoSlice<'_>> = bytes.chunks(1000).map(IoSlice::new).collect();
    let places = Places::new(&extents, &slices).unwrap();
    let epoch = model.get(&ino).map_or(1000, |(_, epoch)| *epoch);
    assert_eq!(store.write_places(id(ino), &SPEC, epoch, &places, ChangeCondition::ALWAYS).unwrap(), epoch);
    let (data, _) = model.entry(ino).or_insert((Vec::new(), epoch));
    data.resize(data.len().max(places.span().end as usize), 0);
    for ((at, _), piece) in extents.iter().zip(bytes.chunks(len)) {
        data[*at as usize..][..len].copy_from_slice(piece);
    }
}

fn check_trim(store: &DataStore, model: &mut Model, ino: u64, raise: u32, len_max: u64) {
    let current = model.get(&ino).map_or(1000, |(_, epoch)| *epoch);
    let epoch = current + raise;
    store.trim(id(ino), &SPEC, epoch, len_max).unwrap();
    let (data, now) = model.entry(ino).or_insert((Vec::new(), epoch));
    if epoch > current {
        data.truncate(len_max as usize);
        *now = epoch;
    }
}

fn check_read(store: &DataStore, model: &Model, ino: u64, offset: u64, len: usize) {
    let data = model.get(&ino).map_or(&[][..], |(data, _)| data);
    let start = data.len().min(offset as usize);
    let end = data.len().min(offset as usize + len);
    assert_eq!(read(store, id(ino), offset, len), data[start..end]);
}

fn check_stat(store: &DataStore, model: &Model, ino: u64) {
    let stat = store.stat(id(ino)).unwrap();
    let expected = model.get(&ino).map(|(data, epoch)| (data.len() as u64, *epoch));
    assert_eq!(stat.as_ref().map(|stat| (stat.len, stat.epoch)), expected);
}

fn check_all(store: &DataStore, model: &Model) {
    for ino in 1..4 {
        check_read(store, model, ino, 0, 100_000);
        check_stat(store, model, ino);
    }
    let listed: Vec<ListedSubfile> = store.list(0).unwrap().collect();
    assert_eq!(listed.len(), model.len());
    for found in &listed {
        let (data, epoch) = &model[&found.id.ino.0];
        assert_eq!((found.len, found.header.as_ref().unwrap().trim_epoch), (data.len() as u64, *epoch));
    }
    assert_eq!(used(store), occupied(store), "every byte is accounted for");
    assert_eq!(store.usage()[0].files, model.len() as u64);
}

fn run(volume: &Arc<dyn Volume>, handles_max: usize, checksum: Checksum, steps: &[Step]) {
    let options = DataOptions { handles_max, checksum };
    let store_on = || DataStore::with_volumes(vec![(volume.clone(), 0)], FORMATION, &options).unwrap();
    let mut store = store_on();
    let mut model = Model::new();
    for (fill, step) in steps.iter().enumerate() {
        match *step {
            Step::Places { .. } => check_places(&store, &mut model, step, fill as u8),
            Step::Write { .. } => check_write(&store, &mut model, step, fill as u8),
            Step::Trim { ino, raise, len_max } => check_trim(&store, &mut model, ino, raise, len_max),
            Step::Remove { ino } => {
                assert_eq!(store.remove(id(ino)).unwrap(), model.remove(&ino).is_some());
            }
            Step::Read { ino, offset, len } => check_read(&store, &model, ino, offset, len),
            Step::Stat { ino } => check_stat(&store, &model, ino),
            Step::Reopen => store = store_on(),
        }
        assert_eq!(used(&store), occupied(&store), "after {step:?}");
    }
    check_all(&store, &model);
    check_all(&store_on(), &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn a_subfile_is_an_array_of_bytes(
        steps in proptest::collection::vec(step(), 0..40),
        handles_max in prop_oneof![Just(1usize), Just(2), Just(100)],
        checksum in prop_oneof![Just(Checksum::Off), Just(Checksum::On)],
    ) {
        run(&memory(), handles_max, checksum, &steps);
    }

    #[test]
    fn so_is_one_on_tmpfs(
        steps in proptest::collection::vec(step(), 0..25),
        handles_max in 1usize..3,
        checksum in prop_oneof![Just(Checksum::Off), Just(Checksum::On)],
    ) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let identity = VolumeIdentity { formation: FORMATION, node: NodeId(0), index: 0 };
        let volume: Arc<dyn Volume> = Arc::new(DirVolume::open(dir.path(), identity, false).unwrap());
        run(&volume, handles_max, checksum, &steps);
    }
}
