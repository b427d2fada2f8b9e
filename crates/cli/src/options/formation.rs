//! The options that say what a formation is made of.

use std::path::PathBuf;

use bivouac_launch::{
    FormationName, FormationRequest, HttpAddress, HttpDomain, HttpWish, LogFormat, NAMES_MEMORY_MIN,
    ProcessId, Protection, RestartLimit, VolumeArg, parse_volume,
};
use bivouac_types::limits::{
    PAGE_POOL_DEFAULT, PAGE_POOL_MAX, PAGE_POOL_MIN, STRIPE_DEFAULT, STRIPE_DEFAULT_OVER_HOSTS,
    WAIT_MS_DEFAULT,
};
use bivouac_types::units::parse_size;
use bivouac_types::{Checksum, SpreadAt};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};

use super::durations::wait;
use super::numbers::{self, number};
use super::{Duration, HostsArgs, duration};

/// What a formation is made of.
#[derive(Clone, Debug, Args)]
pub struct FormationArgs {
    /// Number of nodes, all on this machine, 1 to 256, with --in-process 1024 [default: 1; inside a batch job one on
    /// each of its hosts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::nodes)]
    pub nodes: Option<u16>,
    /// Have the nodes of a machine share one process: for tests of many nodes; what ends one of them ends all
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, help_heading = "Memory and processors")]
    pub in_process: bool,
    /// Encrypt and authenticate all that goes over the network, so that nobody in between can read or change it
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, help_heading = "Network and logs")]
    pub secure: bool,
    /// Record conflicting accesses of two clients that no close, open, sync or lock orders; `bivouac races` lists them
    ///
    /// Each open, close, sync, lock and change of a name then costs a message to one node, and programs with the
    /// preload read and write through the mount. What is found does not survive that node's daemon.
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, help_heading = "Files and directories")]
    pub detect_races: bool,
    /// Serve the formation's files over HTTP on each host, with TLS, to those who have a key (bivouac key); without an
    /// address, to this host alone
    #[arg(long, value_name = "[ADDR:]PORT", help_heading = "Files over HTTP")]
    pub http: Option<HttpAddress>,
    /// Serve HTTP without TLS: to this host alone
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, help_heading = "Files over HTTP")]
    pub http_plain: bool,
    /// File on each host with the certificate for HTTP, those that vouch for it, and its private key, as PEM; without
    /// it one is made
    #[arg(
        long,
        value_name = "FILE",
        requires = "http",
        conflicts_with = "http_plain",
        help_heading = "Files over HTTP"
    )]
    pub http_certificate: Option<PathBuf>,
    /// Name whose subdomains are buckets of S3 (https://BUCKET.NAME:PORT/KEY), where they lead to the hosts; without it
    /// buckets are in paths alone
    #[arg(long, value_name = "NAME", requires = "http", help_heading = "Files over HTTP")]
    pub http_domain: Option<HttpDomain>,
    /// Let other formations link to this one at this address, with a key of `bivouac key create --link`; without an
    /// address, from this host alone
    #[arg(long, value_name = "[ADDR:]PORT", help_heading = "Links between formations")]
    pub link_listen: Option<HttpAddress>,
    #[command(flatten)]
    pub hosts: HostsArgs,
    /// Directory that the nodes lend, and how much of it per node, in bytes (10g, 500MiB); several nodes use DIR/n0,
    /// DIR/n1 and so on
    ///
    /// May be given several times. Without a capacity it is nine tenths of what is free, divided by the nodes. Without
    /// any volume, memory is used: half of what is available, divided by the nodes.
    #[arg(long = "volume", value_name = "DIR[:CAPACITY]", value_parser = volume_parser())]
    pub volumes: Vec<VolumeArg>,
    /// Stripe size of new files, in bytes; a multiple of 4096 [default: 1m, over several hosts 256k]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Files and directories")]
    pub stripe: Option<u64>,
    /// Number of targets that a new file is striped over; 0 means all
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535), help_heading = "Files and directories")]
    pub width: u16,
    /// Number of entries from which on a directory spreads over all nodes: while several clients use it, and while one
    /// alone does; one number is for both
    #[arg(long, value_name = "N[,M]", default_value_t = SpreadAt::default(), help_heading = "Files and directories")]
    pub spread_at: SpreadAt,
    /// Where blocks of what is written get checksums, compared whenever they are read: off, on, or auto: on disks and
    /// not in memory
    ///
    /// A block that is not what was written is an I/O error, and `bivouac status` names it. Programs that read and
    /// write a node's content themselves, as by libbivouac on one machine, compare nothing; what they wrote gets
    /// checksums when they are done.
    #[arg(long, value_name = "WHERE", default_value_t = Checksum::default(), help_heading = "Files and directories")]
    pub checksum: Checksum,
    /// Memory that each mount has for pages of partitions with `--contract session`, in bytes; at least 4m
    #[arg(long, value_name = "SIZE", default_value_t = PAGE_POOL_DEFAULT, value_parser = page_pool, help_heading = "Memory and processors")]
    pub page_pool: u64,
    /// Most memory that names, attributes and extended attributes of one node may take, in bytes; at least 1m [default:
    /// a quarter of what is available, divided by the nodes of the host]
    #[arg(long, value_name = "SIZE", value_parser = names_memory, help_heading = "Memory and processors")]
    pub names_memory: Option<u64>,
    /// Keep each of several nodes of a host on processors near to its volumes, where the host has several parts of
    /// memory (NUMA) [default: true]
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", hide_default_value = true, help_heading = "Memory and processors")]
    pub numa: bool,
    /// In which form its processes write their logs: plain, lines for people; json, an event per line, with its fields
    #[arg(long, value_name = "FORM", env = "BIVOUAC_LOG_FORMAT", hide_env_values = true, default_value_t = LogFormat::default(), help_heading = "Network and logs")]
    pub log_format: LogFormat,
    /// How long an operation waits for a node that does not answer, before it fails with EIO
    #[arg(long, value_name = "DURATION", default_value_t = Duration(WAIT_MS_DEFAULT), value_parser = wait, help_heading = "When nodes fail")]
    pub wait: Duration,
    /// After how long a node that does not answer is taken for dead; at least 500ms [default: 5s, and on one machine as
    /// soon as its supervisor gives it up]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "When nodes fail")]
    pub dead_after: Option<Duration>,
    /// First TCP port to listen on, two per node; 0 means any that are free
    #[arg(long, value_name = "PORT", default_value_t = 0, allow_negative_numbers = true, value_parser = number::<u16>(0, 65_535), help_heading = "Network and logs")]
    pub port: u16,
    /// How many deaths of a daemon within how long are too many for it to be started again
    #[arg(long, value_name = "N/DURATION", default_value_t = RestartLimit::default(), help_heading = "When nodes fail")]
    pub deaths_max: RestartLimit,
    /// How long the formation lives: then it ends as by `down`, and under `run` its command is told to end [default: no
    /// limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// Protection against the loss of a host: none, or replicas=2, the volumes of each node are mirrored to a node on
    /// another host
    ///
    /// Each change is then acknowledged once both have it, and takes space on both. Programs with the preload read and
    /// write through the mount. On one host it takes two nodes, and protects against the loss of a volume only.
    #[arg(long, value_name = "none|replicas=2", default_value_t = Protection::default(), help_heading = "When nodes fail")]
    pub protect: Protection,
    /// How long the formation may take to start
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = wait, help_heading = "When nodes fail")]
    pub start_timeout: Duration,
}

