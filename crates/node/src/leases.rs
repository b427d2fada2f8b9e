//! Leases: what a client may cache of what it was told, and for how long.
//!
//! A lease is of one *item*: the attributes of an inode, or a name in a directory, also that there is none. The node
//! knows who holds what, as long as it runs. Who changes items has their holders asked to cache them no more, in one
//! message to each ([`crate::callbacks`]); who says that it does not is not waited for, and who cannot is as long
//! as it says, and nobody longer than its lease. While a change is under way nobody else gets leases on
//! its items, nor for an answer that was begun before it was over; then leases that are short beside
//! the time since, for what a kernel knows of names it cannot be told to forget: so changes wait for a small part of the
//! time only, however they come. Who had to be waited for several times gets none at this node for a while.
//! The idea is that of Gray and Cheriton, "Leases", SOSP 1989; see docs/decisions/0073-one-callback.md.
//!
//! Changes come in transactions that know what they change but not who wants that: that is what the thread *acts* for.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_layout::entry_hash;
use bivouac_ranks::Mutex;
use bivouac_types::limits::{
    CONTENTION_MS, CONTENTIONS_MAX, INVALIDATIONS_MAX, LEASE_MARGIN_MS, LEASE_MS, LEASE_MS_MIN, LEASE_PART,
    LEASE_QUIET_MS,
};
use bivouac_types::{ClientId, Ino, Slot};
use bivouac_wire::Invalidation;

use crate::dispatch::SYSTEM;

/// Items of a slot share so many places, in each of which is noted who changes something, and who did lately.
const PLACES: usize = 16;
/// So many items that a client holds in a slot are told from each other; beyond that it holds all.
const ITEMS_MAX: usize = 512;
/// So many items of a holder of all are known that it does not cache.
const GIVEN_UP_MAX: usize = 32;

/// What a client may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Everything in a slot. Its holders are not asked: a change of what is not named waits for all leases there.
    Slot(Slot),
    /// The attributes of an inode.
    Attrs(Ino),
    /// A name with this hash in a directory, whose entry is, or would be, in this slot.
    Name { slot: Slot, dir: Ino, hash: u64 },
}

impl Item {
    /// A name in a directory, whose entry is, or would be, in this slot.
    pub fn of_name(slot: Slot, dir: Ino, name: &[u8]) -> Item {
        Item::Name { slot, dir, hash: entry_hash(dir, name) }
    }

    /// The slot that it is in.
    fn slot(self) -> Slot {
        match self {
            Item::Slot(slot) | Item::Name { slot, .. } => slot,
            Item::Attrs(ino) => ino.slot(),
        }
    }

    /// What tells it from others of its slot, well mixed. Two with one key are taken for the same.
    fn key(self) -> u64 {
        let (ino, salt) = match self {
            Item::Slot(_) => (0, 0),
            Item::Attrs(ino) => (ino.0, 0),
            Item::Name { dir, hash, .. } => (dir.0, hash | 1),
        };
        (ino.rotate_left(32) ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// What its holders are asked to cache no more.
    fn invalidation(self) -> Option<Invalidation> {
        match self {
            Item::Slot(_) => None,
            Item::Attrs(ino) => Some(Invalidation { ino, name: None }),
            Item::Name { dir, hash, .. } => Some(Invalidation { ino: dir, name: Some(hash) }),
        }
    }
}

/// Asks a client to cache these items no more, and has so long for that. How long it may go on with some of them;
/// nothing if it does not say.
pub type Ask<'a> = &'a (dyn Fn(ClientId, Vec<Invalidation>, Duration) -> Option<Duration> + Sync);

/// The leases of a node.
pub struct Leases {
    slots: Vec<Mutex<State>>,
    /// Clients that had to be waited for.
    contenders: Mutex<Vec<Contender>>,
    /// Whether there are any that get no leases therefore; for a look without the lock.
    any_contended: AtomicBool,
    /// Until when leases of an earlier daemon may run.
    earlier: Option<Instant>,
    /// Changes that had to wait.
    waits: AtomicU64,
}

/// The leases on the items of a slot.
#[derive(Default)]
struct State {
    holders: Vec<Holder>,
    /// Changes of everything; and of items, by place, once there are any.
    all: Place,
    places: Vec<Place>,
}

/// A client that has leases.
struct Holder {
    client: ClientId,
    /// When the last one is over.
    until: Instant,
    /// Until when it may cache everything in the slot, and what of that it does not.
    all: Instant,
    given_up: Vec<u64>,
    /// It knows all names of a directory, for as long as it has a lease without a break.
    is_whole: bool,
    /// The items that it got leases on since `turn`, and those that it got in the time of a lease before.
    young: HashSet<u64>,
    old: HashSet<u64>,
    turn: Instant,
    /// Items that it is asked to forget, and has not answered for; and until when it gets no more leases. Without any its
    /// lease breaks, and with that it forgets by itself whatever it knows of directories as wholes.
    asked: u32,
    barred: Instant,
}

/// What a client has leases on of what is about to be changed.
struct Held {
    client: ClientId,
    until: Instant,
    items: Vec<Item>,
}

/// A client that had to be waited for.
struct Contender {
    client: ClientId,
    times: u32,
    /// Until when that counts.
    until: Instant,
}

/// Who changes something at a place, and who did lately.
#[derive(Default)]
struct Place {
    /// Changes under way, by client.
    active: Vec<(ClientId, u32)>,
    /// Who ended a change last, and when; and when others than that one did.
    last: Option<(ClientId, Instant)>,
    before: Option<Instant>,
}

/// A change under way: while it lasts, nobody else gets a lease on what it changes.
pub struct Changing<'a> {
    leases: &'a Leases,
    client: ClientId,
    items: Vec<Item>,
}

thread_local! {
    static ACTS_FOR: Cell<Option<ClientId>> = const { Cell::new(None) };
}

/// While this lives, what the thread changes is somebody's change, which others must not miss.
pub struct Principal {
    before: Option<ClientId>,
}

impl Principal {
    /// The thread acts for a client; for [`SYSTEM`] if everybody is an other.
    pub fn on_behalf_of(client: ClientId) -> Principal {
        Principal { before: ACTS_FOR.replace(Some(client)) }
    }

