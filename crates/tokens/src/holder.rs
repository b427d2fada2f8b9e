//! A client's side: which tokens it has, which of its calls use them, and what it returns when they are recalled.
//!
//! Calls of one client that conflict are ordered by their arrival, so that a call is atomic among programs of one mount
//! as among clients. A call begins when tokens cover it. Recalled tokens cover nothing that begins later, and are
//! returned as soon as no call uses them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bivouac_types::{ByteRange, Ino, TokenMode};

use crate::ranges::{both, overlap, without};
use crate::streams::Streams;
use crate::{Grant, RANGES_MAX, TokenRequest, Yielded};

/// Number of a call; later calls have higher numbers. A call's request for tokens has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Next step of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Covered by tokens: it may go on, until [`KeptTokens::end`].
    Go,
    /// Send this request to its home; then call [`KeptTokens::granted`], or [`KeptTokens::end`] if that fails.
    Ask(TokenRequest),
    /// Wait for the end of another call of this client.
    Wait,
}

/// Return of tokens, to be sent to their home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The file.
    pub ino: Ino,
    /// Serial of the last grant that it concerns.
    pub upto: u64,
    /// For readers: the right to read stays.
    pub mode: TokenMode,
    /// The bytes.
    pub ranges: Vec<ByteRange>,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    mode: TokenMode,
    range: ByteRange,
    serial: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waits,
    Asks,
    Runs,
}

#[derive(Clone, Debug)]
struct Call {
    mode: TokenMode,
    range: ByteRange,
    progress: Progress,
    /// Serial of the last grant that had arrived when it asked: its own grant is later.
    asked_behind: u64,
    /// True if it has gone on before.
    has_run: bool,
    /// True if an earlier process of this client has begun it.
    resumes: bool,
}

/// A recall that cannot be obeyed yet.
#[derive(Clone, Debug)]
struct Recalled {
    upto: u64,
    mode: TokenMode,
    ranges: Vec<ByteRange>,
    /// Requests of this client whose replies may bring recalled bytes.
    asks: Vec<CallId>,
}

#[derive(Debug, Default)]
struct FileTokens {
    tokens: Vec<Token>,
    /// Epoch of the file that the tokens belong to.
    epoch: u32,
    /// Serial of the last grant that has arrived.
    serial: u64,
    /// Calls, in the order of their arrival.
    calls: BTreeMap<CallId, Call>,
    recalled: Vec<Recalled>,
    streams: Streams,
}

/// The tokens of a client.
#[derive(Debug, Default)]
pub struct KeptTokens {
    files: HashMap<Ino, FileTokens>,
    calls: u64,
    /// True for a client that cannot be sent recalls: each call asks, and returns its tokens at its end.
    keeps_nothing: bool,
    /// Bytes that tokens have ceased to cover since [`KeptTokens::take_uncovered`].
    uncovered: Uncovered,
}

/// Ranges of files that no token covers any more.
type Uncovered = Vec<(Ino, ByteRange)>;

impl KeptTokens {
    /// Creates the tokens of a client that keeps them between its calls, or does not. Calls have numbers above `calls`,
    /// which no other process of the client should have.
    #[must_use]
    pub fn new(keeps: bool, calls: u64) -> KeptTokens {
        KeptTokens { keeps_nothing: !keeps, calls, ..KeptTokens::default() }
    }

    /// Begins a call that reads or writes a range of a file, whose epoch was this when last reported. It may go on only
    /// when [`KeptTokens::poll`] says so. A call that resumes one of an earlier process goes before all that have not
    /// begun here.
    pub fn begin(
        &mut self,
        ino: Ino,
        epoch: u32,
        (mode, range): (TokenMode, ByteRange),
        resumes: bool,
    ) -> CallId {
        self.calls += 1;
        let id = CallId(self.calls);
        let file = self.files.entry(ino).or_default();
        file.adopt_epoch(ino, epoch, &mut self.uncovered);
        file.calls.insert(
            id,
            Call { mode, range, progress: Progress::Waits, asked_behind: 0, has_run: false, resumes },
        );
        id
    }

