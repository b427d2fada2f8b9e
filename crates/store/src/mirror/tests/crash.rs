//! The host of a primary is lost after any change that its backup made: what the replica has then is a store with all
//! that was acknowledged.

use super::*;
use crate::{
    CrashLoss, CrashVolume, DataOptions, DataStore, Records, RecordsOptions, SubfileId, SubfileSpec,
};
use bivouac_types::{FormationId, Ino, Layout, Placement, Slot, TargetIndex};
use bivouac_wire::TargetEntry;

const FORMATION: FormationId = FormationId([3; 16]);
const NODE: NodeId = NodeId(0);
const TARGETS: [TargetEntry; 1] = [TargetEntry { node: NODE, volume: 0 }];
const SPEC: SubfileSpec<'static> = SubfileSpec {
    layout: Layout { stripe: 8192, width: 1, base: TargetIndex(0), targets: 1 },
    placement: Placement::Striped,
    targets: &TARGETS,
};

fn open(volume: Arc<dyn Volume>, checksum: bivouac_types::Checksum) -> (DataStore, Records) {
    let options = DataOptions { handles_max: 4, checksum };
    let data = DataStore::with_volumes(vec![(volume, 0)], FORMATION, &options).unwrap();
    let options = RecordsOptions { slots: 2, compact_log_bytes_min: 600, ..RecordsOptions::default() };
    let (records, _) = Records::open(data.volume(0).unwrap(), FORMATION, NODE, options).unwrap();
    (data, records)
}

fn id(ino: u64) -> SubfileId {
    SubfileId { volume: 0, ino: Ino(ino), target: TargetIndex(0) }
}

/// What was acknowledged once the replica had so many changes.
struct Acknowledged {
    steps: usize,
    ino: u64,
    content: Vec<u8>,
}

/// S801.
#[test]
fn a_replica_is_a_store_after_each_of_its_changes() {
    use bivouac_types::Checksum::{Off, On};
    for (checksum, defers) in [(Off, false), (On, false), (Off, true), (On, true)] {
        let kept = Arc::new(CrashVolume::default());
        let link = TestLink::to(|| vec![Arc::clone(&kept) as Arc<dyn Volume>]);
        let own = memory();
        let mirror = mirror(&own, &link, options(1));
        // As a daemon starts: volumes first, then the session.
        let (data, records) = open(mirrored_volumes(&mirror).remove(0), checksum);
        complete(&mirror);
        let begin = kept.steps();
        let mut acknowledged = Vec::new();
        for round in 0..24u64 {
            let ino = 16 + round % 5;
            let content: Vec<u8> = (0..3000 + round * 500).map(|at| (at * 7 + round) as u8).collect();
            let change = || {
                data.write(id(ino), &SPEC, 0, 0, &[IoSlice::new(&content)]).unwrap();
                let mut txn = records.txn(&[Slot(1)]);
                txn.put(Slot(1), &ino.to_be_bytes(), &content[..200]);
                txn.commit().unwrap();
            };
            with_deferred_writes(defers, change);
            mirror.make_deferred().unwrap();
            acknowledged.push(Acknowledged { steps: kept.steps(), ino, content });
            if round % 8 == 7 {
                records.compact().unwrap();
            }
        }
        assert!(kept.steps() > begin + 60, "there is something to crash in");
        for step in begin..=kept.steps() {
            let crashed: Arc<dyn Volume> = Arc::new(kept.after(step, CrashLoss::Nothing).unwrap());
            let (data, records) = open(crashed, checksum);
            for ino in 16..21 {
                let done = acknowledged.iter().rev().find(|done| done.ino == ino && done.steps <= step);
                let Some(done) = done else { continue };
                let mut bytes = vec![0; done.content.len()];
                let (count, _) = data.read(id(ino), 0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
                assert_eq!(count, bytes.len(), "subfile {ino} after change {step}");
                // A later write that was not acknowledged may be there in part.
                let later = acknowledged.iter().find(|later| later.ino == ino && later.steps > step);
                let is_right = |(at, byte): (usize, &u8)| {
                    *byte == done.content[at] || later.is_some_and(|later| *byte == later.content[at])
                };
                assert!(bytes.iter().enumerate().all(is_right), "subfile {ino} after change {step}");
                let value = records.read(Slot(1), &ino.to_be_bytes(), |value| value.map(<[u8]>::to_vec));
                let expected = [Some(&done.content[..200]), later.map(|later| &later.content[..200])];
                assert!(expected.contains(&value.as_deref()), "record {ino} after change {step}");
            }
        }
    }
}