    /// For whom the thread acts; [`SYSTEM`] if for nobody in particular.
    pub fn for_whom() -> ClientId {
        ACTS_FOR.get().unwrap_or(SYSTEM)
    }
}

impl Drop for Principal {
    fn drop(&mut self) {
        ACTS_FOR.set(self.before);
    }
}

impl Leases {
    /// No leases; after a restart, those that the earlier daemon may have given.
    pub fn new(slots: u16, restarted: bool) -> Leases {
        let given = Instant::now() + LEASE;
        Leases {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            contenders: Mutex::default(),
            any_contended: AtomicBool::new(false),
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
        self.grant(client, item, begun, false)
    }

    /// As [`Leases::look`], by an answer with all names of a directory in the slot.
    pub fn look_at_all(&self, client: ClientId, slot: Slot, begun: Instant) -> u32 {
        self.grant(client, Item::Slot(slot), begun, true)
    }

    fn grant(&self, client: ClientId, item: Item, begun: Instant, is_whole: bool) -> u32 {
        let (state, now) = (self.slots.get(usize::from(item.slot().0)), Instant::now());
        // What it has of an earlier daemon, which this one does not know, has to break.
        if self.earlier.is_some_and(|until| now < until) {
            return 0;
        }
        if self.any_contended.load(Ordering::Relaxed) && self.contends(client, now) {
            return 0;
        }
        let Some(mut state) = state.map(Mutex::lock) else { return 0 };
        let lease_ms = state.leaves_others(client, item, begun, now);
        if lease_ms < LEASE_MS_MIN {
            return 0;
        }
        let holder = state.holder(client, now);
        if holder.asked > 0 || holder.barred > now {
            return 0;
        }
        holder.take(item, now + Duration::from_millis(lease_ms), is_whole, now);
        (lease_ms - LEASE_MARGIN_MS) as u32
    }

    /// A client's change has its kernel show an item from now on for as long as it would have shown another one, of which
    /// it was told before: it is asked about the item as if it had a lease on it. To be called before the change is over.
    ///
    /// Why for so long: what its kernel was told before now it shows no longer than a lease that was given before now.
    pub fn hold(&self, client: ClientId, item: Item) {
        let now = Instant::now();
        if let Some(state) = self.slots.get(usize::from(item.slot().0)) {
            state.lock().holder(client, now).take(item, now + LEASE, false, now);
        }
    }

    fn contends(&self, client: ClientId, now: Instant) -> bool {
        let mut contenders = self.contenders.lock();
        contenders.retain(|one| one.until > now);
        let mut often = contenders.iter().filter(|one| one.times >= CONTENTIONS_MAX).peekable();
        self.any_contended.store(often.peek().is_some(), Ordering::Relaxed);
        often.any(|one| one.client == client)
    }

    /// This client had to be waited for.
    fn meet(&self, client: ClientId, now: Instant) {
        let (mut contenders, until) = (self.contenders.lock(), now + Duration::from_millis(CONTENTION_MS));
        contenders.retain(|one| one.until > now);
        match contenders.iter_mut().find(|one| one.client == client) {
            // From the first time on if it is seldom, from the last if it is often.
            Some(one) if one.times + 1 < CONTENTIONS_MAX => one.times += 1,
            Some(one) => (one.times, one.until) = (CONTENTIONS_MAX, until),
            None => contenders.push(Contender { client, times: 1, until }),
        }
        let often = contenders.iter().any(|one| one.times >= CONTENTIONS_MAX);
        self.any_contended.store(often, Ordering::Relaxed);
    }

    /// These items are about to be changed: has their holders cache them no more, and waits for those that do.
    /// Nothing to do if the thread acts for nobody in particular: then it changes what nobody is told of.
    pub fn change(&self, items: &[Item], ask: Ask<'_>) -> Option<Changing<'_>> {
        let client = ACTS_FOR.get()?;
        self.begin(client, items, ask);
        Some(Changing { leases: self, client, items: items.to_vec() })
    }

    /// As [`Leases::change`], for a client's change that goes on until [`Leases::end`].
    ///
    /// Why it is right: from the first step on nobody else gets a lease on the items. Who caches nothing of them from
    /// when it was asked, for as long as a lease runs, has none with which to cache what was so before the change.
    pub fn begin(&self, client: ClientId, items: &[Item], ask: Ask<'_>) {
        let now = Instant::now();
        let holders = self.begin_at(client, items, now);
        let may_ask = holders.len() <= INVALIDATIONS_MAX;
        let ask_holder = |held: &Held| self.ask_holder(held, ask, may_ask);
        let answers: Vec<_> = if may_ask {
            each_at_once(&holders, ask_holder)
        } else {
            holders.iter().map(ask_holder).collect()
        };
        let earlier = self.earlier.filter(|until| *until > now);
        let Some(latest) = answers.iter().flatten().copied().chain(earlier).max() else { return };
        self.waits.fetch_add(1, Ordering::Relaxed);
        while let Some(left) = latest.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            bivouac_net::pause(left);
        }
        // Not before: another change of the same items has to wait as well.
        for (held, _) in holders.iter().zip(answers).filter(|(_, until)| until.is_some()) {
            self.at_items(held, |holder, item| holder.give_up(item));
        }
    }

    /// Has a client cache no more what it holds. Until when it has to be waited for; `None` if it has not.
    fn ask_holder(&self, held: &Held, ask: Ask<'_>, may_ask: bool) -> Option<Instant> {
        let named: Option<Vec<_>> = held.items.iter().map(|item| item.invalidation()).collect();
        let left = held.until.saturating_duration_since(Instant::now());
        let goes_on = named.filter(|_| may_ask).and_then(|named| ask(held.client, named, left));
        if goes_on == Some(Duration::ZERO) {
            self.at_items(held, Holder::forget);
            return None;
        }
        self.at_items(held, |holder, _| holder.answered_nothing());
        let now = Instant::now();
        if !left.is_zero() {
            self.meet(held.client, now);
        }
        Some(goes_on.map_or(held.until, |goes_on| held.until.min(now + goes_on)))
    }

    /// Does something to a client's leases for each item that it holds.
    fn at_items(&self, held: &Held, act: impl Fn(&mut Holder, Item)) {
        held.items.iter().for_each(|item| self.at_holder(held.client, *item, |holder| act(holder, *item)));
    }

    /// A change of items begins; who else has leases on them.
    fn begin_at(&self, client: ClientId, items: &[Item], now: Instant) -> Vec<Held> {
        let mut all: Vec<Held> = Vec::new();
        for item in items {
            let Some(state) = self.slots.get(usize::from(item.slot().0)) else { continue };
            let mut state = state.lock();
            state.place(*item).begin(client);
            let others = state.holders.iter_mut().filter(|holder| holder.client != client);
            for holder in others.filter(|holder| holder.has(*item, now)) {
                holder.asked += 1;
                match all.iter_mut().find(|held| held.client == holder.client) {
                    Some(held) => {
                        held.until = held.until.max(holder.until);
                        held.items.push(*item);
                    }
                    None => all.push(Held { client: holder.client, until: holder.until, items: vec![*item] }),
                }
            }
        }
        all
    }

    /// Does something to a client's leases in the slot of an item, if it has any.
    fn at_holder(&self, client: ClientId, item: Item, act: impl Fn(&mut Holder)) {
        if let Some(state) = self.slots.get(usize::from(item.slot().0)) {
            state.lock().holders.iter_mut().filter(|holder| holder.client == client).for_each(act);
        }
    }

    /// Whether all its locks can be had within a time each.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.slots.iter().all(|slot| slot.try_lock_for(patience).is_some())
    }