    /// Returns what a call has to do next.
    pub fn poll(&mut self, ino: Ino, id: CallId) -> Poll {
        let Some(file) = self.files.get_mut(&ino) else { return Poll::Go };
        let Some(call) = file.calls.get(&id).cloned() else { return Poll::Go };
        if call.progress == Progress::Runs {
            return Poll::Go;
        }
        let is_earlier = |(other_id, other): &(&CallId, &Call)| match other.resumes == call.resumes {
            true => **other_id < id,
            false => other.resumes || other.progress == Progress::Runs,
        };
        // Also those that only wait: later calls that conflict would overtake them again and again.
        let mut earlier = file.calls.iter().filter(is_earlier).map(|(_, other)| other);
        if earlier.any(|other| other.mode.conflicts(call.mode) && other.range.overlaps(&call.range)) {
            return Poll::Wait;
        }
        // A client that keeps nothing asks for each call: existing tokens belong to another call, and end with it.
        if !self.keeps_nothing
            && call.progress == Progress::Waits
            && file.missing(call.mode, &call.range).is_empty()
        {
            file.set(id, Progress::Runs);
            // Also without a request: what the next one wishes for depends on the calls before it.
            file.streams.follow(&call.range);
            return Poll::Go;
        }
        let desired = if self.keeps_nothing { vec![call.range] } else { file.streams.follow(&call.range) };
        file.set(id, Progress::Asks);
        Poll::Ask(TokenRequest { mode: call.mode, required: call.range, desired })
    }

    /// Handles the grant of a call's request, as of this epoch of the file: the call goes on. Returns what is to be
    /// returned now.
    pub fn granted(&mut self, ino: Ino, id: CallId, epoch: u32, grant: &Grant) -> Vec<GiveBack> {
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        let Some(Call { mode, range, progress, .. }) = file.calls.get(&id).cloned() else {
            return Vec::new();
        };
        file.adopt_epoch(ino, epoch, &mut self.uncovered);
        file.serial = file.serial.max(grant.serial);
        // A grant of an epoch before the file's covers this call, which targets will refuse, and nothing else.
        if file.epoch == epoch {
            file.add(mode, grant);
        }
        // A resuming call may have gone first meanwhile.
        let has_to_wait = progress != Progress::Runs && overlap(&file.in_use(mode), &range);
        file.set(id, if has_to_wait { Progress::Waits } else { Progress::Runs });
        file.answered(id);
        file.give_back(ino, &mut self.uncovered)
    }

