//! A directory of a mounted file system.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::{CatalogueStore, exists, too_large};
use crate::error::{Cause, PublishError, PublishResult};

/// Prefix of the names of incomplete entries.
const HIDDEN: &str = ".bivouac-";

/// The directory.
pub struct Dir(pub PathBuf);

impl Dir {
    /// Checks that the directory exists: a mistyped path must not become a catalogue.
    fn is_there(&self) -> PublishResult<()> {
        match fs::metadata(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = format_args!(
                    "catalogue {}: {error}; check its path, or make the directory: mkdir",
                    self.0.display()
                );
                Err(PublishError::new(Cause::NotFound, text))
            }
            _ => Ok(()),
        }
    }

    /// Writes the files to a hidden directory and syncs them.
    fn draft(&self, dir: &Path, files: &[(&str, &[u8])]) -> std::io::Result<()> {
        fs::create_dir(dir)?;
        for (name, bytes) in files {
            let mut file = fs::File::create_new(dir.join(name))?;
            file.write_all(bytes)?;
            file.sync_all()?;
        }
        // The directory as well: without it the names in it may be gone after a crash.
        fs::File::open(dir)?.sync_all()
    }
}

impl CatalogueStore for Dir {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        self.is_there()?;
        let (draft, place) = (self.0.join(format!("{HIDDEN}new-{entry}")), self.0.join(entry));
        let written =
            self.draft(&draft, files).map_err(|error| PublishError::system(draft.display(), &error));
        let named = written.and_then(|()| {
            match renameat_with(CWD, &draft, CWD, &place, RenameFlags::NOREPLACE) {
                Err(rustix::io::Errno::EXIST) => Err(exists(&place.display().to_string())),
                // A directory is renamed onto an empty one at most, so nothing is lost without the flag either.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                    fs::rename(&draft, &place).map_err(|error| PublishError::system(place.display(), &error))
                }
                other => other.map_err(|error| PublishError::system(place.display(), &error.into())),
            }
        });
        if named.is_err() {
            let _what_else_is_left = fs::remove_dir_all(&draft);
        }
        named?;
        let synced = fs::File::open(&self.0).and_then(|dir| dir.sync_all());
        synced.map_err(|error| PublishError::system(self.0.display(), &error))
    }

    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String> {
        let path = self.0.join(entry).join(file);
        let failed = |error| PublishError::system(path.display(), &error);
        // What is no file, such as a pipe, is not waited for.
        let seen = fs::metadata(&path).map_err(failed)?;
        if !seen.is_file() {
            return Err(PublishError::new(Cause::Damaged, format_args!("{}: is no file", path.display())));
        }
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| file.take(max as u64 + 1).read_to_string(&mut text));
        match read {
            Ok(len) if len <= max => Ok(text),
            Ok(_) => Err(too_large(&path.display().to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(too_large(&path.display().to_string()))
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn list(&self) -> PublishResult<Vec<String>> {
        self.is_there()?;
        let failed = |error| PublishError::system(self.0.display(), &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            names.extend(entry.file_name().into_string().ok().filter(|_| is_dir));
        }
        Ok(names)
    }

    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()> {
        let place = self.0.join(entry);
        for (number, file) in files.iter().enumerate() {
            let path = place.join(file);
            match fs::remove_file(&path) {
                // The first name makes it an entry, so that one has to be there; the rest may be gone already.
                Err(error) if number == 0 || error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(PublishError::system(path.display(), &error));
                }
                _ => {}
            }
        }
        match fs::remove_dir(&place) {
            // What else somebody put there is theirs.
            Err(error) if error.kind() != std::io::ErrorKind::DirectoryNotEmpty => {
                Err(PublishError::system(place.display(), &error))
            }
            _ => Ok(()),
        }
    }
}
