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

pub use init::{InitRequest, MountPreferences, Negotiated};
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

/// Notification that makes the kernel forget a name.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;

/// Notification that stores content in the kernel's page cache, and makes the file at least as long.
pub const NOTIFY_STORE: i32 = 4;

/// Returns the body of [`NOTIFY_STORE`] (`fuse_notify_store_out`) in front of `len` bytes of content.
#[must_use]
pub fn store(nodeid: u64, offset: u64, len: u32) -> [u8; 24] {
    let mut body = [0; 24];
    body[..8].copy_from_slice(&nodeid.to_ne_bytes());
    body[8..16].copy_from_slice(&offset.to_ne_bytes());
    body[16..20].copy_from_slice(&len.to_ne_bytes());
    body
}

/// Returns the body of [`NOTIFY_INVAL_ENTRY`] (`fuse_notify_inval_entry_out`, and the name with a zero byte).
#[must_use]
pub fn inval_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + name.len() + 1);
    body.extend(parent.to_ne_bytes());
    body.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_ne_bytes());
    // No flags: the name goes, whatever inode it leads to.
    body.extend(0u32.to_ne_bytes());
    body.extend(name);
    body.push(0);
    body
}

/// Returns the body of [`NOTIFY_INVAL_INODE`] for the attributes alone (`fuse_notify_inval_inode_out`).
#[must_use]
pub fn inval_inode(nodeid: u64) -> [u8; 24] {
    let mut body = [0; 24];
    body[..8].copy_from_slice(&nodeid.to_ne_bytes());
    // No pages: an offset below 0.
    body[8..16].copy_from_slice(&(-1i64).to_ne_bytes());
    body
}

/// Returns the body of [`NOTIFY_INVAL_INODE`] for the attributes and the pages of a range; 0 bytes are all to the end.
#[must_use]
pub fn inval_pages(nodeid: u64, offset: u64, len: u64) -> [u8; 24] {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX).to_ne_bytes();
    let mut body = [0; 24];
    body[..8].copy_from_slice(&nodeid.to_ne_bytes());
    body[8..16].copy_from_slice(&signed(offset));
    body[16..].copy_from_slice(&signed(len));
    body
}

/// Returns the header of a reply: `error` is 0 or a negative errno; for a notification its code, with unique 0.
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
