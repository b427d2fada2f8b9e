//! Copy of a tree: scan, create directories, copy files, create links, set directory attributes, rename.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blake3::{Hash, Hasher};
use rustix::io::Errno;

use crate::baseline::Baseline;
use crate::engine::{CopyResults, Engine};
use crate::error::{Cause, Failure, StageError};
use crate::journal::{NullRecorder, Recorder, TransferHistory, control};
use crate::manifest_line::{Line, LineKind};
use crate::meta::{InodeVersion, MetadataStamp, copy_xattrs};
use crate::nofollow;
use crate::options::{CopyOptions, FormationSide};
use crate::paths::{below, containing};
use crate::progress::Progress;
use crate::resumed_files::verify_resumed;
use crate::scan::{Entry, ObjectKind, Plan, scan};
use crate::space_check;
use crate::summary::{Skipped, Summary, Totals};
use crate::sync_group::{Durability, SyncedFs, shares_files};
use crate::target::{CopyTarget, TargetOptions, TargetWriter, missing_parents, sync, sync_dir};
use crate::temporary::temporary_path;
use crate::temporary_tag::Tag;

/// Reason why a tree is not replaced.
const STRANGER: &str =
    "is in the way: it is not part of what replaces its directory, and did not come from here; move it away";

/// Copies the file or directory `src` to the path `dst`, whose missing parents are created. When it is interrupted,
/// everything temporary is removed.
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
    let (past, tag) = (TransferHistory::default(), Tag::random());
    let context = CopyContext {
        recorder: &NullRecorder,
        past: &past,
        tag: &tag,
        is_resumable: false,
        baseline: None,
        is_followed: false,
        known: None,
        set: None,
        settled: None,
    };
    copy_one(src, dst, opts, progress, &context)
}

/// Recorded state of an earlier run, and the recorder of this one.
pub(crate) struct CopyContext<'a> {
    pub(crate) recorder: &'a dyn Recorder,
    pub(crate) past: &'a TransferHistory,
    pub(crate) tag: &'a Tag,
    pub(crate) is_resumable: bool,
    /// Baseline: only changes since are copied.
    pub(crate) baseline: Option<&'a Baseline>,
    /// True if the links of the path in the formation have been resolved; a link at its end is copied as a link.
    pub(crate) is_followed: bool,
    /// Known digests of the source's content.
    pub(crate) known: Option<&'a Baseline>,
    /// For a set: what the target has from this formation. The set replaces its target as a whole if it is unchanged at
    /// the end.
    pub(crate) set: Option<&'a Baseline>,
    /// The state in which a set was found.
    pub(crate) settled: Option<&'a QuiescentSet<'a>>,
}

/// State of a set in which no application was writing to it.
pub(crate) struct QuiescentSet<'a> {
    /// Its objects, in the order of a plan.
    pub(crate) objects: &'a [(PathBuf, MetadataStamp)],
    /// Returns whether nothing writes to it; evaluated at each call.
    pub(crate) is_at_rest: &'a dyn Fn() -> bool,
}

impl QuiescentSet<'_> {
    /// Refuses a source that differs from this state or is being written to.
    fn check(&self, plan: &Plan) -> Result<(), Failure> {
        let now = plan.entries.iter().map(|entry| (&entry.path, &entry.stamp));
        let is_same = now.eq(self.objects.iter().map(|(path, stamp)| (path, stamp)));
        let is_settled = is_same && (self.is_at_rest)();
        if is_settled { Ok(()) } else { Err(Failure::new(&plan.root, Cause::Changed)) }
    }
}

impl CopyContext<'_> {
    /// Records a step before it is taken.
    fn note(&self, lines: &str) -> Result<(), StageError> {
        let failed = |error| root_failure("write", Path::new("the job's journal"), error);
        self.recorder.note(lines).map_err(failed)
    }
}

