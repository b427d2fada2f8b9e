//! Files that the program has mapped: what is read and written there must agree with the mapping, which is the kernel's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files that are remembered. With more, no file is accelerated that is looked at later.
const FILES_MAX: usize = 512;

static FILES: [[AtomicU64; 2]; FILES_MAX] = [const { [const { AtomicU64::new(0) }; 2] }; FILES_MAX];
static USED: AtomicU64 = AtomicU64::new(0);
static TOO_MANY: AtomicBool = AtomicBool::new(false);

/// From now on the file with this device and number is left to the kernel.
pub fn add(device: u64, ino: u64) {
    if has(device, ino) {
        return;
    }
    match usize::try_from(USED.fetch_add(1, Ordering::AcqRel)).ok().and_then(|index| FILES.get(index)) {
        Some([of, number]) => {
            of.store(device, Ordering::Relaxed);
            number.store(ino, Ordering::Release);
        }
        None => TOO_MANY.store(true, Ordering::Release),
    }
}

/// Whether it is one of them.
pub fn has(device: u64, ino: u64) -> bool {
    let used = USED.load(Ordering::Acquire);
    if used == 0 {
        return false;
    }
    let is = |[of, number]: &[AtomicU64; 2]| {
        number.load(Ordering::Acquire) == ino && of.load(Ordering::Relaxed) == device
    };
    TOO_MANY.load(Ordering::Acquire) || FILES.iter().take(used as usize).any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_are_remembered_and_too_many_are_all() {
        assert!(!has(1, 2));
        add(1, 2);
        add(1, 2);
        assert!(has(1, 2) && !has(2, 1) && USED.load(Ordering::Relaxed) == 1);
        (0..FILES_MAX as u64 + 1).for_each(|ino| add(9, ino + 100));
        assert!(has(9, 100) && has(77, 77), "when in doubt it is mapped");
    }
}
