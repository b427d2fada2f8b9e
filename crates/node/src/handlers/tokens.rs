//! Range tokens: granted, recalled from those who have them, and reclaimed.

use std::time::{Duration, Instant};

use bivouac_tokens::{Fence, Grant, Listed, RANGES_MAX, Recall, RequestOutcome, TokenRequest, Yielded};
use bivouac_types::{ClientId, Contract, Errno, FsError, FsResult, Ino};
use bivouac_wire::{
    CancelTokensRequest, ClientToken, Encode, FileToken, InoOnly, Op, RecallTokensRequest, RecalledTokens,
    ReclaimTokensRequest, ReclaimedTokens, ReturnTokensRequest, TOKENS_LISTED_MAX, TakeTokensRequest,
    TakenTokens, TokenGrant, TokenList, op,
};

use crate::at_once::each_at_once;
use crate::node::Node;
use crate::peers::PeerRequest;
use crate::session::Ctx;
use crate::step::Handle;

/// Time for which a request waits here before its client is told that it is queued: so long is a thread kept.
const QUEUED_MAX: Duration = Duration::from_secs(1);
/// Time for which a client has to answer a recall; it waits for nobody.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Clients that are asked at the same time, with a thread each.
const RECALLS_MAX: usize = 256;
/// Time between two looks whether all clients have reclaimed their tokens.
const RECLAIM_LOOK: Duration = Duration::from_millis(10);

impl Handle for op::TakeTokens {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: TakeTokensRequest) -> FsResult<TakenTokens> {
        let TakeTokensRequest { ino, call, renews, mode, required, desired } = request;
        if required.start > required.end || desired.len() > RANGES_MAX {
            return Err(FsError::with(
                Errno::EINVAL,
                format!("tokens of bytes {required} and {} others", desired.len()),
            ));
        }
        // A later daemon has to know whom to wait for.
        node.sessions.note(&node.records, ctx.client)?;
        let wanted = TokenRequest { mode, required, desired };
        let taken = node.take_tokens(ctx, ino, call, (&wanted, renews));
        // The place of one that is superseded is its repetition's.
        if taken.is_err() && ctx.check_current().is_ok() {
            node.tokens.free(|state| state.manager.cancel(ino, ctx.client, call, &[]));
        }
        taken
    }
}

impl Handle for op::ReturnTokens {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReturnTokensRequest) -> FsResult<()> {
        let ReturnTokensRequest { ino, life, upto, mode, ranges, is_lost } = request;
        // Numbers of an earlier daemon's grants mean nothing here: what is left of those was reclaimed.
        if life == node.tokens.life() {
            node.tokens.free(|state| {
                match is_lost {
                    true => state.manager.spoil(ino, ctx.client, &ranges),
                    false => _ = state.manager.yielded(ino, ctx.client, upto, mode, &ranges),
                }
                state.yields(ino, ctx.client, upto);
            });
        }
        Ok(())
    }
}

impl Handle for op::CancelTokens {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: CancelTokensRequest) -> FsResult<()> {
        let CancelTokensRequest { ino, call, ranges } = request;
        node.tokens.free(|state| {
            state.manager.cancel(ino, ctx.client, call, &ranges);
        });
        Ok(())
    }
}

impl Handle for op::ListTokens {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<TokenList> {
        node.regular_file(ino)?;
        let (held, waiting) = node.tokens.lock().manager.list(ino);
        let listed = |all: &[Listed]| -> Vec<ClientToken> {
            let first = all.iter().take(TOKENS_LISTED_MAX);
            first
                .map(|(client, mode, range)| ClientToken { client: *client, mode: *mode, range: *range })
                .collect()
        };
        Ok(TokenList {
            held_count: u32::try_from(held.len()).unwrap_or(u32::MAX),
            held: listed(&held),
            waiting_count: u32::try_from(waiting.len()).unwrap_or(u32::MAX),
            waiting: listed(&waiting),
        })
    }
}

impl Handle for op::RecallTokens {
    fn handle(node: &Node, _: &Ctx<'_>, request: RecallTokensRequest) -> FsResult<RecalledTokens> {
        Ok(node.served.get(request.client).tokens.map_or_else(
            // It is about to be served, or was until now: it may have all of it.
            || RecalledTokens {
                kept: [vec![request.required], request.desired.clone()].concat(),
                gives_back: false,
            },
            |holder| holder.recall(&request),
        ))
    }
}

