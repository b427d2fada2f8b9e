//! Every invariant broken in turn, found by name, repaired, and everything else still there.

use crate::world::formation::first_page;
use crate::world::{World, kinds};
use bivouac_fsck::{Kind, Outcome, RepairOptions, Report, check_offline};
use bivouac_node::record::{
    ALLOCATOR_KEY, Dentry, Garbage, garbage_key, inode_key, orphan_key, target_key, xattr_key,
};
use bivouac_types::{Ino, Layout, NodeId, Slot, TargetIndex, mode};
use bivouac_wire::Encode;
use std::os::unix::fs::FileExt;

/// Damages, sees that a look finds exactly this kind and changes nothing, that a repair sets it right, that nothing is
/// found afterwards, and that everything but `lost` is as before.
fn repaired(world: &mut World, kind: Kind, says: &str, lost: &[&str]) -> Report {
    for _ in 0..2 {
        let found = world.check(false);
        assert_finding(&found, kind, says);
        assert_eq!(found.exit_code(), 4, "{found:#?}");
        assert!(found.findings.iter().all(|finding| finding.outcome == Outcome::Repairable), "{found:#?}");
    }
    let report = world.check(true);
    assert_finding(&report, kind, says);
    assert_eq!(report.exit_code(), 1, "{report:#?}");
    assert_clean(world);
    world.assert_content_but(lost);
    assert_clean(world);
    report
}

fn assert_finding(report: &Report, kind: Kind, says: &str) {
    let text = |finding: &bivouac_fsck::Finding| finding.kind == kind && finding.to_string().contains(says);
    assert!(report.findings.iter().any(text), "{kind:?} '{says}' is not in {report:#?}");
}

fn assert_clean(world: &World) {
    let report = world.check(true);
    assert!(report.findings.is_empty() && report.exit_code() == 0, "{report:#?}");
}

#[test]
fn a_sound_formation_has_no_findings_and_stays_as_it_is() {
    let mut world = World::new();
    let report = world.check(false);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
    assert_eq!((report.totals.inodes, report.totals.directories, report.totals.entries), (18, 5, 18));
    assert_clean(&world);
    world.assert_content_but(&[]);
}

#[test]
fn an_entry_that_leads_nowhere_goes() {
    let mut world = World::new();
    let ghost = Ino::new(Slot(5), NodeId(1), 20);
    world.put_entry(world.dir("/a"), "ghost", Dentry { ino: ghost, kind: mode::FILE });
    world.edit_inode(world.dir("/a"), |inode| inode.attr.size += 1);
    let says = format!("/a/ghost: leads to inode {ghost}, which is not there; --repair removes the entry");
    repaired(&mut world, Kind::MissingInode, &says, &[]);
}

#[test]
fn a_file_whose_inode_is_lost_is_made_anew_from_its_subfiles() {
    let mut world = World::new();
    let ino = world.file("/a/c/f2");
    world.remove_inode(ino);
    let says = format!(
        "/a/c/f2: leads to inode {ino}, which is not there; --repair makes it anew from its subfiles"
    );
    repaired(&mut world, Kind::MissingInode, &says, &[]);
}

#[test]
fn a_file_with_two_names_whose_inode_is_lost_keeps_both() {
    let mut world = World::new();
    world.remove_inode(world.file("/a/f1"));
    repaired(&mut world, Kind::MissingInode, "/b/again: leads to inode", &[]);
}

#[test]
fn a_directory_whose_inode_is_lost_is_made_anew_with_its_entries() {
    let mut world = World::new();
    world.remove_inode(world.dir("/a/c"));
    repaired(&mut world, Kind::MissingInode, "/a/c: leads to inode", &[]);
}

#[test]
fn a_lost_root_is_made_anew() {
    let mut world = World::new();
    world.remove_inode(Ino::ROOT);
    repaired(&mut world, Kind::MissingInode, "root directory: is not there", &[]);
}

