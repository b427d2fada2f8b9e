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
/// So many items that a client holds in a slot are told from each other; beyond that it holds all.
const ITEMS_MAX: usize = 512;
/// So many items of a holder of all are known that it does not cache.
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
    /// When the last one is over.
    pub until: Instant,
    /// Until when it may cache everything in the slot, and what of that it does not.
    all: Instant,
    given_up: Vec<u64>,
    /// It knows all names of a directory, for as long as it has a lease without a break.
    is_whole: bool,
    /// The items that it got leases on, and until when; also some that are over.
    pub items: HashMap<u64, Instant>,
    /// Number of items that it is asked to forget, and has not answered for. Meanwhile it gets no more leases.
    pub asked: u32,
    /// Until when it gets no more leases. Without any its lease breaks, and with that it forgets by itself whatever it knows
    /// of directories as wholes.
    pub barred: Instant,
}

/// Who changes something at a place, and who did lately.
#[derive(Default)]
pub struct ChangesAtPlace {
    /// Changes under way, by client.
    active: Vec<(ClientId, u32)>,
    /// Who ended a change last, and when; and when others than that one did.
    last: Option<(ClientId, Instant)>,
    before: Option<Instant>,
}

impl SlotLeases {
    /// Where changes of an item are noted.
    pub fn place(&mut self, item: Item) -> &mut ChangesAtPlace {
        if item.is_all() {
            return &mut self.all;
        }
        if self.places.is_empty() {
            self.places.resize_with(PLACES, ChangesAtPlace::default);
        }
        &mut self.places[item.key() as usize >> 32 & (PLACES - 1)]
    }

    /// For how long a client may get a lease on an item, in milliseconds, by an answer that was begun then.
    pub fn leaves_others(&self, client: ClientId, item: Item, begun: Instant, now: Instant) -> u64 {
        let of = |place: &ChangesAtPlace| place.leaves_others(client, begun, now);
        let at = item.key() as usize >> 32 & (PLACES - 1);
        let ms = match item.is_all() {
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
        // What was known with a lease without a break is not known any more after one.
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
        if item.is_all() || self.is_whole || are_too_many {
            self.all = self.until;
        }
    }

    /// Whether it may cache an item.
    pub fn has(&self, item: Item, now: Instant) -> bool {
        let key = item.key();
        let is_of_all = self.all > now && !self.given_up.contains(&key);
        let is_any = item.is_all() && self.until > now;
        is_any || is_of_all || self.items.get(&key).is_some_and(|until| *until > now)
    }

    /// It says that it caches an item no more, also what follows from knowing it.
    pub fn forget(&mut self, item: Item) {
        self.asked = self.asked.saturating_sub(1);
        self.give_up(item);
        // It has forgotten what it knew of directories in the slot as wholes.
        self.is_whole &= !matches!(item, Item::Name { .. });
    }

    /// It was asked to forget an item, and does not say that it has: what it has is over before it gets more.
    pub fn answered_nothing(&mut self) {
        self.asked = self.asked.saturating_sub(1);
        self.barred = self.barred.max(self.until);
    }

    /// It caches an item no more.
    pub fn give_up(&mut self, item: Item) {
        let key = item.key();
        self.items.remove(&key);
        if item.is_all() || self.given_up.contains(&key) {
            return;
        }
        if self.given_up.len() >= GIVEN_UP_MAX {
            // It is asked again.
            self.given_up.remove(0);
        }
        self.given_up.push(key);
    }
}

impl ChangesAtPlace {
    /// A client's change begins.
    pub fn begin(&mut self, client: ClientId) {
        match self.active.iter_mut().find(|(other, _)| *other == client) {
            Some((_, count)) => *count += 1,
            None => self.active.push((client, 1)),
        }
    }

    /// A client's change is over.
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
            Some(at) if at >= begun => 0,
            Some(at) => {
                let quiet = now.saturating_duration_since(at).as_millis().min(u128::from(LEASE_QUIET_MS));
                quiet as u64 / LEASE_PART
            }
            None => LEASE_MS,
        }
    }
}
