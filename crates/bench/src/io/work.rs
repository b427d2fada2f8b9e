//! One process's part of reading and writing.

use std::fs::OpenOptions;
use std::path::PathBuf;

use super::file::{Access, Open};
use super::{IoOp, IoTask, Mode, Order};
use crate::barrier::Barrier;
use crate::pattern::Pattern;
use crate::timed_part::TimedPart;
use crate::{BenchError, BenchResult, Host, clock};

/// Does one process's part.
///
/// # Errors
/// What the file system refuses; a byte that is not what was written.
pub fn perform(host: &Host<'_>, task: &IoTask, barrier: &mut dyn Barrier) -> BenchResult<Vec<TimedPart>> {
    let access = Access::to(host, &task.dir, task.plan.api)?;
    let mut part = Part::new(task, &access);
    let mut timed = Vec::new();
    // What is read or written over has to be there: it is made first, and not shown.
    if task.plan.ops.first() != Some(&IoOp::Write) {
        part.timed(IoOp::Write, barrier)?;
    }
    for op in &task.plan.ops {
        timed.push(part.timed(*op, barrier)?);
    }
    if task.plan.verify {
        // Reading it again is not to be in the time of anybody who still works.
        barrier.wait()?;
        part.verify()?;
    }
    Ok(timed)
}

struct Part<'t> {
    task: &'t IoTask,
    access: &'t Access,
    order: Order,
    buffer: Vec<u8>,
    /// Content of the file; a new one for each writing, so that old data does not pass for new.
    content: Pattern,
    generation: u64,
}

impl<'t> Part<'t> {
    fn new(task: &'t IoTask, access: &'t Access) -> Part<'t> {
        let order = Order::of(&task.plan, task.rank);
        let buffer = vec![1; usize::try_from(order.transfer()).unwrap_or(0)];
        Part { task, access, order, buffer, content: Pattern::new(0), generation: 0 }
    }

    fn timed(&mut self, op: IoOp, barrier: &mut dyn Barrier) -> BenchResult<TimedPart> {
        let creates = op == IoOp::Write;
        if op != IoOp::Read {
            self.generation += 1;
            self.content = Pattern::new(self.generation);
        }
        // Outside of the time: making content costs more than writing it.
        self.content.fill(&mut self.buffer, 0);
        barrier.wait()?;
        let start_ns = clock::now_ns();
        if creates && (self.task.rank == 0 || self.task.plan.mode == Mode::Own) {
            self.create()?;
        }
        // Alone there is nobody else to see the file, and a barrier is a message there and back.
        if creates && self.task.plan.procs > 1 {
            barrier.wait()?;
        }
        let file = self.open(op != IoOp::Read)?;
        if op == IoOp::Read {
            self.read(&file)?
        } else {
            self.write(&file)?
        }
        // Closing counts: with some contracts content goes to its node only then.
        drop(file);
        let (what, units) = (op.name().to_owned(), self.order.bytes());
        Ok(TimedPart { what, units, start_ns, end_ns: clock::now_ns() })
    }

    fn path(&self) -> PathBuf {
        match self.task.plan.mode {
            Mode::Shared => self.task.dir.join("shared"),
            Mode::Own => self.task.dir.join(format!("own-{}", self.task.rank)),
        }
    }

    /// Writing again in a directory that has the file already begins with a new one, too.
    fn create(&self) -> BenchResult<()> {
        let path = self.path();
        let created = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        created.map(drop).map_err(BenchError::system(path.display()))
    }

    fn open(&self, write: bool) -> BenchResult<Open<'t>> {
        self.access.open(&self.path(), write)
    }

    fn write(&mut self, file: &Open<'_>) -> BenchResult<()> {
        for offset in self.order.offsets() {
            self.content.restamp(&mut self.buffer, offset);
            file.write(&self.buffer, offset)?;
        }
        Ok(())
    }

    fn read(&mut self, file: &Open<'_>) -> BenchResult<()> {
        self.order.offsets().try_for_each(|offset| file.read(&mut self.buffer, offset))
    }

    fn verify(&mut self) -> BenchResult<()> {
        let file = self.open(false)?;
        for offset in self.order.offsets() {
            file.read(&mut self.buffer, offset)?;
            if let Some(at) = self.content.mismatch(&self.buffer, offset) {
                let at = offset + at as u64;
                return Err(BenchError::refused(
                    self.path().display(),
                    format_args!("byte {at} is not what was written"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;
    use crate::io::tests::small;
    use crate::io::{Arrangement, IoPlan};
    use std::os::unix::fs::FileExt;

    fn work(dir: &std::path::Path, plan: &IoPlan) -> BenchResult<(Vec<TimedPart>, usize)> {
        let mut barrier = LoneProcess(0);
        let task = IoTask { dir: dir.to_owned(), rank: 0, plan: plan.clone() };
        perform(&crate::tests::host(), &task, &mut barrier).map(|timed| (timed, barrier.0))
    }

    #[test]
    fn every_part_is_timed_and_the_file_holds_the_last_writing() {
        let dir = tempfile::tempdir().unwrap();
        for arrangement in [Arrangement::Segmented, Arrangement::Random] {
            let plan = IoPlan { procs: 1, arrangement, ..small() };
            let (timed, barriers) = work(dir.path(), &plan).unwrap();
            let names: Vec<&str> = timed.iter().map(|timed| timed.what.as_str()).collect();
            assert_eq!((names, barriers), (vec!["write", "rewrite", "read"], 4));
            assert!(timed.iter().all(|timed| timed.units == 20_000 && timed.start_ns <= timed.end_ns));
            let content = std::fs::read(dir.path().join("shared")).unwrap();
            assert_eq!((content.len(), Pattern::new(2).mismatch(&content, 0)), (20_000, None));
        }
    }

    #[test]
    fn reading_alone_writes_first_and_times_only_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        let plan = IoPlan { procs: 1, mode: Mode::Own, ops: vec![IoOp::Read], ..small() };
        let (timed, _) = work(dir.path(), &plan).unwrap();
        assert_eq!(timed.iter().map(|timed| timed.what.as_str()).collect::<Vec<_>>(), ["read"]);
        assert_eq!(std::fs::metadata(dir.path().join("own-0")).unwrap().len(), 20_000);
    }

    #[test]
    fn several_processes_meet_once_more_when_they_create() {
        let dir = tempfile::tempdir().unwrap();
        // The other process's half is missing, but nobody reads it.
        let (_, barriers) = work(dir.path(), &small()).unwrap();
        assert_eq!(barriers, 5);
    }

    #[test]
    fn a_wrong_byte_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let plan = IoPlan { procs: 1, ..small() };
        let task = IoTask { dir: dir.path().to_owned(), rank: 0, plan };
        let mut part = Part::new(&task, &Access::Calls);
        part.timed(IoOp::Write, &mut LoneProcess(0)).unwrap();
        part.verify().unwrap();
        let file = std::fs::File::options().write(true).open(part.path()).unwrap();
        file.write_all_at(b"?!", 12_345).unwrap();
        assert!(part.verify().unwrap_err().to_string().ends_with("byte 12345 is not what was written"));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = work(std::path::Path::new("/nonexistent"), &small()).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/shared: "), "{error}");
    }
}
