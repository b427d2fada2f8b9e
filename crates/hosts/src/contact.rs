//! Contact between a host's part and the keeper: what each does as time passes without a message of the other.
//!
//! Both sides are state machines without input or output. Time is an argument, in milliseconds, and rises. A cut
//! connection of TCP is silent for about as long after the cut as during it, since each repetition waits twice as long
//! as the one before. So the part does not wait for it: in doubt it connects anew, again and again, and the answer
//! there counts.
//!
//! Only what comes from the keeper is a sign of life. Other hosts' nodes do not count: they are there after the
//! keeper's end, too, and parts that believed each other would never go.

/// Messages that each host is sent within the tolerated silence when there is nothing else to say. So many that an
/// interruption may last nearly as long as that silence, whenever it begins.
pub(crate) const SIGNS_OF_LIFE: u64 = 30;
/// Share of the silence after which a part doubts its connection, as some messages are missing by then.
const DOUBT_SHARE: u64 = 12;
/// Attempts in the time after which a part doubts its connection, where another keeper may have taken over by then.
const TRIES_IN_DOUBT: u64 = 4;
/// Longest interval of attempts to reconnect, in milliseconds, which delays the contact after an interruption.
const TRY_MS_MAX: u64 = 1000;
/// Shortest interval of attempts, in milliseconds.
const TRY_MS_MIN: u64 = 100;
/// Longest time for which a host that has closed its connection may come back on a new one, in milliseconds.
const RETURN_MS_MAX: u64 = 5000;

/// Next action of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContactAction {
    /// Call again at this time, unless a message arrives before.
    Wait {
        /// The time.
        until_ms: u64,
    },
    /// Reconnect; the number distinguishes attempts.
    Try {
        /// Rises with every attempt.
        turn: u32,
    },
    /// Take the part down.
    End(ContactLoss),
}

/// Reason why a part is taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContactLoss {
    /// Nothing was received for as long as is tolerated.
    Silence,
    /// The connection has ended, and nobody is there any more who could be connected to.
    Gone,
}

/// A part's contact to the keeper.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    silence_ms: u64,
    heard_ms: u64,
    /// True once the part has what it needs to reconnect: it belongs to the formation.
    may_resume: bool,
    /// True if the connection has ended.
    broken: bool,
    /// True if nobody could be connected to since then.
    refused: bool,
    tried_ms: Option<u64>,
    turn: u32,
    /// Time after which the connection is doubted, in milliseconds, where another host's keeper can take this one's
    /// place.
    succeeded_ms: Option<u64>,
}

impl Contact {
    /// Creates a contact at the time of its first message.
    pub fn new(silence_ms: u64, now_ms: u64) -> Contact {
        let (may_resume, broken, refused) = (false, false, false);
        let (tried_ms, turn, succeeded_ms) = (None, 0, None);
        Contact { silence_ms, heard_ms: now_ms, may_resume, broken, refused, tried_ms, turn, succeeded_ms }
    }

    /// Sets whether a keeper on another host can take over, so that this keeper's end is not the part's: then the
    /// silence, in milliseconds, after which the connection is doubted; `None` if none can.
    pub fn succeeded(&mut self, doubt_ms: Option<u64>) {
        self.succeeded_ms = doubt_ms;
    }

    /// Returns when a message of the keeper last arrived.
    pub fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Permits the part to reconnect from now on.
    pub fn allow(&mut self) {
        self.may_resume = true;
    }

