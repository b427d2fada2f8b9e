//! What a job leaves for its user: a line for every object. The format is in docs/format.md.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::journal::History;
use crate::line::{Line, State};
use crate::{StageError, Summary};

use super::order::{Order, transfer_line};

const HEAD: &str = "#bivouac-manifest\t1\n";
const COLUMNS: &str = "#state\tkind\tmode\towner\tsize\tmtime\tdigest\tsource\ttarget\tname\tmore\n";

/// Writes a manifest beside its place, then puts it there.
pub(crate) fn write(
    path: &Path,
    order: &Order,
    history: &History,
    outcomes: &[&Result<Summary, StageError>],
) -> io::Result<()> {
    let beside = crate::draft::temporary(path, &order.tag);
    let mut file = BufWriter::new(File::create(&beside)?);
    write_to(&mut file, order, history, outcomes)?;
    file.into_inner()?.sync_all()?;
    fs::rename(beside, path)
}

fn write_to(
    file: &mut impl Write,
    order: &Order,
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
    let complete = outcomes.len() == order.transfers.len() && outcomes.iter().all(|outcome| outcome.is_ok());
    writeln!(file, "#end\t{}", if complete { "done" } else { "incomplete" })
}

/// What is not at the target.
fn others(outcome: &Result<Summary, StageError>) -> Vec<Line> {
    let (summary, failures) = match outcome {
        Ok(summary) => (Some(summary), &[][..]),
        Err(StageError::Incomplete { summary, failures }) => (Some(&**summary), failures.as_slice()),
        Err(StageError::Root(failure)) => (None, std::slice::from_ref(failure)),
        Err(StageError::Cancelled) => (None, &[][..]),
    };
    let failed = failures.iter().map(|f| Line::said(State::Failed, &f.path, &f.cause.to_string()));
    let skipped = summary.into_iter().flat_map(|summary| &summary.skipped);
    let skipped = skipped.map(|skipped| Line::said(State::Skipped, &skipped.path, &skipped.what));
    let deleted = summary.into_iter().flat_map(|summary| &summary.deleted);
    let deleted = deleted.map(|path| Line::said(State::Deleted, path, ""));
    failed.chain(skipped).chain(deleted).collect()
}
