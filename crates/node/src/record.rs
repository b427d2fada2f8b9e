//! The records of the namespace: keys and values. Documented in docs/format.md.
//!
//! Keys begin with one letter for the table. Numbers in keys are big-endian, so that order of keys is
//! order of numbers; a directory's entries are in the order of their name's hash, which is also the
//! cookie of a listing: it stays good while entries come and go.

use bivouac_types::limits::NAME_LEN_MAX;
use bivouac_types::{
    Attr, ClientId, Ino, Layout, NodeId, PartitionId, Placement, TargetIndex, Timestamp, mode,
};
use bivouac_wire::{
    Decode, DecodeError, Encode, Inherited, LockKind, Origin, Reader, SiteVersion, Whence, codec_struct,
};

/// Bytes in front of the hash in an entry's key.
const DENTRY_HASH_AT: usize = 9;
/// Bytes in front of the name in an entry's key.
pub const DENTRY_NAME_AT: usize = 17;
/// Length of a locked range's key.
const LOCK_KEY_LEN: usize = 34;

/// An inode: `I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes.
    pub attr: Attr,
    /// For a directory the directory that holds it; otherwise the one it was made in.
    pub parent: Ino,
    /// For a directory the rule for its new files; none leaves that and the layout to its partition.
    pub placement: Option<Placement>,
}
codec_struct!(Inode { attr, parent, placement });

/// A directory's entry: `D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dentry {
    /// The inode that it leads to.
    pub ino: Ino,
    /// Type bits of that inode's mode.
    pub kind: u32,
}
codec_struct!(Dentry { ino, kind });

/// The last change that a client's channel made in a slot: `R`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedOp {
    /// Id of the operation.
    pub op: u64,
    /// The inode it made, the offset it wrote at, or 0.
    pub value: u64,
}
codec_struct!(CompletedOp { op, value });

/// Subfiles of a removed inode: `G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// Layout of the removed inode, which gives the targets that may have subfiles.
    pub layout: Layout,
}
codec_struct!(Garbage { layout });

/// The part of a spread directory that this node holds: `S`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Attributes that new entries inherit from the directory.
    pub inherited: Inherited,
    /// Its entries.
    pub entries: u64,
    /// Subdirectories among its entries.
    pub subdirs: u32,
    /// Number of changes so far.
    pub version: u64,
    /// Number of the intent that made it.
    pub tx: u64,
    /// The node and the intent that are removing the directory; new entries are refused meanwhile.
    pub sealed: Option<(ClientId, u64)>,
}
codec_struct!(Shard { inherited, entries, subdirs, version, tx, sealed });

/// Progress of a spread directory's home in adding up its shards: `V`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldedShards {
    /// Sum of the shards' numbers of changes.
    pub versions: u64,
}
codec_struct!(FoldedShards { versions });

/// A directory that a rename has set aside: `K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAsideDir {
    /// The node that drives the rename.
    pub driver: ClientId,
    /// Number of its intent.
    pub tx: u64,
    /// The directory's record.
    pub inode: Inode,
}
codec_struct!(SetAsideDir { driver, tx, inode });

/// Names that an inode was given before the last one and that are known on, at most: a `bivouac flush` finds the
/// others, as it looks into directories.
pub const FORMER_NAMES_MAX: usize = 64;

/// The state of an inode with respect to its partition's site storage: `H`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFile {
    /// The file's version there, if it is there.
    pub origin: Option<Origin>,
    /// End of the range, in bytes, in which content that was not written here is that of site storage.
    pub limit: u64,
    /// True if name, attributes or size differ from site storage.
    pub changed: bool,
    /// True if that difference is being flushed: set when the flush begins, and cleared by any change since.
    pub flushing: bool,
    /// For a directory, true if all its entries at site storage have been made here.
    pub listed: bool,
    /// The directory of its latest name.
    pub dir: Ino,
    /// Its latest name.
    pub name: Vec<u8>,
    /// Pin, as in [`Whence`].
    pub pin: u32,
    /// Earlier directories and names that may still lead to it, latest first, [`FORMER_NAMES_MAX`] at most. If the
    /// latest name is gone, it is flushed under one of these.
    pub former: Vec<(Ino, Vec<u8>)>,
}

