//! The formation as the handlers see it: paths, files that are open, uploads. Everything here may block.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_client::{Attr, Client, DirEntry, Member, NewInode, Place};
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId, mode};
use bytes::Bytes;
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};

use crate::at_once;
use crate::body::Producer;
use crate::dav::Desk;
use crate::digests::{Digest, Digests};
use crate::keys::{self, CachedKeys, Key};
use crate::load::{Load, PIECE, Share};
use crate::open_files::{Open, OpenFiles};
use crate::target::Target;
use crate::uploads::{Names, Turns};

/// About how many bytes of a directory are read at once.
const DIR_PIECE: usize = 64 << 10;
/// Most nodes that are named with a file.
const HOLDERS_MAX: u16 = 256;

/// Most names of a path whose directories are made with what is put.
pub const LEVELS_MAX: usize = 256;
/// Most links on such a path.
const LINKS_MAX: usize = 40;

/// Permissions of directories that are made: daemons and servers have no umask of a user.
const DIR_MODE: u32 = 0o755;

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;

/// Refuses a path with more directories than are made for one request.
///
/// # Errors
/// `ENAMETOOLONG`.
pub fn check_depth(target: &Target) -> FsResult<()> {
    if target.names.len() <= LEVELS_MAX { Ok(()) } else { Err(Errno::ENAMETOOLONG.into()) }
}

/// A formation, as the user that the server runs as.
pub struct Tree {
    member: Arc<Member>,
    keys: CachedKeys,
    open_files: Arc<OpenFiles>,
    uid: u32,
    groups: Vec<u32>,
    digests: Mutex<Digests>,
    pub(crate) load: Load,
    pub(crate) names: Names,
    /// The same for what is said of inodes. Who takes both takes the one of the name first.
    pub(crate) inodes: Names,
    pub(crate) turns: Turns,
    pub(crate) desk: Desk,
}

/// What a request may reach: everything below the path of its key, and nothing else.
#[derive(Clone, Debug)]
pub struct Access {
    /// The key.
    pub key: Key,
    /// The key's path.
    pub prefix: Target,
    /// What is there.
    top: Ino,
}

/// Who waits for an answer, as long as it does.
#[derive(Clone, Debug, Default)]
pub struct Asker(Arc<AtomicBool>);

/// Its side of the server: when this is dropped, it has gone.
#[derive(Debug)]
pub struct Presence(Asker);

impl Asker {
    /// What says that it is there.
    #[must_use]
    pub fn presence(&self) -> Presence {
        Presence(self.clone())
    }

