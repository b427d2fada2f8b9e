//! The file system that a mount serves: the client of a formation, or one of tests.

use std::time::Duration;

use bivouac_client::Client;
use bivouac_types::put::NewFile;
use bivouac_types::{Attr, FsResult, Ino, SetAttr, StatFs};

pub use bivouac_client::{CopyJob, DirEntry, NewInode, OpCtx, Opened, SeekKind, SendPart};
pub use bivouac_client::{FileLock, LockKind, LockMode, LockWaiting, Locked, SettleLocks};

macro_rules! call {
    ($client:ident, $name:ident($($arg:ident)*)) => { Client::$name($client $(, $arg)*) };
    ($client:ident, $name:ident($($arg:ident)*) $part:ident $method:ident) => { $client.$part.$method($($arg),*) };
}

macro_rules! operations {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) $(-> $reply:ty)? $(=> $part:ident.$method:ident)?;)*) => {
        /// The operations of a file system, as the client of a formation has them. All block, and all may
        /// be called from many threads.
        #[allow(missing_docs, reason = "each is documented where it is implemented")]
        #[allow(clippy::missing_errors_doc, reason = "the errno is for the program")]
        pub trait FileSystem: Send + Sync + 'static {
            $(fn $name(&self $(, $arg: $ty)*) $(-> $reply)?;)*
        }

        impl FileSystem for Client {
            $(fn $name(&self $(, $arg: $ty)*) $(-> $reply)? {
                call!(self, $name($($arg)*) $($part $method)?)
            })*
        }
    };
}

operations! {
    fn lookup_cached(&self, parent: Ino, name: &[u8]) -> FsResult<Attr>;
    fn getattr_cached(&self, ino: Ino) -> FsResult<Attr>;
    fn setattr(&self, ctx: &OpCtx, ino: Ino, set: &SetAttr) -> FsResult<Attr>;
    fn create(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        exclusive: bool,
        truncate: bool
    ) -> FsResult<Opened>;
    fn put(&self, ctx: &OpCtx, parent: Ino, file: &NewFile<'_>) -> FsResult<Attr>;
    fn mknod(&self, ctx: &OpCtx, parent: Ino, name: &[u8], new: &NewInode<'_>) -> FsResult<Attr>;
    fn unlink(&self, ctx: &OpCtx, parent: Ino, name: &[u8]) -> FsResult<()>;
    fn rmdir(&self, ctx: &OpCtx, parent: Ino, name: &[u8]) -> FsResult<()>;
    fn rename(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32
    ) -> FsResult<()>;
    fn link(&self, ctx: &OpCtx, ino: Ino, new_parent: Ino, new_name: &[u8]) -> FsResult<Attr>;
    fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>>;
    fn readdir(&self, ino: Ino, cookie: u64, max_bytes: usize, with_attrs: bool) -> FsResult<Vec<DirEntry>>;
    fn lease(&self, ino: Ino) -> Duration;
    fn entry_lease(&self, parent: Ino, name: &[u8]) -> Duration;
    fn parent(&self, ino: Ino) -> FsResult<Ino>;
    fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>>;
    fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>>;
    fn setxattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> FsResult<()>;
    fn removexattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8]) -> FsResult<()>;
    fn open(&self, ctx: &OpCtx, ino: Ino, flags: u32) -> FsResult<Attr>;
    fn close_open(&self, ino: Ino, flags: u32);
    fn reassert_opens(&self, opens: &[(Ino, u32, u32)]) -> FsResult<()>;
    fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> FsResult<usize>;
    fn send(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        send: &mut SendPart<'_>
    ) -> FsResult<Option<usize>>;
    fn write(&self, ctx: &OpCtx, ino: Ino, offset: u64, data: &[u8], append: bool) -> FsResult<usize>;
    fn writes_behind(&self, ino: Ino) -> bool => sessions.writes_behind;
    fn is_for_mounts_only(&self, ino: Ino) -> bool => sessions.is_for_mounts_only;
    fn send_unsent(&self, ino: Ino) -> FsResult<()> => sessions.send_unsent;
    fn fsync(&self, ino: Ino, data_only: bool) -> FsResult<()>;
    fn statfs(&self, ino: Ino) -> FsResult<StatFs> => homes.statfs;
    fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> FsResult<u64>;
    fn fallocate(&self, ctx: &OpCtx, ino: Ino, mode: u32, offset: u64, len: u64) -> FsResult<()>;
    fn tmpfile(&self, ctx: &OpCtx, parent: Ino, new: &NewInode<'_>, linkable: bool) -> FsResult<Attr>;
    fn copy(&self, ctx: &OpCtx, copy: &CopyJob) -> FsResult<u64>;
    fn set_lock(&self, ino: Ino, lock: &FileLock, waiting: Option<LockWaiting>) -> FsResult<Locked>;
    fn test_lock(&self, ino: Ino, lock: &FileLock) -> FsResult<Option<FileLock>> => locks.test;
    fn interrupt_lock(&self, ticket: u64) => locks.interrupt;
    fn unlock_owner(&self, ino: Ino, owner: u64);
    fn unlock_handle(&self, ino: Ino, handle: u64);
    fn settle_locks_with(&self, settle: SettleLocks) => locks.settle_with;
    fn locks_used(&self) -> bool => locks.is_used;
    fn detects_races(&self) -> bool;
    fn drop_locks(&self) => locks.close;
    fn saved_at_close(&self, ino: Ino) -> bool => site.saved_at_close;
    fn save_at_close(&self, ino: Ino) -> FsResult<()> => site.save_at_close;
}
