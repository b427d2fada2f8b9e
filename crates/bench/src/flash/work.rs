//! One process's part of a checkpoint, and whether site storage has it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;
use serde::{Deserialize, Serialize};

use super::plan::{FlashPlan, Kind, Piece};
use crate::barrier::Barrier;
use crate::member_protocol::MemberTask;
use crate::pattern::Pattern;
use crate::timed_part::TimedPart;
use crate::{BenchError, BenchResult, clock};

/// Bytes that are compared at once.
const COMPARED: u64 = 1 << 20;

/// One process's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlashTask {
    /// An empty directory, as this process's mount shows it.
    pub dir: PathBuf,
    /// Number of the process.
    pub rank: u32,
    /// Plan of all processes.
    pub plan: FlashPlan,
    /// The files, one after the other.
    pub kinds: Vec<Kind>,
    /// Seed of the content; different for each repetition.
    pub seed: u64,
}

impl MemberTask for FlashTask {
    const KIND: &'static str = "Flash";
}

/// Does one process's part: all meet; the first makes the file and gives it its size; all meet, open, write their
/// pieces, close.
pub fn perform(task: &FlashTask, barrier: &mut dyn Barrier) -> BenchResult<Vec<TimedPart>> {
    let mut files: Vec<Content> = task.kinds.iter().map(|kind| Content::of(task, *kind)).collect();
    let mut timed = Vec::new();
    for content in &mut files {
        let path = task.dir.join(content.kind.file_name());
        let failed = |error| BenchError::system(path.display())(error);
        barrier.wait()?;
        let start_ns = clock::now_ns();
        if task.rank == 0 {
            let made = File::create_new(&path).map_err(failed)?;
            made.set_len(task.plan.file_len(content.kind)).map_err(failed)?;
        }
        barrier.wait()?;
        let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
        let mut units = 0;
        for piece in task.plan.pieces(content.kind, task.rank) {
            file.write_all_at(content.bytes(piece), piece.offset).map_err(failed)?;
            units += piece.len;
        }
        // Closing counts: with some contracts content goes to its node only then.
        drop(file);
        let what = content.kind.file_name().to_owned();
        timed.push(TimedPart { what, units, start_ns, end_ns: clock::now_ns() });
    }
    Ok(timed)
}

/// Content that a process writes to a file, made before the clock runs as far as that takes a while: small pieces as a
/// whole, of large ones all but the stamps of their pages.
struct Content {
    kind: Kind,
    pattern: Pattern,
    ready: Vec<u8>,
    next: usize,
}

impl Content {
    fn of(task: &FlashTask, kind: Kind) -> Content {
        let pattern = pattern(task.seed, kind);
        let mut ready = Vec::new();
        let pieces = task.plan.pieces(kind, task.rank);
        // Pieces of checkpoints are whole pages, which get new stamps when they are written; those of plots are not.
        let count = if kind == Kind::Checkpoint { 1 } else { usize::MAX };
        for piece in pieces.take(count) {
            let from = ready.len();
            ready.resize(from + piece.len as usize, 0);
            pattern.fill(ready.get_mut(from..).unwrap_or_default(), piece.offset);
        }
        Content { kind, pattern, ready, next: 0 }
    }

    /// The bytes of the next piece.
    fn bytes(&mut self, piece: Piece) -> &[u8] {
        if self.kind == Kind::Checkpoint {
            self.pattern.restamp(&mut self.ready, piece.offset);
            return &self.ready;
        }
        let from = self.next;
        self.next += piece.len as usize;
        self.ready.get(from..self.next).unwrap_or_default()
    }
}

fn pattern(seed: u64, kind: Kind) -> Pattern {
    Pattern::new(seed * 4 + kind as u64)
}

/// Compares a file with what all processes wrote to it.
///
/// # Errors
/// That it is not there, has another length or another byte somewhere.
pub fn verify(dir: &Path, plan: FlashPlan, kind: Kind, seed: u64) -> BenchResult<()> {
    let path = dir.join(kind.file_name());
    let wrong = |cause: &dyn std::fmt::Display| BenchError::refused(path.display(), cause);
    let mut file = File::open(&path).map_err(BenchError::system(path.display()))?;
    // From the storage, not from what this machine remembers, where that can be told.
    let _only_a_wish = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    let (len, wanted) =
        (file.metadata().map_err(BenchError::system(path.display()))?.len(), plan.file_len(kind));
    if len != wanted {
        return Err(wrong(&format_args!("has {len} bytes instead of {wanted}")));
    }
    let (pattern, mut part) = (pattern(seed, kind), Vec::new());
    for offset in (0..len).step_by(COMPARED as usize) {
        part.resize(COMPARED.min(len - offset) as usize, 0);
        file.read_exact(&mut part).map_err(BenchError::system(path.display()))?;
        if let Some(at) = pattern.mismatch(&part, offset) {
            return Err(wrong(&format_args!("byte {} is not what was written", offset + at as u64)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;

    const KINDS: [Kind; 3] = [Kind::Checkpoint, Kind::Centred, Kind::Corner];

    fn written(dir: &Path, plan: FlashPlan, seed: u64) -> Vec<Vec<TimedPart>> {
        let task = |rank| FlashTask { dir: dir.to_owned(), rank, plan, kinds: KINDS.to_vec(), seed };
        // One after the other: the first makes the files, and the others find them.
        (0..plan.procs).map(|rank| perform(&task(rank), &mut LoneProcess(0)).unwrap()).collect()
    }

    #[test]
    fn all_processes_together_write_what_is_verified() {
        for edge in [3, 8] {
            let (dir, plan) = (tempfile::tempdir().unwrap(), FlashPlan { procs: 3, edge });
            let outcomes = written(dir.path(), plan, 5);
            for kind in KINDS {
                verify(dir.path(), plan, kind, 5).unwrap();
                let of_kind = outcomes.iter().flatten().filter(|timed| timed.what == kind.file_name());
                assert_eq!(of_kind.map(|timed| timed.units).sum::<u64>(), plan.file_len(kind));
            }
        }
    }

    #[test]
    fn what_is_wrong_is_found() {
        let (dir, plan) = (tempfile::tempdir().unwrap(), FlashPlan { procs: 2, edge: 3 });
        written(dir.path(), plan, 1);
        let found = |seed| verify(dir.path(), plan, Kind::Corner, seed).unwrap_err().to_string();
        assert!(found(2).ends_with("byte 0 is not what was written"), "of another repetition");
        let file = OpenOptions::new().write(true).open(dir.path().join("plot-corner")).unwrap();
        file.write_all_at(b"!?", 100_000).unwrap();
        assert!(found(1).ends_with("byte 100000 is not what was written"));
        file.set_len(100).unwrap();
        assert!(found(1).contains("has 100 bytes instead of "));
        std::fs::remove_file(dir.path().join("plot-corner")).unwrap();
        assert!(found(1).contains("No such file"));
    }

    #[test]
    fn all_meet_twice_per_file() {
        let (dir, plan) = (tempfile::tempdir().unwrap(), FlashPlan { procs: 1, edge: 2 });
        let mut barrier = LoneProcess(0);
        let task = FlashTask { dir: dir.path().to_owned(), rank: 0, plan, kinds: KINDS.to_vec(), seed: 0 };
        perform(&task, &mut barrier).unwrap();
        assert_eq!(barrier.0, 6);
        let error = perform(&FlashTask { dir: "/nonexistent".into(), ..task }, &mut barrier).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/checkpoint: "), "{error}");
    }
}
