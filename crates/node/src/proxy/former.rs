//! A flush may replace an object at site storage that holds the only copy of another file's content: of one that had
//! the name, and was renamed, replaced or removed since. That content is brought here first, and counts as written
//! here.

use std::time::{Duration, Instant};

use bivouac_source::split_path;
use bivouac_types::{Errno, FsError, FsResult, Ino};
use bivouac_wire::{
    FlushHereRequest, FlushMark, FlushRequest, FlushState, FlushTrigger, InoOnly, Origin, OwnRequest,
    SiteVersion, op,
};

use super::bring::stripes;
use crate::identity::SYSTEM;
use crate::namespace::unless_absent;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::{FlushJob, JobKind, Part};
use crate::record::{SiteFile, SubfileOrigin};

/// Bytes of a file that are brought at once.
const AT_ONCE: u64 = 8 << 20;
/// Pause before it is asked again.
const PAUSE: Duration = Duration::from_millis(5);
/// Wait for space before going on without, and longest wait for content of which nothing arrives.
const PATIENCE: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_secs(60);

impl Node {
    /// Sees to it, before an inode takes a place at site storage that another one has, that the other one needs nothing
    /// from there any more. Answers as what it was last seen there.
    ///
    /// # Errors
    /// Why its content cannot be brought: then it has to stay there.
    pub(super) fn settle_former(&self, request: &FlushRequest) -> FsResult<Option<SiteVersion>> {
        let FlushRequest { ino, dir, path, .. } = request;
        let own = self.site_file(*ino)?.and_then(|file| file.origin);
        if path.is_empty() || own.is_some_and(|origin| origin.path == *path) {
            return Ok(None);
        }
        let (_, name) = split_path(path);
        let by = match self.place_at_site(*dir, name) {
            // It is gone; so is what it had.
            Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
            place => place?.by,
        };
        let seen = match by.filter(|by| by != ino) {
            Some(former) => {
                match self.fetch_at_former_owner(former, path).map_err(|error| kept(path, former, &error))? {
                    None => self.place_at_site(*dir, name)?.seen,
                    seen => seen,
                }
            }
            None => None,
        };
        if by != Some(*ino) {
            // Before it is there: whoever comes next asks this one what it is, also after a kill.
            self.tell_seen(*dir, name, None, Some(*ino))?;
        }
        Ok(seen)
    }

    /// Asks the home of a former owner of a path to bring in what it still has there. Returns the version that was seen
    /// there.
    fn fetch_at_former_owner(&self, former: Ino, path: &[u8]) -> FsResult<Option<SiteVersion>> {
        let (home, steps) = (self.home_of(former)?, StepContext::question(SYSTEM));
        let origin = loop {
            match self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: former }) {
                Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
                // What a killed daemon had done for it is found out first.
                Err(error) if error.errno() == Errno::EINPROGRESS => bivouac_net::pause(PAUSE),
                whence => break whence?.origin.filter(|origin| origin.path == path),
            }
        };
        let Some(origin) = origin else { return Ok(None) };
        let seen = origin.seen.clone();
        let mut request = OwnRequest { ino: former, origin, job: 0 };
        loop {
            let state = self.step::<op::Own>(home, StepContext::question(SYSTEM), 0, request.clone())?;
            if state.done {
                return Ok(Some(seen));
            }
            request.job = state.job;
            bivouac_net::pause(PAUSE);
        }
    }

    /// Brings all content of a file here if some is at that place, or returns the progress.
    pub(crate) fn own(&self, request: OwnRequest, wait: Duration) -> FsResult<FlushState> {
        let OwnRequest { ino, origin, job } = request;
        self.run_job_of((&self.proxy.owning, JobKind::Own), (ino, job), wait, move |node, job| {
            node.own_now(ino, &origin, job)
        })
    }

    fn own_now(&self, ino: Ino, origin: &Origin, job: &FlushJob) -> FsResult<FlushState> {
        let mut from = 0;
        while let Some(end) = self.own_some(ino, origin, from)? {
            from = end;
        }
        let mut change = self.change(&[ino.slot()])?;
        if unless_absent(change.inode(ino))?.is_some()
            && let Some(file) = change.site_file(ino)?.filter(|file| file.origin.as_ref() == Some(origin))
        {
            change.put_site_file(ino, &SiteFile { origin: None, limit: 0, changed: true, ..file });
            change.commit()?;
        }
        Ok(job.ended())
    }

    /// Brings the next part. Returns where it ends; `None` behind the last one, and if nobody needs it.
    fn own_some(&self, ino: Ino, origin: &Origin, from: u64) -> FsResult<Option<u64>> {
        let (begun, mut flush) = (Instant::now(), 0);
        loop {
            let Some(inode) = unless_absent(self.inode(ino))? else { return Ok(None) };
            let whence = self.whence(ino)?;
            // Its content goes with it: nobody reads what would be brought.
            let is_dead = inode.attr.nlink == 0 && !self.opens.is_open(ino);
            let end = whence.limit.min(from.saturating_add(AT_ONCE));
            if is_dead || !inode.attr.is_file() || whence.origin.as_ref() != Some(origin) || from >= end {
                return Ok(None);
            }
            let epoch = inode.attr.epoch;
            let own = |whence, offset, len| FlushMark::Own { epoch, whence, offset, len };
            let owned = self.mark_range(ino, &whence, from..end, own);
            let Err(error) = owned else { return Ok(Some(end)) };
            if !matches!(error.errno(), Errno::EINPROGRESS | Errno::ENOSPC | Errno::EDQUOT) {
                return Err(error);
            }
            if begun.elapsed() > WAIT {
                let errno = if error.errno() == Errno::EINPROGRESS { Errno::EIO } else { error.errno() };
                return Err(FsError::with(errno, format!("{error}: waited {} s", WAIT.as_secs())));
            }
            if begun.elapsed() > PATIENCE {
                flush = self.flush_instead(ino, flush);
            }
            bivouac_net::pause(PAUSE);
        }
    }

    /// Flushes a file that finds no space here to its present name, if it has one: it needs nothing from the old one
    /// then. Returns the number of that flush, 0 if it is done.
    fn flush_instead(&self, ino: Ino, job: u64) -> u64 {
        let request = FlushHereRequest { ino, occasion: FlushTrigger::Room, job };
        self.flush_here(&request, PAUSE).map_or(0, |state| if state.done { 0 } else { state.job })
    }

    /// Brings a range of a subfile and counts it as written here, so that nothing of it makes room.
    pub(super) fn own_part(&self, part: Part, known: SubfileOrigin, offset: u64, len: u64) -> FsResult<()> {
        let (layout, epoch) = (known.whence.layout, known.epoch);
        let _here = self.bring_known(part, known, offset, len)?;
        let _writing = self.proxy.uses.write(part);
        if self.subfile_epoch(part)? > epoch {
            return Err(super::bring::in_progress(part.ino));
        }
        self.mark_dirty(part, stripes(&layout, offset, len))
    }
}

/// Returns the error that says why what is there stays there.
fn kept(path: &[u8], former: Ino, error: &FsError) -> FsError {
    let name = String::from_utf8_lossy(path);
    let text =
        format!("'{name}' at the source has content of inode {former}, which cannot be brought: {error}");
    FsError::with(error.errno(), text)
}
