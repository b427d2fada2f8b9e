//! The home's side: which client has tokens for which bytes of a file, which requests wait, and what has to be recalled
//! for them.
//!
//! Requests of one file are granted in the order of their arrival as far as they conflict, so none starves; one that
//! conflicts with no earlier request and no token is granted at once. There is no deadlock: a call gets everything that
//! it needs by one request, and waits for nothing while it uses it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bivouac_types::{ByteRange, ClientId, Ino, TokenMode};

use crate::ranges::{both, cover, overlap, without};
use crate::{Grant, RANGES_MAX, RESUME, TokenRequest};

/// Time without a message after which a waiting request loses its place.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Time after which a recall is sent once more to a client that has confirmed it.
const RECALL_AGAIN: Duration = Duration::from_millis(500);

/// Files that are remembered at most of which nobody has or wants anything, for what was lost or fenced.
const REMEMBERED_MAX: usize = 4096;

/// A token.
#[derive(Clone, Copy, Debug)]
struct HeldToken {
    client: ClientId,
    mode: TokenMode,
    range: ByteRange,
    serial: u64,
    /// The request that it was granted for, or 0.
    request: u64,
    /// For a token of an earlier process of the client, until when it is kept.
    inherited: Option<Instant>,
}

/// A request that waits.
#[derive(Clone, Debug)]
struct Waiting {
    client: ClientId,
    id: u64,
    wanted: TokenRequest,
    heard: Instant,
}

/// A recall that was sent: its client has not answered yet, or will return the bytes by itself.
#[derive(Clone, Copy, Debug)]
struct Recalled {
    client: ClientId,
    mode: TokenMode,
    range: ByteRange,
    upto: u64,
    until: Instant,
}

/// Next step for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was granted.
    Granted(Grant),
    /// A client lost tokens of the file and may not know: the file has to get a new epoch first, so that targets refuse
    /// what that client still sends. Call [`Manager::fenced`] then.
    Fence(Fence),
    /// These clients have to return what it needs. Each answer goes to [`Manager::yielded`].
    Recall(Vec<Recall>),
    /// A client had what it needs and has restarted: its new process finishes its calls first.
    Inherited {
        /// At the latest until then.
        until: Instant,
    },
    /// Earlier requests have to be granted first, or what it needs has been recalled already. For a new request,
    /// recalls are to be sent again: a client may have answered one in the belief that this request was granted.
    Queued {
        /// True if it was not queued before.
        is_new: bool,
    },
}

/// Counts of losses at the beginning of a fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// The last loss of tokens of this file.
    of_file: u64,
    /// Losses of tokens by clients of which it was unknown what they had.
    unknown: u64,
}

impl Fence {
    /// Returns whether all losses before another fence were fenced by this one.
    fn covers(self, other: Fence) -> bool {
        self.of_file >= other.of_file && self.unknown >= other.unknown
    }
}

/// Recall of tokens of a file from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The client.
    pub client: ClientId,
    /// Serial of the last grant that it concerns.
    pub upto: u64,
    /// Serial of the oldest grant in the way.
    pub oldest: u64,
    /// The mode, the bytes that are needed, and others that are desired.
    pub wanted: TokenRequest,
    /// Requests of that client that are not granted yet.
    pub waiting: Vec<u64>,
}

#[derive(Debug, Default)]
struct FileTokens {
    held: Vec<HeldToken>,
    waiting: Vec<Waiting>,
    recalled: Vec<Recalled>,
    /// Number of the last loss of tokens of this file.
    lost: u64,
    /// What it was fenced for.
    fenced: Fence,
}

/// A client with the mode and range of its token or request.
pub type Listed = (ClientId, TokenMode, ByteRange);

/// The tokens of all files of a home.
#[derive(Debug)]
pub struct Manager {
    files: HashMap<Ino, FileTokens>,
    /// Number of files from which on those are forgotten of which nobody has or wants anything.
    sweep_at: usize,
    /// Serial of the last grant.
    serial: u64,
    /// Number of losses of tokens of any file, so that a file that was forgotten does not begin anew.
    losses: u64,
    /// Number of clients lost of which it was unknown what they had.
    unknown: u64,
}

