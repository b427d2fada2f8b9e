//! Flushes of files and directories to site storage, several files at a time.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bivouac_types::{Errno, FsError, FsResult, Ino, MirrorDeletes};
use bivouac_wire::{Removal, SiteVersion};

use crate::at_once::each_at_once;
use crate::client::Client;
use crate::site::{FlushPlan, Flushed, SeenNames, TreeEntry, Unsaved};

/// Time that a deletion may be left before that is an error: a file whose close has returned may still count as open.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Pause before what is left is looked at again.
const PAUSE: Duration = Duration::from_millis(20);

/// Settings of a flush.
#[derive(Clone, Copy, Debug)]
pub struct FlushOptions {
    /// Overwrite what has changed there.
    pub force: bool,
    /// Files at the same time.
    pub jobs: usize,
}

/// A file or directory that is flushed, with all below it.
pub struct FlushTarget {
    /// The file or directory.
    pub top: TreeEntry,
    /// The directories between the partition's own and it.
    pub above: Vec<TreeEntry>,
    /// Path of the partition's root, as users know it.
    pub place: PathBuf,
}

/// The outcome of a flush.
#[derive(Debug, Default)]
pub struct FlushOutcome {
    /// Files, directories and links that were brought there.
    pub files: usize,
    /// Bytes moved.
    pub bytes: u64,
    /// Names that were deleted there.
    pub deleted: u64,
    /// Sentences about what site storage could not keep.
    pub lost: Vec<String>,
    /// The paths that could not be flushed, each with its reason.
    pub failed: Vec<(PathBuf, FsError)>,
}

impl FlushOutcome {
    /// Adds the outcome of another flush.
    pub fn add(&mut self, other: FlushOutcome) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.deleted += other.deleted;
        self.lost.extend(other.lost);
        self.failed.extend(other.failed);
    }
}

impl FlushTarget {
    /// Finds what a path below a mount of the formation leads to.
    ///
    /// # Errors
    /// That it is not there.
    pub fn find(client: &Client, mount: &Path, below: &Path) -> FsResult<FlushTarget> {
        let mut attr = client.getattr(Ino::ROOT)?;
        let mut found = TreeEntry { attr, dir: Ino::ROOT, path: Vec::new() };
        let (mut above, mut place) = (Vec::new(), mount.to_owned());
        for name in below {
            let dir = attr.ino;
            attr = client.lookup(dir, name.as_bytes())?;
            place.push(name);
            if attr.layout.partition() == found.attr.layout.partition() {
                let slash: &[u8] = if found.path.is_empty() { b"" } else { b"/" };
                let path = [&found.path[..], slash, name.as_bytes()].concat();
                above.push(std::mem::replace(&mut found, TreeEntry { attr, dir, path }));
            } else {
                // Another partition begins: paths count from its own directory.
                above.clear();
                found = TreeEntry { attr, dir, path: Vec::new() };
            }
        }
        let depth = found.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
        let place = place.ancestors().nth(depth).unwrap_or(mount).to_owned();
        Ok(FlushTarget { top: found, above, place })
    }

    /// Returns a partition's own directory.
    ///
    /// # Errors
    /// When its home cannot be reached.
    pub fn of_partition(client: &Client, dir: Ino, place: PathBuf) -> FsResult<FlushTarget> {
        let top = TreeEntry { attr: client.getattr(dir)?, dir, path: Vec::new() };
        Ok(FlushTarget { top, above: Vec::new(), place })
    }

    /// Returns true if deletions here are repeated there.
    fn mirrors(&self, client: &Client) -> FsResult<bool> {
        let partition = client.partitions.get(self.top.attr.layout.partition())?;
        Ok(partition.is_some_and(|partition| partition.settings.mirror_deletes == MirrorDeletes::Yes))
    }

    /// Returns the partition's own directory.
    fn root(&self) -> &TreeEntry {
        self.above.first().unwrap_or(&self.top)
    }

