//! Leases: for how long a client may believe what it was told of a slot's inodes and entries.
//!
//! A lease says that no other client changes anything in the slot while it runs. Leases are short, and given only
//! to clients that no other client's changes concern: while nobody changes anything to all, while one
//! client does to that one, while several do to none. A change waits until the leases of others are over;
//! that happens once, since from then on they get none until the changes have been over for a while, and then leases
//! that are short beside that while: so changes wait for a small part of the time only, however they come.
//! A lone client, or many readers, keep what they know, and others are told the truth at once. Who had to be
//! waited for several times gets none in any slot of this node for a while: clients that work on the same things go
//! from one to the next, and would otherwise be waited for at each. Where nothing changes but one inode's attributes,
//! those whose leases run are asked first whether they can do without believing these: then they are not waited for.
//! The idea is that of Gray and Cheriton, "Leases", SOSP 1989.
//!
//! Changes come in transactions that know their slots but not who wants them: that is what the thread *acts* for.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::limits::{
    DISBELIEVERS_MAX, LEASE_MARGIN_MS, LEASE_MS, LEASE_MS_MIN, LEASE_PART, LEASE_QUIET_MS, MEETINGS_MAX,
    MEETINGS_MS,
};
use bivouac_types::{ClientId, Ino, Slot};

use crate::dispatch::NOBODY;

/// The leases of a node.
pub struct Leases {
    slots: Vec<Mutex<State>>,
    /// Clients that had to be waited for.
    met: Mutex<Vec<Met>>,
    /// Whether there are any that get no leases therefore; for a look without the lock.
    any_met: AtomicBool,
    /// Until when leases of an earlier daemon may run.
    earlier: Option<Instant>,
    /// Changes that had to wait.
    waits: AtomicU64,
}

/// Inodes of whose attributes a client believes nothing, as far as is kept.
const DISBELIEVED_MAX: usize = 32;

#[derive(Default)]
struct State {
    /// Who may believe what it knows.
    holders: Vec<Holder>,
    changers: Vec<Changer>,
}

/// A client that has a lease.
struct Holder {
    client: ClientId,
    until: Instant,
    /// Inodes of whose attributes it believes nothing for as long as this lease runs.
    disbelieves: Vec<Ino>,
}

impl Holder {
    /// Who, and until when.
    fn known(&self) -> (ClientId, Instant) {
        (self.client, self.until)
    }
}

/// A client that had to be waited for.
struct Met {
    client: ClientId,
    times: u32,
    /// Until when that counts.
    until: Instant,
}

/// Who changes something, or did so lately.
struct Changer {
    client: ClientId,
    /// Changes under way.
    active: u32,
    /// When the last one began or ended.
    last: Instant,
}

/// A change under way: while it lasts, nobody else gets a lease.
pub struct Changing<'a> {
    leases: &'a Leases,
    client: ClientId,
    slots: Vec<Slot>,
}

thread_local! {
    static ACTS_FOR: Cell<Option<ClientId>> = const { Cell::new(None) };
}

/// While this lives, what the thread changes is somebody's change, which others must not miss.
pub struct Acting {
    before: Option<ClientId>,
}

impl Acting {
    /// The thread acts for a client; for [`NOBODY`] if everybody is an other.
    pub fn on_behalf_of(client: ClientId) -> Acting {
        Acting { before: ACTS_FOR.replace(Some(client)) }
    }

    /// For whom the thread acts; [`NOBODY`] if for nobody in particular.
    pub fn for_whom() -> ClientId {
        ACTS_FOR.get().unwrap_or(NOBODY)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        ACTS_FOR.set(self.before);
    }
}

impl Leases {
    /// No leases; after a restart, those that the earlier daemon may have given.
    pub fn new(slots: u16, restarted: bool) -> Leases {
        let given = Instant::now() + Duration::from_millis(LEASE_MS);
        Leases {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            met: Mutex::default(),
            any_met: AtomicBool::new(false),
            earlier: restarted.then_some(given),
            waits: AtomicU64::new(0),
        }
    }

    /// Changes that had to wait so far.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// A client looks at something: how long it may believe it, in milliseconds. Whether that is asked before or
    /// after the look does not matter, since a change keeps others from leases for longer than any look takes.
    pub fn look(&self, client: ClientId, slot: Slot) -> u32 {
        let (state, now) = (self.slots.get(usize::from(slot.0)), Instant::now());
        if self.any_met.load(Ordering::Relaxed) && self.was_met(client, now) {
            return 0;
        }
        state.map_or(0, |state| state.lock().grant(client, now))
    }

