//! Resolution of paths in a formation. Its applications create symbolic links, which must not lead a copy out of it.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::error::{Cause, Failure};
use crate::paths::below;

/// Upper limit of links in one path, as in the kernel.
const LINKS_MAX: usize = 40;
const LEAVES: &str =
    "is a symbolic link that leads out of the formation; name what is in it, or another path";

/// A resolved path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResolvedPath {
    /// The path without links, except for its last name if that is a link out of the formation.
    pub(crate) path: PathBuf,
    /// True if the last name is a link out of the formation.
    pub(crate) is_link_out: bool,
}

/// Resolves a path below `root` as the kernel does with `RESOLVE_BENEATH`, except that links to absolute paths below
/// `root` stay inside. Missing components are kept. A link out of the formation is an error unless it is the last name,
/// which is reported in the result.
pub(crate) fn follow(root: &Path, relative: &Path) -> Result<ResolvedPath, Failure> {
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
            None if rest.is_empty() => return Ok(ResolvedPath { path, is_link_out: true }),
            None => return Err(Failure::new(&path, Cause::Conflict(LEAVES))),
        }
    }
    assert!(
        inside.components().all(|name| matches!(name, Component::Normal(_))),
        "a resolved path of the formation leaves it"
    );
    Ok(ResolvedPath { path: below(root, &inside), is_link_out: false })
}

/// Like [`follow`], for a path to write to: a link out of the formation is an error.
pub(crate) fn follow_target(root: &Path, relative: &Path) -> Result<PathBuf, Failure> {
    match follow(root, relative)? {
        ResolvedPath { path, is_link_out: true } => Err(Failure::new(&path, Cause::Conflict(LEAVES))),
        ResolvedPath { path, .. } => Ok(path),
    }
}

/// Returns the path that a link's target continues with; `None` if it leaves the formation.
fn stays(root: &Path, inside: &Path, target: &Path) -> Option<PathBuf> {
    if target.is_absolute() {
        return target.strip_prefix(root).ok().map(Path::to_owned);
    }
    // Links within the target are resolved in their turn; here only the depth is checked.
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
            assert_eq!(found, ResolvedPath { path: root.join(path), is_link_out: true });
            assert!(follow_target(&root, Path::new(path)).unwrap_err().to_string().contains("leads out"));
            let beyond = follow(&root, &Path::new(path).join("x")).unwrap_err().to_string();
            assert!(beyond.contains(path) && beyond.contains("leads out of the formation"), "{beyond}");
        }
        assert!(follow(&root, Path::new("round")).is_err());
        assert_eq!(follow_target(&root, Path::new("latest")).unwrap(), root.join("run/7"));
    }
}
