//! Activity, asked for beside the state of nodes: uses of files, and jobs of staging. It takes a tenth of the time at
//! most, however many nodes there are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use bivouac_client::Client;
use bivouac_launch::{StateDir, parallel_map};
use bivouac_types::NodeId;
use serde::Serialize;

use super::paths::PathCache;
use super::staging::{JobRates, StagedBytes};
use super::uses::{BusiestUses, FileRates, ProcessRates, UseSnapshot};
use crate::report::shown;
use crate::stage_jobs::StageMonitor;
use crate::status::StatusReport;

/// Pause between two questions, as a multiple of the time that the last one took.
const PAUSE: u32 = 9;
/// Time that mounts may take to tell other nodes what they are asked for.
const SETTLE: Duration = Duration::from_millis(20);

/// The busiest files, processes and jobs of an interval, which may be longer than that of nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// Its duration.
    pub busy_seconds: f64,
    /// The files that were used most.
    pub busy_files: Vec<FileRates>,
    /// The processes that used files most.
    pub busy_processes: Vec<ProcessRates>,
    /// Jobs of staging that are under way.
    pub stages: Vec<JobRates>,
    /// Nodes and hosts that did not answer, with the reasons: these are warnings.
    #[serde(skip)]
    pub unknown: Vec<String>,
}

/// The questions to nodes and hosts at each look.
pub struct ActivitySampler {
    stages: StageMonitor,
    names: PathCache,
    told: HashMap<u16, UseSnapshot>,
    copied: StagedBytes,
    begun: Option<Instant>,
    took: Duration,
    last: Option<Activity>,
}

impl ActivitySampler {
    /// Creates the sampler of a formation.
    pub fn new(dir: StateDir) -> ActivitySampler {
        ActivitySampler {
            stages: StageMonitor::new(dir),
            names: PathCache::default(),
            told: HashMap::new(),
            copied: StagedBytes::default(),
            begun: None,
            took: Duration::ZERO,
            last: None,
        }
    }

    /// Returns the activity since the last question; the last answer if that is too short a time ago. Nothing the first
    /// time.
    pub fn next(&mut self, client: &Client, report: &StatusReport) -> Option<Activity> {
        let now = Instant::now();
        let since = self.begun.map(|begun| now.duration_since(begun));
        // To ask takes time at all nodes: it must not become more than a small part of theirs.
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
        // Two questions may be at the same moment, and rates of no time would be endless.
        let seconds = since.map_or(0.0, |since| since.as_secs_f64()).max(1e-3);
        let stages = self.copied.next(&jobs, seconds);
        let busy = BusiestUses::between(&self.told, &told, since.map_or(0, ms));
        let is_first = since.is_none();
        (self.told, self.begun) = (told, Some(asked));
        let silent = silent.into_iter().map(|(who, why)| format!("{who} does not say what is staged: {why}"));
        let activity = (!is_first).then(|| Activity {
            busy_seconds: seconds,
            busy_files: self.files(client, &busy, seconds),
            busy_processes: processes(client, &busy, seconds),
            stages,
            unknown: unknown.into_iter().chain(silent).collect(),
        });
        // Looking up paths is a part of what the nodes spend on it, so it counts.
        self.took = asked.elapsed();
        self.last.clone_from(&activity);
        activity
    }

    fn files(&mut self, client: &Client, busy: &BusiestUses, seconds: f64) -> Vec<FileRates> {
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

/// Uses of which each node that answers was told.
fn ask(client: &Client, report: &StatusReport) -> (HashMap<u16, UseSnapshot>, Vec<String>) {
    let ready: Vec<u16> =
        report.nodes.iter().filter(|node| node.state == "ready").map(|node| node.id).collect();
    let answers = parallel_map(&ready, |node| {
        client.nodes().list_uses(NodeId(*node)).map(|table| UseSnapshot::new(&table))
    });
    assert_eq!(answers.len(), ready.len(), "answers are told by the position of their nodes");
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

fn processes(client: &Client, busy: &BusiestUses, seconds: f64) -> Vec<ProcessRates> {
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
