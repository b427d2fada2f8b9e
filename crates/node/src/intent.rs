//! Changes that need several nodes. The driver (the node of the source entry) logs an intent, takes
//! idempotent steps on the peer lane, and clears the intent in the transaction that finishes the
//! change. A restarted driver takes the same steps again, under the same ids and channel, before it
//! serves anybody who wants the same entries (the argument is in docs/design/intents.md).

mod cut;
mod entries;
mod partition;
mod rename;
mod renew;
mod spread;

use std::collections::HashSet;

use bivouac_types::{Errno, FsError, FsResult, Ino, Name, Slot};
use bivouac_wire::{Decode, Encode};

use crate::identity::is_peer;
use crate::intent_record::{Intent, LoggedIntent};
use crate::leases::Principal;
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::{Dentry, Inode, intent_key, number_of_key, table};
use crate::session::Ctx;

pub(crate) use partition::recorded_partition;

/// Progress of an intent.
enum Outcome {
    /// Done, and the intent is cleared.
    Done,
    /// Refused for good; nothing has changed, and the intent is to be cleared.
    Refused(FsError),
}

/// Returns the error for a change that will be finished later. It must not be ENOSPC: the client would take the change
/// for refused, free space and retry, and find its own change in the way.
fn not_known(error: FsError) -> FsError {
    match error.errno() {
        Errno::ENOSPC | Errno::EDQUOT => {
            FsError::with(Errno::EIO, format!("{error}; the change is finished later, when there is space"))
        }
        _ => error,
    }
}

impl Node {
    /// Carries out a change that needs peers. The caller holds the locks of all it touches. The intent is logged in
    /// `slot`, which is this node's.
    ///
    /// # Errors
    /// The reason of a refusal. If a peer does not answer, `EIO`: the reaper finishes the change later.
    pub(crate) fn carry_out(&self, ctx: &Ctx<'_>, slot: Slot, intent: Intent) -> FsResult<()> {
        self.carry_out_begun(ctx, slot, intent, |logged| match &logged.intent {
            Intent::Unlink(old) => self.begin_unlink(old, logged),
            Intent::Cut(cut) => self.begin_cut(cut),
            Intent::Link(old) | Intent::RemoveDir(old) => {
                let place = self.place(old.parent, &Name::new(&old.name)?)?;
                let partition = self.inherited(&place)?.layout.partition();
                let mut change = self.change_at(&[slot], &[])?;
                change.note_partition(partition);
                Ok(change)
            }
            intent => {
                let mut change = self.change_at(&[slot], &[])?;
                match intent {
                    Intent::MakeDir(new) => change.note_new(new.inode.attr.layout.partition()),
                    Intent::Rename(moved) => change.note_partition(moved.partition),
                    _ => {}
                }
                Ok(change)
            }
        })
    }

