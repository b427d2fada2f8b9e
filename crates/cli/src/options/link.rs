//! The options of `link`.

use std::path::PathBuf;

use bivouac_launch::HttpAddress;
use clap::{Args, Subcommand};

use super::NameArgs;

/// Arguments of `link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    #[command(subcommand)]
    pub command: LinkCommand,
}

/// The commands of links.
#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// Link a directory of another formation
    ///
    /// It appears at a path of this one, which becomes a partition: `partition set` changes its policies, `flush` brings
    /// what was not sent. A key that permits no changes makes it a link to read.
    Add(LinkAddArgs),
    /// List the links of a formation
    List(LinkListArgs),
    /// Show a link: where it leads, rights, round trip, and figures of its key at the other side
    ///
    /// The exit code is 1 if the other side does not answer or does not take the key.
    Show(LinkShowArgs),
    /// Begin to serve links of other formations, as `up --link-listen` does from the start
    ///
    /// For formations on one host; its host has to have a mount.
    Listen(LinkListenArgs),
    /// Remove a link; nothing is deleted at the other side
    ///
    /// Content that is not there yet is sent first.
    Remove(LinkRemoveArgs),
}

/// Arguments of `link add`.
#[derive(Debug, Args)]
pub struct LinkAddArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Name of the link: letters, digits, dashes, dots and underscores
    #[arg(value_name = "NAME")]
    pub link: String,
    /// Address of the other formation (its --link-listen)
    #[arg(value_name = "ADDR:PORT")]
    pub address: String,
    /// File with the key, which `bivouac key create --link --key-file` wrote there
    #[arg(long, value_name = "FILE")]
    pub key_file: PathBuf,
    /// Path in this formation, from its root on [default: /NAME]
    #[arg(long, value_name = "PATH")]
    pub at: Option<String>,
}

/// Arguments of `link list`.
#[derive(Debug, Args)]
pub struct LinkListArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `link show`.
#[derive(Debug, Args)]
pub struct LinkShowArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Name of the link
    #[arg(value_name = "NAME")]
    pub link: String,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `link listen`.
#[derive(Debug, Args)]
pub struct LinkListenArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Where to listen; without an address, on this machine alone
    #[arg(value_name = "[ADDR:]PORT")]
    pub address: HttpAddress,
}

/// Arguments of `link remove`.
#[derive(Debug, Args)]
pub struct LinkRemoveArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Name of the link
    #[arg(value_name = "NAME")]
    pub link: String,
    /// Throw away what was written and is not at the other side
    #[arg(long)]
    pub discard: bool,
}
