//! Every source against what its machine or tool said, in `records/`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bivouac_extract::{LocalMachine, RecordedAnswers, host, networks};
use bivouac_sysmap::{DeviceKind, DiskKind, Host, InterfaceKind, LinkEnd, Map, MountKind, Network, merge};
use proptest::prelude::*;

fn record(text: &str) -> RecordedAnswers {
    RecordedAnswers::parse(text).unwrap()
}

fn gpu_node() -> (Host, Option<Network>) {
    host(&record(include_str!("records/gpu001.record")), "gpu001", 500)
}

/// S520.
#[test]
fn sysfs_and_procfs_of_a_gpu_node_are_read() {
    let (host, _) = gpu_node();
    assert_eq!(host.kernel.as_deref(), Some("5.14.0-427.el9.x86_64"));
    let processors = host.processors.as_ref().unwrap();
    assert_eq!((processors.sockets.len(), processors.cores, processors.threads), (2, Some(4), Some(8)));
    assert_eq!(processors.model.as_deref(), Some("AMD EPYC 9334 32-Core Processor"));
    let caches: Vec<_> =
        processors.caches.iter().map(|c| (c.level, c.kind.as_str(), c.size_bytes, c.count)).collect();
    let expected = [
        (1, "data", 32 << 10, 4),
        (1, "instruction", 32 << 10, 4),
        (2, "unified", 1 << 20, 4),
        (3, "unified", 256 << 20, 2),
    ];
    assert_eq!(caches, expected);
    assert_eq!(host.memory.as_ref().unwrap().total_bytes, 791_243_088 * 1024);
    let numa: Vec<_> = host.numa.iter().map(|n| (n.id, n.processors.as_str(), n.distances.clone())).collect();
    assert_eq!(numa, [(0, "0-1,4-5", vec![10, 32]), (1, "2-3,6-7", vec![32, 10])]);
    assert_eq!(host.numa[1].memory_bytes, Some(395_715_956 * 1024));
    let devices: Vec<_> = host.devices.iter().map(|d| (d.kind, d.driver.as_deref(), d.numa)).collect();
    let expected = [
        (DeviceKind::Storage, Some("nvme"), Some(0)),
        (DeviceKind::Gpu, Some("nvidia"), Some(0)),
        (DeviceKind::InfiniBand, Some("mlx5_core"), Some(1)),
        (DeviceKind::Gpu, Some("nvidia"), Some(1)),
        (DeviceKind::Network, Some("bnxt_en"), Some(1)),
    ];
    assert_eq!(devices, expected);
    assert!(host.sources.values().all(|source| !source.is_empty()) && host.sources["disks"] == "sysfs");
}

/// S521.
#[test]
fn disks_and_mounts_are_told_apart_and_site_storage_is_known() {
    let (host, _) = gpu_node();
    let disks: Vec<_> = host.disks.iter().map(|disk| (disk.name.as_str(), disk.kind)).collect();
    let expected =
        [("dm-0", Some(DiskKind::Mapped)), ("nvme0n1", Some(DiskKind::Nvme)), ("sda", Some(DiskKind::Hdd))];
    assert_eq!(disks, expected);
    let nvme = &host.disks[1];
    assert_eq!((nvme.size_bytes, nvme.queue_depth), (Some(7_501_476_528 * 512), Some(1023)));
    assert_eq!((nvme.address.as_deref(), nvme.numa), (Some("0000:01:00.0"), Some(0)));
    assert_eq!((nvme.scheduler.as_deref(), nvme.partitions.len()), (Some("none"), 2));
    assert_eq!(nvme.model.as_deref(), Some("SAMSUNG MZQL23T8HCLS-00A07"));
    assert_eq!(host.disks[2].scheduler.as_deref(), Some("mq-deadline"));
    let mounts: Vec<_> =
        host.mounts.iter().map(|m| (m.path.as_str(), m.kind, m.product.as_deref(), m.read_only)).collect();
    let site = Some(MountKind::Site);
    let expected = [
        ("/", Some(MountKind::Local), None, false),
        ("/dev/shm", Some(MountKind::Memory), None, false),
        ("/scratch", site, Some("Lustre"), false),
        ("/home", site, Some("NFS"), false),
        ("/gpfs/project", site, Some("GPFS"), false),
        ("/mnt/bee gfs", site, Some("BeeGFS"), true),
        ("/ceph", site, Some("CephFS"), false),
        ("/unknown", None, None, false),
    ];
    assert_eq!(mounts, expected);
    assert_eq!(host.mounts[0].disk.as_deref(), Some("nvme0n1p2"));
    assert_eq!(host.mounts[3].size_bytes, None, "a server that does not answer is no size");
}

