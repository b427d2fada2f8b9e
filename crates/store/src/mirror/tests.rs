//! Mirrored volumes as a whole: against a model under faults, against crashes, and each rule by itself.

mod crash;
mod model;
mod rules;
mod threads;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bivouac_mirror::ReplicaEpoch;
use bivouac_types::{Errno, NodeId};
use bivouac_wire::{
    AppliedChanges, ApplyChangesRequest, BeginReplicaRequest, BegunReplica, ReplicaOutcome,
    ReplicaSessionRequest,
};
use parking_lot::Mutex;

use super::*;
use crate::volume::system_error;
use crate::volume::transfer::{read_all, write_all_at};
use crate::{MemVolume, OpenMode, Volume};

const BACKUP: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn now() -> Duration {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed()
}

/// What is kept of a replica's note.
type Noted = Arc<Mutex<(ReplicaEpoch, u16, Duration)>>;

/// Replicas in volumes of tests.
#[derive(Clone, Debug)]
struct TestDirs {
    volumes: Vec<Arc<dyn Volume>>,
    noted: Noted,
    /// True if changes that need space find none.
    is_full: Arc<Mutex<bool>>,
}

impl ReplicaVolumes for TestDirs {
    fn open(&self, volume: u16) -> io::Result<Arc<dyn Volume>> {
        Ok(Arc::clone(&self.volumes[usize::from(volume)]))
    }

    fn path(&self, volume: u16) -> PathBuf {
        PathBuf::from(format!("/replica/{volume}"))
    }

    fn note(&self, epoch: &ReplicaEpoch, volumes: u16, lease: Duration) -> io::Result<()> {
        *self.noted.lock() = (*epoch, volumes, lease);
        Ok(())
    }

    fn take_space(&self, _: u16, bytes: u64) -> io::Result<()> {
        let is_full = bytes > 0 && *self.is_full.lock();
        if is_full { Err(system_error(Errno::ENOSPC)) } else { Ok(()) }
    }
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    /// The backup never gets it.
    RequestLost,
    /// The backup does what it asks, and nobody hears.
    AnswerLost,
    /// The backup's daemon is another one by then.
    Restarted,
    /// There is no space.
    Full,
    /// It comes twice.
    Doubled,
}

#[derive(Debug)]
struct TestBackup {
    dirs: TestDirs,
    replica: Arc<Replica>,
}

impl TestBackup {
    fn new(volumes: Vec<Arc<dyn Volume>>) -> TestBackup {
        let noted = Arc::new(Mutex::new((ReplicaEpoch::default(), 0, Duration::ZERO)));
        let dirs = TestDirs { volumes, noted, is_full: Arc::default() };
        let replica = Arc::new(Replica::new(Box::new(dirs.clone()), *dirs.noted.lock(), now));
        TestBackup { dirs, replica }
    }

    fn restart(&mut self) {
        let noted = *self.dirs.noted.lock();
        self.replica = Arc::new(Replica::new(Box::new(self.dirs.clone()), noted, now));
    }
}

/// The way to two backups, with mishaps.
#[derive(Debug)]
struct TestLink {
    backups: Mutex<BTreeMap<NodeId, TestBackup>>,
    mishaps: Mutex<VecDeque<Mishap>>,
    /// The mirror, where one thread does everything: it is tended to whenever a change waits.
    tended: Mutex<Option<std::sync::Weak<MirroredVolumes>>>,
    /// Number of messages with changes.
    applied: AtomicU64,
    /// True if an answer is given before the backup has the change: what tests have to find.
    answers_early: bool,
}

impl TestLink {
    fn to(volumes: impl Fn() -> Vec<Arc<dyn Volume>>) -> Arc<TestLink> {
        TestLink::answering(volumes, false)
    }

    fn answering(volumes: impl Fn() -> Vec<Arc<dyn Volume>>, answers_early: bool) -> Arc<TestLink> {
        let backups = [BACKUP, OTHER].map(|node| (node, TestBackup::new(volumes())));
        Arc::new(TestLink {
            backups: Mutex::new(backups.into()),
            mishaps: Mutex::default(),
            tended: Mutex::default(),
            applied: AtomicU64::new(0),
            answers_early,
        })
    }

    fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    fn replica(&self, node: NodeId) -> Arc<Replica> {
        Arc::clone(&self.backups.lock()[&node].replica)
    }

