//! Clients that had to be waited for: one that is so several times gets no leases at this node for a while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::Mutex;
use bivouac_types::ClientId;
use bivouac_types::limits::{CONTENTION_MS, CONTENTIONS_MAX};

/// How often each had to be waited for, and until when that counts.
type Contenders = HashMap<ClientId, (u32, Instant)>;

/// Those of a node.
#[derive(Default)]
pub struct Contention {
    pub(super) contenders: Mutex<Contenders>,
    /// Whether any gets no leases; for a look without the lock.
    any: AtomicBool,
}

impl Contention {
    /// Whether a client gets no leases now.
    pub fn bars(&self, client: ClientId, now: Instant) -> bool {
        let is_barred =
            |all: &mut Contenders| all.get(&client).is_some_and(|(times, _)| *times >= CONTENTIONS_MAX);
        self.any.load(Ordering::Relaxed) && self.update(now, is_barred)
    }

    /// This client had to be waited for.
    pub fn note(&self, client: ClientId, now: Instant) {
        let until = now + Duration::from_millis(CONTENTION_MS);
        self.update(now, |all| {
            let (times, end) = all.entry(client).or_insert((0, until));
            *times = CONTENTIONS_MAX.min(*times + 1);
            // From the first time on if it is seldom, from the last if it is often.
            *end = if *times < CONTENTIONS_MAX { *end } else { until };
        });
    }

    fn update<R>(&self, now: Instant, act: impl FnOnce(&mut Contenders) -> R) -> R {
        let mut all = self.contenders.lock();
        all.retain(|_, (_, until)| *until > now);
        let outcome = act(&mut all);
        self.any.store(all.values().any(|(times, _)| *times >= CONTENTIONS_MAX), Ordering::Relaxed);
        outcome
    }
}
