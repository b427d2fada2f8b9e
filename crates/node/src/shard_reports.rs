//! Reports of a node's shards to the homes of their directories; see `gather.rs`.

use bivouac_types::{ClientId, FsResult, Ino, NodeId};
use bivouac_wire::{DirChangedRequest, op};

use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Job;
use crate::record::shard_key;
use crate::session::Ctx;

impl Node {
    /// Reports to the home that this node's shard of a directory has changed, and waits for its answer.
    pub(crate) fn tell_home(&self, origin: ClientId, dir: Ino) {
        let Some(time) = self.shards.begin(dir) else { return };
        let outcome = self.tell(StepContext::question(origin), dir, self.id, true);
        // While the home is away nobody can ask it for the attributes, and a restarted one asks all shards. In case it
        // is merely slow, it is told later, so that not every change waits for it.
        self.shards.end(dir, time);
        if let Err(error) = outcome {
            log::warn!(why:% = error; "the home of directory {dir} is told later that it has changed");
            self.reaper.add_once(Job::Tell(dir));
        }
    }

    /// Reports a change of this node's shard of a directory that was made earlier, perhaps by a daemon that was killed
    /// before it could: its repetition must not be answered before the home knows.
    pub(crate) fn tell_again(&self, ctx: &Ctx<'_>, dir: Ino) {
        let book = self.shards.slot_of(dir);
        if self.records.read(book, &shard_key(dir), |shard| shard.is_some()) {
            self.tell_home(ctx.origin, dir);
        }
    }

    /// Tells the home of a spread directory that its shard on `node` has changed, or may have.
    pub(crate) fn tell(&self, steps: StepContext, dir: Ino, node: NodeId, certain: bool) -> FsResult<()> {
        let request = DirChangedRequest { dir, node, certain };
        self.step::<op::DirChanged>(self.home_of(dir)?, steps, 0, request)
    }

    /// Tells what an earlier attempt could not tell, or an earlier daemon did not come to tell.
    pub(crate) fn tell_pending(&self, dir: Ino) -> FsResult<()> {
        let steps = StepContext { background: true, ..StepContext::question(SYSTEM) };
        self.tell(steps, dir, self.id, false)
    }
}
