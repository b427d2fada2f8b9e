//! Clients that had to be waited for: one that is so several times gets no leases at this node for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_types::ClientId;
use bivouac_types::limits::{CONTENTION_MS, CONTENTIONS_MAX};

/// Number of times that each client had to be waited for lately.
#[derive(Debug, Default)]
pub struct Contenders {
    /// The number, and the moment until which it counts.
    clients: HashMap<ClientId, (u32, Instant)>,
}

impl Contenders {
    /// Forgets what counts no more.
    fn expire(&mut self, now: Instant) {
        self.clients.retain(|_, (_, until)| *until > now);
    }

    /// Notes that a client had to be waited for.
    pub fn note(&mut self, client: ClientId, now: Instant) {
        self.expire(now);
        let until = now + Duration::from_millis(CONTENTION_MS);
        let (times, end) = self.clients.entry(client).or_insert((0, until));
        *times = CONTENTIONS_MAX.min(*times + 1);
        // From the first time on if it is seldom, from the last if it is often.
        *end = if *times < CONTENTIONS_MAX { *end } else { until };
    }

    /// Returns the clients that get no leases now.
    pub fn barred(&mut self, now: Instant) -> impl Iterator<Item = ClientId> {
        self.expire(now);
        self.clients.iter().filter(|(_, (times, _))| *times >= CONTENTIONS_MAX).map(|(client, _)| *client)
    }

    /// Returns how often each had to be waited for.
    pub fn times(&self) -> impl Iterator<Item = (ClientId, u32)> {
        self.clients.iter().map(|(client, (times, _))| (*client, *times))
    }
}