#[test]
fn a_link_count_is_counted_again() {
    let mut world = World::new();
    world.edit_inode(world.file("/a/f1"), |inode| inode.attr.nlink = 5);
    repaired(
        &mut world,
        Kind::LinkCount,
        "has a link count of 5, but 2 names; --repair corrects the count",
        &[],
    );
    world.edit_inode(world.dir("/a"), |inode| inode.attr.nlink = 2);
    repaired(&mut world, Kind::LinkCount, "/a: has a link count of 2, but 2 and 1 subdirectories", &[]);
}

#[test]
fn entries_are_counted_again() {
    let mut world = World::new();
    world.edit_inode(world.dir("/b"), |inode| inode.attr.size = 77);
    repaired(&mut world, Kind::EntryCount, "directory /b: says that it has 77 entries, there are 4", &[]);
}

#[test]
fn an_inode_that_no_name_leads_to_is_found_again() {
    let mut world = World::new();
    let (ino, content) = world.files["/b/f1"].clone();
    world.remove_entry(world.dir("/b"), "f1");
    let says = format!("file {ino}: no name leads to it; --repair links it as /lost+found/{ino}");
    repaired(&mut world, Kind::Unreachable, &says, &["/b/f1"]);
    assert_eq!(world.content(&format!("/lost+found/{ino}")), content);
}

#[test]
fn a_lost_directory_comes_back_with_what_is_below_it() {
    let mut world = World::new();
    let (ino, content) = (world.dir("/a/c"), world.files["/a/c/d/f1"].1.clone());
    world.remove_entry(world.dir("/a"), "c");
    let lost: Vec<String> = world.files.keys().filter(|path| path.starts_with("/a/c")).cloned().collect();
    let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
    repaired(&mut world, Kind::Unreachable, &format!("directory {ino}: no name"), &lost);
    assert_eq!(world.content(&format!("/lost+found/{ino}/d/f1")), content);
}

#[test]
fn lost_and_found_is_used_again() {
    let mut world = World::new();
    world.remove_entry(world.dir("/b"), "f1");
    world.check(true);
    world.remove_entry(world.dir("/b"), "f0");
    repaired(&mut world, Kind::Unreachable, "no name leads to it", &["/b/f0", "/b/f1"]);
    let (one, two) = (world.files["/b/f0"].clone(), world.files["/b/f1"].clone());
    for (ino, content) in [one, two] {
        assert_eq!(world.content(&format!("/lost+found/{ino}")), content);
    }
}

#[test]
fn an_inode_without_names_that_nobody_has_open_is_found_again() {
    let mut world = World::new();
    let (ino, content) = world.files["/b/f1"].clone();
    world.remove_entry(world.dir("/b"), "f1");
    world.edit_inode(world.dir("/b"), |inode| inode.attr.size -= 1);
    world.edit_inode(ino, |inode| inode.attr.nlink = 0);
    repaired(&mut world, Kind::Unreachable, "no name leads to it", &["/b/f1"]);
    assert_eq!(world.content(&format!("/lost+found/{ino}")), content);
}

#[test]
fn an_open_inode_without_names_is_explained() {
    let world = World::new();
    let ino = world.file("/b/f1");
    world.remove_entry(world.dir("/b"), "f1");
    world.edit_inode(world.dir("/b"), |inode| inode.attr.size -= 1);
    world.edit_inode(ino, |inode| inode.attr.nlink = 0);
    world.damage(ino.slot(), |txn| {
        txn.put(ino.slot(), &orphan_key(ino), &vec![bivouac_types::ClientId(7)].to_bytes());
    });
    let report = world.check(false);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
    assert!(report.notes.iter().any(|note| note.contains("stay until they are closed")), "{report:#?}");
}

#[test]
fn a_directory_that_names_another_parent_is_told_its_own() {
    let mut world = World::new();
    let (a, b) = (world.dir("/a"), world.dir("/b"));
    world.edit_inode(world.dir("/a/c"), |inode| inode.parent = b);
    let says = format!("directory /a/c: names {b} as its parent, its entry is in {a}");
    repaired(&mut world, Kind::ParentPointer, &says, &[]);
}

