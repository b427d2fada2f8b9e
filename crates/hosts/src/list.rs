//! List of a formation's hosts: from the command line, from a file, or from a batch system.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use bivouac_launch::{FormationState, HostState, LaunchError, LaunchResult, NODES_HERE_MAX};
use serde::{Deserialize, Serialize};

/// Most hosts of a formation.
pub const HOSTS_MAX: usize = 4096;

/// A host, and how many nodes it plays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostArg {
    /// Its name for the launcher.
    pub name: String,
    /// Nodes on it.
    pub nodes: u16,
    /// Its first position in the list, which may name a host more than once.
    pub position: usize,
}

/// Reads `a,b:2,n[1-4,7]`: names, with a number of nodes behind a colon, and ranges in brackets.
///
/// # Errors
/// What makes no sense, or a host that is given twice.
pub fn parse_hosts(text: &str, nodes_per_host: u16) -> LaunchResult<Vec<HostArg>> {
    let mut hosts = Vec::new();
    for part in split_list(text) {
        for name in expand(part).ok_or_else(|| bad(part, "its brackets make no sense", "write n[1-4,7]"))? {
            hosts.push(parse_host(&name, nodes_per_host)?);
        }
        if hosts.len() > HOSTS_MAX {
            return Err(bad(part, &format!("a formation is over {HOSTS_MAX} hosts at most"), "use less"));
        }
    }
    no_doubles(hosts)
}

/// Reads a file with a host per line: its name, possibly with a number of nodes behind a colon. Empty lines, and what
/// follows `#` or the name (`slots=8`), do not count.
///
/// # Errors
/// That the file cannot be read, what makes no sense in it, or a host that is given twice.
pub fn read_hostfile(path: &Path, nodes_per_host: u16) -> LaunchResult<Vec<HostArg>> {
    let hosts =
        lines_of(path)?.iter().map(|line| parse_host(line, nodes_per_host)).collect::<Result<_, _>>()?;
    no_doubles(hosts)
}

/// Like [`read_hostfile`], for files that name a host once per processor.
///
/// # Errors
/// As [`read_hostfile`].
pub fn read_nodefile(path: &Path, nodes_per_host: u16) -> LaunchResult<Vec<HostArg>> {
    let mut hosts: Vec<HostArg> = Vec::new();
    for (position, line) in lines_of(path)?.iter().enumerate() {
        let host = HostArg { position, ..parse_host(line, nodes_per_host)? };
        if !hosts.iter().any(|known| known.name == host.name) {
            hosts.push(host);
        }
    }
    no_doubles(hosts)
}

/// Returns the hosts of a formation that was: as they were called, each with as many nodes as it had; those that never
/// came had none.
#[must_use]
pub fn hosts_of(state: &FormationState) -> Vec<HostArg> {
    let had = state.hosts.iter().filter(|host| !host.nodes.is_empty());
    let host = |(position, host): (usize, &HostState)| HostArg {
        name: host.name.clone(),
        nodes: host.nodes.len() as u16,
        position,
    };
    had.enumerate().map(host).collect()
}

/// Returns whether two names may be of one host: they are the same, or one is the other with its domain.
#[must_use]
pub fn same_host(a: &str, b: &str) -> bool {
    let with_domain = |long: &str, short: &str| shorter(long).any(|name| name.eq_ignore_ascii_case(short));
    a.eq_ignore_ascii_case(b) || with_domain(a, b) || with_domain(b, a)
}

fn lines_of(path: &Path) -> LaunchResult<Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|e| LaunchError::path(path, "read the host file", e))?;
    let names = text.lines().filter_map(|line| line.split('#').next()?.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

fn parse_host(text: &str, nodes_per_host: u16) -> LaunchResult<HostArg> {
    let (name, count) = match text.split_once(':') {
        Some((name, count)) if !count.contains(':') => (name, Some(count)),
        _ => (text, None),
    };
    // It becomes an argument of the launcher: nothing that a shell or an option parser would take apart.
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@' | ':');
    if name.is_empty() || name.starts_with(['-', '.', '@']) || !name.chars().all(plain) {
        return Err(bad(text, "is no name of a host", "write names or addresses, as for ssh"));
    }
    let nodes = match count {
        None => nodes_per_host,
        Some(count) => {
            count.parse().ok().filter(|nodes| (1..=NODES_HERE_MAX).contains(nodes)).ok_or_else(|| {
                bad(
                    text,
                    &format!("has no number of nodes from 1 to {NODES_HERE_MAX} behind the colon"),
                    "write for instance n1:2",
                )
            })?
        }
    };
    Ok(HostArg { name: name.into(), nodes, position: 0 })
}

fn no_doubles(hosts: Vec<HostArg>) -> LaunchResult<Vec<HostArg>> {
    let mut names = BTreeSet::new();
    for host in &hosts {
        if !names.insert(host.name.to_ascii_lowercase()) {
            return Err(twice(&host.name));
        }
    }
    if let Some(host) = hosts.iter().find(|host| shorter(&host.name).any(|short| names.contains(&short))) {
        return Err(twice(&host.name));
    }
    if hosts.is_empty() {
        return Err(bad("", "no host is named", "write for instance --hosts n1,n2"));
    }
    Ok(hosts)
}

fn twice(host: &str) -> LaunchError {
    let remedy = "name each host once; several nodes on one host: NAME:COUNT, or --nodes-per-host";
    bad(host, "is given twice", remedy)
}

/// Returns the name without its domain, or without a part of that. An address has none.
fn shorter(name: &str) -> impl Iterator<Item = String> + '_ {
    let is_address = name.parse::<IpAddr>().is_ok();
    let dots = name.match_indices('.').filter(move |_| !is_address);
    dots.filter_map(|(dot, _)| Some(name.get(..dot)?.to_ascii_lowercase()))
}

