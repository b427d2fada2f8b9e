//! Digest of a whole file, computed in step with its pieces from what has been written to the file, so that it is ready
//! soon after the last piece.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::add_part;
use crate::digest::{Digest, Hasher};
use crate::manifest::DataSetFile;

/// Bytes that are read at a time.
const BUFFER: usize = 64 << 10;
/// Pieces hashed per received piece: more than one, to catch up after a late piece, and few, because the thread fetches
/// nothing meanwhile.
const AT_ONCE: usize = 2;

/// The digest as far as pieces are there, from the first on.
pub struct WholeDigest {
    there: Vec<AtomicBool>,
    begun: Mutex<HashState>,
}

struct HashState {
    hasher: Hasher,
    /// The first piece that is not in it.
    next: usize,
    buffer: Vec<u8>,
}

impl HashState {
    fn new() -> HashState {
        HashState { hasher: Hasher::new(), next: 0, buffer: vec![0; BUFFER] }
    }
}

impl WholeDigest {
    /// Creates the digest of a file with these missing pieces.
    pub fn new(item: &DataSetFile, missing: &[usize]) -> WholeDigest {
        let there: Vec<_> = (0..item.piece_count()).map(|_| AtomicBool::new(true)).collect();
        missing
            .iter()
            .filter_map(|index| there.get(*index))
            .for_each(|piece| piece.store(false, Ordering::Relaxed));
        WholeDigest { there, begun: Mutex::new(HashState::new()) }
    }

    /// Notes that a piece is in the file.
    pub fn came(&self, index: usize) {
        if let Some(piece) = self.there.get(index) {
            // Pairs with the load in `add`: whoever sees the flag sees the written bytes.
            piece.store(true, Ordering::Release);
        }
    }

    /// Hashes a few pieces, unless another thread does.
    pub fn go_on(&self, file: &File, item: &DataSetFile) {
        // Another thread is hashing: this one fetches meanwhile.
        let Some(mut begun) = self.begun.try_lock() else { return };
        // An error is reported at the end of the file, when hashing starts again from its beginning.
        if self.add(&mut begun, AT_ONCE, file, item).is_err() {
            *begun = HashState::new();
        }
    }

    /// Returns the digest, all pieces being there.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` if the file was cut.
    pub fn end(&self, file: &File, item: &DataSetFile) -> io::Result<Digest> {
        let mut begun = self.begun.lock();
        self.add(&mut begun, usize::MAX, file, item)?;
        assert_eq!(begun.next, self.there.len(), "a digest of a file without all of its pieces");
        Ok(std::mem::replace(&mut begun.hasher, Hasher::new()).end())
    }

    fn add(&self, begun: &mut HashState, most: usize, file: &File, item: &DataSetFile) -> io::Result<()> {
        let ready = self.there.iter().skip(begun.next).take_while(|piece| piece.load(Ordering::Acquire));
        for _ in ready.take(most) {
            let (offset, len) = item.piece(begun.next);
            if !add_part(&mut begun.hasher, file, offset, len, &mut begun.buffer)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            begun.next += 1;
        }
        assert!(begun.next <= self.there.len(), "a digest has pieces that the file does not have");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> DataSetFile {
        let pieces = vec![Digest::of(b""); 4];
        DataSetFile { name: "f".into(), size: 7, digest: None, piece_len: 2, pieces, urls: Vec::new() }
    }

    #[test]
    fn pieces_count_once_and_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "0123456").unwrap();
        let (file, item) = (File::open(&path).unwrap(), item());
        let whole = WholeDigest::new(&item, &[0, 2, 3]);
        let next = || {
            whole.go_on(&file, &item);
            whole.begun.lock().next
        };
        whole.came(3);
        assert_eq!(next(), 0);
        whole.came(0);
        assert_eq!(next(), 2);
        whole.came(2);
        assert_eq!((next(), next()), (4, 4));
        assert_eq!(whole.end(&file, &item).unwrap(), Digest::of(b"0123456"));
    }

    #[test]
    fn a_file_that_was_cut_is_told_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "0123").unwrap();
        let (file, item) = (File::options().read(true).write(true).open(&path).unwrap(), item());
        let whole = WholeDigest::new(&item, &[]);
        (0..3).for_each(|_| whole.go_on(&file, &item));
        assert_eq!(whole.end(&file, &item).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        std::fs::write(&path, "0123456").unwrap();
        let whole = WholeDigest::new(&item, &[]);
        (0..3).for_each(|_| whole.go_on(&file, &item));
        assert_eq!(whole.end(&file, &item).unwrap(), Digest::of(b"0123456"));
    }
}
