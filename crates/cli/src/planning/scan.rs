//! Amount of data in files and directories.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of all files.
    pub bytes: u64,
    /// Regular files.
    pub files: u64,
}

/// Looks through paths, without following links below them. Nothing is read but names and sizes.
pub fn scan(paths: &[PathBuf]) -> Result<Amount, Failure> {
    let failed = |path: &Path, e| Failure::new(1, format_args!("{}: {e}; check its path", path.display()));
    let mut amount = Amount::default();
    let mut rest = Vec::new();
    for path in paths {
        let found = std::fs::metadata(path).map_err(|e| failed(path, e))?;
        amount.add(&found);
        rest.extend(found.is_dir().then(|| path.clone()));
    }
    while let Some(dir) = rest.pop() {
        for entry in std::fs::read_dir(&dir).map_err(|e| failed(&dir, e))? {
            let entry = entry.map_err(|e| failed(&dir, e))?;
            let found = entry.metadata().map_err(|e| failed(&entry.path(), e))?;
            amount.add(&found);
            rest.extend(found.is_dir().then(|| entry.path()));
        }
    }
    Ok(amount)
}

impl Amount {
    fn add(&mut self, found: &std::fs::Metadata) {
        if found.is_file() {
            self.bytes = self.bytes.saturating_add(found.len());
            self.files += 1;
        }
    }
}
