//! Generations of a client's connections to a node: the newest one counts.

/// Number of the newest generation of a client's connections, behind the epoch of the client's daemon: clocks of two
/// hosts do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewestGeneration((u32, u64));

/// The generation that a new connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationMatch {
    /// None: it takes no part, supersedes nothing and is never superseded by another connection.
    Apart,
    /// One that was superseded before: its handshake was overtaken by that of a newer one, and the client no longer
    /// uses it.
    Superseded,
    /// The one there is.
    Same,
    /// A newer one, which supersedes the one there was.
    Newer,
}

impl NewestGeneration {
    /// Takes a new connection with this number, of which 0 takes no part.
    pub fn join(&mut self, number: (u32, u64)) -> GenerationMatch {
        match number {
            (_, 0) => GenerationMatch::Apart,
            number if number < self.0 => GenerationMatch::Superseded,
            number if number == self.0 => GenerationMatch::Same,
            number => {
                self.0 = number;
                GenerationMatch::Newer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_only_rise_and_the_daemons_epoch_counts_first() {
        let mut newest = NewestGeneration::default();
        let joined = [(0, 5), (0, 5), (0, 4), (0, 0), (0, 9), (2, 1), (0, 10), (2, 1)]
            .map(|number| newest.join(number));
        use GenerationMatch::{Apart, Newer, Same, Superseded};
        assert_eq!(joined, [Newer, Same, Superseded, Apart, Newer, Newer, Superseded, Same]);
    }
}
