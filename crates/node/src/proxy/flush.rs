//! Bringing what was written to site storage, driven by the home of the inode. What happens meanwhile to the inode is
//! not lost: it counts as changed again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_layout::{split, targets_of};
use bivouac_ranks::{Mutex, rank};
use bivouac_source::{
    Attrs, Cause, Piece, Precondition, PutOutcome, SourceError, Upload, check_path, for_each_parallel,
    split_path,
};
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, TargetIndex, mode};
use bivouac_wire::{
    FlushMark, FlushPartsRequest, FlushRequest, FlushState, MarkFlushRequest, Origin, SitePlace, SiteVersion,
    Whence, op,
};

use super::bring::offset_in_file;
use super::sites::{from_wire, to_wire};
use crate::at_once::each_at_once;
use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::{FlushEnd, FlushJob, FlushJobs, JobKind, Part, Site};
use crate::record::{Act, GivenAttrs, Inode, PutContent, Removed, SiteFile, act_key, target_key};

/// Longest wait for a flush in one request; the client or peer repeats the request then, since peer lanes are for short
/// replies.
pub const WAIT: Duration = Duration::from_secs(2);
pub const PEER_WAIT: Duration = Duration::from_millis(20);

/// Bytes of all targets together that are put, and then verified, as one range by a source far away; and ranges of a
/// target that are put or verified at the same time.
const RANGE_BYTES: u64 = 16 << 20;
const RANGES_AT_ONCE: usize = 3;

/// Permissions with which a directory's owner can create files in it.
const OPEN: u32 = 0o700;

