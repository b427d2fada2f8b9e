//! Activity in each second of the last half hour, and in each minute of a whole life, as rows. Nothing is written while
//! nothing happens: seconds without a row, or with one of half an hour ago, had no activity.

use std::ops::Range;
use std::sync::Arc;

use bivouac_direct::Memory;
use bivouac_record::{Bin, History, HistoryInterval, MINUTE_MS, MINUTES, SECOND_MS, SECONDS, spread};

use super::rows::Rows;

const WORD: usize = size_of::<u64>();
/// Double words of an interval: its number, and four values.
const SLOT: usize = 5;
/// Double words of the row that says which of the two places of minutes counts, and how long they are.
const LENGTH: usize = 2;

/// A history.
pub struct Ring {
    length: Rows,
    seconds: Rows,
    /// Minutes; one set is in use. When minutes become longer they are written to the other one.
    minutes: [Rows; 2],
    which: usize,
    minute_ms: u64,
}

impl Ring {
    /// Double words that it takes.
    pub const WORDS: usize =
        Rows::words(1, LENGTH) + Rows::words(SECONDS, SLOT) + 2 * Rows::words(MINUTES, SLOT);

    /// Returns the one that begins with this double word.
    pub fn open(memory: &Arc<Memory>, at: usize) -> Ring {
        let rows = |at, count, words| Rows::new(Arc::clone(memory), at, count, words);
        let seconds = at + Rows::words(1, LENGTH);
        let first = seconds + Rows::words(SECONDS, SLOT);
        let second = first + Rows::words(MINUTES, SLOT);
        let mut ring = Ring {
            length: rows(at, 1, LENGTH),
            seconds: rows(seconds, SECONDS, SLOT),
            minutes: [rows(first, MINUTES, SLOT), rows(second, MINUTES, SLOT)],
            which: 0,
            minute_ms: MINUTE_MS,
        };
        if let [which @ (0 | 1), minute_ms] = numbers(&ring.length.read(0)) {
            (ring.which, ring.minute_ms) = (which as usize, minute_ms.max(MINUTE_MS));
        }
        ring
    }

    /// Adds what was done in a time, in milliseconds since the history began: as much in each part of it.
    pub fn add(&mut self, time_ms: Range<u64>, what: Bin) {
        while time_ms.end.max(time_ms.start) / self.minute_ms >= MINUTES as u64 {
            self.lengthen();
        }
        // First what is known for ever, by which it is known how much of the rest is in here.
        for (index, bin) in spread(time_ms.clone(), self.minute_ms, MINUTES as u64, what) {
            add(self.whole_life(), index as usize, index, bin);
        }
        for (index, bin) in spread(time_ms, SECOND_MS, SECONDS as u64, what) {
            add(&self.seconds, index as usize % SECONDS, index, bin);
        }
    }

    /// Returns all of it that was done from a time to another, which is now. What cannot have been used is not looked
    /// at.
    pub fn list(&self, from_ms: u64, now_ms: u64) -> History {
        let minute_ms = self.minute_ms;
        let (seconds, minutes) = (
            list(&self.seconds, SECOND_MS, from_ms, now_ms),
            list(self.whole_life(), minute_ms, from_ms, now_ms),
        );
        // What is older than the ring is from seconds in which nothing was done since.
        let known = seconds.last().map_or(0, |last| {
            last.at_ms.saturating_add(SECOND_MS).saturating_sub(SECONDS as u64 * SECOND_MS)
        });
        let seconds = seconds.into_iter().filter(|slot| slot.at_ms >= known).collect();
        History { minute_ms, seconds, minutes }
    }

    /// Returns the sum of all that was ever added.
    pub fn total(&self, now_ms: u64) -> Bin {
        let mut total = Bin::default();
        list(self.whole_life(), self.minute_ms, 0, now_ms).iter().for_each(|slot| total.add(slot.bin));
        total
    }

    fn whole_life(&self) -> &Rows {
        let [first, second] = &self.minutes;
        if self.which == 0 { first } else { second }
    }

    /// Makes minutes twice as long, in the place that does not count until they are all there.
    fn lengthen(&mut self) {
        let next = 1 - self.which;
        let [first, second] = &self.minutes;
        let (from, to) = if next == 0 { (second, first) } else { (first, second) };
        for row in 0..MINUTES {
            let mut sum = Bin::default();
            for half in [2 * row, 2 * row + 1] {
                if let Some((_, bin)) = slot(from, half) {
                    sum.add(bin);
                }
            }
            if sum != Bin::default() {
                put(to, row, row as u64, sum);
            } else if to.is_used(row) {
                to.write(row, &[]);
            }
        }
        (self.which, self.minute_ms) = (next, self.minute_ms.saturating_mul(2));
        // Last: until it is written the other place counts, in which nothing was changed.
        self.length.write(0, &bytes([next as u64, self.minute_ms]));
    }
}

/// Returns the interval in a row.
fn slot(rows: &Rows, row: usize) -> Option<(u64, Bin)> {
    let [index, read, written, ops, spent_ns] = numbers(&rows.read(row));
    (index != u64::MAX).then_some((index, Bin { read, written, ops, spent_ns }))
}

fn put(rows: &Rows, row: usize, index: u64, bin: Bin) {
    let [read, written, ops, spent_ns] = bin.values();
    rows.write(row, &bytes([index, read, written, ops, spent_ns]));
}

/// Adds to an interval, unless a later one has its row by now.
fn add(rows: &Rows, row: usize, index: u64, mut bin: Bin) {
    match slot(rows, row) {
        // A late report of long ago, whose row a later second has.
        Some((known, _)) if known > index => return,
        Some((known, before)) if known == index => bin.add(before),
        _ => {}
    }
    put(rows, row, index, bin);
}

fn list(rows: &Rows, width: u64, from_ms: u64, now_ms: u64) -> Vec<HistoryInterval> {
    let used =
        usize::try_from(now_ms / width).map_or(rows.count(), |last| rows.count().min(last.saturating_add(1)));
    let slots = (0..used).filter_map(|row| slot(rows, row));
    let slots = slots.map(|(index, bin)| HistoryInterval { at_ms: index.saturating_mul(width), bin });
    let mut slots: Vec<HistoryInterval> =
        slots.filter(|slot| slot.at_ms.saturating_add(width) > from_ms).collect();
    slots.sort_by_key(|slot| slot.at_ms);
    slots
}

fn bytes<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Decodes `N` numbers; all `u64::MAX` if there are not as many.
fn numbers<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut numbers = [u64::MAX; N];
    let words = bytes.as_chunks::<WORD>().0;
    if words.len() == N {
        numbers.iter_mut().zip(words).for_each(|(number, word)| *number = u64::from_ne_bytes(*word));
    }
    numbers
}