    /// Records that a message of the keeper has arrived.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms.max(self.heard_ms);
    }

    /// Records that the keeper has answered on a new connection, which replaces the former one.
    pub fn resumed(&mut self, now_ms: u64) {
        self.heard(now_ms);
        (self.broken, self.refused) = (false, false);
    }

    /// Records that the connection has ended. That may be due to something in between.
    pub fn broke(&mut self) {
        self.broken = true;
    }

    /// Records that at the keeper's former address nobody listens, or another program does.
    pub fn refused(&mut self) {
        // While the connection stands, it is the network that refuses.
        self.refused |= self.broken;
    }

    /// Returns the interval of attempts, in milliseconds.
    pub fn try_ms(&self) -> u64 {
        let share_ms = self.succeeded_ms.unwrap_or(u64::MAX) / TRIES_IN_DOUBT;
        (self.silence_ms / SIGNS_OF_LIFE).min(share_ms).clamp(TRY_MS_MIN, TRY_MS_MAX)
    }

    /// Returns the next action.
    pub fn next(&mut self, now_ms: u64) -> ContactAction {
        let end_ms = self.heard_ms.saturating_add(self.silence_ms);
        // Nobody listens at the keeper's address, and the connection to it has ended: it is gone, and the silence need
        // not be waited for.
        let is_succeeded = self.succeeded_ms.is_some();
        if self.broken && ((self.refused && !is_succeeded) || !self.may_resume) {
            return ContactAction::End(ContactLoss::Gone);
        }
        if now_ms >= end_ms {
            return ContactAction::End(ContactLoss::Silence);
        }
        if !self.may_resume {
            return ContactAction::Wait { until_ms: end_ms };
        }
        let doubt_ms = self.silence_ms / DOUBT_SHARE;
        let doubt_ms =
            self.heard_ms.saturating_add(self.succeeded_ms.map_or(doubt_ms, |ms| ms.min(doubt_ms)));
        // A broken connection is no doubt any more; one that is only silent may be waiting for a retransmission.
        let from_ms = if self.broken { 0 } else { doubt_ms };
        let again_ms = self.tried_ms.map_or(0, |tried| tried.saturating_add(self.try_ms()));
        let due_ms = from_ms.max(again_ms);
        if now_ms < due_ms {
            return ContactAction::Wait { until_ms: due_ms.min(end_ms) };
        }
        assert!(self.may_resume && now_ms < end_ms, "an attempt that can be of no use");
        self.tried_ms = Some(now_ms);
        self.turn += 1;
        ContactAction::Try { turn: self.turn }
    }
}

/// The keeper's side of a contact: whether a host still belongs to the formation.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostContact {
    /// When a message of it last arrived.
    heard_ms: u64,
    /// The latest of its connections.
    turn: u32,
    /// Without a connection, until when it may come back.
    away_until_ms: Option<u64>,
}

impl HostContact {
    /// Creates the contact of a host that has just reported.
    pub fn new(now_ms: u64) -> HostContact {
        HostContact { heard_ms: now_ms, ..HostContact::default() }
    }

