//! A file system in memory that notes what it was asked, and can be made to wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bivouac_mount::{
    CopyJob, DirEntry, FileLock, FileSystem, LockKind, LockWaiting, Locked, NewInode, OpCtx, Opened,
    SeekKind, SendPart, SettleLocks,
};
use bivouac_types::put::NewFile;
use bivouac_types::{
    Attr, Errno, FsError, FsResult, Ino, Layout, SetAttr, SetTime, StatFs, TargetIndex, Timestamp, mode,
};
use parking_lot::{Mutex, MutexGuard};

use crate::locks::OneLock;

/// The file that every such file system begins with.
pub const SEED: Ino = Ino(16);
pub const SEED_NAME: &str = "seed";

const LAYOUT: Layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
/// Files stay below this, in bytes.
const SIZE_END: u64 = 1 << 30;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;

type Gate = dyn Fn(&str, Ino) + Send + Sync;

pub struct Memory {
    inner: Mutex<Inner>,
    /// Called with the operation and the inode before reads, writes and looks at attributes.
    gate: Option<Arc<Gate>>,
    lease: Mutex<Duration>,
    pub locks: Mutex<OneLock>,
    locks_used: AtomicBool,
    /// Whether writes fail when half of their bytes are there.
    pub fails_half: AtomicBool,
    pub settle: Mutex<Option<SettleLocks>>,
}

struct Inner {
    nodes: HashMap<Ino, Node>,
    counter: u64,
    opens: BTreeMap<Ino, u32>,
    reasserted: Vec<(Ino, u32, u32)>,
    mutations: Vec<(&'static str, OpCtx)>,
}

struct Node {
    attr: Attr,
    data: Vec<u8>,
    /// By cookie.
    entries: BTreeMap<u64, (Vec<u8>, Ino)>,
    cookies: HashMap<Vec<u8>, u64>,
    parent: Ino,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Memory {
    pub fn new() -> Memory {
        let root = Node::new(Ino::ROOT, mode::DIR | 0o777, Ino::ROOT, b"");
        let mut inner = Inner {
            nodes: HashMap::from([(Ino::ROOT, root)]),
            counter: SEED.0,
            opens: BTreeMap::new(),
            reasserted: Vec::new(),
            mutations: Vec::new(),
        };
        let seed = NewInode { mode: mode::FILE | 0o666, rdev: 0, target: b"" };
        assert_eq!(inner.make(Ino::ROOT, SEED_NAME.as_bytes(), &seed, (0, 0)).unwrap().ino, SEED);
        Memory {
            inner: Mutex::new(inner),
            gate: None,
            lease: Mutex::default(),
            locks: Mutex::default(),
            locks_used: AtomicBool::new(false),
            fails_half: AtomicBool::new(false),
            settle: Mutex::default(),
        }
    }

    /// From now on the kernel may cache what it is told for so long.
    pub fn give_lease(&self, lease: Duration) {
        *self.lease.lock() = lease;
    }

    /// From now on programs may have locked something.
    pub fn use_locks(&self) {
        self.locks_used.store(true, Ordering::Relaxed);
    }

    pub fn with_gate(gate: impl Fn(&str, Ino) + Send + Sync + 'static) -> Memory {
        Memory { gate: Some(Arc::new(gate)), ..Memory::new() }
    }

    /// What a name in the root directory leads to.
    pub fn leads_to(&self, name: &str) -> Option<Ino> {
        self.inner.lock().child(Ino::ROOT, name.as_bytes()).ok().map(|(_, ino)| ino)
    }

    /// Another node puts an empty directory, or a file, in the place of the one of this name.
    pub fn replace(&self, name: &str) {
        let mut inner = self.inner.lock();
        let (cookie, old) = inner.child(Ino::ROOT, name.as_bytes()).unwrap();
        let (mode, target) = (inner.node(old).unwrap().attr.mode, &b""[..]);
        inner.node(Ino::ROOT).unwrap().take(cookie);
        inner.drop_link(old).unwrap();
        inner.make(Ino::ROOT, name.as_bytes(), &NewInode { mode, rdev: 0, target }, (0, 0)).unwrap();
    }

    pub fn opens(&self) -> Vec<(Ino, u32)> {
        self.inner.lock().opens.iter().map(|(&ino, &count)| (ino, count)).collect()
    }

    pub fn reasserted(&self) -> Vec<(Ino, u32, u32)> {
        self.inner.lock().reasserted.clone()
    }

    pub fn mutations(&self) -> Vec<(&'static str, OpCtx)> {
        self.inner.lock().mutations.clone()
    }

    fn pass(&self, operation: &str, ino: Ino) {
        if let Some(gate) = &self.gate {
            gate(operation, ino);
        }
    }

    fn note(&self, operation: &'static str, ctx: &OpCtx) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        inner.mutations.push((operation, *ctx));
        inner
    }
}

impl Node {
    fn new(ino: Ino, mode: u32, parent: Ino, data: &[u8]) -> Node {
        let time = Timestamp { secs: 1_700_000_000, nanos: 0 };
        let attr = Attr { nlink: 1, size: data.len() as u64, ..Attr::new(ino, mode, LAYOUT, time) };
        Node {
            attr,
            data: data.into(),
            entries: BTreeMap::new(),
            cookies: HashMap::new(),
            parent,
            xattrs: BTreeMap::new(),
        }
    }