    /// Returns what is to be flushed.
    ///
    /// # Errors
    /// When a directory cannot be listed.
    pub fn plan(&self, client: &Client, unsaved: &Unsaved) -> FsResult<FlushPlan> {
        client.plan_flush(unsaved, &self.above, &self.top)
    }

    /// Returns the path of something in the partition, as users know it.
    pub fn path_of(&self, found: &TreeEntry) -> PathBuf {
        if found.path.is_empty() {
            self.place.clone()
        } else {
            self.place.join(OsStr::from_bytes(&found.path))
        }
    }
}

/// Makes site storage what a target is: deletes what was deleted, brings there what it does not have, and deletes what
/// was needed for that.
///
/// # Errors
/// When it cannot be found out what there is.
pub fn flush_target(
    client: &Client,
    target: &FlushTarget,
    unsaved: &Unsaved,
    options: FlushOptions,
) -> FsResult<FlushOutcome> {
    let mut outcome = FlushOutcome::default();
    let (plan, mirrors) = (target.plan(client, unsaved)?, target.mirrors(client)?);
    if plan.is_empty() && !mirrors {
        return Ok(outcome);
    }
    // A source that does not answer is asked once, and not for each file.
    if let Err(error) = client.site.check(target.root()) {
        return unreached(client, target, &plan, mirrors, &error);
    }
    if mirrors {
        mirror(client, target, &mut outcome)?;
    }
    // What was renamed is needed there until it is flushed under its new name.
    let has_left = !outcome.failed.is_empty();
    // What is left now is tried again behind the files, and is reported then.
    outcome.failed.clear();
    outcome.add(carry_out(client, target, &plan, options, has_left)?);
    Ok(outcome)
}

/// Returns the outcome where the source does not answer: nothing is there that was to be brought or deleted.
fn unreached(
    client: &Client,
    target: &FlushTarget,
    plan: &FlushPlan,
    mirrors: bool,
    error: &FsError,
) -> FsResult<FlushOutcome> {
    let brought = plan.files.iter().chain(&plan.dirs).map(|found| target.path_of(found));
    let mut failed: Vec<_> = brought.map(|path| (path, error.clone())).collect();
    if mirrors {
        let left = client.site.removals_below(target.top.attr.layout.partition(), &target.top.path)?;
        failed.extend(
            left.iter().map(|left| (target.place.join(OsStr::from_bytes(&left.path)), error.clone())),
        );
    }
    Ok(FlushOutcome { failed, ..FlushOutcome::default() })
}

/// Deletes there what was deleted here.
fn mirror(client: &Client, target: &FlushTarget, outcome: &mut FlushOutcome) -> FsResult<()> {
    let removals = client.site.mirror(target.top.attr.layout.partition(), &target.top.path)?;
    let place = |path: &[u8]| target.place.join(OsStr::from_bytes(path));
    outcome.deleted += removals.done;
    outcome.lost.extend(removals.kept.iter().map(|kept| {
        format!("{}: deleted here, and stays at the source: {}", place(&kept.path).display(), kept.why)
    }));
    let failed = |left: &Removal| {
        let text = format!("deleted here, and not yet at the source: {}", left.why);
        (place(&left.path), FsError::with(Errno::EIO, text))
    };
    outcome.failed.extend(removals.left.iter().map(failed));
    Ok(())
}

/// Repeats [`mirror`] until nothing is left, or nothing that will go by itself.
fn mirror_rest(client: &Client, target: &FlushTarget, outcome: &mut FlushOutcome) -> FsResult<()> {
    let (begun, failed) = (Instant::now(), outcome.failed.len());
    loop {
        mirror(client, target, outcome)?;
        if outcome.failed.len() == failed || begun.elapsed() > CLOSE_WAIT {
            return Ok(());
        }
        outcome.failed.truncate(failed);
        bivouac_net::pause(PAUSE);
    }
}

