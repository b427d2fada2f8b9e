//! Opening and closing: the home keeps a file alive while anybody has it open.

use std::collections::HashMap;

use bivouac_net::{NetError, Request, Transport};
use bivouac_types::limits::USES_PER_MESSAGE_MAX;
use bivouac_types::{Attr, ClientId, Errno, FsResult, Ino, NodeId, OpId, OpenId, PartitionId};
use bivouac_wire::{CloseRequest, Encode, Frame, InoOnly, Op, OpenRequest, ReassertRequest, Use, op};

use crate::client::{Client, OpCtx};

/// `O_TRUNC` of the kernel.
const O_TRUNC: u32 = 0o1000;
/// Most opens in one message.
const BATCH: usize = 8192;

impl Client {
    /// Opens an inode; with `O_TRUNC` in `flags` cuts it to nothing first.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn open(&self, ctx: &OpCtx, ino: Ino, flags: u32) -> FsResult<Attr> {
        let (home, asked) = (self.ways.home(ino)?, self.leases.now());
        self.watch(home);
        let truncate = flags & O_TRUNC != 0;
        let _fenced = truncate.then(|| self.locks.guard(ino)).transpose()?;
        if !truncate && self.has_unsent(ino) && self.may_be_bound(ino) {
            // Its home looks whether it has changed at site storage and not here.
            self.try_send_unsent(ino);
        }
        let opening = self.known.under_way.begin();
        let (id, floor) = (opening.id, self.known.under_way.floor());
        let request = OpenRequest { ino, truncate, id, floor };
        let change = || self.ways.change::<op::Open>(home, ctx, &request, &[]);
        let opened = if truncate { self.cut_to_nothing(ino, change) } else { change() };
        self.drop_copies(ino);
        let seen = opened?;
        self.known.add(ino, id);
        let attr = if truncate { self.saw(asked, seen) } else { self.looked(asked, seen) };
        if attr.layout.partition() != PartitionId::ROOT {
            self.bring_opened(ino).inspect_err(|_| self.close(ino))?;
        }
        Ok(attr)
    }

    /// Closes an open. It does not fail: what was written behind is to be [sent](Client::send_unsent) before.
    pub fn close(&self, ino: Ino) {
        let is_late = self.has_unsent(ino);
        let sent = self.send_unsent(ino);
        if is_late && sent.is_ok() {
            self.try_save_sent(ino);
        }
        if self.known.take_filled(ino) {
            self.count_holes(ino);
        }
        // From before the file is forgotten until its home has been told: times that are set wait for that.
        let telling = self.known.tellings.begin(ino);
        let Some((open, dirty)) = self.known.remove(ino) else { return };
        if !self.known.is_open(ino) {
            self.end_session(ino, sent);
            self.direct.forget(ino);
        }
        let uses = if self.known.is_open(ino) { Vec::new() } else { self.uses.end(ino) };
        let told = if dirty { self.touch(ino) } else { Ok(()) };
        drop(telling);
        let closed = self.ways.home(ino).and_then(|home| self.tell_closed(home, ino, open, uses));
        for error in [told, closed].into_iter().filter_map(Result::err) {
            // Without a name and closed everywhere it is gone, times and all: nothing went wrong.
            if error.errno() != Errno::ENOENT {
                log::warn!(why:% = error; "close of inode {ino}");
            }
        }
    }

    /// Tells the home that an open has ended: at once if that is no message, or if it cannot be done later.
    fn tell_closed(&self, home: NodeId, ino: Ino, open: OpenId, mut uses: Vec<Use>) -> FsResult<()> {
        if let Some(closings) = self.closings.as_ref().filter(|_| self.local != Some(home)) {
            closings.add(home, ino, open, uses);
            return Ok(());
        }
        uses.truncate(USES_PER_MESSAGE_MAX);
        let request = CloseRequest { floor: self.known.under_way.floor(), opens: vec![(ino, open)], uses };
        self.ways.ask_as::<op::Close>(home, CloseRequest::id(open), &request)
    }

    /// Before a name is removed at a node: it hears which files are closed, so that it does not keep their content.
    pub(crate) fn before_removal(&self, node: NodeId) {
        if let Some(closings) = &self.closings {
            closings.send(node);
        }
    }

    /// Tells the homes what an earlier process of this client had open and still has. A home that cannot be
    /// reached now hears of it when the connection to it comes about.
    ///
    /// # Errors
    /// `ESTALE` for an inode of another formation.
    pub fn reassert_opens(&self, opens: &[(Ino, u32)]) -> FsResult<()> {
        let mut per_node: HashMap<NodeId, Vec<(Ino, OpenId)>> = HashMap::new();
        // The own node hears of it also when there is nothing: the rest may be forgotten.
        per_node.extend(self.local.map(|node| (node, Vec::new())));
        for (ino, count) in opens {
            let opens = per_node.entry(self.ways.home(*ino)?).or_default();
            for _ in 0..*count {
                let opening = self.known.under_way.begin();
                self.known.add(*ino, opening.id);
                opens.push((*ino, opening.id));
            }
        }
        let floor = self.known.under_way.floor();
        for (node, opens) in per_node {
            self.watch(node);
            let told = in_batches(floor, opens)
                .iter()
                .try_for_each(|batch| self.ways.ask::<op::Reassert>(node, batch));
            let told = told.and_then(|()| self.locks.resume(node));
            if let Err(error) = told {
                log::warn!(why:% = error; "{node} has not heard yet what is open");
                self.locks.is_unsure_of(node);
            }
        }
        self.end_sessions_left();
        Ok(())
    }

    /// Tells the home that content changed, if it has not heard: others see the time of the last write from then on.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when it cannot be reached.
    pub fn tell_times(&self, ino: Ino) -> FsResult<()> {
        if !self.known.is_dirty(ino) {
            return Ok(());
        }
        let _telling = self.known.tellings.begin(ino);
        if self.known.take_dirty(ino) { self.touch(ino) } else { Ok(()) }
    }

    /// Whether the home has yet to hear that content changed.
    pub(crate) fn has_unsent_times(&self, ino: Ino) -> bool {
        self.known.is_dirty(ino) || self.has_unsent(ino)
    }

    /// Tells the home that content has changed; if that fails, the next that tells does.
    pub(crate) fn touch(&self, ino: Ino) -> FsResult<()> {
        let _telling = self.known.tellings.begin(ino);
        let told = self.ways.home(ino).and_then(|home| self.ways.ask::<op::Touch>(home, &InoOnly { ino }));
        told.inspect_err(|_| self.known.mark_dirty(ino))
    }
}