    fn resize(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
        self.attr.size = size;
        self.attr.mtime.nanos += 1;
    }

    fn find(&self, name: &[u8]) -> Option<(u64, Ino)> {
        let cookie = *self.cookies.get(name)?;
        Some((cookie, self.entries.get(&cookie)?.1))
    }

    fn take(&mut self, cookie: u64) {
        if let Some((name, _)) = self.entries.remove(&cookie) {
            self.cookies.remove(&name);
        }
    }
}

fn fail<T>(errno: Errno) -> FsResult<T> {
    Err(FsError::new(errno))
}

impl Inner {
    fn node(&mut self, ino: Ino) -> FsResult<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::new(Errno::ENOENT))
    }

    fn child(&mut self, parent: Ino, name: &[u8]) -> FsResult<(u64, Ino)> {
        self.node(parent)?.find(name).ok_or(FsError::new(Errno::ENOENT))
    }

    fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter - 1
    }

    fn make(&mut self, parent: Ino, name: &[u8], new: &NewInode<'_>, owner: (u32, u32)) -> FsResult<Attr> {
        if self.node(parent)?.find(name).is_some() {
            return fail(Errno::EEXIST);
        }
        let ino = Ino(self.next());
        let mut node = Node::new(ino, new.mode, parent, new.target);
        (node.attr.uid, node.attr.gid, node.attr.rdev) = (owner.0, owner.1, new.rdev);
        let attr = node.attr;
        self.nodes.insert(ino, node);
        self.put(parent, name, ino)?;
        Ok(attr)
    }

    fn put(&mut self, parent: Ino, name: &[u8], ino: Ino) -> FsResult<()> {
        let cookie = self.next();
        let dir = self.node(parent)?;
        dir.cookies.insert(name.into(), cookie);
        dir.entries.insert(cookie, (name.into(), ino));
        Ok(())
    }

    fn drop_link(&mut self, ino: Ino) -> FsResult<()> {
        let open = self.opens.contains_key(&ino);
        let node = self.node(ino)?;
        node.attr.nlink -= 1;
        if node.attr.nlink == 0 && !open {
            self.nodes.remove(&ino);
        }
        Ok(())
    }

    fn remove(&mut self, parent: Ino, name: &[u8], dir: bool) -> FsResult<()> {
        let (cookie, ino) = self.child(parent, name)?;
        let node = self.node(ino)?;
        match (node.attr.is_dir(), dir) {
            (true, false) => return fail(Errno::EISDIR),
            (false, true) => return fail(Errno::ENOTDIR),
            (true, true) if !node.entries.is_empty() => return fail(Errno::ENOTEMPTY),
            _ => {}
        }
        self.node(parent)?.take(cookie);
        self.drop_link(ino)
    }
}

impl FileSystem for Memory {
    fn lookup_cached(&self, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let mut inner = self.inner.lock();
        let (_, ino) = inner.child(parent, name)?;
        Ok(inner.node(ino)?.attr)
    }

