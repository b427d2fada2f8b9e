//! The home's side: which client has which bytes of a file, who waits for some, and what has to be recalled for them.
//!
//! Requests of one file are granted in the order in which they came, as far as they conflict, so nobody starves; one that
//! conflicts with no earlier one and no token is granted at once. Nobody waits in a circle: a call has all that it needs by
//! one request, and waits for nothing while it is in use.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bivouac_types::{ByteRange, ClientId, Ino, TokenMode};

use crate::ranges::{both, cover, overlap, without};
use crate::{Grant, RANGES_MAX, RESUME, TokenRequest};

/// Time for which a request that waits keeps its place without being heard of.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Time after which a client is asked once more for what it has said that it gives back.
const RECALL_AGAIN: Duration = Duration::from_millis(500);

/// A token.
#[derive(Clone, Copy, Debug)]
struct HeldToken {
    client: ClientId,
    mode: TokenMode,
    range: ByteRange,
    serial: u64,
    /// The request by which it was granted, or 0.
    request: u64,
    /// Of an earlier process of the client; until when it is kept.
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

/// A recall that was decided: its client has not answered yet, or gives back what is required by itself.
#[derive(Clone, Copy, Debug)]
struct Recalled {
    client: ClientId,
    mode: TokenMode,
    range: ByteRange,
    upto: u64,
    until: Instant,
}

/// Next step about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It has what it needs.
    Granted(Grant),
    /// A client lost tokens of the file and may not know it: the file gets a new epoch first, so that targets refuse what
    /// that client still sends. Then [`Manager::fenced`].
    Fence(Fence),
    /// These clients have to give back what it needs. Each answer goes to [`Manager::yielded`].
    Recall(Vec<Recall>),
    /// Another process of a client that had what it needs has begun, and goes on with its calls first.
    Inherited {
        /// Not longer than until then.
        until: Instant,
    },
    /// Others that came earlier have to be granted first, or what it needs has been recalled already. Whether it is new: who
    /// has been asked to give something back then took it for granted, perhaps, and is to be asked again.
    Queued {
        /// True if it was not queued before.
        is_new: bool,
    },
}

/// Losses before a fence was begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// Losses of tokens of this file.
    of_file: u64,
    /// Losses of tokens that nobody knows.
    unknown: u64,
}

/// Tokens of a file that a client is asked to give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The client that has them.
    pub client: ClientId,
    /// The last grant that it concerns.
    pub upto: u64,
    /// The first of those that are in the way.
    pub oldest: u64,
    /// The use, the required bytes, and others that are welcome.
    pub wanted: TokenRequest,
    /// Requests of that client that are not granted yet.
    pub waiting: Vec<u64>,
}

#[derive(Debug, Default)]
struct FileTokens {
    held: Vec<HeldToken>,
    waiting: Vec<Waiting>,
    recalled: Vec<Recalled>,
    lost: u64,
    fenced: Fence,
}

/// A client, and its use of bytes.
pub type Listed = (ClientId, TokenMode, ByteRange);

/// The tokens of all files of a home.
#[derive(Debug, Default)]
pub struct Manager {
    files: HashMap<Ino, FileTokens>,
    /// Serial of the last grant.
    serial: u64,
    /// Number of times that a client was lost of which it was not known what it had.
    unknown: u64,
}

