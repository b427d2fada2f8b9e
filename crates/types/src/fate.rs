//! What nodes say of each other.

use crate::NodeId;

/// What is believed of a node. Later ones override earlier ones of the same incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Fate {
    /// It answers.
    Alive = 0,
    /// It did not answer, and may still say that it lives.
    Suspect = 1,
    /// It is taken for dead.
    Dead = 2,
}

impl Fate {
    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Fate> {
        [Fate::Alive, Fate::Suspect, Fate::Dead].into_iter().find(|fate| *fate as u8 == number)
    }
}

/// What is said of a node. News of one node have an order, the same for everybody, so all who hear the same news, in
/// whatever order, believe the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The node.
    pub node: NodeId,
    /// How often it had to say that it lives: only the node itself raises this.
    pub incarnation: u32,
    /// What is said of that incarnation.
    pub fate: Fate,
}

impl News {
    /// What is believed of a node of which nothing was ever said.
    #[must_use]
    pub fn first(node: NodeId) -> News {
        News { node, incarnation: 0, fate: Fate::Alive }
    }

    /// Whether this is newer than something else that was said of the same node.
    #[must_use]
    pub fn overrides(&self, other: &News) -> bool {
        (self.incarnation, self.fate) > (other.incarnation, other.fate)
    }

    /// What it adds to the [epoch](epoch_of) of those who believe it.
    #[must_use]
    pub fn weight(&self) -> u64 {
        2 * u64::from(self.incarnation) + u64::from(self.fate == Fate::Dead)
    }
}

/// The epoch of a map of which this is believed: the map's version, and more with every death and every return. It
/// never falls, and is the same for all who believe the same.
#[must_use]
pub fn epoch_of<'a>(version: u64, believed: impl IntoIterator<Item = &'a News>) -> u64 {
    believed.into_iter().fold(version, |epoch, news| epoch.saturating_add(news.weight()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(incarnation: u32, fate: Fate) -> News {
        News { node: NodeId(1), incarnation, fate }
    }

    #[test]
    fn a_higher_incarnation_overrides_everything_and_worse_news_the_same() {
        let order = [
            news(0, Fate::Alive),
            news(0, Fate::Suspect),
            news(0, Fate::Dead),
            news(1, Fate::Alive),
            news(1, Fate::Dead),
        ];
        for (i, a) in order.iter().enumerate() {
            for (j, b) in order.iter().enumerate() {
                assert_eq!(a.overrides(b), i > j, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn the_epoch_rises_with_deaths_and_returns_and_not_with_suspicion() {
        let epoch = |incarnation, fate| epoch_of(5, &[news(incarnation, fate)]);
        let epochs = [
            epoch(0, Fate::Alive),
            epoch(0, Fate::Suspect),
            epoch(0, Fate::Dead),
            epoch(1, Fate::Alive),
            epoch(u32::MAX, Fate::Dead),
        ];
        assert_eq!(epochs, [5, 5, 6, 7, 5 + 2 * u64::from(u32::MAX) + 1]);
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(
            [0, 1, 2].map(Fate::from_number),
            [Some(Fate::Alive), Some(Fate::Suspect), Some(Fate::Dead)]
        );
        assert_eq!(Fate::from_number(3), None);
    }
}
