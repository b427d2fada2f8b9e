//! Files with keys in them, which nobody but this user can read.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FileType, fstat};

use crate::failure::Failure;

/// Writes a file that only this user can read, in place of what is there: whole, or not at all.
///
/// # Errors
/// What the system refused, or that there is something else than a file.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(1, format_args!("{}: {error}", path.display()));
    let Some(name) = path.file_name() else {
        return Err(failed(&"names no file; write for instance key"));
    };
    // Renaming would put the file in place of a device, or of a link to somewhere else.
    if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        return Err(failed(&"is no regular file; name one, or remove it"));
    }
    let beside = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    // A file that is there already may be open to others, also to those who have it open.
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).and_then(|file| {
            fill(file, text).and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
                let _the_first_failure_counts = std::fs::remove_file(&beside);
            })
        });
    written.map_err(|error| failed(&error))
}

fn fill(mut file: File, text: &str) -> std::io::Result<()> {
    file.write_all(text.as_bytes())?;
    // Before it is renamed: after a crash of the machine the name could lead to an empty file.
    file.sync_all()
}

/// Says so where standard output is a file that others can read: a key has been written to it.
pub fn warn_of_readers(remedy: &str) {
    let Ok(found) = fstat(std::io::stdout()) else { return };
    let mode = found.st_mode & 0o777;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && mode & 0o077 != 0 {
        errln!(
            "bivouac: others can read the file that this is written to (mode {mode:04o}): chmod 600 it{remedy}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_key_is_readable_by_its_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "old, and longer than the new one").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let mut reader = File::open(&path).unwrap();
        write(&path, "secret\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret\n");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        let mut seen = String::new();
        std::io::Read::read_to_string(&mut reader, &mut seen).unwrap();
        assert!(seen.starts_with("old"), "whoever had it open sees nothing of the key: {seen}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/nothing", &link).unwrap();
        for path in [dir.path(), &link, Path::new("/")] {
            assert!(write(path, "secret").unwrap_err().to_string().contains("file"), "{}", path.display());
        }
        assert!(write(&dir.path().join("none/key"), "x").unwrap_err().to_string().contains("none/key"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
