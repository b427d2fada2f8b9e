//! The records of a create as the node writes them: inode, entry, the directory's own inode, and what was done.

use bivouac_layout::{dir_slot, entry_hash};
use bivouac_node::record::{CompletedOp, Dentry, Inode, dentry_prefix, done_key, hashed_key, inode_key};
use bivouac_types::{Attr, ClientId, Ino, Layout, Name, NodeId, Placement, TargetIndex, Slot, Timestamp, mode};
use bivouac_wire::Encode;

/// Files that are made: half a million, so a million records.
pub const CREATES: u64 = 500_000;
/// Directories that they are made in.
pub const DIRS: u64 = 1000;
/// Slots, as a formation has them.
pub const SLOTS: u16 = 1024;

/// A record's slot and key.
pub type Key = (u16, Vec<u8>);

/// What one create writes.
pub fn create(number: u64) -> Vec<(Key, Vec<u8>)> {
    let (dir, ino, name) = (dir_of(number), ino_of(number), name_of(number));
    let slot = dir.slot().0;
    let dentry = Dentry { ino, kind: mode::FILE };
    let done = CompletedOp { op: number, value: ino.0 };
    let client = ClientId(number % 4);
    vec![
        ((slot, inode_key(ino).to_vec()), inode(ino, dir, mode::FILE | 0o644, 0).to_bytes()),
        ((slot, hashed_key(dir, entry_hash(dir, name.as_bytes()), name.as_bytes())), dentry.to_bytes()),
        ((slot, inode_key(dir).to_vec()), inode(dir, Ino::ROOT, mode::DIR | 0o755, number / DIRS + 1).to_bytes()),
        ((slot, done_key(client, (number % 16) as u16, 0).to_vec()), done.to_bytes()),
    ]
}

pub fn dentry_key_of(number: u64) -> Key {
    let dir = dir_of(number);
    (dir.slot().0, hashed_key(dir, entry_hash(dir, name_of(number).as_bytes()), name_of(number).as_bytes()))
}

pub fn inode_key_of(number: u64) -> Key {
    (dir_of(number).slot().0, inode_key(ino_of(number)).to_vec())
}

/// What the keys of a directory's entries begin with.
pub fn entries_prefix(dir: u64) -> Key {
    let dir = directory(dir);
    (dir.slot().0, dentry_prefix(dir).to_vec())
}

fn directory(number: u64) -> Ino {
    let slot = dir_slot(Ino::ROOT, format!("dir{number}").as_bytes(), SLOTS);
    Ino::new(slot, NodeId(0), 16 + number)
}

fn dir_of(number: u64) -> Ino {
    directory(number % DIRS)
}

fn ino_of(number: u64) -> Ino {
    Ino::new(Slot(dir_of(number).slot().0), NodeId(0), 16 + DIRS + number)
}

fn name_of(number: u64) -> Name {
    let name = Name::new(format!("file.{number:08}.dat").as_bytes()).unwrap();
    debug_assert_ne!(entry_hash(dir_of(number), name.as_bytes()), 0);
    name
}

fn inode(ino: Ino, parent: Ino, mode: u32, size: u64) -> Inode {
    let time = Timestamp { secs: 1_700_000_000, nanos: (ino.0 % 1_000_000_000) as u32 };
    let layout = Layout { stripe: 1 << 20, width: 4, base: TargetIndex((ino.0 % 4) as u16), targets: 4 };
    let (atime, mtime, ctime) = (time, time, time);
    let attr = Attr {
        ino, mode, nlink: 1, uid: 1000, gid: 100, rdev: 0, size, atime, mtime, ctime, epoch: 0, layout,
    };
    Inode { attr, parent, placement: Placement::Striped }
}

/// Numbers that look random, the same in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % below
    }
}