    /// Whether it still does.
    ///
    /// # Errors
    /// `EINTR` if not.
    pub fn must_be_there(&self) -> FsResult<()> {
        if self.0.load(Ordering::Relaxed) { Err(Errno::EINTR.into()) } else { Ok(()) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// What is at a path.
pub enum Node {
    /// A directory.
    Dir(Attr),
    /// A regular file, open for reading.
    File(OpenFile),
}

/// A file that is open.
pub struct OpenFile {
    pub(crate) tree: Arc<Tree>,
    /// Its attributes when it was opened.
    pub attr: Attr,
    _open: Arc<Open>,
}

impl Tree {
    /// The formation that a process is a member of.
    #[must_use]
    pub fn new(member: Member) -> Tree {
        let groups = rustix::process::getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw());
        Tree {
            member: Arc::new(member),
            keys: CachedKeys::default(),
            open_files: Arc::default(),
            uid: rustix::process::geteuid().as_raw(),
            groups: groups.chain([rustix::process::getegid().as_raw()]).collect(),
            digests: Mutex::default(),
            load: Load::default(),
            names: Names::default(),
            inodes: Names::default(),
            turns: Turns::default(),
            desk: Desk::default(),
        }
    }

    /// The client, for who may wait.
    ///
    /// # Errors
    /// As [`Member::client`].
    pub fn client(&self) -> FsResult<&Client> {
        if at_once::may_not_wait() { Err(at_once::not_at_hand()) } else { self.member.client() }
    }

    /// The member.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// What a key allows now; `None` if it is none any more.
    ///
    /// # Errors
    /// What the formation says.
    pub fn access(&self, id: &str) -> FsResult<Option<Access>> {
        let key = match self.keys.cached(id, keys::now()) {
            None => self.keys.find(self.client()?, id, keys::now())?,
            cached => cached,
        };
        let Some(key) = key else { return Ok(None) };
        let prefix = Target::plain(key.path.as_bytes()).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        let top = match prefix.names.is_empty() {
            true => Ino::ROOT,
            false => match self.find_cached(Ino::ROOT, &prefix.path())? {
                Some(found) => found.ino,
                None => self.client()?.find(&prefix.path(), false)?.ino,
            },
        };
        Ok(Some(Access { key, prefix, top }))
    }

    /// The path below the key's, and the directory it is to be looked up in. A key for a file has that file's directory.
    fn inside(&self, access: &Access, target: &Target) -> FsResult<(Ino, Vec<u8>)> {
        let refused = || FsError::from(Errno::EACCES);
        Ok((access.top, target.below(&access.prefix).ok_or_else(refused)?.path()))
    }

    /// Attributes of what is at a path.
    ///
    /// # Errors
    /// `EACCES` outside of what may be reached; `EXDEV` for links that lead out of it; otherwise as [`Client::find`].
    pub fn attr(&self, access: &Access, target: &Target) -> FsResult<Attr> {
        let (top, path) = self.inside(access, target)?;
        // The key may be for a file.
        if path == b"/" {
            return self.client()?.getattr(top);
        }
        match self.find_cached(top, &path)? {
            Some(found) => Ok(found),
            None => self.client()?.find_beneath(top, &path, true),
        }
    }

    fn find_cached(&self, top: Ino, path: &[u8]) -> FsResult<Option<Attr>> {
        self.member.client()?.find_cached(top, path, !at_once::may_not_wait()).transpose()
    }

    /// Opens what is at a path.
    ///
    /// # Errors
    /// As [`Tree::attr`]; `EACCES` for what may not be read, or is neither a file nor a directory.
    pub fn open(self: &Arc<Tree>, access: &Access, target: &Target) -> FsResult<Node> {
        let attr = self.attr(access, target)?;
        self.may(&attr, READ)?;
        if attr.is_dir() {
            return Ok(Node::Dir(attr));
        }
        if !attr.is_file() {
            return Err(Errno::EACCES.into());
        }
        if target.is_dir {
            return Err(Errno::ENOTDIR.into());
        }
        self.open_file(&attr).map(Node::File)
    }

    /// Opens a file that is known.
    pub(crate) fn open_file(self: &Arc<Tree>, attr: &Attr) -> FsResult<OpenFile> {
        self.may(attr, READ)?;
        let (open, attr) = self.open_files.open(&self.member, *attr)?;
        Ok(OpenFile { tree: Arc::clone(self), attr, _open: open })
    }

    pub(crate) fn is_own(&self, attr: &Attr) -> bool {
        self.uid == attr.uid
    }

    pub(crate) fn may(&self, attr: &Attr, wanted: u32) -> FsResult<()> {
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

    /// Whether a file that is there may be changed with a key.
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn may_change(&self, access: &Access, attr: &Attr) -> FsResult<()> {
        if access.key.read_only { Err(Errno::EACCES.into()) } else { self.may(attr, WRITE) }
    }

    /// Where something is to be made or removed; `EACCES` at what the key is for itself, or with a key that only reads.
    pub(crate) fn place(&self, access: &Access, target: &Target, follow: bool) -> FsResult<Place> {
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

    /// What has a place's name, if anything has.
    pub(crate) fn at(&self, place: &Place) -> FsResult<Option<Attr>> {
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
    pub fn make_dir(&self, access: &Access, target: &Target) -> FsResult<()> {
        let place = self.place(access, target, true)?;
        let new = NewInode { mode: mode::DIR | DIR_MODE, rdev: 0, target: &[] };
        let change = self.member.change()?;
        self.client()?.mknod(&change.ctx, place.parent, &place.name, &new).map(drop)
    }

    /// Makes a directory with all above it that are missing, as far as they are below the key's path.
    ///
    /// # Errors
    /// As [`Tree::make_dir`], but for what is there; `ENAMETOOLONG` if there are too many.
    pub fn make_dirs(&self, access: &Access, target: &Target) -> FsResult<()> {
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
            dir = match self.at(&Place { parent: dir.ino, name: name.clone(), is_dir: true })? {
                None => self.make_dir_in(access, &dir, name)?,
                Some(there) if there.is_dir() => there,
                Some(there) if is_link(&there) && links < LINKS_MAX => {
                    links += 1;
                    let names = target.names.iter().take(level + 1).cloned().collect();
                    self.dir_behind(access, &Target { names, is_dir: false })?
                }
                Some(there) if is_link(&there) => return Err(Errno::ELOOP.into()),
                Some(_) => return Err(Errno::ENOTDIR.into()),
            };
        }
        Ok(())
    }

    /// Makes a directory, unless somebody else does so first.
    fn make_dir_in(&self, access: &Access, dir: &Attr, name: &[u8]) -> FsResult<Attr> {
        self.may_change(access, dir)?;
        let new = NewInode { mode: mode::DIR | DIR_MODE, rdev: 0, target: &[] };
        let (client, change) = (self.client()?, self.member.change()?);
        match client.mknod(&change.ctx, dir.ino, name, &new) {
            Err(error) if error.errno() == Errno::EEXIST => client.lookup(dir.ino, name),
            made => made,
        }
    }

    /// The directory where a link leads; made there if it is missing.
    fn dir_behind(&self, access: &Access, link: &Target) -> FsResult<Attr> {
        match self.attr(access, link) {
            Err(error) if error.errno() == Errno::ENOENT => {
                self.make_dir(access, link)?;
                self.attr(access, link)
            }
            found => found,
        }
    }

    /// Removes a file, a link, or an empty directory; `check` sees it before.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `ENOENT`, `ENOTEMPTY`; what `check` says.
    pub fn remove<E: From<FsError>>(
        &self,
        access: &Access,
        target: &Target,
        check: impl FnOnce(&Attr) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = Target { is_dir: false, ..target.clone() };
        let place = self.place(access, &path, false)?;
        let _alone = self.names.of(&place).lock();
        let found = self.at(&place)?.ok_or_else(|| FsError::from(Errno::ENOENT))?;
        check(&found)?;
        let change = self.member.change()?;
        let client = self.client()?;
        if found.is_dir() {
            client.rmdir(&change.ctx, place.parent, &place.name)?;
        } else if target.is_dir {
            return Err(FsError::from(Errno::ENOTDIR).into());
        } else {
            client.unlink(&change.ctx, place.parent, &place.name)?;
        }
        Ok(())
    }

    /// What is to be removed with all that is in it, be it a link to a directory.
    ///
    /// # Errors
    /// As [`Tree::upload`]; `ENOENT`; `ENOTDIR` for a file whose path ends in a slash.
    pub fn to_remove(&self, access: &Access, target: &Target) -> FsResult<(Place, Attr)> {
        let place = self.place(access, &Target { is_dir: false, ..target.clone() }, false)?;
        let found = self.at(&place)?.ok_or(Errno::ENOENT)?;
        if found.is_file() && target.is_dir { Err(Errno::ENOTDIR.into()) } else { Ok((place, found)) }
    }

    /// Removes a directory with all directories in it; nothing, if there is anything else in one of them.
    ///
    /// # Errors
    /// As [`Tree::remove`].
    pub fn remove_dirs(&self, access: &Access, target: &Target) -> FsResult<()> {
        let place = self.place(access, &Target { is_dir: false, ..target.clone() }, false)?;
        let top = self.at(&place)?.ok_or(Errno::ENOENT)?;
        if !top.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        // Each behind the one that it is in.
        let mut dirs = vec![(place, top)];
        let mut seen = 0;
        while let Some(dir) = dirs.get(seen).map(|(_, dir)| *dir) {
            self.may(&dir, READ)?;
            self.each_entry(dir.ino, |entry| {
                // What is gone meanwhile is in nobody's way.
                let Some(attr) = entry.attr else { return Ok(()) };
                if !attr.is_dir() {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.may(&dir, WRITE)?;
                dirs.push((Place { parent: dir.ino, name: entry.name, is_dir: true }, attr));
                Ok(())
            })?;
            seen += 1;
        }
        for (place, _) in dirs.iter().rev() {
            let change = self.member.change()?;
            self.client()?.rmdir(&change.ctx, place.parent, &place.name)?;
        }
        Ok(())
    }

    /// Entries of a directory behind a cookie, with their attributes as far as they are still there.
    ///
    /// # Errors
    /// As [`Client::readdir`].
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

    /// The nodes that hold a file's stripes, the first stripe's first; they repeat from there on.
    ///
    /// # Errors
    /// What the formation says.
    pub fn holders(&self, attr: &Attr) -> FsResult<Vec<NodeId>> {
        let client = self.client()?;
        let seats = bivouac_layout::seats_of(&attr.layout).take(usize::from(HOLDERS_MAX));
        seats.map(|seat| Ok(client.partitions.seat_place(seat)?.node)).collect()
    }
}

impl OpenFile {
    /// One that was just opened, or made.
    pub(crate) fn of(tree: &Arc<Tree>, attr: Attr) -> OpenFile {
        let open = Arc::new(Open::of(&tree.member, attr.ino));
        OpenFile { tree: Arc::clone(tree), attr, _open: open }
    }

    /// Reads from an offset on; fewer bytes only at the file's end.
    ///
    /// # Errors
    /// What the formation says.
    pub fn read(&self, offset: u64, len: usize) -> FsResult<Bytes> {
        if at_once::may_not_wait() {
            return self.read_at_hand(offset, len)?.ok_or_else(at_once::not_at_hand);
        }
        let mut bytes = vec![0; len];
        let read = self.tree.client()?.read(self.attr.ino, offset, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes.into())
    }

    fn read_at_hand(&self, offset: u64, len: usize) -> FsResult<Option<Bytes>> {
        if len > at_once::LEN_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        let read = self.tree.member.client()?.read_granted(self.attr.ino, offset, &mut bytes);
        Ok(read.map(|()| bytes.into()))
    }

    /// SHA-256 of a range, and of each piece of it of this length.
    ///
    /// # Errors
    /// What the formation says; `EIO` if the file has become shorter, `EINTR` if nobody waits for it any more.
    pub fn digest(
        &self,
        (start, end): (u64, u64),
        piece: Option<u64>,
        asker: &Asker,
    ) -> FsResult<(Digest, Vec<Digest>)> {
        let (mut whole, mut part) = (Context::new(&SHA256), Context::new(&SHA256));
        let (mut at, mut pieces) = (start, Vec::new());
        let piece_len = piece.unwrap_or(u64::MAX).max(1);
        while at < end {
            asker.must_be_there()?;
            let left_of_piece = piece_len - (at - start) % piece_len;
            let len = (end - at).min(left_of_piece).min(PIECE as u64) as usize;
            let bytes = self.read(at, len)?;
            if bytes.len() < len {
                return Err(self.shrunk());
            }
            whole.update(&bytes);
            at += len as u64;
            if piece.is_some() {
                part.update(&bytes);
                if at == end || (at - start).is_multiple_of(piece_len) {
                    pieces.push(std::mem::replace(&mut part, Context::new(&SHA256)).finish().into());
                }
            }
        }
        Ok((whole.finish().into(), pieces))
    }

    /// SHA-256 of all of it, computed once for each state of the file.
    ///
    /// # Errors
    /// As [`OpenFile::digest`].
    pub fn digest_of_all(&self, asker: &Asker) -> FsResult<Digest> {
        let state = Digests::state(&self.attr);
        if let Some(known) = self.tree.digests.lock().get(self.attr.ino, &state) {
            return Ok(known);
        }
        let (digest, _) = self.digest((0, self.attr.size), None, asker)?;
        self.tree.digests.lock().put(self.attr.ino, state, digest.clone());
        Ok(digest)
    }

    /// The nodes that hold it.
    ///
    /// # Errors
    /// As [`Tree::holders`].
    pub fn holders(&self) -> FsResult<Vec<NodeId>> {
        self.tree.holders(&self.attr)
    }

    pub(crate) fn shrunk(&self) -> FsError {
        FsError::with(Errno::EIO, format!("inode {} became shorter while it was read", self.attr.ino))
    }
}

/// What is sent of a file: texts and ranges, one after the other.
pub struct Sent {
    file: OpenFile,
    left: Vec<Part>,
    share: Share,
}

impl Sent {
    /// Of a file; of what is left the next thing is last.
    #[must_use]
    pub fn new(file: OpenFile, left: Vec<Part>) -> Sent {
        let share = file.tree.load.share();
        Sent { file, left, share }
    }
}

/// A part of what is sent.
pub enum Part {
    /// A text.
    Text(Bytes),
    /// A range of the file.
    Range(u64, u64),
}

impl Producer for Sent {
    fn produce(&mut self) -> io::Result<Bytes> {
        match self.left.pop() {
            None => Ok(Bytes::new()),
            Some(Part::Text(text)) => Ok(text),
            Some(Part::Range(start, end)) => {
                let len = (end - start).min(self.share.piece() as u64);
                if start + len < end {
                    self.left.push(Part::Range(start + len, end));
                }
                let bytes = self.file.read(start, len as usize).map_err(io::Error::other)?;
                if (bytes.len() as u64) < len {
                    return Err(io::Error::other(self.file.shrunk()));
                }
                Ok(bytes)
            }
        }
    }

    fn is_done(&self) -> bool {
        self.left.is_empty()
    }
}
