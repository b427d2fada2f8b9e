//! Prediction of the time of a job.

use serde::{Deserialize, Serialize};

use crate::formulas::{break_even, nodes_for};
use crate::learned::{LearnedRatios, LearnedStep};
use crate::site::{CurvePoint, Site, Storage};

/// Of the memory that the application leaves, volumes may have the part 1/k: the rest is for the page cache and
/// surprises.
const K: f64 = 2.0;
/// Nodes up to which it is looked for a number that is worth it.
const NODES_MAX: u32 = 16_384;
/// Checkpoints that are there at the same time: the last whole one, and the one that is being written.
const CHECKPOINTS_KEPT: u64 = 2;

/// Work of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobWork {
    /// Nodes of the job.
    pub nodes: u32,
    /// Bytes that it reads from site storage.
    pub in_bytes: u64,
    /// Files that they are in.
    pub in_files: u64,
    /// Number of times that it reads them.
    pub reads: f64,
    /// Bytes of results that go to site storage.
    pub out_bytes: u64,
    /// Files that they are in.
    pub out_files: u64,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: u64,
    /// Files of one checkpoint.
    pub checkpoint_files: u64,
    /// Checkpoints that it writes.
    pub checkpoints: u64,
    /// Bytes that it writes for itself alone: no results, and no checkpoints.
    pub scratch_bytes: u64,
    /// Files that they are in.
    pub scratch_files: u64,
    /// Bytes that it reads of what it has written.
    pub scratch_read_bytes: u64,
    /// Processes that read and write; 0 where that is not known, and then there are enough of them.
    pub processes: u32,
    /// Memory that the application takes of each node.
    pub memory_bytes: u64,
    /// Time that it computes, in seconds.
    pub run_seconds: f64,
}

/// A time with its doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Lower bound.
    pub low: f64,
    /// Most likely.
    pub likely: f64,
    /// Upper bound.
    pub high: f64,
}

/// Verdict on the use of a formation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "word")]
pub enum Verdict {
    /// Faster, in all doubtful cases.
    Use,
    /// Not faster.
    Not,
    /// With so many nodes it is, and has room; with those of the job it is not, or not surely.
    With {
        /// The fewest.
        nodes: u32,
    },
}

/// A prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The verdict.
    pub verdict: Verdict,
    /// Starting it.
    pub start: Seconds,
    /// Copying in.
    pub stage_in: Seconds,
    /// Reading and writing in the formation.
    pub inside: Seconds,
    /// Copying out.
    pub stage_out: Seconds,
    /// All input and output of the job with a formation.
    pub with: Seconds,
    /// The same on site storage.
    pub without: Seconds,
    /// Nodes from which on the formation alone is faster than site storage alone.
    pub break_even_nodes: Option<u64>,
    /// Number of times that the input must be read for copying it in to be worth it, on these nodes; nothing if it
    /// never is.
    pub break_even_reads: Option<f64>,
    /// Fewest nodes with room for it.
    pub nodes_for_room: Option<u64>,
    /// Memory that volumes take of each node.
    pub volume_bytes: u64,
    /// Node-hours that are won (or, below 0, lost).
    pub node_hours_won: f64,
}

impl JobWork {
    /// Returns those of so many nodes or streams that its processes can use.
    fn at_most(&self, count: u32) -> u32 {
        if self.processes == 0 { count } else { count.min(self.processes) }
    }
}

impl Seconds {
    fn sum(all: &[Seconds]) -> Seconds {
        let sum = |of: fn(&Seconds) -> f64| all.iter().map(of).sum();
        Seconds { low: sum(|s| s.low), likely: sum(|s| s.likely), high: sum(|s| s.high) }
    }

    fn around(likely: f64, spread: f64) -> Seconds {
        Seconds { low: likely * (1.0 - spread).max(0.0), likely, high: likely * (1.0 + spread) }
    }

    fn times(self, factor: f64) -> Seconds {
        Seconds { low: self.low * factor, likely: self.likely * factor, high: self.high * factor }
    }

    /// Returns it corrected by earlier outcomes, if there are any.
    fn corrected(self, learned: &LearnedRatios, step: LearnedStep) -> Seconds {
        match learned.factors(step) {
            // Replaces the doubt of the model instead of adding to it: outcomes contain all of it.
            Some([low, middle, high]) => {
                Seconds { low: self.likely * low, likely: self.likely * middle, high: self.likely * high }
            }
            None => self,
        }
    }
}

/// Returns the time of site storage for bytes in files, over so many streams: what the bytes take at the rate of the
/// curve, and what the files cost, shared by the streams.
fn storage(
    site: &Site,
    curve: &[CurvePoint],
    file_ms: f64,
    (bytes, files): (u64, u64),
    streams: u32,
) -> Seconds {
    if bytes == 0 && files == 0 {
        return Seconds::default();
    }
    let streams = streams.max(1);
    let rate = Storage::rate(curve, streams);
    // More streams than files have nothing to do.
    let sharing = f64::from(streams).min((files.max(1)) as f64);
    let likely = bytes as f64 / rate + files as f64 * file_ms / 1000.0 / sharing;
    Seconds::around(likely, site.storage.spread)
}

