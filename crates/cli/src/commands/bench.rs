//! `bivouac bench`: becomes the program for measurements, which is installed beside this one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::{CODE_NOT_FOUND, become_command};

use crate::failure::Failure;

/// The program's name.
const PROGRAM: &str = "bivouac-bench";

/// Becomes it, with the words behind `bench`. Returns only if that fails.
pub fn run() -> Result<ExitCode, Failure> {
    let own = std::env::current_exe().unwrap_or_default();
    let program = beside(&own).unwrap_or_else(|| PathBuf::from(PROGRAM)).into_os_string();
    let command: Vec<_> = std::iter::once(program).chain(std::env::args_os().skip(2)).collect();
    // In place of this process, so that signals and the exit code are those of the measurement.
    let (code, text) = become_command(&command, &[], None);
    Err(if code == CODE_NOT_FOUND { missing(&own) } else { Failure::new(1, text) })
}

/// Returns the one that came with this program.
fn beside(own: &Path) -> Option<PathBuf> {
    Some(own.with_file_name(PROGRAM)).filter(|program| program.exists())
}

fn missing(own: &Path) -> Failure {
    let dir = own.parent().unwrap_or(own).display();
    let text =
        format!("{PROGRAM}: is neither in {dir} nor in PATH; install it beside bivouac, with which it comes");
    Failure::new(1, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("bivouac");
        assert_eq!(beside(&own), None);
        std::fs::write(dir.path().join(PROGRAM), "").unwrap();
        assert_eq!(beside(&own), Some(dir.path().join(PROGRAM)));
    }
}
