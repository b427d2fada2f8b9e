//! A formation with something of everything in it, and ways to damage it.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../../node/tests/it/formation/mod.rs"]
pub mod formation;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bivouac_client::{Client, NewInode};
use bivouac_fsck::{Kind, OfflineArgs, RepairOptions, Report, check_offline};
use bivouac_layout::entry_hash;
use bivouac_node::record::{Dentry, Inode, hashed_key, inode_key};
use bivouac_store::{DirVolume, Records, RecordsOptions, Txn};
use bivouac_types::{Ino, NodeId, SetAttr, Slot, mode};
use bivouac_wire::{Decode, Encode};
use formation::{Formation, op};

pub const NODES: u16 = 3;
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

/// Content that says where it is from.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 7 + i / 251) % 256) as u8).collect()
}

/// A stopped formation and what is in it.
pub struct World {
    pub formation: Formation,
    /// Path, inode and content of all files.
    pub files: BTreeMap<String, (Ino, Vec<u8>)>,
    pub dirs: BTreeMap<String, Ino>,
    pub link: Ino,
}

/// Key of an entry.
pub fn dentry_key(dir: Ino, name: &str) -> Vec<u8> {
    hashed_key(dir, entry_hash(dir, name.as_bytes()), name.as_bytes())
}

pub fn make_file(client: &Client, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let ino = client.create(&op(client), dir, name.as_bytes(), &FILE, true, false).unwrap().attr.ino;
    client.write(&op(client), ino, 0, content, false).unwrap();
    client.close(ino);
    ino
}

impl World {
    /// Files over all nodes, one of them with two names, one that was cut; directories in directories; a link.
    pub fn new() -> World {
        World::of(Formation::new(NODES, 4096))
    }

    /// The same where all directories but the root's last are spread.
    pub fn spread() -> World {
        let world = World::of(Formation::spreading(NODES));
        assert_eq!(world.check(false).exit_code(), 0);
        world
    }

