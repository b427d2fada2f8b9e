//! The copy of a tree, step by step: look, make directories, copy files, link, date directories, put in place.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blake3::{Hash, Hasher};
use rustix::io::Errno;

use crate::engine::{Copied, Engine};
use crate::meta::copy_xattrs;
use crate::scan::{Entry, Kind, Plan, scan};
use crate::target::{Target, sync, sync_dir};
use crate::{Cause, CopyOptions, Failure, Progress, Skipped, StageError, Summary};

/// Copies the file or directory `src`; the copy gets the path `dst`, whose missing parents are made.
///
/// # Errors
/// [`StageError::Root`] if nothing could be begun, [`StageError::Incomplete`] with a list of what was not
/// copied, [`StageError::Cancelled`] once the options' flag is set.
pub fn copy_tree(
    src: &Path,
    dst: &Path,
    opts: &CopyOptions,
    progress: &dyn Progress,
) -> Result<Summary, StageError> {
    let source = fs::canonicalize(src).map_err(|error| root_failure("look at it", src, error))?;
    // What a link at the target stands for is replaced or merged, not the link.
    let dst = &fs::canonicalize(dst).unwrap_or_else(|_| dst.to_owned());
    refuse_overlap(&source, dst).map_err(StageError::Root)?;
    let mut plan = scan(source, opts);
    if opts.cancelled() {
        return Err(StageError::Cancelled);
    }
    if plan.entries.is_empty() {
        return Err(StageError::Root(nothing(&mut plan)));
    }
    progress.found(plan.totals);
    let target = Target::open(dst, plan.is_dir(), opts.overwrite).map_err(StageError::Root)?;
    let mut tally = Tally { failures: std::mem::take(&mut plan.failures), ..Tally::default() };
    tally.summary.skipped = std::mem::take(&mut plan.skipped);
    Run { engine: Engine { opts, progress, plan: &plan, target: &target }, tally: &mut tally }.steps();
    if opts.cancelled() {
        return Err(StageError::Cancelled);
    }
    if let Err(failure) = target.commit() {
        return Err(StageError::Root(failure));
    }
    tally.result(&plan)
}

/// What has been copied and what has not.
#[derive(Default)]
struct Tally {
    summary: Summary,
    failures: Vec<Failure>,
    /// Content of what is in place, by number of the entry.
    contents: BTreeMap<usize, Hash>,
}

impl Tally {
    fn fail(&mut self, doing: &'static str, path: &Path, error: io::Error) {
        self.failures.push(Failure::io(doing, path, error));
    }

    fn add_files(&mut self, copied: Copied) {
        for (number, size, digest) in copied.files {
            self.summary.files += 1;
            self.summary.bytes = self.summary.bytes.saturating_add(size);
            self.contents.insert(number, digest);
        }
        self.summary.skipped.extend(copied.skipped);
        self.failures.extend(copied.failures.into_iter().filter(|f| !matches!(f.cause, Cause::Cancelled)));
    }

    fn result(mut self, plan: &Plan) -> Result<Summary, StageError> {
        self.summary.digest = *tree_digest(plan, &self.contents).as_bytes();
        self.summary.skipped.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        self.failures.sort_by(|a, b| a.path.cmp(&b.path));
        let Tally { summary, failures, .. } = self;
        if failures.is_empty() {
            Ok(summary)
        } else {
            Err(StageError::Incomplete { summary: Box::new(summary), failures })
        }
    }
}

fn tree_digest(plan: &Plan, contents: &BTreeMap<usize, Hash>) -> Hash {
    let mut hasher = Hasher::new();
    for (number, content) in contents {
        let Some(entry) = plan.entries.get(*number) else { continue };
        let kind = match entry.kind {
            Kind::Dir => 0u8,
            Kind::File | Kind::HardLink(_) => 1,
            Kind::Symlink => 2,
            Kind::Fifo => 3,
        };
        let path = entry.path.as_os_str().as_bytes();
        hasher.update(&[kind]).update(&(path.len() as u64).to_le_bytes()).update(path);
        hasher.update(content.as_bytes());
    }
    hasher.finalize()
}

/// The steps of one copy. Each goes on after failures of single objects.
struct Run<'a, 'b> {
    engine: Engine<'a>,
    tally: &'b mut Tally,
}

