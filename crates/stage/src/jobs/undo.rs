//! Removes what an interrupted copy left.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::beneath::follow_target;
use crate::journal::History;
use crate::straight;
use crate::tag::Tag;

use super::order::{Order, Way};

/// Removes everything temporary of a job, the directories that it made and did not complete, and those that it made above
/// its targets, as far as they are empty. What is complete and in place stays. Answers how many objects it removed.
pub(crate) fn undo(order: &Order, history: &History, mount: Option<&Path>) -> Result<u64, Failure> {
    let mount = mount.map(straight::canonical);
    let mount = mount.as_deref();
    let now = |path: &PathBuf| moved(path, history.mount.as_deref(), mount);
    let mut removed = 0;
    for dir in history.dirs.iter().map(now) {
        removed += remove_temporary(&dir, &order.tag)?;
    }
    for (transfer, past) in order.transfers.iter().zip(&history.transfers) {
        let place = match order.way {
            // As it was followed when it was copied: never out of the formation.
            Way::In => mount.and_then(|mount| follow_target(mount, &transfer.dst).ok()),
            Way::Out => Some(straight::canonical(&transfer.dst)),
        };
        let Some(place) = place else { continue };
        let mut unfinished: Vec<_> =
            past.made.iter().filter(|path| !past.lines.contains_key(*path)).collect();
        unfinished.sort();
        // What is inside first; one that something is in stays.
        let gone = unfinished.iter().rev().filter(|path| straight::remove_dir(&place.join(path)).is_ok());
        removed += gone.count() as u64;
    }
    let above = history.above.iter().rev().map(now).filter(|dir| straight::remove_dir(dir).is_ok());
    Ok(removed + above.count() as u64)
}

/// A path in the formation as it is mounted now.
fn moved(path: &Path, then: Option<&Path>, now: Option<&Path>) -> PathBuf {
    let below =
        then.zip(now).and_then(|(then, now)| Some(crate::scan::below(now, path.strip_prefix(then).ok()?)));
    below.unwrap_or_else(|| path.to_owned())
}

fn remove_temporary(dir: &Path, tag: &Tag) -> Result<u64, Failure> {
    let names = match straight::list(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(0),
        names => names.map_err(|error| Failure::io("list it", dir, error))?,
    };
    let mut removed = 0;
    for name in names.into_iter().filter(|name| tag.marks(name)) {
        let path = dir.join(name);
        straight::remove_tree(&path).map_err(|error| Failure::io("remove it", &path, error))?;
        removed += 1;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transfer;
    use crate::journal::Past;
    use std::fs;

    /// S594. A job may have put a link out of the formation where its target was.
    #[test]
    fn a_target_that_leads_out_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let real = straight::canonical(dir.path());
        let (mount, theirs) = (real.join("mount"), real.join("theirs"));
        for place in [&mount, &theirs] {
            fs::create_dir(place).unwrap();
        }
        let (dst, made) = (PathBuf::from("/in"), PathBuf::from("sub"));
        let order = Order::new(Way::In, vec![Transfer { src: "/site".into(), dst: dst.clone() }]);
        let past = Past { made: [made.clone()].into(), ..Past::default() };
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
        let real = straight::canonical(dir.path());
        let tag = Tag::draw();
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
        assert_eq!(straight::list(&ours).unwrap().len(), 0);
        assert_eq!(remove_temporary(&swapped, &tag).unwrap(), 0);
        assert_eq!(fs::read(theirs.join(&left)).unwrap(), b"x");
    }
}
