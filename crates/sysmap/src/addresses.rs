//! By which of their addresses hosts reach each other best.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The interface that it is of.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// Number of leading bits that are those of its network.
    pub prefix: u8,
    /// Bits per second of the interface, if it says so.
    pub speed_bits: Option<u64>,
}

impl Address {
    /// Returns the leading bits, by which addresses of one network are known.
    #[must_use]
    pub fn network(&self) -> (u8, u128) {
        let (bits, number) = match self.ip {
            IpAddr::V4(ip) => (32, u128::from(ip.to_bits())),
            IpAddr::V6(ip) => (128, ip.to_bits()),
        };
        let prefix = self.prefix.min(bits);
        // A prefix of 0 shifts by all bits, which `>>` refuses.
        (prefix, number.checked_shr(u32::from(bits - prefix)).unwrap_or(0))
    }

    fn is_of(&self, other: &Address) -> bool {
        self.ip.is_ipv4() == other.ip.is_ipv4() && self.network() == other.network()
    }

    fn leads_elsewhere(&self) -> bool {
        !self.ip.is_loopback() && !self.ip.is_unspecified()
    }
}

/// Returns for each host its address in the fastest network that all have in common, by the slowest interface; of
/// several equal ones, or of unknown speed, the first of the first host. An address that two hosts have, as of bridges
/// of containers, joins no network. `None` if they have no network in common.
#[must_use]
pub fn common(hosts: &[Vec<Address>]) -> Option<Vec<usize>> {
    let (first, others) = hosts.split_first()?;
    let of = |candidate: &Address| -> Option<(Option<u64>, Vec<usize>)> {
        let own = first.iter().position(|address| address == candidate)?;
        let mut chosen = vec![own];
        let mut taken = vec![candidate];
        for host in others {
            let is_it = |address: &Address| address.is_of(candidate) && address.leads_elsewhere();
            let at = host.iter().position(is_it)?;
            taken.extend(host.get(at));
            chosen.push(at);
        }
        let mut ips: Vec<IpAddr> = taken.iter().map(|address| address.ip).collect();
        ips.sort_unstable();
        ips.dedup();
        // One that is unknown may be the slowest: then the speed of the network is unknown, too.
        let slowest: Option<Vec<u64>> = taken.iter().map(|address| address.speed_bits).collect();
        (ips.len() == hosts.len()).then(|| (slowest.and_then(|all| all.into_iter().min()), chosen))
    };
    let mut found: Vec<_> = first.iter().filter(|address| address.leads_elsewhere()).filter_map(of).collect();
    fastest_first(&mut found, |(speed, _)| *speed);
    found.into_iter().next().map(|(_, chosen)| chosen)
}

/// Orders by speed, the fastest first. What is not known is neither fast nor slow: such items keep their places, and so
/// do those that are as fast as each other.
pub fn fastest_first<T>(items: &mut Vec<T>, speed: impl Fn(&T) -> Option<u64>) {
    let is_known: Vec<bool> = items.iter().map(|item| speed(item).is_some()).collect();
    let (mut known, unknown): (Vec<T>, Vec<T>) = items.drain(..).partition(|item| speed(item).is_some());
    known.sort_by_key(|item| std::cmp::Reverse(speed(item)));
    let (mut known, mut unknown) = (known.into_iter(), unknown.into_iter());
    items.extend(
        is_known.into_iter().filter_map(|is_known| if is_known { known.next() } else { unknown.next() }),
    );
}
