//! What the policies of a partition in front of site storage ask of who writes, closes, syncs and opens. The home of a
//! file decides; here it is only known whether it has to be asked.

use std::sync::Arc;

use bivouac_types::{
    Attr, Contract, Errno, FsResult, FsyncPolicy, Ino, PartitionId, PartitionSettings, ReadPolicy, Rule,
    Source, WritePolicy,
};
use bivouac_wire::{BringRequest, FlushHereRequest, FlushTrigger, Partition, op};

use super::Site;

impl Site {
    /// The partition of a directory, if it stands in front of site storage; it is asked for once in a row.
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

    /// Whether a close of an open file has to be told before it returns.
    #[must_use]
    pub fn saved_at_close(&self, ino: Ino) -> bool {
        // Who cannot be asked now is asked then.
        self.homes.bound(ino).map_or(true, |bound| bound.is_some())
    }

    /// A descriptor of a file is closed: brings what was written to site storage if the file's policy says so.
    ///
    /// # Errors
    /// Why it is not there: it stays in the formation, to be flushed later.
    pub fn save_at_close(&self, ino: Ino) -> FsResult<()> {
        let Some(bound) = self.homes.bound(ino)? else { return Ok(()) };
        self.homes.tell_times(ino)?;
        let settings = &self.partitions.refreshed(bound)?.settings;
        if writes(settings, |policy| matches!(policy, WritePolicy::OnClose | WritePolicy::Through)) {
            self.save(ino, FlushTrigger::Close)?;
        }
        Ok(())
    }

    /// A file was written to, and who wrote waits. Under the session contract that is told when it is synced or closed.
    pub(crate) fn save_written(&self, ino: Ino) -> FsResult<()> {
        match self.homes.bound(ino)? {
            Some(bound) if !self.is_session(ino)? => self.save_through(ino, &bound),
            _ => Ok(()),
        }
    }

    fn is_session(&self, ino: Ino) -> FsResult<bool> {
        Ok(self.partitions.contract(&self.homes.know(ino)?)? == Contract::Session)
    }

    /// A file was changed otherwise, and who changed it waits.
    pub(crate) fn save_changed(&self, ino: Ino) -> FsResult<()> {
        self.homes.bound(ino)?.map_or(Ok(()), |bound| self.save_through(ino, &bound))
    }

    /// As [`Site::save_changed`], of one whose attributes have just been told.
    pub(crate) fn save_seen(&self, attr: &Attr) -> FsResult<()> {
        if attr.layout.partition() == PartitionId::ROOT { Ok(()) } else { self.save_changed(attr.ino) }
    }

    /// Something was made or got other attributes below a link. What this client has not open goes to the other side now,
    /// as no close follows.
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

    /// What was written behind by who is gone, and sent now, is at site storage as if it had been closed.
    pub(crate) fn try_save_sent(&self, ino: Ino) {
        if let Err(error) = self.save_at_close(ino) {
            log::warn!(why:% = error; "inode {ino} is not at site storage yet");
        }
    }

    /// A name was given to something in a directory, which `look` finds. It may have been closed under another name.
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

    /// A file was synced.
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

    /// Before a file that was opened is used: brings all of it, if its policy says so.
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

/// Whether any file of a partition has such a policy.
pub fn writes(settings: &PartitionSettings, is_such: impl Fn(WritePolicy) -> bool) -> bool {
    is_such(settings.write) || settings.rules.iter().filter_map(|rule| rule.write).any(is_such)
}
