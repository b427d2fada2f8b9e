//! The backup's side: the replicas of one node's volumes, and whose changes they take.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bivouac_mirror::{
    Admission, BackupLease, Channel, NotSealed, PrimaryRefusal, ReplicaEpoch, SessionStart,
};
use bivouac_ranks::{Mutex, RwLock, rank};
use bivouac_types::Errno;
use bivouac_wire::{
    AppliedChanges, ApplyChangesRequest, BeginReplicaRequest, BegunReplica, REPLICA_CHANGES_MAX,
    REPLICA_CHANNELS_MAX, ReplicaOutcome, ReplicaSessionRequest, SealedReplica, SuspectPart, VolumeChange,
};

use super::part::{FileKey, parts_of};
use super::tree::VolumeTree;
use crate::volume::subfile_table::TABLE_NAME;
use crate::volume::transfer::{write_all_at, write_each, write_zeros};
use crate::volume::{REPLICA_DIR_PREFIX, check_name, system_error};
use crate::{IDENTITY_NAME, OpenMode, Places, Volume, VolumeFile};

/// Most files kept open.
const FILES_MAX: usize = 512;
/// Bytes that a file grows by.
const PAGE: u64 = 4096;

/// The directories that replicas are in, and what is noted of them.
pub trait ReplicaVolumes: Send + Sync + fmt::Debug {
    /// Opens the replica of a volume, and keeps others from it as long as that is open.
    ///
    /// # Errors
    /// The system's; also where somebody else has it.
    fn open(&self, volume: u16) -> io::Result<Arc<dyn Volume>>;

    /// Returns the directory of a replica.
    fn path(&self, volume: u16) -> PathBuf;

    /// Notes the state of the replicas, so that it outlives the host.
    ///
    /// # Errors
    /// The system's.
    fn note(&self, epoch: &ReplicaEpoch, volumes: u16, lease: Duration) -> io::Result<()>;

    /// Takes space for a change that needs so much more.
    ///
    /// # Errors
    /// `ENOSPC`.
    fn take_space(&self, volume: u16, bytes: u64) -> io::Result<()> {
        let _ = (volume, bytes);
        Ok(())
    }

    /// Corrects the space of a file that had `taken` bytes, with those that it was given, and has `real` now.
    fn correct_space(&self, volume: u16, taken: u64, real: u64) {
        let _ = (volume, taken, real);
    }
}

/// Reason why a replica was not sealed.
#[derive(Debug)]
pub enum SealError {
    /// It must not be sealed.
    Refused(NotSealed),
    /// The seal cannot be recorded.
    Io(io::Error),
}

#[derive(Debug)]
struct ReplicaState {
    epoch: ReplicaEpoch,
    volumes: Vec<Arc<dyn Volume>>,
    volume_count: u16,
    lease_length: Duration,
    /// True if this daemon saw all changes since the primary had looked after all earlier ones.
    knows_changes: bool,
    /// Parts that the last changes of earlier sessions concerned, until the primary has settled them.
    suspects: Vec<SuspectPart>,
}

/// The replicas of one node's volumes.
#[derive(Debug)]
pub struct Replica {
    dirs: Box<dyn ReplicaVolumes>,
    state: RwLock<ReplicaState>,
    channels: Vec<Mutex<Channel<AppliedChanges, Vec<SuspectPart>>>>,
    files: Mutex<HashMap<FileKey, Arc<dyn VolumeFile>>>,
    lease: Mutex<BackupLease>,
    now: fn() -> Duration,
}