    /// A change of a client's is over.
    pub fn end(&self, client: ClientId, items: &[Item]) {
        let now = Instant::now();
        for item in items {
            if let Some(state) = self.slots.get(usize::from(item.slot().0)) {
                state.lock().place(*item).end(client, now);
            }
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.leases.end(self.client, &self.items);
    }
}

/// Asks all at once, each but the last in a thread of its own: one that is silent uses no other's time.
fn each_at_once(holders: &[Held], ask: impl Fn(&Held) -> Option<Instant> + Sync) -> Vec<Option<Instant>> {
    let Some((last, others)) = holders.split_last() else { return Vec::new() };
    std::thread::scope(|scope| {
        let ask = &ask;
        let spawn =
            |held| std::thread::Builder::new().name("ask".into()).spawn_scoped(scope, move || ask(held));
        let asked: Vec<_> = others.iter().map(|held| (held, spawn(held))).collect();
        let of_last = ask(last);
        if !asked.is_empty() {
            bivouac_net::before_waiting();
        }
        // Without a thread it is asked now; one that panics has not answered.
        let answer =
            |(held, asked): (&Held, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| match asked {
                Ok(thread) => thread.join().unwrap_or(Some(held.until)),
                Err(_) => ask(held),
            };
        asked.into_iter().map(answer).chain([of_last]).collect()
    })
}

const LEASE: Duration = Duration::from_millis(LEASE_MS);

impl State {
    fn place(&mut self, item: Item) -> &mut Place {
        if matches!(item, Item::Slot(_)) {
            return &mut self.all;
        }
        if self.places.is_empty() {
            self.places.resize_with(PLACES, Place::default);
        }
        &mut self.places[item.key() as usize >> 32 & (PLACES - 1)]
    }

    /// For how long a client may get a lease on an item, in milliseconds, by an answer that was begun then.
    fn leaves_others(&self, client: ClientId, item: Item, begun: Instant, now: Instant) -> u64 {
        let of = |place: &Place| place.leaves_others(client, begun, now);
        let at = item.key() as usize >> 32 & (PLACES - 1);
        let ms = match item {
            Item::Slot(_) => self.places.iter().map(of).min(),
            _ => self.places.get(at).map(of),
        };
        of(&self.all).min(ms.unwrap_or(LEASE_MS))
    }

    /// The client's entry, as of now.
    fn holder(&mut self, client: ClientId, now: Instant) -> &mut Holder {
        let found = self.holders.iter().position(|holder| holder.client == client);
        let at = found.unwrap_or_else(|| {
            self.holders.retain(|holder| holder.until > now || holder.asked > 0);
            self.holders.push(Holder {
                client,
                until: now,
                all: now,
                given_up: Vec::new(),
                is_whole: false,
                young: HashSet::new(),
                old: HashSet::new(),
                turn: now,
                asked: 0,
                barred: now,
            });
            self.holders.len() - 1
        });
        &mut self.holders[at]
    }
}

impl Holder {
    /// It got a lease.
    fn take(&mut self, item: Item, until: Instant, is_whole: bool, now: Instant) {
        // What was known with a lease without a break is not known any more after one.
        self.is_whole = is_whole || self.is_whole && self.until > now;
        self.until = self.until.max(until);
        if now >= self.turn + LEASE {
            self.old = std::mem::take(&mut self.young);
            if now >= self.turn + 2 * LEASE {
                self.old.clear();
            }
            self.turn = now;
        }
        match item {
            Item::Slot(_) => {
                self.all = self.until;
                self.given_up.clear();
            }
            item => {
                self.given_up.retain(|key| *key != item.key());
                self.young.insert(item.key());
            }
        }
        if self.young.len() >= ITEMS_MAX {
            self.young.clear();
            self.all = self.until;
        }
        if self.is_whole {
            self.all = self.until;
        }
    }

    /// Whether it may cache an item.
    fn has(&self, item: Item, now: Instant) -> bool {
        let key = item.key();
        let is_of_all = self.all > now && !self.given_up.contains(&key);
        let is_any = matches!(item, Item::Slot(_));
        self.until > now && (is_any || is_of_all || self.young.contains(&key) || self.old.contains(&key))
    }

    /// It says that it caches an item no more, also what follows from knowing it.
    fn forget(&mut self, item: Item) {
        self.asked = self.asked.saturating_sub(1);
        self.give_up(item);
        // It has forgotten what it knew of directories in the slot as wholes.
        self.is_whole &= !matches!(item, Item::Name { .. });
    }

    /// It was asked to forget an item, and does not say that it has: what it has is over before it gets more.
    fn answered_nothing(&mut self) {
        self.asked = self.asked.saturating_sub(1);
        self.barred = self.barred.max(self.until);
    }

    /// It caches an item no more.
    fn give_up(&mut self, item: Item) {
        let key = item.key();
        self.young.remove(&key);
        self.old.remove(&key);
        if matches!(item, Item::Slot(_)) || self.given_up.contains(&key) {
            return;
        }
        if self.given_up.len() >= GIVEN_UP_MAX {
            // It is asked again.
            self.given_up.remove(0);
        }
        self.given_up.push(key);
    }
}

impl Place {
    fn begin(&mut self, client: ClientId) {
        match self.active.iter_mut().find(|(other, _)| *other == client) {
            Some((_, count)) => *count += 1,
            None => self.active.push((client, 1)),
        }
    }

    fn end(&mut self, client: ClientId, now: Instant) {
        if let Some(at) = self.active.iter().position(|(other, _)| *other == client) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex as Plain;
    use proptest::prelude::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);
    const GIVEN: u32 = (LEASE_MS - LEASE_MARGIN_MS) as u32;
    const FILE: Item = Item::Attrs(Ino(5));
    const OTHER: Item = Item::Attrs(Ino(6));
    const NAME: Item = Item::Name { slot: Slot(0), dir: Ino(5), hash: 7 };

    fn after(ms: u64, start: Instant) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// A state that grants at any moment.
    fn grant(state: &mut State, client: ClientId, item: Item, begun: Instant, now: Instant) -> u64 {
        let lease_ms = state.leaves_others(client, item, begun, now);
        if lease_ms < LEASE_MS_MIN {
            return 0;
        }
        state.holder(client, now).take(item, now + Duration::from_millis(lease_ms), false, now);
        lease_ms
    }

    fn has(state: &State, client: ClientId, item: Item, now: Instant) -> bool {
        state.holders.iter().any(|holder| holder.client == client && holder.has(item, now))
    }

    fn surely_not(_: ClientId, _: Vec<Invalidation>, _: Duration) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn silent(_: ClientId, _: Vec<Invalidation>, _: Duration) -> Option<Duration> {
        None
    }

    /// Leases on an item, of which the holders' run for an hour.
    fn given_to(clients: &[ClientId], item: Item) -> Leases {
        let (leases, hour) = (Leases::new(2, false), Duration::from_secs(3600));
        clients.iter().for_each(|client| assert_eq!(leases.look(*client, item, Instant::now()), GIVEN));
        leases.slots[0].lock().holders.iter_mut().for_each(|holder| holder.until += hour);
        leases
    }

    /// S20. Also where it would get no lease.
    #[test]
    fn who_shows_a_name_by_a_rename_is_asked_about_it() {
        let leases = Leases::new(1, false);
        (0..CONTENTIONS_MAX).for_each(|_| leases.meet(A, Instant::now()));
        assert_eq!(leases.look(A, NAME, Instant::now()), 0);
        leases.hold(A, NAME);
        let asked = Plain::new(Vec::new());
        let ask = |client: ClientId, what: Vec<Invalidation>, _: Duration| {
            asked.lock().push((client, what));
            Some(Duration::ZERO)
        };
        let _principal = Principal::on_behalf_of(B);
        drop(leases.change(&[FILE, NAME], &ask));
        assert_eq!(*asked.lock(), [(A, vec![NAME.invalidation().unwrap()])]);
        drop(leases.change(&[NAME], &ask));
        assert_eq!(asked.lock().len(), 1, "it has forgotten it");
    }

    #[test]
    fn readers_share_and_a_lone_writer_keeps_its_lease() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!([A, B].map(|client| grant(&mut state, client, NAME, now, now)), [LEASE_MS; 2]);
        state.place(NAME).begin(A);
        let later = after(1, now);
        assert_eq!([A, B].map(|client| grant(&mut state, client, NAME, later, later)), [LEASE_MS, 0]);
        assert_eq!(grant(&mut state, B, FILE, later, later), LEASE_MS, "nobody changes that");
    }

    /// S378. What was read before a change, and is answered after it, is not cached: not even if the change has come and
    /// gone in between.
    #[test]
    fn an_answer_that_was_begun_before_a_change_is_over_gets_no_lease() {
        let (mut state, now) = (State::default(), Instant::now());
        state.place(NAME).begin(A);
        state.place(NAME).end(A, after(5, now));
        let later = after(10 * LEASE_QUIET_MS, now);
        assert_eq!(grant(&mut state, B, NAME, after(4, now), later), 0);
        assert_eq!(grant(&mut state, B, NAME, after(5, now), later), 0);
        assert_eq!(grant(&mut state, A, NAME, now, later), LEASE_MS, "it is its own change");
        assert_eq!(grant(&mut state, B, NAME, after(6, now), later), LEASE_MS);
        // A's next change does not hide that B has changed something, and the other way round.
        state.place(NAME).begin(B);
        state.place(NAME).end(B, later);
        state.place(NAME).begin(A);
        state.place(NAME).end(A, after(1, later));
        let last = after(10 * LEASE_QUIET_MS, later);
        assert_eq!([A, B].map(|client| grant(&mut state, client, NAME, later, last)), [0, 0]);
    }

    /// S63.
    #[test]
    fn leases_are_short_beside_the_time_since_the_last_change() {
        let (mut state, now) = (State::default(), Instant::now());
        state.place(NAME).end(A, now);
        let given = |state: &mut State, ms| grant(state, B, NAME, after(1, now), after(ms, now));
        assert_eq!(given(&mut state, LEASE_MS_MIN * LEASE_PART - 1), 0);
        assert_eq!(given(&mut state, LEASE_MS_MIN * LEASE_PART), LEASE_MS_MIN);
        assert_eq!(given(&mut state, LEASE_QUIET_MS / 2), LEASE_MS / 2);
        assert_eq!(given(&mut state, 2 * LEASE_QUIET_MS), LEASE_MS);
    }

    /// S61.
    #[test]
    fn a_change_of_everything_concerns_every_item_and_the_other_way_round() {
        let (mut state, now) = (State::default(), Instant::now());
        let all = Item::Slot(Slot(0));
        state.place(all).begin(A);
        assert_eq!([FILE, NAME].map(|item| grant(&mut state, B, item, now, now)), [0, 0]);
        state.place(all).end(A, now);
        let later = after(LEASE_QUIET_MS, now);
        assert_eq!(grant(&mut state, B, all, later, later), LEASE_MS);
        assert!([FILE, OTHER, NAME, all].iter().all(|item| has(&state, B, *item, later)));
        state.place(NAME).begin(A);
        assert_eq!(grant(&mut state, B, all, later, later), 0);
    }

    #[test]
    fn what_is_held_is_known_until_the_lease_is_over() {
        let (mut state, now) = (State::default(), Instant::now());
        grant(&mut state, B, NAME, now, now);
        assert!(has(&state, B, NAME, now) && !has(&state, B, FILE, now) && !has(&state, A, NAME, now));
        // Kept by leases on other things for at least as long as its own.
        (1..20).for_each(|turn| _ = grant(&mut state, B, FILE, now, after(turn * 5, now)));
        assert!(has(&state, B, NAME, after(LEASE_MS - 1, now)));
        (20..60).for_each(|turn| _ = grant(&mut state, B, FILE, now, after(turn * 5, now)));
        assert!(!has(&state, B, NAME, after(60 * 5, now)), "and is forgotten then");
        // Too many are all.
        (0..2 * ITEMS_MAX as u64).for_each(|ino| _ = grant(&mut state, B, Item::Attrs(Ino(ino)), now, now));
        assert!(has(&state, B, OTHER, now) && state.holders[0].young.len() < ITEMS_MAX);
        state.holders[0].give_up(OTHER);
        assert!(!has(&state, B, OTHER, now) && has(&state, B, Item::Attrs(Ino(9999)), now));
        (0..GIVEN_UP_MAX as u64).for_each(|ino| state.holders[0].give_up(Item::Attrs(Ino(100 + ino))));
        assert!(state.holders[0].given_up.len() <= GIVEN_UP_MAX && has(&state, B, OTHER, now), "asked again");
    }

    /// S64. Who knows all names has to be asked of each, for as long as it has leases in the slot without a break.
    #[test]
    fn who_knows_all_names_is_asked_until_its_leases_have_a_break() {
        let (mut state, now) = (State::default(), Instant::now());
        let lease = |at| after(at + LEASE_MS, now);
        state.holder(B, now).take(Item::Slot(Slot(0)), lease(0), true, now);
        (1..20)
            .for_each(|turn| state.holder(B, now).take(FILE, lease(turn * 50), false, after(turn * 50, now)));
        assert!(has(&state, B, NAME, after(1000, now)));
        state.holder(B, now).take(FILE, lease(5000), false, after(5000, now));
        assert!(!has(&state, B, NAME, after(5000, now)) && has(&state, B, FILE, after(5000, now)));
        // Or until it has been asked once: it does not know them any more then.
        let now = after(5000, now);
        state.holder(B, now).take(Item::Slot(Slot(0)), after(LEASE_MS, now), true, now);
        state.holder(B, now).forget(NAME);
        (1..5).for_each(|turn| {
            state.holder(B, now).take(FILE, after(turn * 50 + LEASE_MS, now), false, after(turn * 50, now));
        });
        assert!(!has(&state, B, Item::Name { slot: Slot(0), dir: Ino(5), hash: 9 }, after(200, now)));
    }

    /// S453. Each is asked while the other still thinks about it, and gets no leases before it has answered: they would
    /// be renewed by answers on other things.
    #[test]
    fn holders_are_asked_at_once_and_get_no_leases_meanwhile() {
        let (leases, both) = (given_to(&[B, C], FILE), std::sync::Barrier::new(2));
        let _principal = Principal::on_behalf_of(A);
        let ask = |client, _, _| {
            both.wait();
            assert_eq!(leases.look(client, OTHER, Instant::now()), 0);
            Some(Duration::ZERO)
        };
        drop(leases.change(&[FILE], &ask));
        assert_eq!(leases.waits(), 0);
        assert_eq!([B, C].map(|client| leases.look(client, OTHER, Instant::now())), [GIVEN; 2]);
    }

    /// S453. One is silent until the other has answered, and has its leases back.
    #[test]
    fn a_silent_holder_delays_no_answer_of_another() {
        for silent in [B, C] {
            let other = if silent == B { C } else { B };
            let leases = given_to(&[B, C], FILE);
            let _principal = Principal::on_behalf_of(A);
            let ask = |client, _, _| {
                while client == silent && leases.look(other, OTHER, Instant::now()) == 0 {
                    std::thread::yield_now();
                }
                Some(Duration::from_millis(u64::from(client == silent)))
            };
            drop(leases.change(&[FILE], &ask));
            assert_eq!(leases.waits(), 1);
        }
    }

    /// S60, S271.
    #[test]
    fn who_says_that_it_caches_nothing_is_not_waited_for() {
        let (leases, asked) = (given_to(&[A, B], FILE), Plain::new(Vec::new()));
        let _principal = Principal::on_behalf_of(A);
        let ask = |client, what, _| {
            asked.lock().push((client, what));
            Some(Duration::ZERO)
        };
        let changing = leases.change(&[FILE, NAME], &ask);
        assert!(changing.is_some() && leases.waits() == 0);
        let of_file = Invalidation { ino: Ino(5), name: None };
        assert_eq!(std::mem::take(&mut *asked.lock()), [(B, vec![of_file])], "of what it has, once");
        assert_eq!(leases.look(B, FILE, Instant::now()), 0);
        assert_eq!(leases.look(B, OTHER, Instant::now()), GIVEN, "nothing else is concerned");
        drop(changing);
        drop(leases.change(&[FILE], &|_, _, _| panic!("it has said so")));
        assert!(leases.contenders.lock().is_empty(), "nobody had to be waited for");
    }

    /// S60, S62.
    #[test]
    fn who_cannot_tell_is_waited_for() {
        let leases = Leases::new(1, false);
        [B, C].iter().for_each(|client| assert_eq!(leases.look(*client, FILE, Instant::now()), GIVEN));
        let until = leases.slots[0].lock().holders.iter().map(|holder| holder.until).max().unwrap();
        let _principal = Principal::on_behalf_of(A);
        drop(leases.change(&[FILE], &|client, _, _| (client == B).then_some(Duration::ZERO)));
        assert!(Instant::now() >= until);
        let contenders: Vec<_> = leases.contenders.lock().iter().map(|one| (one.client, one.times)).collect();
        assert!(contenders.is_empty() || contenders == [(C, 1)], "B was not waited for");
        assert_eq!(leases.waits(), contenders.len() as u64);
    }

    /// S60.
    #[test]
    fn who_says_how_long_is_waited_for_no_longer() {
        let leases = given_to(&[B], FILE);
        let _principal = Principal::on_behalf_of(A);
        let begun = Instant::now();
        drop(leases.change(&[FILE], &|_, _, _| Some(Duration::from_millis(20))));
        assert!(begun.elapsed() >= Duration::from_millis(20) && leases.waits() == 1, "and not for an hour");
        drop(leases.change(&[FILE], &|_, _, _| panic!("it is over")));
    }

    /// While one change waits for a holder, so does another one of the same.
    #[test]
    fn nobody_counts_as_asked_before_it_was_waited_for() {
        let leases = given_to(&[B], FILE);
        let asked = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in [A, C] {
                let (leases, asked) = (&leases, &asked);
                scope.spawn(move || {
                    let _principal = Principal::on_behalf_of(client);
                    let ask = |_, _, _| {
                        asked.fetch_add(1, Ordering::SeqCst);
                        // Both have begun before either goes on.
                        while asked.load(Ordering::SeqCst) < 2 {
                            std::thread::yield_now();
                        }
                        Some(Duration::from_millis(1))
                    };
                    drop(leases.change(&[FILE], &ask));
                });
            }
        });
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    /// S64. Who was waited for may know all names, and go on to know them while its leases are renewed: so they are not.
    #[test]
    fn who_was_waited_for_gets_no_lease_in_the_slot_meanwhile() {
        let leases = given_to(&[B], FILE);
        let _principal = Principal::on_behalf_of(A);
        let ask = |goes_on| move |_: ClientId, _: Vec<Invalidation>, _: Duration| Some(goes_on);
        drop(leases.change(&[FILE], &ask(Duration::from_millis(1))));
        assert_eq!(leases.look(B, OTHER, Instant::now()), 0, "for as long as what it had may run");
        let leases = given_to(&[B], FILE);
        drop(leases.change(&[FILE], &ask(Duration::ZERO)));
        assert_eq!(leases.look(B, OTHER, Instant::now()), GIVEN);
    }

