//! A tree that is reachable at several paths, as a formation is through the mounts of its nodes.

use std::path::{Path, PathBuf};

use crate::nofollow;
use crate::paths::below;

/// Paths that show the same tree; at most one side of a copy lies in it. Worker `w` uses path `w mod n`, so that each
/// node serves its share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountViews {
    places: Vec<PathBuf>,
}

impl MountViews {
    /// Creates the list; paths of a copy are named below the first one.
    #[must_use]
    pub fn new(places: Vec<PathBuf>) -> MountViews {
        MountViews { places: places.iter().map(|place| nofollow::canonical(place)).collect() }
    }

    /// Returns the number of paths, at least one.
    pub(crate) fn count(&self) -> usize {
        self.places.len().max(1)
    }

    /// Translates a path for a worker; unchanged if it is outside of the tree.
    pub(crate) fn path(&self, worker: usize, path: &Path) -> PathBuf {
        let seen = || {
            let relative = path.strip_prefix(self.places.first()?).ok()?;
            let place = self.places.get(worker % self.places.len())?;
            Some(below(place, relative))
        };
        seen().unwrap_or_else(|| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_turns_and_other_trees_stay_as_they_are() {
        let views = MountViews::new(vec!["/m/0".into(), "/m/1".into()]);
        let see = |worker, path: &str| views.path(worker, Path::new(path)).display().to_string();
        assert_eq!(see(0, "/m/0/a/b"), "/m/0/a/b");
        assert_eq!(see(1, "/m/0/a/b"), "/m/1/a/b");
        assert_eq!(see(2, "/m/0"), "/m/0");
        assert_eq!(see(3, "/m/0"), "/m/1");
        assert_eq!(see(1, "/m/00/a"), "/m/00/a");
        assert_eq!(MountViews::default().path(5, Path::new("/x")), Path::new("/x"));
    }
}
