//! Conformance suite of transports, run by the tests of each implementation.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_PAYLOAD_MAX};
use bivouac_types::{ClientId, Errno, FsError, Ino, Layout, OpId, TargetIndex};
use bivouac_wire::{Blob, Decode, Frame, Op, ReadDone, ReadRequest, WriteRequest, XattrName, op};
use parking_lot::Mutex;

use crate::{
    Call, NetError, Reply, Request, Service, StartedCall, Transport, Wait, await_any, begin, call, call_into,
    start,
};

/// The client that the suite calls itself; a transport under test must have proven itself as this one.
pub const CLIENT: ClientId = ClientId(77);

/// On this channel the service says names back as payload, too.
const CHANNEL_WITH_PAYLOAD: u16 = 9;

/// A service for tests: subfiles in memory, every request's header remembered.
#[derive(Default)]
pub struct Memory {
    files: Mutex<HashMap<Ino, Vec<u8>>>,
    seen: Mutex<Vec<Frame>>,
}

impl Memory {
    /// Headers of all requests so far.
    pub fn seen(&self) -> Vec<Frame> {
        self.seen.lock().clone()
    }

    fn write(&self, call: &Call<'_>) -> Result<bivouac_wire::Written, FsError> {
        let request = WriteRequest::from_bytes(call.body).map_err(|_| Errno::EPROTO)?;
        let (mut files, start) = (self.files.lock(), usize::try_from(request.offset).unwrap_or(usize::MAX));
        let file = files.entry(request.ino).or_default();
        file.truncate(start);
        file.resize(start, 0);
        call.payload.iter().for_each(|slice| file.extend_from_slice(slice));
        Ok(bivouac_wire::Written { accepted: true, epoch: request.epoch })
    }

    fn read(&self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<usize, FsError> {
        let request = ReadRequest::from_bytes(call.body).map_err(|_| Errno::EPROTO)?;
        let files = self.files.lock();
        let file = files
            .get(&request.ino)
            .ok_or_else(|| FsError::with(Errno::ENOENT, format!("no subfile of {}", request.ino)))?;
        let from = usize::try_from(request.offset).unwrap_or(usize::MAX).min(file.len());
        let mut rest = file.get(from..).unwrap_or_default();
        reply.payload(request.len as usize, |slices| {
            let before = rest.len();
            for slice in slices {
                let (now, later) = rest.split_at(slice.len().min(rest.len()));
                if let Some(front) = slice.get_mut(..now.len()) {
                    front.copy_from_slice(now);
                }
                rest = later;
            }
            Ok(before - rest.len())
        })
    }
}

impl Service for Memory {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        self.seen.lock().push(call.frame);
        let outcome = match call.op {
            Op::Ping => Ok(()),
            Op::Write => self.write(call).map(|written| reply.send(&written)),
            Op::Read => self.read(call, reply).map(|_| reply.send(&ReadDone { epoch: 0 })),
            // Says the name back, as body and, if asked on that channel, as payload too.
            Op::GetXattr => XattrName::from_bytes(call.body)
                .map_err(|_| Errno::EPROTO.into())
                .map(|request| echo(call, request.name, reply)),
            _ => Err(FsError::with(Errno::ENODATA, "é".repeat(1000))),
        };
        if let Err(error) = outcome {
            reply.fail(&error);
        }
    }
}

fn echo(call: &Call<'_>, name: &[u8], reply: &mut Reply<'_>) {
    reply.send(&Blob { bytes: name.to_vec() });
    if call.frame.channel != CHANNEL_WITH_PAYLOAD {
        return;
    }
    // Filling memory cannot fail; the error type is there for services that read from files.
    let _: Result<usize, FsError> = reply.payload(name.len(), |slices| {
        let mut bytes = name.iter();
        let places = slices.iter_mut().flat_map(|slice| slice.iter_mut());
        Ok(places.zip(&mut bytes).map(|(to, from)| *to = *from).count())
    });
}

