//! Policies of partitions in front of site storage, as they concern writes, closes, syncs and opens. A file's home
//! decides; here it is only known whether to ask it.

use std::sync::Arc;

use bivouac_types::{
    Attr, Contract, Errno, FsResult, FsyncPolicy, Ino, PartitionId, PartitionSettings, ReadPolicy, Rule,
    Source, WritePolicy,
};
use bivouac_wire::{BringRequest, FlushHereRequest, FlushTrigger, Partition, op};

use super::Site;
use crate::at_once::each_at_once;

/// Files that one call brings to site storage at the same time: each waits for some round trips.
const SAVED_AT_ONCE: usize = 16;

impl Site {
    /// Returns the partition of a directory, if it stands in front of site storage; it is asked for once in a row.
    pub(crate) fn bound_dir(&self, dir: Ino) -> FsResult<Option<Arc<Partition>>> {
        // Nothing is in a partition that was not looked up.
        if !self.partitions.any() {
            return Ok(None);
        }
        let known = (*self.last_dir.lock()).filter(|(last, _)| *last == dir);
        let id = match known {
            Some((_, id)) => id,
            None => self.homes.attr(dir)?.layout.partition(),
        };
        // An empty directory of the root may become that of a partition.
        if id != PartitionId::ROOT {
            *self.last_dir.lock() = Some((dir, id));
        }
        self.partitions.bound(id)
    }

    /// Returns true if a close of an open file has to be reported before it returns.
    #[must_use]
    pub fn saved_at_close(&self, ino: Ino) -> bool {
        // A partition that cannot be asked about now may require it.
        self.homes.bound(ino).map_or(true, |bound| bound.is_some())
    }

    /// Brings what was written to site storage, at the close of a descriptor, if the file's policy says so.
    ///
    /// # Errors
    /// Why it is not there: it stays in the formation, to be flushed later.
    pub fn save_at_close(&self, ino: Ino) -> FsResult<()> {
        let Some(bound) = self.homes.bound(ino)? else { return Ok(()) };
        self.homes.tell_times(ino)?;
        // Not those of when the partition was first seen: a policy that is set holds for the next close.
        let settings = &self.partitions.refreshed(bound)?.settings;
        if writes(settings, |policy| matches!(policy, WritePolicy::OnClose | WritePolicy::Through)) {
            self.save(ino, FlushTrigger::Close)?;
        }
        Ok(())
    }

    /// Brings a file that was written to to site storage if its policy says so; who wrote waits. Under the session
    /// contract that is told when it is synced or closed.
    pub(crate) fn save_written(&self, ino: Ino) -> FsResult<()> {
        match self.homes.bound(ino)? {
            Some(bound) if !self.is_session(ino)? => self.save_through(ino, &bound),
            _ => Ok(()),
        }
    }

    fn is_session(&self, ino: Ino) -> FsResult<bool> {
        Ok(self.partitions.contract(&self.homes.know(ino)?)? == Contract::Session)
    }

    /// Brings a file that was changed otherwise to site storage if its policy says so; who changed it waits.
    pub(crate) fn save_changed(&self, ino: Ino) -> FsResult<()> {
        self.homes.bound(ino)?.map_or(Ok(()), |bound| self.save_through(ino, &bound))
    }

    /// Like [`Site::save_changed`], for a file whose attributes have just arrived.
    pub(crate) fn save_seen(&self, attr: &Attr) -> FsResult<()> {
        if attr.layout.partition() == PartitionId::ROOT { Ok(()) } else { self.save_changed(attr.ino) }
    }

    /// Brings what was made or got other attributes below a link to the other side. What this client has not open goes
    /// to the other side now, as no close follows.
    pub(crate) fn save_unopened(&self, attr: &Attr) -> FsResult<()> {
        if attr.layout.partition() == PartitionId::ROOT || self.homes.is_open(attr.ino) {
            return Ok(());
        }
        let Some(bound) = self.partitions.bound(attr.layout.partition())? else { return Ok(()) };
        let is_link = bound.settings.source.as_ref().is_some_and(Source::is_link);
        match is_link && writes(&bound.settings, |policy| policy == WritePolicy::OnClose) {
            // It was made or changed; who has removed it meanwhile has not undone that.
            true => match self.save(attr.ino, FlushTrigger::Close) {
                Err(error) if error.errno() == Errno::ENOENT => Ok(()),
                saved => saved,
            },
            false => Ok(()),
        }
    }

    fn save_through(&self, ino: Ino, bound: &Partition) -> FsResult<()> {
        let goes_through = writes(&bound.settings, |policy| policy == WritePolicy::Through);
        if goes_through { self.save(ino, FlushTrigger::Write) } else { Ok(()) }
    }

