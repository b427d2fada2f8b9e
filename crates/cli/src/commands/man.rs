//! `bivouac man`: the manual, from the table of options.

use std::process::ExitCode;

use clap_mangen::Man;

use crate::failure::Failure;
use crate::options::{ManArgs, command};

/// Writes the main page to standard output, or all pages into a directory.
pub fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    match &args.dir {
        Some(dir) => {
            let failed =
                |e| Failure::new(1, format_args!("{}: {e}; name a directory that exists", dir.display()));
            clap_mangen::generate_to(command(), dir).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            Man::new(command()).render(&mut page)?;
            out!("{}", String::from_utf8_lossy(&page));
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_per_command() {
        let dir = tempfile::tempdir().unwrap();
        run(&ManArgs { dir: Some(dir.path().into()) }).unwrap();
        let page = std::fs::read_to_string(dir.path().join("bivouac-run.1")).unwrap();
        assert!(page.contains("bivouac run \\-\\-nodes 4"), "{page}");
        assert!(page.contains("out\\-always") && page.contains("121"), "{page}");
        assert!(dir.path().join("bivouac.1").exists());
        assert!(!dir.path().join("bivouac-node.1").exists());
        assert!(run(&ManArgs { dir: Some(dir.path().join("none")) }).is_err());
    }
}