/// Returns the time of a copy in ([`LearnedStep::In`]) or out, as the model alone says and as outcomes have taught.
#[must_use]
pub fn staging(
    site: &Site,
    learned: &LearnedRatios,
    step: LearnedStep,
    (bytes, files): (u64, u64),
    nodes: u32,
) -> (Seconds, Seconds) {
    let Storage { read, write, file_read_ms, file_write_ms, .. } = &site.storage;
    let streams = site.node.streams.saturating_mul(nodes.max(1));
    let alone = match step {
        LearnedStep::Start => Seconds::around(site.node.start_ms / 1000.0, site.storage.spread),
        LearnedStep::In => storage(site, read, *file_read_ms, (bytes, files), streams),
        LearnedStep::Out => storage(site, write, *file_write_ms, (bytes, files), streams),
    };
    // The formation itself may be what is slower.
    let own = Seconds::around(inside(site, bytes as f64, nodes), site.storage.spread);
    let alone = if step != LearnedStep::Start && own.likely > alone.likely { own } else { alone };
    (alone, alone.corrected(learned, step))
}

fn inside(site: &Site, bytes: f64, nodes: u32) -> f64 {
    bytes / (f64::from(nodes.max(1)) * site.node.bytes_per_second)
}

/// Predicts the time of a job.
#[must_use]
pub fn predict(site: &Site, learned: &LearnedRatios, work: &JobWork) -> Prediction {
    let mut prediction = on(site, learned, work, work.nodes.max(1));
    if prediction.verdict != Verdict::Use {
        let mut nodes = work.nodes.max(1);
        while nodes < NODES_MAX {
            // In growing steps: the answer is a hint for a job script, and need not be exact to the node.
            nodes = nodes.saturating_add((nodes / 16).max(1)).min(NODES_MAX);
            if on(site, learned, work, nodes).verdict == Verdict::Use {
                assert!(nodes > work.nodes, "the job's own {nodes} nodes were found not to be worth it");
                prediction.verdict = Verdict::With { nodes };
                break;
            }
        }
    }
    prediction
}

fn on(site: &Site, learned: &LearnedRatios, work: &JobWork, nodes: u32) -> Prediction {
    let Storage { read, write, file_read_ms, file_write_ms, .. } = &site.storage;
    let step = |step, amount| staging(site, learned, step, amount, nodes).1;
    let start = step(LearnedStep::Start, (0, 0));
    let stage_in = step(LearnedStep::In, (work.in_bytes, work.in_files));
    let stage_out = step(LearnedStep::Out, (work.out_bytes, work.out_files));
    let reads = work.reads.max(0.0);
    let checkpoints = work.checkpoint_bytes as f64 * work.checkpoints as f64;
    let scratch = work.scratch_bytes as f64 + work.scratch_read_bytes as f64;
    let moved = work.in_bytes as f64 * reads + work.out_bytes as f64 + checkpoints + scratch;
    let working = work.at_most(nodes);
    let inside = Seconds::around(inside(site, moved, working), site.storage.spread);
    let with = Seconds::sum(&[start, stage_in, inside, stage_out]);
    let streams = work.at_most(site.node.streams.saturating_mul(nodes));
    // Corrected like the copies: storage that is slower than its model is so for jobs that use it directly, too.
    let once = storage(site, read, *file_read_ms, (work.in_bytes, work.in_files), streams)
        .corrected(learned, LearnedStep::In);
    let results = storage(site, write, *file_write_ms, (work.out_bytes, work.out_files), streams)
        .corrected(learned, LearnedStep::Out);
    let checkpoint = (work.checkpoint_bytes, work.checkpoint_files);
    let checkpoint =
        storage(site, write, *file_write_ms, checkpoint, streams).corrected(learned, LearnedStep::Out);
    let scratch = storage(site, write, *file_write_ms, (work.scratch_bytes, work.scratch_files), streams)
        .corrected(learned, LearnedStep::Out);
    let read_files = if work.scratch_read_bytes > 0 { work.scratch_files } else { 0 };
    let again = storage(site, read, *file_read_ms, (work.scratch_read_bytes, read_files), streams)
        .corrected(learned, LearnedStep::In);
    let checkpoints = checkpoint.times(work.checkpoints as f64);
    let without = Seconds::sum(&[once.times(reads), results, checkpoints, scratch, again]);

    let kept = work.checkpoint_bytes.saturating_mul(work.checkpoints.min(CHECKPOINTS_KEPT));
    let parts = [work.in_bytes, work.out_bytes, work.scratch_bytes, kept];
    let room = parts.into_iter().fold(0, u64::saturating_add);
    let free = site.node.memory_bytes.saturating_sub(work.memory_bytes);
    let nodes_for_room = nodes_for(room, K, free);
    let has_room = nodes_for_room.is_some_and(|least| least <= u64::from(nodes));
    // Both sides feel the same storage: what is slow for one is slow for the other. So ends are compared with like
    // ends.
    let is_sure = with.low < without.low && with.likely < without.likely && with.high < without.high;
    // Each read of the input saves `per_read`; `others` is what all the rest costs more with a formation.
    let per_read = once.likely - self::inside(site, work.in_bytes as f64, working);
    let others = with.likely - inside_of_reads(site, work, working) - (without.likely - once.likely * reads);
    Prediction {
        verdict: if has_room && is_sure { Verdict::Use } else { Verdict::Not },
        break_even_nodes: break_even(
            read.iter().chain(write).map(|point| point.bytes_per_second).fold(0.0, f64::max),
            site.node.bytes_per_second,
        ),
        break_even_reads: (work.in_bytes > 0 && per_read > 0.0).then(|| (others / per_read).max(0.0)),
        nodes_for_room,
        volume_bytes: (room as f64 / f64::from(nodes)).ceil() as u64,
        node_hours_won: (without.likely - with.likely) * f64::from(nodes) / 3600.0,
        start,
        stage_in,
        inside,
        stage_out,
        with,
        without,
    }
}

fn inside_of_reads(site: &Site, work: &JobWork, nodes: u32) -> f64 {
    inside(site, work.in_bytes as f64 * work.reads.max(0.0), nodes)
}
