//! Measurements, in the form for people.

use bivouac_sysmap::{
    BandwidthRange, BisectionMeasurement, Direction, Measured, MeasuredHost, SLOW_BELOW, SlowLink,
    SlowLinkLocation,
};
use bivouac_types::units::format_count;

use super::tables::{bits, known, speed};
use crate::table::layout;

/// Up to so many hosts a half is named host by host.
const NAMED_MAX: usize = 4;

/// Returns the figures of hosts and halves, and what is slow.
pub fn measured_text(measured: &Measured) -> String {
    let Measured { step_ms, streams, rounds, rounds_of_all, hosts, together, slow, .. } = measured;
    let mut text = format!(
        "measured in {rounds} of {}, {step_ms} ms and {} for each transfer\n",
        format_count(*rounds_of_all as u64, "round"),
        format_count(*streams as u64, "connection")
    );
    text.push_str(&table(hosts));
    text.extend(together.as_ref().map(all_together));
    if slow.is_empty() {
        let below = 100.0 * (1.0 - SLOW_BELOW);
        text.push_str(&format!("no link is slow: none is {below:.0}% below its peers\n"));
    }
    slow.iter().for_each(|link| text.push_str(&slow_text(link)));
    text
}

fn table(hosts: &[MeasuredHost]) -> String {
    let rate = |bits: Option<u64>| known(bits, |bits| speed(bits as f64));
    let row = |host: &MeasuredHost| {
        let MeasuredHost { name, address, interface, expected_bits, sends_bits, receives_bits } = host;
        let (name, interface, address) = (name.clone(), interface.clone(), address.clone());
        vec![name, interface, address, rate(*expected_bits), rate(*sends_bits), rate(*receives_bits)]
    };
    let rows: Vec<Vec<String>> = hosts.iter().map(row).collect();
    layout(&["HOST", "INTERFACE", "ADDRESS", "EXPECTED", "SENDS", "RECEIVES"], &[3, 4, 5], &rows)
}

fn all_together(together: &BisectionMeasurement) -> String {
    let BisectionMeasurement { half, other_half, there_bits, back_bits, expected } = together;
    let names = |half: &[String]| {
        if half.len() > NAMED_MAX { format_count(half.len() as u64, "host") } else { half.join(",") }
    };
    let expected = match expected {
        BandwidthRange { low: 0, high: None } => String::new(),
        BandwidthRange { low: 0, high: Some(high) } => {
            format!("; by the map at most {}", speed(*high as f64))
        }
        known => format!("; by the map {}", bits(*known)),
    };
    format!(
        "all at once: {} to {} {}, back {}{expected}\n",
        names(half),
        names(other_half),
        speed(*there_bits as f64),
        speed(*back_bits as f64)
    )
}

/// Returns a sentence as `slow: n3 (eth0) sends 95 Mbit/s, 90% below its peers, which have 940 Mbit/s; by the map 1
/// Gbit/s`.
fn slow_text(slow: &SlowLink) -> String {
    let SlowLink { link, expected_bits, measured_bits, peers_bits, below_percent } = slow;
    let (what, peers) = match link {
        SlowLinkLocation::Host { host, interface, direction } => {
            let verb = if *direction == Direction::Sends { "sends" } else { "receives" };
            (format!("{host} ({interface}) {verb}"), "its peers, which have")
        }
        SlowLinkLocation::Pair { from, to } => (format!("from {from} to {to} flow"), "what flows otherwise,"),
        SlowLinkLocation::Switches { links } => {
            let links: Vec<String> = links.iter().map(|(from, to)| format!("{from} to {to}")).collect();
            (format!("between switches, {}, flow", links.join(" or ")), "what flows otherwise,")
        }
    };
    let (measured, others) = (speed(*measured_bits as f64), speed(*peers_bits as f64));
    let expected =
        expected_bits.map_or_else(String::new, |bits| format!("; by the map {}", speed(bits as f64)));
    format!("slow: {what} {measured}, {below_percent}% below {peers} {others}{expected}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_is_named_with_its_figures() {
        let link = SlowLinkLocation::Host {
            host: "n3".into(),
            interface: "eth0".into(),
            direction: Direction::Sends,
        };
        let slow = SlowLink {
            link,
            expected_bits: Some(1_000_000_000),
            measured_bits: 95_000_000,
            peers_bits: 940_000_000,
            below_percent: 90,
        };
        let says = "slow: n3 (eth0) sends 95 Mbit/s, 90% below its peers, which have 940 Mbit/s; by the map 1 Gbit/s\n";
        assert_eq!(slow_text(&slow), says);
        let pair = SlowLinkLocation::Pair { from: "a".into(), to: "b".into() };
        let text = slow_text(&SlowLink { link: pair, expected_bits: None, ..slow.clone() });
        assert!(
            text.starts_with("slow: from a to b flow 95 Mbit/s, 90% below what flows otherwise, 940"),
            "{text}"
        );
        let measured = Measured { slow: vec![slow], ..Measured::default() };
        assert!(!measured_text(&measured).contains("no link is slow"));
        assert!(measured_text(&Measured::default()).contains("no link is slow: none is 25% below its peers"));
    }
}
