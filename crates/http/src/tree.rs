//! The formation as all front ends see it: paths, and what is there for a key. Everything here may block.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bivouac_client::{Attr, Client, DirEntry, Member, NewInode, ParentAndName};
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, mode};
use parking_lot::Mutex;

use crate::at_once;
use crate::digests::Digests;
use crate::keys::{self, CachedKeys, Key};
use crate::load::Load;
use crate::name_locks::NameLocks;
use crate::open_files::OpenFiles;
use crate::request_path::{RESERVED, RequestPath};
use crate::upload_claims::UploadClaims;

/// About how many bytes of a directory are read at once.
const DIR_PIECE: usize = 64 << 10;
/// Upper limit of nodes named with a file.
const HOLDERS_MAX: u16 = 256;

/// Upper limit of names of a path whose directories are created with a file.
pub const LEVELS_MAX: usize = 256;
/// Upper limit of links on such a path.
const LINKS_MAX: usize = 40;

/// Permissions of directories that are made: daemons and servers have no umask of a user.
const DIR_MODE: u32 = 0o755;

/// Attempts to find a free temporary name.
pub const NAMES_TRIED: usize = 8;
/// Maximum number of look-ups of a file while other servers replace it.
pub const REPLACED_TRIES: usize = 64;
/// `RENAME_NOREPLACE` of the kernel.
pub const NOREPLACE: u32 = 1;

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;

/// Refuses a path with more directories than are made for one request.
///
/// # Errors
/// `ENAMETOOLONG`.
pub fn check_depth(target: &RequestPath) -> FsResult<()> {
    if target.names.len() <= LEVELS_MAX { Ok(()) } else { Err(Errno::ENAMETOOLONG.into()) }
}

fn prefix_of(key: &Key) -> FsResult<RequestPath> {
    RequestPath::plain(key.path.as_bytes()).map_err(|text| FsError::with(Errno::EINVAL, text))
}

/// A formation, as the user that the server runs as.
pub struct Tree {
    pub(crate) member: Arc<Member>,
    keys: CachedKeys,
    pub(crate) open_files: Arc<OpenFiles>,
    uid: u32,
    groups: Vec<u32>,
    pub(crate) digests: Mutex<Digests>,
    /// Files that went on being written while they were waited for, and until when they are not waited for again.
    pub(crate) long_written: Mutex<HashMap<Ino, Instant>>,
    pub(crate) load: Load,
    pub(crate) names: NameLocks,
    /// Locks of inodes. A request that takes both kinds takes that of the name first.
    pub(crate) inodes: NameLocks,
    pub(crate) claims: UploadClaims,
    /// Held by a request to this server while it changes the table of locks.
    pub(crate) lock_table: Mutex<()>,
}

/// Access of a request: everything below the path of its key.
#[derive(Clone, Debug)]
pub struct Access {
    /// The key.
    pub key: Key,
    /// The key's path.
    pub prefix: RequestPath,
    /// Inode of that path.
    top: Ino,
}

/// A directory entry with the attributes of its target.
pub struct ListedEntry {
    /// The entry, without attributes.
    pub entry: DirEntry,
    /// The attributes; `ENOENT` if it has gone, another error if its home does not answer.
    pub attr: FsResult<Attr>,
}

