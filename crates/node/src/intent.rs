//! Changes that need several nodes. The driver (the node of the source entry) logs an intent, takes
//! idempotent steps on the peer lane, and clears the intent in the transaction that finishes the
//! change. A restarted driver takes the same steps again, under the same ids and channel, before it
//! serves anybody who wants the same entries (the argument is in docs/semantics.md).

mod concerns;
mod cut;
mod entries;
mod partition;
mod rename;
mod renew;
mod spread;

use std::collections::HashMap;

use bivouac_ranks::Mutex;
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, Layout, NodeId, OpId, Slot};
use bivouac_wire::{Decode, DecodeError, Encode, Reader, codec_struct};

use crate::leases::Principal;
use crate::locks::Target;
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::{Channels, Steps, is_peer};
use crate::reaper::Job;
use crate::record::{Dentry, Inode, SiteFile, intent_key, number_of_key, table};
use crate::session::Ctx;

pub use concerns::{Concerns, concerns};
pub use partition::NewPartition;
pub use rename::Move;
pub use renew::Renewal;

/// A new directory whose inode belongs to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDir {
    /// Name of the entry; its directory is in the inode.
    pub name: Vec<u8>,
    /// The new inode.
    pub inode: Inode,
    /// What site storage has of it, if it comes from there.
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
    /// Where its subfiles are.
    pub layout: Layout,
    /// Its layout afterwards; only an empty file gets another one.
    pub new_layout: Layout,
}
codec_struct!(Cut { ino, size, epoch, layout, new_layout });

/// What is to be done.
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
    /// Spread a directory over all nodes; one that is found later is given up.
    Spread(Ino),
    /// Tell the shards of a directory what new entries get from it.
    Inherit(Ino),
    /// Take what a file is at site storage in place of what it is here.
    Renew(Renewal),
    /// Make a partition; its record has the rest.
    MakePartition(NewPartition),
    /// Undo a change that was refused: whatever refused it may be over at the next attempt, and a change of which half
    /// is undone must not go on.
    Undo(Box<Intent>),
}

/// The changes over several nodes that a node drives.
#[derive(Default)]
pub struct Intents {
    /// Of their steps.
    channels: Channels,
    /// Those that wait to be finished, by their numbers.
    postponed: Mutex<HashMap<u64, Logged>>,
}

/// An intent with the identity of who wants it.
#[derive(Clone)]
pub(crate) struct Logged {
    /// The slot that holds it; not part of the record.
    slot: Slot,
    intent: Intent,
    client: ClientId,
    channel: u16,
    op: OpId,
    /// Channel of the steps.
    steps_channel: u16,
}

impl Intent {
    /// What is locked while the intent is carried out.
    fn targets(&self) -> Vec<Target> {
        let entry = |dir, name: &[u8]| {
            vec![Target::Dir(dir), Target::Entry(dir, bivouac_layout::entry_hash(dir, name))]
        };
        match self {
            Intent::MakeDir(new) => entry(new.inode.parent, &new.name),
            Intent::RemoveDir(old) | Intent::Link(old) => entry(old.parent, &old.name),
            // The name is gone already; whoever wants it may have it.
            Intent::Unlink(_) => Vec::new(),
            Intent::Rename(moved) => {
                let mut targets = entry(moved.parent, &moved.name);
                targets.extend(entry(moved.new_parent, &moved.new_name));
                targets.extend((moved.turn != 0).then_some(Target::Moves));
                targets
            }
            Intent::Cut(cut) => vec![Target::Size(cut.ino)],
            Intent::Renew(new) => vec![Target::Size(new.ino)],
            // Nobody tries once more before what this attempt has left on other nodes is removed.
            Intent::Spread(dir) => vec![Target::Dir(*dir)],
            Intent::Inherit(dir) => vec![Target::Size(*dir)],
            // Its number is its own, and its directory is taken in one step.
            Intent::MakePartition(_) => Vec::new(),
            Intent::Undo(intent) => intent.targets(),
        }
    }

