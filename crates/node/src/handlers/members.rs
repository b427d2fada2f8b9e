//! Nodes that watch each other.

use bivouac_members::Event;
use bivouac_types::{Errno, FsError, FsResult, NodeId};
use bivouac_wire::{NewsList, ProbeForRequest, op};

use crate::identity::peer_of;
use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

impl Handle for op::Probe {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: NewsList) -> FsResult<NewsList> {
        Ok(NewsList { news: node.members.hear(asker(ctx)?, &request.news, None) })
    }
}

impl Handle for op::ProbeFor {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ProbeForRequest) -> FsResult<NewsList> {
        let asker = asker(ctx)?;
        let event = Event::ProbeFor { asker, target: request.target };
        Ok(NewsList { news: node.members.hear(asker, &request.news, Some(event)) })
    }
}

impl Handle for op::Reached {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ProbeForRequest) -> FsResult<NewsList> {
        let event = Event::Reached(request.target);
        Ok(NewsList { news: node.members.hear(asker(ctx)?, &request.news, Some(event)) })
    }
}

/// Returns the node that asks.
fn asker(ctx: &Ctx<'_>) -> FsResult<NodeId> {
    peer_of(ctx.client).ok_or_else(|| FsError::with(Errno::EPROTO, "only nodes watch each other"))
}
