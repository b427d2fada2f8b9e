//! Rounds, common networks, and what flows between hosts say of their links.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use bivouac_sysmap::{
    Address, Direction, Link, LinkEnd, LinkJudgement, MeasuredFlows, MeasuredHost, Network, SlowLink,
    SlowLinkLocation, common, fastest_first, rounds, spread,
};
use proptest::prelude::*;

fn host(name: &str, speed: Option<u64>) -> MeasuredHost {
    MeasuredHost {
        name: name.into(),
        address: "10.0.0.1".into(),
        interface: "eth0".into(),
        expected_bits: speed,
        sends_bits: None,
        receives_bits: None,
    }
}

/// What flows between hosts that send and receive so much, less a part that noise takes, in percent.
fn flows(sends: &[u64], receives: &[u64], noise: impl Fn(usize, usize) -> u64) -> MeasuredFlows {
    let mut flows = MeasuredFlows::new();
    for (from, out) in sends.iter().enumerate() {
        for (to, into) in receives.iter().enumerate().filter(|(to, _)| *to != from) {
            flows.insert((from, to), (out.min(into) * (100 - noise(from, to)) / 100, true));
        }
    }
    flows
}

fn names(slow: &[SlowLink]) -> Vec<String> {
    let name = |slow: &SlowLink| match &slow.link {
        SlowLinkLocation::Host { host, direction, .. } => format!("{host} {direction:?}"),
        SlowLinkLocation::Pair { from, to } => format!("{from}-{to}"),
        SlowLinkLocation::Switches { links } => format!("{links:?}"),
    };
    slow.iter().map(name).collect()
}

fn address(interface: &str, ip: &str, speed: Option<u64>) -> Address {
    Address { interface: interface.into(), ip: ip.parse().unwrap(), prefix: 24, speed_bits: speed }
}

proptest! {
    #[test]
    fn every_two_hosts_meet_once_and_nobody_twice_in_a_round(hosts in 0_usize..40) {
        let rounds = rounds(hosts);
        let mut met = BTreeSet::new();
        for round in &rounds {
            let players: Vec<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
            prop_assert_eq!(players.iter().collect::<BTreeSet<_>>().len(), players.len());
            prop_assert!(round.len() == hosts / 2);
            for (a, b) in round {
                prop_assert!(a < b && *b < hosts && met.insert((*a, *b)));
            }
        }
        prop_assert_eq!(met.len(), hosts * hosts.saturating_sub(1) / 2);
    }

    #[test]
    fn some_rounds_are_spread_over_all(all in 0_usize..60, most in 0_usize..60) {
        let chosen = spread((0..all).collect::<Vec<usize>>(), most);
        prop_assert_eq!(chosen.len(), all.min(most));
        let longest = chosen.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(1);
        prop_assert!(chosen.is_empty() || longest <= all.div_ceil(chosen.len()));
    }

    /// S529: one slow direction of one host is named, and nothing else, whatever noise below a fifth does.
    #[test]
    fn the_slow_link_is_named_and_no_other(
        hosts in 3_usize..20, seed in any::<u64>(), part in 1_u64..50, receives in any::<bool>(), known in any::<bool>(),
    ) {
        let slow = usize::try_from(seed).unwrap_or(7) % hosts;
        let (mut out, mut into) = (vec![1_000_000; hosts], vec![1_000_000; hosts]);
        if receives { into[slow] = 10_000 * part } else { out[slow] = 10_000 * part }
        let noise = |a: usize, b: usize| (seed >> ((a * 7 + b * 3) % 50)) % 20;
        let measured = flows(&out, &into, noise);
        let hosts: Vec<_> = (0..hosts).map(|n| host(&format!("n{n}"), known.then_some(2_000_000))).collect();
        let judge = LinkJudgement { hosts: &hosts, network: None };
        let direction = if receives { Direction::Receives } else { Direction::Sends };
        prop_assert_eq!(names(&judge.slow(&measured)), [format!("n{slow} {direction:?}")]);
        prop_assert!(judge.doubtful(&measured).is_empty(), "all was seen alone");
        let busy: MeasuredFlows = measured.iter().map(|(pair, (bits, _))| (*pair, (*bits, false))).collect();
        prop_assert!(judge.slow(&busy).is_empty(), "what others may have disturbed proves nothing");
        let (from, to) = judge.doubtful(&busy)[0];
        prop_assert_eq!(if receives { to } else { from }, slow);
    }

    #[test]
    fn what_is_fast_comes_first_and_what_is_not_known_stays(speeds in proptest::collection::vec(proptest::option::of(0_u64..4), 0..12)) {
        let mut items: Vec<(usize, Option<u64>)> = speeds.iter().copied().enumerate().collect();
        fastest_first(&mut items, |(_, speed)| *speed);
        for (at, (number, speed)) in items.iter().enumerate() {
            prop_assert!(speed.is_some() || at == *number);
        }
        let known: Vec<(u64, std::cmp::Reverse<usize>)> =
            items.iter().filter_map(|(number, speed)| Some(((*speed)?, std::cmp::Reverse(*number)))).collect();
        prop_assert!(known.windows(2).all(|pair| pair[0] >= pair[1]));
    }
}