impl Replica {
    /// Replicas that an earlier daemon kept, or new ones: their state, the number of volumes, and the length of a
    /// lease, as they were noted.
    #[must_use]
    pub fn new(
        dirs: Box<dyn ReplicaVolumes>,
        (epoch, volume_count, lease_length): (ReplicaEpoch, u16, Duration),
        now: fn() -> Duration,
    ) -> Replica {
        let mut lease = BackupLease::default();
        // An earlier daemon may have answered a moment ago.
        lease.grant(now(), lease_length);
        let state = ReplicaState {
            epoch,
            volumes: Vec::new(),
            volume_count,
            lease_length,
            knows_changes: false,
            suspects: Vec::new(),
        };
        let channel = |_| Mutex::new(rank::REPLICA_CHANNEL, Channel::default());
        Replica {
            dirs,
            state: RwLock::new(rank::REPLICA, state),
            channels: (0..REPLICA_CHANNELS_MAX).map(channel).collect(),
            files: Mutex::new(rank::LEAF, HashMap::new()),
            lease: Mutex::new(rank::LEAF, lease),
            now,
        }
    }

    /// Begins a session of the primary.
    pub fn begin(&self, request: &BeginReplicaRequest) -> BegunReplica {
        let mut state = self.state.write();
        let begun = self.try_begin(&mut state, request);
        let (outcome, is_complete) = match begun {
            Ok(Ok(start)) => (ReplicaOutcome::Done, start == SessionStart::Continued),
            Ok(Err(refusal)) => (refused(refusal), false),
            // The primary says it, as often as it asks.
            Err(error) if error.raw_os_error() == Some(Errno::EEXIST.code()) => (failed(&error), false),
            Err(error) => {
                log::error!(why:% = error; "replica {}: no session", self.dirs.path(0).display());
                (failed(&error), false)
            }
        };
        let suspects = if is_complete { state.suspects.clone() } else { Vec::new() };
        if outcome == ReplicaOutcome::Done {
            self.grant(&state);
        }
        BegunReplica { outcome, session: state.epoch.session, is_complete, suspects }
    }

