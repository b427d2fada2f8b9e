//! Bringing what was written to site storage, driven by the home of the inode. What happens meanwhile to the inode is
//! not lost: it counts as changed again.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_layout::seats_of;
use bivouac_ranks::{Condvar, Mutex};
use bivouac_source::{Attrs, Cause, Expect, Kept, Piece, SourceError, Upload, check_path, split_path};
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, SeatIndex, mode};
use bivouac_wire::{
    FlushMark, FlushPartsRequest, FlushRequest, FlushState, MarkFlushRequest, Origin, SiteVersion, Whence, op,
};

use super::sites::{Site, from_wire, to_wire};
use crate::dispatch::SYSTEM;
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{Act, Given, Inode, SiteFile, act_key, target_key, xattr_key};

/// How long a flush is waited for before its asker asks again: a client, or a peer, whose lane is for short answers.
pub const WAIT: Duration = Duration::from_secs(2);
pub const PEER_WAIT: Duration = Duration::from_millis(20);

/// What lets the owner of a directory bring files into it.
const OPEN: u32 = 0o700;

/// A flush under way.
pub struct Job {
    number: u64,
    moved: AtomicU64,
    outcome: Mutex<Option<FsResult<FlushState>>>,
    over: Condvar,
}

/// Jobs by the inode that they are about.
pub type Jobs = Mutex<HashMap<Ino, Arc<Job>>>;

impl Job {
    /// What is answered when it is over.
    pub(super) fn ended(&self) -> FlushState {
        FlushState { done: true, ..self.running() }
    }

    fn wait(&self, wait: Duration) -> Option<FsResult<FlushState>> {
        if self.outcome.lock().is_none() {
            bivouac_net::before_waiting();
        }
        let mut outcome = self.outcome.lock();
        if outcome.is_none() {
            self.over.wait_for(&mut outcome, wait);
        }
        outcome.clone()
    }

    fn end(&self, outcome: FsResult<FlushState>) {
        *self.outcome.lock() = Some(outcome);
        self.over.notify_all();
    }

    fn running(&self) -> FlushState {
        let moved = self.moved.load(Ordering::Relaxed);
        FlushState { done: false, job: self.number, moved, version: None, lost: Vec::new() }
    }
}

/// Who waits for a job hears of its end, also of a bad one.
struct End<'a> {
    job: &'a Job,
    outcome: FsResult<FlushState>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.job.end(self.outcome.clone());
    }
}

/// What is flushed.
struct Flush<'a> {
    node: &'a Node,
    request: &'a FlushRequest,
    job: &'a Job,
    site: &'a Site,
    inode: Inode,
    file: SiteFile,
    /// What was last at its path, where another inode had that.
    former: Option<SiteVersion>,
    /// Attributes when it began.
    begun: Attr,
    /// Those of which `file` tells.
    known: Attr,
    /// Whether it was written down what is about to be done.
    is_acting: bool,
}

impl Node {
    /// Begins a flush, or tells how far one is.
    pub(crate) fn flush(&self, request: FlushRequest, wait: Duration) -> FsResult<FlushState> {
        self.inode(request.ino)?;
        check_path(&request.path)?;
        self.run_job((request.ino, request.job), wait, move |node, job| {
            let outcome = node.flush_now(&request, job);
            node.proxy.failing.note(request.ino, &outcome);
            outcome
        })
    }

    /// Has `work` flush an inode in a thread of its own unless somebody does, and tells how far it is.
    pub(super) fn run_job(
        &self,
        key: (Ino, u64),
        wait: Duration,
        work: impl FnOnce(&Node, &Job) -> FsResult<FlushState> + Send + 'static,
    ) -> FsResult<FlushState> {
        self.run_job_of(&self.proxy.jobs, key, wait, work)
    }

