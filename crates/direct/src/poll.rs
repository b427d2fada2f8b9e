//! A page that a daemon shares with the process that keeps processors from going idle for it.
//!
//! The daemon counts requests there, and wakes that process when they come fast enough; that process looks at the count for as
//! long as it moves, and sleeps otherwise. Neither trusts what the other wrote: all of it are counts and numbers of processors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::thread::futex;

use crate::memory::Memory;

/// Bytes of a page.
const PAGE_LEN: usize = 4096;
/// Words of a line of the processors' caches: what different processes write is on different ones.
const LINE: usize = 16;
/// Whether requests are polled for.
const STATE: usize = 0;
/// Requests, of which only differences count.
const REQUESTS: usize = LINE;
/// Requests when polling began.
const BEGUN: usize = LINE + 1;
/// The processors that are to be kept from going idle, each plus one; 0 means not known.
const PROCESSORS: usize = 2 * LINE;
/// After how many requests in a row polling is to begin.
const PATIENCE: usize = 3 * LINE;

const ASLEEP: u32 = 0;
const AWAKE: u32 = 1;
const CLOSED: u32 = 2;

/// Whose processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The daemon's.
    Server = 0,
    /// That of who asks it.
    Requester = 1,
}

/// The page.
#[derive(Debug)]
pub struct PollPage {
    file: OwnedFd,
    memory: Memory,
}

impl PollPage {
    /// A new page: nobody polls.
    ///
    /// # Errors
    /// What the system says.
    pub fn make() -> io::Result<PollPage> {
        let file = memfd_create("bivouac-poll", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PAGE_LEN as u64)?;
        PollPage::open(file)
    }

    /// Takes a page over.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for a file that is none.
    pub fn open(file: OwnedFd) -> io::Result<PollPage> {
        if fstat(&file)?.st_size != PAGE_LEN as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let memory = Memory::map(file.as_fd(), 0, PAGE_LEN)?;
        Ok(PollPage { file, memory })
    }

    /// The file, to be handed on.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Counts a request; how many there are with it.
    pub fn count(&self) -> u32 {
        self.word(REQUESTS).fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Requests so far, of which only differences count.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.word(REQUESTS).load(Ordering::Relaxed)
    }

    /// Requests since polling began.
    #[must_use]
    pub fn requests_polled(&self) -> u32 {
        self.requests().wrapping_sub(self.word(BEGUN).load(Ordering::Relaxed))
    }

    /// After how many requests in a row polling is to begin; 0 if nobody has said.
    #[must_use]
    pub fn patience(&self) -> u32 {
        self.word(PATIENCE).load(Ordering::Relaxed)
    }

    /// Says after how many requests in a row polling is to begin.
    pub fn set_patience(&self, requests: u32) {
        self.word(PATIENCE).store(requests, Ordering::Relaxed);
    }

    /// The processor that is to be kept from going idle, if it is known.
    #[must_use]
    pub fn processor(&self, whose: Whose) -> Option<usize> {
        self.word(PROCESSORS + whose as usize).load(Ordering::Relaxed).checked_sub(1).map(|cpu| cpu as usize)
    }

    /// Says which processor is to be kept from going idle.
    pub fn set_processor(&self, whose: Whose, cpu: Option<usize>) {
        let number = cpu.and_then(|cpu| u32::try_from(cpu + 1).ok()).unwrap_or(0);
        let word = self.word(PROCESSORS + whose as usize);
        // What others read all the time is written only when it changes.
        if word.load(Ordering::Relaxed) != number {
            word.store(number, Ordering::Relaxed);
        }
    }

    /// Whether requests are polled for.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.word(STATE).load(Ordering::Relaxed) == AWAKE
    }

    /// Begins polling, if nobody polls.
    pub fn wake(&self) {
        let state = self.word(STATE);
        self.word(BEGUN).store(self.requests(), Ordering::Relaxed);
        if state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            wake_all(state);
        }
    }

    /// Ends polling; whether it was this call that ended it.
    pub fn rest(&self) -> bool {
        let state = self.word(STATE);
        let rests = state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if rests {
            wake_all(state);
        }
        rests
    }

    /// Has whoever polls end.
    pub fn close(&self) {
        let state = self.word(STATE);
        state.store(CLOSED, Ordering::Release);
        wake_all(state);
    }

    /// Waits until polling begins; `false` once it never will.
    #[must_use]
    pub fn sleep(&self) -> bool {
        self.wait_while(ASLEEP) == AWAKE
    }

    /// Waits until polling ends: for whom there is nothing to poll for.
    pub fn sit_out(&self) {
        self.wait_while(AWAKE);
    }

    /// Waits for another state; which one it is.
    fn wait_while(&self, state: u32) -> u32 {
        let word = self.word(STATE);
        loop {
            let now = word.load(Ordering::Acquire);
            if now != state {
                return now;
            }
            // Whatever ended the wait, the state is what counts.
            let _ = futex::wait(word, futex::Flags::empty(), state, None);
        }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        /// Never used: all words are within the page.
        static NONE: AtomicU32 = AtomicU32::new(CLOSED);
        self.memory.word(index).unwrap_or(&NONE)
    }
}

fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::Arc;

    #[test]
    fn both_sides_see_one_page() {
        let page = PollPage::make().unwrap();
        let other = PollPage::open(page.file().try_clone_to_owned().unwrap()).unwrap();
        assert!(!other.is_awake() && other.patience() == 0 && other.processor(Whose::Server).is_none());
        assert_eq!((page.count(), page.count(), other.requests()), (1, 2, 2));
        other.set_patience(16);
        page.set_processor(Whose::Server, Some(0));
        page.set_processor(Whose::Requester, Some(127));
        assert_eq!(page.patience(), 16);
        assert_eq!((other.processor(Whose::Server), other.processor(Whose::Requester)), (Some(0), Some(127)));
        page.set_processor(Whose::Requester, None);
        assert_eq!(other.processor(Whose::Requester), None);
        page.wake();
        page.count();
        assert!(other.is_awake() && other.requests_polled() == 1);
        assert!(other.rest() && !page.is_awake() && !page.rest());
    }

    #[test]
    fn sleepers_are_woken_and_sent_home() {
        let page = Arc::new(PollPage::make().unwrap());
        let theirs = Arc::clone(&page);
        let sleeper = std::thread::spawn(move || {
            let mut woken = 0;
            while theirs.sleep() {
                woken += 1;
                theirs.sit_out();
            }
            woken
        });
        page.wake();
        assert!(page.rest());
        page.close();
        assert!(sleeper.join().unwrap() <= 1);
        page.wake();
        assert!(!page.is_awake() && !page.sleep(), "closed for good");
    }

    #[test]
    fn a_file_that_is_no_page_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(PollPage::open(File::into(file)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
