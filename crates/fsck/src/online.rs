//! Check of a running formation: suspicions are confirmed while nothing changes the inodes.
//!
//! The nodes watch the inodes that look wrong, and everything that concerns them is read again. If it still
//! looks wrong, no node has noted a change of any of these inodes meanwhile, and no unfinished change concerns
//! them, then what was read was there all the time, and it is a finding. What was changed meanwhile is looked at again.

use std::collections::HashSet;

use bivouac_client::Client;
use bivouac_node::ENTRIES_MOVE;
use bivouac_types::limits::WATCHED_MAX;
use bivouac_types::{FsResult, Ino, NodeId};
use bivouac_wire::{
    FormationMap, Inos, ListRecordsRequest, ListSubfilesRequest, NodeStatus, RecordPage, SubfilePage,
    WrongBytes,
};

use crate::checks;
use crate::facts::FormationFacts;
use crate::finding::{Finding, Kind, Report};
use crate::gather::gather;
use crate::paths::Paths;
use crate::scrub::{ScrubArgs, WrongContent, scrub, wrong_content, wrong_in_file};
use crate::source::{Progress, Source, nodes};
use crate::summary::{explained, totals};

/// Attempts to confirm a suspicion about inodes that keep changing.
const ROUNDS_MAX: usize = 8;
/// Times that a volume's count must differ by the same amount.
const COUNTS: usize = 3;

struct Online<'a> {
    client: &'a Client,
    reached: Vec<bool>,
}

/// Checks a running formation. Nothing is changed. With `compare` all content is compared with its checksums; otherwise
/// known corruption is reported.
///
/// # Errors
/// When a node stops answering meanwhile.
pub fn check_online(client: &Client, compare: bool, progress: &dyn Progress) -> FsResult<Report> {
    let mut report = Report::default();
    let (mut reached, mut known) = (Vec::new(), Vec::new());
    for node in nodes(client.map()) {
        let status = client.nodes().status(node);
        match &status {
            Err(error) => report.unchecked.push(format!("{node} cannot be asked: {error}")),
            Ok(status) => known.extend(status.damage.wrong.iter().map(|wrong| (node, wrong.clone()))),
        }
        reached.push(status.is_ok());
    }
    let online = Online { client, reached };
    let facts = gather(&online, None, progress)?;
    report.totals = totals(&online, &facts);
    report.notes = explained(&online, &facts);
    let suspicions = checks::run(&online, &facts, None, false);
    let wrong = if compare { online.compare(&mut report, progress)? } else { in_files(&facts, known) };
    let paths = Paths { source: &online, facts: &facts, named: true };
    let wrong = wrong.iter().map(|wrong| wrong_content(&paths, wrong)).collect::<Vec<_>>();
    // The rows of a large formation are given back before further ones are gathered.
    drop(facts);
    report.findings = online.conclude(suspicions, &mut report.notes, progress)?;
    report.findings.extend(wrong);
    report.findings.extend(online.accounting(progress)?);
    Ok(report)
}