impl<'a> Run<'a, '_> {
    fn steps(&mut self) {
        let dirs = self.make_dirs();
        let usable = |entry: &Entry| {
            let parent = entry.path.parent();
            parent.is_none_or(|parent| dirs.contains_key(parent))
        };
        let plan: &'a Plan = self.engine.plan;
        let entries = || plan.entries.iter().enumerate().filter(|(_, entry)| usable(entry));
        let files = entries().filter(|(_, entry)| entry.kind == Kind::File).map(|(number, _)| number);
        let copied = self.engine.copy_files(files);
        self.tally.add_files(copied);
        for (number, entry) in entries() {
            if self.engine.opts.cancelled() {
                return;
            }
            match entry.kind {
                Kind::Symlink => self.symlink(number, entry),
                Kind::Fifo => self.fifo(number, entry),
                Kind::Dir | Kind::File | Kind::HardLink(_) => {}
            }
        }
        self.hard_links(entries().filter_map(|(number, entry)| match entry.kind {
            Kind::HardLink(first) => Some((number, entry, first)),
            _ => None,
        }));
        self.finish_dirs(&dirs);
    }

    /// Makes the directories. Returns those that exist now, and whether they are new.
    fn make_dirs(&mut self) -> HashMap<&'a Path, bool> {
        let mut dirs = HashMap::new();
        let plan: &'a Plan = self.engine.plan;
        for (number, entry) in plan.entries.iter().enumerate().filter(|(_, entry)| entry.kind == Kind::Dir) {
            if entry.path.parent().is_some_and(|parent| !dirs.contains_key(parent)) {
                continue;
            }
            match self.engine.target.dir(&entry.path) {
                Ok(new) => {
                    dirs.insert(entry.path.as_path(), new);
                    self.tally.summary.dirs += u64::from(new);
                    self.tally.contents.insert(number, Hash::from_bytes([0; 32]));
                }
                Err(error) => {
                    self.tally.fail("make it and what is in it", &self.place(entry), error);
                }
            }
        }
        dirs
    }

    fn symlink(&mut self, number: usize, entry: &Entry) {
        let source = self.engine.plan.source(entry);
        let to = match fs::read_link(&source) {
            Ok(to) => to,
            Err(error) => return self.tally.fail("read the link", &source, error),
        };
        let target = self.engine.target;
        let made = target.symlink(&entry.path, &to).and_then(|draft| {
            entry.attrs.apply_at(draft.path())?;
            target.put(draft)
        });
        match made {
            Ok(()) => {
                self.tally.summary.links += 1;
                self.tally.contents.insert(number, blake3::hash(to.as_os_str().as_bytes()));
            }
            Err(error) => self.tally.fail("make the link", &self.place(entry), error),
        }
    }

    fn fifo(&mut self, number: usize, entry: &Entry) {
        let target = self.engine.target;
        let made = target.fifo(&entry.path).and_then(|draft| {
            entry.attrs.apply_at(draft.path())?;
            target.put(draft)
        });
        match made {
            Ok(()) => {
                self.tally.summary.fifos += 1;
                self.tally.contents.insert(number, Hash::from_bytes([0; 32]));
            }
            Err(error) => self.tally.fail("make the pipe", &self.place(entry), error),
        }
    }

    /// Makes further names of files; copies where the target has no hard links.
    fn hard_links(&mut self, links: impl Iterator<Item = (usize, &'a Entry, usize)>) {
        let mut to_copy = Vec::new();
        for (number, entry, first) in links {
            let (Some(of), Some(content)) =
                (self.engine.plan.entries.get(first), self.tally.contents.get(&first).copied())
            else {
                let cause = Cause::Conflict("is another name of a file that could not be copied");
                self.tally.failures.push(Failure::new(&self.engine.plan.source(entry), cause));
                continue;
            };
            let target = self.engine.target;
            match target.hard_link(&entry.path, &of.path).and_then(|draft| target.put(draft)) {
                Ok(()) => {
                    self.tally.summary.hard_links += 1;
                    self.tally.contents.insert(number, content);
                }
                Err(error) if no_links(&error) => to_copy.push(number),
                Err(error) => self.tally.fail("make the hard link", &self.place(entry), error),
            }
        }
        let copied = self.engine.copy_files(to_copy);
        self.tally.add_files(copied);
    }

    /// Gives new directories their attributes, what is inside before what is around it, and makes all last.
    fn finish_dirs(&mut self, dirs: &HashMap<&Path, bool>) {
        let plan: &'a Plan = self.engine.plan;
        for entry in plan.entries.iter().rev() {
            if self.engine.opts.cancelled() {
                return;
            }
            let Some(new) = dirs.get(entry.path.as_path()).filter(|_| entry.kind == Kind::Dir) else {
                continue;
            };
            let finished =
                if *new { self.dress_dir(entry) } else { sync_dir(&self.engine.target.path(&entry.path)) };
            if let Err(error) = finished {
                self.tally.fail("set attributes", &self.place(entry), error);
            }
        }
    }

    fn dress_dir(&mut self, entry: &Entry) -> io::Result<()> {
        let source = self.engine.plan.source(entry);
        let made = File::open(self.engine.target.path(&entry.path))?;
        let refused = match File::open(&source) {
            Ok(from) => copy_xattrs(&from, &made)?,
            // That it cannot be looked into is among the failures already.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Err(error),
        };
        let skipped = refused.into_iter().map(|what| Skipped { path: source.clone(), what });
        self.tally.summary.skipped.extend(skipped);
        entry.attrs.apply(&made)?;
        sync(&made)
    }

    fn place(&self, entry: &Entry) -> PathBuf {
        self.engine.target.place(&entry.path)
    }
}

fn no_links(error: &io::Error) -> bool {
    let numbers = [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::MLINK, Errno::XDEV];
    error.raw_os_error().is_some_and(|number| numbers.iter().any(|e| e.raw_os_error() == number))
}

/// A copy into itself would never end, or replace what is to be read.
fn refuse_overlap(source: &Path, dst: &Path) -> Result<(), Failure> {
    let refuse = |what| Err(Failure::new(dst, Cause::Conflict(what)));
    let existing = dst.ancestors().find_map(|above| {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        fs::canonicalize(above).ok()
    });
    match existing {
        Some(above) if above == source => refuse("is the source or would be inside it; name another target"),
        Some(above) if source.is_dir() && above.starts_with(source) => {
            refuse("is inside the source; name another target")
        }
        _ => Ok(()),
    }
}

fn nothing(plan: &mut Plan) -> Failure {
    let what =
        Cause::Conflict("is a socket or a device; only files, directories, links and pipes are copied");
    plan.failures.pop().unwrap_or_else(|| Failure::new(&plan.root, what))
}

fn root_failure(doing: &'static str, path: &Path, error: io::Error) -> StageError {
    StageError::Root(Failure::io(doing, path, error))
}
