//! Targets of a measurement: directories, several mounts of one file system, formations of a measurement's own.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::formation::Formation;
use crate::measure::in_range;
use crate::one_core::OneCore;
use crate::scratch::Scratch;
use crate::{BenchError, BenchResult, Host};

/// Most nodes of a formation on one machine.
const NODES_MAX: u64 = 256;
/// Name of the limit in tables.
pub const LIMIT: &str = "tmpfs";

/// A file system, through one mount or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredTarget {
    /// Its name in tables.
    pub name: String,
    /// A directory of it, as each of its mounts shows it; at least one.
    pub dirs: Vec<PathBuf>,
}

impl FromStr for MeasuredTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<MeasuredTarget, String> {
        if text.split(',').any(str::is_empty) {
            return Err("an empty name; write DIR, or DIR,DIR for two mounts of one file system".to_owned());
        }
        Ok(MeasuredTarget { name: text.to_owned(), dirs: text.split(',').map(PathBuf::from).collect() })
    }
}

impl MeasuredTarget {
    /// A directory under a name for tables.
    #[must_use]
    pub fn new(name: &str, dir: PathBuf) -> MeasuredTarget {
        MeasuredTarget { name: name.to_owned(), dirs: vec![dir] }
    }

    /// The directory through the first mount.
    #[must_use]
    pub fn first(&self) -> &Path {
        self.dirs.first().map(PathBuf::as_path).unwrap_or(Path::new("."))
    }

    /// A scratch directory, and how each mount shows it.
    ///
    /// # Errors
    /// When it cannot be made, or the mounts are not of one file system.
    pub fn scratch(&self) -> BenchResult<(Scratch, Vec<PathBuf>)> {
        let scratch = Scratch::new(self.first())?;
        let name = scratch.path().file_name().unwrap_or_default();
        let dirs: Vec<PathBuf> = self.dirs.iter().map(|dir| dir.join(name)).collect();
        match dirs.iter().zip(&self.dirs).find(|(dir, _)| !dir.is_dir()) {
            None => Ok((scratch, dirs)),
            Some((_, alien)) => {
                let cause = format_args!("does not show what is made in {}", self.first().display());
                Err(BenchError::usage(alien.display(), cause, "name mounts of one file system"))
            }
        }
    }
}

/// Measures with all processes of the measurement on one processor.
///
/// # Errors
/// When the system refuses; those of the measurement.
pub fn on_one_core<T>(measure: impl FnOnce() -> BenchResult<T>) -> BenchResult<T> {
    let _one_core = OneCore::enter()?;
    measure()
}

/// Measures a formation that is started for it, through a mount of each node, beside a directory in memory.
///
/// # Errors
/// A number of nodes that cannot be; what `up` and `down` say; those of the measurement.
pub fn with_formation<T>(
    host: &Host<'_>,
    (nodes, one_core): (u16, bool),
    memory: &Path,
    measure: impl FnOnce(&[MeasuredTarget]) -> BenchResult<T>,
) -> BenchResult<T> {
    let whole = || {
        let scratch = Scratch::new(memory)?;
        let formation = up(host, nodes, &scratch)?;
        let name = crate::startup::nodes_name(nodes);
        let targets = [
            MeasuredTarget { name, dirs: formation.mounts() },
            MeasuredTarget::new(LIMIT, scratch.subdir("plain")?),
        ];
        let outcome = measure(&targets)?;
        formation.down(host)?;
        Ok(outcome)
    };
    if one_core { on_one_core(whole) } else { whole() }
}

/// A formation that is mounted through each of its nodes, below a scratch directory.
pub fn up<'h, 'a>(host: &'h Host<'a>, nodes: u16, scratch: &Scratch) -> BenchResult<Formation<'h, 'a>> {
    in_range("--nodes", u64::from(nodes), 1, NODES_MAX)?;
    let (each, nodes) = (scratch.subdir("mounts")?.display().to_string(), nodes.to_string());
    let formation = Formation::up(host, &["--nodes", &nodes, "--mount-each", &each])?;
    if formation.mounts().is_empty() {
        return Err(BenchError::refused("up --json", "names no mount"));
    }
    Ok(formation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_separate_mounts() {
        let target: MeasuredTarget = "/a,/b".parse().unwrap();
        assert_eq!(target, MeasuredTarget { name: "/a,/b".into(), dirs: vec!["/a".into(), "/b".into()] });
        assert_eq!("/a".parse(), Ok(MeasuredTarget::new("/a", "/a".into())));
        assert!("/a,".parse::<MeasuredTarget>().is_err() && "".parse::<MeasuredTarget>().is_err());
    }

    #[test]
    fn mounts_of_different_file_systems_are_told_apart() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut target = MeasuredTarget::new("x", one.path().to_owned());
        target.dirs.push(one.path().join("."));
        assert_eq!(target.scratch().unwrap().1.len(), 2);
        target.dirs.push(two.path().to_owned());
        let error = target.scratch().err().unwrap().to_string();
        let says = format!("{}: does not show what is made in ", two.path().display());
        assert!(error.starts_with(&says), "{error}");
        assert_eq!(std::fs::read_dir(one.path()).unwrap().count(), 0);
    }
}
