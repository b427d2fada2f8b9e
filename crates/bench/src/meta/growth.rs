//! Filling one directory: one process's share, and how fast the whole grew.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::calls::create;
use crate::barrier::Barrier;
use crate::member_protocol::MemberTask;
use crate::{BenchError, BenchResult, clock};

/// Looks of a process at the clock, in parts of its share.
const MARKS: u64 = 200;

/// One process's part of the files of a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrowTask {
    /// The directory.
    pub dir: PathBuf,
    /// Number of the first file.
    pub first: u64,
    /// Number of files that it makes.
    pub files: u64,
}

impl MemberTask for GrowTask {
    const KIND: &'static str = "Grow";
}

/// Times at which numbers of a process's files were there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Time when it began, by the machine's clock.
    pub start_ns: u64,
    /// Files made since the mark before, and when.
    pub marks: Vec<(u64, u64)>,
}

/// Makes the files of a share.
pub fn perform(task: &GrowTask, barrier: &mut dyn Barrier) -> BenchResult<Growth> {
    let mut path = task.dir.join("file-").as_os_str().as_bytes().to_vec();
    let prefix = path.len();
    barrier.wait()?;
    let mut growth = Growth { start_ns: clock::now_ns(), marks: Vec::new() };
    let step = task.files.div_ceil(MARKS).max(1);
    for done in 1..=task.files {
        path.truncate(prefix);
        path.extend_from_slice((task.first + done - 1).to_string().as_bytes());
        let name = CString::new(path.as_slice()).map_err(|_| {
            BenchError::usage(task.dir.display(), "has a zero byte", "choose another directory")
        })?;
        let refused = |error| BenchError::refused(name.to_string_lossy(), format_args!("create: {error}"));
        create(&name, &[]).map_err(refused)?;
        // The last files as well, which may be less than a step.
        if done % step == 0 || done == task.files {
            let since = done - growth.marks.iter().map(|(count, _)| count).sum::<u64>();
            growth.marks.push((since, clock::now_ns()));
        }
    }
    Ok(growth)
}

/// Files per second of all processes together, while the first and while the last tenth of the directory was made.
#[must_use]
pub fn first_and_last(growths: &[Growth]) -> Option<(f64, f64)> {
    let start = growths.iter().map(|growth| growth.start_ns).min()?;
    let mut marks: Vec<(u64, u64)> =
        growths.iter().flat_map(|growth| &growth.marks).map(|(count, ns)| (*ns, *count)).collect();
    marks.sort_unstable();
    let total: u64 = marks.iter().map(|(_, count)| count).sum();
    let (end, _) = *marks.last()?;
    let mut there = 0;
    let counted: Vec<(u64, u64)> = marks
        .into_iter()
        .map(|(ns, count)| {
            there += count;
            (ns, there)
        })
        .collect();
    let (early, first) = *counted.iter().find(|(_, there)| *there * 10 >= total)?;
    let (late, before) = *counted.iter().rfind(|(_, there)| *there * 10 <= total * 9)?;
    let rate = |files: u64, ns: u64| crate::stats::per_second(files, ns);
    Some((rate(first, early.saturating_sub(start)), rate(total - before, end.saturating_sub(late))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;

    #[test]
    fn a_share_is_made_and_marked() {
        let dir = tempfile::tempdir().unwrap();
        let task = GrowTask { dir: dir.path().to_owned(), first: 100, files: 401 };
        let growth = perform(&task, &mut LoneProcess(0)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 401);
        assert!(dir.path().join("file-100").exists() && dir.path().join("file-500").exists());
        assert_eq!(growth.marks.iter().map(|(count, _)| count).sum::<u64>(), 401);
        assert!(growth.marks.is_sorted_by_key(|(_, ns)| *ns));
        let error = perform(&task, &mut LoneProcess(0)).unwrap_err().to_string();
        assert!(error.contains("file-100: create: "), "{error}");
    }

    #[test]
    fn tenths_are_those_of_the_whole_directory() {
        // Two processes: 1,000 files per second each at first, 500 in the last tenth.
        let second = 1_000_000_000;
        let mut marks: Vec<(u64, u64)> = (1..=9).map(|i| (100, i * second / 10)).collect();
        marks.push((50, second));
        marks.push((50, second * 11 / 10));
        let growth = Growth { start_ns: 0, marks };
        let (first, last) = first_and_last(&[growth.clone(), growth]).unwrap();
        assert!((first - 2000.0).abs() < 1e-6 && (last - 1000.0).abs() < 1e-6, "{first} {last}");
        assert_eq!(first_and_last(&[]), None);
        assert_eq!(first_and_last(&[Growth::default()]), None);
    }
}
