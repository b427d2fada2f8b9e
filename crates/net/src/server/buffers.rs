//! Memory for payloads: kept for reuse up to a limit, and taken away from those who block it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bivouac_ranks::Mutex;

use super::connection::Connection;

/// Smallest buffer, in bytes: buffers are powers of two from here, so that they fit again.
const BUFFER_LEN_MIN: usize = 1 << 14;

/// Buffers that wait to be used again.
pub(super) struct Buffers {
    idle_bytes_max: usize,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    // By capacity; the key is repeated for each buffer by its position in the list.
    by_len: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl Buffers {
    /// Keeps at most `idle_bytes_max` bytes while nobody uses them.
    pub fn new(idle_bytes_max: usize) -> Arc<Buffers> {
        Arc::new(Buffers { idle_bytes_max, idle: Mutex::default() })
    }

    /// Returns a buffer of `len` bytes with undefined content.
    pub fn take(self: &Arc<Buffers>, len: usize) -> Buffer {
        let capacity = len.max(BUFFER_LEN_MIN).checked_next_power_of_two().unwrap_or(len);
        // A buffer of this very size or none: a larger one would be kept from those who need all of it.
        let reused = self.idle.lock().take(capacity);
        // Fresh memory comes as zero pages, which cost nothing before bytes arrive in them.
        let bytes = reused.unwrap_or_else(|| vec![0; capacity]);
        assert!(bytes.len() >= len, "a buffer of {} bytes for {len}", bytes.len());
        Buffer { bytes, len, home: Arc::clone(self) }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut idle = self.idle.lock();
        // More would be memory that the node’s volumes, which are files in memory, cannot have.
        if idle.bytes + bytes.len() <= self.idle_bytes_max {
            idle.bytes += bytes.len();
            idle.by_len.entry(bytes.len()).or_default().push(bytes);
        }
    }
}

impl Idle {
    fn take(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let bytes = self.by_len.get_mut(&capacity)?.pop()?;
        assert!(
            bytes.len() == capacity && self.bytes >= capacity,
            "{} of {} idle bytes",
            bytes.len(),
            self.bytes
        );
        self.bytes -= bytes.len();
        Some(bytes)
    }
}

/// A borrowed buffer; returns home when dropped.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<Buffers>,
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len.min(self.bytes.len());
        &mut self.bytes[..len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

/// Connections that hold payload memory while they wait for the other side.
pub(super) struct StalledConnections {
    bytes_max: usize,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    // Lower numbers have made no progress for longer.
    by_age: BTreeMap<u64, (Arc<Connection>, usize)>,
    bytes: usize,
    next: u64,
}

impl StalledConnections {
    /// Lets stalled connections hold at most `bytes_max` bytes together.
    pub fn new(bytes_max: usize) -> StalledConnections {
        StalledConnections { bytes_max, entries: Mutex::default() }
    }

    /// Notes that a connection holds `bytes` and waits; hangs up on others that have waited longer if that
    /// is too much. The number is for [`StalledConnections::remove`].
    pub fn add(&self, connection: &Arc<Connection>, bytes: usize) -> u64 {
        let mut entries = self.entries.lock();
        let number = entries.next;
        entries.next += 1;
        entries.bytes += bytes;
        entries.by_age.insert(number, (Arc::clone(connection), bytes));
        while entries.bytes > self.bytes_max
            && let Some((_, (oldest, bytes))) = entries.by_age.pop_first()
        {
            assert!(entries.bytes >= bytes, "{bytes} of {} bytes are held", entries.bytes);
            entries.bytes -= bytes;
            log::warn!("a connection takes no part in its transfer; closed to free {bytes} bytes");
            oldest.hang_up();
        }
        assert!(entries.bytes == 0 || !entries.by_age.is_empty(), "nobody holds {} bytes", entries.bytes);
        number
    }

    /// Forgets a connection that went on.
    pub fn remove(&self, number: u64) {
        let mut entries = self.entries.lock();
        // One that was hung up on is not here any more.
        if let Some((_, bytes)) = entries.by_age.remove(&number) {
            assert!(entries.bytes >= bytes, "{bytes} of {} bytes are held", entries.bytes);
            entries.bytes -= bytes;
        }
        // What was added and not taken off would hang up on connections for memory that is free.
        assert!(entries.bytes == 0 || !entries.by_age.is_empty(), "nobody holds {} bytes", entries.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::ServerSide;
    use crate::server::Hosted;
    use crate::server::registry::Clients;
    use crate::{Call, LaneKind, Reply, Service};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn buffers_are_used_again_and_have_the_asked_length() {
        let buffers = Buffers::new(1 << 20);
        let mut first = buffers.take(100_000);
        first[99_999] = 7;
        assert_eq!(first.len(), 100_000);
        drop(first);
        let second = buffers.take(70_000);
        assert_eq!((second.len(), buffers.idle.lock().bytes), (70_000, 0));
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let buffers = Buffers::new(1 << 20);
        let all: Vec<Buffer> = (0..4).map(|_| buffers.take(1 << 19)).collect();
        drop(all);
        assert_eq!(buffers.idle.lock().bytes, 1 << 20);
    }

    struct Mute;

    impl Service for Mute {
        fn serve(&self, _call: &Call<'_>, _reply: &mut Reply<'_>) {}
    }

    fn connection(key: u64) -> (Arc<Connection>, UnixStream) {
        let (own, other) = UnixStream::pair().unwrap();
        let handshake = ServerSide::new(LaneKind::Client, bivouac_wire::FrameProtection::None, [0; 32]);
        let hosted = Arc::new(Hosted { service: Arc::new(Mute), clients: Clients::default() });
        (Arc::new(Connection::new(key, own.into(), hosted, handshake)), other)
    }

    #[test]
    fn who_has_stalled_longest_makes_room() {
        let stalled = StalledConnections::new(100);
        let ((first, mut far), (second, _second), (third, _third)) =
            (connection(1), connection(2), connection(3));
        let old = stalled.add(&first, 50);
        let moving = stalled.add(&second, 50);
        stalled.remove(moving);
        stalled.remove(old);
        // It made progress and stalled again: now the second is not the oldest.
        stalled.add(&first, 50);
        stalled.add(&second, 50);
        stalled.add(&third, 50);
        assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
        let entries = stalled.entries.lock();
        assert_eq!((entries.bytes, entries.by_age.len()), (100, 2));
    }
}
