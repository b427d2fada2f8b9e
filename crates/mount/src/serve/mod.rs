//! The operations, one small function each, and the table that finds them.

mod attrs;
mod control;
mod copy;
mod data;
mod dirs;
mod locks;
mod names;
mod xattrs;

use std::time::Duration;

use bivouac_client::entry_hash;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, OpId};

use crate::abi::{Header, Opcode, Reader, Reply, Validity};
use crate::cached_attrs::AnswerRecipient;
use crate::fs::{FileSystem, OpCtx};
use crate::opens::Handle;
use crate::session::Session;

pub use crate::abi::ReadIn;
pub use data::{read, send};

/// Reply to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// None: the kernel does not wait.
    Nothing,
    /// The reply's body.
    Reply,
    /// This many bytes of the buffer's payload.
    Payload(usize),
    /// None: the reply has been sent.
    Sent,
    /// The operation is not supported; the kernel does not request it again.
    Unsupported,
}

/// A request being served.
pub struct Call<'a, F> {
    /// State that all threads share.
    pub session: &'a Session<F>,
    /// The request's header.
    pub header: Header,
    /// Number of the thread that serves it, unique among those alive.
    pub channel: u16,
    /// The request's arguments.
    pub input: Reader<'a>,
    /// The reply's body.
    pub out: &'a mut Reply,
}

impl<F> Call<'_, F> {
    /// Returns the inode that the request is about: node ids are inode numbers.
    fn ino(&self) -> Ino {
        Ino(self.header.nodeid)
    }

    /// Returns the operation's identity, by which it is carried out exactly once.
    fn ctx(&self) -> OpCtx {
        let header = &self.header;
        OpCtx {
            id: OpId(header.id()),
            channel: self.channel,
            retry: header.is_resent(),
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        }
    }
}

impl<F: FileSystem> Call<'_, F> {
    /// Returns for how long the kernel may cache attributes that have just arrived.
    fn attr_validity(&self, attr: &Attr) -> Validity {
        self.attr_validity_of(attr, None)
    }

    /// Like [`Call::attr_validity`], for a file that the answer opens.
    fn attr_validity_of(&self, attr: &Attr, opens: Option<Handle>) -> Validity {
        // Asked by the thread that got the attributes: a lease belongs to the last answer of a thread.
        let lease = self.session.fs.lease(attr.ino);
        let to = AnswerRecipient { thread: self.header.pid, opens };
        let lease = self.session.cached_attrs.tell(attr.ino, to, lease);
        Validity { entry_ms: 0, attr_ms: millis(lease) }
    }

    /// Returns for how long the kernel may cache an entry of the request's directory, and the attributes of its inode,
    /// which have just arrived.
    fn validity(&self, name: &[u8], attr: &Attr) -> Validity {
        Validity { entry_ms: self.entry_ms(name), ..self.attr_validity(attr) }
    }

    /// Returns for how long the kernel may cache an entry of the request's directory, in milliseconds.
    fn entry_ms(&self, name: &[u8]) -> u64 {
        let lease = self.session.fs.entry_lease(self.ino(), name);
        millis(self.session.cached_names.tell(self.ino(), entry_hash(self.ino(), name), lease))
    }
}

fn millis(duration: Duration) -> u64 {
    // Rounded down: the kernel must not cache for longer than the lease allows.
    u64::try_from(duration.as_millis()).unwrap_or(0)
}

/// Returns whether an error says that the inode is gone which the kernel asks about by its number. For `ESTALE`, and
/// not for `ENOENT`, the kernel looks the name up again: it may lead to another inode by now.
#[must_use]
pub fn is_gone(op: Opcode, error: &FsError) -> bool {
    let attrs = matches!(op, Opcode::Open | Opcode::GetAttr | Opcode::SetAttr | Opcode::ReadLink);
    let xattrs = matches!(op, Opcode::GetXattr | Opcode::SetXattr | Opcode::ListXattr | Opcode::RemoveXattr);
    error.errno() == Errno::ENOENT && (attrs || xattrs)
}

/// Serves one operation.
pub type Handler<F> = for<'a> fn(Call<'a, F>) -> FsResult<Answer>;

/// Returns the function that serves `op`.
#[must_use]
pub fn handler<F: FileSystem>(op: Opcode) -> Handler<F> {
    match op {
        Opcode::Lookup => names::lookup,
        Opcode::ReadLink => names::readlink,
        Opcode::Symlink => names::symlink,
        Opcode::MkNod => names::mknod,
        Opcode::MkDir => names::mkdir,
        Opcode::Unlink => names::unlink,
        Opcode::RmDir => names::rmdir,
        Opcode::Rename => names::rename,
        Opcode::Rename2 => names::rename2,
        Opcode::Link => names::link,
        Opcode::GetAttr => attrs::getattr,
        Opcode::SetAttr => attrs::setattr,
        Opcode::StatFs => attrs::statfs,
        Opcode::Open => data::open,
        Opcode::Create => data::create,
        Opcode::Release => data::release,
        Opcode::Write => data::write,
        Opcode::FSync | Opcode::FSyncDir => data::fsync,
        Opcode::LSeek => data::lseek,
        Opcode::FAllocate => data::fallocate,
        Opcode::TmpFile => data::tmpfile,
        Opcode::CopyFileRange => copy::copy_file_range,
        Opcode::CopyFileRange64 => copy::copy_file_range_64,
        Opcode::OpenDir => dirs::opendir,
        Opcode::ReadDir => dirs::readdir,
        Opcode::ReadDirPlus => dirs::readdirplus,
        Opcode::ReleaseDir => dirs::releasedir,
        Opcode::SetXattr => xattrs::setxattr,
        Opcode::GetXattr => xattrs::getxattr,
        Opcode::ListXattr => xattrs::listxattr,
        Opcode::RemoveXattr => xattrs::removexattr,
        Opcode::Init => control::init,
        Opcode::Destroy => control::destroy,
        Opcode::IoCtl => control::ioctl,
        Opcode::GetLk => locks::getlk,
        Opcode::SetLk => locks::setlk,
        Opcode::SetLkW => locks::setlkw,
        Opcode::Flush => locks::flush,
        Opcode::Interrupt => locks::interrupt,
        Opcode::Forget | Opcode::BatchForget | Opcode::NotifyReply => control::nothing,
        Opcode::Access => attrs::access,
        Opcode::StatX | Opcode::BMap | Opcode::Poll | Opcode::SyncFs => control::unsupported,
        Opcode::SetupMapping | Opcode::RemoveMapping => control::unsupported,
        // Served by [`read`], which needs the buffer.
        Opcode::Read => control::unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inodes_that_are_asked_for_by_number_are_gone() {
        let (absent, other) = (FsError::new(Errno::ENOENT), FsError::new(Errno::EIO));
        assert!(is_gone(Opcode::Open, &absent) && is_gone(Opcode::GetXattr, &absent));
        assert!(!is_gone(Opcode::Lookup, &absent) && !is_gone(Opcode::Unlink, &absent));
        assert!(!is_gone(Opcode::Open, &other));
    }
}
