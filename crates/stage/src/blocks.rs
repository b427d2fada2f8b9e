//! Contents of files, block by block: copied with their digests, and compared.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use blake3::{Hash, Hasher};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes per block digest. A constant of the format.
pub(crate) const BLOCK: u64 = 4 << 20;
/// Bytes that are read at once.
pub(crate) const BUFFER: usize = 1 << 20;
/// Runs of zeros of this length become holes again, where the source has holes.
const ZERO_RUN: usize = 1 << 16;

/// Why a block is not copied.
#[derive(Debug)]
pub(crate) enum BlockError {
    Read(io::Error),
    Write(io::Error),
    /// The source ended before its size.
    Short,
}

/// The digest of a file from those of its blocks.
pub(crate) fn file_digest<'a>(size: u64, blocks: impl Iterator<Item = &'a Hash>) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(&size.to_le_bytes());
    blocks.for_each(|block| {
        hasher.update(block.as_bytes());
    });
    hasher.finalize()
}

/// Copies the bytes `start .. end` of a file into one that has zeros there. Returns their digest.
pub(crate) fn copy_block(
    (from, to): (&File, &File),
    (start, end): (u64, u64),
    sparse: bool,
    buffer: &mut [u8],
) -> Result<Hash, BlockError> {
    let mut hasher = Hasher::new();
    let mut at = start;
    while at < end {
        let (data, data_end) = if sparse { next_data(from, at, end) } else { (at, end) };
        if at == start && data == end {
            return Ok(zero_digest(end - start));
        }
        hash_zeros(&mut hasher, data - at);
        at = data;
        while at < data_end {
            let bytes = read_some(from, at, data_end, buffer)?;
            hasher.update(bytes);
            write(to, bytes, at, sparse).map_err(BlockError::Write)?;
            at += bytes.len() as u64;
        }
    }
    Ok(hasher.finalize())
}

/// Whether the bytes `start .. end` of a file have this digest.
pub(crate) fn block_is(
    file: &File,
    (start, end): (u64, u64),
    sparse: bool,
    expected: &Hash,
    buffer: &mut [u8],
) -> Result<bool, BlockError> {
    // A block of zeros that the file system says is a hole needs no reading: holes are zeros.
    if sparse && *expected == zero_digest(end - start) && next_data(file, start, end).0 == end {
        return Ok(true);
    }
    let mut hasher = Hasher::new();
    let mut at = start;
    while at < end {
        let bytes = match read_some(file, at, end, buffer) {
            Err(BlockError::Short) => return Ok(false),
            read => read?,
        };
        hasher.update(bytes);
        at += bytes.len() as u64;
    }
    Ok(hasher.finalize() == *expected)
}

/// Reads at least one byte of `at .. end`.
fn read_some<'a>(file: &File, at: u64, end: u64, buffer: &'a mut [u8]) -> Result<&'a [u8], BlockError> {
    let wanted = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
    let (buffer, _) = buffer.split_at_mut(wanted);
    loop {
        match file.read_at(buffer, at) {
            Ok(0) => return Err(BlockError::Short),
            Ok(len) => return buffer.get(..len).ok_or(BlockError::Short),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(BlockError::Read(error)),
        }
    }
}

fn write(to: &File, bytes: &[u8], at: u64, sparse: bool) -> io::Result<()> {
    if !sparse {
        return to.write_all_at(bytes, at);
    }
    let mut at = at;
    for run in bytes.chunks(ZERO_RUN) {
        if run.iter().any(|byte| *byte != 0) {
            to.write_all_at(run, at)?;
        }
        at += run.len() as u64;
    }
    Ok(())
}

/// The next bytes within `at .. end` that are not in a hole; `(end, end)` if there are none.
fn next_data(file: &File, at: u64, end: u64) -> (u64, u64) {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.clamp(at, end),
        Err(Errno::NXIO) => end,
        // A file system that knows no holes: everything is data.
        Err(_) => return (at, end),
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(end);
    (data, hole.clamp(data, end))
}

