//! The options of `completions` and `man`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for one page per command
    pub dir: Option<PathBuf>,
}
