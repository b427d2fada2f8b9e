//! Range tokens at their home: who has which bytes of a strict file. [`Manager`] is the machine; here are its lock, and
//! who waits. What it says is done in `handlers/tokens.rs`.
//!
//! Tokens are in memory only. After a restart nobody is granted any until all clients that may have some have reclaimed
//! them, or are lost; and before anybody gets what a lost client may still use, the file gets a new epoch.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex, MutexGuard, rank};
use bivouac_tokens::{Manager, RESUME, Recall, RequestOutcome, TokenRequest};
use bivouac_types::{ClientId, Ino};

/// Requests that may wait here at a time.
const PARKED_MAX: usize = 32;
/// Age after which an unrepeated request has been given up. Above the time that one recall of all holders takes.
const UNASKED_MAX: Duration = Duration::from_secs(10);

/// Grants that are in the way, of which all are remembered.
const OVERDUE_MIN: usize = 1024;

/// The tokens of files whose home is here.
pub struct Tokens {
    /// Tells this daemon's grants from those of earlier ones.
    life: u64,
    state: Mutex<TokenState>,
    /// Tokens were given back, or a request is not waited for any more.
    changed: Condvar,
    /// Requests that wait here, with a thread each.
    parked: AtomicUsize,
    /// True if an earlier daemon may have granted tokens that nobody will name.
    inherits: bool,
    /// Time from which tokens are granted also where clients have not reclaimed theirs.
    opens_at: OnceLock<Instant>,
}

/// State that the lock protects.
#[derive(Default)]
pub struct TokenState {
    /// The machine.
    pub manager: Manager,
    /// Recalls that clients have not obeyed, by the grant that is in the way: a grant that they get later is not
    /// overdue because of that.
    overdue: HashMap<(Ino, ClientId, u64), Overdue>,
    /// Number of these from which on those are forgotten that nobody needs any more.
    overdue_max: usize,
    /// Raised whenever tokens become free: who waits looks again.
    version: u64,
}

/// Since when a client has kept what somebody needs, and when that was last asked for.
struct Overdue {
    since: Instant,
    asked: Instant,
}

impl Tokens {
    /// Creates the tokens of a daemon with this life number. With `inherits`, an earlier daemon may have granted some
    /// that no client reclaims.
    pub fn new(life: u64, inherits: bool) -> Tokens {
        let mut state = TokenState::default();
        if inherits {
            state.manager.lose_unknown();
        }
        let (state, parked) = (Mutex::new(rank::TOKENS, state), AtomicUsize::new(0));
        Tokens { life, state, changed: Condvar::new(), parked, inherits, opens_at: OnceLock::new() }
    }

    /// Returns whether other clients are granted tokens than those that go on with tokens of an earlier daemon. To be
    /// asked once all clients have reclaimed theirs: from then on it takes a moment.
    pub fn is_open(&self) -> bool {
        let now = Instant::now();
        !self.inherits || *self.opens_at.get_or_init(|| now + RESUME) <= now
    }

    /// Waits for so long, if a thread may.
    pub fn park(&self, time: Duration) -> bool {
        self.wait_parked(|| bivouac_net::pause(time))
    }

    fn wait_parked(&self, wait: impl FnOnce()) -> bool {
        // Counted before it is compared: of many that come at once no more than these may wait.
        let may_park = self.parked.fetch_add(1, Ordering::AcqRel) < PARKED_MAX;
        if may_park {
            wait();
        }
        self.parked.fetch_sub(1, Ordering::AcqRel);
        may_park
    }

