//! Runs the table.

use std::path::PathBuf;

use rustix::fs::Mode;

use crate::case::{Case, Outcome};
use crate::env::Env;
use crate::excludes::Excludes;

/// How one case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Passed,
    /// Otherwise, and how.
    Failed(String),
    /// Otherwise, as its exclude says.
    Excluded,
    /// Not run: it takes root.
    Skipped,
}

/// Runs a case in a new directory, `name` in each of `mounts`, which lead to the same file system.
///
/// # Errors
/// When the directory cannot be made or removed.
pub fn run(case: &Case, mounts: &[PathBuf], name: &str, excludes: &Excludes) -> Result<End, String> {
    if case.needs_root && !rustix::process::geteuid().is_root() {
        return Ok(End::Skipped);
    }
    let dirs: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(name)).collect();
    let first = dirs.first().ok_or("no directory to run in")?;
    std::fs::create_dir(first).map_err(|error| format!("{}: {error}", first.display()))?;
    let outcome = (case.run)(&Env::new(dirs.clone()));
    std::fs::remove_dir_all(first).map_err(|error| format!("{}: {error}", first.display()))?;
    Ok(judge(outcome, excludes.contains_key(&case.name)))
}

/// An excluded case that passes is a failure: of the list.
fn judge(outcome: Outcome, excluded: bool) -> End {
    match (outcome, excluded) {
        (Ok(()), false) => End::Passed,
        (Ok(()), true) => End::Failed("passes: take it from the list of excludes".into()),
        (Err(_), true) => End::Excluded,
        (Err(text), false) => End::Failed(text),
    }
}

/// Makes the modes of new files those that are asked for.
pub fn clear_umask() {
    rustix::process::umask(Mode::empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_are_not_stale() {
        assert_eq!(judge(Ok(()), false), End::Passed);
        assert_eq!(judge(Err("x".into()), true), End::Excluded);
        assert_eq!(judge(Err("x".into()), false), End::Failed("x".into()));
        assert!(matches!(judge(Ok(()), true), End::Failed(text) if text.contains("take it from")));
    }
}
