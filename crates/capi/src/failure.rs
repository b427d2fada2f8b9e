//! From errors to errno and words.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bivouac_types::{Errno, FsError, FsResult};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A return type that has a value for failure, as libc's functions have: -1 or NULL.
pub trait FailureValue {
    const FAILED: Self;
}

impl FailureValue for i32 {
    const FAILED: i32 = -1;
}

impl FailureValue for i64 {
    const FAILED: i64 = -1;
}

impl FailureValue for isize {
    const FAILED: isize = -1;
}

impl<T> FailureValue for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Runs the body of a function of the header: what goes wrong, panics included, becomes errno.
pub fn answer<T: FailureValue>(body: impl FnOnce() -> FsResult<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(FsError::with(Errno::EIO, "libbivouac has a fault; please report what you did"))
    });
    outcome.unwrap_or_else(|error| {
        remember(&error);
        T::FAILED
    })
}

/// Runs what does not fail.
pub fn finish(body: impl FnOnce()) {
    // Nothing is left to be told to the caller.
    let _ = catch_unwind(AssertUnwindSafe(body));
}

fn remember(error: &FsError) {
    let text = error.detail().map_or_else(|| error.errno().to_string(), str::to_owned);
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has nobody to tell.
    let _ = LAST.try_with(|last| last.replace(text));
    // Last: keeping the text allocates, which may change errno.
    set_errno(error.errno());
}

fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's, and always there.
    unsafe { *libc::__errno_location() = errno.code() };
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn bivouac_error() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}
