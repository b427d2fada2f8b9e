//! Open files of this client and their use, which homes are told of, mostly with a small delay.

pub mod closings;
pub mod uses;
pub mod watch;

use std::sync::Arc;

use bivouac_net::{NetError, Request, Transport};
use bivouac_record::{Access, AccessPosition, RECORDS};
use bivouac_session::OpensUnderWay;
use bivouac_types::limits::USES_PER_MESSAGE_MAX;
use bivouac_types::{ClientId, Errno, FsResult, Ino, NodeId, OpId, OpenId};
use bivouac_wire::{CloseRequest, Encode, FileUseDelta, Frame, Op, ReassertRequest, op};

use crate::connections::Connections;
use crate::homes::known::KnownFiles;
use closings::Closings;
use uses::{CallTimer, UseTable};
use watch::Keeper;

/// Most opens in one message.
const BATCH: usize = 8192;

/// Reports of open files to their homes.
pub struct Opens {
    connections: Arc<Connections>,
    known: Arc<KnownFiles>,
    /// Use of files.
    pub uses: UseTable,
    keeper: Option<Keeper>,
    /// Reports that are sent with a delay, where threads may be started.
    closings: Option<Arc<Closings>>,
}

impl Opens {
    pub fn new(
        connections: Arc<Connections>,
        known: Arc<KnownFiles>,
        keeper: Option<Keeper>,
        closings: Option<Arc<Closings>>,
    ) -> Opens {
        Opens { connections, known, uses: UseTable::new(), keeper, closings }
    }

    /// Prepares for an open at a node: from now on its connections matter also while they are idle.
    pub fn watch(&self, node: NodeId) {
        if let Some(keeper) = self.keeper.as_ref().filter(|_| self.connections.local != Some(node)) {
            keeper.start();
        }
    }

    /// Tells a home that an open has ended, and how files were used: at once if that is no message, or if it cannot be
    /// done later.
    pub fn tell(
        &self,
        home: NodeId,
        closed: Option<(Ino, OpenId)>,
        mut uses: Vec<FileUseDelta>,
    ) -> FsResult<()> {
        if let Some(closings) = self.closings.as_ref().filter(|_| self.connections.local != Some(home)) {
            closings.put(home, closed, uses);
            return Ok(());
        }
        uses.truncate(USES_PER_MESSAGE_MAX);
        let floor = self.known.under_way.floor();
        let id = closed.map_or_else(|| self.known.under_way.begin(false).id, |(_, open)| open);
        let request = CloseRequest { floor, opens: closed.into_iter().collect(), uses };
        self.connections.ask_as::<op::Close>(home, CloseRequest::id(id), &request)
    }

    /// Sends queued closes to a node, or to all. To be called before a name is removed there, whose content closed
    /// files would keep.
    pub fn send(&self, node: Option<NodeId>) {
        self.closings.iter().for_each(|closings| closings.send(node));
    }

    /// Notes that a program has read or written, perhaps several places by one call, whose time is noted with the first
    /// of them.
    pub fn used(
        &self,
        ino: Ino,
        writes: bool,
        places: impl IntoIterator<Item = (AccessPosition, usize)>,
        begun: &CallTimer,
    ) {
        if !RECORDS {
            return;
        }
        let access = |(place, len)| Access { writes, place, len: len as u64, spent_ns: 0 };
        let stripe = || self.known.get(ino).map(|known| u64::from(known.layout.stripe));
        self.tell_used(self.uses.note(true, ino, begun, places.into_iter().map(access), stripe));
    }

    /// Notes that a program has read one place, on a thread that may ask nobody.
    pub fn used_at_once(&self, ino: Ino, (place, len): (AccessPosition, usize), begun: &CallTimer) {
        if RECORDS {
            let access = Access { writes: false, place, len: len as u64, spent_ns: 0 };
            let stripe = || self.known.get(ino).map(|known| u64::from(known.layout.stripe));
            self.uses.note(false, ino, begun, [access], stripe);
        }
    }

    /// Tells homes how files are used, not with a close: soon, if somebody else does that, or now. What cannot be told
    /// is not worth waiting for.
    pub fn tell_used(&self, uses: Vec<FileUseDelta>) {
        for told in uses {
            let Ok(home) = self.connections.home(told.ino) else { continue };
            let ino = told.ino;
            if let Err(error) = self.tell(home, None, vec![told]) {
                log::debug!(why:% = error; "how inode {ino} was used is not told");
            }
        }
    }

    /// Tells a home what an earlier process of this client had open there and still has; also when there is nothing:
    /// the rest may be forgotten. No others may have been under way when the list was begun.
    pub fn reassert(
        &self,
        node: NodeId,
        under_way: &OpensUnderWay,
        opens: Vec<(Ino, OpenId)>,
    ) -> FsResult<()> {
        in_batches(under_way, opens)
            .iter()
            .try_for_each(|batch| self.connections.ask::<op::Reassert>(node, batch))
    }
}

/// Tells a node that may have lost its memory what this client has open there. No others than those may have been under
/// way when the list was begun.
pub fn reassert(
    transport: &dyn Transport,
    client: ClientId,
    under_way: &OpensUnderWay,
    opens: Vec<(Ino, OpenId)>,
) -> Result<(), NetError> {
    for request in in_batches(under_way, opens) {
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
fn in_batches(under_way: &OpensUnderWay, mut opens: Vec<(Ino, OpenId)>) -> Vec<ReassertRequest> {
    let OpensUnderWay { floor, numbers, next } = under_way;
    let (floor, next) = (*floor, *next);
    let mut batches = Vec::new();
    while batches.is_empty() || !opens.is_empty() {
        let rest = opens.split_off(opens.len().min(BATCH));
        let (first, last) = (batches.is_empty(), rest.is_empty());
        // The last one is what they count in.
        let under_way = if last { numbers.clone() } else { Vec::new() };
        batches.push(ReassertRequest { first, last, floor, under_way, next, opens });
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
        let numbers: Vec<_> = (0..4096).map(|number| OpenId(20_000 + 2 * number)).collect();
        let under_way = OpensUnderWay { floor: OpenId(20_000), numbers, next: OpenId(30_000) };
        let opens: Vec<_> = (0..20_000).map(|number| (Ino(number), OpenId(number))).collect();
        let batches = in_batches(&under_way, opens.clone());
        assert!(batches.iter().all(|batch| batch.to_bytes().len() <= FRAME_BODY_MAX));
        assert_eq!(batches.iter().filter(|batch| batch.first).count(), 1);
        assert!(batches[0].first);
        assert_eq!(batches.iter().position(|batch| batch.last), Some(batches.len() - 1));
        assert_eq!(batches.last().map(|batch| &batch.under_way), Some(&under_way.numbers));
        assert_eq!(batches.into_iter().flat_map(|batch| batch.opens).collect::<Vec<_>>(), opens);
        let OpensUnderWay { floor, numbers: under_way_now, next } = under_way.clone();
        let nothing = ReassertRequest {
            first: true,
            last: true,
            floor,
            under_way: under_way_now,
            next,
            opens: Vec::new(),
        };
        assert_eq!(in_batches(&under_way, Vec::new()), [nothing]);
    }
}