    /// Like [`Node::carry_out`], with the intent logged in the transaction of the change that `begin` makes.
    pub(crate) fn carry_out_begun<'a>(
        &'a self,
        ctx: &Ctx<'_>,
        slot: Slot,
        intent: Intent,
        begin: impl FnOnce(&LoggedIntent) -> FsResult<Change<'a>>,
    ) -> FsResult<()> {
        self.reaper.check_unfinished()?;
        // A daemon after this one looks for intents in its own slots alone.
        assert!(self.owns(slot), "{} logs an intent in slot {} of another node", self.id, slot.0);
        // Before the number: ids of steps must rise within a channel.
        let steps_channel = self.intents.channels.take();
        let (client, channel, op) = (ctx.client, ctx.channel, ctx.id);
        let logged = LoggedIntent { slot, intent, client, channel, op, steps_channel };
        let begun = self.allocator.next(&self.records).and_then(|tx| {
            let mut change = begin(&logged)?;
            // Checked before it is logged: a logged intent is carried out, and a retransmission waits for that.
            change.check_for(ctx)?;
            // Steps that create something fail for want of space before anything is logged; a removal must never, since
            // it may be what frees space.
            match logged.intent {
                Intent::MakeDir(_) | Intent::Link(_) => change.txn.must_fit(),
                Intent::Rename(_) => change.txn.bound_growth(),
                _ => {}
            }
            change.txn.put(slot, &intent_key(tx), &logged.to_bytes());
            change.commit()?;
            Ok(tx)
        });
        let tx = begun.inspect_err(|_| self.intents.channels.put(steps_channel))?;
        // No client waits for what a node changes by itself, so that a peer which is away is not waited for.
        let (channel, origin, background) = (steps_channel, ctx.origin, is_peer(ctx.client));
        let steps = StepContext { tx, channel, retry: false, origin, background };
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

    /// Takes the steps. The outer error leaves the outcome open, the inner one is a final refusal.
    fn finish_intent(&self, logged: &LoggedIntent, steps: StepContext) -> FsResult<FsResult<()>> {
        let outcome = match &logged.intent {
            Intent::MakeDir(new) => self.finish_make_dir(new, logged, steps)?,
            Intent::RemoveDir(old) => self.finish_remove_dir(old, logged, steps)?,
            Intent::Unlink(old) => self.finish_unlink(old, logged, steps)?,
            Intent::Link(old) => self.finish_link(old, logged, steps)?,
            Intent::Rename(moved) => self.finish_rename(moved, logged, steps)?,
            Intent::Cut(cut) => self.finish_cut(cut, logged, steps)?,
            // Requests may have changed entries since they were copied: a spreading that is resumed is undone.
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

    /// Undoes a change that was refused after some of its steps. The undo is logged first, so that a restarted daemon
    /// goes on with it.
    fn begin_undo(&self, logged: &LoggedIntent, steps: StepContext) -> FsResult<()> {
        // Under the same number and channel: the steps of the undo are told from the others by their own numbers.
        let undo = LoggedIntent { intent: Intent::Undo(Box::new(logged.intent.clone())), ..*logged };
        let mut change = self.change_at(&[logged.slot], &[])?;
        change.txn.put(logged.slot, &intent_key(steps.tx), &undo.to_bytes());
        change.commit()?;
        self.undo(&logged.intent, steps)
    }

    fn undo(&self, intent: &Intent, steps: StepContext) -> FsResult<()> {
        match intent {
            Intent::Link(new) => self.undo_link(new, steps),
            Intent::Rename(moved) => self.undo_rename(moved, steps),
            _ => Ok(()),
        }
    }

    /// Returns the error of a request: for a retransmission that found no space, EIO if its own change is unfinished,
    /// as the first transmission was answered.
    pub(crate) fn error_for(&self, ctx: &Ctx<'_>, error: FsError) -> FsError {
        let is_own = |logged: &LoggedIntent| (logged.client, logged.op) == (ctx.client, ctx.id);
        let may_be_own = ctx.retry && is_for_space(&error);
        if may_be_own && self.intents.postponed.lock().values().any(is_own) {
            not_known(error)
        } else {
            error
        }
    }

    /// Keeps the targets of an unfinished intent locked, and queues the intent for the reaper.
    fn postpone(&self, tx: u64, logged: &LoggedIntent, why: &FsError) {
        log::warn!("change {tx} waits for a peer and is finished later: {:?}", logged.intent);
        self.keep(tx, logged.clone());
        self.locks.starve(tx, &logged.intent.targets(), is_for_space(why));
        self.reaper.add_intent(logged.slot, tx);
    }

    /// Makes an unfinished intent the holder of its targets.
    fn keep(&self, tx: u64, logged: LoggedIntent) {
        logged.intent.targets().into_iter().for_each(|target| self.locks.keep(target, tx));
        let before = self.intents.postponed.lock().insert(tx, logged);
        assert!(before.is_none(), "change {tx} is postponed once");
    }

    /// Ends what [`Node::keep`] began.
    fn release(&self, tx: u64) {
        let Some(logged) = self.intents.postponed.lock().remove(&tx) else { return };
        logged.intent.targets().into_iter().for_each(|target| self.locks.release(target, tx));
        self.intents.channels.put(logged.steps_channel);
        if let Some(turn) = logged.intent.turn() {
            self.reaper.add(Job::Moves(turn));
        }
    }

    /// Returns how many changes over several nodes this node has begun and not finished.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.numbers(b'T').len() as u64
    }

    /// Finds the intents that a killed daemon left, and locks their targets. To be called before any request is served.
    pub(crate) fn adopt_intents(&self) -> FsResult<()> {
        let mut found = Vec::new();
        self.each_record(&table(b'T'), |slot, key, value| {
            found.push((slot, number_of_key(key), LoggedIntent::from_bytes(value)));
        });
        let mut seen = HashSet::new();
        for (slot, tx, logged) in found {
            let (Some(tx), Ok(logged)) = (tx, logged) else {
                return Err(FsError::with(
                    Errno::EIO,
                    format!("an intent record in slot {} is damaged", slot.0),
                ));
            };
            if !seen.insert(tx) {
                let text = format!("change {tx} has two intent records, one of them in slot {}", slot.0);
                return Err(FsError::with(Errno::EIO, text));
            }
            // Steps of a newer intent on this channel would have peers take those of this one for late.
            self.intents.channels.reserve(logged.steps_channel);
            self.keep(tx, LoggedIntent { slot, ..logged });
            self.reaper.add_intent(slot, tx);
        }
        Ok(())
    }

    /// Resumes an intent that was left unfinished. An error leaves it to the next attempt.
    pub(crate) fn replay_intent(&self, slot: Slot, tx: u64) -> FsResult<()> {
        let bytes = self.records.read(slot, &intent_key(tx), |bytes| bytes.map(<[u8]>::to_vec));
        // No record: the last transaction was committed, and the failure came after it.
        if let Some(bytes) = bytes {
            let logged = crate::namespace::decode::<LoggedIntent>(&bytes, "intent", Ino(tx))?;
            let targets = logged.intent.targets();
            let resumed = self.resume(LoggedIntent { slot, ..logged }, tx);
            // Also cleared: what found no space the last time may wait for a peer by now.
            self.locks.starve(tx, &targets, resumed.as_ref().is_err_and(is_for_space));
            resumed?;
        }
        self.release(tx);
        Ok(())
    }

    fn resume(&self, logged: LoggedIntent, tx: u64) -> FsResult<()> {
        let (channel, origin) = (logged.steps_channel, logged.client);
        let steps = StepContext { tx, channel, retry: true, origin, background: true };
        // Thread of the reaper: without a principal no lease on what the change concerns would be recalled.
        let _principal = Principal::on_behalf_of(logged.client);
        if let Err(refused) = self.finish_intent(&logged, steps)? {
            log::info!(why:% = refused; "change {tx}, left by an earlier daemon, was refused");
        }
        Ok(())
    }
}

fn is_for_space(error: &FsError) -> bool {
    matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT)
}