#[test]
fn a_directory_keeps_one_name() {
    let mut world = World::new();
    let c = world.dir("/a/c");
    world.put_entry(world.dir("/b"), "second", Dentry { ino: c, kind: mode::DIR });
    let says = format!("/b/second: is one of 2 names of directory {c}");
    repaired(&mut world, Kind::SeveralNames, &says, &[]);
}

#[test]
fn a_loop_is_opened() {
    let mut world = World::new();
    let (c, d, content) = (world.dir("/a/c"), world.dir("/a/c/d"), world.files["/a/c/d/f1"].1.clone());
    world.remove_entry(world.dir("/a"), "c");
    world.put_entry(d, "c", Dentry { ino: c, kind: mode::DIR });
    world.edit_inode(c, |inode| inode.parent = d);
    let lost: Vec<String> = world.files.keys().filter(|path| path.starts_with("/a/c")).cloned().collect();
    let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
    repaired(&mut world, Kind::Loop, "is in itself, 2 directories round, and not below the root", &lost);
    let first = c.min(d);
    let below = if first == c { "d/f1" } else { "f1" };
    assert_eq!(world.content(&format!("/lost+found/{first}/{below}")), content);
}

#[test]
fn an_entry_of_another_type_is_corrected() {
    let mut world = World::new();
    world.put_entry(world.dir("/a"), "f0", Dentry { ino: world.file("/a/f0"), kind: mode::FIFO });
    repaired(&mut world, Kind::WrongType, "/a/f0: says named pipe, its inode is a file", &[]);
}

#[test]
fn records_in_the_wrong_place_are_moved() {
    let mut world = World::new();
    let (ino, node) = (world.file("/a/f0"), NodeId(2));
    let slot = Slot((0..64).find(|slot| slot % 3 == 2 && Slot(*slot) != ino.slot()).unwrap());
    let mut record = Vec::new();
    world.damage(ino.slot(), |txn| {
        record = txn.get(ino.slot(), &inode_key(ino)).unwrap().to_vec();
        txn.delete(ino.slot(), &inode_key(ino));
    });
    world.damage_at(node, slot, |txn| txn.put(slot, &inode_key(ino), &record));
    repaired(&mut world, Kind::Misplaced, &format!("inode {ino} on node 2, slot {}", slot.0), &[]);
    let dir = world.dir("/a");
    let dentry = Dentry { ino: world.file("/a/f1"), kind: mode::FILE };
    world.remove_entry(dir, "f1");
    world
        .damage_at(node, slot, |txn| txn.put(slot, &crate::world::dentry_key(dir, "f1"), &dentry.to_bytes()));
    repaired(&mut world, Kind::Misplaced, "/a/f1: is on node 2 in slot", &[]);
}

#[test]
fn what_does_not_decode_is_removed_and_what_it_hid_is_rebuilt() {
    let mut world = World::new();
    let ino = world.file("/a/f2");
    world.damage(ino.slot(), |txn| txn.put(ino.slot(), &inode_key(ino), b"nonsense"));
    repaired(&mut world, Kind::Undecodable, &format!("inode {ino} on node"), &[]);
}

#[test]
fn attributes_targets_and_marks_of_nothing_go() {
    let mut world = World::new();
    let ghost = Ino::new(Slot(7), NodeId(1), 21);
    world.damage(ghost.slot(), |txn| {
        txn.put(ghost.slot(), &xattr_key(ghost, b"user.a"), b"x");
        txn.put(ghost.slot(), &xattr_key(ghost, b"user.b"), b"y");
        txn.put(ghost.slot(), &target_key(ghost), b"there");
        txn.put(ghost.slot(), &orphan_key(ghost), &Vec::<bivouac_types::ClientId>::new().to_bytes());
    });
    let report =
        repaired(&mut world, Kind::StrayXattr, &format!("extended attributes of inode {ghost}"), &[]);
    assert_eq!(kinds(&report), [Kind::Target, Kind::StrayXattr, Kind::StaleOrphan]);
}

