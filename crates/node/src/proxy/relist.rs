//! Names at a source that changes while it is used, as another formation does: a directory is listed again when its
//! names have counted for their time. What is new there is made here, what changed there and not here is renewed, and
//! what is gone there goes here unless something of it is not there yet.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bivouac_layout::targets_of;
use bivouac_source::{Cause, Entry, Listing, Meta, join_path};
use bivouac_types::{ExpectedFile, FsResult, Ino, Name, Timestamp, mode};
use bivouac_wire::{
    Decode, FindPlaceRequest, FlushMark, MarkFlushRequest, NoteSeenRequest, Origin, SiteVersion, op,
};
use scopeguard::guard;

use super::bring::in_progress;
use super::sites::to_wire;
use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::{RelistNeed, Site};
use crate::record::{Dentry, Inode, SiteFile, removed_key, seen_key};

/// Longest wait for a listing that somebody else makes, before its asker asks again.
const WAIT: Duration = Duration::from_secs(2);
/// Number of attempts, with a pause after each, to empty a directory here that is gone there.
const GONE_TRIES: usize = 20;
const GONE_PAUSE: Duration = Duration::from_millis(200);
/// Seconds for which a source may cache a listing.
const LISTED_FOR_S: i64 = 3;
/// Names that are looked for again at once before they go, at most; the others go with the next listing.
const GONE_MAX: usize = 64;

/// Result of looking at a name that is gone there.
enum Gone {
    /// All of it; whether it is gone here.
    Done(bool),
    /// Nothing yet: it is a directory, which has to be emptied first.
    Dir { name: Name, ino: Ino },
}

/// A directory that is being emptied.
struct Level {
    ino: Ino,
    path_len: usize,
    names: Vec<Vec<u8>>,
    /// Its own entry, which is removed when it is empty.
    own: Option<(Ino, Name)>,
}

impl Node {
    /// Sees to it that the names of a listed directory are those of its source, as of the time for which they count.
    ///
    /// # Errors
    /// `EINPROGRESS` when the asker is to ask again. A source that does not answer is no error: the names are as they
    /// were.
    pub(super) fn relist(&self, inode: &Inode) -> FsResult<()> {
        let (dir, partition) = (inode.attr.ino, inode.attr.layout.partition());
        if !inode.attr.is_dir() || inode.attr.is_spread() || !self.changes_there(partition) {
            return Ok(());
        }
        let site = match self.site_of(partition) {
            Ok(site) => site,
            Err(error) => {
                log::info!(why:% = error; "the names of directory {dir} are as they were");
                return Ok(());
            }
        };
        let Some(valid) = site.source.names_valid_for() else { return Ok(()) };
        let known = match self.proxy.relists.begin(dir, valid, WAIT) {
            RelistNeed::None => return Ok(()),
            RelistNeed::Busy => return Err(in_progress(dir)),
            RelistNeed::List(known) => known,
        };
        let digest = Cell::new(None);
        let _end = guard((), |()| self.proxy.relists.end(dir, digest.get()));
        bivouac_net::before_waiting();
        match self.relist_now(dir, &site, known) {
            Ok(listed) => digest.set(listed),
            Err(error) => log::info!(why:% = error; "the names of directory {dir} are as they were"),
        }
        Ok(())
    }

