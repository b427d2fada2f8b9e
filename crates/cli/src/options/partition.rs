//! Options of partitions; each setting is one of `bivouac_types::PARTITION_KEYS`.

use std::path::PathBuf;

use bivouac_types::units::parse_size;
use bivouac_types::{PartitionSettings, SettingError};
use clap::builder::ValueParser;
use clap::{Args, Subcommand};

use super::NameArgs;
use crate::partitioning::{ClientSharing, Nodes, Sizing, parse_fraction};

/// Arguments of `partition`.
#[derive(Debug, Args)]
pub struct PartitionArgs {
    /// What to do
    #[command(subcommand)]
    pub command: PartitionCommand,
}

/// The commands of partitions.
#[derive(Debug, Subcommand)]
pub enum PartitionCommand {
    /// Make a directory the root of a partition: files below it are on chosen nodes, by rules of their own
    ///
    /// The directory is made if it does not exist, and must be empty otherwise. Files do not move or get names across
    /// the border of a partition (EXDEV): `mv` copies them.
    Create(CreateArgs),
    /// Show the partitions of a formation
    List(ListArgs),
    /// Show the partition that a path is in
    Show(ShowArgs),
    /// Change settings of a partition, for files that are made from now on
    ///
    /// Its nodes, volumes, contract and source are chosen when it is made, and stay as they are. With --rule the rules
    /// that are given take the place of all others; --rule none takes all away.
    Set(SetArgs),
    /// Remove a partition and its directory, which must be empty
    ///
    /// Files are never removed with it: copy them elsewhere or delete them first.
    Remove(RemoveArgs),
}

/// A partition's settings.
#[derive(Clone, Debug, Default, Args)]
pub struct SettingArgs {
    /// Stripe size of new files, in bytes; a multiple of 4096
    #[arg(long, value_name = "SIZE", value_parser = setting("stripe"))]
    pub stripe: Option<String>,
    /// Number of targets that a new file is striped over; 0 means all of the partition
    #[arg(long, value_name = "N", value_parser = setting("width"))]
    pub width: Option<String>,
    /// How the targets of a new file are chosen: over several, all on the node where it is made, or all on one by its
    /// number
    #[arg(long, value_name = "striped|local|hashed", value_parser = setting("placement"))]
    pub placement: Option<String>,
    /// What decides on the first target of a file: a hash of its number, or the published sum of its name's bytes,
    /// which crowds numbered names
    #[arg(long, value_name = "xxh3|byte-sum", value_parser = setting("master-hash"))]
    pub master_hash: Option<String>,
    /// Which volumes of its nodes the partition uses
    #[arg(long, value_name = "any|memory|disk", value_parser = setting("volumes"))]
    pub volumes: Option<String>,
    /// What readers may expect of writers
    #[arg(long, value_name = "coherent|session|strict", value_parser = setting("contract"))]
    pub contract: Option<String>,
    /// Requests that make files final: `bivouac laminate` only, or also taking away their last permission to write
    /// (chmod a-w)
    #[arg(long, value_name = "on-request|on-chmod", value_parser = setting("laminate"))]
    pub laminate: Option<String>,
    /// Site storage that the partition stands in front of: a directory, or s3://BUCKET/PREFIX; none for none
    #[arg(long, value_name = "URL", value_parser = setting("source"))]
    pub source: Option<String>,
    /// When content comes from site storage
    #[arg(long, value_name = "on-demand|at-start|on-open", value_parser = setting("read"))]
    pub read: Option<String>,
    /// When content goes to site storage
    #[arg(long, value_name = "through|on-close|delayed[=T]|on-flush|never", value_parser = setting("write"))]
    pub write: Option<String>,
    /// What fsync waits for: the volumes, or the source as well
    #[arg(long, value_name = "volumes|source", value_parser = setting("fsync"))]
    pub fsync: Option<String>,
    /// Delete at the source what is deleted here; without it nothing ever is
    #[arg(long, value_name = "no|yes", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
          value_parser = setting("mirror-deletes"))]
    pub mirror_deletes: Option<String>,
    /// Most bytes on its targets together, shared out evenly among them; none for no limit but that of the volumes
    #[arg(long, value_name = "SIZE", value_parser = setting("capacity"))]
    pub capacity: Option<String>,
    /// Exception for files whose names match; the first that says something about a matter decides. May be given
    /// several times
    #[arg(long = "rule", value_name = "GLOB: read=… write=… stripe=… pin=… contract=…", value_parser = setting("rule"))]
    pub rules: Vec<String>,
}

