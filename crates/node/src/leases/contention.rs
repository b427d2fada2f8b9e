//! Clients that get no leases at this node for a while: the machine is [`Contenders`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bivouac_ranks::Mutex;
use bivouac_session::Contenders;
use bivouac_types::ClientId;

/// Clients that changes had to wait for.
#[derive(Default)]
pub struct Contention {
    pub(super) contenders: Mutex<Contenders>,
    /// True if any client may be barred; read without the lock.
    any: AtomicBool,
}

impl Contention {
    /// Returns true if a client gets no leases now.
    pub fn bars(&self, client: ClientId, now: Instant) -> bool {
        self.any.load(Ordering::Relaxed) && self.update(now, |_| ()).contains(&client)
    }

    /// Notes that a client had to be waited for.
    pub fn note(&self, client: ClientId, now: Instant) {
        self.update(now, |contenders| contenders.note(client, now));
    }

    /// Changes them; returns those that get no leases.
    fn update(&self, now: Instant, act: impl FnOnce(&mut Contenders)) -> Vec<ClientId> {
        let mut contenders = self.contenders.lock();
        act(&mut contenders);
        let barred: Vec<ClientId> = contenders.barred(now).collect();
        self.any.store(!barred.is_empty(), Ordering::Relaxed);
        barred
    }
}
