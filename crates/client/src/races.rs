//! Reports of a client while races are detected: accesses to files, gathered, and operations that order them, at once.
//!
//! Events reach the detecting node in the order in which they happened here. An operation by which others may learn of
//! this client's progress is reported before they can; one by which it learns of others', afterwards, before its
//! program goes on. Lookups of names are reported with the next event: that takes more accesses for ordered than are,
//! never fewer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bivouac_types::{ByteRange, Contract, FileAccess, Ino, NodeId, RaceEvent, RaceProcess};
use bivouac_wire::{FormationMap, ReportAccessesRequest, op};
use parking_lot::{Mutex, MutexGuard};

use crate::connections::Connections;
use crate::homes::known::KnownFiles;
use crate::homes::partitions::Partitions;
use crate::opens::uses;

/// Events that are sent without waiting for more.
const MANY: usize = 256;
/// Events that are looked at for one that a new one continues.
const CONTINUED: usize = 16;
/// Variables by which launchers tell processes their rank.
const RANK_VARIABLES: [&[u8]; 7] = [
    b"PMIX_RANK",
    b"PMI_RANK",
    b"OMPI_COMM_WORLD_RANK",
    b"MV2_COMM_WORLD_RANK",
    b"PALS_RANKID",
    b"FLUX_TASK_RANK",
    b"SLURM_PROCID",
];

/// The reports of a client.
pub struct AccessReporter {
    connections: Arc<Connections>,
    known: Arc<KnownFiles>,
    partitions: Arc<Partitions>,
    /// The node that detects races.
    detector: NodeId,
    host: String,
    pending: Mutex<PendingEvents>,
    /// Held while a report is on its way: the next one comes after it.
    sending: Mutex<()>,
}

/// Events that are not reported yet.
#[derive(Default)]
struct PendingEvents {
    events: Vec<RaceEvent>,
    processes: Vec<RaceProcess>,
    /// Position among the processes of each thread.
    threads: HashMap<u32, u16>,
    /// True if events were lost.
    is_incomplete: bool,
}

impl AccessReporter {
    /// Creates the reports of a client on a host; none if races are not detected. `was_killed` if an earlier process of
    /// the client may have had events that it did not report.
    pub fn new(
        connections: &Arc<Connections>,
        known: &Arc<KnownFiles>,
        partitions: &Arc<Partitions>,
        near: Option<NodeId>,
        was_killed: bool,
    ) -> Option<AccessReporter> {
        let map = &connections.map;
        let detector = map.home(Ino::ROOT).filter(|_| map.detects_races)?;
        let host = host_of(map, connections.local.or(near));
        let pending = Mutex::new(PendingEvents { is_incomplete: was_killed, ..PendingEvents::default() });
        let (connections, known, partitions) =
            (Arc::clone(connections), Arc::clone(known), Arc::clone(partitions));
        let sending = Mutex::new(());
        Some(AccessReporter { connections, known, partitions, detector, host, pending, sending })
    }

    /// Reports that this thread has read or written these places of a file, for the process that it acts for.
    pub fn accessed(&self, ino: Ino, is_write: bool, ranges: impl IntoIterator<Item = ByteRange>) {
        let mut ranges = ranges.into_iter().filter(|range| !range.is_empty()).peekable();
        if ranges.peek().is_none() {
            return;
        }
        let known = self.known.get(ino);
        let stripe = known.as_ref().map(|known| u64::from(known.layout.stripe));
        let is_session = known.is_some_and(|known| self.partitions.contract(&known) == Ok(Contract::Session));
        let now = unix_ms();
        let (mut pending, process) = self.process();
        for range in ranges {
            let is_in_stripe = stripe.is_some_and(|stripe| is_in_stripe(range, stripe));
            pending.access(FileAccess {
                ino,
                range,
                is_write,
                is_in_stripe,
                is_session,
                process,
                first_ms: now,
                last_ms: now,
            });
        }
        self.send_many(pending);
    }

    /// Returns the position of the process for which this thread reads and writes, and what holds that.
    fn process(&self) -> (MutexGuard<'_, PendingEvents>, u16) {
        let (thread, who) = uses::caller();
        let pending = self.pending.lock();
        if let Some(process) = pending.threads.get(&thread).copied() {
            return (pending, process);
        }
        drop(pending);
        // Without the lock: the kernel may have whoever looks at a process wait for that.
        let uses::Caller { pid, program } = who(thread);
        let rank = rank_of(pid);
        let mut pending = self.pending.lock();
        let process = pending.add_process(thread, RaceProcess { pid, rank, program });
        (pending, process)
    }

    /// Notes an event that is reported with what comes next.
    pub fn note(&self, event: RaceEvent) {
        let mut pending = self.pending.lock();
        let is_same = |known: &RaceEvent| *known == event;
        let acquires = |known: &&RaceEvent| matches!(known, RaceEvent::Acquire(_) | RaceEvent::Access(_));
        if !pending.events.iter().rev().take_while(acquires).take(CONTINUED).any(is_same) {
            pending.events.push(event);
        }
        self.send_many(pending);
    }

    /// Like [`AccessReporter::note`], without waiting.
    pub fn note_only(&self, event: RaceEvent) {
        self.pending.lock().events.push(event);
    }

    /// Reports events, and all before them: the node has them when this returns, if it answers.
    pub fn report(&self, events: impl IntoIterator<Item = RaceEvent>) {
        self.pending.lock().events.extend(events);
        self.send();
    }

    /// Reports what was gathered.
    pub fn report_gathered(&self) {
        self.send();
    }