/// Which nodes a partition gets.
#[derive(Clone, Debug, Default, Args)]
pub struct TargetArgs {
    /// Nodes: a number of them (4: those with most free space), or a list (0-3,7 or 4,), whose order is kept [default:
    /// all]
    #[arg(long, value_name = "COUNT|LIST", conflicts_with = "size")]
    pub nodes: Option<Nodes>,
    /// Take as many nodes as this much data needs, and say how many and why
    #[arg(long = "for", id = "size", value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Which part of a node's volumes --for may count on
    #[arg(long, value_name = "FRACTION", requires = "size", default_value = "0.8", value_parser = parse_fraction)]
    pub keep: f64,
    /// A partition of 4 volumes for each client, in directories 0, 1 and so on below the path; needs --clients
    #[arg(long, requires = "clients", group = "sharing")]
    pub dedicated: bool,
    /// A partition of 4 volumes for every 2 clients
    #[arg(long, requires = "clients", group = "sharing")]
    pub semi_dedicated: bool,
    /// A partition of 4 volumes for every 4 clients
    #[arg(long, requires = "clients", group = "sharing")]
    pub shared: bool,
    /// Number of clients that the volumes are shared out among
    #[arg(long, value_name = "N", requires = "sharing", value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: Option<u16>,
}

/// Arguments of `partition create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    pub place: PathArgs,
    #[command(flatten)]
    pub targets: TargetArgs,
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// A path in a formation.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// A path in a mounted formation; with --name, one from the formation's own directory on
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The formation, also if it is not mounted [default: the one that the path is in]
    #[command(flatten)]
    pub which: NameArgs,
}

/// Arguments of `partition list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub which: NameArgs,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `partition show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub place: PathArgs,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `partition set`. What is chosen when a partition is made is read, so that the refusal says why, and is
/// not offered.
#[derive(Debug, Args)]
#[command(mut_arg("volumes", |arg| arg.hide(true)), mut_arg("contract", |arg| arg.hide(true)))]
#[command(mut_arg("source", |arg| arg.hide(true)))]
pub struct SetArgs {
    #[command(flatten)]
    pub place: PathArgs,
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Arguments of `partition remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    pub place: PathArgs,
}

impl SettingArgs {
    /// Returns the key and value of those that are given.
    pub fn pairs(&self) -> Vec<(&'static str, &str)> {
        let single = [
            ("stripe", &self.stripe),
            ("width", &self.width),
            ("placement", &self.placement),
            ("master-hash", &self.master_hash),
            ("volumes", &self.volumes),
            ("contract", &self.contract),
            ("laminate", &self.laminate),
            ("source", &self.source),
            ("read", &self.read),
            ("write", &self.write),
            ("fsync", &self.fsync),
            ("mirror-deletes", &self.mirror_deletes),
            ("capacity", &self.capacity),
        ];
        let given = single.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        given.chain(self.rules.iter().map(|rule| ("rule", rule.as_str()))).collect()
    }

    /// Changes settings as they are given.
    ///
    /// # Errors
    /// More rules than there may be.
    pub fn apply(&self, settings: &mut PartitionSettings) -> Result<(), SettingError> {
        if !self.rules.is_empty() {
            settings.rules.clear();
        }
        self.pairs().into_iter().try_for_each(|(key, value)| settings.assign(key, value))
    }
}

impl TargetArgs {
    /// For how much data it is to be.
    pub fn sizing(&self) -> Option<Sizing> {
        self.size.map(|bytes| Sizing { bytes, keep: self.keep })
    }

    /// How the volumes are to be shared out.
    pub fn sharing(&self) -> Option<ClientSharing> {
        let ways =
            [("dedicated", self.dedicated), ("semi-dedicated", self.semi_dedicated), ("shared", self.shared)];
        let (name, _) = ways.into_iter().find(|(_, is_asked)| *is_asked)?;
        Some(ClientSharing { clients_per: ClientSharing::named(name)?, clients: self.clients? })
    }
}

/// Reads a value as the setting does, and keeps it as it is written.
fn setting(key: &'static str) -> ValueParser {
    ValueParser::new(move |text: &str| {
        let checked = PartitionSettings::default().assign(key, text);
        checked.map(|()| text.to_owned()).map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::PARTITION_KEYS;

    #[test]
    fn every_setting_is_an_option() {
        let command = SettingArgs::augment_args(clap::Command::new("x"));
        let longs: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
        let keys: Vec<&str> = PARTITION_KEYS.iter().map(|(key, _)| *key).collect();
        assert_eq!(longs, keys);
    }
}
