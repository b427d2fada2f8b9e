//! `bivouac scrub`: whether content is what was written.

use std::collections::{HashMap, HashSet};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_client::{Client, FlushTarget, TreeEntry};
use bivouac_fsck::{ScrubArgs as What, ScrubReport, WrongContent};
use bivouac_launch::{Environment, StateDir};
use bivouac_monitor::connect;
use bivouac_types::units::{format_count, format_size};
use bivouac_types::{Attr, Ino};
use indicatif::ProgressBar;
use serde_json::json;

use crate::failure::Failure;
use crate::options::ScrubArgs;
use crate::reach::{self, MountedPath};
use crate::table::layout;

/// Longest wait for a node to verify a piece.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Least time between two lines of JSON about progress.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Compares; the exit code is 1 if something is wrong, 2 if something could not be looked at.
pub fn run(here: &Environment, args: &ScrubArgs) -> Result<ExitCode, Failure> {
    let (client, files) = chosen(here, args)?;
    let told = ScrubProgress::begin(args.json);
    let outcome = bivouac_fsck::scrub(&client, &What { files, rate: args.rate }, &|bytes| told.add(bytes));
    told.end();
    let report = outcome?;
    let wrong: HashSet<Ino> = report.wrong.iter().map(|wrong| wrong.ino).collect();
    let paths = client.paths_to(&wrong, usize::MAX).unwrap_or_default();
    client.leave();
    if args.json {
        outln!("{}", to_json(&report, &paths));
    } else {
        out!("{}", to_text(&report, &paths));
    }
    Ok(match (report.wrong.is_empty(), report.failed.is_empty()) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// Returns the formation that is meant, and the files of it if not all.
fn chosen(here: &Environment, args: &ScrubArgs) -> Result<(Client, Option<Vec<Attr>>), Failure> {
    let Some(path) = &args.path else {
        let (_, dir) = StateDir::find_whole(here, args.which.name.as_ref())?;
        return Ok((connect(&dir, &dir.read_living()?, ANSWER_WAIT)?, None));
    };
    let MountedPath { client, entry, resolved } = reach::of_path(here, path, ANSWER_WAIT)?;
    let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
    if below.as_os_str().is_empty() {
        return Ok((client, None));
    }
    let top = FlushTarget::find(&client, &entry.dir, below)?.top;
    let mut files = Vec::new();
    let mut add = |found: &TreeEntry| {
        files.extend(found.attr.is_file().then_some(found.attr));
        true
    };
    add(&top);
    if top.attr.is_dir() {
        client.walk(&top, &mut add)?;
    }
    Ok((client, Some(files)))
}

type Paths = HashMap<Ino, Vec<u8>>;

fn path_of(paths: &Paths, ino: Ino) -> Option<String> {
    paths.get(&ino).map(|path| format!("/{}", String::from_utf8_lossy(path)))
}

fn to_json(report: &ScrubReport, paths: &Paths) -> serde_json::Value {
    let wrong = |wrong: &WrongContent| {
        json!({
            "path": path_of(paths, wrong.ino),
            "inode": wrong.ino.to_string(),
            "from": wrong.from,
            "to": wrong.to,
            "node": wrong.node.0,
            "target": wrong.target.position(),
        })
    };
    json!({
        "event": "end",
        "subfiles": report.subfiles,
        "compared_bytes": report.compared,
        "settled_bytes": report.settled,
        "skipped_bytes": report.skipped,
        "wrong": report.wrong.iter().map(wrong).collect::<Vec<_>>(),
        "failed": report.failed,
    })
}

fn to_text(report: &ScrubReport, paths: &Paths) -> String {
    let row = |wrong: &WrongContent| {
        let path = path_of(paths, wrong.ino).unwrap_or_else(|| format!("inode {}", wrong.ino));
        let WrongContent { from, to, node, target, .. } = wrong;
        vec![path, from.to_string(), to.to_string(), node.0.to_string(), target.position().to_string()]
    };
    let mut text = String::new();
    if !report.wrong.is_empty() {
        let rows: Vec<Vec<String>> = report.wrong.iter().map(row).collect();
        text.push_str(&layout(&["WRONG", "FROM", "TO", "NODE", "TARGET"], &[1, 2, 3, 4], &rows));
        text.push_str("these bytes are not served: restore the files from copies, or write the bytes anew\n");
    }
    report.failed.iter().for_each(|what| text.push_str(&format!("not compared: {what}\n")));
    let (compared, subfiles) = (format_size(report.compared), format_count(report.subfiles, "subfile"));
    if report.has_compared_nothing() {
        let skipped = format_size(report.skipped);
        text.push_str(&format!(
            "nothing was compared: {skipped} in {subfiles} have no checksums, or are being written; \
             content has checksums in a formation that is started with: bivouac up --checksum on\n"
        ));
        return text;
    }
    text.push_str(&format!("{compared} of {subfiles} compared"));
    if report.settled > 0 {
        text.push_str(&format!(", {} have checksums now that had none", format_size(report.settled)));
    }
    if report.skipped > 0 {
        let skipped = format_size(report.skipped);
        text.push_str(&format!(", {skipped} without checksums or being written"));
    }
    let bytes: u64 = report
        .wrong
        .iter()
        .fold(0, |sum: u64, wrong| sum.saturating_add(wrong.to.saturating_sub(wrong.from)));
    text.push_str(&match bytes {
        0 => ": nothing is wrong\n".to_owned(),
        bytes => format!(": {} are wrong\n", format_size(bytes)),
    });
    text
}

/// Tells how far it is: people on a terminal, scripts by lines of JSON.
struct ScrubProgress {
    bar: Option<ProgressBar>,
    json: bool,
    begun: Instant,
    bytes: AtomicU64,
    told_ms: AtomicU64,
}

impl ScrubProgress {
    fn begin(json: bool) -> ScrubProgress {
        let bar = (!json && io::stderr().is_terminal()).then(ProgressBar::new_spinner);
        let zero = AtomicU64::default;
        ScrubProgress { bar, json, begun: Instant::now(), bytes: zero(), told_ms: zero() }
    }

    fn add(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let elapsed = self.begun.elapsed();
        if let Some(bar) = &self.bar {
            let rate = bytes as f64 / elapsed.as_secs_f64().max(0.1);
            bar.set_message(format!("{} compared, {}/s", format_size(bytes), format_size(rate as u64)));
            bar.tick();
        }
        let (now, every) = (elapsed.as_millis() as u64, TELL_EVERY.as_millis() as u64);
        let is_due = |last: u64| (now >= last + every).then_some(now);
        // Several threads add: of those that find a line due, one says it.
        if self.json && self.told_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_due).is_ok() {
            outln!("{}", json!({ "event": "progress", "compared_bytes": bytes }));
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{NodeId, TargetIndex};

    #[test]
    fn what_is_wrong_is_named_by_path() {
        let wrong =
            WrongContent { ino: Ino(7), from: 4096, to: 8192, node: NodeId(1), target: TargetIndex(2) };
        let other = WrongContent { ino: Ino(8), ..wrong.clone() };
        let report = ScrubReport {
            wrong: vec![wrong, other],
            compared: 1 << 20,
            subfiles: 2,
            failed: vec!["n1: away".into()],
            ..ScrubReport::default()
        };
        let paths = Paths::from([(Ino(7), b"d/f".to_vec())]);
        let text = to_text(&report, &paths);
        assert!(
            text.contains("/d/f") && text.contains(&format!("inode {}", Ino(8))) && text.contains("4096"),
            "{text}"
        );
        assert!(text.ends_with("1 MiB of 2 subfiles compared: 8 KiB are wrong\n"), "{text}");
        let json = to_json(&report, &paths);
        assert_eq!((&json["wrong"][0]["path"], &json["wrong"][1]["path"]), (&json!("/d/f"), &json!(null)));
        let fine = ScrubReport { skipped: 4096, settled: 8192, ..ScrubReport::default() };
        let text = to_text(&fine, &paths);
        assert!(text.contains("8 KiB have checksums now") && text.ends_with("nothing is wrong\n"), "{text}");
    }
}
