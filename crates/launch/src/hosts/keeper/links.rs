//! The connections of hosts, proven and not.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bivouac_net::{Auth, Link, Message, NetError};
use bivouac_wire::Encode;
use bivouac_wire::rendezvous::{self, Report};
use rustix::event::PollFlags;

/// Most connections of which nobody has proven who they are; the oldest goes for a newer one.
const UNPROVEN_MAX: usize = 256;
/// How long one may take to prove itself.
const UNPROVEN_WAIT: Duration = Duration::from_secs(10);

/// Connections by a number that is never used again.
#[derive(Default)]
pub(super) struct Links {
    links: BTreeMap<u64, Slot>,
    last: u64,
}

struct Slot {
    link: Link,
    host: Option<usize>,
    since: Duration,
}

impl Links {
    /// Takes the next connection. `now` is a time that rises.
    pub fn accept(&mut self, listener: &TcpListener, auth: &Auth, now: Duration) -> Result<(), NetError> {
        let link = Link::accept(listener, auth)?;
        self.drop_late(now);
        let unproven = self.links.iter().filter(|(_, slot)| !slot.link.is_proven());
        let (count, oldest) = (unproven.clone().count(), unproven.map(|(id, _)| *id).next());
        if count >= UNPROVEN_MAX {
            oldest.into_iter().for_each(|id| self.drop(id));
        }
        self.last += 1;
        self.links.insert(self.last, Slot { link, host: None, since: now });
        Ok(())
    }

    /// Who did not prove itself in time, goes. A host may take longer to prepare its part.
    pub fn drop_late(&mut self, now: Duration) {
        self.links.retain(|_, slot| slot.link.is_proven() || now.saturating_sub(slot.since) < UNPROVEN_WAIT);
    }

    /// Nobody is let in any more.
    pub fn drop_strangers(&mut self) {
        self.links.retain(|_, slot| slot.host.is_some());
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>, PollFlags)> {
        self.links.iter().map(|(id, slot)| {
            let out = if slot.link.wants_to_send() { PollFlags::OUT } else { PollFlags::empty() };
            (*id, slot.link.as_fd(), PollFlags::IN | out)
        })
    }

    pub fn receive(&mut self, id: u64) -> Result<Vec<Message>, NetError> {
        let Some(slot) = self.links.get_mut(&id) else { return Ok(Vec::new()) };
        slot.link.flush()?;
        slot.link.receive()
    }

    pub fn host(&self, id: u64) -> Option<usize> {
        self.links.get(&id)?.host
    }

    pub fn link(&self, id: u64) -> Option<&Link> {
        self.links.get(&id).map(|slot| &slot.link)
    }

    pub fn belongs(&mut self, id: u64, host: usize) {
        if let Some(slot) = self.links.get_mut(&id) {
            slot.host = Some(host);
        }
    }

    /// Sends as far as that goes without waiting. That the other side is gone is noticed where something is heard.
    pub fn send(&mut self, id: u64, op: u16, body: Vec<u8>, payload: Vec<u8>) {
        if let Some(slot) = self.links.get_mut(&id)
            && let Err(error) = slot.link.send(&Message { op, body, payload })
        {
            log::warn!("{error}");
        }
    }

    /// Tells why, and forgets it.
    pub fn refuse(&mut self, id: u64, text: String) {
        self.send(id, rendezvous::REPORT, Report::Failed { text }.to_bytes(), Vec::new());
        self.drop(id);
    }

    pub fn drop(&mut self, id: u64) {
        self.links.remove(&id);
    }
}
