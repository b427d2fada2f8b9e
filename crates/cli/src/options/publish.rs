//! Arguments of what publishes, finds and fetches data sets.

use std::path::PathBuf;

use bivouac_types::units::parse_size;
use clap::Args;

use super::numbers::number;
use super::{Duration, TalkArgs, duration};

/// Which catalogue.
#[derive(Clone, Debug, Args)]
pub struct CatalogueArgs {
    /// Catalogue: a directory, s3://BUCKET/PREFIX, or the URL of a directory of a web server that takes PUT
    #[arg(long = "in", value_name = "CATALOGUE", env = "BIVOUAC_CATALOGUE")]
    pub catalogue: Option<String>,
    #[command(flatten)]
    pub key: KeyFileArgs,
}

/// What is shown to servers.
#[derive(Clone, Debug, Default, Args)]
pub struct KeyFileArgs {
    /// File whose first line is the key that web servers are shown, as `key create` makes it; those of your own formations here need none
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// Who near by may know an entry.
#[derive(Clone, Debug, Default, Args)]
pub struct NearArgs {
    /// Server of a formation that is asked for entries before the catalogue, as your own formations here are: its URL.
    /// One with a key in it belongs into the variable, not on the command line
    #[arg(long, value_name = "URL", env = "BIVOUAC_NEAR", hide_env_values = true)]
    pub near: Option<String>,
}

/// Arguments of `publish`.
#[derive(Debug, Args)]
pub struct PublishArgs {
    /// File or directory, in a mounted formation or on site storage
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Title of the data set
    #[arg(long, value_name = "TEXT")]
    pub title: String,
    /// Keywords that `find` looks for besides the title
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub words: String,
    /// Licence: an SPDX identifier (CC-BY-4.0), a URL, or a sentence
    #[arg(long, value_name = "LICENCE", alias = "license")]
    pub licence: Option<String>,
    /// How long it can be found [default: until it is unpublished]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub expires: Option<Duration>,
    /// Catalogue: a directory, s3://BUCKET/PREFIX, or the URL of a directory of a web server that takes PUT
    #[arg(long = "to", value_name = "CATALOGUE", env = "BIVOUAC_CATALOGUE")]
    pub catalogue: String,
    /// Where the same is on site storage, too: a path, s3://BUCKET/PREFIX or a URL; all of it is read and compared. That of the partition's source is found by itself
    #[arg(long = "site", value_name = "PLACE")]
    pub sites: Vec<String>,
    /// Who publishes it [default: USER@HOST]
    #[arg(long, value_name = "TEXT")]
    pub who: Option<String>,
    #[command(flatten)]
    pub key: KeyFileArgs,
    /// Number of files that are read at the same time
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true, value_parser = number::<usize>(1, 256))]
    pub jobs: usize,
    /// Write JSON to standard output: how far it is, and the entry
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// Arguments of `find`.
#[derive(Debug, Args)]
pub struct FindArgs {
    /// Words that all have to be in title, words, name or who published it
    #[arg(value_name = "WORDS")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub which: CatalogueArgs,
    #[command(flatten)]
    pub near: NearArgs,
    /// Show only what formations near by know, without asking the catalogue
    #[arg(long)]
    pub known: bool,
    /// Show also what has expired
    #[arg(long, conflicts_with = "known")]
    pub expired: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `unpublish`.
#[derive(Debug, Args)]
pub struct UnpublishArgs {
    /// The entry, as `find` shows it
    #[arg(value_name = "ENTRY")]
    pub entry: String,
    #[command(flatten)]
    pub which: CatalogueArgs,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// An entry of the catalogue, the directory or URL of one, a metalink, or any URL
    #[arg(value_name = "ENTRY|URL")]
    pub what: String,
    /// File or directory to put it into [default: its own name, here]
    #[arg(value_name = "DST")]
    pub dst: Option<PathBuf>,
    #[command(flatten)]
    pub which: CatalogueArgs,
    #[command(flatten)]
    pub near: NearArgs,
    /// SHA-256 of the certificate of the URL's server, as `key create` shows it
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<String>,
    /// Replace files that are there and differ
    #[arg(long)]
    pub force: bool,
    /// Fetch also what has expired
    #[arg(long)]
    pub expired: bool,
    /// Most bytes of a URL whose server says no length
    #[arg(long, value_name = "SIZE", default_value = "100g", value_parser = parse_size)]
    pub max_size: u64,
    /// Use no cache, neither for entries nor for content, and ask the catalogue itself
    #[arg(long)]
    pub no_cache: bool,
    /// Number of pieces at the same time
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true, value_parser = number::<usize>(1, 256))]
    pub jobs: usize,
    /// Write JSON to standard output: how far it is, and what came of it
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// Arguments of `share`.
#[derive(Debug, Args)]
pub struct ShareArgs {
    /// File or directory in a mounted formation
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// How long the link can be used
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
    pub expires: Duration,
}
