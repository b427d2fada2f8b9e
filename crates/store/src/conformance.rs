//! Conformance suite of [`Volume`]: run on each implementation, it panics where one differs.
#![allow(clippy::unwrap_used, reason = "a conformance suite is a test, wherever it is called from")]

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use bivouac_types::Errno;

use crate::{FileStat, OpenMode, Places, Volume, VolumeFile};

const PAGE: u64 = 4096;

/// Runs the suite. Each call of `make` gives an empty volume.
///
/// # Panics
/// Where the volume does not do what the trait says.
pub fn volume(make: impl Fn() -> Arc<dyn Volume>) {
    names_are_checked(&*make());
    open_modes(&*make());
    directories(&*make());
    rename_and_remove(&*make());
    reads_and_writes(&*make());
    places(&*make());
    holes_and_lengths(&*make());
    two_handles_are_one_file(&*make());
    allocated_ranges(&*make());
    punched_ranges(&*make());
    assert!(make().space().unwrap().free > 1 << 20);
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_code)
}

fn write(file: &dyn VolumeFile, bytes: &[u8], offset: u64) {
    assert_eq!(file.write_vectored_at(&[IoSlice::new(bytes)], offset).unwrap(), bytes.len());
}

fn read(file: &dyn VolumeFile, len: usize, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let count = file.read_vectored_at(&mut [IoSliceMut::new(&mut bytes)], offset).unwrap();
    bytes.truncate(count);
    bytes
}

fn list(volume: &dyn Volume, dir: &str) -> Vec<String> {
    let mut names: Vec<String> = volume.list(dir).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

fn names_are_checked(volume: &dyn Volume) {
    for name in ["", ".", "..", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a\0b"] {
        assert_eq!(errno(volume.open(name, OpenMode::Create)), Some(Errno::EINVAL), "{name:?}");
        assert_eq!(errno(volume.make_dir(name)), Some(Errno::EINVAL), "{name:?}");
    }
}

fn open_modes(volume: &dyn Volume) {
    assert_eq!(errno(volume.open("f", OpenMode::Existing)), Some(Errno::ENOENT));
    write(&*volume.open("f", OpenMode::CreateNew).unwrap(), b"abc", 0);
    assert_eq!(errno(volume.open("f", OpenMode::CreateNew)), Some(Errno::EEXIST));
    assert_eq!(read(&*volume.open("f", OpenMode::Create).unwrap(), 9, 0), b"abc");
    assert_eq!(read(&*volume.open("f", OpenMode::Existing).unwrap(), 9, 1), b"bc");
    assert_eq!(errno(volume.open("none/f", OpenMode::Create)), Some(Errno::ENOENT));
}

fn directories(volume: &dyn Volume) {
    assert_eq!(errno(volume.list("d")), Some(Errno::ENOENT));
    assert_eq!(errno(volume.sync_dir("d")), Some(Errno::ENOENT));
    volume.make_dir("d").unwrap();
    assert_eq!(errno(volume.make_dir("d")), Some(Errno::EEXIST));
    assert_eq!(errno(volume.open("d", OpenMode::Create)), Some(Errno::EISDIR));
    assert_eq!(errno(volume.remove("d")), Some(Errno::EISDIR));
    assert!(list(volume, "d").is_empty());
    write(&*volume.open("d/x", OpenMode::Create).unwrap(), &[1; 5000], 0);
    volume.open("d/y", OpenMode::Create).unwrap();
    assert_eq!(list(volume, "d"), ["x", "y"]);
    let entries = volume.list("d").unwrap();
    let x = entries.iter().find(|entry| entry.name == "x").unwrap();
    assert_eq!((x.stat.len, x.is_dir), (5000, false));
    assert!(volume.list("").unwrap().iter().any(|entry| entry.name == "d" && entry.is_dir));
    volume.sync_dir("d").unwrap();
    volume.sync_dir("").unwrap();
}

fn rename_and_remove(volume: &dyn Volume) {
    volume.make_dir("d").unwrap();
    let (a, b) = (volume.open("a", OpenMode::Create).unwrap(), volume.open("d/b", OpenMode::Create).unwrap());
    write(&*a, b"A", 0);
    write(&*b, b"B", 0);
    assert_eq!(errno(volume.rename("none", "x")), Some(Errno::ENOENT));
    assert_eq!(errno(volume.rename("a", "none/x")), Some(Errno::ENOENT));
    volume.rename("a", "d/b").unwrap();
    assert_eq!(errno(volume.open("a", OpenMode::Existing)), Some(Errno::ENOENT));
    assert_eq!(read(&*volume.open("d/b", OpenMode::Existing).unwrap(), 9, 0), b"A");
    assert_eq!(read(&*b, 9, 0), b"B", "an open file outlives its name");
    volume.remove("d/b").unwrap();
    assert_eq!(errno(volume.remove("d/b")), Some(Errno::ENOENT));
    write(&*a, b"Z", 1);
    assert_eq!(read(&*a, 9, 0), b"AZ");
}

fn reads_and_writes(volume: &dyn Volume) {
    let file = volume.open("f", OpenMode::Create).unwrap();
    let bufs = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdef")];
    assert_eq!(file.write_vectored_at(&bufs, 3).unwrap(), 6);
    let (mut one, mut two) = ([9u8; 4], [9u8; 9]);
    let bufs = &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    assert_eq!(file.read_vectored_at(bufs, 0).unwrap(), 9);
    assert_eq!((&one, &two[..5]), (b"\0\0\0a", &b"bcdef"[..]));
    assert_eq!(read(&*file, 4, 9), b"");
    assert_eq!(read(&*file, 4, 1 << 40), b"");
    let pieces: Vec<[u8; 1]> = (0..3000u32).map(|i| [i as u8]).collect();
    let bufs: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let count = file.write_vectored_at(&bufs, 0).unwrap();
    assert!(count > 0 && count <= 3000, "more buffers than the system takes are a short write");
    assert_eq!(read(&*file, count, 0), pieces.concat()[..count]);
    assert_eq!(file.write_vectored_at(&[], 0).unwrap(), 0);
    file.sync().unwrap();
}

/// Checks writes of places, few and many, close together and apart, over each end of the file: what is there is what
/// single writes would have left.
fn places(volume: &dyn Volume) {
    let (one, other) =
        (volume.open("a", OpenMode::Create).unwrap(), volume.open("b", OpenMode::Create).unwrap());
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8 + 1).collect();
    for (base, first, len, gap, count) in [
        (0, 0, 8, 24, 2),
        (4096, 100, 8, 8, 2000),
        (64, 90_001, 3, 900, 400),
        (7, 5, 2000, 4000, 9),
        (0, 0, 1, 0, 5000),
    ] {
        let extents: Vec<(u64, u32)> = (0..count).map(|i| (first + i * (len + gap), len as u32)).collect();
        let (front, behind) = bytes[..(len * count) as usize].split_at(len as usize / 2 + 1);
        let slices = [IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(behind)];
        let places = Places::new(&extents, &slices).unwrap();
        one.write_places(base, &places).unwrap();
        for (at, piece) in places.pieces() {
            write(&*other, piece, base + at);
        }
        let len = other.stat().unwrap().len;
        assert_eq!(one.stat().unwrap().len, len);
        assert_eq!(read(&*one, len as usize, 0), read(&*other, len as usize, 0));
    }
}

