//! Verification of files that an interrupted copy has completed.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use blake3::{Hash, Hasher};
use rustix::fs::{Advice, OFlags};

use crate::blocks::BUFFER;
use crate::engine::Engine;
use crate::nofollow;
use crate::queue::Queue;
use crate::sync_group::{BATCH, Durability};

/// Returns the entries, complete by the journal, whose content at the target still has the recorded digest.
pub(crate) fn verify_resumed(engine: &Engine<'_>, numbers: &[usize]) -> HashSet<usize> {
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
    let place = engine.target.writer.for_worker(&engine.opts.views, worker).path(&entry.path);
    let is_stored = engine.durability != Durability::Acknowledged;
    // A file that cannot be read counts as different: it is copied again, and that attempt reports the error.
    let same = digest_of(&place, is_stored, buffer).is_ok_and(|digest| Some(digest) == line.digest);
    if same {
        engine.progress.verified(line.size);
    }
    same
}

/// Returns the digest of a file; `is_stored` drops it from the page cache first.
fn digest_of(path: &Path, is_stored: bool, buffer: &mut [u8]) -> io::Result<Hash> {
    let mut file = nofollow::open(path, OFlags::RDONLY, 0)?;
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
