//! Carrying a call to its targets: what is asked of each, and what of that is done without a message. A call that is one
//! message per target goes at once; the messages of a larger one go in turns.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::TargetRange;
use bivouac_net::{Started, Wait, await_any};
use bivouac_types::{FsError, FsResult, Ino, NodeId};
use bivouac_wire::Operation;

use super::Content;
use super::direct::Direct;
use super::plan::StreamPlan;
use crate::homes::known::KnownFile;

/// What an answer means for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is as it was wanted.
    Whole,
    /// There were fewer bytes.
    Short,
    /// The target has a newer epoch: there is no use in going on.
    Overtaken,
}

impl Verdict {
    /// Of a write that a target has accepted, or not.
    pub fn of_write(accepted: bool) -> Verdict {
        if accepted { Verdict::Whole } else { Verdict::Overtaken }
    }
}

/// A call that is carried.
pub struct Call<'a> {
    pub direct: &'a Direct,
    pub ino: Ino,
    pub known: &'a KnownFile,
    /// By message: to whom it goes.
    pub nodes: &'a [NodeId],
}

/// The messages of a change that targets have carried out, for the attempts of one epoch. A later attempt leaves them out:
/// another client may have replaced their bytes since.
#[derive(Default)]
pub struct Carried {
    is_whole: bool,
    messages: BTreeSet<usize>,
    /// By message: bytes of it, from the first.
    parts: BTreeMap<usize, u64>,
}

impl Carried {
    /// Whether a message has been carried out.
    pub fn has(&self, message: usize) -> bool {
        self.is_whole || self.messages.contains(&message)
    }

    /// A message has been carried out.
    pub fn add(&mut self, message: usize) {
        self.messages.insert(message);
    }

    /// How many bytes of a message have been carried out, from the first.
    pub fn part(&self, message: usize) -> u64 {
        self.parts.get(&message).copied().unwrap_or_default()
    }

    /// So many more bytes of a message have been carried out.
    pub fn add_part(&mut self, message: usize, bytes: u64) {
        *self.parts.entry(message).or_default() += bytes;
    }

    /// Whether nothing is left to carry.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Nothing is left to carry.
    pub fn complete(&mut self) {
        self.is_whole = true;
    }

    fn is_empty(&self) -> bool {
        !self.is_whole && self.messages.is_empty()
    }
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
    /// Carries a call of one message to each of these nodes, but for what is carried already. Whether all was as it was
    /// wanted; the first failure if there was one.
    pub(super) fn at_once<'a, M: Messages<'a>>(
        &'a self,
        (ino, known): (Ino, &KnownFile),
        nodes: &[NodeId],
        mut messages: M,
        carried: &mut Carried,
    ) -> FsResult<bool> {
        let call = &Call { direct: &self.direct, ino, known, nodes };
        let (mut under_way, mut here) = (Vec::with_capacity(nodes.len()), Vec::new());
        let (mut whole, mut failure) = (true, None);
        let mut begin = |messages: &M, message: usize| {
            let (node, request) = (nodes[message], messages.request(call, message));
            match self.connections.start::<M::Op>(node, &request, messages.payload(message)) {
                Ok(started) => under_way.push((self.connections.local != Some(node), message, started)),
                Err(error) => _ = failure.get_or_insert(error),
            }
        };
        for (message, node) in nodes.iter().enumerate().filter(|(message, _)| !carried.has(*message)) {
            if self.direct.is_here(*node) { here.push(message) } else { begin(&messages, message) }
        }
        // Of a call of one message that fails nothing has been carried out.
        let mut settle = |message: usize, verdict: Verdict| {
            whole &= verdict == Verdict::Whole;
            if verdict == Verdict::Whole && nodes.len() > 1 {
                carried.add(message);
            }
        };
        // What is done here is done while the others are on their way.
        for message in here {
            match messages.here(call, message) {
                Some(verdict) => settle(message, verdict),
                None => begin(&messages, message),
            }
        }
        under_way.sort_by_key(|(is_remote, ..)| *is_remote);
        // Every answer is awaited, also behind a failure: no write may still be on its way when we return, and one given up
        // would cost its connection.
        for (_, message, started) in under_way {
            match messages.finish(call, message, started) {
                Ok(verdict) => settle(message, verdict),
                Err(error) => _ = failure.get_or_insert(error),
            }
        }
        failure.map_or(Ok(whole), Err)
    }

    /// As [`Content::at_once`], of several messages to a node, of which a few are under way at a time: links wait neither
    /// for each other nor for an answer.
    pub(super) fn in_turns<'a, M: Messages<'a>>(
        &'a self,
        (ino, known): (Ino, &KnownFile),
        nodes: &[NodeId],
        ranges: &[TargetRange],
        mut messages: M,
        carried: &mut Carried,
    ) -> FsResult<bool> {
        let call = &Call { direct: &self.direct, ino, known, nodes };
        let plan = &mut StreamPlan::new(ranges, |message| self.is_here(nodes[message]));
        if !carried.is_empty() {
            plan.leave_out(|message| carried.has(message));
        }
        let (mut flows, mut whole, mut failure): (Vec<Flow<'a, M::Op>>, _, _) = (Vec::new(), true, None);
        let begin = |plan: &mut StreamPlan, messages: &M, message: usize, failure: &mut Option<FsError>| {
            let (node, request) = (nodes[message], messages.request(call, message));
            let begun = self.connections.begin::<M::Op>(node, &request, messages.payload(message));
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
                Some((message, Some(verdict))) => whole &= conclude(plan, carried, message, verdict),
                Some((message, None)) => {
                    plan.begun_here(message);
                    flows.extend(begin(plan, &messages, message, &mut failure));
                }
                None if flows.is_empty() => break,
                None => {}
            }
            let mut moved = here.is_some();
            for (message, outcome) in advance(call, plan, &mut messages, &mut flows, &mut moved) {
                match outcome {
                    Ok(verdict) => whole &= conclude(plan, carried, message, verdict),
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

fn conclude(plan: &mut StreamPlan, carried: &mut Carried, message: usize, verdict: Verdict) -> bool {
    match verdict {
        Verdict::Whole => carried.add(message),
        Verdict::Overtaken => plan.stop(),
        Verdict::Short => {}
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
) -> Vec<(usize, FsResult<Verdict>)> {
    let (mut over, mut left) = (Vec::new(), Vec::with_capacity(flows.len()));
    for mut flow in flows.drain(..) {
        let message = flow.message;
        let is_over = std::mem::take(&mut flow.ready) && flow.started.advance(&mut messages.room(message));
        if is_over {
            plan.ended(message);
            *moved = true;
            over.push((message, messages.finish(call, message, flow.started)));
        } else {
            left.push(flow);
        }
    }
    *flows = left;
    over
}
