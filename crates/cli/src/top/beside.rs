//! What is asked for beside the state of nodes: uses of files, and jobs of staging. It takes a tenth of the time at
//! most, however many nodes there are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use bivouac_client::Client;
use bivouac_launch::StateDir;
use bivouac_types::NodeId;
use serde::Serialize;

use super::busy::{Busy, FileRates, ProcessRates, Told};
use super::names::Names;
use super::stages::{Copied, JobRates};
use crate::reach::at_once;
use crate::report::shown;
use crate::stages::Stages;
use crate::status::Report;

/// How many times as long as asking took is waited until it is asked again.
const PAUSE: u32 = 9;
/// How long mounts may take to tell other nodes what they are asked for.
const SETTLE: Duration = Duration::from_millis(20);

/// What was busy in an interval that may be longer than that of nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Beside {
    /// How long it was.
    pub busy_seconds: f64,
    /// The files that were used most.
    pub busy_files: Vec<FileRates>,
    /// The processes that used files most.
    pub busy_processes: Vec<ProcessRates>,
    /// Jobs of staging that are under way.
    pub stages: Vec<JobRates>,
    /// Who did not say what it knows, and why: these are warnings.
    #[serde(skip)]
    pub unknown: Vec<String>,
}

/// Asks at each look.
pub struct Asking {
    stages: Stages,
    names: Names,
    told: HashMap<u16, Told>,
    copied: Copied,
    begun: Option<Instant>,
    took: Duration,
    last: Option<Beside>,
}

impl Asking {
    /// Of a formation.
    pub fn new(dir: StateDir) -> Asking {
        Asking {
            stages: Stages::new(dir),
            names: Names::default(),
            told: HashMap::new(),
            copied: Copied::default(),
            begun: None,
            took: Duration::ZERO,
            last: None,
        }
    }

    /// What was done since it was asked last; what was said then if that is too short a time ago. Nothing the first
    /// time.
    pub fn next(&mut self, client: &Client, report: &Report) -> Option<Beside> {
        let now = Instant::now();
        let since = self.begun.map(|begun| now.duration_since(begun));
        if self.last.is_some() && since.is_some_and(|since| since < self.took.saturating_mul(PAUSE + 1)) {
            return self.last.clone();
        }
        if since.is_none() {
            // What was done before is told now, and not in the first interval.
            ask(client, report);
            std::thread::park_timeout(SETTLE);
        }
        let asked = Instant::now();
        let (told, unknown) = ask(client, report);
        let (jobs, silent) = match self.stages.find(client) {
            Ok((jobs, silent)) => {
                (jobs, silent.into_iter().map(|(host, why)| (format!("host {host}"), why)).collect())
            }
            Err(error) => (Vec::new(), vec![("this host".to_owned(), error.to_string())]),
        };
        let seconds = since.map_or(0.0, |since| since.as_secs_f64()).max(1e-3);
        let stages = self.copied.next(&jobs, seconds);
        let busy = Busy::between(&self.told, &told, since.map_or(0, ms));
        let is_first = since.is_none();
        (self.told, self.begun) = (told, Some(asked));
        let silent = silent.into_iter().map(|(who, why)| format!("{who} does not say what is staged: {why}"));
        let beside = (!is_first).then(|| Beside {
            busy_seconds: seconds,
            busy_files: self.files(client, &busy, seconds),
            busy_processes: processes(client, &busy, seconds),
            stages,
            unknown: unknown.into_iter().chain(silent).collect(),
        });
        self.took = asked.elapsed();
        self.last.clone_from(&beside);
        beside
    }

    fn files(&mut self, client: &Client, busy: &Busy, seconds: f64) -> Vec<FileRates> {
        self.names.refresh();
        let names = &mut self.names;
        let rates = busy.files.iter().map(|(ino, parent, did)| FileRates {
            path: names.file(client, *parent, *ino),
            ino: ino.0,
            pace: did.pace(seconds),
        });
        rates.collect()
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What each node that answers was told.
fn ask(client: &Client, report: &Report) -> (HashMap<u16, Told>, Vec<String>) {
    let ready: Vec<u16> =
        report.nodes.iter().filter(|node| node.state == "ready").map(|node| node.id).collect();
    let answers =
        at_once(&ready, |node| client.nodes().list_uses(NodeId(*node)).map(|table| Told::new(&table)));
    let (mut told, mut unknown) = (HashMap::new(), Vec::new());
    for (node, answer) in ready.iter().zip(answers) {
        match answer {
            Some(Ok(known)) => drop(told.insert(*node, known)),
            Some(Err(error)) => unknown.push(format!("node {node} does not say what is used: {error}")),
            None => {}
        }
    }
    (told, unknown)
}

fn processes(client: &Client, busy: &Busy, seconds: f64) -> Vec<ProcessRates> {
    let map = client.map();
    let host = |client: bivouac_types::ClientId| {
        let node = client.mounted_through(map.formation)?;
        map.nodes.get(usize::from(node.0)).map(|node| node.host.clone())
    };
    let rates = busy.processes.iter().map(|(client, pid, program, did)| ProcessRates {
        program: shown(OsStr::from_bytes(program)),
        pid: *pid,
        host: host(*client),
        pace: did.pace(seconds),
    });
    rates.collect()
}
