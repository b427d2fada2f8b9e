//! Handlers of operations on the size and the content times of a file, at its home.

use std::io::IoSlice;

use bivouac_net::RequestOrigin;
use bivouac_types::limits::FILE_SIZE_MAX;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino};
use bivouac_wire::{
    AppendRequest, Appended, ClaimRequest, CountRequest, Encode, ExtendOverRequest, ExtendRequest, Extended,
    FlushMark, InoOnly, MarkFlushRequest, Op, WriteRequest, Written, op,
};

use super::data;
use crate::intent_record::{Cut, Intent, LoggedIntent};
use crate::locks::LockTarget;
use crate::node::Node;
use crate::peers::{PeerRequest, StepContext};
use crate::record::{Inode, without_set_id};
use crate::session::Ctx;
use crate::step::Handle;

/// Result, kept for retransmissions, of a size change that made the file longer.
const GROWN: u64 = 1;

impl Handle for op::Extend {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ExtendRequest) -> FsResult<Extended> {
        // Before the size is locked: see `Callbacks::begin`.
        let _quiet = node.recall_other_attr_leases(request.ino);
        let size = node.locks.lock(LockTarget::Size(request.ino))?;
        let (extended, may_have_grown) = node.extend(ctx, &request, 0)?;
        // Kernels are notified without the size locked: see `Node::has_grown`.
        drop(size);
        if may_have_grown {
            node.has_grown(ctx.client, request.ino, extended.attr.size);
        }
        Ok(extended)
    }
}

impl Handle for op::Count {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: CountRequest) -> FsResult<()> {
        let _quiet = node.recall_other_attr_leases(request.ino);
        let mut change = node.change_of(request.ino)?;
        ctx.check_current()?;
        let mut inode = change.inode(request.ino)?;
        let holes = request.holes.min(inode.attr.size);
        if inode.attr.epoch != request.epoch || inode.attr.holes == holes {
            return Ok(());
        }
        inode.attr.holes = holes;
        let before = node.lending.counted(&inode.attr);
        change.put_inode(&inode);
        change.commit().inspect_err(|_| node.lending.did_not_count(request.ino, before))
    }
}

impl Handle for op::ExtendOver {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ExtendOverRequest) -> FsResult<Extended> {
        let ExtendOverRequest { ino, start, end, epoch } = request;
        let _quiet = node.recall_other_attr_leases(ino);
        let size = node.locks.lock(LockTarget::Size(ino))?;
        let mut inode = node.regular_file(ino)?;
        inode.attr.check_changeable()?;
        // Bytes behind the end would show up in the hole: they are cut off first, and the client writes again with the
        // new epoch.
        if inode.attr.epoch == epoch && start > inode.attr.size && node.stale_tails.may_have_tail(ino) {
            // Only here: a cut needs the size that processes have reached, and otherwise they may go on raising it.
            node.recall_size_lease(ino)?;
            inode = node.regular_file(ino)?;
            node.cut_rest(ctx, &inode)?;
            return Ok(Extended { accepted: false, attr: node.inode(ino)?.attr });
        }
        let (extended, may_have_grown) = node.extend(ctx, &ExtendRequest { ino, end, epoch }, start)?;
        drop(size);
        if may_have_grown {
            node.has_grown(ctx.client, ino, extended.attr.size);
        }
        Ok(extended)
    }
}

impl Node {
    /// Raises the size to the end of a write, counts the hole in front of its start, and returns true if the file has
    /// grown. Also true for a retransmission: others may not have been notified by the first transmission. The caller
    /// holds the size lock.
    fn extend(&self, ctx: &Ctx<'_>, request: &ExtendRequest, start: u64) -> FsResult<(Extended, bool)> {
        let mut change = self.change_of(request.ino)?;
        ctx.check_current()?;
        let mut inode = change.inode(request.ino)?;
        inode.attr.check_changeable()?;
        if inode.attr.epoch != request.epoch || request.end > FILE_SIZE_MAX {
            return Ok((Extended { accepted: false, attr: inode.attr }, false));
        }
        let has_grown = request.end > inode.attr.size;
        let mut wrote = 0;
        if has_grown {
            let gap = start.min(request.end).saturating_sub(inode.attr.size);
            // Processes that the size is lent to raise it, too: what is not known to be written counts as a hole.
            wrote = request.end - inode.attr.size - gap;
            self.lending.wrote(request.ino, wrote);
            inode.attr.holes = inode.attr.holes.saturating_add(gap);
            inode.attr.size = request.end;
        }
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        let committed = change.commit_repeatable_for(ctx);
        committed.inspect_err(|_| self.lending.did_not_write(request.ino, wrote))?;
        Ok((Extended { accepted: true, attr: inode.attr }, has_grown || ctx.retry))
    }
}

