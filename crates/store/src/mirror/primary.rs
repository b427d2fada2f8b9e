//! The primary's side: every change goes to the backup first, then to the volume, and is done once both have it.
//!
//! By this order, a change under way when the primary is killed is among the last changes of the channels at the
//! backup. The backup reports those when the next session begins: they are *suspects*, which are made equal to the
//! volumes.
//!
//! Locks are taken in this order: a file, the session, then leaves. A file's lock is held while it is changed, and
//! released between parts of its copy. Changes share the session; a change of the session has it alone.

mod changes;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bivouac_mirror::{CopyPlan, FileState, PrimaryLease};
use bivouac_ranks::{Condvar, Mutex, RwLock, rank};
use bivouac_types::{Errno, NodeId};
use bivouac_wire::{
    AppliedChanges, ApplyChangesRequest, BeginReplicaRequest, BegunReplica, ReplicaOutcome,
    ReplicaSessionRequest, SuspectPart, VolumeChange,
};

pub(super) use changes::{ChangeOrder, Part};

use super::channels::{ChannelInUse, Channels};
use super::deferred::DeferredWrites;
use super::mirrored_volume::MirroredFiles;
use super::note::{MirrorNote, MirrorRole, write_mirror_note};
use super::part::{FileKey, Suspects};
use super::replica::is_replicated;
use super::tree::VolumeTree;
use crate::volume::system_error;
use crate::volume::transfer::read_full_at;
use crate::{OpenMode, Volume, VolumeFile};

/// Most bytes of a file in one message of a copy.
const COPY_PART: u64 = 1 << 20;
/// Maximum wait of a copy for a file that is being changed.
const COPY_WAIT: Duration = Duration::from_millis(20);
/// Pause of a copy while the backup has no space.
const COPY_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for a lease before the clock is read again.
const LEASE_LOOK: Duration = Duration::from_millis(20);

/// Transport to backups.
pub trait ReplicaBackup: Send + Sync + fmt::Debug {
    /// Begins a session.
    ///
    /// # Errors
    /// The backup does not answer within its bounded time.
    fn begin(&self, backup: NodeId, request: &BeginReplicaRequest) -> io::Result<BegunReplica>;

    /// Sends changes to the backup.
    ///
    /// # Errors
    /// As [`ReplicaBackup::begin`].
    fn apply(
        &self,
        backup: NodeId,
        request: &ApplyChangesRequest,
        payload: &[IoSlice<'_>],
    ) -> io::Result<AppliedChanges>;

    /// Renews the lease.
    ///
    /// # Errors
    /// As [`ReplicaBackup::begin`].
    fn renew(&self, backup: NodeId, request: &ReplicaSessionRequest) -> io::Result<ReplicaOutcome>;

    /// Returns the time, of a clock that is never set.
    fn now(&self) -> Duration;

    /// Called when a thread is about to wait for the backup, or for another thread's answer from it.
    fn before_waiting(&self) {}
}

/// Settings of a mirror.
#[derive(Clone, Debug)]
pub struct MirrorOptions {
    /// The node that has the replicas; with `None` the node goes on alone until there is one.
    pub backup: Option<NodeId>,
    /// The mirror epoch.
    pub epoch: u32,
    /// Time for which the primary may serve behind the backup's last answer.
    pub lease: Duration,
    /// Longest wait of a change for a session.
    pub patience: Duration,
    /// Pause before a backup that did not answer is asked again.
    pub retry_pause: Duration,
    /// The directory that keeps the note of the mirror.
    pub note_at: Option<PathBuf>,
    /// True if an earlier daemon ended before its backup had the changes of its start.
    pub has_unsent: bool,
    /// True if there is no note of the mirror: this is its first daemon, or the volumes were lost. The note is written
    /// only once the backup has begun a session, which it refuses if it has complete replicas.
    pub is_first: bool,
}

/// Permission to answer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeState {
    /// Requests may be served.
    Serves,
    /// Not before there is a session, or the lease is renewed.
    Waits,
    /// Another daemon has taken over: never again.
    Superseded,
}

