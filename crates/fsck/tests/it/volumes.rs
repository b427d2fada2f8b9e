//! Volumes that are not all there, that a daemon has, whose records are damaged, and files from subfiles alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use crate::world::{World, dentry_key, kinds};
use bivouac_fsck::{
    Destination, Kind, RebuildResult, RebuiltFile, RepairOptions, check_offline, rebuild_files,
};
use bivouac_node::record::inode_key;
use bivouac_types::Errno;

fn log_of(world: &World, node: u16) -> PathBuf {
    world.formation.volume(node).join("records/log-0000000000000001")
}

#[test]
fn a_volume_that_a_daemon_has_is_refused() {
    let mut world = World::new();
    world.formation.start();
    let error = check_offline(&world.args(true), RepairOptions::default(), &()).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    assert!(error.to_string().contains("in use by another daemon"), "{error}");
    world.formation.stop();
}

#[test]
fn volumes_that_are_missing_are_named_and_the_rest_is_checked() {
    let world = World::new();
    let mut args = world.args(false);
    args.volumes.remove(1);
    let report = check_offline(&args, RepairOptions::default(), &()).unwrap();
    assert_eq!(report.unchecked, ["volume 0 of node 1 was not given", "the records of node 1 are not there"]);
    assert!(report.findings.is_empty(), "{report:#?}");
    assert_eq!(report.exit_code(), 8);
    let here = |ino: &bivouac_types::Ino| ino.slot().0 % 3 != 1;
    let ino = world.files.values().map(|(ino, _)| *ino).find(here).unwrap();
    world.edit_inode(ino, |inode| inode.attr.size = 1 << 40);
    world.edit_inode(bivouac_types::Ino::ROOT, |inode| inode.attr.size = 9);
    let report = check_offline(&args, RepairOptions::default(), &()).unwrap();
    assert_eq!((report.exit_code(), kinds(&report)), (12, vec![Kind::EntryCount]), "{report:#?}");
}

#[test]
fn one_volume_named_twice_is_refused() {
    let world = World::new();
    let mut args = world.args(false);
    args.volumes.push(args.volumes[0].clone());
    let error = check_offline(&args, RepairOptions::default(), &()).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY, "the first holds it: {error}");
}

#[test]
fn a_torn_last_commit_is_dropped_without_a_word() {
    let world = World::new();
    let log = log_of(&world, 1);
    let len = log.metadata().unwrap().len();
    std::fs::File::options().write(true).open(&log).unwrap().write_all_at(&[0x17, 0, 0], len).unwrap();
    let report = world.check(false);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
    assert_eq!(log.metadata().unwrap().len(), len + 3, "a look changes nothing");
    assert_eq!(world.check(true).exit_code(), 0);
    assert_eq!(log.metadata().unwrap().len(), len);
}

#[test]
fn one_flipped_bit_of_a_log_is_said_and_a_repair_loses_nothing() {
    // S312
    let mut world = World::new();
    let log = log_of(&world, 1);
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[400] ^= 4;
    std::fs::write(&log, &bytes).unwrap();
    let report = world.check(false);
    assert_eq!((report.exit_code(), kinds(&report)), (12, vec![Kind::Records]), "{report:#?}");
    let text = report.findings[0].to_string();
    assert!(text.contains("damaged at byte ") && text.contains("--repair keeps what is sound"), "{text}");
    assert_eq!(std::fs::read(&log).unwrap(), bytes, "a look changes nothing");
    let report = world.check(true);
    assert_eq!((report.exit_code(), kinds(&report)), (1, vec![Kind::Records]), "{report:#?}");
    let text = report.findings[0].to_string();
    assert!(text.contains("1 flipped bits corrected, nothing is lost"), "{text}");
    let kept = log.with_file_name(format!("damaged-{}", log.file_name().unwrap().display()));
    assert_eq!(std::fs::read(kept).unwrap(), bytes, "the damaged log is kept");
    assert_eq!(world.check(true).exit_code(), 0);
    world.assert_content_but(&[]);
}

#[test]
fn damage_in_the_middle_of_a_log_takes_no_more_than_its_commits() {
    // S312
    for (node, at) in [(0, 300), (1, 300), (2, 900), (1, 2500)] {
        let mut world = World::new();
        let log = log_of(&world, node);
        std::fs::File::options().write(true).open(&log).unwrap().write_all_at(&[0xaa; 40], at).unwrap();
        let report = world.check(true);
        let told = report.findings.iter().find(|finding| finding.kind == Kind::Records).unwrap().to_string();
        assert!(told.contains("lost are ") && told.contains("damaged-*"), "{told}");
        assert_eq!(report.exit_code(), 1, "node {node}, byte {at}: {report:#?}");
        let again = world.check(true);
        assert_eq!(again.exit_code(), 0, "node {node}, byte {at}: {again:#?}");
        // Whatever a name leads to has its content; and most names are there.
        world.formation.start();
        let client = &world.formation.clients[1];
        let found = world.files.iter().filter(|(path, (ino, content))| {
            let Ok(attr) = client.resolve(path.as_bytes()) else { return false };
            let mut back = vec![0; 100_000];
            let len = client.read(attr.ino, 0, &mut back).unwrap();
            attr.ino == *ino && back[..len] == content[..]
        });
        let (found, all) = (found.count(), world.files.len());
        assert!(found + 4 >= all, "node {node}, byte {at}: {found} of {all} files; {told}");
        world.formation.stop();
    }
}

