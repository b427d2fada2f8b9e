//! Leases: what a client may cache of the replies it got, and for how long.

mod contention;
mod principal;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// A function that asks a client to invalidate these items, within the given time; with no time, only a client that
/// needs no message is asked. It returns for how long the client may still use some of them, `None` if it does not
/// reply.
pub type InvalidateFn<'a> = &'a (dyn Fn(ClientId, Vec<Invalidation>, Duration) -> Option<Duration> + Sync);

/// The leases of a node.
pub struct Leases {
    slots: Vec<Mutex<SlotLeases>>,
    contention: Contention,
    /// Time at which the last lease of an earlier daemon has expired; `None` if there was none.
    earlier: Option<Instant>,
    /// Count of changes that had to wait.
    waits: AtomicU64,
}

/// A client's leases on items that are about to change.
struct ConflictingLeases {
    client: ClientId,
    until: Instant,
    items: Vec<Item>,
}

impl ConflictingLeases {
    /// Returns the items by name, `None` if one has no name.
    fn named(&self) -> Option<Vec<Invalidation>> {
        self.items.iter().map(|item| invalidation(*item)).collect()
    }
}

/// Returns the message that recalls a lease on an item; `None` for everything in a slot, which has no name.
fn invalidation(item: Item) -> Option<Invalidation> {
    match item {
        Item::Slot(_) | Item::Whole(_) => None,
        Item::Attrs(ino) => Some(Invalidation { ino, name: None }),
        Item::Name { dir, hash, .. } => Some(Invalidation { ino: dir, name: Some(hash) }),
    }
}

/// A change under way. Until it is dropped, no other client gets leases on its items.
pub struct Changing<'a> {
    leases: &'a Leases,
    client: ClientId,
    items: Vec<Item>,
}

impl Leases {
    /// Creates the leases. After a restart, an earlier daemon may have granted some that still run.
    pub fn new(slots: u16, restarted: bool) -> Leases {
        let given = Instant::now() + LEASE;
        Leases {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            contention: Contention::default(),
            earlier: restarted.then_some(given),
            waits: AtomicU64::new(0),
        }
    }

    /// Returns how many changes had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Grants a lease on an item to a client, for a reply that was `begun` before anything was read or changed for it.
    /// Returns its length in milliseconds, 0 for none.
    ///
    /// Correctness: changes by others that ended before `begun` are in the reply. Those that ended later, or are under
    /// way, have left their mark at the item, which is seen here. Those that begin later find the holder.
    pub fn look(&self, client: ClientId, item: Item, begun: Instant) -> u32 {
        let now = Instant::now();
        // It may hold a lease of an earlier daemon, which is unknown here and must run out.
        if self.earlier.is_some_and(|until| now < until) || self.contention.bars(client, now) {
            return 0;
        }
        let Some(mut state) = self.state(item) else { return 0 };
        let lease_ms = state.leaves_others(client, item, begun, now);
        if lease_ms < LEASE_MS_MIN {
            return 0;
        }
        let holder = state.holder(client, now);
        // It is being asked for what it holds in this slot, or has let a change wait a moment ago.
        if holder.asked > 0 || holder.barred > now {
            return 0;
        }
        // Changes that the daemon before this one would wait for are waited for this long after a restart.
        assert!(lease_ms <= LEASE_MS, "a lease of {lease_ms} ms on {item:?} is longer than any");
        holder.take(item, now + Duration::from_millis(lease_ms), now);
        (lease_ms - LEASE_MARGIN_MS) as u32
    }

    /// Records a lease for an item that the kernel of the client has renamed from another one: it shows the new one as
    /// long as it would have shown the old. To be called before the change ends.
    ///
    /// Its length is that of the longest lease: what the kernel was granted before now ends no later than a lease
    /// granted now.
    pub fn hold(&self, client: ClientId, item: Item) {
        let now = Instant::now();
        if let Some(mut state) = self.state(item) {
            state.holder(client, now).take(item, now + LEASE, now);
        }
    }

    /// Drops the leases of a client that has ended.
    pub fn forget(&self, client: ClientId) {
        self.slots.iter().for_each(|state| state.lock().holders.retain(|holder| holder.client != client));
    }

