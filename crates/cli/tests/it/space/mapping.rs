//! Stores through shared mappings.
#![allow(unsafe_code, reason = "mappings have no safe interface")]

use std::fs::File;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// Stores `byte` everywhere but in the first 5 and the last 4 bytes of a range of whole pages, and writes them back.
pub fn store(file: &File, at: u64, len: usize, byte: u8) {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is of a file that nobody cuts meanwhile, and is used within its length only.
    unsafe {
        let map = rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, at).unwrap();
        std::ptr::write_bytes(map.cast::<u8>().add(5), byte, len - 9);
        rustix::mm::msync(map, len, MsyncFlags::SYNC).unwrap();
        rustix::mm::munmap(map, len).unwrap();
    }
}
