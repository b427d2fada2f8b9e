//! Faults on purpose.

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum What {
    /// It is refused: HTTP status, and name of the error.
    Refuse(u16, &'static str),
    /// The connection ends before anything is done.
    Drop,
    /// It is done, but the connection ends before anything is said.
    Forget,
    /// The answer ends after so many bytes.
    Cut(usize),
    /// The answer has another name for the content.
    Rename,
}

/// A request that something goes wrong with.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its method.
    pub method: &'static str,
    /// What its path or its parameters contain.
    pub within: &'static str,
    /// So many more go well before.
    pub after: usize,
    /// So many go wrong.
    pub times: usize,
    /// How.
    pub what: What,
}

/// Those that are due.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What goes wrong with a request.
    pub fn next(&mut self, method: &str, target: &str) -> Option<What> {
        let fault =
            self.0.iter_mut().find(|f| f.times > 0 && f.method == method && target.contains(f.within))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.times -= 1;
        Some(fault.what.clone())
    }
}