    fn getattr_cached(&self, ino: Ino) -> FsResult<Attr> {
        self.pass("getattr_cached", ino);
        Ok(self.inner.lock().node(ino)?.attr)
    }

    fn setattr(&self, ctx: &OpCtx, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        let mut inner = self.note("setattr", ctx);
        if set.size.is_some_and(|size| size >= SIZE_END) {
            return fail(Errno::EFBIG);
        }
        let node = inner.node(ino)?;
        let attr = &mut node.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| (attr.mode & mode::TYPE) | mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if set.kill_suid {
            attr.mode &= !mode::SETUID;
            attr.mode &= if attr.mode & mode::XGRP != 0 { !mode::SETGID } else { !0 };
        }
        if let Some(SetTime::At(time)) = set.mtime {
            attr.mtime = time;
        }
        if let Some(size) = set.size {
            node.resize(size);
        }
        Ok(node.attr)
    }

    fn create(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        exclusive: bool,
        truncate: bool,
    ) -> FsResult<Opened> {
        let mut inner = self.note("create", ctx);
        let found = inner.node(parent)?.find(name);
        let attr = match found {
            Some(_) if exclusive => return fail(Errno::EEXIST),
            Some((_, ino)) => {
                let node = inner.node(ino)?;
                if truncate {
                    node.resize(0);
                }
                node.attr
            }
            None => inner.make(parent, name, new, (ctx.uid, ctx.gid))?,
        };
        *inner.opens.entry(attr.ino).or_default() += 1;
        Ok(Opened { attr, existed: found.is_some() })
    }

    fn put(&self, ctx: &OpCtx, parent: Ino, file: &NewFile<'_>) -> FsResult<Attr> {
        let mut inner = self.note("put", ctx);
        if inner.node(parent)?.find(file.name).is_some() {
            return fail(Errno::EEXIST);
        }
        let new = NewInode { mode: mode::FILE | file.mode, rdev: 0, target: b"" };
        let ino = inner.make(parent, file.name, &new, (ctx.uid, ctx.gid))?.ino;
        let node = inner.node(ino)?;
        node.resize(file.content.len() as u64);
        node.data.copy_from_slice(file.content);
        node.attr.mtime = file.mtime;
        Ok(node.attr)
    }

    fn mknod(&self, ctx: &OpCtx, parent: Ino, name: &[u8], new: &NewInode<'_>) -> FsResult<Attr> {
        self.note("mknod", ctx).make(parent, name, new, (ctx.uid, ctx.gid))
    }

    fn unlink(&self, ctx: &OpCtx, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.note("unlink", ctx).remove(parent, name, false)
    }

    fn rmdir(&self, ctx: &OpCtx, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.note("rmdir", ctx).remove(parent, name, true)
    }

