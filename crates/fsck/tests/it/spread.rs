//! Directories that are spread over all nodes: their parts, and entries in the slots of their hashes.

use crate::world::{World, dentry_key};
use bivouac_fsck::{Kind, Outcome};
use bivouac_layout::{entry_hash, slot_of_hash};
use bivouac_node::record::{FoldedShards, Inode, Shard, folded_key, inode_key, shard_key};
use bivouac_node::shard_slot;
use bivouac_store::{DirVolume, Records, RecordsOptions};
use bivouac_types::{ClientId, Contract, Ino, NodeId, Slot};
use bivouac_wire::{Decode, Encode};

/// A directory that is spread.
fn spread_dir(world: &World) -> (String, Ino) {
    let is_spread = |ino: Ino| {
        let node = world.home(ino.slot());
        let (volume, identity) = DirVolume::open_existing(&world.formation.volume(node.0)).unwrap();
        let options = RecordsOptions { slots: 64, ..RecordsOptions::default() };
        let records =
            Records::open(std::sync::Arc::new(volume), identity.formation, node, options).unwrap().0;
        records.read(ino.slot(), &inode_key(ino), |bytes| {
            Inode::from_bytes(bytes.unwrap()).unwrap().attr.is_spread()
        })
    };
    let found = world.dirs.iter().find(|(_, ino)| is_spread(**ino)).unwrap();
    (found.0.clone(), *found.1)
}

/// Where the part of a directory on a node is.
fn book(node: u16, dir: Ino) -> Slot {
    let own: Vec<Slot> = (0..64).filter(|slot| slot % crate::world::NODES == node).map(Slot).collect();
    shard_slot(&own, dir)
}

fn edit_shard(world: &World, node: u16, dir: Ino, change: impl FnOnce(&mut Shard)) {
    let slot = book(node, dir);
    world.damage_at(NodeId(node), slot, |txn| {
        let mut shard = Shard::from_bytes(txn.get(slot, &shard_key(dir)).unwrap()).unwrap();
        change(&mut shard);
        txn.put(slot, &shard_key(dir), &shard.to_bytes());
    });
}

fn repaired(world: &mut World, kind: Kind, says: &str) {
    let found = world.check(false);
    let text = |finding: &bivouac_fsck::Finding| finding.kind == kind && finding.to_string().contains(says);
    assert!(found.findings.iter().any(text), "{kind:?} '{says}' is not in {found:#?}");
    assert!(found.findings.iter().all(|finding| finding.outcome == Outcome::Repairable), "{found:#?}");
    let report = world.check(true);
    assert_eq!(report.exit_code(), 1, "{report:#?}");
    for _ in 0..2 {
        let again = world.check(true);
        assert!(again.findings.is_empty(), "{again:#?}");
        world.assert_content_but(&[]);
    }
}

#[test]
fn a_part_is_counted_again() {
    let mut world = World::spread();
    let (path, dir) = spread_dir(&world);
    edit_shard(&world, 1, dir, |shard| shard.entries += 5);
    repaired(&mut world, Kind::ShardCount, &format!("part of directory {path} on node 1: says that it has"));
}

#[test]
fn a_missing_part_is_made_anew_and_takes_entries() {
    let mut world = World::spread();
    let (path, dir) = spread_dir(&world);
    let slot = book(2, dir);
    world.damage_at(NodeId(2), slot, |txn| txn.delete(slot, &shard_key(dir)));
    repaired(&mut world, Kind::Shard, &format!("part of directory {path} on node 2: is not there"));
    world.formation.start();
    for i in 0..20 {
        crate::world::make_file(&world.formation.clients[0], dir, &format!("more{i}"), b"x");
    }
    let before = world.formation.clients[1].getattr(dir).unwrap();
    assert!(before.size >= 23, "{before:?}");
    world.formation.stop();
    let report = world.check(false);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
}

#[test]
fn a_part_that_was_closed_for_nothing_is_opened() {
    let mut world = World::spread();
    let (_, dir) = spread_dir(&world);
    edit_shard(&world, 0, dir, |shard| shard.sealed = Some((ClientId(9), 77)));
    repaired(&mut world, Kind::Shard, "is closed for a removal that nobody is at; --repair opens it");
}

#[test]
fn a_part_gives_what_its_directory_says() {
    let mut world = World::spread();
    let (_, dir) = spread_dir(&world);
    edit_shard(&world, 0, dir, |shard| shard.inherited.gid += 1);
    repaired(&mut world, Kind::Shard, "gives its entries another group, layout or contract");
    edit_shard(&world, 0, dir, |shard| shard.inherited.contract = Some(Contract::Strict));
    repaired(&mut world, Kind::Shard, "gives its entries another group, layout or contract");
}

#[test]
fn parts_of_nothing_go() {
    let mut world = World::spread();
    let (_, dir) = spread_dir(&world);
    let ghost = Ino::new(Slot(7), NodeId(1), 20);
    let slot = book(1, ghost);
    let mut record = Vec::new();
    let from = book(1, dir);
    world.damage_at(NodeId(1), from, |txn| record = txn.get(from, &shard_key(dir)).unwrap().to_vec());
    world.damage_at(NodeId(1), slot, |txn| txn.put(slot, &shard_key(ghost), &record));
    world.damage(ghost.slot(), |txn| {
        txn.put(ghost.slot(), &folded_key(ghost), &FoldedShards { versions: 1 }.to_bytes())
    });
    repaired(&mut world, Kind::Shard, "belongs to no spread directory; --repair removes it");
}

#[test]
fn an_entry_in_its_directory_s_slot_goes_to_that_of_its_hash() {
    let mut world = World::spread();
    let (path, dir) = spread_dir(&world);
    let name = (0..3)
        .map(|k| format!("f{k}"))
        .find(|name| slot_of_hash(entry_hash(dir, name.as_bytes()), 64) != dir.slot());
    let name = name.unwrap();
    let (slot, key) = (slot_of_hash(entry_hash(dir, name.as_bytes()), 64), dentry_key(dir, &name));
    let mut value = Vec::new();
    world.damage(slot, |txn| {
        value = txn.get(slot, &key).unwrap().to_vec();
        txn.delete(slot, &key);
    });
    world.damage(dir.slot(), |txn| txn.put(dir.slot(), &key, &value));
    repaired(&mut world, Kind::Misplaced, &format!("{path}/{name}: is on node"));
}

#[test]
fn a_lost_spread_directory_is_made_anew() {
    let mut world = World::spread();
    let (path, dir) = spread_dir(&world);
    world.remove_inode(dir);
    repaired(&mut world, Kind::MissingInode, &format!("{path}: leads to inode {dir}"));
}
