//! Reads what an interrupted copy had put in place, and compares it with what the journal says.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use blake3::{Hash, Hasher};
use rustix::fs::{Advice, OFlags};

use crate::blocks::BUFFER;
use crate::engine::Engine;
use crate::group::{BATCH, Durability};
use crate::queue::Queue;
use crate::straight;

/// Of these entries, which the journal has as complete, those whose bytes at the target are the ones that were copied.
pub(crate) fn still_right(engine: &Engine<'_>, numbers: &[usize]) -> HashSet<usize> {
    let right = Mutex::new(HashSet::new());
    let queue = Queue::new(numbers.chunks(BATCH));
    std::thread::scope(|scope| {
        for worker in 0..engine.opts.threads().min(numbers.len()) {
            let (queue, right) = (&queue, &right);
            scope.spawn(move || {
                let mut buffer = vec![0; BUFFER];
                queue.work(|numbers| {
                    let same = numbers.iter().copied().filter(|number| {
                        !engine.opts.cancelled() && is_right(engine, worker, *number, &mut buffer)
                    });
                    let same: Vec<usize> = same.collect();
                    right.lock().unwrap_or_else(PoisonError::into_inner).extend(same);
                });
            });
        }
    });
    right.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn is_right(engine: &Engine<'_>, worker: usize, number: usize, buffer: &mut [u8]) -> bool {
    let Some(entry) = engine.plan.entries.get(number) else { return false };
    let Some(line) = engine.past.lines.get(&entry.path) else { return false };
    let place = engine.target.spot.seen(&engine.opts.views, worker).path(&entry.path);
    let is_stored = engine.durability != Durability::Acknowledged;
    // What cannot be read is not right: it is copied again, and that says why it cannot be.
    let same = digest_of(&place, is_stored, buffer).is_ok_and(|digest| Some(digest) == line.digest);
    if same {
        engine.progress.verified(line.size);
    }
    same
}

/// The digest of a file's bytes; of one that `is_stored` as they are on stable storage.
fn digest_of(path: &Path, is_stored: bool, buffer: &mut [u8]) -> io::Result<Hash> {
    let mut file = straight::open(path, OFlags::RDONLY, 0)?;
    if is_stored {
        let _only_advice = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    }
    let mut hasher = Hasher::new();
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(len) => hasher.update(buffer.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_all_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for len in [0, 1, 999, 1000, 1001, 5000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(digest_of(&path, len % 2 == 0, &mut [0; 1000]).unwrap(), blake3::hash(&bytes));
        }
        assert!(digest_of(&dir.path().join("none"), false, &mut [0; 10]).is_err());
    }
}
