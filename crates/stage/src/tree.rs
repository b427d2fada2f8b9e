//! The copy of a tree, step by step: look, make directories, copy files, link, date directories, put in place.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blake3::{Hash, Hasher};
use rustix::io::Errno;

use crate::baseline::Baseline;
use crate::compare::still_right;
use crate::engine::{Copied, Engine};
use crate::group::{Durability, Storage, shares_files};
use crate::journal::{Nowhere, Past, Recorder, control};
use crate::line::{Line, LineKind};
use crate::meta::{Mark, copy_xattrs};
use crate::room;
use crate::scan::{Entry, Kind, Plan, scan};
use crate::straight;
use crate::tag::Tag;
use crate::target::{Manner, Spot, Target, containing, missing_parents, sync, sync_dir};
use crate::{Cause, CopyOptions, Failure, Progress, Side, Skipped, StageError, Summary, Totals};

/// Copies the file or directory `src`; the copy gets the path `dst`, whose missing parents are made. When it is
/// interrupted, everything temporary is removed.
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
    let (past, tag) = (Past::default(), Tag::draw());
    let way = Way {
        recorder: &Nowhere,
        past: &past,
        tag: &tag,
        is_resumable: false,
        baseline: None,
        is_followed: false,
        known: None,
    };
    copy_one(src, dst, opts, progress, &way)
}

/// How a copy goes on from an earlier one, and lets a later one go on.
pub(crate) struct Way<'a> {
    pub(crate) recorder: &'a dyn Recorder,
    pub(crate) past: &'a Past,
    pub(crate) tag: &'a Tag,
    pub(crate) is_resumable: bool,
    /// Only what changed since is copied.
    pub(crate) baseline: Option<&'a Baseline>,
    /// Whether the path in the formation has no links any more that were to be followed: one in the end is meant
    /// itself.
    pub(crate) is_followed: bool,
    /// What the bytes at the source should be, where that is known.
    pub(crate) known: Option<&'a Baseline>,
}

impl Way<'_> {
    /// Writes down what must be known before it is done.
    fn note(&self, lines: &str) -> Result<(), StageError> {
        let failed = |error| root_failure("write", Path::new("the job's journal"), error);
        self.recorder.note(lines).map_err(failed)
    }
}

/// As [`copy_tree`], going on from what is known.
pub(crate) fn copy_one(
    src: &Path,
    dst: &Path,
    opts: &CopyOptions,
    progress: &dyn Progress,
    way: &Way<'_>,
) -> Result<Summary, StageError> {
    let is_followed = |side| way.is_followed && opts.side == side;
    let source = match is_followed(Side::Source) {
        true => straight::look(src).map(|_| src.to_owned()),
        false => fs::canonicalize(src),
    };
    let source = source.map_err(|error| root_failure("look at it", src, error))?;
    // What a link at the target stands for is replaced or merged, not the link.
    let dst = &if is_followed(Side::Target) { dst.to_owned() } else { straight::canonical(dst) };
    refuse_overlap(&source, dst).map_err(StageError::Root)?;
    let mut plan = scan(source, opts, way.baseline);
    if opts.cancelled() {
        return Err(StageError::Cancelled);
    }
    let mut tally = Tally { failures: std::mem::take(&mut plan.failures), ..Tally::default() };
    tally.summary.skipped = std::mem::take(&mut plan.skipped);
    tally.summary.unchanged = plan.unchanged;
    tally.summary.deleted = std::mem::take(&mut plan.deleted);
    progress.found(plan.totals);
    way.note(&format!("#scan\t{}\t{}\n", plan.totals.files, plan.totals.bytes))?;
    if plan.entries.is_empty() {
        return if plan.unchanged > 0 {
            tally.result(&plan)
        } else {
            Err(StageError::Root(nothing(tally, &plan)))
        };
    }
    if opts.checks_room {
        room::check(&plan, way.past, dst).map_err(StageError::Root)?;
    }
    let target = open_target(dst, &plan, opts, way)?;
    let durability = Durability::of(target.anchor(), opts.side == Side::Target, plan.totals.files);
    let storage = match durability {
        Durability::Together => Some(Storage::open(target.anchor())),
        Durability::Acknowledged | Durability::Each => None,
    };
    let storage = storage.transpose().map_err(|error| root_failure("open it", target.anchor(), error))?;
    let (recorder, past, is_resumable) = (way.recorder, way.past, way.is_resumable);
    let splits = shares_files(target.anchor());
    let engine = Engine {
        opts,
        progress,
        plan: &plan,
        target: &target,
        recorder,
        past,
        known: way.known,
        is_resumable,
        durability,
        splits,
        storage,
    };
    Run { engine: &engine, tally: &mut tally, lines: String::new() }.steps();
    if opts.cancelled() {
        return Err(StageError::Cancelled);
    }
    if let Some(storage) = engine.storage {
        storage.sync().map_err(|error| root_failure("write to stable storage", target.anchor(), error))?;
    }
    target.commit().map_err(StageError::Root)?;
    tally.result(&plan)
}

