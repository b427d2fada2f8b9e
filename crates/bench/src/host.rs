//! What a measurement needs of the program that it is part of.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use bivouac_client::Client;
use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupts;
use crate::{BenchError, BenchResult};

/// How a client is to reach the nodes of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// As every client does, with every short cut that there is.
    Best,
    /// Over TCP, as if they were on other machines.
    Network,
}

/// Makes a client of the named formation. The error is a sentence.
pub type Connect<'a> = dyn Fn(&str, Reach) -> Result<Client, String> + 'a;

/// The program around a measurement.
pub struct Host<'a> {
    /// The `bivouac` binary: it is run to start and stop formations, and as a process of a measurement.
    pub program: PathBuf,
    /// Arguments that make it a process of a measurement, that is, have it call [`work`](crate::work).
    pub worker: Vec<OsString>,
    /// The way to formations.
    pub connect: &'a Connect<'a>,
    /// Requests to end.
    pub interrupts: Interrupts,
    /// Where tables go.
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
