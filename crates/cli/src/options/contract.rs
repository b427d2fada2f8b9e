//! Options of `contract`.

use std::path::PathBuf;

use bivouac_types::{Contract, parse_contract};
use clap::{Args, Subcommand};

/// Arguments of `contract`.
#[derive(Debug, Args)]
pub struct ContractArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ContractCommand,
}

/// The commands of contracts.
#[derive(Debug, Subcommand)]
pub enum ContractCommand {
    /// Show which contract holds for files, or for what is made in directories, and where it comes from
    Show(ContractShowArgs),
    /// Choose the contract of files, or of what is made in directories from now on
    ///
    /// The owner may do so, and root. A file that is open goes on under the new contract; only a change to session
    /// needs it closed, and one from session closed on all other mounts. To laminated see `bivouac laminate`. What
    /// cannot be set is named, and the exit code is 1 then.
    Set(ContractSetArgs),
}

/// Arguments of `contract show`.
#[derive(Debug, Args)]
pub struct ContractShowArgs {
    /// Files and directories in a mounted formation
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `contract set`.
#[derive(Debug, Args)]
pub struct ContractSetArgs {
    /// The contract; partition for none of its own: that of the partition holds
    #[arg(value_name = "coherent|session|strict|laminated|partition", value_parser = choice)]
    pub contract: ContractChoice,
    /// Files and directories in a mounted formation
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Of directories, set it of all that is below them, too; other partitions and mounts below are left out, and named
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// Arguments of `laminate`.
#[derive(Debug, Args)]
pub struct LaminateArgs {
    /// Files in a mounted formation, and directories: all files that are below these now
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Have the files be writable again; they have to be closed everywhere
    #[arg(long, conflicts_with = "verify")]
    pub undo: bool,
    /// Read the files from their nodes, and compare them with the digests that were taken when they were laminated
    #[arg(long)]
    pub verify: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// A contract, or that of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractChoice(pub Option<Contract>);

fn choice(text: &str) -> Result<ContractChoice, String> {
    parse_contract(text).map(ContractChoice)
}