    /// Returns the number of this daemon's life.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Locks the state, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock()
    }

    /// Takes in the request of a client, for the first time or again. Returns what to do, and the version for
    /// [`Tokens::wait`].
    pub fn ask(
        &self,
        ino: Ino,
        client: ClientId,
        call: u64,
        wanted: (&TokenRequest, bool),
    ) -> (RequestOutcome, u64) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let step = state.manager.ask(ino, client, call, wanted, now);
        // Nobody waits for tokens of the file any more, so that nobody is late with them.
        if matches!(step, RequestOutcome::Granted(_)) && !state.manager.has_waiters(ino) {
            state.overdue.retain(|(other, ..), _| *other != ino);
        }
        match &step {
            RequestOutcome::Recall(recalls) => {
                for Recall { client, oldest, .. } in recalls {
                    state.recalled((ino, *client, *oldest), now);
                }
            }
            // Who comes next has to look whose turn it is.
            RequestOutcome::Granted(_) | RequestOutcome::Queued { is_new: true } => {
                state.version += 1;
                self.changed.notify_all();
            }
            _ => {}
        }
        (step, state.version)
    }

    /// Frees tokens, or places of the queue, and has those look that wait.
    pub fn free<R>(&self, act: impl FnOnce(&mut TokenState) -> R) -> R {
        let mut state = self.state.lock();
        state.version += 1;
        let outcome = act(&mut state);
        drop(state);
        self.changed.notify_all();
        outcome
    }

    /// Takes note of what a client has given back of a file, in part; who waits looks again if it had that.
    pub fn free_some(&self, act: impl FnOnce(&mut TokenState) -> bool) {
        let mut state = self.state.lock();
        if act(&mut state) {
            state.version += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until tokens have become free since this version, or until a moment. Whether a thread may wait that long:
    /// there must be some for those who give tokens back.
    pub fn wait(&self, version: u64, until: Instant) -> bool {
        self.wait_parked(|| {
            let mut state = self.state.lock();
            // By the version: what became free between the question and this wait was notified to nobody.
            while state.version == version && !self.changed.wait_until(&mut state, until).timed_out() {}
        })
    }
}

impl TokenState {
    /// Returns for how long a client has not returned what was recalled; zero if it is not overdue.
    pub fn keeps(&self, ino: Ino, recall: &Recall, now: Instant) -> Duration {
        let overdue = self.overdue.get(&(ino, recall.client, recall.oldest));
        overdue.map_or(Duration::ZERO, |overdue| now.saturating_duration_since(overdue.since))
    }

    /// Notes that a client is asked for what is in the way: for the first time, if nobody has needed it for a while.
    fn recalled(&mut self, grant: (Ino, ClientId, u64), now: Instant) {
        // Of requests that were given up, which nobody ends.
        if self.overdue.len() >= self.overdue_max.max(OVERDUE_MIN) {
            let is_needed = |overdue: &Overdue| now.saturating_duration_since(overdue.asked) <= UNASKED_MAX;
            self.overdue.retain(|_, overdue| is_needed(overdue));
            // So that the table is gone through once in as many recalls as it has entries.
            self.overdue_max = 2 * self.overdue.len();
        }
        let overdue = self.overdue.entry(grant).or_insert(Overdue { since: now, asked: now });
        if now.saturating_duration_since(overdue.asked) > UNASKED_MAX {
            overdue.since = now;
        }
        overdue.asked = now;
    }

    /// Notes that a client has given back what somebody needs of grants up to this one, or has lost it.
    pub fn yields(&mut self, ino: Ino, client: ClientId, upto: u64) {
        self.overdue.retain(|(of, holder, serial), _| (*of, *holder) != (ino, client) || *serial > upto);
    }

    /// Forgets a client that has nothing any more.
    pub fn forget(&mut self, client: ClientId) {
        self.overdue.retain(|(_, holder, _), _| *holder != client);
    }
}

#[cfg(test)]
mod tests {
    use bivouac_types::{ByteRange, TokenMode};

    use super::*;

    #[test]
    fn what_nobody_has_needed_for_a_while_is_not_overdue() {
        let (ino, client, serial, begin) = (Ino(9), ClientId(3), 7, Instant::now());
        let wanted = TokenRequest { mode: TokenMode::Read, required: ByteRange::ALL, desired: vec![] };
        let recall = Recall { client, oldest: serial, upto: serial, wanted, waiting: vec![] };
        let mut state = TokenState::default();
        let second = Duration::from_secs(1);
        state.recalled((ino, client, serial), begin);
        state.recalled((ino, client, serial), begin + 2 * second);
        assert_eq!(state.keeps(ino, &recall, begin + 3 * second), 3 * second);
        // Who asked has given up; somebody else asks an hour later.
        let later = begin + 3600 * second;
        state.recalled((ino, client, serial), later);
        assert_eq!(state.keeps(ino, &recall, later + second), second);
        state.yields(ino, client, serial);
        assert_eq!(state.keeps(ino, &recall, later + second), Duration::ZERO);
        // Requests that were given up are not remembered for ever.
        for number in 0..10 * OVERDUE_MIN as u64 {
            state.recalled((ino, client, number), later + u32::try_from(number).unwrap() * second / 10);
        }
        assert!(state.overdue.len() <= OVERDUE_MIN, "{}", state.overdue.len());
    }
}