    fn try_begin(
        &self,
        state: &mut ReplicaState,
        request: &BeginReplicaRequest,
    ) -> io::Result<Result<SessionStart, PrimaryRefusal>> {
        let mut epoch = state.epoch;
        // A primary whose volumes are new, and of whose replicas everything is here: its volumes were lost.
        if request.continues == Some(0) && epoch.is_complete && request.epoch >= epoch.epoch {
            return Err(system_error(Errno::EEXIST));
        }
        let anew = request.anew || state.volume_count != request.volumes;
        let start = match epoch.begin(request.epoch, state.knows_changes, request.continues, anew) {
            Ok(start) => start,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if state.volumes.len() != usize::from(request.volumes) {
            state.volumes.clear();
            state.volumes =
                (0..request.volumes).map(|volume| self.dirs.open(volume)).collect::<io::Result<_>>()?;
        }
        // Noted before anything is emptied: a replica that is noted as complete is.
        let lease_length = Duration::from_millis(u64::from(request.lease_ms));
        self.dirs.note(&epoch, request.volumes, lease_length)?;
        (state.epoch, state.volume_count, state.lease_length) = (epoch, request.volumes, lease_length);
        // What a change concerned of which only another daemon knew is known once the primary has looked after it.
        state.knows_changes |= start == SessionStart::Anew;
        for channel in &self.channels {
            state.suspects.extend(channel.lock().end().into_iter().flatten());
        }
        if start == SessionStart::Anew {
            state.suspects.clear();
            self.files.lock().clear();
            for (index, volume) in (0..).zip(&state.volumes) {
                self.empty(index, &**volume)?;
            }
        }
        Ok(Ok(start))
    }

    /// Removes all files that a primary has made.
    fn empty(&self, index: u16, volume: &dyn Volume) -> io::Result<()> {
        for (name, stat) in VolumeTree::of(volume)?.files {
            if is_replicated(&name) {
                volume.remove(&name)?;
                self.dirs.correct_space(index, stat.allocated, 0);
            }
        }
        Ok(())
    }

    /// Makes changes in order, up to the first that fails, unless they were made before.
    pub fn apply(&self, request: &ApplyChangesRequest, payload: &[IoSlice<'_>]) -> AppliedChanges {
        let none = |outcome| AppliedChanges { made: 0, outcome };
        let state = self.state.read();
        if let Err(refusal) = state.epoch.check(request.epoch, request.session) {
            return none(refused(refusal));
        }
        let malformed = none(ReplicaOutcome::Failed { errno: Errno::EPROTO.code() });
        let Some(channel) = self.channels.get(usize::from(request.channel)) else { return malformed };
        let Some(changes) = with_payloads(&request.changes, payload) else { return malformed };
        // Held while the change is made: the same request over a second connection waits, and gets the first one's
        // outcome.
        let mut channel = channel.lock();
        let applied = match channel.admit(request.sequence) {
            Admission::Repeated(applied) => applied,
            Admission::Late => return none(ReplicaOutcome::NoSession),
            Admission::Apply => {
                let parts = request.changes.iter().flat_map(|(volume, change)| parts_of(*volume, change));
                channel.begin(parts.collect());
                let applied = self.make_all(&state, &changes);
                channel.note(request.sequence, applied.clone());
                applied
            }
        };
        drop(channel);
        self.grant(&state);
        applied
    }

    fn make_all(
        &self,
        state: &ReplicaState,
        changes: &[(u16, &VolumeChange, Vec<IoSlice<'_>>)],
    ) -> AppliedChanges {
        let mut applied = AppliedChanges { made: 0, outcome: ReplicaOutcome::Done };
        for (index, change, payload) in changes {
            let changed = match state.volumes.get(usize::from(*index)) {
                Some(volume) => self.change((*index, &**volume, state.epoch.is_complete), change, payload),
                None => Err(system_error(Errno::EPROTO)),
            };
            applied.outcome = outcome_of(changed, change);
            if applied.outcome != ReplicaOutcome::Done {
                break;
            }
            applied.made += 1;
        }
        applied
    }

    /// Renews the lease of the primary, which may tell that the replicas are complete.
    pub fn renew(&self, request: &ReplicaSessionRequest) -> ReplicaOutcome {
        if request.is_complete {
            let mut state = self.state.write();
            if let Err(refusal) = state.epoch.check(request.epoch, request.session) {
                return refused(refusal);
            }
            if !state.epoch.is_complete {
                let mut epoch = state.epoch;
                epoch.complete();
                if let Err(error) = self.dirs.note(&epoch, state.volume_count, state.lease_length) {
                    return failed(&error);
                }
                state.epoch = epoch;
            }
            state.suspects.clear();
            state.knows_changes = true;
            self.grant(&state);
            return ReplicaOutcome::Done;
        }
        let state = self.state.read();
        if let Err(refusal) = state.epoch.check(request.epoch, request.session) {
            return refused(refusal);
        }
        self.grant(&state);
        ReplicaOutcome::Done
    }

    /// Grants the primary a lease from now on. Under the lock of the state: a seal counts it.
    fn grant(&self, state: &ReplicaState) {
        self.lease.lock().grant((self.now)(), state.lease_length);
    }

    /// Refuses all primaries of an epoch below `epoch` from now on, lets go of the replicas, and tells where they are
    /// and how long the old primary may still serve.
    ///
    /// # Errors
    /// A replica that is not complete, or of that epoch already; the system's, if it cannot be noted.
    pub fn seal(&self, epoch: u32) -> Result<SealedReplica, SealError> {
        let mut state = self.state.write();
        let mut sealed = state.epoch;
        sealed.seal(epoch).map_err(SealError::Refused)?;
        if sealed != state.epoch {
            self.dirs.note(&sealed, state.volume_count, state.lease_length).map_err(SealError::Io)?;
            state.epoch = sealed;
        }
        // A daemon is about to open the directories for itself, so nothing may be kept open or believed from here on.
        state.knows_changes = false;
        self.files.lock().clear();
        state.volumes.clear();
        let left = self.lease.lock().left((self.now)());
        let volumes = (0..state.volume_count).map(|volume| self.dirs.path(volume).display().to_string());
        // Rounded up: a part of a millisecond is none of nothing.
        let wait_ms = u32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u32::MAX);
        Ok(SealedReplica { wait_ms, volumes: volumes.collect() })
    }

    /// Removes replicas of an epoch below `epoch`, in which the primary has another backup, once the primary cannot
    /// take this one for its backup any more. Sealed ones stay: a daemon may run on them. Returns the time after which
    /// to call again, if the primary may still do so.
    ///
    /// # Errors
    /// The system's.
    pub fn discard(&self, epoch: u32) -> io::Result<Option<Duration>> {
        let mut state = self.state.write();
        if state.epoch.is_sealed || state.epoch.epoch >= epoch || state.volume_count == 0 {
            return Ok(None);
        }
        let left = self.lease.lock().left((self.now)());
        if !left.is_zero() {
            return Ok(Some(left));
        }
        // A primary that asks all the same copies everything again, in a session of its own.
        let ended = ReplicaEpoch {
            session: state.epoch.session.saturating_add(1),
            is_complete: false,
            ..state.epoch
        };
        self.dirs.note(&ended, state.volume_count, state.lease_length)?;
        (state.epoch, state.knows_changes) = (ended, false);
        self.files.lock().clear();
        state.suspects.clear();
        if state.volumes.is_empty() {
            state.volumes =
                (0..state.volume_count).map(|volume| self.dirs.open(volume)).collect::<io::Result<_>>()?;
        }
        for (index, volume) in (0..).zip(&state.volumes) {
            self.empty(index, &**volume)?;
        }
        state.volumes.clear();
        state.volume_count = 0;
        Ok(None)
    }

    /// Returns the state of the replicas.
    #[must_use]
    pub fn epoch(&self) -> ReplicaEpoch {
        self.state.read().epoch
    }

    fn change(
        &self,
        (index, volume, is_complete): (u16, &dyn Volume, bool),
        change: &VolumeChange,
        payload: &[IoSlice<'_>],
    ) -> io::Result<()> {
        let names_fit = match change {
            VolumeChange::Rename { from, to } => is_replicated(from) && is_replicated(to),
            VolumeChange::MakeDir { name } => is_replicated(&format!("{name}/x")),
            VolumeChange::SyncDir { name } => name.is_empty() || is_replicated(&format!("{name}/x")),
            other => is_replicated(other.name()),
        };
        if !names_fit {
            return Err(system_error(Errno::EPROTO));
        }
        match change {
            VolumeChange::Create { name } => self.create(index, volume, name),
            VolumeChange::MakeDir { name } => make_dir(volume, name),
            VolumeChange::SyncDir { name } => volume.sync_dir(name),
            VolumeChange::Rename { from, to } => {
                // Open files are kept by name, and these names stand for others from now on.
                let mut files = self.files.lock();
                files.remove(&(index, from.clone()));
                files.remove(&(index, to.clone()));
                drop(files);
                // Asked for before, since afterwards the replaced file has no name to ask by.
                let replaced = allocated(volume, to)?;
                match volume.rename(from, to) {
                    // Its copy has yet to be made, under the new name.
                    Err(error) if is_missing(&error) && !is_complete => self.remove(index, volume, to),
                    renamed => renamed.map(|()| self.dirs.correct_space(index, replaced, 0)),
                }
            }
            VolumeChange::Remove { name } => self.remove(index, volume, name),
            VolumeChange::Sync { name } => self.file(index, volume, name)?.sync(),
            VolumeChange::Write { name, extents } => {
                let file = self.file(index, volume, name)?;
                let parts: Vec<_> = extents.iter().map(|(at, len)| (*at, u64::from(*len))).collect();
                let needs = space_needed(name, &parts);
                self.counted(index, &*file, needs, || write_extents(&*file, extents, payload))
            }
            VolumeChange::SetLen { name, len } => {
                let file = self.file(index, volume, name)?;
                self.counted(index, &*file, &[], || file.set_len(*len))
            }
            VolumeChange::Grow { name, len } => {
                let file = self.file(index, volume, name)?;
                self.counted(index, &*file, &[], || file.grow(*len))
            }
            VolumeChange::Allocate { name, start, end } => {
                let file = self.file(index, volume, name)?;
                let part = [(*start, end.saturating_sub(*start))];
                self.counted(index, &*file, space_needed(name, &part), || match file.allocate(*start..*end) {
                    // It holds nothing, so there is no difference.
                    Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP.code()) => Ok(()),
                    allocated => allocated,
                })
            }
            VolumeChange::Punch { name, start, end } => {
                let file = self.file(index, volume, name)?;
                self.counted(index, &*file, &[], || match file.punch(*start..*end) {
                    Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP.code()) => {
                        write_zeros(&*file, &(*start..*end))
                    }
                    punched => punched,
                })
            }
        }
    }

    fn create(&self, index: u16, volume: &dyn Volume, name: &str) -> io::Result<()> {
        let open = || volume.open(name, OpenMode::Create);
        let file = match (open(), name.split_once('/')) {
            // One that was made before the session began.
            (Err(error), Some((dir, _))) if is_missing(&error) => {
                make_dir(volume, dir).and_then(|()| open())?
            }
            (file, _) => file?,
        };
        self.keep(index, name, file);
        Ok(())
    }

    fn remove(&self, index: u16, volume: &dyn Volume, name: &str) -> io::Result<()> {
        self.files.lock().remove(&(index, name.to_owned()));
        let bytes = allocated(volume, name)?;
        match volume.remove(name) {
            Err(error) if is_missing(&error) => Ok(()),
            removed => removed.map(|()| self.dirs.correct_space(index, bytes, 0)),
        }
    }

    fn file(&self, index: u16, volume: &dyn Volume, name: &str) -> io::Result<Arc<dyn VolumeFile>> {
        if let Some(file) = self.files.lock().get(&(index, name.to_owned())) {
            return Ok(Arc::clone(file));
        }
        let file = volume.open(name, OpenMode::Existing)?;
        self.keep(index, name, Arc::clone(&file));
        Ok(file)
    }

    fn keep(&self, index: u16, name: &str, file: Arc<dyn VolumeFile>) {
        let mut files = self.files.lock();
        if files.len() >= FILES_MAX {
            // Simpler than to find the oldest, and rare.
            files.clear();
        }
        files.insert((index, name.to_owned()), file);
    }

    /// Makes a change of a file that may need space for these parts, and counts what it needed.
    fn counted(
        &self,
        index: u16,
        file: &dyn VolumeFile,
        parts: &[(u64, u64)],
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let before = file.stat()?.allocated;
        let mut bytes_max = with_pages(parts.iter().map(|(_, len)| len).sum());
        if let Err(error) = self.dirs.take_space(index, bytes_max) {
            // What is there already needs no more: on a full volume, files can still be overwritten.
            let missing = with_pages(missing_in(file, parts)?);
            if missing >= bytes_max {
                return Err(error);
            }
            self.dirs.take_space(index, missing)?;
            bytes_max = missing;
        }
        let changed = change();
        let after = file.stat().map_or(before, |stat| stat.allocated);
        self.dirs.correct_space(index, before.saturating_add(bytes_max), after);
        changed
    }
}

/// Returns the changes of a request, each with its bytes; `None` if they are too many, or do not fit the payload.
fn with_payloads<'r>(
    changes: &'r [(u16, VolumeChange)],
    payload: &'r [IoSlice<'_>],
) -> Option<Vec<(u16, &'r VolumeChange, Vec<IoSlice<'r>>)>> {
    if changes.len() > REPLICA_CHANGES_MAX {
        return None;
    }
    let mut rest = payload.iter().map(|slice| &**slice).filter(|slice| !slice.is_empty());
    let mut front: &[u8] = &[];
    let mut split = Vec::with_capacity(changes.len());
    for (volume, change) in changes {
        let (mut missing, mut own) = (change.payload_len()?, Vec::new());
        while missing > 0 {
            if front.is_empty() {
                front = rest.next()?;
            }
            let (taken, left) = front.split_at(missing.min(front.len()));
            own.push(IoSlice::new(taken));
            (missing, front) = (missing - taken.len(), left);
        }
        split.push((*volume, change, own));
    }
    (front.is_empty() && rest.next().is_none()).then_some(split)
}

