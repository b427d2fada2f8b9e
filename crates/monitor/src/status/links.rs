//! Links of a formation as its nodes have seen them, and the gateway that other formations link to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bivouac_client::{LinkStatus, NodeStatus};
use bivouac_launch::GatewayState;
use bivouac_link::{KeyFigures, LinkKey, LinkSource, LinkTarget, OWN_KEY_ID};
use bivouac_source::SourceResult;
use bivouac_types::FormationId;
use bivouac_types::units::{format_size, format_utc};
use serde::Serialize;

/// Time that the gateway may take to answer.
const GATEWAY_WAIT: Duration = Duration::from_secs(2);

/// A link, of all nodes that use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// Address of the gateway.
    pub gateway: String,
    /// Nodes that have used it since they were started.
    pub nodes: usize,
    /// Number of them that are connected.
    pub nodes_up: usize,
    /// The shortest round trip of late, in microseconds.
    pub round_trip_us: u64,
    /// The greatest rate of a node of late, in bytes per second.
    pub rate: u64,
    /// Connections that broke.
    pub breaks: u64,
    /// Time of the last error of a connection, in milliseconds since 1970.
    pub error_unix_ms: Option<u64>,
    /// The text of the last error.
    pub last_error: Option<String>,
}

impl LinkReport {
    /// Returns the links that nodes have told of, by name.
    pub fn of<'a>(statuses: impl Iterator<Item = &'a NodeStatus>) -> Vec<LinkReport> {
        let mut all: BTreeMap<(&str, &str), LinkReport> = BTreeMap::new();
        for link in statuses.flat_map(|status| &status.links) {
            all.entry((&link.name[..], &link.address[..])).or_insert_with(|| LinkReport::new(link)).add(link);
        }
        all.into_values().collect()
    }

    /// Creates a report of no node yet.
    fn new(link: &LinkStatus) -> LinkReport {
        LinkReport {
            name: link.name.clone(),
            gateway: link.address.clone(),
            nodes: 0,
            nodes_up: 0,
            round_trip_us: link.round_trip_us,
            rate: 0,
            breaks: 0,
            error_unix_ms: None,
            last_error: None,
        }
    }

    fn add(&mut self, link: &LinkStatus) {
        self.nodes += 1;
        self.nodes_up += usize::from(link.is_up);
        self.round_trip_us = self.round_trip_us.min(link.round_trip_us);
        self.rate = self.rate.max(link.rate);
        // Figures of nodes, which may say anything.
        self.breaks = self.breaks.saturating_add(link.breaks);
        // 0 says that there was no error, and `None` is less than any time.
        let error = Some(link.error_unix_ms).filter(|at| *at > 0);
        if error > self.error_unix_ms {
            (self.error_unix_ms, self.last_error) = (error, Some(link.last_error.clone()));
        }
    }

    /// Returns the state in words, without the name.
    #[must_use]
    pub fn state(&self) -> String {
        let mut text = match self.nodes_up {
            0 => "not connected".to_owned(),
            up if up == self.nodes => "connected".to_owned(),
            up => format!("connected from {up} of {} nodes", self.nodes),
        };
        text.push_str(&format!(", {:.1} ms", self.round_trip_us as f64 / 1000.0));
        if self.rate > 0 {
            text.push_str(&format!(", {}/s", format_size(self.rate)));
        }
        text.push_str(&format!(", {} connections broke", self.breaks));
        text
    }

    /// Returns the last error and its time.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let at = format_utc(self.error_unix_ms? / 1000);
        self.last_error.as_ref().map(|error| format!("{at}Z: {error}"))
    }

    pub(super) fn line(&self) -> String {
        let error = self.error().map_or_else(String::new, |error| format!("; {error}"));
        format!("link {} to {}: {}{error}\n", self.name, self.gateway, self.state())
    }
}

/// The gateway of links of this host.
#[derive(Debug, Serialize)]
pub struct GatewayReport {
    /// Its address.
    pub address: Option<SocketAddr>,
    /// The state, with the same words as for a node.
    pub state: &'static str,
    /// Its process.
    pub pid: Option<u32>,
    /// Processes of it that died.
    pub deaths: u64,
    /// End of the last one.
    pub message: Option<String>,
    /// Keys that were used since it was started, if it answers.
    pub keys: Option<Vec<KeyReport>>,
}

