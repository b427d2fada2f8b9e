//! Services that a measurement needs of the program that it is part of, and of the one that it measures.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use crate::interrupt::Interrupts;
use crate::{BenchError, BenchResult};

/// The program around a measurement.
pub struct Host<'a> {
    /// The `bivouac` binary: it starts and stops formations, and knows where they are.
    pub program: PathBuf,
    /// The program around the measurement.
    pub own: PathBuf,
    /// Arguments that make that a process of a measurement, that is, have it call [`work`](crate::work).
    pub worker: Vec<OsString>,
    /// Requests to end.
    pub interrupts: Interrupts,
    /// Destination of tables.
    pub out: RefCell<Box<dyn Write + 'a>>,
    /// Told what happens, a line each.
    pub progress: &'a dyn Fn(&str),
}

impl Host<'_> {
    pub(crate) fn print(&self, text: &str) -> BenchResult<()> {
        let mut out = self.out.borrow_mut();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(BenchError::system("standard output"))
    }

    pub(crate) fn say(&self, line: &str) {
        (self.progress)(line);
    }
}
