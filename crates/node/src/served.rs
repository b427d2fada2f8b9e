//! The clients that this process serves: mounts, which the node asks about what only their process knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bivouac_ranks::RwLock;
use bivouac_types::{ClientId, Ino};
use bivouac_wire::{
    Dirty, FenceRequest, Invalidation, LockWait, PoolStatus, RecallTokensRequest, RecalledTokens,
};

/// Callbacks to the locks of a client.
pub trait LockClient: Send + Sync {
    /// Notifies it that requests with these tickets were granted.
    fn granted(&self, tickets: &[u64]);
    /// Returns what these owners wait for.
    fn waits(&self, owners: &[u64]) -> Vec<LockWait>;
    /// Asks the client to check whether the wait is part of a deadlock.
    fn look_again(&self, ticket: u64);
    /// Waits, for a moment at most, until files that its programs have closed are closed for it as well.
    fn settle(&self);
    /// Notifies it that other nodes took this one for dead: its locks may be lost.
    fn doubt(&self);
}

/// The cache of a client and its kernel.
pub trait Cache: Send + Sync {
    /// Invalidates these entries, and refuses to cache them from replies to earlier requests, for
    /// [`LEASE_MS`](bivouac_types::limits::LEASE_MS). Returns for how long some may still be shown; zero if none is.
    /// Never waits.
    fn invalidate(&self, what: &[Invalidation]) -> Duration;

    /// Notifies it that a file that it has open was made longer through another mount, to at least `size` bytes.
    /// Returns when its kernel knows, or after a moment.
    fn has_grown(&self, _ino: Ino, _size: u64) {}
}

/// The page pool of a client, and what that has gathered otherwise.
pub trait PagePool: Send + Sync {
    /// Returns the pool's state.
    fn status(&self) -> PoolStatus;
    /// Returns what was written behind in front of site storage and has not been sent. Unless the token is 0, it is
    /// sent, and writing behind pauses there for a while.
    fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty>;
    /// Asks the client to report the use of files that are open; homes on other nodes get it soon.
    fn tell_uses(&self);
    /// Reports the accesses that the client has gathered, where races are detected.
    fn report_accesses(&self);
}

/// The range tokens of a client.
pub trait TokenHolder: Send + Sync {
    /// Gives tokens back, as far as no call uses them. Waits for nobody.
    fn recall(&self, request: &RecallTokensRequest) -> RecalledTokens;
}

/// Interfaces of a client that this process serves, as far as they exist already.
#[derive(Clone, Default)]
pub struct ServedClient {
    /// Its advisory locks.
    pub locks: Option<Arc<dyn LockClient>>,
    /// Its cache.
    pub cache: Option<Arc<dyn Cache>>,
    /// Its page pool.
    pub pages: Option<Arc<dyn PagePool>>,
    /// Its range tokens.
    pub tokens: Option<Arc<dyn TokenHolder>>,
}

/// Clients that this process serves.
#[derive(Default)]
pub struct ServedClients(RwLock<HashMap<ClientId, ServedClient>>);

impl ServedClients {
    /// Changes what a client can be asked about. One that can be asked about nothing is not served.
    pub fn change(&self, client: ClientId, act: impl FnOnce(&mut ServedClient)) {
        let mut all = self.0.write();
        let served = all.entry(client).or_default();
        act(served);
        let ServedClient { locks, cache, pages, tokens } = served;
        if locks.is_none() && cache.is_none() && pages.is_none() && tokens.is_none() {
            all.remove(&client);
        }
    }

    /// Returns the client, if it is served here. Nothing is locked while it is asked.
    pub fn get(&self, client: ClientId) -> ServedClient {
        self.0.read().get(&client).cloned().unwrap_or_default()
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<ServedClient> {
        self.0.read().values().cloned().collect()
    }

    /// Returns their page pools.
    pub fn page_pools(&self) -> Vec<Arc<dyn PagePool>> {
        self.all().into_iter().filter_map(|served| served.pages).collect()
    }
}