/// Figures of a key.
#[derive(Debug, Serialize)]
pub struct KeyReport {
    /// Its id.
    pub id: String,
    /// Connections that are open.
    pub connections: u64,
    /// Bytes of content that came.
    pub bytes_in: u64,
    /// Bytes of content that were sent.
    pub bytes_out: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The last failure; empty if there was none.
    pub last_error: String,
}

impl GatewayReport {
    pub(super) fn of(gateway: GatewayState, secret: Option<[u8; 32]>) -> GatewayReport {
        let address = gateway.address;
        let keys = address.zip(secret).and_then(|(address, secret)| figures(address, &secret).ok());
        GatewayReport {
            address,
            state: gateway.life.name(),
            pid: gateway.process.map(|process| process.pid),
            deaths: gateway.deaths,
            message: gateway.message,
            keys: keys.map(|keys| keys.into_iter().map(KeyReport::of).collect()),
        }
    }

    pub(super) fn text(&self) -> String {
        let address = self.address.map_or_else(|| "?".to_owned(), |address| address.to_string());
        let mut text = format!("gateway of links at {address}: {}", self.state);
        if self.deaths > 0 {
            text.push_str(&format!(", died {} times", self.deaths));
        }
        if let Some(message) = self.message.as_ref().filter(|_| self.state != "ready") {
            text.push_str(&format!(": {message}"));
        }
        match &self.keys {
            None if self.state == "ready" => text.push_str(", does not answer"),
            Some(keys) => {
                let connections: u64 = keys.iter().map(|key| key.connections).sum();
                text.push_str(&format!(", {connections} connections with {} keys", keys.len()));
            }
            None => {}
        }
        text.push('\n');
        self.keys.iter().flatten().for_each(|key| text.push_str(&key.line()));
        text
    }
}

impl KeyReport {
    fn of(KeyFigures { id, usage }: KeyFigures) -> KeyReport {
        KeyReport {
            id,
            connections: usage.streams,
            bytes_in: usage.bytes_in,
            bytes_out: usage.bytes_out,
            requests: usage.requests,
            errors: usage.errors,
            last_error: usage.last_error,
        }
    }

    fn line(&self) -> String {
        let (came, sent) = (format_size(self.bytes_in), format_size(self.bytes_out));
        let mut line = format!(
            "  key {}: {} connections, {} requests, {came} came, {sent} sent",
            self.id, self.connections, self.requests
        );
        if self.errors > 0 {
            line.push_str(&format!(", {} errors, the last one: {}", self.errors, self.last_error));
        }
        line + "\n"
    }
}

fn figures(address: SocketAddr, secret: &[u8; 32]) -> SourceResult<Vec<KeyFigures>> {
    let target = LinkTarget {
        address: address.to_string(),
        key: LinkKey::derive(secret, OWN_KEY_ID),
        formation: FormationId([0; 16]),
        owner: (0, 0),
        asker: None,
        wait: GATEWAY_WAIT,
    };
    let mut keys = LinkSource::later(target)?.key_figures()?;
    keys.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, is_up: bool, breaks: u64, error_unix_ms: u64) -> LinkStatus {
        LinkStatus {
            name: name.into(),
            address: "far:7000".into(),
            is_up,
            round_trip_us: 20_100 + breaks,
            rate: 3 << 20,
            breaks,
            error_unix_ms,
            last_error: format!("error {error_unix_ms}"),
        }
    }

    #[test]
    fn a_link_is_told_of_once_with_its_last_error() {
        let mut far = LinkReport::new(&link("far", true, 0, 0));
        let links = [link("far", true, 0, 0), link("far", false, 2, 1000), link("far", true, 1, 5000)];
        links.iter().for_each(|link| far.add(link));
        assert_eq!((far.nodes, far.nodes_up, far.breaks, far.round_trip_us), (3, 2, 3, 20_100));
        let line = far.line();
        assert!(
            line.starts_with("link far to far:7000: connected from 2 of 3 nodes, 20.1 ms, 3 MiB/s"),
            "{line}"
        );
        assert!(line.contains("3 connections broke; 1970-01-01") && line.ends_with("error 5000\n"), "{line}");
        let mut other = LinkReport::new(&link("other", true, 0, 0));
        other.add(&link("other", true, 0, 0));
        assert_eq!(
            other.line(),
            "link other to far:7000: connected, 20.1 ms, 3 MiB/s, 0 connections broke\n"
        );
    }
}
