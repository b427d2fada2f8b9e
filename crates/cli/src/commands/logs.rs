//! `bivouac logs`: what the processes of a formation wrote, on all of its hosts, in one stream.

mod line;
mod remote;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::{CAUGHT, Environment, FormationState, LaunchError, Signals, StateDir, asks_to_end};
use bivouac_monitor::Hosts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::failure::Failure;
use crate::forming_hosts::part_of;
use crate::options::LogsArgs;
use crate::output;
use line::{LogLine, merged};
use remote::RemoteLogs;

/// Most bytes of a log that are read, from its end.
const TAIL_MAX: u64 = 64 << 20;
/// Most bytes read at once while following.
const PIECE_MAX: u64 = 4 << 20;
/// Pause between two looks whether the formation is there, where the kernel does not say what changed.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Shows the logs, and what is added to them.
pub fn run(here: &Environment, args: &LogsArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name())?;
    let mut dirs = vec![dir.path().to_owned()];
    let state = dir.read()?;
    if let Some(state) = state.as_ref().filter(|state| state.is_over_hosts()) {
        dirs.extend(part_of(here, &state.name, &state.formation).map(|part| part.path().to_owned()));
    }
    let hosts = state.and_then(|state| Some((Hosts::of(&dir, &state, &own_nodes(here, &state))?, state)));
    let others =
        hosts.map(|(hosts, state)| Hosts::client(&dir, &state).map(|client| RemoteLogs::of(hosts, client)));
    let others = others.transpose()?;
    let mut logs = Logs { dirs, args, seen: BTreeMap::new(), others };
    // Watched before the first look, so that nothing is missed in between.
    let changes = args.follow.then(|| logs.watch()).transpose()?;
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    logs.check()?;
    let read = logs.read(TAIL_MAX)?;
    let lines = chosen(&read, args);
    let skipped = args.lines.map_or(0, |last| lines.len().saturating_sub(last));
    show(lines.get(skipped..).unwrap_or_default(), wide(&read), args.json)?;
    let Some(changes) = changes else { return Ok(ExitCode::SUCCESS) };
    while !output::is_closed() && dir.path().exists() {
        let mut polled = [PollFd::new(&changes, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        let _or_interrupted = poll(&mut polled, Some(&LOOK_AGAIN));
        if std::iter::from_fn(|| signals.next()).any(asks_to_end) {
            break;
        }
        // What changed does not matter: all are read from where they were.
        while rustix::io::read(&changes, &mut [0_u8; 4096]).is_ok_and(|len| len > 0) {}
        loop {
            // What is added while it is shown is read at once, piece by piece.
            let read = logs.read(PIECE_MAX)?;
            if read.iter().all(|(_, lines)| lines.is_empty()) {
                break;
            }
            show(&chosen(&read, args), wide(&read), args.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the nodes of this host.
fn own_nodes(here: &Environment, state: &FormationState) -> Vec<u16> {
    let ids = |state: &FormationState| state.nodes.iter().map(|node| node.id).collect();
    if !state.is_over_hosts() {
        return ids(state);
    }
    let part = part_of(here, &state.name, &state.formation).and_then(|part| part.read().ok().flatten());
    part.as_ref().map_or_else(Vec::new, ids)
}

/// Returns all lines by their time that are wanted.
fn chosen<'a>(read: &'a [(String, Vec<String>)], args: &LogsArgs) -> Vec<LogLine<'a>> {
    let mut lines = merged(read);
    lines.retain(|line| line.is_at_least(args.level));
    lines
}

struct Logs<'a> {
    dirs: Vec<PathBuf>,
    args: &'a LogsArgs,
    /// Position up to which each was read.
    seen: BTreeMap<PathBuf, u64>,
    /// Logs of the formation's other hosts.
    others: Option<RemoteLogs>,
}

impl Logs<'_> {
    fn watch(&self) -> Result<std::os::fd::OwnedFd, Failure> {
        let failed = |e: rustix::io::Errno| {
            Failure::from(LaunchError::system("watching the logs", std::io::Error::from(e)))
        };
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        for dir in &self.dirs {
            let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE_SELF;
            inotify::add_watch(&changes, dir, flags).map_err(failed)?;
        }
        Ok(changes)
    }

    /// Checks that a node that is asked for has a log, here or on another host.
    fn check(&self) -> Result<(), Failure> {
        let found = self.files()?;
        let known = found.iter().map(|(name, _)| name.as_str());
        let known: Vec<&str> = known.chain(self.others.iter().flat_map(RemoteLogs::names)).collect();
        let missing = self.args.nodes.iter().find(|node| !known.contains(&format!("n{node}").as_str()));
        missing.map_or(Ok(()), |node| {
            let text = format!(
                "node {node}: has no log on a host that answers ({} have); name one of those, or see: bivouac status",
                known.join(", ")
            );
            Err(Failure::new(1, text))
        })
    }

    /// Logs that are wanted, by name; daemons by number.
    fn files(&self) -> Result<Vec<(String, PathBuf)>, Failure> {
        let mut found = Vec::new();
        for dir in &self.dirs {
            let entries = match std::fs::read_dir(dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|e| LaunchError::path(dir, "list it", e))?,
            };
            let logs = entries.flatten().map(|entry| entry.path());
            found.extend(logs.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path))));
        }
        found.retain(|(_, path)| path.extension().is_some_and(|extension| extension == "log"));
        found.sort_by_key(|(name, path)| (node_of(name), path.clone()));
        Ok(found)
    }

    fn wants(&self, name: &str) -> bool {
        let all = self.args.nodes.is_empty() && !self.args.supervisor;
        match node_of(name) {
            Some(node) => all || self.args.nodes.contains(&node),
            None => all || self.args.supervisor,
        }
    }

    /// Returns the whole lines that were added to each log since the last time.
    fn read(&mut self, most: u64) -> Result<Vec<(String, Vec<String>)>, Failure> {
        let mut all = Vec::new();
        let mut files = self.files()?;
        files.retain(|(name, _)| self.wants(name));
        for (name, path) in files {
            let seen = self.seen.get(&path).copied();
            match added(&path, seen, most) {
                // It was removed with its formation meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(LaunchError::path(&path, "read it", error).into()),
                Ok((lines, end)) => {
                    self.seen.insert(path, end);
                    all.push((name, lines));
                }
            }
        }
        // Taken out for the call: what it asks by is in the same structure.
        if let Some(mut others) = self.others.take() {
            all.extend(others.read(most, |name| self.wants(name)));
            self.others = Some(others);
        }
        Ok(all)
    }
}