/// S520: a virtual machine as it was recorded, whose devices say little of themselves.
#[test]
fn a_recorded_virtual_machine_has_what_it_says_and_no_more() {
    let (host, _) = host(&record(include_str!("records/vm.record")), "vm", 100);
    let processors = host.processors.as_ref().unwrap();
    assert_eq!((processors.sockets.len(), processors.cores, processors.threads), (1, Some(2), Some(2)));
    let disks: Vec<_> = host.disks.iter().map(|disk| (disk.name.as_str(), disk.kind)).collect();
    assert_eq!(
        disks,
        [("vda", Some(DiskKind::Virtual))],
        "it says that it rotates, which is its host's fancy"
    );
    let eth0 = host.interfaces.iter().find(|one| one.name == "eth0").unwrap();
    assert_eq!((eth0.kind, eth0.speed_bits, eth0.up), (Some(InterfaceKind::Virtual), None, Some(true)));
    assert_eq!(eth0.driver.as_deref(), Some("virtio_net"));
    assert!(host.devices.iter().all(|device| device.numa.is_none()), "-1 is no place");
    let root = host.mounts.iter().find(|mount| mount.path == "/").unwrap();
    assert_eq!((root.kind, root.disk.as_deref()), (Some(MountKind::Local), Some("vda")));
    assert!(host.load.is_some_and(|load| load.memory_bytes > Some(0) && !load.interfaces.is_empty()));
}

/// S520: what is not said is not known, and is not made up.
#[test]
fn interfaces_have_the_speed_that_is_known_and_no_other() {
    let (host, neighbours) = gpu_node();
    let found: Vec<_> = host
        .interfaces
        .iter()
        .map(|one| (one.name.as_str(), one.kind, one.up, one.speed_bits, one.numa))
        .collect();
    let (ethernet, infiniband) = (Some(InterfaceKind::Ethernet), Some(InterfaceKind::InfiniBand));
    let expected = [
        ("docker0", Some(InterfaceKind::Virtual), Some(false), None, None),
        ("eth0", ethernet, Some(true), Some(25_000_000_000), Some(1)),
        ("eth1", ethernet, Some(false), None, Some(1)),
        ("ib0", infiniband, Some(true), Some(200_000_000_000), Some(1)),
        ("lo", Some(InterfaceKind::Loopback), None, None, None),
        ("mlx5_1/1", infiniband, Some(true), Some(100_000_000_000), Some(1)),
    ];
    assert_eq!(found, expected);
    let network = neighbours.unwrap();
    assert_eq!(network.links.len(), 1, "eth1 leads to another host, not to a switch: {network:?}");
    let link = &network.links[0];
    assert_eq!(
        (&link.from, &link.to, link.to_port.as_deref(), link.speed_bits),
        (
            &LinkEnd::Host("gpu001".into()),
            &LinkEnd::Switch("44:4c:a8:11:22:33".into()),
            Some("Ethernet17/1"),
            Some(25_000_000_000)
        )
    );
    assert_eq!(network.switches[0].name.as_deref(), Some("rack07-leaf1"));
}

/// S522.
#[test]
fn what_is_left_is_what_there_is_less_what_is_used() {
    let (host, _) = gpu_node();
    let load = host.load.as_ref().unwrap();
    // 400 of 800 ticks of all processors, of which there are 8.
    assert_eq!((load.over_ms, load.processors, load.runnable), (500, Some(4.0), Some(3.41)));
    let nvme = load.disks.iter().find(|disk| disk.name == "nvme0n1").unwrap();
    assert_eq!((nvme.read_bytes, nvme.written_bytes, nvme.busy), (10_000.0 * 512.0 / 0.5, 0.0, 0.5));
    let left = host.compute_available().unwrap();
    assert_eq!(left.processors, Some(4.0));
    assert_eq!(left.memory_bytes, Some(701_243_088 * 1024));
    let eth0 = left.interfaces.iter().find(|one| one.name == "eth0").unwrap();
    assert_eq!((eth0.receive_bits, eth0.send_bits), (15e9, 25e9));
    assert!(left.interfaces.iter().all(|one| one.name != "lo"), "without a speed nothing is left or gone");
    assert_eq!(left.mounts.iter().find(|one| one.path == "/scratch").unwrap().bytes, 500_000_000_000_000);
    assert_eq!(left.disks.iter().find(|one| one.name == "sda").unwrap().idle, 1.0);
    assert!(Host { load: None, ..host }.compute_available().is_none());
}

