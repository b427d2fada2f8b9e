//! Range tokens: what makes calls on files under the strict contract atomic. [`KeptTokens`] is the machine; here are
//! its lock, its messages and who waits.
//!
//! A call on an open file that is not strict passes through without a message or a wait. All is decided by what the
//! client knows of the file, which has an epoch: whoever goes on while a file gets another contract, or loses its
//! tokens, is refused by the targets, learns the file anew, and begins again ([`Access::check`]).

use std::collections::HashMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_net::{NetError, Request, Transport};
use bivouac_tokens::{CallId, GiveBack, Grant, KeptTokens, Poll, TokenRequest};
use bivouac_types::{ByteRange, ClientId, Contract, Errno, FsError, FsResult, Ino, NodeId, OpId, TokenMode};
use bivouac_wire::{
    CancelTokensRequest, Decode, Encode, FileToken, FormationMap, Frame, InoOnly, Op, RecallTokensRequest,
    RecalledTokens, ReclaimTokensRequest, ReclaimedTokens, ReturnTokensRequest, TakeTokensRequest,
    TokenGrant, TokenList, op,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::connections::Connections;
use crate::homes::Homes;
use crate::homes::known::KnownFile;
use crate::homes::partitions::Partitions;
use crate::operation::OpCtx;

/// Right by which a call goes to the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The file.
    pub ino: Ino,
    covered: Covered,
}

/// Cover of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    /// Needs no token, whatever the contract: it is sent on behalf of calls that have returned.
    Always,
    /// By nothing, since the file is not strict.
    Nothing,
    /// By tokens of this epoch of the file.
    Epoch(u32),
}

impl From<Ino> for Access {
    fn from(ino: Ino) -> Access {
        Access { ino, covered: Covered::Always }
    }
}

impl Access {
    /// Returns the epoch of the file of which tokens cover the call, if any do.
    #[must_use]
    pub fn epoch(&self) -> Option<u32> {
        match self.covered {
            Covered::Epoch(epoch) => Some(epoch),
            Covered::Always | Covered::Nothing => None,
        }
    }

    /// Checks that the call may go on with what is known of the file by now.
    ///
    /// # Errors
    /// `ERESTART`, which no program sees: the call has to begin again.
    pub fn check(&self, known: &KnownFile, contract: Contract) -> FsResult<()> {
        let may_go_on = match self.covered {
            Covered::Always => true,
            Covered::Nothing => contract != Contract::Strict,
            Covered::Epoch(epoch) => contract == Contract::Strict && known.epoch == epoch,
        };
        if may_go_on { Ok(()) } else { Err(FsError::new(Errno::ERESTART)) }
    }
}

/// The tokens of a client, and the homes that granted them.
pub struct TokenTable {
    /// True if they are kept between calls.
    keeps: bool,
    state: Mutex<TokenState>,
    /// Drops the copies of bytes that no token covers any more.
    drop_copies: OnceLock<Box<DropCopies>>,
    /// True if homes know that this process is not an earlier one of the client.
    is_known: AtomicBool,
    /// A call has ended, or was given what it needs.
    changed: Condvar,
}

/// Drops the copies of a range of a file. It is called with the tokens locked, and waits for nobody.
pub type DropCopies = dyn Fn(Ino, ByteRange) + Send + Sync;

/// The state, locked. Before others can lock it, copies of what tokens have ceased to cover are dropped: nobody is told
/// that bytes are free of which this client has copies.
struct Locked<'a> {
    table: &'a TokenTable,
    state: MutexGuard<'a, TokenState>,
}

impl Deref for Locked<'_> {
    type Target = TokenState;

    fn deref(&self) -> &TokenState {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut TokenState {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.table.drop_uncovered(&mut self.state);
    }
}

#[derive(Debug)]
struct TokenState {
    holder: KeptTokens,
    homes: HashMap<NodeId, Home>,
    /// Files of which a call failed without their home's knowing, and their epochs then.
    untold: HashMap<Ino, u32>,
}

/// A home that has granted tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Home {
    /// The life of its daemon.
    life: u64,
    /// Its last grant.
    seen: u64,
    /// Number of times that tokens were reclaimed there: an answer from before that grants nothing.
    reclaims: u64,
    /// True if that is under way: nothing is given back meanwhile.
    is_reclaiming: bool,
}