impl Manager {
    /// A client asks, for the first time or again. `id` is the same then, and higher for its later requests. One that renews
    /// goes on with a call that it, or an earlier process of it, has done in part: nobody else comes first, as long as it
    /// has the tokens.
    pub fn ask(
        &mut self,
        ino: Ino,
        client: ClientId,
        id: u64,
        (wanted, renews): (&TokenRequest, bool),
        now: Instant,
    ) -> RequestOutcome {
        let file = self.files.entry(ino).or_default();
        let before = file.waiting.len();
        let at = file.queue(client, id, wanted, now);
        // Also where it has to wait for a fence: whoever comes meanwhile is granted behind it.
        let is_new = at == before;
        if renews && file.has(client, wanted) {
            // A fence may take longer than what is inherited is kept. One that has not got what it needs waits for others,
            // who must not wait for this.
            file.prolong_inheritance(client, now);
        }
        file.end_inheritance(now);
        let fence = Fence { of_file: file.lost, unknown: self.unknown };
        if file.fenced != fence {
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

    /// Returns whether a request has a place among those that wait.
    #[must_use]
    pub fn is_waiting(&self, ino: Ino, client: ClientId, id: u64) -> bool {
        let has = |file: &FileTokens| file.waiting.iter().any(|one| (one.client, one.id) == (client, id));
        self.files.get(&ino).is_some_and(has)
    }

    /// The tokens of a file, by client and offset, and what requests that wait require, in their order.
    #[must_use]
    pub fn list(&self, ino: Ino) -> (Vec<Listed>, Vec<Listed>) {
        let Some(file) = self.files.get(&ino) else { return Default::default() };
        let mut held: Vec<Listed> =
            file.held.iter().map(|token| (token.client, token.mode, token.range)).collect();
        held.sort_by_key(|(client, _, range)| (*client, range.start));
        let waiting = file.waiting.iter().map(|one| (one.client, one.wanted.mode, one.wanted.required));
        (held, waiting.collect())
    }

    /// A request is not waited for any more. What it was granted of these bytes, by an answer that was lost, is given back.
    pub fn cancel(&mut self, ino: Ino, client: ClientId, id: u64, ranges: &[ByteRange]) {
        self.change(ino, |file| {
            file.waiting.retain(|one| (one.client, one.id) != (client, id));
            file.remove(client, u64::MAX, ranges, |token| token.request == id && token.inherited.is_none());
        });
    }

    /// A client has given back bytes that it had by grants up to this one; for readers it may keep the right to read them.
    /// Whether it had any.
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

    /// A client has answered a recall otherwise than that it gives back by itself, or not at all: it is asked again by whoever
    /// looks next.
    pub fn recall_ended(&mut self, ino: Ino, client: ClientId) {
        self.change(ino, |file| file.forget_recalls(client));
    }

    /// A file has got a new epoch since this was to be done.
    pub fn fenced(&mut self, ino: Ino, fence: Fence) {
        let unknown = self.unknown;
        let FileTokens { lost, fenced, .. } = self.files.entry(ino).or_default();
        assert!(
            fence.of_file <= *lost && fence.unknown <= unknown,
            "inode {ino} is fenced for {fence:?}, and has had {lost} losses of its own and {unknown} others"
        );
        fenced.of_file = fenced.of_file.max(fence.of_file);
        fenced.unknown = fenced.unknown.max(fence.unknown);
    }

    /// Returns whether a fence has been done.
    #[must_use]
    pub fn is_fenced(&self, ino: Ino, fence: Fence) -> bool {
        let fenced = self.files.get(&ino).map(|file| file.fenced).unwrap_or_default();
        fenced.of_file >= fence.of_file && fenced.unknown >= fence.unknown
    }

    /// Returns whether anybody waits for tokens of a file.
    #[must_use]
    pub fn has_waiters(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| !file.waiting.is_empty())
    }

    /// A client has failed in a call on these bytes, and messages of it may still arrive: it has them no more, and the file is
    /// to be fenced.
    pub fn spoil(&mut self, ino: Ino, client: ClientId, ranges: &[ByteRange]) {
        let file = self.files.entry(ino).or_default();
        file.take(client, TokenMode::Write, ranges, u64::MAX);
        // Also where it had none of them any more: the message that may still arrive was sent while it had.
        file.lost += 1;
    }

    /// A client does not answer: it loses its tokens of a file.
    pub fn revoke(&mut self, ino: Ino, client: ClientId) {
        self.change(ino, |file| file.lose(client));
    }

    /// A client has said that it ends, and nothing that it sent is under way.
    pub fn leave(&mut self, client: ClientId) {
        self.files.retain(|_, file| {
            file.held.retain(|token| token.client != client);
            file.waiting.retain(|one| one.client != client);
            !file.is_idle()
        });
    }

    /// A client is another process now: what the earlier one sent may still arrive, and what it was doing is done once more.
    pub fn restart(&mut self, client: ClientId, now: Instant) {
        for file in self.files.values_mut() {
            file.forget_recalls(client);
            file.waiting.retain(|one| one.client != client);
            let own = || file.held.iter().filter(|token| token.client == client);
            file.lost += u64::from(own().next().is_some());
            let own = file.held.iter_mut().filter(|token| token.client == client);
            own.for_each(|token| token.inherited = Some(now + RESUME));
        }
        self.files.retain(|_, file| !file.is_idle());
    }

    /// A client is lost: what it sent may still arrive.
    pub fn lose(&mut self, client: ClientId) {
        for file in self.files.values_mut() {
            file.waiting.retain(|one| one.client != client);
            file.lose(client);
        }
        self.files.retain(|_, file| !file.is_idle());
    }

    /// Nobody knows what an earlier daemon had granted to whom, or a client is lost that has not said it.
    pub fn lose_unknown(&mut self) {
        self.unknown += 1;
    }

    /// A client says what it has, after its connections broke: of this daemon by grants up to `seen`, or of an earlier one.
    /// What it has indeed, and the serial of that.
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
        // What it does not name it has not, but for what was granted meanwhile.
        for file in self.files.values_mut() {
            file.forget_recalls(client);
            file.held.retain(|token| {
                let is_new = seen.is_some_and(|seen| token.serial > seen);
                token.client != client || is_new || token.inherited.is_some()
            });
        }
        self.serial += 1;
        for (ino, mode, range) in &has {
            self.files.entry(*ino).or_default().give(client, *mode, &[*range], (self.serial, 0));
        }
        self.files.retain(|_, file| !file.is_idle());
        (self.serial, has)
    }

