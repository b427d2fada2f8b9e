//! Making the entries of a directory that is at site storage: all in one go, when somebody first looks into it.

use std::time::{Duration, Instant};

use bivouac_source::{Entry, Listing, Meta, join_path};
use bivouac_types::{DIGEST_XATTR, Errno, FsError, FsResult, Ino, Name, mode};
use bivouac_wire::{Encode, MakeRequest, NoteSeenRequest};

use super::sites::to_wire;
use crate::directory::EntryPlace;
use crate::intent_record::{Intent, NewDir};
use crate::locks::LockTarget;
use crate::node::Node;
use crate::record::{Dentry, Inode, SiteFile, seen_by_key, seen_key, xattr_key};
use crate::session::Ctx;
use bivouac_session::Item;
use scopeguard::guard;

/// Longest wait for entries that somebody else makes, before their asker asks again.
const WAIT: Duration = Duration::from_secs(2);
/// Directories whose entries are made at the same time, at most.
const LISTING_MAX: usize = 3;

impl Node {
    /// Sees to it that the entries of a directory are here.
    ///
    /// # Errors
    /// `EINPROGRESS` when the asker is to ask again; `EIO` and others when site storage cannot be listed.
    pub(crate) fn bring_entries(&self, dir: Ino) -> FsResult<()> {
        self.bring_unlisted(dir)?.map_or(Ok(()), |inode| self.relist(&inode))
    }

    /// Like [`Node::bring_entries`], for peers, which do not wait for a relisting.
    ///
    /// # Errors
    /// As [`Node::bring_entries`].
    pub(crate) fn bring_first_entries(&self, dir: Ino) -> FsResult<()> {
        self.bring_unlisted(dir).map(drop)
    }

    /// Makes the entries of a directory of a partition, if that has yet to be done; returns the directory if it was
    /// done before.
    fn bring_unlisted(&self, dir: Ino) -> FsResult<Option<Inode>> {
        // A directory that has spread has had its entries made before.
        if self.partitions.is_empty() || self.check_slot(dir.slot()).is_err() {
            return Ok(None);
        }
        loop {
            let Ok(inode) = self.inode(dir) else { return Ok(None) };
            let Some(file) = self.unlisted(&inode)? else { return Ok(Some(inode)) };
            if self.proxy.listing.lock().contains(&dir) {
                bivouac_net::before_waiting();
            }
            let mut listing = self.proxy.listing.lock();
            if listing.contains(&dir) {
                if self.proxy.listed.wait_for(&mut listing, WAIT).timed_out() {
                    return Err(super::bring::in_progress(dir));
                }
                continue;
            }
            if listing.len() >= LISTING_MAX {
                return Err(super::bring::in_progress(dir));
            }
            listing.insert(dir);
            drop(listing);
            let _end = guard((), |()| {
                let was_listing = self.proxy.listing.lock().remove(&dir);
                assert!(was_listing || std::thread::panicking(), "directory {dir} was listed by two");
                self.proxy.listed.notify_all();
            });
            bivouac_net::before_waiting();
            return self.make_entries(&inode, &file).map(|()| None);
        }
    }

    /// Returns true if a directory's entries at site storage have not been made here; it must not be changed until they
    /// are.
    pub(crate) fn is_unlisted(&self, dir: Ino) -> FsResult<bool> {
        match self.check_slot(dir.slot()).and_then(|()| self.inode(dir)) {
            Ok(inode) => Ok(self.unlisted(&inode)?.is_some()),
            Err(_) => Ok(false),
        }
    }

    fn unlisted(&self, inode: &Inode) -> FsResult<Option<SiteFile>> {
        if !inode.attr.is_dir() || inode.attr.is_spread() || !self.brings_names(inode.attr.layout.partition())
        {
            return Ok(None);
        }
        Ok(self.site_file(inode.attr.ino)?.filter(|file| !file.listed))
    }

    fn make_entries(&self, inode: &Inode, file: &SiteFile) -> FsResult<()> {
        let dir = inode.attr.ino;
        // Somebody else may have been faster.
        if self.site_file(dir)?.is_none_or(|file| file.listed) {
            return Ok(());
        }
        let site = self.site_of(inode.attr.layout.partition())?;
        let path = file.origin.as_ref().map(|origin| origin.path.clone()).unwrap_or_default();
        site.source.check()?;
        // Before the question: names count for their time from then on.
        let asked = Instant::now();
        let Some(Listing { dir: meta, entries, digest }) = site.source.list_changed(&path, None)? else {
            return Err(super::bring::in_progress(dir));
        };
        let _quiet = self.recall_attr_leases(dir);
        for entry in &entries {
            self.make_entry(dir, &path, entry)?;
        }
        let hidden = entries.iter().filter(|entry| entry.meta.hides_xattrs).count();
        if hidden > 0 {
            let path = String::from_utf8_lossy(&path);
            log::warn!(
                "extended attributes of {hidden} entries of '{path}' cannot be read at the source, and are not here"
            );
        }
        // Last: until all entries are here, the directory counts as not listed.
        let _size = self.locks.lock(LockTarget::Size(dir))?;
        let mut change = self.change_of(dir)?;
        let mut inode = change.inode(dir)?;
        inode.attr.mtime = meta.attrs.mtime;
        // As of now: what was changed here during the listing has yet to get there. Before the inode is put, which
        // counts as such a change.
        let known = change.site_file(dir)?.unwrap_or_else(|| file.clone());
        change.put_inode(&inode);
        change.put_site_file(dir, &SiteFile { listed: true, ..known });
        change.commit()?;
        if site.source.names_valid_for().is_some() {
            self.proxy.relists.note(dir, asked, digest);
        }
        Ok(())
    }