type Check = fn(&dyn Transport) -> Result<(), String>;

/// Checks a transport. `make` gives one that leads to the service on the client lane as [`CLIENT`], with
/// whatever must live as long.
///
/// # Errors
/// A sentence about the first thing that is not as it must be.
pub fn transport<G>(make: impl Fn(Arc<dyn Service>) -> (Arc<dyn Transport>, G)) -> Result<(), String> {
    let checks: [(&str, Check); 8] = [
        ("bodies", bodies),
        ("errors", errors),
        ("payloads", payloads),
        ("body and payload together", both),
        ("refused operations", refused_operations),
        ("limits", limits),
        ("several at once", several_at_once),
        ("several in steps", several_in_steps),
    ];
    for (name, check) in checks {
        let (transport, _guard) = make(Arc::new(Memory::default()));
        check(&*transport).map_err(|text| format!("{name}: {text}"))?;
    }
    let (transport, _guard) = make(Arc::new(Memory::default()));
    many_threads(&*transport).map_err(|text| format!("many threads: {text}"))
}

fn frame(id: u64) -> Frame {
    Frame::request(0, OpId(id), CLIENT, 1)
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn bodies(transport: &dyn Transport) -> Result<(), String> {
    call::<op::Ping>(transport, frame(1), &(), &[]).map_err(text)?;
    for len in [0, 1, 63, 4000, 4096, 20_000, 100_000, FRAME_BODY_MAX - 16] {
        let name: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let request = XattrName { ino: Ino(5), name: &name };
        let reply = call::<op::GetXattr>(transport, frame(2), &request, &[]).map_err(text)?;
        ensure(reply.bytes == name, || format!("a body of {len} bytes came back changed"))?;
    }
    Ok(())
}

fn errors(transport: &dyn Transport) -> Result<(), String> {
    let request = bivouac_wire::InoOnly { ino: Ino(1) };
    let error = call::<op::ReadLink>(transport, frame(1), &request, &[]).err().ok_or("no error")?;
    ensure(error.errno() == Errno::ENODATA, || format!("errno became {}", error.errno()))?;
    ensure(error.detail() == Some(&"é".repeat(512)), || format!("explanation became {:?}", error.detail()))?;
    let mut space = [0u8; 100];
    let mut into = [IoSliceMut::new(&mut space)];
    let error = call_into::<op::Read>(transport, frame(2), &read(9, 0, 100), &[], &mut into);
    let error = error.err().ok_or("reading what is not there succeeded")?;
    ensure(error.errno() == Errno::ENOENT, || format!("errno with buffers became {}", error.errno()))?;
    let expected = format!("no subfile of {}", Ino(9));
    ensure(error.detail() == Some(&expected), || format!("explanation became {:?}", error.detail()))
}

fn read(ino: u64, offset: u64, len: u32) -> ReadRequest {
    ReadRequest { ino: Ino(ino), target: TargetIndex(0), offset, len }
}

fn write(ino: u64, offset: u64) -> WriteRequest {
    let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
    WriteRequest { ino: Ino(ino), target: TargetIndex(0), layout, epoch: 3, offset }
}

fn payloads(transport: &dyn Transport) -> Result<(), String> {
    for len in [1usize, 100, 16_000, 16_400, 70_000, 1 << 20, FRAME_PAYLOAD_MAX] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 % 253) as u8).collect();
        let (front, back) = bytes.split_at(len / 3);
        let parts = [IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(back)];
        let written = call::<op::Write>(transport, frame(1), &write(1, 0), &parts).map_err(text)?;
        ensure(written.accepted && written.epoch == 3, || "the reply to a write was changed".into())?;
        let (mut first, mut second) = (vec![0u8; len / 2], vec![0u8; len - len / 2 + 10]);
        let mut into = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let request = read(1, 0, len as u32 + 10);
        let (_, got) = call_into::<op::Read>(transport, frame(2), &request, &[], &mut into).map_err(text)?;
        ensure(got == len, || format!("{got} of {len} bytes came back"))?;
        let whole = [first, second].concat();
        ensure(whole.get(..len) == Some(&bytes), || format!("{len} bytes came back changed"))?;
    }
    Ok(())
}

