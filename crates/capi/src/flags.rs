//! The flags of `open`, as one value.

use std::ffi::c_int;

use bivouac_client::OpCtx;
use bivouac_types::{Attr, Errno, FsError, FsResult};

/// The access that an open file permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent, as in the kernel")]
pub struct OpenFlags {
    pub read: bool,
    pub write: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
    pub follow: bool,
}

impl OpenFlags {
    pub fn from_bits(bits: c_int) -> FsResult<OpenFlags> {
        let has = |flag: c_int| bits & flag == flag;
        let (read, write) = match bits & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            _ => return Err(FsError::with(Errno::EINVAL, "flags say neither reading nor writing")),
        };
        if has(libc::O_DIRECTORY) || has(libc::O_PATH) || has(libc::O_TMPFILE) {
            return Err(FsError::with(
                Errno::EINVAL,
                "O_DIRECTORY, O_PATH and O_TMPFILE are not for libbivouac",
            ));
        }
        Ok(OpenFlags {
            read,
            write,
            create: has(libc::O_CREAT),
            exclusive: has(libc::O_CREAT | libc::O_EXCL),
            truncate: has(libc::O_TRUNC),
            append: has(libc::O_APPEND),
            // open(2): with both, a link in the last place is an error whatever it leads to.
            follow: !has(libc::O_NOFOLLOW) && !has(libc::O_CREAT | libc::O_EXCL),
        })
    }

    /// Returns the access mode, as in the kernel's flags.
    pub fn access(self) -> u32 {
        (if self.write { libc::O_RDWR } else { libc::O_RDONLY }) as u32
    }

    /// Checks that the permission bits allow it to whoever asks.
    pub fn check_for(self, attr: &Attr, ctx: &OpCtx) -> FsResult<()> {
        let mut groups = vec![ctx.gid];
        if let Ok(others) = rustix::process::getgroups() {
            groups.extend(others.into_iter().map(|group| group.as_raw()));
        }
        self.check(attr, ctx.uid, &groups)
    }

    fn check(self, attr: &Attr, uid: u32, groups: &[u32]) -> FsResult<()> {
        // As in the kernel, the first class that fits decides, also where a later one would permit more.
        let shift = if uid == attr.uid {
            6
        } else if groups.contains(&attr.gid) {
            3
        } else {
            0
        };
        let wanted = u32::from(self.read) << 2 | u32::from(self.write || self.truncate) << 1;
        if uid == 0 || attr.mode >> shift & wanted == wanted { Ok(()) } else { Err(Errno::EACCES.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Ino, Layout, TargetIndex, Timestamp, mode};

    #[test]
    fn every_combination_means_what_it_says() {
        let flags =
            [libc::O_CREAT, libc::O_EXCL, libc::O_TRUNC, libc::O_APPEND, libc::O_NOFOLLOW, libc::O_CLOEXEC];
        for access in 0..4 {
            for choice in 0..1 << flags.len() {
                let has = |index: usize| choice >> index & 1 == 1;
                let bits =
                    (0..flags.len()).filter(|index| has(*index)).map(|index| flags[index]).sum::<c_int>();
                let Ok(open) = OpenFlags::from_bits(access | bits) else {
                    assert_eq!(access, 3);
                    continue;
                };
                assert_eq!((open.read, open.write), (access != 1, access != 0));
                assert_eq!((open.create, open.truncate, open.append), (has(0), has(2), has(3)));
                assert_eq!(open.exclusive, has(0) && has(1), "O_EXCL alone says nothing");
                assert_eq!(open.follow, !(has(4) || has(0) && has(1)));
            }
        }
    }

    /// S122.
    #[test]
    fn permission_bits_are_those_of_who_asks() {
        let time = Timestamp::default();
        let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
        let (mode, uid, gid) = (mode::FILE | 0o640, 5, 6);
        let attr = Attr { uid, gid, ..Attr::new(Ino(20), mode, layout, time) };
        let may = |flags: c_int, uid: u32, groups: &[u32]| {
            OpenFlags::from_bits(flags).unwrap().check(&attr, uid, groups).is_ok()
        };
        assert!(may(libc::O_RDWR, 5, &[]) && may(libc::O_RDWR, 0, &[]));
        assert!(may(libc::O_RDONLY, 7, &[1, 6]) && !may(libc::O_WRONLY, 7, &[1, 6]));
        assert!(!may(libc::O_RDONLY | libc::O_TRUNC, 7, &[6]) && !may(libc::O_RDONLY, 7, &[7]));
    }

    #[test]
    fn what_is_not_for_files_is_refused() {
        for refused in [libc::O_DIRECTORY, libc::O_PATH, libc::O_TMPFILE | libc::O_RDWR] {
            assert!(OpenFlags::from_bits(refused).is_err());
        }
    }
}
