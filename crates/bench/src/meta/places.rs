//! Where the files of a process are.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Layout, MetaTask};
use crate::{BenchError, BenchResult};

/// Files in one directory of a tree.
const FILES_PER_DIR: u64 = 100;

/// Everything that one process makes, as the system wants names.
#[derive(Debug, PartialEq, Eq)]
pub struct Places {
    /// Its topmost directory, which is not timed. Others may make the same.
    pub top: CString,
    /// The directories that this process makes in it; none if files go there.
    pub made: Vec<CString>,
    /// The directories that this process lists.
    pub listed: Vec<CString>,
    /// Its files.
    pub files: Vec<CString>,
}

impl Places {
    /// All places of a process.
    ///
    /// # Errors
    /// For a directory whose name has a zero byte.
    pub fn of(task: &MetaTask) -> BenchResult<Places> {
        let MetaTask { dir, rank, plan } = task;
        let (rank, files, procs) = (u64::from(*rank), u64::from(plan.files), u64::from(plan.procs));
        let top = if plan.shared { dir.join("all") } else { dir.join(format!("rank-{rank}")) };
        let first = if plan.shared { rank * files } else { 0 };
        let all = if plan.shared { files * procs } else { files };
        let leaf = |number: u64| top.join(format!("d{number}"));
        let holder = |file: u64| match plan.layout {
            Layout::Single => top.clone(),
            Layout::Tree => leaf((first + file) / FILES_PER_DIR),
        };
        let paths = (0..files).map(|file| holder(file).join(format!("file-{rank}-{file}")));
        let mine = |number: &u64| !plan.shared || number % procs == rank;
        let made: Vec<CString> = match plan.layout {
            Layout::Single => Vec::new(),
            Layout::Tree => {
                (0..all.div_ceil(FILES_PER_DIR)).filter(mine).map(leaf).map(c).collect::<BenchResult<_>>()?
            }
        };
        let files = paths.map(c).collect::<BenchResult<_>>()?;
        let top = c(top)?;
        let listed =
            if made.is_empty() && plan.layout == Layout::Single { vec![top.clone()] } else { made.clone() };
        Ok(Places { top, made, listed, files })
    }
}

fn c(path: PathBuf) -> BenchResult<CString> {
    let zero =
        |_| BenchError::usage(path.display(), "has a zero byte in its name", "choose another directory");
    CString::new(path.as_os_str().as_bytes()).map_err(zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::MetaPlan;
    use crate::meta::tests::small;
    use std::collections::BTreeSet;

    fn places(rank: u32, plan: &MetaPlan) -> Places {
        Places::of(&MetaTask { dir: "/d".into(), rank, plan: plan.clone() }).unwrap()
    }

    fn text(path: &CString) -> &str {
        path.to_str().unwrap()
    }

    #[test]
    fn own_files_are_below_an_own_directory() {
        let single = places(1, &small(Layout::Single, false));
        assert_eq!((text(&single.top), single.made.len()), ("/d/rank-1", 0));
        assert_eq!(text(&single.files[7]), "/d/rank-1/file-1-7");
        assert_eq!(single.listed, std::slice::from_ref(&single.top));
        let tree = places(1, &small(Layout::Tree, false));
        assert_eq!(
            tree.made.iter().map(text).collect::<Vec<_>>(),
            ["/d/rank-1/d0", "/d/rank-1/d1", "/d/rank-1/d2"]
        );
        assert_eq!(text(&tree.files[249]), "/d/rank-1/d2/file-1-249");
    }

    #[test]
    fn shared_directories_are_made_once_and_hold_all_files() {
        let plan = MetaPlan { procs: 3, ..small(Layout::Tree, true) };
        let all: Vec<Places> = (0..3).map(|rank| places(rank, &plan)).collect();
        let made: Vec<&CString> = all.iter().flat_map(|places| &places.made).collect();
        let unique: BTreeSet<&CString> = made.iter().copied().collect();
        assert_eq!((made.len(), unique.len()), (8, 8));
        let holders: BTreeSet<String> = all
            .iter()
            .flat_map(|places| &places.files)
            .map(|file| text(file).rsplit_once('/').unwrap().0.to_owned())
            .collect();
        assert_eq!(holders, unique.iter().map(|dir| text(dir).to_owned()).collect());
        let files: BTreeSet<&CString> = all.iter().flat_map(|places| &places.files).collect();
        assert_eq!(files.len(), 750);
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let task = MetaTask { dir: "/a\0b".into(), rank: 0, plan: small(Layout::Single, true) };
        assert!(Places::of(&task).unwrap_err().to_string().contains("zero byte"));
    }
}