/// Most tokens that are reclaimed at once, as they fit one message. Those beyond are lost.
const RECLAIMED_MAX: usize = 4096;
/// Pauses before a request that is queued is sent again.
const QUEUED_PAUSE: Duration = Duration::from_millis(5);
const QUEUED_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Longest wait, in milliseconds, for a home that is told that a call does not wait any more.
const CANCEL_WAIT_MS: u32 = 1000;

/// A call that tokens cover, until it is dropped.
struct Covering<'a> {
    tokens: &'a Tokens,
    ino: Ino,
    call: CallId,
    wanted: TokenRequest,
    /// Set if a write that it sent may arrive later than its end.
    is_lost: bool,
}

impl Drop for Covering<'_> {
    fn drop(&mut self) {
        let spoiled = self.is_lost.then_some(self.wanted.required);
        self.tokens.end(self.ino, self.call, spoiled);
    }
}

impl Covering<'_> {
    fn is_write(&self) -> bool {
        self.wanted.mode == TokenMode::Write
    }
}

/// Returns whether an error is the answer of a node, after which nothing of the call is under way.
fn is_answer(error: &FsError) -> bool {
    let refused = [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG, Errno::EINVAL, Errno::EOPNOTSUPP];
    let gone = [Errno::ENOENT, Errno::ENXIO, Errno::ECANCELED, Errno::EACCES, Errno::EPERM, Errno::ERESTART];
    refused.contains(&error.errno()) || gone.contains(&error.errno())
}

/// Bytes of a file that a call reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct CallRange {
    /// The file.
    pub ino: Ino,
    /// The access: reading or writing.
    pub mode: TokenMode,
    /// The bytes.
    pub range: ByteRange,
    /// True if an earlier process of this client may have done part of the call.
    pub resumes: bool,
}

impl CallRange {
    /// Returns a call that reads.
    #[must_use]
    pub fn read(ino: Ino, range: ByteRange) -> CallRange {
        CallRange { ino, mode: TokenMode::Read, range, resumes: false }
    }

    /// Returns a call that writes.
    #[must_use]
    pub fn write(ino: Ino, range: ByteRange) -> CallRange {
        CallRange { mode: TokenMode::Write, ..CallRange::read(ino, range) }
    }

    /// Returns the same call as one that may be sent once more by the kernel.
    #[must_use]
    pub fn of(self, ctx: &OpCtx) -> CallRange {
        CallRange { resumes: ctx.retry, ..self }
    }
}

/// The ways in which tokens come and go.
pub struct Tokens {
    connections: Arc<Connections>,
    homes: Arc<Homes>,
    partitions: Arc<Partitions>,
    table: Arc<TokenTable>,
}

impl Tokens {
    pub(crate) fn new(
        connections: Arc<Connections>,
        homes: Arc<Homes>,
        partitions: Arc<Partitions>,
        table: Arc<TokenTable>,
    ) -> Tokens {
        Tokens { connections, homes, partitions, table }
    }

    /// Does something to bytes of a file, covered as its contract says; again if that has changed meanwhile, or the
    /// file has another epoch, still covered as far as this client has not lost the tokens.
    ///
    /// # Errors
    /// Those of `act`; `EIO` when the home cannot be reached.
    pub fn covered<T>(&self, call: CallRange, mut act: impl FnMut(Access) -> FsResult<T>) -> FsResult<T> {
        let mut covering: Option<Covering<'_>> = None;
        loop {
            let access = match covering.as_mut() {
                // Half of it may be done: it goes on in front of all others.
                Some(covering) => self.renew(covering),
                None => self.cover(&call).map(|(access, new)| {
                    covering = new;
                    access
                }),
            };
            let outcome = match access {
                Err(error) if error.errno() == Errno::ERESTART => {
                    covering = None;
                    continue;
                }
                access => access.and_then(|access| {
                    // Set before, in case `act` panics.
                    covering.iter_mut().for_each(|covering| covering.is_lost = covering.is_write());
                    let outcome = act(access);
                    // Who has an answer of all that was sent has nothing under way.
                    let is_over = outcome.as_ref().map_or_else(is_answer, |_| true);
                    covering.iter_mut().for_each(|covering| covering.is_lost &= !is_over);
                    outcome
                }),
            };
            match outcome {
                Err(error) if error.errno() == Errno::ERESTART => {}
                outcome => return outcome,
            }
        }
    }

