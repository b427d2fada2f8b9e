//! Removes what an interrupted copy left.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::journal::History;
use crate::tag::Tag;
use crate::target::remove_tree;
use crate::{Failure, Transfer};

use super::order::{Order, Way};

/// Removes everything temporary of a job, the directories that it made and did not complete, and those that it made above
/// its targets, as far as they are empty. What is complete and in place stays. Answers how many objects it removed.
pub(crate) fn undo(order: &Order, history: &History, mount: Option<&Path>) -> Result<u64, Failure> {
    let now = |path: &PathBuf| moved(path, history.mount.as_deref(), mount);
    let mut removed = 0;
    for dir in history.dirs.iter().map(now) {
        removed += remove_temporary(&dir, &order.tag)?;
    }
    for (transfer, past) in order.transfers.iter().zip(&history.transfers) {
        let Some(place) = place(order.way, transfer, mount) else { continue };
        let mut unfinished: Vec<_> =
            past.made.iter().filter(|path| !past.lines.contains_key(*path)).collect();
        unfinished.sort();
        // What is inside first; one that something is in stays.
        let gone = unfinished.iter().rev().filter(|path| fs::remove_dir(place.join(path)).is_ok());
        removed += gone.count() as u64;
    }
    let above = history.above.iter().rev().map(now).filter(|dir| fs::remove_dir(dir).is_ok());
    Ok(removed + above.count() as u64)
}

/// A path in the formation as it is mounted now.
fn moved(path: &Path, then: Option<&Path>, now: Option<&Path>) -> PathBuf {
    let below =
        then.zip(now).and_then(|(then, now)| Some(crate::scan::below(now, path.strip_prefix(then).ok()?)));
    below.unwrap_or_else(|| path.to_owned())
}

/// The target of a transfer; `None` if it is in a formation that is not mounted.
pub(crate) fn place(way: Way, transfer: &Transfer, mount: Option<&Path>) -> Option<PathBuf> {
    match way {
        Way::In => mount.map(|mount| crate::scan::below(mount, &transfer.dst)),
        Way::Out => Some(transfer.dst.clone()),
    }
}

fn remove_temporary(dir: &Path, tag: &Tag) -> Result<u64, Failure> {
    let entries = match fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(0),
        entries => entries.map_err(|error| Failure::io("list it", dir, error))?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(|error| Failure::io("list it", dir, error))?;
        if !tag.marks(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&path);
        } else {
            fs::remove_file(&path).map_err(|error| Failure::io("remove it", &path, error))?;
        }
        if path.symlink_metadata().is_ok() {
            let error = std::io::Error::from(ErrorKind::PermissionDenied);
            return Err(Failure::io("remove it", &path, error));
        }
        removed += 1;
    }
    Ok(removed)
}
