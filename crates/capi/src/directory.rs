//! Open directories.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::Arc;

use bivouac_client::{DirEntry, Member};
use bivouac_types::limits::READDIR_BYTES_MAX;
use bivouac_types::{Errno, FsResult, Ino};
use parking_lot::Mutex;

use crate::connection::Formation;
use crate::failure::{answer, finish};
use crate::pointers;

/// An open directory, as the header's `bivouac_dir`.
pub struct Directory {
    shared: Arc<Member>,
    ino: Ino,
    /// Locked although the header allows one thread only: who errs gets wrong names, not wrong memory.
    state: Mutex<ListPosition>,
}

#[derive(Default)]
struct ListPosition {
    entries: VecDeque<DirEntry>,
    cookie: u64,
    at_end: bool,
    /// Of the entry that was returned last.
    name: CString,
}

/// An entry, as the header's `bivouac_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Inode number.
    pub ino: u64,
    /// Type bits.
    pub kind: c_uint,
    /// Name, the directory's.
    pub name: *const c_char,
}

impl Directory {
    fn next(&self) -> FsResult<Option<Entry>> {
        let mut state = self.state.lock();
        if state.entries.is_empty() && !state.at_end {
            let page = self.shared.client()?.readdir(self.ino, state.cookie, READDIR_BYTES_MAX, false)?;
            // An empty page ends the list, not a short one: a page holds as many entries as have room in bytes.
            state.at_end = page.is_empty();
            state.cookie = page.last().map_or(state.cookie, |entry| entry.cookie);
            state.entries = page.into();
        }
        let Some(entry) = state.entries.pop_front() else { return Ok(None) };
        // The formation has no names with a NUL in them.
        state.name = CString::new(entry.name).map_err(|_| Errno::EIO)?;
        Ok(Some(Entry { ino: entry.ino.0, kind: entry.kind, name: state.name.as_ptr() }))
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_opendir(formation: *mut Formation, path: *const c_char) -> *mut Directory {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        let attr = formation.0.client()?.find(path, true)?;
        if !attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let directory =
            Directory { shared: Arc::clone(&formation.0), ino: attr.ino, state: Mutex::default() };
        Ok(Box::into_raw(Box::new(directory)))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_readdir(directory: *mut Directory, entry: *mut Entry) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object.
        let directory = unsafe { pointers::object(directory, "directory")? };
        let Some(next) = directory.next()? else { return Ok(0) };
        // SAFETY: the header asks for room for one.
        unsafe { pointers::place(entry, "entry", next)? };
        Ok(1)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_closedir(directory: *mut Directory) {
    if !directory.is_null() {
        // SAFETY: the header asks for an object that was not ended.
        finish(|| drop(unsafe { Box::from_raw(directory) }));
    }
}
