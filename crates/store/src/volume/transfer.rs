//! Whole reads and writes out of partial ones.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use super::{Places, VolumeFile};

/// Writes everything, however many calls it takes.
pub(crate) fn write_all_at(
    file: &(impl VolumeFile + ?Sized),
    bufs: &[IoSlice<'_>],
    offset: u64,
) -> io::Result<()> {
    let total: usize = bufs.iter().map(|buf| buf.len()).sum();
    if total == 0 {
        return Ok(());
    }
    match file.write_vectored_at(bufs, offset)? {
        count if count == total => Ok(()),
        count => {
            assert!(count < total, "wrote {count} of {total} bytes");
            write_rest(file, bufs, offset, count, total)
        }
    }
}

fn write_rest(
    file: &(impl VolumeFile + ?Sized),
    bufs: &[IoSlice<'_>],
    offset: u64,
    mut done: usize,
    total: usize,
) -> io::Result<()> {
    let mut rest: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
    let mut rest = rest.as_mut_slice();
    IoSlice::advance_slices(&mut rest, done);
    while done < total {
        match file.write_vectored_at(rest, offset + done as u64)? {
            // No error and no progress: without this the caller would wait for ever, with a lock held.
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => {
                assert!(count <= total - done, "wrote {count} of {} bytes", total - done);
                IoSlice::advance_slices(&mut rest, count);
                done += count;
            }
        }
    }
    Ok(())
}

/// Overwrites what data there is in a range; a hole is zeros already.
pub(crate) fn write_zeros(file: &(impl VolumeFile + ?Sized), range: &Range<u64>) -> io::Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let (mut at, end) = (range.start, range.end);
    while let Some(data) = file.next_data(at)?.filter(|data| data.start < end) {
        at = data.start;
        while at < data.end.min(end) {
            let count = (data.end.min(end) - at).min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..count as usize).unwrap_or(&ZEROS);
            write_all_at(file, &[IoSlice::new(zeros)], at)?;
            at += count;
        }
    }
    Ok(())
}

/// Writes places, each by calls of its own.
pub(crate) fn write_each(
    file: &(impl VolumeFile + ?Sized),
    base: u64,
    places: &Places<'_>,
) -> io::Result<()> {
    places.pieces().try_for_each(|(at, piece)| write_all_at(file, &[IoSlice::new(piece)], base + at))
}

/// Reads until the buffers are full or the file ends, which is known to be at `len` or behind it: a read
/// that reaches `len` is not repeated to see whether more is there. The slices may be advanced.
pub(crate) fn read_full_at(
    file: &dyn VolumeFile,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    len: u64,
) -> io::Result<usize> {
    let total: usize = bufs.iter().map(|buf| buf.len()).sum();
    let mut rest = bufs;
    let mut done = 0;
    while done < total {
        let count = file.read_vectored_at(rest, offset + done as u64)?;
        done += count;
        assert!(done <= total, "read {done} bytes into buffers of {total}");
        if count == 0 || done >= total || offset + done as u64 >= len {
            break;
        }
        IoSliceMut::advance_slices(&mut rest, count);
    }
    Ok(done)
}

/// Returns the whole content of a small file.
#[cfg(test)]
pub(crate) fn read_all(file: &dyn VolumeFile) -> io::Result<Vec<u8>> {
    let len = file.stat()?.len;
    let mut bytes = vec![0; len as usize];
    let count = read_full_at(file, &mut [IoSliceMut::new(&mut bytes)], 0, len)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FailingVolume, MemVolume, OpenMode, Volume, VolumeFault};
    use std::sync::Arc;

    #[test]
    fn short_transfers_are_continued() {
        let volume = FailingVolume::new(Arc::new(MemVolume::default()), |_| VolumeFault::Short(3));
        let file = volume.open("f", OpenMode::Create).unwrap();
        write_all_at(&*file, &[IoSlice::new(b"abcd"), IoSlice::new(b""), IoSlice::new(b"efgh")], 0).unwrap();
        assert_eq!(read_all(&*file).unwrap(), b"abcdefgh");
        let (mut one, mut two) = ([0u8; 5], [0u8; 9]);
        let bufs = &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(read_full_at(&*file, bufs, 1, 8).unwrap(), 7);
        assert_eq!((&one, &two[..2]), (b"bcdef", &b"gh"[..]));
    }

    #[test]
    fn a_write_that_makes_no_progress_is_an_error() {
        let volume = FailingVolume::new(Arc::new(MemVolume::default()), |_| VolumeFault::Short(0));
        let file = volume.open("f", OpenMode::Create).unwrap();
        let error = write_all_at(&*file, &[IoSlice::new(b"abcd")], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
