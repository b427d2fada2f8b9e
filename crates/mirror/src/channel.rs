//! A channel of a session: one change at a time, so a repetition is recognised by its number (RFC 8881, 2.10.6).

/// Decision about a change that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission<R> {
    /// Carry it out.
    Apply,
    /// It was carried out before, with this outcome.
    Repeated(R),
    /// A later one was carried out already: it counts no more.
    Late,
}

/// The last change of a channel: its number, its outcome, and the part of a file that it concerned.
#[derive(Clone, Debug)]
pub struct Channel<R, P> {
    last: Option<(u64, R)>,
    part: Option<P>,
}

impl<R, P> Default for Channel<R, P> {
    fn default() -> Channel<R, P> {
        Channel { last: None, part: None }
    }
}

impl<R: Clone, P> Channel<R, P> {
    /// Decides about a change.
    #[must_use]
    pub fn admit(&self, sequence: u64) -> Admission<R> {
        match &self.last {
            Some((last, outcome)) if *last == sequence => Admission::Repeated(outcome.clone()),
            Some((last, _)) if *last > sequence => Admission::Late,
            _ => Admission::Apply,
        }
    }

    /// Notes that a change is about to be carried out: from now on the part may differ from the primary's.
    pub fn begin(&mut self, part: P) {
        self.part = Some(part);
    }

    /// Notes that a change was carried out.
    pub fn note(&mut self, sequence: u64, outcome: R) {
        assert!(
            self.last.as_ref().is_none_or(|(last, _)| *last < sequence),
            "change {sequence} carried out again"
        );
        self.last = Some((sequence, outcome));
    }

    /// Ends the session, and takes the part that its last change concerned.
    pub fn end(&mut self) -> Option<P> {
        self.last = None;
        self.part.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_carried_out_once() {
        let mut channel = Channel::default();
        assert_eq!(channel.admit(1), Admission::Apply);
        channel.begin("a");
        channel.note(1, 'x');
        assert_eq!((channel.admit(1), channel.admit(2)), (Admission::Repeated('x'), Admission::Apply));
        channel.begin("b");
        channel.note(2, 'y');
        assert_eq!(channel.admit(1), Admission::Late);
        assert_eq!((channel.end(), channel.end()), (Some("b"), None));
        assert_eq!(channel.admit(1), Admission::Apply);
    }
}
