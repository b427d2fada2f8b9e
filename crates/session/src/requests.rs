//! Requests that change records, of which a reply is kept with the change, as in the slot tables of NFSv4.1 sessions
//! (RFC 8881, 2.10.6).

/// The answer to whether a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was not carried out before.
    CarryOut,
    /// It was, and left this value.
    Replay(u64),
    /// Its client has asked again since, or given it up. Nobody reads the answer.
    Superseded,
}

/// Decides on a request of a client, under the lock that its retransmission takes too. `find_outcome` looks for the
/// value that the same request of that client left when it was carried out.
pub fn judge_request(
    is_superseded: bool,
    is_retransmission: bool,
    find_outcome: impl FnOnce() -> Option<u64>,
) -> Verdict {
    match (is_superseded, is_retransmission) {
        (true, _) => Verdict::Superseded,
        (false, false) => Verdict::CarryOut,
        (false, true) => find_outcome().map_or(Verdict::CarryOut, Verdict::Replay),
    }
}

/// Decides on a step of a change over several nodes, by the number of the last step that was carried out in its place.
/// Also the first transmission is looked for, since a step may arrive behind its own retransmission. A step leaves no
/// value: one that is replayed has 0.
#[must_use]
pub fn judge_step(step: u64, last: Option<u64>) -> Verdict {
    match last {
        Some(last) if last > step => Verdict::Superseded,
        Some(last) if last == step => Verdict::Replay(0),
        _ => Verdict::CarryOut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_again_is_looked_for() {
        let judged = |superseded, again, found| judge_request(superseded, again, || found);
        assert_eq!(judged(true, true, Some(7)), Verdict::Superseded, "also its own outcome is for nobody");
        assert_eq!(judge_request(false, false, || panic!("it is the first")), Verdict::CarryOut);
        assert_eq!(judged(false, true, Some(7)), Verdict::Replay(7));
        assert_eq!(judged(false, true, None), Verdict::CarryOut);
    }

    #[test]
    fn a_step_is_carried_out_once_and_not_behind_the_next_change() {
        let judged = [None, Some(4), Some(5), Some(6)].map(|last| judge_step(5, last));
        assert_eq!(judged, [Verdict::CarryOut, Verdict::CarryOut, Verdict::Replay(0), Verdict::Superseded]);
    }
}
