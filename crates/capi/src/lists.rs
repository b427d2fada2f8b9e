//! Many places in one call.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use bivouac_types::{Errno, FsError, FsResult};

use crate::failure::answer;
use crate::file::{File, offset_of};
use crate::pointers;

/// One place, as the header's `bivouac_piece`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The offset in the file, in bytes.
    pub offset: libc::off_t,
    /// The caller's bytes.
    pub buffer: *mut u8,
    /// How many.
    pub count: usize,
    /// How many were read.
    pub done: usize,
}

fn list<'a>(pieces: *const Piece, count: usize) -> FsResult<&'a [Piece]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pieces.is_null() || count > isize::MAX as usize / size_of::<Piece>() {
        return Err(FsError::with(Errno::EINVAL, "pieces are NULL, or more than memory can have"));
    }
    // SAFETY: the header asks for so many of them.
    Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
}

fn check_sum(pieces: &[Piece]) -> FsResult<()> {
    // The sum is returned as a signed number, in which a failure is -1.
    let sum = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.count));
    match sum {
        Some(sum) if sum <= isize::MAX as usize => Ok(()),
        _ => Err(FsError::with(Errno::EINVAL, "the pieces are more than can be counted")),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_read_list(file: *mut File, pieces: *mut Piece, count: usize) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let client = file.readable()?;
        let wanted = list(pieces, count)?;
        check_sum(wanted)?;
        let mut places = Vec::with_capacity(count);
        for piece in wanted {
            let offset = offset_of(piece.offset)?;
            // SAFETY: the header asks for room for so many bytes.
            places.push((offset, unsafe { pointers::bytes_mut(piece.buffer, piece.count)? }));
        }
        let counts = client.read_list(file.ino, &mut places)?;
        // The caller's memory ends behind its pieces.
        assert_eq!(counts.len(), count, "a list of {count} pieces is answered by {} counts", counts.len());
        for (index, done) in counts.iter().enumerate() {
            // SAFETY: there are `count` of them, as many as counts; nobody else uses them during the call.
            unsafe { (*pieces.add(index)).done = *done };
        }
        Ok(counts.iter().sum::<usize>() as isize)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_write_list(file: *mut File, pieces: *const Piece, count: usize) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let client = file.writable()?;
        if file.flags.append {
            return Err(FsError::with(
                Errno::EINVAL,
                "a list says where, a file opened with O_APPEND decides it",
            ));
        }
        let wanted = list(pieces, count)?;
        check_sum(wanted)?;
        let mut places = Vec::with_capacity(count);
        for piece in wanted {
            let offset = offset_of(piece.offset)?;
            // SAFETY: the header asks for so many bytes.
            places.push((offset, unsafe { pointers::bytes(piece.buffer, piece.count)? }));
        }
        client.write_list(file.ino, &places)?;
        Ok(places.iter().map(|(_, data)| data.len()).sum::<usize>() as isize)
    })
}