fn both(transport: &dyn Transport) -> Result<(), String> {
    for len in [10usize, 3_000, 200_000] {
        let name: Vec<u8> = (0..len).map(|at| (at % 249) as u8).collect();
        let request = XattrName { ino: Ino(5), name: &name };
        let mut space = vec![0u8; len];
        let (front, back) = space.split_at_mut(len / 4);
        let mut into = [IoSliceMut::new(front), IoSliceMut::new(back)];
        let frame = Frame { channel: CHANNEL_WITH_PAYLOAD, ..frame(2) };
        let answer = call_into::<op::GetXattr>(transport, frame, &request, &[], &mut into);
        let (reply, got) = answer.map_err(text)?;
        ensure(reply.bytes == name && got == len && space == name, || {
            format!("{len} bytes came back changed")
        })?;
    }
    Ok(())
}

fn refused_operations(transport: &dyn Transport) -> Result<(), String> {
    for (number, errno) in [(999, Errno::ENOSYS), (Op::DropInode as u16, Errno::EPROTO)] {
        let request = Request::new(Frame { op: number, ..frame(1) }, &[], &[]);
        let mut body = Vec::new();
        let head = transport.exchange(&request, &mut body, &mut []).map_err(text)?;
        ensure(head.status == errno.code(), || format!("operation {number} got status {}", head.status))?;
        ensure(!body.is_empty(), || format!("operation {number} was refused without a word"))?;
    }
    call::<op::Ping>(transport, frame(2), &(), &[]).map_err(text)
}

fn limits(transport: &dyn Transport) -> Result<(), String> {
    let (body, payload) = (vec![0u8; FRAME_BODY_MAX + 1], vec![0u8; FRAME_PAYLOAD_MAX + 1]);
    let parts = [IoSlice::new(&payload)];
    let template = Frame { op: Op::Ping as u16, ..frame(1) };
    for request in [Request::new(template, &body, &[]), Request::new(template, &[], &parts)] {
        match transport.exchange(&request, &mut Vec::new(), &mut []) {
            Err(NetError::TooLong { .. }) => {}
            other => return Err(format!("what is too long for a frame gave {other:?}")),
        }
    }
    call::<op::Ping>(transport, frame(2), &(), &[]).map_err(text)
}

