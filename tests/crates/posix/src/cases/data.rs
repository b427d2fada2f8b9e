//! Content: writing, reading, holes, mappings, copies.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::case::{Case, Expect, Outcome, case, holds, same};
use crate::env::Env;
use crate::mapping::Mapping;
use crate::sys;

const PAGE: usize = 4096;

fn open(env: &Env) -> Result<std::os::fd::OwnedFd, String> {
    sys::open(&env.at("x"), OFlags::RDWR | OFlags::CREATE, 0o644).must("open")
}

fn seen_everywhere(env: &Env) -> Outcome {
    let (one, two) = (open(env)?, open(env)?);
    for (turn, len) in [1, 100, PAGE, PAGE + 1, 100_000, 3 << 20].into_iter().enumerate() {
        let (writer, reader) = if turn % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        sys::write_all_at(writer, &bytes, turn as u64).must("write")?;
        holds("what was written is read", sys::read_at(reader, turn as u64, len).must("read")? == bytes)?;
    }
    Ok(())
}

fn overwritten(env: &Env) -> Outcome {
    let (one, two) = (open(env)?, open(env)?);
    let mut wanted = vec![b'a'; 3 * PAGE];
    sys::write_all_at(&one, &wanted, 0).must("write")?;
    for (at, len, fill) in [(0, 1, b'b'), (PAGE - 1, 2, b'c'), (100, 2 * PAGE, b'd'), (3 * PAGE - 1, 1, b'e')]
    {
        wanted[at..at + len].fill(fill);
        sys::write_all_at(&two, &vec![fill; len], at as u64).must("overwrite")?;
        holds("content", sys::read_at(&one, 0, 4 * PAGE).must("read")? == wanted)?;
    }
    Ok(())
}

// S6.
fn hole(env: &Env) -> Outcome {
    let file = open(env)?;
    sys::write_all_at(&file, b"end", 5 << 20).must("write")?;
    let content = sys::get(&env.at("x")).must("read")?;
    same("size", content.len(), (5 << 20) + 3)?;
    holds("zeros", content[..5 << 20].iter().all(|byte| *byte == 0))?;
    same("end", &content[5 << 20..], b"end")?;
    sys::write_all_at(&file, b"middle", 1 << 20).must("write")?;
    let content = sys::get(&env.at("x")).must("read")?;
    same("middle", &content[(1 << 20) - 1..(1 << 20) + 7], b"\0middle\0")
}

fn behind_the_end(env: &Env) -> Outcome {
    sys::put(&env.at("x"), b"12345").must("file")?;
    let file = open(env)?;
    for (at, wanted) in [(0, &b"12345"[..]), (4, b"5"), (5, b""), (6, b""), (1 << 40, b"")] {
        same("read", sys::read_at(&file, at, 100).must("read")?, wanted.to_vec())?;
    }
    Ok(())
}

fn nothing(env: &Env) -> Outcome {
    let file = open(env)?;
    same("write of nothing", rustix::io::pwrite(&file, b"", 100).must("pwrite")?, 0)?;
    same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, 0)?;
    same("read of nothing", rustix::io::pread(&file, &mut [0u8; 0], 0).must("pread")?, 0)
}

fn vectors(env: &Env) -> Outcome {
    let file = open(env)?;
    let pieces = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two "), IoSlice::new(b"three")];
    same("pwritev", rustix::io::pwritev(&file, &pieces, 2).must("pwritev")?, 13)?;
    let (mut head, mut rest) = ([0; 5], [0; 20]);
    let mut into = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut rest)];
    let again = sys::open(&env.at("x"), OFlags::RDONLY, 0).must("open")?;
    same("preadv", rustix::io::preadv(&again, &mut into, 0).must("preadv")?, 15)?;
    same("bytes", (&head[..], &rest[..10]), (&b"\0\0one"[..], &b" two three"[..]))
}