/// Like [`copy_tree`], continuing from recorded state.
pub(crate) fn copy_one(
    src: &Path,
    dst: &Path,
    opts: &CopyOptions,
    progress: &dyn Progress,
    context: &CopyContext<'_>,
) -> Result<Summary, StageError> {
    let is_followed = |side| context.is_followed && opts.side == side;
    let source = match is_followed(FormationSide::Source) {
        true => nofollow::lstat(src).map(|_| src.to_owned()),
        false => fs::canonicalize(src),
    };
    let source = source.map_err(|error| root_failure("look at it", src, error))?;
    let is_link = context.set.is_some() && nofollow::lstat(&source).is_ok_and(|seen| seen.is_symlink());
    // A link at the target is followed, so that its target is replaced or merged; but a link replaces a link.
    let dst = &match (is_followed(FormationSide::Target), dst.file_name()) {
        (true, _) => dst.to_owned(),
        (false, Some(name)) if is_link => nofollow::canonical(containing(dst).unwrap_or(dst)).join(name),
        (false, _) => nofollow::canonical(dst),
    };
    refuse_overlap(&source, dst).map_err(StageError::Root)?;
    let mut plan = scan(source, opts, context.baseline);
    if opts.cancelled() {
        return Err(StageError::Cancelled);
    }
    let mut outcome = CopyOutcome { failures: std::mem::take(&mut plan.failures), ..CopyOutcome::default() };
    outcome.summary.skipped = std::mem::take(&mut plan.skipped);
    outcome.summary.unchanged = plan.unchanged;
    outcome.summary.deleted = std::mem::take(&mut plan.deleted);
    progress.found(plan.totals);
    context.note(&format!("#scan\t{}\t{}\n", plan.totals.files, plan.totals.bytes))?;
    if plan.entries.is_empty() {
        return if plan.unchanged > 0 {
            outcome.result(&plan, opts.verify)
        } else {
            Err(StageError::Root(nothing(outcome, &plan)))
        };
    }
    let check_settled = || context.settled.map_or(Ok(()), |settled| settled.check(&plan));
    check_settled().map_err(StageError::Root)?;
    if opts.checks_room {
        // The replaced tree keeps its space until the set is complete.
        let written = if context.set.is_some() { temporary_path(dst, context.tag) } else { dst.clone() };
        space_check::check(&plan, context.past, &written).map_err(StageError::Root)?;
    }
    let target = open_target(dst, &plan, opts, context)?;
    let refuse_strangers = |tree: &Path| refuse_strangers(tree, dst, &plan, context);
    target.replaced().map_or(Ok(()), &refuse_strangers).map_err(StageError::Root)?;
    let durability = Durability::of(target.anchor(), opts.side == FormationSide::Target, plan.totals.files);
    let storage = match durability {
        Durability::SyncFs => Some(SyncedFs::open(target.anchor())),
        Durability::Acknowledged | Durability::Fsync => None,
    };
    let storage = storage.transpose().map_err(|error| root_failure("open it", target.anchor(), error))?;
    let (recorder, past, is_resumable) = (context.recorder, context.past, context.is_resumable);
    let splits = shares_files(target.anchor());
    let engine = Engine {
        opts,
        progress,
        plan: &plan,
        target: &target,
        recorder,
        past,
        known: context.known,
        is_resumable,
        durability,
        splits,
        storage,
    };
    TreeCopy { engine: &engine, outcome: &mut outcome, lines: String::new() }.steps();
    if opts.cancelled() {
        return Err(StageError::Cancelled);
    }
    if let Some(storage) = engine.storage {
        storage.sync().map_err(|error| root_failure("write to stable storage", target.anchor(), error))?;
    }
    if context.set.is_some() && target.writer.is_staged() {
        // Writers first, then the scan: a writer that has closed its file between the two has changed its times.
        let failure = check_settled().err().or_else(|| change_of(&plan, opts));
        outcome.failures.extend(failure);
        // A cancelled scan is incomplete and proves nothing.
        if opts.cancelled() {
            return Err(StageError::Cancelled);
        }
        if !outcome.failures.is_empty() {
            return outcome.result(&plan, opts.verify);
        }
        target.replaced().map_or(Ok(()), &refuse_strangers).map_err(StageError::Root)?;
    }
    // Checked again after the exchange: files that were added to the old tree until then would be removed with it.
    target.commit_over(&refuse_strangers).map_err(StageError::Root)?;
    outcome.result(&plan, opts.verify)
}

