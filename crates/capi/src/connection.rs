//! Connections.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::{OsStr, c_char, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use bivouac_client::Member;
use bivouac_types::FsResult;
use bivouac_types::limits::WAIT_MS_DEFAULT;

use crate::failure::{answer, finish};
use crate::pointers;

/// A connection, as the header's `bivouac`.
pub struct Formation(pub(crate) Arc<Member>);

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_connect(directory: *const c_char, wait_ms: c_uint) -> *mut Formation {
    answer(|| {
        // SAFETY: the header asks for a text.
        let directory = unsafe { pointers::text(directory, "directory")? };
        let shared = connect(Path::new(OsStr::from_bytes(directory)), u64::from(wait_ms))?;
        Ok(Box::into_raw(Box::new(Formation(Arc::new(shared)))))
    })
}

pub(crate) fn connect(directory: &Path, wait_ms: u64) -> FsResult<Member> {
    watch_forks();
    Member::join(directory, Duration::from_millis(if wait_ms == 0 { WAIT_MS_DEFAULT } else { wait_ms }))
}

/// Watches forks: children must not go on with their parents' connections.
fn watch_forks() {
    extern "C" fn in_child() {
        bivouac_client::forked();
    }
    static ONCE: Once = Once::new();
    // SAFETY: the function only adds to a counter, and is there as long as the library: it is not unloaded while
    // connections are open.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_disconnect(formation: *mut Formation) {
    if !formation.is_null() {
        // SAFETY: the header asks for an object that was not ended.
        finish(|| drop(unsafe { Box::from_raw(formation) }));
    }
}