impl FormationArgs {
    /// What is asked for over so many hosts, by `owner` if it is to end with that process.
    pub fn wishes(&self, name: FormationName, hosts: usize, owner: Option<ProcessId>) -> FormationRequest {
        let stripe = if hosts > 1 { STRIPE_DEFAULT_OVER_HOSTS } else { STRIPE_DEFAULT };
        FormationRequest {
            name,
            nodes: self.nodes.unwrap_or(1),
            volumes: self.volumes.clone(),
            stripe: self.stripe.unwrap_or(stripe.into()),
            width: self.width,
            spread_at: self.spread_at,
            checksum: self.checksum,
            page_pool: self.page_pool,
            names_memory: self.names_memory,
            numa: self.numa,
            log_format: self.log_format,
            wait_ms: self.wait.0,
            dead_after_ms: self.dead_after.map(|after| after.0),
            port: self.port,
            in_process: self.in_process,
            secure: self.secure,
            detect_races: self.detect_races,
            protect: self.protect,
            http: self.http.map(|address| HttpWish {
                address,
                plain: self.http_plain,
                certificate: self
                    .http_certificate
                    .as_ref()
                    .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())),
                domain: self.http_domain.clone(),
            }),
            link_listen: self.link_listen.map(|address| address.0),
            tolerance: self.deaths_max,
            ttl_ms: self.ttl.map(|ttl| ttl.0),
            owner,
        }
    }
}

fn page_pool(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    if (PAGE_POOL_MIN..=PAGE_POOL_MAX).contains(&size) {
        return Ok(size);
    }
    Err(format!("a page pool has between {} MiB and {} GiB", PAGE_POOL_MIN >> 20, PAGE_POOL_MAX >> 30))
}

fn names_memory(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let least = || format!("names have at least {} MiB of memory", NAMES_MEMORY_MIN >> 20);
    if size >= NAMES_MEMORY_MIN { Ok(size) } else { Err(least()) }
}

fn volume_parser() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(parse_volume))
}