/// Returns the first object of a source that has changed since its scan.
fn change_of(plan: &Plan, opts: &CopyOptions) -> Option<Failure> {
    let mut now = scan(plan.root.clone(), opts, None);
    if let Some(failure) = now.failures.pop() {
        return Some(failure);
    }
    let same =
        |then: &Entry, now: &Entry| (&then.path, then.kind, then.stamp) == (&now.path, now.kind, now.stamp);
    let mut pairs = plan.entries.iter().zip(&now.entries);
    let changed = pairs.find(|(then, now)| !same(then, now)).map(|(then, _)| then);
    let changed =
        changed.or_else(|| plan.entries.first().filter(|_| plan.entries.len() != now.entries.len()));
    changed.map(|entry| Failure::new(&plan.source(entry), Cause::Changed))
}

/// Refuses to replace `tree`, which is or was at `place`, if it contains an object that is neither in the new tree nor
/// known to come from the formation: it would be lost.
fn refuse_strangers(
    tree: &Path,
    place: &Path,
    plan: &Plan,
    context: &CopyContext<'_>,
) -> Result<(), Failure> {
    let Some(known) = context.set else { return Ok(()) };
    let ours: HashSet<&Path> = plan.entries.iter().map(|entry| entry.path.as_path()).collect();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let at = below(tree, &path);
        if !ours.contains(path.as_path()) && !known.contains(&path) {
            return Err(Failure::new(&below(place, &path), Cause::Conflict(STRANGER)));
        }
        let looked = nofollow::lstat(&at)
            .and_then(|seen| if seen.is_dir() { nofollow::read_dir(&at) } else { Ok(Vec::new()) });
        let names = looked.map_err(|error| Failure::io("look at it", &at, error))?;
        left.extend(names.iter().map(|name| path.join(name)));
    }
    Ok(())
}

/// Prepares the target. Names that an interruption could leave are recorded first.
fn open_target(
    dst: &Path,
    plan: &Plan,
    opts: &CopyOptions,
    context: &CopyContext<'_>,
) -> Result<CopyTarget, StageError> {
    let above: String = missing_parents(dst).iter().map(|dir| control("above", dir)).collect();
    context.note(&(above + &control("dir", containing(dst).unwrap_or(dst))))?;
    let (replaces, tag) = (context.set.is_some(), context.tag.clone());
    let options =
        TargetOptions { overwrite: opts.overwrite, is_resumable: context.is_resumable, replaces, tag };
    CopyTarget::open(dst, plan.is_dir(), &options).map_err(StageError::Root)
}

/// Objects copied so far, and failures.
#[derive(Default)]
struct CopyOutcome {
    summary: Summary,
    failures: Vec<Failure>,
    /// Content digest of each complete object, by entry number.
    contents: BTreeMap<usize, Hash>,
}

impl CopyOutcome {
    fn fail(&mut self, doing: &'static str, path: &Path, error: io::Error) {
        self.failures.push(Failure::io(doing, path, error));
    }

    fn add_file(&mut self, number: usize, size: u64, digest: Hash) {
        self.summary.files += 1;
        self.summary.bytes = self.summary.bytes.saturating_add(size);
        let earlier = self.contents.insert(number, digest);
        assert!(earlier.is_none(), "a file was copied twice");
    }

