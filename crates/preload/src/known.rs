//! Files that are remembered by their numbers, without locks and without memory of malloc.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files that are remembered. With more, all are.
const FILES_MAX: usize = 512;

/// Files that the program has mapped: what is read and written there must agree with the mapping, which is the
/// kernel's.
pub static MAPPED: Files = Files::new();
/// Files that were written here, by their inode alone: the kernel may know less of them than there is.
pub static WRITTEN: Files = Files::new();

/// A set of files.
pub struct Files {
    files: [[AtomicU64; 2]; FILES_MAX],
    used: AtomicU64,
    too_many: AtomicBool,
}

impl Files {
    const fn new() -> Files {
        Files {
            files: [const { [const { AtomicU64::new(0) }; 2] }; FILES_MAX],
            used: AtomicU64::new(0),
            too_many: AtomicBool::new(false),
        }
    }

    /// Adds the file with this device and inode number.
    pub fn add(&self, device: u64, ino: u64) {
        if self.has(device, ino) {
            return;
        }
        let index = self.used.fetch_add(1, Ordering::AcqRel);
        match usize::try_from(index).ok().and_then(|index| self.files.get(index)) {
            Some([of, number]) => {
                of.store(device, Ordering::Relaxed);
                number.store(ino, Ordering::Release);
            }
            None => self.too_many.store(true, Ordering::Release),
        }
    }

    /// Returns whether there are any.
    pub fn has_any(&self) -> bool {
        self.used.load(Ordering::Acquire) > 0
    }

    /// Returns whether it is one of them.
    pub fn has(&self, device: u64, ino: u64) -> bool {
        let used = self.used.load(Ordering::Acquire);
        if used == 0 {
            return false;
        }
        let is = |[of, number]: &[AtomicU64; 2]| {
            number.load(Ordering::Acquire) == ino && of.load(Ordering::Relaxed) == device
        };
        self.too_many.load(Ordering::Acquire) || self.files.iter().take(used as usize).any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_remembered_and_too_many_are_all() {
        static FILES: Files = Files::new();
        assert!(!FILES.has(1, 2) && !FILES.has_any());
        FILES.add(1, 2);
        FILES.add(1, 2);
        assert!(FILES.has(1, 2) && !FILES.has(2, 1) && FILES.used.load(Ordering::Relaxed) == 1);
        (0..FILES_MAX as u64 + 1).for_each(|ino| FILES.add(9, ino + 100));
        assert!(FILES.has(9, 100) && FILES.has(77, 77), "when in doubt it is one");
    }
}