impl Default for Manager {
    fn default() -> Manager {
        let (files, serial, losses, unknown) = Default::default();
        Manager { files, sweep_at: REMEMBERED_MAX, serial, losses, unknown }
    }
}

impl Manager {
    /// Handles a request, new or repeated. `id` is the same for repetitions, and higher for later requests. A request
    /// that renews continues a call that the client, or an earlier process of it, has done in part: no other comes
    /// first as long as the client still has the tokens.
    pub fn ask(
        &mut self,
        ino: Ino,
        client: ClientId,
        id: u64,
        (wanted, renews): (&TokenRequest, bool),
        now: Instant,
    ) -> RequestOutcome {
        self.forget_idle();
        let file = self.files.entry(ino).or_default();
        let before = file.waiting.len();
        let at = file.queue(client, id, wanted, now);
        // Also for a request that waits for a fence: others that arrive meanwhile are granted after it.
        let is_new = at == before;
        if renews && file.has(client, wanted) {
            // A fence may take longer than inherited tokens are kept. A client that lacks something waits for others,
            // which must not wait for it.
            file.prolong_inheritance(client, now);
        }
        file.end_inheritance(now);
        let fence = Fence { of_file: file.lost, unknown: self.unknown };
        if !file.fenced.covers(fence) {
            return RequestOutcome::Fence(fence);
        }
        if renews && file.has(client, wanted) {
            file.waiting.remove(at);
            self.serial += 1;
            let ranges = vec![wanted.required];
            file.give(client, wanted.mode, &ranges, (self.serial, id));
            return RequestOutcome::Granted(Grant { serial: self.serial, ranges });
        }
        let earlier = file.waiting.iter().take(at);
        if earlier.clone().any(|other| other.client != client && conflict(&other.wanted, wanted)) {
            return RequestOutcome::Queued { is_new };
        }
        if let Some(until) = file.inherited_until(wanted) {
            return RequestOutcome::Inherited { until };
        }
        let recalls = file.recalls(client, wanted, self.serial);
        if !recalls.is_empty() {
            let due = file.not_yet_recalled(recalls, wanted, now);
            return if due.is_empty() {
                RequestOutcome::Queued { is_new }
            } else {
                RequestOutcome::Recall(due)
            };
        }
        file.waiting.remove(at);
        self.serial += 1;
        let ranges = file.grantable(client, wanted);
        assert!(cover(&ranges, &wanted.required), "a grant has what is required");
        file.give(client, wanted.mode, &ranges, (self.serial, id));
        RequestOutcome::Granted(Grant { serial: self.serial, ranges })
    }

    /// Returns true if a request waits.
    #[must_use]
    pub fn is_waiting(&self, ino: Ino, client: ClientId, id: u64) -> bool {
        let has = |file: &FileTokens| file.waiting.iter().any(|one| (one.client, one.id) == (client, id));
        self.files.get(&ino).is_some_and(has)
    }

    /// Returns the tokens of a file, by client and offset, and what waiting requests need, in order.
    #[must_use]
    pub fn list(&self, ino: Ino) -> (Vec<Listed>, Vec<Listed>) {
        let Some(file) = self.files.get(&ino) else { return Default::default() };
        let mut held: Vec<Listed> =
            file.held.iter().map(|token| (token.client, token.mode, token.range)).collect();
        held.sort_by_key(|(client, _, range)| (*client, range.start));
        let waiting = file.waiting.iter().map(|one| (one.client, one.wanted.mode, one.wanted.required));
        (held, waiting.collect())
    }

