//! `bivouac laminate`. Like `bivouac contract`, all of it goes through the mount.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_types::hex::to_hex;
use bivouac_types::{CONTRACT_XATTR, Contract, DIGEST_XATTR};
use rustix::fs::{OFlags, XattrFlags, lsetxattr};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::contract::{attribute, ended, inside, is_laminated, refused, refused_change};
use crate::failure::Failure;
use crate::options::LaminateArgs;

/// Bytes that are read at once for a comparison.
const PIECE: usize = 1 << 20;

/// Action on the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaminateAction {
    Laminate,
    Undo,
    Verify,
}

/// Outcome for a file.
#[derive(Debug, Serialize)]
struct FileReport {
    path: PathBuf,
    /// `laminated`, `undone`, `matches`, or `untouched` for one that was not laminated.
    outcome: &'static str,
    /// Digest of a file that is laminated.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// Does what the arguments say, path after path.
pub fn run(args: &LaminateArgs) -> Result<ExitCode, Failure> {
    let action = match (args.undo, args.verify) {
        (true, _) => LaminateAction::Undo,
        (_, true) => LaminateAction::Verify,
        _ => LaminateAction::Laminate,
    };
    let (mut reports, mut failed) = (Vec::new(), Vec::new());
    for path in &args.paths {
        let mut files = Files { found: Vec::new(), failed: Vec::new() };
        match inside(path) {
            Ok(top) => files.look_at(top, path.clone()),
            Err(failure) => files.failed.push(failure),
        }
        let is_tree = files.found.first().is_none_or(|(_, shown)| shown != path);
        let (mut done, before) = (Vec::new(), failed.len());
        failed.append(&mut files.failed);
        for (file, shown) in &files.found {
            match act(action, file, shown) {
                // A single file that was not laminated is a mistake, in a tree it is an ordinary file.
                Ok(report) if action == LaminateAction::Verify && report.outcome == UNTOUCHED && !is_tree => {
                    failed.push(Failure::new(1, format_args!("{}: is not laminated", shown.display())));
                }
                Ok(report) => done.push(report),
                Err(failure) => failed.push(failure),
            }
        }
        // Of a path of which nothing could be done, the failure says all.
        if !args.json && (before == failed.len() || !done.is_empty()) {
            outln!("{}: {}", path.display(), summary(action, &done, is_tree));
        }
        reports.append(&mut done);
    }
    if args.json {
        outln!("{}", crate::output::json(&reports, true)?);
    }
    ended(failed)
}

const UNTOUCHED: &str = "untouched";

fn summary(action: LaminateAction, done: &[FileReport], is_tree: bool) -> String {
    let count = done.iter().filter(|report| report.outcome != UNTOUCHED).count();
    match (action, done) {
        (LaminateAction::Laminate, [FileReport { sha256: Some(sha256), .. }]) if !is_tree => {
            format!("laminated, SHA-256 {sha256}")
        }
        (LaminateAction::Laminate, _) => format!("laminated, {}", files(count)),
        (LaminateAction::Undo, _) => format!("not laminated any more, {}", files(count)),
        (LaminateAction::Verify, _) => match done.len() - count {
            0 => format!("as it was laminated, {}", files(count)),
            others => format!("as it was laminated, {}; {} not laminated", files(count), files(others)),
        },
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

fn act(action: LaminateAction, file: &Path, shown: &Path) -> Result<FileReport, Failure> {
    let unread = |errno| refused((file, shown), errno, "read");
    let was_laminated = is_laminated(file).map_err(unread)?;
    let report = |outcome, sha256| Ok(FileReport { path: shown.to_owned(), outcome, sha256 });
    match action {
        LaminateAction::Laminate => {
            set(file, shown, Contract::Laminated.word())?;
            report("laminated", Some(attribute(file, DIGEST_XATTR).map_err(unread)?))
        }
        _ if !was_laminated => report(UNTOUCHED, None),
        LaminateAction::Undo => {
            set(file, shown, "partition")?;
            report("undone", None)
        }
        LaminateAction::Verify => {
            let kept = attribute(file, DIGEST_XATTR).map_err(unread)?;
            let found = digest(file).map_err(|error| {
                Failure::new(1, format_args!("{}: cannot be read: {error}", shown.display()))
            })?;
            if found == kept {
                return report("matches", Some(kept));
            }
            let text = format!(
                "{}: has another content than when it was laminated: SHA-256 {found} instead of {kept}; get it from \
                 its source again, and look for what damaged it with bivouac scrub",
                shown.display()
            );
            Err(Failure::new(1, text))
        }
    }
}

fn set(file: &Path, shown: &Path, contract: &str) -> Result<(), Failure> {
    lsetxattr(file, CONTRACT_XATTR, contract.as_bytes(), XattrFlags::empty())
        .map_err(|errno| refused_change(file, shown, errno, contract))
}

/// Returns the SHA-256 of what the nodes have, not of what this kernel has cached.
fn digest(file: &Path) -> std::io::Result<String> {
    // FUSE asks for no alignment of the buffer, as disks do.
    let flags = OFlags::DIRECT.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let (mut sum, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) => break,
            Ok(len) => sum.update(piece.get(..len).unwrap_or_default()),
        }
    }
    Ok(to_hex(&sum.finalize()))
}

/// Files below a path, and what could not be looked at.
struct Files {
    /// Each as it is reached, and as it is shown.
    found: Vec<(PathBuf, PathBuf)>,
    failed: Vec<Failure>,
}

impl Files {
    fn look_at(&mut self, top: PathBuf, shown: PathBuf) {
        let seen = match fs::symlink_metadata(&top) {
            Ok(seen) => seen,
            Err(error) => return self.fail(&shown, &error),
        };
        if !seen.is_dir() {
            return self.found.push((top, shown));
        }
        let (device, mut dirs) = (seen.dev(), vec![(top, shown)]);
        while let Some((dir, shown)) = dirs.pop() {
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    self.fail(&shown, &error);
                    continue;
                }
            };
            for entry in entries {
                match entry.and_then(|entry| entry.metadata().map(|seen| (entry, seen))) {
                    Ok((entry, seen)) => {
                        let (path, shown) = (entry.path(), shown.join(entry.file_name()));
                        if seen.is_file() {
                            self.found.push((path, shown));
                        } else if seen.is_dir() && seen.dev() == device {
                            dirs.push((path, shown));
                        }
                    }
                    // Removed meanwhile.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => self.fail(&shown, &error),
                }
            }
        }
    }

    fn fail(&mut self, shown: &Path, error: &std::io::Error) {
        self.failed.push(Failure::new(1, format_args!("{}: {error}", shown.display())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: &'static str) -> FileReport {
        FileReport { path: "/m/x".into(), outcome, sha256: Some("0f".into()) }
    }

    #[test]
    fn summaries_count_what_was_done() {
        let of = |action, outcomes: &[&'static str], is_tree| {
            let done: Vec<FileReport> = outcomes.iter().map(|outcome| report(outcome)).collect();
            summary(action, &done, is_tree)
        };
        assert_eq!(of(LaminateAction::Laminate, &["laminated"], false), "laminated, SHA-256 0f");
        assert_eq!(of(LaminateAction::Laminate, &["laminated"], true), "laminated, 1 file");
        assert_eq!(
            of(LaminateAction::Undo, &["undone", UNTOUCHED, "undone"], true),
            "not laminated any more, 2 files"
        );
        assert_eq!(
            of(LaminateAction::Verify, &["matches", UNTOUCHED], true),
            "as it was laminated, 1 file; 1 file not laminated"
        );
        assert_eq!(of(LaminateAction::Verify, &[], true), "as it was laminated, 0 files");
    }
}
