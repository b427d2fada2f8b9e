//! Leases: for how long a client may believe what it was told of this node's inodes and entries.
//!
//! A lease says that no other client changes anything here while it runs. Leases are short, and given only
//! to clients that no other client's changes concern: while nobody changes anything to all, while one
//! client does to that one, while several do to none. A change waits until the leases of others are over;
//! that happens once, since from then on they get none until the changes have been over for a while.
//! So a lone client, or many readers, keep what they know, and others are told the truth at once.
//! The idea is that of Gray and Cheriton, "Leases", SOSP 1989.

use std::time::{Duration, Instant};

use bivouac_types::ClientId;
use bivouac_types::limits::{LEASE_MARGIN_MS, LEASE_MS, LEASE_QUIET_MS};
use parking_lot::{Condvar, Mutex};

use crate::dispatch::NOBODY;

/// The leases of a node.
pub struct Leases {
    state: Mutex<State>,
    never: Condvar,
}

#[derive(Default)]
struct State {
    /// Until when each client may believe what it knows.
    holders: Vec<(ClientId, Instant)>,
    changers: Vec<Changer>,
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
    /// How long the client may believe its own change, in milliseconds.
    pub lease_ms: u32,
}

impl Leases {
    /// No leases; after a restart, those that the earlier daemon may have given.
    pub fn new(restarted: bool) -> Leases {
        let given = Instant::now() + Duration::from_millis(LEASE_MS);
        let holders = if restarted { vec![(NOBODY, given)] } else { Vec::new() };
        Leases { state: Mutex::new(State { holders, changers: Vec::new() }), never: Condvar::new() }
    }

    /// A client looks at something: how long it may believe it, in milliseconds.
    pub fn look(&self, client: ClientId) -> u32 {
        self.state.lock().grant(client, Instant::now())
    }

    /// A client is about to change something: waits for the leases of others to end.
    pub fn change(&self, client: ClientId) -> Changing<'_> {
        let mut state = self.state.lock();
        let mut now = Instant::now();
        state.changer(client, now).active += 1;
        while let Some(until) = state.others_until(client, now) {
            bivouac_net::before_waiting();
            self.never.wait_until(&mut state, until);
            now = Instant::now();
        }
        Changing { leases: self, client, lease_ms: state.grant(client, now) }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.leases.state.lock();
        let changer = state.changer(self.client, now);
        changer.active = changer.active.saturating_sub(1);
    }
}

impl State {
    fn grant(&mut self, client: ClientId, now: Instant) -> u32 {
        if self.changers.iter().any(|changer| changer.client != client && changer.concerns_others(now)) {
            return 0;
        }
        let until = now + Duration::from_millis(LEASE_MS);
        match self.holders.iter_mut().find(|(holder, _)| *holder == client) {
            Some((_, end)) => *end = until,
            None => {
                self.holders.retain(|(_, end)| *end > now);
                self.holders.push((client, until));
            }
        }
        (LEASE_MS - LEASE_MARGIN_MS) as u32
    }

    /// The client's entry, as of now.
    fn changer(&mut self, client: ClientId, now: Instant) -> &mut Changer {
        let found = self.changers.iter().position(|changer| changer.client == client);
        let at = found.unwrap_or_else(|| {
            self.changers.retain(|changer| changer.concerns_others(now));
            self.changers.push(Changer { client, active: 0, last: now });
            self.changers.len() - 1
        });
        let changer = &mut self.changers[at];
        changer.last = now;
        changer
    }

    /// When the last lease of another client ends, if one runs.
    fn others_until(&self, client: ClientId, now: Instant) -> Option<Instant> {
        let others = self.holders.iter().filter(|(holder, _)| *holder != client);
        others.map(|(_, until)| *until).max().filter(|until| *until > now)
    }
}

impl Changer {
    fn concerns_others(&self, now: Instant) -> bool {
        self.active > 0 || now.saturating_duration_since(self.last) < Duration::from_millis(LEASE_QUIET_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
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
        assert_eq!(state.others_until(A, now), None);
    }

    #[test]
    fn a_change_waits_for_the_leases_of_others_once() {
        let (mut state, now) = (State::default(), Instant::now());
        state.grant(B, now);
        state.changer(A, now);
        assert_eq!(state.others_until(A, now), Some(after(LEASE_MS, now)));
        let later = after(LEASE_MS, now);
        assert_eq!(state.others_until(A, later), None);
        assert_eq!(state.grant(B, later), 0, "from now on B asks every time");
        assert_eq!(state.others_until(A, after(1, later)), None);
    }

    #[test]
    fn several_writers_get_none_until_it_is_quiet() {
        let (mut state, now) = (State::default(), Instant::now());
        state.changer(A, now);
        state.changer(B, now);
        assert_eq!((state.grant(A, now), state.grant(B, now)), (0, 0));
        let later = after(LEASE_QUIET_MS, now);
        assert_eq!((state.grant(A, later), state.grant(B, later)), (GIVEN, GIVEN));
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
        let leases = Leases::new(true);
        assert!(leases.state.lock().others_until(A, Instant::now()).is_some());
        assert_eq!(leases.change(A).lease_ms, GIVEN);
        assert!(leases.state.lock().others_until(A, Instant::now()).is_none());
    }

    #[test]
    fn the_wait_itself_ends() {
        let leases = Leases::new(false);
        assert_eq!(leases.look(B), GIVEN);
        assert_eq!(leases.change(A).lease_ms, GIVEN);
        assert_eq!(leases.look(B), 0);
    }
}