    /// Removes a request. Returns to the file what it was granted of these bytes, by a reply that was lost.
    pub fn cancel(&mut self, ino: Ino, client: ClientId, id: u64, ranges: &[ByteRange]) {
        self.change(ino, |file| {
            file.waiting.retain(|one| (one.client, one.id) != (client, id));
            file.remove(client, u64::MAX, ranges, |token| token.request == id && token.inherited.is_none());
        });
    }

    /// Handles the return of bytes by a client that had them by grants up to this one; for readers it may keep the
    /// right to read. Returns true if it had any.
    pub fn yielded(
        &mut self,
        ino: Ino,
        client: ClientId,
        upto: u64,
        mode: TokenMode,
        ranges: &[ByteRange],
    ) -> bool {
        let mut had = false;
        self.change(ino, |file| had = file.take(client, mode, ranges, upto));
        had
    }

    /// Handles an answer to a recall other than the promise to return the bytes, or no answer: the recall is sent again
    /// for the next request that needs it.
    pub fn recall_ended(&mut self, ino: Ino, client: ClientId) {
        self.change(ino, |file| file.forget_recalls(client));
    }

    /// Records that a file has got a new epoch for this fence.
    pub fn fenced(&mut self, ino: Ino, fence: Fence) {
        let (losses, unknown) = (self.losses, self.unknown);
        assert!(
            fence.of_file <= losses && fence.unknown <= unknown,
            "inode {ino} is fenced for {fence:?}, and there were {losses} losses of files and {unknown} others"
        );
        self.files.entry(ino).or_default();
        self.change(ino, |file| {
            // Fences of two requests may end in the other order.
            file.fenced.of_file = file.fenced.of_file.max(fence.of_file);
            file.fenced.unknown = file.fenced.unknown.max(fence.unknown);
        });
    }

    /// Returns true if a fence is complete.
    #[must_use]
    pub fn is_fenced(&self, ino: Ino, fence: Fence) -> bool {
        self.files.get(&ino).map(|file| file.fenced).unwrap_or_default().covers(fence)
    }

