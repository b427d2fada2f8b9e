//! Intents: what is logged of a change over several nodes before its first step, and the intents that a node has not
//! finished.

use std::collections::HashMap;

use bivouac_ranks::Mutex;
use bivouac_types::{ClientId, Contract, Ino, Layout, OpId, PartitionId, Slot, mode};
use bivouac_wire::{Decode, DecodeError, Encode, Origin, Reader, codec_struct};

use crate::locks::LockTarget;
use crate::peers::Channels;
use crate::record::{Inode, SiteFile};
use crate::session::Ctx;

/// A new directory whose inode belongs to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDir {
    /// Name of the entry; its directory is in the inode.
    pub name: Vec<u8>,
    /// The new inode.
    pub inode: Inode,
    /// The state of the file at site storage, if it comes from there.
    pub site: Option<SiteFile>,
}
codec_struct!(NewDir { name, inode, site });

/// An entry whose inode belongs to a peer: to be made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldEntry {
    /// The directory.
    pub parent: Ino,
    /// The name in it.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
}
codec_struct!(OldEntry { parent, name, ino });

/// A file that becomes shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub ino: Ino,
    /// Its size afterwards, in bytes.
    pub size: u64,
    /// Its epoch afterwards.
    pub epoch: u32,
    /// The placement of its subfiles.
    pub layout: Layout,
    /// Its layout afterwards; only an empty file gets another one.
    pub new_layout: Layout,
    /// Its own contract afterwards.
    pub contract: Option<Contract>,
}
codec_struct!(Cut { ino, size, epoch, layout, new_layout, contract });

/// A change of several nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Make a directory.
    MakeDir(NewDir),
    /// Remove a directory.
    RemoveDir(OldEntry),
    /// Remove another entry.
    Unlink(OldEntry),
    /// Make one more entry.
    Link(OldEntry),
    /// Move an entry.
    Rename(Move),
    /// Make a file shorter.
    Cut(Cut),
    /// Spread a directory over all nodes; a restarted daemon gives it up.
    Spread(Ino),
    /// Tell the shards of a directory which attributes new entries inherit.
    Inherit(Ino),
    /// Replace a file by its present version at site storage.
    Renew(Renewal),
    /// Make a partition; its record has the rest.
    MakePartition(NewPartition),
    /// Undo a change that was refused: whatever refused it may be over at the next attempt, and a change of which half
    /// is undone must not go on.
    Undo(Box<Intent>),
}

/// Intents that a node drives.
#[derive(Default)]
pub struct Intents {
    /// Channels for the steps of intents.
    pub channels: Channels,
    /// Unfinished intents that the reaper has to finish, by number.
    pub postponed: Mutex<HashMap<u64, LoggedIntent>>,
}

/// An intent with the identity of the request that it belongs to.
#[derive(Clone)]
pub(crate) struct LoggedIntent {
    /// The slot that holds it; not part of the record.
    pub slot: Slot,
    pub intent: Intent,
    pub client: ClientId,
    pub channel: u16,
    pub op: OpId,
    /// Channel of the steps.
    pub steps_channel: u16,
}

/// A partition that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPartition {
    /// Its number.
    pub id: PartitionId,
    /// The directory that is to be its root.
    pub dir: Ino,
}
codec_struct!(NewPartition { id, dir });

/// A rename whose conditions have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The directory that holds the entry.
    pub parent: Ino,
    /// Its name there.
    pub name: Vec<u8>,
    /// The directory that is to hold it.
    pub new_parent: Ino,
    /// Its name there.
    pub new_name: Vec<u8>,
    /// The inode that is moved.
    pub ino: Ino,
    /// Type bits of its mode.
    pub kind: u32,
    /// The inode that the new name led to.
    pub replaced: Option<Ino>,
    /// Type bits of that inode's mode.
    pub replaced_kind: u32,
    /// Data version that the replaced inode must have; `None` for any.
    pub expect_version: Option<u64>,
    /// Exchanges the two inodes instead of replacing one.
    pub exchange: bool,
    /// Turn at moving directories that it holds; 0 for none.
    pub turn: u64,
    /// The partition of both directories.
    pub partition: PartitionId,
}
codec_struct!(Move {
    parent,
    name,
    new_parent,
    new_name,
    ino,
    kind,
    replaced,
    replaced_kind,
    expect_version,
    exchange,
    turn,
    partition
});

impl Move {
    pub fn replaced_dir(&self) -> Option<Ino> {
        self.replaced.filter(|_| self.replaced_kind == mode::DIR && !self.exchange)
    }

    pub fn replaced_file(&self) -> Option<Ino> {
        self.replaced.filter(|_| self.replaced_kind != mode::DIR && !self.exchange)
    }
}