impl Encode for SiteFile {
    fn encode(&self, out: &mut Vec<u8>) {
        let SiteFile { origin, limit, changed, flushing, listed, dir, name, pin, former } = self;
        origin.encode(out);
        limit.encode(out);
        changed.encode(out);
        flushing.encode(out);
        listed.encode(out);
        dir.encode(out);
        name.encode(out);
        pin.encode(out);
        // Up to the end of the record: most inodes have no former names, and spend no byte on them.
        for (dir, name) in former {
            dir.encode(out);
            name.encode(out);
        }
    }
}

impl Decode<'_> for SiteFile {
    fn decode(input: &mut Reader<'_>) -> Result<SiteFile, DecodeError> {
        let (origin, limit, changed) =
            (Decode::decode(input)?, Decode::decode(input)?, Decode::decode(input)?);
        let (flushing, listed, dir) =
            (Decode::decode(input)?, Decode::decode(input)?, Decode::decode(input)?);
        let (name, pin) = (Decode::decode(input)?, Decode::decode(input)?);
        let mut former = Vec::new();
        while !input.is_empty() {
            let (dir, name): (Ino, &[u8]) = (Decode::decode(input)?, Decode::decode(input)?);
            // The record may come from a peer, in a step: what could not be read again must not be written here.
            if former.len() == FORMER_NAMES_MAX || name.len() > NAME_LEN_MAX {
                return Err(DecodeError::Invalid("former names"));
            }
            former.push((dir, name.to_vec()));
        }
        Ok(SiteFile { origin, limit, changed, flushing, listed, dir, name, pin, former })
    }
}

/// An operation at site storage that is about to be performed, logged before it: `J`. It stays when the inode is
/// removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// The inode's partition.
    pub partition: PartitionId,
    /// The directory that holds its name.
    pub dir: Ino,
    /// Path of the object of the operation, at the source.
    pub path: Vec<u8>,
    /// Name that the source gave the upload that is to replace it.
    pub token: String,
    /// Tag by which the uploaded content is recognised; empty as long as the operation may not have begun.
    pub tag: String,
    /// Version that was there before; `None` if nothing was there.
    pub seen: Option<SiteVersion>,
    /// Replaces whatever is there, whatever its version.
    pub force: bool,
    /// Attributes to set, for an operation that changes nothing else.
    pub given: Option<GivenAttrs>,
    /// Size and mtime of the content that is put there; absent in records of earlier releases.
    pub put: Option<PutContent>,
}

impl Encode for Act {
    fn encode(&self, out: &mut Vec<u8>) {
        let Act { partition, dir, path, token, tag, seen, force, given, put } = self;
        partition.encode(out);
        dir.encode(out);
        path.encode(out);
        token.encode(out);
        tag.encode(out);
        seen.encode(out);
        force.encode(out);
        given.encode(out);
        put.iter().for_each(|put| put.encode(out));
    }
}

impl Decode<'_> for Act {
    fn decode(input: &mut Reader<'_>) -> Result<Act, DecodeError> {
        let (partition, dir, path) = (Decode::decode(input)?, Decode::decode(input)?, Decode::decode(input)?);
        let (token, tag, seen) = (Decode::decode(input)?, Decode::decode(input)?, Decode::decode(input)?);
        let (force, given) = (Decode::decode(input)?, Decode::decode(input)?);
        let put = if input.is_empty() { None } else { Some(Decode::decode(input)?) };
        Ok(Act { partition, dir, path, token, tag, seen, force, given, put })
    }
}

/// Content put at site storage, as it will appear there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutContent {
    /// Its size, in bytes.
    pub size: u64,
    /// The time that it is given.
    pub mtime: Timestamp,
}
codec_struct!(PutContent { size, mtime });

/// Attributes set at site storage, by which a restarted node recognises whether they were set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenAttrs {
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
}
codec_struct!(GivenAttrs { perm, uid, gid, mtime });

/// Returns the key of an operation that is about to be performed for an inode.
pub fn act_key(ino: Ino) -> [u8; 9] {
    tagged(b'J', ino.0)
}