    #[test]
    fn many_are_waited_for_and_not_asked() {
        let clients: Vec<ClientId> = (10..).map(ClientId).take(INVALIDATIONS_MAX + 1).collect();
        let leases = Leases::new(1, false);
        clients.iter().for_each(|client| assert_eq!(leases.look(*client, FILE, Instant::now()), GIVEN));
        let until = leases.slots[0].lock().holders.iter().map(|holder| holder.until).min().unwrap();
        let _principal = Principal::on_behalf_of(A);
        drop(leases.change(&[FILE], &|_, _, _| panic!("they are too many")));
        assert!(Instant::now() >= until);
    }

    /// S60.
    #[test]
    fn who_is_waited_for_often_gets_none_at_the_node() {
        let (leases, now) = (Leases::new(2, false), Instant::now());
        for time in 1..=CONTENTIONS_MAX {
            assert_eq!(leases.look(B, FILE, now), GIVEN, "{time}");
            leases.meet(B, now);
        }
        assert_eq!([B, C].map(|client| leases.look(client, FILE, now)), [0, GIVEN]);
        assert!(!leases.contends(B, after(CONTENTION_MS, now)), "and is forgotten");
        assert_eq!(leases.look(B, FILE, now), GIVEN);
    }

    #[test]
    fn leases_of_an_earlier_daemon_are_waited_for_whatever_is_said() {
        let leases = Leases::new(1, true);
        let until = leases.earlier.unwrap();
        let given = leases.look(B, OTHER, Instant::now());
        assert!(given == 0 || Instant::now() >= until, "who has leases of that one gets none behind them");
        let _principal = Principal::on_behalf_of(A);
        drop(leases.change(&[FILE], &surely_not));
        assert!(Instant::now() >= until);
        assert_eq!(leases.look(B, OTHER, Instant::now()), GIVEN);
    }

