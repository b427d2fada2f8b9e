//! The connections of hosts, proven and not.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bivouac_net::{Auth, Link, Message, NetError};
use bivouac_wire::Encode;
use bivouac_wire::rendezvous::{self, Report};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Most connections without a completed handshake; the oldest is closed for a newer one.
const UNPROVEN_MAX: usize = 256;
/// Time one may take to prove itself.
const UNPROVEN_WAIT: Duration = Duration::from_secs(10);
/// Connections that are taken care of in a row.
const READY_MAX: usize = 256;

/// Connections by a number that is never used again. The kernel knows which of them have something to say, so that a
/// thousand that are silent cost nothing.
pub(super) struct Links {
    epoll: OwnedFd,
    links: BTreeMap<u64, Slot>,
    unproven: BTreeSet<u64>,
    last: u64,
}

struct Slot {
    link: Link,
    host: Option<usize>,
    since: Duration,
    /// True if it is watched for room to send.
    sends: bool,
    /// True if its secret proves nothing but that it was called to join.
    only_joins: bool,
}

impl AsFd for Links {
    /// Returns a descriptor that is readable when one of the connections has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Links {
    /// Creates the set, without connections.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Links> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Links { epoll, links: BTreeMap::new(), unproven: BTreeSet::new(), last: 0 })
    }

    /// Takes the next connection. `now` is a time that rises.
    pub fn accept(&mut self, listener: &TcpListener, auth: &Auth, now: Duration) -> Result<(), NetError> {
        self.accept_as(listener, auth, now, false)
    }

    /// Takes the next connection of a port where hosts report that join a running formation.
    pub fn accept_joining(
        &mut self,
        listener: &TcpListener,
        auth: &Auth,
        now: Duration,
    ) -> Result<(), NetError> {
        self.accept_as(listener, auth, now, true)
    }

    fn accept_as(
        &mut self,
        listener: &TcpListener,
        auth: &Auth,
        now: Duration,
        only_joins: bool,
    ) -> Result<(), NetError> {
        let link = Link::accept(listener, auth)?;
        // Late ones first: a stranger that opens many connections must not push out hosts that are proving themselves.
        self.drop_late(now);
        if self.unproven.len() >= UNPROVEN_MAX {
            self.unproven.first().copied().into_iter().for_each(|id| self.drop(id));
        }
        self.last += 1;
        let watched = epoll::add(&self.epoll, &link, EventData::new_u64(self.last), EventFlags::IN);
        watched.map_err(|cause| NetError::System { what: "watch a connection", cause: cause.into() })?;
        self.links.insert(self.last, Slot { link, host: None, since: now, sends: false, only_joins });
        self.unproven.insert(self.last);
        Ok(())
    }

    /// Drops connections that did not prove themselves in time. A host may take longer to prepare its part.
    pub fn drop_late(&mut self, now: Duration) {
        let is_late =
            |id: &u64| self.links.get(id).is_none_or(|slot| now.saturating_sub(slot.since) >= UNPROVEN_WAIT);
        // The oldest come first.
        let late: Vec<u64> = self.unproven.iter().copied().take_while(is_late).collect();
        late.into_iter().for_each(|id| self.drop(id));
    }

    /// Admits no further hosts.
    pub fn drop_strangers(&mut self) {
        // The one-time secret is of no use any more, and whoever still has it comes too late.
        self.links.retain(|_, slot| slot.host.is_some());
        self.unproven.clear();
    }

    /// Returns the connections that are readable, or writable with something to send.
    pub fn ready(&self) -> Vec<u64> {
        let mut events = Vec::with_capacity(READY_MAX);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)) {
            Ok(_) => events.iter().map(|event| event.data.u64()).collect(),
            // Interrupted: they are found at the next call.
            Err(_) => Vec::new(),
        }
    }

    pub fn receive(&mut self, id: u64) -> Result<Vec<Message>, NetError> {
        let Some(slot) = self.links.get_mut(&id) else { return Ok(Vec::new()) };
        // It may be ready only because there is room to send again.
        slot.link.flush()?;
        let heard = slot.link.receive()?;
        if slot.link.is_proven() {
            self.unproven.remove(&id);
        }
        self.watch(id);
        Ok(heard)
    }

    /// Watches for room to send exactly as long as something waits for it.
    fn watch(&mut self, id: u64) {
        let Some(slot) = self.links.get_mut(&id).filter(|slot| slot.sends != slot.link.wants_to_send())
        else {
            return;
        };
        slot.sends = !slot.sends;
        let flags = if slot.sends { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if let Err(error) = epoll::modify(&self.epoll, &slot.link, EventData::new_u64(id), flags) {
            log::warn!(why:% = error; "a host's connection cannot be watched");
        }
    }

    pub fn host(&self, id: u64) -> Option<usize> {
        self.links.get(&id)?.host
    }

    /// Returns whether a connection is of no use but to join.
    pub fn only_joins(&self, id: u64) -> bool {
        self.links.get(&id).is_some_and(|slot| slot.only_joins)
    }

    pub fn link(&self, id: u64) -> Option<&Link> {
        self.links.get(&id).map(|slot| &slot.link)
    }

    pub fn belongs(&mut self, id: u64, host: usize) {
        if let Some(slot) = self.links.get_mut(&id) {
            assert!(slot.host.is_none(), "a connection of hosts {:?} and {host}", slot.host);
            slot.host = Some(host);
        }
    }

    /// Sends as far as that goes without waiting. That the other side is gone is noticed where something is heard.
    pub fn send(&mut self, id: u64, op: u16, body: Vec<u8>, payload: Vec<u8>) {
        if let Some(slot) = self.links.get_mut(&id)
            && let Err(error) = slot.link.send(&Message { op, body, payload })
        {
            log::warn!(error:%; "{error}");
        }
        self.watch(id);
    }

    /// Tells why, and forgets it.
    pub fn refuse(&mut self, id: u64, text: String) {
        self.send(id, rendezvous::REPORT, Report::Failed { text }.to_bytes(), Vec::new());
        self.drop(id);
    }

    pub fn drop(&mut self, id: u64) {
        // Closed, it is not watched any more.
        self.links.remove(&id);
        self.unproven.remove(&id);
    }
}
