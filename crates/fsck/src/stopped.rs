//! Checking a stopped formation, and repairing it until nothing is left that can be repaired.

use bivouac_store::SubfileId;
use bivouac_types::FsResult;

use crate::checks;
use crate::facts::Facts;
use crate::finding::{Finding, Kind, Outcome, Report};
use crate::gather::gather;
use crate::offline::{OfflineArgs, Stores};
use crate::paths::Paths;
use crate::repair::{Fix, Leave, Repairer};
use crate::scrub::{WrongContent, wrong_content, wrong_in_file};
use crate::source::Progress;
use crate::summary::{explained, totals};

/// How often what a repair brought to light is repaired in turn.
const ROUNDS_MAX: usize = 16;

/// Checks volumes that no daemon has, and repairs them if `args` say so.
///
/// # Errors
/// A volume that is missing, in use or another formation's; one that cannot be read or written.
pub fn check_offline(args: &OfflineArgs, leave: Leave, progress: &dyn Progress) -> FsResult<Report> {
    let stores = Stores::open(args)?;
    let mut report = Report { unchecked: stores.unchecked.clone(), ..Report::default() };
    let facts = gather_offline(&stores, progress)?;
    report.totals = totals(&stores, &facts);
    report.notes = explained(&stores, &facts);
    let found = look(&stores, &facts);
    report.findings = stores.damaged.iter().cloned().chain(found).collect();
    if args.compare {
        let paths = Paths { source: &stores, facts: &facts, named: true };
        let wrong = compare(&stores, &facts, &mut report.unchecked, progress);
        report.findings.extend(wrong.iter().map(|wrong| wrong_content(&paths, wrong)));
    }
    // What became of records that could not be opened is known already.
    for finding in report.findings.iter_mut().filter(|finding| !is_of_opening(finding.kind)) {
        finding.outcome = match &finding.fix {
            Some(Fix::DiscardSubfile(_)) if !leave.discard_unreferenced => Outcome::Left,
            Some(_) => Outcome::Repairable,
            None => Outcome::Left,
        };
    }
    if args.repair {
        repair(&stores, facts, leave, progress, &mut report)?;
        stores.sync()?;
    }
    Ok(report)
}

fn gather_offline(stores: &Stores, progress: &dyn Progress) -> FsResult<Facts> {
    Ok(Facts { lost_names: stores.lost_names.clone(), ..gather(stores, None, progress)? })
}

/// Compares the content of all subfiles with its checksums.
fn compare(
    stores: &Stores,
    facts: &Facts,
    unchecked: &mut Vec<String>,
    progress: &dyn Progress,
) -> Vec<WrongContent> {
    let (mut wrong, mut done) = (Vec::new(), 0);
    for row in &facts.subfiles {
        let Some(volume) = stores.volume(row.node, row.volume) else { continue };
        // One with a damaged header is a finding of its own.
        let Ok(layout) = row.layout.map(|layout| facts.layouts.get(layout)) else { continue };
        let id = SubfileId { volume: row.volume, ino: row.ino, seat: row.seat };
        match volume.scrub(id, |_| ()) {
            Ok(found) => {
                done += found.compared;
                progress.at("bytes compared", done);
                let in_file = |range| wrong_in_file(&layout, row.ino, row.seat, row.node, range);
                wrong.extend(found.wrong.into_iter().flat_map(in_file));
            }
            Err(error) => unchecked.push(error.to_string()),
        }
    }
    wrong
}

/// What is wrong, less what an unfinished change explains.
fn look(stores: &Stores, facts: &Facts) -> Vec<Finding> {
    let found = checks::run(stores, facts, None, true).into_iter();
    found.filter(|finding| finding.kind == Kind::FutureNumber || !facts.is_in_change(&finding.inos)).collect()
}

/// Repairs, looks again, and so on: what was hidden behind something shows up, counts follow from the rest.
fn repair(
    stores: &Stores,
    mut facts: Facts,
    leave: Leave,
    progress: &dyn Progress,
    report: &mut Report,
) -> FsResult<()> {
    let mut open = look(stores, &facts);
    for _ in 0..ROUNDS_MAX {
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
        facts = gather_offline(stores, progress)?;
        open = look(stores, &facts);
    }
    conclude_outcomes(report, &open);
    Ok(())
}

/// Whether what became of it was settled when the volumes were opened.
fn is_of_opening(kind: Kind) -> bool {
    matches!(kind, Kind::Records | Kind::MissingTable)
}

fn is_fixable(finding: &Finding, leave: Leave) -> bool {
    match &finding.fix {
        Some(Fix::DiscardSubfile(_)) => leave.discard_unreferenced,
        fix => fix.is_some(),
    }
}

/// What is not found any more is repaired; what was not found at first is added.
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
