//! One process's part of making, looking at and removing files.

use std::ffi::{CStr, CString};
use std::time::Duration;

use bivouac_types::limits::LEASE_MS;
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use super::MetaTask;
use super::calls::{create, entries, open, read, stat, write};
use super::places::{FileSpread, WorkloadPaths};
use crate::barrier::Barrier;
use crate::pattern::Pattern;
use crate::timed_part::TimedPart;
use crate::{BenchError, BenchResult, clock};

/// Files that are looked at again while the kernel may still cache what it was told of them: it may for some ten
/// milliseconds.
const ROUND: usize = 256;
/// After so long the kernel caches nothing of what it was told of files.
const FORGETS: Duration = Duration::from_millis(3 * LEASE_MS);

/// Does one process's part.
///
/// # Errors
/// What the file system refuses; a size, a number of entries or a byte that is not what it must be.
pub fn perform(task: &MetaTask, barrier: &mut dyn Barrier) -> BenchResult<Vec<TimedPart>> {
    let places = WorkloadPaths::of(task);
    let mut content = vec![0; usize::try_from(task.plan.bytes).unwrap_or(0)];
    Pattern::new(u64::from(task.rank)).fill(&mut content, 0);
    make_top(&places.top(FileSpread::Own)?)?;
    let mut phases = Phases { barrier, timed: Vec::new() };
    phases.make(task, &places, &content)?;
    phases.look(task, &places, &content)?;
    phases.remove(&places)?;
    Ok(phases.timed)
}

/// The phases, each behind a barrier; empty ones are left out of the outcome.
struct Phases<'m> {
    barrier: &'m mut dyn Barrier,
    timed: Vec<TimedPart>,
}

impl Phases<'_> {
    fn make(&mut self, task: &MetaTask, places: &WorkloadPaths<'_>, content: &[u8]) -> BenchResult<()> {
        self.each("mkdir", &places.made(FileSpread::Own)?, |dir| rustix::fs::mkdirat(CWD, dir, Mode::RWXU))?;
        let at_once = if task.plan.filled { content } else { &[] };
        self.each("create", &places.files(FileSpread::Own)?, |file| create(file, at_once))
    }

    fn look(&mut self, task: &MetaTask, places: &WorkloadPaths<'_>, content: &[u8]) -> BenchResult<()> {
        let files = places.files(FileSpread::Next)?;
        let size = if task.plan.filled { content.len() } else { 0 };
        // Everybody has made files before the wait begins in which kernels forget them.
        self.barrier.wait()?;
        clock::pass(FORGETS);
        self.each("stat", &files, |file| stat(file, size))?;
        self.again("stat, cached", &files, |file| stat(file, size))?;
        if !task.plan.filled {
            self.each("write", &places.files(FileSpread::Own)?, |file| write(file, content))?;
        }
        self.each("open", &files, |file| open(file, rustix::fs::OFlags::RDONLY).map(drop))?;
        // With room for one byte more, in which a file that is longer than it should be shows.
        let mut buffer = vec![0; content.len() + 1];
        self.each("read", &files, |file| read(file, &mut buffer, content))?;
        self.list(&places.listed(FileSpread::Next)?)
    }

    /// Lists directories. The leader compares what all processes list together with what there is.
    fn list(&mut self, dirs: &[CString]) -> BenchResult<()> {
        self.phase("readdir", || {
            let mut found = 0;
            for dir in dirs {
                found += entries(dir).map_err(|error| failed("readdir", dir, error))?;
            }
            Ok(found)
        })
    }

    fn remove(&mut self, places: &WorkloadPaths<'_>) -> BenchResult<()> {
        self.each("remove", &places.files(FileSpread::Own)?, |file| rustix::fs::unlink(file))?;
        let children_first: Vec<CString> = places.made(FileSpread::Own)?.into_iter().rev().collect();
        self.each("rmdir", &children_first, |dir| rustix::fs::rmdir(dir))?;
        self.barrier.wait()?;
        // Through the next mount, whose kernel has looked at these files: stale entries would be counted here.
        let top = places.top(FileSpread::Next)?;
        match entries(&top) {
            Ok(0) => Ok(()),
            Ok(left) => Err(BenchError::refused(
                top.to_string_lossy(),
                format_args!("{left} removed files are listed"),
            )),
            Err(error) => Err(failed("readdir", &top, error)),
        }
    }

    fn each(
        &mut self,
        what: &str,
        paths: &[CString],
        mut act: impl FnMut(&CStr) -> Result<(), Errno>,
    ) -> BenchResult<()> {
        self.phase(what, || {
            for path in paths {
                act(path).map_err(|error| failed(what, path, error))?;
            }
            Ok(paths.len() as u64)
        })
    }

    /// Does it twice, a round of files at a time, and times the second.
    fn again(
        &mut self,
        what: &str,
        paths: &[CString],
        mut act: impl FnMut(&CStr) -> Result<(), Errno>,
    ) -> BenchResult<()> {
        self.barrier.wait()?;
        let (start_ns, mut spent_ns) = (clock::now_ns(), 0);
        for round in paths.chunks(ROUND) {
            let mut all =
                || round.iter().try_for_each(|path| act(path).map_err(|error| failed(what, path, error)));
            all()?;
            let second = clock::now_ns();
            all()?;
            spent_ns += clock::now_ns().saturating_sub(second);
        }
        let units = paths.len() as u64;
        self.timed.push(TimedPart { what: what.to_owned(), units, start_ns, end_ns: start_ns + spent_ns });
        Ok(())
    }

    fn phase(&mut self, what: &str, act: impl FnOnce() -> BenchResult<u64>) -> BenchResult<()> {
        self.barrier.wait()?;
        let start_ns = clock::now_ns();
        let units = act()?;
        let end_ns = clock::now_ns();
        if units > 0 {
            self.timed.push(TimedPart { what: what.to_owned(), units, start_ns, end_ns });
        }
        Ok(())
    }
}

