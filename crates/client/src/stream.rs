//! Large calls: messages to several seats under way together, and the next ones to a seat begun before its last one is over,
//! so that no link waits for another, nor for an answer.

mod plan;

use std::io::{IoSlice, IoSliceMut};

use bivouac_layout::SeatRange;
use bivouac_net::{Started, Wait, await_any};
use bivouac_types::limits::TRANSFER_MAX;
use bivouac_types::{FsError, FsResult, Ino, NodeId};
use bivouac_wire::{Operation, ReadDone, WriteRequest, Written, op};

use self::plan::{StreamPlan, cut};
use crate::client::Client;
use crate::data::{gather, request, scatter};
use crate::known::Known;

/// Most bytes of a call that are carried at a time. Between two such parts links wait for an answer; what overtakes or ends
/// a part concerns all of it.
const STRETCH_MAX: usize = 256 << 20;

/// What an answer means for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// All is as it was wanted.
    Whole,
    /// There were fewer bytes.
    Short,
    /// The seat has a newer epoch: there is no use in going on.
    Overtaken,
}

/// A message under way.
struct Flow<'a, O> {
    message: usize,
    started: Started<'a, O>,
    ready: bool,
}

/// A call that is carried: what it asks of seats, what is done without a message, and what answers mean.
trait Work<'a> {
    type Op: Operation;

    /// Begins a message.
    fn begin(&self, message: usize) -> FsResult<Started<'a, Self::Op>>;

    /// Does what a message would do; `None` if it takes one.
    fn here(&mut self, message: usize) -> Option<Verdict>;

    /// The buffers for the answer.
    fn room(&mut self, message: usize) -> Vec<IoSliceMut<'_>>;

    /// Takes an answer.
    fn take(&mut self, message: usize, answer: (<Self::Op as Operation>::Reply, usize)) -> Verdict;
}

impl Client {
    /// How many bytes of a call are read or written at a time. What is not longer than a message is one request. In front of
    /// site storage room may have to be made first, so there are as few under way as can be.
    pub(crate) fn stretch(&self, ino: Ino, wanted: usize) -> usize {
        if wanted <= TRANSFER_MAX || self.may_be_bound(ino) { TRANSFER_MAX } else { STRETCH_MAX }
    }

    /// Writes to all seats. Whether none had a newer epoch.
    pub(crate) fn write_stretch(&self, ino: Ino, known: &Known, offset: u64, data: &[u8]) -> FsResult<bool> {
        let ranges = cut(&known.layout, offset, data.len() as u64);
        let payloads: Vec<Vec<IoSlice<'_>>> = ranges.iter().map(|range| gather(range, data)).collect();
        let (nodes, mut plan) = self.plan(&ranges)?;
        let writing =
            Writing { client: self, ino, known, ranges: &ranges, nodes: &nodes, payloads: &payloads };
        carry(&mut plan, writing)
    }

    /// Reads from all seats, zeros where they have nothing. Whether they had everything, as of this epoch.
    pub(crate) fn read_stretch(
        &self,
        ino: Ino,
        known: &Known,
        offset: u64,
        into: &mut [u8],
    ) -> FsResult<bool> {
        let ranges = cut(&known.layout, offset, into.len() as u64);
        let slices = scatter(&ranges, into);
        let (nodes, mut plan) = self.plan(&ranges)?;
        carry(&mut plan, Reading { client: self, ino, known, ranges: &ranges, nodes: &nodes, slices })
    }

    /// The nodes of messages, and the order in which they go.
    fn plan(&self, ranges: &[SeatRange]) -> FsResult<(Vec<NodeId>, StreamPlan)> {
        let nodes = ranges.iter().map(|range| self.content_node(range)).collect::<FsResult<Vec<_>>>()?;
        let is_here = |node: &NodeId| self.local == Some(*node) || self.direct.is_here(*node);
        let plan = StreamPlan::new(ranges, |message| nodes.get(message).is_some_and(is_here));
        Ok((nodes, plan))
    }
}

