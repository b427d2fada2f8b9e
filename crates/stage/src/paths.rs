//! Path arithmetic without file system access.

use std::path::{Path, PathBuf};

/// Returns `root/path`, and just `root` for the empty path, without the slash that `join` would add.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
}

/// Returns the directory of a path's last name.
pub(crate) fn containing(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}