    /// The turn at moving directories that it has.
    fn turn(&self) -> Option<u64> {
        match self {
            Intent::Rename(moved) => Some(moved.turn).filter(|turn| *turn != 0),
            Intent::Undo(intent) => intent.turn(),
            _ => None,
        }
    }
}

/// How far an intent got.
enum Outcome {
    /// Done, and the intent is cleared.
    Done,
    /// Refused for good; nothing has changed, and the intent is to be cleared.
    Refused(FsError),
}

/// What is said of a change that is finished later. Without space, clients would take it for one that never was, make
/// room and send it again, and would be refused by what came of it meanwhile.
fn not_known(error: FsError) -> FsError {
    match error.errno() {
        Errno::ENOSPC | Errno::EDQUOT => {
            FsError::with(Errno::EIO, format!("{error}; the change is finished later, when there is space"))
        }
        _ => error,
    }
}

impl Node {
    /// Carries out a change that needs peers. The caller holds the locks of what it touches. The intent is logged in
    /// `slot`, which is this node's.
    ///
    /// # Errors
    /// Why it was refused; or that a peer did not answer: then it is finished later, by itself.
    pub(crate) fn carry_out(&self, ctx: &Ctx<'_>, slot: Slot, intent: Intent) -> FsResult<()> {
        self.carry_out_begun(ctx, slot, intent, |logged| match &logged.intent {
            Intent::Unlink(old) => self.begin_unlink(old, logged),
            Intent::Cut(cut) => self.begin_cut(cut),
            _ => self.change_at(&[slot], &[]),
        })
    }

