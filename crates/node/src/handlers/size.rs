//! Size and content times, which the home of a file keeps.

use std::io::IoSlice;

use bivouac_net::Asker;
use bivouac_types::limits::FILE_SIZE_MAX;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, mode};
use bivouac_wire::{
    Appended, ClaimRequest, CountRequest, Encode, ExtendOverRequest, ExtendRequest, Extended, FlushMark,
    InoOnly, MarkFlushRequest, Op, WriteRequest, Written, op,
};

use super::attrs::without_set_id;
use super::data;
use crate::dispatch::Handle;
use crate::intent::{Cut, Intent};
use crate::locks::Target;
use crate::node::Node;
use crate::peers::{PeerRequest, Steps};
use crate::record::Inode;
use crate::session::Ctx;

impl Handle for op::Extend {
    fn handle(node: &Node, _: &Ctx<'_>, request: ExtendRequest) -> FsResult<Extended> {
        let _quiet = node.quieten(request.ino);
        let _size = node.locks.lock(Target::Size(request.ino))?;
        node.extend(&request, 0)
    }
}

impl Handle for op::Count {
    fn handle(node: &Node, _: &Ctx<'_>, request: CountRequest) -> FsResult<()> {
        let _quiet = node.quieten(request.ino);
        let mut change = node.change_of(request.ino)?;
        let mut inode = change.inode(request.ino)?;
        let holes = request.holes.min(inode.attr.size);
        if inode.attr.epoch != request.epoch || inode.attr.holes == holes {
            return Ok(());
        }
        inode.attr.holes = holes;
        node.lending.counted(&inode.attr);
        change.put_inode(&inode);
        change.commit()
    }
}

impl Handle for op::ExtendOver {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ExtendOverRequest) -> FsResult<Extended> {
        let ExtendOverRequest { ino, start, end, epoch } = request;
        let _quiet = node.quieten(ino);
        let _size = node.locks.lock(Target::Size(ino))?;
        let mut inode = node.regular_file(ino)?;
        if inode.attr.epoch == epoch && start > inode.attr.size && node.stale_tails.may_have_tail(ino) {
            node.have_size_back(ino)?;
            inode = node.regular_file(ino)?;
            node.cut_rest(ctx, &inode)?;
            return Ok(Extended { accepted: false, attr: node.inode(ino)?.attr });
        }
        node.extend(&ExtendRequest { ino, end, epoch }, start)
    }
}

impl Node {
    /// Takes note of the end of a write and of a hole in front of its start. The caller holds the lock on the size.
    fn extend(&self, request: &ExtendRequest, start: u64) -> FsResult<Extended> {
        let mut change = self.change_of(request.ino)?;
        let mut inode = change.inode(request.ino)?;
        if inode.attr.epoch != request.epoch || request.end > FILE_SIZE_MAX {
            return Ok(Extended { accepted: false, attr: inode.attr });
        }
        if request.end > inode.attr.size {
            let gap = start.min(request.end).saturating_sub(inode.attr.size);
            self.lending.wrote(request.ino, request.end - inode.attr.size - gap);
            inode.attr.holes = inode.attr.holes.saturating_add(gap);
            inode.attr.size = request.end;
        }
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        change.commit()?;
        Ok(Extended { accepted: true, attr: inode.attr })
    }
}

impl Handle for op::Touch {
    fn handle(node: &Node, _: &Ctx<'_>, request: InoOnly) -> FsResult<()> {
        let _quiet = node.quieten(request.ino);
        let mut change = node.change_of(request.ino)?;
        let mut inode = change.inode(request.ino)?;
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        change.commit()
    }
}

/// What a write does to the attributes besides the size.
fn written(attr: &mut Attr, now: bivouac_types::Timestamp) {
    attr.mtime = now;
    attr.ctime = now;
    attr.mode = without_set_id(attr.mode);
}

