//! Records that are damaged in a way that no checksum shows: reading them ends, and what is accepted is consistent.

use bivouac_types::{
    Attr, ClientId, Contract, Ino, Layout, PartitionId, Placement, TargetIndex, Timestamp, mode,
};
use bivouac_wire::{Decode, Encode, LockKind, Origin, SiteVersion, Whence};

use crate::intent_record::{Cut, Intent, Move, NewDir, NewPartition, OldEntry};
use crate::mutate::Mutator;
use crate::record::{
    Act, CompletedOp, Dentry, FoldedShards, Garbage, GivenAttrs, Inode, PutContent, Shard, SiteFile,
    SubfileOrigin, act_key, dentry_of_key, ino_of_act_key, ino_of_site_key, lock_key, lock_of_key, marks_key,
    marks_of_key, number_of_key, site_key,
};
use crate::testing::{logged, reread};

const LAYOUT: Layout = Layout { stripe: 1 << 20, width: 2, base: TargetIndex(1), targets: 2 };
const INO: Ino = Ino(0x0001_0000_0000_002f);

fn inode() -> Inode {
    let time = Timestamp { secs: 1_700_000_000, nanos: 5 };
    let (uid, gid, contract) = (1000, 100, Some(Contract::Session));
    let attr = Attr { uid, gid, epoch: 3, contract, ..Attr::new(INO, mode::DIR | 0o755, LAYOUT, time) };
    Inode { attr, parent: Ino::ROOT, placement: Some(Placement::Local) }
}

/// Checks that a value that decodes is encoded to one that decodes to the same.
fn consistent<T: for<'a> Decode<'a> + Encode>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        let again = value.to_bytes();
        assert!(T::from_bytes(&again).is_ok_and(|value| value.to_bytes() == again));
    }
}

#[test]
fn records() {
    let (dentry, done) = (Dentry { ino: INO, kind: mode::FILE }, CompletedOp { op: 1, value: 2 });
    let garbage = Garbage { layout: LAYOUT };
    let shard = Shard { sealed: Some((ClientId(1), 2)), ..Shard::empty(inode().inherited(), 7) };
    let lock = lock_key(INO, (LockKind::Whole, ClientId(7), 8), 9).to_vec();
    let seen = SiteVersion { size: 3, mtime: Timestamp { secs: 4, nanos: 5 }, tag: "6".to_owned() };
    let origin = Some(Origin { path: b"a/b".to_vec(), seen: seen.clone() });
    let whence = Whence { origin, limit: 3, layout: LAYOUT, pin: 1 };
    let held = SubfileOrigin { whence, epoch: 1 }.to_bytes();
    let former = vec![(Ino(1), b"c".to_vec()), (Ino(2), b"d".to_vec())];
    let site =
        SiteFile { former, ..SiteFile::brought((Ino(1), b"b"), b"a/b".to_vec(), seen, false) }.to_bytes();
    let given = Some(GivenAttrs { perm: 0o600, uid: 1, gid: 2, mtime: Timestamp { secs: 4, nanos: 5 } });
    let (path, token, tag, seen) = (b"a/b".to_vec(), "t".to_owned(), "6".to_owned(), None);
    let (partition, dir, force) = (PartitionId(1), Ino(1), false);
    let put = Some(PutContent { size: 7, mtime: Timestamp { secs: 4, nanos: 5 } });
    let act = Act { partition, dir, path, token, tag, seen, force, given, put }.to_bytes();
    let small =
        [dentry.to_bytes(), done.to_bytes(), garbage.to_bytes(), FoldedShards { versions: 3 }.to_bytes()];
    let seeds = [&small[..], &[inode().to_bytes(), shard.to_bytes(), lock, held, site, act]].concat();
    Mutator::new(seeds).each(100_000, |bytes| {
        consistent::<Inode>(bytes);
        consistent::<Dentry>(bytes);
        consistent::<CompletedOp>(bytes);
        consistent::<Garbage>(bytes);
        consistent::<Shard>(bytes);
        consistent::<FoldedShards>(bytes);
        consistent::<SubfileOrigin>(bytes);
        consistent::<SiteFile>(bytes);
        consistent::<Act>(bytes);
        assert!(ino_of_act_key(bytes).is_none_or(|ino| act_key(ino)[1..] == bytes[1..]));
        if let Some((ino, target, block)) = marks_of_key(bytes) {
            assert_eq!(marks_key(ino, target, block)[1..], bytes[1..]);
        }
        assert!(ino_of_site_key(bytes).is_none_or(|ino| site_key(ino)[1..] == bytes[1..]));
        if let Some((_, name)) = dentry_of_key(bytes) {
            assert!(bytes.ends_with(name));
        }
        if let Some((ino, owner, start)) = lock_of_key(bytes) {
            assert_eq!(lock_key(ino, owner, start)[1..], bytes[1..]);
        }
        assert!(number_of_key(bytes).is_none() || bytes.len() == 9);
    });
}

#[test]
fn intents() {
    let old = OldEntry { parent: Ino::ROOT, name: b"name".to_vec(), ino: INO };
    let moved = Move {
        parent: Ino::ROOT,
        name: b"from".to_vec(),
        new_parent: INO,
        new_name: b"to".to_vec(),
        ino: INO,
        kind: mode::FILE,
        replaced: Some(INO),
        replaced_kind: mode::FILE,
        expect_version: Some(7),
        exchange: false,
        turn: 7,
        partition: PartitionId(3),
    };
    let contract = Some(Contract::Strict);
    let cut = Cut { ino: INO, size: 5, epoch: 6, layout: LAYOUT, new_layout: LAYOUT, contract };
    let intents = [
        Intent::MakeDir(NewDir { name: b"new".to_vec(), inode: inode(), site: None }),
        Intent::RemoveDir(old.clone()),
        Intent::Unlink(old.clone()),
        Intent::Rename(Move { exchange: true, ..moved.clone() }),
        Intent::Spread(INO),
        Intent::Inherit(INO),
        Intent::MakePartition(NewPartition { id: PartitionId(3), dir: INO }),
        Intent::Link(old),
        Intent::Rename(moved),
        Intent::Cut(cut),
    ];
    Mutator::new(intents.map(logged).to_vec()).each(100_000, |bytes| {
        if let Ok(again) = reread(bytes) {
            assert_eq!(reread(&again).as_ref(), Ok(&again));
        }
    });
}
