//! Restarts of dead daemons, and the point at which they end: events in, commands out, no I/O.
//!
//! After its first death within [`RestartLimit::window_ms`] a daemon is started at once, after the next ones with
//! a delay that doubles, and after [`RestartLimit::deaths_max`] deaths no more. A daemon that dies before
//! it ever was ready is not started again: what stopped it stops the next one too. A daemon that takes a node over that
//! served on another host is treated as one that was ready: what the node has is whole.

use std::collections::VecDeque;

use bivouac_types::units::parse_duration_ms;
use serde::{Deserialize, Serialize};

/// Deaths of a daemon within a time that are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartLimit {
    /// Number of deaths that is one too many.
    pub deaths_max: usize,
    /// Time for which a death counts, in milliseconds.
    pub window_ms: u64,
}

impl Default for RestartLimit {
    fn default() -> RestartLimit {
        RestartLimit { deaths_max: 5, window_ms: 60_000 }
    }
}

impl std::fmt::Display for RestartLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RestartLimit { deaths_max, window_ms } = self;
        write!(f, "{deaths_max}/{}", format_duration(*window_ms).replace(' ', ""))
    }
}

impl std::str::FromStr for RestartLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<RestartLimit, String> {
        let bad = || format!("'{text}' is not a number of deaths and a duration; write for instance 5/60s");
        let (deaths, window) = text.split_once('/').ok_or_else(bad)?;
        let deaths_max = deaths.parse().ok().filter(|deaths| *deaths > 0).ok_or_else(bad)?;
        Ok(RestartLimit { deaths_max, window_ms: parse_duration_ms(window).map_err(|_| bad())? })
    }
}

/// Limits of the supervisor's patience. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Delay of the second start within the window.
    pub delay_ms_first: u64,
    /// Longest delay.
    pub delay_ms_max: u64,
    /// Deaths at which it gives up.
    pub tolerance: RestartLimit,
    /// Time that a daemon may take to end before it is killed.
    pub stop_ms: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { delay_ms_first: 100, delay_ms_max: 5000, tolerance: RestartLimit::default(), stop_ms: 2000 }
    }
}

/// An input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A daemon serves.
    Ready(usize),
    /// A daemon ended, and how.
    Died(usize, String),
    /// A daemon ended for a reason outside of it, and which: it was killed for want of memory, or says that it cannot
    /// begin to serve, as its records are damaged or its volume is not there. That may be mended, and does not come to
    /// be too much.
    Hindered(usize, String),
    /// A daemon that is started no more is to be started once more, as if it had not died before.
    Revive(usize),
    /// A daemon that was [added](Restarts::add) may be started.
    Begin(usize),
    /// A daemon is started no more: it has a successor on another host.
    Retire(usize),
    /// Time passed.
    Tick,
    /// All are to end.
    Stop,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Start this daemon.
    Start(usize),
    /// Start this daemon later: at the next tick that says so.
    Wait(usize),
    /// Ask this daemon to end.
    Terminate(usize),
    /// End this daemon.
    Kill(usize),
    /// Start this daemon no more, for this reason.
    GiveUp(usize, String),
    /// Nothing is left to supervise.
    Finish,
}

/// State of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonState {
    /// Started, not yet ready.
    Starting,
    /// Serving.
    Ready,
    /// Dead; to be started at this time.
    Waiting(u64),
    /// Dead for good.
    Failed,
    /// Ended because all are to end.
    Stopped,
}

/// The supervisor's judgement over its daemons.
#[derive(Debug)]
pub struct Restarts {
    policy: Policy,
    nodes: Vec<Node>,
    /// Time at which those that have not ended are killed.
    kill_at: Option<u64>,
    stopping: bool,
}

#[derive(Debug)]
struct Node {
    life: DaemonState,
    was_ready: bool,
    deaths: VecDeque<u64>,
    /// Times of deaths for want of memory.
    hindered: VecDeque<u64>,
}

