//! Lines of the kernel's list of mounts, `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

/// File system type of a formation's mounts.
pub const FORMATION_FS_TYPE: &str = "fuse.bivouac";
/// Beginning of the source that a formation's mounts show; the formation's name follows.
pub const FORMATION_SOURCE: &str = "bivouac:";

/// A line of a mount table, in the bytes that the table was read into: parsing allocates nothing, since a preloaded
/// program may be inside of `malloc`. Paths and the source are as the kernel writes them; see [`unescape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountLine<'a> {
    /// The kernel's number for the mount.
    pub id: u64,
    /// Number of the mount that it is in.
    pub parent: u64,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// The part of the file system that is mounted.
    pub root: &'a [u8],
    /// Its location.
    pub dir: &'a [u8],
    /// Options of this mount.
    pub options: &'a [u8],
    /// The file system's type.
    pub fs_type: &'a [u8],
    /// The device or file system that is mounted.
    pub source: &'a [u8],
    /// Options of the file system.
    pub fs_options: &'a [u8],
}

impl<'a> MountLine<'a> {
    /// Reads one line: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<MountLine<'a>> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
        let mut device = fields.next()?.splitn(2, |byte| *byte == b':');
        let device = (number(device.next()?)?, number(device.next()?)?);
        let (root, dir, options) = (fields.next()?, fields.next()?, fields.next()?);
        // A line has any number of fields about propagation; a lone hyphen ends them.
        let mut of_fs = fields.skip_while(|field| *field != b"-").skip(1);
        let (fs_type, source, fs_options) = (of_fs.next()?, of_fs.next()?, of_fs.next()?);
        Some(MountLine { id, parent, device, root, dir, options, fs_type, source, fs_options })
    }

    /// Returns the name of the formation that this is a mount of.
    #[must_use]
    pub fn formation(&self) -> Option<&'a [u8]> {
        let is_ours = self.fs_type == FORMATION_FS_TYPE.as_bytes();
        self.source.strip_prefix(FORMATION_SOURCE.as_bytes()).filter(|_| is_ours)
    }
}

/// Returns all mounts of a list, the latest last. Lines that are not understood are left out.
pub fn mount_lines(list: &[u8]) -> impl DoubleEndedIterator<Item = MountLine<'_>> + Clone {
    list.split(|byte| *byte == b'\n').filter_map(MountLine::parse)
}

/// Undoes the kernel's escapes of blanks and the like: a backslash and three octal digits.
#[must_use]
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let escaped = match (byte, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    assert!(out.len() <= field.len(), "an escape stands for one byte");
    out
}

fn number<N: std::str::FromStr>(field: &[u8]) -> Option<N> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = br"64 29 0:54 / /run/user/1/b\040c rw,nosuid shared:3 master:1 - fuse.bivouac bivouac:x rw,user_id=7";
        let mount = MountLine::parse(line).unwrap();
        assert_eq!((mount.id, mount.parent, mount.device, mount.root), (64, 29, (0, 54), &b"/"[..]));
        assert_eq!(unescape(mount.dir), b"/run/user/1/b c");
        assert_eq!((mount.options, mount.fs_options), (&b"rw,nosuid"[..], &b"rw,user_id=7"[..]));
        assert_eq!(mount.formation(), Some(&b"x"[..]));
        let others = b"36 35 0:33 / /dev/shm rw,nosuid - tmpfs bivouac:x rw\n37 35 0:34 / /fuse.bivouac rw - fuse.other b rw";
        assert!(mount_lines(others).all(|mount| mount.formation().is_none()));
        assert_eq!(mount_lines(others).map(|mount| mount.id).collect::<Vec<_>>(), [36, 37]);
        for text in ["", "1 2 3 4 5 -", "- - -", "a b 0:1 / / rw - ext4 x rw", "1 2 01 / / rw - ext4 x rw"] {
            assert_eq!(MountLine::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(br"a\040b\134\011\08\"), b"a b\\\t\\08\\");
        assert_eq!(unescape(br"\04\0"), br"\04\0");
    }

    proptest! {
        #[test]
        fn any_line_is_a_mount_or_none(line: Vec<u8>) {
            let _ = MountLine::parse(&line);
            prop_assert!(unescape(&line).len() <= line.len());
        }
    }
}