fn failed(what: &str, path: &CStr, error: Errno) -> BenchError {
    BenchError::refused(path.to_string_lossy(), format_args!("{what}: {error}"))
}

/// Makes the top directory; where all processes share it, any of them does.
fn make_top(top: &CStr) -> BenchResult<()> {
    match rustix::fs::mkdirat(CWD, top, Mode::RWXU) {
        // All processes of a shared directory make it.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(failed("mkdir", top, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;
    use crate::meta::tests::small;
    use crate::meta::{Layout, MetaPlan};

    fn work(dir: &std::path::Path, plan: MetaPlan) -> BenchResult<Vec<(String, u64)>> {
        let task = MetaTask { dirs: vec![dir.to_owned()], rank: 0, plan };
        let timed = perform(&task, &mut LoneProcess(0))?;
        assert!(timed.iter().all(|timed| timed.start_ns <= timed.end_ns));
        Ok(timed.into_iter().map(|timed| (timed.what, timed.units)).collect())
    }

    #[test]
    fn a_single_directory_goes_through_all_phases() {
        for shared in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let done = work(dir.path(), small(Layout::Single, shared)).unwrap();
            let names: Vec<&str> = done.iter().map(|(what, _)| what.as_str()).collect();
            let all = ["create", "stat", "stat, cached", "write", "open", "read", "readdir", "remove"];
            assert_eq!(names, all);
            assert!(done.iter().all(|(_, units)| *units == 250));
        }
    }

    #[test]
    fn files_can_be_filled_when_they_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let done = work(dir.path(), MetaPlan { filled: true, ..small(Layout::Single, false) }).unwrap();
        let names: Vec<&str> = done.iter().map(|(what, _)| what.as_str()).collect();
        assert_eq!(names, ["create", "stat", "stat, cached", "open", "read", "readdir", "remove"]);
    }

    #[test]
    fn a_tree_also_makes_and_removes_directories() {
        for (depth, branch, dirs) in [(1, 3, 3), (2, 4, 20)] {
            let dir = tempfile::tempdir().unwrap();
            let done = work(dir.path(), MetaPlan { depth, branch, ..small(Layout::Tree, false) }).unwrap();
            let of = |what: &str| done.iter().find(|(name, _)| name == what).unwrap().1;
            assert_eq!((of("mkdir"), of("rmdir"), of("readdir")), (dirs, dirs, 250));
            assert_eq!(std::fs::read_dir(dir.path().join("rank-0")).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_is_left_behind_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("all")).unwrap();
        std::fs::write(dir.path().join("all/alien"), b"").unwrap();
        let error = work(dir.path(), small(Layout::Single, true)).unwrap_err().to_string();
        assert!(error.ends_with("1 removed files are listed"), "{error}");
    }

    #[test]
    fn what_is_there_already_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("all")).unwrap();
        std::fs::write(dir.path().join("all/file-0-3"), b"").unwrap();
        let error = work(dir.path(), small(Layout::Single, true)).unwrap_err().to_string();
        assert!(error.contains("all/file-0-3: create: "), "{error}");
    }
}
