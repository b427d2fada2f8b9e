//! Which devices are mounts of formations. A file is asked for its identity only there.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

/// Devices that are remembered; beyond, the oldest are looked up again.
const KNOWN_MAX: usize = 32;
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
    let found = lists(&mounts, rustix::fs::minor(device));
    let place = NEXT.fetch_add(1, Ordering::Relaxed) as usize % KNOWN_MAX;
    if let Some(known) = KNOWN.get(place) {
        known.store(device << 1 | u64::from(found), Ordering::Relaxed);
    }
    found
}

/// The kernel's list.
fn mounts() -> Option<Vec<u8>> {
    let list =
        rustix::fs::open("/proc/self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut text, mut have) = (vec![0; 16 << 10], 0);
    loop {
        if have == text.len() {
            text.resize(have * 2, 0);
        }
        match rustix::io::read(&list, text.get_mut(have..)?) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    text.truncate(have);
    Some(text)
}

/// Whether device 0:`minor` is in the list as a formation's mount.
fn lists(mounts: &[u8], minor: u32) -> bool {
    let wanted = format!("0:{minor}");
    mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        words.nth(2) == Some(wanted.as_bytes()) && words.skip_while(|word| *word != b"-").nth(1) == Some(TYPE)
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
