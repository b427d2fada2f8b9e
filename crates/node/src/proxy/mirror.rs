//! Deleting at site storage what was deleted here, where the partition says so. The change that takes a name away
//! leaves a record of it; whoever carries it out looks first that the name is still gone, and that nobody needs what it
//! led to.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_source::{Cause, SourceError, join_path};
use bivouac_types::{Errno, FsResult, Ino, Name, PartitionId, Slot, WritePolicy, mode};
use bivouac_wire::{
    Encode, EntryName, FlushHereRequest, FlushTrigger, InoOnly, MirrorPage, MirrorRequest, Removal,
    SiteVersion, op,
};

use super::bring::in_progress;
use super::here::has_write_rules;
use super::sites::from_wire;
use crate::identity::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::MirrorDeletions;
use crate::record::{Removed, inode_key, name_of_removed, removed_key, site_key, table};

/// Requests that are carried out at the same time, at most: the other threads serve what is here.
const UNDER_WAY_MAX: usize = 3;
/// Longest time that one request goes on.
const TIME_MAX: Duration = Duration::from_millis(500);
/// Names in one answer, at most.
const PAGE: usize = 1000;

/// Counts requests under way.
struct CountedRequest<'a>(&'a AtomicUsize);

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reason for carrying out deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The write policy: only where it says so.
    Policy,
    /// A flush.
    Flush,
    /// A flush that has done all that could be done.
    LastFlush,
}

/// A name that was deleted, and where its record is.
struct Gone {
    slot: Slot,
    key: Vec<u8>,
    dir: Ino,
    name: Name,
    removed: Removed,
}

/// The object at site storage under such a name.
struct There {
    path: Vec<u8>,
    seen: SiteVersion,
}

/// Result of one deletion.
enum Outcome {
    /// It was deleted there.
    Done,
    /// There was nothing to delete.
    Moot,
    /// It stays there for good.
    Kept(SourceError),
    /// It will be tried again.
    Waits(SourceError),
    /// Its content is still needed.
    Needed,
    /// Its policy does not delete it now.
    NotNow,
}

impl MirrorDeletions for Node {
    fn mirror_by_policy(&self) -> bool {
        let (mut after, mut is_done) = (None, true);
        loop {
            let (found, is_end) = self.removed_behind(after.as_ref());
            for gone in found {
                match self.mirror_one(&gone, For::Policy) {
                    Ok(Outcome::Waits(_) | Outcome::Needed) => is_done = false,
                    Ok(_) => {}
                    Err(error) => {
                        log::warn!(why:% = error; "a deletion in inode {} waits", gone.dir);
                        is_done = false;
                    }
                }
                after = Some((gone.slot, gone.key));
            }
            if is_end {
                return is_done;
            }
        }
    }
}

impl Node {
    /// Deletes what was asked for, or tells of it.
    ///
    /// # Errors
    /// `EINPROGRESS` when the asker is to ask again; of a single name, why it is not deleted.
    pub(crate) fn mirror(&self, request: &MirrorRequest) -> FsResult<MirrorPage> {
        let under_way = &self.proxy.mirror.under_way;
        // Made first, so that a refusal counts itself off, too.
        let _counted = CountedRequest(under_way);
        if under_way.fetch_add(1, Ordering::Relaxed) >= UNDER_WAY_MAX {
            return Err(in_progress(Ino::ROOT));
        }
        bivouac_net::before_waiting();
        if let Some((dir, name)) = &request.only {
            return self.mirror_only(*dir, &Name::new(name)?);
        }
        let mut page = MirrorPage { done: 0, left: Vec::new(), next: request.after.clone() };
        let begun = Instant::now();
        loop {
            let (found, is_end) = self.removed_behind(page.next.as_ref());
            for gone in found {
                self.take_up(&gone, request, &mut page)?;
                page.next = Some((gone.slot, gone.key));
                // Only behind one: an answer without a position says that there are no more.
                if page.left.len() >= PAGE || begun.elapsed() > TIME_MAX {
                    return Ok(page);
                }
            }
            if is_end {
                return Ok(MirrorPage { next: None, ..page });
            }
        }
    }

