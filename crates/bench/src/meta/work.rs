//! One process's part of making, looking at and removing files.

use std::ffi::{CStr, CString};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::MetaTask;
use super::places::Places;
use crate::pattern::Pattern;
use crate::task::Timed;
use crate::worker::Meet;
use crate::{BenchError, BenchResult, clock};

/// Bytes for the entries of one call.
const ENTRIES_LEN: usize = 32 << 10;

/// Does one process's part.
///
/// # Errors
/// What the file system refuses; a size, a number of entries or a byte that is not what it must be.
pub fn perform(task: &MetaTask, meet: &mut dyn Meet) -> BenchResult<Vec<Timed>> {
    let places = Places::of(task)?;
    let mut content = vec![0; usize::try_from(task.plan.bytes).unwrap_or(0)];
    Pattern::new(u64::from(task.rank)).fill(&mut content, 0);
    let mut buffer = vec![0; content.len() + 1];
    make_top(&places.top)?;
    let mut phases = Phases { meet, timed: Vec::new() };
    phases.each("mkdir", &places.made, |dir| rustix::fs::mkdirat(CWD, dir, Mode::RWXU))?;
    phases.each("create", &places.files, |file| {
        open(file, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).map(drop)
    })?;
    phases.each("stat", &places.files, |file| expect(0, size_by(file, AtFlags::STATX_FORCE_SYNC)?))?;
    phases.each("stat, cached", &places.files, |file| expect(0, size_by(file, AtFlags::empty())?))?;
    phases.each("write", &places.files, |file| {
        expect(content.len() as u64, rustix::io::write(open(file, OFlags::WRONLY)?, &content)? as u64)
    })?;
    phases.each("read", &places.files, |file| read(file, &mut buffer, &content))?;
    phases.readdir(task, &places)?;
    phases.each("remove", &places.files, |file| rustix::fs::unlink(file))?;
    phases.each("rmdir", &places.made, |dir| rustix::fs::rmdir(dir))?;
    Ok(phases.timed)
}

/// The phases, each behind a barrier; empty ones are left out of the outcome.
struct Phases<'m> {
    meet: &'m mut dyn Meet,
    timed: Vec<Timed>,
}

impl Phases<'_> {
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

    fn readdir(&mut self, task: &MetaTask, places: &Places) -> BenchResult<()> {
        let mut found = 0;
        self.phase("readdir", || {
            for dir in &places.listed {
                found += entries(dir).map_err(|error| failed("readdir", dir, error))?;
            }
            Ok(found)
        })?;
        let plan = &task.plan;
        let everybodys = plan.shared && plan.layout == super::Layout::Single;
        let expected = u64::from(plan.files) * if everybodys { u64::from(plan.procs) } else { 1 };
        // In a shared tree a process's directories hold files of others, so only the sum is known.
        let known = !(plan.shared && plan.layout == super::Layout::Tree && plan.procs > 1);
        if known && found != expected {
            let cause = format!("listed {found} entries instead of {expected}");
            return Err(BenchError::refused(places.top.to_string_lossy(), cause));
        }
        Ok(())
    }

    fn phase(&mut self, what: &str, act: impl FnOnce() -> BenchResult<u64>) -> BenchResult<()> {
        self.meet.barrier()?;
        let start_ns = clock::now_ns();
        let units = act()?;
        let end_ns = clock::now_ns();
        if units > 0 {
            self.timed.push(Timed { what: what.to_owned(), units, start_ns, end_ns });
        }
        Ok(())
    }
}

fn failed(what: &str, path: &CStr, error: Errno) -> BenchError {
    BenchError::refused(path.to_string_lossy(), format_args!("{what}: {error}"))
}

/// Where all processes share it, any of them makes it.
fn make_top(top: &CStr) -> BenchResult<()> {
    match rustix::fs::mkdirat(CWD, top, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(failed("mkdir", top, error)),
    }
}