#[test]
fn marks_that_would_remove_a_living_file_go() {
    let mut world = World::new();
    let ino = world.file("/a/f2");
    let layout = Layout { stripe: 4096, width: 3, base: TargetIndex(0), targets: 3 };
    world.damage(ino.slot(), |txn| {
        txn.put(ino.slot(), &garbage_key(ino), &Garbage { layout }.to_bytes());
        txn.put(ino.slot(), &orphan_key(ino), &Vec::<bivouac_types::ClientId>::new().to_bytes());
    });
    let report = repaired(
        &mut world,
        Kind::WrongGarbage,
        "/a/f2: its subfiles are marked for removal, but it is",
        &[],
    );
    assert_eq!(kinds(&report), [Kind::StaleOrphan, Kind::WrongGarbage]);
}

#[test]
fn a_link_says_how_long_its_target_is() {
    let mut world = World::new();
    world.edit_inode(world.link, |inode| inode.attr.size = 99);
    repaired(&mut world, Kind::Target, "symbolic link /a/link: has a target of another length", &[]);
    world.damage(world.link.slot(), |txn| txn.delete(world.link.slot(), &target_key(world.link)));
    let report = world.check(true);
    assert_eq!((report.exit_code(), kinds(&report)), (4, vec![Kind::Target]), "{report:#?}");
    assert!(
        report.findings[0].to_string().ends_with("the target is lost: remove the link, and make it again")
    );
}

#[test]
fn an_allocator_behind_its_numbers_is_put_before_them() {
    let mut world = World::new();
    let slot = Slot(0);
    world.damage(slot, |txn| txn.put(slot, ALLOCATOR_KEY, &16u64.to_bytes()));
    repaired(&mut world, Kind::FutureNumber, "allocator of node 0: would give out number 16 next", &[]);
}

#[test]
fn a_number_that_lost_and_found_takes_is_not_given_out_again() {
    let world = World::new();
    let slot = Slot(0);
    world.remove_entry(world.dir("/b"), "f1");
    world.damage(slot, |txn| txn.put(slot, ALLOCATOR_KEY, &16u64.to_bytes()));
    let report = world.check(true);
    assert_finding(&report, Kind::FutureNumber, "allocator of node 0: would give out number 16 next");
    assert_finding(&report, Kind::Unreachable, "no name leads to it");
    assert_clean(&world);
}

#[test]
fn a_damaged_header_is_written_anew() {
    let mut world = World::new();
    let ino = world.file("/a/f2");
    let target = world.target_of(ino);
    let file = std::fs::File::options().write(true).open(world.subfile(ino, target)).unwrap();
    file.write_all_at(&[0xff; 8], 40).unwrap();
    repaired(&mut world, Kind::BadHeader, "subfile header is damaged (checksum)", &[]);
}

#[test]
fn a_header_that_contradicts_its_file_is_written_anew() {
    let mut world = World::new();
    let (ino, other) = (world.file("/a/f2"), world.file("/b/f2"));
    let target = world.target_of(ino);
    // A header of the same file with another stripe.
    let path = world.subfile(ino, target);
    let mut header = bivouac_wire::subfile::SubfileHeader::from_bytes(&first_page(&path)).unwrap();
    header.layout.stripe = 8192;
    // Checksums of blocks lie behind it.
    let write = |header: &[u8]| {
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(header, 0).unwrap();
    };
    write(&header.to_bytes()[..header.own_len()]);
    repaired(&mut world, Kind::HeaderMismatch, "says layout ", &[]);
    // The header of another file.
    let alien = first_page(world.subfile(other, world.target_of(other)));
    write(&alien[..header.own_len()]);
    repaired(&mut world, Kind::BadHeader, &format!("header is of inode {other}"), &[]);
}

#[test]
fn an_epoch_ahead_of_its_file_is_taken_over() {
    let mut world = World::new();
    world.edit_inode(world.file("/b/f2"), |inode| inode.attr.epoch = 0);
    repaired(&mut world, Kind::EpochAhead, "has epoch 1, its file has 0", &[]);
}