impl Restarts {
    /// Creates a judgement over `count` daemons, all of which the caller starts now.
    #[must_use]
    pub fn new(count: usize, policy: Policy) -> Restarts {
        let node = || Node {
            life: DaemonState::Starting,
            was_ready: false,
            deaths: VecDeque::new(),
            hindered: VecDeque::new(),
        };
        let nodes = std::iter::repeat_with(node).take(count).collect();
        Restarts { policy, nodes, kill_at: None, stopping: false }
    }

    /// Takes an event at a time that never runs backwards, and says what is to be done.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Command> {
        match event {
            Event::Ready(index) => self.ready(index),
            Event::Died(index, how) => self.died(now_ms, index, how, false),
            Event::Hindered(index, how) => self.died(now_ms, index, how, true),
            Event::Revive(index) => self.revive(index),
            Event::Begin(index) => self.begin(index),
            Event::Retire(index) => self.retire(index),
            Event::Tick => self.tick(now_ms),
            Event::Stop => self.stop(now_ms),
        }
    }

    /// Returns the time when the next [`Event::Tick`] is due, if ever.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        let waits = self.nodes.iter().filter_map(|node| match node.life {
            DaemonState::Waiting(until) => Some(until),
            _ => None,
        });
        waits.chain(self.kill_at).min()
    }

    /// Returns the state of a daemon.
    #[must_use]
    pub fn life(&self, index: usize) -> Option<DaemonState> {
        self.nodes.get(index).map(|node| node.life)
    }

    /// Returns whether a daemon is not started again by itself: it has failed or was retired, or was added and not
    /// begun.
    #[must_use]
    pub fn is_over(&self, index: usize) -> bool {
        matches!(self.life(index), Some(DaemonState::Failed | DaemonState::Waiting(u64::MAX)))
    }

    /// Returns whether every daemon serves.
    #[must_use]
    pub fn all_ready(&self) -> bool {
        self.nodes.iter().all(|node| node.life == DaemonState::Ready)
    }

    /// Adds a daemon that is not started before [`Event::Begin`]; returns its number. `has_served` is true for one of a
    /// node that served on another host: its deaths are tolerated before it is ready, too.
    pub fn add(&mut self, has_served: bool) -> usize {
        self.nodes.push(Node {
            life: DaemonState::Waiting(u64::MAX),
            was_ready: has_served,
            deaths: VecDeque::new(),
            hindered: VecDeque::new(),
        });
        // It has no process whose end would be reported.
        if self.stopping {
            self.nodes.iter_mut().last().into_iter().for_each(|node| node.life = DaemonState::Stopped);
        }
        self.nodes.len() - 1
    }

    fn begin(&mut self, index: usize) -> Vec<Command> {
        let waits = |node: &&mut Node| node.life == DaemonState::Waiting(u64::MAX);
        let Some(node) = self.nodes.get_mut(index).filter(waits) else { return Vec::new() };
        assert!(!self.stopping, "daemon {index} is started while all are to end");
        node.life = DaemonState::Starting;
        vec![Command::Start(index)]
    }

    fn retire(&mut self, index: usize) -> Vec<Command> {
        if let Some(node) = self.nodes.get_mut(index) {
            node.life = if self.stopping { DaemonState::Stopped } else { DaemonState::Failed };
        }
        if self.stopping { self.finish_if_over() } else { Vec::new() }
    }

    fn ready(&mut self, index: usize) -> Vec<Command> {
        // One that has died or was retired since it said so is not ready.
        if let Some(node) = self.nodes.get_mut(index).filter(|node| node.life == DaemonState::Starting) {
            node.life = DaemonState::Ready;
            node.was_ready = true;
        }
        Vec::new()
    }

    fn revive(&mut self, index: usize) -> Vec<Command> {
        let Some(node) = self.nodes.get_mut(index).filter(|node| node.life == DaemonState::Failed) else {
            return Vec::new();
        };
        node.life = DaemonState::Starting;
        assert!(!self.stopping, "daemon {index} is started while all are to end");
        // If it fails before it is ready, it is given up at once.
        node.was_ready = false;
        node.deaths.clear();
        node.hindered.clear();
        vec![Command::Start(index)]
    }

    fn died(&mut self, now_ms: u64, index: usize, how: String, hindered: bool) -> Vec<Command> {
        let (policy, stopping) = (self.policy, self.stopping);
        let Some(node) = self.nodes.get_mut(index) else { return Vec::new() };
        // It was retired, or its death is known already.
        if !matches!(node.life, DaemonState::Starting | DaemonState::Ready) {
            return Vec::new();
        }
        if stopping {
            node.life = DaemonState::Stopped;
            return self.finish_if_over();
        }
        // Only of one that has served: a start that cannot succeed is told to the user who waits for it.
        let judged = if hindered && node.was_ready {
            node.hindered(now_ms, index, policy)
        } else {
            node.judge(now_ms, index, how, policy)
        };
        vec![judged]
    }

    fn tick(&mut self, now_ms: u64) -> Vec<Command> {
        let mut commands = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if matches!(node.life, DaemonState::Waiting(until) if until <= now_ms) {
                node.life = DaemonState::Starting;
                commands.push(Command::Start(index));
            }
        }
        if self.kill_at.is_some_and(|at| at <= now_ms) {
            assert!(self.stopping, "daemons are killed that were not asked to end");
            self.kill_at = None;
            commands.extend(self.running().map(Command::Kill));
        }
        commands
    }

    fn stop(&mut self, now_ms: u64) -> Vec<Command> {
        if self.stopping {
            return Vec::new();
        }
        self.stopping = true;
        self.kill_at = Some(now_ms.saturating_add(self.policy.stop_ms));
        for node in &mut self.nodes {
            // They have no process, so nothing will report their end.
            if matches!(node.life, DaemonState::Waiting(_) | DaemonState::Failed) {
                node.life = DaemonState::Stopped;
            }
        }
        let mut commands: Vec<Command> = self.running().map(Command::Terminate).collect();
        commands.extend(self.finish_if_over());
        commands
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        let lives = self.nodes.iter().enumerate();
        lives
            .filter(|(_, node)| matches!(node.life, DaemonState::Starting | DaemonState::Ready))
            .map(|(index, _)| index)
    }

    fn finish_if_over(&mut self) -> Vec<Command> {
        if self.running().next().is_some() {
            return Vec::new();
        }
        let is_over = self.nodes.iter().all(|node| node.life == DaemonState::Stopped);
        // The volumes are unlocked and removed next: a daemon that is waited with would write to what is gone.
        assert!(self.stopping && is_over, "finished with daemons that are {:?}", self.nodes);
        self.kill_at = None;
        vec![Command::Finish]
    }
}