fn several_at_once(transport: &dyn Transport) -> Result<(), String> {
    let contents: Vec<Vec<u8>> = (0..8u8).map(|number| vec![number; 5000]).collect();
    let parts: Vec<[IoSlice<'_>; 1]> = contents.iter().map(|bytes| [IoSlice::new(bytes)]).collect();
    let started: Vec<_> = (0..)
        .zip(&parts)
        .map(|(ino, parts)| start::<op::Write>(transport, frame(ino), &write(ino, 0), parts))
        .collect();
    for write in started.into_iter().rev() {
        write.finish(&mut []).map_err(text)?;
    }
    let reads: Vec<_> =
        (0..8).map(|ino| (ino, start::<op::Read>(transport, frame(ino), &read(ino, 0, 5000), &[]))).collect();
    for (ino, read) in reads.into_iter().rev() {
        let mut space = vec![0u8; 5000];
        let (_, got) = read.finish(&mut [IoSliceMut::new(&mut space)]).map_err(text)?;
        ensure(got == 5000 && space == vec![ino as u8; 5000], || {
            format!("request {ino} got another's answer")
        })?;
    }
    Ok(())
}

/// Carries all on until each can be finished.
fn carry_on<O: bivouac_wire::Operation>(
    started: &mut [StartedCall<'_, O>],
    into: &mut [Vec<IoSliceMut<'_>>],
) {
    let mut over = vec![false; started.len()];
    loop {
        let steps = started.iter_mut().zip(into.iter_mut()).zip(&mut over);
        steps.for_each(|((started, into), over)| *over = *over || started.advance(into));
        let waits: Vec<Wait<'_>> = started.iter().filter_map(StartedCall::wait).collect();
        if waits.is_empty() {
            return;
        }
        let _all_are_tried = await_any(&waits, true);
    }
}

fn several_in_steps(transport: &dyn Transport) -> Result<(), String> {
    const LEN: usize = 3 << 20;
    let contents: Vec<Vec<u8>> =
        (0..4usize).map(|number| (0..LEN).map(|at| (at * (number + 3) % 251) as u8).collect()).collect();
    let parts: Vec<[IoSlice<'_>; 2]> = contents
        .iter()
        .map(|bytes| bytes.split_at(LEN / 5))
        .map(|(front, behind)| [IoSlice::new(front), IoSlice::new(behind)])
        .collect();
    let begun = (0..)
        .zip(&parts)
        .map(|(ino, parts)| begin::<op::Write>(transport, frame(ino), &write(ino, 0), parts));
    let mut begun: Vec<_> = begun.collect();
    carry_on(&mut begun, &mut (0..4).map(|_| Vec::new()).collect::<Vec<_>>());
    ensure(begun.iter().all(StartedCall::is_sent), || "an answer came before its request".into())?;
    begun.into_iter().try_for_each(|write| write.finish(&mut []).map(drop)).map_err(text)?;
    let mut spaces = vec![vec![0u8; LEN + 9]; 4];
    let mut into: Vec<Vec<IoSliceMut<'_>>> = spaces
        .iter_mut()
        .map(|space| space.split_at_mut(LEN / 3))
        .map(|(front, behind)| vec![IoSliceMut::new(front), IoSliceMut::new(behind)])
        .collect();
    let request = |ino| read(ino, 0, LEN as u32 + 9);
    let begun = (0..4).map(|ino| begin::<op::Read>(transport, frame(ino), &request(ino), &[]));
    let mut begun: Vec<_> = begun.collect();
    carry_on(&mut begun, &mut into);
    for (read, into) in begun.into_iter().zip(&mut into) {
        let (_, got) = read.finish(into).map_err(text)?;
        ensure(got == LEN, || format!("{got} of {LEN} bytes came back"))?;
    }
    drop(into);
    let same = spaces.iter().zip(&contents).all(|(space, bytes)| space.starts_with(bytes));
    ensure(same, || "what was carried on in steps came back changed".into())?;
    // Some that are finished without having been carried on, and errors.
    let begun = begin::<op::Read>(transport, frame(1), &read(99, 0, 10), &[]);
    let failed = begun.finish(&mut [IoSliceMut::new(&mut [0; 10])]).err().ok_or("no error")?;
    ensure(failed.errno() == Errno::ENOENT, || format!("errno became {}", failed.errno()))
}

fn many_threads(transport: &dyn Transport) -> Result<(), String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8u8).map(|number| scope.spawn(move || one_of_many(transport, number))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

fn one_of_many(transport: &dyn Transport, number: u8) -> Result<(), String> {
    for round in 0..50u64 {
        let bytes = vec![number ^ round as u8; 3000 + usize::from(number)];
        let ino = 100 + u64::from(number);
        call::<op::Write>(transport, frame(round), &write(ino, 0), &[IoSlice::new(&bytes)]).map_err(text)?;
        let mut space = vec![0u8; bytes.len()];
        let mut into = [IoSliceMut::new(&mut space)];
        let request = read(ino, 0, bytes.len() as u32);
        call_into::<op::Read>(transport, frame(round), &request, &[], &mut into).map_err(text)?;
        ensure(space == bytes, || format!("thread {number} read other bytes than it wrote"))?;
    }
    Ok(())
}
