//! The project's own checks: `cargo xtask tidy`, `cargo xtask simulate`, `cargo xtask site`.

mod site;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("tidy", [])) => tidy(root),
        Some(("simulate", rest)) => simulate(root, rest),
        Some(("site", rest)) => site::run(root, rest),
        _ => {
            eprintln!("usage: cargo xtask tidy         checks the house rules");
            eprintln!("       cargo xtask simulate …   nodes and clients under one seed");
            eprintln!(
                "       cargo xtask site [SEED [JOBS]]  staging slots at a simulated site, and their picture"
            );
            ExitCode::from(2)
        }
    }
}

/// Builds the simulation, which is a workspace of its own, and runs it.
fn simulate(root: &Path, arguments: &[String]) -> ExitCode {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["run", "--quiet", "--release", "--manifest-path"])
        .arg(root.join("tests/simulate/Cargo.toml"));
    command.arg("--target-dir").arg(target.join("simulate")).arg("--").args(arguments);
    match command.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("simulate: cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tidy(root: &Path) -> ExitCode {
    match tidy::check(root) {
        Ok(violations) if violations.is_empty() => ExitCode::SUCCESS,
        Ok(violations) => {
            violations.iter().for_each(|violation| println!("{violation}"));
            eprintln!("tidy: {} violations of the house rules", violations.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}