    /// Returns true if any request for tokens of a file waits.
    #[must_use]
    pub fn has_waiters(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| !file.waiting.is_empty())
    }

    /// Handles a call of a client on these bytes that failed while messages of it may still arrive: the client loses
    /// the bytes, and the file needs a fence.
    pub fn spoil(&mut self, ino: Ino, client: ClientId, ranges: &[ByteRange]) {
        self.forget_idle();
        let file = self.files.entry(ino).or_default();
        file.take(client, TokenMode::Write, ranges, u64::MAX);
        // Also if it had none of them any more: the message was sent while it had.
        self.losses += 1;
        file.lost = self.losses;
    }

    /// Takes all tokens of a file from a client that does not answer.
    pub fn revoke(&mut self, ino: Ino, client: ClientId) {
        let loss = self.losses + 1;
        let mut has_lost = false;
        self.change(ino, |file| has_lost = file.lose(client, loss));
        self.losses += u64::from(has_lost);
    }

    /// Drops the tokens of a client that ends, with no message under way.
    pub fn leave(&mut self, client: ClientId) {
        let unknown = self.unknown;
        self.files.retain(|_, file| {
            file.held.retain(|token| token.client != client);
            file.waiting.retain(|one| one.client != client);
            !file.is_forgotten(unknown)
        });
    }

    /// Handles the restart of a client: messages of its earlier process may still arrive, and the new process repeats
    /// the calls that were under way.
    pub fn restart(&mut self, client: ClientId, now: Instant) {
        let (loss, unknown) = (self.losses + 1, self.unknown);
        self.files.retain(|_, file| {
            file.forget_recalls(client);
            file.waiting.retain(|one| one.client != client);
            for token in file.held.iter_mut().filter(|token| token.client == client) {
                token.inherited = Some(now + RESUME);
                file.lost = loss;
            }
            !file.is_forgotten(unknown)
        });
        self.losses = loss;
    }

    /// Handles the loss of a client: its messages may still arrive.
    pub fn lose(&mut self, client: ClientId) {
        let (loss, unknown) = (self.losses + 1, self.unknown);
        self.files.retain(|_, file| {
            file.waiting.retain(|one| one.client != client);
            file.lose(client, loss);
            !file.is_forgotten(unknown)
        });
        self.losses = loss;
    }

    /// Records that tokens were lost of which nobody knows: those of an earlier daemon, or of a lost client that did
    /// not reclaim.
    pub fn lose_unknown(&mut self) {
        self.unknown += 1;
    }

    /// Handles the reclaim of a client whose connections broke: tokens of this daemon by grants up to `seen`, or of an
    /// earlier daemon. Returns those that it indeed has, with their new serial.
    pub fn reclaim(
        &mut self,
        client: ClientId,
        seen: Option<u64>,
        tokens: &[(Ino, TokenMode, ByteRange)],
    ) -> (u64, Vec<(Ino, TokenMode, ByteRange)>) {
        let mut has = Vec::new();
        for (ino, mode, range) in tokens {
            let known = self.files.get(ino).map(|file| file.reclaimable(client, *mode, *range, seen));
            let ranges = known.unwrap_or_else(|| if seen.is_some() { Vec::new() } else { vec![*range] });
            has.extend(ranges.into_iter().map(|range| (*ino, *mode, range)));
        }
        // Tokens that it does not name it does not have, except those granted meanwhile.
        for file in self.files.values_mut() {
            file.forget_recalls(client);
            file.held.retain(|token| {
                // Granted after the client said what it has: the reply may still arrive, and bring it.
                let is_new = seen.is_some_and(|seen| token.serial > seen);
                token.client != client || is_new || token.inherited.is_some()
            });
        }
        self.serial += 1;
        for (ino, mode, range) in &has {
            self.files.entry(*ino).or_default().give(client, *mode, &[*range], (self.serial, 0));
        }
        let unknown = self.unknown;
        self.files.retain(|_, file| !file.is_forgotten(unknown));
        (self.serial, has)
    }

    /// Returns the number of tokens, of clients, and of requests that wait, of a file.
    #[cfg(test)]
    fn counts(&self, ino: Ino) -> (usize, usize, usize) {
        let Some(file) = self.files.get(&ino) else { return (0, 0, 0) };
        let mut clients: Vec<ClientId> = file.held.iter().map(|token| token.client).collect();
        clients.sort_unstable();
        clients.dedup();
        (file.held.len(), clients.len(), file.waiting.len())
    }

    fn change(&mut self, ino: Ino, act: impl FnOnce(&mut FileTokens)) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        act(file);
        if file.is_forgotten(self.unknown) {
            self.files.remove(&ino);
        }
    }

    /// Forgets files of which nobody has or wants anything, where they are many. A loss of theirs that was not fenced
    /// becomes one of any file: each is fenced when it is asked for again.
    fn forget_idle(&mut self) {
        if self.files.len() < self.sweep_at {
            return;
        }
        let is_idle = |file: &FileTokens| file.held.is_empty() && file.waiting.is_empty();
        let is_unfenced = |file: &FileTokens| is_idle(file) && file.lost > file.fenced.of_file;
        self.unknown += u64::from(self.files.values().any(is_unfenced));
        self.files.retain(|_, file| !is_idle(file));
        // Where most are in use the next look is not at once.
        self.sweep_at = REMEMBERED_MAX.max(2 * self.files.len());
    }

    /// Panics if two clients may write, or one write and one read, the same byte.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for file in self.files.values() {
            for (index, one) in file.held.iter().enumerate() {
                for other in &file.held[index + 1..] {
                    let is_shared = one.client != other.client && one.range.overlaps(&other.range);
                    assert!(!is_shared || !one.mode.conflicts(other.mode), "{one:?} and {other:?}");
                }
            }
        }
    }
}

