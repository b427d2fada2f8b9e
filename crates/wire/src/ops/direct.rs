//! Local direct access: processes that read and write subfiles themselves. See
//! docs/decisions/0013-local-direct-access.md.

use bivouac_types::{Ino, SeatIndex};

use crate::codec_struct;

owned! {
    /// A session of a process. The board's descriptor comes with it.
    DirectSession {
        /// Its number, which is the byte of the board to lock.
        session: u32,
    }
    /// A wish to read or write a subfile without asking.
    GrantRequest {
        /// The session, locked.
        session: u32,
        /// The file.
        ino: Ino,
        /// The seat that holds the subfile.
        seat: SeatIndex,
        /// To write, or to read only.
        write: bool,
        /// Where the next access will be in the subfile's data.
        offset: u64,
        /// Its length.
        len: u64,
    }
    /// The answer to the wish. If it is granted the subfile's descriptor comes with it.
    Grant {
        /// Whether it is granted; the other fields have a meaning only then.
        granted: bool,
        /// The gate to pass at each access.
        gate: u32,
        /// The gate's turn.
        turn: u32,
        /// The subfile's epoch.
        epoch: u32,
        /// Whether the subfile may be read.
        reads: bool,
        /// Where the window begins in which it may be written; offsets of the subfile's data.
        from: u64,
        /// Where the window ends.
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
        /// Where the next write will be in the subfile's data.
        offset: u64,
        /// Its length.
        len: u64,
    }
    /// The window in which a holder may write from now on.
    Window {
        /// Whether it was made wider; the others have a meaning only then.
        widened: bool,
        /// Where it begins.
        from: u64,
        /// Where it ends.
        to: u64,
    }
}
