//! Partitions: where their files are, what does not cross them, what they may take, and how they come to be whatever
//! is lost or killed on the way.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode, Partition, PartitionState};
use bivouac_types::{Errno, FsResult, Ino, PartitionId, TargetIndex, mode};
use bivouac_wire::Op;

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };

fn mkdir(client: &Client, parent: Ino, name: &str) -> Ino {
    client.mknod(&op(client), parent, name.as_bytes(), &DIR).unwrap().ino
}

fn file(client: &Client, parent: Ino, name: &str) -> Ino {
    client.mknod(&op(client), parent, name.as_bytes(), &FILE).unwrap().ino
}

fn make(client: &Client, dir: Ino, targets: &[u32], settings: &str) -> FsResult<Partition> {
    let targets = targets.iter().map(|target| TargetIndex(*target)).collect();
    client.partitions.make(&op(client), dir, targets, settings.parse().unwrap())
}

fn errno<T: std::fmt::Debug>(result: FsResult<T>) -> Errno {
    result.unwrap_err().errno()
}

/// Subfiles on the volume of a node.
fn subfiles(formation: &Formation, node: u16) -> u64 {
    formation.clients[0].nodes().status(bivouac_types::NodeId(node)).unwrap().volumes[0].subfiles
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ at as u8 ^ seed).collect()
}

fn read(client: &Client, ino: Ino, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len + 1];
    let count = client.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

/// S140.
#[test]
fn files_are_on_the_targets_of_their_partition_and_nowhere_else() {
    let mut formation = Formation::new(4, 4096);
    let dir = mkdir(&formation.clients[3], Ino::ROOT, "part");
    let partition = make(&formation.clients[3], dir, &[2, 1], "stripe=4k").unwrap();
    assert_eq!((partition.id, partition.state), (PartitionId(1), PartitionState::Live));
    let mut files = Vec::new();
    for (index, client) in formation.clients.iter().enumerate() {
        let below = mkdir(client, dir, &format!("d{index}"));
        for parent in [dir, below] {
            let ino = file(client, parent, &format!("f{index}"));
            let bytes = content(50_000, index as u8);
            client.write(&op(client), ino, 0, &bytes, false).unwrap();
            client.write(&op(client), ino, 0, &bytes, true).unwrap();
            files.push((ino, [bytes.clone(), bytes].concat()));
        }
    }
    formation.restart();
    for client in &formation.clients {
        for (ino, bytes) in &files {
            assert!(read(client, *ino, bytes.len()) == *bytes);
            let attr = client.getattr(*ino).unwrap();
            let targets = client.content.targets(&attr).unwrap();
            assert!(
                targets.iter().all(|target| [1, 2].contains(&target.node.0) && target.subfile.exists),
                "{targets:?}"
            );
        }
    }
    assert_eq!([0, 3].map(|node| subfiles(&formation, node)), [0, 0]);
    assert_eq!([1, 2].map(|node| subfiles(&formation, node)), [8, 8]);
    let other = file(&formation.clients[0], Ino::ROOT, "outside");
    formation.clients[0].write(&op(&formation.clients[0]), other, 0, &content(50_000, 9), false).unwrap();
    assert_eq!([0, 3].map(|node| subfiles(&formation, node)), [1, 1]);
    for (ino, bytes) in &files {
        let client = &formation.clients[0];
        let cut = bivouac_client::SetAttr { size: Some(5000), ..Default::default() };
        client.setattr(&op(client), *ino, &cut).unwrap();
        assert!(read(client, *ino, 6000) == bytes[..5000]);
    }
}