impl Handle for op::Append {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: InoOnly) -> FsResult<Appended> {
        let ino = request.ino;
        let _quiet = node.quieten(ino);
        let _size = node.lock_size(ino)?;
        let inode = node.regular_file(ino)?;
        if let Some(offset) = ctx.done_before(&node.records, ino.slot())? {
            return Ok(Appended { offset, attr: inode.attr });
        }
        let offset = inode.attr.size;
        let len: u64 = ctx.payload.iter().map(|piece| piece.len() as u64).sum();
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        let append = || {
            node.write_striped(&inode, offset, ctx.payload)?;
            let mut change = node.change_of(ino)?;
            let mut inode = change.inode(ino)?;
            inode.attr.size = end;
            written(&mut inode.attr, change.now);
            change.put_inode(&inode);
            change.commit_for(ctx, ino.slot(), offset)?;
            Ok(Appended { offset, attr: inode.attr })
        };
        // What some seats took must not come up when somebody makes it longer.
        append().inspect_err(|_: &FsError| node.mark_tails(vec![ino]))
    }
}

impl Handle for op::Claim {
    fn handle(node: &Node, ctx: &Ctx<'_>, ClaimRequest { ino, len }: ClaimRequest) -> FsResult<Appended> {
        let _quiet = node.quieten(ino);
        let _size = node.lock_size(ino)?;
        let inode = node.regular_file(ino)?;
        if let Some(offset) = ctx.done_before(&node.records, ino.slot())? {
            return Ok(Appended { offset, attr: inode.attr });
        }
        let offset = inode.attr.size;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Ok(Appended { offset, attr: inode.attr });
        }
        if node.stale_tails.may_have_tail(ino) {
            node.cut_rest(ctx, &inode)?;
        }
        let mut change = node.change_of(ino)?;
        let mut inode = change.inode(ino)?;
        inode.attr.holes = inode.attr.holes.saturating_add(len);
        inode.attr.size = end;
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        change.commit_for(ctx, ino.slot(), offset)?;
        Ok(Appended { offset, attr: inode.attr })
    }
}

impl Handle for op::CutTail {
    fn handle(node: &Node, ctx: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<()> {
        let _quiet = node.quieten(ino);
        let _size = node.lock_size(ino)?;
        let inode = node.regular_file(ino)?;
        node.cut(ctx, &inode, inode.attr.size, inode.attr.layout)
    }
}

impl Node {
    /// Cuts or extends a file: once, however often it is asked for.
    pub(crate) fn resize_once(&self, ctx: &Ctx<'_>, ino: Ino, size: u64) -> FsResult<Attr> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let _size = self.lock_size(ino)?;
        match ctx.done_before(&self.records, ino.slot())? {
            Some(_) => Ok(self.inode(ino)?.attr),
            None => self.resize(ctx, ino, size),
        }
    }

    fn resize(&self, ctx: &Ctx<'_>, ino: Ino, size: u64) -> FsResult<Attr> {
        let inode = self.regular_file(ino)?;
        if size < inode.attr.size {
            self.cut(ctx, &inode, size, inode.attr.layout)?;
            return self.attr_of(ctx, ino);
        }
        if size > inode.attr.size && self.stale_tails.may_have_tail(ino) {
            self.cut_rest(ctx, &inode)?;
        }
        let mut change = self.change_of(ino)?;
        let mut inode = change.inode(ino)?;
        inode.attr.holes = inode.attr.holes.saturating_add(size.saturating_sub(inode.attr.size));
        inode.attr.size = size;
        written(&mut inode.attr, change.now);
        change.put_inode(&inode);
        change.commit()?;
        Ok(inode.attr)
    }

    /// Cuts a file, and lets it go on with a layout that only an empty file may change.
    pub(crate) fn cut(
        &self,
        ctx: &Ctx<'_>,
        inode: &Inode,
        size: u64,
        new_layout: bivouac_types::Layout,
    ) -> FsResult<()> {
        let Attr { ino, layout, epoch, .. } = inode.attr;
        let cut = Cut { ino, size, epoch: epoch.wrapping_add(1), layout, new_layout };
        self.carry_out(ctx, ino.slot(), Intent::Cut(cut))
    }

