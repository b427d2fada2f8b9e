//! The channels of a primary's session: as many changes are under way at once.

use bivouac_ranks::{Condvar, Mutex};
use bivouac_wire::REPLICA_CHANNELS_MAX;

/// Free channels.
#[derive(Debug)]
pub(super) struct Channels {
    free: Mutex<Vec<FreeChannel>>,
    returned: Condvar,
}

/// A channel that nobody uses, and the number of its next change.
#[derive(Clone, Copy, Debug)]
struct FreeChannel {
    index: u16,
    next: u64,
}

/// A channel in use, given back when this is dropped.
pub(super) struct ChannelInUse<'c> {
    channels: &'c Channels,
    channel: FreeChannel,
}

impl Default for Channels {
    fn default() -> Channels {
        // The lowest last, which is taken first: a backup then keeps few last changes.
        let free = (0..REPLICA_CHANNELS_MAX).rev().map(|index| FreeChannel { index, next: 1 }).collect();
        Channels { free: Mutex::new(bivouac_ranks::rank::LEAF, free), returned: Condvar::new() }
    }
}

impl Channels {
    /// Returns a channel, once one is free.
    pub fn take(&self) -> ChannelInUse<'_> {
        let mut free = self.free.lock();
        loop {
            if let Some(channel) = free.pop() {
                return ChannelInUse { channels: self, channel };
            }
            self.returned.wait(&mut free);
        }
    }
}

impl ChannelInUse<'_> {
    /// Returns its number.
    pub fn index(&self) -> u16 {
        self.channel.index
    }

    /// Returns the number of a new change.
    pub fn next_sequence(&mut self) -> u64 {
        let sequence = self.channel.next;
        self.channel.next += 1;
        sequence
    }
}

impl Drop for ChannelInUse<'_> {
    fn drop(&mut self) {
        // Never reset, not even by a new session: no number stands for two changes.
        self.channels.free.lock().push(self.channel);
        self.channels.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_one_user_and_rising_numbers() {
        let channels = Channels::default();
        let (mut one, mut other) = (channels.take(), channels.take());
        assert_ne!(one.index(), other.index());
        assert_eq!((one.next_sequence(), one.next_sequence(), other.next_sequence()), (1, 2, 1));
        let index = one.index();
        drop(one);
        let mut again = channels.take();
        assert_eq!((again.index(), again.next_sequence()), (index, 3));
    }
}