/// Brings everything of a plan to site storage: directories first, what is in others behind those, then files and
/// links, then deletions that had to wait for those, then the times of the directories, which all of it has changed.
fn carry_out(
    client: &Client,
    target: &FlushTarget,
    plan: &FlushPlan,
    options: FlushOptions,
    mirrors: bool,
) -> FsResult<FlushOutcome> {
    let mut outcome = FlushOutcome::default();
    let levels = by_depth(&plan.dirs);
    // Level by level: a directory is made in the one above it.
    for dirs in &levels {
        for (dir, flushed) in each_at_once(options.jobs, dirs, |dir| client.site.flush_open(dir)) {
            take(&mut outcome, target, dir, flushed, true);
        }
    }
    let seen = SeenCache::default();
    let flush = |file: &TreeEntry| {
        seen.of(client, file).and_then(|seen| client.site.flush(file, seen, options.force))
    };
    for (file, flushed) in each_at_once(options.jobs, &plan.files, flush) {
        take(&mut outcome, target, file, flushed, true);
    }
    for (file, why) in &plan.unsent {
        let why = if why.is_empty() { "it is being written to" } else { why };
        let text = format!("what was written behind has not been sent: {why}");
        take(&mut outcome, target, file, Err(FsError::with(Errno::EIO, text)), true);
    }
    if mirrors {
        mirror_rest(client, target, &mut outcome)?;
    }
    // From the deepest on: with its final mode a directory may not let anyone into those below it.
    for dirs in levels.iter().rev() {
        let flush = |dir: &&TreeEntry| client.site.flush(dir, None, options.force);
        for (dir, flushed) in each_at_once(options.jobs, dirs, flush) {
            take(&mut outcome, target, dir, flushed, false);
        }
    }
    Ok(outcome)
}

/// Directories by how deep they are: those of one depth do not depend on each other.
fn by_depth(dirs: &[TreeEntry]) -> Vec<Vec<&TreeEntry>> {
    let mut levels: BTreeMap<usize, Vec<&TreeEntry>> = BTreeMap::new();
    for dir in dirs {
        let depth = dir.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
        levels.entry(depth).or_default().push(dir);
    }
    levels.into_values().collect()
}

fn take(
    outcome: &mut FlushOutcome,
    target: &FlushTarget,
    found: &TreeEntry,
    flushed: FsResult<Flushed>,
    counts: bool,
) {
    match flushed {
        Ok(flushed) => {
            outcome.files += usize::from(flushed.changed && counts);
            outcome.bytes += flushed.bytes;
            outcome.lost.extend(flushed.lost);
        }
        Err(error) => outcome.failed.push((target.path_of(found), error)),
    }
    outcome.lost.sort();
    outcome.lost.dedup();
}

/// The versions that site storage had in directories, each directory asked for once.
#[derive(Default)]
struct SeenCache {
    dirs: Mutex<Vec<(Ino, Arc<SeenNames>)>>,
}

impl SeenCache {
    fn of(&self, client: &Client, file: &TreeEntry) -> FsResult<Option<SiteVersion>> {
        let name = file.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let known = {
            let dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
            dirs.iter().find(|(dir, _)| *dir == file.dir).map(|(_, names)| Arc::clone(names))
        };
        let names = match known {
            Some(names) => names,
            None => {
                let names = Arc::new(client.site.seen_names(file.dir)?);
                // Two threads may have asked for the same directory: one answer is as good as the other.
                let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
                dirs.push((file.dir, Arc::clone(&names)));
                names
            }
        };
        Ok(names.get(name).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Attr, Layout, TargetIndex, Timestamp};

    fn found(path: &str) -> TreeEntry {
        let attr = Attr::new(
            Ino(7),
            0o040_755,
            Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 },
            Timestamp::default(),
        );
        TreeEntry { attr, dir: Ino::ROOT, path: path.into() }
    }

    /// S263.
    #[test]
    fn directories_are_made_before_what_is_in_them() {
        let dirs = ["", "b", "b/c/d", "a", "b/c", "a/e"].map(found);
        let levels: Vec<Vec<_>> =
            by_depth(&dirs).iter().map(|dirs| dirs.iter().map(|dir| &dir.path[..]).collect()).collect();
        assert_eq!(levels, [vec![&b""[..]], vec![b"b", b"a"], vec![b"b/c", b"a/e"], vec![b"b/c/d"]]);
    }
}