    /// Begins a change of these items: has their holders invalidate them, and waits for those that do not. Returns
    /// `None`, and does nothing, if the thread acts for no client: it changes nothing then that clients see.
    pub fn change(&self, items: &[Item], ask: InvalidateFn<'_>) -> Option<Changing<'_>> {
        let client = principal::acts_for()?;
        self.begin(client, items, ask);
        Some(Changing { leases: self, client, items: items.to_vec() })
    }

    /// Like [`Leases::change`], for a client's change that goes on until [`Leases::end`].
    ///
    /// Correctness: from its first step on, no other client gets a lease on the items. A client that has cached nothing
    /// of them since it was asked, for the length of a lease, has no lease on what they were before the change.
    pub fn begin(&self, client: ClientId, items: &[Item], ask: InvalidateFn<'_>) {
        // A question that panics has no answer: the change is under way for its items, and must come to its end.
        let ask: InvalidateFn<'_> = &|client, named, left| {
            catch_unwind(AssertUnwindSafe(|| ask(client, named, left))).unwrap_or(None)
        };
        let now = Instant::now();
        let mut holders = self.begin_at(client, items, now);
        // Processes with invalidation words may be many, and need no message: they are asked in turn.
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
        // Leases of an earlier daemon have no holders here that could be asked.
        let earlier = self.earlier.filter(|until| *until > now);
        let Some(latest) = answers.iter().flatten().copied().chain(earlier).max() else { return };
        // Also where all of the time went by with the question.
        self.waits.fetch_add(1, Ordering::Relaxed);
        while let Some(left) = latest.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            bivouac_net::pause(left);
        }
        assert_eq!(holders.len(), answers.len(), "as many holders of {items:?} as answers");
        // Only after the wait: another change of the same items has to wait as well.
        for (held, _) in holders.iter().zip(answers).filter(|(_, until)| until.is_some()) {
            self.at_items(held, |holder, item| holder.give_up(item));
        }
    }

    /// Asks a client to invalidate what it holds. Returns until when to wait for it, `None` if it has done so.
    fn ask_holder(&self, held: &ConflictingLeases, ask: InvalidateFn<'_>, may_ask: bool) -> Option<Instant> {
        let left = held.until.saturating_duration_since(Instant::now());
        let named = held.named().filter(|_| may_ask && !left.is_zero());
        self.answered(held, named.and_then(|named| ask(held.client, named, left)))
    }

    /// Handles a client's reply to that.
    fn answered(&self, held: &ConflictingLeases, goes_on: Option<Duration>) -> Option<Instant> {
        let left = held.until.saturating_duration_since(Instant::now());
        if goes_on == Some(Duration::ZERO) {
            self.at_items(held, LeaseHolder::forget);
            return None;
        }
        self.at_items(held, |holder, _| holder.answered_nothing());
        let now = Instant::now();
        // A lease that had run out by itself cost nobody a wait, and is not held against the client.
        if !left.is_zero() {
            self.contention.note(held.client, now);
        }
        Some(goes_on.map_or(held.until, |goes_on| held.until.min(now + goes_on)))
    }

    /// Does something to a client's leases for each item that it holds.
    fn at_items(&self, held: &ConflictingLeases, act: impl Fn(&mut LeaseHolder, Item)) {
        held.items.iter().for_each(|item| self.at_holder(held.client, *item, |holder| act(holder, *item)));
    }

    /// Begins a change of items, and returns the other clients' leases on them.
    fn begin_at(&self, client: ClientId, items: &[Item], now: Instant) -> Vec<ConflictingLeases> {
        let mut all: Vec<ConflictingLeases> = Vec::new();
        for item in items {
            let Some(mut state) = self.state(*item) else { continue };
            // Under one lock with the search for holders: a client that asks later is refused, one that asked before is
            // found.
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

    /// Returns true if each of its locks can be taken within `patience`; for detecting a standstill.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.slots.iter().all(|slot| slot.try_lock_for(patience).is_some())
    }

    /// Ends a client's change of items.
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