    /// Discards a grant, because the home was told meanwhile which tokens this client has. The home may count it as
    /// held until everything idle is returned.
    pub fn discards(&mut self, ino: Ino, serial: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.serial = file.serial.max(serial);
        }
    }

    /// Returns the epoch of a file that its tokens belong to.
    #[must_use]
    pub fn epoch(&self, ino: Ino) -> u32 {
        self.files.get(&ino).map_or(0, |file| file.epoch)
    }

    /// Records that a call's request was not granted yet and will be repeated ([`KeptTokens::asks_again`]): no reply to
    /// it is under way. A running call has lost its tokens, and uses nothing while it waits. A client that keeps nothing
    /// returns what is idle, for which others may be waiting before this call.
    pub fn queued(&mut self, ino: Ino, id: CallId) -> Vec<GiveBack> {
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        match file.calls.get(&id).map(|call| call.progress) {
            Some(Progress::Runs) => {
                file.set(id, Progress::Asks);
                file.give_back(ino, &mut self.uncovered)
            }
            Some(Progress::Asks) if self.keeps_nothing => {
                file.set(id, Progress::Waits);
                let idle_asked = file.idle_asked(ino);
                self.give_back_idle(ino).into_iter().chain(idle_asked).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Records that the request of a call that was queued, or whose grant was discarded, is sent again.
    pub fn asks_again(&mut self, ino: Ino, id: CallId) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        if file.calls.get(&id).is_some_and(|call| call.progress != Progress::Runs) {
            file.set(id, Progress::Asks);
        }
    }

    /// Ends a call.
    pub fn end(&mut self, ino: Ino, id: CallId) -> Vec<GiveBack> {
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        file.calls.remove(&id);
        file.answered(id);
        let mut given = file.give_back(ino, &mut self.uncovered);
        if self.keeps_nothing {
            given.extend(self.give_back_idle(ino));
        }
        self.forget_if_idle(ino);
        given
    }

    /// Returns the bytes to be returned whatever grant they belong to, for a waiting call that is given up and, as far
    /// as is known, was granted nothing: a reply may have been lost. Empty for a client that keeps tokens, which is
    /// sent recalls for them; and for a call that has run before, whose messages may still be under way.
    pub fn give_up(&self, ino: Ino, id: CallId) -> Vec<ByteRange> {
        let Some(file) = self.files.get(&ino).filter(|_| self.keeps_nothing) else { return Vec::new() };
        let call = file.calls.get(&id).filter(|call| !call.has_run);
        let Some(given_up) = call.map(|call| call.range) else { return Vec::new() };
        let others =
            file.calls.iter().filter(|(other, call)| **other != id && call.progress != Progress::Waits);
        let used: Vec<ByteRange> = others.map(|(_, call)| call.range).collect();
        without(&[given_up], &used)
    }

    /// Handles a recall by a home, of grants up to serial `upto`; requests in `waiting` are not granted yet.
    pub fn recall(&mut self, ino: Ino, upto: u64, wanted: &TokenRequest, waiting: &[CallId]) -> Yielded {
        let Some(file) = self.files.get_mut(&ino) else { return Yielded::default() };
        let is_asking = |(_, call): &(&CallId, &Call)| call.progress == Progress::Asks;
        let asks = file.calls.iter().filter(is_asking).map(|(id, _)| *id);
        let asks: Vec<CallId> = asks.filter(|id| !waiting.contains(id)).collect();
        // Desired bytes are returned as far as they are idle, and not in front of a stream of this client.
        let mut idle = Vec::new();
        for desired in &wanted.desired {
            // A wish without an end would take what this client's next calls need, which then recall it in turn.
            let end = file.streams.next_behind(wanted.required.end).unwrap_or(u64::MAX);
            let end = if desired.end == u64::MAX { end } else { desired.end };
            idle.push(ByteRange { start: desired.start, end });
        }
        let in_use = file.in_use(wanted.mode);
        idle.extend(without(&[wanted.required], &idle));
        let given = without(&idle, &in_use);
        file.remove(ino, (upto, wanted.mode, &given), &mut self.uncovered);
        let recalled = [vec![wanted.required], without(&wanted.desired, &[wanted.required])].concat();
        // A reply under way counts as tokens that are here.
        let mut kept = if asks.is_empty() { file.has(upto, wanted.mode, &recalled) } else { recalled };
        if kept.len() > RANGES_MAX {
            // Everything between them counts as kept: less is returned then.
            kept = kept.into_iter().reduce(|one, other| one.hull(&other)).into_iter().collect();
        }
        let is_in_the_way = overlap(&kept, &wanted.required);
        if is_in_the_way {
            let (mode, ranges) = (wanted.mode, vec![wanted.required]);
            // A repeated recall replaces the earlier one.
            file.recalled.retain(|other| (other.mode, &other.ranges) != (mode, &ranges));
            file.recalled.push(Recalled { upto, mode, ranges, asks });
        }
        Yielded { kept, gives_back: is_in_the_way }
    }

    /// Returns tokens of the files that `is_concerned` accepts, for a reclaim at their home, with the epoch of each
    /// file; `at_most` so many, those in use first.
    pub fn tokens(
        &self,
        is_concerned: impl Fn(Ino) -> bool,
        at_most: usize,
    ) -> Vec<(Ino, u32, TokenMode, ByteRange)> {
        let mut all = Vec::new();
        for (ino, file) in self.files.iter().filter(|(ino, _)| is_concerned(**ino)) {
            let in_use = file.in_use(TokenMode::Write);
            for token in &file.tokens {
                all.push((!overlap(&in_use, &token.range), (*ino, file.epoch, token.mode, token.range)));
            }
        }
        all.sort_by_key(|(is_idle, _)| *is_idle);
        all.into_iter().map(|(_, token)| token).take(at_most).collect()
    }

    /// Sets the tokens of those files to these, by a grant with this serial. Calls that have lost their tokens will be
    /// refused by targets. A client that keeps nothing returns at once what was used by calls that have ended since it
    /// reclaimed.
    pub fn reclaimed(
        &mut self,
        is_concerned: impl Fn(Ino) -> bool,
        serial: u64,
        tokens: &[(Ino, TokenMode, ByteRange)],
    ) -> Vec<GiveBack> {
        for (ino, file) in self.files.iter_mut().filter(|(ino, _)| is_concerned(**ino)) {
            // The home forgets its recalls at a reclaim, too, and sends those again that it still needs.
            file.recalled.clear();
            file.clear(*ino, &mut self.uncovered);
            file.serial = serial;
            let own = tokens.iter().filter(|(of, _, _)| of == ino);
            file.tokens.extend(own.map(|(_, mode, range)| Token { mode: *mode, range: *range, serial }));
        }
        if !self.keeps_nothing {
            return Vec::new();
        }
        let files: BTreeSet<Ino> = tokens.iter().map(|(ino, _, _)| *ino).collect();
        let all = |ino| GiveBack { ino, upto: serial, mode: TokenMode::Write, ranges: vec![ByteRange::ALL] };
        let idle = |ino| match self.files.contains_key(&ino) {
            true => self.give_back_idle(ino),
            false => vec![all(ino)],
        };
        files.into_iter().flat_map(idle).collect()
    }

    /// Drops bytes after a failed call whose messages may still arrive, which the file's home knows.
    pub fn spoil(&mut self, ino: Ino, range: ByteRange) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.remove(ino, (u64::MAX, TokenMode::Write, &[range]), &mut self.uncovered);
        }
    }

    /// Returns all tokens of a file that no call uses. A client that keeps nothing returns all but what it is asking
    /// for at the moment, so that its threads do not keep each other's bytes; others return nothing while a reply may
    /// be under way.
    pub fn give_back_idle(&mut self, ino: Ino) -> Vec<GiveBack> {
        let Some(file) = self.files.get_mut(&ino) else { return Vec::new() };
        // A client that keeps nothing is never sent recalls: tokens voided here by a new epoch have to be returned too.
        if file.tokens.is_empty() && (!self.keeps_nothing || file.serial == 0) {
            return Vec::new();
        }
        // Merged tokens have the latest serial of their parts at the home, and the earliest here.
        let upto = file.serial;
        let asked = file.calls.values().filter(|call| call.progress == Progress::Asks);
        let asked: Vec<ByteRange> = asked.map(|call| call.range).collect();
        // A call's reply may be overtaken by that of a later call, and bring desired bytes as well.
        if !self.keeps_nothing && !asked.is_empty() {
            return Vec::new();
        }
        let ranges = without(&[ByteRange::ALL], &[file.in_use(TokenMode::Write), asked].concat());
        file.remove(ino, (upto, TokenMode::Write, &ranges), &mut self.uncovered);
        self.forget_if_idle(ino);
        if ranges.is_empty() {
            Vec::new()
        } else {
            vec![GiveBack { ino, upto, mode: TokenMode::Write, ranges }]
        }
    }

    /// Takes the ranges that tokens have ceased to cover since the last call: copies of them have to be dropped before
    /// their return is sent.
    pub fn take_uncovered(&mut self) -> Vec<(Ino, ByteRange)> {
        std::mem::take(&mut self.uncovered)
    }

    /// Returns the end of the bytes of a range that are covered by tokens and not recalled: copies of them may be kept
    /// after a read.
    #[must_use]
    pub fn covered_to(&self, ino: Ino, range: ByteRange) -> u64 {
        let file = self.files.get(&ino).filter(|_| !self.keeps_nothing);
        file.map_or(range.start, |file| {
            let missing = file.missing(TokenMode::Read, &range);
            missing.iter().map(|range| range.start).min().unwrap_or(range.end)
        })
    }

    /// Returns true if a call on a file waits for its home's reply.
    #[must_use]
    pub fn is_asking(&self, ino: Ino) -> bool {
        let asks = |file: &FileTokens| file.calls.values().any(|call| call.progress == Progress::Asks);
        self.files.get(&ino).is_some_and(asks)
    }

    /// Returns true if it keeps nothing between calls.
    #[must_use]
    pub fn keeps_nothing(&self) -> bool {
        self.keeps_nothing
    }

    #[cfg(test)]
    fn of_file(&self, ino: Ino) -> Vec<(TokenMode, ByteRange)> {
        let tokens = self.files.get(&ino).map(|file| file.tokens.as_slice()).unwrap_or_default();
        tokens.iter().map(|token| (token.mode, token.range)).collect()
    }

    fn forget_if_idle(&mut self, ino: Ino) {
        let is_idle =
            |file: &FileTokens| file.tokens.is_empty() && file.calls.is_empty() && file.recalled.is_empty();
        if self.files.get(&ino).is_some_and(is_idle) {
            self.files.remove(&ino);
        }
    }
}