    /// As [`Node::carry_out`], of an intent that is logged together with the change that `begin` makes.
    pub(crate) fn carry_out_begun<'a>(
        &'a self,
        ctx: &Ctx<'_>,
        slot: Slot,
        intent: Intent,
        begin: impl FnOnce(&Logged) -> FsResult<Change<'a>>,
    ) -> FsResult<()> {
        self.reaper.check_unfinished()?;
        // The channel first: ids of steps must rise within one.
        let steps_channel = self.intents.channels.take();
        let (client, channel, op) = (ctx.client, ctx.channel, ctx.id);
        let logged = Logged { slot, intent, client, channel, op, steps_channel };
        let begun = self.allocator.next(&self.records).and_then(|tx| {
            let mut change = begin(&logged)?;
            match logged.intent {
                Intent::MakeDir(_) | Intent::Link(_) => change.txn.must_fit(),
                Intent::Rename(_) => change.txn.may_not_grow_for_ever(),
                _ => {}
            }
            change.txn.put(slot, &intent_key(tx), &logged.to_bytes());
            change.commit()?;
            Ok(tx)
        });
        let tx = begun.inspect_err(|_| self.intents.channels.put(steps_channel))?;
        let (channel, origin, background) = (steps_channel, ctx.origin, is_peer(ctx.client));
        let steps = Steps { tx, channel, retry: false, origin, background };
        match self.finish_intent(&logged, steps) {
            Ok(result) => {
                self.intents.channels.put(steps_channel);
                result
            }
            Err(error) => {
                // Not known how far it got: the reaper goes on with it. Until then the locks stay.
                self.postpone(tx, &logged, &error);
                // An unlink was carried out when it was logged: the name is gone for good.
                if matches!(logged.intent, Intent::Unlink(_)) { Ok(()) } else { Err(not_known(error)) }
            }
        }
    }

    /// Takes the steps. The outer error is "do not know", the inner one "refused".
    fn finish_intent(&self, logged: &Logged, steps: Steps) -> FsResult<FsResult<()>> {
        let outcome = match &logged.intent {
            Intent::MakeDir(new) => self.finish_make_dir(new, logged, steps)?,
            Intent::RemoveDir(old) => self.finish_remove_dir(old, logged, steps)?,
            Intent::Unlink(old) => self.finish_unlink(old, logged, steps)?,
            Intent::Link(old) => self.finish_link(old, logged, steps)?,
            Intent::Rename(moved) => self.finish_rename(moved, logged, steps)?,
            Intent::Cut(cut) => self.finish_cut(cut, logged, steps)?,
            Intent::Spread(dir) if steps.retry => self.give_up_spreading(*dir, logged, steps)?,
            Intent::Spread(dir) => self.finish_spread(*dir, logged, steps)?,
            Intent::Inherit(dir) => self.finish_inherit(*dir, logged, steps)?,
            Intent::Renew(new) => self.finish_renewal(new, logged, steps)?,
            Intent::MakePartition(new) => self.finish_make_partition(*new, logged, steps)?,
            Intent::Undo(intent) => {
                self.undo(intent, steps)?;
                Outcome::Refused(Errno::EBUSY.into())
            }
        };
        match outcome {
            Outcome::Done => Ok(Ok(())),
            Outcome::Refused(error) => {
                let slot = logged.slot;
                let mut change = self.change_at(&[slot], &[])?;
                change.txn.delete(slot, &intent_key(steps.tx));
                change.commit()?;
                Ok(Err(error))
            }
        }
    }

    /// Undoes a change that was refused after some of its steps, also if this daemon does not come to the end of it.
    fn begin_undo(&self, logged: &Logged, steps: Steps) -> FsResult<()> {
        let undo = Logged { intent: Intent::Undo(Box::new(logged.intent.clone())), ..*logged };
        let mut change = self.change_at(&[logged.slot], &[])?;
        change.txn.put(logged.slot, &intent_key(steps.tx), &undo.to_bytes());
        change.commit()?;
        self.undo(&logged.intent, steps)
    }

    fn undo(&self, intent: &Intent, steps: Steps) -> FsResult<()> {
        match intent {
            Intent::Link(new) => self.undo_link(new, steps),
            Intent::Rename(moved) => self.undo_rename(moved, steps),
            _ => Ok(()),
        }
    }

    /// Keeps what an unfinished intent touches locked until the reaper has finished it.
    fn postpone(&self, tx: u64, logged: &Logged, why: &FsError) {
        log::warn!("change {tx} waits for a peer and is finished later: {:?}", logged.intent);
        self.keep(tx, logged.clone());
        self.locks.starve(tx, &logged.intent.targets(), is_for_space(why));
        self.reaper.add_intent(logged.slot, tx);
    }

    /// Nobody else works on what an unfinished intent touches, and its entries stay where they are.
    fn keep(&self, tx: u64, logged: Logged) {
        logged.intent.targets().into_iter().for_each(|target| self.locks.keep(target, tx));
        let before = self.intents.postponed.lock().insert(tx, logged);
        assert!(before.is_none(), "change {tx} is postponed once");
    }

    /// Ends what [`Node::keep`] began: the change is over.
    fn release(&self, tx: u64) {
        let Some(logged) = self.intents.postponed.lock().remove(&tx) else { return };
        logged.intent.targets().into_iter().for_each(|target| self.locks.release(target, tx));
        self.intents.channels.put(logged.steps_channel);
        if let Some(turn) = logged.intent.turn() {
            self.reaper.add(Job::Moves(turn));
        }
    }

    /// Changes over several nodes that this node drives and has not finished.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.numbers(b'T').len() as u64
    }

    /// Before anything is served: finds the intents that a killed daemon left, and locks what they touch.
    pub(crate) fn adopt_intents(&self) -> FsResult<()> {
        let mut found = Vec::new();
        self.each_record(&table(b'T'), |slot, key, value| {
            found.push((slot, number_of_key(key), Logged::from_bytes(value)));
        });
        for (slot, tx, logged) in found {
            let (Some(tx), Ok(logged)) = (tx, logged) else {
                return Err(FsError::with(
                    Errno::EIO,
                    format!("an intent record in slot {} is damaged", slot.0),
                ));
            };
            self.intents.channels.reserve(logged.steps_channel);
            self.keep(tx, Logged { slot, ..logged });
            self.reaper.add_intent(slot, tx);
        }
        Ok(())
    }

    /// Goes on with an intent that was left. Whether it is finished.
    pub(crate) fn replay_intent(&self, slot: Slot, tx: u64) -> FsResult<()> {
        let bytes = self.records.read(slot, &intent_key(tx), |bytes| bytes.map(<[u8]>::to_vec));
        // Without its record the change is over: its last transaction was made, and what came behind that failed.
        if let Some(bytes) = bytes {
            let logged = crate::namespace::decode::<Logged>(&bytes, "intent", Ino(tx))?;
            let targets = logged.intent.targets();
            let resumed = self.resume(Logged { slot, ..logged }, tx);
            self.locks.starve(tx, &targets, resumed.as_ref().is_err_and(is_for_space));
            resumed?;
        }
        self.release(tx);
        Ok(())
    }

    fn resume(&self, logged: Logged, tx: u64) -> FsResult<()> {
        let (channel, origin) = (logged.steps_channel, logged.client);
        let steps = Steps { tx, channel, retry: true, origin, background: true };
        let _principal = Principal::on_behalf_of(logged.client);
        if let Err(refused) = self.finish_intent(&logged, steps)? {
            log::info!(why:% = refused; "change {tx}, left by an earlier daemon, was refused");
        }
        Ok(())
    }

    /// The node that an inode's record belongs to.
    pub(crate) fn home_of(&self, ino: Ino) -> FsResult<NodeId> {
        self.map.home(ino).ok_or_else(|| Errno::ESTALE.into())
    }
}

