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
    /// The answer has another last byte.
    Alter,
    /// Nothing is done or said until nothing goes wrong any more; who asks can be killed meanwhile.
    Hold,
    /// It is done, and nothing is said until nothing goes wrong any more.
    HoldDone,
}

/// A request that something goes wrong with.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its method; any if empty.
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
pub struct Faults {
    due: Vec<Fault>,
    storm: Option<Storm>,
}

/// Any request may go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// Where its chance begins.
    pub seed: u64,
    /// One of so many goes wrong.
    pub one_in: u64,
    /// Whether the store may also name content wrongly.
    pub lies: bool,
}

impl Storm {
    fn next(&mut self) -> Option<What> {
        let drawn = self.draw();
        if !drawn.is_multiple_of(self.one_in) {
            return None;
        }
        Some(match self.draw() % if self.lies { 7 } else { 6 } {
            0 => What::Refuse(500, "InternalError"),
            1 => What::Refuse(503, "SlowDown"),
            2 => What::Drop,
            3 | 4 => What::Forget,
            5 => What::Cut((self.draw() % 300) as usize),
            _ => What::Rename,
        })
    }

    /// As splitmix64 does.
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.seed ^ self.seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.due.push(fault);
    }

    pub fn clear(&mut self) {
        (self.due, self.storm) = (Vec::new(), None);
    }

    pub fn storm(&mut self, storm: Storm) {
        self.storm = Some(storm);
    }

    /// What goes wrong with a request.
    pub fn next(&mut self, method: &str, target: &str) -> Option<What> {
        if let Some(storm) = &mut self.storm {
            return storm.next();
        }
        let is_method = |fault: &Fault| fault.method.is_empty() || fault.method == method;
        let fault = self.due.iter_mut().find(|f| f.times > 0 && is_method(f) && target.contains(f.within))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.times -= 1;
        Some(fault.what.clone())
    }
}