impl FileTokens {
    fn set(&mut self, id: CallId, progress: Progress) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.progress = progress;
        call.asked_behind = self.serial;
        call.has_run |= progress == Progress::Runs;
        let (mode, range) = (call.mode, call.range);
        // Tokens order calls of different clients; those of one client are ordered here alone.
        let conflicts = |(other, call): (&CallId, &Call)| {
            *other != id
                && call.progress == Progress::Runs
                && call.mode.conflicts(mode)
                && call.range.overlaps(&range)
        };
        assert!(
            progress != Progress::Runs || !self.calls.iter().any(conflicts),
            "{id:?} on {range} runs beside a call that conflicts"
        );
    }

    /// Returns idle bytes that calls ask for, of grants before any that may be under way for these.
    fn idle_asked(&self, ino: Ino) -> Option<GiveBack> {
        let asking = || self.calls.values().filter(|call| call.progress == Progress::Asks);
        let upto = asking().map(|call| call.asked_behind).min()?;
        let asked: Vec<ByteRange> = asking().map(|call| call.range).collect();
        let ranges = without(&asked, &self.in_use(TokenMode::Write));
        (!ranges.is_empty()).then_some(GiveBack { ino, upto, mode: TokenMode::Write, ranges })
    }

    /// Returns the bytes of a range that are not covered by tokens, or are recalled.
    fn missing(&self, mode: TokenMode, range: &ByteRange) -> Vec<ByteRange> {
        let allowing = self.tokens.iter().filter(|token| token.mode.allows(mode));
        let mut missing = without(&[*range], &allowing.map(|token| token.range).collect::<Vec<_>>());
        let recalled = self.recalled.iter().filter(|recall| recall.mode.conflicts(mode));
        missing.extend(recalled.flat_map(|recall| both(&[*range], &recall.ranges)));
        missing
    }

    /// Returns the ranges of running calls that conflict.
    fn in_use(&self, mode: TokenMode) -> Vec<ByteRange> {
        let running = self.calls.values().filter(|call| call.progress == Progress::Runs);
        running.filter(|call| call.mode.conflicts(mode)).map(|call| call.range).collect()
    }

    /// Returns which of some bytes have conflicting tokens, or are in use.
    fn has(&self, upto: u64, mode: TokenMode, ranges: &[ByteRange]) -> Vec<ByteRange> {
        let meant = self.tokens.iter().filter(|token| token.serial <= upto && token.mode.conflicts(mode));
        let tokens: Vec<ByteRange> = meant.map(|token| token.range).collect();
        let in_use = without(&self.in_use(mode), &tokens);
        both(ranges, &[tokens, in_use].concat())
    }

    /// Removes tokens for some bytes, of grants up to a serial; for readers, only the right to write.
    fn remove(
        &mut self,
        ino: Ino,
        (upto, mode, ranges): (u64, TokenMode, &[ByteRange]),
        uncovered: &mut Uncovered,
    ) {
        for token in std::mem::take(&mut self.tokens) {
            if token.serial > upto || !token.mode.conflicts(mode) {
                self.tokens.push(token);
                continue;
            }
            let with = |range| Token { range, ..token };
            self.tokens.extend(without(&[token.range], ranges).into_iter().map(with));
            let given = both(&[token.range], ranges).into_iter();
            match mode {
                TokenMode::Read => {
                    let read = |range| Token { range, mode: TokenMode::Read, ..token };
                    self.tokens.extend(given.map(read));
                }
                TokenMode::Write => uncovered.extend(given.map(|range| (ino, range))),
            }
        }
    }

    fn add(&mut self, mode: TokenMode, grant: &Grant) {
        let is_less = |token: &Token| mode.allows(token.mode);
        let (less, mut tokens): (Vec<Token>, Vec<Token>) =
            std::mem::take(&mut self.tokens).into_iter().partition(is_less);
        let more: Vec<ByteRange> = tokens.iter().map(|token| token.range).collect();
        for token in less {
            let left = without(&[token.range], &grant.ranges);
            tokens.extend(left.into_iter().map(|range| Token { range, ..token }));
        }
        for mut range in without(&grant.ranges, &more) {
            let (mut serial, mut others) = (grant.serial, Vec::new());
            for token in tokens {
                let is_next =
                    token.mode == mode && (token.range.end == range.start || token.range.start == range.end);
                if is_next {
                    // The older serial, so that it is recalled together with older parts.
                    serial = serial.min(token.serial);
                    range = range.hull(&token.range);
                } else {
                    others.push(token);
                }
            }
            others.push(Token { mode, range, serial });
            tokens = others;
        }
        self.tokens = tokens;
    }

    /// Records that the reply to a request has arrived, or will not.
    fn answered(&mut self, id: CallId) {
        self.recalled.iter_mut().for_each(|recall| recall.asks.retain(|ask| *ask != id));
    }

    /// Returns recalled tokens that no call uses any more.
    fn give_back(&mut self, ino: Ino, uncovered: &mut Uncovered) -> Vec<GiveBack> {
        let mut given = Vec::new();
        for recall in std::mem::take(&mut self.recalled) {
            let in_use = self.in_use(recall.mode);
            let is_in_use = recall.ranges.iter().any(|range| overlap(&in_use, range));
            assert!(
                recall.asks.iter().all(|ask| self.calls.contains_key(ask)),
                "a recall of inode {ino} waits for the answer to a call that has ended: {:?}",
                recall.asks
            );
            if is_in_use || !recall.asks.is_empty() {
                self.recalled.push(recall);
                continue;
            }
            let Recalled { upto, mode, ranges, .. } = recall;
            self.remove(ino, (upto, mode, &ranges), uncovered);
            given.push(GiveBack { ino, upto, mode, ranges });
        }
        given
    }

    fn clear(&mut self, ino: Ino, uncovered: &mut Uncovered) {
        uncovered.extend(self.tokens.drain(..).map(|token| (ino, token.range)));
    }

    fn adopt_epoch(&mut self, ino: Ino, epoch: u32, uncovered: &mut Uncovered) {
        // Epochs wrap around.
        if (epoch.wrapping_sub(self.epoch) as i32) > 0 {
            self.tokens.clear();
            // Also copies that were kept under another contract, without tokens.
            uncovered.push((ino, ByteRange::ALL));
            self.epoch = epoch;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenMode::{Read, Write};

    const FILE: Ino = Ino(5);

    fn grant(serial: u64, ranges: &[ByteRange]) -> Grant {
        Grant { serial, ranges: ranges.to_vec() }
    }

    fn ask(holder: &mut KeptTokens, mode: TokenMode, range: ByteRange) -> (CallId, TokenRequest) {
        let id = holder.begin(FILE, 0, (mode, range), false);
        match holder.poll(FILE, id) {
            Poll::Ask(wanted) => (id, wanted),
            other => panic!("{other:?}"),
        }
    }

    fn wants(mode: TokenMode, range: ByteRange) -> TokenRequest {
        TokenRequest { mode, required: range, desired: vec![range] }
    }

    #[test]
    fn a_call_that_is_not_there_leaves_no_file() {
        let mut holder = KeptTokens::default();
        assert_eq!(holder.poll(FILE, CallId(7)), Poll::Go);
        assert_eq!(holder.granted(FILE, CallId(7), 1, &grant(1, &[ByteRange::ALL])), []);
        assert!(holder.files.is_empty());
    }

    #[test]
    fn what_is_covered_asks_nobody() {
        let mut holder = KeptTokens::default();
        let (call, wanted) = ask(&mut holder, Write, ByteRange::at(10, 5));
        assert_eq!((wanted.required, wanted.mode), (ByteRange::at(10, 5), Write));
        assert_eq!(holder.granted(FILE, call, 0, &grant(1, &[ByteRange::ALL])), []);
        holder.end(FILE, call);
        for (mode, start) in [(Read, 0), (Write, 1 << 40)] {
            let call = holder.begin(FILE, 0, (mode, ByteRange::at(start, 100)), false);
            assert_eq!(holder.poll(FILE, call), Poll::Go);
            holder.end(FILE, call);
        }
    }

    #[test]
    fn calls_that_conflict_go_one_after_the_other() {
        let mut holder = KeptTokens::default();
        let (first, _) = ask(&mut holder, Write, ByteRange::at(0, 10));
        holder.granted(FILE, first, 0, &grant(1, &[ByteRange::ALL]));
        let second = holder.begin(FILE, 0, (Read, ByteRange::at(5, 10)), false);
        let third = holder.begin(FILE, 0, (Write, ByteRange::at(12, 10)), false);
        let beside = holder.begin(FILE, 0, (Write, ByteRange::at(100, 10)), false);
        assert_eq!((holder.poll(FILE, second), holder.poll(FILE, third)), (Poll::Wait, Poll::Wait));
        assert_eq!(holder.poll(FILE, beside), Poll::Go);
        holder.end(FILE, first);
        assert_eq!((holder.poll(FILE, third), holder.poll(FILE, second)), (Poll::Wait, Poll::Go));
        holder.end(FILE, second);
        assert_eq!(holder.poll(FILE, third), Poll::Go);
    }

    #[test]
    fn what_is_recalled_is_given_back_when_it_is_idle() {
        let mut holder = KeptTokens::default();
        let (call, _) = ask(&mut holder, Write, ByteRange::at(0, 10));
        holder.granted(FILE, call, 0, &grant(1, &[ByteRange::ALL]));
        // Not in use: at once.
        let yielded = holder.recall(FILE, 1, &wants(Write, ByteRange::at(20, 5)), &[]);
        assert_eq!(yielded, Yielded::default());
        // In use: when the call is over, and what begins meanwhile does not go first.
        let yielded = holder.recall(FILE, 1, &wants(Write, ByteRange::at(8, 5)), &[]);
        assert_eq!(yielded, Yielded { kept: vec![ByteRange::at(8, 2)], gives_back: true });
        let late = holder.begin(FILE, 0, (Read, ByteRange::at(9, 1)), false);
        assert_eq!(holder.poll(FILE, late), Poll::Wait, "for its own client");
        let given = holder.end(FILE, call);
        assert_eq!(given, [GiveBack { ino: FILE, upto: 1, mode: Write, ranges: vec![ByteRange::at(8, 5)] }]);
        assert!(matches!(holder.poll(FILE, late), Poll::Ask(_)));
    }

    #[test]
    fn who_keeps_nothing_gives_back_what_is_idle_while_another_call_is_queued() {
        let mut holder = KeptTokens::new(false, 0);
        let (first, _) = ask(&mut holder, Read, ByteRange::at(0, 10));
        holder.granted(FILE, first, 0, &grant(1, &[ByteRange::at(0, 10)]));
        let (beside, _) = ask(&mut holder, Read, ByteRange::at(10, 10));
        holder.granted(FILE, beside, 0, &grant(2, &[ByteRange::at(10, 10)]));
        assert_eq!(holder.end(FILE, beside)[0].ranges, [ByteRange::from(10)]);
        let (second, _) = ask(&mut holder, Read, ByteRange::at(0, 10));
        assert_eq!(holder.give_up(FILE, second), [], "another call uses them");
        // Granted perhaps, by an answer that is on its way; surely not, when the home says so.
        let given = |ranges| [GiveBack { ino: FILE, upto: 2, mode: Write, ranges }];
        assert_eq!(holder.end(FILE, first), given(vec![ByteRange::from(10)]));
        assert_eq!(holder.queued(FILE, second), given(vec![ByteRange::ALL]));
        holder.asks_again(FILE, second);
        assert_eq!(holder.give_up(FILE, second), [ByteRange::at(0, 10)]);
        assert_eq!(holder.give_up(FILE, first), [], "it is over");
        holder.granted(FILE, second, 0, &grant(3, &[ByteRange::at(0, 10)]));
        assert_eq!(holder.poll(FILE, second), Poll::Go);
        holder.queued(FILE, second);
        assert_eq!(holder.give_up(FILE, second), [], "it has gone on once");
    }

    #[test]
    fn threads_of_who_keeps_nothing_do_not_keep_each_others_bytes() {
        let mut holder = KeptTokens::new(false, 0);
        let (first, _) = ask(&mut holder, Write, ByteRange::at(0, 10));
        holder.granted(FILE, first, 0, &grant(1, &[ByteRange::ALL]));
        let (second, _) = ask(&mut holder, Write, ByteRange::at(20, 10));
        let third = holder.begin(FILE, 0, (Write, ByteRange::at(5, 10)), false);
        assert_eq!(holder.poll(FILE, third), Poll::Wait, "for the first, and for nobody else");
        // The second may have been granted already. All else is free at once, whatever others of this process wait for.
        let given = holder.end(FILE, first);
        let ranges = vec![ByteRange { start: 0, end: 20 }, ByteRange::from(30)];
        assert_eq!(given, [GiveBack { ino: FILE, upto: 1, mode: Write, ranges }]);
        assert!(matches!(holder.poll(FILE, third), Poll::Ask(_)));
        holder.granted(FILE, second, 0, &grant(2, &[ByteRange::at(20, 10)]));
        holder.granted(FILE, third, 0, &grant(3, &[ByteRange::at(5, 10)]));
        assert_eq!((holder.poll(FILE, second), holder.poll(FILE, third)), (Poll::Go, Poll::Go));
        let given = holder.end(FILE, second);
        assert!(given[0].upto == 3 && !overlap(&given[0].ranges, &ByteRange::at(5, 10)), "{given:?}");
    }

    #[test]
    fn for_readers_the_right_to_read_stays() {
        let mut holder = KeptTokens::default();
        let (call, _) = ask(&mut holder, Write, ByteRange::at(0, 10));
        holder.granted(FILE, call, 0, &grant(1, &[ByteRange::ALL]));
        holder.end(FILE, call);
        assert_eq!(holder.recall(FILE, 1, &wants(Read, ByteRange::at(0, 10)), &[]), Yielded::default());
        let read = holder.begin(FILE, 0, (Read, ByteRange::at(0, 10)), false);
        assert_eq!(holder.poll(FILE, read), Poll::Go);
        holder.end(FILE, read);
        ask(&mut holder, Write, ByteRange::at(5, 1));
    }

    #[test]
    fn a_grant_that_a_recall_overtakes_is_used_once() {
        let mut holder = KeptTokens::default();
        let (call, _) = ask(&mut holder, Write, ByteRange::at(0, 10));
        let recalled = wants(Write, ByteRange::at(0, 4));
        // One that is not granted is not on its way.
        assert_eq!(holder.recall(FILE, 7, &recalled, &[call]), Yielded::default());
        let yielded = holder.recall(FILE, 7, &recalled, &[]);
        assert!(yielded.gives_back && yielded.kept == [ByteRange::at(0, 4)]);
        assert_eq!(holder.granted(FILE, call, 0, &grant(7, &[ByteRange::ALL])), [], "it is in use");
        let given = holder.end(FILE, call);
        assert_eq!((given.len(), given[0].upto, &given[0].ranges), (1, 7, &vec![ByteRange::at(0, 4)]));
        assert_eq!(holder.of_file(FILE), [(Write, ByteRange::from(4))]);
        // A grant after the recall was decided is not concerned.
        let (call, _) = ask(&mut holder, Write, ByteRange::at(0, 2));
        holder.recall(FILE, 7, &wants(Write, ByteRange::at(0, 2)), &[]);
        holder.granted(FILE, call, 0, &grant(8, &[ByteRange::at(0, 2)]));
        holder.end(FILE, call);
        assert!(holder.of_file(FILE).contains(&(Write, ByteRange::at(0, 2))));
    }

    #[test]
    fn tokens_of_an_earlier_epoch_are_void() {
        let mut holder = KeptTokens::default();
        let (call, _) = ask(&mut holder, Write, ByteRange::at(0, 10));
        holder.granted(FILE, call, 3, &grant(1, &[ByteRange::ALL]));
        holder.end(FILE, call);
        let call = holder.begin(FILE, 4, (Write, ByteRange::at(0, 10)), false);
        assert!(matches!(holder.poll(FILE, call), Poll::Ask(_)));
        holder.granted(FILE, call, 3, &grant(2, &[ByteRange::ALL]));
        holder.end(FILE, call);
        assert_eq!(holder.of_file(FILE), [], "its answer was on its way for long");
    }

    #[test]
    fn a_call_that_ends_while_tokens_are_reclaimed_keeps_nothing() {
        let mut holder = KeptTokens::new(false, 0);
        let (ended, running) =
            (ask(&mut holder, Write, ByteRange::at(0, 4)).0, ask(&mut holder, Write, ByteRange::at(8, 4)).0);
        holder.granted(FILE, ended, 0, &grant(1, &[ByteRange::at(0, 4)]));
        holder.granted(FILE, running, 0, &grant(2, &[ByteRange::at(8, 4)]));
        let said: Vec<_> =
            holder.tokens(|_| true, 9).into_iter().map(|(of, _, mode, at)| (of, mode, at)).collect();
        // What it gives back now goes to a daemon of the home that is no more.
        holder.end(FILE, ended);
        let given = holder.reclaimed(|_| true, 7, &said);
        let ranges = vec![ByteRange::at(0, 8), ByteRange::from(12)];
        assert_eq!(given, [GiveBack { ino: FILE, upto: 7, mode: Write, ranges }]);
        holder.end(FILE, running);
        let given = holder.reclaimed(|_| true, 8, &said);
        assert_eq!(given, [GiveBack { ino: FILE, upto: 8, mode: Write, ranges: vec![ByteRange::ALL] }]);
    }

    #[test]
    fn copies_are_dropped_of_exactly_what_is_given_back() {
        let mut holder = KeptTokens::default();
        let (call, _) = ask(&mut holder, Read, ByteRange::at(0, 10));
        holder.granted(FILE, call, 0, &grant(1, &[ByteRange::at(0, 100)]));
        assert_eq!(holder.covered_to(FILE, ByteRange::at(0, 200)), 100);
        // What a call uses stays until it is over, and is kept no longer.
        let yielded = holder.recall(FILE, 1, &wants(Write, ByteRange::at(5, 20)), &[]);
        assert!(yielded.gives_back);
        assert_eq!(holder.take_uncovered(), [(FILE, ByteRange::at(10, 15))]);
        assert_eq!(holder.covered_to(FILE, ByteRange::at(0, 200)), 5);
        holder.end(FILE, call);
        assert_eq!(holder.take_uncovered(), [(FILE, ByteRange::at(5, 5))]);
        assert_eq!(holder.covered_to(FILE, ByteRange::at(30, 200)), 100);
        // Others read what this client may only read from now on.
        let (call, _) = ask(&mut holder, Write, ByteRange::at(200, 10));
        holder.granted(FILE, call, 0, &grant(2, &[ByteRange::at(200, 10)]));
        holder.end(FILE, call);
        holder.recall(FILE, 2, &wants(Read, ByteRange::at(0, 300)), &[]);
        assert_eq!((holder.take_uncovered(), holder.covered_to(FILE, ByteRange::at(200, 20))), (vec![], 210));
        // Another epoch voids all.
        holder.begin(FILE, 1, (Read, ByteRange::at(0, 1)), false);
        assert_eq!(holder.take_uncovered(), [(FILE, ByteRange::ALL)]);
        assert_eq!(KeptTokens::new(false, 0).covered_to(FILE, ByteRange::at(7, 1)), 7);
    }

    #[test]
    fn what_is_welcome_is_not_taken_from_in_front_of_a_program() {
        let mut holder = KeptTokens::default();
        let (call, _) = ask(&mut holder, Write, ByteRange::at(1000, 10));
        holder.granted(FILE, call, 0, &grant(1, &[ByteRange::ALL]));
        holder.end(FILE, call);
        let ahead =
            TokenRequest { desired: vec![ByteRange::from(20)], ..wants(Write, ByteRange::at(20, 10)) };
        let yielded = holder.recall(FILE, 1, &ahead, &[]);
        assert_eq!(yielded, Yielded { kept: vec![ByteRange::from(1000)], gives_back: false });
        assert_eq!(holder.of_file(FILE).len(), 2);
    }
}
