//! Size of the work, and checks that it makes sense.

use bivouac_types::units::format_size;
use serde::{Deserialize, Serialize};

use super::{Layout, MetaArgs, QUICK, USUAL};
use crate::BenchResult;
use crate::measure::{PROCS_MAX, in_range};
use crate::report::procs_name;

/// Most files of a process.
pub const FILES_MAX: u64 = 10_000_000;
/// Most bytes of a file.
const BYTES_MAX: u64 = 16 << 20;
/// Most levels of a tree.
const DEPTH_MAX: u64 = 16;
/// Most directories of a process.
const DIRS_MAX: u64 = 1_000_000;
/// Files in one directory of a tree, unless options say otherwise.
const FILES_PER_DIR: u64 = 100;

/// Plan of a repetition, known to all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaPlan {
    /// Number of processes.
    pub procs: u32,
    /// Files of a process.
    pub files: u32,
    /// Their distribution.
    pub layout: Layout,
    /// Levels of a tree's directories.
    pub depth: u32,
    /// Directories in each directory of a tree but the last ones, which hold the files.
    pub branch: u64,
    /// True if all processes use the same directories.
    pub shared: bool,
    /// Bytes of a file.
    pub bytes: u64,
    /// True if a file gets its bytes when it is made.
    pub filled: bool,
}

/// A plan for each number of processes.
///
/// # Errors
/// Options that are out of range.
pub fn plans(args: &MetaArgs) -> BenchResult<Vec<MetaPlan>> {
    let procs = match args.procs.as_slice() {
        [] if args.quick => QUICK.1.to_vec(),
        [] => USUAL.1.to_vec(),
        given => given.to_vec(),
    };
    procs.into_iter().map(|procs| plan(args, procs)).collect()
}

fn plan(args: &MetaArgs, procs: u32) -> BenchResult<MetaPlan> {
    let MetaArgs { layout, shared, bytes, depth, filled, .. } = *args;
    let files = args.files.unwrap_or(if args.quick { QUICK.0 } else { USUAL.0 });
    in_range("--procs", u64::from(procs), 1, PROCS_MAX)?;
    in_range("--files", u64::from(files), 1, FILES_MAX)?;
    in_range("--bytes", bytes, 0, BYTES_MAX)?;
    in_range("--depth", u64::from(depth), 1, DEPTH_MAX)?;
    let all = u64::from(files) * if shared { u64::from(procs) } else { 1 };
    let per_level = if depth == 1 { all.div_ceil(FILES_PER_DIR) } else { 2 };
    let branch = args.branch.unwrap_or(per_level);
    in_range("--branch", branch, 1, DIRS_MAX)?;
    let plan = MetaPlan { procs, files, layout, depth, branch, shared, bytes, filled };
    in_range("--branch and --depth make directories:", plan.directories(), 0, DIRS_MAX)?;
    Ok(plan)
}

impl MetaPlan {
    /// Directories of one tree.
    fn directories(&self) -> u64 {
        match self.layout {
            Layout::Single => 0,
            Layout::Tree => (1..=self.depth)
                .fold(0, |sum: u64, level| sum.saturating_add(self.branch.saturating_pow(level))),
        }
    }

    /// Units of a phase for all processes together.
    #[must_use]
    pub fn units(&self, what: &str) -> u64 {
        let procs = u64::from(self.procs);
        let files = u64::from(self.files) * procs;
        match what {
            "mkdir" | "rmdir" if self.shared => self.directories(),
            "mkdir" | "rmdir" => self.directories() * procs,
            // Each lists everybody's.
            "readdir" if self.shared && self.layout == Layout::Single => files * procs,
            _ => files,
        }
    }

    /// Title of a table; `all` are the plans in it, which differ by their processes.
    #[must_use]
    pub fn title(&self, all: &[MetaPlan], reps: u32) -> String {
        let layout = match self.layout {
            Layout::Single => "in a single directory".to_owned(),
            Layout::Tree if self.depth == 1 => "in a tree".to_owned(),
            Layout::Tree => format!("in a tree of {} levels", self.depth),
        };
        let sharing = if self.shared { "of all processes" } else { "of each process" };
        let procs: Vec<String> = all.iter().map(|plan| plan.procs.to_string()).collect();
        format!(
            "{} with {} files of {} each, {layout} {sharing}, {reps} repetitions",
            if *procs == ["1"] { procs_name(1) } else { format!("{} processes", procs.join(", ")) },
            self.files,
            format_size(self.bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{args, small};
    use super::*;

    fn one(text: &[&str]) -> BenchResult<MetaPlan> {
        plans(&args(text).unwrap()).map(|plans| plans[0].clone())
    }

    #[test]
    fn arguments_make_plans() {
        let defaults = one(&["/d"]).unwrap();
        assert_eq!((defaults.files, defaults.bytes, defaults.shared), (10_000, 3901, false));
        assert!(one(&["/d", "--shared", "--filled"]).is_ok_and(|plan| plan.shared && plan.filled));
        assert!(one(&["/d", "--files", "0"]).unwrap_err().to_string().starts_with("--files 0: "));
        assert!(one(&["/d", "--bytes", "1g"]).unwrap_err().to_string().starts_with("--bytes 1073741824: "));
        let several = plans(&args(&["/d", "--procs", "1,2,64"]).unwrap()).unwrap();
        assert_eq!(several.iter().map(|plan| plan.procs).collect::<Vec<_>>(), [1, 2, 64]);
        let quick = plans(&args(&["/d", "--quick"]).unwrap()).unwrap();
        assert_eq!(
            quick.iter().map(|plan| (plan.procs, plan.files)).collect::<Vec<_>>(),
            [(1, 500), (4, 500)]
        );
    }

    #[test]
    fn trees_have_their_size() {
        let flat = one(&["/d", "--layout", "tree", "--files", "250"]).unwrap();
        assert_eq!((flat.leaves(), flat.units("mkdir")), (3, 3));
        let deep = one(&["/d", "--layout", "tree", "--depth", "3", "--branch", "4", "--procs", "2"]).unwrap();
        assert_eq!((deep.leaves(), deep.units("mkdir")), (64, 2 * 84));
        let huge = one(&["/d", "--layout", "tree", "--depth", "16", "--branch", "9"]).unwrap_err();
        assert!(huge.to_string().starts_with("--branch and --depth make directories: "), "{huge}");
        assert!(one(&["/d", "--depth", "0"]).is_err());
    }

    #[test]
    fn everybody_lists_what_all_share() {
        let shared = MetaPlan { procs: 3, ..small(Layout::Single, true) };
        assert_eq!((shared.units("create"), shared.units("readdir")), (750, 2250));
        let own = MetaPlan { shared: false, ..shared };
        assert_eq!(own.units("readdir"), 750);
    }

    #[test]
    fn the_title_says_what_was_done() {
        let plan = small(Layout::Tree, true);
        assert_eq!(
            plan.title(std::slice::from_ref(&plan), 2),
            "1 process with 250 files of 3.8 KiB each, in a tree of all processes, 2 repetitions"
        );
    }
}