impl FileTokens {
    /// Returns whether there is nothing to remember, where tokens of any file were lost so often.
    fn is_forgotten(&self, unknown: u64) -> bool {
        // With losses of any file each new entry would be fenced again.
        self.held.is_empty() && self.waiting.is_empty() && self.lost <= self.fenced.of_file && unknown == 0
    }

    /// Returns true if a client has tokens for what it wants.
    fn has(&self, client: ClientId, wanted: &TokenRequest) -> bool {
        let own = self.held.iter().filter(|token| token.client == client && token.mode.allows(wanted.mode));
        cover(&own.map(|token| token.range).collect::<Vec<_>>(), &wanted.required)
    }

    /// Drops tokens of earlier processes whose successors have not used them in time.
    fn end_inheritance(&mut self, now: Instant) {
        self.held.retain(|token| token.inherited.is_none_or(|until| now < until));
    }

    fn prolong_inheritance(&mut self, client: ClientId, now: Instant) {
        for token in self.held.iter_mut().filter(|token| token.client == client) {
            token.inherited = token.inherited.map(|until| until.max(now + RESUME));
        }
    }

    /// Returns until when wanted bytes are kept for calls of a client's earlier process. New calls of that client wait
    /// as well.
    fn inherited_until(&self, wanted: &TokenRequest) -> Option<Instant> {
        self.in_the_way(wanted).filter_map(|token| token.inherited).max()
    }

    /// Returns the tokens that conflict with the required bytes.
    fn in_the_way(&self, wanted: &TokenRequest) -> impl Iterator<Item = &HeldToken> {
        let (mode, required) = (wanted.mode, wanted.required);
        self.held.iter().filter(move |token| token.mode.conflicts(mode) && token.range.overlaps(&required))
    }

    /// Returns the position of a request among those that wait; a new one is appended.
    fn queue(&mut self, client: ClientId, id: u64, wanted: &TokenRequest, now: Instant) -> usize {
        self.waiting.retain(|one| {
            (one.client, one.id) == (client, id) || now.saturating_duration_since(one.heard) < SILENCE_MAX
        });
        if let Some(at) = self.waiting.iter().position(|one| (one.client, one.id) == (client, id)) {
            self.waiting[at].heard = now;
            return at;
        }
        // The client may withhold what was recalled, in the belief that it is the answer to this request.
        self.forget_recalls(client);
        self.waiting.push(Waiting { client, id, wanted: wanted.clone(), heard: now });
        self.waiting.len() - 1
    }

    /// Forgets all recalls sent to a client.
    fn forget_recalls(&mut self, client: ClientId) {
        self.recalled.retain(|recall| recall.client != client);
    }

    /// Returns the recalls that were not sent to their clients yet, and records them as sent.
    fn not_yet_recalled(&mut self, recalls: Vec<Recall>, wanted: &TokenRequest, now: Instant) -> Vec<Recall> {
        // The message by which a client returns bytes may have been lost.
        self.recalled.retain(|recall| now < recall.until);
        let is_due = |recall: &Recall| {
            let needed = self.in_the_way(wanted).filter(|token| token.client == recall.client);
            let is_recalled = |token: &HeldToken| {
                let same = self.recalled.iter().filter(|one| {
                    one.client == token.client && one.mode.allows(wanted.mode) && token.serial <= one.upto
                });
                let ranges: Vec<ByteRange> = same.map(|one| one.range).collect();
                cover(&ranges, &token.range.and(&wanted.required))
            };
            !needed.into_iter().all(is_recalled)
        };
        let due: Vec<Recall> = recalls.into_iter().filter(is_due).collect();
        self.recalled.extend(due.iter().map(|recall| Recalled {
            client: recall.client,
            mode: recall.wanted.mode,
            range: recall.wanted.required,
            upto: recall.upto,
            until: now + RECALL_AGAIN,
        }));
        due
    }