fn is_for_space(error: &FsError) -> bool {
    matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT)
}

impl Logged {
    /// The asker, as its own request would look.
    fn asker(&self) -> Ctx<'static> {
        Ctx { channel: self.channel, id: self.op, origin: self.client, ..Ctx::of_node(self.client) }
    }
}

impl Encode for Logged {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.encode(out);
        self.channel.encode(out);
        self.op.encode(out);
        self.steps_channel.encode(out);
        self.intent.encode(out);
    }
}

impl Decode<'_> for Logged {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (client, channel) = Decode::decode(input)?;
        let (op, steps_channel) = Decode::decode(input)?;
        Ok(Logged { slot: Slot(0), client, channel, op, steps_channel, intent: Decode::decode(input)? })
    }
}

impl Encode for Intent {
    fn encode(&self, out: &mut Vec<u8>) {
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
            9 => Ok(Intent::Undo(Box::new(Intent::decode_as(u8::decode(input)?, input)?))),
            tag => Intent::decode_as(tag, input),
        }
    }
}

impl Intent {
    /// What is done, or undone; never an undoing itself.
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

/// Whether the error is an answer to what was asked, and so final. Anything else (no way to the peer, no space
/// for its log) may be different the next time.
fn is_final(error: &bivouac_types::FsError) -> bool {
    use Errno as E;
    let names = matches!(error.errno(), E::ENOENT | E::EEXIST | E::ENOTEMPTY | E::ENOTDIR | E::EISDIR);
    let more = matches!(error.errno(), E::EPERM | E::EMLINK | E::EBUSY | E::EAGAIN | E::EINVAL);
    names || more || matches!(error.errno(), E::ENAMETOOLONG | E::EREMOTE | E::EXDEV)
}

/// Splits a step's result: a refusal ends the intent, anything else leaves it.
fn refused<T>(result: FsResult<T>) -> FsResult<Result<T, bivouac_types::FsError>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if is_final(&error) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

/// The same of a step that makes something: it may be refused for want of room, and then nothing has happened. Better to
/// say so than to finish it some day.
fn refused_or_full<T>(result: FsResult<T>) -> FsResult<Result<T, bivouac_types::FsError>> {
    match result {
        Err(error) if error.errno() == Errno::ENOSPC => Ok(Err(error)),
        result => refused(result),
    }
}

/// Type of an inode as its entry says it.
fn dentry_of(inode: &Inode) -> Dentry {
    Dentry { ino: inode.attr.ino, kind: inode.attr.mode & bivouac_types::mode::TYPE }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Reads an intent's record as a restarted daemon does, and writes it again.
    pub fn reread(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Logged::from_bytes(bytes).map(|logged| logged.to_bytes())
    }

    /// The record of an intent.
    pub fn logged(intent: Intent) -> Vec<u8> {
        Logged { slot: Slot(0), intent, client: ClientId(5), channel: 6, op: OpId(7), steps_channel: 8 }
            .to_bytes()
    }
    /// Peers that nobody asks.
    struct NoPeers;

    impl crate::peers::Peers for NoPeers {
        fn call_within(
            &self,
            _: std::time::Duration,
            node: NodeId,
            _: &crate::peers::PeerRequest<'_>,
            _: &mut Vec<u8>,
        ) -> FsResult<()> {
            panic!("{node} is asked")
        }
    }

    /// A node that is alone, on a volume below a directory.
    pub fn alone(dir: &std::path::Path) -> std::sync::Arc<Node> {
        let entry = bivouac_wire::NodeEntry {
            host: "n0".to_owned(),
            client_address: String::new(),
            peer_address: String::new(),
            unix_path: String::new(),
        };
        let map = bivouac_wire::FormationMap {
            version: 1,
            formation: bivouac_types::FormationId([3; 16]),
            name: "alone".into(),
            slots: vec![NodeId(0); 2],
            nodes: vec![entry],
            seats: vec![bivouac_wire::SeatEntry { node: NodeId(0), volume: 0 }],
            stripe: 4096,
            width: 0,
            is_secure: false,
        };
        let volume = bivouac_store::VolumeConfig { path: dir.join("volume"), capacity: 0, create: true };
        let config = crate::NodeConfig {
            rounds: crate::Rounds::default(),
            map: std::sync::Arc::new(map),
            id: NodeId(0),
            volumes: vec![volume],
            handles_max: 64,
            checksum: bivouac_types::Checksum::Off,
            owner: (0, 0),
            grace: std::time::Duration::from_secs(30),
            spread_at: bivouac_types::SpreadAt::default(),
            dead_after: None,
            past: crate::Past::default(),
            recorded: None,
            switches: Vec::new(),
            liveness: std::sync::Arc::new(bivouac_net::LivenessTable::new(1)),
            objects: bivouac_source::Environment::default(),
            around: None,
        };
        Node::open(config, std::sync::Arc::new(NoPeers), std::sync::Arc::new(crate::SystemClock)).unwrap().0
    }

    /// What came behind the last transaction of a change failed, so that it was postponed: its locks stayed for ever.
    #[test]
    fn a_postponed_change_whose_record_is_gone_frees_what_it_kept() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let old = OldEntry { parent: Ino::ROOT, name: b"name".to_vec(), ino: Ino(7) };
        let intent = Intent::RemoveDir(old);
        let [dir, target] = intent.targets()[..] else { panic!("an entry and its directory") };
        let steps_channel = node.intents.channels.take();
        let (client, channel, op) = (ClientId(5), 6, OpId(7));
        let logged = Logged { slot: Slot(0), intent, client, channel, op, steps_channel };
        let guards = node.locks.lock_all([dir, target]).unwrap();
        node.keep(99, logged);
        drop(guards);
        assert!(node.locks.try_lock(target).is_none());
        node.replay_intent(Slot(0), 99).unwrap();
        assert!(node.locks.try_lock(target).is_some() && !node.locks.is_kept(target));
        assert!(node.locks.claim(Ino::ROOT).is_some(), "nobody is at work in the directory");
        assert_eq!(node.intents.channels.take(), steps_channel, "the channel is free");
    }
}