/// Returns the parts of a file for which there has to be space. Records and the table of subfiles take what is kept for
/// them without being asked, as they do at the primary: removals need them, however full a volume is, and what was
/// deferred has its space.
fn space_needed<'a>(name: &str, parts: &'a [(u64, u64)]) -> &'a [(u64, u64)] {
    if name.starts_with("records/") || name == TABLE_NAME { &[] } else { parts }
}

/// Returns the number of bytes that are taken for so many: a page more at either end.
fn with_pages(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { bytes.saturating_add(2 * PAGE) }
}

/// Returns the number of bytes of these parts that a file has no space for yet.
fn missing_in(file: &dyn VolumeFile, parts: &[(u64, u64)]) -> io::Result<u64> {
    let mut missing = 0u64;
    for (start, len) in parts {
        let (mut at, end) = (*start, start.saturating_add(*len));
        while at < end {
            let data = file.next_data(at)?.unwrap_or(end..end);
            let data = data.start.clamp(at, end)..data.end.clamp(at, end);
            missing = missing.saturating_add(data.start - at);
            at = if data.is_empty() { end } else { data.end };
        }
    }
    Ok(missing)
}

/// Returns whether a file of a volume is replicated: all but what says whose the directory is, and the replicas of
/// others.
pub(super) fn is_replicated(name: &str) -> bool {
    let (dir, is_within) = name.split_once('/').map_or((name, false), |(dir, _)| (dir, true));
    let is_own = [IDENTITY_NAME, "bivouac-mode", "bivouac-mirror", REPLICA_DIR_PREFIX, "lost+found"]
        .iter()
        .any(|own| dir.starts_with(own));
    let is_unfinished_note = !is_within && name.starts_with("bivouac-") && name.ends_with(".tmp");
    check_name(name).is_ok() && !is_own && !is_unfinished_note
}