/// Tells a node that may have lost its memory what this client has open there. No open below `floor` may have been
/// under way when the list was begun.
pub fn reassert(
    transport: &dyn Transport,
    client: ClientId,
    floor: OpenId,
    opens: Vec<(Ino, OpenId)>,
) -> Result<(), NetError> {
    for request in in_batches(floor, opens) {
        let body = request.to_bytes();
        let request = Request::new(Frame::request(Op::Reassert as u16, OpId(0), client, 0), &body, &[]);
        let mut answer = Vec::new();
        let head = transport.exchange(&request, &mut answer, &mut [])?;
        if head.status != 0 {
            let (errno, text) = (Errno::from_code(head.status), String::from_utf8_lossy(&answer));
            log::error!("{} does not take down what is open: {errno:?} {text}", transport.address());
        }
    }
    Ok(())
}

/// Messages that fit the limits; at least one, which says that there is nothing.
fn in_batches(floor: OpenId, mut opens: Vec<(Ino, OpenId)>) -> Vec<ReassertRequest> {
    let mut batches = Vec::new();
    while batches.is_empty() || !opens.is_empty() {
        let rest = opens.split_off(opens.len().min(BATCH));
        batches.push(ReassertRequest { first: batches.is_empty(), last: rest.is_empty(), floor, opens });
        opens = rest;
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::limits::FRAME_BODY_MAX;

    #[test]
    fn all_opens_are_told_in_messages_that_fit() {
        let floor = OpenId(20_000);
        let opens: Vec<_> = (0..20_000).map(|number| (Ino(number), OpenId(number))).collect();
        let batches = in_batches(floor, opens.clone());
        assert!(batches.iter().all(|batch| batch.to_bytes().len() <= FRAME_BODY_MAX));
        assert_eq!(batches.iter().filter(|batch| batch.first).count(), 1);
        assert!(batches[0].first);
        assert_eq!(batches.iter().position(|batch| batch.last), Some(batches.len() - 1));
        assert_eq!(batches.into_iter().flat_map(|batch| batch.opens).collect::<Vec<_>>(), opens);
        let nothing = ReassertRequest { first: true, last: true, floor, opens: Vec::new() };
        assert_eq!(in_batches(floor, Vec::new()), [nothing]);
    }
}
