//! Zeros over bare TCP connections, and how many arrive.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::TransferOrder;

/// Time that a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(3);
/// Time that connections are waited for: longer than they may take.
const ACCEPT: Duration = Duration::from_secs(4);
/// Time that the first bytes may take.
const FIRST: Duration = Duration::from_secs(2);
/// Bytes that are sent or taken at once.
const PIECE: usize = 256 << 10;
/// The first part of a transfer does not count, in which TCP finds out what it may send and queues fill: one of so
/// many.
const WARM_PART: u32 = 4;

/// Sends to an address until the other side has had enough.
///
/// # Errors
/// Why it cannot be reached.
pub fn send(to: SocketAddr, wanted: &TransferOrder) -> Result<(), String> {
    let connect = |_| {
        let mut stream = TcpStream::connect_timeout(&to, CONNECT).map_err(|e| unreached(to, &e))?;
        stream.write_all(wanted.key.as_bytes()).map_err(|e| unreached(to, &e))?;
        Ok(stream)
    };
    let streams: Vec<TcpStream> = (0..wanted.streams).map(connect).collect::<Result<_, String>>()?;
    // The other side ends it; this is for one that does not.
    let until = Instant::now() + FIRST + 2 * Duration::from_millis(wanted.ms);
    std::thread::scope(|scope| {
        for mut stream in streams {
            scope.spawn(move || {
                let zeros = vec![0_u8; PIECE];
                while let Some(left) =
                    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
                {
                    if stream.set_write_timeout(Some(left)).is_err() || stream.write(&zeros).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(())
}

fn unreached(to: SocketAddr, error: &std::io::Error) -> String {
    format!(
        "{to} is not reached: {error}; open the firewall between the hosts, or use another network: --network"
    )
}

/// Bytes that have arrived.
#[derive(Default)]
struct ReceivedBytes {
    begun: OnceLock<Instant>,
    /// All bytes, and those behind the first part.
    all: AtomicU64,
    counted: AtomicU64,
    /// Time of the last bytes, in nanoseconds since the first ones.
    last_ns: AtomicU64,
}

/// Takes a transfer, and says how many bits per second it were.
///
/// # Errors
/// That nobody came, or nothing.
pub fn receive(listener: &TcpListener, wanted: &TransferOrder) -> Result<u64, String> {
    let tally = ReceivedBytes::default();
    let until = Instant::now() + ACCEPT;
    let came = std::thread::scope(|scope| {
        let mut came = 0;
        while came < wanted.streams {
            let Some(mut stream) = accept(listener, until)? else { break };
            if is_wanted(&mut stream, wanted) {
                came += 1;
                let tally = &tally;
                scope.spawn(move || take(&mut stream, tally, Duration::from_millis(wanted.ms)));
            }
        }
        Ok::<usize, String>(came)
    })?;
    let warm = Duration::from_millis(wanted.ms) / WARM_PART;
    // By the last bytes, not by the clock: a sender that was cut short has not been slow.
    let over = Duration::from_nanos(tally.last_ns.into_inner());
    let (all, counted) = (tally.all.into_inner(), tally.counted.into_inner());
    match (came, over.checked_sub(warm).filter(|_| counted > 0)) {
        (0, _) => Err("nobody connected".into()),
        _ if all == 0 => Err("nothing arrived".into()),
        (_, Some(over)) => Ok(rate(counted, over)),
        // So little that all of it came in the first part, or at once.
        (_, None) => Ok(rate(all, over.max(warm))),
    }
}

fn rate(bytes: u64, over: Duration) -> u64 {
    (bytes as f64 * 8.0 / over.as_secs_f64().max(1e-6)) as u64
}

/// Returns the next connection; none if none comes until then.
fn accept(listener: &TcpListener, until: Instant) -> Result<Option<TcpStream>, String> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(left).map_err(|e| e.to_string())?;
        let came = poll(&mut [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)], Some(&wait));
        match came {
            Ok(0) if left.is_zero() => return Ok(None),
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                return Ok(Some(stream));
            }
            // Who was there is gone again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn is_wanted(stream: &mut TcpStream, wanted: &TransferOrder) -> bool {
    let mut key = vec![0; wanted.key.len()];
    stream.set_read_timeout(Some(FIRST)).is_ok()
        && stream.read_exact(&mut key).is_ok()
        && key == wanted.key.as_bytes()
}

/// Receives until the time is over, or nothing arrives any more.
fn take(stream: &mut TcpStream, tally: &ReceivedBytes, over: Duration) {
    let mut piece = vec![0_u8; PIECE];
    let warm = over / WARM_PART;
    loop {
        let left = tally.begun.get().map_or(FIRST, |begun| over.saturating_sub(begun.elapsed()));
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        let len = match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(len) => len as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // The clock begins with the first bytes of any stream, so that connecting does not count.
        let since = tally.begun.get_or_init(Instant::now).elapsed();
        tally.all.fetch_add(len, Ordering::Relaxed);
        if since >= warm {
            tally.counted.fetch_add(len, Ordering::Relaxed);
        }
        let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        tally.last_ns.fetch_max(ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(key: &str, streams: usize) -> TransferOrder {
        TransferOrder { key: key.into(), streams, ms: 50 }
    }

    #[test]
    fn what_is_sent_arrives_and_strangers_are_not_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.write_all(b"hello, and more than the key has").unwrap();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send(to, &wanted("0123", 3)));
            assert!(receive(&listener, &wanted("0123", 3)).unwrap() > 0);
            sent.join().unwrap().unwrap();
        });
    }

    #[test]
    fn who_comes_and_sends_nothing_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        silent.write_all(b"0123").unwrap();
        drop(silent);
        assert_eq!(receive(&listener, &wanted("0123", 1)), Err("nothing arrived".into()));
    }

    #[test]
    fn a_closed_port_is_said_with_what_to_do() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        // As long as there is a connection, nobody else gets the port.
        let _connection = (TcpStream::connect(to).unwrap(), listener.accept().unwrap());
        drop(listener);
        let refusal = send(to, &wanted("0123", 1)).unwrap_err();
        assert!(refusal.contains("is not reached") && refusal.contains("--network"), "{refusal}");
    }
}