fn zero_digest(len: u64) -> Hash {
    static WHOLE: OnceLock<Hash> = OnceLock::new();
    let of = |len| {
        let mut hasher = Hasher::new();
        hash_zeros(&mut hasher, len);
        hasher.finalize()
    };
    if len == BLOCK { *WHOLE.get_or_init(|| of(BLOCK)) } else { of(len) }
}

fn hash_zeros(hasher: &mut Hasher, len: u64) {
    const ZEROS: &[u8] = &[0; ZERO_RUN];
    for _ in 0..len / ZEROS.len() as u64 {
        hasher.update(ZEROS);
    }
    let rest = (len % ZEROS.len() as u64) as usize;
    hasher.update(ZEROS.split_at(rest).0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const SIZE: u64 = BLOCK + 3 * (BUFFER as u64) + 77;

    fn sparse_source() -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let mut contents = vec![0; SIZE as usize];
        for at in [BLOCK as usize + 70_000, SIZE as usize - 5] {
            contents[at..at + 5].copy_from_slice(b"data!");
            file.write_all_at(b"data!", at as u64).unwrap();
        }
        (file, contents)
    }

    fn read(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn copies_equal_with_and_without_holes_and_so_do_digests() {
        let (from, contents) = sparse_source();
        let mut buffer = vec![0; BUFFER];
        for sparse in [true, false] {
            let to = tempfile::tempfile().unwrap();
            to.set_len(SIZE).unwrap();
            for range in [(0, BLOCK), (BLOCK, SIZE)] {
                let digest = copy_block((&from, &to), range, sparse, &mut buffer).unwrap();
                assert_eq!(digest, blake3::hash(&contents[range.0 as usize..range.1 as usize]));
                assert!(block_is(&to, range, sparse, &digest, &mut buffer).unwrap());
            }
            assert!(read(&to) == contents);
            assert_eq!(to.metadata().unwrap().blocks() * 512 < BLOCK, sparse);
        }
    }

    #[test]
    fn a_flipped_bit_and_a_lost_tail_are_noticed() {
        let (file, contents) = sparse_source();
        let mut buffer = vec![0; BUFFER];
        let digest = blake3::hash(&contents[BLOCK as usize..]);
        file.write_all_at(b"D", BLOCK + 70_000).unwrap();
        assert!(!block_is(&file, (BLOCK, SIZE), true, &digest, &mut buffer).unwrap());
        let zeros = zero_digest(BLOCK);
        assert!(block_is(&file, (0, BLOCK), true, &zeros, &mut buffer).unwrap());
        file.write_all_at(b"x", 12).unwrap();
        assert!(!block_is(&file, (0, BLOCK), true, &zeros, &mut buffer).unwrap());
        file.set_len(BLOCK).unwrap();
        assert!(!block_is(&file, (BLOCK, SIZE), true, &digest, &mut buffer).unwrap());
    }

    #[test]
    fn a_source_that_ends_early_is_an_error() {
        let (from, _) = sparse_source();
        from.set_len(10).unwrap();
        let to = tempfile::tempfile().unwrap();
        let outcome = copy_block((&from, &to), (0, BLOCK), false, &mut vec![0; BUFFER]);
        assert!(matches!(outcome, Err(BlockError::Short)), "{outcome:?}");
    }

    #[test]
    fn golden_digests() {
        let blocks = [blake3::hash(b"one"), zero_digest(BLOCK)];
        assert_eq!(blocks[1], blake3::hash(&vec![0; BLOCK as usize]));
        let whole = [&7u64.to_le_bytes()[..], blocks[0].as_bytes(), blocks[1].as_bytes()].concat();
        assert_eq!(file_digest(7, blocks.iter()), blake3::hash(&whole));
        assert_eq!(
            file_digest(7, blocks.iter()).to_hex().as_str(),
            "3799e15617a9442b2d0d2dea54d6cd7d91d2c0fff2c41df4d92d66fdf78f2e0b"
        );
        assert_eq!(
            file_digest(0, [].iter()).to_hex().as_str(),
            "71e0a99173564931c0b8acc52d2685a8e39c64dc52e3d02390fdac2a12b155cb"
        );
    }
}
