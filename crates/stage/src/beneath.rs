//! Paths of a formation as a job has made them: what it wrote there, links too, must not lead a copy out of the formation.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::scan::below;
use crate::{Cause, Failure};

/// As many links as the kernel follows in one path.
const LINKS_MAX: usize = 40;
const LEAVES: &str =
    "is a symbolic link that leads out of the formation; name what is in it, or another path";

/// Where a path in a formation leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Beneath {
    /// The path without links, but for the last name if that leads out of the formation.
    pub(crate) path: PathBuf,
    /// Whether it does.
    pub(crate) is_link_out: bool,
}

/// Follows a path below `root`, as the kernel does with `RESOLVE_BENEATH`, except that links to absolute paths below `root`
/// stay inside. What is missing is where it would be. A link that leads out is an error before the last name, and
/// told of there.
pub(crate) fn follow(root: &Path, relative: &Path) -> Result<Beneath, Failure> {
    let mut rest: Vec<OsString> = relative.components().rev().map(name_of).collect();
    let (mut inside, mut links) = (PathBuf::new(), 0);
    while let Some(name) = rest.pop() {
        if name == ".." {
            if !inside.pop() {
                return Err(Failure::new(&below(root, relative), Cause::Conflict(LEAVES)));
            }
            continue;
        }
        let path = below(root, &inside.join(&name));
        let is_link = fs::symlink_metadata(&path).is_ok_and(|seen| seen.file_type().is_symlink());
        if !is_link {
            inside.push(&name);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Failure::io("follow it", &path, Errno::LOOP));
        }
        let target = fs::read_link(&path).map_err(|error| Failure::io("read the link", &path, error))?;
        match stays(root, &inside, &target) {
            Some(more) => {
                if target.is_absolute() {
                    inside = PathBuf::new();
                }
                rest.extend(more.components().rev().map(name_of));
            }
            None if rest.is_empty() => return Ok(Beneath { path, is_link_out: true }),
            None => return Err(Failure::new(&path, Cause::Conflict(LEAVES))),
        }
    }
    Ok(Beneath { path: below(root, &inside), is_link_out: false })
}

/// As [`follow`], for what is to be written: nothing is put at a link that leads out.
pub(crate) fn follow_target(root: &Path, relative: &Path) -> Result<PathBuf, Failure> {
    match follow(root, relative)? {
        Beneath { path, is_link_out: true } => Err(Failure::new(&path, Cause::Conflict(LEAVES))),
        Beneath { path, .. } => Ok(path),
    }
}

/// What is left to follow of a link's target, unless it leads out of the formation.
fn stays(root: &Path, inside: &Path, target: &Path) -> Option<PathBuf> {
    if target.is_absolute() {
        return target.strip_prefix(root).ok().map(Path::to_owned);
    }
    // Names that are links themselves are looked at when it is their turn; no more ups than there are directories.
    let mut depth = inside.components().count();
    for component in target.components() {
        match component {
            Component::ParentDir => depth = depth.checked_sub(1)?,
            Component::Normal(_) => depth += 1,
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(target.to_owned())
}

fn name_of(component: Component<'_>) -> OsString {
    match component {
        Component::Normal(name) => name.to_owned(),
        Component::ParentDir => "..".into(),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => OsString::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A formation with a link of each kind, and what is beside it.
    fn formation() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("mount");
        fs::create_dir_all(root.join("run/7")).unwrap();
        fs::create_dir(dir.path().join("site")).unwrap();
        fs::write(dir.path().join("site/secret"), "secret").unwrap();
        for (target, name) in [
            ("run/7".into(), "latest"),
            (root.join("run"), "absolute"),
            (dir.path().join("site"), "out"),
            ("../site/secret".into(), "up"),
            ("../../mount/run".into(), "run/up-and-back"),
            ("round".into(), "round"),
            ("run/none".into(), "dangling"),
        ] {
            symlink(target, root.join(name)).unwrap();
        }
        (dir, root)
    }

    /// S323.
    #[test]
    fn links_are_followed_as_long_as_they_stay_inside() {
        let (_dir, root) = formation();
        let at = |path: &str| follow(&root, Path::new(path)).unwrap().path;
        assert_eq!(at("latest/x"), root.join("run/7/x"));
        assert_eq!(at("absolute/7"), root.join("run/7"));
        assert_eq!(at("dangling"), root.join("run/none"));
        assert_eq!(at(""), root);
        assert_eq!(at("new/dir"), root.join("new/dir"));
        for path in ["out", "up", "run/up-and-back"] {
            let found = follow(&root, Path::new(path)).unwrap();
            assert_eq!(found, Beneath { path: root.join(path), is_link_out: true });
            assert!(follow_target(&root, Path::new(path)).unwrap_err().to_string().contains("leads out"));
            let beyond = follow(&root, &Path::new(path).join("x")).unwrap_err().to_string();
            assert!(beyond.contains(path) && beyond.contains("leads out of the formation"), "{beyond}");
        }
        assert!(follow(&root, Path::new("round")).is_err());
        assert_eq!(follow_target(&root, Path::new("latest")).unwrap(), root.join("run/7"));
    }
}