    /// Lists a directory again. The digest that it has, if all of it is here.
    fn relist_now(&self, dir: Ino, site: &Arc<Site>, known: Option<u128>) -> FsResult<Option<u128>> {
        // One that has not been there yet has nothing there.
        let place = self.find_place(&FindPlaceRequest { dir, name: Vec::new() })?;
        let Some(path) = place.path else { return Ok(None) };
        let before = self.inode(dir)?.attr.ctime;
        let now = self.clock.now();
        // It may have come with another one a moment ago.
        let asked = Timestamp { secs: now.secs - LISTED_FOR_S, ..now };
        let listing = match site.source.list_changed(&path, known) {
            Ok(Some(listing)) => listing,
            Ok(None) => return Ok(known),
            // Whoever looks into the directory above takes it away, too.
            Err(error) if error.cause() == Cause::NotFound && !path.is_empty() => {
                self.empty_gone(dir, &path, site)?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        // Where names have come and gone here since, one that was deleted may still be in the listing.
        let is_quiet = self.inode(dir)?.attr.ctime == before;
        let (seen, mut is_all) = (self.seen_names(dir), true);
        for entry in &listing.entries {
            let is_there = || is_quiet || site.source.stat(&join_path(&path, &entry.name)).is_ok();
            is_all &= self.take_entry((dir, &path, site), entry, (seen.get(&entry.name), asked), is_there)?;
        }
        is_all &= self.take_gone(dir, &path, &listing, &seen, site)?;
        Ok(is_all.then_some(listing.digest))
    }

    fn seen_names(&self, dir: Ino) -> HashMap<Vec<u8>, SiteVersion> {
        let (prefix, mut seen) = (seen_key(dir, b""), HashMap::new());
        self.records.scan(dir.slot(), &prefix, &prefix, |key, value| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            seen.extend(SiteVersion::from_bytes(value).ok().map(|version| (name.to_vec(), version)));
            ControlFlow::Continue(())
        });
        seen
    }

    /// Takes in an entry of a listing that shows what was there after `asked`, with what was seen of it before. Returns
    /// true if it is here as it is there.
    fn take_entry(
        &self,
        (dir, path, site): (Ino, &[u8], &Site),
        entry: &Entry,
        (seen, asked): (Option<&SiteVersion>, Timestamp),
        is_there: impl Fn() -> bool,
    ) -> FsResult<bool> {
        let now = to_wire(entry.meta.version.clone());
        let is_same = |seen: &SiteVersion| match entry.meta.kind {
            // Times of a directory are those of its entries.
            mode::DIR => seen.tag == now.tag,
            _ => *seen == now,
        };
        let Ok(name) = Name::new(&entry.name) else { return Ok(true) };
        let place = self.place(dir, &name)?;
        let take_attrs =
            |dentry| self.take_entry_attrs(dentry, &join_path(path, &entry.name), &entry.meta, asked);
        if seen.is_some_and(is_same) {
            return self.dentry(&place)?.map_or(Ok(true), take_attrs);
        }
        let is_going = |key: &[u8]| self.records.read(place.slot, key, |bytes| bytes.is_some());
        match self.dentry(&place)? {
            // What was deleted here does not come back; what has changed there since does, once the deletion is
            // decided.
            None if seen.is_some() || is_going(&removed_key(dir, &entry.name)) => Ok(false),
            None if !is_there() => Ok(false),
            None => {
                self.make_entry(dir, path, entry)?;
                Ok(true)
            }
            Some(dentry) if dentry.kind == mode::FILE && entry.meta.is_file() => {
                let is_renewed = self.renew_entry(dentry, join_path(path, &entry.name), (now, asked))?;
                Ok(take_attrs(dentry)? && is_renewed)
            }
            // What was in the directory has gone there with it.
            Some(dentry) if seen.is_some() && dentry.kind == mode::DIR && !entry.meta.is_dir() => {
                self.empty_gone(dentry.ino, &join_path(path, &entry.name), site)?;
                let is_gone = self.remove_clean(dir, &name, dentry)?;
                if is_gone {
                    self.make_entry(dir, path, entry)?;
                }
                Ok(is_gone)
            }
            Some(dentry) if seen.is_some() && dentry.kind != mode::DIR => {
                // Another thing has the name there: what is here goes if it is only what was there before.
                let is_own = self.map.home(dentry.ino) == Some(self.id);
                let origin = if is_own { self.clean_origin(dentry.ino)? } else { None };
                if origin.is_some_and(|origin| origin.seen == now) {
                    // It was put there from here, a moment ago.
                    return Ok(true);
                }
                let is_gone = is_own
                    && self.is_only_there(dentry.ino, &join_path(path, &entry.name))?
                    && self.remove_clean(dir, &name, dentry)?;
                if is_gone {
                    self.make_entry(dir, path, entry)?;
                }
                Ok(is_gone)
            }
            // What was made here under the name counts, until it is flushed and finds the other one.
            Some(dentry) => take_attrs(dentry),
        }
    }

    /// Takes in the attributes of what an entry leads to. Returns true if they are here, too, if its inode is of this
    /// node.
    fn take_entry_attrs(
        &self,
        dentry: Dentry,
        path: &[u8],
        there: &Meta,
        asked: Timestamp,
    ) -> FsResult<bool> {
        let Dentry { ino, kind } = dentry;
        let has_attrs = kind == there.kind && matches!(kind, mode::FILE | mode::DIR);
        // What is another file there has attributes of its own, such as that under a former name of this one.
        match has_attrs && self.map.home(ino) == Some(self.id) && self.is_only_there(ino, path)? {
            true => self.take_attrs(ino, there, asked),
            false => Ok(true),
        }
    }

    /// Renews a file that a listing shows as another one there, after `asked`. Returns true if it is so here as well
    /// now.
    fn renew_entry(
        &self,
        dentry: Dentry,
        path: Vec<u8>,
        (seen, asked): (SiteVersion, Timestamp),
    ) -> FsResult<bool> {
        let ino = dentry.ino;
        if self.map.home(ino) != Some(self.id) {
            // Its own home does that when it is opened.
            return Ok(true);
        }
        let Some(origin) = self.clean_origin(ino)?.filter(|origin| origin.path == path) else {
            return Ok(false);
        };
        if origin.seen == seen {
            return Ok(true);
        }
        // The listing may show what was there before it was put: taken for the newer one, that would make the next
        // flush, or deletion, a conflict with ourselves. Looked at only now, behind the version that is compared.
        if self.proxy.placements.is_newer(ino, asked) {
            return Ok(false);
        }
        self.renew(ino, &origin, Origin { path, seen })?;
        Ok(true)
    }

    /// Takes away names that were there and are not in the listing. Returns true if all of them are gone here, too.
    fn take_gone(
        &self,
        dir: Ino,
        path: &[u8],
        listing: &Listing,
        seen: &HashMap<Vec<u8>, SiteVersion>,
        site: &Site,
    ) -> FsResult<bool> {
        let there: HashSet<&[u8]> = listing.entries.iter().map(|entry| entry.name.as_slice()).collect();
        let gone: Vec<&Vec<u8>> = seen.keys().filter(|name| !there.contains(name.as_slice())).collect();
        // Without the digest of this listing the next one is taken up again, and takes more of them.
        let mut is_all = gone.len() <= GONE_MAX;
        for name in gone.into_iter().take(GONE_MAX) {
            is_all &= self.take_away(dir, &join_path(path, name), name, site)?;
        }
        Ok(is_all)
    }

    /// Takes away a name that seems to be gone there. Returns true if it is gone here, too.
    fn take_away(&self, dir: Ino, path: &[u8], name: &[u8], site: &Site) -> FsResult<bool> {
        match self.look_at_gone(dir, path, name, site)? {
            Gone::Done(is_gone) => Ok(is_gone),
            Gone::Dir { name, ino } => {
                self.empty_gone(ino, path, site)?;
                self.remove_clean(dir, &name, Dentry { ino, kind: mode::DIR })
            }
        }
    }

    /// Like [`Node::take_away`], except for directories, which are emptied first.
    fn look_at_gone(&self, dir: Ino, path: &[u8], name: &[u8], site: &Site) -> FsResult<Gone> {
        let Ok(name) = Name::new(name) else { return Ok(Gone::Done(true)) };
        let place = self.place(dir, &name)?;
        let dentry = self.dentry(&place)?;
        let is_clean = match &dentry {
            None => true,
            // Only its home has its site records.
            Some(dentry) if self.map.home(dentry.ino) != Some(self.id) => dentry.kind == mode::DIR,
            Some(dentry) => self.is_only_there(dentry.ino, path)?,
        };
        // After `is_clean`: whatever a flush was putting there has arrived by now.
        let is_gone = is_clean && is_not_there(site, path);
        let Some(dentry) = dentry.filter(|_| is_gone) else {
            if is_gone {
                self.forget_name(dir, &name)?;
            }
            return Ok(Gone::Done(is_gone));
        };
        if dentry.kind == mode::DIR {
            return Ok(Gone::Dir { name, ino: dentry.ino });
        }
        self.remove_clean(dir, &name, dentry).map(Gone::Done)
    }

    /// Removes a name of which nothing is only here, unless it is another one by now or in use. Whether it is gone.
    fn remove_clean(&self, dir: Ino, name: &Name, dentry: Dentry) -> FsResult<bool> {
        let Dentry { ino, kind } = dentry;
        let data_version = match kind {
            mode::DIR => None,
            _ if self.opens.is_open(ino) => return Ok(false),
            mode::FILE if self.unsaved_stripes(ino)? > 0 => return Ok(false),
            mode::FILE => Some(self.inode(ino)?.attr.data_version),
            _ => None,
        };
        // Somebody may have given the name to a file that is nowhere else meanwhile.
        let expect = (kind != mode::DIR).then_some(ExpectedFile { ino, data_version });
        match self.remove_gone_there(dir, name, kind == mode::DIR, expect) {
            Ok(()) => Ok(true),
            Err(error) => {
                log::debug!(why:% = error; "inode {ino} is gone at the source and stays");
                Ok(false)
            }
        }
    }

    /// Returns the names below a directory that is gone there, if it is this node's; else its home is told.
    fn names_of_gone(&self, ino: Ino) -> FsResult<Option<Vec<Vec<u8>>>> {
        let home = self.home_of(ino)?;
        if home != self.id {
            let note = NoteSeenRequest { dir: ino, name: Vec::new(), seen: None, by: Some(ino) };
            self.step::<op::NoteSeen>(home, StepContext::question(SYSTEM), 0, note)?;
            return Ok(None);
        }
        let Some(file) = self.site_file(ino)? else { return Ok(None) };
        if !file.listed {
            let mut change = self.change_of(ino)?;
            // What is gone there cannot be listed any more, and an unlisted directory cannot be removed.
            change.put_site_file(ino, &SiteFile { listed: true, ..file });
            change.commit()?;
        }
        Ok(Some(self.seen_names(ino).into_keys().collect()))
    }

    /// Takes away what is in a directory that is gone there, or has its home do so. Its depth is the other side's to
    /// say, so the levels are on the heap.
    fn empty_gone(&self, ino: Ino, path: &[u8], site: &Site) -> FsResult<bool> {
        let Some(names) = self.names_of_gone(ino)? else { return Ok(false) };
        let (mut is_all, mut path) = (true, path.to_vec());
        let mut levels = vec![Level { ino, path_len: path.len(), names, own: None }];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_len);
            let Some(below) = level.names.pop() else {
                if let Some(Level { ino, own: Some((dir, name)), .. }) = levels.pop() {
                    is_all &= self.remove_clean(dir, &name, Dentry { ino, kind: mode::DIR })?;
                }
                continue;
            };
            let dir = level.ino;
            path = join_path(&path, &below);
            match self.look_at_gone(dir, &path, &below, site)? {
                Gone::Done(is_gone) => is_all &= is_gone,
                Gone::Dir { name, ino } => {
                    let names = self.names_of_gone(ino)?.unwrap_or_default();
                    levels.push(Level { ino, path_len: path.len(), names, own: Some((dir, name)) });
                }
            }
        }
        Ok(is_all)
    }

    /// Takes away, in a thread, what is in a directory of this node that is gone there: the source is asked for each
    /// name.
    pub(super) fn empty_gone_dir_later(&self, dir: Ino) {
        // Only if nobody lists it now. Until the end below, nobody else begins.
        let is_free =
            matches!(self.proxy.relists.begin(dir, Duration::ZERO, Duration::ZERO), RelistNeed::List(_));
        let Some(node) = self.this.get().cloned().filter(|_| is_free) else { return };
        let ended = node.clone();
        let end = guard((), move |()| {
            if let Some(node) = ended.upgrade() {
                node.proxy.relists.end(dir, None);
            }
        });
        let work = move || {
            // Without a thread it is dropped with this closure.
            let _end = end;
            for _ in 0..GONE_TRIES {
                let Some(node) = node.upgrade() else { return };
                let emptied = node.empty_gone_dir(dir);
                if !matches!(emptied, Ok(false)) {
                    break;
                }
                // Not held during the pause, so that the node can end.
                drop(node);
                bivouac_net::pause(GONE_PAUSE);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gone".to_owned()).spawn(work) {
            log::warn!(why:% = error; "directory {dir} is gone at the source and stays: no thread");
        }
    }

    /// Returns whether nothing is left to be taken away in a directory.
    fn empty_gone_dir(&self, dir: Ino) -> FsResult<bool> {
        let partition = self.inode(dir)?.attr.layout.partition();
        let place = self.find_place(&FindPlaceRequest { dir, name: Vec::new() })?;
        let (site, Some(path)) = (self.site_of(partition)?, place.path) else { return Ok(true) };
        let is_other = || site.source.stat(&path).is_ok_and(|found| !found.is_dir());
        if path.is_empty() || !is_not_there(&site, &path) && !is_other() {
            return Ok(true);
        }
        self.empty_gone(dir, &path, &site)
    }

    /// Returns whether all that is known of an inode here is at this path there.
    fn is_only_there(&self, ino: Ino, path: &[u8]) -> FsResult<bool> {
        let origin = self.clean_origin(ino)?;
        Ok(origin.is_some_and(|origin| origin.path == path) && !self.is_being_flushed(ino))
    }

    /// Stripes of a file that its source does not have.
    fn unsaved_stripes(&self, ino: Ino) -> FsResult<u64> {
        // No cut may raise the epoch while the targets are asked to close it.
        let _size = self.lock_size(ino)?;
        let attr = self.inode(ino)?.attr;
        let mut unsaved = 0;
        for target in targets_of(&attr.layout) {
            let mark = FlushMark::Close { epoch: attr.epoch, layout: attr.layout };
            let (node, steps) = (self.target_place(target)?.node, StepContext::question(SYSTEM));
            unsaved += self.step::<op::MarkFlush>(node, steps, 0, MarkFlushRequest { ino, target, mark })?;
        }
        Ok(unsaved)
    }

    /// Forgets that the source had something under a name: it is not deleted there with what is here, and what comes
    /// there later is new.
    fn forget_name(&self, dir: Ino, name: &Name) -> FsResult<()> {
        let (seen, by) = (None, None);
        self.note_seen(&NoteSeenRequest { dir, name: name.as_bytes().to_vec(), seen, by })
    }
}

/// Returns whether a source has nothing at a path, also because a directory on the way there, but for the root, has
/// become something else.
fn is_not_there(site: &Site, path: &[u8]) -> bool {
    match site.source.stat(path) {
        Err(error) if error.cause() == Cause::NotFound => true,
        Err(error) if error.cause() == Cause::WrongKind => {
            site.source.stat(b"").is_ok_and(|root| root.is_dir())
        }
        _ => false,
    }
}