impl Node {
    /// Restarts it with growing delays after a death for want of memory: other programs may release some, and
    /// acknowledged data must stay reachable.
    fn hindered(&mut self, now_ms: u64, index: usize, policy: Policy) -> Command {
        count(&mut self.hindered, now_ms, policy.tolerance.window_ms);
        self.start_after(delay_ms(self.hindered.len(), policy), now_ms, index)
    }

    fn start_after(&mut self, delay: u64, now_ms: u64, index: usize) -> Command {
        // Only what has just died is started again: two daemons on one volume would each acknowledge changes of their
        // own.
        let has_lived = matches!(self.life, DaemonState::Starting | DaemonState::Ready);
        assert!(has_lived, "daemon {index} is {:?} and to be started", self.life);
        match delay {
            0 => {
                self.life = DaemonState::Starting;
                Command::Start(index)
            }
            delay => {
                self.life = DaemonState::Waiting(now_ms.saturating_add(delay));
                Command::Wait(index)
            }
        }
    }

    fn judge(&mut self, now_ms: u64, index: usize, how: String, policy: Policy) -> Command {
        let RestartLimit { deaths_max, window_ms } = policy.tolerance;
        count(&mut self.deaths, now_ms, window_ms);
        let deaths = self.deaths.len();
        if !self.was_ready {
            self.life = DaemonState::Failed;
            return Command::GiveUp(index, how);
        }
        // A daemon that dies again and again for the same reason would take its clients’ time for ever, and hide
        // the reason in its log.
        if deaths >= deaths_max {
            self.life = DaemonState::Failed;
            let window = format_duration(window_ms);
            return Command::GiveUp(index, format!("died {deaths} times within {window}, at last: {how}"));
        }
        self.start_after(delay_ms(deaths, policy), now_ms, index)
    }
}

