//! Carrying a call to its seats: what is asked of each, and what of that is done without a message. A call that is one
//! message per seat goes at once; the messages of a larger one go in turns.

use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::SeatRange;
use bivouac_net::{Started, Wait, await_any};
use bivouac_types::{FsError, FsResult, Ino, NodeId};
use bivouac_wire::Operation;

use super::Content;
use super::direct::Direct;
use super::plan::StreamPlan;
use crate::homes::known::Known;

/// What an answer means for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is as it was wanted.
    Whole,
    /// There were fewer bytes.
    Short,
    /// The seat has a newer epoch: there is no use in going on.
    Overtaken,
}

impl Verdict {
    /// Of a write that a seat has accepted, or not.
    pub fn of_write(accepted: bool) -> Verdict {
        if accepted { Verdict::Whole } else { Verdict::Overtaken }
    }
}

/// A call that is carried.
pub struct Call<'a> {
    pub direct: &'a Direct,
    pub ino: Ino,
    pub known: &'a Known,
    /// By message: to whom it goes.
    pub nodes: &'a [NodeId],
}

/// Its messages, which have numbers.
pub trait Messages<'a> {
    type Op: Operation;

    /// What a message asks.
    fn request(&self, call: &Call<'_>, message: usize) -> <Self::Op as Operation>::Request<'static>;

    /// What it brings.
    fn payload(&self, _message: usize) -> &'a [IoSlice<'a>] {
        &[]
    }

    /// Does what a message would do; `None` if it takes one.
    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict>;

    /// The buffers for the answer to a message that goes in turns.
    fn room(&mut self, _message: usize) -> Vec<IoSliceMut<'_>> {
        Vec::new()
    }

    /// Awaits an answer.
    fn finish(
        &mut self,
        call: &Call<'_>,
        message: usize,
        started: Started<'_, Self::Op>,
    ) -> FsResult<Verdict>;
}

/// A message under way.
struct Flow<'a, O> {
    message: usize,
    started: Started<'a, O>,
    ready: bool,
}

impl Content {
    /// Carries a call of one message to each of these nodes. Whether all was as it was wanted; the first failure if there
    /// was one.
    pub(super) fn at_once<'a, M: Messages<'a>>(
        &'a self,
        (ino, known): (Ino, &Known),
        nodes: &[NodeId],
        mut messages: M,
    ) -> FsResult<bool> {
        let call = &Call { direct: &self.direct, ino, known, nodes };
        let (mut under_way, mut here) = (Vec::with_capacity(nodes.len()), Vec::new());
        let (mut whole, mut failure) = (true, None);
        let mut begin = |messages: &M, message: usize| {
            let (node, request) = (nodes[message], messages.request(call, message));
            match self.ways.start::<M::Op>(node, &request, messages.payload(message)) {
                Ok(started) => under_way.push((self.ways.local != Some(node), message, started)),
                Err(error) => _ = failure.get_or_insert(error),
            }
        };
        for (message, node) in nodes.iter().enumerate() {
            if self.direct.is_here(*node) { here.push(message) } else { begin(&messages, message) }
        }
        // What is done here is done while the others are on their way.
        for message in here {
            match messages.here(call, message) {
                Some(verdict) => whole &= verdict == Verdict::Whole,
                None => begin(&messages, message),
            }
        }
        under_way.sort_by_key(|(is_remote, ..)| *is_remote);
        // Every answer is awaited, also behind a failure: no write may still be on its way when we return, and one given up
        // would cost its connection.
        for (_, message, started) in under_way {
            match messages.finish(call, message, started) {
                Ok(verdict) => whole &= verdict == Verdict::Whole,
                Err(error) => _ = failure.get_or_insert(error),
            }
        }
        failure.map_or(Ok(whole), Err)
    }

    /// As [`Content::at_once`], of several messages to a node, of which a few are under way at a time: links wait neither
    /// for each other nor for an answer.
    pub(super) fn in_turns<'a, M: Messages<'a>>(
        &'a self,
        (ino, known): (Ino, &Known),
        nodes: &[NodeId],
        ranges: &[SeatRange],
        mut messages: M,
    ) -> FsResult<bool> {
        let call = &Call { direct: &self.direct, ino, known, nodes };
        let plan = &mut StreamPlan::new(ranges, |message| self.is_here(nodes[message]));
        let (mut flows, mut whole, mut failure): (Vec<Flow<'a, M::Op>>, _, _) = (Vec::new(), true, None);
        let begin = |plan: &mut StreamPlan, messages: &M, message: usize, failure: &mut Option<FsError>| {
            let (node, request) = (nodes[message], messages.request(call, message));
            let begun = self.ways.begin::<M::Op>(node, &request, messages.payload(message));
            let started = begun.map_err(|error| stop(plan, failure, error)).ok()?;
            Some(Flow { message, ready: started.wait().is_none(), started })
        };
        loop {
            while let Some(message) = plan.next() {
                flows.extend(begin(plan, &messages, message, &mut failure));
            }
            // What is done here is done while the others are on their way.
            let here = plan.next_here();
            match here.map(|message| (message, messages.here(call, message))) {
                Some((_, Some(verdict))) => whole &= conclude(plan, verdict),
                Some((message, None)) => {
                    plan.begun_here(message);
                    flows.extend(begin(plan, &messages, message, &mut failure));
                }
                None if flows.is_empty() => break,
                None => {}
            }
            let mut moved = here.is_some();
            for outcome in advance(call, plan, &mut messages, &mut flows, &mut moved) {
                match outcome {
                    Ok(verdict) => whole &= conclude(plan, verdict),
                    Err(error) => stop(plan, &mut failure, error),
                }
            }
            let waits: Vec<Wait<'_>> = flows.iter().filter_map(|flow| flow.started.wait()).collect();
            if !waits.is_empty() {
                let ready = await_any(&waits, !moved);
                flows.iter_mut().zip(ready).for_each(|(flow, ready)| flow.ready = ready);
            }
        }
        failure.map_or(Ok(whole), Err)
    }
}

/// Nothing more is begun.
fn stop(plan: &mut StreamPlan, failure: &mut Option<FsError>, error: FsError) {
    plan.stop();
    failure.get_or_insert(error);
}

fn conclude(plan: &mut StreamPlan, verdict: Verdict) -> bool {
    if verdict == Verdict::Overtaken {
        plan.stop();
    }
    verdict == Verdict::Whole
}

/// Carries on what can go on. What came of what is over, and whether anything may be begun now that could not be before.
fn advance<'a, M: Messages<'a>>(
    call: &Call<'_>,
    plan: &mut StreamPlan,
    messages: &mut M,
    flows: &mut Vec<Flow<'a, M::Op>>,
    moved: &mut bool,
) -> Vec<FsResult<Verdict>> {
    let (mut over, mut left) = (Vec::new(), Vec::with_capacity(flows.len()));
    for mut flow in flows.drain(..) {
        let message = flow.message;
        let is_over = std::mem::take(&mut flow.ready) && flow.started.advance(&mut messages.room(message));
        if is_over {
            plan.ended(message);
            *moved = true;
            over.push(messages.finish(call, message, flow.started));
        } else {
            left.push(flow);
        }
    }
    *flows = left;
    over
}
