//! What nodes report of each other's liveness.

use crate::NodeId;

/// Liveness of a node. Later ones override earlier ones of the same incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Liveness {
    /// It answers.
    Alive = 0,
    /// It did not answer, and may still refute that.
    Suspect = 1,
    /// It is held for dead.
    Dead = 2,
}

impl Liveness {
    /// Returns the one with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Liveness> {
        [Liveness::Alive, Liveness::Suspect, Liveness::Dead]
            .into_iter()
            .find(|liveness| *liveness as u8 == number)
    }
}

/// Liveness of one incarnation of a node, as SWIM spreads it. Updates of a node have an order, the same everywhere, so
/// all nodes with the same updates agree, in whatever order these came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembershipUpdate {
    /// The node.
    pub node: NodeId,
    /// Number of its refutations: only the node itself raises this.
    pub incarnation: u32,
    /// Liveness in that incarnation.
    pub liveness: Liveness,
}

impl MembershipUpdate {
    /// Returns the state of a node that nothing was reported of.
    #[must_use]
    pub fn first(node: NodeId) -> MembershipUpdate {
        MembershipUpdate { node, incarnation: 0, liveness: Liveness::Alive }
    }

    /// Returns true if this is newer than another update of the same node.
    #[must_use]
    pub fn overrides(&self, other: &MembershipUpdate) -> bool {
        (self.incarnation, self.liveness) > (other.incarnation, other.liveness)
    }

    /// Returns what it adds to the [epoch](epoch_of) of those who have it.
    #[must_use]
    pub fn weight(&self) -> u64 {
        // A return takes the one of the death away: with two for the new incarnation, the sum rises all the same.
        2 * u64::from(self.incarnation) + u64::from(self.liveness == Liveness::Dead)
    }
}

/// Returns the epoch of a map of which this is known: the map's version, and more with every death and every return. It
/// never falls, and is the same for all who know the same.
#[must_use]
pub fn epoch_of<'a>(version: u64, known: impl IntoIterator<Item = &'a MembershipUpdate>) -> u64 {
    known.into_iter().fold(version, |epoch, news| epoch.saturating_add(news.weight()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(incarnation: u32, liveness: Liveness) -> MembershipUpdate {
        MembershipUpdate { node: NodeId(1), incarnation, liveness }
    }

    #[test]
    fn a_higher_incarnation_overrides_everything_and_worse_news_the_same() {
        let order = [
            news(0, Liveness::Alive),
            news(0, Liveness::Suspect),
            news(0, Liveness::Dead),
            news(1, Liveness::Alive),
            news(1, Liveness::Dead),
        ];
        for (i, a) in order.iter().enumerate() {
            for (j, b) in order.iter().enumerate() {
                assert_eq!(a.overrides(b), i > j, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn the_epoch_rises_with_deaths_and_returns_and_not_with_suspicion() {
        let epoch = |incarnation, liveness| epoch_of(5, &[news(incarnation, liveness)]);
        let epochs = [
            epoch(0, Liveness::Alive),
            epoch(0, Liveness::Suspect),
            epoch(0, Liveness::Dead),
            epoch(1, Liveness::Alive),
            epoch(u32::MAX, Liveness::Dead),
        ];
        assert_eq!(epochs, [5, 5, 6, 7, 5 + 2 * u64::from(u32::MAX) + 1]);
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(
            [0, 1, 2].map(Liveness::from_number),
            [Some(Liveness::Alive), Some(Liveness::Suspect), Some(Liveness::Dead)]
        );
        assert_eq!(Liveness::from_number(3), None);
    }
}
