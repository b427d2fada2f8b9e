//! Measured bandwidth between hosts, and the links that are slow.

use serde::{Deserialize, Serialize};

use crate::bits::BandwidthRange;

/// Measured bandwidth between hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Duration of one transfer, in milliseconds.
    pub step_ms: u64,
    /// Connections of one transfer.
    pub streams: usize,
    /// Rounds of disjoint pairs that were made.
    pub rounds: usize,
    /// Rounds in which every pair would have met.
    pub rounds_of_all: usize,
    /// The hosts, with the best that each did.
    pub hosts: Vec<MeasuredHost>,
    /// Bandwidth of each transfer.
    pub transfers: Vec<Transfer>,
    /// Bandwidth while all sent at the same time.
    pub together: Option<BisectionMeasurement>,
    /// Links that are slow.
    pub slow: Vec<SlowLink>,
}

impl Measured {
    /// Returns all names of hosts in it.
    pub(crate) fn hosts_named(&mut self) -> impl Iterator<Item = &mut String> {
        let halves =
            self.together.iter_mut().flat_map(|both| both.half.iter_mut().chain(&mut both.other_half));
        let ends = self.transfers.iter_mut().flat_map(|transfer| [&mut transfer.from, &mut transfer.to]);
        let slow = self.slow.iter_mut().flat_map(|slow| match &mut slow.link {
            SlowLinkLocation::Host { host, .. } => vec![host],
            SlowLinkLocation::Pair { from, to } => vec![from, to],
            SlowLinkLocation::Switches { .. } => Vec::new(),
        });
        self.hosts.iter_mut().map(|host| &mut host.name).chain(ends).chain(halves).chain(slow)
    }
}

/// Traffic of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredHost {
    /// Its name.
    pub name: String,
    /// The address that was sent to.
    pub address: String,
    /// The interface of that address.
    pub interface: String,
    /// Bits per second of the interface, as the map has them.
    pub expected_bits: Option<u64>,
    /// The best that it sent to anybody.
    pub sends_bits: Option<u64>,
    /// The best that it received from anybody.
    pub receives_bits: Option<u64>,
}

/// A transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// Bits per second that were received.
    pub bits: u64,
    /// Bits per second that can flow by the map, at most.
    pub expected_bits: Option<u64>,
    /// True if nobody else sent meanwhile.
    pub alone: bool,
}

/// All hosts of one half sent to one of the other half each, and those back, at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BisectionMeasurement {
    /// One half.
    pub half: Vec<String>,
    /// The other half.
    pub other_half: Vec<String>,
    /// Bits per second from the first half to the other one.
    pub there_bits: u64,
    /// And back.
    pub back_bits: u64,
    /// Bits per second that can flow between these halves by the map, in each direction.
    pub expected: BandwidthRange,
}

/// Direction of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the host.
    Sends,
    /// To the host.
    Receives,
}

/// The part that is slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum SlowLinkLocation {
    /// The link of a host, in one direction.
    Host {
        /// The host.
        host: String,
        /// Its interface.
        interface: String,
        /// The direction.
        direction: Direction,
    },
    /// The connection of two hosts, though each is good with others.
    Pair {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },
    /// One of these links between switches: each is on the paths of the same slow pairs.
    Switches {
        /// Pairs of switches, by their ids.
        links: Vec<(String, String)>,
    },
}

/// A link that is slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowLink {
    /// The location.
    pub link: SlowLinkLocation,
    /// Bits per second by the map.
    pub expected_bits: Option<u64>,
    /// Bits per second that it carried at best.
    pub measured_bits: u64,
    /// Bits per second that its peers carry.
    pub peers_bits: u64,
    /// Percent by which it is below its peers.
    pub below_percent: u64,
}