impl Handle for op::Touch {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: InoOnly) -> FsResult<()> {
        let _quiet = node.recall_other_attr_leases(request.ino);
        node.inode(request.ino)?.attr.check_changeable()?;
        // Before the version rises, so that no client gets the new version as a validator while this one writes on.
        node.opens.mark_writer(request.ino, ctx.client);
        let mut change = node.change_of(request.ino)?;
        let mut inode = change.inode(request.ino)?;
        inode.attr.check_changeable()?;
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        change.commit_repeatable_for(ctx)
    }
}

/// Updates attributes as a write does, apart from the size.
fn written(attr: &mut Attr, now: bivouac_types::Timestamp) {
    attr.mtime = now;
    attr.ctime = now;
    attr.mode = without_set_id(attr.mode);
    attr.raise_data_version();
}

impl Handle for op::Append {
    fn handle(
        node: &Node,
        ctx: &Ctx<'_>,
        AppendRequest { ino, epoch, from }: AppendRequest,
    ) -> FsResult<Appended> {
        let _quiet = node.recall_other_attr_leases(ino);
        let size = node.lock_size(ino)?;
        let inode = node.regular_file(ino)?;
        if let Some(offset) = ctx.done_before(&node.records, ino.slot())? {
            drop(size);
            node.has_grown(ctx.client, ino, inode.attr.size);
            return Ok(Appended { offset, attr: inode.attr });
        }
        inode.attr.check_changeable()?;
        if epoch.is_some_and(|epoch| epoch != inode.attr.epoch) {
            // The tokens of the call are of that epoch: it begins again, with new ones.
            return Err(Errno::ERESTART.into());
        }
        if inode.attr.size < from {
            return Err(Errno::ECANCELED.into());
        }
        let offset = inode.attr.size;
        let len: u64 = ctx.payload.iter().map(|piece| piece.len() as u64).sum();
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        let append = || {
            // Within the lock of the size no other call gets this place; the size follows, as it must not lead to bytes
            // that are not there.
            node.write_striped(&inode, offset, ctx.payload)?;
            let mut change = node.change_of(ino)?;
            let mut inode = change.inode(ino)?;
            inode.attr.size = end;
            written(&mut inode.attr, change.now);
            change.put_inode(&inode);
            change.commit_for(ctx, ino.slot(), offset)?;
            Ok(Appended { offset, attr: inode.attr })
        };
        // What some targets have taken must not appear when the file is made longer.
        let appended = append().inspect_err(|_: &FsError| node.mark_tails(vec![ino]))?;
        drop(size);
        node.has_grown(ctx.client, ino, end);
        Ok(appended)
    }
}

impl Handle for op::Claim {
    fn handle(node: &Node, ctx: &Ctx<'_>, ClaimRequest { ino, len }: ClaimRequest) -> FsResult<Appended> {
        let _quiet = node.recall_other_attr_leases(ino);
        let size = node.lock_size(ino)?;
        let inode = node.regular_file(ino)?;
        if let Some(offset) = ctx.done_before(&node.records, ino.slot())? {
            drop(size);
            node.has_grown(ctx.client, ino, inode.attr.size);
            return Ok(Appended { offset, attr: inode.attr });
        }
        let offset = inode.attr.size;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Ok(Appended { offset, attr: inode.attr });
        }
        inode.attr.check_changeable()?;
        if node.stale_tails.may_have_tail(ino) {
            node.cut_rest(ctx, &inode)?;
        }
        let mut change = node.change_of(ino)?;
        let mut inode = change.inode(ino)?;
        // Nobody has written there yet: the client counts what it fills when it closes the file.
        inode.attr.holes = inode.attr.holes.saturating_add(len);
        inode.attr.size = end;
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        change.commit_for(ctx, ino.slot(), offset)?;
        drop(size);
        node.has_grown(ctx.client, ino, end);
        Ok(Appended { offset, attr: inode.attr })
    }
}

