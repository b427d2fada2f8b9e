//! Carrying a call to its targets: the message to each, and what is done without a message. A call with one message per
//! target is sent at once; the messages of a larger one are sent in turns.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::TargetRange;
use bivouac_net::{StartedCall, Wait, await_any};
use bivouac_types::{FsError, FsResult, Ino, NodeId};
use bivouac_wire::Operation;

use super::Content;
use super::direct::Direct;
use super::plan::StreamPlan;
use crate::homes::known::KnownFile;

/// Meaning of a reply for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was done.
    Whole,
    /// There were fewer bytes.
    Short,
    /// The target has a newer epoch: the call cannot go on with this one.
    Overtaken,
}

impl Verdict {
    /// Returns the verdict on a write that a target has accepted, or has not.
    pub fn of_write(accepted: bool) -> Verdict {
        if accepted { Verdict::Whole } else { Verdict::Overtaken }
    }
}

/// A call that is carried.
pub struct Call<'a> {
    pub direct: &'a Direct,
    pub ino: Ino,
    pub known: &'a KnownFile,
    /// The node that each message goes to.
    pub nodes: &'a [NodeId],
}

/// Messages of a change that targets have carried out, within one epoch. Later attempts leave them out: another client
/// may have overwritten their bytes since.
#[derive(Default)]
pub struct Carried {
    is_whole: bool,
    messages: BTreeSet<usize>,
    /// Bytes of each message that were carried out, from its first.
    parts: BTreeMap<usize, u64>,
}

impl Carried {
    /// Returns true if a message has been carried out.
    pub fn has(&self, message: usize) -> bool {
        self.is_whole || self.messages.contains(&message)
    }

    /// Records that a message has been carried out.
    pub fn add(&mut self, message: usize) {
        self.messages.insert(message);
    }

    /// Returns how many bytes of a message have been carried out, from its first.
    pub fn part(&self, message: usize) -> u64 {
        self.parts.get(&message).copied().unwrap_or_default()
    }

    /// Records that so many more bytes of a message have been carried out.
    pub fn add_part(&mut self, message: usize, bytes: u64) {
        *self.parts.entry(message).or_default() += bytes;
    }

    /// Returns true if nothing is left to carry.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Records that nothing is left to carry.
    pub fn complete(&mut self) {
        self.is_whole = true;
    }

    fn is_empty(&self) -> bool {
        !self.is_whole && self.messages.is_empty()
    }
}

/// The messages of a call, which have numbers.
pub trait Messages<'a> {
    type Op: Operation;

    /// Returns the request of a message.
    fn request(&self, call: &Call<'_>, message: usize) -> <Self::Op as Operation>::Request<'static>;

    /// Returns the payload of a message.
    fn payload(&self, _message: usize) -> &'a [IoSlice<'a>] {
        &[]
    }

    /// Does the work of a message without sending it; `None` if it has to be sent.
    fn here(&mut self, call: &Call<'_>, message: usize) -> Option<Verdict>;

    /// Returns the buffers for the answer to a message that goes in turns.
    fn room(&mut self, _message: usize) -> Vec<IoSliceMut<'_>> {
        Vec::new()
    }

    /// Awaits an answer.
    fn finish(
        &mut self,
        call: &Call<'_>,
        message: usize,
        started: StartedCall<'_, Self::Op>,
    ) -> FsResult<Verdict>;
}

/// A message under way.
struct Flow<'a, O> {
    message: usize,
    started: StartedCall<'a, O>,
    ready: bool,
}

impl Content {
    /// Sends one message to each of these nodes, without those that are carried already. Returns true if all was done
    /// as wanted; otherwise the first failure, if there was one.
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
        // A call of one message that fails has carried nothing: there is nothing to leave out in a repetition.
        let mut settle = |message: usize, verdict: Verdict| {
            whole &= verdict == Verdict::Whole;
            if verdict == Verdict::Whole && nodes.len() > 1 {
                carried.add(message);
            }
        };
        // Local work is done while the messages are under way.
        for message in here {
            match messages.here(call, message) {
                Some(verdict) => settle(message, verdict),
                None => begin(&messages, message),
            }
        }
        // A node in this process serves its request within `finish`, while the remote ones are under way.
        under_way.sort_by_key(|(is_remote, ..)| *is_remote);
        // Every answer is awaited, also behind a failure: no write may still be on its way when we return, and one
        // given up would cost its connection.
        for (_, message, started) in under_way {
            match messages.finish(call, message, started) {
                Ok(verdict) => settle(message, verdict),
                Err(error) => _ = failure.get_or_insert(error),
            }
        }
        failure.map_or(Ok(whole), Err)
    }

    /// Like [`Content::at_once`], for several messages to a node, of which a few are under way at a time, so that links
    /// are idle neither for each other nor for a reply.
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
            // Local work is done while the messages are under way.
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
                // Waits only if nothing has moved: otherwise there may be more to begin.
                let ready = await_any(&waits, !moved);
                flows.iter_mut().zip(ready).for_each(|(flow, ready)| flow.ready = ready);
            }
        }
        failure.map_or(Ok(whole), Err)
    }
}

/// Begins no further messages, and keeps the first failure.
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

/// Goes on with messages that can proceed. Returns those that ended with their outcomes; sets `moved` if another may be
/// begun now.
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
        // Only what the socket has announced: an advance that finds nothing would be a system call for nothing.
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
