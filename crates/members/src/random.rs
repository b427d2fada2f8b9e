//! Random choices from a seed: the same seed makes the same choices.

/// SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next().checked_rem(end as u64).unwrap_or(0) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }

    /// Chooses some of the items, none twice.
    pub(crate) fn choose<T>(&mut self, mut items: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(items.len());
        for at in 0..count {
            let other = at + self.below(items.len() - at);
            items.swap(at, other);
        }
        items.truncate(count);
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_fair_and_repeatable() {
        let mut counts = [0; 10];
        let mut random = Random::new(7);
        for _ in 0..10_000 {
            for chosen in random.choose((0..10).collect(), 3) {
                counts[chosen] += 1;
            }
        }
        assert!(counts.iter().all(|count| (2_700..3_300).contains(count)), "{counts:?}");
        let (mut a, mut b) = (Random::new(1), Random::new(1));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_eq!((random.below(0), random.choose(vec![1, 2], 5).len()), (0, 2));
    }

    #[test]
    fn shuffling_keeps_everything() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert!(items.iter().enumerate().filter(|(at, item)| *at != **item as usize).count() > 80);
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
