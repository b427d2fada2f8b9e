//! Paths of the files of a process.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Layout, MetaPlan, MetaTask};
use crate::{BenchError, BenchResult};

/// Through which of several mounts a process goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSpread {
    /// The one through which it makes, writes and removes.
    Own,
    /// The next one, whose kernel side knows nothing of what this process made: where it looks and reads.
    Next,
}

/// Everything that one process makes, as the system wants names. Paths are made when they are asked for, before
/// the clock runs: those of all phases together would take more memory than what is measured.
#[derive(Debug)]
pub struct WorkloadPaths<'t> {
    task: &'t MetaTask,
}

impl<'t> WorkloadPaths<'t> {
    /// The places of a process.
    #[must_use]
    pub fn of(task: &'t MetaTask) -> WorkloadPaths<'t> {
        WorkloadPaths { task }
    }

    /// Its topmost directory, which is not timed. Others may make the same.
    ///
    /// # Errors
    /// For a directory whose name has a zero byte.
    pub fn top(&self, way: FileSpread) -> BenchResult<CString> {
        c(self.top_path(way))
    }

    /// The directories that this process makes, parents first; none if files go into the topmost.
    pub fn made(&self, way: FileSpread) -> BenchResult<Vec<CString>> {
        let MetaTask { rank, plan, .. } = self.task;
        if plan.layout == Layout::Single {
            return Ok(Vec::new());
        }
        // Of a tree that all share, each process makes whole branches.
        let is_mine = |n: &u64| !plan.shared || n % u64::from(plan.procs) == u64::from(*rank);
        let top = self.top_path(way);
        let mut level: Vec<PathBuf> = (0..plan.branch).filter(is_mine).map(|n| top.join(name(n))).collect();
        let mut made = level.clone();
        for _ in 1..plan.depth {
            let below = |dir: PathBuf| (0..plan.branch).map(move |n| dir.join(name(n)));
            level = level.into_iter().flat_map(below).collect();
            made.extend_from_slice(&level);
        }
        made.into_iter().map(c).collect()
    }

    /// The directories that this process lists.
    pub fn listed(&self, way: FileSpread) -> BenchResult<Vec<CString>> {
        match self.task.plan.layout {
            Layout::Single => Ok(vec![self.top(way)?]),
            Layout::Tree => self.made(way),
        }
    }

    /// Its files.
    pub fn files(&self, way: FileSpread) -> BenchResult<Vec<CString>> {
        let MetaTask { rank, plan, .. } = self.task;
        let top = self.top_path(way);
        let first = if plan.shared { u64::from(*rank) * u64::from(plan.files) } else { 0 };
        let (leaves, all) = (plan.leaves(), plan.sharing().max(1));
        let path = |file: u64| {
            let leaf = u128::from(first + file) * u128::from(leaves) / u128::from(all);
            plan.leaf(&top, leaf as u64).join(format!("file-{rank}-{file}"))
        };
        (0..u64::from(plan.files)).map(path).map(c).collect()
    }

    fn top_path(&self, way: FileSpread) -> PathBuf {
        let MetaTask { dirs, rank, plan } = self.task;
        let turn = *rank as usize + usize::from(way == FileSpread::Next);
        let dir = dirs.get(turn % dirs.len().max(1)).cloned().unwrap_or_default();
        if plan.shared { dir.join("all") } else { dir.join(format!("rank-{rank}")) }
    }
}

impl MetaPlan {
    /// Files of all processes that share their directories.
    fn sharing(&self) -> u64 {
        u64::from(self.files) * if self.shared { u64::from(self.procs) } else { 1 }
    }

    /// Directories that hold files, in each of which there are about as many.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        match self.layout {
            Layout::Single => 1,
            Layout::Tree => self.branch.saturating_pow(self.depth).max(1),
        }
    }

    /// A directory that holds files: the digits of its number are the names on the way to it.
    fn leaf(&self, top: &Path, number: u64) -> PathBuf {
        let levels = if self.layout == Layout::Single { 0 } else { self.depth };
        let branch = self.branch.max(1);
        let digit = |level: u32| number / branch.saturating_pow(level) % branch;
        (0..levels).rev().fold(top.to_owned(), |dir, level| dir.join(name(digit(level))))
    }
}

fn name(number: u64) -> String {
    format!("d{number}")
}