    /// Handles one of the requested deletions.
    fn take_up(&self, gone: &Gone, request: &MirrorRequest, page: &mut MirrorPage) -> FsResult<()> {
        let partition = gone.removed.partition;
        let path = self.there(gone)?.map(|there| there.path);
        let is_below = |path: &[u8], top: &[u8]| {
            top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if let Some((wanted, top)) = &request.below
            && (*wanted != partition || path.as_ref().is_some_and(|path| !is_below(path, top)))
        {
            return Ok(());
        }
        let left = |why: String, kept, filled| {
            let path = path.clone().unwrap_or_else(|| gone.name.as_bytes().to_vec());
            Removal { path, partition, why, kept, filled }
        };
        if !request.act {
            // What is not there need not be deleted.
            page.left.extend(path.is_some().then(|| left(self.proxy.mirror.why(&gone.key), false, false)));
            return Ok(());
        }
        match self.mirror_one(gone, if request.last { For::LastFlush } else { For::Flush })? {
            Outcome::Done => page.done += 1,
            Outcome::Kept(error) => page.left.push(left(error.to_string(), true, false)),
            Outcome::Waits(error) => {
                let filled = error.cause() == Cause::NotEmpty;
                page.left.push(left(error.to_string(), false, filled));
            }
            Outcome::Needed => page.left.push(left(
                "it is open, or what it was renamed to is not there".into(),
                false,
                false,
            )),
            Outcome::Moot | Outcome::NotNow => {}
        }
        Ok(())
    }

    /// Returns a name that was just deleted, if its policy says so.
    fn mirror_only(&self, dir: Ino, name: &Name) -> FsResult<MirrorPage> {
        let mut page = MirrorPage { done: 0, left: Vec::new(), next: None };
        let place = match self.place(dir, name) {
            Err(error) if error.errno() == Errno::ENOENT => return Ok(page),
            place => place?,
        };
        let key = removed_key(dir, name.as_bytes());
        let found = self.records.read(place.slot, &key, |bytes| {
            bytes.map(|bytes| decode::<Removed>(bytes, "deleted name", dir)).transpose()
        })?;
        let Some(removed) = found else { return Ok(page) };
        let gone = Gone { slot: place.slot, key, dir, name: name.clone(), removed };
        match self.mirror_one(&gone, For::Policy)? {
            Outcome::Done => page.done = 1,
            // What was in it goes first, and may be open for a moment still: it is tried again.
            Outcome::Waits(error) if error.cause() == Cause::NotEmpty => {}
            Outcome::Kept(error) | Outcome::Waits(error) => return Err(error.into()),
            Outcome::Moot | Outcome::Needed | Outcome::NotNow => {}
        }
        Ok(page)
    }

    /// Returns records of deletions of this node behind a position, and whether they are the last.
    fn removed_behind(&self, after: Option<&(Slot, Vec<u8>)>) -> (Vec<Gone>, bool) {
        let (mut found, mut is_end) = (Vec::new(), true);
        let prefix = table(b'E');
        for slot in self.own_slots().filter(|slot| after.is_none_or(|(at, _)| slot >= at)) {
            let from = after.filter(|(at, _)| *at == slot).map(|(_, key)| key.as_slice());
            self.records.scan(slot, from.unwrap_or(&prefix), &prefix, |key, value| {
                if found.len() == PAGE {
                    is_end = false;
                    return ControlFlow::Break(());
                }
                found.extend((from != Some(key)).then(|| gone_of(slot, key, value)).flatten());
                ControlFlow::Continue(())
            });
            if !is_end {
                break;
            }
        }
        (found, is_end)
    }

    /// Returns what site storage has under a deleted name, as far as that is known.
    fn there(&self, gone: &Gone) -> FsResult<Option<There>> {
        let place = match self.place_at_site(gone.dir, gone.name.as_bytes()) {
            Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
            place => place?,
        };
        let seen = gone.removed.seen.clone().or(place.seen);
        let path = place.path.map(|dir| join_path(&dir, gone.name.as_bytes()));
        Ok(path.zip(seen).map(|(path, seen)| There { path, seen }))
    }

    /// Carries one out.
    fn mirror_one(&self, gone: &Gone, whom: For) -> FsResult<Outcome> {
        let outcome = match self.there(gone)?.filter(|_| self.mirrors(gone.removed.partition)) {
            Some(there) => self.delete_there(gone, &there, whom)?,
            None => Outcome::Moot,
        };
        match &outcome {
            Outcome::Waits(error) => self.proxy.mirror.note(&gone.key, error),
            Outcome::Needed | Outcome::NotNow => {}
            Outcome::Moot => self.forget_removed(gone)?,
            Outcome::Done | Outcome::Kept(_) => {
                if let Outcome::Kept(error) = &outcome {
                    log::warn!(why:% = error; "deleted in the formation and kept at the source");
                }
                // Before the record goes: a kill in between has it looked at once more, and found to be moot.
                self.forget_seen(gone)?;
                self.forget_removed(gone)?;
            }
        }
        Ok(outcome)
    }

    fn delete_there(&self, gone: &Gone, there: &There, whom: For) -> FsResult<Outcome> {
        let partition = gone.removed.partition;
        if whom == For::Policy && !self.goes_by_itself(partition, &there.path) {
            return Ok(Outcome::NotNow);
        }
        let again = self.is_dir_again(gone)?;
        if again == Some(gone.removed.is_dir) {
            self.finish_removal(partition, there);
            return Ok(Outcome::Moot);
        }
        if self.is_needed(gone, there)? {
            // With rules the other names may be ones that go by none: those wait for a flush.
            let has_rules =
                self.partitions.get(partition).is_none_or(|known| has_write_rules(&known.settings));
            if whom == For::Policy && !has_rules {
                self.flush_other_names(gone.removed.ino);
            }
            return Ok(Outcome::Needed);
        }
        let site = match self.site_of(partition) {
            Ok(site) => site,
            Err(error) => return Ok(Outcome::Waits(SourceError::new(Cause::Lost, error.to_string()))),
        };
        // What has the name now may have its place there already, and what was seen there may be that.
        if let Some(is_dir) = again {
            match site.source.stat(&there.path) {
                Ok(meta) if meta.is_dir() == is_dir => return Ok(Outcome::Moot),
                Ok(_) => {}
                Err(error) if error.cause() == Cause::NotFound => {}
                // Without an answer the version below may be that of the new one.
                Err(error) => return Ok(Outcome::Waits(error)),
            }
        }
        let Err(error) = site.source.remove(&there.path, Some(&from_wire(there.seen.clone()))) else {
            return Ok(Outcome::Done);
        };
        Ok(match error.cause() {
            // What has the name now was put there since the look.
            Cause::Changed if self.is_dir_again(gone)?.is_some() => Outcome::Moot,
            Cause::Changed => Outcome::Kept(error),
            Cause::NotEmpty if whom == For::LastFlush => Outcome::Kept(error),
            _ => Outcome::Waits(error),
        })
    }

    /// Finishes a deletion that a daemon may have been killed in the middle of.
    fn finish_removal(&self, partition: PartitionId, there: &There) {
        let Ok(site) = self.site_of(partition) else { return };
        if let Err(error) = site.source.finish_removal(&there.path, &from_wire(there.seen.clone())) {
            log::warn!(why:% = error; "a deletion at the source was cut off, and is not finished");
        }
    }

    /// Returns true if the write policy of a path has deletions carried out without a flush.
    fn goes_by_itself(&self, partition: PartitionId, path: &[u8]) -> bool {
        let known = self.partitions.get(partition);
        known.is_some_and(|known| {
            !matches!(known.settings.write_of(path), WritePolicy::OnFlush | WritePolicy::Never)
        })
    }

    /// Returns whether what has the name now, if anything has, is a directory. What is of the same kind takes the place
    /// of what is there when it is flushed.
    fn is_dir_again(&self, gone: &Gone) -> FsResult<Option<bool>> {
        let question = || EntryName { parent: gone.dir, name: gone.name.as_bytes() };
        let found = self.at_entry(gone.dir, &gone.name, |node| {
            self.step::<op::Lookup>(node, StepContext::question(SYSTEM), 0, question())
        });
        match found {
            Ok(found) => Ok(Some(found.kind == mode::DIR)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if content of the deleted inode may still have to be brought from there.
    fn is_needed(&self, gone: &Gone, there: &There) -> FsResult<bool> {
        let ino = gone.removed.ino;
        match self.step::<op::FindOrigin>(
            self.home_of(ino)?,
            StepContext::question(SYSTEM),
            0,
            InoOnly { ino },
        ) {
            Ok(whence) => Ok(whence.origin.is_some_and(|origin| origin.path == there.path)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Begins to flush a file that has other names than the deleted one, so that it needs nothing from there any more.
    /// One without a name is left as it is.
    fn flush_other_names(&self, ino: Ino) {
        let request = FlushHereRequest { ino, occasion: FlushTrigger::Room, job: 0 };
        let flushed = self
            .home_of(ino)
            .and_then(|home| self.step::<op::FlushHere>(home, StepContext::question(SYSTEM), 0, request));
        if let Err(error) = flushed.map(drop)
            && error.errno() != Errno::ENOENT
        {
            log::info!(why:% = error; "inode {ino}: a name of it that was deleted is still at the source");
        }
    }

    /// Forgets what site storage had under the name, and below it: nothing of ours is there any more.
    fn forget_seen(&self, gone: &Gone) -> FsResult<()> {
        self.tell_seen(gone.dir, gone.name.as_bytes(), None, None)?;
        if gone.removed.is_dir { self.tell_seen(gone.removed.ino, b"", None, None) } else { Ok(()) }
    }

    /// Removes the record, unless the name was deleted once more.
    fn forget_removed(&self, gone: &Gone) -> FsResult<()> {
        self.proxy.mirror.state.lock().why.remove(&gone.key);
        let mut txn = self.records.txn(&[gone.slot]);
        // With its number: the name may have been made and deleted again since this one was read.
        if txn.get(gone.slot, &gone.key) != Some(&gone.removed.to_bytes()[..]) {
            return Ok(());
        }
        txn.delete(gone.slot, &gone.key);
        self.commit_note(txn)
    }

    /// Notes that a flush has put a file there whose name has gone meanwhile.
    pub(super) fn note_left_behind(
        &self,
        ino: Ino,
        dir: Ino,
        name: &[u8],
        removed: &Removed,
    ) -> FsResult<()> {
        // In the slot of the inode, as the directory may be another node's; whoever carries it out looks up the name.
        let (slot, key) = (ino.slot(), removed_key(dir, name));
        let mut txn = self.records.txn(&[slot]);
        txn.put(slot, &key, &removed.to_bytes());
        self.commit_note(txn)?;
        self.mirror_later(removed.partition);
        Ok(())
    }

    /// Forgets a deleted directory, which need not be known any more.
    pub(super) fn forget_dir(&self, dir: Ino) -> FsResult<()> {
        let slot = dir.slot();
        let mut txn = self.records.txn(&[slot]);
        if txn.get(slot, &inode_key(dir)).is_none() {
            txn.delete(slot, &site_key(dir));
        }
        self.commit_note(txn)
    }

    /// Queues the deletions that an earlier daemon left.
    pub(crate) fn resume_mirror(&self) {
        let (found, _) = self.removed_behind(None);
        // One look covers all partitions.
        let partitions = self.partitions.all().into_iter().map(|partition| partition.id);
        let mirroring = partitions.filter(|partition| !found.is_empty() && self.mirrors(*partition));
        mirroring.for_each(|partition| self.mirror_later(partition));
    }
}

fn gone_of(slot: Slot, key: &[u8], value: &[u8]) -> Option<Gone> {
    let (dir, name) = name_of_removed(key)?;
    let decoded = decode(value, "deleted name", dir);
    let removed = decoded
        .inspect_err(|error| log::error!(why:% = error; "a deletion is not made at the source"))
        .ok()?;
    Some(Gone { slot, key: key.to_vec(), dir, name: Name::new(name).ok()?, removed })
}