/// A flush under way.
struct Flush<'a> {
    node: &'a Node,
    request: &'a FlushRequest,
    job: &'a FlushJob,
    site: &'a Site,
    inode: Inode,
    file: SiteFile,
    /// Version last seen at its path, where another inode had that.
    former: Option<SiteVersion>,
    /// Attributes at the beginning.
    begun: Attr,
    /// Attributes that `file` is about.
    known: Attr,
    /// Set if an operation at site storage was logged.
    is_acting: bool,
    /// True if its name leads to it, once that was looked up.
    has_name: OnceLock<bool>,
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

    /// Runs `work` as the flush of an inode in a thread of its own, unless one is under way; waits for `wait` at most
    /// and returns the progress.
    pub(super) fn run_job(
        &self,
        key: (Ino, u64),
        wait: Duration,
        work: impl FnOnce(&Node, &FlushJob) -> FsResult<FlushState> + Send + 'static,
    ) -> FsResult<FlushState> {
        self.run_job_of((&self.proxy.jobs, JobKind::Flush), key, wait, work)
    }

    /// As [`Node::run_job`], for a job of any kind among those that exclude it.
    pub(super) fn run_job_of(
        &self,
        (jobs, kind): (&FlushJobs, JobKind),
        (ino, wanted): (Ino, u64),
        wait: Duration,
        work: impl FnOnce(&Node, &FlushJob) -> FsResult<FlushState> + Send + 'static,
    ) -> FsResult<FlushState> {
        let (job, is_new) = self.job((jobs, kind), ino, wanted)?;
        if is_new && let Err(error) = self.start_flush(&job, work) {
            // Nobody would ever end it.
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
    fn job(
        &self,
        (all, kind): (&FlushJobs, JobKind),
        ino: Ino,
        wanted: u64,
    ) -> FsResult<(Arc<FlushJob>, bool)> {
        let asked_for = |jobs: &HashMap<Ino, Arc<FlushJob>>| {
            let is_it = |job: &&Arc<FlushJob>| job.number == wanted || job.outcome.lock().is_none();
            jobs.get(&ino).filter(is_it).cloned()
        };
        if let Some(job) = asked_for(&all.lock()) {
            return Ok((job, false));
        }
        // Not under the lock of all jobs: it may write to the log.
        let number = self.allocator.next(&self.records)?;
        assert_ne!(number, 0, "who asks with this number has not begun a job");
        let mut jobs = all.lock();
        if let Some(job) = asked_for(&jobs) {
            return Ok((job, false));
        }
        let (moved, outcome, over) = Default::default();
        let job = Arc::new(FlushJob { number, kind, moved, outcome, over });
        jobs.insert(ino, Arc::clone(&job));
        Ok((job, true))
    }

    /// Returns true if a flush of a file is under way. A finished one stays among the jobs until it is asked about,
    /// which may never happen.
    pub(super) fn is_being_flushed(&self, ino: Ino) -> bool {
        let is_flush = |job: &Arc<FlushJob>| job.kind == JobKind::Flush && job.outcome.lock().is_none();
        self.proxy.jobs.lock().get(&ino).is_some_and(is_flush)
    }

    fn start_flush(
        &self,
        job: &Arc<FlushJob>,
        flush: impl FnOnce(&Node, &FlushJob) -> FsResult<FlushState> + Send + 'static,
    ) -> FsResult<()> {
        let stopping = || FsError::with(Errno::EIO, "the node is about to end");
        let node = self.this.get().and_then(std::sync::Weak::upgrade).ok_or_else(stopping)?;
        let job = Arc::clone(job);
        let work = move || {
            let mut end =
                FlushEnd { job: &job, outcome: Err(FsError::with(Errno::EIO, "the flush ended early")) };
            let outcome = flush(&node, &job);
            // Who hears of the end may want to end the node.
            drop(node);
            end.outcome = outcome;
        };
        let thread = std::thread::Builder::new().name("flush".to_owned()).spawn(work);
        thread.map(drop).map_err(|error| FsError::from_io(&error, "thread of a flush"))
    }

    pub(super) fn flush_now(&self, request: &FlushRequest, job: &FlushJob) -> FsResult<FlushState> {
        let inode = self.inode(request.ino)?;
        let site = self.site_of(inode.attr.layout.partition())?;
        // First the outcome of what an earlier flush had begun: it decides what site storage has.
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
            has_name: OnceLock::new(),
        };
        let outcome = flush.run();
        let told = match &outcome {
            Ok(kept) => flush.tell(kept.as_ref()).and_then(|()| flush.look_back(kept.as_ref())),
            Err(_) => flush.settle(),
        };
        let is_moved = outcome.is_ok() && flush.is_moved();
        let kept = outcome.as_ref().ok().and_then(Option::as_ref);
        let ended = flush.end(kept, told.is_ok(), is_moved).and(told);
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

    /// Marks an inode as being flushed; what changes from here on is marked as changed again.
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
    fn run(&mut self) -> FsResult<Option<PutOutcome>> {
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
                Ok(Some(PutOutcome { lost, ..PutOutcome::default() }))
            }
        }
    }

    /// Ends a flush that has nothing to do, once the source has been checked.
    fn nothing(&self) -> FsResult<Option<PutOutcome>> {
        self.site.source.check()?;
        Ok(None)
    }

    fn put_link(&mut self) -> FsResult<PutOutcome> {
        let (site, target) = (self.site, self.target()?);
        let (plan, expect) =
            (site.source.plan(&self.request.path, target.len() as u64)?, self.expected_now()?);
        self.note_upload(&plan, &expect)?;
        let link = site.source.start_link(plan, &target)?;
        // Once more, now with what its content is recognised by.
        self.note_upload(&link, &expect)?;
        Ok(site.source.put_link(&link, &target, &self.attrs(), &expect).map_err(explained)?)
    }

    /// Brings a directory there. Of one that has not changed here only the times are given back, which changes in it
    /// have moved on; so they need not be given while it is open for such changes.
    fn put_dir(&self) -> FsResult<PutOutcome> {
        let (path, source, mut attrs) = (&self.request.path[..], &self.site.source, self.attrs());
        if self.is_there() {
            return Ok(source.put_dir_times(path, &attrs)?);
        }
        let is_open = self.request.open;
        attrs.perm |= if is_open { OPEN } else { 0 };
        let put = || if is_open { source.put_open_dir(path, &attrs) } else { source.put_dir(path, &attrs) };
        match put() {
            Err(error) if error.cause() == Cause::WrongKind && self.clear_place()? => Ok(put()?),
            put => Ok(put?),
        }
    }

    /// Deletes the file whose name this directory has got, where names that go here go there, too: its deletion may
    /// wait for an end of its use, and nothing of its content is needed from there any more. Returns whether it is
    /// gone.
    fn clear_place(&self) -> FsResult<bool> {
        let FlushRequest { dir, path, .. } = self.request;
        if !self.node.mirrors(self.inode.attr.layout.partition()) {
            return Ok(false);
        }
        let Some(seen) = self.node.place_at_site(*dir, split_path(path).1)?.seen else { return Ok(false) };
        match self.site.source.remove(path, Some(&from_wire(seen))) {
            Err(error) if error.cause() == Cause::NotFound => Ok(true),
            removed => removed.map(|()| true).map_err(|error| explained(error).into()),
        }
    }

    /// Returns true if a directory was given other permissions there than it is to have in the end.
    fn is_left_open(&self) -> bool {
        self.request.open
            && self.inode.attr.is_dir()
            && self.inode.attr.mode & OPEN != OPEN
            && !self.is_there()
    }

    /// Returns true if nothing but content can differ.
    fn is_there(&self) -> bool {
        let same = |origin: &Origin| origin.path == self.request.path;
        !self.file.is_unsaved() && self.file.origin.as_ref().is_some_and(same)
    }

    fn run_file(&mut self) -> FsResult<Option<PutOutcome>> {
        let dirty = self.mark_all(&FlushMark::Begin)?;
        // Whatever comes of it, the marks have to be turned back at all targets.
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

    fn put_file(&mut self, dirty: u64) -> FsResult<Option<PutOutcome>> {
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
                // Where attributes cannot be changed alone they go with the content.
                Err(error) if error.cause() == Cause::Unsupported => {}
                kept => return self.placed(kept.map_err(explained)?, None).map(Some),
            }
        }
        if let Some(content) = self.whole_content(size)? {
            return self.put_whole(&content).map(Some);
        }
        let (plan, expect) = (self.site.source.plan(&self.request.path, size)?, self.expected_now()?);
        self.note_upload(&plan, &expect)?;
        let upload = self.site.source.start(plan, &self.attrs())?;
        self.note_upload(&upload, &expect)?;
        let kept = self.put_content(&upload, &expect)?;
        self.placed(kept, Some(size)).map(Some)
    }

    /// Returns the content of a file that goes in one request: it is short, and all on this node.
    fn whole_content(&self, size: u64) -> FsResult<Option<Vec<u8>>> {
        let (layout, ino) = (self.inode.attr.layout, self.request.ino);
        let len_max = self.site.source.whole_len_max();
        if len_max == 0 || size > len_max || size > u64::from(layout.stripe) {
            return Ok(None);
        }
        let target = split(&layout, 0, size.max(1)).next().map(|range| range.target);
        let Some(target) = target else { return Ok(None) };
        if self.node.target_place(target)?.node != self.node.id {
            return Ok(None);
        }
        let (origin, limit, pin) = (self.file.origin.clone(), self.file.limit, self.file.pin);
        let whence = Whence { origin, limit, layout, pin };
        self.node.only_stripe(Part { ino, target }, &whence, size as usize).map(Some)
    }

    fn put_whole(&mut self, content: &[u8]) -> FsResult<PutOutcome> {
        let plan = self.site.source.plan_whole(&self.request.path, content)?;
        let expect = self.expected_now()?;
        // The times as they are now.
        self.inode = self.node.inode(self.request.ino)?;
        self.note_upload(&plan, &expect)?;
        let kept = self.site.source.put_whole(&plan, content, &self.attrs(), &expect).map_err(explained)?;
        self.job.moved.fetch_add(content.len() as u64, Ordering::Relaxed);
        self.placed(kept, Some(content.len() as u64))
    }

    fn put_content(&mut self, upload: &Upload, expect: &Precondition) -> FsResult<PutOutcome> {
        let mut pieces = self.put_parts(upload)?;
        // Object stores take the parts of an upload in the order of their numbers.
        pieces.sort_by_key(|piece| piece.offset);
        // The times as they are now.
        let before = std::mem::replace(&mut self.inode, self.node.inode(self.request.ino)?);
        if before.attr.mtime != self.inode.attr.mtime {
            self.note_upload(upload, expect)?;
        }
        let kept = self.site.source.commit(upload, &pieces, &self.attrs(), expect);
        Ok(kept.map_err(explained)?)
    }

    /// Makes every target put its own stripes, all at the same time.
    fn put_parts(&self, upload: &Upload) -> FsResult<Vec<Piece>> {
        let layout = self.inode.attr.layout;
        let (origin, limit, pin) = (self.file.origin.clone(), self.file.limit, self.file.pin);
        let whence = Whence { origin, limit, layout, pin };
        let targets: Vec<TargetIndex> = targets_of(&layout).collect();
        let parts = each_at_once(&targets, |target| self.put_target(upload, whence.clone(), *target));
        let died = || Err(FsError::with(Errno::EIO, "a thread of a flush ended early"));
        parts.into_iter().try_fold(Vec::new(), |mut all, part| {
            all.extend(part.unwrap_or_else(died)?);
            Ok(all)
        })
    }

    fn put_target(&self, upload: &Upload, whence: Whence, target: TargetIndex) -> FsResult<Vec<Piece>> {
        if self.site.source.verifies_for_all() {
            return self.put_ranges(upload, &whence, target);
        }
        self.put_range(upload, &whence, target, 0..u64::MAX)
    }

    /// Puts the stripes of a target in ranges. One is verified while the next are put; the last one is left to the
    /// commit, and returned.
    fn put_ranges(&self, upload: &Upload, whence: &Whence, target: TargetIndex) -> FsResult<Vec<Piece>> {
        let (stripe, width) = (u64::from(whence.layout.stripe).max(1), u64::from(whence.layout.width).max(1));
        let first = offset_in_file(whence, target, 0).unwrap_or(u64::MAX);
        let count = upload.size.saturating_sub(first).div_ceil(stripe * width);
        let range_len = (RANGE_BYTES / (stripe * width)).max(1);
        let ranges = count.div_ceil(range_len);
        let last = Mutex::new(rank::LEAF, Vec::new());
        for_each_parallel(ranges, RANGES_AT_ONCE, |number| {
            let range = number * range_len..(number + 1) * range_len;
            let pieces = self.put_range(upload, whence, target, range)?;
            match number + 1 == ranges {
                true => last.lock().extend(pieces),
                false => self.site.source.verify(upload, &pieces)?,
            }
            Ok::<(), FsError>(())
        })?;
        Ok(last.into_inner())
    }

    fn put_range(
        &self,
        upload: &Upload,
        whence: &Whence,
        target: TargetIndex,
        stripes: Range<u64>,
    ) -> FsResult<Vec<Piece>> {
        let (node, steps) = (self.node.target_place(target)?.node, StepContext::question(SYSTEM));
        let (mut from, mut pieces) = (stripes.start, Vec::new());
        loop {
            let request = FlushPartsRequest {
                ino: self.request.ino,
                target,
                whence: whence.clone(),
                path: upload.path.clone(),
                size: upload.size,
                token: upload.token.clone(),
                from,
                to: stripes.end,
            };
            let put = self.node.step::<op::FlushParts>(node, steps, 0, request)?;
            for part in put.parts {
                self.job.moved.fetch_add(part.len, Ordering::Relaxed);
                pieces.push(Piece { offset: part.offset, len: part.len, tag: part.tag });
            }
            match put.next {
                // An answer without progress must not keep the flush going for ever.
                Some(next) if next > from => from = next,
                _ => return Ok(pieces),
            }
        }
    }

    /// Marks the subfiles at all targets, also behind one that does not answer. Answers the bytes that are not saved.
    fn mark_all(&self, mark: &FlushMark) -> FsResult<u64> {
        let ino = self.request.ino;
        let marked = targets_of(&self.inode.attr.layout).map(|target| {
            let request = MarkFlushRequest { ino, target, mark: mark.clone() };
            let (node, steps) = (self.node.target_place(target)?.node, StepContext::question(SYSTEM));
            self.node.step::<op::MarkFlush>(node, steps, 0, request)
        });
        // All are asked before the first failure counts.
        marked.collect::<Vec<FsResult<u64>>>().into_iter().sum()
    }

    /// Returns what has to be at its path for it to be replaced.
    fn expected(&self) -> Precondition {
        let FlushRequest { path, seen, force, .. } = self.request;
        let own = self.file.origin.as_ref().filter(|origin| origin.path == *path);
        match own.map(|origin| &origin.seen).or(self.former.as_ref()).or(seen.as_ref()) {
            _ if *force => Precondition::Anything,
            Some(seen) => Precondition::Version(from_wire(seen.clone())),
            None => Precondition::Absent,
        }
    }

    /// Returns what has to be at its path now. Where names that go here go there, too, one that is gone already is as
    /// well: by a deletion that was cut off.
    fn expected_now(&self) -> FsResult<Precondition> {
        let (expected, path) = (self.expected(), &self.request.path);
        let is_own = self.file.origin.as_ref().is_some_and(|origin| origin.path == *path);
        let partition = self.inode.attr.layout.partition();
        if is_own || !matches!(expected, Precondition::Version(_)) || !self.node.mirrors(partition) {
            return Ok(expected);
        }
        match self.site.source.stat(path) {
            Err(error) if error.cause() == Cause::NotFound => Ok(Precondition::Absent),
            found => found.map(|_| expected).map_err(Into::into),
        }
    }

    /// Writes an upload down before it begins, and before it takes its place: after a kill it is known again.
    fn note_upload(&mut self, upload: &Upload, expect: &Precondition) -> FsResult<()> {
        let seen = match expect {
            Precondition::Version(version) => Some(to_wire(version.clone())),
            Precondition::Absent | Precondition::Anything => None,
        };
        let (token, tag) = (upload.token.clone(), upload.tag.clone());
        let put = PutContent { size: upload.size, mtime: self.inode.attr.mtime };
        let (put, force) = (Some(put), *expect == Precondition::Anything);
        self.note(Act { token, tag, seen, force, put, ..self.act() })
    }

    fn note_attrs(&mut self, origin: &Origin, attrs: &Attrs) -> FsResult<()> {
        let Attrs { perm, uid, gid, mtime, .. } = *attrs;
        let (seen, given) = (Some(origin.seen.clone()), Some(GivenAttrs { perm, uid, gid, mtime }));
        self.note(Act { seen, given, ..self.act() })
    }

    fn act(&self) -> Act {
        let FlushRequest { dir, path, .. } = self.request;
        let (partition, dir, path) = (self.inode.attr.layout.partition(), *dir, path.clone());
        let (token, tag, seen, force, given, put) = Default::default();
        Act { partition, dir, path, token, tag, seen, force, given, put }
    }

    fn note(&mut self, act: Act) -> FsResult<()> {
        self.is_acting = true;
        self.node.note_act(self.request.ino, &act)
    }

    /// Asks the home of its directory to record the version there, so that the next owner of the name knows what is
    /// there.
    fn tell(&self, kept: Option<&PutOutcome>) -> FsResult<()> {
        let FlushRequest { ino, dir, path, .. } = self.request;
        let Some(kept) = kept.filter(|_| !path.is_empty()) else { return Ok(()) };
        self.node.tell_seen(*dir, split_path(path).1, Some(to_wire(kept.version.clone())), Some(*ino))
    }

    /// Handles a failure: discards what was begun, unless it has taken its place all the same.
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

    /// Records that it has taken its place. The first `whole` bytes are there, unless the file was truncated meanwhile.
    fn placed(&mut self, kept: PutOutcome, whole: Option<u64>) -> FsResult<PutOutcome> {
        let (path, seen) = (self.request.path.clone(), to_wire(kept.version.clone()));
        self.node.proxy.placements.note(self.request.ino, self.node.clock.now());
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
        Ok(kept)
    }

    /// Checks whether its name was removed while it took its place there.
    fn look_back(&self, kept: Option<&PutOutcome>) -> FsResult<()> {
        let FlushRequest { ino, dir, path, .. } = self.request;
        let (partition, is_dir) = (self.inode.attr.layout.partition(), self.inode.attr.is_dir());
        let Some(kept) = kept.filter(|_| !path.is_empty() && self.node.mirrors(partition)) else {
            return Ok(());
        };
        if self.has_its_name()? {
            return Ok(());
        }
        let seen = Some(to_wire(kept.version.clone()));
        let removed = Removed { ino: *ino, is_dir, partition, seen, again: 0 };
        self.node.note_left_behind(*ino, *dir, split_path(path).1, &removed)
    }

    /// Returns whether the name leads to it that it was flushed under. The entry is asked once.
    fn has_its_name(&self) -> FsResult<bool> {
        if let Some(known) = self.has_name.get() {
            return Ok(*known);
        }
        let FlushRequest { ino, dir, path, .. } = self.request;
        let has_name = self.node.leads_to(*ino, (*dir, split_path(path).1))?;
        Ok(*self.has_name.get_or_init(|| has_name))
    }

    /// Returns whether it may belong elsewhere: it, or a directory above, was renamed between the look for its path and
    /// the beginning of the flush. A later rename counts as a change.
    fn is_moved(&self) -> bool {
        let FlushRequest { dir, path, .. } = self.request;
        if path.is_empty() || self.inode.attr.is_dir() {
            return false;
        }
        let is_below = |place: SitePlace| place.path.as_deref() == Some(split_path(path).0);
        // Who cannot be asked now is asked by the next flush.
        !(self.has_its_name().unwrap_or(false) && self.node.place_at_site(*dir, b"").is_ok_and(is_below))
    }

    /// Ends the flush: what changed since its beginning stays changed; everything else is saved, or stays as it was.
    /// Removes the logged operation if `is_told`.
    fn end(&mut self, kept: Option<&PutOutcome>, is_told: bool, is_moved: bool) -> FsResult<()> {
        let (is_dir, is_left_open) = (self.inode.attr.is_dir(), self.is_left_open());
        if let (Some(kept), true) = (kept, !self.inode.attr.is_file()) {
            let (path, seen) = (self.request.path.clone(), to_wire(kept.version.clone()));
            self.file.origin = Some(Origin { path, seen });
        }
        let saved = kept.is_some() || !self.file.is_unsaved() || is_dir && self.request.path.is_empty();
        let is_over = self.is_acting && kept.is_some() && is_told;
        self.update(is_over, |file, _| {
            file.changed |= file.flushing && !saved || is_left_open || is_moved;
            file.flushing = false;
        })
    }

    /// Updates the record of a file as it is now, with its attributes; if `is_over`, also that nothing is about to be
    /// done for it any more.
    fn update(&self, is_over: bool, change: impl FnOnce(&mut SiteFile, &Attr)) -> FsResult<()> {
        let ino = self.request.ino;
        let mut update = self.node.change(&[ino.slot()])?;
        if is_over {
            update.txn.delete(ino.slot(), &act_key(ino));
        }
        // It may have been removed meanwhile.
        let Ok(now) = update.inode(ino) else { return if is_over { update.commit() } else { Ok(()) } };
        let mut file = update.site_file(ino)?.unwrap_or_else(|| self.file.clone());
        let FlushRequest { dir, path, .. } = self.request;
        let given = (*dir, split_path(path).1);
        let is_known = !path.is_empty() && !file.name.is_empty();
        let is_moved = self.inode.attr.is_dir() && is_known && (file.dir, &file.name[..]) != given;
        // What is at a path that a directory had before is not it.
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
        Attrs {
            perm,
            uid,
            gid,
            mtime: attr.mtime,
            atime: attr.atime,
            xattrs: self.node.user_xattrs(self.request.ino),
        }
    }

    fn target(&self) -> FsResult<Vec<u8>> {
        let ino = self.request.ino;
        let target = self.node.records.read(ino.slot(), &target_key(ino), |bytes| bytes.map(<[u8]>::to_vec));
        target.ok_or_else(|| Errno::ENOENT.into())
    }
}

fn forget_job(jobs: &FlushJobs, ino: Ino, job: &Arc<FlushJob>) {
    let mut jobs = jobs.lock();
    if jobs.get(&ino).is_some_and(|known| Arc::ptr_eq(known, job)) {
        jobs.remove(&ino);
    }
}

/// Returns a conflict, with what may be done about it.
pub(super) fn explained(error: SourceError) -> SourceError {
    if error.cause() != Cause::Changed {
        return error;
    }
    let text = format!("{error}: both are kept; look at it there, or overwrite it with --force");
    SourceError::new(Cause::Changed, text)
}
