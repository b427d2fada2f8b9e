//! Which devices are mounts of formations. A file is asked for its identity only there.

#![allow(unsafe_code, reason = "memory that is not malloc's is reached by a pointer")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Devices that are remembered; beyond, the oldest are looked up again.
const KNOWN_MAX: usize = 32;
/// Bytes of the list that there is room for at first.
const ROOM: usize = 64 << 10;
/// The type of the mounts, as the kernel lists it.
const TYPE: &[u8] = b"fuse.bivouac";

/// Number of the device · 2, + 1 if it is a formation's. 0 is no device of files.
static KNOWN: [AtomicU64; KNOWN_MAX] = [const { AtomicU64::new(0) }; KNOWN_MAX];
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Whether a device is a formation's mount.
pub fn is_formation(device: u64) -> bool {
    // Others have hardware, or are numbered behind it.
    if rustix::fs::major(device) != 0 || device >= 1 << 62 {
        return false;
    }
    let known = KNOWN.iter().map(|known| known.load(Ordering::Relaxed)).find(|known| known >> 1 == device);
    if let Some(known) = known.filter(|_| device != 0) {
        return known & 1 == 1;
    }
    let Some(mounts) = mounts() else { return false };
    let found = lists(mounts.text(), rustix::fs::minor(device));
    let place = NEXT.fetch_add(1, Ordering::Relaxed) as usize % KNOWN_MAX;
    if let Some(known) = KNOWN.get(place) {
        known.store(device << 1 | u64::from(found), Ordering::Relaxed);
    }
    found
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

fn mounts() -> Option<Mounts> {
    let list =
        rustix::fs::open("/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut mounts = Mounts::new(ROOM)?;
    loop {
        if mounts.rest().is_empty() {
            let mut larger = Mounts::new(mounts.room.checked_mul(2)?)?;
            larger.rest().get_mut(..mounts.have)?.copy_from_slice(mounts.text());
            larger.have = mounts.have;
            mounts = larger;
        }
        match rustix::io::read(&list, mounts.rest()) {
            Ok(0) => return Some(mounts),
            Ok(read) => mounts.have += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Whether device 0:`minor` is in the list as a formation's mount.
fn lists(mounts: &[u8], minor: u32) -> bool {
    let number = |word: &[u8]| std::str::from_utf8(word.strip_prefix(b"0:")?).ok()?.parse().ok();
    mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        words.nth(2).and_then(number) == Some(minor)
            && words.skip_while(|word| *word != b"-").nth(1) == Some(TYPE)
    })
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
    fn other_files_are_not_a_formations() {
        let temporary = tempfile::tempfile().unwrap();
        let device = rustix::fs::fstat(temporary).unwrap().st_dev;
        assert!(
            !is_formation(device) && !is_formation(device) && !is_formation(u64::MAX) && !is_formation(0)
        );
    }
}
