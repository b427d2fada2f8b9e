//! `bivouac completions`: for bash, zsh, fish and others.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::options::{CompletionsArgs, command};

/// Writes them to standard output.
pub fn run(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "bivouac", &mut text);
    out!("{}", String::from_utf8_lossy(&text));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_know_every_command() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "bivouac", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["up", "status", "down", "run", "explain", "mount-each"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