    fn send_many(&self, pending: MutexGuard<'_, PendingEvents>) {
        let is_many = pending.events.len() >= MANY;
        drop(pending);
        if is_many {
            self.send();
        }
    }

    fn send(&self) {
        // Taken before the events: two threads would otherwise report theirs in any order.
        let _turn = self.sending.try_lock().unwrap_or_else(|| {
            bivouac_net::before_waiting();
            self.sending.lock()
        });
        let PendingEvents { events, processes, is_incomplete, .. } =
            std::mem::take(&mut *self.pending.lock());
        if events.is_empty() {
            // Taken with the events, and there are none to report it with.
            self.pending.lock().is_incomplete |= is_incomplete;
            return;
        }
        // So that `Leave` reaches the detector, which forgets the client then.
        self.connections.note_kept_at(self.detector);
        let request = ReportAccessesRequest { host: self.host.clone(), is_incomplete, processes, events };
        if let Err(error) = self.connections.try_asking::<op::ReportAccesses>(self.detector, &request, 0) {
            log::warn!(why:% = error; "{} events are lost: the list of races is not complete", request.events.len());
            self.pending.lock().is_incomplete = true;
        }
    }
}

impl PendingEvents {
    /// Returns the position of a process, of which this thread is one.
    fn add_process(&mut self, thread: u32, new: RaceProcess) -> u16 {
        let process = match self.processes.iter().position(|process| process.pid == new.pid) {
            Some(known) => known as u16,
            None => {
                // Fewer than there are events.
                self.processes.push(new);
                (self.processes.len() - 1) as u16
            }
        };
        assert!(self.processes.len() <= 1 << 16, "{} processes have no numbers", self.processes.len());
        self.threads.insert(thread, process);
        process
    }

    /// Adds an access, to the one that it continues or repeats if there is one.
    fn access(&mut self, new: FileAccess) {
        let accesses = self.events.iter_mut().rev().map_while(|event| match event {
            RaceEvent::Access(access) => Some(access),
            _ => None,
        });
        let same = |known: &&mut FileAccess| {
            (known.ino, known.is_write, known.process) == (new.ino, new.is_write, new.process)
                && (known.is_in_stripe, known.is_session) == (new.is_in_stripe, new.is_session)
                && known.range.start <= new.range.start
                && new.range.start <= known.range.end
        };
        match accesses.take(CONTINUED).find(same) {
            Some(known) => {
                known.range.end = known.range.end.max(new.range.end);
                known.last_ms = new.last_ms;
            }
            None => self.events.push(RaceEvent::Access(new)),
        }
    }
}

/// Returns whether a call on a range of a file stays within one of its stripes.
fn is_in_stripe(range: ByteRange, stripe: u64) -> bool {
    stripe > 0 && range.start / stripe == range.end.saturating_sub(1) / stripe
}

/// Returns the host of a client near to a node.
fn host_of(map: &FormationMap, near: Option<NodeId>) -> String {
    let entry = near.and_then(|node| map.nodes.get(usize::from(node.0)));
    let system = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    entry.map_or_else(system, |entry| entry.host.clone())
}

/// Returns the MPI rank that the launcher of a process has told it.
fn rank_of(pid: u32) -> Option<u32> {
    let environment = (pid != 0).then(|| std::fs::read(format!("/proc/{pid}/environ")).ok()).flatten()?;
    rank_in(&environment)
}

fn rank_in(environment: &[u8]) -> Option<u32> {
    let value = |name: &[u8]| {
        let variables = environment.split(|byte| *byte == 0);
        let value = variables.filter_map(|line| line.strip_prefix(name)?.strip_prefix(b"=")).next()?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    RANK_VARIABLES.into_iter().find_map(value)
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(start: u64, len: u64, is_write: bool, at: u64) -> FileAccess {
        FileAccess {
            ino: Ino(5),
            range: ByteRange::at(start, len),
            is_write,
            is_in_stripe: true,
            is_session: false,
            process: 0,
            first_ms: at,
            last_ms: at,
        }
    }

    #[test]
    fn accesses_that_follow_each_other_are_one() {
        let mut pending = PendingEvents::default();
        for at in 0..10 {
            pending.access(access(at * 10, 10, true, at));
            pending.access(access(0, 10, false, at));
        }
        let expected = [(0, 100, true), (0, 10, false)].map(|(start, len, is_write)| {
            RaceEvent::Access(FileAccess { last_ms: 9, ..access(start, len, is_write, 0) })
        });
        assert_eq!(pending.events, expected);
        // Another range, another kind of call, and whatever comes behind an event that orders.
        pending.access(access(101, 1, true, 10));
        pending.access(FileAccess { is_in_stripe: false, ..access(100, 1, true, 11) });
        pending.events.push(RaceEvent::Publish(Ino(5)));
        pending.access(access(100, 10, true, 12));
        assert_eq!(pending.events.len(), 6);
    }

    #[test]
    fn one_stripe_is_told_from_several() {
        let range = |start, end| ByteRange { start, end };
        assert!(is_in_stripe(range(0, 4096), 4096) && is_in_stripe(range(4096, 4097), 4096));
        assert!(!is_in_stripe(range(4095, 4097), 4096) && !is_in_stripe(range(0, 1), 0));
        assert!(!is_in_stripe(ByteRange::from(5), 4096));
    }

    #[test]
    fn ranks_are_what_launchers_say() {
        assert_eq!(rank_in(b"A=1\0SLURM_PROCID=7\0PMI_RANK=3\0"), Some(3));
        assert_eq!(rank_in(b"SLURM_PROCID=x\0XPMI_RANK=3\0"), None);
        assert_eq!(rank_of(0), None);
    }
}