    /// Saves a file whose writers are gone and whose content has been sent now, as at its close; an error is logged.
    pub(crate) fn try_save_sent(&self, ino: Ino) {
        if let Err(error) = self.save_at_close(ino) {
            log::warn!(why:% = error; "inode {ino} is not at site storage yet");
        }
    }

    /// Brings what was given a name in a directory to site storage, as `look` finds it. It may have been closed under
    /// another name.
    pub(crate) fn save_named(&self, dir: Ino, look: impl FnOnce() -> FsResult<Attr>) -> FsResult<()> {
        // Nothing has a new name that was not looked up.
        if !self.partitions.any() {
            return Ok(());
        }
        let Some(bound) = self.homes.bound(dir)? else { return Ok(()) };
        let settings = &self.partitions.refreshed(bound)?.settings;
        if !writes(settings, |policy| matches!(policy, WritePolicy::OnClose | WritePolicy::Through)) {
            return Ok(());
        }
        let attr = look()?;
        // Directories come with what is in them.
        if attr.is_dir() { Ok(()) } else { self.save(attr.ino, FlushTrigger::Close) }
    }

    /// Returns whether anything in a directory goes to site storage when it is closed.
    pub(crate) fn goes_at_close(&self, dir: Ino) -> FsResult<bool> {
        let Some(bound) = self.homes.bound(dir)? else { return Ok(false) };
        let settings = &self.partitions.refreshed(bound)?.settings;
        Ok(writes(settings, |policy| matches!(policy, WritePolicy::OnClose | WritePolicy::Through)))
    }

    /// Brings files to site storage as their closes do, several at the same time. After an error the others are
    /// brought, too.
    ///
    /// # Errors
    /// That of the first file that is not there.
    pub(crate) fn save_each(&self, inos: &[Ino]) -> FsResult<()> {
        let saved = each_at_once(SAVED_AT_ONCE, inos, |ino| self.save(*ino, FlushTrigger::Close));
        let failed = saved.into_iter().filter_map(|(_, saved)| saved.err());
        // What is not there was removed meanwhile.
        failed.into_iter().find(|error| error.errno() != Errno::ENOENT).map_or(Ok(()), Err)
    }

    /// Brings a file that was synced to site storage if its policy says so.
    pub(crate) fn save_synced(&self, ino: Ino) -> FsResult<()> {
        match self.homes.bound(ino)? {
            Some(bound) if bound.settings.fsync == FsyncPolicy::Source => self.save(ino, FlushTrigger::Sync),
            Some(bound) if self.is_session(ino)? => self.save_through(ino, &bound),
            _ => Ok(()),
        }
    }

    fn save(&self, ino: Ino, occasion: FlushTrigger) -> FsResult<()> {
        let mut request = FlushHereRequest { ino, occasion, job: 0 };
        loop {
            let state = self.connections.ask::<op::FlushHere>(self.connections.home(ino)?, &request)?;
            if state.done {
                return Ok(());
            }
            request.job = state.job;
        }
    }

    /// Brings all of a file that was opened here, before it is used, if its policy says so.
    pub(crate) fn bring_opened(&self, ino: Ino) -> FsResult<()> {
        let Some(bound) = self.homes.bound(ino)? else { return Ok(()) };
        let settings = &self.partitions.refreshed(bound)?.settings;
        let reads = |rule: &Rule| rule.read == Some(ReadPolicy::OnOpen);
        if settings.read == ReadPolicy::OnOpen || settings.rules.iter().any(reads) {
            self.bring_by(ino, true)?;
        }
        Ok(())
    }

    /// Brings all of a file from site storage.
    ///
    /// # Errors
    /// `ENOSPC` when there is no room for it; `ESTALE` when it has changed there; `EIO`.
    pub fn bring_file(&self, ino: Ino) -> FsResult<()> {
        self.bring_by(ino, false)
    }

    fn bring_by(&self, ino: Ino, opened: bool) -> FsResult<()> {
        let mut request = BringRequest { ino, from: 0, opened };
        while let Some(next) = self.connections.ask::<op::BringFile>(self.connections.home(ino)?, &request)? {
            request.from = next;
        }
        Ok(())
    }
}

/// Returns true if any file of a partition may have such a policy.
pub fn writes(settings: &PartitionSettings, is_such: impl Fn(WritePolicy) -> bool) -> bool {
    is_such(settings.write) || settings.rules.iter().filter_map(|rule| rule.write).any(is_such)
}