/// Replacement of a file by its version at site storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The file.
    pub ino: Ino,
    /// Its epoch before the replacement, by which it rises by two.
    pub epoch: u32,
    /// The placement of its subfiles.
    pub layout: Layout,
    /// Its version at site storage.
    pub origin: Origin,
}
codec_struct!(Renewal { ino, epoch, layout, origin });

impl Intent {
    /// Returns what is locked while the intent is carried out.
    pub fn targets(&self) -> Vec<LockTarget> {
        let entry = |dir, name: &[u8]| {
            vec![LockTarget::Dir(dir), LockTarget::Entry(dir, bivouac_layout::entry_hash(dir, name))]
        };
        match self {
            Intent::MakeDir(new) => entry(new.inode.parent, &new.name),
            Intent::RemoveDir(old) | Intent::Link(old) => entry(old.parent, &old.name),
            // The name was removed when the intent was logged; it may be used again.
            Intent::Unlink(_) => Vec::new(),
            Intent::Rename(moved) => {
                let mut targets = entry(moved.parent, &moved.name);
                targets.extend(entry(moved.new_parent, &moved.new_name));
                targets.extend((moved.turn != 0).then_some(LockTarget::Moves));
                targets
            }
            Intent::Cut(cut) => vec![LockTarget::Size(cut.ino)],
            Intent::Renew(new) => vec![LockTarget::Size(new.ino)],
            // A further attempt has to wait until the leavings of this one are removed from other nodes.
            Intent::Spread(dir) => vec![LockTarget::Dir(*dir)],
            Intent::Inherit(dir) => vec![LockTarget::Size(*dir)],
            // Its number is its own, and its directory is taken in one step.
            Intent::MakePartition(_) => Vec::new(),
            Intent::Undo(intent) => intent.targets(),
        }
    }

    /// Returns the turn at moving directories that the intent holds, if any.
    pub fn turn(&self) -> Option<u64> {
        match self {
            Intent::Rename(moved) => Some(moved.turn).filter(|turn| *turn != 0),
            Intent::Undo(intent) => intent.turn(),
            _ => None,
        }
    }
}

impl LoggedIntent {
    /// Returns a context as of the client's own request.
    pub fn asker(&self) -> Ctx<'static> {
        Ctx { channel: self.channel, id: self.op, origin: self.client, ..Ctx::of_node(self.client) }
    }
}

impl Encode for LoggedIntent {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.encode(out);
        self.channel.encode(out);
        self.op.encode(out);
        self.steps_channel.encode(out);
        self.intent.encode(out);
    }
}

impl Decode<'_> for LoggedIntent {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (client, channel) = Decode::decode(input)?;
        let (op, steps_channel) = Decode::decode(input)?;
        Ok(LoggedIntent { slot: Slot(0), client, channel, op, steps_channel, intent: Decode::decode(input)? })
    }
}

impl Encode for Intent {
    fn encode(&self, out: &mut Vec<u8>) {
        // Tags are on volumes, also of earlier releases: each keeps its meaning.
        let mut tagged = |tag: u8, value: &dyn Encode| {
            out.push(tag);
            value.encode(out);
        };
        match self {
            Intent::MakeDir(new) => tagged(1, new),
            Intent::RemoveDir(old) => tagged(2, old),
            Intent::Unlink(old) => tagged(3, old),
            Intent::Link(old) => tagged(4, old),
            Intent::Rename(moved) => tagged(5, moved),
            Intent::Cut(cut) => tagged(6, cut),
            Intent::Spread(dir) => tagged(7, dir),
            Intent::Inherit(dir) => tagged(8, dir),
            Intent::Undo(intent) => tagged(9, &**intent),
            Intent::MakePartition(new) => tagged(10, new),
            Intent::Renew(new) => tagged(11, new),
        }
    }
}

impl Decode<'_> for Intent {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            // One level deep: bytes that nest further must not use up the stack.
            9 => Ok(Intent::Undo(Box::new(Intent::decode_as(u8::decode(input)?, input)?))),
            tag => Intent::decode_as(tag, input),
        }
    }
}

impl Intent {
    /// Decodes an intent, also the one inside of an undo; an undo of an undo is invalid.
    fn decode_as(tag: u8, input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match tag {
            1 => Decode::decode(input).map(Intent::MakeDir),
            2 => Decode::decode(input).map(Intent::RemoveDir),
            3 => Decode::decode(input).map(Intent::Unlink),
            4 => Decode::decode(input).map(Intent::Link),
            5 => Decode::decode(input).map(Intent::Rename),
            6 => Decode::decode(input).map(Intent::Cut),
            7 => Decode::decode(input).map(Intent::Spread),
            8 => Decode::decode(input).map(Intent::Inherit),
            10 => Decode::decode(input).map(Intent::MakePartition),
            11 => Decode::decode(input).map(Intent::Renew),
            _ => Err(DecodeError::Invalid("intent")),
        }
    }
}