    fn add_files(&mut self, copied: CopyResults) {
        copied.files.into_iter().for_each(|(number, size, digest)| self.add_file(number, size, digest));
        self.summary.verified += copied.verified;
        self.summary.already = self.summary.already.plus(Totals { files: 0, bytes: copied.already });
        self.summary.skipped.extend(copied.skipped);
        // A cancelled copy is reported as such, and not for each file that it did not reach.
        self.failures.extend(copied.failures.into_iter().filter(|f| !matches!(f.cause, Cause::Cancelled)));
    }

    fn result(mut self, plan: &Plan, verify: bool) -> Result<Summary, StageError> {
        let entry = |number: &usize| plan.entries.get(*number);
        let contents = self.contents.iter().filter_map(|(number, content)| Some((entry(number)?, content)));
        let digest =
            tree_digest(contents.map(|(entry, content)| (entry.kind, entry.path.as_path(), content)));
        self.summary.digest = *digest.as_bytes();
        // Workers end in any order; copies of one tree are to have one report.
        self.summary.skipped.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        self.failures.sort_by(|a, b| a.path.cmp(&b.path));
        let CopyOutcome { summary, failures, contents } = self;
        // A copy that reports success has every object of its plan, each file verified if that was requested.
        let is_complete = failures.is_empty();
        assert!(!is_complete || contents.len() == plan.entries.len(), "a complete copy lacks an object");
        assert!(
            !is_complete || !verify || summary.verified == summary.files,
            "a complete copy has unverified files"
        );
        if is_complete {
            Ok(summary)
        } else {
            Err(StageError::Incomplete { summary: Box::new(summary), failures })
        }
    }
}

/// Returns the digest of types, names and contents, in the order of names.
pub(crate) fn tree_digest<'a>(entries: impl Iterator<Item = (ObjectKind, &'a Path, &'a Hash)>) -> Hash {
    let mut hasher = Hasher::new();
    for (kind, path, content) in entries {
        // The numbers and the order are part of the digest and must not change.
        let kind = match kind {
            ObjectKind::Dir => 0u8,
            ObjectKind::File | ObjectKind::HardLink(_) => 1,
            ObjectKind::Symlink => 2,
            ObjectKind::Fifo => 3,
        };
        let path = path.as_os_str().as_bytes();
        hasher.update(&[kind]).update(&(path.len() as u64).to_le_bytes()).update(path);
        hasher.update(content.as_bytes());
    }
    hasher.finalize()
}

/// The steps of one copy. Each continues after failures of single objects.
struct TreeCopy<'a, 'b> {
    engine: &'a Engine<'a>,
    outcome: &'b mut CopyOutcome,
    /// Lines to be written to the journal.
    lines: String,
}