    /// Like [`Tokens::covered`], for a call on two files, both of which are covered from its beginning to its end. They
    /// are covered in the order of their inode numbers, so that two such calls cannot deadlock.
    ///
    /// # Errors
    /// As there.
    pub fn covered_both<T>(
        &self,
        calls: [CallRange; 2],
        mut act: impl FnMut(Access, Access) -> FsResult<T>,
    ) -> FsResult<T> {
        let is_turned = calls[1].ino < calls[0].ino;
        let [mut first, mut second] = [None, None];
        let [one, other] = if is_turned { [calls[1], calls[0]] } else { calls };
        // Two calls that took them in any order would wait for each other.
        assert!(one.ino < other.ino, "inodes {} and {} are covered in no order", one.ino, other.ino);
        let mut is_begun = false;
        loop {
            let accesses = match is_begun {
                false => self
                    .cover_next(&one, &mut first)
                    .and_then(|access| Ok((access, self.cover_next(&other, &mut second)?))),
                true => self.renew_both([&one, &other], [&mut first, &mut second]),
            };
            let is_covered = accesses.is_ok();
            let outcome = accesses.and_then(|(one, other)| {
                let both = [&mut first, &mut second];
                // Set before, in case `act` panics.
                both.into_iter().flatten().for_each(|covering| covering.is_lost = covering.is_write());
                let outcome = if is_turned { act(other, one) } else { act(one, other) };
                let is_over = outcome.as_ref().map_or_else(is_answer, |_| true);
                let both = [&mut first, &mut second];
                both.into_iter().flatten().for_each(|covering| covering.is_lost &= !is_over);
                outcome
            });
            match outcome {
                // Half of it may be done: it goes on in front of all others, unless something was lost.
                Err(error) if error.errno() == Errno::ERESTART => {
                    is_begun = is_covered;
                    // One may have been had and not the other: nobody keeps one while it waits for the other.
                    if !is_covered {
                        (first, second) = (None, None);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    fn cover_next<'a>(&'a self, call: &CallRange, covering: &mut Option<Covering<'a>>) -> FsResult<Access> {
        let (access, new) = self.cover(call)?;
        *covering = new;
        Ok(access)
    }

    /// Goes on with a call on two files of which one has another epoch. Waits for nobody: who has lost one of them does
    /// not keep the other one.
    fn renew_both<'a>(
        &'a self,
        calls: [&CallRange; 2],
        coverings: [&mut Option<Covering<'a>>; 2],
    ) -> FsResult<(Access, Access)> {
        let renewed = |call: &CallRange, covering: &mut Option<Covering<'a>>| match covering {
            Some(covering) => self.renew_now(covering),
            // It was not strict when the call began.
            None => match self.cover_nothing(call.ino)? {
                Some(access) => Ok(access),
                None => Err(Errno::ERESTART.into()),
            },
        };
        let [one, other] = coverings;
        Ok((renewed(calls[0], one)?, renewed(calls[1], other)?))
    }

    /// Like [`Tokens::covered`], for bytes from the end of the file on. `act` gets the offset from which they are
    /// covered, and returns `ECANCELED` if the end is before that.
    ///
    /// # Errors
    /// As there.
    pub fn covered_behind<T>(
        &self,
        ctx: &OpCtx,
        ino: Ino,
        mut act: impl FnMut(Access, u64) -> FsResult<T>,
    ) -> FsResult<T> {
        loop {
            // It may be too small, which only covers more, or too great, which the home refuses.
            let size = self.homes.size_heard(ino).unwrap_or(0);
            let call = CallRange::write(ino, ByteRange::from(size)).of(ctx);
            let outcome = self.covered(call, |file| match act(file, size) {
                Err(error) if error.errno() == Errno::ECANCELED => Ok(None),
                outcome => outcome.map(Some),
            })?;
            match outcome {
                Some(outcome) => return Ok(outcome),
                None => _ = self.homes.ask(ino)?,
            }
        }
    }

    /// Homes have heard of this process.
    pub(crate) fn is_known_from_now_on(&self) {
        self.table.is_known_from_now_on();
    }

    /// Returns whether an open file is strict, as far as it is known.
    #[must_use]
    pub fn is_strict(&self, ino: Ino) -> bool {
        let known = self.homes.known(ino);
        known.is_some_and(|known| self.contract(&known).is_ok_and(|it| it == Contract::Strict))
    }

    fn contract(&self, known: &KnownFile) -> FsResult<Contract> {
        self.partitions.contract(known)
    }

    /// Returns what is known of a file, if it is open.
    fn known_open(&self, ino: Ino) -> FsResult<Option<KnownFile>> {
        match self.homes.known(ino) {
            Some(known) => Ok(Some(known)),
            // It was open before this process.
            None if self.homes.is_open(ino) => self.homes.know(ino).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the right of a call that needs no tokens, if it does not.
    fn cover_nothing(&self, ino: Ino) -> FsResult<Option<Access>> {
        // A cut of a file that is not open is whole by itself.
        let Some(known) = self.known_open(ino)? else { return Ok(Some(ino.into())) };
        let is_strict = self.contract(&known)? == Contract::Strict;
        Ok((!is_strict).then_some(Access { ino, covered: Covered::Nothing }))
    }

    /// Returns what a call needs to go on, as soon as it has that.
    fn cover(&self, call: &CallRange) -> FsResult<(Access, Option<Covering<'_>>)> {
        let CallRange { ino, mode, range, resumes } = *call;
        if let Some(access) = self.cover_nothing(ino)? {
            return Ok((access, None));
        }
        let known = self.homes.know(ino)?;
        self.begin(ino, known.epoch, TokenRequest { mode, required: range, desired: vec![range] }, resumes)
            .map(|(covering, epoch)| (Access { ino, covered: Covered::Epoch(epoch) }, Some(covering)))
    }

    /// Waits until a call is covered; the epoch of the file for which it is.
    fn begin(
        &self,
        ino: Ino,
        epoch: u32,
        mut wanted: TokenRequest,
        resumes: bool,
    ) -> FsResult<(Covering<'_>, u32)> {
        let mut state = self.table.lock();
        let call = state.holder.begin(ino, epoch, (wanted.mode, wanted.required), resumes);
        drop(state);
        match self.settle(ino, call, &mut wanted, resumes) {
            Ok(epoch) => Ok((Covering { tokens: self, ino, call, wanted, is_lost: false }, epoch)),
            Err(error) => {
                self.end(ino, call, None);
                Err(error)
            }
        }
    }

    /// Waits until a call that has begun is covered; the epoch of the file for which it is.
    fn settle(&self, ino: Ino, call: CallId, wanted: &mut TokenRequest, renews: bool) -> FsResult<u32> {
        let mut state = self.table.lock();
        let mut next = state.holder.poll(ino, call);
        loop {
            match next {
                Poll::Go => return Ok(state.holder.epoch(ino)),
                Poll::Wait => {
                    MutexGuard::unlocked(&mut state.state, bivouac_net::before_waiting);
                    // It may have been given what it needs meanwhile.
                    next = state.holder.poll(ino, call);
                    if next == Poll::Wait {
                        self.table.changed.wait(&mut state.state);
                        next = state.holder.poll(ino, call);
                    }
                }
                Poll::Ask(request) => {
                    drop(state);
                    *wanted = request;
                    self.ask(ino, call, wanted, (renews, true))?;
                    state = self.table.lock();
                    next = state.holder.poll(ino, call);
                }
            }
        }
    }

    /// Goes on with a call whose file has another epoch.
    fn renew(&self, covering: &mut Covering<'_>) -> FsResult<Access> {
        self.renew_within(covering, true)
    }

    /// Like [`Tokens::renew`]; returns `ERESTART` if others have to go first.
    fn renew_now(&self, covering: &mut Covering<'_>) -> FsResult<Access> {
        self.renew_within(covering, false)
    }

    fn renew_within(&self, covering: &mut Covering<'_>, waits: bool) -> FsResult<Access> {
        let (ino, call) = (covering.ino, covering.call);
        self.ask(ino, call, &covering.wanted, (true, waits))?;
        let epoch = self.settle(ino, call, &mut covering.wanted, true)?;
        Ok(Access { ino: covering.ino, covered: Covered::Epoch(epoch) })
    }

    /// Asks the home until it grants what a call needs, or once; the epoch of the file then. A call that gives up tells
    /// its home, where others wait behind it.
    fn ask(&self, ino: Ino, call: CallId, wanted: &TokenRequest, how: (bool, bool)) -> FsResult<u32> {
        let home = self.connections.home(ino)?;
        self.ask_home(home, ino, call, wanted, how).inspect_err(|error| {
            let is_at_home = !is_answer(error) || error.errno() == Errno::ERESTART;
            if is_at_home {
                self.cancel(home, ino, call);
            }
        })
    }

    fn ask_home(
        &self,
        home: NodeId,
        ino: Ino,
        call: CallId,
        wanted: &TokenRequest,
        (renews, waits): (bool, bool),
    ) -> FsResult<u32> {
        let TokenRequest { mode, required, desired } = wanted.clone();
        let mut pause = QUEUED_PAUSE;
        let request = TakeTokensRequest { ino, call: call.0, renews, mode, required, desired };
        loop {
            // Read before the question: what is granted to one from before a reclaim does not count.
            let reclaims = self.table.lock().homes.entry(home).or_default().reclaims;
            let taken = self.connections.ask::<op::TakeTokens>(home, &request)?;
            // Also where nothing is granted: the file may not be strict any more.
            let known = self.homes.told(&taken.attr);
            let Some(TokenGrant { life, serial, ranges }) = taken.grant else {
                if self.contract(&known)? != Contract::Strict {
                    return Err(Errno::ERESTART.into());
                }
                let (life, given) = {
                    let mut state = self.table.lock();
                    let life = state.homes.get(&home).map_or(0, |home| home.life);
                    (life, state.holder.queued(ino, call))
                };
                self.table.changed.notify_all();
                // Not under the lock: a recall may come before the answer, and must not wait for it.
                self.give_back(home, life, given);
                if !waits {
                    return Err(Errno::ERESTART.into());
                }
                bivouac_net::pause(pause);
                pause = (2 * pause).min(QUEUED_PAUSE_MAX);
                self.table.lock().holder.asks_again(ino, call);
                continue;
            };
            let mut state = self.table.lock();
            let granted_by = state.homes.entry(home).or_default();
            if granted_by.reclaims != reclaims || ![0, life].contains(&granted_by.life) {
                // The home has been told since what this client has: this was not among it.
                if granted_by.life == life {
                    state.holder.discards(ino, serial);
                }
                state.holder.asks_again(ino, call);
                continue;
            }
            (granted_by.life, granted_by.seen) = (life, granted_by.seen.max(serial));
            let given = state.holder.granted(ino, call, known.epoch, &Grant { serial, ranges });
            drop(state);
            self.table.changed.notify_all();
            self.give_back(home, life, given);
            return Ok(known.epoch);
        }
    }

    /// Gives up a call: its home lets those go on that came behind it.
    fn cancel(&self, home: NodeId, ino: Ino, call: CallId) {
        let ranges = self.table.lock().holder.give_up(ino, call);
        let request = CancelTokensRequest { ino, call: call.0, ranges };
        if let Err(error) = self.connections.try_asking::<op::CancelTokens>(home, &request, CANCEL_WAIT_MS) {
            log::debug!(why:% = error; "{home} keeps the place of a call that waits no more");
        }
    }

    /// Returns the clients that have tokens of a file, and the requests that wait for some.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when the home cannot be reached.
    pub fn list(&self, ino: Ino) -> FsResult<TokenList> {
        self.connections.ask::<op::ListTokens>(self.connections.home(ino)?, &InoOnly { ino })
    }

    /// Ends a call. Of what is spoiled, messages may still arrive: as long as the home does not know that, the call
    /// counts as running, and then nobody gets it before the file is fenced.
    fn end(&self, ino: Ino, call: CallId, spoiled: Option<ByteRange>) {
        let Ok(home) = self.connections.home(ino) else { return };
        let life = self.table.lock().homes.get(&home).map_or(0, |home| home.life);
        let mut is_told = true;
        if let Some(range) = spoiled {
            let (upto, mode, ranges) = (u64::MAX, TokenMode::Write, vec![range]);
            let request = ReturnTokensRequest { ino, life, upto, mode, ranges, is_lost: true };
            let told = self.connections.ask::<op::ReturnTokens>(home, &request);
            is_told = told
                .inspect_err(|error| log::warn!(why:% = error; "{home} does not know of a failed call"))
                .is_ok();
        }
        let mut state = self.table.lock();
        if let Some(range) = spoiled {
            state.holder.spoil(ino, range);
            if !is_told {
                let epoch = state.holder.epoch(ino);
                state.untold.insert(ino, epoch);
            }
        }
        let given = state.holder.end(ino, call);
        // Its home may have begun another life while it was told, and been named these.
        let life = state.homes.get(&home).map_or(0, |home| home.life);
        drop(state);
        self.table.changed.notify_all();
        self.give_back(home, life, given);
    }

    /// Gives back what the client had of a file that it has closed.
    pub(crate) fn close(&self, ino: Ino) {
        let Ok(home) = self.connections.home(ino) else { return };
        let mut state = self.table.lock();
        let life = state.homes.get(&home).map_or(0, |home| home.life);
        let given = state.holder.give_back_idle(ino);
        drop(state);
        self.give_back(home, life, given);
    }

    /// Tells a home, in the life that granted it, what this client has no more.
    fn give_back(&self, home: NodeId, life: u64, given: Vec<GiveBack>) {
        for given in given {
            let (ino, request) = (given.ino, return_request(life, given));
            // Whoever wants them asks again, and is told then.
            if let Err(error) = self.connections.ask::<op::ReturnTokens>(home, &request) {
                log::debug!(why:% = error; "{home} does not know yet that tokens of inode {ino} are free");
            }
        }
    }

    /// Gives tokens back that a home wants. Waits for nobody.
    #[must_use]
    pub fn recall(&self, request: &RecallTokensRequest) -> RecalledTokens {
        let recalled = || [vec![request.required], request.desired.clone()].concat();
        let mut state = self.table.lock();
        let life = self.connections.home(request.ino).ok().and_then(|home| state.homes.get(&home).copied());
        let epoch = state.holder.epoch(request.ino);
        // Until its home has fenced it.
        let is_untold = state.untold.get(&request.ino) == Some(&epoch);
        // Nothing has been granted to this process, if no answer is on its way; it does not answer for an earlier one.
        let has_nothing = life.is_none_or(|home| home.life == 0 && !home.is_reclaiming)
            && self.table.is_known.load(Ordering::Acquire)
            && !state.holder.is_asking(request.ino);
        if has_nothing {
            return RecalledTokens { kept: Vec::new(), gives_back: false };
        }
        // Granted to an earlier process of this client, which the home will hear of; or by an earlier daemon of the
        // home, or an answer of this one is on its way.
        if is_untold || life.is_none_or(|home| home.is_reclaiming || home.life != request.life) {
            return RecalledTokens { kept: recalled(), gives_back: false };
        }
        state.untold.remove(&request.ino);
        let wanted =
            TokenRequest { mode: request.mode, required: request.required, desired: request.desired.clone() };
        let waiting: Vec<CallId> = request.waiting.iter().map(|call| CallId(*call)).collect();
        let yielded = state.holder.recall(request.ino, request.upto, &wanted, &waiting);
        RecalledTokens { kept: yielded.kept, gives_back: yielded.gives_back }
    }
}

/// Returns the request that tells a home, in the life that granted them, of tokens that this client has no more.
fn return_request(life: u64, given: GiveBack) -> ReturnTokensRequest {
    let GiveBack { ino, upto, mode, ranges } = given;
    ReturnTokensRequest { ino, life, upto, mode, ranges, is_lost: false }
}

impl TokenTable {
    /// Creates an empty table, for a client that keeps tokens between its calls or does not, in its first process or a
    /// later one.
    pub fn new(keeps: bool, is_first: bool) -> TokenTable {
        // Numbers of calls must differ from those of an earlier process of this client.
        let calls = getrandom::u64().unwrap_or_default() >> 1;
        let holder = KeptTokens::new(keeps, calls);
        let state = TokenState { holder, homes: HashMap::new(), untold: HashMap::new() };
        let is_known = AtomicBool::new(is_first);
        let (state, changed, drop_copies) = (Mutex::new(state), Condvar::new(), OnceLock::new());
        TokenTable { keeps, state, drop_copies, is_known, changed }
    }

    /// Starts keeping copies of what tokens cover; `drop_copies` drops them. To be called once.
    pub(crate) fn keep_copies(&self, drop_copies: Box<DropCopies>) {
        let is_first = self.drop_copies.set(drop_copies).is_ok();
        assert!(is_first, "one page pool has the copies");
    }

    /// Returns whether it keeps tokens between calls.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Returns the end of the bytes of a range that tokens cover. Copies of what is read after that may be kept, unless
    /// some were dropped meanwhile.
    pub(crate) fn covered_to(&self, ino: Ino, range: Range<u64>) -> u64 {
        self.lock().holder.covered_to(ino, ByteRange { start: range.start, end: range.end })
    }

    fn lock(&self) -> Locked<'_> {
        Locked { table: self, state: self.state.lock() }
    }

    fn drop_uncovered(&self, state: &mut TokenState) {
        let uncovered = state.holder.take_uncovered();
        if let Some(drop_copies) = self.drop_copies.get() {
            uncovered.into_iter().for_each(|(ino, range)| drop_copies(ino, range));
        }
    }

    /// Homes have heard of this process.
    pub(crate) fn is_known_from_now_on(&self) {
        self.is_known.store(true, Ordering::Release);
    }

    /// Reclaims the tokens of a home to which the connection was lost, over the new one.
    pub(crate) fn reclaim(
        &self,
        client: ClientId,
        node: NodeId,
        map: &FormationMap,
        transport: &dyn Transport,
    ) -> Result<(), NetError> {
        let is_there = |ino: Ino| map.home(ino) == Some(node);
        let (Home { life, seen, .. }, tokens) = {
            let mut state = self.lock();
            // Nothing was asked of it: then there is nothing to reclaim.
            let Some(home) = state.homes.get_mut(&node) else { return Ok(()) };
            // Before the tokens are read: what is granted from now on is not among them, and is asked for again.
            home.reclaims += 1;
            home.is_reclaiming = true;
            let home = *home;
            (home, state.holder.tokens(is_there, RECLAIMED_MAX))
        };
        let told = |(ino, epoch, mode, range)| FileToken { ino, epoch, mode, range };
        let tokens = tokens.into_iter().map(told).collect();
        let body = ReclaimTokensRequest { life, seen, tokens }.to_bytes();
        let mut answer = Vec::new();
        let exchange = |op: Op, body: &[u8], answer: &mut Vec<u8>| {
            let request = Request::new(Frame::request(op as u16, OpId(0), client, 0), body, &[]);
            transport.exchange(&request, answer, &mut [])
        };
        let head = exchange(Op::ReclaimTokens, &body, &mut answer)?;
        let reclaimed = if head.status == 0 { ReclaimedTokens::from_bytes(&answer).ok() } else { None };
        // What is refused is lost: the home has the file fenced before anybody else gets it.
        let left = reclaimed.unwrap_or_else(|| {
            log::error!("{} does not say what is left of tokens", transport.address());
            ReclaimedTokens { life: 0, serial: 0, tokens: Vec::new() }
        });
        let tokens: Vec<_> = left.tokens.iter().map(|one| (one.ino, one.mode, one.range)).collect();
        let mut state = self.lock();
        let given = state.holder.reclaimed(is_there, left.serial, &tokens);
        if let Some(home) = state.homes.get_mut(&node) {
            (home.life, home.seen, home.is_reclaiming) = (left.life, left.serial, false);
        }
        drop(state);
        for given in given {
            exchange(Op::ReturnTokens, &return_request(left.life, given).to_bytes(), &mut answer)?;
        }
        Ok(())
    }
}
