//! A plain file as a way: the limit of what is local.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::FileTask;
use super::copy::{CopyMethod, Outcome, copy};
use crate::barrier::Barrier;
use crate::{BenchError, BenchResult};

/// Does the part of a process with a plain file.
pub fn perform_file(task: &FileTask, barrier: &mut dyn Barrier) -> BenchResult<Outcome> {
    let path = task.dir.join("data");
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(BenchError::system(path.display()))?;
    let clone = |_| file.try_clone().map_err(BenchError::system(path.display()));
    let mut ways = (0..task.plan.streams).map(clone).collect::<BenchResult<Vec<_>>>()?;
    copy(&task.plan, &mut ways, barrier)
}

impl CopyMethod for File {
    fn write(&mut self, offset: u64, data: &[u8]) -> BenchResult<()> {
        self.write_all_at(data, offset).map_err(BenchError::system("the plain file"))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> BenchResult<()> {
        self.read_exact_at(into, offset).map_err(BenchError::system("the plain file"))
    }

    fn ping(&mut self) -> BenchResult<()> {
        self.metadata().map(drop).map_err(BenchError::system("the plain file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;
    use crate::net::tests::small;

    #[test]
    fn a_plain_file_holds_what_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let task = FileTask { dir: dir.path().to_owned(), plan: small() };
        let outcome = perform_file(&task, &mut LoneProcess(0)).unwrap();
        assert_eq!((outcome.timed.len(), outcome.latencies_ns.len()), (3, 3));
        assert_eq!(std::fs::metadata(dir.path().join("data")).unwrap().len(), 65_536);
        assert!(perform_file(&task, &mut LoneProcess(0)).is_err(), "it is there already");
    }
}