    fn volumes(&self, node: NodeId) -> Vec<Arc<dyn Volume>> {
        self.backups.lock()[&node].dirs.volumes.clone()
    }

    fn restart(&self, node: NodeId) {
        self.backups.lock().get_mut(&node).unwrap().restart();
    }

    fn carry<T>(&self, node: NodeId, act: impl Fn(&Replica) -> T) -> io::Result<T> {
        let mishap = self.mishaps.lock().pop_front().unwrap_or(Mishap::None);
        let lost = || io::Error::other("lost");
        match mishap {
            Mishap::RequestLost => return Err(lost()),
            Mishap::Restarted => self.restart(node),
            Mishap::Full => *self.backups.lock()[&node].dirs.is_full.lock() = true,
            Mishap::Doubled => {
                act(&self.replica(node));
            }
            Mishap::None | Mishap::AnswerLost => {}
        }
        let answer = act(&self.replica(node));
        *self.backups.lock()[&node].dirs.is_full.lock() = false;
        if mishap == Mishap::AnswerLost { Err(lost()) } else { Ok(answer) }
    }
}

impl ReplicaBackup for TestLink {
    fn begin(&self, backup: NodeId, request: &BeginReplicaRequest) -> io::Result<BegunReplica> {
        self.carry(backup, |replica| replica.begin(request))
    }

    fn apply(
        &self,
        backup: NodeId,
        request: &ApplyChangesRequest,
        payload: &[IoSlice<'_>],
    ) -> io::Result<AppliedChanges> {
        self.applied.fetch_add(1, Ordering::Relaxed);
        let applied = self.carry(backup, |replica| replica.apply(request, payload));
        if self.answers_early { Ok(all_made(request)) } else { applied }
    }

    fn renew(&self, backup: NodeId, request: &ReplicaSessionRequest) -> io::Result<ReplicaOutcome> {
        self.carry(backup, |replica| replica.renew(request))
    }

    fn now(&self) -> Duration {
        now()
    }

    fn before_waiting(&self) {
        let tended = self.tended.lock().clone();
        if let Some(mirror) = tended.and_then(|mirror| mirror.upgrade()) {
            mirror.tend();
        }
    }
}

/// The answer to changes that were all made.
fn all_made(request: &ApplyChangesRequest) -> AppliedChanges {
    AppliedChanges { made: request.changes.len() as u16, outcome: ReplicaOutcome::Done }
}

fn memory() -> Vec<Arc<dyn Volume>> {
    vec![Arc::new(MemVolume::default())]
}

fn options(epoch: u32) -> MirrorOptions {
    MirrorOptions {
        backup: Some(BACKUP),
        epoch,
        lease: Duration::from_secs(3600),
        patience: Duration::from_secs(3600),
        retry_pause: Duration::ZERO,
        note_at: None,
        has_unsent: false,
        is_first: false,
    }
}

/// A mirror that is tended to whenever something waits.
fn mirror(volumes: &[Arc<dyn Volume>], link: &Arc<TestLink>, options: MirrorOptions) -> Arc<MirroredVolumes> {
    let mirror = MirroredVolumes::new(volumes.to_vec(), Arc::clone(link) as _, options);
    *link.tended.lock() = Some(Arc::downgrade(&mirror));
    mirror
}

/// Tends to a mirror until its backup has everything.
fn complete(mirror: &MirroredVolumes) {
    while !mirror.status().is_complete {
        mirror.tend();
    }
}

/// All files of a volume with their content.
fn content(volume: &dyn Volume) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in volume.list("").unwrap() {
        if !entry.is_dir {
            files.insert(entry.name.clone(), bytes(volume, &entry.name));
            continue;
        }
        for file in volume.list(&entry.name).unwrap() {
            let name = format!("{}/{}", entry.name, file.name);
            files.insert(name.clone(), bytes(volume, &name));
        }
    }
    files
}

fn bytes(volume: &dyn Volume, name: &str) -> Vec<u8> {
    read_all(&*volume.open(name, OpenMode::Existing).unwrap()).unwrap()
}

fn write(volume: &dyn Volume, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
    write_all_at(&*volume.open(name, OpenMode::Create)?, &[IoSlice::new(bytes)], offset)
}

fn read(volume: &dyn Volume, name: &str) -> Vec<u8> {
    let file = volume.open(name, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    let count = file.read_vectored_at(&mut [IoSliceMut::new(&mut bytes)], 0).unwrap();
    bytes.truncate(count);
    bytes
}