fn c(path: PathBuf) -> BenchResult<CString> {
    let zero =
        |_| BenchError::usage(path.display(), "has a zero byte in its name", "choose another directory");
    CString::new(path.as_os_str().as_bytes()).map_err(zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::tests::small;
    use std::collections::BTreeSet;

    fn task(rank: u32, plan: &MetaPlan) -> MetaTask {
        MetaTask { dirs: vec!["/d".into(), "/e".into()], rank, plan: plan.clone() }
    }

    fn texts(paths: BenchResult<Vec<CString>>) -> Vec<String> {
        paths.unwrap().into_iter().map(|path| path.into_string().unwrap()).collect()
    }

    fn parent(path: &str) -> String {
        path.rsplit_once('/').unwrap().0.to_owned()
    }

    #[test]
    fn own_files_are_below_an_own_directory() {
        let single = task(2, &small(Layout::Single, false));
        let single = WorkloadPaths::of(&single);
        assert_eq!(single.top(FileSpread::Own).unwrap().to_str(), Ok("/d/rank-2"));
        assert_eq!(texts(single.made(FileSpread::Own)), Vec::<String>::new());
        assert_eq!(texts(single.files(FileSpread::Own))[7], "/d/rank-2/file-2-7");
        assert_eq!(texts(single.listed(FileSpread::Own)), ["/d/rank-2"]);
        let tree = task(2, &small(Layout::Tree, false));
        let tree = WorkloadPaths::of(&tree);
        assert_eq!(texts(tree.made(FileSpread::Own)), ["/d/rank-2/d0", "/d/rank-2/d1", "/d/rank-2/d2"]);
        assert_eq!(texts(tree.files(FileSpread::Own))[249], "/d/rank-2/d2/file-2-249");
    }

    #[test]
    fn looking_goes_through_the_next_mount() {
        let plan = small(Layout::Tree, false);
        for (rank, own, next) in [(0, "/d", "/e"), (1, "/e", "/d"), (2, "/d", "/e")] {
            let task = task(rank, &plan);
            let places = WorkloadPaths::of(&task);
            let at = |way| texts(places.files(way))[0].clone();
            assert_eq!(at(FileSpread::Own), format!("{own}/rank-{rank}/d0/file-{rank}-0"));
            assert_eq!(at(FileSpread::Next), format!("{next}/rank-{rank}/d0/file-{rank}-0"));
        }
        let alone = MetaTask { dirs: vec!["/d".into()], ..task(0, &plan) };
        let places = WorkloadPaths::of(&alone);
        assert_eq!(texts(places.files(FileSpread::Next)), texts(places.files(FileSpread::Own)));
    }

    #[test]
    fn a_deep_tree_has_its_files_in_the_leaves() {
        let plan = MetaPlan { depth: 3, branch: 2, ..small(Layout::Tree, false) };
        let task = task(0, &plan);
        let places = WorkloadPaths::of(&task);
        let made = texts(places.made(FileSpread::Own));
        assert_eq!((made.len(), plan.leaves()), (2 + 4 + 8, 8));
        for (at, dir) in made.iter().enumerate() {
            let known = parent(dir) == "/d/rank-0" || made[..at].contains(&parent(dir));
            assert!(known, "{dir} comes behind its parent");
        }
        let holders: BTreeSet<String> =
            texts(places.files(FileSpread::Own)).iter().map(|file| parent(file)).collect();
        assert_eq!(holders, made[6..].iter().cloned().collect());
    }

    #[test]
    fn shared_directories_are_made_once_and_hold_all_files() {
        for (depth, branch) in [(1, 8), (2, 3)] {
            let plan = MetaPlan { procs: 3, depth, branch, ..small(Layout::Tree, true) };
            let tasks: Vec<MetaTask> =
                (0..3).map(|rank| MetaTask { dirs: vec!["/d".into()], ..task(rank, &plan) }).collect();
            let all = |of: fn(&WorkloadPaths<'_>) -> BenchResult<Vec<CString>>| -> Vec<String> {
                tasks.iter().flat_map(|task| texts(of(&WorkloadPaths::of(task)))).collect()
            };
            let made = all(|places| places.made(FileSpread::Own));
            let unique: BTreeSet<String> = made.iter().cloned().collect();
            assert_eq!(made.len(), unique.len());
            let files = all(|places| places.files(FileSpread::Own));
            let holders: BTreeSet<String> = files.iter().map(|file| parent(file)).collect();
            assert!(holders.is_subset(&unique) && holders.len() as u64 == plan.leaves());
            assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), 750);
        }
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let task = MetaTask { dirs: vec!["/a\0b".into()], rank: 0, plan: small(Layout::Single, true) };
        assert!(WorkloadPaths::of(&task).top(FileSpread::Own).unwrap_err().to_string().contains("zero byte"));
    }
}
