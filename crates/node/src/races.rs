//! Races between the clients of the formation: the home of the root directory detects them for all files, since what
//! orders accesses to one file may be done to another. [`Detector`] is the machine; here are its lock and its life.
//!
//! All of it is in memory: the next daemon begins anew, and says so. What it misses then is order and accesses alike,
//! so it finds nothing that is not there.

use bivouac_races::{Detector, Limits, Reporter};
use bivouac_ranks::{Mutex, rank};
use bivouac_types::{ClientId, Ino, NodeId, Timestamp};
use bivouac_wire::{FormationMap, RacePage, ReportAccessesRequest};

/// Races in one answer.
const PAGE: usize = 256;

/// The races that were found.
pub struct Races {
    since_ms: u64,
    /// True if an earlier daemon has detected races.
    is_resumed: bool,
    detector: Mutex<Detector>,
}

impl Races {
    /// Creates the detector, if races are detected and by this node.
    pub fn new(map: &FormationMap, id: NodeId, now: Timestamp, is_resumed: bool) -> Option<Races> {
        let is_detected_here = map.detects_races && map.home(Ino::ROOT) == Some(id);
        let since_ms = u64::try_from(now.secs).unwrap_or(0).saturating_mul(1000);
        is_detected_here.then(|| Races {
            since_ms,
            is_resumed,
            detector: Mutex::new(rank::LEAF, Detector::new(Limits::default())),
        })
    }

    /// Takes the next events of a client.
    pub fn report(&self, client: ClientId, node: Option<NodeId>, request: ReportAccessesRequest) {
        let ReportAccessesRequest { host, is_incomplete, processes, events } = request;
        let mut detector = self.detector.lock();
        if is_incomplete {
            detector.lose();
        }
        detector.report(&Reporter { client, host, node }, &processes, &events);
    }

    /// Forgets a client that has ended, or is lost.
    pub fn client_gone(&self, client: ClientId) {
        self.detector.lock().client_gone(client);
    }

    /// Returns some of the races, from a position on.
    pub fn list(&self, from: u32) -> RacePage {
        let detector = self.detector.lock();
        let from = from as usize;
        let races: Vec<_> = detector.races().iter().skip(from).take(PAGE).cloned().collect();
        let end = from.saturating_add(races.len());
        let next = (end < detector.races().len() && !races.is_empty()).then_some(end as u32);
        RacePage {
            since_ms: self.since_ms,
            is_resumed: self.is_resumed,
            counts: detector.counts(),
            races,
            next,
        }
    }
}
