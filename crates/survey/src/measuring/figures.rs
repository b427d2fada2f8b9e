//! Figures computed from the measured flows.

use bivouac_sysmap::{
    BandwidthRange, BisectionMeasurement, Direction, InterfaceKind, LinkJudgement, Map, Measured,
    MeasuredHost, Network, Transfer, best, between_halves, switch_of,
};

use super::contest::{Outcome, STEP_MS, STREAMS};

/// Returns the network of the map that has links of most of these hosts, as far as it is one of the kind that is
/// measured.
pub fn network_of<'a>(map: &'a Map, known: &[MeasuredHost]) -> Option<&'a Network> {
    let is_fabric = known.iter().all(|one| {
        let host = map.hosts.iter().find(|host| host.name == one.name);
        let interface =
            host.and_then(|host| host.interfaces.iter().find(|known| known.name == one.interface));
        interface.is_some_and(|interface| interface.kind == Some(InterfaceKind::InfiniBand))
    });
    let has_all = |network: &&Network| known.iter().all(|one| switch_of(network, &one.name).is_some());
    let is_kind = |network: &&Network| is_fabric == (network.name == "infiniband") || network.name == "slurm";
    map.networks.iter().filter(is_kind).find(has_all)
}

/// Pairs over the middle: hosts of one switch stay in one half, as far as that is possible.
pub fn halves(network: Option<&Network>, known: &[MeasuredHost]) -> Vec<(usize, usize)> {
    let switch = |host: usize| {
        let name = known.get(host).map_or("", |host| host.name.as_str());
        network.and_then(|network| switch_of(network, name))
    };
    let mut order: Vec<usize> = (0..known.len()).collect();
    // By switch, so that a cut in the middle goes through the wires between switches.
    order.sort_by_key(|host| switch(*host));
    let half = order.len() / 2;
    let (first, second) = order.split_at(half);
    assert!(first.len() <= second.len(), "a host of the first half has no partner");
    first.iter().copied().zip(second.iter().copied()).collect()
}

/// Returns the figures of hosts, pairs and halves, with what is slow.
pub fn measured(
    network: Option<&Network>,
    mut hosts: Vec<MeasuredHost>,
    halves: &[(usize, usize)],
    outcome: Outcome,
) -> Measured {
    let flows = &outcome.flows;
    let slow = LinkJudgement { hosts: &hosts, network }.slow(flows);
    let name = |host: usize| hosts.get(host).map_or_else(String::new, |host| host.name.clone());
    let speed = |host: usize| hosts.get(host).and_then(|host| host.expected_bits);
    let expected = |from: usize, to: usize| {
        let (first, second) = (name(from).min(name(to)), name(from).max(name(to)));
        let pairs = network.and_then(|network| network.bandwidth.as_ref()).map(|known| &known.pairs);
        let by_map = pairs.into_iter().flatten().find(|pair| {
            (pair.from.as_str().min(&pair.to), pair.from.as_str().max(&pair.to)) == (&first, &second)
        });
        let by_map = by_map.and_then(|pair| pair.bits.high);
        [by_map, speed(from), speed(to)].into_iter().flatten().min()
    };
    let transfers = flows.iter().map(|((from, to), (bits, alone))| Transfer {
        from: name(*from),
        to: name(*to),
        bits: *bits,
        expected_bits: expected(*from, *to),
        alone: *alone,
    });
    let transfers = transfers.collect();
    let together = outcome.together.map(|[there_bits, back_bits]| {
        let (half, other_half): (Vec<String>, Vec<String>) =
            halves.iter().map(|(a, b)| (name(*a), name(*b))).unzip();
        let sum = |side: fn(&(usize, usize)) -> usize| {
            halves.iter().try_fold(0, |sum: u64, pair| Some(sum.saturating_add(speed(side(pair))?)))
        };
        let interfaces = sum(|pair| pair.0).zip(sum(|pair| pair.1)).map(|(a, b)| a.min(b));
        let wires = network
            .map_or_else(BandwidthRange::default, |network| between_halves(network, &half, &other_half));
        let high = interfaces.into_iter().chain(wires.high).min();
        let low = if network.is_some() { wires.low.min(interfaces.unwrap_or(0)) } else { 0 };
        BisectionMeasurement {
            half,
            other_half,
            there_bits,
            back_bits,
            expected: BandwidthRange { low, high },
        }
    });
    for (at, host) in hosts.iter_mut().enumerate() {
        host.sends_bits = best(flows, at, Direction::Sends);
        host.receives_bits = best(flows, at, Direction::Receives);
    }
    let (rounds, rounds_of_all) = (outcome.rounds, outcome.rounds_of_all);
    Measured { step_ms: STEP_MS, streams: STREAMS, rounds, rounds_of_all, hosts, transfers, together, slow }
}

/// Remarks on what the figures do not show by themselves.
pub fn remarks(measured: &Measured) -> Vec<String> {
    let mut remarks = Vec::new();
    if measured.rounds < measured.rounds_of_all {
        let (made, all) = (measured.rounds, measured.rounds_of_all);
        remarks.push(format!(
            "{made} of {all} rounds fitted into the time, so not every pair has met; see --measure-time"
        ));
    }
    if measured.hosts.len() == 2 {
        remarks.push("two hosts have no peers: only their two directions can be compared".into());
    }
    remarks
}