    /// Number of tokens, of clients, and of requests that wait, of a file.
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
        if file.is_idle() {
            self.files.remove(&ino);
        }
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
    /// Returns whether there is nothing to remember.
    fn is_idle(&self) -> bool {
        // What has been fenced once is remembered: with every new entry it would be fenced again.
        self.held.is_empty() && self.waiting.is_empty() && self.lost == 0 && self.fenced == Fence::default()
    }

    /// Returns whether a client has tokens for what it wants.
    fn has(&self, client: ClientId, wanted: &TokenRequest) -> bool {
        let own = self.held.iter().filter(|token| token.client == client && token.mode.allows(wanted.mode));
        cover(&own.map(|token| token.range).collect::<Vec<_>>(), &wanted.required)
    }

    /// Ends tokens of an earlier process with which the present one has not gone on in time.
    fn end_inheritance(&mut self, now: Instant) {
        self.held.retain(|token| token.inherited.is_none_or(|until| now < until));
    }

    fn prolong_inheritance(&mut self, client: ClientId, now: Instant) {
        for token in self.held.iter_mut().filter(|token| token.client == client) {
            token.inherited = token.inherited.map(|until| until.max(now + RESUME));
        }
    }

    /// Returns until when bytes that somebody needs are kept for calls of a client's earlier process. A new call of that
    /// client waits as well.
    fn inherited_until(&self, wanted: &TokenRequest) -> Option<Instant> {
        self.in_the_way(wanted).filter_map(|token| token.inherited).max()
    }

    /// The tokens beside which nobody can have the required bytes.
    fn in_the_way(&self, wanted: &TokenRequest) -> impl Iterator<Item = &HeldToken> {
        let (mode, required) = (wanted.mode, wanted.required);
        self.held.iter().filter(move |token| token.mode.conflicts(mode) && token.range.overlaps(&required))
    }

    /// The place of a request among those that wait, at whose end it stands if it is new.
    fn queue(&mut self, client: ClientId, id: u64, wanted: &TokenRequest, now: Instant) -> usize {
        self.waiting.retain(|one| {
            (one.client, one.id) == (client, id) || now.saturating_duration_since(one.heard) < SILENCE_MAX
        });
        if let Some(at) = self.waiting.iter().position(|one| (one.client, one.id) == (client, id)) {
            self.waiting[at].heard = now;
            return at;
        }
        // What this client has been asked to give back it may keep for an answer to this request.
        self.forget_recalls(client);
        self.waiting.push(Waiting { client, id, wanted: wanted.clone(), heard: now });
        self.waiting.len() - 1
    }

    /// Forgets that a client was asked to give something back.
    fn forget_recalls(&mut self, client: ClientId) {
        self.recalled.retain(|recall| recall.client != client);
    }

