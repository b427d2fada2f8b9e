//! `bivouac contract`. All of it goes through the mount, as programs do: the mount is the client that may have written
//! behind.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::mounts::mount_of;
use bivouac_types::{CONTRACT_XATTR, Contract, DIGEST_XATTR, read_contract};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;
use serde::Serialize;

use crate::failure::Failure;
use crate::options::{ContractCommand, ContractSetArgs, ContractShowArgs};
use crate::reach::not_in_a_formation;

const NO_CONTRACT: &str = "has no contract: only regular files and directories have one";
/// Name of the attribute that says the partition.
const PARTITION_XATTR: &[u8] = b"user.bivouac.partition";

/// Does what a command says.
pub fn run(command: &ContractCommand) -> Result<ExitCode, Failure> {
    match command {
        ContractCommand::Show(args) => show(args),
        ContractCommand::Set(args) => set(args),
    }
}

/// The contract of a file or directory as it is shown.
#[derive(Debug, Serialize)]
struct ContractReport {
    path: PathBuf,
    /// The contract in force.
    contract: &'static str,
    /// `own` or `partition`.
    from: &'static str,
    /// True if it is that of what is made in the directory.
    is_directory: bool,
    /// Digest of the content of a laminated file.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

impl ContractReport {
    fn read(path: &Path) -> Result<ContractReport, Failure> {
        // Not the path that was named: what a symbolic link leads to is what has the contract.
        let resolved = inside(path)?;
        let text = attribute(&resolved, CONTRACT_XATTR)
            .map_err(|errno| refused((resolved.as_path(), path), errno, "read"))?;
        let Some((contract, is_own)) = read_contract(&text) else {
            return Err(Failure::new(
                1,
                format_args!("{}: has the unknown contract '{text}'", path.display()),
            ));
        };
        let (contract, from) = (contract.word(), if is_own { "own" } else { "partition" });
        let sha256 = attribute(&resolved, DIGEST_XATTR).ok();
        Ok(ContractReport { path: path.to_owned(), contract, from, is_directory: resolved.is_dir(), sha256 })
    }

    fn to_text(&self) -> String {
        let from = if self.from == "own" { "its own" } else { "its partition's" };
        let of = if self.is_directory { ", for what is made in it" } else { "" };
        let digest = self.sha256.as_ref().map_or(String::new(), |sha256| format!(", SHA-256 {sha256}"));
        format!("{}: {} ({from}{of}){digest}", self.path.display(), self.contract)
    }
}

fn show(args: &ContractShowArgs) -> Result<ExitCode, Failure> {
    let (mut reports, mut failed) = (Vec::new(), Vec::new());
    for path in &args.paths {
        match ContractReport::read(path) {
            Ok(report) => reports.push(report),
            Err(failure) => failed.push(failure),
        }
    }
    if args.json {
        outln!("{}", crate::output::json(&reports, true)?);
    } else {
        reports.iter().for_each(|report| outln!("{}", report.to_text()));
    }
    ended(failed)
}

fn set(args: &ContractSetArgs) -> Result<ExitCode, Failure> {
    let text = args.contract.0.map_or("partition", Contract::word);
    let mut failed = Vec::new();
    for path in &args.paths {
        let mut change = ContractChange { text, count: 0, failed: Vec::new(), left_out: Vec::new() };
        match inside(path) {
            Ok(top) => {
                // Of a directory only its files are laminated.
                if !args.recursive || text != Contract::Laminated.word() || !top.is_dir() {
                    change.apply(&top, path);
                }
                if args.recursive && top.is_dir() {
                    change.descend(&top, path);
                }
                let count = change.count;
                if args.recursive {
                    outln!("{}: {text} for {count} files and directories", path.display());
                }
            }
            Err(failure) => change.failed.push(failure),
        }
        change.left_out.iter().for_each(|line| errln!("bivouac: {line}"));
        failed.extend(change.failed);
    }
    ended(failed)
}

/// Names what failed: the last of it as the failure of the command.
pub(super) fn ended(mut failed: Vec<Failure>) -> Result<ExitCode, Failure> {
    let Some(last) = failed.pop() else { return Ok(ExitCode::SUCCESS) };
    failed.iter().for_each(|failure| errln!("bivouac: {failure}"));
    Err(last)
}

/// A change of many contracts.
struct ContractChange {
    text: &'static str,
    count: usize,
    failed: Vec<Failure>,
    /// Sentences about what is below and was not changed.
    left_out: Vec<String>,
}

impl ContractChange {
    fn apply(&mut self, path: &Path, shown: &Path) {
        match lsetxattr(path, CONTRACT_XATTR, self.text.as_bytes(), XattrFlags::empty()) {
            Ok(()) => self.count += 1,
            Err(errno) => self.failed.push(refused_change(path, shown, errno, self.text)),
        }
    }

    /// Changes everything below a directory, except for other partitions and mounts.
    fn descend(&mut self, top: &Path, shown: &Path) {
        let partition = partition_of(top);
        let device = fs::symlink_metadata(top).ok().as_ref().map(Metadata::dev);
        // By a stack, not by calls: trees can be deeper than a thread's stack.
        let mut dirs = vec![(top.to_owned(), shown.to_owned())];
        while let Some((dir, shown)) = dirs.pop() {
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    self.failed.push(Failure::new(1, format_args!("{}: {error}", shown.display())));
                    continue;
                }
            };
            for entry in entries {
                let found = entry.and_then(|entry| entry.metadata().map(|seen| (entry, seen)));
                let (entry, seen) = match found {
                    Ok(found) => found,
                    // Removed meanwhile: there is nothing to be set of it.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        self.failed.push(Failure::new(1, format_args!("{}: {error}", shown.display())));
                        continue;
                    }
                };
                let (path, shown) = (entry.path(), shown.join(entry.file_name()));
                if seen.is_file() {
                    self.apply(&path, &shown);
                } else if seen.is_dir() && Some(seen.dev()) != device {
                    self.left_out.push(format!("{}: is left out, as another mount", shown.display()));
                } else if seen.is_dir() && partition_of(&path) != partition {
                    self.left_out.push(format!(
                        "{}: is left out, as another partition; name it to set it there: bivouac contract set --recursive {} {}",
                        shown.display(),
                        self.text,
                        shown.display()
                    ));
                } else if seen.is_dir() {
                    if self.text != Contract::Laminated.word() {
                        self.apply(&path, &shown);
                    }
                    dirs.push((path, shown));
                }
            }
        }
    }
}