/// S347.
#[test]
fn what_damage_took_the_name_of_is_found_again_under_it() {
    let mut world = World::new();
    let (ino, content) = world.files["/b/f1"].clone();
    let dir = world.dir("/b");
    let log = log_of(&world, world.home(dir.slot()).0);
    let mut bytes = std::fs::read(&log).unwrap();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|part| part == what).unwrap();
    find(&bytes, &dentry_key(dir, "f1"));
    // The commit that made the file: its entry can still be read, and nothing vouches for it.
    let at = find(&bytes, &inode_key(ino));
    bytes[at + 30..at + 33].iter_mut().for_each(|byte| *byte ^= 0xff);
    std::fs::write(&log, &bytes).unwrap();
    let report = world.check(true);
    let says = format!(
        "--repair links it as /lost+found/f1.{ino} (by what is left of the damaged records it was in /b)"
    );
    let found = report.findings.iter().find(|finding| finding.to_string().contains(&says));
    assert_eq!(found.map(|finding| finding.kind), Some(Kind::Unreachable), "{report:#?}");
    assert_eq!((report.exit_code(), world.check(true).exit_code()), (1, 0), "{report:#?}");
    world.assert_content_but(&["/b/f1"]);
    assert_eq!(world.content(&format!("/lost+found/f1.{ino}")), content);
}

/// S347: where nothing else is known, the directory is that the file was made in.
#[test]
fn what_lost_its_name_is_said_with_where_it_was() {
    let world = World::new();
    let ino = world.file("/b/f1");
    world.remove_entry(world.dir("/b"), "f1");
    let says = format!("links it as /lost+found/{ino} (it was made in /b)");
    let report = world.check(false);
    assert!(report.findings.iter().any(|finding| finding.to_string().contains(&says)), "{report:#?}");
}

/// Files in memory.
#[derive(Default)]
struct Shelf(RefCell<BTreeMap<String, Rc<RefCell<Vec<u8>>>>>);

struct OnShelf(Rc<RefCell<Vec<u8>>>);

impl Destination for Shelf {
    fn create(&self, name: &str) -> io::Result<Box<dyn RebuiltFile>> {
        let file = Rc::<RefCell<Vec<u8>>>::default();
        assert!(self.0.borrow_mut().insert(name.into(), file.clone()).is_none());
        Ok(Box::new(OnShelf(file)))
    }
}

impl RebuiltFile for OnShelf {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut content, offset) = (self.0.borrow_mut(), offset as usize);
        let len = content.len().max(offset + bytes.len());
        content.resize(len, 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self, size: u64) -> io::Result<()> {
        self.0.borrow_mut().resize(size as usize, 0);
        Ok(())
    }
}

fn of<'a>(rebuilt: &'a [RebuildResult], ino: &bivouac_types::Ino) -> &'a RebuildResult {
    rebuilt.iter().find(|file| file.inode == ino.to_string()).unwrap()
}

#[test]
fn files_come_back_from_subfiles_alone() {
    let world = World::new();
    for node in 0..crate::world::NODES {
        std::fs::remove_dir_all(world.formation.volume(node).join("records")).unwrap();
    }
    let shelf = Shelf::default();
    let (rebuilt, unusable) = rebuild_files(&world.args(false).volumes, &shelf, &()).unwrap();
    assert!(unusable.is_empty());
    let inos: std::collections::BTreeSet<_> = world.files.values().map(|(ino, _)| *ino).collect();
    assert_eq!(rebuilt.len(), inos.len());
    for (path, (ino, content)) in &world.files {
        let file = of(&rebuilt, ino);
        assert!(
            file.complete && file.conflicts.is_empty() && file.size == content.len() as u64,
            "{path}: {file:?}"
        );
        assert_eq!(*shelf.0.borrow()[&ino.to_string()].borrow(), *content, "{path}");
    }
}

#[test]
fn what_is_missing_is_said_target_by_target() {
    let world = World::new();
    let (ino, content) = world.files["/b/f2"].clone();
    let mut volumes = world.args(false).volumes;
    volumes.remove(2);
    let shelf = Shelf::default();
    let (rebuilt, _) = rebuild_files(&volumes, &shelf, &()).unwrap();
    let file = of(&rebuilt, &ino);
    assert_eq!((file.complete, file.missing_targets.as_slice()), (false, &[2][..]));
    let back = shelf.0.borrow()[&ino.to_string()].borrow().clone();
    let lost = back.iter().zip(&content).filter(|(is, was)| is != was).count();
    assert!(back.len() <= content.len() && lost > 0, "{lost}");
    let stripes = |bytes: &[u8]| bytes.chunks(4096).map(<[u8]>::to_vec).collect::<Vec<_>>();
    for (is, was) in stripes(&back).iter().zip(stripes(&content)) {
        assert!(is.iter().all(|byte| *byte == 0) || was.starts_with(is), "a stripe is whole or missing");
    }
}

#[test]
fn headers_that_disagree_are_said_and_left_out() {
    let world = World::new();
    let (ino, _) = world.files["/b/f2"].clone();
    let target = world.target_of(ino);
    let path = world.subfile(ino, target);
    let mut header =
        bivouac_wire::subfile::SubfileHeader::from_bytes(&crate::world::formation::first_page(&path))
            .unwrap();
    header.layout.stripe = 8192;
    header.trim_epoch = 0;
    std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&header.to_bytes(), 0).unwrap();
    let damaged = world.file("/a/f2");
    let broken = world.subfile(damaged, world.target_of(damaged));
    std::fs::File::options().write(true).open(&broken).unwrap().write_all_at(b"junk", 0).unwrap();
    let (rebuilt, unusable) = rebuild_files(&world.args(false).volumes, &Shelf::default(), &()).unwrap();
    let file = of(&rebuilt, &ino);
    assert!(!file.complete && file.conflicts[0].contains("left out; the others say"), "{file:?}");
    assert!(unusable.len() == 1 && unusable[0].contains("not a bivouac subfile"), "{unusable:?}");
}
