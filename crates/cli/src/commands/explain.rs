//! `bivouac explain`.

use std::path::Path;
use std::process::ExitCode;

use bivouac_launch::Environment;
use serde::Serialize;

use crate::explain::{Explanation, ProcessExplanation, file, process};
use crate::failure::Failure;
use crate::options::ExplainArgs;

/// Shows where a file is, or what a process does with its files.
pub fn run(here: &Environment, args: &ExplainArgs) -> Result<ExitCode, Failure> {
    if let Some(pid) = args.pid {
        return show(args.json, &process(here, pid)?, ProcessExplanation::to_text);
    }
    let path = args.path.as_deref().unwrap_or(Path::new("."));
    show(args.json, &file(here, path, args.offset)?, Explanation::to_text)
}

fn show<T: Serialize>(json: bool, shown: &T, to_text: fn(&T) -> String) -> Result<ExitCode, Failure> {
    if json {
        outln!("{}", crate::output::json(shown, true)?);
    } else {
        out!("{}", to_text(shown));
    }
    Ok(ExitCode::SUCCESS)
}
