//! Use of files: what programs read and wrote in which sizes and in which order, when, and how long it
//! took; and rules that say of that which setting to change. Pure: no I/O, no clock, fixed memory per file.

mod counts;
mod facts;
mod history;
mod rules;
mod timeline;
mod tracker;

pub use counts::{Counts, OWN_PROGRAM, Pattern, SIZE_BOUNDS, SIZE_RANGES};
pub use facts::{Facts, Group};
pub use history::{History, HistoryInterval, MINUTE_MS, MINUTES, SECOND_MS, SECONDS};
pub use rules::{Finding, RULES, Rule, findings, wider_stripe};
pub use timeline::{BINS, Bin, Timeline, spread};
pub use tracker::{Access, AccessPosition, Tracker};

/// True if uses are recorded. False in builds for comparison: benches/recorder.
pub const RECORDS: bool = !cfg!(bivouac_unrecorded);
