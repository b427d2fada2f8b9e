//! Memory for bodies that are under way: the more there are, the smaller are the pieces in which they go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest piece.
pub const PIECE: usize = 1 << 20;
/// Shortest piece, however many bodies there are.
const PIECE_MIN: usize = 64 << 10;
/// Bytes of all pieces together, as long as there are not so many bodies that the shortest are more. Each has two: one
/// that is read or written, and one that comes or goes.
const ALL: usize = 256 << 20;

/// All bodies of a server.
#[derive(Debug, Default)]
pub struct Load(Arc<AtomicUsize>);

/// The share of one body.
#[derive(Debug)]
pub struct Share(Arc<AtomicUsize>);

impl Load {
    /// Creates a share for another body.
    #[must_use]
    pub fn share(&self) -> Share {
        self.0.fetch_add(1, Ordering::Relaxed);
        Share(Arc::clone(&self.0))
    }
}

impl Share {
    /// Returns the maximum length of its next piece.
    #[must_use]
    pub fn piece(&self) -> usize {
        // Each body has two pieces: one is read while the one before it is sent.
        (ALL / 2 / self.0.load(Ordering::Relaxed).max(1)).clamp(PIECE_MIN, PIECE)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a body ends that was not counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_bodies_have_short_pieces() {
        let load = Load::default();
        let first = load.share();
        assert_eq!(first.piece(), PIECE);
        let others: Vec<Share> = (1..256).map(|_| load.share()).collect();
        assert_eq!(first.piece(), PIECE / 2);
        let many: Vec<Share> = (256..16_384).map(|_| load.share()).collect();
        assert_eq!((first.piece(), 16_384 * 2 * first.piece()), (PIECE_MIN, 2 << 30));
        drop((others, many));
        assert_eq!(first.piece(), PIECE);
    }
}