/// Returns true if the error is a final refusal by the peer. Any other (no connection, no space for its log) may be
/// gone at the next attempt.
fn is_final(error: &bivouac_types::FsError) -> bool {
    use Errno as E;
    let names = matches!(error.errno(), E::ENOENT | E::EEXIST | E::ENOTEMPTY | E::ENOTDIR | E::EISDIR);
    let more = matches!(error.errno(), E::EPERM | E::EMLINK | E::EBUSY | E::EAGAIN | E::EINVAL);
    names || more || matches!(error.errno(), E::ENAMETOOLONG | E::EREMOTE | E::EXDEV | E::ECANCELED)
}

/// Splits a step's result: the inner error ends the intent, the outer one leaves it unfinished.
fn refused<T>(result: FsResult<T>) -> FsResult<Result<T, bivouac_types::FsError>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if is_final(&error) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

/// Like [`refused`], for a step that creates something. ENOSPC is a refusal there: nothing has happened, and an error
/// now is better than success at an unknown time.
fn refused_or_full<T>(result: FsResult<T>) -> FsResult<Result<T, bivouac_types::FsError>> {
    match result {
        Err(error) if error.errno() == Errno::ENOSPC => Ok(Err(error)),
        result => refused(result),
    }
}

/// Returns the entry of an inode.
fn dentry_of(inode: &Inode) -> Dentry {
    Dentry { ino: inode.attr.ino, kind: inode.attr.mode & bivouac_types::mode::TYPE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent_record::OldEntry;
    use crate::testing::alone;
    use bivouac_types::{ClientId, OpId};

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
        let logged = LoggedIntent { slot: Slot(0), intent, client, channel, op, steps_channel };
        let guards = node.locks.lock_all([dir, target]).unwrap();
        node.keep(99, logged);
        drop(guards);
        assert!(node.locks.try_lock(target).is_none());
        node.replay_intent(Slot(0), 99).unwrap();
        assert!(node.locks.try_lock(target).is_some() && !node.locks.is_kept(target));
        assert!(node.locks.claim(Ino::ROOT).is_some(), "nobody is at work in the directory");
        assert_eq!(node.intents.channels.take(), steps_channel, "the channel is free");
    }

    /// A daemon that found them panicked, and so did each that was started after it.
    #[test]
    fn a_change_with_two_records_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let intent = Intent::Inherit(Ino::ROOT);
        let steps_channel = node.intents.channels.take();
        let (client, channel, op) = (ClientId(5), 6, OpId(7));
        let logged = LoggedIntent { slot: Slot(0), intent, client, channel, op, steps_channel };
        let mut change = node.change_at(&[Slot(0), Slot(1)], &[]).unwrap();
        for slot in [Slot(0), Slot(1)] {
            change.txn.put(slot, &intent_key(99), &logged.to_bytes());
        }
        change.commit().unwrap();
        assert_eq!(node.adopt_intents().map_err(|error| error.errno()), Err(Errno::EIO));
    }

    /// Its home learned of what it was for, or its shards did not: the change was ended all the same.
    #[test]
    fn a_change_of_what_cannot_be_read_is_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let node = alone(dir.path());
        let (slot, tx) = (Ino::ROOT.slot(), 99);
        let intent = Intent::Inherit(Ino::ROOT);
        let steps_channel = node.intents.channels.take();
        let (client, channel, op) = (ClientId(5), 6, OpId(7));
        let logged = LoggedIntent { slot, intent, client, channel, op, steps_channel };
        let mut change = node.change_at(&[slot], &[]).unwrap();
        change.txn.put(slot, &intent_key(tx), &logged.to_bytes());
        change.txn.put(slot, &crate::record::inode_key(Ino::ROOT), b"no record");
        change.commit().unwrap();
        assert_eq!(node.replay_intent(slot, tx).map_err(|error| error.errno()), Err(Errno::EIO));
        assert_eq!(node.unfinished(), 1);
    }
}