fn open(file: &CStr, flags: OFlags) -> Result<std::os::fd::OwnedFd, Errno> {
    rustix::fs::open(file, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

fn size_by(file: &CStr, flags: AtFlags) -> Result<u64, Errno> {
    rustix::fs::statx(CWD, file, flags, StatxFlags::BASIC_STATS).map(|found| found.stx_size)
}

fn read(file: &CStr, buffer: &mut [u8], content: &[u8]) -> Result<(), Errno> {
    let descriptor = open(file, OFlags::RDONLY)?;
    let len = retry_on_intr(|| rustix::io::read(&descriptor, &mut *buffer))?;
    if buffer.get(..len) == Some(content) { Ok(()) } else { Err(Errno::IO) }
}

/// A wrong figure is an I/O error like any other.
fn expect(wanted: u64, found: u64) -> Result<(), Errno> {
    if wanted == found { Ok(()) } else { Err(Errno::IO) }
}

/// Number of entries, without `.` and `..`.
fn entries(dir: &CStr) -> Result<u64, Errno> {
    let descriptor = open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = Vec::with_capacity(ENTRIES_LEN);
    let mut listing = RawDir::new(descriptor, buffer.spare_capacity_mut());
    let mut count = 0;
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        count += u64::from(name != b"." && name != b"..");
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::tests::small;
    use crate::meta::{Layout, MetaPlan};
    use crate::worker::Alone;

    fn work(dir: &std::path::Path, plan: MetaPlan) -> BenchResult<Vec<(String, u64)>> {
        let task = MetaTask { dir: dir.to_owned(), rank: 0, plan };
        let timed = perform(&task, &mut Alone(0))?;
        assert!(timed.iter().all(|timed| timed.start_ns <= timed.end_ns));
        Ok(timed.into_iter().map(|timed| (timed.what, timed.units)).collect())
    }

    #[test]
    fn a_single_directory_goes_through_all_phases() {
        for shared in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let done = work(dir.path(), small(Layout::Single, shared)).unwrap();
            let names: Vec<&str> = done.iter().map(|(what, _)| what.as_str()).collect();
            assert_eq!(names, ["create", "stat", "stat, cached", "write", "read", "readdir", "remove"]);
            assert!(done.iter().all(|(_, units)| *units == 250));
        }
    }

    #[test]
    fn a_tree_also_makes_and_removes_directories() {
        let dir = tempfile::tempdir().unwrap();
        let done = work(dir.path(), small(Layout::Tree, false)).unwrap();
        assert_eq!(
            (done.first(), done.last()),
            (Some(&("mkdir".to_owned(), 3)), Some(&("rmdir".to_owned(), 3)))
        );
        assert!(done.contains(&("readdir".to_owned(), 250)));
        assert_eq!(std::fs::read_dir(dir.path().join("rank-0")).unwrap().count(), 0);
    }

    #[test]
    fn an_entry_too_many_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("all")).unwrap();
        std::fs::write(dir.path().join("all/alien"), b"").unwrap();
        let error = work(dir.path(), small(Layout::Single, true)).unwrap_err().to_string();
        assert!(error.ends_with("listed 251 entries instead of 250"), "{error}");
    }

    #[test]
    fn what_is_there_already_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("all")).unwrap();
        std::fs::write(dir.path().join("all/file-0-3"), b"").unwrap();
        let error = work(dir.path(), small(Layout::Single, true)).unwrap_err().to_string();
        assert!(error.contains("all/file-0-3: create: "), "{error}");
    }

    #[test]
    fn wrong_content_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"abc").unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        assert_eq!(read(&name, &mut [0; 4], b"abc"), Ok(()));
        assert_eq!(read(&name, &mut [0; 4], b"abd"), Err(Errno::IO));
        assert_eq!(read(&name, &mut [0; 4], b"ab"), Err(Errno::IO));
    }
}