/// Returns the number of the node whose daemon has this log.
fn node_of(name: &str) -> Option<u16> {
    name.strip_prefix('n')?.parse().ok()
}

/// Returns the whole lines behind `seen`, or of the last `most` bytes, and where they end.
fn added(path: &Path, seen: Option<u64>, most: u64) -> std::io::Result<(Vec<String>, u64)> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let begin = begin_of(seen, len, most);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let (lines, end) = whole_lines(&bytes, most, seen.is_none() && begin > 0);
    Ok((lines, begin + end))
}

/// Returns the position at which reading a log of `len` bytes begins.
fn begin_of(seen: Option<u64>, len: u64, most: u64) -> u64 {
    match seen {
        Some(seen) if seen <= len => seen,
        // It was truncated meanwhile.
        Some(_) => 0,
        None => len.saturating_sub(most),
    }
}

/// Returns the whole lines of a piece, and where they end; of one that begins within a line that one is left out.
fn whole_lines(bytes: &[u8], most: u64, is_cut: bool) -> (Vec<String>, u64) {
    let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        // A line without an end that is longer than what is read at once.
        None if bytes.len() as u64 >= most => bytes.len(),
        None => 0,
    };
    let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    (text.lines().skip(usize::from(is_cut)).map(str::to_owned).collect(), end as u64)
}

/// Letters of the longest name.
fn wide(logs: &[(String, Vec<String>)]) -> usize {
    logs.iter().map(|(name, _)| name.len()).max().unwrap_or(0)
}

/// Writes lines, with who wrote them in front where that is one of `wide` letters.
fn show(lines: &[LogLine<'_>], wide: usize, as_json: bool) -> Result<(), Failure> {
    for line in lines {
        if as_json {
            outln!("{}", crate::output::json_value(&line.parsed(), false)?);
        } else {
            outln!("{:<wide$}  {}", line.by, line.plain());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_whole_line_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n0.log");
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let (lines, end) = added(&path, None, 1000).unwrap();
        assert_eq!((lines.len(), end), (2, 8));
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(added(&path, Some(end), 1000).unwrap().0, ["three"]);
        assert_eq!(added(&path, None, 9).unwrap().0, ["three"], "a line that is cut is left out");
        std::fs::write(&path, "x\n").unwrap();
        assert_eq!(added(&path, Some(end), 1000).unwrap().0, ["x"], "a log that was cut is read anew");
    }
}