/// Returns the inode of such a key.
pub fn ino_of_act_key(key: &[u8]) -> Option<Ino> {
    (key.len() == 9).then(|| number_of_key(key).map(Ino))?
}

/// A name that was deleted here and remains to be deleted at site storage: `E`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode that the name led to.
    pub ino: Ino,
    /// True if that was a directory.
    pub is_dir: bool,
    /// Its partition.
    pub partition: PartitionId,
    /// Version of the object there, where the directory's home does not have it yet.
    pub seen: Option<SiteVersion>,
    /// Count of deletions of the same name since, so that an operation based on an earlier look at it is recognised as
    /// outdated.
    pub again: u32,
}
codec_struct!(Removed { ino, is_dir, partition, seen, again });

/// Returns the key of a name that was deleted here.
pub fn removed_key(dir: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = tagged(b'E', dir.0).to_vec();
    key.extend_from_slice(name);
    key
}

/// Returns the directory and name of such a key.
pub fn name_of_removed(key: &[u8]) -> Option<(Ino, &[u8])> {
    let (number, name) = key.split_at_checked(9)?;
    Some((Ino(number_of_key(number)?), name))
}

/// Origin of the content of a subfile, as known to a target: `Q`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubfileOrigin {
    /// Place at the source of content that is not here.
    pub whence: Whence,
    /// Epoch of the subfile when its origin was looked up; a later cut makes the origin outdated.
    pub epoch: u32,
}
codec_struct!(SubfileOrigin { whence, epoch });

/// Returns the key of an inode's state with respect to site storage.
pub fn site_key(ino: Ino) -> [u8; 10] {
    let mut key = [0; 10];
    key[..9].copy_from_slice(&tagged(b'H', ino.0));
    key
}

/// Returns the inode of such a key.
pub fn ino_of_site_key(key: &[u8]) -> Option<Ino> {
    let number = key.strip_suffix(&[0])?;
    (number.len() == 9).then(|| number_of_key(number).map(Ino))?
}

/// Returns the key of a name that a directory had at site storage; with an empty name, the prefix of all of them.
pub fn seen_key(dir: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = tagged(b'H', dir.0).to_vec();
    key.push(1);
    key.extend_from_slice(name);
    key
}

/// Returns the key of the inode that a name at site storage was brought as, or flushed from.
pub fn seen_by_key(dir: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = tagged(b'H', dir.0).to_vec();
    key.push(2);
    key.extend_from_slice(name);
    key
}

/// Returns the prefix of all keys about an inode and site storage.
pub fn site_prefix(ino: Ino) -> [u8; 9] {
    tagged(b'H', ino.0)
}

/// Returns the key of the origin of a subfile, and prefix of the keys of its marks.
pub fn held_key(ino: Ino, target: TargetIndex) -> [u8; 13] {
    let mut key = [0; 13];
    key[..9].copy_from_slice(&tagged(b'Q', ino.0));
    key[9..].copy_from_slice(&target.0.to_be_bytes());
    key
}

/// Returns the key of the marks of some stripes of a subfile.
pub fn marks_key(ino: Ino, target: TargetIndex, block: u32) -> [u8; 17] {
    let mut key = [0; 17];
    key[..13].copy_from_slice(&held_key(ino, target));
    key[13..].copy_from_slice(&block.to_be_bytes());
    key
}

/// Returns the file, target and number of a key of marks.
pub fn marks_of_key(key: &[u8]) -> Option<(Ino, TargetIndex, u32)> {
    let key: &[u8; 17] = key.try_into().ok()?;
    let number = |at: usize| key.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    Some((Ino(number_of_key(&key[..9])?), TargetIndex(number(9)?), number(13)?))
}

/// Returns the key of the version of a partition's root at site storage when this node first saw it.
pub fn root_key(partition: PartitionId) -> [u8; 3] {
    let [high, low] = partition.0.to_be_bytes();
    [b'Q', high, low]
}

/// Returns the key of an inode.
pub fn inode_key(ino: Ino) -> [u8; 9] {
    tagged(b'I', ino.0)
}

