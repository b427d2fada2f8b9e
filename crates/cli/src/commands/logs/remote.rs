//! Logs of other hosts, which their nodes tell.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bivouac_client::Client;
use bivouac_monitor::{Host, Hosts};
use bivouac_types::{Errno, FsResult, NodeId};

use super::{begin_of, node_of, whole_lines};

/// Positions up to which logs were read, by the first node of their host and by name.
type ReadPositions = BTreeMap<(NodeId, String), u64>;

/// The logs of a formation's other hosts.
pub struct RemoteLogs {
    hosts: Hosts,
    client: Client,
    seen: ReadPositions,
    /// Logs found at the first look.
    names: Vec<String>,
    /// Hosts of which it was said that they do not answer.
    silent: BTreeSet<String>,
}

/// Bytes appended to a log.
struct AppendedLog {
    name: String,
    key: (NodeId, String),
    /// Position of the first.
    begin: u64,
    bytes: Vec<u8>,
    /// True if it begins within a line.
    is_cut: bool,
}

impl RemoteLogs {
    /// Creates the logs of these hosts; who does not answer is named.
    pub fn of(hosts: Hosts, client: Client) -> RemoteLogs {
        let (seen, names, silent) = (ReadPositions::new(), Vec::new(), BTreeSet::new());
        let mut all = RemoteLogs { hosts, client, seen, names, silent };
        let listed = all.hosts.each(&all.client, |host| host.logs());
        let mut silent = Vec::new();
        for (host, logs) in listed {
            match logs {
                Ok(logs) => all.names.extend(logs.into_iter().map(|log| shown(&log.name, host))),
                Err(error) => silent.push((host.to_owned(), error.to_string())),
            }
        }
        all.complain(silent);
        all
    }

    /// Returns the names of the logs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns the whole lines that were added to each log since the last time, of the last `most` bytes the first
    /// time.
    pub fn read(&mut self, most: u64, wants: impl Fn(&str) -> bool + Sync) -> Vec<(String, Vec<String>)> {
        let seen = &self.seen;
        let found = self.hosts.each(&self.client, |host| added(host, seen, most, &wants));
        let (mut all, mut silent, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (host, answer) in found {
            match answer {
                Ok(logs) => {
                    for AppendedLog { name, key, begin, bytes, is_cut } in logs {
                        let (lines, end) = whole_lines(&bytes, most, is_cut);
                        all.push((shown(&name, host), lines));
                        ends.push((key, begin.saturating_add(end)));
                    }
                }
                Err(error) => silent.push((host.to_owned(), error.to_string())),
            }
        }
        self.seen.extend(ends);
        self.complain(silent);
        all
    }

    /// Says once of each host that it does not answer; the others go on.
    fn complain(&mut self, silent: Vec<(String, String)>) {
        for (host, why) in silent {
            if self.silent.insert(host.clone()) {
                errln!("bivouac: the logs of host {host} are not among these: {why}; see: bivouac status");
            }
        }
    }
}

/// Returns a log's name as it is shown. Nodes have numbers that no other host has; the rest is told apart by host.
fn shown(name: &str, host: &str) -> String {
    if node_of(name).is_some() { name.to_owned() } else { format!("{name}@{host}") }
}

fn added(
    host: &Host<'_>,
    seen: &ReadPositions,
    most: u64,
    wants: &(impl Fn(&str) -> bool + Sync),
) -> FsResult<Vec<AppendedLog>> {
    let first = host.nodes.first().copied().unwrap_or(NodeId(0));
    let mut all = Vec::new();
    for log in host.logs()?.into_iter().filter(|log| wants(&log.name)) {
        let key = (first, log.name.clone());
        let before = seen.get(&key).copied();
        let begin = begin_of(before, log.len, most);
        let end = log.len.min(begin.saturating_add(most));
        let bytes = match range_of(host, &log.name, begin..end) {
            Ok(bytes) => bytes,
            // Removed since the list was made: the other logs of the host are read all the same.
            Err(error) if error.errno() == Errno::ENOENT => continue,
            Err(error) => return Err(error),
        };
        all.push(AppendedLog { name: log.name, key, begin, bytes, is_cut: before.is_none() && begin > 0 });
    }
    Ok(all)
}

/// Returns a range of a log, or less of one that has become shorter.
fn range_of(host: &Host<'_>, name: &str, range: Range<u64>) -> FsResult<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let at = range.start.saturating_add(bytes.len() as u64);
        let some = if at < range.end { host.log(name, at)? } else { Vec::new() };
        if some.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(some);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_other_hosts_are_told_apart() {
        assert_eq!(
            ["n3", "supervisor", "http"].map(|name| shown(name, "b")),
            ["n3", "supervisor@b", "http@b"]
        );
    }
}
