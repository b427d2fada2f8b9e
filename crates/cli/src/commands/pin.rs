//! `bivouac pin` and `bivouac unpin`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bivouac_client::{Client, FlushTarget, TreeEntry};
use bivouac_launch::Environment;
use bivouac_types::units::{format_count, format_size};
use bivouac_types::{Errno, FsError, Ino};

use crate::failure::Failure;
use crate::options::PinArgs;
use crate::reach::{self, MountedPath};

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Files that are brought at the same time.
const JOBS: usize = 8;

/// Brings files whole and has them stay.
pub fn pin(here: &Environment, args: &PinArgs) -> Result<ExitCode, Failure> {
    each(here, args, |client, shown, subtree| {
        let files = files_of(client, subtree)?;
        let before: HashSet<Ino> = client.site.pinned()?.into_iter().map(|file| file.ino).collect();
        check_fits(client, shown, subtree, &files)?;
        let failed = on_all(&files, true, |file| {
            // Pinned before it is brought: what is brought could make room again at once.
            client.site.pin(file.attr.ino, true)?;
            client.site.bring_file(file.attr.ino)
        });
        if failed.is_empty() {
            return Ok(said(shown, "pinned", &files));
        }
        // Those that were pinned before stay so: this command has not done it.
        let is_new = |file: &&TreeEntry| !before.contains(&file.attr.ino);
        let new: Vec<TreeEntry> = files.iter().filter(is_new).cloned().collect();
        let left = on_all(&new, false, |file| client.site.pin(file.attr.ino, false));
        Err(refused(subtree, failed, &left))
    })
}

/// Lets files make room again.
pub fn unpin(here: &Environment, args: &PinArgs) -> Result<ExitCode, Failure> {
    each(here, args, |client, shown, subtree| {
        let pinned: HashSet<Ino> = client.site.pinned()?.into_iter().map(|file| file.ino).collect();
        let mut files = files_of(client, subtree)?;
        files.retain(|file| pinned.contains(&file.attr.ino));
        let failed = on_all(&files, false, |file| client.site.pin(file.attr.ino, false));
        match failed.first() {
            None => Ok(said(shown, "unpinned", &files)),
            Some((file, error)) => {
                let (place, count) = (subtree.path_of(file), failed.len());
                Err(Failure::new(
                    1,
                    format_args!("{}: is still pinned, one of {count}: {error}", place.display()),
                ))
            }
        }
    })
}

/// Does something with each path, and says what.
fn each(
    here: &Environment,
    args: &PinArgs,
    act: impl Fn(&Client, &Path, &FlushTarget) -> Result<String, Failure>,
) -> Result<ExitCode, Failure> {
    for path in &args.paths {
        let MountedPath { client, entry, resolved } = reach::of_path(here, path, ANSWER_WAIT)?;
        let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
        let said = match subtree(&client, &entry.dir, below)? {
            Some(subtree) => act(&client, path, &subtree)?,
            None => {
                format!("{}: is in no partition with a source: nothing of it ever leaves", path.display())
            }
        };
        client.leave();
        outln!("{said}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what is at a path, if it is in a partition with a source.
fn subtree(client: &Client, mount: &Path, below: &Path) -> Result<Option<FlushTarget>, Failure> {
    let subtree = FlushTarget::find(client, mount, below)?;
    let partition = client.partitions.get(subtree.top.attr.layout.partition())?;
    Ok(partition.is_some_and(|partition| partition.settings.source.is_some()).then_some(subtree))
}

/// Returns the files that are meant. Directories that nobody has looked into are listed at the source.
fn files_of(client: &Client, subtree: &FlushTarget) -> Result<Vec<TreeEntry>, Failure> {
    let top = &subtree.top;
    if !top.attr.is_dir() {
        return Ok(if top.attr.is_file() { vec![top.clone()] } else { Vec::new() });
    }
    let mut files = Vec::new();
    client.readdir(top.attr.ino, 0, 1, false)?;
    client.walk_partition(top, &mut |found| {
        if found.attr.is_dir() {
            client.readdir(found.attr.ino, 0, 1, false)?;
        } else if found.attr.is_file() {
            files.push(found.clone());
        }
        Ok(())
    })?;
    Ok(files)
}

/// Refuses, before anything is moved, what can never fit.
fn check_fits(
    client: &Client,
    shown: &Path,
    subtree: &FlushTarget,
    files: &[TreeEntry],
) -> Result<(), Failure> {
    let partition = subtree.top.attr.layout.partition();
    let wanted: HashSet<Ino> = files.iter().map(|file| file.attr.ino).collect();
    let pinned = client.site.pinned()?;
    let others = pinned.iter().filter(|file| file.partition == partition && !wanted.contains(&file.ino));
    let others = others.fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    let bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.attr.size));
    let space = client.homes.statfs(subtree.top.attr.ino)?;
    let room = space.blocks.saturating_mul(u64::from(space.block_size));
    if bytes.saturating_add(others) <= room {
        return Ok(());
    }
    let (bytes, others, room) = (format_size(bytes), format_size(others), format_size(room));
    let text = format!(
        "{}: {bytes} beside {others} that are pinned are more than the {room} of the partition's volumes: pin less of it; \
         nothing was pinned",
        shown.display()
    );
    Err(Failure::new(1, text))
}

/// Does something with several files at the same time; what failed. With `all_or_none`, nothing new is begun after
/// that.
fn on_all(
    files: &[TreeEntry],
    all_or_none: bool,
    act: impl Fn(&TreeEntry) -> Result<(), FsError> + Sync,
) -> Vec<(&TreeEntry, FsError)> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let lock = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if all_or_none && !lock().is_empty() {
                    return;
                }
                match act(file) {
                    // Removed meanwhile: there is nothing left to do for it.
                    Err(error) if error.errno() == Errno::ENOENT => {}
                    Err(error) => lock().push((file, error)),
                    Ok(()) => {}
                }
            }
        };
        for _ in 0..JOBS.min(files.len()) {
            scope.spawn(work);
        }
    });
    assert!(all_or_none || next.into_inner() >= files.len(), "one of {} files was left out", files.len());
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn said(shown: &Path, what: &str, files: &[TreeEntry]) -> String {
    let bytes = files.iter().map(|file| file.attr.size).sum();
    let count = format_count(files.len() as u64, "file");
    format!("{}: {what} {count}, {}", shown.display(), format_size(bytes))
}

/// Returns the reason why nothing is pinned that was not before; or what could not be unpinned again.
fn refused(
    subtree: &FlushTarget,
    failed: Vec<(&TreeEntry, FsError)>,
    left: &[(&TreeEntry, FsError)],
) -> Failure {
    let Some((file, error)) = failed.first() else { return Failure::new(1, "nothing was pinned") };
    let place = |file: &TreeEntry| -> PathBuf { subtree.path_of(file) };
    let why = match error.errno() {
        Errno::ENOSPC => format!(
            "does not fit beside what is pinned, or not yet at the source: pin less, or flush first ({error})"
        ),
        _ => error.to_string(),
    };
    let outcome = match left.first() {
        None => "nothing was pinned".to_owned(),
        Some((file, error)) => format!(
            "{} and {} others are still pinned, since a node could not be told: {error}; say bivouac unpin",
            place(file).display(),
            left.len() - 1
        ),
    };
    Failure::new(1, format_args!("{}: {why}; {outcome}", place(file).display()))
}