impl Source for Online<'_> {
    fn map(&self) -> &FormationMap {
        self.client.map()
    }

    fn has_records(&self, node: NodeId) -> bool {
        self.reached.get(usize::from(node.0)).copied().unwrap_or(false)
    }

    fn has_volume(&self, node: NodeId, _: u16) -> bool {
        self.has_records(node)
    }

    fn records(&self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage> {
        self.client.nodes().list_records(node, request)
    }

    fn subfiles(&self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage> {
        self.client.nodes().list_subfiles(node, request)
    }
}

/// Converts corrupt ranges that nodes know of to ranges of files.
fn in_files(facts: &FormationFacts, known: Vec<(NodeId, WrongBytes)>) -> Vec<WrongContent> {
    let of_one = |(node, wrong): (NodeId, WrongBytes)| {
        let layout = facts.inode(wrong.ino).map(|row| facts.layouts.get(row.layout));
        let range = wrong.from..wrong.to;
        layout.map(|layout| wrong_in_file(&layout, wrong.ino, wrong.target, node, range)).unwrap_or_default()
    };
    known.into_iter().flat_map(of_one).collect()
}

impl Online<'_> {
    /// Compares all content.
    fn compare(&self, report: &mut Report, progress: &dyn Progress) -> FsResult<Vec<WrongContent>> {
        progress.at("content", 0);
        let found = scrub(self.client, &ScrubArgs::default(), &|_| ())?;
        report.unchecked.extend(found.failed);
        if found.skipped > 0 {
            let skipped = found.skipped;
            report
                .notes
                .push(format!("{skipped} bytes have no checksums, or are being written by processes"));
        }
        Ok(found.wrong)
    }

    /// Repeats the checks on suspicious inodes until each is consistent, in a change, or a finding.
    fn conclude(
        &self,
        suspicions: Vec<Finding>,
        notes: &mut Vec<String>,
        progress: &dyn Progress,
    ) -> FsResult<Vec<Finding>> {
        let mut findings = Vec::new();
        for part in batches(&suspicions) {
            let mut open = part;
            for _ in 0..ROUNDS_MAX {
                if open.is_empty() {
                    break;
                }
                open = self.look_again(&open, &mut findings, progress)?;
            }
            notes.extend(open.iter().map(|ino| format!("inode {ino} was changed whenever it was looked at")));
        }
        // An empty list, so that nodes stop noting changes for a check that is over.
        self.watch(&HashSet::new())?;
        Ok(findings)
    }

    /// Checks some inodes again; returns those that looked wrong and were changed during the check.
    fn look_again(
        &self,
        open: &HashSet<Ino>,
        findings: &mut Vec<Finding>,
        progress: &dyn Progress,
    ) -> FsResult<HashSet<Ino>> {
        let watched = open.iter().copied().chain([ENTRIES_MOVE]).collect();
        self.watch(&watched)?;
        let facts = gather(self, Some(open), progress)?;
        let suspicions = checks::run(self, &facts, Some(open), true);
        // Asked after the checks: a suspicion counts only if none of its inodes changed since the watch began.
        let touched = self.touched()?;
        let mut again = HashSet::new();
        // What concerns further inodes may have been changed unnoticed: these are not watched.
        for suspicion in suspicions.into_iter().filter(|found| within(found, open)) {
            if touched.contains(&ENTRIES_MOVE) || suspicion.inos.iter().any(|ino| touched.contains(ino)) {
                again.extend(suspicion.inos);
            } else if !facts.is_in_change(&suspicion.inos) {
                findings.push(suspicion);
            }
        }
        Ok(again)
    }

    fn watch(&self, inos: &HashSet<Ino>) -> FsResult<()> {
        let request = Inos { inos: inos.iter().copied().collect() };
        self.answering().try_for_each(|node| self.client.nodes().watch_inodes(node, &request))
    }

    /// Returns the inodes that a node changed; `ENTRIES_MOVE` if a node has lost its list, as then anything may have
    /// changed.
    fn touched(&self) -> FsResult<HashSet<Ino>> {
        let mut touched = HashSet::new();
        for node in self.answering() {
            let watched = self.client.nodes().touched(node)?;
            match watched.known {
                true => touched.extend(watched.touched),
                // A node that was restarted has forgotten the list: anything may have changed.
                false => {
                    touched.insert(ENTRIES_MOVE);
                }
            }
        }
        Ok(touched)
    }

    fn answering(&self) -> impl Iterator<Item = NodeId> {
        nodes(self.map()).filter(|node| self.has_records(*node))
    }

    /// Returns volumes whose count differs from their subfiles while nothing is written.
    fn accounting(&self, progress: &dyn Progress) -> FsResult<Vec<Finding>> {
        let mut differing: Option<Vec<VolumeCount>> = None;
        for _ in 0..COUNTS {
            let counted = self.count(progress)?;
            let still: Vec<VolumeCount> = match &differing {
                None => counted,
                // By the same amount, too: a difference that changes is that of something under way.
                Some(before) => counted.into_iter().filter(|count| before.contains(count)).collect(),
            };
            if still.is_empty() {
                return Ok(Vec::new());
            }
            differing = Some(still);
        }
        Ok(differing.unwrap_or_default().iter().map(VolumeCount::finding).collect())
    }

    fn count(&self, progress: &dyn Progress) -> FsResult<Vec<VolumeCount>> {
        // Counts must be equal before and after the listing, otherwise something was being written.
        let before = self.statuses()?;
        let facts = gather_volumes(self, progress)?;
        let after = self.statuses()?;
        let has_replicas = !self.map().mirrors.is_empty();
        let mut differing = Vec::new();
        for ((node, old), (other, new)) in before.iter().zip(&after) {
            assert_eq!(node, other, "counts of two nodes are compared");
            for (index, (was, is)) in old.volumes.iter().zip(&new.volumes).enumerate() {
                let there = facts.volumes.get(&(*node, index as u16)).copied().unwrap_or_default();
                let counts = (is.subfiles, is.used_bytes);
                // Volumes on disks allocate lazily and update their counts when a subfile is closed.
                let is_still = is.kind == "memory" && counts == (was.subfiles, was.used_bytes);
                // Replicas of other nodes' volumes are counted, too, and not listed.
                let fits = counts == there || has_replicas && counts.0 == there.0 && counts.1 >= there.1;
                if is_still && !fits {
                    differing.push(VolumeCount { node: *node, volume: index as u16, counts, there });
                }
            }
        }
        Ok(differing)
    }

    fn statuses(&self) -> FsResult<Vec<(NodeId, NodeStatus)>> {
        self.answering().map(|node| Ok((node, self.client.nodes().status(node)?))).collect()
    }
}

