//! Files whose partition stands in front of site storage.

use std::time::Duration;

use bivouac_types::FsResult;
use bivouac_wire::{
    BringRequest, Dirty, DirtyPage, FenceRequest, FindPlaceRequest, FlushHereRequest, FlushPartsRequest,
    FlushRequest, FlushState, FlushedParts, InoOnly, ListDirtyRequest, ListPinnedRequest, ListSeenRequest,
    MarkFlushRequest, MirrorPage, MirrorRequest, NoteSeenRequest, OwnRequest, PinRequest, PinnedPage,
    SeenPage, SitePlace, Whence, op,
};

use crate::identity::is_peer;
use crate::node::Node;
use crate::proxy::{PEER_WAIT, WAIT};
use crate::session::Ctx;
use crate::step::Handle;

impl Handle for op::FindOrigin {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<Whence> {
        node.find_origin(ino)
    }
}

impl Handle for op::ListDirty {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListDirtyRequest) -> FsResult<DirtyPage> {
        node.list_dirty(&request)
    }
}

impl Handle for op::ListSeen {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListSeenRequest) -> FsResult<SeenPage> {
        node.list_seen(&request)
    }
}

impl Handle for op::NoteSeen {
    fn handle(node: &Node, _: &Ctx<'_>, request: NoteSeenRequest) -> FsResult<()> {
        node.note_seen(&request)
    }
}

impl Handle for op::Flush {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: FlushRequest) -> FsResult<FlushState> {
        node.flush(request, wait_of(ctx))
    }
}

impl Handle for op::FlushHere {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: FlushHereRequest) -> FsResult<FlushState> {
        node.flush_here(&request, wait_of(ctx))
    }
}

impl Handle for op::Own {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: OwnRequest) -> FsResult<FlushState> {
        node.own(request, wait_of(ctx))
    }
}

fn wait_of(ctx: &Ctx<'_>) -> Duration {
    if is_peer(ctx.client) { PEER_WAIT } else { WAIT }
}

impl Handle for op::BringFile {
    fn handle(node: &Node, _: &Ctx<'_>, request: BringRequest) -> FsResult<Option<u64>> {
        node.bring_file(&request)
    }
}

impl Handle for op::FindPlace {
    fn handle(node: &Node, _: &Ctx<'_>, request: FindPlaceRequest) -> FsResult<SitePlace> {
        node.find_place(&request)
    }
}

impl Handle for op::MarkFlush {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: MarkFlushRequest) -> FsResult<u64> {
        node.mark_flush(ctx, request)
    }
}

impl Handle for op::Mirror {
    fn handle(node: &Node, _: &Ctx<'_>, request: MirrorRequest) -> FsResult<MirrorPage> {
        node.mirror(&request)
    }
}

impl Handle for op::Pin {
    fn handle(node: &Node, _: &Ctx<'_>, request: PinRequest) -> FsResult<()> {
        node.pin(&request)
    }
}

impl Handle for op::ListPinned {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListPinnedRequest) -> FsResult<PinnedPage> {
        node.list_pinned(&request)
    }
}

impl Handle for op::Fence {
    fn handle(node: &Node, _: &Ctx<'_>, request: FenceRequest) -> FsResult<bool> {
        node.proxy.fence.hold(&request)
    }
}

impl Handle for op::SendUnsent {
    fn handle(node: &Node, _: &Ctx<'_>, request: FenceRequest) -> FsResult<Vec<Dirty>> {
        Ok(node.served.page_pools().iter().flat_map(|pool| pool.tell_unsent(&request)).collect())
    }
}

impl Handle for op::FlushParts {
    fn handle(node: &Node, _: &Ctx<'_>, request: FlushPartsRequest) -> FsResult<FlushedParts> {
        node.flush_parts(&request)
    }
}
