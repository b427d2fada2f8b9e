//! The machine: the leases on the items of a slot, and who changes these. Time is an argument.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Instant;

use bivouac_types::ClientId;
use bivouac_types::limits::{LEASE_MS, LEASE_PART, LEASE_QUIET_MS};

use super::Item;

/// Items of a slot share so many places, in each of which is noted who changes something, and who did lately.
const PLACES: usize = 16;
/// Most items of one holder that are tracked in a slot; with more, it counts as holding all.
const ITEMS_MAX: usize = 512;
/// Most items that are tracked which a holder of everything does not cache.
const GIVEN_UP_MAX: usize = 32;

/// The leases on the items of a slot.
#[derive(Default)]
pub struct SlotLeases {
    /// Clients that have any.
    pub holders: Vec<LeaseHolder>,
    /// Changes of everything; and of items, by place, once there are any.
    all: ChangesAtPlace,
    places: Vec<ChangesAtPlace>,
}

/// A client that has leases.
pub struct LeaseHolder {
    /// Its id.
    pub client: ClientId,
    /// When its last lease ends.
    pub until: Instant,
    /// Until when it may cache everything in the slot, apart from the items in `given_up`.
    all: Instant,
    given_up: Vec<u64>,
    /// Set if it caches all names of a directory, as long as its leases follow without a break.
    is_whole: bool,
    /// The items that it got leases on, and until when; also some that are over.
    pub items: HashMap<u64, Instant>,
    /// Number of items that it is asked to forget, and has not answered for. Meanwhile it gets no more leases.
    pub asked: u32,
    /// Until when it gets no more leases. Without any its lease breaks, and with that it forgets by itself whatever it
    /// knows of directories as wholes.
    pub barred: Instant,
}

/// Recent changes at one place.
#[derive(Default)]
pub struct ChangesAtPlace {
    /// Changes under way, by client.
    active: Vec<(ClientId, u32)>,
    /// The client that ended a change last, and when; and when any other client last did.
    last: Option<(ClientId, Instant)>,
    before: Option<Instant>,
}

impl SlotLeases {
    /// Returns where changes of an item are noted.
    pub fn place(&mut self, item: Item) -> &mut ChangesAtPlace {
        if item.is_all() {
            return &mut self.all;
        }
        if self.places.is_empty() {
            self.places.resize_with(PLACES, ChangesAtPlace::default);
        }
        &mut self.places[item.key() as usize >> 32 & (PLACES - 1)]
    }

    /// Returns how long a lease on an item a client may get, in milliseconds, for a reply that was begun at `begun`.
    pub fn leaves_others(&self, client: ClientId, item: Item, begun: Instant, now: Instant) -> u64 {
        let of = |place: &ChangesAtPlace| place.leaves_others(client, begun, now);
        let at = item.key() as usize >> 32 & (PLACES - 1);
        let ms = match item.is_all() {
            // A lease on everything lasts no longer than one on what was changed last.
            true => self.places.iter().map(of).min(),
            false => self.places.get(at).map(of),
        };
        of(&self.all).min(ms.unwrap_or(LEASE_MS))
    }

    /// The client's entry, as of now.
    pub fn holder(&mut self, client: ClientId, now: Instant) -> &mut LeaseHolder {
        let found = self.holders.iter().position(|holder| holder.client == client);
        let at = found.unwrap_or_else(|| {
            // One that has not answered yet stays: otherwise it would get a lease again before it has.
            self.holders.retain(|holder| holder.until > now || holder.asked > 0);
            self.holders.push(LeaseHolder {
                client,
                until: now,
                all: now,
                given_up: Vec::new(),
                is_whole: false,
                items: HashMap::new(),
                asked: 0,
                barred: now,
            });
            self.holders.len() - 1
        });
        &mut self.holders[at]
    }
}