/// S523.
#[test]
fn tools_are_asked_where_files_do_not_say() {
    let (host, _) = host(&record(include_str!("records/tools.record")), "old", 0);
    let by = |what: &str| host.sources.get(what).map(String::as_str);
    let sources = ["processors", "memory", "devices", "disks", "mounts", "interfaces"].map(by);
    assert_eq!(sources, ["hwloc", "hwloc", "lspci", "lsblk", "mounts", "ip"].map(Some));
    let processors = host.processors.unwrap();
    assert_eq!((processors.cores, processors.threads, processors.sockets[0].threads), (Some(2), Some(4), 4));
    assert_eq!(processors.caches.len(), 4);
    assert_eq!(host.memory.unwrap().total_bytes, 98_304_000_000);
    let devices: Vec<_> = host.devices.iter().map(|d| (d.kind, d.numa)).collect();
    assert_eq!(devices, [(DeviceKind::InfiniBand, Some(0)), (DeviceKind::Gpu, Some(1))]);
    let disks: Vec<_> =
        host.disks.iter().map(|d| (d.name.as_str(), d.kind, d.size_bytes, d.partitions.len())).collect();
    let expected = [
        ("sda", Some(DiskKind::Ssd), Some(480_103_981_056), 2),
        ("sdb", Some(DiskKind::Hdd), Some(4_000_787_030_016), 0),
    ];
    assert_eq!(disks, expected);
    let mounts: Vec<_> = host.mounts.iter().map(|m| (m.path.as_str(), m.disk.as_deref())).collect();
    assert_eq!(mounts, [("/", None), ("/fs1", None), ("/boot", Some("sda1")), ("/tmp", None)]);
    assert_eq!(host.interfaces[2].kind, Some(InterfaceKind::InfiniBand));
    assert!(host.interfaces.iter().all(|one| one.speed_bits.is_none()));

    let (host, _) = crate::host(&record(include_str!("records/procfs.record")), "bare", 0);
    assert_eq!(host.sources["processors"], "procfs");
    let processors = host.processors.unwrap();
    assert_eq!((processors.cores, processors.threads), (Some(1), Some(2)));
}

/// A map of four hosts with a network that a record has.
fn map(text: &str) -> Map {
    let hosts = (1..=4).map(|number| Host { name: format!("n{number}"), ..Host::default() }).collect();
    merge(vec![Map { hosts, networks: networks(&record(text)), ..Map::default() }])
}

/// S523, S525.
#[test]
fn fabrics_are_read_from_each_tool() {
    let network = map(include_str!("records/ibnetdiscover.record")).networks.remove(0);
    assert_eq!((network.links.len(), network.other_hosts, network.switches.len()), (7, 1, 3));
    let found = network.bandwidth.unwrap();
    // Two hosts on each side; leaf2 has one link of 100 Gbit/s upwards.
    assert_eq!((found.bisection.bits.low, found.bisection.exact), (100_000_000_000, true));
    assert_eq!(found.weakest.bits.low, 100_000_000_000);
    assert_eq!(network.switches[0].name.as_deref(), Some("MF0;leaf1:MSB7700/U1"));

    let network = map(include_str!("records/iblinkinfo.record")).networks.remove(0);
    assert_eq!((network.links.len(), network.switches.len()), (5, 2), "{network:?}");
    let speeds: Vec<_> = network.links.iter().map(|link| link.speed_bits).collect();
    let expected =
        [Some(100_000_000_000), Some(100_000_000_000), Some(200_000_000_000), None, Some(54_545_454_544)];
    assert_eq!(speeds, expected);
    assert_eq!(network.bandwidth.unwrap().unknown_links, 1, "a speed that nobody knows is not known");

    for text in [include_str!("records/scontrol.record"), include_str!("records/topology-conf.record")] {
        let network = map(text).networks.remove(0);
        assert_eq!((network.links.len(), network.switches.len()), (6, 3), "{network:?}");
        let found = network.bandwidth.unwrap();
        assert_eq!((found.bisection.bits.low, found.bisection.bits.high, found.unknown_links), (0, None, 6));
    }
}

/// S520: on whatever this test runs.
#[test]
fn this_machine_is_read() {
    let run = |_: &[&str]| None;
    let (host, _) = host(&LocalMachine::new(std::path::Path::new("/"), &run), "here", 20);
    assert!(host.processors.unwrap().threads.unwrap() > 0);
    assert!(host.memory.unwrap().total_bytes > 1 << 20);
    assert!(host.mounts.iter().any(|mount| mount.path == "/"));
    let load = host.load.unwrap();
    assert!(load.over_ms >= 20 && load.memory_bytes.unwrap() > 0);
    // Below a directory without anything nothing is known.
    let empty = tempfile::tempdir().unwrap();
    let (host, _) = crate::host(&LocalMachine::new(empty.path(), &run), "none", 0);
    assert_eq!(host, Host { name: "none".into(), ..Host::default() });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// S523: whatever a tool says, nothing panics.
    #[test]
    fn anything_may_be_said(at in 0_usize..20_000, len in 0_usize..40, put in "[ -~\\n|@\\[\\]=:\"]{0,12}") {
        for text in [
            include_str!("records/gpu001.record"),
            include_str!("records/tools.record"),
            include_str!("records/ibnetdiscover.record"),
            include_str!("records/iblinkinfo.record"),
            include_str!("records/scontrol.record"),
        ] {
            let at = at % text.len();
            let end = (at + len).min(text.len());
            let (Some(before), Some(after)) = (text.get(..at), text.get(end..)) else { continue };
            if let Ok(record) = RecordedAnswers::parse(&format!("{before}{put}{after}")) {
                let (host, network) = host(&record, "x", 1);
                let mut all = networks(&record);
                all.extend(network);
                let _whole = merge(vec![Map { hosts: vec![host], networks: all, ..Map::default() }]);
            }
        }
    }
}
