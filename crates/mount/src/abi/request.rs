//! The fixed parts of requests, one struct per kernel struct `fuse_*_in`.

use super::{Malformed, REQUEST_HEADER_LEN, Reader, UNIQUE_RESEND};

macro_rules! kernel_structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ident),* $(,)? })*) => {$(
        $(#[$doc])*
        #[allow(missing_docs, reason = "the names are the kernel's")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $(pub $field: $ty),* }

        impl $name {
            /// Takes the struct off the front of a request.
            ///
            /// # Errors
            /// `Malformed` when the request is shorter.
            pub fn decode(input: &mut Reader<'_>) -> Result<$name, Malformed> {
                Ok($name { $($field: input.$ty()?),* })
            }
        }
    )*};
}

kernel_structs! {
    /// `fuse_in_header`, in front of every request.
    Header {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        _total_extlen: u16, _padding: u16,
    }
    /// `fuse_setattr_in`
    SetAttrIn {
        valid: u32, _padding: u32, fh: u64, size: u64, _lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, _unused4: u32, uid: u32, gid: u32, _unused5: u32,
    }
    /// `fuse_access_in`
    AccessIn { mask: u32, _padding: u32 }
    /// `fuse_mknod_in`
    MkNodIn { mode: u32, rdev: u32, _umask: u32, _padding: u32 }
    /// `fuse_mkdir_in`
    MkDirIn { mode: u32, _umask: u32 }
    /// `fuse_rename_in`
    RenameIn { newdir: u64 }
    /// `fuse_rename2_in`
    Rename2In { newdir: u64, flags: u32, _padding: u32 }
    /// `fuse_link_in`
    LinkIn { oldnodeid: u64 }
    /// `fuse_open_in`
    OpenIn { flags: u32, open_flags: u32 }
    /// `fuse_create_in`
    CreateIn { flags: u32, mode: u32, _umask: u32, open_flags: u32 }
    /// `fuse_release_in`
    ReleaseIn { fh: u64, _flags: u32, _release_flags: u32, _lock_owner: u64 }
    /// `fuse_read_in`
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, _lock_owner: u64, _flags: u32, _padding: u32,
    }
    /// `fuse_write_in`
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, _lock_owner: u64, flags: u32, _padding: u32,
    }
    /// `fuse_fsync_in`
    FSyncIn { _fh: u64, fsync_flags: u32, _padding: u32 }
    /// `fuse_setxattr_in` without its extension
    SetXattrIn { size: u32, flags: u32 }
    /// Fields that `FUSE_SETXATTR_EXT` adds to `fuse_setxattr_in`
    SetXattrExtIn { _setxattr_flags: u32, _padding: u32 }
    /// `fuse_getxattr_in`
    GetXattrIn { size: u32, _padding: u32 }
    /// `fuse_fallocate_in`
    FAllocateIn { fh: u64, offset: u64, length: u64, mode: u32, _padding: u32 }
    /// `fuse_copy_file_range_in`
    CopyFileRangeIn {
        _fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, _flags: u64,
    }
    /// `fuse_lk_in`
    LkIn {
        fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, _padding: u32,
    }
    /// `fuse_flush_in`
    FlushIn { _fh: u64, _unused: u32, _padding: u32, lock_owner: u64 }
    /// `fuse_interrupt_in`
    InterruptIn { unique: u64 }
    /// `fuse_ioctl_in`
    IoCtlIn { fh: u64, flags: u32, cmd: u32, _arg: u64, in_size: u32, out_size: u32 }
    /// `fuse_lseek_in`
    LSeekIn { _fh: u64, offset: u64, whence: u32, _padding: u32 }
}

impl Header {
    /// Parts a packet into its header and its body, whose length the header says.
    ///
    /// # Errors
    /// `Malformed` when the packet is shorter than it says, or than a header.
    pub fn split(packet: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let header = Header::decode(&mut Reader::new(packet))?;
        let body = packet.get(REQUEST_HEADER_LEN..header.len as usize).ok_or(Malformed)?;
        Ok((header, body))
    }

    /// Returns whether the kernel sends the request again because nobody answered it.
    #[must_use]
    pub fn is_resent(&self) -> bool {
        self.unique & UNIQUE_RESEND != 0
    }

    /// Returns the request's number, the same when it is sent again.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.unique & !UNIQUE_RESEND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(len: u32, unique: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [len, 15] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(1u64.to_ne_bytes());
        for word in [1000u32, 100, 4242, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(b"body");
        bytes
    }

    #[test]
    fn a_header_is_taken_apart() {
        let bytes = packet(44, UNIQUE_RESEND | 6);
        let (header, body) = Header::split(&bytes).unwrap();
        assert_eq!(
            (header.opcode, header.nodeid, header.uid, header.gid, header.pid),
            (15, 1, 1000, 100, 4242)
        );
        assert_eq!((header.id(), header.is_resent(), body), (6, true, &b"body"[..]));
        assert_eq!(Header::split(&packet(43, 6)).map(|(h, b)| (h.is_resent(), b.len())), Ok((false, 3)));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for len in [0, 39, 45, u32::MAX] {
            assert_eq!(Header::split(&packet(len, 6)), Err(Malformed), "{len}");
        }
        assert_eq!(Header::split(&packet(44, 6)[..39]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_apart_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let reader = Reader::new(&bytes);
            let _ = Header::split(&bytes);
            prop_assert_eq!(SetAttrIn::decode(&mut reader.clone()).is_ok(), bytes.len() >= 88);
            prop_assert_eq!(WriteIn::decode(&mut reader.clone()).is_ok(), bytes.len() >= super::super::WRITE_ARGS_LEN);
            prop_assert_eq!(CreateIn::decode(&mut reader.clone()).is_ok(), bytes.len() >= 16);
            prop_assert_eq!(IoCtlIn::decode(&mut reader.clone()).is_ok(), bytes.len() >= 32);
            prop_assert_eq!(LkIn::decode(&mut reader.clone()).is_ok(), bytes.len() >= 48);
            prop_assert_eq!(FAllocateIn::decode(&mut reader.clone()).is_ok(), bytes.len() >= 32);
        }
    }
}