/// Prepares the target; what could be left by an interruption is written down first.
fn open_target(dst: &Path, plan: &Plan, opts: &CopyOptions, way: &Way<'_>) -> Result<Target, StageError> {
    let above: String = missing_parents(dst).iter().map(|dir| control("above", dir)).collect();
    way.note(&(above + &control("dir", containing(dst).unwrap_or(dst))))?;
    let manner = Manner { overwrite: opts.overwrite, is_resumable: way.is_resumable, tag: way.tag.clone() };
    Target::open(dst, plan.is_dir(), &manner).map_err(StageError::Root)
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

    fn add_file(&mut self, number: usize, size: u64, digest: Hash) {
        self.summary.files += 1;
        self.summary.bytes = self.summary.bytes.saturating_add(size);
        self.contents.insert(number, digest);
    }

    fn add_files(&mut self, copied: Copied) {
        copied.files.into_iter().for_each(|(number, size, digest)| self.add_file(number, size, digest));
        self.summary.verified += copied.verified;
        self.summary.already = self.summary.already.plus(Totals { files: 0, bytes: copied.already });
        self.summary.skipped.extend(copied.skipped);
        self.failures.extend(copied.failures.into_iter().filter(|f| !matches!(f.cause, Cause::Cancelled)));
    }

    fn result(mut self, plan: &Plan) -> Result<Summary, StageError> {
        let entry = |number: &usize| plan.entries.get(*number);
        let contents = self.contents.iter().filter_map(|(number, content)| Some((entry(number)?, content)));
        let digest =
            tree_digest(contents.map(|(entry, content)| (entry.kind, entry.path.as_path(), content)));
        self.summary.digest = *digest.as_bytes();
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

/// Digest of kinds, names and contents, in the order of names.
pub(crate) fn tree_digest<'a>(entries: impl Iterator<Item = (Kind, &'a Path, &'a Hash)>) -> Hash {
    let mut hasher = Hasher::new();
    for (kind, path, content) in entries {
        let kind = match kind {
            Kind::Dir => 0u8,
            Kind::File | Kind::HardLink(_) => 1,
            Kind::Symlink => 2,
            Kind::Fifo => 3,
        };
        let path = path.as_os_str().as_bytes();
        hasher.update(&[kind]).update(&(path.len() as u64).to_le_bytes()).update(path);
        hasher.update(content.as_bytes());
    }
    hasher.finalize()
}

/// The steps of one copy. Each goes on after failures of single objects.
struct Run<'a, 'b> {
    engine: &'a Engine<'a>,
    tally: &'b mut Tally,
    /// For the journal.
    lines: String,
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
        let there: Vec<usize> = entries().filter(|(_, entry)| self.is_there(entry)).map(|(n, _)| n).collect();
        let already: HashSet<usize> = if self.engine.opts.verify {
            let right = still_right(self.engine, &there);
            self.tally.summary.verified += right.len() as u64;
            right
        } else {
            there.into_iter().collect()
        };
        entries()
            .filter(|(number, _)| already.contains(number))
            .for_each(|(n, entry)| self.add_there(n, entry));
        let files = entries().filter(|(number, entry)| entry.kind == Kind::File && !already.contains(number));
        let copied = self.engine.copy_files(files.map(|(number, _)| number));
        self.tally.add_files(copied);
        for (number, entry) in entries() {
            if self.engine.opts.cancelled() {
                break;
            }
            match entry.kind {
                Kind::Symlink => self.symlink(number, entry),
                Kind::Fifo => self.fifo(number, entry),
                Kind::Dir | Kind::File | Kind::HardLink(_) => {}
            }
        }
        self.flush();
        self.hard_links(entries().filter_map(|(number, entry)| match entry.kind {
            Kind::HardLink(first) => Some((number, entry, first)),
            _ => None,
        }));
        self.finish_dirs(&dirs);
        self.flush();
    }

    fn spot(&self) -> &'a Spot {
        &self.engine.target.spot
    }

    /// Writes down what was done.
    fn flush(&mut self) {
        if let Err(error) = self.engine.recorder.note(&std::mem::take(&mut self.lines)) {
            self.tally.fail("write", Path::new("the job's journal"), error);
        }
    }

    /// Notes that an object is in place.
    fn done(&mut self, number: usize, kind: LineKind, content: Hash, more: &Path) {
        self.tally.contents.insert(number, content);
        let Some(entry) = self.engine.plan.entries.get(number) else { return };
        let at = self.spot().path(&entry.path);
        let target = straight::look(&at).ok().map(|meta| Mark::of(&meta));
        let digest = (kind == LineKind::HardLink).then_some(content);
        let line = Line::of(kind, &entry.stamp, &entry.path);
        self.lines.push_str(&Line { target, digest, more: more.to_owned(), ..line }.encode());
    }

    /// Whether an interrupted copy completed a file, and neither it nor its source seems to have changed since.
    fn is_there(&self, entry: &Entry) -> bool {
        let Some(line) = self.engine.past.lines.get(&entry.path) else { return false };
        let (Some(_), LineKind::File) = (line.digest, line.kind) else { return false };
        let stamp = &entry.stamp;
        let same_source =
            (line.source, line.size, line.mtime) == (Some(stamp.mark), stamp.size, stamp.attrs.mtime);
        let same_target = || {
            let there = straight::look(&self.spot().path(&entry.path)).ok()?;
            let same = there.is_file()
                && there.len() == line.size
                && line.target.map(|mark| mark.ino) == Some(Mark::of(&there).ino);
            Some(same)
        };
        entry.kind == Kind::File && same_source && same_target() == Some(true)
    }

    /// Counts what an interrupted copy completed.
    fn add_there(&mut self, number: usize, entry: &Entry) {
        let Some(line) = self.engine.past.lines.get(&entry.path) else { return };
        let Some(digest) = line.digest else { return };
        self.tally.add_file(number, line.size, digest);
        let one = Totals { files: 1, bytes: line.size };
        self.tally.summary.already = self.tally.summary.already.plus(one);
        self.engine.progress.already(one);
    }

    /// Makes the directories. Returns those that exist now, and whether they are new.
    fn make_dirs(&mut self) -> HashMap<&'a Path, bool> {
        let mut dirs = HashMap::new();
        let plan: &'a Plan = self.engine.plan;
        let mut noted = String::new();
        for entry in plan.entries.iter().filter(|entry| entry.kind == Kind::Dir) {
            if entry.path.parent().is_some_and(|parent| !dirs.contains_key(parent)) {
                continue;
            }
            match self.spot().dir(&entry.path) {
                Ok(new) => {
                    let made_before = self.engine.past.made.contains(&entry.path);
                    dirs.insert(entry.path.as_path(), new || made_before);
                    self.tally.summary.dirs += u64::from(new);
                    if !self.spot().is_staged() {
                        noted.push_str(&control("dir", &self.spot().path(&entry.path)));
                    }
                    if new {
                        noted.push_str(&control("made", &entry.path));
                    }
                }
                Err(error) => {
                    self.tally.fail("make it and what is in it", &self.place(entry), error);
                }
            }
        }
        self.lines.push_str(&noted);
        self.flush();
        dirs
    }

    fn symlink(&mut self, number: usize, entry: &Entry) {
        let source = self.engine.plan.source(entry);
        let to = match straight::read_link(&source) {
            Ok(to) => to,
            Err(error) => return self.tally.fail("read the link", &source, error),
        };
        let spot = self.spot();
        let made = spot.symlink(&entry.path, &to).and_then(|draft| {
            entry.stamp.attrs.apply_at(draft.path())?;
            spot.put(draft)
        });
        match made {
            Ok(_) => {
                self.tally.summary.links += 1;
                self.done(number, LineKind::Symlink, blake3::hash(to.as_os_str().as_bytes()), &to);
            }
            Err(error) => self.tally.fail("make the link", &self.place(entry), error),
        }
    }

    fn fifo(&mut self, number: usize, entry: &Entry) {
        let spot = self.spot();
        let made = spot.fifo(&entry.path).and_then(|draft| {
            entry.stamp.attrs.apply_at(draft.path())?;
            spot.put(draft)
        });
        match made {
            Ok(_) => {
                self.tally.summary.fifos += 1;
                self.done(number, LineKind::Fifo, Hash::from_bytes([0; 32]), Path::new(""));
            }
            Err(error) => self.tally.fail("make the pipe", &self.place(entry), error),
        }
    }

    /// Makes further names of files. Where links do not reach a copy, one name becomes another copy, and the rest are tried
    /// with that; where the target has no links at all, each name becomes one.
    fn hard_links(&mut self, links: impl Iterator<Item = (usize, &'a Entry, usize)>) {
        let mut links: Vec<_> = links.collect();
        let mut copies: HashMap<usize, Vec<usize>> = HashMap::new();
        while !links.is_empty() && !self.engine.opts.cancelled() {
            let (mut to_copy, mut unreached) = (Vec::new(), Vec::new());
            for link in links {
                let (number, entry, first) = link;
                let of = copies.entry(first).or_insert_with(|| vec![first]);
                match self.hard_link(number, entry, of) {
                    Ok(()) => {}
                    Err(error) if no_reach(&error) => unreached.push(link),
                    Err(error) if no_links(&error) => to_copy.push(number),
                    Err(error) => self.tally.fail("make the hard link", &self.place(entry), error),
                }
            }
            // One name of each file, so that every round has fewer.
            let mut chosen = HashMap::new();
            unreached.retain(|(number, _, first)| *chosen.entry(*first).or_insert(*number) != *number);
            to_copy.extend(chosen.values());
            let copied = self.engine.copy_files(to_copy);
            self.tally.add_files(copied);
            for (first, number) in chosen {
                let is_there = self.tally.contents.contains_key(&number);
                copies.entry(first).or_default().extend(is_there.then_some(number));
            }
            links = unreached;
        }
    }

    /// Makes a name of one of the copies of a file, the latest that can be reached.
    fn hard_link(&mut self, number: usize, entry: &Entry, copies: &[usize]) -> io::Result<()> {
        let mut unreached = io::Error::from(Errno::XDEV);
        for copy in copies.iter().rev() {
            let (Some(of), Some(content)) =
                (self.engine.plan.entries.get(*copy), self.tally.contents.get(copy).copied())
            else {
                let cause = Cause::Conflict("is another name of a file that could not be copied");
                self.tally.failures.push(Failure::new(&self.engine.plan.source(entry), cause));
                return Ok(());
            };
            let spot = self.spot();
            match spot.hard_link(&entry.path, &of.path).and_then(|draft| spot.put(draft)) {
                Ok(_) => {
                    self.tally.summary.hard_links += 1;
                    self.done(number, LineKind::HardLink, content, &of.path);
                    return Ok(());
                }
                Err(error) if no_reach(&error) => unreached = error,
                Err(error) => return Err(error),
            }
        }
        Err(unreached)
    }

    /// Gives new directories their attributes, what is inside before what is around it, and makes all last.
    fn finish_dirs(&mut self, dirs: &HashMap<&Path, bool>) {
        let plan: &'a Plan = self.engine.plan;
        for (number, entry) in plan.entries.iter().enumerate().rev() {
            if self.engine.opts.cancelled() {
                return;
            }
            let Some(new) = dirs.get(entry.path.as_path()).filter(|_| entry.kind == Kind::Dir) else {
                continue;
            };
            let finished = if *new { self.dress_dir(entry) } else { self.sync_dir(entry) };
            match finished {
                Ok(()) => self.done(number, LineKind::Dir, Hash::from_bytes([0; 32]), Path::new("")),
                Err(error) => self.tally.fail("set attributes", &self.place(entry), error),
            }
        }
    }

    fn dress_dir(&mut self, entry: &Entry) -> io::Result<()> {
        let source = self.engine.plan.source(entry);
        let made = straight::open_dir(&self.spot().path(&entry.path))?;
        let refused = match straight::open_dir(&source) {
            Ok(from) => copy_xattrs(&from, &made)?,
            // That it cannot be looked into is among the failures already.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Err(error),
        };
        let skipped = refused.into_iter().map(|what| Skipped { path: source.clone(), what });
        self.tally.summary.skipped.extend(skipped);
        entry.stamp.attrs.apply(&made)?;
        if self.syncs_dirs() { sync(&made) } else { Ok(()) }
    }

    fn sync_dir(&self, entry: &Entry) -> io::Result<()> {
        if self.syncs_dirs() { sync_dir(&self.spot().path(&entry.path)) } else { Ok(()) }
    }

    /// Where everything is made safe together at the end, so are the directories.
    fn syncs_dirs(&self) -> bool {
        self.engine.durability == Durability::Each
    }

    fn place(&self, entry: &Entry) -> PathBuf {
        self.spot().place(&entry.path)
    }
}

/// Whether there are no hard links at all.
pub(crate) fn no_links(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS])
}

/// Whether another copy may have what this one cannot: it is elsewhere, or has as many names as it can have.
pub(crate) fn no_reach(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::XDEV, Errno::MLINK])
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    error.raw_os_error().is_some_and(|number| errnos.iter().any(|errno| errno.raw_os_error() == number))
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

fn nothing(mut tally: Tally, plan: &Plan) -> Failure {
    let what =
        Cause::Conflict("is a socket or a device; only files, directories, links and pipes are copied");
    tally.failures.pop().unwrap_or_else(|| Failure::new(&plan.root, what))
}

fn root_failure(doing: &'static str, path: &Path, error: io::Error) -> StageError {
    StageError::Root(Failure::io(doing, path, error))
}
