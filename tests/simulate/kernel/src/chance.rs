//! Random numbers that follow from a seed.

/// A generator: splitmix64.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// All of its numbers follow from the seed.
    #[must_use]
    pub const fn new(seed: u64) -> Chance {
        Chance(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below another one, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end.max(1))) >> 64) as u64
    }

    /// One of a range.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from).saturating_add(1))
    }

    /// Whether the one case of so many is it.
    pub fn one_in(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    /// One of a list, which is not empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