impl Handle for op::CutTail {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let _quiet = node.recall_other_attr_leases(ino);
        let _size = node.lock_size(ino)?;
        let inode = node.regular_file(ino)?;
        if inode.attr.is_laminated() {
            // Targets have refused writes behind the end of a laminated file.
            return Ok(());
        }
        node.cut(ctx, &inode, inode.attr.size, inode.attr.layout)
    }
}

impl Node {
    /// Truncates or extends a file, once for all transmissions of a request. Returns the attributes and the result kept
    /// for retransmissions: [`GROWN`] if the file has grown, 0 otherwise.
    pub(crate) fn resize_once(&self, ctx: &Ctx<'_>, ino: Ino, size: u64) -> FsResult<(Attr, u64)> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let lock = self.lock_size(ino)?;
        let (attr, done) = match ctx.done_before(&self.records, ino.slot())? {
            Some(done) => (self.inode(ino)?.attr, done),
            None => self.resize(ctx, ino, size)?,
        };
        drop(lock);
        if done == GROWN {
            self.has_grown(ctx.client, ino, attr.size);
        }
        Ok((attr, done))
    }

    fn resize(&self, ctx: &Ctx<'_>, ino: Ino, size: u64) -> FsResult<(Attr, u64)> {
        let inode = self.regular_file(ino)?;
        inode.attr.check_changeable()?;
        if size < inode.attr.size {
            self.cut(ctx, &inode, size, inode.attr.layout)?;
            return Ok((self.attr_of(ctx, ino)?, 0));
        }
        if size > inode.attr.size && self.stale_tails.may_have_tail(ino) {
            self.cut_rest(ctx, &inode)?;
        }
        let mut change = self.change_of(ino)?;
        let mut inode = change.inode(ino)?;
        let done = if size > inode.attr.size { GROWN } else { 0 };
        inode.attr.holes = inode.attr.holes.saturating_add(size.saturating_sub(inode.attr.size));
        inode.attr.size = size;
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        // With the growth in one transaction: a retransmission must not cut off what others have appended since.
        change.commit_for(ctx, ino.slot(), done)?;
        Ok((inode.attr, done))
    }

    /// Truncates a file to `size`; an empty file may also get another layout.
    pub(crate) fn cut(
        &self,
        ctx: &Ctx<'_>,
        inode: &Inode,
        size: u64,
        new_layout: bivouac_types::Layout,
    ) -> FsResult<()> {
        let Attr { ino, layout, epoch, contract, .. } = inode.attr;
        let cut = Cut { ino, size, epoch: epoch.wrapping_add(1), layout, new_layout, contract };
        self.carry_out(ctx, ino.slot(), Intent::Cut(cut))
    }

    /// Cuts off what clients that died may have left behind the end. It is not the client's operation, which has yet to
    /// be carried out.
    fn cut_rest(&self, ctx: &Ctx<'_>, inode: &Inode) -> FsResult<()> {
        self.cut(&ctx.for_nobody(), inode, inode.attr.size, inode.attr.layout)
    }

    /// Gives a file a new epoch, and changes nothing else, if `is_wanted` once the size is locked; then calls `done`.
    /// Targets refuse requests with the present epoch from then on, and no client uses copies without asking, the one
    /// of `ctx` included.
    pub(crate) fn raise_epoch(
        &self,
        ctx: &Ctx<'_>,
        ino: Ino,
        is_wanted: impl FnOnce() -> bool,
        done: impl FnOnce(),
    ) -> FsResult<()> {
        let _quiet = self.recall_attr_leases(ino);
        let _size = self.lock_size(ino)?;
        if is_wanted() {
            self.cut_to_new_epoch(ctx, &self.regular_file(ino)?.attr)?;
            done();
        }
        Ok(())
    }

