//! Replicas of other nodes' volumes, and this node's own mirror.

use std::sync::Arc;
use std::time::Duration;

use bivouac_mirror::NotSealed;
use bivouac_store::{MirrorStatus, Replica, SealError, ServeState};
use bivouac_types::{Errno, FsError, FsResult, NodeId};
use bivouac_wire::{
    AppliedChanges, ApplyChangesRequest, BeginReplicaRequest, BegunReplica, MirrorEntry, ReplicaOutcome,
    ReplicaSessionRequest, SealReplicaRequest, SealedReplica, SetBackupRequest, op,
};

use crate::identity::peer_of;
use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

impl Handle for op::BeginReplica {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: BeginReplicaRequest) -> FsResult<BegunReplica> {
        let primary = primary(node, ctx)?;
        Ok(node.replica_of(primary)?.begin(&request))
    }
}

impl Handle for op::ApplyChanges {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ApplyChangesRequest) -> FsResult<AppliedChanges> {
        let primary = primary(node, ctx)?;
        Ok(node.replica_of(primary)?.apply(&request, ctx.payload))
    }
}

impl Handle for op::RenewReplica {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReplicaSessionRequest) -> FsResult<ReplicaOutcome> {
        let primary = primary(node, ctx)?;
        Ok(node.replica_of(primary)?.renew(&request))
    }
}

impl Handle for op::SealReplica {
    fn handle(node: &Node, _: &Ctx<'_>, request: SealReplicaRequest) -> FsResult<SealedReplica> {
        node.seal_replica(request.node, request.epoch)
    }
}

impl Handle for op::SetBackup {
    fn handle(node: &Node, _: &Ctx<'_>, request: SetBackupRequest) -> FsResult<()> {
        node.set_backup(request.epoch, request.backup)
    }
}

/// Returns the node that asks, which is another one.
fn primary(node: &Node, ctx: &Ctx<'_>) -> FsResult<NodeId> {
    // What it asked for over an older connection it has asked for again.
    ctx.check_current()?;
    let asker = peer_of(ctx.client).filter(|asker| node.peers.has(*asker));
    asker.ok_or_else(|| FsError::with(Errno::EPROTO, "only other nodes have replicas here"))
}

impl Node {
    /// Returns the replicas of another node's volumes here.
    fn replica_of(&self, node: NodeId) -> FsResult<Arc<Replica>> {
        self.replicas.of((self.map.formation, node), &self.data)
    }

    /// Removes the replicas of nodes that have another backup by the newest map. Returns the time after which to call
    /// again, if some of these nodes may still take this one for their backup.
    pub fn discard_replicas(&self) -> Option<Duration> {
        let map = self.newest_map();
        let mirrors = (0u16..).map(NodeId).zip(&map.mirrors);
        let others = mirrors.filter(|(node, entry)| *node != self.id && entry.backup != Some(self.id));
        let discard = |(node, entry): (NodeId, &MirrorEntry)| {
            let replica = self.replica_of(node).ok()?;
            let discarded = replica.discard(entry.epoch);
            discarded.unwrap_or_else(|error| {
                log::error!(why:% = error; "the former replica of {node} is not removed");
                None
            })
        };
        others.filter_map(discard).max()
    }

    /// Seals the replicas of a node's volumes: refuses their primary below `epoch`, for good, and returns where the
    /// replicas are. A daemon of the node may be started from them, with that epoch, once `wait_ms` is 0: call again
    /// until it is.
    ///
    /// # Errors
    /// `EAGAIN` while the replicas are incomplete; `ESTALE` if they are of that epoch or a later one already; errors of
    /// the system.
    pub fn seal_replica(&self, node: NodeId, epoch: u32) -> FsResult<SealedReplica> {
        if !self.peers.has(node) {
            return Err(FsError::with(
                Errno::EINVAL,
                format!("{node} is not another node of this formation"),
            ));
        }
        self.replica_of(node)?.seal(epoch).map_err(|error| match error {
            SealError::Refused(NotSealed::Incomplete) => {
                let text = format!(
                    "the replica of {node} does not have all of its volumes; nothing can take over from it"
                );
                FsError::with(Errno::EAGAIN, text)
            }
            SealError::Refused(NotSealed::OldEpoch { epoch }) => {
                let text = format!(
                    "the replica of {node} is of mirror epoch {epoch}; it can be sealed for the next one"
                );
                FsError::with(Errno::ESTALE, text)
            }
            SealError::Io(error) => FsError::from_io(&error, &format!("replica of {node}")),
        })
    }

    /// Mirrors this node's volumes to another backup, or to none, at a higher epoch.
    ///
    /// # Errors
    /// `EOPNOTSUPP` in a formation without mirrors, `EINVAL` for a node that cannot be the backup, `ESTALE` for an
    /// epoch that is not above that of the mirror, and the system's.
    pub fn set_backup(&self, epoch: u32, backup: Option<NodeId>) -> FsResult<()> {
        let unprotected =
            || FsError::with(Errno::EOPNOTSUPP, "the volumes of this formation are not mirrored");
        let tended = self.mirror.as_ref().ok_or_else(unprotected)?;
        if let Some(backup) = backup.filter(|backup| !self.peers.has(*backup)) {
            return Err(FsError::with(
                Errno::EINVAL,
                format!("{backup} is not another node of this formation"),
            ));
        }
        tended
            .mirror
            .set_backup(epoch, backup)
            .map_err(|error| FsError::from_io(&error, "change of the backup"))
    }

    /// Returns whether this node's replicas were sealed for a move that was given up: the newest map has the node where
    /// this daemon is. It serves nothing any more; the next daemon on its volumes does, as those have all that was
    /// acknowledged.
    #[must_use]
    pub fn is_sealed_in_vain(&self) -> bool {
        let is_superseded =
            self.mirror.as_ref().is_some_and(|tended| tended.mirror.serve_state() == ServeState::Superseded);
        let map = self.newest_map();
        is_superseded
            && map.nodes.get(usize::from(self.id.0)).is_some_and(|entry| entry.epoch == self.own_epoch())
    }

    /// Returns the state of the mirror of this node's volumes; `None` if they are not mirrored.
    #[must_use]
    pub fn mirror_status(&self) -> Option<MirrorStatus> {
        self.mirror.as_ref().map(|tended| tended.mirror.status())
    }
}
