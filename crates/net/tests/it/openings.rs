//! Connections that are being made: several at a time, and while something else happens.
#![allow(clippy::unwrap_used, reason = "test code outside of test functions")]

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::world::{World, connect, frame, identity, unanswered};
use bivouac_net::conformance::Memory;
use bivouac_net::{
    Address, NetError, PendingReply, Request, SocketOptions, SocketTransport, StartedCall, Transport, Wait,
    await_any, begin,
};
use bivouac_wire::{Frame, Op, op};

const WAIT: Duration = Duration::from_secs(20);

/// In front of a server: who comes is not heard before it is let through.
struct Gate {
    address: Address,
    came: Receiver<TcpStream>,
}

impl Gate {
    fn new() -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::tcp(listener.local_addr().unwrap().to_string());
        let (comes, came) = channel();
        // Until nobody looks any more.
        std::thread::spawn(move || listener.incoming().try_for_each(|stream| comes.send(stream.unwrap())));
        Gate { address, came }
    }

    fn transport(&self, wait_ms: u64) -> SocketTransport {
        SocketTransport::new(
            self.address.clone(),
            identity(),
            SocketOptions { wait_ms, ..SocketOptions::default() },
        )
    }

    fn next(&self) -> TcpStream {
        self.came.recv_timeout(WAIT).unwrap()
    }
}

/// Lets somebody through to a server.
fn pass(from: &TcpStream, to: &Address) {
    let to = connect(to);
    for (from, to) in [(from, &to), (&to, from)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    }
}

fn ping(id: u64) -> Frame {
    Frame { op: Op::Ping as u16, ..frame(id) }
}

fn carry_on(pending: &mut PendingReply<'_>, request: &Request<'_>) {
    while !pending.advance(request, &mut []) {
        let _it_alone = await_any(&[pending.wait().unwrap()], true);
    }
}

/// If one were waited for, the next one would never come.
#[test]
fn they_are_made_side_by_side() {
    let (gate, memory) = (Gate::new(), Arc::new(Memory::default()));
    let world = World::new(Arc::clone(&memory) as Arc<_>);
    let transport = gate.transport(20_000);
    let mut begun: Vec<StartedCall<'_, op::Ping>> =
        (1..=5).map(|id| begin::<op::Ping>(&transport, frame(id), &(), &[])).collect();
    let came: Vec<TcpStream> = begun.iter().map(|_| gate.next()).collect();
    for _ in 0..3 {
        begun.iter_mut().for_each(|started| assert!(!started.advance(&mut []) && !started.is_sent()));
    }
    came.iter().rev().for_each(|stream| pass(stream, &world.address));
    loop {
        let over = begun.iter_mut().filter_map(|started| started.advance(&mut []).then_some(())).count();
        let waits: Vec<Wait<'_>> = begun.iter().filter_map(StartedCall::wait).collect();
        if over == begun.len() {
            break;
        }
        let _all_are_tried = await_any(&waits, true);
    }
    let finished = begun.into_iter().map(|started| started.finish(&mut []).unwrap());
    assert_eq!(finished.count(), 5);
    assert_eq!(memory.seen().len(), 5);
    // They are kept for the next ones.
    begin::<op::Ping>(&transport, frame(6), &(), &[]).finish(&mut []).unwrap();
    assert!(gate.came.try_recv().is_err());
}

/// What the former daemon knew is told to the new one first, on the connection that noticed it.
#[test]
fn one_that_was_begun_before_a_daemon_was_taken_for_the_new_one_carries_nothing() {
    let (gate, memory) = (Gate::new(), Arc::new(Memory::default()));
    let world = World::new(Arc::clone(&memory) as Arc<_>);
    let transport = gate.transport(20_000);
    let request = Request::new(ping(1), &[], &[]);
    let mut pending = transport.begin(&request);
    let early = gate.next();
    std::thread::scope(|threads| {
        let connecting = threads.spawn(|| transport.connect(WAIT));
        pass(&gate.next(), &world.address);
        connecting.join().unwrap().unwrap();
    });
    pass(&early, &world.address);
    carry_on(&mut pending, &request);
    let error = pending.finish(&request, &mut Vec::new(), &mut []).unwrap_err();
    assert!(matches!(error, NetError::Restarted { .. }) && !error.maybe_sent(), "{error}");
    assert!(memory.seen().is_empty());
    transport.exchange(&request, &mut Vec::new(), &mut []).unwrap();
    assert_eq!(memory.seen().len(), 1);
}

/// The request was not sent: it may be sent elsewhere, and without a mark.
#[test]
fn who_is_never_answered_or_hung_up_on_has_sent_nothing() {
    let gate = Gate::new();
    let request = Request::new(ping(1), &[], &[]);
    let silent = gate.transport(300);
    let mut pending = silent.begin(&request);
    carry_on(&mut pending, &request);
    let error = pending.finish(&request, &mut Vec::new(), &mut []).unwrap_err();
    assert!(matches!(error, NetError::TimedOut { waited_ms: 300, .. }), "{error}");
    let transport = gate.transport(20_000);
    let mut pending = transport.begin(&request);
    drop((gate.next(), gate.next()));
    carry_on(&mut pending, &request);
    let error = pending.finish(&request, &mut Vec::new(), &mut []).unwrap_err();
    assert!(matches!(error, NetError::Connect { .. }) && !error.maybe_sent(), "{error}");
    drop(gate);
    let (_socket, closed) = unanswered();
    let refused = SocketTransport::new(closed, identity(), SocketOptions::default());
    let mut pending = refused.begin(&request);
    carry_on(&mut pending, &request);
    let error = pending.finish(&request, &mut Vec::new(), &mut []).unwrap_err();
    assert!(matches!(error, NetError::Connect { .. }) && !error.maybe_sent(), "{error}");
}

/// A name may have addresses at which nobody listens.
#[test]
fn every_address_of_a_host_is_tried_in_steps() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let world = World::new(Arc::new(Memory::default()));
    let address = Address::tcp(format!("localhost:{port}"));
    let transport = SocketTransport::new(address, identity(), SocketOptions::default());
    let request = Request::new(ping(1), &[], &[]);
    let mut pending = transport.begin(&request);
    std::thread::scope(|threads| {
        threads.spawn(|| pass(&listener.accept().unwrap().0, &world.address));
        carry_on(&mut pending, &request);
    });
    pending.finish(&request, &mut Vec::new(), &mut []).unwrap();
}