fn holes_and_lengths(volume: &dyn Volume) {
    let file = volume.open("f", OpenMode::Create).unwrap();
    assert_eq!(file.stat().unwrap(), FileStat { len: 0, allocated: 0 });
    assert_eq!(file.next_data(0).unwrap(), None);
    write(&*file, &[7; 10], 64 * PAGE);
    let stat = file.stat().unwrap();
    assert_eq!(stat.len, 64 * PAGE + 10);
    assert!(stat.allocated < 64 * PAGE, "a hole occupies nothing");
    assert_eq!(read(&*file, 100, 10), [0; 100]);
    let data = file.next_data(0).unwrap().unwrap();
    assert!(data.start <= 64 * PAGE && data.end >= 64 * PAGE + 10);
    assert_eq!(file.next_data(stat.len).unwrap(), None);
    file.set_len(64 * PAGE + 4).unwrap();
    file.set_len(64 * PAGE + 8).unwrap();
    assert_eq!(
        read(&*file, 100, 64 * PAGE),
        [7, 7, 7, 7, 0, 0, 0, 0],
        "what was cut off comes back as zeros"
    );
    file.set_len(0).unwrap();
    assert_eq!(file.stat().unwrap(), FileStat { len: 0, allocated: 0 });
}

fn allocated_ranges(volume: &dyn Volume) {
    let file = volume.open("f", OpenMode::Create).unwrap();
    write(&*file, &[7; 10], 0);
    file.allocate(0..8 * PAGE).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!(stat.len, 10, "the length stays");
    assert!(stat.allocated >= 8 * PAGE);
    file.allocate(PAGE + 1..3 * PAGE).unwrap();
    write(&*file, &[8; 10], 5 * PAGE);
    assert_eq!(file.stat().unwrap().allocated, stat.allocated, "what is allocated is not allocated again");
    assert_eq!(read(&*file, 30, 0), [&[7; 10][..], &[0; 20]].concat());
    let longer = 6 * PAGE + 5;
    file.grow(longer).unwrap();
    file.grow(3).unwrap();
    assert_eq!(file.stat().unwrap(), FileStat { len: longer, ..stat });
    assert_eq!(file.next_data(6 * PAGE).unwrap(), None, "a page that was only allocated is no data");
    file.set_len(10).unwrap();
    assert!(file.stat().unwrap().allocated < 8 * PAGE, "a cut gives back what was allocated behind it");
    file.allocate(3..3).unwrap();
}

fn punched_ranges(volume: &dyn Volume) {
    let file = volume.open("f", OpenMode::Create).unwrap();
    write(&*file, &[7; 64 * PAGE as usize], 0);
    let before = file.stat().unwrap();
    file.punch(PAGE + 5..60 * PAGE + 5).unwrap();
    let after = file.stat().unwrap();
    assert_eq!(after.len, before.len);
    assert_eq!(before.allocated - after.allocated, 58 * PAGE, "whole pages are given back");
    let edge = |at: u64| read(&*file, 10, at);
    assert_eq!(edge(PAGE), [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    assert_eq!(edge(60 * PAGE), [0, 0, 0, 0, 0, 7, 7, 7, 7, 7]);
    assert_eq!(read(&*file, 100, 30 * PAGE), [0; 100]);
    file.punch(63 * PAGE..99 * PAGE).unwrap();
    assert_eq!(file.stat().unwrap().len, before.len, "also behind the end");
    let data = file.next_data(2 * PAGE).unwrap().unwrap();
    assert!(data.start <= 60 * PAGE && data.end >= 61 * PAGE);
}

fn two_handles_are_one_file(volume: &dyn Volume) {
    let one = volume.open("f", OpenMode::Create).unwrap();
    let two = volume.open("f", OpenMode::Create).unwrap();
    write(&*one, b"abc", 0);
    write(&*two, b"X", 1);
    assert_eq!(read(&*one, 9, 0), b"aXc");
}