    fn of(mut formation: Formation) -> World {
        let (mut files, mut dirs) = (BTreeMap::new(), BTreeMap::new());
        let client = &formation.clients[0];
        for (path, parent, name) in
            [("/a", "", "a"), ("/b", "", "b"), ("/a/c", "/a", "c"), ("/a/c/d", "/a/c", "d")]
        {
            let parent = dirs.get(parent).copied().unwrap_or(Ino::ROOT);
            let made = client.mknod(&op(client), parent, name.as_bytes(), &DIR).unwrap();
            dirs.insert(path.to_owned(), made.ino);
        }
        let all: Vec<(String, Ino)> = dirs.iter().map(|(path, ino)| (path.clone(), *ino)).collect();
        for (at, (path, dir)) in all.iter().enumerate() {
            for k in 0..3 {
                let content = pattern(3000 + 9000 * k + at, at * 10 + k);
                let ino = make_file(client, *dir, &format!("f{k}"), &content);
                files.insert(format!("{path}/f{k}"), (ino, content));
            }
        }
        let (cut, mut content) = files["/b/f2"].clone();
        client.setattr(&op(client), cut, &SetAttr { size: Some(15_000), ..SetAttr::default() }).unwrap();
        content.truncate(15_000);
        files.insert("/b/f2".into(), (cut, content));
        let twice = files["/a/f1"].clone();
        client.link(&op(client), twice.0, dirs["/b"], b"again").unwrap();
        files.insert("/b/again".into(), twice);
        client.setxattr(&op(client), files["/a/f0"].0, b"user.colour", b"red", 0).unwrap();
        let new = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"../b/f0" };
        let link = client.mknod(&op(client), dirs["/a"], b"link", &new).unwrap().ino;
        formation.stop();
        World { formation, files, dirs, link }
    }

    pub fn file(&self, path: &str) -> Ino {
        self.files[path].0
    }

    pub fn dir(&self, path: &str) -> Ino {
        self.dirs[path]
    }

    pub fn args(&self, repair: bool) -> OfflineArgs {
        let volumes: Vec<PathBuf> = (0..NODES).map(|node| self.formation.volume(node)).collect();
        OfflineArgs { volumes, map: Some((**self.formation.map()).clone()), repair, compare: false }
    }

    pub fn check(&self, repair: bool) -> Report {
        check_offline(&self.args(repair), RepairOptions::default(), &()).unwrap()
    }

    pub fn home(&self, slot: Slot) -> NodeId {
        self.formation.map().slot_node(slot).unwrap()
    }

    /// Changes records of a slot, as nobody should.
    pub fn damage(&self, slot: Slot, change: impl FnOnce(&mut Txn<'_>)) {
        let node = self.home(slot);
        self.damage_at(node, slot, change);
    }

    /// The same on any node.
    pub fn damage_at(&self, node: NodeId, slot: Slot, change: impl FnOnce(&mut Txn<'_>)) {
        let (volume, identity) = DirVolume::open_existing(&self.formation.volume(node.0)).unwrap();
        let options = RecordsOptions { slots: 64, ..RecordsOptions::default() };
        let records =
            Records::open(std::sync::Arc::new(volume), identity.formation, node, options).unwrap().0;
        let mut txn = records.txn(&[slot]);
        change(&mut txn);
        txn.commit().unwrap();
    }

    pub fn edit_inode(&self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        self.damage(ino.slot(), |txn| {
            let mut inode = Inode::from_bytes(txn.get(ino.slot(), &inode_key(ino)).unwrap()).unwrap();
            change(&mut inode);
            txn.put(ino.slot(), &inode_key(ino), &inode.to_bytes());
        });
    }

    pub fn remove_inode(&self, ino: Ino) {
        self.damage(ino.slot(), |txn| txn.delete(ino.slot(), &inode_key(ino)));
    }

    pub fn put_entry(&self, parent: Ino, name: &str, dentry: Dentry) {
        let key = dentry_key(parent, name);
        self.damage(parent.slot(), |txn| txn.put(parent.slot(), &key, &dentry.to_bytes()));
    }

    pub fn remove_entry(&self, parent: Ino, name: &str) {
        let key = dentry_key(parent, name);
        self.damage(parent.slot(), |txn| txn.delete(parent.slot(), &key));
    }

    /// Where the subfile of a file on a target is.
    pub fn subfile(&self, ino: Ino, target: u16) -> PathBuf {
        self.formation.volume(target).join(format!("{:02x}/{:016x}-{target:04x}", ino.0 & 0xff, ino.0))
    }

    /// A target on which the file has a subfile with data.
    pub fn target_of(&self, ino: Ino) -> u16 {
        let has = |target: &u16| self.subfile(ino, *target).metadata().is_ok_and(|meta| meta.len() > 4096);
        (0..NODES).find(has).unwrap()
    }

    /// Starts the formation, sees that all files but some have their content, and stops it.
    pub fn assert_content_but(&mut self, lost: &[&str]) {
        self.formation.start();
        let client = &self.formation.clients[1];
        for (path, (ino, content)) in &self.files {
            if !lost.contains(&path.as_str()) {
                let attr = client.resolve(path.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e}"));
                assert_eq!(attr.ino, *ino, "{path}");
                assert_eq!(read(client, attr.ino), *content, "{path}");
            }
        }
        self.formation.stop();
    }

    /// The content of a path, which must be there.
    pub fn content(&mut self, path: &str) -> Vec<u8> {
        self.formation.start();
        let client = &self.formation.clients[2];
        let attr = client.resolve(path.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e}"));
        let content = read(client, attr.ino);
        self.formation.stop();
        content
    }
}

fn read(client: &Client, ino: Ino) -> Vec<u8> {
    let mut back = vec![0; 100_000];
    let len = client.read(ino, 0, &mut back).unwrap();
    back.truncate(len);
    back
}

/// The kinds that were found, each once.
pub fn kinds(report: &Report) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