/// S147.
#[test]
fn subfiles_go_when_the_files_of_a_partition_go() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[1];
    let dir = mkdir(client, Ino::ROOT, "part");
    let id = make(client, dir, &[0, 2], "stripe=4k").unwrap().id;
    for index in 0..10 {
        let ino = file(client, dir, &format!("f{index}"));
        client.write(&op(client), ino, 0, &content(9000, 1), false).unwrap();
    }
    formation.restart();
    let client = &formation.clients[1];
    assert_eq!(errno(client.rmdir(&op(client), Ino::ROOT, b"part")), Errno::ENOTEMPTY);
    assert_eq!(errno(client.partitions.forget(&op(client), id)), Errno::ENOTEMPTY);
    for index in 0..10 {
        client.unlink(&op(client), dir, format!("f{index}").as_bytes()).unwrap();
    }
    client.rmdir(&op(client), Ino::ROOT, b"part").unwrap();
    client.partitions.forget(&op(client), id).unwrap();
    assert_eq!(client.partitions.list().unwrap(), []);
    assert_eq!(errno(client.partitions.forget(&op(client), id)), Errno::ENOENT);
    wait_until("no subfile is left", || (0..3).all(|node| subfiles(&formation, node) == 0));
    let again = mkdir(client, Ino::ROOT, "part");
    assert_eq!(make(client, again, &[0], "").unwrap().id, PartitionId(id.0 + 1), "numbers are used once");
}

/// S141.
#[test]
fn names_do_not_cross_partitions() {
    let formation = Formation::new(3, 4096);
    // Entries and inodes on all nodes: in one transaction, and over nodes.
    for index in 0..12 {
        let client = &formation.clients[index % 3];
        let (one, other) = (
            mkdir(client, Ino::ROOT, &format!("one{index}")),
            mkdir(client, Ino::ROOT, &format!("other{index}")),
        );
        make(client, one, &[0, 1], "").unwrap();
        let (ino, sub) = (file(client, one, "f"), mkdir(client, one, "d"));
        let outside = file(client, other, "g");
        for (from, name, to, target) in [
            (one, &b"f"[..], other, &b"f"[..]),
            (one, b"d", other, b"d"),
            (other, b"g", one, b"g"),
            (other, b"g", one, b"f"),
        ] {
            let moved = client.rename(&op(client), from, name, to, target, 0);
            assert_eq!(errno(moved), Errno::EXDEV, "{index} {name:?}");
        }
        assert_eq!(errno(client.rename(&op(client), one, b"f", other, b"g", 2)), Errno::EXDEV);
        assert_eq!(errno(client.rename(&op(client), one, b"d", other, b"g", 2)), Errno::EXDEV);
        assert_eq!(errno(client.link(&op(client), ino, other, b"h")), Errno::EXDEV);
        assert_eq!(errno(client.link(&op(client), outside, one, b"h")), Errno::EXDEV);
        // Nothing has changed, and within a partition all is as ever.
        assert_eq!((client.getattr(ino).unwrap().nlink, client.getattr(outside).unwrap().nlink), (1, 1));
        assert_eq!(client.parent(sub).unwrap(), one);
        client.rename(&op(client), one, b"f", sub, b"f2", 0).unwrap();
        client.link(&op(client), ino, one, b"f").unwrap();
        client.rename(&op(client), one, b"f", one, b"d", 2).unwrap();
        assert_eq!(client.lookup(one, b"f").unwrap().ino, sub);
    }
    wait_until("no change is unfinished", || formation.nodes.iter().all(|node| node.unfinished() == 0));
}

/// S141.
#[test]
fn a_partition_moves_with_its_directory_and_can_have_another_inside() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let (dir, elsewhere) = (mkdir(client, Ino::ROOT, "part"), mkdir(client, Ino::ROOT, "elsewhere"));
    let outer = make(client, dir, &[0, 1], "").unwrap().id;
    let inner_dir = mkdir(client, dir, "inner");
    let inner = make(client, inner_dir, &[2], "").unwrap();
    assert_eq!(inner.outer, outer);
    client.rename(&op(client), Ino::ROOT, b"part", elsewhere, b"p", 0).unwrap();
    let partition_of =
        |parent, name: &str| client.getattr(file(client, parent, name)).unwrap().layout.partition();
    assert_eq!((partition_of(dir, "f"), partition_of(inner_dir, "f")), (outer, inner.id));
    assert_eq!(errno(client.rename(&op(client), dir, b"f", inner_dir, b"g", 0)), Errno::EXDEV);
    assert_eq!(errno(client.rename(&op(client), dir, b"inner", Ino::ROOT, b"inner", 0)), Errno::EXDEV);
}

