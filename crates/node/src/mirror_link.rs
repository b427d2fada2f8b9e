//! Connection of a node whose volumes are mirrored to its backup, and the thread that tends its mirror.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bivouac_store::{
    MirrorNote, MirrorOptions, MirrorRole, MirroredVolumes, ReplicaBackup, Volume, mirrored_volumes,
    read_mirror_note, write_mirror_note,
};
use bivouac_types::limits::DEAD_AFTER_MS_DEFAULT;
use bivouac_types::{Errno, FsError, FsResult, NodeId};
use bivouac_wire::{
    AppliedChanges, ApplyChangesRequest, BeginReplicaRequest, BegunReplica, Encode, FormationMap, Operation,
    ReplicaOutcome, ReplicaSessionRequest, op,
};

use crate::peers::{PeerLane, PeerRequest};

/// Pause between attempts to reach a backup that did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Pause before the mirror is tended again after its thread has panicked.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// Returns the time since the machine booted, including suspension, during which a lease expires too.
pub fn monotonic_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // The clock never yields a negative time.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns for how long a primary may serve after its backup's last answer: half the time after which a silent node is
/// dead. A successor waits little longer than that for the lease to run out.
pub fn lease_length(dead_after: Option<Duration>) -> Duration {
    dead_after.unwrap_or(Duration::from_millis(DEAD_AFTER_MS_DEFAULT)) / 2
}

/// The peer lane to backups.
struct MirrorLink {
    lane: Arc<PeerLane>,
    /// Longest wait for one answer; what is unanswered by then is sent again, within the bounded time.
    wait: Duration,
}

impl std::fmt::Debug for MirrorLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MirrorLink({})", self.lane.id())
    }
}

impl MirrorLink {
    fn ask<O: Operation>(
        &self,
        backup: NodeId,
        body: &[u8],
        payload: &[IoSlice<'_>],
    ) -> io::Result<O::Reply> {
        if !self.lane.has(backup) {
            return Err(io::Error::other(format!("{backup} is no peer")));
        }
        let request = PeerRequest { payload, ..PeerRequest::of_node(self.lane.id(), O::OP, body) };
        self.lane.ask_within::<O>(Some(self.wait), backup, &request).map_err(io::Error::other)
    }
}

impl ReplicaBackup for MirrorLink {
    fn begin(&self, backup: NodeId, request: &BeginReplicaRequest) -> io::Result<BegunReplica> {
        self.ask::<op::BeginReplica>(backup, &request.to_bytes(), &[])
    }

    fn apply(
        &self,
        backup: NodeId,
        request: &ApplyChangesRequest,
        payload: &[IoSlice<'_>],
    ) -> io::Result<AppliedChanges> {
        self.ask::<op::ApplyChanges>(backup, &request.to_bytes(), payload)
    }

    fn renew(&self, backup: NodeId, request: &ReplicaSessionRequest) -> io::Result<ReplicaOutcome> {
        self.ask::<op::RenewReplica>(backup, &request.to_bytes(), &[])
    }

    fn now(&self) -> Duration {
        monotonic_now()
    }

    fn before_waiting(&self) {
        bivouac_net::before_waiting();
    }
}

/// The volumes of a node, each with its capacity in bytes.
type LentVolumes = Vec<(Arc<dyn Volume>, u64)>;

/// A mirror and the thread that tends it. Dropping it ends the thread.
pub struct TendedMirror {
    pub mirror: Arc<MirroredVolumes>,
    ends: Arc<AtomicBool>,
    thread: bivouac_ranks::Mutex<Option<JoinHandle<()>>>,
}

impl TendedMirror {
    /// Starts the thread that tends the mirror.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(&self) -> io::Result<()> {
        let (mirror, ends) = (Arc::clone(&self.mirror), Arc::clone(&self.ends));
        let tend = move || {
            while !ends.load(Ordering::Acquire) {
                // Before the work: what happens during it ends the wait below at once.
                let turn = mirror.turn();
                // A panic must not end the thread: the lease would never be renewed again, while the daemon looks
                // alive.
                let tended = catch_unwind(AssertUnwindSafe(|| mirror.tend()));
                let pause = tended.unwrap_or(PAUSE_AFTER_PANIC);
                if !pause.is_zero() {
                    mirror.wait_for_change(turn, pause, &ends);
                }
            }
        };
        let thread = std::thread::Builder::new().name("mirror".into()).spawn(tend)?;
        let former = self.thread.lock().replace(thread);
        assert!(former.is_none(), "two threads tend one mirror");
        Ok(())
    }