    fn was_met(&self, client: ClientId, now: Instant) -> bool {
        let mut met = self.met.lock();
        met.retain(|met| met.until > now);
        let mut often = met.iter().filter(|met| met.times >= MEETINGS_MAX).peekable();
        self.any_met.store(often.peek().is_some(), Ordering::Relaxed);
        often.any(|met| met.client == client)
    }

    /// These clients had to be waited for.
    fn meet(&self, clients: Vec<ClientId>, now: Instant) {
        let (mut met, until) = (self.met.lock(), now + Duration::from_millis(MEETINGS_MS));
        met.retain(|met| met.until > now);
        for client in clients {
            match met.iter_mut().find(|met| met.client == client) {
                // From the first time on if it is seldom, from the last if it is often.
                Some(met) if met.times + 1 < MEETINGS_MAX => met.times += 1,
                Some(met) => (met.times, met.until) = (MEETINGS_MAX, until),
                None => met.push(Met { client, times: 1, until }),
            }
        }
        let often = met.iter().any(|met| met.times >= MEETINGS_MAX);
        self.any_met.store(often, Ordering::Relaxed);
    }

    /// Something is about to be changed in these slots: waits for the leases of others to end. Nothing to do if the
    /// thread acts for nobody in particular: then it changes what nobody is told of.
    pub fn change(&self, slots: &[Slot]) -> Option<Changing<'_>> {
        let client = ACTS_FOR.get()?;
        let mut slots = slots.to_vec();
        slots.sort_unstable();
        slots.dedup();
        self.begin(client, &slots);
        Some(Changing { leases: self, client, slots })
    }

    /// As [`Leases::change`], for a client's change of different slots that goes on until [`Leases::end`].
    pub fn begin(&self, client: ClientId, slots: &[Slot]) {
        let now = Instant::now();
        let states = || slots.iter().filter_map(|slot| self.slots.get(usize::from(slot.0)));
        states().for_each(|state| state.lock().changer(client, now).active += 1);
        self.wait_for(|now| {
            states()
                .flat_map(|state| state.lock().running(client, now).map(Holder::known).collect::<Vec<_>>())
                .collect()
        });
    }

    /// As [`Leases::change`], of nothing but the attributes of one inode. `ask` has a client believe nothing of them,
    /// and has so long for that; its answer is whether the client surely does not: then it is not waited for.
    pub fn change_of(&self, ino: Ino, ask: impl Fn(ClientId, Duration) -> bool) -> Option<Changing<'_>> {
        let client = ACTS_FOR.get()?;
        self.begin_of(client, ino, ask);
        Some(Changing { leases: self, client, slots: vec![ino.slot()] })
    }

    /// As [`Leases::begin`], of nothing but the attributes of one inode; `ask` as for [`Leases::change_of`].
    ///
    /// Why it is right: from the first step on nobody else gets a lease here. Who believes nothing of the inode from when
    /// it was asked, for as long as the leases run that there are, has none with which to believe what was so before the change.
    pub fn begin_of(&self, client: ClientId, ino: Ino, ask: impl Fn(ClientId, Duration) -> bool) {
        let Some(state) = self.slots.get(usize::from(ino.slot().0)) else { return };
        state.lock().changer(client, Instant::now()).active += 1;
        let refused = self.ask_believers(state, client, ino, ask);
        let has_waited = self.wait_for(|now| state.lock().believers(client, ino, now));
        if !has_waited && !refused.is_empty() {
            // It took them until their leases were over.
            self.meet(refused, Instant::now());
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the leases of these are over, and those of an earlier daemon; whether there were any.
    fn wait_for(&self, holders: impl Fn(Instant) -> Vec<(ClientId, Instant)>) -> bool {
        let mut has_waited = false;
        loop {
            let now = Instant::now();
            let left = holders(now);
            let earlier = self.earlier.filter(|until| *until > now);
            let Some(until) = left.iter().map(|(_, until)| *until).chain(earlier).max() else { break };
            let mut others: Vec<_> = left.into_iter().map(|(client, _)| client).collect();
            others.sort_unstable();
            others.dedup();
            self.meet(others, now);
            has_waited = true;
            bivouac_net::pause(until.saturating_duration_since(now));
        }
        if has_waited {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        has_waited
    }

    /// Asks who may believe an inode's attributes not to, unless they are too many. Those that do not say yes.
    fn ask_believers(
        &self,
        state: &Mutex<State>,
        client: ClientId,
        ino: Ino,
        ask: impl Fn(ClientId, Duration) -> bool,
    ) -> Vec<ClientId> {
        let mut believers = state.lock().believers(client, ino, Instant::now());
        if believers.len() > DISBELIEVERS_MAX {
            believers.clear();
        }
        let refuses = |(believer, until): (ClientId, Instant)| {
            if !ask(believer, until.saturating_duration_since(Instant::now())) {
                return Some(believer);
            }
            state.lock().disbelieves(believer, ino);
            None
        };
        believers.into_iter().filter_map(refuses).collect()
    }

    /// Whether all its locks can be had within a time each.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.slots.iter().all(|slot| slot.try_lock_for(patience).is_some())
    }

    /// A change of a client's is over.
    pub fn end(&self, client: ClientId, slots: &[Slot]) {
        let now = Instant::now();
        for state in slots.iter().filter_map(|slot| self.slots.get(usize::from(slot.0))) {
            let mut state = state.lock();
            let changer = state.changer(client, now);
            changer.active = changer.active.saturating_sub(1);
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.leases.end(self.client, &self.slots);
    }
}

impl State {
    fn grant(&mut self, client: ClientId, now: Instant) -> u32 {
        let others = self.changers.iter().filter(|changer| changer.client != client);
        let lease_ms = others.map(|changer| changer.leaves_others(now)).min().unwrap_or(LEASE_MS);
        if lease_ms < LEASE_MS_MIN {
            return 0;
        }
        let until = now + Duration::from_millis(lease_ms);
        match self.holders.iter_mut().find(|holder| holder.client == client) {
            Some(holder) => {
                holder.until = until.max(holder.until);
                // It said so of the leases that it had.
                holder.disbelieves.clear();
            }
            None => {
                self.holders.retain(|holder| holder.until > now);
                self.holders.push(Holder { client, until, disbelieves: Vec::new() });
            }
        }
        (lease_ms - LEASE_MARGIN_MS) as u32
    }

    /// The client's entry, as of now.
    fn changer(&mut self, client: ClientId, now: Instant) -> &mut Changer {
        let found = self.changers.iter().position(|changer| changer.client == client);
        let at = found.unwrap_or_else(|| {
            self.changers.retain(|changer| changer.leaves_others(now) < LEASE_MS);
            self.changers.push(Changer { client, active: 0, last: now });
            self.changers.len() - 1
        });
        let changer = &mut self.changers[at];
        changer.last = now;
        changer
    }

    /// The others whose leases run.
    fn running(&self, client: ClientId, now: Instant) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(move |holder| holder.client != client && holder.until > now)
    }

    /// Those of them that may believe an inode's attributes, and until when.
    fn believers(&self, client: ClientId, ino: Ino, now: Instant) -> Vec<(ClientId, Instant)> {
        let others = self.running(client, now).filter(|holder| !holder.disbelieves.contains(&ino));
        others.map(Holder::known).collect()
    }

    /// A client believes nothing of an inode's attributes for as long as its lease runs.
    fn disbelieves(&mut self, client: ClientId, ino: Ino) {
        if let Some(holder) = self.holders.iter_mut().find(|holder| holder.client == client) {
            holder.disbelieves.retain(|other| *other != ino);
            if holder.disbelieves.len() >= DISBELIEVED_MAX {
                // It is asked again.
                holder.disbelieves.remove(0);
            }
            holder.disbelieves.push(ino);
        }
    }
}

impl Changer {
    /// For how long others may get a lease, in milliseconds.
    fn leaves_others(&self, now: Instant) -> u64 {
        let quiet = now.saturating_duration_since(self.last).as_millis().min(u128::from(LEASE_QUIET_MS));
        if self.active > 0 { 0 } else { quiet as u64 / LEASE_PART }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);
    const GIVEN: u32 = (LEASE_MS - LEASE_MARGIN_MS) as u32;

    fn after(ms: u64, start: Instant) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn readers_share_and_a_lone_writer_keeps_its_lease() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!((state.grant(A, now), state.grant(B, now)), (GIVEN, GIVEN));
        let mut state = State::default();
        state.changer(A, now);
        assert_eq!((state.grant(A, now), state.grant(B, now)), (GIVEN, 0));
        assert_eq!(others_until(&state, A, now), None);
    }

    /// S60.
    #[test]
    fn a_change_waits_for_the_leases_of_others_once() {
        let (mut state, now) = (State::default(), Instant::now());
        state.grant(B, now);
        state.changer(A, now);
        assert_eq!(others_until(&state, A, now), Some(after(LEASE_MS, now)));
        let later = after(LEASE_MS, now);
        assert_eq!(others_until(&state, A, later), None);
        assert_eq!(state.grant(B, later), 0, "from now on B asks every time");
        assert_eq!(others_until(&state, A, after(1, later)), None);
    }

    /// S61.
    #[test]
    fn several_writers_get_none_until_it_is_quiet() {
        let (mut state, now) = (State::default(), Instant::now());
        state.changer(A, now);
        state.changer(B, now);
        assert_eq!((state.grant(A, now), state.grant(B, now)), (0, 0));
        let later = after(LEASE_QUIET_MS, now);
        assert_eq!((state.grant(A, later), state.grant(B, later)), (GIVEN, GIVEN));
    }

    /// S63.
    #[test]
    fn leases_are_short_beside_the_time_since_the_last_change() {
        let (mut state, now) = (State::default(), Instant::now());
        state.changer(A, now);
        let given = |state: &mut State, ms| state.grant(B, after(ms, now));
        assert_eq!(given(&mut state, LEASE_MS_MIN * LEASE_PART - 1), 0);
        assert_eq!(given(&mut state, LEASE_MS_MIN * LEASE_PART), (LEASE_MS_MIN - LEASE_MARGIN_MS) as u32);
        let half = LEASE_QUIET_MS / 2;
        assert_eq!(given(&mut state, half), (LEASE_MS / 2 - LEASE_MARGIN_MS) as u32);
        assert_eq!(others_until(&state, A, after(half, now)), Some(after(half + LEASE_MS / 2, now)));
    }

    #[test]
    fn a_lease_is_not_cut_short_by_a_later_one() {
        let (mut state, now) = (State::default(), Instant::now());
        state.grant(B, after(50, now));
        state.grant(B, now);
        assert_eq!(others_until(&state, A, now), Some(after(50 + LEASE_MS, now)));
    }

    #[test]
    fn one_wait_in_several_slots_counts_once() {
        let leases = Leases::new(2, false);
        assert_eq!([0, 1].map(|slot| leases.look(B, Slot(slot))), [GIVEN; 2]);
        let _acting = Acting::on_behalf_of(A);
        drop(leases.change(&[Slot(0), Slot(1)]));
        let met: Vec<_> = leases.met.lock().iter().map(|met| (met.client, met.times)).collect();
        assert_eq!(met, [(B, 1)]);
    }

    /// S60.
    #[test]
    fn who_is_waited_for_often_gets_none_at_the_node() {
        let (leases, now) = (Leases::new(2, false), Instant::now());
        for time in 1..=MEETINGS_MAX {
            assert_eq!(leases.look(B, Slot(0)), GIVEN, "{time}");
            leases.meet(vec![B], now);
        }
        assert_eq!((leases.look(B, Slot(0)), leases.look(C, Slot(0))), (0, GIVEN));
        assert!(!leases.was_met(B, after(MEETINGS_MS, now)), "and is forgotten");
        assert_eq!(leases.look(B, Slot(0)), GIVEN);
    }

    #[test]
    fn a_change_that_takes_long_keeps_others_from_believing() {
        let (mut state, now) = (State::default(), Instant::now());
        state.changer(A, now).active = 1;
        let later = after(10 * LEASE_QUIET_MS, now);
        assert_eq!(state.grant(B, later), 0);
        state.changer(A, later).active = 0;
        assert_eq!(state.grant(B, later), 0);
        assert_eq!(state.grant(B, after(LEASE_QUIET_MS, later)), GIVEN);
    }

    #[test]
    fn leases_of_an_earlier_daemon_are_waited_for() {
        let leases = Leases::new(2, true);
        let until = leases.earlier.unwrap();
        let _acting = Acting::on_behalf_of(A);
        drop(leases.change(&[Slot(1)]));
        assert!(Instant::now() >= until);
    }

    #[test]
    fn the_wait_itself_ends_and_is_for_the_slots_that_change() {
        let leases = Leases::new(3, false);
        assert_eq!([0, 1, 2].map(|slot| leases.look(B, Slot(slot))), [GIVEN; 3]);
        let acting = Acting::on_behalf_of(A);
        drop(leases.change(&[Slot(1), Slot(0), Slot(1)]));
        assert_eq!([0, 1, 2].map(|slot| leases.look(C, Slot(slot))), [0, 0, GIVEN]);
        assert_eq!([0, 1, 2].map(|slot| leases.look(B, Slot(slot))), [0, 0, GIVEN]);
        assert_eq!(leases.look(A, Slot(1)), GIVEN);
        assert_eq!(leases.look(A, Slot(3)), 0, "a slot that there is not");
        drop(acting);
        assert!(leases.change(&[Slot(2)]).is_none(), "nobody is told of it");
    }

    const INO: Ino = Ino(5);

    /// When the last lease on slot 0 ends.
    fn until(leases: &Leases) -> Instant {
        leases.slots[0].lock().holders.iter().map(|holder| holder.until).max().unwrap()
    }

    fn others_until(state: &State, client: ClientId, now: Instant) -> Option<Instant> {
        state.running(client, now).map(|holder| holder.until).max()
    }

    /// Leases of these clients on slot 0 that run for an hour.
    fn given_to(clients: &[ClientId]) -> Leases {
        let leases = Leases::new(1, false);
        clients.iter().for_each(|client| assert_eq!(leases.look(*client, Slot(0)), GIVEN));
        let hour = Duration::from_secs(3600);
        leases.slots[0].lock().holders.iter_mut().for_each(|holder| holder.until += hour);
        leases
    }

    /// S271.
    #[test]
    fn who_believes_nothing_of_an_inode_is_not_waited_for() {
        let (leases, asked) = (given_to(&[A, B]), std::sync::Mutex::new(Vec::new()));
        let _acting = Acting::on_behalf_of(A);
        let ask = |client, _| {
            asked.lock().unwrap().push(client);
            true
        };
        let changing = leases.change_of(INO, ask);
        assert!(changing.is_some() && leases.waits() == 0);
        assert_eq!((std::mem::take(&mut *asked.lock().unwrap()), leases.look(B, Slot(0))), (vec![B], 0));
        drop(changing);
        drop(leases.change_of(INO, |_, _| panic!("it has said so")));
        drop(leases.change_of(Ino(6), ask));
        assert_eq!(*asked.lock().unwrap(), [B], "of each inode");
        assert!(leases.met.lock().is_empty(), "nobody had to be waited for");
        let others = leases.slots[0].lock().running(A, Instant::now()).count();
        assert_eq!(others, 1, "names may still be believed, and their changes wait");
    }

    /// S62, S271.
    #[test]
    fn who_cannot_tell_is_waited_for() {
        let leases = Leases::new(1, false);
        [B, C].iter().for_each(|client| assert_eq!(leases.look(*client, Slot(0)), GIVEN));
        let until = until(&leases);
        let _acting = Acting::on_behalf_of(A);
        drop(leases.change_of(INO, |client, _| client == B));
        assert!(Instant::now() >= until);
        let met: Vec<_> = leases.met.lock().iter().map(|met| met.client).collect();
        assert!(met.is_empty() || met == [C], "B was not waited for");
        assert_eq!(leases.waits(), met.len() as u64);
    }

    #[test]
    fn many_are_waited_for_and_not_asked() {
        let clients: Vec<ClientId> = (10..).map(ClientId).take(DISBELIEVERS_MAX + 1).collect();
        let leases = Leases::new(1, false);
        clients.iter().for_each(|client| assert_eq!(leases.look(*client, Slot(0)), GIVEN));
        let until = until(&leases);
        let _acting = Acting::on_behalf_of(A);
        drop(leases.change_of(INO, |_, _| panic!("they are too many")));
        assert!(Instant::now() >= until);
    }

    #[test]
    fn what_was_said_is_of_the_leases_that_there_were() {
        let (mut state, now) = (State::default(), Instant::now());
        state.grant(B, now);
        state.disbelieves(B, INO);
        assert!(state.believers(A, INO, now).is_empty());
        assert_eq!(state.believers(A, Ino(6), now), [(B, after(LEASE_MS, now))]);
        (0..DISBELIEVED_MAX as u64).for_each(|number| state.disbelieves(B, Ino(100 + number)));
        assert_eq!(state.holders[0].disbelieves.len(), DISBELIEVED_MAX);
        assert!(!state.believers(A, INO, now).is_empty(), "it is asked again");
        state.disbelieves(B, INO);
        state.grant(B, now);
        assert!(!state.believers(A, INO, now).is_empty(), "a new lease");
    }

    #[test]
    fn leases_of_an_earlier_daemon_are_waited_for_whatever_is_said() {
        let leases = Leases::new(1, true);
        let until = leases.earlier.unwrap();
        let _acting = Acting::on_behalf_of(A);
        drop(leases.change_of(INO, |_, _| true));
        assert!(Instant::now() >= until);
    }

    #[test]
    fn who_acts_within_acts_for_itself() {
        let leases = Leases::new(1, false);
        let client = || leases.change(&[Slot(0)]).map(|changing| changing.client);
        let _outer = Acting::on_behalf_of(A);
        let inner = Acting::on_behalf_of(B);
        assert_eq!(client(), Some(B));
        drop(inner);
        assert_eq!(client(), Some(A));
    }
}
