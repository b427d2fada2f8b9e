//! Which address of a host the others reach it at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use if_addrs::IfAddr;
use serde::{Deserialize, Serialize};

use crate::{Kind, LaunchError, LaunchResult};

/// The network that a formation is to use: `10.0.0.0/16`, or the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Addresses with these leading bits.
    Prefix(IpAddr, u8),
    /// Addresses of the interface with this name.
    Interface(String),
}

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub interface: String,
    pub ip: IpAddr,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let Some((address, bits)) = text.split_once('/') else {
            let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@');
            return match text.parse() {
                Ok(ip) => Ok(Network::Prefix(ip, width(ip))),
                Err(_) if !text.is_empty() && text.chars().all(name) => Ok(Network::Interface(text.into())),
                Err(_) => {
                    Err(format!("'{text}' is no network; write 10.1.0.0/16 or the name of an interface"))
                }
            };
        };
        let bad = || format!("'{text}' is no network; write for instance 10.1.0.0/16");
        let ip: IpAddr = address.parse().map_err(|_| bad())?;
        let bits = bits.parse().ok().filter(|bits| *bits <= width(ip)).ok_or_else(bad)?;
        Ok(Network::Prefix(ip, bits))
    }
}

impl Network {
    fn has(&self, local: &Local) -> bool {
        match self {
            Network::Interface(name) => *name == local.interface,
            Network::Prefix(ip, bits) => {
                let mask = u128::MAX.checked_shl(u32::from(width(*ip) - bits)).unwrap_or(0);
                ip.is_ipv4() == local.ip.is_ipv4() && number(*ip) & mask == number(local.ip) & mask
            }
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Network::Prefix(ip, bits) => write!(f, "{ip}/{bits}"),
            Network::Interface(name) => f.write_str(name),
        }
    }
}

/// The addresses of this host that others may reach it at, the likeliest first: those of `network` if it is
/// given; else all, those that lead nowhere but here last.
///
/// # Errors
/// That there is none, with those that there are.
pub(crate) fn addresses(network: Option<&Network>) -> LaunchResult<Vec<IpAddr>> {
    let all = local_addresses()?;
    chosen(&all, network).ok_or_else(|| {
        let object = network.map_or_else(|| "this host".into(), |network| format!("--network {network}"));
        let have: Vec<String> =
            all.iter().map(|local| format!("{} ({})", local.ip, local.interface)).collect();
        let cause = format!("no address of this host is of it; there are {}", have.join(", "));
        LaunchError::new(Kind::Refused, object, cause, "name one of their networks")
    })
}

fn chosen(all: &[Local], network: Option<&Network>) -> Option<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> = all
        .iter()
        .filter(|local| network.is_none_or(|network| network.has(local)))
        .map(|local| local.ip)
        .collect();
    // Stable: within a class the order of the system, which is that of its interfaces.
    found.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    (!found.is_empty()).then_some(found)
}

fn local_addresses() -> LaunchResult<Vec<Local>> {
    let found = if_addrs::get_if_addrs().map_err(|e| LaunchError::system("addresses of this host", e))?;
    let local = |interface: if_addrs::Interface| {
        let ip = match &interface.addr {
            IfAddr::V4(address) => IpAddr::V4(address.ip),
            IfAddr::V6(address) => IpAddr::V6(address.ip),
        };
        (!is_link_local(ip)).then_some(Local { interface: interface.name, ip })
    };
    Ok(found.into_iter().filter_map(local).collect())
}

/// Such an address means something on one cable only.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { Ipv4Addr::BITS as u8 } else { Ipv6Addr::BITS as u8 }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<Local> {
        let local =
            |interface: &str, ip: &str| Local { interface: interface.into(), ip: ip.parse().unwrap() };
        vec![
            local("lo", "127.0.0.1"),
            local("eth0", "192.168.1.7"),
            local("ib0", "10.1.2.3"),
            local("ib0", "fd00::7"),
        ]
    }

    fn choose(network: Option<&str>) -> Option<Vec<String>> {
        let network: Option<Network> = network.map(|text| text.parse().unwrap());
        Some(chosen(&host(), network.as_ref())?.iter().map(IpAddr::to_string).collect())
    }

    #[test]
    fn the_network_is_chosen_by_number_or_name() {
        assert_eq!(choose(Some("10.1.0.0/16")).unwrap(), ["10.1.2.3"]);
        assert_eq!(choose(Some("ib0")).unwrap(), ["10.1.2.3", "fd00::7"]);
        assert_eq!(choose(Some("fd00::/8")).unwrap(), ["fd00::7"]);
        assert_eq!(choose(Some("192.168.1.7")).unwrap(), ["192.168.1.7"]);
        assert_eq!(choose(Some("0.0.0.0/0")).unwrap().len(), 3);
        assert_eq!(choose(Some("172.16.0.0/12")), None);
        assert_eq!(choose(None).unwrap(), ["192.168.1.7", "10.1.2.3", "fd00::7", "127.0.0.1"]);
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "a b", "x/8", "::/129"] {
            assert!(text.parse::<Network>().unwrap_err().contains("is no network"), "{text}");
        }
    }

    #[test]
    fn this_host_has_addresses() {
        assert!(!addresses(None).unwrap().is_empty());
        let refusal = addresses(Some(&"203.0.113.0/24".parse().unwrap())).unwrap_err().to_string();
        assert!(refusal.starts_with("--network 203.0.113.0/24: no address of this host"), "{refusal}");
    }
}
