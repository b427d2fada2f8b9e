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
        let Some(entries) = unless_gone(std::fs::read_dir(&dir)).map_err(|e| failed(&dir, e))? else {
            continue;
        };
        for entry in entries {
            let entry = entry.map_err(|e| failed(&dir, e))?;
            let found = unless_gone(entry.metadata()).map_err(|e| failed(&entry.path(), e))?;
            let Some(found) = found else { continue };
            amount.add(&found);
            rest.extend(found.is_dir().then(|| entry.path()));
        }
    }
    Ok(amount)
}

/// Returns nothing for what was removed since its name was read: others go on working there.
fn unless_gone<T>(found: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

impl Amount {
    fn add(&mut self, found: &std::fs::Metadata) {
        if found.is_file() {
            self.bytes = self.bytes.saturating_add(found.len());
            self.files += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_meanwhile_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "four").unwrap();
        assert_eq!(scan(&[dir.path().into()]).unwrap(), Amount { bytes: 4, files: 1 });
        assert!(unless_gone(std::fs::metadata(dir.path().join("gone"))).unwrap().is_none());
        assert!(scan(&[dir.path().join("gone")]).is_err(), "what was asked for must be there");
    }
}