#[test]
fn a_missing_subfile_is_named_and_left() {
    let mut world = World::new();
    let ino = world.file("/b/f2");
    let target = world.target_of(ino);
    std::fs::remove_file(world.subfile(ino, target)).unwrap();
    let report = world.check(true);
    assert_finding(
        &report,
        Kind::MissingSubfile,
        &format!("/b/f2: its subfile {:02x}/{ino}-{target:04x} was on volume", ino.0 & 0xff),
    );
    assert_eq!((report.exit_code(), kinds(&report)), (4, vec![Kind::MissingSubfile]));
    world.assert_content_but(&["/b/f2"]);
}

#[test]
fn subfiles_of_no_file_become_one() {
    let mut world = World::new();
    let (ino, content) = world.files["/a/f2"].clone();
    world.remove_entry(world.dir("/a"), "f2");
    world.remove_inode(ino);
    world.edit_inode(world.dir("/a"), |inode| inode.attr.size -= 1);
    let says = format!("belongs to no file; --repair makes its file anew as /lost+found/{ino}");
    repaired(&mut world, Kind::Unreferenced, &says, &["/a/f2"]);
    assert_eq!(world.content(&format!("/lost+found/{ino}")), content);
}

#[test]
fn subfiles_of_no_file_are_removed_if_told_so() {
    let mut world = World::new();
    let ino = world.file("/a/f2");
    world.remove_entry(world.dir("/a"), "f2");
    world.remove_inode(ino);
    world.edit_inode(world.dir("/a"), |inode| inode.attr.size -= 1);
    let target = world.target_of(ino);
    let leave = RepairOptions { discard_unreferenced: true };
    let report = check_offline(&world.args(true), leave, &()).unwrap();
    assert_eq!(report.exit_code(), 1, "{report:#?}");
    assert!(!world.subfile(ino, target).exists());
    assert_clean(&world);
    world.assert_content_but(&["/a/f2"]);
}

#[test]
fn a_subfile_of_no_file_with_a_damaged_header_is_left_unless_told_so() {
    let world = World::new();
    let ino = Ino::new(Slot(9), NodeId(1), 22);
    let path = world.subfile(ino, 1);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, [5; 5000]).unwrap();
    let report = world.check(true);
    assert_eq!((report.exit_code(), kinds(&report)), (4, vec![Kind::Unreferenced]), "{report:#?}");
    assert!(path.exists());
    let report = check_offline(&world.args(true), RepairOptions { discard_unreferenced: true }, &()).unwrap();
    assert_eq!((report.exit_code(), path.exists()), (1, false), "{report:#?}");
    assert_clean(&world);
}

#[test]
fn a_subfile_on_another_volume_is_named_and_left() {
    let world = World::new();
    let ino = world.file("/a/f2");
    let target = world.target_of(ino);
    let other = (target + 1) % crate::world::NODES;
    let name = format!("{:02x}/{:016x}-{target:04x}", ino.0 & 0xff, ino.0);
    let path = world.formation.volume(other).join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::rename(world.subfile(ino, target), &path).unwrap();
    let report = world.check(true);
    assert_finding(
        &report,
        Kind::MisplacedSubfile,
        &format!("is of target {target}, which is volume 0 of node {target}"),
    );
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn many_things_at_once_are_set_right_in_one_go() {
    let mut world = World::new();
    world.remove_inode(world.dir("/a/c"));
    world.remove_inode(world.file("/b/f0"));
    world.edit_inode(world.file("/a/f1"), |inode| inode.attr.nlink = 9);
    world.remove_entry(world.dir("/b"), "f1");
    world.put_entry(
        world.dir("/b"),
        "ghost",
        Dentry { ino: Ino::new(Slot(5), NodeId(1), 20), kind: mode::DIR },
    );
    let report = repaired(&mut world, Kind::LinkCount, "but 2 names", &["/b/f1"]);
    assert!(report.findings.len() >= 5, "{report:#?}");
}