fn errors(env: &Env) -> Outcome {
    let file = open(env)?;
    rustix::io::pwrite(&file, b"x", u64::MAX >> 1)
        .fails(Errno::FBIG, "a write that ends too far")
        .or_else(|_| rustix::io::pwrite(&file, b"x", u64::MAX >> 1).fails(Errno::INVAL, "a write too far"))?;
    rustix::io::pwrite(&file, b"x", u64::MAX).fails(Errno::INVAL, "a write before the start")?;
    rustix::io::pread(&file, &mut [0u8; 1], u64::MAX).fails(Errno::INVAL, "a read before the start")?;
    same("size", sys::lstat(&env.at("x")).must("lstat")?.st_size, 0)?;
    let dir = sys::open(env.dir(), OFlags::RDONLY, 0).must("open")?;
    rustix::io::read(&dir, &mut [0u8; 1]).fails(Errno::ISDIR, "reading a directory")?;
    rustix::io::pread(&dir, &mut [0u8; 1], 0).fails(Errno::ISDIR, "reading a directory somewhere")
}

// S11.
fn synced(env: &Env) -> Outcome {
    let file = open(env)?;
    sys::write_all_at(&file, b"synced", 0).must("write")?;
    rustix::fs::fsync(&file).must("fsync")?;
    rustix::fs::fdatasync(&file).must("fdatasync")?;
    let reader = sys::open(&env.at("x"), OFlags::RDONLY, 0).must("open")?;
    rustix::fs::fsync(&reader).must("fsync of a reader")?;
    let dir = sys::open(env.dir(), OFlags::RDONLY, 0).must("open")?;
    rustix::fs::fsync(&dir).must("fsync of a directory")?;
    rustix::fs::syncfs(&dir).must("syncfs")?;
    same("content", sys::get(&env.at("x")).must("read")?, b"synced".to_vec())
}

fn allocated(env: &Env) -> Outcome {
    let file = open(env)?;
    sys::write_all_at(&file, b"12345", 0).must("write")?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 3, 10) {
        // What a file system cannot do, the C library does by writing.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        outcome => outcome.must("fallocate")?,
    }
    let mut wanted = b"12345".to_vec();
    wanted.resize(13, 0);
    same("content", sys::get(&env.at("x")).must("read")?, wanted)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 0).fails(Errno::INVAL, "of nothing")
}

// S13.
fn sought(env: &Env) -> Outcome {
    let file = open(env)?;
    sys::write_all_at(&file, b"12345", 0).must("write")?;
    let seek = |to| rustix::fs::seek(&file, to);
    same("data", seek(SeekFrom::Data(2)).must("SEEK_DATA")?, 2)?;
    same("hole", seek(SeekFrom::Hole(0)).must("SEEK_HOLE")?, 5)?;
    seek(SeekFrom::Data(5)).fails(Errno::NXIO, "data behind the end")?;
    seek(SeekFrom::Hole(6)).fails(Errno::NXIO, "a hole behind the end")
}

/// What is reserved and not written is a hole; holes begin and end where pages do.
// S13.
fn sought_in_reserved(env: &Env) -> Outcome {
    let (mib, page) = (1 << 20, PAGE as u64);
    let file = open(env)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 16 * mib) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        outcome => outcome.must("fallocate")?,
    }
    sys::write_all_at(&file, b"12345", 4 * mib + 100).must("write")?;
    let seek = |to| rustix::fs::seek(&file, to);
    same("data", seek(SeekFrom::Data(0)).must("SEEK_DATA")?, 4 * mib)?;
    same("hole", seek(SeekFrom::Hole(4 * mib)).must("SEEK_HOLE")?, 4 * mib + page)?;
    seek(SeekFrom::Data(4 * mib + page)).fails(Errno::NXIO, "data behind all of it")?;
    rustix::fs::ftruncate(&file, 0).must("ftruncate")?;
    sys::write_all_at(&file, b"12345", mib + 100).must("write")?;
    rustix::fs::ftruncate(&file, 3 * mib).must("ftruncate")?;
    same("a hole behind the last write", seek(SeekFrom::Hole(mib)).must("SEEK_HOLE")?, mib + page)
}

