//! A connection to a gateway, with many requests under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use bivouac_net::{SealedEnd, SealedReader, SealedWriter};
use parking_lot::Mutex;

use crate::protocol::{BODY_MAX, HEAD_LEN, Head, PAYLOAD_MAX};

/// Bytes of a reply that are made room for before they have come.
const ROOM: usize = 1 << 20;

/// A reply as it came.
#[derive(Debug, Default)]
pub struct ReplyBytes {
    /// 0, or the number of a cause.
    pub status: u8,
    /// Its body.
    pub body: Vec<u8>,
    /// Raw content.
    pub payload: Vec<u8>,
}

/// Upper limits of a reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// Longest body, in bytes.
    pub body: usize,
    /// Longest payload, in bytes.
    pub payload: usize,
}

impl ReplyLimits {
    /// Limits of a reply without content.
    pub const SMALL: ReplyLimits = ReplyLimits { body: BODY_MAX, payload: 0 };
}

/// Reason for a missing reply.
#[derive(Debug)]
pub enum StreamError {
    /// The connection broke. The request may have been carried out.
    Broken(String),
    /// The time is over.
    TimedOut,
}

/// A connection to a gateway.
pub struct Stream {
    /// Its number among the connections of this process to the gateway.
    number: u32,
    /// Numbers of the other connections in use, as the gateway was told.
    others: Vec<u32>,
    writer: Mutex<SealedWriter>,
    end: SealedEnd,
    replies: Arc<Replies>,
    /// Bytes of content that are under way.
    under_way: AtomicU64,
}

/// State that the reader of a stream shares with the requests.
#[derive(Default)]
struct Replies {
    pending: Mutex<PendingReplies>,
}

#[derive(Default)]
struct PendingReplies {
    next_id: u32,
    waiting: HashMap<u32, (SyncSender<ReplyBytes>, ReplyLimits)>,
    /// Reason why nothing comes any more.
    broken: Option<String>,
}

/// Counts content under way while it lives.
struct TransferCount<'a>(&'a AtomicU64, u64);

impl Drop for TransferCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Stream {
    /// Begins to read replies, in a thread of its own.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn begin(
        reader: SealedReader,
        writer: SealedWriter,
        number: u32,
        others: Vec<u32>,
    ) -> std::io::Result<Stream> {
        let replies = Arc::<Replies>::default();
        let shared = Arc::clone(&replies);
        std::thread::Builder::new().name("link".to_owned()).spawn(move || shared.read(reader))?;
        let end = writer.end();
        Ok(Stream { number, others, writer: Mutex::new(writer), end, replies, under_way: AtomicU64::new(0) })
    }

    /// Returns its number among the connections of this process to the gateway.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether the gateway carries out nothing more that another connection had asked for.
    pub fn fences(&self, number: u32) -> bool {
        number < self.number && !self.others.contains(&number)
    }

    /// Returns whether replies still come.
    pub fn is_alive(&self) -> bool {
        self.replies.pending.lock().broken.is_none()
    }

    /// Returns how many bytes of content are under way.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// When there is none.
    pub fn ask(
        &self,
        (body, payload): (&[u8], &[u8]),
        is_again: bool,
        limits: ReplyLimits,
        deadline: Instant,
    ) -> Result<ReplyBytes, StreamError> {
        let content = (payload.len() + limits.payload) as u64;
        self.under_way.fetch_add(content, Ordering::Relaxed);
        let _counted = TransferCount(&self.under_way, content);
        let (id, reply) = self.replies.expect(limits)?;
        let (body_len, payload_len) = (body.len() as u32, payload.len() as u32);
        let head = Head { id, body_len, payload_len, status: u8::from(is_again) };
        if let Err(error) = self.writer.lock().write_all(&[&head.to_bytes(), body, payload]) {
            self.replies.break_off(error.to_string());
            self.end.cut();
            return Err(StreamError::Broken(error.to_string()));
        }
        match reply.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Timeout) => {
                self.replies.pending.lock().waiting.remove(&id);
                // A reply that comes all the same would be taken for nobody's; others on it may wait as long.
                self.replies.break_off("a request was not answered in time".to_owned());
                self.end.cut();
                Err(StreamError::TimedOut)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let why = self.replies.pending.lock().broken.clone();
                Err(StreamError::Broken(why.unwrap_or_else(|| "the connection ended".to_owned())))
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Its reader ends.
        self.end.cut();
    }
}

impl Replies {
    /// Makes room for the reply to a new request.
    fn expect(&self, limits: ReplyLimits) -> Result<(u32, Receiver<ReplyBytes>), StreamError> {
        let (sender, receiver) = sync_channel(1);
        let mut pending = self.pending.lock();
        if let Some(why) = &pending.broken {
            return Err(StreamError::Broken(why.clone()));
        }
        let id = pending.next_id;
        pending.next_id = id.wrapping_add(1);
        let old = pending.waiting.insert(id, (sender, limits));
        assert!(old.is_none(), "request {id} is still under way after four billion others");
        Ok((id, receiver))
    }

    fn read(&self, mut reader: SealedReader) {
        let why = loop {
            if let Err(why) = self.read_one(&mut reader) {
                break why;
            }
        };
        self.break_off(why);
    }

    /// Ends the connection: all requests under way, and later ones, get an error.
    fn break_off(&self, why: String) {
        let mut pending = self.pending.lock();
        pending.broken.get_or_insert(why);
        pending.waiting.clear();
    }

    fn read_one(&self, reader: &mut SealedReader) -> Result<(), String> {
        let mut head = [0; HEAD_LEN];
        reader.read_exact(&mut head).map_err(|error| error.to_string())?;
        let head = Head::from_bytes(&head).ok_or("the gateway does not keep to the protocol: no head")?;
        let waiting = self.pending.lock().waiting.remove(&head.id);
        let Some((sender, limits)) = waiting else {
            return Err("the gateway answers what it was not asked".to_owned());
        };
        let (body, payload) = (head.body_len as usize, head.payload_len as usize);
        if body > limits.body.max(BODY_MAX) || payload > limits.payload || payload > PAYLOAD_MAX {
            return Err(format!("the gateway answers with {body} and {payload} bytes, which is too long"));
        }
        let body = read_some(reader, body)?;
        let payload = read_some(reader, payload)?;
        // The asker may have gone.
        let _gone = sender.send(ReplyBytes { status: head.status, body, payload });
        Ok(())
    }
}

/// Reads so many bytes; memory is taken as they come.
pub fn read_some(reader: &mut SealedReader, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let have = bytes.len();
        bytes.resize(len.min(have + ROOM), 0);
        let room = bytes.get_mut(have..).unwrap_or_default();
        reader.read_exact(room).map_err(|error| error.to_string())?;
    }
    Ok(bytes)
}
