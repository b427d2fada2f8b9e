//! Where content is from here, and what it cost to reach it.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::c_int;

use bivouac_types::{Errno, FsError};

use crate::failure::answer;
use crate::file::File;
use crate::pointers;

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_targets_here(file: *mut File, targets: *mut u32, room: usize) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let here = file.shared.client()?.content.targets_here(file.ino)?;
        if targets.is_null() && room > 0 {
            return Err(FsError::with(Errno::EINVAL, "targets is NULL"));
        }
        for (place, target) in here.iter().take(room).enumerate() {
            // SAFETY: the header asks for room for so many numbers.
            unsafe { targets.add(place).write_unaligned(u32::from(*target)) };
        }
        Ok(here.len() as isize)
    })
}

/// The costs of a thread's calls, laid out as the header's `bivouac_traffic`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// To nodes.
    pub messages: u64,
    /// To or from targets of this machine.
    pub bytes_local: u64,
    /// To or from targets of other machines.
    pub bytes_remote: u64,
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_traffic_so_far(traffic: *mut Traffic, size: usize) -> c_int {
    answer(|| {
        if traffic.is_null() || size < size_of::<Traffic>() {
            return Err(FsError::with(Errno::EINVAL, "traffic is NULL, or has no room for what there is"));
        }
        let bivouac_client::Traffic { messages, bytes_local, bytes_remote } = bivouac_client::traffic();
        // SAFETY: the header asks for room for so many bytes.
        unsafe { traffic.write_unaligned(Traffic { messages, bytes_local, bytes_remote }) };
        Ok(0)
    })
}
