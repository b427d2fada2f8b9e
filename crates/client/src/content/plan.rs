//! The order of the messages of a large call. No I/O.

use std::collections::VecDeque;

use bivouac_layout::{TargetRange, split};
use bivouac_types::Layout;
use bivouac_types::limits::TRANSFER_MAX;

/// Most messages under way to one target, and to all of them.
pub(super) const WINDOW: usize = 3;
pub(super) const UNDER_WAY_MAX: usize = 16 * WINDOW;
/// Most bytes of one message.
pub(super) const MESSAGE_MAX: u64 = 1 << 20;

// A target buffers no more of a large call than of a single request.
const _: () = assert!(WINDOW as u64 * MESSAGE_MAX <= TRANSFER_MAX as u64);

/// Schedule of a call's messages: which have been begun, and which may be.
///
/// A message is a number; lower ones begin at lower offsets in the file.
pub(super) struct StreamPlan {
    /// Index of each message's target.
    columns: Vec<usize>,
    targets: Vec<TargetQueue>,
    here: VecDeque<usize>,
    under_way: usize,
}

/// Messages to one target.
#[derive(Clone, Default)]
struct TargetQueue {
    waiting: VecDeque<usize>,
    under_way: usize,
}

impl StreamPlan {
    /// Creates the schedule of these messages. Those that are `here` need not be sent.
    pub fn new(ranges: &[TargetRange], is_here: impl Fn(usize) -> bool) -> StreamPlan {
        let columns: Vec<usize> = ranges.iter().map(|range| usize::from(range.column)).collect();
        let mut targets = vec![TargetQueue::default(); columns.iter().max().map_or(0, |last| last + 1)];
        let mut here = VecDeque::new();
        for (message, range) in ranges.iter().enumerate() {
            let queue =
                if is_here(message) { &mut here } else { &mut targets[usize::from(range.column)].waiting };
            queue.push_back(message);
        }
        StreamPlan { columns, targets, here, under_way: 0 }
    }

    /// Drops messages that are done.
    pub fn leave_out(&mut self, is_done: impl Fn(usize) -> bool) {
        self.targets.iter_mut().for_each(|target| target.waiting.retain(|message| !is_done(*message)));
        self.here.retain(|message| !is_done(*message));
    }

    /// Returns the next message to begin, if any may be, and counts it as begun. Targets take turns: the one with the
    /// fewest messages under way is first.
    pub fn next(&mut self) -> Option<usize> {
        if self.under_way >= UNDER_WAY_MAX {
            return None;
        }
        let free = |target: &&mut TargetQueue| target.under_way < WINDOW && !target.waiting.is_empty();
        let targets = self.targets.iter_mut().filter(free);
        let target = targets.min_by_key(|target| (target.under_way, target.waiting.front().copied()))?;
        let message = target.waiting.pop_front()?;
        target.under_way += 1;
        assert!(target.under_way <= self.under_way + 1, "more messages to a target than to all");
        self.under_way += 1;
        Some(message)
    }

    /// Returns the next message to be done locally, if one may be.
    pub fn next_here(&mut self) -> Option<usize> {
        let message = *self.here.front()?;
        // One that has to be sent after all counts towards its target's window.
        let is_free = self.target(message).is_some_and(|target| target.under_way < WINDOW);
        if is_free { self.here.pop_front() } else { None }
    }

    /// Counts a local message as begun that has to be sent after all.
    pub fn begun_here(&mut self, message: usize) {
        if let Some(target) = self.target(message) {
            assert!(target.under_way < WINDOW, "message {message} is one too many to its target");
            target.under_way += 1;
            self.under_way += 1;
        }
    }

    /// Ends a message that was begun, whatever its outcome.
    pub fn ended(&mut self, message: usize) {
        if let Some(target) = self.target(message) {
            assert!(target.under_way > 0, "message {message} ends, and none is under way to its target");
            target.under_way -= 1;
            self.under_way -= 1;
        }
    }

    /// Begins no further message.
    pub fn stop(&mut self) {
        self.targets.iter_mut().for_each(|target| target.waiting.clear());
        self.here.clear();
    }

    fn target(&mut self, message: usize) -> Option<&mut TargetQueue> {
        self.targets.get_mut(*self.columns.get(message)?)
    }
}

/// Cuts a range into messages, sorted by their offset in the file. Stripes stay whole where they fit.
pub(super) fn cut(layout: &Layout, offset: u64, len: u64) -> Vec<TargetRange> {
    let stripe = u64::from(layout.stripe.max(1));
    let step = if stripe > MESSAGE_MAX { MESSAGE_MAX } else { MESSAGE_MAX / stripe * stripe };
    let mut messages = Vec::new();
    for range in split(layout, offset, len) {
        let mut rest = Some(range);
        while let Some(range) = rest {
            // Cut at multiples of the step in the subfile, so that stripes stay whole wherever the range begins.
            let to_end = step - range.subfile_offset % step;
            let (front, behind) = range.split_at(to_end);
            messages.push(front);
            rest = behind;
        }
    }
    messages.sort_by_key(first);
    messages
}

