//! Answers that are not given before their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Answers in the order in which they are due.
#[derive(Default)]
pub struct Answers {
    state: Mutex<AnswerQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct AnswerQueue {
    /// Times of answers, with their order among those of the same time, and their bytes.
    due: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    count: u64,
    is_over: bool,
}

impl Answers {
    /// Has something answered at a time.
    pub fn put(&self, at: Instant, answer: Vec<u8>) {
        let mut state = self.lock();
        state.count += 1;
        let number = state.count;
        state.due.push(Reverse((at, number, answer)));
        drop(state);
        // It may be due before the one that is waited for.
        self.changed.notify_one();
    }

    /// Nothing more is to be answered.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_one();
    }

    /// Waits for the next answer that is due; `None` after the end.
    pub fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            let now = Instant::now();
            let wait = match state.due.peek() {
                Some(Reverse((at, ..))) if *at <= now => {
                    return state.due.pop().map(|Reverse((.., answer))| answer);
                }
                Some(Reverse((at, ..))) => Some(at.saturating_duration_since(now)),
                None => None,
            };
            state = match wait {
                Some(wait) => {
                    self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, AnswerQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn answers_come_in_the_order_of_their_times() {
        let (answers, start) = (Answers::default(), Instant::now());
        for (after_ms, answer) in [(3, b"c"), (1, b"a"), (1, b"b")] {
            answers.put(start + Duration::from_millis(after_ms), answer.to_vec());
        }
        let order: Vec<u8> = (0..3).filter_map(|_| answers.next()).flatten().collect();
        assert_eq!(order, b"abc");
        assert!(start.elapsed() >= Duration::from_millis(3));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| answers.next());
            answers.end();
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