/// Returns the key of a symbolic link's target.
pub fn target_key(ino: Ino) -> [u8; 9] {
    tagged(b'L', ino.0)
}

/// Returns the key of an inode without names that is still open.
pub fn orphan_key(ino: Ino) -> [u8; 9] {
    tagged(b'O', ino.0)
}

/// Returns the key of a mark: this inode was made without a name, and may be given one.
pub fn unnamed_key(ino: Ino) -> [u8; 9] {
    tagged(b'U', ino.0)
}

/// Returns the key of a client that may have files open.
pub fn session_key(client: ClientId) -> [u8; 9] {
    tagged(b'C', client.0)
}

/// Returns the key of a locked range: file, owner, first byte.
pub fn lock_key(ino: Ino, owner: (LockKind, ClientId, u64), start: u64) -> [u8; LOCK_KEY_LEN] {
    let (kind, client, id) = owner;
    let mut key = [0; LOCK_KEY_LEN];
    key[..9].copy_from_slice(&tagged(b'F', ino.0));
    key[9] = u8::from(kind == LockKind::Whole);
    for (at, number) in [(10, client.0), (18, id), (26, start)] {
        key[at..at + 8].copy_from_slice(&number.to_be_bytes());
    }
    key
}

/// Returns the file, owner and first byte of a locked range's key.
pub fn lock_of_key(key: &[u8]) -> Option<(Ino, (LockKind, ClientId, u64), u64)> {
    let key: &[u8; LOCK_KEY_LEN] = key.try_into().ok()?;
    let number = |at: usize| key.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let kind = match key[9] {
        0 => LockKind::Range,
        1 => LockKind::Whole,
        _ => return None,
    };
    Some((Ino(number(1)?), (kind, ClientId(number(10)?), number(18)?), number(26)?))
}

/// Returns the key of garbage.
pub fn garbage_key(ino: Ino) -> [u8; 9] {
    tagged(b'G', ino.0)
}

/// Returns the key of garbage at a node that did not answer.
pub fn pending_key(node: NodeId, ino: Ino) -> [u8; 11] {
    let mut key = [0; 11];
    key[..3].copy_from_slice(&pending_prefix(node));
    key[3..].copy_from_slice(&ino.0.to_be_bytes());
    key
}

/// Returns the prefix of the keys of all garbage at a node that did not answer.
pub fn pending_prefix(node: NodeId) -> [u8; 3] {
    let [high, low] = node.0.to_be_bytes();
    [b'W', high, low]
}

/// Returns the node and inode of such a key.
pub fn pending_node(key: &[u8]) -> Option<(NodeId, Ino)> {
    let key: &[u8; 11] = key.try_into().ok()?;
    let (&[_, high, low], ino) = key.split_first_chunk::<3>()?;
    Some((NodeId(u16::from_be_bytes([high, low])), Ino(u64::from_be_bytes(ino.try_into().ok()?))))
}

/// Returns the key of a node's last turn at moving directories.
pub fn moves_key(client: ClientId) -> [u8; 9] {
    tagged(b'M', client.0)
}

/// Returns the key of a directory's shard.
pub fn shard_key(dir: Ino) -> [u8; 9] {
    tagged(b'S', dir.0)
}

/// Returns the key of the [`FoldedShards`] of a spread directory.
pub fn folded_key(dir: Ino) -> [u8; 9] {
    tagged(b'V', dir.0)
}

/// Returns the key of a directory that was set aside.
pub fn aside_key(ino: Ino) -> [u8; 9] {
    tagged(b'K', ino.0)
}

/// Returns the key of a partition.
pub fn partition_key(id: PartitionId) -> [u8; 9] {
    tagged(b'P', u64::from(id.0))
}

/// Returns the key of an intent.
pub fn intent_key(tx: u64) -> [u8; 9] {
    tagged(b'T', tx)
}

/// Key of the inode allocator's mark.
pub const ALLOCATOR_KEY: &[u8] = b"A";

/// Returns the prefix of all keys of a table.
pub fn table(letter: u8) -> [u8; 1] {
    [letter]
}