    /// Returns what is recalled for a request. It includes what other waiting readers need, so that all of them can go
    /// on at once.
    fn with_other_readers(&self, client: ClientId, wanted: &TokenRequest) -> TokenRequest {
        let mut wanted = wanted.clone();
        if wanted.mode == TokenMode::Write {
            return wanted;
        }
        let mut others = Vec::new();
        for (at, one) in self.waiting.iter().enumerate() {
            let mut earlier = self.waiting.iter().take(at).filter(|earlier| earlier.client != one.client);
            let is_next = !earlier.any(|earlier| conflict(&earlier.wanted, &one.wanted));
            if one.client != client && one.wanted.mode == TokenMode::Read && is_next {
                others.push(one.wanted.required);
            }
        }
        // In order, so that one round merges a whole row of ranges that touch.
        others.sort_by_key(|range| (range.start, range.end));
        others.dedup();
        // Ranges that touch it are merged into it. The second round finds those in front of it.
        for _ in 0..2 {
            others.retain(|range| {
                let touches = range.start <= wanted.required.end && wanted.required.start <= range.end;
                if touches {
                    wanted.required = wanted.required.hull(range);
                }
                !touches
            });
        }
        let room = RANGES_MAX.saturating_sub(wanted.desired.len());
        wanted.desired.extend(others.into_iter().take(room));
        wanted
    }

    /// Returns the clients that have what is required, each with its recall.
    fn recalls(&self, client: ClientId, wanted: &TokenRequest, upto: u64) -> Vec<Recall> {
        let in_the_way = self.in_the_way(wanted).filter(|token| token.client != client);
        let mut holders: BTreeMap<ClientId, u64> = BTreeMap::new();
        for HeldToken { client, serial, .. } in in_the_way {
            let oldest = holders.entry(*client).or_insert(*serial);
            *oldest = *serial.min(oldest);
            assert!(
                *serial <= upto,
                "client {} has a token of serial {serial}, the last is {upto}",
                client.0
            );
        }
        // No replies to these are under way, so the holder need not wait for them.
        let waiting = |holder| self.waiting.iter().filter(move |one| one.client == holder).map(|one| one.id);
        let recalled = self.with_other_readers(client, wanted);
        holders
            .into_iter()
            .map(|(holder, oldest)| Recall {
                client: holder,
                upto,
                oldest,
                wanted: recalled.clone(),
                waiting: waiting(holder).collect(),
            })
            .collect()
    }

    /// Returns the bytes that a request gets, once nobody else has the required ones: as much of the desired ones as is
    /// free, and everything if no other client has or wants any.
    fn grantable(&self, client: ClientId, wanted: &TokenRequest) -> Vec<ByteRange> {
        let is_taken = |token: &&HeldToken| {
            (token.client != client || token.inherited.is_some()) && token.mode.conflicts(wanted.mode)
        };
        let taken: Vec<ByteRange> = self.held.iter().filter(is_taken).map(|token| token.range).collect();
        let others =
            self.waiting.iter().filter(|one| one.client != client && one.wanted.mode.conflicts(wanted.mode));
        let missed: Vec<ByteRange> = others.map(|one| one.wanted.required).collect();
        if taken.is_empty() && missed.is_empty() {
            return vec![ByteRange::ALL];
        }
        let mut ranges = vec![wanted.required];
        for desired in wanted.desired.iter().take(RANGES_MAX) {
            // Only the part that begins where the range does: what is behind another client's bytes is not needed next.
            let free = without(&without(&[*desired], &taken), &missed);
            let first = free.into_iter().filter(|range| range.start == desired.start);
            for range in first {
                ranges.extend(without(&[range], &ranges));
            }
        }
        ranges.truncate(RANGES_MAX + 1);
        ranges
    }

