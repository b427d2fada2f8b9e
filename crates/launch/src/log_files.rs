//! The logs in a formation's directory, for whoever reads them from elsewhere.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bivouac_types::{FsError, FsResult};
use serde::{Deserialize, Serialize};

use crate::state_dir::StateDir;

/// A log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFile {
    /// The process that wrote it: `n` and a node's number, `supervisor`, and so on.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
}

impl LogFile {
    /// Returns whether a text can be the name of a log: it leads nowhere else.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    }
}

impl StateDir {
    /// Returns all logs by their names.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn log_files(&self) -> FsResult<Vec<LogFile>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.path()).map_err(|error| failed(self.path(), &error))?.flatten() {
            let path = entry.path();
            let is_log = path.extension().is_some_and(|extension| extension == "log");
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.filter(|name| is_log && LogFile::is_name(name));
            let len = entry.metadata().map_or(0, |known| known.len());
            found.extend(name.map(|name| LogFile { name: name.to_owned(), len }));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Returns at most `most` bytes of a log from an offset on.
    ///
    /// # Errors
    /// `ENOENT`, or the reason why it cannot be read.
    pub fn read_log(&self, name: &str, offset: u64, most: usize) -> FsResult<Vec<u8>> {
        let path = self.path().join(format!("{name}.log"));
        let file = File::open(&path).map_err(|error| failed(&path, &error))?;
        let len = file.metadata().map_err(|error| failed(&path, &error))?.len();
        // Whoever asks may name any number of bytes, and they are reserved here.
        let most = most.min(usize::try_from(len.saturating_sub(offset)).unwrap_or(most));
        let (mut bytes, mut done) = (vec![0; most], 0);
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&path, &error)),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}

fn failed(path: &Path, error: &std::io::Error) -> FsError {
    FsError::from_io(error, &path.display().to_string())
}
