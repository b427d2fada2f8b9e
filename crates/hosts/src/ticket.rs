//! Ticket that a host gets from the launcher: where to report, the one-time secret to prove itself with, and
//! what it brings. One line of text, over standard input, the environment, or a file that only its owner reads.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use bivouac_launch::hex::{formation_from_hex, from_hex};
use bivouac_launch::{
    FormationName, HostAccess, HttpWish, Kind, LaunchError, LaunchResult, LogFormat, RELEASE, RestartLimit,
};
use bivouac_types::{Checksum, FormationId, SpreadAt};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

/// Longest ticket, in bytes.
pub(crate) const TICKET_LEN_MAX: usize = 1 << 16;
/// Beginning of a ticket, so that nothing else is taken for one.
const MARK: &str = "bivouac-ticket ";

/// Input that a host needs to report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    /// The release that wrote it. First, and read alone, so that another one can say so.
    pub release: String,
    /// The formation's id.
    pub formation: String,
    /// The one-time secret, hexadecimal.
    pub secret: String,
    /// Addresses to report to: `address:port`, the best first.
    pub addresses: Vec<String>,
    /// The launcher's name for this host, if the ticket is for one only.
    pub host: Option<String>,
    /// The formation's name.
    pub name: FormationName,
    /// Nodes on this host; per name where hosts differ.
    pub nodes: u16,
    /// Hosts with another number of nodes.
    pub nodes_of: Vec<(String, u16)>,
    /// Directories that the nodes lend, with the capacity per node.
    pub volumes: Vec<(PathBuf, Option<u64>)>,
    /// Its mount point.
    pub mount: Option<PathBuf>,
    /// True if other users may enter.
    pub allow_other: bool,
    /// First port; 0 for any.
    pub port: u16,
    /// Time clients wait for a node, in milliseconds.
    pub wait_ms: u64,
    /// After how long a node that does not answer is dead, in milliseconds, if that was chosen.
    pub dead_after_ms: Option<u64>,
    /// Stripe size of new files, in bytes.
    pub stripe: u32,
    /// Width of new files.
    pub width: u16,
    /// Entries from which on a directory spreads.
    #[serde(with = "bivouac_launch::text")]
    pub spread_at: SpreadAt,
    /// Volumes on which blocks of new subfiles get checksums.
    #[serde(with = "bivouac_launch::text")]
    pub checksum: Checksum,
    /// Bytes that each mount has for pages under the session contract.
    pub page_pool: u64,
    /// Limit of the memory for the records of a node, in bytes, if one was chosen.
    #[serde(default)]
    pub names_memory: Option<u64>,
    /// True if daemons are kept on the parts of their host that are near to their volumes.
    pub numa: bool,
    /// Form of the processes' logs.
    #[serde(default, with = "bivouac_launch::text")]
    pub log_format: LogFormat,
    /// True if the nodes of a host share a process.
    pub in_process: bool,
    /// True if all that goes over the network is encrypted, from the first word with the keeper on.
    pub secure: bool,
    /// True if races are detected.
    #[serde(default)]
    pub detect_races: bool,
    /// Protection of the volumes.
    #[serde(default, with = "bivouac_launch::text")]
    pub protect: bivouac_launch::Protection,
    /// The server for HTTP on each host, if there is to be one.
    #[serde(default)]
    pub http: Option<HttpWish>,
    /// Address of the gateway of links on each host, if there is to be one.
    #[serde(default)]
    pub link_listen: Option<SocketAddr>,
    /// Deaths after which a daemon is started no more.
    pub tolerance: RestartLimit,
    /// Silence after which a host takes its part down, in milliseconds.
    pub silence_ms: u64,
    /// Time it may take to be let in, in milliseconds.
    pub start_ms: u64,
    /// Way in which all hosts are reached.
    #[serde(default)]
    pub reach: Option<HostAccess>,
    /// True if the parts of a formation that was killed are to be started again, on the volumes that they have.
    #[serde(default)]
    pub recovers: bool,
    /// True if volumes that are older than the others are taken as they are then.
    #[serde(default)]
    pub with_older: bool,
    /// True if the host joins a formation that runs: what it has of it, as a host that was given up, is removed.
    #[serde(default)]
    pub joins: bool,
}

impl Ticket {
    /// Encodes it as a line.
    pub fn to_line(&self) -> String {
        format!("{MARK}{}\n", serde_json::to_string(self).unwrap_or_default())
    }

    /// Decodes a line.
    ///
    /// # Errors
    /// That it is no ticket, or one of another release.
    pub fn parse(line: &str) -> LaunchResult<Ticket> {
        #[derive(Deserialize)]
        struct Head {
            release: String,
        }
        let alien = || {
            let remedy = "it is what `bivouac up --hosts` starts; write: bivouac up --hosts HOST,HOST";
            LaunchError::usage("bivouac join", "got no ticket", remedy)
        };
        let text = line.trim_end().strip_prefix(MARK).ok_or_else(alien)?;
        let head: Head = serde_json::from_str(text).map_err(|_| alien())?;
        if head.release != RELEASE {
            let cause = format!("is bivouac {RELEASE}, and the formation is started by {}", head.release);
            let remedy = "use one release on all hosts, or send it along: --send";
            return Err(LaunchError::new(Kind::Refused, "version", cause, remedy));
        }
        serde_json::from_str(text).map_err(|_| alien())
    }

