//! Cache of a user's fetches: paths by digest, and entries of catalogues.
//!
//! Nothing is kept twice: a file that was fetched stays where it was put, and is a holder of its content as any other
//! as long as it is there unchanged, which its digests tell.

use std::fs;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::known::CachedEntry;
use crate::manifest::{DataSetFile, Manifest};
use crate::{metalink, ro_crate};

/// Longest path that is kept.
const PATH_MAX: usize = 4096;

/// A directory of the user's.
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Returns the one in a directory, made when there is something to keep.
    #[must_use]
    pub fn at(dir: PathBuf) -> Cache {
        Cache { dir }
    }

    fn content(&self, digest: &Digest) -> PathBuf {
        self.dir.join("content").join(digest.hex())
    }

    /// Returns the recorded path of content with this digest, if a file of this size exists there.
    #[must_use]
    pub fn find(&self, digest: &Digest, size: u64) -> Option<PathBuf> {
        // A path stands for content by its digest alone: whether it is still that content, whoever reads it compares.
        let path = fs::read_to_string(self.content(digest)).ok().filter(|path| path.len() <= PATH_MAX)?;
        let seen = fs::symlink_metadata(&path).ok()?;
        (seen.is_file() && seen.len() == size).then(|| path.into())
    }

    /// Records where content is. Errors are ignored: what is not recorded is fetched again.
    pub fn note(&self, digest: &Digest, path: &Path) {
        if let Some(text) = path.to_str() {
            self.keep(&self.content(digest), text.as_bytes());
        }
    }

    /// Stores an entry of a catalogue, which does not change while it exists.
    pub fn keep_entry(&self, catalogue: &str, manifest: &Manifest, items: &[DataSetFile]) {
        let (dir, metalink) = (self.entry(catalogue, &manifest.id), metalink::encode(items));
        self.keep(&dir.join("meta4"), metalink.as_bytes());
        self.keep(&dir.join("json"), ro_crate::encode(manifest, items, &metalink).as_bytes());
    }

    /// Returns a stored entry of a catalogue.
    #[must_use]
    pub fn find_entry(&self, catalogue: &str, id: &str) -> Option<(Manifest, Vec<DataSetFile>)> {
        let dir = self.entry(catalogue, id);
        let described = fs::read_to_string(dir.join("json")).ok()?;
        let links = fs::read_to_string(dir.join("meta4")).ok()?;
        let CachedEntry { manifest, items } = CachedEntry::of(&described, &links).ok()?;
        (manifest.id == id).then_some((manifest, items))
    }

    /// Forgets an entry.
    pub fn forget_entry(&self, catalogue: &str, id: &str) {
        let _none_there_is_forgotten = fs::remove_dir_all(self.entry(catalogue, id));
    }

    fn entry(&self, catalogue: &str, id: &str) -> PathBuf {
        self.dir.join("entries").join(Digest::of(format!("{catalogue}\0{id}").as_bytes()).hex())
    }

    /// Keeps bytes in a file, whole or not at all: it is written beside its name.
    fn keep(&self, path: &Path, bytes: &[u8]) {
        // The process is in the name, so that two that keep the same do not write into one file.
        let beside = path.with_extension(format!("{}.new", std::process::id()));
        let kept = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&beside, bytes));
        let _the_cache_is_for_speed = kept.and_then(|()| fs::rename(&beside, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_known_as_long_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, file) = (Cache::at(dir.path().join("cache")), dir.path().join("f"));
        let digest = Digest::of(b"abc");
        assert_eq!(cache.find(&digest, 3), None);
        cache.note(&digest, &file);
        assert_eq!(cache.find(&digest, 3), None, "nothing is there");
        fs::write(&file, "abc").unwrap();
        assert_eq!((cache.find(&digest, 3), cache.find(&digest, 4)), (Some(file.clone()), None));
    }
}
