//! Block-wise copy and comparison of file contents, with their BLAKE3 hashes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{Hash, Hasher};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Size of a separately hashed block: a subtree of BLAKE3's hash tree, so a power of two of its chunks.
pub(crate) const BLOCK: u64 = 4 << 20;
/// Bytes of a file that one worker copies or compares at a time; a multiple of the block size.
pub(crate) const PART: u64 = 4 * BLOCK;
/// Size of a read.
pub(crate) const BUFFER: usize = 1 << 20;
/// Minimum length of a run of zeros that becomes a hole, in files that have holes at the source.
const ZERO_RUN: usize = 1 << 16;

/// Reason why a block was not copied.
#[derive(Debug)]
pub(crate) enum BlockError {
    Read(io::Error),
    Write(io::Error),
    /// The source ended before its recorded size.
    Short,
}

/// Chaining value of a block in the BLAKE3 tree of the whole file.
pub(crate) type BlockHash = [u8; 32];

/// Returns the BLAKE3 digest of a file from the hashes of its blocks, equal to that of `b3sum`.
pub(crate) fn file_digest(values: &[BlockHash]) -> Hash {
    match values {
        [] => blake3::hash(b""),
        // A single block was hashed as the root of the tree (`is_whole`), and is the digest already.
        [only] => Hash::from_bytes(*only),
        _ => {
            let (left, right) = values.split_at(left_of(values.len()));
            merge_subtrees_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

fn merged(values: &[BlockHash]) -> BlockHash {
    match values {
        [] => BlockHash::default(),
        [only] => *only,
        _ => {
            let (left, right) = values.split_at(left_of(values.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// Returns the number of blocks in the left subtree: the greatest power of two below `blocks`.
fn left_of(blocks: usize) -> usize {
    let left = blocks.next_power_of_two() / 2;
    assert!(0 < left && left < blocks, "a subtree without blocks");
    left
}

/// Hasher of one block.
struct BlockHasher {
    hasher: Hasher,
    is_whole: bool,
}

impl BlockHasher {
    /// Creates a hasher for the block at offset `start`; `is_whole` if the file has no other.
    fn new(start: u64, is_whole: bool) -> BlockHasher {
        assert!(is_whole || start.is_multiple_of(BLOCK), "a block does not begin at a multiple of its size");
        let mut hasher = Hasher::new();
        if !is_whole {
            hasher.set_input_offset(start);
        }
        BlockHasher { hasher, is_whole }
    }

    fn zeros(&mut self, len: u64) {
        const ZEROS: &[u8] = &[0; ZERO_RUN];
        for _ in 0..len / ZEROS.len() as u64 {
            self.hasher.update(ZEROS);
        }
        let rest = (len % ZEROS.len() as u64) as usize;
        self.hasher.update(ZEROS.split_at(rest).0);
    }

    fn value(&self) -> BlockHash {
        if self.is_whole { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() }
    }
}

/// Returns the hash of a block.
pub(crate) fn block_hash(bytes: &[u8], start: u64, is_whole: bool) -> BlockHash {
    let mut hasher = BlockHasher::new(start, is_whole);
    hasher.hasher.update(bytes);
    hasher.value()
}

/// A block of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// True if the file has no other block.
    pub(crate) is_whole: bool,
    /// True if the file has holes.
    pub(crate) sparse: bool,
}

/// A file to write to. Where the file system admits one writer at a time, writers take a lock before the system call.
#[derive(Clone, Copy)]
pub(crate) struct BlockWriter<'a> {
    pub(crate) file: &'a File,
    pub(crate) turn: Option<&'a Mutex<()>>,
}

impl BlockWriter<'_> {
    fn write(&self, bytes: &[u8], start: u64, sparse: bool) -> io::Result<()> {
        let _turn = self.turn.map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        write(self.file, bytes, start, sparse)
    }
}

/// Copies a block into a file that has zeros there. Returns its hash.
pub(crate) fn copy_block(
    from: &File,
    to: BlockWriter<'_>,
    block: Block,
    buffer: &mut [u8],
) -> Result<BlockHash, BlockError> {
    each_run(from, block, buffer, |bytes, at| to.write(bytes, at, block.sparse))
}

/// Returns whether a block of a file has this hash.
pub(crate) fn block_is(
    file: &File,
    block: Block,
    expected: &BlockHash,
    buffer: &mut [u8],
) -> Result<bool, BlockError> {
    match each_run(file, block, buffer, |_, _| Ok(())) {
        // A crash may have cut the temporary file after the journal had recorded the block.
        Err(BlockError::Short) => Ok(false),
        value => Ok(value? == *expected),
    }
}

/// Copies a block over existing data. Zeros are written, too.
pub(crate) fn rewrite_block(
    from: &File,
    to: BlockWriter<'_>,
    block: Block,
    buffer: &mut [u8],
) -> Result<BlockHash, BlockError> {
    copy_block(from, to, Block { sparse: false, ..block }, buffer)
}

/// Hashes a block, and passes its data to `data`; holes are not read.
fn each_run(
    from: &File,
    block: Block,
    buffer: &mut [u8],
    mut data: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> Result<BlockHash, BlockError> {
    let Block { start, end, is_whole, sparse } = block;
    let mut hasher = BlockHasher::new(start, is_whole);
    let mut at = start;
    while at < end {
        let (begin, data_end) = if sparse { next_data(from, at, end) } else { (at, end) };
        assert!(
            at <= begin && begin <= data_end && data_end <= end,
            "data {begin} to {data_end} is not within {at} to {end}"
        );
        // A hole is hashed as what reading it would give, so a copy without holes has the same digest.
        hasher.zeros(begin - at);
        at = begin;
        while at < data_end {
            let bytes = read_some(from, at, data_end, buffer)?;
            hasher.hasher.update(bytes);
            data(bytes, at).map_err(BlockError::Write)?;
            at += bytes.len() as u64;
        }
    }
    assert_eq!(at, end, "a block was hashed beyond its end");
    Ok(hasher.value())
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

/// Writes bytes; if `sparse`, long runs of zeros are skipped.
pub(crate) fn write(to: &File, bytes: &[u8], start: u64, sparse: bool) -> io::Result<()> {
    if !sparse {
        return to.write_all_at(bytes, start);
    }
    let is_zero = |run: &&[u8]| run.iter().all(|byte| *byte == 0);
    let runs: Vec<&[u8]> = bytes.chunks(ZERO_RUN).collect();
    let mut at = 0;
    // Adjacent runs of data are written at once, so that a file with few holes is not written in small pieces.
    for neighbours in runs.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len = neighbours.iter().map(|run| run.len()).sum::<usize>();
        if !neighbours.first().is_some_and(is_zero) {
            to.write_all_at(bytes.get(at..at + len).unwrap_or_default(), start + at as u64)?;
        }
        at += len;
    }
    assert_eq!(at, bytes.len(), "a write left out part of its data");
    Ok(())
}

/// Returns the next range of data within `at .. end`; `(end, end)` if only a hole is left.
fn next_data(file: &File, at: u64, end: u64) -> (u64, u64) {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.clamp(at, end),
        // What the kernel answers where nothing but a hole follows.
        Err(Errno::NXIO) => end,
        // The file system does not support SEEK_DATA: everything counts as data.
        Err(_) => return (at, end),
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(end);
    (data, hole.clamp(data, end))
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

    fn blocks(size: u64, sparse: bool) -> impl Iterator<Item = Block> {
        let block = move |n| Block {
            start: n * BLOCK,
            end: size.min((n + 1) * BLOCK),
            is_whole: size <= BLOCK,
            sparse,
        };
        (0..size.div_ceil(BLOCK)).map(block)
    }

    fn last(sparse: bool) -> Block {
        blocks(SIZE, sparse).nth(1).unwrap()
    }

    #[test]
    fn copies_equal_with_and_without_holes_and_so_do_digests() {
        let (from, contents) = sparse_source();
        let mut buffer = vec![0; BUFFER];
        for sparse in [true, false] {
            let to = tempfile::tempfile().unwrap();
            to.set_len(SIZE).unwrap();
            let copy = |block| {
                let value = copy_block(
                    &from,
                    BlockWriter { file: &to, turn: Some(&Mutex::default()) },
                    block,
                    &mut buffer,
                )
                .unwrap();
                assert!(block_is(&to, block, &value, &mut buffer).unwrap());
                value
            };
            let values: Vec<BlockHash> = blocks(SIZE, sparse).map(copy).collect();
            assert_eq!(file_digest(&values), blake3::hash(&contents));
            assert!(read(&to) == contents);
            assert_eq!(to.metadata().unwrap().blocks() * 512 < BLOCK, sparse);
        }
    }

    #[test]
    fn rewriting_leaves_nothing_of_what_was_there() {
        let (from, contents) = sparse_source();
        let mut buffer = vec![0; BUFFER];
        let to = tempfile::tempfile().unwrap();
        to.write_all_at(&vec![7; SIZE as usize], 0).unwrap();
        let rewrite =
            |block| rewrite_block(&from, BlockWriter { file: &to, turn: None }, block, &mut buffer).unwrap();
        let values: Vec<BlockHash> = blocks(SIZE, true).map(rewrite).collect();
        assert_eq!(file_digest(&values), blake3::hash(&contents));
        assert!(read(&to) == contents);
    }

    #[test]
    fn a_flipped_bit_and_a_lost_tail_are_noticed() {
        let (file, _) = sparse_source();
        let mut buffer = vec![0; BUFFER];
        let values: Vec<BlockHash> = blocks(SIZE, true)
            .map(|block| each_run(&file, block, &mut buffer, |_, _| Ok(())).unwrap())
            .collect();
        let first = blocks(SIZE, true).next().unwrap();
        assert!(block_is(&file, first, &values[0], &mut buffer).unwrap());
        file.write_all_at(b"D", BLOCK + 70_000).unwrap();
        assert!(!block_is(&file, last(true), &values[1], &mut buffer).unwrap());
        file.write_all_at(b"x", 12).unwrap();
        assert!(!block_is(&file, first, &values[0], &mut buffer).unwrap());
        file.set_len(BLOCK).unwrap();
        assert!(!block_is(&file, last(true), &values[1], &mut buffer).unwrap());
    }

    #[test]
    fn a_source_that_ends_early_is_an_error() {
        let (from, _) = sparse_source();
        from.set_len(10).unwrap();
        let to = tempfile::tempfile().unwrap();
        let first = blocks(SIZE, false).next().unwrap();
        let outcome = copy_block(&from, BlockWriter { file: &to, turn: None }, first, &mut vec![0; BUFFER]);
        assert!(matches!(outcome, Err(BlockError::Short)), "{outcome:?}");
    }

    #[test]
    fn the_digest_is_blake3_for_any_number_of_blocks() {
        assert_eq!(file_digest(&[]), blake3::hash(b""));
        let contents: Vec<u8> = (0..5 * BLOCK + 1).map(|at| (at % 251) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&contents, 0).unwrap();
        let mut buffer = vec![0; BUFFER];
        for size in
            [1, 1024, 1025, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5, 4 * BLOCK, 5 * BLOCK + 1]
        {
            let values: Vec<BlockHash> = blocks(size, false)
                .map(|block| each_run(&file, block, &mut buffer, |_, _| Ok(())).unwrap())
                .collect();
            assert_eq!(file_digest(&values), blake3::hash(&contents[..size as usize]), "{size} bytes");
        }
    }
}
