//! Clients that had to be waited for: one that is so several times gets no leases at this node for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::ClientId;
use bivouac_types::limits::{CONTENTION_MS, CONTENTIONS_MAX};

/// Those of a node.
#[derive(Default)]
pub struct Contention {
    pub(super) contenders: Mutex<Vec<Contender>>,
    /// Whether any gets no leases; for a look without the lock.
    any: AtomicBool,
}

/// A client that had to be waited for.
pub struct Contender {
    pub client: ClientId,
    pub times: u32,
    /// Until when that counts.
    until: Instant,
}

impl Contention {
    /// Whether a client gets no leases now.
    pub fn bars(&self, client: ClientId, now: Instant) -> bool {
        let is_barred = |one: &Contender| one.client == client && one.is_often();
        self.any.load(Ordering::Relaxed) && self.update(now, |all| all.iter().any(is_barred))
    }

    /// This client had to be waited for.
    pub fn note(&self, client: ClientId, now: Instant) {
        let until = now + Duration::from_millis(CONTENTION_MS);
        self.update(now, |all| match all.iter_mut().find(|one| one.client == client) {
            // From the first time on if it is seldom, from the last if it is often.
            Some(one) if one.times + 1 < CONTENTIONS_MAX => one.times += 1,
            Some(one) => (one.times, one.until) = (CONTENTIONS_MAX, until),
            None => all.push(Contender { client, times: 1, until }),
        });
    }

    fn update<R>(&self, now: Instant, act: impl FnOnce(&mut Vec<Contender>) -> R) -> R {
        let mut all = self.contenders.lock();
        all.retain(|one| one.until > now);
        let outcome = act(&mut all);
        self.any.store(all.iter().any(Contender::is_often), Ordering::Relaxed);
        outcome
    }
}

impl Contender {
    fn is_often(&self) -> bool {
        self.times >= CONTENTIONS_MAX
    }
}
