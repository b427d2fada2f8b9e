//! Measures the product beside the limits of the machine, in one run: a mount beside tmpfs, remote data
//! beside a bare TCP copy, and how formations start, stop and idle.
//!
//! A measurement is made of real processes: this program again, with a hidden subcommand ([`work`]). They take a
//! task, meet at barriers over a socket, and say what they saw; the process that leads them
//! repeats that on all targets in turn, and shows medians with their spread ([`Report`]). The program is
//! `bivouac-bench`, which `bivouac bench` becomes; `bivouac` itself has only the table of its options ([`BenchArgs`]).
//! What is made for a measurement is removed when it ends, also by a signal.

mod all;
mod arguments;
mod barrier;
mod chart;
mod clock;
mod command;
mod error;
mod everyday;
mod flash;
mod formation;
mod fuse;
mod host;
mod idle;
mod interrupt;
mod io;
mod latency;
mod measure;
mod member_protocol;
mod meta;
mod net;
mod one_core;
mod output;
mod pattern;
mod protect;
mod reach;
mod report;
mod scratch;
mod slow;
mod startup;
mod stats;
mod team;
mod timed_part;
mod worker;

pub use arguments::{BenchArgs, run};
pub use error::{BenchError, BenchResult, Kind};
pub use host::Host;
pub use interrupt::Interrupts;
pub use report::{Measured, Report, Row, Unit};
pub use stats::Summary;
pub use worker::work;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A host without processes or formations.
    pub(crate) fn host() -> Host<'static> {
        Host {
            program: "/nonexistent".into(),
            own: "/nonexistent".into(),
            worker: Vec::new(),
            interrupts: Interrupts::of(&[]).unwrap(),
            out: std::cell::RefCell::new(Box::new(std::io::sink())),
            progress: &|_| {},
        }
    }
}
