//! Looking whether a file has changed at site storage, when it is opened; and bringing a whole file.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bivouac_layout::{TargetRange, split};
use bivouac_source::{Cause, Meta, split_path};
use bivouac_types::{Attr, FsResult, Ino, PartitionId, ReadPolicy};
use bivouac_wire::{BringRequest, FlushMark, MarkFlushRequest, Origin, Whence, op};

use super::bring::in_progress;
use super::sites::{from_wire, to_wire};
use crate::at_once::each_at_once;
use crate::identity::SYSTEM;
use crate::intent_record::{Intent, Renewal};
use crate::node::Node;
use crate::peers::StepContext;
use crate::session::Ctx;

/// Files that are looked at there at the same time, at most: the other threads serve what is here.
const LOOKING_MAX: usize = 3;
/// Bytes of a file that one request brings.
const BRING_BYTES: u64 = 8 << 20;

/// Counts those who look at site storage.
struct Looking<'a>(&'a AtomicUsize);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    /// Refreshes a file before it is opened: if it has changed at site storage and not here, it is what it is there
    /// from now on; a laminated one stays what it is here.
    ///
    /// # Errors
    /// `EINPROGRESS` when the asker is to ask again; `EIO` when a target does not answer. A source that does not answer
    /// is no error: what is here is served.
    pub(crate) fn refresh(&self, ino: Ino) -> FsResult<()> {
        let inode = self.inode(ino)?;
        let partition = inode.attr.layout.partition();
        if !inode.attr.is_file() || inode.attr.is_laminated() || !self.is_bound(partition) {
            return Ok(());
        }
        let Some(origin) = self.clean_origin(ino)? else { return Ok(()) };
        // Before the question, so that a change here meanwhile counts as later.
        let asked = self.clock.now();
        let Some(there) = self.look_there(ino, partition, &origin)? else { return Ok(()) };
        if there.version != from_wire(origin.seen.clone()) {
            let now = Origin { path: origin.path.clone(), seen: to_wire(there.version.clone()) };
            self.renew(ino, &origin, now)?;
        }
        match self.changes_there(partition) {
            true => self.take_attrs(ino, &there, asked).map(drop),
            false => Ok(()),
        }
    }

    /// Renews a clean file from `origin` to what is there `now`.
    pub(super) fn renew(&self, ino: Ino, origin: &Origin, now: Origin) -> FsResult<()> {
        let _quiet = self.recall_attr_leases(ino);
        let size = self.lock_size(ino)?;
        let attr = self.inode(ino)?.attr;
        // All of it may have changed while the source was asked.
        let is_as_seen = self.clean_origin(ino)?.as_ref() == Some(origin) && !self.is_being_flushed(ino);
        if !is_as_seen || attr.is_laminated() {
            return Ok(());
        }
        let renewal = Renewal { ino, epoch: attr.epoch, layout: attr.layout, origin: now.clone() };
        self.carry_out(&Ctx::of_node(self.as_client()), ino.slot(), Intent::Renew(renewal))?;
        // Another node is asked below, for which the size must not stay locked.
        drop(size);
        if self.clean_origin(ino)?.as_ref() == Some(&now)
            && let Err(error) = self.note_renewed(ino, now)
        {
            // Its name is not deleted there then, as what has changed there is not.
            log::warn!(why:% = error; "inode {ino}: what it is at the source by now is not noted");
        }
        Ok(())
    }

    /// Asks the home of the directory to record the version that is there now, so that it may be replaced or deleted.
    fn note_renewed(&self, ino: Ino, now: Origin) -> FsResult<()> {
        let Some(file) = self.site_file(ino)?.filter(|file| split_path(&now.path).1 == file.name) else {
            return Ok(());
        };
        self.tell_seen(file.dir, &file.name, Some(now.seen), Some(ino))
    }

    /// Returns a file's version at site storage, if it has no unsaved changes and no operation is unresolved.
    pub(super) fn clean_origin(&self, ino: Ino) -> FsResult<Option<Origin>> {
        let file = self.site_file(ino)?.filter(|file| !file.is_unsaved());
        Ok(if self.act(ino)?.is_none() { file.and_then(|file| file.origin) } else { None })
    }

    /// Returns what the file is at site storage now, if it exists and the source answers.
    fn look_there(&self, ino: Ino, partition: PartitionId, origin: &Origin) -> FsResult<Option<Meta>> {
        let looking = &self.proxy.looking;
        // Made first, so that a refusal counts itself off, too.
        let _looking = Looking(looking);
        if looking.fetch_add(1, Ordering::Relaxed) >= LOOKING_MAX {
            return Err(in_progress(ino));
        }
        bivouac_net::before_waiting();
        let site = match self.site_of(partition) {
            Ok(site) => site,
            Err(error) => {
                log::info!(why:% = error; "inode {ino} is served as it was");
                return Ok(None);
            }
        };
        match site.source.stat(&origin.path) {
            // Another thing under the path is for the listing of its directory to find.
            Ok(meta) => Ok(Some(meta).filter(Meta::is_file)),
            Err(error) => {
                if error.cause() != Cause::NotFound {
                    log::info!(why:% = error; "inode {ino} is served as it was");
                }
                Ok(None)
            }
        }
    }

    /// Brings some of a whole file. Where to go on; nothing at its end, or if its policy does not say so.
    pub(crate) fn bring_file(&self, request: &BringRequest) -> FsResult<Option<u64>> {
        let BringRequest { ino, from, opened } = *request;
        let Attr { layout, epoch, .. } = self.inode(ino)?.attr;
        let Some(partition) = self.partitions.get(layout.partition()) else { return Ok(None) };
        if opened && from == 0 {
            let path = self.path_in_partition(ino)?;
            if partition.settings.read_of(&path) != ReadPolicy::OnOpen {
                return Ok(None);
            }
        }
        let whence = self.whence(ino)?;
        let end = whence.limit.min(from.saturating_add(BRING_BYTES));
        if whence.origin.is_none() || from >= end {
            return Ok(None);
        }
        self.mark_range(ino, &whence, from..end, |whence, offset, len| FlushMark::Known {
            epoch,
            whence,
            offset,
            len,
        })?;
        Ok((end < whence.limit).then_some(end))
    }

    /// Makes every target do something with its own stripes of a range, all at the same time.
    pub(super) fn mark_range(
        &self,
        ino: Ino,
        whence: &Whence,
        range: Range<u64>,
        mark: impl Fn(Whence, u64, u64) -> FlushMark + Sync,
    ) -> FsResult<()> {
        let ranges: Vec<TargetRange> = split(&whence.layout, range.start, range.end - range.start).collect();
        let bring = |range: &TargetRange| {
            let mark = mark(whence.clone(), range.subfile_offset, range.len);
            let request = MarkFlushRequest { ino, target: range.target, mark };
            let node = self.target_place(range.target)?.node;
            self.step::<op::MarkFlush>(node, StepContext::question(SYSTEM), 0, request).map(drop)
        };
        bivouac_net::before_waiting();
        let died = || Err(bivouac_types::Errno::EIO.into());
        each_at_once(&ranges, bring)
            .into_iter()
            .map(|one| one.unwrap_or_else(died))
            .fold(Ok(()), FsResult::and)
    }
}