    /// Gives a file a new epoch, and changes nothing else. The caller holds the size lock.
    pub(super) fn cut_to_new_epoch(&self, ctx: &Ctx<'_>, attr: &Attr) -> FsResult<()> {
        let Attr { ino, size, epoch, layout, contract, .. } = *attr;
        let cut = Cut { ino, size, epoch: epoch.wrapping_add(1), layout, new_layout: layout, contract };
        // Not the client's operation, as above. Content stays, and so do times and data version, unless a client that
        // may have written is gone: the cut removes the mark that remembers that.
        let begin = |_: &LoggedIntent| {
            let mut change = self.change_of(ino)?;
            if self.stale_tails.may_have_tail(ino) {
                let mut inode = change.inode(ino)?;
                inode.attr.raise_data_version();
                change.put_inode(&inode);
            }
            Ok(change)
        };
        self.carry_out_begun(&ctx.for_nobody(), ino.slot(), Intent::Cut(cut), begin)
    }

    pub(crate) fn attr_of(&self, ctx: &Ctx<'_>, ino: Ino) -> FsResult<Attr> {
        if self.map.home(ino) == Some(self.id) {
            return Ok(self.inode(ino)?.attr);
        }
        Ok(self
            .step::<op::GetAttr>(self.home_of(ino)?, StepContext::question(ctx.origin), 0, InoOnly { ino })?
            .attr)
    }

    /// Writes the pieces of a contiguous range of the file to its targets, here and on peers.
    pub(super) fn write_striped(&self, inode: &Inode, offset: u64, payload: &[IoSlice<'_>]) -> FsResult<()> {
        let bytes = contiguous(payload);
        let Attr { ino, layout, epoch, .. } = inode.attr;
        for range in bivouac_layout::split(&layout, offset, bytes.len() as u64) {
            let place = self.target_place(range.target)?;
            let pieces: Vec<IoSlice<'_>> =
                range.pieces().filter_map(|piece| bytes.get(piece.range()).map(IoSlice::new)).collect();
            let request =
                WriteRequest { ino, target: range.target, layout, epoch, offset: range.subfile_offset };
            if place.node == self.id {
                accepted(&data::write(self, &request, &pieces, (RequestOrigin::LOCAL, true))?)?;
            } else {
                let body = request.to_bytes();
                let step =
                    PeerRequest { payload: &pieces, ..PeerRequest::of_node(self.id, Op::Write, &body) };
                let written = match self.peers.ask::<op::Write>(place.node, &step) {
                    // The target lacks content of site storage around the range. As a step it may not fetch that
                    // itself, which takes other nodes.
                    Err(error) if error.errno() == Errno::EINPROGRESS => {
                        self.fetch_at_target(inode, &range)?;
                        self.peers.ask::<op::Write>(place.node, &step)
                    }
                    written => written,
                };
                accepted(&written?)?;
            }
        }
        Ok(())
    }
}

impl Node {
    /// Asks a peer to bring in, from site storage, the range of its subfile that a step is about to write.
    fn fetch_at_target(&self, inode: &Inode, range: &bivouac_layout::TargetRange) -> FsResult<()> {
        let (ino, target) = (inode.attr.ino, range.target);
        let (whence, offset, len) = (self.whence(ino)?, range.subfile_offset, range.len);
        let mark = FlushMark::Known { epoch: inode.attr.epoch, whence, offset, len };
        let request = MarkFlushRequest { ino, target, mark };
        let steps = StepContext::question(crate::identity::SYSTEM);
        self.step::<op::MarkFlush>(self.target_place(target)?.node, steps, 0, request).map(drop)
    }
}

/// Checks that a target accepted a write. While the size is locked nobody truncates, so the epochs must agree.
fn accepted(written: &Written) -> FsResult<()> {
    if written.accepted {
        return Ok(());
    }
    Err(FsError::with(
        Errno::EIO,
        format!("a subfile is at epoch {}, ahead of its file: the file is damaged", written.epoch),
    ))
}

/// Returns the payload as one slice. Only callers that gather have several, which are copied.
fn contiguous<'a>(payload: &'a [IoSlice<'a>]) -> std::borrow::Cow<'a, [u8]> {
    match payload {
        [one] => std::borrow::Cow::Borrowed(one),
        many => std::borrow::Cow::Owned(many.iter().flat_map(|piece| piece.iter().copied()).collect()),
    }
}
