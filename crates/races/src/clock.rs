//! Vector clocks over the numbers of clients.

/// Number of intervals of each client that are known; 0 of those behind its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<u64>);

impl Clock {
    /// Returns the last interval of a client that is known; 0 if none is.
    #[must_use]
    pub fn get(&self, client: usize) -> u64 {
        self.0.get(client).copied().unwrap_or(0)
    }

    /// Sets the interval of a client.
    pub fn set(&mut self, client: usize, interval: u64) {
        if self.0.len() <= client {
            self.0.resize(client + 1, 0);
        }
        if let Some(known) = self.0.get_mut(client) {
            // An interval that comes again would order accesses before what they came behind.
            assert!(*known <= interval, "the clock of client {client} goes back from {known} to {interval}");
            *known = interval;
        }
    }

    /// Takes in what another clock knows.
    pub fn join(&mut self, other: &Clock) {
        // Clocks are as long as the highest client that they know of: most know few.
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (known, theirs) in self.0.iter_mut().zip(&other.0) {
            *known = (*known).max(*theirs);
        }
    }

    /// Returns the number of components that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no client is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_knows_what_both_know() {
        let (mut one, mut other) = (Clock::default(), Clock::default());
        one.set(0, 3);
        one.set(2, 1);
        other.set(1, 7);
        other.set(2, 4);
        one.join(&other);
        assert_eq!([0, 1, 2, 3].map(|client| one.get(client)), [3, 7, 4, 0]);
        other.join(&one);
        assert_eq!((other, one.len(), one.is_empty()), (one.clone(), 3, false));
    }
}