    pub(super) fn make_entry(&self, dir: Ino, path: &[u8], entry: &Entry) -> FsResult<()> {
        let path = join_path(path, &entry.name);
        let name = match Name::new(&entry.name) {
            Ok(name) if has_known_kind(&entry.meta) => name,
            _ => {
                let name = String::from_utf8_lossy(&path);
                log::warn!(
                    "'{name}' stays at the source only: devices and names above 255 bytes are not brought"
                );
                return Ok(());
            }
        };
        let place = self.place(dir, &name)?;
        // Made before this daemon was restarted.
        if self.dentry(&place)?.is_some() {
            return Ok(());
        }
        let inode = self.inode_brought(&place, &name, &entry.meta)?;
        let seen = to_wire(entry.meta.version.clone());
        let mut file = SiteFile::brought((dir, &entry.name), path, seen, entry.meta.is_dir());
        let partition = self.partitions.get(inode.attr.layout.partition());
        let pins = partition.is_some_and(|partition| partition.settings.pins(&entry.name));
        file.pin = u32::from(entry.meta.is_file() && pins);
        if self.map.home(inode.attr.ino) == Some(self.id) {
            return self.put_entry(&place, &entry.name, &entry.meta, &inode, &file);
        }
        // The inode of a directory belongs to a peer.
        let (name, ino, site) = (entry.name.clone(), inode.attr.ino, Some(file));
        let new = NewDir { name, inode, site };
        self.carry_out(&Ctx::of_node(self.as_client()), place.slot, Intent::MakeDir(new))?;
        let (name, seen) = (entry.name.clone(), Some(to_wire(entry.meta.version.clone())));
        self.note_seen(&NoteSeenRequest { dir, name, seen, by: Some(ino) })
    }

    fn inode_brought(&self, place: &EntryPlace, name: &Name, meta: &Meta) -> FsResult<Inode> {
        let request = MakeRequest {
            parent: place.dir,
            name: name.as_bytes(),
            mode: meta.kind | meta.attrs.perm,
            uid: meta.attrs.uid,
            gid: meta.attrs.gid,
            rdev: 0,
            target: &meta.target,
            open: None,
            exclusive: true,
            near: None,
        };
        let mut inode = self.new_inode_at(place, name, &request)?;
        // As at site storage, whatever a new file here gets from its directory.
        let attr = &mut inode.attr;
        (attr.mode, attr.gid) = (meta.kind | meta.attrs.perm, meta.attrs.gid);
        (attr.mtime, attr.atime) = (meta.attrs.mtime, meta.attrs.atime);
        if meta.is_file() {
            attr.size = meta.version.size;
        }
        Ok(inode)
    }

    /// Makes the entry in one transaction, where all records are this node's.
    fn put_entry(
        &self,
        place: &EntryPlace,
        name: &[u8],
        meta: &Meta,
        inode: &Inode,
        file: &SiteFile,
    ) -> FsResult<()> {
        let (ino, dir) = (inode.attr.ino, place.dir);
        let [slot, book] = place.slots();
        let items = [place.items(), vec![Item::Attrs(ino)]].concat();
        let mut change = self.change_at(&[slot, book, ino.slot(), dir.slot()], &items)?;
        let mut parent = change.directory(place)?;
        if change.dentry(place)?.is_some() {
            return Ok(());
        }
        change.txn.must_fit();
        change.add_inode(inode);
        change.put_site_file(ino, file);
        if meta.kind == mode::LINK {
            change.put_target(ino, &meta.target);
        }
        // A digest is one that was taken here.
        for (name, value) in meta.attrs.xattrs.iter().filter(|(name, _)| name != DIGEST_XATTR) {
            change.txn.put(ino.slot(), &xattr_key(ino, name), value);
        }
        // The new entry would have the directory count as changed here.
        let before = change.site_file(dir)?;
        change.add_entry(&mut parent, place, Dentry { ino, kind: meta.kind });
        // The directory is no other than it is there.
        if let Some(before) = before {
            change.put_site_file(dir, &before);
        }
        let seen = to_wire(meta.version.clone());
        change.txn.put(dir.slot(), &seen_key(dir, name), &seen.to_bytes());
        change.txn.put(dir.slot(), &seen_by_key(dir, name), &ino.to_bytes());
        change.commit()
    }
}

fn has_known_kind(meta: &Meta) -> bool {
    matches!(meta.kind, mode::FILE | mode::DIR | mode::LINK | mode::FIFO | mode::SOCKET)
        && (meta.kind != mode::LINK || !meta.target.is_empty())
}

/// Returns the error of a handler on the peer lane for a directory whose entries are not here yet.
pub fn not_listed(dir: Ino) -> FsError {
    FsError::with(
        Errno::EBUSY,
        format!("directory {dir} has not been listed at site storage: look into it first"),
    )
}