impl Handle for op::ReclaimTokens {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: ReclaimTokensRequest) -> FsResult<ReclaimedTokens> {
        ctx.check_current()?;
        let ReclaimTokensRequest { life, seen, tokens } = request;
        if !tokens.is_empty() {
            node.sessions.note(&node.records, ctx.client)?;
        }
        let seen = (life == node.tokens.life()).then_some(seen);
        // What an earlier daemon granted of another epoch is void.
        let is_valid = |token: &&FileToken| {
            seen.is_some() || node.inode(token.ino).is_ok_and(|inode| inode.attr.epoch == token.epoch)
        };
        let valid = tokens.iter().filter(is_valid);
        let tokens: Vec<_> = valid.map(|token| (token.ino, token.mode, token.range)).collect();
        let (serial, left) = node.tokens.free(|state| state.manager.reclaim(ctx.client, seen, &tokens));
        let told = |(ino, mode, range)| FileToken { ino, epoch: 0, mode, range };
        let tokens = left.into_iter().map(told).collect();
        Ok(ReclaimedTokens { life: node.tokens.life(), serial, tokens })
    }
}

impl Node {
    /// Grants what a call needs as soon as it is free, or says that the request is queued.
    fn take_tokens(
        &self,
        ctx: &Ctx<'_>,
        ino: Ino,
        call: u64,
        wanted: (&TokenRequest, bool),
    ) -> FsResult<TakenTokens> {
        let mut until = Instant::now() + QUEUED_MAX;
        let mut is_queued = false;
        loop {
            let attr = self.regular_file(ino)?.attr;
            ctx.check_current()?;
            let is_strict = self.contract(&attr)? == Contract::Strict;
            // The contract may have changed while the request was queued.
            if !is_strict {
                self.tokens.free(|state| state.manager.cancel(ino, ctx.client, call, &[]));
            }
            if !is_strict || Instant::now() >= until {
                return Ok(TakenTokens { attr, grant: None });
            }
            // A grant could overlap what a client has and has not said yet. Once all have, those that go on with tokens
            // of an earlier daemon come first.
            if !self.sessions.awaiting().is_empty() || !(self.tokens.is_open() || wanted.1) {
                bivouac_net::before_waiting();
                if !self.tokens.park(RECLAIM_LOOK) {
                    return Ok(TakenTokens { attr, grant: None });
                }
                continue;
            }
            if is_queued && !self.tokens.lock().manager.is_waiting(ino, ctx.client, call) {
                // Its client has given it up.
                return Ok(TakenTokens { attr, grant: None });
            }
            let (step, version) = self.tokens.ask(ino, ctx.client, call, wanted);
            is_queued = true;
            let wait_until = match step {
                RequestOutcome::Granted(Grant { serial, ranges }) => {
                    let grant = TokenGrant { life: self.tokens.life(), serial, ranges };
                    return Ok(TakenTokens { attr, grant: Some(grant) });
                }
                RequestOutcome::Fence(fence) => {
                    self.fence_file(ctx, ino, fence)?;
                    // However long that took, and whoever took its place for given up meanwhile: it is asked for once
                    // more, and one that goes on with its call is granted at once.
                    (until, is_queued) = (until.max(Instant::now() + QUEUED_MAX), false);
                    continue;
                }
                RequestOutcome::Recall(recalls) => {
                    bivouac_net::before_waiting();
                    if self.recall_tokens(ino, &recalls) {
                        continue;
                    }
                    until
                }
                RequestOutcome::Inherited { until: resumed } => until.min(resumed),
                RequestOutcome::Queued { .. } => until,
            };
            bivouac_net::before_waiting();
            if !self.tokens.wait(version, wait_until) {
                return Ok(TakenTokens { attr, grant: None });
            }
        }
    }

    /// Gives a file a new epoch: what is sent for calls that tokens covered before is refused by its targets.
    fn fence_file(&self, ctx: &Ctx<'_>, ino: Ino, fence: Fence) -> FsResult<()> {
        // Once, whoever asks.
        self.raise_epoch(
            ctx,
            ino,
            || !self.tokens.lock().manager.is_fenced(ino, fence),
            || {
                self.tokens.free(|state| state.manager.fenced(ino, fence));
            },
        )
    }

