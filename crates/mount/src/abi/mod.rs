//! The kernel's side of the conversation: FUSE 7.31 and later, as `linux/fuse.h` defines it.
//!
//! Numbers are in the machine's own byte order. Every decoder answers an error on bad input;
//! replies are appended to a buffer that the caller reuses.

pub mod flags;
mod init;
mod opcode;
mod reader;
mod reply;
mod request;

pub use init::{InitRequest, Negotiated, Wishes};
pub use opcode::Opcode;
pub use reader::{Malformed, Reader};
pub use reply::{Entry, Reply, Validity};
pub use request::*;

/// Length of the header of a request, in bytes (`fuse_in_header`).
pub const REQUEST_HEADER_LEN: usize = 40;
/// Length of the header of a reply, in bytes (`fuse_out_header`).
pub const REPLY_HEADER_LEN: usize = 16;
/// Length of the arguments in front of a write's payload, in bytes (`fuse_write_in`).
pub const WRITE_ARGS_LEN: usize = 40;
/// Set in `unique` of a request that the kernel sends again after `NOTIFY_RESEND`. The kernel looks
/// for the reply under the number with this bit.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Notification that makes the kernel send every request again that was read but not answered.
pub const NOTIFY_RESEND: i32 = 7;

/// Notification that makes the kernel forget what it knows of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;

/// Body of [`NOTIFY_INVAL_INODE`] for the attributes alone (`fuse_notify_inval_inode_out`).
#[must_use]
pub fn inval_inode(nodeid: u64) -> [u8; 24] {
    let mut body = [0; 24];
    body[..8].copy_from_slice(&nodeid.to_ne_bytes());
    // No pages: an offset below 0.
    body[8..16].copy_from_slice(&(-1i64).to_ne_bytes());
    body
}

/// Header of a reply: `error` is 0 or a negative errno; for a notification its code, with unique 0.
#[must_use]
pub fn reply_header(unique: u64, error: i32, body_len: usize) -> [u8; REPLY_HEADER_LEN] {
    let len = u32::try_from(REPLY_HEADER_LEN.saturating_add(body_len)).unwrap_or(u32::MAX);
    let mut header = [0; REPLY_HEADER_LEN];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

const _: () = assert!(size_of::<usize>() == 8);