#[test]
fn slower_cards_are_no_slow_links() {
    let hosts = [host("a", Some(100)), host("b", Some(100)), host("c", Some(10)), host("d", Some(10))];
    let measured = flows(&[90, 90, 9, 9], &[90, 90, 9, 9], |_, _| 0);
    assert_eq!(names(&LinkJudgement { hosts: &hosts, network: None }.slow(&measured)), Vec::<String>::new());
    let measured = flows(&[90, 90, 4, 9], &[90, 90, 9, 9], |_, _| 0);
    let slow = LinkJudgement { hosts: &hosts, network: None }.slow(&measured);
    assert_eq!(names(&slow), ["c Sends"]);
    assert_eq!((slow[0].expected_bits, slow[0].measured_bits, slow[0].peers_bits), (Some(10), 4, 9));
    assert_eq!(slow[0].below_percent, 56);
}

#[test]
fn of_two_hosts_the_pair_is_named() {
    let hosts = [host("a", None), host("b", None)];
    let judge = LinkJudgement { hosts: &hosts, network: None };
    let measured = MeasuredFlows::from([((0, 1), (100, true)), ((1, 0), (50, true))]);
    assert_eq!(names(&judge.slow(&measured)), ["b-a"]);
    assert!(judge.slow(&MeasuredFlows::from([((0, 1), (100, true)), ((1, 0), (95, true))])).is_empty());
}

#[test]
fn what_slow_pairs_have_in_common_is_a_link_of_switches() {
    let link = |from: LinkEnd, to: &str, speed| Link {
        from,
        from_port: None,
        to: LinkEnd::Switch(to.into()),
        to_port: None,
        speed_bits: Some(speed),
    };
    let mut links = vec![];
    for (leaf, hosts) in [("l1", ["a", "b"]), ("l2", ["c", "d"]), ("l3", ["e", "f"])] {
        links.extend(hosts.map(|host| link(LinkEnd::Host(host.into()), leaf, 100)));
        links.push(link(LinkEnd::Switch(leaf.into()), "spine", 400));
    }
    let network = Network { name: "test".into(), links, ..Network::default() };
    let hosts: Vec<_> = ["a", "b", "c", "d", "e", "f"].iter().map(|name| host(name, Some(100))).collect();
    let mut measured = flows(&[95; 6], &[95; 6], |_, _| 0);
    for ((from, to), (bits, _)) in &mut measured {
        if *from < 2 && *to > 1 {
            *bits = 20;
        }
    }
    let slow = LinkJudgement { hosts: &hosts, network: Some(&network) }.slow(&measured);
    assert_eq!(names(&slow), [r#"[("l1", "spine")]"#]);
    assert_eq!((slow[0].expected_bits, slow[0].measured_bits, slow[0].below_percent), (Some(400), 20, 79));
    // One pair alone is a pair.
    let mut measured = flows(&[95; 6], &[95; 6], |_, _| 0);
    measured.insert((1, 3), (20, true));
    assert_eq!(names(&LinkJudgement { hosts: &hosts, network: Some(&network) }.slow(&measured)), ["b-d"]);
}

#[test]
fn the_fastest_network_that_all_have_is_chosen() {
    let host = |n: u8, fast: bool| {
        let mut all = vec![
            address("lo", "127.0.0.1", None),
            address("eth0", &format!("192.168.1.{n}"), Some(1)),
            address("docker0", "172.17.0.1", Some(1000)),
        ];
        if fast {
            all.push(address("ib0", &format!("10.0.0.{n}"), Some(100)));
        }
        all
    };
    assert_eq!(common(&[host(1, true), host(2, true), host(3, true)]), Some(vec![3, 3, 3]));
    assert_eq!(common(&[host(1, true), host(2, false)]), Some(vec![1, 1]));
    // Nobody says how fast: the first one that all have.
    let silent = |n| host(n, true).into_iter().map(|a| Address { speed_bits: None, ..a }).collect();
    assert_eq!(common(&[silent(1), silent(2)]), Some(vec![1, 1]));
    assert_eq!(common(&[host(1, true), vec![address("eth0", "10.9.9.9", None)]]), None);
    assert_eq!(common(&[]), None);
}