    /// Recalls tokens from all their holders at once. Returns true if all of them are free.
    fn recall_tokens(&self, ino: Ino, recalls: &[Recall]) -> bool {
        let recall = |recall: &Recall| {
            let yielded = self.recall_from(ino, recall);
            self.take_back(ino, recall, yielded.as_ref())
        };
        let recalled = recalls.chunks(RECALLS_MAX).flat_map(|some| each_at_once(some, recall));
        // Evaluated to the end, also behind a holder that keeps its tokens: all are asked.
        recalled.filter(|is_free| *is_free != Some(true)).count() == 0
    }

    /// Takes note of what a client said to a recall, if it answered. Whether what is required is free.
    fn take_back(&self, ino: Ino, recall: &Recall, yielded: Option<&Yielded>) -> bool {
        let Recall { client, upto, wanted, .. } = recall;
        let keeps = |yielded: &Yielded| yielded.kept.iter().any(|kept| kept.overlaps(&wanted.required));
        let given = yielded.map(|yielded| yielded.given(wanted)).unwrap_or_default();
        if yielded.is_some_and(|yielded| !keeps(yielded)) {
            self.tokens.free(|state| {
                state.manager.yielded(ino, *client, *upto, wanted.mode, &given);
                state.yields(ino, *client, *upto);
            });
            return true;
        }
        self.tokens.free_some(|state| {
            if !yielded.is_some_and(|yielded| yielded.gives_back) {
                // It may not have heard of it: the next request recalls anew.
                state.manager.recall_ended(ino, *client);
            }
            state.manager.yielded(ino, *client, *upto, wanted.mode, &given)
        });
        // Who says that it goes on with a call is alive.
        let patience =
            if yielded.is_some_and(|yielded| yielded.gives_back) { 4 } else { 1 } * self.reaper.grace();
        let is_overdue = self.tokens.lock().keeps(ino, recall, Instant::now()) > patience;
        if is_overdue {
            log::warn!("client {} does not give back tokens of inode {ino}: it loses them", client.0);
            self.tokens.free(|state| {
                state.manager.revoke(ino, *client);
                state.yields(ino, *client, u64::MAX);
            });
        }
        is_overdue
    }

    /// Asks a client to give back what somebody needs. `None` if it does not answer, or cannot be asked: what a process
    /// that is no mount has, it gives back at the end of each call.
    fn recall_from(&self, ino: Ino, recall: &Recall) -> Option<Yielded> {
        let Recall { client, upto, wanted, waiting, .. } = recall.clone();
        let TokenRequest { mode, required, desired } = wanted;
        let life = self.tokens.life();
        let request = RecallTokensRequest { client, ino, life, upto, mode, required, desired, waiting };
        let RecalledTokens { kept, gives_back } = match self.served.get(client).tokens {
            Some(holder) => holder.recall(&request),
            None => {
                let node = client.mounted_through(self.map.formation).filter(|node| self.peers.has(*node))?;
                let body = request.to_bytes();
                let request = PeerRequest::of_node(self.id, Op::RecallTokens, &body);
                let asked = self.peers.ask_within::<op::RecallTokens>(Some(ANSWER_MAX), node, &request);
                asked
                    .inspect_err(
                        |error| log::debug!(why:% = error; "{node} does not say what tokens are free"),
                    )
                    .ok()?
            }
        };
        Some(Yielded { kept, gives_back })
    }

    /// Hands tokens on to a new process of a client, which first finishes what its predecessor was doing.
    pub(crate) fn hand_on_tokens(&self, client: ClientId) {
        self.tokens.free(|state| {
            state.manager.restart(client, Instant::now());
            state.forget(client);
        });
    }

    /// Takes the tokens of a lost client: what it may still send is refused before others get them.
    pub(crate) fn lose_tokens(&self, client: ClientId) {
        let awaits_reclaim = self.sessions.awaiting().contains(&client);
        self.tokens.free(|state| {
            state.manager.lose(client);
            state.forget(client);
            // What an earlier daemon granted to it is known to nobody else.
            if awaits_reclaim {
                state.manager.lose_unknown();
            }
        });
    }

    /// Drops the tokens of a client that ends, and has nothing under way.
    pub(crate) fn drop_tokens(&self, client: ClientId) {
        self.tokens.free(|state| {
            state.manager.leave(client);
            state.forget(client);
        });
    }
}
