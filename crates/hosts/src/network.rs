//! Choice of the address of a host that the others reach it at.

use std::net::IpAddr;
use std::path::Path;

use bivouac_extract::{LocalMachine, interfaces};
use bivouac_launch::{Kind, LaunchError, LaunchResult, Network};
use bivouac_sysmap::{Address, Interface, InterfaceKind, fastest_first};
use if_addrs::IfAddr;

/// Returns the addresses of this host that others may reach it at, the likeliest first: those of `network` if it is
/// given; else all, those that lead nowhere but here last. What is faster by what interfaces say of themselves comes
/// first.
///
/// # Errors
/// That there is none, with those that there are.
pub fn local_addresses(network: Option<&Network>) -> LaunchResult<Vec<Address>> {
    let all = all_addresses()?;
    chosen(&all, network).ok_or_else(|| {
        let object = network.map_or_else(|| "this host".into(), |network| format!("--network {network}"));
        let have: Vec<String> =
            all.iter().map(|local| format!("{} ({})", local.ip, local.interface)).collect();
        let cause = format!("no address of this host is of it; there are {}", have.join(", "));
        LaunchError::new(Kind::Refused, object, cause, "name one of their networks")
    })
}

/// Returns the addresses of interfaces without what is known of them.
pub(crate) fn addresses(network: Option<&Network>) -> LaunchResult<Vec<IpAddr>> {
    Ok(local_addresses(network)?.into_iter().map(|address| address.ip).collect())
}

fn chosen(all: &[Address], network: Option<&Network>) -> Option<Vec<Address>> {
    let wanted = |local: &&Address| network.is_none_or(|network| network.has(local));
    let mut found = Vec::new();
    for (loopback, six) in [(false, false), (false, true), (true, false), (true, true)] {
        let is_of = |local: &&Address| (local.ip.is_loopback(), local.ip.is_ipv6()) == (loopback, six);
        let mut class: Vec<Address> = all.iter().filter(wanted).filter(is_of).cloned().collect();
        // Those that do not say how fast they are keep the order of the system, which is that of its interfaces.
        fastest_first(&mut class, |local| local.speed_bits);
        found.append(&mut class);
    }
    (!found.is_empty()).then_some(found)
}

fn all_addresses() -> LaunchResult<Vec<Address>> {
    let found = if_addrs::get_if_addrs().map_err(|e| LaunchError::system("addresses of this host", e))?;
    // Only files are read: no program is started for it.
    let known = interfaces(&LocalMachine::new(Path::new("/"), &|_| None));
    let local = |interface: if_addrs::Interface| {
        let (ip, prefix) = match &interface.addr {
            IfAddr::V4(address) => (IpAddr::V4(address.ip), address.prefixlen),
            IfAddr::V6(address) => (IpAddr::V6(address.ip), address.prefixlen),
        };
        let speed_bits = speed_of(&known, &interface.name);
        (!is_link_local(ip)).then_some(Address { interface: interface.name, ip, prefix, speed_bits })
    };
    Ok(found.into_iter().filter_map(local).collect())
}

/// Returns the speed of an interface with a device behind it. What a bridge says is the speed of what is plugged into
/// it, which may be containers of this host, and nobody else reaches it by that.
fn speed_of(known: &[Interface], name: &str) -> Option<u64> {
    let has_device = |one: &&Interface| {
        matches!(one.kind, Some(InterfaceKind::Ethernet | InterfaceKind::InfiniBand)) && one.name == name
    };
    known.iter().find(has_device).and_then(|one| one.speed_bits)
}

/// Returns true for an address that is valid on one cable only.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: &str, ip: &str, speed_bits: Option<u64>) -> Address {
        Address { interface: interface.into(), ip: ip.parse().unwrap(), prefix: 24, speed_bits }
    }

    fn host(speeds: [Option<u64>; 2]) -> Vec<Address> {
        vec![
            address("lo", "127.0.0.1", None),
            address("eth0", "192.168.1.7", speeds[0]),
            address("ib0", "10.1.2.3", speeds[1]),
            address("ib0", "fd00::7", speeds[1]),
        ]
    }

    fn ips(found: Vec<Address>) -> Vec<String> {
        found.into_iter().map(|address| address.ip.to_string()).collect()
    }

    fn choose(network: Option<&str>) -> Option<Vec<String>> {
        let network: Option<Network> = network.map(|text| text.parse().unwrap());
        chosen(&host([None, None]), network.as_ref()).map(ips)
    }

    /// S538.
    #[test]
    fn the_fastest_interface_comes_first_where_they_say_how_fast_they_are() {
        let order = |speeds| ips(chosen(&host(speeds), None).unwrap());
        let by_system = ["192.168.1.7", "10.1.2.3", "fd00::7", "127.0.0.1"];
        assert_eq!(order([Some(1), Some(100)]), ["10.1.2.3", "192.168.1.7", "fd00::7", "127.0.0.1"]);
        for speeds in [[None, None], [Some(1), None], [None, Some(100)], [Some(5), Some(5)]] {
            assert_eq!(order(speeds), by_system, "{speeds:?}");
        }
        let network: Network = "eth0".parse().unwrap();
        assert_eq!(ips(chosen(&host([Some(1), Some(100)]), Some(&network)).unwrap()), ["192.168.1.7"]);
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
    fn what_a_bridge_says_is_no_speed() {
        let interface = |name: &str, kind| Interface {
            name: name.into(),
            kind: Some(kind),
            up: Some(true),
            speed_bits: Some(7),
            mtu: None,
            hardware_address: None,
            driver: None,
            address: None,
            numa: None,
        };
        let known =
            [interface("docker0", InterfaceKind::Virtual), interface("ib0", InterfaceKind::InfiniBand)];
        assert_eq!(["docker0", "ib0", "eth0"].map(|name| speed_of(&known, name)), [None, Some(7), None]);
    }

    #[test]
    fn this_host_has_addresses() {
        assert!(!addresses(None).unwrap().is_empty());
        let refusal = addresses(Some(&"203.0.113.0/24".parse().unwrap())).unwrap_err().to_string();
        assert!(refusal.starts_with("--network 203.0.113.0/24: no address of this host"), "{refusal}");
    }
}
