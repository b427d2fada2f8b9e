//! A network that changes bytes on the way, for tests of those who must notice.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bivouac_types::limits::{FRAME_BODY_MAX, FRAME_HEADER_LEN, FRAME_PAYLOAD_MAX};
use bivouac_wire::{Frame, MAGIC};
use parking_lot::Mutex;

use crate::Address;

/// A function that makes what goes on of what came.
type Meddle = dyn Fn(&Unit, Vec<u8>) -> ForwardedUnit + Send + Sync;

/// A unit of the stream: a frame, or a record of a connection whose records are sealed.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Number of the connection, counted from 0.
    pub connection: u64,
    /// True if it goes to the one that listens.
    pub is_asked: bool,
    /// Number of the unit among those that went this way over this connection, counted from 0.
    pub number: u64,
    /// Its header, if that can be read.
    pub frame: Option<Frame>,
}

/// Bytes that are forwarded instead of those that came.
#[derive(Clone, Debug, Default)]
pub struct ForwardedUnit {
    /// These bytes.
    pub bytes: Vec<u8>,
    /// And then the end of the connection.
    pub ends: bool,
}

impl From<Vec<u8>> for ForwardedUnit {
    fn from(bytes: Vec<u8>) -> ForwardedUnit {
        ForwardedUnit { bytes, ends: false }
    }
}

/// Something between two processes that passes frames on, not always as they came.
pub struct TamperingProxy {
    at: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    meddle: Box<Meddle>,
    connections: AtomicU64,
    is_over: AtomicBool,
    // Both sides of every connection, so that they can be ended.
    streams: Mutex<Vec<TcpStream>>,
}

impl TamperingProxy {
    /// Stands in front of `target` (`host:port`), and changes what follows headers that can be read.
    ///
    /// # Errors
    /// What the system says.
    pub fn before(
        target: impl Into<String>,
        meddle: impl Fn(&Frame, &mut [u8]) + Send + Sync + 'static,
    ) -> io::Result<TamperingProxy> {
        TamperingProxy::between(target, move |unit, mut bytes| {
            if let (Some(frame), Some(rest)) = (&unit.frame, bytes.get_mut(FRAME_HEADER_LEN..)) {
                meddle(frame, rest);
            }
            bytes.into()
        })
    }

    /// Stands in front of `target`, and passes on what `meddle` makes of each frame or record.
    ///
    /// # Errors
    /// What the system says.
    pub fn between(
        target: impl Into<String>,
        meddle: impl Fn(&Unit, Vec<u8>) -> ForwardedUnit + Send + Sync + 'static,
    ) -> io::Result<TamperingProxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: target.into(),
            meddle: Box::new(meddle),
            connections: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Ok(TamperingProxy { at, shared })
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::tcp(self.at.to_string())
    }
}

impl Drop for TamperingProxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // It wakes who accepts; that it cannot be reached means that nobody does.
        let _woken = TcpStream::connect(self.at);
        let streams = std::mem::take(&mut *self.shared.streams.lock());
        streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Shared {
    fn accept(self: Arc<Shared>, listener: &TcpListener) {
        for near in listener.incoming() {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            // Who comes while the target is away sees the connection end.
            let _ended = near.and_then(|near| self.join(near));
        }
    }

    fn join(self: &Arc<Shared>, near: TcpStream) -> io::Result<()> {
        let far = TcpStream::connect(&self.target)?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            self.streams.lock().push(stream.try_clone()?);
        }
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let half = Arc::new(AtomicBool::new(false));
        for (from, to, is_asked) in [(near.try_clone()?, far.try_clone()?, true), (far, near, false)] {
            let (shared, half) = (Arc::clone(self), Arc::clone(&half));
            thread::spawn(move || {
                let is_cut = shared.pass_on(connection, is_asked, &from, &to).is_ok();
                // What one side said before it ended the connection still reaches the other one.
                let _may_be_ended = if half.swap(true, Ordering::AcqRel) || is_cut {
                    from.shutdown(Shutdown::Both).and(to.shutdown(Shutdown::Both))
                } else {
                    to.shutdown(Shutdown::Write)
                };
            });
        }
        Ok(())
    }

    fn pass_on(
        &self,
        connection: u64,
        is_asked: bool,
        mut from: &TcpStream,
        mut to: &TcpStream,
    ) -> io::Result<()> {
        for number in 0.. {
            let (frame, bytes) = next(&mut from)?;
            let onward = (self.meddle)(&Unit { connection, is_asked, number, frame }, bytes);
            to.write_all(&onward.bytes)?;
            if onward.ends {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the next frame or record. A record begins with its length, which is never what frames begin with.
fn next(from: &mut &TcpStream) -> io::Result<(Option<Frame>, Vec<u8>)> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes)?;
    let first = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if first != MAGIC {
        // It is there twice.
        read_on(from, &mut bytes, 4 + first as usize)?;
        return Ok((None, bytes));
    }
    read_on(from, &mut bytes, FRAME_HEADER_LEN - 4)?;
    let header = bytes.first_chunk().map(Frame::from_bytes);
    let frame = header.and_then(Result::ok).ok_or(io::ErrorKind::InvalidData)?;
    read_on(from, &mut bytes, frame.body_len as usize + frame.payload_len as usize)?;
    Ok((Some(frame), bytes))
}

fn read_on(from: &mut &TcpStream, bytes: &mut Vec<u8>, len: usize) -> io::Result<()> {
    let have = bytes.len();
    bytes.resize(have + len.min(FRAME_HEADER_LEN + FRAME_BODY_MAX + FRAME_PAYLOAD_MAX), 0);
    from.read_exact(bytes.get_mut(have..).unwrap_or_default())
}