/// Carries all messages. Whether all was as it was wanted; the first failure if there was one. No message is under way any
/// more then: every answer is awaited, also behind a failure.
fn carry<'a, W: Work<'a>>(plan: &mut StreamPlan, mut work: W) -> FsResult<bool> {
    let (mut flows, mut whole, mut failure): (Vec<Flow<'a, W::Op>>, _, _) = (Vec::new(), true, None);
    loop {
        while let Some(message) = plan.next() {
            begin(&work, message, &mut flows).unwrap_or_else(|error| stop(plan, &mut failure, error));
        }
        // What is done here is done while the others are on their way.
        let here = plan.next_here();
        match here.map(|message| (message, work.here(message))) {
            Some((_, Some(verdict))) => whole &= conclude(plan, verdict),
            Some((message, None)) => {
                plan.begun_here(message);
                begin(&work, message, &mut flows).unwrap_or_else(|error| stop(plan, &mut failure, error));
            }
            None if flows.is_empty() => break,
            None => {}
        }
        let mut moved = here.is_some();
        for (message, answer) in advance(plan, &mut work, &mut flows, &mut moved) {
            match answer.map(|answer| work.take(message, answer)) {
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

fn begin<'a, W: Work<'a>>(work: &W, message: usize, flows: &mut Vec<Flow<'a, W::Op>>) -> FsResult<()> {
    let started = work.begin(message)?;
    flows.push(Flow { message, ready: started.wait().is_none(), started });
    Ok(())
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

/// Carries on what can go on. What is over, and whether anything may be begun now that could not be before.
#[allow(clippy::type_complexity, reason = "an operation's answer is named nowhere else")]
fn advance<'a, W: Work<'a>>(
    plan: &mut StreamPlan,
    work: &mut W,
    flows: &mut Vec<Flow<'a, W::Op>>,
    moved: &mut bool,
) -> Vec<(usize, FsResult<(<W::Op as Operation>::Reply, usize)>)> {
    let (mut over, mut left) = (Vec::new(), Vec::with_capacity(flows.len()));
    for mut flow in flows.drain(..) {
        let message = flow.message;
        let is_over = std::mem::take(&mut flow.ready) && flow.started.advance(&mut work.room(message));
        if is_over {
            plan.ended(message);
            *moved = true;
            over.push((message, flow.started.finish(&mut work.room(message))));
        } else {
            left.push(flow);
        }
    }
    *flows = left;
    over
}

/// A call that writes.
struct Writing<'a> {
    client: &'a Client,
    ino: Ino,
    known: &'a Known,
    ranges: &'a [SeatRange],
    nodes: &'a [NodeId],
    payloads: &'a [Vec<IoSlice<'a>>],
}

impl<'a> Work<'a> for Writing<'a> {
    type Op = op::Write;

    fn begin(&self, message: usize) -> FsResult<Started<'a, op::Write>> {
        let (range, layout, epoch) = (&self.ranges[message], self.known.layout, self.known.epoch);
        let request =
            WriteRequest { ino: self.ino, seat: range.seat, layout, epoch, offset: range.subfile_offset };
        self.client.ways.begin::<op::Write>(self.nodes[message], &request, &self.payloads[message])
    }

    fn here(&mut self, message: usize) -> Option<Verdict> {
        let (node, range, payload) = (self.nodes[message], &self.ranges[message], &self.payloads[message]);
        let taken = self.client.write_direct(node, self.ino, range, self.known.epoch, payload)?;
        Some(if taken { Verdict::Whole } else { Verdict::Overtaken })
    }

    fn room(&mut self, _message: usize) -> Vec<IoSliceMut<'_>> {
        Vec::new()
    }

    fn take(&mut self, _message: usize, (written, _): (Written, usize)) -> Verdict {
        if written.accepted { Verdict::Whole } else { Verdict::Overtaken }
    }
}

/// A call that reads.
struct Reading<'a, 'b> {
    client: &'a Client,
    ino: Ino,
    known: &'a Known,
    ranges: &'a [SeatRange],
    nodes: &'a [NodeId],
    slices: Vec<Vec<IoSliceMut<'b>>>,
}

impl Reading<'_, '_> {
    fn judge(&mut self, message: usize, read: usize, epoch: u32) -> Verdict {
        bivouac_layout::zero_behind(&mut self.slices[message], read);
        match (epoch <= self.known.epoch, read as u64 == self.ranges[message].len) {
            (false, _) => Verdict::Overtaken,
            (true, false) => Verdict::Short,
            (true, true) => Verdict::Whole,
        }
    }
}

impl<'a> Work<'a> for Reading<'a, '_> {
    type Op = op::Read;

    fn begin(&self, message: usize) -> FsResult<Started<'a, op::Read>> {
        let request = request(self.ino, &self.ranges[message]);
        self.client.ways.begin::<op::Read>(self.nodes[message], &request, &[])
    }

    fn here(&mut self, message: usize) -> Option<Verdict> {
        let (client, node, range) = (self.client, self.nodes[message], &self.ranges[message]);
        let ino = self.ino;
        let (read, epoch) = client.read_direct(node, ino, range, &mut self.room(message))?;
        Some(self.judge(message, read, epoch))
    }

    fn room(&mut self, message: usize) -> Vec<IoSliceMut<'_>> {
        // Those that are given away may come back advanced.
        self.slices[message].iter_mut().map(|slice| IoSliceMut::new(slice)).collect()
    }

    fn take(&mut self, message: usize, (done, read): (ReadDone, usize)) -> Verdict {
        self.judge(message, read, done.epoch)
    }
}