#[test]
fn a_partition_that_cannot_be_is_refused_and_leaves_nothing() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[2];
    let (dir, full) = (mkdir(client, Ino::ROOT, "empty"), mkdir(client, Ino::ROOT, "full"));
    let inside = file(client, full, "f");
    for (dir, targets, settings, refusal) in [
        (full, &[0][..], "", Errno::ENOTEMPTY),
        (inside, &[0], "", Errno::ENOTDIR),
        (Ino::ROOT, &[0], "", Errno::EINVAL),
        (Ino(dir.0 ^ 1 << 39), &[0], "", Errno::ENOENT),
        (dir, &[], "", Errno::EINVAL),
        (dir, &[3], "", Errno::EINVAL),
        (dir, &[1, 1], "", Errno::EINVAL),
        (dir, &[1, 0], "width=3", Errno::EINVAL),
        (dir, &[1], "source=s3://b/p", Errno::EACCES),
        (dir, &[1], "write=through", Errno::EINVAL),
        (dir, &[1], "rule=*.x: read=on-open", Errno::EINVAL),
    ] {
        assert_eq!(errno(make(client, dir, targets, settings)), refusal, "{targets:?} {settings}");
    }
    let mut many = bivouac_types::PartitionSettings { stripe: 8192, ..Default::default() };
    many.rules = vec![format!("{}: stripe=4k", "x".repeat(255)).parse().unwrap(); 64];
    assert!(make(client, dir, &[0], &many.to_string()).is_err(), "settings that are too long to be told");
    assert_eq!(client.partitions.list().unwrap(), []);
    let partition = make(client, dir, &[0], "").unwrap();
    assert_eq!(errno(make(client, dir, &[0], "")), Errno::EEXIST);
    let settings = partition.settings.clone();
    let set = |version, settings| client.partitions.set(&op(client), partition.id, version, settings);
    assert_eq!(errno(set(7, settings.clone())), Errno::EBUSY);
    assert_eq!(errno(set(0, "volumes=disk".parse().unwrap())), Errno::EINVAL);
    assert_eq!(errno(set(0, "contract=session".parse().unwrap())), Errno::EINVAL);
    assert_eq!(errno(set(0, "width=2".parse().unwrap())), Errno::EINVAL);
    assert_eq!(errno(set(0, "source=/data".parse().unwrap())), Errno::EINVAL);
    formation.restart();
    assert_eq!(formation.clients[0].partitions.list().unwrap(), [partition]);
}

/// What is to be seen of a partition: all of it, or nothing.
fn is_whole(formation: &Formation, dir: Ino) -> bool {
    let client = &formation.clients[1];
    let live = client.partitions.list().unwrap();
    let id = client.getattr(dir).unwrap().layout.partition();
    assert_eq!(
        live.iter().map(|partition| partition.id).collect::<Vec<_>>(),
        Vec::from_iter((id.0 > 0).then_some(id))
    );
    id.0 > 0
}

/// S142.
#[test]
fn a_partition_is_made_wholly_or_not_at_all_whatever_is_lost() {
    for (step, lose_reply) in [
        (Op::PutPartition, false),
        (Op::PutPartition, true),
        (Op::BindDirectory, false),
        (Op::BindDirectory, true),
    ] {
        for restart in [false, true] {
            let mut formation = Formation::new(3, 4096);
            let client = &formation.clients[0];
            // Its home is not the keeper, so that the step is a message.
            let dirs = (0..).map(|index| mkdir(client, Ino::ROOT, &format!("d{index}")));
            let dir = dirs.into_iter().find(|dir| dir.slot().0 % 3 == 1).unwrap();
            let lost = if lose_reply {
                &formation.switchboard.lose_reply
            } else {
                &formation.switchboard.lose_request
            };
            lost.store(step as u32, Ordering::SeqCst);
            assert_eq!(errno(make(client, dir, &[1, 2], "stripe=8k")), Errno::EIO, "{step:?}");
            if restart {
                formation.restart();
            }
            wait_until("it is finished", || formation.nodes.iter().all(|node| node.unfinished() == 0));
            assert!(is_whole(&formation, dir), "what was begun is finished");
            let client = &formation.clients[2];
            let ino = file(client, dir, "f");
            client.write(&op(client), ino, 0, &content(20_000, 3), false).unwrap();
            assert!(read(&formation.clients[0], ino, 20_000) == content(20_000, 3));
            assert_eq!(client.getattr(ino).unwrap().layout.stripe, 8192);
        }
    }
}

