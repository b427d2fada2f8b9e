//! The replies of one client's requests that change content, so that a retransmission is answered and not carried out
//! once more: by then another client may have overwritten what the first transmission wrote, and may have been told so.
//!
//! The reply cache of an NFSv4.1 session (RFC 8881, 2.10.6.1). A slot is a connection, which has one request at a time:
//! the next request over it says that the reply to the former one arrived. When the client has connected anew, the last
//! replies of its former connections are kept as long as it may retransmit.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bivouac_types::OpId;

/// The requests of one client that it may transmit again. `G` names generations of its connections.
#[derive(Debug)]
pub struct ClientReplies<G> {
    /// The encoded reply of each; `None` while the request is carried out.
    replies: HashMap<OpId, Option<Vec<u8>>>,
    /// The generation of the client's present connections.
    generation: Option<G>,
    /// The request that each of them carried last.
    slots: HashMap<i32, OpId>,
    /// Requests of former connections, and until when they are kept; in the order of those moments.
    superseded: VecDeque<(Instant, OpId)>,
}

/// The connection that a request came over.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a, G> {
    /// Its number among those of the node.
    pub slot: i32,
    /// Its generation.
    pub generation: &'a G,
    /// True if the client has connected anew since.
    pub is_superseded: bool,
}

/// The reply to a request, as far as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownReply<'a> {
    /// It is not being carried out, or its reply has arrived.
    None,
    /// It is being carried out.
    Awaited,
    /// It was carried out.
    Given(&'a [u8]),
}

impl<G> Default for ClientReplies<G> {
    fn default() -> ClientReplies<G> {
        ClientReplies {
            replies: HashMap::new(),
            generation: None,
            slots: HashMap::new(),
            superseded: VecDeque::new(),
        }
    }
}

impl<G: Clone + PartialEq> ClientReplies<G> {
    /// Returns the reply to a request, if it has one.
    #[must_use]
    pub fn find(&self, id: OpId) -> KnownReply<'_> {
        match self.replies.get(&id) {
            None => KnownReply::None,
            Some(None) => KnownReply::Awaited,
            Some(Some(reply)) => KnownReply::Given(reply),
        }
    }

    /// A request is about to be carried out.
    pub fn begin(&mut self, id: OpId) {
        let former = self.replies.insert(id, None);
        assert!(former.is_none(), "request {} is carried out while its reply is there, or awaited", id.0);
    }

    /// A request is not being carried out any more. Without a reply it may be carried out again.
    pub fn end(&mut self, id: OpId) {
        if self.find(id) == KnownReply::Awaited {
            self.replies.remove(&id);
        }
    }

    /// Keeps the reply to a request, in place of that of the request before it over the same connection; for `keep` if
    /// the client has connected anew since.
    pub fn answer(
        &mut self,
        over: Connection<'_, G>,
        id: OpId,
        reply: Vec<u8>,
        (now, keep): (Instant, Duration),
    ) {
        let Some(awaited) = self.replies.get_mut(&id) else { return };
        assert!(awaited.is_none(), "request {} is answered twice", id.0);
        *awaited = Some(reply);
        let is_current = self.generation.as_ref() == Some(over.generation);
        if !is_current && over.is_superseded {
            self.superseded.push_back((now + keep, id));
        } else {
            if !is_current {
                self.generation = Some(over.generation.clone());
                // The first answer of a newer generation: nothing comes over the former connections any more, which
                // would say that an answer arrived.
                self.superseded.extend(self.slots.drain().map(|(_, id)| (now + keep, id)));
            }
            if let Some(received) = self.slots.insert(over.slot, id) {
                self.replies.remove(&received);
            }
        }
        while let Some((until, id)) = self.superseded.front().copied()
            && until <= now
        {
            self.superseded.pop_front();
            self.replies.remove(&id);
        }
        let referred = self.slots.len() + self.superseded.len();
        // One that nothing refers to would stay for good, and be the answer to whatever has its number next.
        assert!(referred <= self.replies.len(), "{referred} requests have {} replies", self.replies.len());
    }

    /// Drops the replies of a client that transmits nothing again. What is carried out for it goes on.
    pub fn forget(&mut self) {
        // Those being carried out stay: a retransmission would be carried out beside them.
        self.replies.retain(|_, reply| reply.is_none());
        self.slots.clear();
        self.superseded.clear();
    }

    /// Returns true if nothing is known of the client.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Returns the number of requests that are carried out, or have a reply here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.replies.len()
    }
}
