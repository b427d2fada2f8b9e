//! A network that changes bytes on the way, for tests of those who must notice.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_wire::Frame;
use parking_lot::Mutex;

use crate::Address;

/// Changes what follows a frame's header, if it likes; the header says which way it goes.
type Meddle = dyn Fn(&Frame, &mut [u8]) + Send + Sync;

/// Something between two processes that passes frames on, not always as they came.
pub struct Meddler {
    at: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    meddle: Box<Meddle>,
    is_over: AtomicBool,
    // Both sides of every connection, so that they can be ended.
    streams: Mutex<Vec<TcpStream>>,
}

impl Meddler {
    /// Stands in front of `target` (`host:port`).
    ///
    /// # Errors
    /// What the system says.
    pub fn before(
        target: impl Into<String>,
        meddle: impl Fn(&Frame, &mut [u8]) + Send + Sync + 'static,
    ) -> io::Result<Meddler> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: target.into(),
            meddle: Box::new(meddle),
            is_over: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Ok(Meddler { at, shared })
    }

    /// Where it is reached.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::tcp(self.at.to_string())
    }
}

impl Drop for Meddler {
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
        for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
            let shared = Arc::clone(self);
            thread::spawn(move || {
                let _ended = shared.pass_on(&from, &to);
                let _may_be_ended = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
        Ok(())
    }

    fn pass_on(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        loop {
            let mut header = [0; FRAME_HEADER_LEN];
            from.read_exact(&mut header)?;
            let frame = Frame::from_bytes(&header).map_err(io::Error::other)?;
            let mut rest = vec![0; frame.body_len as usize + frame.payload_len as usize];
            from.read_exact(&mut rest)?;
            (self.meddle)(&frame, &mut rest);
            to.write_all(&[&header[..], &rest].concat())?;
        }
    }
}
