//! Contents of files, block by block: copied with their digests, and compared.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{Hash, Hasher};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes that are hashed by themselves: a subtree of BLAKE3's tree, so a power of two of its chunks.
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

/// What is known of the bytes of a block: its place in the hash tree of the whole file.
pub(crate) type Value = [u8; 32];

/// The digest of a file, from the values of its blocks: the BLAKE3 of its bytes, as `b3sum` has it.
pub(crate) fn file_digest(values: &[Value]) -> Hash {
    match values {
        [] => blake3::hash(b""),
        [only] => Hash::from_bytes(*only),
        _ => {
            let (left, right) = values.split_at(left_of(values.len()));
            merge_subtrees_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

fn merged(values: &[Value]) -> Value {
    match values {
        [] => Value::default(),
        [only] => *only,
        _ => {
            let (left, right) = values.split_at(left_of(values.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// The left side of a node of the tree has the greatest power of two of blocks that leaves some for the right.
fn left_of(blocks: usize) -> usize {
    blocks.next_power_of_two() / 2
}

/// Hashes one block of a file.
struct BlockHasher {
    hasher: Hasher,
    is_whole: bool,
}

impl BlockHasher {
    /// For the block that begins at `start`; `is_whole` if it is all that the file has.
    fn new(start: u64, is_whole: bool) -> BlockHasher {
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

    fn value(&self) -> Value {
        if self.is_whole { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() }
    }
}

/// The value of a block, of which these are the bytes.
pub(crate) fn value_of(bytes: &[u8], start: u64, is_whole: bool) -> Value {
    let mut hasher = BlockHasher::new(start, is_whole);
    hasher.hasher.update(bytes);
    hasher.value()
}

/// A block of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Whether the file has no other.
    pub(crate) is_whole: bool,
    /// Whether the file has holes.
    pub(crate) sparse: bool,
}

/// A file that is written. Where only one at a time is let in, those who want to take turns before they ask.
#[derive(Clone, Copy)]
pub(crate) struct Sink<'a> {
    pub(crate) file: &'a File,
    pub(crate) turn: Option<&'a Mutex<()>>,
}

impl Sink<'_> {
    fn write(&self, bytes: &[u8], start: u64, sparse: bool) -> io::Result<()> {
        let _turn = self.turn.map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        write(self.file, bytes, start, sparse)
    }
}

/// Copies a block of a file into one that has zeros there. Returns its value.
pub(crate) fn copy_block(
    from: &File,
    to: Sink<'_>,
    block: Block,
    buffer: &mut [u8],
) -> Result<Value, BlockError> {
    each_run(from, block, buffer, |bytes, at| to.write(bytes, at, block.sparse))
}

/// Whether a block of a file has this value.
pub(crate) fn block_is(
    file: &File,
    block: Block,
    expected: &Value,
    buffer: &mut [u8],
) -> Result<bool, BlockError> {
    match each_run(file, block, buffer, |_, _| Ok(())) {
        Err(BlockError::Short) => Ok(false),
        value => Ok(value? == *expected),
    }
}

/// Copies a block over what is there, which need not be zeros.
pub(crate) fn rewrite_block(
    from: &File,
    to: Sink<'_>,
    block: Block,
    buffer: &mut [u8],
) -> Result<Value, BlockError> {
    copy_block(from, to, Block { sparse: false, ..block }, buffer)
}

/// Hashes a block, giving what is data to `data`; holes need no reading.
fn each_run(
    from: &File,
    block: Block,
    buffer: &mut [u8],
    mut data: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> Result<Value, BlockError> {
    let Block { start, end, is_whole, sparse } = block;
    let mut hasher = BlockHasher::new(start, is_whole);
    let mut at = start;
    while at < end {
        let (begin, data_end) = if sparse { next_data(from, at, end) } else { (at, end) };
        hasher.zeros(begin - at);
        at = begin;
        while at < data_end {
            let bytes = read_some(from, at, data_end, buffer)?;
            hasher.hasher.update(bytes);
            data(bytes, at).map_err(BlockError::Write)?;
            at += bytes.len() as u64;
        }
    }
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

/// Writes bytes; where the source has holes, only what is between long runs of zeros.
pub(crate) fn write(to: &File, bytes: &[u8], start: u64, sparse: bool) -> io::Result<()> {
    if !sparse {
        return to.write_all_at(bytes, start);
    }
    let is_zero = |run: &&[u8]| run.iter().all(|byte| *byte == 0);
    let runs: Vec<&[u8]> = bytes.chunks(ZERO_RUN).collect();
    let mut at = 0;
    // Neighbours go in one write: that there are holes somewhere must not make everything slow.
    for neighbours in runs.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len = neighbours.iter().map(|run| run.len()).sum::<usize>();
        if !neighbours.first().is_some_and(is_zero) {
            to.write_all_at(bytes.get(at..at + len).unwrap_or_default(), start + at as u64)?;
        }
        at += len;
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
                let value =
                    copy_block(&from, Sink { file: &to, turn: Some(&Mutex::default()) }, block, &mut buffer)
                        .unwrap();
                assert!(block_is(&to, block, &value, &mut buffer).unwrap());
                value
            };
            let values: Vec<Value> = blocks(SIZE, sparse).map(copy).collect();
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
            |block| rewrite_block(&from, Sink { file: &to, turn: None }, block, &mut buffer).unwrap();
        let values: Vec<Value> = blocks(SIZE, true).map(rewrite).collect();
        assert_eq!(file_digest(&values), blake3::hash(&contents));
        assert!(read(&to) == contents);
    }

    #[test]
    fn a_flipped_bit_and_a_lost_tail_are_noticed() {
        let (file, _) = sparse_source();
        let mut buffer = vec![0; BUFFER];
        let values: Vec<Value> = blocks(SIZE, true)
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
        let outcome = copy_block(&from, Sink { file: &to, turn: None }, first, &mut vec![0; BUFFER]);
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
            let values: Vec<Value> = blocks(size, false)
                .map(|block| each_run(&file, block, &mut buffer, |_, _| Ok(())).unwrap())
                .collect();
            assert_eq!(file_digest(&values), blake3::hash(&contents[..size as usize]), "{size} bytes");
        }
    }
}
