//! Comparison of content with its checksums in a running formation: corruption of rarely read data is found before it
//! is needed.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bivouac_client::Client;
use bivouac_layout::{file_offset, targets_of};
use bivouac_types::limits::{SCRUB_PIECE, SCRUB_STEP_MAX};
use bivouac_types::{Attr, Errno, FsResult, Ino, Layout, NodeId, TargetIndex};
use bivouac_wire::{ListSubfilesRequest, ScrubRequest};

use crate::finding::{Finding, Kind};
use crate::paths::Paths;
use crate::source::volumes;

/// Subfiles per page of a listing.
const PAGE: u32 = 512;
/// Upper limit of nodes that are scrubbed at the same time.
const NODES_AT_ONCE: usize = 64;
/// Requests per second to a node with a rate limit.
const STEPS_PER_S: u64 = 4;

/// Arguments of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubArgs {
    /// Only these files.
    pub files: Option<Vec<Attr>>,
    /// Rate limit per node in bytes per second.
    pub rate: Option<u64>,
}

/// A corrupt range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongContent {
    /// The file.
    pub ino: Ino,
    /// First byte in the file.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// The node that stores the range.
    pub node: NodeId,
    /// The target that stores the range.
    pub target: TargetIndex,
}

/// Result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Compared subfiles.
    pub subfiles: u64,
    /// Bytes that were compared.
    pub compared: u64,
    /// Bytes that had no checksums after a direct write or a crash, and have them now.
    pub settled: u64,
    /// Bytes without checksums, or with a direct writer.
    pub skipped: u64,
    /// Corrupt ranges, by file.
    pub wrong: Vec<WrongContent>,
    /// Messages for what could not be compared.
    pub failed: Vec<String>,
}

impl ScrubReport {
    /// Returns whether there is content, and none of it has checksums.
    pub fn has_compared_nothing(&self) -> bool {
        let is_all_skipped = self.skipped > 0 && self.compared == 0 && self.settled == 0;
        is_all_skipped && self.wrong.is_empty() && self.failed.is_empty()
    }
}

/// A subfile with its layout.
struct Part {
    ino: Ino,
    target: TargetIndex,
    layout: Layout,
}

