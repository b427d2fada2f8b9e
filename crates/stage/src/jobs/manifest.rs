//! The manifest of a job, with a line for every object. The format is in docs/format.md.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::StageError;
use crate::journal::History;
use crate::manifest_line::{Line, ObjectOutcome};
use crate::summary::Summary;

use super::order::{JobSpec, transfer_line};

const HEAD: &str = "#bivouac-manifest\t1\n";
const COLUMNS: &str = "#state\tkind\tmode\towner\tsize\tmtime\tdigest\tsource\ttarget\tname\tmore\n";

/// Writes a manifest to a temporary file and renames it.
pub(crate) fn write(
    path: &Path,
    order: &JobSpec,
    history: &History,
    outcomes: &[&Result<Summary, StageError>],
) -> io::Result<()> {
    let beside = crate::temporary::temporary_path(path, &order.tag);
    let mut file = BufWriter::new(File::create(&beside)?);
    write_to(&mut file, order, history, outcomes)?;
    // Synced before the rename: after a crash the manifest is complete or absent.
    file.into_inner()?.sync_all()?;
    fs::rename(beside, path)
}

fn write_to(
    file: &mut impl Write,
    order: &JobSpec,
    history: &History,
    outcomes: &[&Result<Summary, StageError>],
) -> io::Result<()> {
    file.write_all(HEAD.as_bytes())?;
    file.write_all(COLUMNS.as_bytes())?;
    for (number, transfer) in order.transfers.iter().enumerate() {
        file.write_all(transfer_line("#transfer", transfer).as_bytes())?;
        let past = history.transfers.get(number);
        let mut lines: Vec<&Line> = past.into_iter().flat_map(|past| past.lines.values()).collect();
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        lines.iter().try_for_each(|line| file.write_all(line.encode().as_bytes()))?;
        if let Some(outcome) = outcomes.get(number) {
            others(outcome).iter().try_for_each(|line| file.write_all(line.encode().as_bytes()))?;
        }
    }
    // A cancelled job has fewer outcomes than transfers, and is incomplete.
    let complete = outcomes.len() == order.transfers.len() && outcomes.iter().all(|outcome| outcome.is_ok());
    writeln!(file, "#end\t{}", if complete { "done" } else { "incomplete" })
}

/// Returns the lines of objects that are not at the target.
fn others(outcome: &Result<Summary, StageError>) -> Vec<Line> {
    let (summary, failures) = match outcome {
        Ok(summary) => (Some(summary), &[][..]),
        Err(StageError::Incomplete { summary, failures }) => (Some(&**summary), failures.as_slice()),
        Err(StageError::Root(failure)) => (None, std::slice::from_ref(failure)),
        Err(StageError::Cancelled) => (None, &[][..]),
    };
    let failed =
        failures.iter().map(|f| Line::outcome_only(ObjectOutcome::Failed, &f.path, &f.cause.to_string()));
    let skipped = summary.into_iter().flat_map(|summary| &summary.skipped);
    let skipped =
        skipped.map(|skipped| Line::outcome_only(ObjectOutcome::Skipped, &skipped.path, &skipped.what));
    let deleted = summary.into_iter().flat_map(|summary| &summary.deleted);
    let deleted = deleted.map(|path| Line::outcome_only(ObjectOutcome::Deleted, path, ""));
    failed.chain(skipped).chain(deleted).collect()
}
