//! The options of `key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Duration, NameArgs, duration};

/// Arguments of `key`.
#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    pub action: KeyAction,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyAction {
    /// Make a key; it is the last line of the output, or in the file that is named, and is not stored anywhere else
    Create(KeyCreateArgs),
    /// List the keys: what they are for, not what they are
    List(KeyListArgs),
    /// Revoke a key at once
    Revoke(KeyRevokeArgs),
}

/// Arguments of `key create`.
#[derive(Debug, Args)]
pub struct KeyCreateArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// File or directory of the formation that the key is for, with what is below it; /metrics for the figures alone; for
    /// links a directory
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,
    /// The key is for `bivouac link add` in another formation, and not for HTTP
    #[arg(long, conflicts_with = "header_file")]
    pub link: bool,
    /// The key can read only
    #[arg(long)]
    pub read_only: bool,
    /// How long it can be used [default: as long as the formation lives]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub expires: Option<Duration>,
    /// Write the key to this file, which only you can read, and not to standard output
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Write it to this file, which only you can read, as the header that curl takes with -H @FILE, and not to standard output
    #[arg(long, value_name = "FILE")]
    pub header_file: Option<PathBuf>,
}

/// Arguments of `key list`.
#[derive(Debug, Args)]
pub struct KeyListArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `key revoke`.
#[derive(Debug, Args)]
pub struct KeyRevokeArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Id of the key: the part in front of the dot
    #[arg(value_name = "ID")]
    pub id: String,
}
