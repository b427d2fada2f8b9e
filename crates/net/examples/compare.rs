//! Compares transports with bare sockets that move the same bytes: round trips of empty messages, and reads
//! and writes of 1 MiB over several connections. Run with `cargo run --release -p bivouac-net --example compare`; with
//! `-- ways` it compares checksums and encryption by turns instead, processor time of both sides included.

use std::error::Error;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bivouac_net::{
    Auth, Call, Identity, InProcess, LaneKind, Listener, Peer, PeerOptions, Reply, Secret, Server,
    ServerOptions, Service, Transport, call, call_into,
};
use bivouac_types::{ClientId, FormationId, Ino, Layout, NodeId, OpId, TargetIndex};
use bivouac_wire::{Decode, Frame, Op, ReadDone, ReadRequest, WriteRequest, Written, op};
use rustix::net::sockopt;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const LEN: usize = 1 << 20;
const ROUNDS: usize = 30_000;
const TRANSFERS: usize = 3_000;
const TURNS: usize = 9;

/// Reads give whatever is in memory, writes are thrown away, as with the bare sockets.
struct Void;

impl Service for Void {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        match call.op {
            Op::Write => reply.send(&Written { accepted: true, epoch: 0 }),
            Op::Read => {
                // Whatever is in the buffers goes out: only the way is measured, as with the bare sockets.
                let len = ReadRequest::from_bytes(call.body).map_or(0, |request| request.len as usize);
                let _: Result<usize, ()> = reply.payload(len, |_| Ok(len));
                reply.send(&ReadDone { epoch: 0 });
            }
            _ => {}
        }
    }
}

fn main() -> Outcome<()> {
    if std::env::args().nth(1).is_some_and(|what| what == "ways") {
        return ways();
    }
    round_trips()?;
    for connections in [1, 2, 4] {
        for buffers in [None, Some(1 << 20), Some(4 << 20)] {
            bare_transfers(connections, buffers)?;
        }
        transfers("tcp", &tcp()?.0, connections)?;
        transfers("unix", &unix()?.0, connections)?;
    }
    Ok(std::fs::remove_file(unix_path())?)
}

fn auth(is_secure: bool) -> Auth {
    Auth { formation: FormationId([1; 16]), secret: Secret::new([2; 32]), is_secure }
}

fn frame() -> Frame {
    Frame::request(0, OpId(1), ClientId(1), 0)
}

fn served(listener: Listener, is_secure: bool) -> Outcome<(Peer, Server)> {
    let identity = Identity { auth: auth(is_secure), client: ClientId(1), lane: LaneKind::Client, epoch: 0 };
    let peer = Peer::to(NodeId(0), listener.address().clone(), identity, PeerOptions::default());
    let service = Arc::new(Void);
    let listeners = vec![(listener, LaneKind::Client)];
    Ok((peer, Server::start(listeners, service, auth(is_secure), ServerOptions::default())?))
}

fn tcp() -> Outcome<(Peer, Server)> {
    served(Listener::bind_tcp("127.0.0.1:0")?, false)
}

/// Small and large calls in the clear, summed up and encrypted, by turns: time, and processor time of both sides.
fn ways() -> Outcome<()> {
    let peers = [("checksums", false), ("encrypted", true)]
        .map(|(name, is_secure)| Ok((name, served(Listener::bind_tcp("127.0.0.1:0")?, is_secure)?)));
    let peers: Vec<_> = peers.into_iter().collect::<Outcome<_>>()?;
    let mut space = vec![1; LEN];
    for (what, calls) in [("write", 400), ("read", 400), ("ping", 10_000)] {
        let mut figures = vec![Vec::new(); peers.len()];
        for turn in 0..=TURNS {
            for number in 0..peers.len() {
                let number = (number + turn) % peers.len();
                let Some((_, (peer, _))) = peers.get(number) else { continue };
                let figure = timed(calls, || step(what, peer, &mut space))?;
                // The first one warms up.
                if turn > 0
                    && let Some(figures) = figures.get_mut(number)
                {
                    figures.push(figure)
                }
            }
        }
        for ((name, _), figures) in peers.iter().zip(&figures) {
            let [time, processor] =
                [0, 1].map(|at| spread(figures.iter().map(|figure: &[f64; 2]| figure[at])));
            println!("{what:6} {name:10} {time} µs, processors {processor} µs");
        }
    }
    Ok(())
}

fn step(what: &str, peer: &Peer, space: &mut [u8]) -> Outcome<()> {
    let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
    match what {
        "write" => {
            let request = WriteRequest { ino: Ino(1), target: TargetIndex(0), layout, epoch: 0, offset: 0 };
            call::<op::Write>(peer, frame(), &request, &[IoSlice::new(space)]).map(|_| ())?;
        }
        "read" => {
            let request = ReadRequest { ino: Ino(1), target: TargetIndex(0), offset: 0, len: LEN as u32 };
            let mut into = [IoSliceMut::new(space)];
            call_into::<op::Read>(peer, frame(), &request, &[], &mut into).map(|_| ())?;
        }
        _ => call::<op::Ping>(peer, frame(), &(), &[])?,
    }
    Ok(())
}