    fn rename(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> FsResult<()> {
        self.pass("rename", parent);
        let mut inner = self.note("rename", ctx);
        let (cookie, ino) = inner.child(parent, name)?;
        let target = inner.node(new_parent)?.find(new_name);
        if flags & RENAME_NOREPLACE != 0 && target.is_some() {
            return fail(Errno::EEXIST);
        }
        inner.node(parent)?.take(cookie);
        if let Some((cookie, old)) = target {
            inner.node(new_parent)?.take(cookie);
            if flags & RENAME_EXCHANGE != 0 {
                inner.put(parent, name, old)?;
            } else {
                inner.drop_link(old)?;
            }
        }
        inner.node(ino)?.parent = new_parent;
        inner.put(new_parent, new_name, ino)
    }

    fn link(&self, ctx: &OpCtx, ino: Ino, new_parent: Ino, new_name: &[u8]) -> FsResult<Attr> {
        let mut inner = self.note("link", ctx);
        inner.node(ino)?.attr.nlink += 1;
        inner.put(new_parent, new_name, ino)?;
        Ok(inner.node(ino)?.attr)
    }

    fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.inner.lock().node(ino)?.data.clone())
    }

    fn readdir(&self, ino: Ino, cookie: u64, max_bytes: usize, with_attrs: bool) -> FsResult<Vec<DirEntry>> {
        let mut inner = self.inner.lock();
        let behind = inner.node(ino)?.entries.range(cookie + 1..);
        let some: Vec<_> = behind.take(max_bytes / 24 + 1).map(|(&c, (n, i))| (c, n.clone(), *i)).collect();
        some.into_iter()
            .map(|(cookie, name, ino)| {
                let attr = inner.node(ino)?.attr;
                Ok(DirEntry {
                    ino,
                    kind: attr.mode & mode::TYPE,
                    cookie,
                    name,
                    attr: with_attrs.then_some(attr),
                })
            })
            .collect()
    }

    fn entry_lease(&self, parent: Ino, _: &[u8]) -> Duration {
        self.lease(parent)
    }

    fn lease(&self, _: Ino) -> Duration {
        *self.lease.lock()
    }

    fn parent(&self, ino: Ino) -> FsResult<Ino> {
        Ok(self.inner.lock().node(ino)?.parent)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        let mut inner = self.inner.lock();
        inner.node(ino)?.xattrs.get(name).cloned().ok_or(FsError::new(Errno::ENODATA))
    }

    fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.inner.lock().node(ino)?.xattrs.keys().flat_map(|name| [&name[..], b"\0"].concat()).collect())
    }

    fn setxattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8], value: &[u8], _flags: u32) -> FsResult<()> {
        self.note("setxattr", ctx).node(ino)?.xattrs.insert(name.into(), value.into());
        Ok(())
    }

    fn removexattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8]) -> FsResult<()> {
        let mut inner = self.note("removexattr", ctx);
        inner.node(ino)?.xattrs.remove(name).map(drop).ok_or(FsError::new(Errno::ENODATA))
    }

    fn open(&self, ctx: &OpCtx, ino: Ino, flags: u32) -> FsResult<Attr> {
        if flags & O_APPEND != 0 {
            self.pass("open to append", ino);
        }
        let mut inner = self.note("open", ctx);
        let node = inner.node(ino)?;
        if flags & O_TRUNC != 0 {
            node.resize(0);
        }
        let attr = node.attr;
        *inner.opens.entry(ino).or_default() += 1;
        Ok(attr)
    }

    fn saved_at_close(&self, _: Ino) -> bool {
        false
    }
    fn save_at_close(&self, _: Ino) -> FsResult<()> {
        Ok(())
    }
    fn close_open(&self, ino: Ino, _flags: u32) {
        let mut inner = self.inner.lock();
        let left = inner.opens.get_mut(&ino).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            inner.opens.remove(&ino);
            if inner.node(ino).is_ok_and(|node| node.attr.nlink == 0) {
                inner.nodes.remove(&ino);
            }
        }
    }

    fn reassert_opens(&self, opens: &[(Ino, u32, u32)]) -> FsResult<()> {
        let mut inner = self.inner.lock();
        inner.opens = BTreeMap::new();
        for (ino, _, count) in opens {
            *inner.opens.entry(*ino).or_default() += count;
        }
        inner.reasserted = opens.into();
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize> {
        self.pass("read", ino);
        let mut inner = self.inner.lock();
        let from = inner.node(ino)?.data.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn send(&self, _: Ino, _: u64, _: usize, _: &mut SendPart<'_>) -> FsResult<Option<usize>> {
        Ok(None)
    }

    fn write(&self, ctx: &OpCtx, ino: Ino, offset: u64, data: &[u8], append: bool) -> FsResult<usize> {
        self.pass("write", ino);
        let mut inner = self.note("write", ctx);
        let node = inner.node(ino)?;
        let at = if append { node.attr.size } else { offset };
        let end = at.checked_add(data.len() as u64).filter(|&end| end < SIZE_END).ok_or(Errno::EFBIG)?;
        if end > node.attr.size {
            node.resize(end);
        }
        if self.fails_half.load(Ordering::Relaxed) {
            let half = data.len() / 2;
            node.data[at as usize..at as usize + half].copy_from_slice(&data[..half]);
            return fail(Errno::EIO);
        }
        node.data[at as usize..end as usize].copy_from_slice(data);
        Ok(data.len())
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> FsResult<()> {
        self.inner.lock().node(ino).map(drop)
    }

    fn statfs(&self, _: Ino) -> FsResult<StatFs> {
        let files = self.inner.lock().nodes.len() as u64;
        Ok(StatFs { block_size: 4096, blocks: 1000, blocks_free: 600, files, files_free: 1 << 20 })
    }

    fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> FsResult<u64> {
        let mut inner = self.inner.lock();
        let rest = inner.node(ino)?.data.get(offset as usize..).ok_or(Errno::ENXIO)?;
        let found = rest.iter().position(|&byte| (byte == 0) == (kind == SeekKind::Hole));
        match (found, kind) {
            (Some(at), _) => Ok(offset + at as u64),
            (None, SeekKind::Hole) => Ok(offset + rest.len() as u64),
            (None, SeekKind::Data) => fail(Errno::ENXIO),
        }
    }

    fn fallocate(&self, ctx: &OpCtx, ino: Ino, mode: u32, offset: u64, len: u64) -> FsResult<()> {
        if mode != 0 {
            return fail(Errno::ENOSYS);
        }
        let mut inner = self.note("fallocate", ctx);
        let node = inner.node(ino)?;
        let end = offset.checked_add(len).filter(|&end| end < SIZE_END).ok_or(Errno::EFBIG)?;
        node.resize(end.max(node.attr.size));
        Ok(())
    }

    fn tmpfile(&self, ctx: &OpCtx, _: Ino, new: &NewInode<'_>, _: bool) -> FsResult<Attr> {
        let mut inner = self.note("tmpfile", ctx);
        let ino = Ino(inner.next());
        let mut node = Node::new(ino, new.mode, Ino::ROOT, b"");
        node.attr.nlink = 0;
        let attr = node.attr;
        inner.nodes.insert(ino, node);
        *inner.opens.entry(ino).or_default() += 1;
        Ok(attr)
    }

    fn writes_behind(&self, _ino: Ino) -> bool {
        false
    }

    fn detects_races(&self) -> bool {
        false
    }

    fn is_for_mounts_only(&self, _ino: Ino) -> bool {
        false
    }

    fn send_unsent(&self, _ino: Ino) -> FsResult<()> {
        Ok(())
    }

    fn copy(&self, ctx: &OpCtx, copy: &CopyJob) -> FsResult<u64> {
        let mut inner = self.note("copy", ctx);
        let data = &inner.node(copy.from)?.data;
        let start = data.len().min(copy.from_offset as usize);
        let bytes = data[start..data.len().min(start.saturating_add(copy.len as usize))].to_vec();
        let (at, end) = (copy.to_offset as usize, copy.to_offset as usize + bytes.len());
        let node = inner.node(copy.to)?;
        node.resize((end as u64).max(node.attr.size));
        node.data[at..end].copy_from_slice(&bytes);
        Ok(bytes.len() as u64)
    }

    fn set_lock(&self, _ino: Ino, lock: &FileLock, waiting: Option<LockWaiting>) -> FsResult<Locked> {
        self.locks.lock().set(lock, waiting)
    }

    fn test_lock(&self, _ino: Ino, lock: &FileLock) -> FsResult<Option<FileLock>> {
        Ok(self.locks.lock().holder().filter(|held| held.owner != lock.owner))
    }

    fn settle_locks_with(&self, settle: SettleLocks) {
        *self.settle.lock() = Some(settle);
    }

    fn interrupt_lock(&self, ticket: u64) {
        self.locks.lock().interrupt(ticket);
    }

    fn unlock_owner(&self, _ino: Ino, owner: u64) {
        self.locks.lock().free_if(|held| (held.kind, held.owner) == (LockKind::Range, owner));
    }

    fn unlock_handle(&self, _ino: Ino, handle: u64) {
        self.locks.lock().free_if(|held| held.handle == handle);
    }

    fn locks_used(&self) -> bool {
        self.locks_used.load(Ordering::Relaxed)
    }

    fn drop_locks(&self) {
        *self.locks.lock() = OneLock::default();
    }
}