impl<'a> TreeCopy<'a, '_> {
    fn steps(&mut self) {
        let dirs = self.make_dirs();
        let usable = |entry: &Entry| {
            let parent = entry.path.parent();
            parent.is_none_or(|parent| dirs.contains_key(parent))
        };
        let plan: &'a Plan = self.engine.plan;
        let entries = || plan.entries.iter().enumerate().filter(|(_, entry)| usable(entry));
        let there: Vec<usize> = entries().filter(|(_, entry)| self.is_there(entry)).map(|(n, _)| n).collect();
        // The journal records what was renamed; whether it survived a crash shows only its content.
        let already: HashSet<usize> = if self.engine.opts.verify {
            let right = verify_resumed(self.engine, &there);
            self.outcome.summary.verified += right.len() as u64;
            right
        } else {
            there.into_iter().collect()
        };
        entries()
            .filter(|(number, _)| already.contains(number))
            .for_each(|(n, entry)| self.add_there(n, entry));
        let files =
            entries().filter(|(number, entry)| entry.kind == ObjectKind::File && !already.contains(number));
        let copied = self.engine.copy_files(files.map(|(number, _)| number));
        self.outcome.add_files(copied);
        for (number, entry) in entries() {
            if self.engine.opts.cancelled() {
                break;
            }
            match entry.kind {
                ObjectKind::Symlink => self.symlink(number, entry),
                ObjectKind::Fifo => self.fifo(number, entry),
                ObjectKind::Dir | ObjectKind::File | ObjectKind::HardLink(_) => {}
            }
        }
        self.flush();
        self.hard_links(entries().filter_map(|(number, entry)| match entry.kind {
            ObjectKind::HardLink(first) => Some((number, entry, first)),
            _ => None,
        }));
        // Last: what is made in a directory changes its times, and its mode may forbid to make anything.
        self.finish_dirs(&dirs);
        self.flush();
    }

    fn writer(&self) -> &'a TargetWriter {
        &self.engine.target.writer
    }

    /// Writes the collected lines to the journal.
    fn flush(&mut self) {
        if let Err(error) = self.engine.recorder.note(&std::mem::take(&mut self.lines)) {
            self.outcome.fail("write", Path::new("the job's journal"), error);
        }
    }

    /// Records a complete object.
    fn done(&mut self, number: usize, kind: LineKind, content: Hash, more: &Path) {
        self.outcome.contents.insert(number, content);
        let Some(entry) = self.engine.plan.entries.get(number) else { return };
        let at = self.writer().path(&entry.path);
        let target = nofollow::lstat(&at).ok().map(|meta| InodeVersion::of(&meta));
        let digest = (kind == LineKind::HardLink).then_some(content);
        let line = Line::of(kind, &entry.stamp, &entry.path);
        self.lines.push_str(&Line { target, digest, more: more.to_owned(), ..line }.encode());
    }

    /// Returns whether an interrupted copy has completed a file, and neither it nor its source has changed since.
    fn is_there(&self, entry: &Entry) -> bool {
        let Some(line) = self.engine.past.lines.get(&entry.path) else { return false };
        let (Some(_), LineKind::File) = (line.digest, line.kind) else { return false };
        let stamp = &entry.stamp;
        let same_source =
            (line.source, line.size, line.mtime) == (Some(stamp.version), stamp.size, stamp.attrs.mtime);
        let same_target = || {
            let there = nofollow::lstat(&self.writer().path(&entry.path)).ok()?;
            let same = there.is_file()
                && there.len() == line.size
                // The number alone: a rename to the final name, or a further hard link, has changed the ctime since.
                && line.target.map(|version| version.ino) == Some(InodeVersion::of(&there).ino);
            Some(same)
        };
        entry.kind == ObjectKind::File && same_source && same_target() == Some(true)
    }

    /// Counts a file that an interrupted copy has completed.
    fn add_there(&mut self, number: usize, entry: &Entry) {
        let Some(line) = self.engine.past.lines.get(&entry.path) else { return };
        let Some(digest) = line.digest else { return };
        self.outcome.add_file(number, line.size, digest);
        let one = Totals { files: 1, bytes: line.size };
        self.outcome.summary.already = self.outcome.summary.already.plus(one);
        self.engine.progress.already(one);
    }

    /// Creates the directories. Returns those that exist now, and whether they are new.
    fn make_dirs(&mut self) -> HashMap<&'a Path, bool> {
        let mut dirs = HashMap::new();
        let plan: &'a Plan = self.engine.plan;
        let mut noted = String::new();
        for entry in plan.entries.iter().filter(|entry| entry.kind == ObjectKind::Dir) {
            if entry.path.parent().is_some_and(|parent| !dirs.contains_key(parent)) {
                continue;
            }
            match self.writer().dir(&entry.path) {
                Ok(new) => {
                    let made_before = self.engine.past.made.contains(&entry.path);
                    // One that an interrupted copy has made may still lack its attributes.
                    dirs.insert(entry.path.as_path(), new || made_before);
                    self.outcome.summary.dirs += u64::from(new);
                    if !self.writer().is_staged() {
                        // Recorded before any file is created in it, so that an undo finds temporary files.
                        noted.push_str(&control("dir", &self.writer().path(&entry.path)));
                    }
                    if new {
                        noted.push_str(&control("made", &entry.path));
                    }
                }
                Err(error) => {
                    self.outcome.fail("make it and what is in it", &self.place(entry), error);
                }
            }
        }
        self.lines.push_str(&noted);
        self.flush();
        dirs
    }

    fn symlink(&mut self, number: usize, entry: &Entry) {
        let source = self.engine.plan.source(entry);
        let to = match nofollow::read_link(&source) {
            Ok(to) => to,
            Err(error) => return self.outcome.fail("read the link", &source, error),
        };
        let writer = self.writer();
        let made = writer.symlink(&entry.path, &to).and_then(|draft| {
            // Before it has its final name, where nobody is to find it with other attributes.
            entry.stamp.attrs.apply_at(draft.path())?;
            writer.put(draft)
        });
        match made {
            Ok(_) => {
                self.outcome.summary.links += 1;
                self.done(number, LineKind::Symlink, blake3::hash(to.as_os_str().as_bytes()), &to);
            }
            Err(error) => self.outcome.fail("make the link", &self.place(entry), error),
        }
    }

    fn fifo(&mut self, number: usize, entry: &Entry) {
        let writer = self.writer();
        let made = writer.fifo(&entry.path).and_then(|draft| {
            entry.stamp.attrs.apply_at(draft.path())?;
            writer.put(draft)
        });
        match made {
            Ok(_) => {
                self.outcome.summary.fifos += 1;
                self.done(number, LineKind::Fifo, Hash::from_bytes([0; 32]), Path::new(""));
            }
            Err(error) => self.outcome.fail("make the pipe", &self.place(entry), error),
        }
    }

    /// Creates further names of files. Where hard links do not reach a copy, one name becomes another copy, and the
    /// others are linked to it; where the target has no hard links at all, each name becomes a copy.
    fn hard_links(&mut self, links: impl Iterator<Item = (usize, &'a Entry, usize)>) {
        let mut links: Vec<_> = links.collect();
        let mut copies: HashMap<usize, Vec<usize>> = HashMap::new();
        while !links.is_empty() && !self.engine.opts.cancelled() {
            let names = links.len();
            let (mut to_copy, mut unreached) = (Vec::new(), Vec::new());
            for link in links {
                let (number, entry, first) = link;
                let of = copies.entry(first).or_insert_with(|| vec![first]);
                match self.hard_link(number, entry, of) {
                    Ok(()) => {}
                    Err(error) if no_reach(&error) => unreached.push(link),
                    Err(error) if no_links(&error) => to_copy.push(number),
                    Err(error) => self.outcome.fail("make the hard link", &self.place(entry), error),
                }
            }
            // One name of each file is copied, so every round has fewer names left.
            let mut chosen = HashMap::new();
            unreached.retain(|(number, _, first)| *chosen.entry(*first).or_insert(*number) != *number);
            assert!(unreached.len() < names, "a round of hard links leaves all of {names} names");
            to_copy.extend(chosen.values());
            let copied = self.engine.copy_files(to_copy);
            self.outcome.add_files(copied);
            for (first, number) in chosen {
                let is_there = self.outcome.contents.contains_key(&number);
                copies.entry(first).or_default().extend(is_there.then_some(number));
            }
            links = unreached;
        }
    }

    /// Links a name to one of the copies of a file, the latest that can be reached.
    fn hard_link(&mut self, number: usize, entry: &Entry, copies: &[usize]) -> io::Result<()> {
        let mut unreached = io::Error::from(Errno::XDEV);
        for copy in copies.iter().rev() {
            let (Some(of), Some(content)) =
                (self.engine.plan.entries.get(*copy), self.outcome.contents.get(copy).copied())
            else {
                let cause = Cause::Conflict("is another name of a file that could not be copied");
                self.outcome.failures.push(Failure::new(&self.engine.plan.source(entry), cause));
                return Ok(());
            };
            let writer = self.writer();
            match writer.hard_link(&entry.path, &of.path).and_then(|draft| writer.put(draft)) {
                Ok(_) => {
                    self.outcome.summary.hard_links += 1;
                    self.done(number, LineKind::HardLink, content, &of.path);
                    return Ok(());
                }
                Err(error) if no_reach(&error) => unreached = error,
                Err(error) => return Err(error),
            }
        }
        Err(unreached)
    }

    /// Sets the attributes of new directories and the times of existing ones, entries before their directory.
    fn finish_dirs(&mut self, dirs: &HashMap<&Path, bool>) {
        let plan: &'a Plan = self.engine.plan;
        for (number, entry) in plan.entries.iter().enumerate().rev() {
            if self.engine.opts.cancelled() {
                return;
            }
            let Some(new) = dirs.get(entry.path.as_path()).filter(|_| entry.kind == ObjectKind::Dir) else {
                continue;
            };
            let finished = if *new { self.set_dir_attrs(entry) } else { self.set_dir_mtime(entry) };
            match finished {
                Ok(()) => self.done(number, LineKind::Dir, Hash::from_bytes([0; 32]), Path::new("")),
                Err(error) => self.outcome.fail("set attributes", &self.place(entry), error),
            }
        }
    }

    fn set_dir_attrs(&mut self, entry: &Entry) -> io::Result<()> {
        let source = self.engine.plan.source(entry);
        let made = nofollow::open_dir(&self.writer().path(&entry.path))?;
        let refused = match nofollow::open_dir(&source) {
            Ok(from) => copy_xattrs(&from, &made)?,
            // The failed listing of the directory has been reported.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Err(error),
        };
        let skipped = refused.into_iter().map(|what| Skipped { path: source.clone(), what });
        self.outcome.summary.skipped.extend(skipped);
        entry.stamp.attrs.apply(&made)?;
        if self.syncs_dirs() { sync(&made) } else { Ok(()) }
    }

    fn set_dir_mtime(&self, entry: &Entry) -> io::Result<()> {
        let path = self.writer().path(&entry.path);
        entry.stamp.attrs.set_mtime_at(&path)?;
        if self.syncs_dirs() { sync_dir(&path) } else { Ok(()) }
    }

    /// Returns whether directories are synced separately; otherwise one sync at the end includes them.
    fn syncs_dirs(&self) -> bool {
        self.engine.durability == Durability::Fsync
    }

    fn place(&self, entry: &Entry) -> PathBuf {
        self.writer().place(&entry.path)
    }
}

/// Returns whether the file system has no hard links.
pub(crate) fn no_links(error: &io::Error) -> bool {
    // The kernel answers `EPERM` for a file system whose driver has no links.
    is_one_of(error, &[Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS])
}

/// Returns whether another copy may be linked to instead: this one is on another device, or has the maximum of links.
pub(crate) fn no_reach(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::XDEV, Errno::MLINK])
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    error.raw_os_error().is_some_and(|number| errnos.iter().any(|errno| errno.raw_os_error() == number))
}

/// Refuses a copy into itself, which would not end, or would replace its source.
fn refuse_overlap(source: &Path, dst: &Path) -> Result<(), Failure> {
    let refuse = |what| Err(Failure::new(dst, Cause::Conflict(what)));
    // The target need not be there yet: then the nearest directory above it decides.
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

fn nothing(mut outcome: CopyOutcome, plan: &Plan) -> Failure {
    let what =
        Cause::Conflict("is a socket or a device; only files, directories, links and pipes are copied");
    outcome.failures.pop().unwrap_or_else(|| Failure::new(&plan.root, what))
}

fn root_failure(doing: &'static str, path: &Path, error: io::Error) -> StageError {
    StageError::Root(Failure::io(doing, path, error))
}
