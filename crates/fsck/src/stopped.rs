//! Check and repair of a stopped formation.

use bivouac_store::SubfileId;
use bivouac_types::FsResult;

use crate::checks;
use crate::facts::FormationFacts;
use crate::finding::{Finding, Kind, Outcome, Report};
use crate::gather::gather;
use crate::offline::{OfflineArgs, Stores};
use crate::paths::Paths;
use crate::repair::{RepairOptions, Repairer};
use crate::repair_action::RepairAction;
use crate::scrub::{WrongContent, wrong_content, wrong_in_file};
use crate::source::Progress;
use crate::summary::{explained, totals};

/// Rounds of repairs that uncover further inconsistencies.
const ROUNDS_MAX: usize = 16;

/// Checks locked volumes, and repairs them if `args` permit it.
///
/// # Errors
/// A volume that is missing, in use or another formation's; one that cannot be read or written.
pub fn check_offline(args: &OfflineArgs, leave: RepairOptions, progress: &dyn Progress) -> FsResult<Report> {
    let stores = Stores::open(args)?;
    let mut report = Report { unchecked: stores.unchecked.clone(), ..Report::default() };
    let facts = gather_offline(&stores, progress)?;
    report.totals = totals(&stores, &facts);
    report.notes = explained(&stores, &facts);
    let found = unexplained_findings(&stores, &facts);
    report.findings = stores.damaged.iter().cloned().chain(found).collect();
    if args.compare {
        let paths = Paths { source: &stores, facts: &facts, named: true };
        let wrong = compare(&stores, &facts, &mut report.unchecked, progress);
        report.findings.extend(wrong.iter().map(|wrong| wrong_content(&paths, wrong)));
    }
    // The outcomes of salvaged records were decided when the volumes were opened.
    for finding in report.findings.iter_mut().filter(|finding| !is_of_opening(finding.kind)) {
        finding.outcome = match &finding.fix {
            Some(RepairAction::DiscardSubfile(_)) if !leave.discard_unreferenced => Outcome::Left,
            Some(_) => Outcome::Repairable,
            None => Outcome::Left,
        };
    }
    if args.repair {
        repair(&stores, facts, leave, progress, &mut report)?;
        // Repairs are reported as done only when they are durable.
        stores.sync()?;
    }
    Ok(report)
}

fn gather_offline(stores: &Stores, progress: &dyn Progress) -> FsResult<FormationFacts> {
    Ok(FormationFacts { lost_names: stores.lost_names.clone(), ..gather(stores, None, progress)? })
}

/// Compares the content of all subfiles with its checksums.
fn compare(
    stores: &Stores,
    facts: &FormationFacts,
    unchecked: &mut Vec<String>,
    progress: &dyn Progress,
) -> Vec<WrongContent> {
    let (mut wrong, mut done) = (Vec::new(), 0);
    for row in &facts.subfiles {
        let Some(volume) = stores.volume(row.node, row.volume) else { continue };
        // A damaged header is a finding of its own.
        let Ok(layout) = row.layout.map(|layout| facts.layouts.get(layout)) else { continue };
        let id = SubfileId { volume: row.volume, ino: row.ino, target: row.target };
        match volume.scrub(id, |_| ()) {
            Ok(found) => {
                done += found.compared;
                progress.at("bytes compared", done);
                let in_file = |range| wrong_in_file(&layout, row.ino, row.target, row.node, range);
                wrong.extend(found.wrong.into_iter().flat_map(in_file));
            }
            Err(error) => unchecked.push(error.to_string()),
        }
    }
    wrong
}

/// Returns the findings that no unfinished change explains.
fn unexplained_findings(stores: &Stores, facts: &FormationFacts) -> Vec<Finding> {
    let found = checks::run(stores, facts, None, true).into_iter();
    // No unfinished change explains a number above the mark, which is raised before a number is used.
    found.filter(|finding| finding.kind == Kind::FutureNumber || !facts.is_in_change(&finding.inos)).collect()
}

/// Repairs and checks again, in rounds: repairs uncover further findings, and counts are corrected after the structure.
fn repair(
    stores: &Stores,
    mut facts: FormationFacts,
    leave: RepairOptions,
    progress: &dyn Progress,
    report: &mut Report,
) -> FsResult<()> {
    let mut open = unexplained_findings(stores, &facts);
    for _ in 0..ROUNDS_MAX {
        // Counts follow from the structure, so they are corrected when that is consistent.
        let structure = open.iter().any(|finding| is_fixable(finding, leave) && !finding.kind.is_count());
        let now = |finding: &&Finding| is_fixable(finding, leave) && finding.kind.is_count() != structure;
        let repairer = Repairer { stores, facts: &facts, leave };
        let mut done = 0;
        for finding in open.iter().filter(now) {
            match finding.fix.as_ref().map(|fix| repairer.apply(fix)) {
                Some(Ok(true)) => done += 1,
                Some(Err(error)) => {
                    report.notes.push(format!("{}: could not be repaired: {error}", finding.object))
                }
                _ => {}
            }
            progress.at("repairs", done);
        }
        if done == 0 {
            break;
        }
        // Read again: a repair may have uncovered or resolved other findings.
        facts = gather_offline(stores, progress)?;
        open = unexplained_findings(stores, &facts);
    }
    conclude_outcomes(report, &open);
    Ok(())
}

/// Returns whether a finding's outcome was decided when the volumes were opened.
fn is_of_opening(kind: Kind) -> bool {
    matches!(kind, Kind::Records | Kind::MissingTable)
}

fn is_fixable(finding: &Finding, leave: RepairOptions) -> bool {
    match &finding.fix {
        Some(RepairAction::DiscardSubfile(_)) => leave.discard_unreferenced,
        fix => fix.is_some(),
    }
}

/// Sets the outcomes: a finding that is gone is repaired; new findings are added.
fn conclude_outcomes(report: &mut Report, open: &[Finding]) {
    let same = |a: &Finding, b: &Finding| a.kind == b.kind && a.inos == b.inos && a.object == b.object;
    let is_known =
        |finding: &&mut Finding| !is_of_opening(finding.kind) && finding.kind != Kind::WrongContent;
    for finding in report.findings.iter_mut().filter(is_known) {
        let left = open.iter().any(|now| same(now, finding));
        finding.outcome = if left { Outcome::Left } else { Outcome::Repaired };
    }
    let news: Vec<Finding> =
        open.iter().filter(|now| !report.findings.iter().any(|known| same(known, now))).cloned().collect();
    report.findings.extend(news);
}
