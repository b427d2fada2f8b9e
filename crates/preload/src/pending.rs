//! Times of writes that are sent to homes late, and the end of service in this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::direct_file::{self, DirectFile};
use crate::file::{self, HeldDescription};
use crate::given_up::{close_all, give_up};
use crate::quiet::SignalBlock;
use crate::serving::ServedCall;
use crate::thread::CallGuard;
use crate::{members, serving, table};

/// How long the end waits for other threads that are in the middle of a call.
const END_WAIT: Duration = Duration::from_secs(1);

/// Sends the times of all writes to the homes: the kernel is about to be asked for them, or to set others.
#[inline]
pub fn flush_mtimes() {
    if direct_file::has_dirty_mtimes() {
        flush_mtimes_of(file::held, true);
    }
}

/// Sends the times of the file of one descriptor.
#[inline]
pub fn flush_mtime_of(fd: i32) {
    if direct_file::has_dirty_mtimes() {
        flush_mtimes_of(|| table::hold(fd).into_iter(), false);
    }
}

#[cold]
fn flush_mtimes_of<I: Iterator<Item = HeldDescription>>(files: impl FnOnce() -> I, all: bool) {
    if let Some(busy) = CallGuard::enter()
        && let Some(_quiet) = SignalBlock::enter(busy)
        && let Some(_call) = ServedCall::begin()
    {
        if all {
            direct_file::clear_dirty_mtimes();
        }
        let send = || files().all(|held| held.direct().is_none_or(DirectFile::send_mtime));
        if !catch_unwind(AssertUnwindSafe(send)).unwrap_or(false) {
            // Those that failed are sent at the next call that flushes.
            direct_file::mark_mtime_dirty();
        }
    }
}

/// Ends it all, also where that cannot be done in order: what is known of descriptors may be wrong from now on.
#[cold]
pub fn cease() {
    end();
    serving::close();
}

/// Ends it all: from now on all calls are the kernel's. At the end of the program, and before it becomes another one or
/// restricts itself.
pub fn end() {
    if !serving::is_open() {
        return;
    }
    if let Some(busy) = CallGuard::enter()
        && let Some(_quiet) = SignalBlock::enter(busy)
    {
        serving::close();
        let deadline = Instant::now() + END_WAIT;
        while serving::in_flight() > 0 {
            if Instant::now() > deadline {
                return;
            }
            std::thread::yield_now();
        }
        file::all().for_each(|file| give_up(file.take_direct()));
        close_all();
        let _ = catch_unwind(members::leave);
    }
}