/// S142.
#[test]
fn who_makes_a_file_meanwhile_wins_or_is_inside() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let dirs: Vec<Ino> = (0..40).map(|index| mkdir(client, Ino::ROOT, &format!("d{index}"))).collect();
    let of = |node: u16| dirs.iter().copied().find(|dir| dir.slot().0 % 3 == node).unwrap();
    // A file comes first: the partition is refused, and nothing of it is left.
    let dir = of(1);
    let other = formation.client_as(2, 70);
    let act = Box::new(move || {
        file(&other, dir, "first");
    });
    *formation.switchboard.before.lock() = Some((Op::BindDirectory as u16, act));
    assert_eq!(errno(make(client, dir, &[1, 2], "")), Errno::ENOTEMPTY);
    assert!(!is_whole(&formation, dir));
    // A directory is being made, its inode elsewhere, and the partition comes first: it is made inside.
    let dir = of(2);
    let maker = formation.client_as(0, 71);
    let act = Box::new(move || drop(make(&maker, dir, &[1, 2], "").unwrap()));
    *formation.switchboard.before.lock() = Some((Op::PutInode as u16, act));
    let names = (0..40).map(|index| format!("s{index}"));
    let subs: Vec<Ino> = names.map(|name| mkdir(client, dir, &name)).collect();
    assert!(formation.switchboard.before.lock().is_none(), "one of them was made by an intent");
    let id = client.getattr(dir).unwrap().layout.partition();
    assert_ne!(id, PartitionId::ROOT);
    for sub in subs {
        assert_eq!(client.getattr(sub).unwrap().layout.partition(), id);
    }
}

/// S143, S144, S148.
#[test]
fn settings_change_for_new_files_on_all_nodes() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let dir = mkdir(client, Ino::ROOT, "part");
    let partition =
        make(client, dir, &[0, 1, 2], "stripe=8k\nrule=*.big: stripe=64k\nrule=a*: stripe=16k").unwrap();
    let (plain, told) = (mkdir(client, dir, "plain"), mkdir(client, dir, "told"));
    client.setxattr(&op(client), told, b"user.bivouac.layout", b"stripe=32k width=1", 0).unwrap();
    let stripes = |formation: &Formation, round: &str| {
        let of = |client: &Client, parent, name: &str| {
            client.getattr(file(client, parent, &format!("{name}{round}"))).unwrap().layout
        };
        let (one, two) = (&formation.clients[1], &formation.clients[2]);
        let told = of(one, told, "x");
        assert_eq!((told.stripe, told.width), (32_768, 1), "what a directory was told stays");
        [of(one, dir, "x").stripe, of(two, plain, "x").stripe, of(one, plain, "ax").stripe]
    };
    assert_eq!(stripes(&formation, "0"), [8192, 8192, 16_384]);
    assert_eq!(client.getattr(file(client, dir, "a.big")).unwrap().layout.stripe, 65_536, "the first rule");
    let settings = "stripe=128k\nwidth=2".parse().unwrap();
    client.partitions.set(&op(client), partition.id, partition.version, settings).unwrap();
    assert_eq!(stripes(&formation, "1"), [131_072; 3]);
    formation.restart();
    assert_eq!(stripes(&formation, "2"), [131_072; 3]);
    let client = &formation.clients[2];
    assert_eq!(client.getattr(file(client, dir, "w")).unwrap().layout.width, 2);
    let value = |ino, name: &[u8]| String::from_utf8(client.getxattr(ino, name).unwrap()).unwrap();
    assert_eq!(value(plain, b"user.bivouac.layout"), "stripe=131072 width=2 placement=partition partition=1");
    assert_eq!(value(told, b"user.bivouac.layout"), "stripe=32768 width=1 placement=striped partition=1");
    assert!(value(plain, b"user.bivouac.partition").starts_with("id=1\nstripe=128k\nwidth=2\n"));
    let refused = client.setxattr(&op(client), dir, b"user.bivouac.partition", b"id=2", 0);
    assert_eq!(errno(refused), Errno::EPERM);
    assert_eq!(errno(client.getxattr(Ino::ROOT, b"user.bivouac.partition")), Errno::ENODATA);
    client.setxattr(&op(client), told, b"user.bivouac.layout", b"placement=partition", 0).unwrap();
    assert_eq!(client.getattr(file(client, told, "again")).unwrap().layout.stripe, 131_072);
}

