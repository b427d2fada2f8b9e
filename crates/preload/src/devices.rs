//! Devices that are mounts of formations. Only their files are asked for their identity.

#![allow(unsafe_code, reason = "memory that is not malloc's is reached by a pointer")]

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_types::mount_table::{FORMATION_FS_TYPE, MountLine, mount_lines, unescape};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Devices that are remembered; beyond, the oldest are looked up again.
const KNOWN_MAX: usize = 32;
/// Bytes of the list that there is room for at first.
const ROOM: usize = 64 << 10;

/// Number of the device · 2, + 1 if it is a formation's. 0 is no device of files.
static KNOWN: [AtomicU64; KNOWN_MAX] = [const { AtomicU64::new(0) }; KNOWN_MAX];
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Returns whether a device is a formation's mount.
pub fn is_formation(device: u64) -> bool {
    // Others have hardware, or are numbered behind it.
    if rustix::fs::major(device) != 0 || device >= 1 << 62 {
        return false;
    }
    let known = KNOWN.iter().map(|known| known.load(Ordering::Relaxed)).find(|known| known >> 1 == device);
    if let Some(known) = known.filter(|_| device != 0) {
        return known & 1 == 1;
    }
    let Some((mounts, _)) = mounts() else { return false };
    let found = lists(mounts.text(), rustix::fs::minor(device));
    let place = NEXT.fetch_add(1, Ordering::Relaxed) as usize % KNOWN_MAX;
    if let Some(known) = KNOWN.get(place) {
        known.store(device << 1 | u64::from(found), Ordering::Relaxed);
    }
    found
}

/// A mount of a formation.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its path.
    pub path: Vec<u8>,
    /// Its numbers in the list, one for each place that it is at.
    pub ids: Vec<u64>,
    /// True if something is mounted below it, at that or at another place that it is at.
    pub has_others_below: bool,
}

/// Returns where a device is mounted as a whole, and the kernel's mount table that says so.
pub fn mount_of(device: u64) -> Option<(Mount, OwnedFd)> {
    let (mounts, list) = mounts()?;
    Some((find(mounts.text(), rustix::fs::minor(device))?, list))
}

/// Returns the mount by the list as it is now.
pub fn mount_by(list: &OwnedFd, device: u64) -> Option<Mount> {
    find(read(list)?.text(), rustix::fs::minor(device))
}

/// The kernel's list, in memory of its own: whoever asks may be in the middle of malloc.
struct Mounts {
    memory: NonNull<c_void>,
    room: usize,
    have: usize,
}

impl Mounts {
    fn new(room: usize) -> Option<Mounts> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped already is touched.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), room, access, MapFlags::PRIVATE) }.ok()?;
        Some(Mounts { memory: NonNull::new(memory)?, room, have: 0 })
    }

    fn text(&self) -> &[u8] {
        // SAFETY: that much was read into the mapping, which has room for it.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().cast(), self.have) }
    }

    fn rest(&mut self) -> &mut [u8] {
        // SAFETY: what is mapped and not used yet, zeros at first.
        unsafe {
            slice::from_raw_parts_mut(self.memory.as_ptr().cast::<u8>().add(self.have), self.room - self.have)
        }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has parts of it any more.
        let _ = unsafe { munmap(self.memory.as_ptr(), self.room) };
    }
}

fn mounts() -> Option<(Mounts, OwnedFd)> {
    let list =
        rustix::fs::open("/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    Some((read(&list)?, list))
}

fn read(list: &OwnedFd) -> Option<Mounts> {
    let mut mounts = Mounts::new(ROOM)?;
    loop {
        if mounts.rest().is_empty() {
            let mut larger = Mounts::new(mounts.room.checked_mul(2)?)?;
            larger.rest().get_mut(..mounts.have)?.copy_from_slice(mounts.text());
            larger.have = mounts.have;
            mounts = larger;
        }
        let at = mounts.have as u64;
        match rustix::io::pread(list, mounts.rest(), at) {
            Ok(0) => return Some(mounts),
            Ok(read) => mounts.have += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Returns whether device 0:`minor` is in the list as a formation's mount.
fn lists(mounts: &[u8], minor: u32) -> bool {
    let has_type = |mount: &MountLine<'_>| mount.fs_type == FORMATION_FS_TYPE.as_bytes();
    mount_lines(mounts).any(|mount| mount.device == (0, minor) && has_type(&mount))
}

/// Returns the place where device 0:`minor` is mounted whole, by the list, the numbers of its mounts, and whether
/// anything is mounted below one.
fn find(mounts: &[u8], minor: u32) -> Option<Mount> {
    let own = mount_lines(mounts).filter(|mount| mount.device == (0, minor));
    let ids: Vec<u64> = own.clone().map(|mount| mount.id).collect();
    let path = unescape(own.clone().find(|mount| mount.root == b"/")?.dir);
    let has_others_below = mount_lines(mounts).any(|mount| ids.contains(&mount.parent));
    Some(Mount { path, ids, has_others_below })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_formations_are_such() {
        let list = b"42 27 0:39 / /run/b rw,nosuid shared:1 - fuse.bivouac bivouac:p1 rw\n\
            43 27 0:40 / /tmp rw - tmpfs tmpfs rw\n44 27 0:41 / /fuse.bivouac rw - fuse.other x rw\n45 27 0:4";
        assert_eq!([39, 40, 41, 4, 0].map(|minor| lists(list, minor)), [true, false, false, false, false]);
        assert!(!lists(b"", 39) && !lists(b"- - -\n\n", 39));
    }

    #[test]
    fn a_mount_is_found_with_what_is_below_it() {
        let list = b"42 27 0:39 /a /run/x rw - fuse.bivouac b rw\n43 27 0:39 / /run/a\\040b\\134 rw - fuse.bivouac b rw\n\
            44 27 0:41 / /tmp rw - tmpfs tmpfs rw\n45 42 0:50 / /run/x/y rw - tmpfs tmpfs rw\n";
        let [first, second, third, fourth, _] = list.split(|byte| *byte == b'\n').collect::<Vec<_>>()[..]
        else {
            panic!()
        };
        let mount = |has_others_below| {
            Some(Mount { path: b"/run/a b\\".to_vec(), ids: vec![42, 43], has_others_below })
        };
        assert_eq!(find(list, 39), mount(true));
        let calm = [first, second, third].join(&b'\n');
        assert_eq!(find(&calm, 39), mount(false));
        assert_eq!(find(fourth, 39), None);
        assert_eq!(find(first, 39), None, "nowhere whole");
    }

    #[test]
    fn other_files_are_not_a_formations() {
        let temporary = tempfile::tempfile().unwrap();
        let device = rustix::fs::fstat(temporary).unwrap().st_dev;
        assert!(
            !is_formation(device) && !is_formation(device) && !is_formation(u64::MAX) && !is_formation(0)
        );
    }
}