/// Returns the number in a key of the form letter, number.
pub fn number_of_key(key: &[u8]) -> Option<u64> {
    let (_, number) = key.split_first()?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// Returns the prefix of the keys of a directory's entries.
pub fn dentry_prefix(parent: Ino) -> [u8; 9] {
    tagged(b'D', parent.0)
}

/// Returns the key of an entry with this hash.
pub fn hashed_key(parent: Ino, hash: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(DENTRY_NAME_AT + name.len());
    key.extend_from_slice(&dentry_from(parent, hash));
    key.extend_from_slice(name);
    key
}

/// Returns the first key that an entry with this hash can have.
pub fn dentry_from(parent: Ino, hash: u64) -> [u8; 17] {
    let mut key = [0; DENTRY_NAME_AT];
    key[..DENTRY_HASH_AT].copy_from_slice(&dentry_prefix(parent));
    key[DENTRY_HASH_AT..].copy_from_slice(&hash.to_be_bytes());
    key
}

/// Returns the hash and name of an entry's key.
pub fn dentry_of_key(key: &[u8]) -> Option<(u64, &[u8])> {
    let (head, name) = key.split_at_checked(DENTRY_NAME_AT)?;
    let hash = head.last_chunk::<8>()?;
    Some((u64::from_be_bytes(*hash), name))
}

/// Returns the key of an extended attribute; with an empty name, the prefix of all of an inode's.
pub fn xattr_key(ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = tagged(b'X', ino.0).to_vec();
    key.extend_from_slice(name);
    key
}

/// Returns the prefix of the keys of a client's last changes.
pub fn done_prefix(client: ClientId) -> [u8; 9] {
    tagged(b'R', client.0)
}

/// Returns the key of a channel's last change; the steps of one intent have a key each.
pub fn done_key(client: ClientId, channel: u16, step: u8) -> [u8; 12] {
    // What is not overwritten below stays the step's number.
    let mut key = [step; 12];
    key[..9].copy_from_slice(&done_prefix(client));
    key[9..11].copy_from_slice(&channel.to_be_bytes());
    key
}

fn tagged(letter: u8, number: u64) -> [u8; 9] {
    let mut key = [letter; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Clears set-user-id, and set-group-id if group execution is permitted: without it, set-group-id stands for mandatory
/// locking and stays.
pub fn without_set_id(mode: u32) -> u32 {
    // As Linux does in `should_remove_suid`.
    let gid = if mode & mode::XGRP != 0 { mode::SETGID } else { 0 };
    mode & !(mode::SETUID | gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::entry_hash;
    use bivouac_wire::{Decode, Encode};

    #[test]
    fn keys_sort_by_directory_then_hash() {
        let key_of = |dir, name: &[u8]| hashed_key(dir, entry_hash(dir, name), name);
        let key = key_of(Ino(5), b"file");
        assert!(key.starts_with(&dentry_prefix(Ino(5))));
        assert!(key < key_of(Ino(6), b"a"));
        let (hash, found) = dentry_of_key(&key).unwrap();
        assert_eq!((hash, found), (entry_hash(Ino(5), b"file"), &b"file"[..]));
        assert!(key.as_slice() >= &dentry_from(Ino(5), hash)[..]);
        assert_eq!(dentry_of_key(b"short"), None);
    }

    #[test]
    fn golden_keys_and_values() {
        assert_eq!(inode_key(Ino(0x0102)), [b'I', 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(done_key(ClientId(1), 3, 2), [b'R', 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 2]);
        assert_eq!(pending_key(NodeId(0x0102), Ino(3)), [b'W', 1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(pending_node(&pending_key(NodeId(259), Ino(77))), Some((NodeId(259), Ino(77))));
        assert_eq!(pending_node(b"W"), None);
        assert_eq!(xattr_key(Ino(1), b"user.a")[9..], *b"user.a");
        assert_eq!(number_of_key(&orphan_key(Ino(77))), Some(77));
        let dentry = Dentry { ino: Ino(7), kind: 0o040_000 };
        assert_eq!(dentry.to_bytes(), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0]);
        assert_eq!(Dentry::from_bytes(&dentry.to_bytes()), Ok(dentry));
    }
}
