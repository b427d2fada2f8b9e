//! Daemons and the parts of their machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use bivouac_sysmap::{Disk, Host, Mount, NumaNode, Part, listed, nearest};
use proptest::prelude::*;

fn host(parts: u32) -> Host {
    let part = |id| NumaNode { id, processors: format!("{}-{}", id * 4, id * 4 + 3), ..NumaNode::default() };
    Host { numa: (0..parts).map(part).collect(), ..Host::default() }
}

fn disk(name: &str, numa: Option<u32>) -> Disk {
    Disk {
        name: name.into(),
        kind: None,
        size_bytes: None,
        model: None,
        queue_depth: None,
        scheduler: None,
        address: None,
        numa,
        partitions: vec![Part { name: format!("{name}p1"), size_bytes: None }],
    }
}

fn mount(path: &str, disk: Option<&str>) -> Mount {
    Mount {
        path: path.into(),
        source: String::new(),
        fs_type: "ext4".into(),
        kind: None,
        product: None,
        read_only: false,
        size_bytes: None,
        disk: disk.map(str::to_owned),
    }
}

proptest! {
    /// S541: daemons take turns over all parts, none has more than one daemon more than another, and each part is
    /// somebody's.
    #[test]
    fn daemons_share_the_parts_evenly(parts in 0_u32..9, count in 0_usize..20) {
        let host = host(parts);
        let all: Vec<_> = (0..count).map(|index| nearest(&host, &["/dev/shm/x"], index, count)).collect();
        if parts < 2 || count < 2 {
            prop_assert!(all.iter().all(Option::is_none));
            return Ok(());
        }
        let mut users = vec![0_usize; parts as usize];
        for one in &all {
            let one = one.as_ref().unwrap();
            prop_assert!(one.disk.is_none() && !one.parts.is_empty());
            prop_assert_eq!(listed(&one.processors, 1024).len(), one.parts.len() * 4);
            one.parts.iter().for_each(|part| users[*part as usize] += 1);
        }
        prop_assert!(users.iter().all(|users| *users > 0));
        prop_assert!(users.iter().max().unwrap() - users.iter().min().unwrap() <= 1, "{:?}", users);
    }

    #[test]
    fn any_list_has_numbers_below_its_end(text in "[0-9,\\- a]{0,20}", end in 0_usize..2000) {
        prop_assert!(listed(&text, end).iter().all(|number| *number < end));
    }
}

#[test]
fn a_daemon_is_where_the_disk_of_its_volumes_is() {
    let mut host = host(2);
    host.disks = vec![disk("nvme0n1", Some(1)), disk("nvme1n1", Some(0)), disk("sda", None)];
    host.mounts = vec![
        mount("/", Some("sda")),
        mount("/a", Some("nvme0n1p1")),
        mount("/b", Some("nvme1n1")),
        mount("/a/mem", None),
    ];
    let of = |volumes: &[&str], index| nearest(&host, volumes, index, 2).map(|near| (near.parts, near.disk));
    assert_eq!(of(&["/a/v"], 0), Some((vec![1], Some("nvme0n1".into()))));
    assert_eq!(of(&["/b/v"], 1), Some((vec![0], Some("nvme1n1".into()))));
    // On two places, on one that does not say where it is, or in memory: by turns.
    for volumes in [&["/a/v", "/b/v"][..], &["/c"], &["/a/mem/x"], &["/ab"], &[]] {
        assert_eq!(of(volumes, 1), Some((vec![1], None)), "{volumes:?}");
    }
    assert_eq!(listed("0-2,7", 100).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2, 7]));
}
