//! Leases: what a client may cache of what it was told, and for how long.
//!
//! A lease is of one *item*: the attributes of an inode, or a name in a directory, also that there is none. The node
//! knows who holds what, as long as it runs. Who changes items has their holders asked to cache them no more, in one
//! message to each ([`crate::callbacks`]); who says that it does not is not waited for, and who cannot is as long
//! as it says, and nobody longer than its lease. While a change is under way nobody else gets leases on
//! its items, nor for an answer that was begun before it was over; then leases that are short beside
//! the time since, for what a kernel knows of names it cannot be told to forget: so changes wait for a small part of
//! the time only, however they come. Who had to be waited for several times gets none at this node for a while.
//! The idea is that of Gray and Cheriton, "Leases", SOSP 1989; see docs/decisions/0073-leases.md.
//!
//! [`SlotLeases`] is the machine, for each slot; [`Leases`] has the locks, and asks and waits outside of them.

mod contention;
mod principal;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, MutexGuard};
use bivouac_session::{Item, LeaseHolder, SlotLeases};
use bivouac_types::ClientId;
use bivouac_types::limits::{INVALIDATIONS_MAX, LEASE_MARGIN_MS, LEASE_MS, LEASE_MS_MIN};
use bivouac_wire::Invalidation;

use crate::at_once::each_at_once;
use contention::Contention;

pub use principal::Principal;

/// Longest lease.
const LEASE: Duration = Duration::from_millis(LEASE_MS);

/// Asks a client to cache these items no more, and has so long for that; with no time, only one that is asked without a
/// message. How long it may go on with some of them; nothing if it does not say.
pub type InvalidateFn<'a> = &'a (dyn Fn(ClientId, Vec<Invalidation>, Duration) -> Option<Duration> + Sync);

/// The leases of a node.
pub struct Leases {
    slots: Vec<Mutex<SlotLeases>>,
    contention: Contention,
    /// Until when leases of an earlier daemon may run.
    earlier: Option<Instant>,
    /// Changes that had to wait.
    waits: AtomicU64,
}

/// What a client has leases on of what is about to be changed.
struct ConflictingLeases {
    client: ClientId,
    until: Instant,
    items: Vec<Item>,
}

impl ConflictingLeases {
    /// The items by name; `None` if there are some without.
    fn named(&self) -> Option<Vec<Invalidation>> {
        self.items.iter().map(|item| invalidation(*item)).collect()
    }
}

/// What the holders of an item are asked to cache no more; `None` for everything in a slot.
fn invalidation(item: Item) -> Option<Invalidation> {
    match item {
        Item::Slot(_) | Item::Whole(_) => None,
        Item::Attrs(ino) => Some(Invalidation { ino, name: None }),
        Item::Name { dir, hash, .. } => Some(Invalidation { ino: dir, name: Some(hash) }),
    }
}

/// A change under way: while it lasts, nobody else gets a lease on what it changes.
pub struct Changing<'a> {
    leases: &'a Leases,
    client: ClientId,
    items: Vec<Item>,
}

impl Leases {
    /// No leases; after a restart, those that the earlier daemon may have given.
    pub fn new(slots: u16, restarted: bool) -> Leases {
        let given = Instant::now() + LEASE;
        Leases {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            contention: Contention::default(),
            earlier: restarted.then_some(given),
            waits: AtomicU64::new(0),
        }
    }

    /// Changes that had to wait so far.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// A client was told of an item, by an answer that was `begun` before anything was read or changed for it: how long
    /// it may cache that, in milliseconds.
    ///
    /// Why it is right: of the changes by others, those that were over when the answer was begun are in it; those that
    /// were not are seen here, by what they left at their place; and those that begin later find the holder.
    pub fn look(&self, client: ClientId, item: Item, begun: Instant) -> u32 {
        let now = Instant::now();
        // What it has of an earlier daemon, which this one does not know, has to break.
        if self.earlier.is_some_and(|until| now < until) || self.contention.bars(client, now) {
            return 0;
        }
        let Some(mut state) = self.state(item) else { return 0 };
        let lease_ms = state.leaves_others(client, item, begun, now);
        if lease_ms < LEASE_MS_MIN {
            return 0;
        }
        let holder = state.holder(client, now);
        if holder.asked > 0 || holder.barred > now {
            return 0;
        }
        // Changes that the daemon before this one would wait for are waited for this long after a restart.
        assert!(lease_ms <= LEASE_MS, "a lease of {lease_ms} ms on {item:?} is longer than any");
        holder.take(item, now + Duration::from_millis(lease_ms), now);
        (lease_ms - LEASE_MARGIN_MS) as u32
    }

    /// A client's change has its kernel show an item from now on for as long as it would have shown another one, of
    /// which it was told before: it is asked about the item as if it had a lease on it. To be called before the change
    /// is over.
    ///
    /// Why for so long: what its kernel was told before now it shows no longer than a lease that was given before now.
    pub fn hold(&self, client: ClientId, item: Item) {
        let now = Instant::now();
        if let Some(mut state) = self.state(item) {
            state.holder(client, now).take(item, now + LEASE, now);
        }
    }

    /// A client has ended, and caches nothing any more.
    pub fn forget(&self, client: ClientId) {
        self.slots.iter().for_each(|state| state.lock().holders.retain(|holder| holder.client != client));
    }

