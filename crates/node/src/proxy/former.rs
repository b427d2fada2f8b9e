//! What a flush replaces at site storage may be all that there is of another file: of one that had the name, and was
//! renamed, replaced or removed since. Before that goes, the content comes here, and counts as written here.

use std::time::{Duration, Instant};

use bivouac_source::split_path;
use bivouac_types::{Errno, FsError, FsResult, Ino};
use bivouac_wire::{
    FlushHereRequest, FlushMark, FlushRequest, FlushState, FlushTrigger, InoOnly, Origin, OwnRequest,
    SiteVersion, op,
};

use super::bring::stripes;
use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::{FlushJob, JobKind, Part};
use crate::record::{SiteFile, SubfileOrigin};

/// Bytes of a file that are brought at once.
const AT_ONCE: u64 = 8 << 20;
/// Pause before it is asked again.
const PAUSE: Duration = Duration::from_millis(5);
/// How long is waited for room before it is done without, and how long at all for bytes of which none come.
const PATIENCE: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_secs(60);

impl Node {
    /// Before an inode takes a place at site storage that another one has: that one needs nothing from there any more.
    /// Answers as what it was last seen there.
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
                match self.have_owned(former, path).map_err(|error| kept(path, former, &error))? {
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

    /// Has a file own what it still has at a path there, and answers as what it was seen there.
    fn have_owned(&self, former: Ino, path: &[u8]) -> FsResult<Option<SiteVersion>> {
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

    /// Has all content of a file here, and nowhere else, if some comes from that place; or tells how far that is.
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
        if change.inode(ino).is_ok()
            && let Some(file) = change.site_file(ino)?.filter(|file| file.origin.as_ref() == Some(origin))
        {
            change.put_site_file(ino, &SiteFile { origin: None, limit: 0, changed: true, ..file });
            change.commit()?;
        }
        Ok(job.ended())
    }

    /// The next part. Where it ends; nothing behind the last one, and if nobody needs it.
    fn own_some(&self, ino: Ino, origin: &Origin, from: u64) -> FsResult<Option<u64>> {
        let (begun, mut flush) = (Instant::now(), 0);
        loop {
            let Ok(inode) = self.inode(ino) else { return Ok(None) };
            let whence = self.whence(ino)?;
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

    /// What finds no room here is brought to the name that the file has now, if it has one: then it needs nothing from
    /// the old one. The number of that flush, to ask again with.
    fn flush_instead(&self, ino: Ino, job: u64) -> u64 {
        let request = FlushHereRequest { ino, occasion: FlushTrigger::Room, job };
        self.flush_here(&request, PAUSE).map_or(0, |state| if state.done { 0 } else { state.job })
    }

    /// A range of a subfile is brought, and counts as written here: nothing of it makes room.
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

/// Why what is there stays there.
fn kept(path: &[u8], former: Ino, error: &FsError) -> FsError {
    let name = String::from_utf8_lossy(path);
    let text =
        format!("'{name}' at the source has content of inode {former}, which cannot be brought: {error}");
    FsError::with(error.errno(), text)
}
