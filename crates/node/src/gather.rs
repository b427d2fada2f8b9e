//! How the home of a spread directory follows its shards.
//!
//! Size, link count and times of a spread directory are kept by its home. A report of each change would make the home
//! the bottleneck of all nodes. So a shard reports its *first* change, before that is answered, and the home marks the
//! shard as *dirty*. When a client wants the attributes, the home asks all dirty shards, and a shard that was asked
//! reports its next change again. So a lookup of a directory that does not change costs nothing, nor does a change of a
//! directory that nobody looks at, and each lookup sees every finished change.
//!
//! A change of a shard that finds an earlier report under way makes one as well: it must not be answered before the
//! home has marked the shard. The home sets the times when it gets a report and when it finds a shard changed, by its
//! own clock.

use std::sync::atomic::Ordering;

use bivouac_types::{ClientId, Errno, FsResult, Ino};
use bivouac_wire::{Encode, InoOnly, ShardState, op};

use crate::identity::is_peer;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::{FoldedShards, Inode, folded_key, shard_key};
use crate::session::Ctx;
use crate::shards::Gather;

impl Node {
    /// Queues reports of the directories whose shards an earlier daemon may have changed without telling.
    pub(crate) fn adopt_shards(&self) {
        self.numbers(b'S').into_iter().for_each(|(_, dir)| self.reaper.add_once(Job::Tell(Ino(dir))));
    }

    /// Returns an inode; of a spread directory with all finished changes. Peers, who must not make this node wait for
    /// others, get what is known.
    pub(crate) fn gathered(&self, ctx: &Ctx<'_>, ino: Ino) -> FsResult<Inode> {
        let inode = self.inode(ino)?;
        if !inode.attr.is_spread() || is_peer(ctx.client) {
            return Ok(inode);
        }
        self.gather(ctx.origin, ino)?;
        self.inode(ino)
    }

    /// Asks the shards that are ahead, and writes down what they say. One that does not answer stays ahead.
    pub(crate) fn gather(&self, origin: ClientId, dir: Ino) -> FsResult<()> {
        let gather = self.gathers.of(dir);
        // Before the wait for the turn: rounds that begin after this see every change that the asker may know of.
        let arrived = gather.begun.load(Ordering::SeqCst);
        let mut ended = gather.turn.try_lock().unwrap_or_else(|| {
            bivouac_net::before_waiting();
            gather.turn.lock()
        });
        if *ended > arrived {
            // A round that began after this question has told everything.
            return Ok(());
        }
        let round = gather.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let outcome = self.ask_shards(origin, dir, &gather);
        assert!(round > *ended, "round {round} of directory {dir} ends behind round {}", *ended);
        *ended = round;
        outcome
    }

    fn ask_shards(&self, origin: ClientId, dir: Ino, gather: &Gather) -> FsResult<()> {
        let dirty = std::mem::take(&mut gather.known.lock().dirty);
        if dirty.is_empty() {
            return Ok(());
        }
        for node in dirty {
            match self.step::<op::FoldShard>(node, StepContext::question(origin), 0, InoOnly { ino: dir }) {
                Ok(state) => drop(gather.known.lock().shards.insert(node, state)),
                Err(error) => {
                    // The next round asks it again.
                    gather.known.lock().dirty.insert(node);
                    log::warn!(why:% = error; "{node} does not say what it has of directory {dir}");
                }
            }
        }
        let shards: Vec<ShardState> = gather.known.lock().shards.values().cloned().collect();
        if shards.len() == self.gathers.nodes.len() { self.fold(dir, &shards) } else { Ok(()) }
    }

    fn fold(&self, dir: Ino, shards: &[ShardState]) -> FsResult<()> {
        let slot = dir.slot();
        let mut change = self.change_at(&[slot], &[])?;
        let mut inode = change.inode(dir)?;
        let known = change.txn.get(slot, &folded_key(dir));
        let known: FoldedShards =
            known.map_or(Ok(FoldedShards::default()), |bytes| decode(bytes, "shards", dir))?;
        // Versions only rise, so their sum is the same only if no shard has changed.
        let versions = shards.iter().fold(0_u64, |sum, shard| sum.wrapping_add(shard.version));
        if versions == known.versions {
            return Ok(());
        }
        let subdirs = shards.iter().fold(2_u32, |sum, shard| sum.saturating_add(shard.subdirs));
        inode.attr.size = shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.entries));
        inode.attr.nlink = subdirs;
        (inode.attr.mtime, inode.attr.ctime) = (change.now, change.now);
        change.put_inode(&inode);
        change.txn.put(slot, &folded_key(dir), &FoldedShards { versions }.to_bytes());
        change.commit()
    }

    /// Returns what this node's shard adds to its directory. Its next change will be reported.
    pub(crate) fn shard_state(&self, dir: Ino) -> FsResult<ShardState> {
        // Before the shard is read: a change in between is reported, and asked about again.
        self.shards.asked(dir);
        let book = self.shards.slot_of(dir);
        self.check_slot(book)?;
        self.records.read(book, &shard_key(dir), |bytes| match bytes {
            None => Err(Errno::ENOENT.into()),
            Some(bytes) => {
                let shard: crate::record::Shard = decode(bytes, "shard", dir)?;
                let (entries, subdirs, version) = (shard.entries, shard.subdirs, shard.version);
                Ok(ShardState { entries, subdirs, version })
            }
        })
    }
}