    /// The recalls whose clients have not been asked for the same already, which are remembered.
    fn not_yet_recalled(&mut self, recalls: Vec<Recall>, wanted: &TokenRequest, now: Instant) -> Vec<Recall> {
        // What a client has said that it gives back may have been lost with its message.
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

    /// Returns what is recalled for a request, with what other waiting readers need, so that all of them go on at once.
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
        others.sort_by_key(|range| (range.start, range.end));
        others.dedup();
        // Those that touch become one with it. A second turn finds those before it.
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

    /// The clients that have what is required, and what each is asked for.
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

    /// Returns the bytes that a request gets whose required ones nobody else has: as much of the desired as is free; all, if
    /// nobody else has or wants anything.
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
            // Of a range, the part that begins where it does: what is behind somebody else's is not needed next.
            let free = without(&without(&[*desired], &taken), &missed);
            let first = free.into_iter().filter(|range| range.start == desired.start);
            for range in first {
                ranges.extend(without(&[range], &ranges));
            }
        }
        ranges.truncate(RANGES_MAX + 1);
        ranges
    }

    /// The client has these bytes from now on.
    fn give(
        &mut self,
        client: ClientId,
        mode: TokenMode,
        ranges: &[ByteRange],
        (serial, request): (u64, u64),
    ) {
        // What it may write it may read already.
        let is_more = |token: &&HeldToken| {
            token.client == client && !mode.allows(token.mode) && token.inherited.is_none()
        };
        let more: Vec<ByteRange> = self.held.iter().filter(is_more).map(|token| token.range).collect();
        let new = without(ranges, &more);
        self.remove(client, u64::MAX, &new, |token| mode.allows(token.mode) || token.inherited.is_some());
        for mut range in new {
            // One with its neighbours: that a client has less than is thought here is found out by a recall.
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
        // Each of two clients that have the same byte goes by its own copy.
        let is_shared = |token: &HeldToken| token.client != client && token.mode.conflicts(mode);
        assert!(
            !self.held.iter().any(|token| is_shared(token) && overlap(ranges, &token.range)),
            "client {} is granted bytes by serial {serial} that another client has",
            client.0
        );
    }

    /// The client has these bytes no more, or may only read them. Returns whether it had any.
    fn take(&mut self, client: ClientId, mode: TokenMode, ranges: &[ByteRange], upto: u64) -> bool {
        // What an earlier process of it had is kept for the present one, which does not know of it.
        let is_taken = |token: &HeldToken| token.mode.conflicts(mode) && token.inherited.is_none();
        let had = self.remove(client, upto, ranges, is_taken);
        let had_any = !had.is_empty();
        if mode == TokenMode::Read {
            self.held.extend(had.into_iter().map(|token| HeldToken { mode: TokenMode::Read, ..token }));
        }
        had_any
    }

    /// Takes bytes from those of a client's tokens that are meant; what they were.
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

    /// The client loses what it has, and may go on using it for want of knowing.
    fn lose(&mut self, client: ClientId) {
        let before = self.held.len();
        self.held.retain(|token| token.client != client);
        self.lost += u64::from(self.held.len() < before);
    }

    /// Returns what a client has indeed of a token that it says it has.
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

/// Returns whether two requests cannot both have what they require.
fn conflict(one: &TokenRequest, other: &TokenRequest) -> bool {
    one.mode.conflicts(other.mode) && overlap(&[one.required], &other.required)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenMode::{Read, Write};

    const FILE: Ino = Ino(5);
    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);

    fn wanted(mode: TokenMode, start: u64, len: u64) -> TokenRequest {
        let required = ByteRange::at(start, len);
        TokenRequest { mode, required, desired: vec![required] }
    }

    fn granted(step: RequestOutcome) -> Grant {
        match step {
            RequestOutcome::Granted(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn who_is_alone_gets_the_whole_file() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let grant = granted(manager.ask(FILE, A, 1, (&wanted(Write, 10, 5), false), now));
        assert_eq!(grant.ranges, [ByteRange::ALL]);
        // Read by somebody else: what was written remains readable.
        let RequestOutcome::Recall(recalls) = manager.ask(FILE, B, 1, (&wanted(Read, 0, 4), false), now)
        else {
            panic!()
        };
        assert_eq!((recalls.len(), recalls[0].client, recalls[0].upto), (1, A, grant.serial));
        manager.yielded(FILE, A, recalls[0].upto, Read, &[ByteRange::at(0, 4)]);
        assert_eq!(
            granted(manager.ask(FILE, B, 1, (&wanted(Read, 0, 4), false), now)).ranges,
            [ByteRange::at(0, 4)]
        );
        manager.check();
        assert_eq!(manager.counts(FILE), (3, 2, 0));
        assert!(matches!(
            manager.ask(FILE, C, 4, (&wanted(Write, 2, 4), false), now),
            RequestOutcome::Recall(_)
        ));
        let (held, waiting) = manager.list(FILE);
        let expected =
            [(A, Read, ByteRange::at(0, 4)), (A, Write, ByteRange::from(4)), (B, Read, ByteRange::at(0, 4))];
        assert_eq!((held, waiting), (expected.to_vec(), vec![(C, Write, ByteRange::at(2, 4))]));
        assert!(manager.is_waiting(FILE, C, 4));
        manager.cancel(FILE, C, 4, &[]);
        assert!(!manager.is_waiting(FILE, C, 4));
    }

    #[test]
    fn what_is_granted_later_is_not_taken_by_an_answer_that_comes_late() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let first = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 4), false), now));
        manager.yielded(FILE, A, first.serial, Write, &[ByteRange::ALL]);
        assert_eq!(manager.counts(FILE), (0, 0, 0));
        granted(manager.ask(FILE, A, 2, (&wanted(Write, 0, 4), false), now));
        manager.yielded(FILE, A, first.serial, Write, &[ByteRange::ALL]);
        assert_eq!(manager.counts(FILE).0, 1);
    }

    #[test]
    fn requests_that_conflict_are_granted_in_order() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now)).serial;
        assert!(matches!(
            manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now),
            RequestOutcome::Recall(_)
        ));
        assert_eq!(
            manager.ask(FILE, C, 1, (&wanted(Write, 4, 8), false), now),
            RequestOutcome::Queued { is_new: true }
        );
        // Its own holder stands in the queue, too.
        assert_eq!(
            manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), now),
            RequestOutcome::Queued { is_new: true }
        );
        assert_eq!(
            manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), now),
            RequestOutcome::Queued { is_new: false }
        );
        let RequestOutcome::Recall(recalls) = manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now)
        else {
            panic!()
        };
        assert_eq!(recalls[0].waiting, [2], "that is not on its way");
        manager.yielded(FILE, A, serial, Write, &[ByteRange::ALL]);
        assert_eq!(
            granted(manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now)).ranges,
            [ByteRange::at(0, 8)]
        );
        // Who has not been heard of for long is not waited for.
        let later = now + SILENCE_MAX;
        manager.yielded(FILE, B, u64::MAX, Write, &[ByteRange::ALL]);
        assert_eq!(
            granted(manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), later)).ranges,
            [ByteRange::ALL]
        );
    }

    #[test]
    fn one_recall_serves_all_readers_that_wait() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 100), false), now)).serial;
        let [ours, beside, far] = [wanted(Read, 10, 10), wanted(Read, 15, 10), wanted(Read, 50, 5)];
        let d = ClientId(4);
        let recalled = |step| match step {
            RequestOutcome::Recall(recalls) => recalls,
            other => panic!("no recall: {other:?}"),
        };
        // Who comes while a recall is under way, for the same bytes, asks nobody.
        let first = recalled(manager.ask(FILE, B, 1, (&ours, false), now));
        assert_eq!(first[0].wanted.required, ours.required);
        assert_eq!(manager.ask(FILE, B, 1, (&ours, false), now), RequestOutcome::Queued { is_new: false });
        assert_eq!(manager.ask(FILE, C, 1, (&ours, false), now), RequestOutcome::Queued { is_new: true });
        // The next one asks for all that wait.
        let second = recalled(manager.ask(FILE, d, 1, (&far, false), now));
        assert_eq!(second[0].wanted.desired, [far.required, ours.required]);
        // Without an answer that promises anything, whoever comes next asks again.
        manager.recall_ended(FILE, A);
        let third = recalled(manager.ask(FILE, ClientId(5), 1, (&beside, false), now));
        assert_eq!(third[0].wanted.required, ByteRange { start: 10, end: 25 });
        assert!(third[0].wanted.desired.contains(&far.required));
        manager.yielded(FILE, A, serial, Read, &[ByteRange { start: 10, end: 25 }, far.required]);
        for (client, wanted) in [(B, &ours), (C, &ours), (d, &far), (ClientId(5), &beside)] {
            granted(manager.ask(FILE, client, 1, (wanted, false), now));
        }
        manager.check();
        // Behind a writer that waits, readers wait as well.
        let recalls = recalled(manager.ask(FILE, ClientId(6), 1, (&wanted(Write, 10, 1), false), now));
        assert_eq!(recalls.iter().map(|recall| recall.client).collect::<Vec<_>>(), [A, B, C]);
        assert_eq!(
            manager.ask(FILE, ClientId(7), 1, (&ours, false), now),
            RequestOutcome::Queued { is_new: true }
        );
        // A request of a client that is to give something back may have been granted, as far as it knows.
        assert_eq!(
            manager.ask(FILE, B, 2, (&wanted(Write, 10, 1), false), now),
            RequestOutcome::Queued { is_new: true }
        );
        let again = recalled(manager.ask(FILE, ClientId(6), 1, (&wanted(Write, 10, 1), false), now));
        assert_eq!((again.len(), again[0].client, &again[0].waiting), (1, B, &vec![2]));
        let later = now + RECALL_AGAIN;
        assert_eq!(
            recalled(manager.ask(FILE, ClientId(6), 1, (&wanted(Write, 10, 1), false), later)).len(),
            3
        );
    }

    #[test]
    fn what_a_call_that_gave_up_was_granted_is_given_back_and_nothing_else() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now)).serial;
        manager.yielded(FILE, A, serial, Write, &[ByteRange::from(8)]);
        granted(manager.ask(FILE, B, 2, (&wanted(Write, 20, 8), false), now));
        manager.cancel(FILE, B, 2, &[ByteRange::at(20, 8)]);
        granted(manager.ask(FILE, C, 3, (&wanted(Write, 20, 8), false), now));
        // Another call of the same client has the bytes by now.
        manager.cancel(FILE, C, 2, &[ByteRange::at(20, 8)]);
        assert!(matches!(
            manager.ask(FILE, B, 4, (&wanted(Read, 20, 8), false), now),
            RequestOutcome::Recall(_)
        ));
    }

    #[test]
    fn what_an_earlier_process_had_is_not_given_back_by_the_next_one() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now)).serial;
        assert!(matches!(
            manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now),
            RequestOutcome::Recall(_)
        ));
        manager.restart(A, now);
        // The recall has met the new process, which has nothing.
        manager.yielded(FILE, A, serial, Write, &[ByteRange::at(0, 8)]);
        let RequestOutcome::Fence(fence) = manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now) else {
            panic!()
        };
        manager.fenced(FILE, fence);
        let step = manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now);
        assert_eq!(step, RequestOutcome::Inherited { until: now + RESUME });
        granted(manager.ask(FILE, A, 7, (&wanted(Write, 0, 8), true), now));
    }

    #[test]
    fn desired_bytes_are_granted_as_far_as_they_are_free() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 1000, 8), false), now)).serial;
        manager.yielded(FILE, A, serial, Write, &[ByteRange { start: 0, end: 1000 }, ByteRange::from(1008)]);
        let ahead = TokenRequest { desired: vec![ByteRange::from(10)], ..wanted(Write, 10, 5) };
        let grant = granted(manager.ask(FILE, B, 1, (&ahead, false), now));
        assert_eq!(crate::ranges::without(&[ByteRange { start: 10, end: 1000 }], &grant.ranges), []);
        assert!(!overlap(&grant.ranges, &ByteRange::from(1000)), "{grant:?}");
        let comb = vec![ByteRange::at(2000, 4), ByteRange::at(1004, 4), ByteRange::at(3000, 4)];
        let grant = granted(manager.ask(
            FILE,
            C,
            1,
            (&TokenRequest { desired: comb, ..wanted(Write, 2000, 4) }, false),
            now,
        ));
        assert_eq!(grant.ranges, [ByteRange::at(2000, 4), ByteRange::at(3000, 4)]);
        manager.check();
    }

    #[test]
    fn a_lost_client_is_fenced_before_anybody_gets_what_it_had() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
        manager.lose(A);
        let RequestOutcome::Fence(fence) = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now) else {
            panic!()
        };
        manager.lose(A);
        manager.fenced(FILE, fence);
        granted(manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now));
        manager.revoke(FILE, B);
        assert!(matches!(
            manager.ask(FILE, C, 1, (&wanted(Read, 0, 8), false), now),
            RequestOutcome::Fence(_)
        ));
        // Another process of it goes on first with what the earlier one was doing.
        let mut manager = Manager::default();
        granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
        manager.restart(A, now);
        let RequestOutcome::Fence(fence) = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now) else {
            panic!()
        };
        manager.fenced(FILE, fence);
        let step = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now);
        assert_eq!(step, RequestOutcome::Inherited { until: now + RESUME });
        assert_eq!(
            granted(manager.ask(FILE, A, 1, (&wanted(Write, 2, 4), true), now)).ranges,
            [ByteRange::at(2, 4)]
        );
        manager.check();
        let late = now + RESUME;
        let step = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), late);
        assert!(matches!(step, RequestOutcome::Recall(_)), "nothing is kept for long: {step:?}");
        // What it goes on with and has not got does not keep others waiting for what it has.
        let mut manager = Manager::default();
        granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
        manager.yielded(FILE, A, u64::MAX, Write, &[ByteRange::from(8)]);
        granted(manager.ask(FILE, B, 1, (&wanted(Write, 8, 8), false), now));
        manager.restart(A, now);
        let is_granted = (0..30).any(|tenth| {
            let now = now + tenth * Duration::from_millis(100);
            let step = manager.ask(FILE, C, 1, (&wanted(Write, 0, 8), false), now);
            if let RequestOutcome::Fence(fence) = step {
                manager.fenced(FILE, fence);
            }
            manager.ask(FILE, A, 7, (&wanted(Write, 0, 16), true), now);
            matches!(step, RequestOutcome::Granted(_))
        });
        assert!(is_granted, "it waits as long as the other asks");
        // One that left in order needs no fence.
        let mut manager = Manager::default();
        granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
        manager.leave(A);
        granted(manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now));
        // What an earlier daemon granted to somebody who is lost may be any file.
        manager.lose_unknown();
        assert!(matches!(
            manager.ask(Ino(6), C, 1, (&wanted(Read, 0, 8), false), now),
            RequestOutcome::Fence(_)
        ));
    }

    #[test]
    fn a_client_reclaims_what_nobody_got_meanwhile() {
        let (mut manager, now) = (Manager::default(), Instant::now());
        let all = |mode| (FILE, mode, ByteRange::ALL);
        // Of an earlier daemon: who comes first.
        let (first, has) = manager.reclaim(A, None, &[(FILE, Write, ByteRange::at(0, 8))]);
        assert_eq!(has, [(FILE, Write, ByteRange::at(0, 8))]);
        assert_eq!(manager.reclaim(B, None, &[all(Read)]).1, [(FILE, Read, ByteRange::from(8))]);
        manager.check();
        // Of this one: what it still has here, without what it does not name.
        let grant = granted(manager.ask(FILE, A, 1, (&wanted(Write, 2, 2), false), now));
        let (_, has) =
            manager.reclaim(A, Some(grant.serial), &[(FILE, Write, ByteRange { start: 4, end: 20 })]);
        assert_eq!(has, [(FILE, Write, ByteRange { start: 4, end: 8 })]);
        manager.check();
        // What was granted while it did so stays.
        let grant = granted(manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), now));
        assert!(grant.serial > first);
        assert_eq!(manager.reclaim(A, Some(grant.serial - 1), &[]).1, []);
        assert!(matches!(
            manager.ask(FILE, C, 1, (&wanted(Read, 0, 1), false), now),
            RequestOutcome::Recall(_)
        ));
        manager.lose(A);
        assert_eq!(manager.reclaim(A, Some(u64::MAX), &[all(Write)]).1, [], "it was lost");
    }
}