/// Adds a death, and forgets those that are long ago.
fn count(deaths: &mut VecDeque<u64>, now_ms: u64, window_ms: u64) {
    // Before the old ones are forgotten, so that there is always one: the death that is counted now.
    deaths.push_back(now_ms);
    while deaths.front().is_some_and(|death| death.saturating_add(window_ms) < now_ms) {
        deaths.pop_front();
    }
}

fn format_duration(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { format!("{ms} ms") }
}

/// Returns the delay after so many deaths, in milliseconds: none, the first delay, twice that, and so on.
fn delay_ms(deaths: usize, policy: Policy) -> u64 {
    let Some(doublings) = deaths.checked_sub(2) else { return 0 };
    let factor = u32::try_from(doublings).ok().and_then(|n| 1u64.checked_shl(n)).unwrap_or(u64::MAX);
    policy.delay_ms_first.saturating_mul(factor).min(policy.delay_ms_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ready(count: usize) -> Restarts {
        let mut restarts = Restarts::new(count, Policy::default());
        for index in 0..count {
            assert_eq!(restarts.handle(0, Event::Ready(index)), []);
        }
        restarts
    }

    fn die(restarts: &mut Restarts, now: u64) -> Vec<Command> {
        restarts.handle(now, Event::Died(0, "killed by signal 9".into()))
    }

    #[test]
    fn who_was_given_up_is_started_once_more_when_somebody_says_so() {
        let mut restarts = ready(2);
        assert_eq!(restarts.handle(1, Event::Revive(0)), [], "it has not failed");
        let mut now = 10;
        while restarts.life(0) != Some(DaemonState::Failed) {
            restarts.handle(now, Event::Tick);
            restarts.handle(now, Event::Ready(0));
            die(&mut restarts, now);
            now += 5_001;
        }
        assert_eq!(restarts.handle(now, Event::Revive(0)), [Command::Start(0)]);
        assert_eq!(restarts.handle(now, Event::Ready(0)), []);
        assert!(restarts.all_ready());
        assert_eq!(die(&mut restarts, now + 1), [Command::Start(0)], "earlier deaths do not count");
    }

    /// S813.
    #[test]
    fn who_is_added_waits_until_it_may_begin() {
        let mut restarts = ready(1);
        assert_eq!(restarts.add(true), 1);
        assert_eq!(restarts.handle(u64::MAX - 1, Event::Tick), [], "no time lets it begin");
        assert_eq!(restarts.handle(5, Event::Begin(0)), [], "it runs");
        assert_eq!(restarts.handle(5, Event::Begin(1)), [Command::Start(1)]);
        assert_eq!(restarts.handle(6, Event::Begin(1)), [], "it is being started");
        restarts.handle(7, Event::Ready(1));
        // One that has a successor elsewhere is not started again, and nobody waits for it.
        assert_eq!(restarts.handle(8, Event::Retire(0)), []);
        assert_eq!(restarts.handle(9, Event::Died(0, "killed".into())), []);
        assert_eq!(restarts.add(true), 2);
        assert_eq!(restarts.handle(10, Event::Stop), [Command::Terminate(1)]);
        assert_eq!(restarts.handle(11, Event::Died(1, "ended".into())), [Command::Finish]);
    }

    #[test]
    fn the_daemon_of_a_node_that_moved_is_started_again_before_it_was_ready() {
        let mut restarts = ready(1);
        let [moved, new] = [true, false].map(|has_served| restarts.add(has_served));
        let died = |index| Event::Died(index, "killed by signal 9".into());
        for index in [moved, new] {
            assert_eq!(restarts.handle(1, Event::Begin(index)), [Command::Start(index)]);
        }
        assert_eq!(restarts.handle(2, died(new)), [Command::GiveUp(new, "killed by signal 9".into())]);
        assert_eq!(restarts.handle(2, died(moved)), [Command::Start(moved)]);
        // Within the usual limits.
        for at in [10_000, 20_000, 30_000] {
            assert_eq!(restarts.handle(at, died(moved)), [Command::Wait(moved)]);
            assert_eq!(restarts.handle(at + 5000, Event::Tick), [Command::Start(moved)]);
        }
        let reason = "died 5 times within 60 s, at last: killed by signal 9";
        assert_eq!(restarts.handle(40_000, died(moved)), [Command::GiveUp(moved, reason.into())]);
    }

    #[test]
    fn the_first_death_is_repaired_at_once_and_the_next_ones_later_and_later() {
        let mut restarts = ready(2);
        assert!(restarts.all_ready());
        assert_eq!(die(&mut restarts, 10), [Command::Start(0)]);
        for (death, start) in [(20, 120), (200, 400), (500, 900)] {
            restarts.handle(death, Event::Ready(0));
            assert_eq!(die(&mut restarts, death), [Command::Wait(0)]);
            assert_eq!(restarts.next_tick(), Some(start));
            assert_eq!(restarts.handle(start - 1, Event::Tick), []);
            assert_eq!(restarts.handle(start, Event::Tick), [Command::Start(0)]);
        }
        restarts.handle(950, Event::Ready(0));
        let reason = "died 5 times within 60 s, at last: killed by signal 9";
        assert_eq!(die(&mut restarts, 1000), [Command::GiveUp(0, reason.into())]);
        assert_eq!(
            (restarts.life(0), restarts.life(1)),
            (Some(DaemonState::Failed), Some(DaemonState::Ready))
        );
        assert_eq!(restarts.next_tick(), None);
    }

    /// S328.
    #[test]
    fn deaths_for_want_of_memory_are_never_too_many() {
        let mut restarts = ready(1);
        let mut now = 0;
        for turn in 0..50 {
            let hindered = Event::Hindered(0, "killed for want of memory".into());
            let expected = if turn == 0 { Command::Start(0) } else { Command::Wait(0) };
            assert_eq!(restarts.handle(now, hindered), [expected]);
            if turn > 0 {
                now = restarts.next_tick().unwrap();
                assert_eq!(restarts.handle(now, Event::Tick), [Command::Start(0)]);
            }
            restarts.handle(now, Event::Ready(0));
        }
        // Crashes are counted as before.
        assert_eq!(die(&mut restarts, now), [Command::Start(0)]);
        let mut never_ready = Restarts::new(1, Policy::default());
        let hindered = never_ready.handle(0, Event::Hindered(0, "no memory".into()));
        assert_eq!(hindered, [Command::GiveUp(0, "no memory".into())]);
    }

    #[test]
    fn how_much_is_tolerated_can_be_written() {
        let tolerance: RestartLimit = "7/1500ms".parse().unwrap();
        assert_eq!(tolerance, RestartLimit { deaths_max: 7, window_ms: 1500 });
        assert_eq!(
            (tolerance.to_string(), RestartLimit::default().to_string()),
            ("7/1500ms".into(), "5/60s".into())
        );
        assert_eq!("5/1m".parse(), Ok(RestartLimit::default()));
        for text in ["", "5", "0/1s", "-1/1s", "5/", "5/soon", "/1s"] {
            assert!(text.parse::<RestartLimit>().unwrap_err().contains("5/60s"), "{text}");
        }
    }

    #[test]
    fn more_deaths_are_tolerated_if_told_to() {
        let policy =
            Policy { tolerance: RestartLimit { deaths_max: 100, window_ms: 50 }, ..Policy::default() };
        let mut restarts = Restarts::new(1, policy);
        for turn in 1..200 {
            restarts.handle(turn * 60, Event::Ready(0));
            assert_eq!(die(&mut restarts, turn * 60), [Command::Start(0)]);
        }
    }

    #[test]
    fn old_deaths_are_forgotten() {
        let mut restarts = ready(1);
        for minute in 1..20 {
            assert_eq!(die(&mut restarts, minute * 61_000), [Command::Start(0)]);
            restarts.handle(minute * 61_000, Event::Ready(0));
        }
    }

    #[test]
    fn one_that_never_was_ready_is_not_tried_again() {
        let mut restarts = Restarts::new(1, Policy::default());
        let died = Event::Died(0, "volume is full".into());
        assert_eq!(restarts.handle(5, died), [Command::GiveUp(0, "volume is full".into())]);
    }

    #[test]
    fn stopping_terminates_then_kills_then_finishes() {
        let mut restarts = ready(3);
        die(&mut restarts, 1);
        restarts.handle(1, Event::Ready(0));
        die(&mut restarts, 2);
        assert_eq!(restarts.handle(10, Event::Stop), [Command::Terminate(1), Command::Terminate(2)]);
        assert_eq!(restarts.handle(11, Event::Died(1, "exit 0".into())), []);
        assert_eq!(restarts.next_tick(), Some(2010));
        assert_eq!(restarts.handle(2010, Event::Tick), [Command::Kill(2)]);
        assert_eq!(restarts.handle(2011, Event::Died(2, "killed".into())), [Command::Finish]);
        assert_eq!(restarts.handle(2012, Event::Stop), []);
        let mut none_left = Restarts::new(1, Policy::default());
        none_left.handle(0, Event::Died(0, String::new()));
        assert_eq!(none_left.handle(1, Event::Stop), [Command::Finish]);
    }

    #[test]
    fn delays_never_pass_the_longest() {
        let delays: Vec<u64> = (1..10).map(|deaths| delay_ms(deaths, Policy::default())).collect();
        assert_eq!(delays, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(delay_ms(usize::MAX, Policy::default()), 5000);
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let event = prop_oneof![
            4 => (0usize..4).prop_map(Event::Ready),
            4 => (0usize..4).prop_map(|index| Event::Died(index, "x".into())),
            4 => Just(Event::Tick),
            1 => Just(Event::Stop),
        ];
        proptest::collection::vec((0u64..3000, event), 0..200)
    }

    proptest! {
        /// A daemon runs at most once at a time, is not started after a stop or giving up, and every death is answered.
        #[test]
        fn commands_fit_to_what_runs(events in events()) {
            let mut restarts = Restarts::new(3, Policy::default());
            let (mut runs, mut failed, mut stopping, mut now) = ([true; 3], [false; 3], false, 0);
            for (step, event) in events {
                now += step;
                if let Event::Died(index, _) = &event {
                    // Only what runs can die.
                    if !runs.get(*index).copied().unwrap_or(false) { continue; }
                    runs[*index] = false;
                }
                stopping |= event == Event::Stop;
                for command in restarts.handle(now, event) {
                    match command {
                        Command::Start(i) => { prop_assert!(!runs[i] && !failed[i] && !stopping); runs[i] = true; }
                        Command::Wait(i) => prop_assert!(!runs[i] && restarts.next_tick().is_some()),
                        Command::GiveUp(i, _) => { prop_assert!(!runs[i]); failed[i] = true; }
                        Command::Terminate(i) | Command::Kill(i) => prop_assert!(runs[i] && stopping),
                        Command::Finish => prop_assert!(stopping && runs == [false; 3]),
                    }
                }
                for i in 0..3 {
                    let waits = matches!(restarts.life(i), Some(DaemonState::Waiting(_)));
                    prop_assert!(runs[i] || failed[i] || stopping || waits, "node {} is forgotten", i);
                }
            }
        }

        /// Within any window a daemon is started at most as often as deaths are tolerated.
        #[test]
        fn starts_are_bounded(steps in proptest::collection::vec(0u64..2000, 1..100)) {
            let policy = Policy::default();
            let mut restarts = ready(1);
            let (mut now, mut starts) = (0, Vec::new());
            for step in steps {
                now += step;
                for command in restarts.handle(now, Event::Died(0, String::new())) {
                    if command == Command::Start(0) { starts.push(now); }
                }
                while let Some(at) = restarts.next_tick() {
                    now = now.max(at);
                    if !restarts.handle(now, Event::Tick).is_empty() { starts.push(now); }
                }
                restarts.handle(now, Event::Ready(0));
            }
            for start in &starts {
                let within = starts.iter().filter(|s| (*start..=start + policy.tolerance.window_ms).contains(s)).count();
                prop_assert!(within <= policy.tolerance.deaths_max);
            }
        }
    }
}