impl LeaseHolder {
    /// It got a lease.
    pub fn take(&mut self, item: Item, until: Instant, now: Instant) {
        // Names known under earlier leases are valid only if those leases had no break.
        self.is_whole = matches!(item, Item::Whole(_)) || self.is_whole && self.until > now;
        self.until = self.until.max(until);
        if item.is_all() {
            self.given_up.clear();
        } else {
            self.given_up.retain(|key| *key != item.key());
            let known = self.items.entry(item.key()).or_insert(until);
            *known = until.max(*known);
        }
        if self.items.len() >= ITEMS_MAX {
            self.items.retain(|_, until| *until > now);
        }
        let are_too_many = self.items.len() >= ITEMS_MAX;
        if are_too_many {
            // From here on it counts as a holder of everything, which asks it more often and never too seldom.
            self.items.clear();
        }
        // It also caches names of a directory that no lease of its own is for.
        if item.is_all() || self.is_whole || are_too_many {
            self.all = self.until;
        }
    }

    /// Returns true if it may cache an item.
    pub fn has(&self, item: Item, now: Instant) -> bool {
        let key = item.key();
        let is_of_all = self.all > now && !self.given_up.contains(&key);
        // A change of everything concerns whatever it caches.
        let is_any = item.is_all() && self.until > now;
        is_any || is_of_all || self.items.get(&key).is_some_and(|until| *until > now)
    }

    /// Records that it has invalidated an item, and what follows from that.
    pub fn forget(&mut self, item: Item) {
        self.asked = self.asked.saturating_sub(1);
        self.give_up(item);
        // With a name it has also invalidated what it knew of whole directories in the slot.
        self.is_whole &= !matches!(item, Item::Name { .. });
    }

    /// Records that it was asked to invalidate an item and did not confirm: it gets no lease until all of its present
    /// ones have ended.
    pub fn answered_nothing(&mut self) {
        self.asked = self.asked.saturating_sub(1);
        // It may not have got the question: only the end of its leases shows that it caches nothing.
        self.barred = self.barred.max(self.until);
    }

    /// Records that it does not cache an item any more.
    pub fn give_up(&mut self, item: Item) {
        let key = item.key();
        self.items.remove(&key);
        if item.is_all() || self.given_up.contains(&key) {
            return;
        }
        if self.given_up.len() >= GIVEN_UP_MAX {
            // The one dropped is merely asked about again.
            self.given_up.remove(0);
        }
        self.given_up.push(key);
    }
}

impl ChangesAtPlace {
    /// Notes that a client's change begins.
    pub fn begin(&mut self, client: ClientId) {
        match self.active.iter_mut().find(|(other, _)| *other == client) {
            Some((_, count)) => *count += 1,
            None => self.active.push((client, 1)),
        }
    }

    /// Notes that a client's change is over.
    pub fn end(&mut self, client: ClientId, now: Instant) {
        let at = self.active.iter().position(|(other, _)| *other == client);
        assert!(at.is_some(), "a change of client {} ends that has not begun", client.0);
        if let Some(at) = at {
            self.active[at].1 -= 1;
            if self.active[at].1 == 0 {
                self.active.swap_remove(at);
            }
        }
        if let Some((_, at)) = self.last.filter(|(other, _)| *other != client) {
            // A client's own changes do not shorten its leases: for it the last change by another one counts.
            self.before = self.before.max(Some(at));
        }
        self.last = Some((client, now));
    }

    fn leaves_others(&self, client: ClientId, begun: Instant, now: Instant) -> u64 {
        if self.active.iter().any(|(other, _)| *other != client) {
            return 0;
        }
        let by_other = match self.last {
            Some((other, at)) if other != client => Some(at),
            _ => self.before,
        };
        match by_other {
            // The reply may have been read before that change.
            Some(at) if at >= begun => 0,
            Some(at) => {
                // What is changed often is leased for a short time: the next change waits for no more than that part.
                let quiet = now.saturating_duration_since(at).as_millis().min(u128::from(LEASE_QUIET_MS));
                quiet as u64 / LEASE_PART
            }
            None => LEASE_MS,
        }
    }
}