fn bad(host: &str, cause: &str, remedy: &str) -> LaunchError {
    let object = if host.is_empty() { "the list of hosts".into() } else { format!("host '{host}'") };
    LaunchError::usage(object, cause, remedy)
}

/// Returns the parts between commas outside of brackets.
fn split_list(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = text.split(|c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        (c == ',' && depth == 0) || c.is_whitespace()
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// `n[1-3,07]x` is `n1x`, `n2x`, `n3x`, `n07x`; `None` for brackets that make no sense.
fn expand(text: &str) -> Option<Vec<String>> {
    let Some((head, rest)) = text.split_once('[') else {
        return (!text.contains(']')).then(|| vec![text.to_owned()]);
    };
    let (ranges, tail) = rest.split_once(']')?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (number(first)?, number(last)?);
        if high < low || (high - low) as usize > HOSTS_MAX {
            return None;
        }
        names.extend((low..=high).map(|number| format!("{head}{number:0width$}{tail}", width = first.len())));
    }
    Some(names)
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<(String, u16)> {
        let hosts = parse_hosts(text, 1).unwrap();
        hosts.into_iter().map(|host| (host.name, host.nodes)).collect()
    }

    #[test]
    fn lists_are_read() {
        let host = |name: &str, nodes| (name.to_owned(), nodes);
        assert_eq!(names("a,b:2, c"), [host("a", 1), host("b", 2), host("c", 1)]);
        assert_eq!(names("n[1-2,09]:3,u@h"), [host("n1", 3), host("n2", 3), host("n09", 3), host("u@h", 1)]);
        assert_eq!(names("n[08-10]"), [host("n08", 1), host("n09", 1), host("n10", 1)]);
        assert_eq!(parse_hosts("a", 4).unwrap()[0].nodes, 4);
    }

    #[test]
    fn absurd_lists_are_refused_by_name() {
        for (text, says) in [
            ("", "no host is named"),
            ("a,b,a", "host 'a': is given twice; name each host once"),
            ("a,A.example", "is given twice"),
            ("-oProxyCommand=x", "is no name of a host"),
            ("a;b", "is no name of a host"),
            ("a:0", "no number of nodes from 1 to 256"),
            ("a:x", "no number of nodes"),
            ("n[3-1]", "its brackets make no sense"),
            ("n[1", "its brackets make no sense"),
            ("n]", "its brackets make no sense"),
            ("n[1-999999]", "its brackets make no sense"),
        ] {
            let refusal = parse_hosts(text, 1).unwrap_err();
            assert!(refusal.to_string().contains(says), "{text}: {refusal}");
            assert_eq!(refusal.exit_code(), 2);
        }
    }

    #[test]
    fn files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "# nodes\nn1\nn2:2 slots=8\n\n n3 # the third\n").unwrap();
        let hosts = read_hostfile(&path, 1).unwrap();
        let seen: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.nodes)).collect();
        assert_eq!(seen, [("n1", 1), ("n2", 2), ("n3", 1)]);
        std::fs::write(&path, "n1\nn1\nn2\n").unwrap();
        assert!(read_hostfile(&path, 1).unwrap_err().to_string().contains("given twice"));
        let nodes = read_nodefile(&path, 1).unwrap();
        assert_eq!((nodes.len(), nodes[1].position), (2, 2));
        assert!(
            read_hostfile(&dir.path().join("none"), 1).unwrap_err().to_string().contains("could not read")
        );
    }

    #[test]
    fn a_name_and_its_full_form_are_one_host() {
        assert!(same_host("n1", "n1.example.org") && same_host("N1", "n1"));
        assert!(!same_host("n1", "n10") && !same_host("10.0.0.1", "10.0.0"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_a_refusal(text in "[a-z0-9\\[\\],:\\- ]{0,30}") {
            if let Ok(hosts) = parse_hosts(&text, 1) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= 2 * HOSTS_MAX);
                prop_assert!(hosts.iter().all(|host| !host.name.starts_with('-')));
            }
        }
    }
}