/// Returns the path without symbolic links, if it is in a mounted formation.
pub(super) fn inside(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::new(1, format_args!("{}: {error}; check its path", path.display()));
    let resolved = path.canonicalize().map_err(failed)?;
    if mount_of(&resolved).is_none() {
        return Err(not_in_a_formation(path));
    }
    Ok(resolved)
}

/// Returns the partition that a path is in, as its attribute numbers it; nothing for the formation's own.
fn partition_of(path: &Path) -> Option<String> {
    let text = attribute(path, PARTITION_XATTR).ok()?;
    text.lines().next().map(str::to_owned)
}

pub(super) fn attribute(path: &Path, name: &[u8]) -> Result<String, Errno> {
    // The kernel's limit of values, so none is longer: XATTR_SIZE_MAX.
    let mut value = vec![0; 64 << 10];
    let len = lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    String::from_utf8(value).map_err(|_| Errno::INVAL)
}

/// Returns whether the file is laminated.
pub(super) fn is_laminated(path: &Path) -> Result<bool, Errno> {
    attribute(path, CONTRACT_XATTR).map(|text| text == Contract::Laminated.word())
}

/// Returns the reason why a contract cannot be set to this, and what to do.
pub(super) fn refused_change(path: &Path, shown: &Path, errno: Errno, to: &str) -> Failure {
    let why = match errno {
        Errno::BUSY if is_laminated(path) == Ok(true) => {
            "is laminated and open: close it on all mounts and in processes with the library"
        }
        Errno::BUSY if to == Contract::Laminated.word() => {
            "is open for writing: close it on all mounts and in processes with the library; bivouac logs says where"
        }
        Errno::INVAL if to == Contract::Laminated.word() && path.is_dir() => {
            "is a directory, of which only the files are laminated: bivouac laminate does that"
        }
        errno => return refused((path, shown), errno, "set"),
    };
    Failure::new(1, format_args!("{}: {why}", shown.display()))
}

/// Returns the reason why a contract cannot be read or set, and what to do.
pub(super) fn refused((path, shown): (&Path, &Path), errno: Errno, what: &str) -> Failure {
    // The kernel refuses the attributes of others before anybody is asked.
    let has_none = || fs::symlink_metadata(path).is_ok_and(|seen| !seen.is_file() && !seen.is_dir());
    let why = match errno {
        Errno::PERM | Errno::ACCESS if has_none() => NO_CONTRACT.to_owned(),
        Errno::PERM if what == "set" => "only its owner and root may choose its contract".to_owned(),
        Errno::ACCESS if what == "read" => "you may not read it: chmod u+r first".to_owned(),
        Errno::ACCESS => "you may not write to it: chmod u+w first".to_owned(),
        Errno::BUSY => {
            "is open: a change to session needs it closed everywhere, one from session on all other mounts and in processes \
             with the library; or copy the file"
                .to_owned()
        }
        Errno::NODATA | Errno::INVAL | Errno::OPNOTSUPP => NO_CONTRACT.to_owned(),
        Errno::NOENT => "was removed meanwhile".to_owned(),
        other => format!("the contract cannot be {what}: {}", std::io::Error::from(other)),
    };
    Failure::new(1, format_args!("{}: {why}", shown.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S737.
    #[test]
    fn refusals_have_object_cause_and_remedy() {
        let of = |errno, what| refused((Path::new("/m/f"), Path::new("/m/f")), errno, what).to_string();
        let text = |errno| of(errno, "set");
        assert_eq!(of(Errno::ACCESS, "read"), "/m/f: you may not read it: chmod u+r first");
        assert_eq!(text(Errno::ACCESS), "/m/f: you may not write to it: chmod u+w first");
        assert_eq!(text(Errno::PERM), "/m/f: only its owner and root may choose its contract");
        assert!(
            text(Errno::BUSY).starts_with("/m/f: is open: a change to session needs it closed everywhere")
        );
        assert!(text(Errno::NOTCONN).starts_with("/m/f: the contract cannot be set: "));
        let failure = inside(Path::new("/etc/passwd")).unwrap_err();
        assert!(failure.to_string().starts_with("/etc/passwd: is not in a formation"), "{failure}");
        assert_eq!(failure.exit_code(), 1);
        assert!(inside(Path::new("/nonexistent/x")).unwrap_err().to_string().contains("check its path"));
    }

    #[test]
    fn reports_say_where_a_contract_comes_from() {
        let report = |from, is_directory| ContractReport {
            path: "/m/x".into(),
            contract: "strict",
            from,
            is_directory,
            sha256: None,
        };
        assert_eq!(report("own", false).to_text(), "/m/x: strict (its own)");
        let text = "/m/x: strict (its partition's, for what is made in it)";
        assert_eq!(report("partition", true).to_text(), text);
        let laminated =
            ContractReport { contract: "laminated", sha256: Some("0f".into()), ..report("own", false) };
        assert_eq!(laminated.to_text(), "/m/x: laminated (its own), SHA-256 0f");
    }
}