    /// Ends the thread. Nothing more is sent to the backup; later changes are noted as unsent.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.mirror.end();
        // Not joined: it may be waiting for a backup that has ended already.
        drop(self.thread.lock().take());
    }

    /// Ends the thread and nothing else, as a kill would; for tests.
    pub fn halt(&self) {
        self.ends.store(true, Ordering::Release);
        self.mirror.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the thread that tends to the mirror has panicked");
        }
    }
}

impl Drop for TendedMirror {
    fn drop(&mut self) {
        self.halt();
    }
}

fn refused(error: io::Error) -> FsError {
    FsError::from_io(&error, "the mirror of this node's volumes")
}

/// Returns the note about mirrors in the directory of a node's first volume.
///
/// # Errors
/// A note that is damaged or cannot be read.
pub fn mirror_note_of(first: &Path) -> FsResult<Option<MirrorNote>> {
    read_mirror_note(first).map_err(refused)
}

/// Puts a mirror around the volumes of a node, if the map or the note on them says so. `first` is the directory of the
/// first.
///
/// # Errors
/// A replica that nobody has sealed; a note that cannot be written.
pub fn mirror_volumes(
    map: &FormationMap,
    (first, note): (Option<&Path>, Option<MirrorNote>),
    lane: &Arc<PeerLane>,
    (dead_after, patience): (Option<Duration>, Duration),
    volumes: LentVolumes,
) -> FsResult<(LentVolumes, Option<TendedMirror>)> {
    if let (Some(MirrorNote { role: MirrorRole::Replica { epoch, .. }, .. }), Some(dir)) = (&note, first)
        && !epoch.is_sealed
    {
        let text = format!(
            "volume {}: a replica of mirror epoch {}, which is not sealed: the daemon of its node may run elsewhere; seal \
             it first",
            dir.display(),
            epoch.epoch
        );
        return Err(FsError::with(Errno::EBUSY, text));
    }
    let Some(entry) = map.mirrors.get(usize::from(lane.id().0)) else { return Ok((volumes, None)) };
    let known = match note.as_ref().map(|note| &note.role) {
        // The note is newer than the map: the backup was changed since the map was made.
        Some(MirrorRole::Primary { backup, epoch, has_unsent }) if *epoch >= entry.epoch => {
            (*backup, *epoch, *has_unsent)
        }
        // The map names the backup of the replica's successor, or the keeper sets it later.
        Some(MirrorRole::Replica { epoch, .. }) if epoch.epoch > entry.epoch => (None, epoch.epoch, false),
        _ => (entry.backup, entry.epoch, false),
    };
    let (backup, epoch, has_unsent) = known;
    let role = MirrorRole::Primary { backup, epoch, has_unsent };
    // A first mirror is noted only once the backup has confirmed that it has no replica.
    let is_first = note.is_none() && backup.is_some();
    if let Some(dir) = first
        && !is_first
        && note.as_ref().is_none_or(|note| note.role != role)
    {
        write_mirror_note(dir, &MirrorNote::new(role)).map_err(refused)?;
    }
    let lease = lease_length(dead_after);
    let link = Arc::new(MirrorLink { lane: Arc::clone(lane), wait: lease });
    let note_at = first.map(Path::to_owned);
    let retry_pause = RETRY_PAUSE;
    let options =
        MirrorOptions { backup, epoch, lease, patience, retry_pause, note_at, has_unsent, is_first };
    let (inner, capacities): (Vec<_>, Vec<u64>) = volumes.into_iter().unzip();
    let mirror = MirroredVolumes::new(inner, link, options);
    let mirrored = mirrored_volumes(&mirror).into_iter().zip(capacities).collect();
    let thread = bivouac_ranks::Mutex::new(bivouac_ranks::rank::LEAF, None);
    Ok((mirrored, Some(TendedMirror { mirror, ends: Arc::default(), thread })))
}