    /// The same among other jobs than flushes.
    pub(super) fn run_job_of(
        &self,
        jobs: &Jobs,
        (ino, wanted): (Ino, u64),
        wait: Duration,
        work: impl FnOnce(&Node, &Job) -> FsResult<FlushState> + Send + 'static,
    ) -> FsResult<FlushState> {
        let (job, is_new) = self.job(jobs, ino, wanted)?;
        if is_new && let Err(error) = self.start_flush(&job, work) {
            jobs.lock().remove(&ino);
            return Err(error);
        }
        let outcome = job.wait(wait);
        if !is_new && job.number != wanted {
            // Somebody else's, which may have begun before what this asker wants to have flushed was written.
            return Ok(FlushState { job: 0, ..job.running() });
        }
        let Some(outcome) = outcome else { return Ok(job.running()) };
        forget_job(jobs, ino, &job);
        outcome
    }

    /// The job that was asked for, or a new one. One that is over and nobody has asked for again is forgotten.
    fn job(&self, all: &Jobs, ino: Ino, wanted: u64) -> FsResult<(Arc<Job>, bool)> {
        let asked_for = |jobs: &HashMap<Ino, Arc<Job>>| {
            let is_it = |job: &&Arc<Job>| job.number == wanted || job.outcome.lock().is_none();
            jobs.get(&ino).filter(is_it).cloned()
        };
        if let Some(job) = asked_for(&all.lock()) {
            return Ok((job, false));
        }
        // Not under the lock of all jobs: it may write to the log.
        let number = self.allocator.next(&self.records)?;
        let mut jobs = all.lock();
        if let Some(job) = asked_for(&jobs) {
            return Ok((job, false));
        }
        let (moved, outcome, over) = Default::default();
        let job = Arc::new(Job { number, moved, outcome, over });
        jobs.insert(ino, Arc::clone(&job));
        Ok((job, true))
    }

    /// Whether a flush of a file is under way. One that is over stays among the jobs until its asker comes back, who may
    /// be gone.
    pub(super) fn is_being_flushed(&self, ino: Ino) -> bool {
        self.proxy.jobs.lock().get(&ino).is_some_and(|job| job.outcome.lock().is_none())
    }

    fn start_flush(
        &self,
        job: &Arc<Job>,
        flush: impl FnOnce(&Node, &Job) -> FsResult<FlushState> + Send + 'static,
    ) -> FsResult<()> {
        let stopping = || FsError::with(Errno::EIO, "the node is about to end");
        let node = self.proxy.node.get().and_then(std::sync::Weak::upgrade).ok_or_else(stopping)?;
        let job = Arc::clone(job);
        let work = move || {
            let mut end = End { job: &job, outcome: Err(FsError::with(Errno::EIO, "the flush ended early")) };
            let outcome = flush(&node, &job);
            // Who hears of the end may want to end the node.
            drop(node);
            end.outcome = outcome;
        };
        let thread = std::thread::Builder::new().name("flush".to_owned()).spawn(work);
        thread.map(drop).map_err(|error| FsError::from_io(&error, "thread of a flush"))
    }

    pub(super) fn flush_now(&self, request: &FlushRequest, job: &Job) -> FsResult<FlushState> {
        let inode = self.inode(request.ino)?;
        let site = self.site_of(inode.attr.layout.partition())?;
        self.settle_act(request.ino, request.force)?;
        let former = self.settle_former(request)?;
        let file = self.begin_site_file(request.ino)?;
        let (begun, is_acting) = (inode.attr, false);
        let mut flush = Flush {
            node: self,
            request,
            job,
            site: &site,
            inode,
            file,
            former,
            begun,
            known: begun,
            is_acting,
        };
        let outcome = flush.run();
        let told = match &outcome {
            Ok(kept) => flush.tell(kept.as_ref()),
            Err(_) => flush.settle(),
        };
        let ended = flush.end(outcome.as_ref().ok().and_then(Option::as_ref), told.is_ok()).and(told);
        // Listed with the reason; one that was flushed for its room alone, and is there, stays clean.
        if outcome.is_err() && flush.file.is_unsaved() {
            flush.update(false, |file, _| file.changed = true)?;
        }
        let kept = outcome?;
        ended?;
        let moved = job.moved.load(Ordering::Relaxed);
        let (version, lost) =
            kept.map_or((None, Vec::new()), |kept| (Some(to_wire(kept.version)), kept.lost));
        Ok(FlushState { done: true, job: job.number, moved, version, lost })
    }