    /// Cuts off what clients that died may have left behind the end. This is nobody's operation: the one that
    /// makes it necessary has yet to be done.
    fn cut_rest(&self, ctx: &Ctx<'_>, inode: &Inode) -> FsResult<()> {
        let nobody = Ctx { client: crate::dispatch::SYSTEM, channel: 0, id: bivouac_types::OpId(0), ..*ctx };
        self.cut(&nobody, inode, inode.attr.size, inode.attr.layout)
    }

    pub(crate) fn attr_of(&self, ctx: &Ctx<'_>, ino: Ino) -> FsResult<Attr> {
        if self.map.home(ino) == Some(self.id) {
            return Ok(self.inode(ino)?.attr);
        }
        Ok(self
            .step::<op::GetAttr>(self.home_of(ino)?, Steps::question(ctx.origin), 0, InoOnly { ino })?
            .attr)
    }

    pub(crate) fn regular_file(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.inode(ino)?;
        match inode.attr.mode & mode::TYPE {
            mode::FILE => Ok(inode),
            mode::DIR => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Writes the pieces of a contiguous range of the file to its seats, here and on peers.
    pub(super) fn write_striped(&self, inode: &Inode, offset: u64, payload: &[IoSlice<'_>]) -> FsResult<()> {
        let bytes = contiguous(payload);
        let Attr { ino, layout, epoch, .. } = inode.attr;
        for range in bivouac_layout::split(&layout, offset, bytes.len() as u64) {
            let place = self.seat_place(range.seat)?;
            let pieces: Vec<IoSlice<'_>> =
                range.pieces().filter_map(|piece| bytes.get(piece.range()).map(IoSlice::new)).collect();
            let request = WriteRequest { ino, seat: range.seat, layout, epoch, offset: range.subfile_offset };
            if place.node == self.id {
                accepted(&data::write(self, &request, &pieces, (Asker::HERE, true))?)?;
            } else {
                let body = request.to_bytes();
                let step =
                    PeerRequest { payload: &pieces, ..PeerRequest::of_node(self.id, Op::Write, &body) };
                let written = match self.peers.ask::<op::Write>(place.node, &step) {
                    Err(error) if error.errno() == Errno::EINPROGRESS => {
                        self.have_brought(inode, &range)?;
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
    /// Has a peer bring a range of its subfile that a step is about to write.
    fn have_brought(&self, inode: &Inode, range: &bivouac_layout::SeatRange) -> FsResult<()> {
        let (ino, seat) = (inode.attr.ino, range.seat);
        let (whence, offset, len) = (self.whence(ino)?, range.subfile_offset, range.len);
        let mark = FlushMark::Known { epoch: inode.attr.epoch, whence, offset, len };
        let request = MarkFlushRequest { ino, seat, mark };
        let steps = Steps::question(crate::dispatch::SYSTEM);
        self.step::<op::MarkFlush>(self.seat_place(seat)?.node, steps, 0, request).map(drop)
    }
}

/// While the size is locked nobody cuts, so an append is never overtaken.
fn accepted(written: &Written) -> FsResult<()> {
    if written.accepted {
        return Ok(());
    }
    Err(FsError::with(
        Errno::EIO,
        format!("a subfile is at epoch {}, ahead of its file: the file is damaged", written.epoch),
    ))
}

/// The payload as one slice; payloads come as one slice but for callers that gather.
fn contiguous<'a>(payload: &'a [IoSlice<'a>]) -> std::borrow::Cow<'a, [u8]> {
    match payload {
        [one] => std::borrow::Cow::Borrowed(one),
        many => std::borrow::Cow::Owned(many.iter().flat_map(|piece| piece.iter().copied()).collect()),
    }
}