/// State of a mirror, for status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// The node that has the replicas.
    pub backup: Option<NodeId>,
    /// The mirror epoch.
    pub epoch: u32,
    /// True if the backup has all that was acknowledged.
    pub is_complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing is served: changes are made here, and copied once there is a session.
    Starting,
    /// There is no session: changes wait.
    Detached,
    /// Changes are sent.
    Attached,
    /// There is no backup.
    Alone,
    /// Another daemon has taken over.
    Superseded,
}

#[derive(Debug)]
struct Session {
    mode: Mode,
    epoch: u32,
    backup: Option<NodeId>,
    /// The last session; 0 before the first.
    number: u64,
    /// True if the replicas have to be made anew.
    anew: bool,
    /// True until there is a note of the mirror.
    is_first: bool,
}

/// The volumes of a node and their mirror.
#[derive(Debug)]
pub struct MirroredVolumes {
    link: Arc<dyn ReplicaBackup>,
    volumes: Vec<Arc<dyn Volume>>,
    options: MirrorOptions,
    session: RwLock<Session>,
    channels: Channels,
    copy: Mutex<CopyPlan<FileKey>>,
    /// The file that is being copied, and from where on.
    copying: Mutex<Option<(FileKey, u64)>>,
    suspects: Mutex<Suspects>,
    lease: Mutex<PrimaryLease>,
    /// True if a daemon may take over from the replicas without asking this one, so that requests need the lease.
    needs_lease: AtomicBool,
    /// True before the first session.
    serves_nothing: AtomicBool,
    /// True if the note says that changes were made before the first session. Held while the note is written.
    notes_unsent: Mutex<bool>,
    is_superseded: AtomicBool,
    /// True if an error that prevents a session, or stops the copy, has been logged.
    is_stuck: AtomicBool,
    /// Raised whenever a session begins or ends, or the lease is renewed.
    turn: Mutex<u64>,
    changed: Condvar,
    pub(super) files: MirroredFiles,
    /// Raised by each session and each end of a copy. Space allocated for deferred writes in an earlier state counts no
    /// more: a copy sets lengths, and another backup has nothing.
    pub(super) allocated_in: AtomicU64,
    deferred: DeferredWrites,
    /// True while there is a backup that has been reached.
    defers: AtomicBool,
}

impl MirroredVolumes {
    /// Creates a mirror of these volumes, which must be changed only through it.
    #[must_use]
    pub fn new(
        volumes: Vec<Arc<dyn Volume>>,
        link: Arc<dyn ReplicaBackup>,
        options: MirrorOptions,
    ) -> Arc<MirroredVolumes> {
        let is_alone = options.backup.is_none();
        let mode = if is_alone { Mode::Alone } else { Mode::Starting };
        let session = Session {
            mode,
            epoch: options.epoch,
            backup: options.backup,
            number: 0,
            anew: options.has_unsent,
            is_first: options.is_first && !is_alone,
        };
        Arc::new(MirroredVolumes {
            link,
            volumes,
            options,
            session: RwLock::new(rank::MIRROR_SESSION, session),
            channels: Channels::default(),
            copy: Mutex::new(rank::LEAF, CopyPlan::default()),
            copying: Mutex::new(rank::LEAF, None),
            suspects: Mutex::new(rank::LEAF, Suspects::default()),
            lease: Mutex::new(rank::LEAF, PrimaryLease::default()),
            needs_lease: AtomicBool::new(!is_alone),
            serves_nothing: AtomicBool::new(!is_alone),
            notes_unsent: Mutex::new(rank::LEAF, false),
            is_superseded: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            turn: Mutex::new(rank::LEAF, 0),
            changed: Condvar::new(),
            files: MirroredFiles::default(),
            allocated_in: AtomicU64::new(1),
            deferred: DeferredWrites::default(),
            defers: AtomicBool::new(false),
        })
    }

    pub(super) fn volume(&self, index: u16) -> &Arc<dyn Volume> {
        &self.volumes[usize::from(index)]
    }

    pub(super) fn volume_count(&self) -> u16 {
        u16::try_from(self.volumes.len()).unwrap_or(u16::MAX)
    }

    /// Returns whether requests may be answered now. To be called after reading what the reply contains: a lease that
    /// is valid then was valid during the read.
    #[must_use]
    pub fn serve_state(&self) -> ServeState {
        if self.is_superseded.load(Ordering::Acquire) {
            return ServeState::Superseded;
        }
        if self.serves_nothing.load(Ordering::Acquire) {
            return ServeState::Waits;
        }
        let has_lease = || self.lease.lock().is_valid(self.link.now());
        if !self.needs_lease.load(Ordering::Acquire) || has_lease() {
            ServeState::Serves
        } else {
            ServeState::Waits
        }
    }