    /// Gives these bytes to the client.
    fn give(
        &mut self,
        client: ClientId,
        mode: TokenMode,
        ranges: &[ByteRange],
        (serial, request): (u64, u64),
    ) {
        // Bytes that it may write already, it may read too.
        let is_more = |token: &&HeldToken| {
            token.client == client && !mode.allows(token.mode) && token.inherited.is_none()
        };
        let more: Vec<ByteRange> = self.held.iter().filter(is_more).map(|token| token.range).collect();
        let new = without(ranges, &more);
        self.remove(client, u64::MAX, &new, |token| mode.allows(token.mode) || token.inherited.is_some());
        for mut range in new {
            // Merged with its neighbours: the client may have lost parts that are counted here, which a recall finds
            // out.
            let neighbours = |token: &HeldToken| {
                (token.client, token.mode, token.inherited) == (client, mode, None)
                    && (token.range.end == range.start || token.range.start == range.end)
            };
            let (near, others) = self.held.iter().partition::<Vec<HeldToken>, _>(|token| neighbours(token));
            self.held = others;
            for token in near {
                range = range.hull(&token.range);
            }
            self.held.push(HeldToken { client, mode, range, serial, request, inherited: None });
        }
        // Two clients with a token for the same byte would each use their own copy.
        let is_shared = |token: &HeldToken| token.client != client && token.mode.conflicts(mode);
        assert!(
            !self.held.iter().any(|token| is_shared(token) && overlap(ranges, &token.range)),
            "client {} is granted bytes by serial {serial} that another client has",
            client.0
        );
    }

    /// Takes bytes from a client, or its right to write them. Returns true if it had any.
    fn take(&mut self, client: ClientId, mode: TokenMode, ranges: &[ByteRange], upto: u64) -> bool {
        // Tokens of its earlier process are kept for the present one, which does not know them.
        let is_taken = |token: &HeldToken| token.mode.conflicts(mode) && token.inherited.is_none();
        let had = self.remove(client, upto, ranges, is_taken);
        let had_any = !had.is_empty();
        if mode == TokenMode::Read {
            self.held.extend(had.into_iter().map(|token| HeldToken { mode: TokenMode::Read, ..token }));
        }
        had_any
    }

    /// Removes bytes from those of a client's tokens that `is_meant` accepts; returns what was removed.
    fn remove(
        &mut self,
        client: ClientId,
        upto: u64,
        ranges: &[ByteRange],
        is_meant: impl Fn(&HeldToken) -> bool,
    ) -> Vec<HeldToken> {
        let mut removed = Vec::new();
        for token in std::mem::take(&mut self.held) {
            if token.client != client || token.serial > upto || !is_meant(&token) {
                self.held.push(token);
                continue;
            }
            removed
                .extend(both(&[token.range], ranges).into_iter().map(|range| HeldToken { range, ..token }));
            self.held.extend(
                without(&[token.range], ranges).into_iter().map(|range| HeldToken { range, ..token }),
            );
        }
        removed
    }

    /// Takes all tokens from a client, which may go on using them without knowing.
    /// Returns whether it had anything: that is the loss of this number.
    fn lose(&mut self, client: ClientId, loss: u64) -> bool {
        let before = self.held.len();
        self.held.retain(|token| token.client != client);
        let has_lost = self.held.len() < before;
        if has_lost {
            self.lost = loss;
        }
        has_lost
    }

    /// Returns which part of a token a client indeed has that it reclaims.
    fn reclaimable(
        &self,
        client: ClientId,
        mode: TokenMode,
        range: ByteRange,
        seen: Option<u64>,
    ) -> Vec<ByteRange> {
        let of = |is_meant: &dyn Fn(&HeldToken) -> bool| -> Vec<ByteRange> {
            self.held.iter().filter(|token| is_meant(token)).map(|token| token.range).collect()
        };
        match seen {
            Some(_) => both(&[range], &of(&|token| token.client == client && token.mode.allows(mode))),
            None => without(&[range], &of(&|token| token.client != client && token.mode.conflicts(mode))),
        }
    }
}

/// Returns true if two requests cannot both be granted.
fn conflict(one: &TokenRequest, other: &TokenRequest) -> bool {
    one.mode.conflicts(other.mode) && overlap(&[one.required], &other.required)
}

#[cfg(test)]
mod tests;