    /// Records that a message of it has arrived.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms.max(self.heard_ms);
    }

    /// Returns when a message of it last arrived.
    pub fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Records that its connection has ended; `closed`, at its own end. An agent that dies looks like one that gives up
    /// an attempt whose answer came too late, so it has time for another attempt. If the connection broke, the agent
    /// may not know yet.
    pub fn broke(&mut self, closed: bool, silence_ms: u64, now_ms: u64) {
        let given_up_ms = self.heard_ms.saturating_add(2 * silence_ms);
        let soon_ms = now_ms.saturating_add((silence_ms / 4).min(RETURN_MS_MAX));
        self.away_until_ms = Some(if closed { given_up_ms.min(soon_ms) } else { given_up_ms });
    }

    /// Returns true if it has no connection and may come back.
    pub fn is_away(&self) -> bool {
        self.away_until_ms.is_some()
    }

    /// Records a new connection of it. Returns false if it is older than the present one.
    pub fn resume(&mut self, turn: u32, now_ms: u64) -> bool {
        if turn <= self.turn {
            return false;
        }
        (self.turn, self.away_until_ms) = (turn, None);
        self.heard(now_ms);
        true
    }

    /// Returns when it is given up unless a message arrives. A host that received nothing for the tolerated silence has
    /// taken its part down; twice that leaves time for messages under way.
    pub fn due_ms(&self, silence_ms: u64) -> u64 {
        self.away_until_ms.unwrap_or(self.heard_ms.saturating_add(2 * silence_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 60_000;

    fn contact() -> Contact {
        let mut contact = Contact::new(S, 0);
        contact.allow();
        contact
    }

    #[test]
    fn doubt_comes_first_and_the_end_comes_last() {
        let mut contact = contact();
        assert_eq!(contact.next(0), ContactAction::Wait { until_ms: S / 12 });
        assert_eq!(contact.next(S / 12), ContactAction::Try { turn: 1 });
        assert_eq!(contact.next(S / 12), ContactAction::Wait { until_ms: S / 12 + 1000 });
        assert_eq!(contact.next(S - 1), ContactAction::Try { turn: 2 });
        assert_eq!(contact.next(S - 1), ContactAction::Wait { until_ms: S });
        assert_eq!(contact.next(S), ContactAction::End(ContactLoss::Silence));
        contact.resumed(S);
        assert_eq!(contact.next(S), ContactAction::Wait { until_ms: S + S / 12 });
    }

    #[test]
    fn before_it_is_of_the_formation_a_part_only_waits() {
        let mut contact = Contact::new(S, 5);
        assert_eq!(contact.next(S), ContactAction::Wait { until_ms: S + 5 });
        contact.broke();
        assert_eq!(contact.next(6), ContactAction::End(ContactLoss::Gone));
    }

    #[test]
    fn a_connection_that_ends_is_made_anew_unless_nobody_is_there() {
        let mut contact = contact();
        // Refused by the network, while the connection stands.
        contact.refused();
        contact.broke();
        assert_eq!(contact.next(1), ContactAction::Try { turn: 1 });
        assert_eq!(contact.next(2), ContactAction::Wait { until_ms: 1001 });
        contact.resumed(500);
        contact.broke();
        assert_eq!(contact.next(1001), ContactAction::Try { turn: 2 });
        contact.refused();
        assert_eq!(contact.next(1002), ContactAction::End(ContactLoss::Gone));
    }

    /// S817.
    #[test]
    fn a_keeper_that_is_succeeded_is_waited_for() {
        let mut contact = contact();
        contact.succeeded(Some(2000));
        assert_eq!(contact.next(0), ContactAction::Wait { until_ms: 2000 });
        contact.broke();
        contact.refused();
        for turn in 1..=3 {
            assert_eq!(contact.next(500 * u64::from(turn)), ContactAction::Try { turn });
        }
        assert_eq!(contact.next(S), ContactAction::End(ContactLoss::Silence));
        contact.succeeded(None);
        assert_eq!(contact.next(1501), ContactAction::End(ContactLoss::Gone));
    }

    #[test]
    fn only_a_later_connection_takes_the_place_of_one() {
        let mut tie = HostContact::new(0);
        assert!(tie.resume(2, 10) && !tie.resume(2, 11) && !tie.resume(1, 12) && tie.resume(3, 13));
        assert_eq!(tie.due_ms(S), 13 + 2 * S);
        tie.broke(true, S, 20);
        assert_eq!((tie.is_away(), tie.due_ms(S)), (true, 20 + RETURN_MS_MAX));
        assert!(tie.resume(4, 21) && !tie.is_away());
        tie.broke(false, S, 30);
        assert_eq!(tie.due_ms(S), 21 + 2 * S);
        // What was said before and is heard late is no connection.
        tie.heard(31);
        assert_eq!(tie.due_ms(S), 21 + 2 * S);
    }

    /// A cut between a part and the keeper: times at which one direction is cut, and the fate of a message.
    #[derive(Clone, Debug)]
    struct Cut {
        from_ms: u64,
        for_ms: u64,
        /// True if what goes up, and what goes down, is lost.
        up: bool,
        down: bool,
    }

    impl Cut {
        fn at(&self, now_ms: u64) -> (bool, bool) {
            let is = (self.from_ms..self.from_ms + self.for_ms).contains(&now_ms);
            (is && self.up, is && self.down)
        }
    }

    /// Times at which each side gives the other one up.
    #[derive(Clone, Copy, Debug, Default)]
    struct Ends {
        part_ms: Option<u64>,
        keeper_ms: Option<u64>,
        back_ms: Option<u64>,
    }

    /// Plays both sides in steps of 10 ms. Worse than the truth: a connection that was cut in any direction never
    /// carries anything again, and an attempt succeeds only when both directions are open when it is made. `dies_ms`:
    /// the keeper's end, of which nothing is heard.
    fn play(silence_ms: u64, cuts: &[Cut], dies_ms: u64, until_ms: u64) -> Ends {
        let (mut part, mut tie, mut ends) =
            (Contact::new(silence_ms, 0), HostContact::new(0), Ends::default());
        part.allow();
        let mut is_dead = false;
        for time in (0..until_ms).step_by(10) {
            let lost =
                cuts.iter().map(|cut| cut.at(time)).fold((false, false), |a, b| (a.0 || b.0, a.1 || b.1));
            let (up, down) = (!lost.0, !lost.1 && time < dies_ms);
            is_dead |= !up || !down;
            let sign = time % (silence_ms / SIGNS_OF_LIFE) < 10;
            if sign && !is_dead {
                part.heard(time);
                tie.heard(time);
            }
            if time >= tie.due_ms(silence_ms) {
                ends.keeper_ms.get_or_insert(time);
            }
            if ends.part_ms.is_none() {
                match part.next(time) {
                    ContactAction::End(_) => ends.part_ms = Some(time),
                    ContactAction::Try { turn } if up && down && ends.keeper_ms.is_none() => {
                        assert!(tie.resume(turn, time), "attempts are numbered");
                        part.resumed(time);
                        (is_dead, ends.back_ms) = (false, Some(time));
                    }
                    ContactAction::Try { .. } | ContactAction::Wait { .. } => {}
                }
            }
        }
        ends
    }

    fn cut() -> impl Strategy<Value = Cut> {
        let directions = prop_oneof![Just((true, true)), Just((true, false)), Just((false, true))];
        (0..2 * S, 0..2 * S, directions).prop_map(|(from_ms, for_ms, (up, down))| Cut {
            from_ms,
            for_ms,
            up,
            down,
        })
    }

    /// S280. Lengths as of the suite on virtual hosts, at any time between two signs of life.
    #[test]
    fn cuts_that_are_shorter_than_the_silence_cost_nobody_anything() {
        for silence_ms in [1000, 6000, S, 10 * S] {
            for share in 1..=11 {
                for phase in 0..4 {
                    let for_ms = silence_ms * share * 5 / 60;
                    let from_ms = 3 * silence_ms + phase * silence_ms / SIGNS_OF_LIFE / 4;
                    for (up, down) in [(true, true), (true, false), (false, true)] {
                        let cut = Cut { from_ms, for_ms, up, down };
                        let ends = play(silence_ms, &[cut], u64::MAX, 8 * silence_ms);
                        assert_eq!((ends.part_ms, ends.keeper_ms), (None, None), "{for_ms} of {silence_ms}");
                        let doubt = from_ms + silence_ms / DOUBT_SHARE;
                        let latest = doubt.max(from_ms + for_ms) + TRY_MS_MAX;
                        assert!(ends.back_ms.is_some_and(|back| back <= latest), "{ends:?}, {latest}");
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// S281.
        #[test]
        fn a_part_that_was_given_up_has_ended_before(cuts in proptest::collection::vec(cut(), 1..4)) {
            let ends = play(S, &cuts, u64::MAX, 6 * S);
            if let Some(keeper) = ends.keeper_ms {
                prop_assert!(ends.part_ms.is_some_and(|part| part < keeper), "{:?}", ends);
                prop_assert!(ends.back_ms.is_none_or(|back| back < keeper), "{:?}", ends);
            }
            prop_assert_eq!(ends.part_ms.is_some(), ends.keeper_ms.is_some());
        }

        /// S281.
        #[test]
        fn nothing_outlives_its_keeper(cuts in proptest::collection::vec(cut(), 0..4), dies in 0..3 * S) {
            let ends = play(S, &cuts, dies, 6 * S);
            prop_assert!(ends.part_ms.is_some_and(|part| part <= dies + S), "{:?}", ends);
        }

        /// Whatever happens in whatever order: the end comes in time and not before, and attempts do not come in a
        /// rush.
        #[test]
        fn any_order_of_events_keeps_the_bounds(events in proptest::collection::vec((0u8..5, 0u64..4000), 1..200)) {
            let mut contact = contact();
            let (mut now, mut heard, mut broken, mut refused, mut last) = (0, 0, false, false, None);
            let mut turns = 0;
            for (event, pause) in events {
                now += pause;
                match event {
                    0 => { contact.heard(now); heard = now; }
                    1 => { contact.resumed(now); (heard, broken, refused) = (now, false, false); }
                    2 => { contact.broke(); broken = true; }
                    3 => { contact.refused(); refused |= broken; }
                    _ => {}
                }
                match contact.next(now) {
                    ContactAction::End(ContactLoss::Gone) => prop_assert!(broken && refused),
                    ContactAction::End(ContactLoss::Silence) => prop_assert!(now >= heard + S),
                    ContactAction::Wait { until_ms } => {
                        prop_assert!(now < until_ms && until_ms <= heard + S);
                        prop_assert!(!(broken && refused));
                    }
                    ContactAction::Try { turn } => {
                        prop_assert!(turn == turns + 1 && (broken || now >= heard + S / DOUBT_SHARE));
                        prop_assert!(last.is_none_or(|last| now >= last + 1000));
                        (turns, last) = (turn, Some(now));
                    }
                }
            }
        }
    }
}
