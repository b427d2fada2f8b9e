//! Archives that are directories.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bivouac_stage::{CopyOptions, NoProgress, Summary, copy_tree, remove_tree};

use super::{ArchiveRequest, CompletedArchive, SIGNS, is_signs, unless_interrupted};
use crate::failure::Failure;

/// Suffix of a copy until it is complete and verified.
const NEW: &str = ".new";

/// Copies a pool into an archive, beside what is there until all of it is.
pub fn put(to: &Path, asked: &ArchiveRequest<'_>) -> Result<CompletedArchive, Failure> {
    let failed = |error| Failure::new(1, format_args!("--to {}: {error}; check its path", to.display()));
    let dir = to.canonicalize().map_err(failed)?;
    if dir.starts_with(asked.site) {
        return Err(
            asked.failed("an archive in the pool itself is none; name a directory elsewhere: --to DIR")
        );
    }
    let copy = dir.join(format!("{}-{}", asked.name, asked.signs));
    sweep(&dir, asked.name).map_err(failed)?;
    let mut fresh = copy.clone().into_os_string();
    fresh.push(NEW);
    let fresh = PathBuf::from(fresh);
    let summary = copied(asked.site, &fresh)?;
    if let Err(objection) = asked.must_be_kept(&summary, copy.as_os_str().as_bytes()) {
        remove_tree(&fresh).map_err(failed)?;
        return Err(objection);
    }
    put_in_place(&fresh, &copy).map_err(failed)?;
    Ok(CompletedArchive { summary, place: copy.into_os_string().into_encoded_bytes() })
}

/// Returns a whole tree, verified; interrupted by a signal, with nothing unfinished left.
pub fn copied(from: &Path, to: &Path) -> Result<Summary, Failure> {
    let left = |error| Failure::new(1, format_args!("{}: {error}; check its path", to.display()));
    remove_left(to).map_err(left)?;
    let what = format!("{} to {}", from.display(), to.display());
    let copied = unless_interrupted(&what, |cancel| {
        copy_tree(from, to, &CopyOptions { cancel, ..CopyOptions::default() }, &NoProgress)
    })?;
    let summary = copied.map_err(|error| Failure::new(1, format_args!("{what}: {error}")))?;
    // Links and devices are not copied, and a copy without them is not all of the pool.
    if let Some(first) = summary.skipped.first() {
        let text = "cannot be copied, so this is no whole copy; move it away";
        return Err(Failure::new(1, format_args!("{what}: {} {text}", first.path.display())));
    }
    Ok(summary)
}

/// Replaces a copy by a fresh one. An existing copy is never written into: killed in the middle, it would be neither
/// the old one nor the new one.
fn put_in_place(fresh: &Path, copy: &Path) -> std::io::Result<()> {
    remove_if_any(copy)?;
    std::fs::rename(fresh, copy)?;
    File::open(copy.parent().unwrap_or(copy))?.sync_all()
}

fn remove_if_any(tree: &Path) -> std::io::Result<()> {
    match remove_tree(tree) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes copies of a pool that were not whole when their command was killed.
fn sweep(archive: &Path, name: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(archive)? {
        let entry = entry?;
        if is_unfinished(&entry.file_name(), name) && entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Returns whether a name is that of a copy of a pool, with what it is called until it is whole. Of no other pool:
/// their names may begin like this one's.
fn is_unfinished(entry: &OsStr, name: &str) -> bool {
    let Some(text) = entry.to_str() else { return false };
    let rest =
        text.strip_prefix('.').unwrap_or(text).strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    let parts = rest.and_then(|rest| rest.split_at_checked(SIGNS));
    parts.is_some_and(|(signs, rest)| {
        let is_new =
            rest.strip_prefix(NEW).is_some_and(|rest| rest.is_empty() || rest.starts_with(".bivouac-"));
        is_signs(signs) && is_new
    })
}

/// Removes what copies to this path have left that were killed, whole or not.
fn remove_left(to: &Path) -> std::io::Result<()> {
    remove_if_any(to)?;
    let (Some(dir), Some(name)) = (to.parent(), to.file_name()) else { return Ok(()) };
    let mut left = OsString::from(".");
    left.push(name);
    left.push(".bivouac-");
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(left.as_bytes()) && entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unfinished_copies_of_the_same_pool_are_swept() {
        let is = |entry: &str| is_unfinished(OsStr::new(entry), "0-mesh-1");
        assert!(is("0-mesh-1-0123456789abcdef.new") && is(".0-mesh-1-0123456789abcdef.new.bivouac-1"));
        for other in [
            "0-mesh-1-0123456789abcdef",
            "0-mesh-1-2-0123456789abcdef.new",
            "0-mesh-12-0123456789abcdef.new",
            "0-mesh-1-0123456789abcdeg.new",
            "0-mesh-1-0123456789abcdef.newer",
            "0-mesh-1-.new",
            "0-mesh-1-é",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
