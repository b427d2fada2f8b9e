//! In which order a process goes through its blocks, and where they are in the file.

use super::{Arrangement, IoPlan, Mode};
use crate::pattern::mix;

/// The blocks of one process.
#[derive(Clone, Debug)]
pub struct Order {
    count: u64,
    transfer: u64,
    first: u64,
    step: u64,
    shuffled: Option<Vec<u32>>,
}

impl Order {
    /// The blocks of a process under a plan.
    #[must_use]
    pub fn of(plan: &IoPlan, rank: u32) -> Order {
        let (transfer, rank, procs) = (plan.transfer, u64::from(rank), u64::from(plan.procs));
        let count = plan.size.checked_div(transfer).unwrap_or(0);
        let (first, step) = match (plan.mode, plan.arrangement) {
            (Mode::Own, _) => (0, transfer),
            (Mode::Shared, Arrangement::Strided) => (rank * transfer, transfer * procs),
            (Mode::Shared, _) => (rank * plan.size, transfer),
        };
        let shuffled = (plan.arrangement == Arrangement::Random).then(|| shuffle(count, rank));
        Order { count, transfer, first, step, shuffled }
    }

    /// The offsets of the blocks, one after the other.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        (0..self.count).map(|turn| {
            let block = match &self.shuffled {
                Some(order) => order.get(turn as usize).map_or(turn, |block| u64::from(*block)),
                None => turn,
            };
            self.first + block * self.step
        })
    }

    /// Bytes of a block.
    #[must_use]
    pub fn transfer(&self) -> u64 {
        self.transfer
    }

    /// Bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.count * self.transfer
    }
}

/// All numbers below `count` in an order that looks like chance (Fisher and Yates).
fn shuffle(count: u64, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).map(|block| block as u32).collect();
    for last in (1..order.len()).rev() {
        let other = mix(seed << 40 ^ last as u64) % (last as u64 + 1);
        order.swap(last, other as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Api, IoOp};
    use proptest::prelude::*;

    fn plan(procs: u32, mode: Mode, arrangement: Arrangement, transfer: u64, blocks: u64) -> IoPlan {
        let size = transfer * blocks;
        IoPlan {
            procs,
            mode,
            arrangement,
            transfer,
            size,
            ops: vec![IoOp::Write],
            api: Api::Calls,
            verify: false,
        }
    }

    fn offsets(plan: &IoPlan, rank: u32) -> Vec<u64> {
        Order::of(plan, rank).offsets().collect()
    }

    #[test]
    fn blocks_follow_or_take_turns() {
        let segmented = plan(2, Mode::Shared, Arrangement::Segmented, 10, 3);
        assert_eq!(offsets(&segmented, 1), [30, 40, 50]);
        let strided = plan(2, Mode::Shared, Arrangement::Strided, 10, 3);
        assert_eq!(offsets(&strided, 1), [10, 30, 50]);
        let own = plan(2, Mode::Own, Arrangement::Segmented, 10, 3);
        assert_eq!(offsets(&own, 1), [0, 10, 20]);
        assert_eq!(Order::of(&own, 1).bytes(), 30);
    }

    #[test]
    fn chance_is_the_same_every_time_and_differs_between_processes() {
        let random = plan(2, Mode::Own, Arrangement::Random, 1, 50);
        assert_eq!(offsets(&random, 0), offsets(&random, 0));
        assert_ne!(offsets(&random, 0), offsets(&random, 1));
        assert_ne!(offsets(&random, 0), (0..50).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn there_is_neither_gap_nor_overlap(procs in 1u32..6, transfer in 1u64..100, blocks in 1u64..40, kind in 0usize..3) {
            let arrangement = [Arrangement::Segmented, Arrangement::Strided, Arrangement::Random][kind];
            let plan = plan(procs, Mode::Shared, arrangement, transfer, blocks);
            let mut all: Vec<u64> = (0..procs).flat_map(|rank| offsets(&plan, rank)).collect();
            all.sort_unstable();
            let expected: Vec<u64> = (0..u64::from(procs) * blocks).map(|block| block * transfer).collect();
            prop_assert_eq!(all, expected);
        }
    }
}