    /// Waits until requests may be answered, [`MirrorOptions::patience`] at most.
    pub fn wait_to_serve(&self) -> ServeState {
        let deadline = self.link.now().saturating_add(self.options.patience);
        let mut state = self.serve_state();
        if state == ServeState::Waits {
            self.link.before_waiting();
        }
        while state == ServeState::Waits && self.link.now() < deadline {
            let mut turn = self.turn.lock();
            self.changed.wait_for(&mut turn, LEASE_LOOK);
            drop(turn);
            state = self.serve_state();
        }
        state
    }

    /// Returns the state of the mirror.
    #[must_use]
    pub fn status(&self) -> MirrorStatus {
        let session = self.session.read();
        MirrorStatus {
            backup: session.backup,
            epoch: session.epoch,
            is_complete: session.mode == Mode::Attached && self.needs_lease.load(Ordering::Acquire),
        }
    }

    /// Goes on with another backup, or without one, at a higher epoch. Idempotent. The same may come again.
    ///
    /// # Errors
    /// `ESTALE` if the epoch is not above that of the mirror; the system's, if the change cannot be noted: nothing is
    /// changed then.
    pub fn set_backup(&self, epoch: u32, backup: Option<NodeId>) -> io::Result<()> {
        let mut session = self.session.write();
        let mut noted = self.notes_unsent.lock();
        if session.mode == Mode::Superseded {
            return Err(system_error(Errno::ESTALE));
        }
        if (session.epoch, session.backup) == (epoch, backup) {
            return Ok(());
        }
        if epoch <= session.epoch {
            return Err(system_error(Errno::ESTALE));
        }
        // Unsent changes do not matter: the replicas are made anew.
        self.write_note(MirrorRole::Primary { backup, epoch, has_unsent: false })?;
        *noted = false;
        drop(noted);
        (session.epoch, session.backup, session.anew, session.is_first) = (epoch, backup, true, false);
        session.mode = match (session.mode, backup) {
            (_, None) => Mode::Alone,
            (Mode::Starting, Some(_)) => Mode::Starting,
            (_, Some(_)) => Mode::Detached,
        };
        // What is known of the old backup says nothing about the new one.
        (*self.copy.lock(), *self.copying.lock()) = (CopyPlan::default(), None);
        self.suspects.lock().clear();
        self.lease.lock().end();
        // The decision implies that no daemon takes over from replicas of an older epoch.
        self.needs_lease.store(false, Ordering::Release);
        if backup.is_none() {
            self.defers.store(false, Ordering::Release);
            self.serves_nothing.store(false, Ordering::Release);
        }
        drop(session);
        self.tell();
        Ok(())
    }

    fn write_note(&self, role: MirrorRole) -> io::Result<()> {
        match &self.options.note_at {
            Some(dir) => write_mirror_note(dir, &MirrorNote::new(role)),
            None => Ok(()),
        }
    }

    /// Notes whether there are changes that only this side has, made before the first session: a kill would lose the
    /// list of them.
    fn note_unsent(&self, session: &Session, has_unsent: bool) -> io::Result<()> {
        // Without a note the next daemon counts as the first too.
        if session.is_first {
            return Ok(());
        }
        let mut noted = self.notes_unsent.lock();
        // Written on a change only: it is synced, and each change before the first session comes by here.
        if *noted != has_unsent {
            let (backup, epoch) = (session.backup, session.epoch);
            self.write_note(MirrorRole::Primary { backup, epoch, has_unsent })?;
            *noted = has_unsent;
        }
        Ok(())
    }

    /// Wakes all threads that wait for a change of state.
    pub fn wake(&self) {
        self.tell();
    }

    /// Announces a change of state.
    fn tell(&self) {
        *self.turn.lock() += 1;
        self.changed.notify_all();
    }

