//! Lists of accesses in one message, and local direct access: processes that read and write subfiles themselves.
//! See docs/decisions/0017-local-direct-access.md.

use bivouac_types::{ClientId, Ino, Layout, TargetIndex};

owned! {
    /// Places of one subfile to read or to write.
    ListRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// The file's layout, for the header.
        layout: Layout,
        /// The epoch that the asker knows.
        epoch: u32,
        /// To write the payload, or to read.
        write: bool,
        /// Offset in the subfile's data, and number of bytes; the payload has them one behind the other.
        extents: Vec<(u64, u32)>,
    }
    /// Outcome of a list.
    ListDone {
        /// True if the epoch of a write was not older than the subfile's; if not, nothing was written from there on.
        accepted: bool,
        /// The subfile's epoch.
        epoch: u32,
        /// True if the subfile reaches as far as everything that was read; what it has not is zeros. Whether all was
        /// written.
        whole: bool,
        /// How many places were written, from the first, if not all were: the next one failed.
        places: u32,
    }
    /// A session of a process. The grant table's descriptor comes with it.
    DirectSession {
        /// Its number, which is the byte of the grant table to lock.
        session: u32,
    }
    /// A wish to read or write a subfile without asking.
    GrantRequest {
        /// The session, locked.
        session: u32,
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// To write, or to read only.
        write: bool,
        /// Offset of the next access in the subfile's data.
        offset: u64,
        /// Its length.
        len: u64,
    }
    /// The answer to the wish. If it is granted the subfile's descriptor comes with it.
    Grant {
        /// True if it is granted; the other fields have a meaning only then.
        granted: bool,
        /// The gate to pass at each access.
        gate: u32,
        /// The gate's turn.
        turn: u32,
        /// The subfile's epoch.
        epoch: u32,
        /// Offset of data in the subfile's local file.
        data_at: u64,
        /// True if the subfile may be read.
        reads: bool,
        /// Start of the window that may be written, in the subfile's data.
        from: u64,
        /// End of the window.
        to: u64,
    }
    /// A wish to write further.
    WidenRequest {
        /// The session.
        session: u32,
        /// The gate of the grant.
        gate: u32,
        /// Its turn.
        turn: u32,
        /// Offset of the next write in the subfile's data.
        offset: u64,
        /// Its length.
        len: u64,
    }
    /// A wish to tell sizes of a file without asking.
    LendSizeRequest {
        /// The session, locked.
        session: u32,
        /// The file, which the client has open.
        ino: Ino,
    }
    /// The answer to that wish.
    SizeLease {
        /// True if it is lent; the other fields have a meaning only then.
        lent: bool,
        /// The gate in whose memory to tell.
        gate: u32,
        /// Its turn.
        turn: u32,
        /// The epoch of the file as long as it is lent.
        epoch: u32,
    }
    /// A client that is to cache nothing of these any more.
    InvalidateRequest {
        /// The client, which the asked node's process serves.
        client: ClientId,
        /// Items to invalidate.
        what: Vec<Invalidation>,
    }
    /// A file that was made longer through another mount.
    HasGrownRequest {
        /// The mount, which the asked node's process serves.
        client: ClientId,
        /// The file.
        ino: Ino,
        /// A size that it had, in bytes; it may be larger by now.
        size: u64,
    }
    /// Item to invalidate: an inode's attributes, or a name in a directory.
    Invalidation {
        /// The inode, or the directory.
        ino: Ino,
        /// The hash of the name, and whether there is one with it or not; or nothing.
        name: Option<u64>,
    }
    /// The window in which a holder may write from now on.
    Window {
        /// True if it was made wider; the others have a meaning only then.
        widened: bool,
        /// Start of the range.
        from: u64,
        /// End of the range.
        to: u64,
    }
}
