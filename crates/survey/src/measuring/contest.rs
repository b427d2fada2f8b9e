//! Schedule of the transfers: rounds of disjoint pairs, then what seems slow once more alone, then all at the same
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bivouac_launch::hex::to_hex;
use bivouac_launch::random_bytes;
use bivouac_sysmap::{LinkJudgement, MeasuredFlows, MeasuredHost, Network, rounds, spread};

use super::messages::{MeasureOrder, MeasuredConnection, Reply, TransferOrder};

/// Time that a transfer takes, in milliseconds.
pub const STEP_MS: u64 = 500;
/// Overhead of a step, at most as a rule.
const BESIDES_MS: u64 = 100;
/// Connections of a transfer: one alone is often less than what a fast link carries.
pub const STREAMS: usize = 4;
/// Most transfers that are made again alone.
const ALONE_MAX: usize = 16;
/// Time that a host may take to answer beyond what it was told to do.
const ANSWER: Duration = Duration::from_secs(10);

/// A host that takes orders.
#[derive(Debug)]
pub struct Participant {
    /// Its name.
    pub name: String,
    /// Address that others send to.
    pub address: SocketAddr,
    /// The connection to it; none once it is lost.
    pub line: Option<MeasuredConnection>,
}

/// Result of a contest.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Measured flows.
    pub flows: MeasuredFlows,
    /// Rounds that were made.
    pub rounds: usize,
    /// Rounds in which every pair would have met.
    pub rounds_of_all: usize,
    /// Rates from each of the first half to one of the second half, and back, if all of them sent.
    pub together: Option<[u64; 2]>,
    /// Transfers that did not work.
    pub notes: Vec<String>,
}

/// The hosts, and what is known of them so far.
#[derive(Debug)]
pub struct Contest<'a> {
    players: &'a mut [Participant],
    outcome: Outcome,
}

/// Makes all measurements, within about this time.
pub fn play(
    players: &mut [Participant],
    hosts: &[MeasuredHost],
    network: Option<&Network>,
    halves: &[(usize, usize)],
    bound: Duration,
) -> Outcome {
    assert_eq!(players.len(), hosts.len(), "flows name hosts by their position");
    let until = Instant::now() + bound;
    let mut contest = Contest { players, outcome: Outcome::default() };
    contest.rounds(until);
    let judge = LinkJudgement { hosts, network };
    for pair in judge.doubtful(&contest.outcome.flows).into_iter().take(ALONE_MAX) {
        for (pair, bits) in contest.step(&[pair]) {
            contest.note_flow(pair, bits, true);
        }
    }
    contest.all_together(halves);
    contest.outcome
}