    /// These items are about to be changed: has their holders cache them no more, and waits for those that do.
    /// Nothing to do if the thread acts for nobody in particular: then it changes what nobody is told of.
    pub fn change(&self, items: &[Item], ask: InvalidateFn<'_>) -> Option<Changing<'_>> {
        let client = principal::acts_for()?;
        self.begin(client, items, ask);
        Some(Changing { leases: self, client, items: items.to_vec() })
    }

    /// As [`Leases::change`], for a client's change that goes on until [`Leases::end`].
    ///
    /// Why it is right: from the first step on nobody else gets a lease on the items. Who caches nothing of them from
    /// when it was asked, for as long as a lease runs, has none with which to cache what was so before the change.
    pub fn begin(&self, client: ClientId, items: &[Item], ask: InvalidateFn<'_>) {
        let now = Instant::now();
        let mut holders = self.begin_at(client, items, now);
        // Processes that are called back by words may be many, and take no time.
        let mut answers = Vec::new();
        let at_once =
            |held: &ConflictingLeases| held.named().and_then(|named| ask(held.client, named, Duration::ZERO));
        let (near, far): (Vec<_>, Vec<_>) =
            holders.drain(..).map(|held| (at_once(&held), held)).partition(|(goes_on, _)| goes_on.is_some());
        for (goes_on, held) in near {
            answers.push(self.answered(&held, goes_on));
            holders.push(held);
        }
        let far: Vec<ConflictingLeases> = far.into_iter().map(|(_, held)| held).collect();
        let may_ask = far.len() <= INVALIDATIONS_MAX;
        let ask_holder = |held: &ConflictingLeases| self.ask_holder(held, ask, may_ask);
        if may_ask {
            // One that panics has not answered.
            let asked = each_at_once(&far, ask_holder).into_iter().zip(&far);
            answers.extend(asked.map(|(answer, held)| answer.unwrap_or(Some(held.until))));
        } else {
            answers.extend(far.iter().map(ask_holder));
        }
        holders.extend(far);
        let earlier = self.earlier.filter(|until| *until > now);
        let Some(latest) = answers.iter().flatten().copied().chain(earlier).max() else { return };
        let left = || latest.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        self.waits.fetch_add(u64::from(left().is_some()), Ordering::Relaxed);
        while let Some(left) = left() {
            bivouac_net::pause(left);
        }
        assert_eq!(holders.len(), answers.len(), "as many holders of {items:?} as answers");
        // Not before: another change of the same items has to wait as well.
        for (held, _) in holders.iter().zip(answers).filter(|(_, until)| until.is_some()) {
            self.at_items(held, |holder, item| holder.give_up(item));
        }
    }

    /// Has a client cache no more what it holds. Until when it has to be waited for; `None` if it has not.
    fn ask_holder(&self, held: &ConflictingLeases, ask: InvalidateFn<'_>, may_ask: bool) -> Option<Instant> {
        let left = held.until.saturating_duration_since(Instant::now());
        let named = held.named().filter(|_| may_ask && !left.is_zero());
        self.answered(held, named.and_then(|named| ask(held.client, named, left)))
    }

    /// What a client said to that.
    fn answered(&self, held: &ConflictingLeases, goes_on: Option<Duration>) -> Option<Instant> {
        let left = held.until.saturating_duration_since(Instant::now());
        if goes_on == Some(Duration::ZERO) {
            self.at_items(held, LeaseHolder::forget);
            return None;
        }
        self.at_items(held, |holder, _| holder.answered_nothing());
        let now = Instant::now();
        if !left.is_zero() {
            self.contention.note(held.client, now);
        }
        Some(goes_on.map_or(held.until, |goes_on| held.until.min(now + goes_on)))
    }

    /// Does something to a client's leases for each item that it holds.
    fn at_items(&self, held: &ConflictingLeases, act: impl Fn(&mut LeaseHolder, Item)) {
        held.items.iter().for_each(|item| self.at_holder(held.client, *item, |holder| act(holder, *item)));
    }

    /// A change of items begins; who else has leases on them.
    fn begin_at(&self, client: ClientId, items: &[Item], now: Instant) -> Vec<ConflictingLeases> {
        let mut all: Vec<ConflictingLeases> = Vec::new();
        for item in items {
            let Some(mut state) = self.state(*item) else { continue };
            // Under one lock with the look at the holders: who asks later is refused, who asked before is found.
            state.place(*item).begin(client);
            let others = state.holders.iter_mut().filter(|holder| holder.client != client);
            for holder in others.filter(|holder| holder.has(*item, now)) {
                holder.asked += 1;
                match all.iter_mut().find(|held| held.client == holder.client) {
                    Some(held) => {
                        held.until = held.until.max(holder.until);
                        held.items.push(*item);
                    }
                    None => all.push(ConflictingLeases {
                        client: holder.client,
                        until: holder.until,
                        items: vec![*item],
                    }),
                }
            }
        }
        all
    }

    /// Does something to a client's leases in the slot of an item, if it has any.
    fn at_holder(&self, client: ClientId, item: Item, act: impl Fn(&mut LeaseHolder)) {
        if let Some(mut state) = self.state(item) {
            state.holders.iter_mut().filter(|holder| holder.client == client).for_each(act);
        }
    }

    fn state(&self, item: Item) -> Option<MutexGuard<'_, SlotLeases>> {
        self.slots.get(usize::from(item.slot().0)).map(Mutex::lock)
    }

    /// Whether all its locks can be had within a time each.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.slots.iter().all(|slot| slot.try_lock_for(patience).is_some())
    }

    /// A change of a client's is over.
    pub fn end(&self, client: ClientId, items: &[Item]) {
        let now = Instant::now();
        for item in items {
            if let Some(mut state) = self.state(*item) {
                state.place(*item).end(client, now);
            }
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.leases.end(self.client, &self.items);
    }
}
