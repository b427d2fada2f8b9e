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
use crate::record::{Inode, Removed, SiteFile, target_key, xattr_key};

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
        let former = self.settle_former(request)?;
        let file = self.begin_site_file(request.ino)?;
        let begun = inode.attr;
        let mut flush =
            Flush { node: self, request, job, site: &site, inode, file, former, begun, known: begun };
        let outcome = flush.adopt().and_then(|()| flush.run());
        let ended = flush.end(outcome.as_ref().ok().and_then(Option::as_ref));
        // Listed with the reason; one that was flushed for its room alone, and is there, stays clean.
        if outcome.is_err() && flush.file.is_unsaved() {
            flush.update(|file, _| file.changed = true)?;
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
        let (path, source) = (&self.request.path[..], &self.site.source);
        match self.inode.attr.mode & mode::TYPE {
            mode::DIR if path.is_empty() => self.nothing(),
            mode::DIR => self.put_dir().map(Some),
            mode::LINK if self.is_there() => self.nothing(),
            mode::LINK => {
                Ok(Some(source.put_link(path, &self.target()?, &self.attrs(), &self.expected())?))
            }
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
            let version = from_wire(origin.seen.clone());
            match self.site.source.set_attrs(&origin.path, &version, &self.attrs()) {
                Err(error) if error.cause() == Cause::Unsupported => {}
                kept => return self.placed(kept.map_err(explained)?, None).map(Some),
            }
        }
        let upload = self.site.source.begin(&self.request.path, size, &self.attrs())?;
        let put = self.note_upload(&upload).and_then(|()| self.put_content(&upload));
        if put.is_err()
            && let Err(error) = self.site.source.abort(&upload)
        {
            log::warn!(why:% = error; "'{}' beside its target stays", upload.token);
        }
        self.placed(put?, Some(size)).map(Some)
    }

    fn put_content(&mut self, upload: &Upload) -> FsResult<Kept> {
        let mut pieces = self.put_parts(upload)?;
        pieces.sort_by_key(|piece| piece.offset);
        // The times as they are now.
        self.inode = self.node.inode(self.request.ino)?;
        let kept = self.site.source.commit(upload, &pieces, &self.attrs(), &self.expected());
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

    /// What an earlier flush had done when its daemon was killed: the file has taken its place, or what it made beside
    /// is thrown away.
    fn adopt(&mut self) -> FsResult<()> {
        let path = &self.request.path;
        if self.file.pending.is_empty() || path.is_empty() {
            return Ok(());
        }
        let (tag, token) = self.file.pending.split_once(' ').unwrap_or_default();
        let (token, tag) = (token.to_owned(), tag.to_owned());
        let upload = Upload { path: path.clone(), token, tag, ..Upload::default() };
        if let Some(version) = self.site.source.resume(&upload, &self.expected()).map_err(explained)? {
            self.file.origin = Some(Origin { path: upload.path, seen: to_wire(version) });
        }
        self.file.pending.clear();
        self.update(|_, _| {})
    }

    /// Written down before the upload takes its place: after a kill it is known again.
    fn note_upload(&mut self, upload: &Upload) -> FsResult<()> {
        self.file.pending = format!("{} {}", upload.tag, upload.token);
        self.update(|_, _| {})
    }

    /// It has taken its place. All of its first `whole` bytes are there, unless it was cut meanwhile.
    fn placed(&mut self, kept: Kept, whole: Option<u64>) -> FsResult<Kept> {
        let (path, seen) = (self.request.path.clone(), to_wire(kept.version.clone()));
        self.file.origin = Some(Origin { path, seen });
        self.file.pending.clear();
        let (mut limit, mut known) = (self.file.limit, self.known);
        self.update(|file, now| {
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
        let (dir, name) = (self.file.dir, &self.file.name[..]);
        if !self.node.mirrors(partition) || split_path(&self.request.path).1 != name {
            return Ok(());
        }
        let has_name = self.node.inode(ino).is_ok_and(|inode| inode.attr.nlink > 0);
        let now = self.node.site_file(ino)?.filter(|_| has_name);
        if now.is_some_and(|now| (now.dir, &now.name[..]) == (dir, name)) {
            return Ok(());
        }
        let seen = Some(to_wire(kept.version.clone()));
        self.node.note_left_behind(ino, dir, name, &Removed { ino, is_dir: false, partition, seen })
    }

    /// What was changed since the flush began stays changed; everything else is saved, or is as it was.
    fn end(&mut self, kept: Option<&Kept>) -> FsResult<()> {
        let (is_dir, is_left_open) = (self.inode.attr.is_dir(), self.is_left_open());
        if let (Some(kept), true) = (kept, !self.inode.attr.is_file()) {
            let (path, seen) = (self.request.path.clone(), to_wire(kept.version.clone()));
            self.file.origin = Some(Origin { path, seen });
        }
        let saved = kept.is_some() || !self.file.is_unsaved() || is_dir && self.request.path.is_empty();
        self.update(|file, _| {
            file.changed |= file.flushing && !saved || is_left_open;
            file.flushing = false;
        })
    }

    /// Of a file as it is now, with its attributes.
    fn update(&self, change: impl FnOnce(&mut SiteFile, &Attr)) -> FsResult<()> {
        let ino = self.request.ino;
        let mut update = self.node.change(&[ino.slot()])?;
        // It may have been removed meanwhile.
        let Ok(now) = update.inode(ino) else { return Ok(()) };
        let mut file = update.site_file(ino)?.unwrap_or_else(|| self.file.clone());
        let is_moved = self.inode.attr.is_dir() && (file.dir, &file.name) != (self.file.dir, &self.file.name);
        // What is at the old path of a directory that has been moved since is not it.
        if !is_moved {
            (file.origin, file.pending) = (self.file.origin.clone(), self.file.pending.clone());
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
fn explained(error: SourceError) -> SourceError {
    if error.cause() != Cause::Changed {
        return error;
    }
    let text = format!("{error}: both are kept; look at it there, or overwrite it with --force");
    SourceError::new(Cause::Changed, text)
}
