//! Numbers of a client's opens, and which of them have not been answered yet.

use std::collections::BTreeSet;

use bivouac_types::OpenId;

/// Most opens under way that are named one by one.
const NAMED_MAX: usize = 4096;

/// Which opens of a client may be under way at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpensUnderWay {
    /// The client's *floor*: no open below is under way, or ever will be.
    pub floor: OpenId,
    /// Opens from the floor on that are under way.
    pub numbers: Vec<OpenId>,
    /// All from here on may be.
    pub next: OpenId,
}

impl OpensUnderWay {
    /// Returns what may be under way as far as no more is known than the floor.
    #[must_use]
    pub fn above(floor: OpenId) -> OpensUnderWay {
        OpensUnderWay { floor, numbers: Vec::new(), next: floor }
    }

    /// Returns true if this open may be under way.
    #[must_use]
    pub fn may_have(&self, open: OpenId) -> bool {
        open >= self.next || self.numbers.contains(&open)
    }
}

/// Numbers that a client gives its opens, so that neither a message that comes twice nor one that comes late counts for
/// more than it says.
#[derive(Debug)]
pub struct OpenNumbers {
    next: OpenId,
    under_way: BTreeSet<OpenId>,
}

impl OpenNumbers {
    /// Numbers from `first` on, which is above all numbers of the client's earlier processes.
    #[must_use]
    pub fn new(first: OpenId) -> OpenNumbers {
        OpenNumbers { next: first, under_way: BTreeSet::new() }
    }

    /// Returns the number of an open that is about to be asked for. It is under way until [`OpenNumbers::end`].
    pub fn begin(&mut self, writes: bool) -> OpenId {
        let id = self.next.for_access(writes);
        // A step for each, whatever the access: the lowest bit of a number is what it says of that.
        self.next = OpenId(self.next.0 + OpenId::STEP);
        // The floor that homes were told may be above a number that comes once more.
        let last = self.under_way.last();
        assert!(last.is_none_or(|last| *last < id), "open {id:?} begins behind a later one");
        self.under_way.insert(id);
        id
    }

    /// An open is among the open files, or has failed.
    pub fn end(&mut self, id: OpenId) {
        let was_under_way = self.under_way.remove(&id);
        assert!(was_under_way, "open {id:?} ends twice");
    }

    /// Returns the client's *floor*: no open below it is under way, or ever will be.
    #[must_use]
    pub fn floor(&self) -> OpenId {
        self.under_way.first().copied().unwrap_or(self.next)
    }

    /// Returns the opens that are under way.
    #[must_use]
    pub fn under_way(&self) -> OpensUnderWay {
        if self.under_way.len() > NAMED_MAX {
            // What is closed and seems to be under way is heard of by the next list.
            return OpensUnderWay::above(self.floor());
        }
        let numbers = self.under_way.iter().copied().collect();
        OpensUnderWay { floor: self.floor(), numbers, next: self.next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_oldest_open_under_way() {
        let mut numbers = OpenNumbers::new(OpenId(10));
        assert_eq!(numbers.floor(), OpenId(10));
        let (first, second) = (numbers.begin(false), numbers.begin(true));
        assert_eq!((first, second, numbers.floor()), (OpenId(10), OpenId(13), OpenId(10)));
        numbers.end(second);
        assert_eq!(numbers.floor(), OpenId(10));
        let third = numbers.begin(true);
        let may_have = |numbers: &OpenNumbers, open| numbers.under_way().may_have(OpenId(open));
        assert_eq!([10, 13, 15, 16].map(|open| may_have(&numbers, open)), [true, false, true, true]);
        numbers.end(first);
        assert_eq!(numbers.floor(), third);
        assert_eq!(
            numbers.under_way(),
            OpensUnderWay { floor: third, numbers: vec![third], next: OpenId(16) }
        );
        assert!(
            OpensUnderWay::above(third).may_have(third) && !OpensUnderWay::above(third).may_have(OpenId(13))
        );
    }
}