    /// What is changed from here on is told apart.
    fn begin_site_file(&self, ino: Ino) -> FsResult<SiteFile> {
        let mut change = self.change(&[ino.slot()])?;
        let mut file = change.site_file(ino)?.unwrap_or_else(SiteFile::new_here);
        (file.flushing, file.changed) = (file.flushing || file.changed, false);
        change.put_site_file(ino, &file);
        change.commit()?;
        Ok(file)
    }
}

impl Flush<'_> {
    /// Brings it there; nothing if it was there already.
    fn run(&mut self) -> FsResult<Option<Kept>> {
        let path = &self.request.path[..];
        match self.inode.attr.mode & mode::TYPE {
            mode::DIR if path.is_empty() => self.nothing(),
            mode::DIR => self.put_dir().map(Some),
            mode::LINK if self.is_there() => self.nothing(),
            mode::LINK => self.put_link().map(Some),
            mode::FILE => self.run_file(),
            _ => {
                let name = String::from_utf8_lossy(path);
                let lost = vec![format!("'{name}': pipes, sockets and devices are not kept at the source")];
                Ok(Some(Kept { lost, ..Kept::default() }))
            }
        }
    }

    /// Nothing has to be done; who is asked for more sees by himself whether the source is what it was.
    fn nothing(&self) -> FsResult<Option<Kept>> {
        self.site.source.check()?;
        Ok(None)
    }

    fn put_link(&mut self) -> FsResult<Kept> {
        let (site, target) = (self.site, self.target()?);
        let (plan, expect) =
            (site.source.plan(&self.request.path, target.len() as u64)?, self.expected_now()?);
        self.note_upload(&plan, &expect)?;
        let link = site.source.start_link(plan, &target)?;
        self.note_upload(&link, &expect)?;
        Ok(site.source.put_link(&link, &target, &self.attrs(), &expect).map_err(explained)?)
    }

    /// Of a directory that has not changed here only the times are given back, which changes in it have moved on; so they
    /// need not be given while it is open for such changes.
    fn put_dir(&self) -> FsResult<Kept> {
        let (path, source, mut attrs) = (&self.request.path[..], &self.site.source, self.attrs());
        if self.is_there() {
            return Ok(source.put_dir_times(path, &attrs)?);
        }
        if !self.request.open {
            return Ok(source.put_dir(path, &attrs)?);
        }
        attrs.perm |= OPEN;
        Ok(source.put_open_dir(path, &attrs)?)
    }

    /// Whether a directory has another mode there than it is to have in the end.
    fn is_left_open(&self) -> bool {
        self.request.open
            && self.inode.attr.is_dir()
            && self.inode.attr.mode & OPEN != OPEN
            && !self.is_there()
    }

    /// Whether nothing but content can differ.
    fn is_there(&self) -> bool {
        let same = |origin: &Origin| origin.path == self.request.path;
        !self.file.is_unsaved() && self.file.origin.as_ref().is_some_and(same)
    }

    fn run_file(&mut self) -> FsResult<Option<Kept>> {
        let dirty = self.mark_all(&FlushMark::Begin)?;
        let outcome = self.put_file(dirty);
        let mark = match (&outcome, &self.file.origin) {
            (Ok(_), Some(origin)) => {
                let (origin, limit, pin) = (Some(origin.clone()), self.file.limit, self.file.pin);
                let Attr { epoch, layout, .. } = self.known;
                FlushMark::Done { epoch, whence: Whence { origin, limit, layout, pin } }
            }
            _ => FlushMark::Failed,
        };
        match (outcome, self.mark_all(&mark)) {
            // It is there; who has not heard flushes it once more.
            (Ok(kept), Err(error)) => {
                log::warn!(why:% = error; "inode {}: flushed, but a node was not told", self.request.ino);
                Ok(kept)
            }
            (outcome, _) => outcome,
        }
    }

    fn put_file(&mut self, dirty: u64) -> FsResult<Option<Kept>> {
        if dirty == 0 && self.is_there() {
            return self.nothing();
        }
        let (size, origin) = (self.inode.attr.size, self.file.origin.clone());
        // One that was cut and has grown again has other content behind the limit.
        let same = |origin: &&Origin| {
            origin.path == self.request.path && origin.seen.size == size && self.file.limit == size
        };
        if dirty == 0
            && !self.request.force
            && let Some(origin) = origin.as_ref().filter(same)
        {
            let (version, attrs) = (from_wire(origin.seen.clone()), self.attrs());
            self.note_attrs(origin, &attrs)?;
            match self.site.source.set_attrs(&origin.path, &version, &attrs) {
                Err(error) if error.cause() == Cause::Unsupported => {}
                kept => return self.placed(kept.map_err(explained)?, None).map(Some),
            }
        }
        let (plan, expect) = (self.site.source.plan(&self.request.path, size)?, self.expected_now()?);
        self.note_upload(&plan, &expect)?;
        let upload = self.site.source.start(plan, &self.attrs())?;
        self.note_upload(&upload, &expect)?;
        let kept = self.put_content(&upload, &expect)?;
        self.placed(kept, Some(size)).map(Some)
    }

    fn put_content(&mut self, upload: &Upload, expect: &Expect) -> FsResult<Kept> {
        let mut pieces = self.put_parts(upload)?;
        pieces.sort_by_key(|piece| piece.offset);
        // The times as they are now.
        self.inode = self.node.inode(self.request.ino)?;
        let kept = self.site.source.commit(upload, &pieces, &self.attrs(), expect);
        Ok(kept.map_err(explained)?)
    }

    /// Every seat puts its own stripes, all at the same time.
    fn put_parts(&self, upload: &Upload) -> FsResult<Vec<Piece>> {
        let layout = self.inode.attr.layout;
        let (origin, limit, pin) = (self.file.origin.clone(), self.file.limit, self.file.pin);
        let whence = Whence { origin, limit, layout, pin };
        let parts = std::thread::scope(|scope| {
            let start = |seat| {
                let whence = whence.clone();
                scope.spawn(move || self.put_seat(upload, whence, seat))
            };
            let threads: Vec<_> = seats_of(&layout).map(start).collect();
            let died = |_| Err(FsError::with(Errno::EIO, "a thread of a flush ended early"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect::<Vec<_>>()
        });
        parts.into_iter().try_fold(Vec::new(), |mut all, part| {
            all.extend(part?);
            Ok(all)
        })
    }

    fn put_seat(&self, upload: &Upload, whence: Whence, seat: SeatIndex) -> FsResult<Vec<Piece>> {
        let (node, steps) = (self.node.seat_place(seat)?.node, Steps::question(SYSTEM));
        let (mut from, mut pieces) = (0, Vec::new());
        loop {
            let request = FlushPartsRequest {
                ino: self.request.ino,
                seat,
                whence: whence.clone(),
                path: upload.path.clone(),
                size: upload.size,
                token: upload.token.clone(),
                from,
            };
            let put = self.node.step::<op::FlushParts>(node, steps, 0, request)?;
            for part in put.parts {
                self.job.moved.fetch_add(part.len, Ordering::Relaxed);
                pieces.push(Piece { offset: part.offset, len: part.len, tag: part.tag });
            }
            match put.next {
                Some(next) if next > from => from = next,
                _ => return Ok(pieces),
            }
        }
    }

    /// Marks the subfiles at all seats, also behind one that does not answer. Answers the bytes that are not saved.
    fn mark_all(&self, mark: &FlushMark) -> FsResult<u64> {
        let ino = self.request.ino;
        let marked = seats_of(&self.inode.attr.layout).map(|seat| {
            let request = MarkFlushRequest { ino, seat, mark: mark.clone() };
            let (node, steps) = (self.node.seat_place(seat)?.node, Steps::question(SYSTEM));
            self.node.step::<op::MarkFlush>(node, steps, 0, request)
        });
        // All are asked before the first failure counts.
        marked.collect::<Vec<FsResult<u64>>>().into_iter().sum()
    }

    /// What has to be at its path for it to take the place.
    fn expected(&self) -> Expect {
        let FlushRequest { path, seen, force, .. } = self.request;
        let own = self.file.origin.as_ref().filter(|origin| origin.path == *path);
        match own.map(|origin| &origin.seen).or(self.former.as_ref()).or(seen.as_ref()) {
            _ if *force => Expect::Anything,
            Some(seen) => Expect::Version(from_wire(seen.clone())),
            None => Expect::Absent,
        }
    }

    /// The same. Where names that go here go there, too, one that is gone already is as well: by a deletion that was
    /// cut off.
    fn expected_now(&self) -> FsResult<Expect> {
        let (expected, path) = (self.expected(), &self.request.path);
        let is_own = self.file.origin.as_ref().is_some_and(|origin| origin.path == *path);
        let partition = self.inode.attr.layout.partition();
        if is_own || !matches!(expected, Expect::Version(_)) || !self.node.mirrors(partition) {
            return Ok(expected);
        }
        match self.site.source.stat(path) {
            Err(error) if error.cause() == Cause::NotFound => Ok(Expect::Absent),
            found => found.map(|_| expected).map_err(Into::into),
        }
    }

    /// Written down before the upload begins, and before it takes its place: after a kill it is known again.
    fn note_upload(&mut self, upload: &Upload, expect: &Expect) -> FsResult<()> {
        let seen = match expect {
            Expect::Version(version) => Some(to_wire(version.clone())),
            Expect::Absent | Expect::Anything => None,
        };
        let (token, tag) = (upload.token.clone(), upload.tag.clone());
        self.note(Act { token, tag, seen, force: *expect == Expect::Anything, ..self.act() })
    }

    fn note_attrs(&mut self, origin: &Origin, attrs: &Attrs) -> FsResult<()> {
        let Attrs { perm, uid, gid, mtime, .. } = *attrs;
        let (seen, given) = (Some(origin.seen.clone()), Some(Given { perm, uid, gid, mtime }));
        self.note(Act { seen, given, ..self.act() })
    }

    fn act(&self) -> Act {
        let FlushRequest { dir, path, .. } = self.request;
        let (partition, dir, path) = (self.inode.attr.layout.partition(), *dir, path.clone());
        let (token, tag, seen, force, given) = Default::default();
        Act { partition, dir, path, token, tag, seen, force, given }
    }

    fn note(&mut self, act: Act) -> FsResult<()> {
        self.is_acting = true;
        self.node.note_act(self.request.ino, &act)
    }

    /// What it is there is told to the home of its directory, so that who takes the name next knows what is there.
    fn tell(&self, kept: Option<&Kept>) -> FsResult<()> {
        let FlushRequest { ino, dir, path, .. } = self.request;
        let Some(kept) = kept.filter(|_| !path.is_empty()) else { return Ok(()) };
        self.node.tell_seen(*dir, split_path(path).1, Some(to_wire(kept.version.clone())), Some(*ino))
    }

    /// It has failed: what was begun is thrown away, unless it has taken its place all the same.
    fn settle(&mut self) -> FsResult<()> {
        if self.is_acting {
            let path = String::from_utf8_lossy(&self.request.path);
            match self.node.settle_act(self.request.ino, self.request.force) {
                Ok(origin) => self.file.origin = origin.or(self.file.origin.take()),
                Err(error) => log::warn!(
                    "what was begun for '{path}' at the source stays until it is asked for again: {error}"
                ),
            }
        }
        Ok(())
    }

    /// It has taken its place. All of its first `whole` bytes are there, unless it was cut meanwhile.
    fn placed(&mut self, kept: Kept, whole: Option<u64>) -> FsResult<Kept> {
        let (path, seen) = (self.request.path.clone(), to_wire(kept.version.clone()));
        self.file.origin = Some(Origin { path, seen });
        let (mut limit, mut known) = (self.file.limit, self.known);
        self.update(false, |file, now| {
            if let Some(whole) = whole.filter(|_| now.epoch == self.begun.epoch) {
                // It may be being cut.
                file.limit = whole.max(file.limit).min(now.size);
            }
            (limit, known) = (file.limit, *now);
        })?;
        (self.file.limit, self.known) = (limit, known);
        self.look_back(&kept)?;
        Ok(kept)
    }

    /// Its name may have gone while it took its place there.
    fn look_back(&self, kept: &Kept) -> FsResult<()> {
        let (ino, partition) = (self.request.ino, self.inode.attr.layout.partition());
        let (path, name) = (&self.request.path, &self.file.name[..]);
        if split_path(path).1 != name {
            return Ok(());
        }
        let there = Origin { path: path.clone(), seen: to_wire(kept.version.clone()) };
        self.node.look_back(ino, partition, (self.file.dir, name), &there)
    }

    /// What was changed since the flush began stays changed; everything else is saved, or is as it was. What was
    /// written down before goes if `is_told`.
    fn end(&mut self, kept: Option<&Kept>, is_told: bool) -> FsResult<()> {
        let (is_dir, is_left_open) = (self.inode.attr.is_dir(), self.is_left_open());
        if let (Some(kept), true) = (kept, !self.inode.attr.is_file()) {
            let (path, seen) = (self.request.path.clone(), to_wire(kept.version.clone()));
            self.file.origin = Some(Origin { path, seen });
        }
        let saved = kept.is_some() || !self.file.is_unsaved() || is_dir && self.request.path.is_empty();
        let is_over = self.is_acting && kept.is_some() && is_told;
        self.update(is_over, |file, _| {
            file.changed |= file.flushing && !saved || is_left_open;
            file.flushing = false;
        })
    }

    /// Of a file as it is now, with its attributes; also that nothing is about to be done for it any more.
    fn update(&self, is_over: bool, change: impl FnOnce(&mut SiteFile, &Attr)) -> FsResult<()> {
        let ino = self.request.ino;
        let mut update = self.node.change(&[ino.slot()])?;
        if is_over {
            update.txn.delete(ino.slot(), &act_key(ino));
        }
        // It may have been removed meanwhile.
        let Ok(now) = update.inode(ino) else { return if is_over { update.commit() } else { Ok(()) } };
        let mut file = update.site_file(ino)?.unwrap_or_else(|| self.file.clone());
        let is_moved = self.inode.attr.is_dir() && (file.dir, &file.name) != (self.file.dir, &self.file.name);
        // What is at the old path of a directory that has been moved since is not it.
        if !is_moved {
            file.origin = self.file.origin.clone();
        }
        change(&mut file, &now.attr);
        file.changed |= is_moved;
        update.put_site_file(ino, &file);
        update.commit()
    }

    fn attrs(&self) -> Attrs {
        let attr = &self.inode.attr;
        let (perm, uid, gid) = (attr.mode & mode::PERM, attr.uid, attr.gid);
        Attrs { perm, uid, gid, mtime: attr.mtime, atime: attr.atime, xattrs: self.xattrs() }
    }

    fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (ino, mut found) = (self.request.ino, Vec::new());
        let prefix = xattr_key(ino, b"");
        self.node.records.scan(ino.slot(), &prefix, &prefix, |key, value| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            if name.starts_with(b"user.") {
                found.push((name.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        });
        found
    }

    fn target(&self) -> FsResult<Vec<u8>> {
        let ino = self.request.ino;
        let target = self.node.records.read(ino.slot(), &target_key(ino), |bytes| bytes.map(<[u8]>::to_vec));
        target.ok_or_else(|| Errno::ENOENT.into())
    }
}

fn forget_job(jobs: &Jobs, ino: Ino, job: &Arc<Job>) {
    let mut jobs = jobs.lock();
    if jobs.get(&ino).is_some_and(|known| Arc::ptr_eq(known, job)) {
        jobs.remove(&ino);
    }
}

/// A conflict, with what may be done about it.
pub(super) fn explained(error: SourceError) -> SourceError {
    if error.cause() != Cause::Changed {
        return error;
    }
    let text = format!("{error}: both are kept; look at it there, or overwrite it with --force");
    SourceError::new(Cause::Changed, text)
}
