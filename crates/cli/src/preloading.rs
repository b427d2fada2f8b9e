//! The preload, for commands that are run on a formation: where it is, and what the dynamic linker is told.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::options::PreloadArgs;

/// The library's file.
const LIBRARY: &str = "libbivouac_preload.so";
/// Directories of the library relative to the binary: in cargo's output, and as installed.
const PLACES: [&str; 2] = [".", "../lib"];
/// Variable that the dynamic linker reads.
pub const VARIABLE: &str = "LD_PRELOAD";

/// Returns the variable's value for the command; `None` if nothing is to be preloaded.
///
/// # Errors
/// The named library does not exist, or has a name that the dynamic linker does not understand.
pub fn value(args: &PreloadArgs, before: Option<&OsStr>) -> Result<Option<OsString>, Failure> {
    if args.no_preload {
        return Ok(None);
    }
    let library = match &args.preload {
        Some(named) => Some(checked(named)?),
        None => installed(),
    };
    Ok(library.map(|library| joined(before, &library)))
}

fn checked(named: &Path) -> Result<PathBuf, Failure> {
    let refused = |cause: &str| {
        Err(Failure::new(
            2,
            format_args!("--preload {}: {cause}; give the path of {LIBRARY}", named.display()),
        ))
    };
    match std::fs::canonicalize(named) {
        Ok(path) if is_understood(&path) => Ok(path),
        Ok(_) => refused("the dynamic linker takes no spaces or colons in a name"),
        Err(error) => refused(&error.to_string()),
    }
}

/// Returns the library that came with this program, if it is there.
pub fn installed() -> Option<PathBuf> {
    std::env::current_exe().ok().and_then(|program| beside(&program))
}

/// Returns the library that came with a program. Without it, or where it cannot be named, commands run as well.
fn beside(program: &Path) -> Option<PathBuf> {
    let dir = program.parent()?;
    let found = |place: &&str| std::fs::canonicalize(dir.join(place).join(LIBRARY)).ok();
    PLACES.iter().find_map(found).filter(|path| is_understood(path))
}

fn is_understood(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':')
}

/// Puts the library behind what is preloaded already, which expects the program's own calls. That may be the library
/// itself.
fn joined(before: Option<&OsStr>, library: &Path) -> OsString {
    let mut value = before.map(OsStr::to_owned).unwrap_or_default();
    let mut names = value.as_bytes().split(|byte| byte.is_ascii_whitespace() || *byte == b':');
    if names.any(|name| name == library.as_os_str().as_bytes()) {
        return value;
    }
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_beside_the_program_and_where_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let program = root.join("bin/bivouac");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("lib")).unwrap();
        assert_eq!(beside(&program), None);
        std::fs::write(root.join("lib").join(LIBRARY), "").unwrap();
        assert_eq!(beside(&program), Some(root.join("lib").join(LIBRARY)));
        std::fs::write(root.join("bin").join(LIBRARY), "").unwrap();
        assert_eq!(beside(&program), Some(root.join("bin").join(LIBRARY)));
    }

    #[test]
    fn what_was_preloaded_before_stays() {
        let library = Path::new("/lib/x.so");
        assert_eq!(joined(None, library), "/lib/x.so");
        assert_eq!(joined(Some(OsStr::new("")), library), "/lib/x.so");
        assert_eq!(joined(Some(OsStr::new("a.so b.so")), library), "a.so b.so:/lib/x.so");
        assert_eq!(joined(Some(OsStr::new("a.so:/lib/x.so b.so")), library), "a.so:/lib/x.so b.so");
        assert_eq!(joined(Some(OsStr::new("/lib/x.so.1")), library), "/lib/x.so.1:/lib/x.so");
    }

    #[test]
    fn a_library_that_is_named_must_be_one_that_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a b.so");
        std::fs::write(&odd, "").unwrap();
        let value_of =
            |preload: Option<PathBuf>, no_preload| value(&PreloadArgs { preload, no_preload }, None);
        assert!(value_of(Some(odd), false).unwrap_err().to_string().contains("no spaces or colons"));
        assert!(value_of(Some(dir.path().join("none")), false).is_err());
        assert_eq!(value_of(None, true).unwrap(), None);
    }
}