fn first(range: &TargetRange) -> usize {
    range.pieces().next().map_or(0, |piece| piece.buffer_offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::TargetIndex;
    use proptest::prelude::*;

    fn layout(stripe: u32, width: u16) -> Layout {
        Layout { stripe, width, base: TargetIndex(0), targets: width }
    }

    /// Column, start in the subfile and length, in KiB.
    fn shown(ranges: &[TargetRange]) -> Vec<(u16, u64, u64)> {
        ranges.iter().map(|r| (r.column, r.subfile_offset >> 10, r.len >> 10)).collect()
    }

    #[test]
    fn golden_cuts() {
        let of = |stripe: u32, offset: u64, len: u64| {
            shown(&cut(&layout(stripe << 10, 2), offset << 10, len << 10))
        };
        assert_eq!(of(512, 0, 4096), [(0, 0, 1024), (1, 0, 1024), (0, 1024, 1024), (1, 1024, 1024)]);
        // Ends are those of stripes, wherever it begins.
        assert_eq!(
            of(384, 100, 3072),
            [(0, 100, 668), (1, 0, 768), (0, 768, 768), (1, 768, 768), (0, 1536, 100)]
        );
        // Stripes that are longer than a message are cut, and all targets have something to do.
        assert_eq!(of(2048, 0, 4096), [(0, 0, 1024), (0, 1024, 1024), (1, 0, 1024), (1, 1024, 1024)]);
    }

    #[test]
    fn targets_take_turns_where_stripes_are_long() {
        let ranges = cut(&layout(8 << 20, 3), 0, 24 << 20);
        let mut plan = StreamPlan::new(&ranges, |_| false);
        let begun: Vec<usize> = std::iter::from_fn(|| plan.next()).collect();
        let where_to = |message: usize| (ranges[message].column, ranges[message].subfile_offset >> 20);
        let turns = (0..3).flat_map(|row| (0..3).map(move |column| (column, row)));
        assert_eq!(
            begun.iter().map(|message| where_to(*message)).collect::<Vec<_>>(),
            turns.collect::<Vec<_>>()
        );
        plan.ended(begun[4]);
        assert_eq!((plan.next().map(where_to), plan.next()), (Some((1, 3)), None));
    }

    #[test]
    fn what_takes_a_message_after_all_has_a_window_too() {
        let ranges = cut(&layout(1 << 20, 2), 0, 8 << 20);
        let mut plan = StreamPlan::new(&ranges, |message| ranges[message].column == 1);
        assert_eq!((plan.next(), plan.next_here()), (Some(0), Some(1)));
        let asked: Vec<usize> =
            std::iter::from_fn(|| plan.next_here().inspect(|own| plan.begun_here(*own))).collect();
        assert_eq!((asked.len(), plan.next_here()), (WINDOW, None));
        plan.ended(asked[0]);
        plan.stop();
        assert_eq!((plan.next(), plan.next_here()), (None, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn messages_have_every_byte_once(
            pages in 1u32..2000, width in 1u16..20, offset in 0u64..1 << 24, len in 0u64..1 << 26,
        ) {
            let layout = layout(pages * 4096, width);
            let messages = cut(&layout, offset, len);
            prop_assert!(messages.iter().all(|range| (1..=MESSAGE_MAX).contains(&range.len)));
            let mut pieces: Vec<_> = messages.iter().flat_map(|range| range.pieces()).collect();
            pieces.sort_by_key(|piece| piece.buffer_offset);
            let end = pieces.iter().try_fold(0, |at, piece| (piece.buffer_offset == at).then_some(at + piece.len));
            prop_assert_eq!(end, Some(len as usize));
            let stripe = u64::from(layout.stripe);
            if stripe <= MESSAGE_MAX {
                let ends = messages.iter().map(|range| range.subfile_offset + range.len);
                let last = |end| bivouac_layout::split(&layout, offset, len).any(|r| r.subfile_offset + r.len == end);
                prop_assert!(ends.filter(|end| end % stripe != 0).all(last), "a stripe was cut");
            }
        }

        #[test]
        fn all_are_begun_once_in_order_and_within_the_window(
            pages in 1u32..700, width in 1u16..40, len in 1u64..1 << 28, liveness in prop::collection::vec(any::<u16>(), 1..50),
        ) {
            let ranges = cut(&layout(pages * 4096, width), 0, len);
            let here = |message: usize| ranges[message].column % 5 == 4;
            let mut plan = StreamPlan::new(&ranges, here);
            let mut under_way: Vec<usize> = Vec::new();
            let mut begun: Vec<usize> = Vec::new();
            let mut liveness = liveness.iter().cycle().map(|liveness| usize::from(*liveness));
            loop {
                while let Some(message) = plan.next() {
                    under_way.push(message);
                    begun.push(message);
                }
                if let Some(message) = plan.next_here() {
                    prop_assert!(here(message));
                    begun.push(message);
                }
                prop_assert!(under_way.len() <= UNDER_WAY_MAX);
                for column in 0..width {
                    let of_target = under_way.iter().filter(|message| ranges[**message].column == column);
                    prop_assert!(of_target.count() <= WINDOW);
                }
                if under_way.is_empty() {
                    break;
                }
                let ended = liveness.next().unwrap_or(0) % under_way.len();
                plan.ended(under_way.swap_remove(ended));
            }
            for column in 0..width {
                let own: Vec<usize> = begun.iter().copied().filter(|message| ranges[*message].column == column).collect();
                prop_assert!(own.is_sorted());
            }
            begun.sort_unstable();
            prop_assert_eq!(begun, (0..ranges.len()).collect::<Vec<_>>());
        }
    }
}