/// A volume's own count of subfiles and bytes, and the actual numbers.
#[derive(PartialEq, Eq)]
struct VolumeCount {
    node: NodeId,
    volume: u16,
    counts: (u64, u64),
    there: (u64, u64),
}

impl VolumeCount {
    fn finding(&self) -> Finding {
        let VolumeCount { node, volume, counts: (files, bytes), there: (subfiles, allocated) } = self;
        let cause = format!(
            "counts {bytes} bytes of {files} subfiles, there are {allocated} bytes of {subfiles} subfiles"
        );
        let remedy = "a restart of its daemon counts anew";
        Finding::new(Kind::Accounting, format!("volume {volume} of {node}"), cause).remedy(remedy)
    }
}

fn gather_volumes(source: &dyn Source, progress: &dyn Progress) -> FsResult<FormationFacts> {
    struct VolumeSource<'a>(&'a dyn Source);
    impl Source for VolumeSource<'_> {
        fn map(&self) -> &FormationMap {
            self.0.map()
        }
        fn has_records(&self, _: NodeId) -> bool {
            false
        }
        fn has_volume(&self, node: NodeId, volume: u16) -> bool {
            self.0.has_volume(node, volume)
        }
        fn records(&self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage> {
            self.0.records(node, request)
        }
        fn subfiles(&self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage> {
            self.0.subfiles(node, request)
        }
    }
    // No rows are kept: only the sums of volumes are wanted.
    gather(&VolumeSource(source), Some(&HashSet::new()), progress)
}

/// Splits the inodes of suspicions into sets that nodes can watch.
fn batches(suspicions: &[Finding]) -> Vec<HashSet<Ino>> {
    let mut batches: Vec<HashSet<Ino>> = Vec::new();
    for suspicion in suspicions {
        // Fewer by one than may be watched: `ENTRIES_MOVE` is added.
        let fits = |batch: &&mut HashSet<Ino>| batch.len() + suspicion.inos.len() < WATCHED_MAX;
        match batches.last_mut().filter(fits) {
            Some(batch) => batch.extend(&suspicion.inos),
            None => batches.push(suspicion.inos.iter().copied().collect()),
        }
    }
    batches
}

fn within(suspicion: &Finding, open: &HashSet<Ino>) -> bool {
    suspicion.inos.iter().all(|ino| open.contains(ino))
}