    #[test]
    fn who_acts_within_acts_for_itself_and_who_does_not_waits_for_nobody() {
        let leases = given_to(&[C], Item::Slot(Slot(0)));
        assert!(leases.change(&[Item::Slot(Slot(0))], &silent).is_none(), "nobody is told of it");
        let client = || leases.change(&[], &silent).map(|changing| changing.client);
        let _outer = Principal::on_behalf_of(A);
        let inner = Principal::on_behalf_of(B);
        assert_eq!(client(), Some(B));
        drop(inner);
        assert_eq!(client(), Some(A));
        drop(leases.change(&[Item::Slot(Slot(7))], &silent));
        assert_eq!(leases.look(A, Item::Slot(Slot(7)), Instant::now()), 0, "a slot that there is not");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A client begins to read an item; its answer gets its lease, and is cached, at the end of the read.
        Read(u64, u64),
        EndRead(usize),
        /// A client changes an item: all at once, or until the end.
        Begin(u64, u64),
        EndChange(usize),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u64..4, 0u64..4).prop_map(|(client, item)| Step::Read(client, item)),
            4 => (0usize..4).prop_map(Step::EndRead),
            2 => (1u64..4, 0u64..4).prop_map(|(client, item)| Step::Begin(client, item)),
            2 => (0usize..4).prop_map(Step::EndChange),
            2 => prop_oneof![0u64..5, 300u64..1200].prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// S20, S378. Whatever comes when: nobody caches what another client's finished change has made wrong.
        #[test]
        fn nobody_caches_what_has_changed(steps in proptest::collection::vec(step(), 1..120)) {
            let item = |number: u64| if number == 3 { Item::Slot(Slot(0)) } else { Item::Attrs(Ino(number)) };
            let concerns = |one: u64, other: u64| one == other || one == 3 || other == 3;
            let (mut state, mut now) = (State::default(), Instant::now());
            let mut versions = [0u64; 4];
            // What was read by whom, in which version; what is cached until when; who changes what.
            let mut reads: Vec<(u64, u64, [u64; 4], Instant)> = Vec::new();
            let mut cached: Vec<(u64, u64, [u64; 4], Instant)> = Vec::new();
            let mut changes: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Read(client, number) => reads.push((client, number, versions, now)),
                    Step::EndRead(at) if at < reads.len() => {
                        let (client, number, seen, begun) = reads.swap_remove(at);
                        let lease_ms = grant(&mut state, ClientId(client), item(number), begun, now);
                        cached.push((client, number, seen, now + Duration::from_millis(lease_ms)));
                    }
                    Step::Begin(client, number) => {
                        state.place(item(number)).begin(ClientId(client));
                        for holder in &mut state.holders {
                            if holder.client != ClientId(client) && holder.has(item(number), now) {
                                let drops = |one: &(u64, u64, [u64; 4], Instant)| {
                                    ClientId(one.0) == holder.client && concerns(one.1, number)
                                };
                                cached.retain(|one| !drops(one));
                                if number != 3 {
                                    holder.give_up(item(number));
                                }
                            }
                        }
                        changes.push((client, number));
                    }
                    Step::EndChange(at) if at < changes.len() => {
                        let (client, number) = changes.swap_remove(at);
                        (0..4).filter(|one| concerns(*one, number)).for_each(|one| versions[one as usize] += 1);
                        // Its own caches are its kernel's to keep right.
                        cached.retain(|one| one.0 != client);
                        reads.retain(|one| one.0 != client);
                        state.place(item(number)).end(ClientId(client), now);
                    }
                    Step::EndRead(_) | Step::EndChange(_) => {}
                    Step::Pass(ms) => now += Duration::from_millis(ms),
                }
                for (client, number, seen, until) in &cached {
                    let is_right = seen[*number as usize] == versions[*number as usize];
                    prop_assert!(is_right || *until <= now, "client {client}, item {number}");
                }
            }
        }
    }
}
