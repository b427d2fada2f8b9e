//! A tree that can be reached at several places, for instance a formation through the mounts of its nodes.

use std::path::{Path, PathBuf};

/// Places that all show the same tree; of two sides of a copy at most one lies in it. The workers of a copy take
/// turns: worker `w` goes through place `w mod n`, so that each node serves its share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Views {
    places: Vec<PathBuf>,
}

impl Views {
    /// Paths of a copy are named below the first place.
    #[must_use]
    pub fn new(places: Vec<PathBuf>) -> Views {
        Views { places: places.iter().map(|place| crate::straight::canonical(place)).collect() }
    }

    /// Ways to go to a file: at least one.
    pub(crate) fn count(&self) -> usize {
        self.places.len().max(1)
    }

    /// A path as a worker goes to it: unchanged where it is not in the tree.
    pub(crate) fn path(&self, worker: usize, path: &Path) -> PathBuf {
        let seen = || {
            let below = path.strip_prefix(self.places.first()?).ok()?;
            let place = self.places.get(worker % self.places.len())?;
            Some(crate::scan::below(place, below))
        };
        seen().unwrap_or_else(|| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_turns_and_other_trees_stay_as_they_are() {
        let views = Views::new(vec!["/m/0".into(), "/m/1".into()]);
        let see = |worker, path: &str| views.path(worker, Path::new(path)).display().to_string();
        assert_eq!(see(0, "/m/0/a/b"), "/m/0/a/b");
        assert_eq!(see(1, "/m/0/a/b"), "/m/1/a/b");
        assert_eq!(see(2, "/m/0"), "/m/0");
        assert_eq!(see(3, "/m/0"), "/m/1");
        assert_eq!(see(1, "/m/00/a"), "/m/00/a");
        assert_eq!(Views::default().path(5, Path::new("/x")), Path::new("/x"));
    }
}