/// Scrubs all nodes in parallel. `progress` is called with the bytes of each step.
///
/// # Errors
/// When the targets of a file are not known. What cannot be looked at is in the report.
pub fn scrub(client: &Client, args: &ScrubArgs, progress: &(dyn Fn(u64) + Sync)) -> FsResult<ScrubReport> {
    let places = volumes(client.map());
    let nodes: Vec<NodeId> = {
        let mut nodes: Vec<NodeId> = places.iter().map(|(node, _)| *node).collect();
        nodes.dedup();
        nodes
    };
    let chosen = args.files.as_ref().map(|files| parts_of(client, files)).transpose()?;
    let (next, report) = (AtomicUsize::new(0), Mutex::new(ScrubReport::default()));
    let run = ScrubRun { client, rate: args.rate, progress, report: &report };
    std::thread::scope(|scope| {
        let work = || {
            while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                let limit = RateLimit::new(args.rate);
                let outcome = match &chosen {
                    Some(parts) => {
                        let here = parts.iter().filter(|(at, _)| at == node);
                        here.for_each(|(_, part)| run.subfile(*node, part, &limit));
                        Ok(())
                    }
                    None => places
                        .iter()
                        .filter(|(at, _)| at == node)
                        .try_for_each(|(_, volume)| run.volume(*node, *volume, &limit)),
                };
                if let Err(error) = outcome {
                    run.note(|report| report.failed.push(format!("{node}: {error}")));
                }
            }
        };
        for _ in 0..NODES_AT_ONCE.min(nodes.len()) {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Nodes answer in any order.
    report.wrong.sort_unstable_by_key(|wrong| (wrong.ino, wrong.from));
    Ok(report)
}

/// Returns the subfiles of files, with their nodes.
fn parts_of(client: &Client, files: &[Attr]) -> FsResult<Vec<(NodeId, Part)>> {
    let (mut parts, mut seen) = (Vec::new(), HashSet::new());
    // Several names may lead to one file.
    for attr in files.iter().filter(|attr| seen.insert(attr.ino)) {
        for target in targets_of(&attr.layout) {
            let part = Part { ino: attr.ino, target, layout: attr.layout };
            parts.push((client.partitions.target_place(target)?.node, part));
        }
    }
    Ok(parts)
}

struct ScrubRun<'a> {
    client: &'a Client,
    rate: Option<u64>,
    progress: &'a (dyn Fn(u64) + Sync),
    report: &'a Mutex<ScrubReport>,
}

impl ScrubRun<'_> {
    fn note(&self, change: impl FnOnce(&mut ScrubReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Scrubs all subfiles of a volume.
    fn volume(&self, node: NodeId, volume: u16, limit: &RateLimit) -> FsResult<()> {
        let mut after = None;
        loop {
            let page =
                self.client.nodes().list_subfiles(node, &ListSubfilesRequest { volume, after, max: PAGE })?;
            after = page.subfiles.last().map(|found| (found.ino, found.target));
            for found in page.subfiles {
                match found.header {
                    Some(header) => {
                        let part = Part { ino: found.ino, target: found.target, layout: header.layout };
                        self.subfile(node, &part, limit);
                    }
                    None => self.note(|report| {
                        let (ino, problem) = (found.ino, found.problem);
                        report.failed.push(format!("inode {ino} on {node}: {problem}"));
                    }),
                }
            }
            if page.end || after.is_none() {
                return Ok(());
            }
        }
    }

    fn subfile(&self, node: NodeId, part: &Part, limit: &RateLimit) {
        self.note(|report| report.subfiles += 1);
        let bytes =
            self.rate.map_or(SCRUB_STEP_MAX, |rate| (rate / STEPS_PER_S).clamp(SCRUB_PIECE, SCRUB_STEP_MAX));
        let mut from = 0;
        loop {
            let request = ScrubRequest { ino: part.ino, target: part.target, from, bytes };
            let found = match self.client.nodes().scrub_subfile(node, &request) {
                Ok(found) => found,
                // Removed since it was listed.
                Err(error) if error.errno() == Errno::ENOENT => return,
                Err(error) => {
                    let text = format!("inode {} on {node}: {error}", part.ino);
                    return self.note(|report| report.failed.push(text));
                }
            };
            let wrong = found.wrong.iter().flat_map(|(from, to)| part.in_file(node, *from..*to));
            self.note(|report| {
                report.compared += found.compared;
                report.settled += found.settled;
                report.skipped += found.skipped;
                report.wrong.extend(wrong);
            });
            // What was skipped cost the node no reading, and does not count against its rate.
            let done = found.compared + found.settled;
            (self.progress)(done);
            limit.wait(done);
            // A node that does not advance would keep this loop running.
            match found.next.filter(|next| *next > from) {
                Some(next) => from = next,
                None => return,
            }
        }
    }
}

impl Part {
    /// Converts a range of the subfile to ranges of its file.
    fn in_file(&self, node: NodeId, range: Range<u64>) -> Vec<WrongContent> {
        wrong_in_file(&self.layout, self.ino, self.target, node, range)
    }
}

/// Converts a range of a subfile to ranges of its file, stripe by stripe.
pub(crate) fn wrong_in_file(
    layout: &Layout,
    ino: Ino,
    target: TargetIndex,
    node: NodeId,
    range: Range<u64>,
) -> Vec<WrongContent> {
    let column = targets_of(layout).position(|other| other == target).unwrap_or(0) as u16;
    let stripe = u64::from(layout.stripe.max(1));
    let (mut at, mut found) = (range.start, Vec::<WrongContent>::new());
    while at < range.end {
        let end = ((at / stripe + 1) * stripe).min(range.end);
        let from = file_offset(layout, column, at).unwrap_or(at);
        let to = from.saturating_add(end - at);
        match found.last_mut().filter(|last| last.to == from) {
            Some(last) => last.to = to,
            None => found.push(WrongContent { ino, from, to, node, target }),
        }
        at = end;
    }
    found
}

/// Converts a corrupt range to a finding.
pub(crate) fn wrong_content(paths: &Paths<'_>, wrong: &WrongContent) -> Finding {
    let WrongContent { ino, from, to, node, target } = wrong;
    let cause = format!(
        "bytes {from} to {to}, on {node}, target {target}, are not what was written: they are not served"
    );
    let finding = Finding::new(Kind::WrongContent, paths.path(*ino), cause).of([*ino]);
    finding.remedy("restore the file from a copy, or write these bytes anew")
}

/// Limit of the byte rate.
struct RateLimit {
    rate: Option<u64>,
    since: Instant,
    done: AtomicU64,
}

impl RateLimit {
    fn new(rate: Option<u64>) -> RateLimit {
        RateLimit { rate: rate.map(|rate| rate.max(1)), since: Instant::now(), done: AtomicU64::new(0) }
    }

    /// Blocks until the rate admits `bytes`.
    fn wait(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(done as f64 / rate as f64);
            while let Some(left) = due.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero()) {
                // It may return early, hence the loop.
                std::thread::park_timeout(left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_a_subfile_is_several_of_its_file() {
        let layout = Layout { stripe: 8192, width: 2, base: TargetIndex(1), targets: 2 };
        let found = wrong_in_file(&layout, Ino(7), TargetIndex(0), NodeId(3), 4096..12_288);
        let ranges: Vec<(u64, u64)> = found.iter().map(|wrong| (wrong.from, wrong.to)).collect();
        assert_eq!(ranges, [(12_288, 16_384), (24_576, 28_672)]);
        let alone = Layout { stripe: 8192, width: 1, base: TargetIndex(0), targets: 2 };
        let found = wrong_in_file(&alone, Ino(7), TargetIndex(0), NodeId(3), 4096..12_288);
        assert_eq!((found.len(), found[0].from, found[0].to), (1, 4096, 12_288));
    }
}
