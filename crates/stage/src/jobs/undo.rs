//! Removal of what an interrupted copy left.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::Failure;
use crate::journal::History;
use crate::nofollow;
use crate::paths::below;
use crate::resolve::follow_target;
use crate::target::give_back_replaced;
use crate::temporary_tag::{Tag, is_temporary};

use super::order::{Direction, JobSpec};

/// Removes the temporary objects of a job, and incomplete directories that it made, as far as they are empty. Complete
/// objects stay. Returns the number of removed objects.
pub(crate) fn undo(order: &JobSpec, history: &History, mount: Option<&Path>) -> Result<u64, Failure> {
    let mount = mount.map(nofollow::canonical);
    let mount = mount.as_deref();
    let now = |path: &PathBuf| moved(path, history.mount.as_deref(), mount);
    let mut removed = remove_drafts(order, history, mount)?;
    // The tree that a set replaces is complete; its directories may have the names of incomplete ones of the set.
    let whole = if order.is_set { 0 } else { order.transfers.len() };
    for (transfer, past) in order.transfers.iter().zip(&history.transfers).take(whole) {
        let place = match order.way {
            // Resolved as it was for the copy: never out of the formation.
            Direction::In => mount.and_then(|mount| follow_target(mount, &transfer.dst).ok()),
            Direction::Out => Some(nofollow::canonical(&transfer.dst)),
        };
        let Some(place) = place else { continue };
        let mut unfinished: Vec<_> =
            past.made.iter().filter(|path| !past.lines.contains_key(*path)).collect();
        unfinished.sort();
        // Deepest first. The removal of a directory that is not empty fails, and it stays.
        let gone = unfinished.iter().rev().filter(|path| nofollow::remove_dir(&place.join(path)).is_ok());
        removed += gone.count() as u64;
    }
    let above = history.above.iter().rev().map(now).filter(|dir| nofollow::remove_dir(dir).is_ok());
    Ok(removed + above.count() as u64)
}

/// Removes the temporary objects of a job from the directories in its journal; a tree that was being replaced is
/// renamed back. `mount` has no links. Returns the number of removed objects.
pub(crate) fn remove_drafts(
    order: &JobSpec,
    history: &History,
    mount: Option<&Path>,
) -> Result<u64, Failure> {
    if order.is_set {
        order.transfers.iter().try_for_each(|transfer| give_back(&transfer.dst, &order.tag))?;
    }
    let dirs: BTreeSet<PathBuf> =
        // The formation may have been mounted elsewhere since.
        history.dirs.iter().map(|dir| moved(dir, history.mount.as_deref(), mount)).collect();
    dirs.iter().map(|dir| remove_temporary(dir, &order.tag)).sum()
}

/// Renames back the tree that a set was replacing, if the copy was killed between two renames.
fn give_back(dst: &Path, tag: &Tag) -> Result<(), Failure> {
    let place = nofollow::canonical(dst);
    give_back_replaced(&place, tag).map_err(|error| Failure::io("give it its name again", &place, error))
}

/// Translates a path below the former mount to the present mount.
fn moved(path: &Path, then: Option<&Path>, now: Option<&Path>) -> PathBuf {
    let now_at = then.zip(now).and_then(|(then, now)| Some(below(now, path.strip_prefix(then).ok()?)));
    now_at.unwrap_or_else(|| path.to_owned())
}

fn remove_temporary(dir: &Path, tag: &Tag) -> Result<u64, Failure> {
    let names = match nofollow::read_dir(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(0),
        names => names.map_err(|error| Failure::io("list it", dir, error))?,
    };
    let mut removed = 0;
    for name in names.into_iter().filter(|name| tag.matches(name)) {
        assert!(is_temporary(&name), "an undo would remove an object that is not temporary");
        let path = dir.join(name);
        nofollow::remove_tree(&path).map_err(|error| Failure::io("remove it", &path, error))?;
        removed += 1;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Transfer;
    use crate::journal::TransferHistory;
    use std::fs;

    /// S594. A job may have put a link out of the formation where its target was.
    #[test]
    fn a_target_that_leads_out_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let real = nofollow::canonical(dir.path());
        let (mount, theirs) = (real.join("mount"), real.join("theirs"));
        for place in [&mount, &theirs] {
            fs::create_dir(place).unwrap();
        }
        let (dst, made) = (PathBuf::from("/in"), PathBuf::from("sub"));
        let order = JobSpec::new(Direction::In, vec![Transfer { src: "/site".into(), dst: dst.clone() }]);
        let past = TransferHistory { made: [made.clone()].into(), ..TransferHistory::default() };
        let history = History { transfers: vec![past], ..History::default() };
        for (at, removed) in [(&theirs, 0), (&mount, 1)] {
            fs::create_dir(at.join(&made)).unwrap();
            let _none_yet = fs::remove_file(mount.join("in"));
            std::os::unix::fs::symlink(at, mount.join("in")).unwrap();
            assert_eq!(undo(&order, &history, Some(&mount)).unwrap(), removed, "{}", at.display());
            assert_eq!(at.join(&made).exists(), removed == 0);
        }
    }

    /// S594.
    #[test]
    fn nothing_is_removed_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let real = nofollow::canonical(dir.path());
        let tag = Tag::random();
        let (theirs, ours) = (real.join("theirs"), real.join("ours"));
        let left = format!(".file{}", tag.suffix());
        for place in [&theirs, &ours] {
            fs::create_dir(place).unwrap();
            fs::write(place.join(&left), "x").unwrap();
        }
        let swapped = real.join("swapped");
        std::os::unix::fs::symlink(&theirs, &swapped).unwrap();
        std::os::unix::fs::symlink(&theirs, ours.join(format!(".dir{}", tag.suffix()))).unwrap();
        assert_eq!(remove_temporary(&ours, &tag).unwrap(), 2);
        assert_eq!(nofollow::read_dir(&ours).unwrap().len(), 0);
        assert_eq!(remove_temporary(&swapped, &tag).unwrap(), 0);
        assert_eq!(fs::read(theirs.join(&left)).unwrap(), b"x");
    }
}