fn copied(env: &Env) -> Outcome {
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 239) as u8).collect();
    let (from, to) = env.pair("x", "y");
    sys::put(&from, &bytes).must("file")?;
    let source = sys::open(&from, OFlags::RDONLY, 0).must("open")?;
    let target = sys::open(&to, OFlags::RDWR | OFlags::CREATE, 0o644).must("open")?;
    let (mut off_in, mut off_out) = (1000, 7);
    let mut left = 200_000;
    while left > 0 {
        match rustix::fs::copy_file_range(&source, Some(&mut off_in), &target, Some(&mut off_out), left) {
            Ok(0) => return Err("the copy ends too early".into()),
            Ok(len) => left -= len,
            Err(errno) => return Err(format!("copy_file_range: {errno:?}")),
        }
    }
    let mut wanted = vec![0; 7];
    wanted.extend(&bytes[1000..201_000]);
    holds("copied", sys::get(&env.at("y")).must("read")? == wanted)?;
    let (mut off_in, mut off_out) = (0, 100);
    rustix::fs::copy_file_range(&target, Some(&mut off_in), &target, Some(&mut off_out), 200)
        .fails(Errno::INVAL, "a copy onto itself")
}

/// Only one mount: mappings are not kept fresh between nodes.
fn one_mount(env: &Env) -> Env {
    Env::new(vec![env.dir().to_owned()])
}

// S15.
fn mapped_shared(env: &Env) -> Outcome {
    let here = one_mount(env);
    let file = open(&here)?;
    sys::write_all_at(&file, &vec![b'.'; 2 * PAGE + 100], 0).must("write")?;
    let mut mapping = Mapping::new(&file, 0, 2 * PAGE + 100, true).must("mmap")?;
    mapping.write(PAGE - 2, b"across");
    same("by read", sys::read_at(&file, PAGE as u64 - 3, 8).must("read")?, b".across.".to_vec())?;
    sys::write_all_at(&file, b"written", 10).must("write")?;
    same("by mapping", mapping.read(9, 9), b".written.".to_vec())?;
    mapping.write(2 * PAGE + 90, b"tail");
    mapping.sync().must("msync")?;
    drop(mapping);
    let content = sys::get(&env.at("x")).must("read")?;
    same("size", content.len(), 2 * PAGE + 100)?;
    same("through every node", &content[2 * PAGE + 89..2 * PAGE + 95], b".tail.")
}

// S14.
fn mapped_private(env: &Env) -> Outcome {
    let here = one_mount(env);
    sys::put(&here.at("x"), &[b'.'; 100]).must("file")?;
    let file = open(&here)?;
    let mut mapping = Mapping::new(&file, 0, 100, false).must("mmap")?;
    mapping.write(50, b"mine");
    same("by mapping", mapping.read(49, 6), b".mine.".to_vec())?;
    drop(mapping);
    same("the file stays", sys::get(&env.at("x")).must("read")?, vec![b'.'; 100])
}

fn mapped_then_closed(env: &Env) -> Outcome {
    let here = one_mount(env);
    let file = open(&here)?;
    sys::write_all_at(&file, &[b'.'; PAGE], 0).must("write")?;
    let mut mapping = Mapping::new(&file, 0, PAGE, true).must("mmap")?;
    drop(file);
    mapping.write(7, b"late");
    rustix::fs::unlink(here.at("x")).must("unlink")?;
    same("without name and descriptor", mapping.read(6, 6), b".late.".to_vec())?;
    mapping.sync().must("msync")
}

/// Cases of content.
pub fn cases() -> Vec<Case> {
    vec![
        case("write/seen_everywhere", seen_everywhere),
        case("write/overwrites", overwritten),
        case("write/hole", hole),
        case("write/nothing", nothing),
        case("write/vectors", vectors),
        case("write/errors", errors),
        case("read/behind_the_end", behind_the_end),
        case("fsync/of_everything", synced),
        case("fallocate/extends", allocated),
        case("lseek/data_and_hole", sought),
        case("lseek/reserved", sought_in_reserved),
        case("copy_file_range/copies", copied),
        case("mmap/shared", mapped_shared),
        case("mmap/private", mapped_private),
        case("mmap/outlives_descriptor_and_name", mapped_then_closed),
    ]
}