/// S143.
#[test]
fn a_node_that_was_away_hears_of_a_change_when_it_is_back() {
    for restart in [false, true] {
        let mut formation = Formation::new(3, 4096);
        let client = &formation.clients[0];
        let dir = mkdir(client, Ino::ROOT, "part");
        let subs = (0..).map(|index| mkdir(client, dir, &format!("d{index}")));
        let partition = make(client, dir, &[0, 1, 2], "stripe=8k").unwrap();
        let sub = subs.into_iter().find(|dir| dir.slot().0 % 3 == 2).unwrap();
        let away = bivouac_types::NodeId(2);
        let node = formation.switchboard.unplug(away);
        let settings = "stripe=16k".parse().unwrap();
        client.partitions.set(&op(client), partition.id, 0, settings).unwrap();
        formation.switchboard.plug(away, node);
        if restart {
            formation.restart();
        }
        let client = &formation.clients[1];
        let mut names = (0..).map(|index| format!("f{index}"));
        // A file's layout is made by the home of its directory.
        wait_until("node 2 has heard of it", || {
            client.getattr(file(client, sub, &names.next().unwrap())).unwrap().layout.stripe == 16_384
        });
    }
}

#[test]
fn the_published_hash_decides_by_the_name_and_local_files_stay_where_they_can() {
    let formation = Formation::new(4, 4096);
    let client = &formation.clients[2];
    let (dir, near) = (mkdir(client, Ino::ROOT, "sums"), mkdir(client, Ino::ROOT, "near"));
    make(client, dir, &[3, 1, 0], "placement=hashed\nmaster-hash=byte-sum").unwrap();
    make(client, near, &[1, 2, 3], "placement=local").unwrap();
    for name in ["a", "b", "c", "ab", "ba"] {
        let layout = client.getattr(file(client, dir, name)).unwrap().layout;
        let sum: u32 = name.bytes().map(u32::from).sum();
        assert_eq!((layout.width, u32::from(layout.base.position())), (1, sum % 3), "{name}");
    }
    for (index, client) in formation.clients.iter().enumerate() {
        let ino = file(client, near, &format!("f{index}"));
        client.write(&op(client), ino, 0, b"here", false).unwrap();
        let node = client.content.targets(&client.getattr(ino).unwrap()).unwrap()[0].node.0;
        // Node 0 has no target of it: its file is on one of the others.
        assert!(node == index as u16 || index == 0 && node > 0, "client {index}: node {node}");
    }
}

