//! Operations at site storage are logged before a flush performs them, so that the daemon after a kill recognises its
//! own: what has taken its place is the file's version there, what has not is discarded. Such a record outlives its
//! inode, and is resolved before another file takes the place.

use std::ops::ControlFlow;
use std::time::Duration;

use bivouac_source::{Attrs, Cause, Precondition, SourceResult, Upload, Version, is_time_kept, split_path};
use bivouac_types::{FsResult, Ino, PartitionId};
use bivouac_wire::{Encode, Origin, Whence};

use super::bring::in_progress;
use super::flush::{WAIT, explained};
use super::sites::{from_wire, to_wire};
use crate::namespace::{decode, unless_absent};
use crate::node::Node;
use crate::proxy_state::{JobKind, Site};
use crate::record::{Act, GivenAttrs, PutContent, Removed, SiteFile, act_key, ino_of_act_key, table};

/// First and longest pause before what could not be looked at is looked at again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

impl Node {
    /// Returns the operation at site storage that is about to be performed for an inode, or was when a daemon was
    /// killed.
    pub(super) fn act(&self, ino: Ino) -> FsResult<Option<Act>> {
        self.records.read(ino.slot(), &act_key(ino), |bytes| {
            bytes.map(|bytes| decode(bytes, "site storage", ino)).transpose()
        })
    }

    /// Notes what is about to be done at site storage.
    pub(super) fn note_act(&self, ino: Ino, act: &Act) -> FsResult<()> {
        let mut txn = self.records.txn(&[ino.slot()]);
        txn.put(ino.slot(), &act_key(ino), &act.to_bytes());
        self.commit_note(txn)
    }

    /// Finds out what became of what was about to be done. Where it was done, answers as what the inode is there now.
    ///
    /// # Errors
    /// Why that is not known: it has to be asked again.
    pub(super) fn settle_act(&self, ino: Ino, force: bool) -> FsResult<Option<Origin>> {
        let Some(act) = self.act(ino)? else { return Ok(None) };
        // What a partition stood in front of that is gone is of no use to anybody.
        let done = match self.site(act.partition)? {
            Some(site) => match find_out(&site, &act, force) {
                // No source has anything there.
                Err(error) if error.cause() == Cause::BadName => None,
                found => found.map_err(explained)?,
            },
            None => None,
        };
        let Some(mut version) = done else {
            self.conclude_act(ino, None)?;
            return Ok(None);
        };
        if let Some(put) = act.put.as_ref().filter(|_| self.changes_there(act.partition)) {
            version = as_put(version, put);
        }
        self.proxy.placements.note(ino, self.clock.now());
        let (name, origin) =
            (split_path(&act.path).1, Origin { path: act.path.clone(), seen: to_wire(version) });
        // Before the note goes: a kill in between has all of this done once more.
        self.tell_seen(act.dir, name, Some(origin.seen.clone()), Some(ino))?;
        self.look_back(ino, (act.partition, false), (act.dir, name), &origin)?;
        self.conclude_act(ino, Some(&origin))?;
        Ok(Some(origin))
    }

    /// Removes the note, in one transaction with what came of it.
    fn conclude_act(&self, ino: Ino, origin: Option<&Origin>) -> FsResult<()> {
        let mut change = self.change(&[ino.slot()])?;
        if let Some(origin) = origin
            && unless_absent(change.inode(ino))?.is_some()
        {
            let file = change.site_file(ino)?.unwrap_or_else(SiteFile::new_here);
            change.put_site_file(ino, &SiteFile { origin: Some(origin.clone()), ..file });
        }
        change.txn.delete(ino.slot(), &act_key(ino));
        change.commit()
    }

    /// Checks whether a name has gone while what it led to took its place there: then that is to be deleted there.
    pub(super) fn look_back(
        &self,
        ino: Ino,
        (partition, is_dir): (PartitionId, bool),
        (dir, name): (Ino, &[u8]),
        there: &Origin,
    ) -> FsResult<()> {
        if !self.mirrors(partition) {
            return Ok(());
        }
        if self.leads_to(ino, (dir, name))? {
            return Ok(());
        }
        let seen = Some(there.seen.clone());
        self.note_left_behind(ino, dir, name, &Removed { ino, is_dir, partition, seen, again: 0 })
    }

