//! Pages of laminated files that the kernel may keep when the file is opened again.
//!
//! At an open without `FOPEN_KEEP_CACHE` the kernel drops all pages of the file. It may have pages from before the file
//! was laminated, so the first open has it drop them; and another open must not keep them before that is done. That it
//! is done shows when the kernel reads a page through the handle of such an open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::Ino;

use crate::opens::Handle;

/// Most files whose pages are kept: those of others are read again when they are opened again.
const FILES_MAX: usize = 1 << 16;

/// The laminated files of one mount.
#[derive(Debug)]
pub struct LaminatedPages {
    state: Mutex<PagesState>,
    /// Number of handles with which the kernel drops pages, for a look without the lock.
    dropping_count: AtomicUsize,
}

#[derive(Debug, Default)]
struct PagesState {
    /// The epoch of each file of which the kernel has no pages of another epoch.
    clean: HashMap<Ino, u32>,
    /// Opens with which the kernel drops what it has of a file, and its epoch.
    dropping: HashMap<u64, (Ino, u32)>,
}

impl Default for LaminatedPages {
    fn default() -> LaminatedPages {
        LaminatedPages {
            state: Mutex::new(rank::LEAF, PagesState::default()),
            dropping_count: AtomicUsize::new(0),
        }
    }
}

impl LaminatedPages {
    /// Notes that a laminated file of an epoch is opened. Returns whether the kernel may keep its pages.
    pub fn open(&self, ino: Ino, epoch: u32, handle: Handle) -> bool {
        let mut state = self.state.lock();
        if state.clean.get(&ino) == Some(&epoch) {
            return true;
        }
        if state.dropping.insert(handle.0, (ino, epoch)).is_none() {
            self.dropping_count.fetch_add(1, Ordering::Release);
        }
        false
    }

    /// Notes that the kernel reads a page through a handle: it has dropped those from before.
    pub fn note_read(&self, handle: Handle) {
        if self.dropping_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        let Some((ino, epoch)) = self.take(&mut state, handle) else { return };
        if state.clean.len() >= FILES_MAX {
            // All at once: without an order of use any one is as good, and files that are forgotten are only read
            // again.
            state.clean.clear();
        }
        state.clean.insert(ino, epoch);
    }

    /// Notes that a handle is closed.
    pub fn close(&self, handle: Handle) {
        if self.dropping_count.load(Ordering::Acquire) > 0 {
            self.take(&mut self.state.lock(), handle);
        }
    }

    fn take(&self, state: &mut PagesState, handle: Handle) -> Option<(Ino, u32)> {
        let taken = state.dropping.remove(&handle.0);
        if taken.is_some() {
            let before = self.dropping_count.fetch_sub(1, Ordering::Release);
            assert!(
                before > state.dropping.len(),
                "{before} opens that drop pages are counted, and {} are left",
                state.dropping.len()
            );
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    /// S755.
    #[test]
    fn pages_are_kept_once_the_kernel_has_read_one_behind_the_drop() {
        let pages = LaminatedPages::default();
        let handle = |number| Handle(number);
        assert!(!pages.open(INO, 3, handle(1)));
        assert!(!pages.open(INO, 3, handle(2)), "what the first one drops may still be there");
        pages.note_read(handle(9));
        assert!(!pages.open(INO, 3, handle(3)), "a page of another file");
        pages.note_read(handle(1));
        assert!(pages.open(INO, 3, handle(4)));
        assert!(!pages.open(INO, 5, handle(5)), "it was written in between");
        assert!(!pages.open(Ino(6), 3, handle(6)));
        pages.note_read(handle(5));
        assert!(pages.open(INO, 5, handle(7)) && !pages.open(INO, 3, handle(8)));
    }

    #[test]
    fn what_is_closed_is_forgotten() {
        let pages = LaminatedPages::default();
        for number in 1..=3 {
            assert!(!pages.open(INO, 3, Handle(number)));
            pages.close(Handle(number));
            pages.close(Handle(number));
        }
        pages.note_read(Handle(3));
        assert!(!pages.open(INO, 3, Handle(4)), "nothing was read");
        assert_eq!((pages.dropping_count.load(Ordering::Relaxed), pages.state.lock().clean.len()), (1, 0));
    }
}