    fn send(
        &self,
        session: &Session,
        channel: &mut ChannelInUse<'_>,
        changes: Vec<(u16, VolumeChange)>,
        payload: &[IoSlice<'_>],
    ) -> io::Result<AppliedChanges> {
        let count = changes.len();
        let request = ApplyChangesRequest {
            epoch: session.epoch,
            session: session.number,
            channel: channel.index(),
            sequence: channel.next_sequence(),
            changes,
        };
        // The lease counts from here: the backup counts its own from the arrival, which is later.
        let sent = self.link.now();
        let applied = self.link.apply(backup_of(session)?, &request, payload)?;
        let are_all = usize::from(applied.made) == count;
        if are_all != (applied.outcome == ReplicaOutcome::Done) || usize::from(applied.made) > count {
            return Err(io::Error::other(format!("the backup made {} of {count} changes", applied.made)));
        }
        self.note_answer(sent, applied.outcome);
        Ok(applied)
    }

    fn note_answer(&self, sent: Duration, outcome: ReplicaOutcome) {
        if matches!(outcome, ReplicaOutcome::Done | ReplicaOutcome::NoSpace) {
            self.lease.lock().renew(sent, self.options.lease);
        }
    }

    /// Waits until the state has changed since `turn`.
    fn wait_for_session(&self, turn: u64, deadline: Duration) -> io::Result<()> {
        self.link.before_waiting();
        let left = deadline.saturating_sub(self.link.now());
        if left.is_zero() {
            return Err(no_answer());
        }
        let mut now = self.turn.lock();
        if *now == turn {
            self.changed.wait_for(&mut now, left.min(self.options.retry_pause));
        }
        Ok(())
    }

    /// Ends the session, if it is still this one.
    fn detach(&self, number: u64, anew: bool) {
        let mut session = self.session.write();
        if session.number == number && session.mode == Mode::Attached {
            session.mode = Mode::Detached;
            session.anew |= anew;
        }
        drop(session);
        self.tell();
    }

    fn supersede(&self, epoch: u32) {
        let mut session = self.session.write();
        // The answer to what was asked before another backup was decided: that move was given up.
        if epoch < session.epoch {
            return;
        }
        if session.mode != Mode::Superseded {
            log::error!(
                "another daemon has taken over at mirror epoch {epoch}: this one serves nothing any more"
            );
            session.mode = Mode::Superseded;
            self.is_superseded.store(true, Ordering::Release);
        }
        drop(session);
        self.tell();
    }

    /// Does what is due: begins a session, copies a part, or renews the lease. Returns after what time to call it
    /// again, unless the state changes before. One thread calls this in a loop.
    pub fn tend(&self) -> Duration {
        let (mode, number) = {
            let session = self.session.read();
            (session.mode, session.number)
        };
        match mode {
            Mode::Alone | Mode::Superseded => self.options.lease,
            Mode::Starting | Mode::Detached => match self.attach() {
                Ok(()) => Duration::ZERO,
                Err(error) => {
                    log::debug!(why:% = error; "the backup of this node's volumes cannot be reached");
                    self.options.retry_pause
                }
            },
            Mode::Attached => {
                let tended = self.copy_part().and_then(|copied| match copied {
                    true => Ok(Duration::ZERO),
                    false => self.renew_when_due(),
                });
                tended.unwrap_or_else(|error| {
                    if error.raw_os_error() == Some(Errno::ENOSPC.code()) {
                        // The session goes on: only the copy waits until there may be space.
                        if !self.is_stuck.swap(true, Ordering::Relaxed) {
                            log::error!("the backup of this node's volumes has no space for their replicas");
                        }
                        return COPY_PAUSE;
                    }
                    log::warn!(why:% = error; "the backup of this node's volumes does not answer");
                    self.detach(number, false);
                    Duration::ZERO
                })
            }
        }
    }

    /// Returns the number of changes of state so far, for [`MirroredVolumes::wait_for_change`].
    pub fn turn(&self) -> u64 {
        *self.turn.lock()
    }

    /// Waits until the state has changed since `turn`, for `time` at most, or until `ends` is set.
    pub fn wait_for_change(&self, turn: u64, time: Duration, ends: &AtomicBool) {
        let mut now = self.turn.lock();
        // Under the lock, so that `wake` after setting `ends` is not missed.
        if *now == turn && !ends.load(Ordering::Acquire) {
            self.changed.wait_for(&mut now, time);
        }
    }

    /// Ends the mirror with its daemon, which answers no requests any more. What it still changes is made here alone,
    /// and noted, so that the replicas are made anew.
    pub fn end(&self) {
        let mut session = self.session.write();
        if matches!(session.mode, Mode::Attached | Mode::Detached) {
            session.mode = Mode::Starting;
            self.defers.store(false, Ordering::Release);
            self.serves_nothing.store(true, Ordering::Release);
        }
        drop(session);
        self.tell();
    }

    /// Begins a session with the backup.
    fn attach(&self) -> io::Result<()> {
        let (backup, request) = {
            let session = self.session.read();
            let known = session.mode == Mode::Detached && session.number != 0;
            let request = BeginReplicaRequest {
                epoch: session.epoch,
                volumes: self.volume_count(),
                lease_ms: u32::try_from(self.options.lease.as_millis()).unwrap_or(u32::MAX),
                continues: known.then_some(session.number).or(session.is_first.then_some(0)),
                anew: session.anew,
            };
            (backup_of(&session)?, request)
        };
        // Taken before the request: see `send`.
        let sent = self.link.now();
        let begun = self.link.begin(backup, &request)?;
        match begun.outcome {
            ReplicaOutcome::Done => {}
            ReplicaOutcome::Superseded { epoch } => {
                self.supersede(epoch);
                return Ok(());
            }
            ReplicaOutcome::Failed { errno } if errno == Errno::EEXIST.code() => {
                let text = format!(
                    "this node's volumes are new, but {backup} has replicas of all that was on them: they were lost here. \
                     Nothing is served: end this node's host, and the node goes on from the replicas"
                );
                if !self.is_stuck.swap(true, Ordering::Relaxed) {
                    log::error!("{text}");
                }
                return Err(io::Error::other(text));
            }
            other => return Err(io::Error::other(format!("{backup} keeps no replicas: {other:?}"))),
        }
        let mut session = self.session.write();
        // Changed while the request was under way: the next round begins anew.
        let is_same = (session.epoch, session.backup) == (request.epoch, Some(backup));
        if !is_same || !matches!(session.mode, Mode::Starting | Mode::Detached) {
            return Ok(());
        }
        session.number = begun.session;
        if session.is_first {
            // Before the backup can have everything: from then on, volumes without a note count as lost.
            let (backup, epoch) = (session.backup, session.epoch);
            self.write_note(MirrorRole::Primary { backup, epoch, has_unsent: true })?;
            (*self.notes_unsent.lock(), session.is_first) = (true, false);
        }
        if begun.is_complete {
            self.lease.lock().renew(sent, self.options.lease);
            self.settle_suspects(&session, begun.suspects)?;
        } else {
            // The replicas are incomplete, so nobody can take over from them.
            self.needs_lease.store(false, Ordering::Release);
            self.begin_copy(&session)?;
        }
        self.suspects.lock().clear();
        self.note_unsent(&session, false)?;
        (session.mode, session.anew) = (Mode::Attached, false);
        self.allocated_in.fetch_add(1, Ordering::AcqRel);
        self.defers.store(true, Ordering::Release);
        self.serves_nothing.store(false, Ordering::Release);
        drop(session);
        self.tell();
        Ok(())
    }

    /// Makes everything at the backup that may differ equal to the volumes here.
    fn settle_suspects(&self, session: &Session, theirs: Vec<SuspectPart>) -> io::Result<()> {
        let parts = {
            let mut suspects = self.suspects.lock();
            theirs.into_iter().for_each(|part| suspects.add(part));
            suspects.parts()
        };
        let mut channel = self.channels.take();
        for part in parts {
            self.settle(session, &mut channel, &part)?;
        }
        self.tell_complete(session)
    }

    fn settle(
        &self,
        session: &Session,
        channel: &mut ChannelInUse<'_>,
        part: &SuspectPart,
    ) -> io::Result<()> {
        let Some(volume) = self.volumes.get(usize::from(part.volume)) else {
            return Err(io::Error::other(format!("a suspect on volume {}, which there is not", part.volume)));
        };
        let name = part.name.clone();
        let file = match volume.open(&name, OpenMode::Existing) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT.code()) => {
                return self.must(session, channel, part.volume, VolumeChange::Remove { name }, &[]);
            }
            file => file?,
        };
        let len = file.stat()?.len;
        // The backup may not have the file at all.
        self.must(session, channel, part.volume, VolumeChange::Create { name: name.clone() }, &[])?;
        // The length first: bytes behind the end at the backup might be in the way of holes.
        self.must(session, channel, part.volume, VolumeChange::SetLen { name: name.clone(), len }, &[])?;
        let mut at = part.start.min(len);
        while at < part.end.min(len) {
            let data = file.next_data(at)?.map_or(len..len, |data| data.start.min(len)..data.end.min(len));
            let hole = at..data.start.min(part.end);
            if !hole.is_empty() {
                let change = VolumeChange::Punch { name: name.clone(), start: hole.start, end: hole.end };
                self.must(session, channel, part.volume, change, &[])?;
            }
            let data = data.start..data.end.min(part.end).min(data.start.saturating_add(COPY_PART));
            at = if data.is_empty() { hole.end } else { data.end };
            if !data.is_empty() {
                self.send_content(session, channel, (part.volume, &name), &*file, data)?;
            }
        }
        Ok(())
    }

    /// Sends a range of a file's content.
    fn send_content(
        &self,
        session: &Session,
        channel: &mut ChannelInUse<'_>,
        (volume, name): (u16, &str),
        file: &dyn VolumeFile,
        range: Range<u64>,
    ) -> io::Result<()> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let count = read_full_at(file, &mut [IoSliceMut::new(&mut bytes)], range.start, range.end)?;
        bytes.truncate(count);
        let Ok(len) = u32::try_from(count) else { return Err(system_error(Errno::EINVAL)) };
        if len == 0 {
            return Ok(());
        }
        let change = VolumeChange::Write { name: name.to_owned(), extents: vec![(range.start, len)] };
        self.must(session, channel, volume, change, &[IoSlice::new(&bytes)])?;
        Ok(())
    }

    /// Makes a change that the backup has to accept.
    fn must(
        &self,
        session: &Session,
        channel: &mut ChannelInUse<'_>,
        volume: u16,
        change: VolumeChange,
        payload: &[IoSlice<'_>],
    ) -> io::Result<()> {
        let name = change.name().to_owned();
        match self.send(session, channel, vec![(volume, change)], payload)?.outcome {
            ReplicaOutcome::Done => Ok(()),
            ReplicaOutcome::NoSpace => Err(system_error(Errno::ENOSPC)),
            other => Err(io::Error::other(format!("{name}: not changed at the backup: {other:?}"))),
        }
    }

    /// Tells the backup that its replicas are complete. No change may be under way.
    fn tell_complete(&self, session: &Session) -> io::Result<()> {
        // Before the backup can know: from then on another daemon may take over.
        self.needs_lease.store(true, Ordering::Release);
        match self.renew(session, true)? {
            ReplicaOutcome::Done => Ok(()),
            other => Err(io::Error::other(format!("the replicas are not complete at the backup: {other:?}"))),
        }
    }

    fn renew(&self, session: &Session, is_complete: bool) -> io::Result<ReplicaOutcome> {
        let request = ReplicaSessionRequest { epoch: session.epoch, session: session.number, is_complete };
        let sent = self.link.now();
        let outcome = self.link.renew(backup_of(session)?, &request)?;
        self.note_answer(sent, outcome);
        Ok(outcome)
    }

    /// Makes the directories, and plans the copy of all files.
    fn begin_copy(&self, session: &Session) -> io::Result<()> {
        let mut channel = self.channels.take();
        let mut files = Vec::new();
        for (index, volume) in (0..).zip(&self.volumes) {
            let tree = VolumeTree::of(&**volume)?;
            for name in tree.dirs {
                self.must(session, &mut channel, index, VolumeChange::MakeDir { name }, &[])?;
            }
            let own = tree.files.into_iter().filter(|(name, _)| is_replicated(name));
            files.extend(own.map(|(name, _)| (index, name)));
        }
        *self.copy.lock() = CopyPlan::of(files);
        *self.copying.lock() = None;
        Ok(())
    }

    /// Copies the next part of a file. Returns false once all files are copied, and the backup knows.
    fn copy_part(&self) -> io::Result<bool> {
        let copying = self.copying.lock().clone();
        let copying = copying.filter(|(key, _)| self.copy.lock().state(key) == FileState::Copying);
        let (key, begun) = match copying {
            Some((key, next)) => (key, Some(next)),
            None => {
                let next = self.copy.lock().next().cloned();
                let Some(key) = next else { return self.end_copy() };
                (key, None)
            }
        };
        let copied = self.copy_file_part(&key, begun);
        if copied.is_err() {
            self.copy.lock().postpone(&key);
        }
        copied.map(|()| true)
    }

    /// Copies the part of a file from `begun` on; without an offset, begins with the file. Changes of the file are made
    /// between parts.
    fn copy_file_part(&self, key: &FileKey, begun: Option<u64>) -> io::Result<()> {
        let (volume, name) = (key.0, &key.1);
        let entry = self.files.entry(volume, name);
        // The holder may be waiting for a session, which only this thread begins.
        let Some(named) = entry.name.try_write_for(COPY_WAIT) else { return Ok(()) };
        if named.as_deref() != Some(name.as_str()) {
            return Ok(());
        }
        // Deferred writes are made without the lock of their file.
        let Some(_turn) = self.deferred.turn.try_lock_for(COPY_WAIT) else { return Ok(()) };
        let session = self.session.read();
        if session.mode != Mode::Attached {
            return Ok(());
        }
        // Under the file's lock: a change comes either before all of the copy, or to a file that is at the backup.
        let is_copied = match begun {
            None => self.copy.lock().begin(key),
            Some(_) => self.copy.lock().state(key) == FileState::Copying,
        };
        if !is_copied {
            return Ok(());
        }
        let file = match self.volume(volume).open(name, OpenMode::Existing) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT.code()) => {
                self.copy.lock().finish(key);
                return Ok(());
            }
            file => file?,
        };
        let mut channel = self.channels.take();
        if begun.is_none() {
            let len = file.stat()?.len;
            let cut = |len| VolumeChange::SetLen { name: name.clone(), len };
            self.must(&session, &mut channel, volume, VolumeChange::Create { name: name.clone() }, &[])?;
            // Remains of an abandoned copy are removed.
            self.must(&session, &mut channel, volume, cut(0), &[])?;
            self.must(&session, &mut channel, volume, cut(len), &[])?;
        }
        let Some(data) = file.next_data(begun.unwrap_or(0))? else {
            self.copy.lock().finish(key);
            return Ok(());
        };
        let part = data.start..data.end.min(data.start.saturating_add(COPY_PART));
        *self.copying.lock() = Some((key.clone(), part.end));
        self.send_content(&session, &mut channel, (volume, name), &*file, part)
    }

    /// Tells the backup, once, that everything is copied.
    fn end_copy(&self) -> io::Result<bool> {
        if self.needs_lease.load(Ordering::Acquire) {
            return Ok(false);
        }
        // With the session alone, no change is under way that the backup lacks.
        let session = self.session.write();
        if session.mode != Mode::Attached || !self.copy.lock().is_over() {
            return Ok(true);
        }
        self.tell_complete(&session)?;
        self.allocated_in.fetch_add(1, Ordering::AcqRel);
        drop(session);
        self.is_stuck.store(false, Ordering::Relaxed);
        log::info!("the replicas of this node's volumes are complete");
        self.tell();
        Ok(false)
    }

    /// Renews the lease once a third of it has passed; returns after what time to check again.
    fn renew_when_due(&self) -> io::Result<Duration> {
        let due = self.options.lease / 3 * 2;
        let left = self.lease.lock().left(self.link.now());
        if left > due {
            return Ok(left - due);
        }
        let session = self.session.read();
        if session.mode != Mode::Attached {
            return Ok(Duration::ZERO);
        }
        let number = session.number;
        let outcome = self.renew(&session, false)?;
        // What follows takes it for writing; the number says which session ended.
        drop(session);
        match outcome {
            ReplicaOutcome::Done => self.tell(),
            ReplicaOutcome::Superseded { epoch } => self.supersede(epoch),
            _ => self.detach(number, false),
        }
        Ok(Duration::ZERO)
    }
}

fn backup_of(session: &Session) -> io::Result<NodeId> {
    session.backup.ok_or_else(|| io::Error::other("there is no backup"))
}

fn no_answer() -> io::Error {
    io::Error::other("the backup of this node's volumes does not answer")
}

fn superseded() -> io::Error {
    io::Error::other("another daemon has taken over this node's volumes")
}
