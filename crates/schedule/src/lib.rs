//! Deadline scheduling of staging: jobs announce their transfers, and get slots of site storage's bandwidth.
//!
//! - [`Limits`] is what site storage gives, and what one user may have of it.
//! - [`Request`] is what a job announces, [`Slot`] the time and the rate that it gets.
//! - [`Schedule`] is the machine: [`Event`]s in, slots out. No I/O, no clock: time is an argument.
//! - [`site`] is a site of many jobs, to see what slots are worth; its random numbers are those of a seed.

mod allocation;
mod machine;
mod model;
pub mod site;

pub use machine::{Event, EventOutcome, Schedule};
pub use model::{Entry, Limits, Phase, Request, ScheduleError, Slot};
