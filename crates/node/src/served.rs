//! The clients that this process serves: mounts, which the node asks about what only their process knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bivouac_ranks::RwLock;
use bivouac_types::{ClientId, Ino};
use bivouac_wire::{
    Dirty, FenceRequest, Invalidation, LockWait, PoolStatus, RecallTokensRequest, RecalledTokens,
};

/// What hears of a client's locks.
pub trait LockClient: Send + Sync {
    /// Requests under these numbers have their locks.
    fn granted(&self, tickets: &[u64]);
    /// What the owners wait for.
    fn waits(&self, owners: &[u64]) -> Vec<LockWait>;
    /// Has the client look whether the wait is part of a circle.
    fn look_again(&self, ticket: u64);
    /// Waits, for a moment at most, until files that its programs have closed are closed for it as well.
    fn settle(&self);
    /// Other nodes took this one for dead: whether the client still has its locks is not known.
    fn doubt(&self);
}

/// What a client and its kernel cache of what they are told.
pub trait Cache: Send + Sync {
    /// Takes nothing of this from its cache any more, nor from answers to what was asked before, for
    /// [`LEASE_MS`](bivouac_types::limits::LEASE_MS) from now on. For how long some of it may go on to be shown; zero
    /// if it surely is not. Waits for nobody.
    fn invalidate(&self, what: &[Invalidation]) -> Duration;

    /// A file that the client has open was made longer through another mount, to at least `size` bytes. Returns when its kernel
    /// knows, or after a moment.
    fn has_grown(&self, _ino: Ino, _size: u64) {}
}

/// The page pool of a client, and what that has gathered otherwise.
pub trait PagePool: Send + Sync {
    /// How it is.
    fn status(&self) -> PoolStatus;
    /// What was written behind in front of site storage and has not been sent; unless the token is 0 it is sent, and
    /// nothing more is written behind there for a while.
    fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty>;
    /// Has the client tell how files are used that are open; homes that are other nodes hear of it soon.
    fn tell_uses(&self);
    /// Reports the accesses that the client has gathered, where races are detected.
    fn report_accesses(&self);
}

/// The range tokens of a client.
pub trait TokenHolder: Send + Sync {
    /// Gives tokens back, as far as no call uses them. Waits for nobody.
    fn recall(&self, request: &RecallTokensRequest) -> RecalledTokens;
}

/// What a client that this process serves can be asked about, as far as it is there already.
#[derive(Clone, Default)]
pub struct ServedClient {
    /// Its locks.
    pub locks: Option<Arc<dyn LockClient>>,
    /// What it caches.
    pub cache: Option<Arc<dyn Cache>>,
    /// Its pages.
    pub pages: Option<Arc<dyn PagePool>>,
    /// Its range tokens.
    pub tokens: Option<Arc<dyn TokenHolder>>,
}

/// Those that this process serves.
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

    /// The client, if it is served here. Nothing is locked while it is asked.
    pub fn get(&self, client: ClientId) -> ServedClient {
        self.0.read().get(&client).cloned().unwrap_or_default()
    }

    /// All of them.
    pub fn all(&self) -> Vec<ServedClient> {
        self.0.read().values().cloned().collect()
    }

    /// Their page pools.
    pub fn page_pools(&self) -> Vec<Arc<dyn PagePool>> {
        self.all().into_iter().filter_map(|served| served.pages).collect()
    }
}