impl Contest<'_> {
    fn rounds(&mut self, until: Instant) {
        let all = rounds(self.players.len());
        self.outcome.rounds_of_all = all.len();
        let bound_ms = until.saturating_duration_since(Instant::now()).as_millis();
        // Two transfers a round, there and back.
        let fit = usize::try_from(bound_ms / u128::from(2 * (STEP_MS + BESIDES_MS))).unwrap_or(usize::MAX);
        for round in spread(all, fit.max(1)) {
            if self.outcome.rounds > 0 && Instant::now() >= until {
                return;
            }
            assert!(self.outcome.rounds < self.outcome.rounds_of_all, "more rounds than there are");
            self.outcome.rounds += 1;
            // Nobody else sends while there is only one pair.
            let alone = round.len() == 1;
            for back in [false, true] {
                let pairs: Vec<_> =
                    round.iter().map(|(a, b)| if back { (*b, *a) } else { (*a, *b) }).collect();
                for (pair, bits) in self.step(&pairs) {
                    self.note_flow(pair, bits, alone);
                }
            }
        }
    }

    /// Notes a flow, of which the better figure counts: what disturbs a transfer makes it slower, never faster.
    fn note_flow(&mut self, pair: (usize, usize), bits: u64, alone: bool) {
        let known = self.outcome.flows.entry(pair).or_insert((bits, alone));
        *known = (known.0.max(bits), known.1 || alone);
    }

    fn all_together(&mut self, halves: &[(usize, usize)]) {
        let both: Vec<(usize, usize)> = halves.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
        let flowed = self.step(&both);
        // Only if all of them sent: a sum over some would be judged as that of the halves.
        if flowed.len() == both.len() && !both.is_empty() {
            let sum = |back: bool| {
                let of =
                    |(a, b): &(usize, usize)| flowed.get(&if back { (*b, *a) } else { (*a, *b) }).copied();
                halves.iter().filter_map(of).fold(0, u64::saturating_add)
            };
            self.outcome.together = Some([sum(false), sum(true)]);
        }
    }

    /// Makes these pairs send at the same time; returns the bytes that arrived of each.
    fn step(&mut self, pairs: &[(usize, usize)]) -> BTreeMap<(usize, usize), u64> {
        // A host in two pairs would share its link between them, and its answers not say which of them they are of.
        let senders: BTreeSet<usize> = pairs.iter().map(|(from, _)| *from).collect();
        let receivers: BTreeSet<usize> = pairs.iter().map(|(_, to)| *to).collect();
        assert!(
            senders.len() == pairs.len() && receivers.len() == pairs.len(),
            "pairs with a host in common"
        );
        let mut flowed = BTreeMap::new();
        let key = match random_bytes::<16>() {
            Ok(bytes) => to_hex(&bytes),
            Err(error) => {
                self.note(error.to_string());
                return flowed;
            }
        };
        let wanted = TransferOrder { key, streams: STREAMS, ms: STEP_MS };
        let ready: Vec<(usize, usize)> =
            pairs.iter().copied().filter(|pair| self.begin(*pair, &wanted)).collect();
        let ready: Vec<(usize, usize)> =
            ready.into_iter().filter(|(_, to)| self.hear(*to) == Some(Reply::Ready)).collect();
        let mut replies: BTreeMap<usize, usize> = BTreeMap::new();
        for (from, to) in &ready {
            let Some(address) = self.players.get(*to).map(|player| player.address) else { continue };
            // Counted before anything is sent: a reply that is not awaited would be taken for that of the next
            // round.
            *replies.entry(*to).or_default() += 1;
            if self.say(*from, &MeasureOrder::Send(address, wanted.clone())) {
                *replies.entry(*from).or_default() += 1;
            }
        }
        let mut troubles: BTreeMap<(usize, usize), String> = BTreeMap::new();
        for (player, count) in replies {
            for _ in 0..count {
                let sends = ready.iter().find(|(from, _)| *from == player).copied();
                let receives = ready.iter().find(|(_, to)| *to == player).copied();
                match (self.hear(player), sends, receives) {
                    (Some(Reply::Received(Ok(bits))), _, Some(pair)) => drop(flowed.insert(pair, bits)),
                    // What the sender says is nearer to the cause.
                    (Some(Reply::Received(Err(why))), _, Some(pair)) => {
                        troubles.entry(pair).or_insert(why);
                    }
                    (Some(Reply::Sent(Err(why))), Some(pair), _) => drop(troubles.insert(pair, why)),
                    _ => {}
                }
            }
        }
        for ((from, to), why) in troubles {
            self.note(format!("{} to {}: {why}", self.name(from), self.name(to)));
        }
        flowed
    }

    fn begin(&mut self, (from, to): (usize, usize), wanted: &TransferOrder) -> bool {
        // One that is lost already has said so, and must not keep the other waiting for its connections.
        let lives = |player: usize| self.players.get(player).is_some_and(|player| player.line.is_some());
        lives(from) && lives(to) && self.say(to, &MeasureOrder::Receive(wanted.clone()))
    }

    fn say(&mut self, player: usize, order: &MeasureOrder) -> bool {
        let Some(line) = self.players.get_mut(player).and_then(|player| player.line.as_mut()) else {
            return false;
        };
        let said = line.say(order);
        said.map_err(|why| self.lose(player, &why)).is_ok()
    }

    fn hear(&mut self, player: usize) -> Option<Reply> {
        let line = self.players.get_mut(player)?.line.as_mut()?;
        // Twice: the sender goes on for that long if the receiver does not end it.
        let until = Instant::now() + ANSWER + Duration::from_millis(2 * STEP_MS);
        match line.hear(until) {
            Ok(Some(reply)) => Some(reply),
            Ok(None) => {
                self.lose(player, "does not answer any more");
                None
            }
            Err(why) => {
                self.lose(player, &why);
                None
            }
        }
    }

    fn lose(&mut self, player: usize, why: &str) {
        if let Some(player) = self.players.get_mut(player) {
            player.line = None;
        }
        let name = self.name(player).to_owned();
        self.note(format!("host {name}: lost while it was measured: {why}"));
    }

    fn name(&self, player: usize) -> &str {
        self.players.get(player).map_or("?", |player| player.name.as_str())
    }

    fn note(&mut self, note: String) {
        // Once each: a host that is lost would be told again by each of its pairs.
        if !self.outcome.notes.contains(&note) {
            self.outcome.notes.push(note);
        }
    }
}