impl Tree {
    /// Creates the tree of the formation that a process is a member of.
    #[must_use]
    pub fn new(member: Member) -> Tree {
        let groups = rustix::process::getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw());
        // Remote clients cannot tell stale data, and cache it. A forked process serves nothing.
        if let Ok(client) = member.client() {
            client.compare_reads();
        }
        Tree {
            member: Arc::new(member),
            keys: CachedKeys::default(),
            open_files: Arc::default(),
            uid: rustix::process::geteuid().as_raw(),
            groups: groups.chain([rustix::process::getegid().as_raw()]).collect(),
            digests: Mutex::default(),
            long_written: Mutex::default(),
            load: Load::default(),
            names: NameLocks::default(),
            inodes: NameLocks::default(),
            claims: UploadClaims::default(),
            lock_table: Mutex::default(),
        }
    }

    /// Returns the client; fails on a thread that must not block.
    pub fn client(&self) -> FsResult<&Client> {
        if at_once::may_not_wait() { Err(at_once::not_at_hand()) } else { self.member.client() }
    }

    /// Returns the member.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the present access of a key; `None` if it has ended.
    pub fn access(&self, id: &str) -> FsResult<Option<Access>> {
        let Some(key) = self.key(id)? else { return Ok(None) };
        let Some(by) = &key.made_by else { return self.access_by(key).map(Some) };
        // A derived key is valid as long as its parent, and is the parent of none.
        let Some(above) = self.key(by)?.filter(|above| above.made_by.is_none()) else { return Ok(None) };
        let above = self.access_by(above)?;
        let prefix = prefix_of(&key)?;
        // Looked up below the other key's path: whatever a directory on the way is replaced by, it leads nowhere else.
        let top = self.beneath(&above, &prefix)?.ino;
        Ok(Some(Access { key, prefix, top }))
    }

    fn key(&self, id: &str) -> FsResult<Option<Key>> {
        match self.keys.cached(id, keys::now()) {
            None => self.keys.find(self.client()?, id, keys::now()),
            cached => Ok(cached),
        }
    }

    fn access_by(&self, key: Key) -> FsResult<Access> {
        let prefix = prefix_of(&key)?;
        let top = match prefix.names.is_empty() {
            true => Ino::ROOT,
            false => match self.find_cached(Ino::ROOT, &prefix.path())? {
                Some(found) => found.ino,
                None => self.client()?.find(&prefix.path(), false)?.ino,
            },
        };
        Ok(Access { key, prefix, top })
    }

    /// Returns the attributes of what is at a path: those of a link, not of what it leads to.
    pub fn beneath(&self, access: &Access, target: &RequestPath) -> FsResult<Attr> {
        self.attr_at(access, target, false)
    }

    /// Returns the path below the key's, and the directory it is to be looked up in. A key for a file has that file's
    /// directory.
    fn inside(&self, access: &Access, target: &RequestPath) -> FsResult<(Ino, Vec<u8>)> {
        let refused = || FsError::from(Errno::EACCES);
        Ok((access.top, target.below(&access.prefix).ok_or_else(refused)?.path()))
    }

    /// Returns the attributes of what is at a path.
    ///
    /// # Errors
    /// `EACCES` outside of what may be reached; `EXDEV` for links that lead out of it; otherwise as [`Client::find`].
    pub fn attr(&self, access: &Access, target: &RequestPath) -> FsResult<Attr> {
        self.attr_at(access, target, true)
    }

    fn attr_at(&self, access: &Access, target: &RequestPath, follows: bool) -> FsResult<Attr> {
        let (top, path) = self.inside(access, target)?;
        // The key may be for a file.
        if path == b"/" {
            return self.client()?.getattr(top);
        }
        match self.find_cached(top, &path)? {
            Some(found) => Ok(found),
            // Beneath the key's directory only: a symbolic link in it may lead anywhere.
            None => self.client()?.find_beneath(top, &path, follows),
        }
    }

    fn find_cached(&self, top: Ino, path: &[u8]) -> FsResult<Option<Attr>> {
        self.member.client()?.find_cached(top, path, !at_once::may_not_wait()).transpose()
    }

    pub(crate) fn is_own(&self, attr: &Attr) -> bool {
        self.uid == attr.uid
    }

    pub(crate) fn may(&self, attr: &Attr, wanted: u32) -> FsResult<()> {
        // In a mount the kernel looks at permissions; here nobody else does.
        let shift = if self.uid == attr.uid {
            6
        } else if self.groups.contains(&attr.gid) {
            3
        } else {
            0
        };
        if self.uid == 0 || attr.mode >> shift & wanted == wanted {
            Ok(())
        } else {
            Err(Errno::EACCES.into())
        }
    }

    /// Checks that a key permits to change an existing file.
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn may_change(&self, access: &Access, attr: &Attr) -> FsResult<()> {
        if access.key.read_only { Err(Errno::EACCES.into()) } else { self.may(attr, WRITE) }
    }

    /// Returns the place of a name to be created or removed; `EACCES` for the top of the key's path, or with a
    /// read-only key.
    pub(crate) fn place(
        &self,
        access: &Access,
        target: &RequestPath,
        follow: bool,
    ) -> FsResult<ParentAndName> {
        if access.key.read_only {
            return Err(Errno::EACCES.into());
        }
        let (top, path) = self.inside(access, target)?;
        if path == b"/" {
            return Err(Errno::EACCES.into());
        }
        let client = self.client()?;
        let place = client.place_beneath(top, &path, follow)?;
        if place.name.is_empty() {
            return Err(Errno::EACCES.into());
        }
        self.may(&client.getattr(place.parent)?, WRITE)?;
        Ok(place)
    }

    /// Returns the object at a place, if there is one.
    pub(crate) fn at(&self, place: &ParentAndName) -> FsResult<Option<Attr>> {
        match self.client()?.lookup(place.parent, &place.name) {
            Ok(attr) => Ok(Some(attr)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `EEXIST`.
    pub fn make_dir(&self, access: &Access, target: &RequestPath) -> FsResult<()> {
        let place = self.place(access, target, true)?;
        let new = NewInode { mode: mode::DIR | DIR_MODE, rdev: 0, target: &[] };
        let change = self.member.change()?;
        self.client()?.mknod(&change.ctx, place.parent, &place.name, &new).map(drop)
    }

    /// Makes a directory with all above it that are missing, as far as they are below the key's path.
    ///
    /// # Errors
    /// As [`Tree::make_dir`], but for what is there; `ENAMETOOLONG` if there are too many.
    pub fn make_dirs(&self, access: &Access, target: &RequestPath) -> FsResult<()> {
        check_depth(target)?;
        match self.attr(access, target) {
            Ok(attr) if attr.is_dir() => return Ok(()),
            Ok(_) => return Err(Errno::ENOTDIR.into()),
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        // From directory to directory: from the top for each would be a square of the depth.
        let (mut dir, mut links) = (self.client()?.getattr(access.top)?, 0);
        for (level, name) in target.names.iter().enumerate().skip(access.prefix.names.len()) {
            let is_link = |there: &Attr| there.mode & mode::TYPE == mode::LINK;
            dir = match self.at(&ParentAndName { parent: dir.ino, name: name.clone(), is_dir: true })? {
                None => self.make_dir_in(access, &dir, name)?,
                Some(there) if there.is_dir() => there,
                Some(there) if is_link(&there) && links < LINKS_MAX => {
                    links += 1;
                    let names = target.names.iter().take(level + 1).cloned().collect();
                    self.dir_behind(access, &RequestPath { names, is_dir: false })?
                }
                Some(there) if is_link(&there) => return Err(Errno::ELOOP.into()),
                Some(_) => return Err(Errno::ENOTDIR.into()),
            };
        }
        Ok(())
    }

    /// Creates a directory, unless another request does so first.
    fn make_dir_in(&self, access: &Access, dir: &Attr, name: &[u8]) -> FsResult<Attr> {
        self.may_change(access, dir)?;
        let new = NewInode { mode: mode::DIR | DIR_MODE, rdev: 0, target: &[] };
        let (client, change) = (self.client()?, self.member.change()?);
        match client.mknod(&change.ctx, dir.ino, name, &new) {
            Err(error) if error.errno() == Errno::EEXIST => client.lookup(dir.ino, name),
            made => made,
        }
    }

    /// Returns the directory where a link leads; made there if it is missing.
    fn dir_behind(&self, access: &Access, link: &RequestPath) -> FsResult<Attr> {
        match self.attr(access, link) {
            Err(error) if error.errno() == Errno::ENOENT => {
                self.make_dir(access, link)?;
                self.attr(access, link)
            }
            found => found,
        }
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.unlink(&change.ctx, parent, name)
    }

    /// Returns the entries of a directory behind a cookie, with their attributes as far as they are still there.
    pub fn entries(&self, dir: Ino, cookie: u64) -> FsResult<Vec<DirEntry>> {
        let client = self.client()?;
        let mut entries = client.readdir(dir, cookie, DIR_PIECE, true)?;
        for entry in &mut entries {
            if entry.attr.is_none() {
                entry.attr = match client.getattr(entry.ino) {
                    Ok(attr) => Some(attr),
                    Err(error) if error.errno() == Errno::ENOENT => None,
                    Err(error) => return Err(error),
                };
            }
        }
        Ok(entries)
    }

    /// Like [`Tree::entries`], with an error in place of the attributes of entries whose home does not answer.
    pub fn entries_there(&self, dir: Ino, cookie: u64) -> FsResult<Vec<ListedEntry>> {
        let client = self.client()?;
        let entries = client.readdir(dir, cookie, DIR_PIECE, true)?;
        let listed = entries.into_iter().map(|mut entry| {
            let attr = entry.attr.take().map_or_else(|| client.getattr(entry.ino), Ok);
            ListedEntry { entry, attr }
        });
        Ok(listed.collect())
    }

    /// Shows all entries of a directory, a piece at a time.
    ///
    /// # Errors
    /// As [`Tree::entries`]; what `see` says.
    pub(crate) fn each_entry(&self, dir: Ino, mut see: impl FnMut(DirEntry) -> FsResult<()>) -> FsResult<()> {
        let mut cookie = 0;
        loop {
            let entries = self.entries(dir, cookie)?;
            let Some(last) = entries.last() else { return Ok(()) };
            cookie = last.cookie;
            entries.into_iter().try_for_each(&mut see)?;
        }
    }

    /// Returns the nodes that hold a file's stripes, the first stripe's first; they repeat from there on.
    pub fn holders(&self, attr: &Attr) -> FsResult<Vec<NodeId>> {
        let client = self.client()?;
        let targets = bivouac_layout::targets_of(&attr.layout).take(usize::from(HOLDERS_MAX));
        targets.map(|target| Ok(client.partitions.target_place(target)?.node)).collect()
    }
}

/// Returns a new hidden name.
pub fn hidden() -> FsResult<Vec<u8>> {
    let drawn =
        getrandom::u64().map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
    Ok([RESERVED, format!("put-{drawn:016x}").as_bytes()].concat())
}