/// S540.
#[test]
fn local_files_of_who_has_no_target_are_behind_its_switch() {
    let mut formation = Formation::new(5, 4096);
    formation.switches = vec![Some(0), Some(1), Some(1), Some(0), None];
    formation.restart();
    let client = &formation.clients[2];
    let (near, alike) = (mkdir(client, Ino::ROOT, "near"), mkdir(client, Ino::ROOT, "alike"));
    make(client, near, &[1, 2, 3], "placement=local").unwrap();
    make(client, alike, &[1, 2], "placement=local").unwrap();
    let node_of = |client: &Client, dir, name: &str| {
        let ino = file(client, dir, name);
        client.write(&op(client), ino, 0, b"here", false).unwrap();
        client.content.targets(&client.getattr(ino).unwrap()).unwrap()[0].node.0
    };
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..12 {
        let name = format!("f{number}");
        // The only target behind the switch of node 0; and a node that has a target has its files there.
        assert_eq!(node_of(&formation.clients[0], near, &name), 3, "{name}");
        assert_eq!(node_of(&formation.clients[1], near, &format!("own{name}")), 1, "{name}");
        // No target is nearer than another one to node 3 and to node 4, whose switch nobody knows.
        seen.insert((0, node_of(&formation.clients[4], near, &format!("far{name}"))));
        seen.insert((1, node_of(&formation.clients[3], alike, &name)));
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}

/// S145, S146.
#[test]
fn the_capacity_is_kept_at_the_write_that_does_not_fit() {
    let mut formation = Formation::with_capacity(2, 4096, 64 << 20);
    let client = &formation.clients[0];
    let (dir, free) = (mkdir(client, Ino::ROOT, "part"), mkdir(client, Ino::ROOT, "free"));
    let partition = make(client, dir, &[0, 1], "stripe=64k\ncapacity=1m").unwrap();
    make(client, free, &[0, 1], "stripe=64k").unwrap();
    let space = |client: &Client, ino| {
        client.homes.statfs(ino).map(|fs| (fs.blocks * 4096, fs.blocks_free * 4096)).unwrap()
    };
    assert_eq!(space(client, dir), (1 << 20, 1 << 20));
    let whole = space(client, Ino::ROOT);
    assert!(whole.0 > 64 << 20);
    let ino = file(client, dir, "f");
    let chunk = content(128 << 10, 5);
    let mut written = 0;
    let refusal = loop {
        match client.write(&op(client), ino, written, &chunk, false) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refusal.errno(), Errno::EDQUOT, "{refusal}");
    assert_eq!(written, 7 * (128 << 10), "the header of each subfile counts too");
    assert_eq!(client.getattr(ino).unwrap().size, written);
    assert!(space(client, dir).1 < 128 << 10);
    let other = file(client, free, "g");
    client.write(&op(client), other, 0, &content(4 << 20, 6), false).unwrap();
    formation.restart();
    let client = &formation.clients[1];
    assert_eq!(errno(client.write(&op(client), ino, written, &chunk, false)), Errno::EDQUOT);
    assert!(read(client, ino, written as usize) == chunk.repeat(7));
    let settings = "stripe=64k\ncapacity=2m".parse().unwrap();
    client.partitions.set(&op(client), partition.id, partition.version, settings).unwrap();
    client.write(&op(client), ino, written, &chunk, false).unwrap();
    let cut = bivouac_client::SetAttr { size: Some(0), ..Default::default() };
    client.setattr(&op(client), ino, &cut).unwrap();
    assert!(space(client, dir).1 >= (2 << 20) - 8192);
}

/// Of two changes of one version at a time, one is refused.
#[test]
fn changes_of_a_partition_count_one_by_one() {
    const CHANGES: u32 = 40;
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dir = client.mknod(&op(client), Ino::ROOT, b"part", &DIR).unwrap().ino;
    let partition = make(client, dir, &[0, 1], "").unwrap();
    let (id, known) = (partition.id, AtomicU32::new(partition.version));
    let change = |client: usize| {
        let client = &formation.clients[client];
        let mut versions = Vec::new();
        for turn in 0..CHANGES {
            let settings = || format!("stripe={}k", 4 << (turn % 4)).parse().unwrap();
            loop {
                match client.partitions.set(&op(client), id, known.load(Ordering::SeqCst), settings()) {
                    Ok(set) => {
                        known.fetch_max(set.version, Ordering::SeqCst);
                        break versions.push(set.version);
                    }
                    Err(error) => assert_eq!(error.errno(), Errno::EBUSY, "{error}"),
                }
            }
        }
        versions
    };
    let mut versions = std::thread::scope(|scope| {
        let other = scope.spawn(|| change(1));
        let mut versions = change(0);
        versions.extend(other.join().unwrap());
        versions
    });
    versions.sort_unstable();
    let first = partition.version + 1;
    assert_eq!(versions, (first..first + 2 * CHANGES).collect::<Vec<_>>());
}