    /// Returns whence the content of an inode may have to be brought. What became of a flush that was cut off by a kill
    /// is found out first, also of an inode that is gone since.
    ///
    /// # Errors
    /// `EINPROGRESS` until it is known.
    pub(crate) fn find_origin(&self, ino: Ino) -> FsResult<Whence> {
        // Not while it is flushed, which asks this, too. While it is being settled nobody knows yet, and the names
        // there may still tell of what was replaced.
        let is_cut_off = self.act(ino)?.is_some() && !self.is_being_flushed(ino);
        // Where it could not be found out a moment ago, what is known has to do.
        if is_cut_off && self.proxy.failing.waits(ino).is_ok() {
            self.settle_aside(ino, Duration::ZERO)?;
            return Err(in_progress(ino));
        }
        self.whence(ino)
    }

    /// Settles in a thread, where nothing else is done for the inode meanwhile.
    fn settle_aside(&self, ino: Ino, wait: Duration) -> FsResult<()> {
        let jobs = (&self.proxy.jobs, JobKind::Settle);
        let settled = self.run_job_of(jobs, (ino, 0), wait, move |node, job| {
            let outcome = node.settle_act(ino, false).map(|_| job.ended());
            node.proxy.failing.note(ino, &outcome);
            outcome
        });
        settled.map(drop)
    }

    /// Resolves, in the background, the operations that killed daemons had logged.
    pub(crate) fn resume_acts(&self) {
        let mut left = self.acts();
        let Some(node) = self.this.get().cloned().filter(|_| !left.is_empty()) else { return };
        let work = move || {
            let mut pause = PAUSES.0;
            while let Some(node) = node.upgrade() {
                left.retain(|(ino, act)| node.is_act_left(*ino, act));
                // Not held through the pause: it would keep the node from ending.
                drop(node);
                if left.is_empty() {
                    return;
                }
                bivouac_net::pause(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("acts".to_owned()).spawn(work) {
            log::error!(
                "what a killed daemon was doing at a source waits for the next flush: no thread: {error}"
            );
        }
    }

    fn acts(&self) -> Vec<(Ino, Act)> {
        let mut found = Vec::new();
        for slot in self.own_slots() {
            self.records.scan(slot, &table(b'J'), &table(b'J'), |key, value| {
                let Some(ino) = ino_of_act_key(key) else { return ControlFlow::Continue(()) };
                match decode::<Act>(value, "site storage", ino) {
                    Ok(act) => found.push((ino, act)),
                    // It stays: flushes of the inode find it, and fail.
                    Err(error) => log::error!(why:% = error; "what was done at the source is not known"),
                }
                ControlFlow::Continue(())
            });
        }
        found
    }

    /// Settles what is still as it was written down. Whether it is so afterwards.
    fn is_act_left(&self, ino: Ino, act: &Act) -> bool {
        // A flush may have settled it meanwhile, and have noted another one.
        let is_left = || self.act(ino).is_ok_and(|now| now.as_ref() == Some(act));
        if !is_left() {
            return false;
        }
        if let Err(error) = self.settle_aside(ino, WAIT) {
            let path = String::from_utf8_lossy(&act.path);
            log::warn!(why:% = error; "what became of '{path}' at the source is not known yet");
        }
        is_left()
    }
}

/// Finds out whether an operation was performed; returns the version at site storage if it was.
fn find_out(site: &Site, act: &Act, force: bool) -> SourceResult<Option<Version>> {
    let seen = act.seen.clone().map(from_wire);
    let Some(given) = &act.given else {
        let (path, token, tag) = (act.path.clone(), act.token.clone(), act.tag.clone());
        let size = act.put.as_ref().map_or(0, |put| put.size);
        let upload = Upload { path, size, token, tag, ..Upload::default() };
        let expect = match seen {
            _ if force || act.force => Precondition::Anything,
            Some(seen) => Precondition::Version(seen),
            None => Precondition::Absent,
        };
        return site.source.resume(&upload, &expect);
    };
    let GivenAttrs { perm, uid, gid, mtime } = *given;
    let attrs = Attrs { perm, uid, gid, mtime, ..Attrs::default() };
    match site.source.stat(&act.path) {
        Err(error) if error.cause() == Cause::NotFound => Ok(None),
        found => {
            let found = found?;
            let is_given = seen.is_some_and(|seen| site.source.has_attrs_applied(&found, &seen, &attrs));
            Ok(is_given.then_some(found.version))
        }
    }
}

/// Returns the version that an upload had when it took its place: a later write there makes another one.
fn as_put(found: Version, put: &PutContent) -> Version {
    let mtime = if is_time_kept(found.mtime, put.mtime) { found.mtime } else { put.mtime };
    Version { size: put.size, mtime, ..found }
}
