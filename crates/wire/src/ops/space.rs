//! Messages about the space of files: reserved, given back, looked for, copied; and about what is left over.

use bivouac_types::{Ino, Layout, OpenId, TargetIndex};

/// Change of the space of a range of a subfile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// Allocate space; content stays.
    Reserve,
    /// Make it a hole.
    Punch,
    /// Make it zeros with allocated space.
    Zero,
    /// Free what was reserved under the same ticket and not used since.
    TakeBack,
}

codec_enum!(SpaceKind, "kind of change of space" { Reserve = 0, Punch = 1, Zero = 2, TakeBack = 3 });

owned! {
    /// A new regular file without a name.
    MakeUnnamedRequest {
        /// The directory whose node, group and layout it gets.
        parent: Ino,
        /// Type and permission bits, umask applied.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group; a set-group-id directory overrides it.
        gid: u32,
        /// True if it may get a name later.
        linkable: bool,
        /// Number of the open among the client's.
        open: OpenId,
        /// A target on the asking node, for local placement.
        near: Option<TargetIndex>,
    }
    /// A change of the space of a part of a subfile.
    SpaceRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// The file's layout, for the header.
        layout: Layout,
        /// The epoch that the asker knows.
        epoch: u32,
        /// The change.
        kind: SpaceKind,
        /// Offset in the subfile's data.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of data that the subfile has at least afterwards, if that is within the range.
        grow: u64,
        /// Names the change, for taking it back.
        ticket: u64,
    }
    /// A place in a subfile.
    FindDataRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// Offset in the subfile's data.
        offset: u64,
    }
    /// The first data at or behind a place.
    FoundData {
        /// Its start and end in the subfile's data; equal if there is none.
        start: u64,
        /// The end of the data.
        end: u64,
        /// The subfile's epoch; 0 without one.
        epoch: u32,
    }
    /// A copy between two subfiles of one target.
    CopyRequest {
        /// The file to read.
        from: Ino,
        /// Offset in its subfile's data.
        from_offset: u64,
        /// Its epoch, as known to the sender.
        from_epoch: u32,
        /// The file to write.
        to: Ino,
        /// The target that holds both subfiles.
        target: TargetIndex,
        /// Layout of the file to write.
        layout: Layout,
        /// Its epoch, as known to the sender.
        epoch: u32,
        /// Offset in its subfile's data.
        offset: u64,
        /// Bytes.
        len: u32,
    }
    /// Outcome of a copy.
    Copied {
        /// True if the epoch was not older than the written subfile's; if not, nothing was written.
        accepted: bool,
        /// True if the read file had not been cut since the asker looked at it; if it had, only a part was copied.
        current: bool,
        /// Bytes that were copied, from the first; fewer than asked for where the next ones failed.
        len: u32,
    }
    /// The end of a finished write that begins behind the end that its writer knows.
    ExtendOverRequest {
        /// The inode.
        ino: Ino,
        /// First byte of the write.
        start: u64,
        /// First byte behind it.
        end: u64,
        /// The epoch that the write was made in.
        epoch: u32,
    }
    /// Result of counting a file's space.
    CountRequest {
        /// The inode.
        ino: Ino,
        /// Bytes below its size that occupy nothing.
        holes: u64,
        /// The epoch that they were counted in.
        epoch: u32,
    }
    /// Inodes of which there are subfiles.
    Inodes {
        /// Their numbers.
        inos: Vec<Ino>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(request) = SpaceRequest::from_bytes(&bytes) {
                prop_assert_eq!(request.to_bytes(), bytes.clone());
            }
            let _ = MakeUnnamedRequest::from_bytes(&bytes);
            let _ = CopyRequest::from_bytes(&bytes);
            let _ = Inodes::from_bytes(&bytes);
        }
    }
}
