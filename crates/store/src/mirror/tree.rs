//! The directories and files of a volume.

use std::io;

use super::replica::is_replicated;
use crate::{FileStat, Volume};

/// Files and directories of a volume, without the replicas of other nodes' volumes on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeTree {
    pub dirs: Vec<String>,
    /// All files by their names, as the volume opens them.
    pub files: Vec<(String, FileStat)>,
}

impl VolumeTree {
    /// Lists a volume.
    ///
    /// # Errors
    /// The system's.
    pub fn of(volume: &dyn Volume) -> io::Result<VolumeTree> {
        let mut tree = VolumeTree::default();
        for entry in volume.list("")? {
            if !entry.is_dir {
                tree.files.push((entry.name, entry.stat));
            } else if is_replicated(&format!("{}/x", entry.name)) {
                let within = volume.list(&entry.name)?.into_iter().filter(|file| !file.is_dir);
                tree.files.extend(within.map(|file| (format!("{}/{}", entry.name, file.name), file.stat)));
                tree.dirs.push(entry.name);
            }
        }
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemVolume, OpenMode};

    #[test]
    fn replicas_of_others_are_left_out() {
        let volume = MemVolume::default();
        ["00", "records", "replica-00001-00000"].iter().for_each(|dir| volume.make_dir(dir).unwrap());
        for name in ["00/a", "records/log", "bivouac-volume", "replica-00001-00000/b"] {
            volume.open(name, OpenMode::Create).unwrap();
        }
        let mut tree = VolumeTree::of(&volume).unwrap();
        tree.dirs.sort_unstable();
        let mut names: Vec<String> = tree.files.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        assert_eq!(
            (tree.dirs, names.as_slice()),
            (
                vec!["00".to_owned(), "records".to_owned()],
                &["00/a", "bivouac-volume", "records/log"].map(str::to_owned)[..],
            )
        );
    }
}