    /// Returns the formation's id and the one-time secret.
    ///
    /// # Errors
    /// That they are damaged.
    pub fn credentials(&self) -> LaunchResult<(FormationId, [u8; 32])> {
        let secret = from_hex(&self.secret).and_then(|bytes| bytes.try_into().ok());
        formation_from_hex(&self.formation).zip(secret).ok_or_else(|| {
            LaunchError::new(Kind::Refused, "the ticket", "is damaged", "start the formation again")
        })
    }

    /// Returns the number of nodes that a host plays that goes by these names.
    pub fn nodes_for(&self, names: &[&str]) -> u16 {
        let given = self
            .nodes_of
            .iter()
            .find(|(host, _)| names.iter().any(|name| crate::list::same_host(host, name)));
        given.map_or(self.nodes, |(_, nodes)| *nodes)
    }
}

/// Reads one line. What follows has no meaning, and what of it has come is thrown away: a call per byte would take
/// longer than all else that a host does to report.
pub(crate) fn read_line(input: BorrowedFd<'_>) -> LaunchResult<String> {
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while line.len() < TICKET_LEN_MAX && !line.contains(&b'\n') {
        let read = retry_on_intr(|| rustix::io::read(input, &mut chunk));
        match read.map_err(|e| LaunchError::system("standard input", e))? {
            0 => break,
            len => line.extend_from_slice(chunk.get(..len).unwrap_or_default()),
        }
    }
    let line = line.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    pub(crate) fn sample() -> Ticket {
        Ticket {
            release: RELEASE.into(),
            formation: "07".repeat(16),
            secret: "ab".repeat(32),
            addresses: vec!["10.0.0.1:7".into()],
            host: Some("n1".into()),
            name: "x".parse().unwrap(),
            nodes: 1,
            nodes_of: vec![("n2".into(), 3)],
            volumes: vec![("/local".into(), Some(1 << 30))],
            mount: Some("/m".into()),
            allow_other: false,
            port: 0,
            wait_ms: 30_000,
            dead_after_ms: Some(2000),
            stripe: 1 << 20,
            width: 0,
            spread_at: SpreadAt::default(),
            checksum: Checksum::default(),
            page_pool: 64 << 20,
            names_memory: Some(1 << 30),
            numa: true,
            log_format: LogFormat::Json,
            in_process: false,
            secure: false,
            detect_races: false,
            protect: bivouac_launch::Protection::None,
            http: Some(HttpWish {
                address: "8443".parse().unwrap(),
                plain: false,
                certificate: None,
                domain: None,
            }),
            link_listen: Some("127.0.0.1:7000".parse().unwrap()),
            tolerance: RestartLimit::default(),
            silence_ms: 60_000,
            start_ms: 60_000,
            reach: None,
            recovers: false,
            with_older: false,
            joins: false,
        }
    }

    #[test]
    fn a_ticket_travels() {
        let ticket = sample();
        assert_eq!(Ticket::parse(&ticket.to_line()), Ok(ticket.clone()));
        assert_eq!(ticket.credentials().unwrap(), (FormationId([7; 16]), [0xab; 32]));
        assert_eq!((ticket.nodes_for(&["n1"]), ticket.nodes_for(&["x", "n2.example"])), (1, 3));
        let damaged = Ticket { secret: "ab".into(), ..ticket };
        assert!(damaged.credentials().is_err());
    }

    #[test]
    fn another_release_is_said() {
        let other = Ticket { release: "9.9.9".into(), ..sample() };
        let refusal = Ticket::parse(&other.to_line()).unwrap_err().to_string();
        assert!(
            refusal.starts_with("version: is bivouac") && refusal.contains("started by 9.9.9"),
            "{refusal}"
        );
        // Also when nothing else of its ticket is as here.
        let refusal = Ticket::parse("bivouac-ticket {\"release\":\"9.9.9\",\"new\":1}").unwrap_err();
        assert!(refusal.to_string().contains("9.9.9"), "{refusal}");
    }

    #[test]
    fn one_line_is_read_however_it_comes() {
        let (input, mut output) = std::io::pipe().unwrap();
        let long = "x".repeat(10_000) + "\n";
        let writes = std::thread::spawn(move || {
            output.write_all(long.as_bytes()).unwrap();
            // It stays open: nobody waits for its end.
            (output, long)
        });
        let line = read_line(input.as_fd()).unwrap();
        let (mut output, long) = writes.join().unwrap();
        assert_eq!(line, long);
        output.write_all(b"first\nsecond").unwrap();
        assert_eq!(read_line(input.as_fd()).unwrap(), "first\n");
        output.write_all(b"cut").unwrap();
        drop(output);
        assert_eq!(read_line(input.as_fd()).unwrap(), "cut");
    }

    proptest! {
        #[test]
        fn any_text_is_refused(text in any::<String>()) {
            prop_assert!(Ticket::parse(&text).is_err());
            let marked = format!("{}{}", MARK, text);
            prop_assert!(Ticket::parse(&marked).is_err());
        }
    }
}
