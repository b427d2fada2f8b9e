//! Outputs that must be copied out before a formation is taken down.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::args::Transfer;
use crate::error::Failure;
use crate::options::CopyOptions;
use crate::paths::below;
use crate::scan::{Entry, ObjectKind, scan};

use super::Jobs;
use super::order::{parse_transfer, transfer_line};

/// A required output that has not been copied.
#[derive(Debug)]
pub struct UnstagedOutput {
    /// The required transfer.
    pub transfer: Transfer,
    /// Paths in the formation that have not been copied.
    pub paths: Vec<PathBuf>,
}

impl Jobs {
    /// Records transfers that are required before the formation is taken down.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn promise(&self, transfers: &[Transfer]) -> Result<(), Failure> {
        let known = self.promises()?;
        let new = transfers.iter().filter(|transfer| !known.contains(transfer));
        let text: String = new.map(|transfer| transfer_line("out", transfer)).collect();
        let path = self.dir.join("promises");
        let write = || {
            self.make_dir()?;
            let mut file = fs::OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(text.as_bytes())
        };
        write().map_err(|error| Failure::io("write", &path, error))
    }

    /// Returns the required transfers.
    ///
    /// # Errors
    /// It cannot be read, which does not count as empty.
    pub fn promises(&self) -> Result<Vec<Transfer>, Failure> {
        let path = self.dir.join("promises");
        let failed = |error| Failure::io("read", &path, error);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(failed)?,
        };
        let parse = |line: &str| line.strip_prefix("out\t").and_then(parse_transfer);
        let damaged = || failed(ErrorKind::InvalidData.into());
        text.lines().map(|line| parse(line).ok_or_else(damaged)).collect()
    }

    /// Returns required outputs with changes since their last copy, by the versions in the formation at `mount`.
    ///
    /// # Errors
    /// Unreadable records or formation: the state of the outputs is unknown then.
    pub fn unstaged(&self, mount: &Path) -> Result<Vec<UnstagedOutput>, Failure> {
        let mut found = Vec::new();
        for transfer in self.promises()? {
            let baseline = self.baseline(Some(&transfer)).below(&transfer.src);
            let root = below(mount, &transfer.src);
            // An output that does not exist (any more) has nothing to lose.
            if matches!(root.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound) {
                continue;
            }
            let plan = scan(root, &CopyOptions::default(), Some(&baseline));
            if let Some(failure) = plan.failures.into_iter().next() {
                return Err(failure);
            }
            let is_new = |entry: &&Entry| {
                entry.kind != ObjectKind::Dir
                    || !baseline.is_unchanged(&entry.path, entry.stamp.version, true)
            };
            // The root directory itself is created by the formation.
            let is_root = |entry: &&Entry| below(&transfer.src, &entry.path).as_os_str().is_empty();
            let paths = plan.entries.iter().filter(is_new).filter(|entry| !is_root(entry));
            let paths: Vec<_> = paths.map(|entry| below(&transfer.src, &entry.path)).collect();
            if !paths.is_empty() {
                found.push(UnstagedOutput { transfer, paths });
            }
        }
        Ok(found)
    }
}