fn make_dir(volume: &dyn Volume, name: &str) -> io::Result<()> {
    match volume.make_dir(name) {
        Err(error) if error.raw_os_error() == Some(Errno::EEXIST.code()) => Ok(()),
        made => made,
    }
}

/// Returns the number of bytes that a file occupies; none if it is not there.
fn allocated(volume: &dyn Volume, name: &str) -> io::Result<u64> {
    match volume.open(name, OpenMode::Existing) {
        Err(error) if is_missing(&error) => Ok(0),
        file => Ok(file?.stat()?.allocated),
    }
}

fn write_extents(file: &dyn VolumeFile, extents: &[(u64, u32)], payload: &[IoSlice<'_>]) -> io::Result<()> {
    if let [(offset, _)] = extents {
        return write_all_at(file, payload, *offset);
    }
    let places = Places::new(extents, payload).ok_or_else(|| system_error(Errno::EPROTO))?;
    write_each(file, 0, &places)
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOENT.code())
}

fn refused(refusal: PrimaryRefusal) -> ReplicaOutcome {
    match refusal {
        PrimaryRefusal::NoSession => ReplicaOutcome::NoSession,
        PrimaryRefusal::Superseded { epoch } => ReplicaOutcome::Superseded { epoch },
    }
}

fn failed(error: &io::Error) -> ReplicaOutcome {
    ReplicaOutcome::Failed { errno: error.raw_os_error().unwrap_or(Errno::EIO.code()) }
}

fn outcome_of(changed: io::Result<()>, change: &VolumeChange) -> ReplicaOutcome {
    match changed {
        Ok(()) => ReplicaOutcome::Done,
        Err(error) => match error.raw_os_error().map(Errno::from_code) {
            Some(Errno::ENOSPC | Errno::EDQUOT) => ReplicaOutcome::NoSpace,
            _ => {
                log::error!(why:% = error; "replica of {}: not changed", change.name());
                failed(&error)
            }
        },
    }
}