/// Time and processor time of a call, in microseconds.
fn timed(calls: u32, mut step: impl FnMut() -> Outcome<()>) -> Outcome<[f64; 2]> {
    let processor = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let (start, used) = (Instant::now(), processor());
    (0..calls).try_for_each(|_| step())?;
    Ok([start.elapsed().as_secs_f64() * 1e6, processor() - used].map(|time| time / f64::from(calls)))
}

/// Median, least and greatest.
fn spread(figures: impl Iterator<Item = f64>) -> String {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |at: usize| sorted.get(at).copied().unwrap_or_default();
    format!("{:.1} ({:.1} to {:.1})", at(sorted.len() / 2), at(0), at(sorted.len().saturating_sub(1)))
}

fn unix_path() -> PathBuf {
    std::env::temp_dir().join(format!("bivouac-compare-{}", std::process::id()))
}

fn unix() -> Outcome<(Peer, Server)> {
    served(Listener::bind_unix(unix_path())?, false)
}

fn per_round(name: &str, mut step: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    (0..100).try_for_each(|_| step())?;
    let start = Instant::now();
    (0..ROUNDS).try_for_each(|_| step())?;
    println!("{name:24} {:9.3} µs per round trip", start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64);
    Ok(())
}

fn ping(name: &str, transport: &dyn Transport) -> Outcome<()> {
    per_round(name, || Ok(call::<op::Ping>(transport, frame(), &(), &[])?))
}

fn round_trips() -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::spawn(move || {
        let mut space = [0u8; 64];
        while server.read_exact(&mut space).and_then(|()| server.write_all(&space)).is_ok() {}
    });
    let mut space = [0u8; 64];
    per_round("bare tcp, 64 bytes", || {
        client.write_all(&space)?;
        Ok(client.read_exact(&mut space)?)
    })?;
    ping("tcp", &tcp()?.0)?;
    ping("unix", &unix()?.0)?;
    let local = Arc::new(InProcess::new(Arc::new(Void), LaneKind::Client));
    ping("in process", &*local)?;
    ping("in process, as a peer", &Peer::new(NodeId(0), local, PeerOptions::default()))
}

fn rate(name: &str, connections: usize, step: impl Fn(usize) -> Outcome<()> + Sync) -> Outcome<()> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|number| {
                scope.spawn({
                    let step = &step;
                    move || step(number)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("a thread panicked".into())))
    })?;
    let gib = (TRANSFERS / connections * connections) as f64 / 1024.0;
    println!("{name:40} x{connections} {:6.2} GiB/s", gib / start.elapsed().as_secs_f64());
    Ok(())
}

fn transfers(name: &str, transport: &dyn Transport, connections: usize) -> Outcome<()> {
    let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
    rate(&format!("{name} write 1 MiB"), connections, |_| {
        let bytes = vec![1u8; LEN];
        let request = WriteRequest { ino: Ino(1), target: TargetIndex(0), layout, epoch: 0, offset: 0 };
        for _ in 0..TRANSFERS / connections {
            call::<op::Write>(transport, frame(), &request, &[IoSlice::new(&bytes)])?;
        }
        Ok(())
    })?;
    rate(&format!("{name} read 1 MiB"), connections, |_| {
        let mut space = vec![0u8; LEN];
        let request = ReadRequest { ino: Ino(1), target: TargetIndex(0), offset: 0, len: LEN as u32 };
        for _ in 0..TRANSFERS / connections {
            let mut into = [IoSliceMut::new(&mut space)];
            call_into::<op::Read>(transport, frame(), &request, &[], &mut into)?;
        }
        Ok(())
    })
}

/// Bare sockets: 1 MiB there and 64 bytes back, then 64 bytes there and 1 MiB back.
fn bare_transfers(connections: usize, buffers: Option<usize>) -> Outcome<()> {
    let name = buffers.map_or("kernel's buffers".to_owned(), |len| format!("{} MiB buffers", len >> 20));
    for (direction, there, back) in [("write", LEN, 64), ("read", 64, LEN)] {
        let streams = bare_streams(connections, buffers, there, back)?;
        rate(&format!("bare tcp {direction} 1 MiB, {name}"), connections, |number| {
            let (out, mut space) = (vec![1u8; there], vec![0u8; back]);
            let mut stream = streams.get(number).ok_or("no stream")?;
            for _ in 0..TRANSFERS / connections {
                stream.write_all(&out)?;
                stream.read_exact(&mut space)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Connections to threads that answer every `there` bytes with `back` bytes.
fn bare_streams(
    connections: usize,
    buffers: Option<usize>,
    there: usize,
    back: usize,
) -> Outcome<Vec<TcpStream>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let pair = || -> Outcome<TcpStream> {
        let client = TcpStream::connect(address)?;
        let (mut server, _) = listener.accept()?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            if let Some(len) = buffers {
                sockopt::set_socket_send_buffer_size(stream, len)?;
                sockopt::set_socket_recv_buffer_size(stream, len)?;
            }
        }
        std::thread::spawn(move || {
            let (mut space, out) = (vec![0u8; there], vec![1u8; back]);
            while server.read_exact(&mut space).and_then(|()| server.write_all(&out)).is_ok() {}
        });
        Ok(client)
    };
    (0..connections).map(|_| pair()).collect()
}
