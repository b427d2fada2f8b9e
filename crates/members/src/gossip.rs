//! News on their way: each is sent so often that everybody most likely hears it, and no more.

use bivouac_types::MembershipUpdate;

/// News that are still to be sent along.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gossip {
    items: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    news: MembershipUpdate,
    sent: u32,
}

impl Gossip {
    /// Adds what was learned; what was said of the node before is out of date.
    pub(crate) fn add(&mut self, news: MembershipUpdate) {
        self.items.retain(|item| item.news.node != news.node);
        self.items.push(Item { news, sent: 0 });
    }

    /// News to send along with a message among `count` nodes: those that were sent least often.
    pub(crate) fn take(&mut self, most: usize, count: usize) -> Vec<MembershipUpdate> {
        // The newest first: after a cut there is more to say than one message has room for.
        self.items.sort_by_key(|item| item.sent);
        let limit = sends(count);
        let mut taken = Vec::new();
        for item in self.items.iter_mut().take(most) {
            item.sent += 1;
            taken.push(item.news);
        }
        self.items.retain(|item| item.sent < limit);
        taken
    }
}

/// Returns the number of times that one node among so many sends an item along: three times the logarithm (SWIM, 4.1).
fn sends(count: usize) -> u32 {
    3 * (usize::BITS - count.leading_zeros()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Liveness, NodeId};

    fn news(node: u16) -> MembershipUpdate {
        MembershipUpdate { node: NodeId(node), incarnation: 0, liveness: Liveness::Dead }
    }

    #[test]
    fn everything_is_sent_equally_often_and_then_no_more() {
        let mut gossip = Gossip::default();
        (0..5).for_each(|node| gossip.add(news(node)));
        let mut counts = [0; 5];
        while let taken @ [_, ..] = gossip.take(2, 100).as_slice() {
            taken.iter().for_each(|news| counts[usize::from(news.node.0)] += 1);
        }
        assert_eq!(counts, [sends(100); 5]);
        assert_eq!((sends(1), sends(2), sends(1000)), (3, 6, 30));
    }

    #[test]
    fn newer_news_take_the_place_of_older_ones() {
        let mut gossip = Gossip::default();
        gossip.add(news(1));
        let newer = MembershipUpdate { incarnation: 3, liveness: Liveness::Alive, ..news(1) };
        gossip.add(newer);
        assert_eq!(gossip.take(9, 4), [newer]);
    }
}
