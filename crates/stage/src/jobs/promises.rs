//! What is to be copied out before a formation goes down.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::scan::{Entry, Kind, below, scan};
use crate::{CopyOptions, Failure, Transfer};

use super::Jobs;
use super::order::{parse_transfer, transfer_line};

/// A promise that is not kept.
#[derive(Debug)]
pub struct Unstaged {
    /// What was to be copied out, and where to.
    pub transfer: Transfer,
    /// What of it is not: paths in the formation.
    pub paths: Vec<PathBuf>,
}

impl Jobs {
    /// Writes down what is to be copied out before the formation goes down.
    ///
    /// # Errors
    /// When it cannot be written.
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

    /// What is to be copied out before the formation goes down.
    ///
    /// # Errors
    /// When it cannot be read: it is not taken for nothing.
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

    /// What was promised and is not copied out, by what the formation at `mount` says of changes.
    ///
    /// # Errors
    /// When the promises or the formation cannot be read: nobody knows then.
    pub fn unstaged(&self, mount: &Path) -> Result<Vec<Unstaged>, Failure> {
        let mut found = Vec::new();
        for transfer in self.promises()? {
            let baseline = self.baseline(Some(&transfer)).below(&transfer.src);
            let root = below(mount, &transfer.src);
            if matches!(root.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound) {
                continue;
            }
            let plan = scan(root, &CopyOptions::default(), Some(&baseline));
            if let Some(failure) = plan.failures.into_iter().next() {
                return Err(failure);
            }
            let is_new = |entry: &&Entry| {
                entry.kind != Kind::Dir || !baseline.has(&entry.path, entry.stamp.mark, true)
            };
            // The root of the formation is nobody's work.
            let is_root = |entry: &&Entry| below(&transfer.src, &entry.path).as_os_str().is_empty();
            let paths = plan.entries.iter().filter(is_new).filter(|entry| !is_root(entry));
            let paths: Vec<_> = paths.map(|entry| below(&transfer.src, &entry.path)).collect();
            if !paths.is_empty() {
                found.push(Unstaged { transfer, paths });
            }
        }
        Ok(found)
    }
}
