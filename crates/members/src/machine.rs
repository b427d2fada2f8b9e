//! A node's view of the others' liveness: the state machine.

use bivouac_types::{Liveness, MembershipUpdate, NodeId, epoch_of};

use crate::Options;
use crate::gossip::Gossip;
use crate::random::Random;

/// By how much a node that finds itself slow makes its limits longer, at most.
const STRAIN_MAX: u64 = 4;

/// An input of the machine. Any message comes with news, which are told first, by [`Event::Heard`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Time passed.
    Tick,
    /// A node sent something.
    Heard {
        /// The sender.
        from: NodeId,
        /// Its news of others, and of itself.
        news: &'a [MembershipUpdate],
    },
    /// A node answered a probe.
    Answered(NodeId),
    /// A probe of a node came to nothing, before its time was over.
    Failed(NodeId),
    /// A node asks for a probe of another.
    ProbeFor {
        /// The node that asks.
        asker: NodeId,
        /// The node to probe.
        target: NodeId,
    },
    /// A node that was asked to probe another got an answer.
    Reached(NodeId),
    /// An authority says that a node is dead and will not come back.
    Lost(NodeId),
    /// An authority says that a lost node runs again.
    Returned(NodeId),
    /// An authority says that the formation has so many nodes now: those that are new start just then.
    Joined(usize),
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Ask a node for a sign of life.
    Probe {
        /// The node to probe.
        to: NodeId,
        /// News for it.
        news: Vec<MembershipUpdate>,
    },
    /// Ask a node to probe another.
    AskFor {
        /// Whom.
        to: NodeId,
        /// The other.
        target: NodeId,
        /// News for it.
        news: Vec<MembershipUpdate>,
    },
    /// Tell who asked that a node answered.
    Report {
        /// The node that asked.
        to: NodeId,
        /// The node that answered.
        target: NodeId,
        /// News for it.
        news: Vec<MembershipUpdate>,
    },
    /// Tell a node news; its answer does not matter.
    Tell {
        /// The receiver.
        to: NodeId,
        /// The news.
        news: Vec<MembershipUpdate>,
    },
    /// Something else is known of a node than before.
    Changed(MembershipUpdate),
    /// This node has a new incarnation: others suspected it, or held it for dead, and it has just refuted that; or they
    /// knew it before it was restarted ([`Liveness::Alive`]).
    Accused(Liveness),
    /// This node did not run for so many milliseconds.
    StoodStill(u64),
}

/// A node's view of the others.
#[derive(Clone, Debug)]
pub struct Members {
    me: NodeId,
    options: Options,
    random: Random,
    known: Vec<MembershipUpdate>,
    /// Nodes that were ever heard of, by node.
    heard: Vec<bool>,
    /// Time of the first event.
    began: Option<u64>,
    /// Nodes that joined later, with the times of that.
    joined: Vec<(NodeId, u64)>,
    gossip: Gossip,
    /// Suspected nodes, and until when they can say that they live.
    suspects: Vec<(NodeId, u64)>,
    /// The nodes still to be probed in this round, the next one last.
    round: Vec<NodeId>,
    probe: Option<Probe>,
    next_probe: u64,
    periods: u64,
    /// Probes for others: whom, for whom, until when.
    favours: Vec<(NodeId, NodeId, u64)>,
    /// Factor by which this node makes its limits longer, because it finds itself slow (Lifeguard, IV.A).
    strain: u64,
    /// Latest time at which it was to be woken.
    promised: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    target: NodeId,
    /// Time for its own answer, before others are asked to probe.
    direct: Option<u64>,
    /// Time for any answer.
    end: u64,
}

impl Members {
    /// Creates the node `me` of `count`, all of which live as far as is known. The first probe is made at once: one
    /// that was restarted hears from it what was said of it before.
    #[must_use]
    pub fn new(me: NodeId, count: usize, options: Options, seed: u64, now: u64) -> Members {
        Members {
            me,
            options,
            known: (0..count).map(|node| MembershipUpdate::first(NodeId(node as u16))).collect(),
            heard: vec![false; count],
            began: None,
            joined: Vec::new(),
            gossip: Gossip::default(),
            suspects: Vec::new(),
            round: Vec::new(),
            probe: None,
            next_probe: now,
            periods: 0,
            favours: Vec::new(),
            strain: 0,
            promised: None,
            random: Random::new(seed),
        }
    }

    /// Takes an event at a time that never runs backwards, and says what is to be done.
    pub fn handle(&mut self, now: u64, event: &Event<'_>) -> Vec<Command> {
        let mut out = Vec::new();
        self.began.get_or_insert(now);
        self.notice_standstill(now, &mut out);
        match event {
            Event::Tick => {}
            Event::Heard { from, news } => self.hear(now, *from, news, &mut out),
            Event::Answered(from) => self.answered(*from, &mut out),
            Event::Failed(to) => self.failed(now, *to),
            Event::ProbeFor { asker, target } => self.probe_for(now, *asker, *target, &mut out),
            Event::Reached(target) => self.end_probe_of(*target),
            Event::Lost(node) => {
                if let Some(known) = self.of(*node).filter(|_| *node != self.me) {
                    self.learn(now, MembershipUpdate { liveness: Liveness::Dead, ..known }, None, &mut out);
                }
            }
            Event::Returned(node) => {
                // That it lives only it can say, with an incarnation that nobody knows yet.
                if *node != self.me && self.liveness(*node) == Some(Liveness::Dead) {
                    out.push(Command::Tell { to: *node, news: self.news_for(*node) });
                }
            }
            Event::Joined(count) => {
                for node in (self.known.len()..*count).map(|node| NodeId(node as u16)) {
                    self.known.push(MembershipUpdate::first(node));
                    self.heard.push(false);
                    self.joined.push((node, now));
                }
            }
        }
        self.pass_time(now, &mut out);
        self.promised = self.next_tick();
        out
    }

    /// Returns the time of the next [`Event::Tick`]; none if there is nobody to watch.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        if !self.watches() {
            return None;
        }
        let probe = self.probe.map_or(self.next_probe, |probe| probe.direct.unwrap_or(probe.end));
        self.suspects.iter().map(|(_, until)| *until).chain([probe]).min()
    }

    fn watches(&self) -> bool {
        self.known.len() > 1 && self.options.period_ms > 0
    }

    /// Returns the state of every node, this one included, by node.
    #[must_use]
    pub fn known(&self) -> &[MembershipUpdate] {
        &self.known
    }

    /// Returns the own incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.of(self.me).map_or(0, |news| news.incarnation)
    }

    /// Returns the epoch of a map of this version, as this node sees it.
    #[must_use]
    pub fn epoch(&self, version: u64) -> u64 {
        epoch_of(version, &self.known)
    }

    /// News to send along to a node: first what concerns the two, then what is to be spread.
    pub fn news_for(&mut self, to: NodeId) -> Vec<MembershipUpdate> {
        let own = self.of(self.me);
        // A node that was suspected or taken for dead hears so with the first message, and can contradict at once.
        let theirs = self.of(to).filter(|news| *news != MembershipUpdate::first(to));
        let mut news: Vec<MembershipUpdate> = own.into_iter().chain(theirs).collect();
        let more = self.gossip.take(self.options.news_max, self.known.len());
        news.extend(more.into_iter().filter(|item| item.node != self.me && item.node != to));
        news
    }

    fn of(&self, node: NodeId) -> Option<MembershipUpdate> {
        self.known.get(usize::from(node.0)).copied()
    }

    fn liveness(&self, node: NodeId) -> Option<Liveness> {
        self.of(node).map(|news| news.liveness)
    }

    /// Returns all others that are not taken for dead.
    fn others(&self) -> Vec<NodeId> {
        let others = self.known.iter().filter(|news| news.node != self.me && news.liveness != Liveness::Dead);
        others.map(|news| news.node).collect()
    }

    /// Picks some other nodes that fulfil `holds`, none twice. Draws at random instead of listing them, since there may
    /// be many.
    fn pick(&mut self, count: usize, holds: impl Fn(&MembershipUpdate) -> bool) -> Vec<NodeId> {
        const DRAWS: usize = 32;
        let mut picked = Vec::new();
        for _ in 0..DRAWS {
            // With most nodes alive a few draws find one that fits, and the list of all is never made.
            let drawn = self.known.get(self.random.below(self.known.len()));
            let fits =
                drawn.filter(|news| news.node != self.me && holds(news) && !picked.contains(&news.node));
            picked.extend(fits.map(|news| news.node));
            if picked.len() == count {
                return picked;
            }
        }
        let fits = self.known.iter().filter(|news| news.node != self.me && holds(news));
        let fits = fits.map(|news| news.node).collect();
        self.random.choose(fits, count)
    }

    /// Extends the limits after a time in which this node did not run: it knows nothing of others then.
    fn notice_standstill(&mut self, now: u64, out: &mut Vec<Command>) {
        let late = self.promised.map_or(0, |promised| now.saturating_sub(promised));
        if late <= self.options.direct_ms {
            return;
        }
        if let Some(probe) = &mut self.probe {
            probe.direct = probe.direct.map(|_| now + self.options.direct_ms);
            probe.end = now + self.options.period_ms;
        }
        // A suspect may have answered while this node stood still, and its answer wait to be read.
        self.suspects.iter_mut().for_each(|(_, until)| *until += late);
        self.strain = (self.strain + 1).min(STRAIN_MAX);
        out.push(Command::StoodStill(late));
    }

    fn hear(&mut self, now: u64, from: NodeId, news: &[MembershipUpdate], out: &mut Vec<Command>) {
        self.heard.get_mut(usize::from(from.0)).into_iter().for_each(|heard| *heard = true);
        for item in news {
            if item.node == self.me {
                self.hear_of_me(*item, out);
            } else if self.of(item.node).is_some_and(|known| item.overrides(&known)) {
                self.learn(now, *item, Some(from), out);
            }
        }
    }

    /// Handles an update about this node, whose incarnation and liveness it alone determines.
    fn hear_of_me(&mut self, news: MembershipUpdate, out: &mut Vec<Command>) {
        let Some(mine) = self.known.get_mut(usize::from(self.me.0)) else { return };
        if !news.overrides(mine) {
            return;
        }
        let before = mine.incarnation;
        // A number that does not rise any more ends all contradiction, but a peer's message must not make it begin
        // anew.
        mine.incarnation = news.incarnation.saturating_add(u32::from(news.liveness != Liveness::Alive));
        assert!(mine.incarnation >= before, "incarnation {} after {before}", mine.incarnation);
        let mine = *mine;
        self.gossip.add(mine);
        out.push(Command::Accused(news.liveness));
        if news.liveness != Liveness::Alive {
            self.strain = (self.strain + 1).min(STRAIN_MAX);
            self.spread(None, out);
        }
    }

    /// Learns something new of another node, and says so to others.
    fn learn(&mut self, now: u64, news: MembershipUpdate, from: Option<NodeId>, out: &mut Vec<Command>) {
        let Some(known) = self.known.get_mut(usize::from(news.node.0)) else { return };
        let before = std::mem::replace(known, news);
        // What was fenced off by a higher incarnation would be let in again.
        let (old, new) = (before.incarnation, news.incarnation);
        assert!(new >= old, "node {} has incarnation {new} after {old}", news.node.0);
        self.suspects.retain(|(node, _)| *node != news.node);
        if news.liveness == Liveness::Suspect {
            // A node that is slow itself waits longer before it accuses others of it (Lifeguard, IV.B).
            let until = now + self.options.suspect_ms * (1 + self.strain);
            assert!(news.node != self.me, "node {} suspects itself", self.me.0);
            self.suspects.push((news.node, until));
        }
        self.gossip.add(news);
        // Its return ends what others thought they knew while it was away.
        if before.liveness == Liveness::Dead && news.liveness != Liveness::Dead {
            self.say_all_again();
        }
        if before.liveness != news.liveness {
            out.push(Command::Changed(news));
        }
        if before.weight() != news.weight() {
            // Only deaths and returns are told at once; a suspicion travels with other messages, and mostly ends
            // before it has gone far.
            self.spread(from, out);
        }
    }

    /// Spreads all news again: a node that comes back has missed them, and others have missed its own.
    fn say_all_again(&mut self) {
        let known = self.known.iter().filter(|news| **news != MembershipUpdate::first(news.node));
        known.for_each(|news| self.gossip.add(*news));
    }

    /// Tells a few others at once.
    fn spread(&mut self, but: Option<NodeId>, out: &mut Vec<Command>) {
        for to in
            self.pick(self.options.fanout, |news| news.liveness != Liveness::Dead && Some(news.node) != but)
        {
            out.push(Command::Tell { to, news: self.news_for(to) });
        }
    }

    fn answered(&mut self, from: NodeId, out: &mut Vec<Command>) {
        self.end_probe_of(from);
        let (done, rest) = self.favours.iter().partition(|(target, ..)| *target == from);
        self.favours = rest;
        let done: Vec<(NodeId, NodeId, u64)> = done;
        for (target, to, _) in done {
            out.push(Command::Report { to, target, news: self.news_for(to) });
        }
    }

    fn end_probe_of(&mut self, target: NodeId) {
        if self.probe.is_some_and(|probe| probe.target == target) {
            self.probe = None;
            self.strain = self.strain.saturating_sub(1);
        }
    }

    /// Ends the wait for a probe that was refused at once: others are asked now.
    fn failed(&mut self, now: u64, to: NodeId) {
        if let Some(probe) = self.probe.as_mut().filter(|probe| probe.target == to) {
            probe.direct = probe.direct.map(|_| now);
        }
    }

    fn probe_for(&mut self, now: u64, asker: NodeId, target: NodeId, out: &mut Vec<Command>) {
        // Whoever asked has given the probe up by then.
        self.favours.retain(|(_, _, until)| *until > now);
        // Bounded: a peer that asks again and again must not make this node keep more and more.
        if target == self.me || self.of(target).is_none() || self.favours.len() >= self.known.len() {
            return;
        }
        self.favours.push((target, asker, now + self.options.period_ms));
        out.push(Command::Probe { to: target, news: self.news_for(target) });
    }

    fn pass_time(&mut self, now: u64, out: &mut Vec<Command>) {
        self.judge_suspects(now, out);
        self.judge_probe(now, out);
        if self.watches() && self.next_probe <= now && self.probe.is_none() {
            self.begin_period(now, out);
        }
    }

    fn judge_suspects(&mut self, now: u64, out: &mut Vec<Command>) {
        while let Some((node, _)) = self.suspects.iter().find(|(_, until)| *until <= now).copied() {
            self.suspects.retain(|(suspect, _)| *suspect != node);
            if let Some(known) = self.of(node) {
                self.learn(now, MembershipUpdate { liveness: Liveness::Dead, ..known }, None, out);
            }
        }
    }

    /// Returns whether a node may be still starting: formations of many nodes do not start in a moment.
    fn may_start(&self, now: u64, node: NodeId) -> bool {
        let heard = self.heard.get(usize::from(node.0)).is_some_and(|heard| *heard);
        let joined = self.joined.iter().find(|(known, _)| *known == node).map(|(_, at)| *at);
        !heard && joined.or(self.began).is_some_and(|began| now < began + self.options.start_ms)
    }

    fn judge_probe(&mut self, now: u64, out: &mut Vec<Command>) {
        let Some(target) = self.probe.map(|probe| probe.target) else { return };
        // A node that has not started cannot answer, and to suspect it would only make noise that it has to
        // contradict.
        if self.may_start(now, target) {
            self.probe = self.probe.filter(|probe| now < probe.end);
            self.probe.iter_mut().for_each(|probe| probe.direct = None);
            return;
        }
        let Some(probe) = &mut self.probe else { return };
        if probe.direct.is_some_and(|direct| direct <= now) {
            probe.direct = None;
            let helpers = self.options.helpers;
            for to in self.pick(helpers, |news| news.liveness == Liveness::Alive && news.node != target) {
                out.push(Command::AskFor { to, target, news: self.news_for(to) });
            }
        }
        if self.probe.is_some_and(|probe| probe.end <= now) {
            self.probe = None;
            self.strain = (self.strain + 1).min(STRAIN_MAX);
            self.suspect(now, target, out);
        }
    }

    fn suspect(&mut self, now: u64, target: NodeId, out: &mut Vec<Command>) {
        let Some(known) = self.of(target).filter(|news| news.liveness == Liveness::Alive) else { return };
        self.learn(now, MembershipUpdate { liveness: Liveness::Suspect, ..known }, None, out);
        // It may hear this although its answer was not heard.
        out.push(Command::Tell { to: target, news: self.news_for(target) });
    }

    fn begin_period(&mut self, now: u64, out: &mut Vec<Command>) {
        let Options { period_ms, direct_ms, dead_every, .. } = self.options;
        // Nodes that begin together do not go on in step.
        let first = self.periods == 0;
        self.next_probe =
            now + if first { 1 + self.random.below(period_ms as usize) as u64 } else { period_ms };
        self.periods += 1;
        if let Some(target) = self.next_target() {
            assert!(target != self.me, "node {} probes itself", self.me.0);
            let (direct, end) = (now + direct_ms * (1 + self.strain), now + period_ms * (1 + self.strain));
            self.probe = Some(Probe { target, direct: Some(direct), end });
            out.push(Command::Probe { to: target, news: self.news_for(target) });
        }
        // Nobody probes the dead, so one that was only cut off would never hear that it has to contradict.
        if self.periods.is_multiple_of(dead_every) {
            for to in self.pick(1, |news| news.liveness == Liveness::Dead) {
                out.push(Command::Tell { to, news: self.news_for(to) });
            }
        }
    }

    /// Returns all others in turn, in an order that is drawn anew each time (SWIM, 4.3).
    fn next_target(&mut self) -> Option<NodeId> {
        for _ in 0..2 {
            while let Some(target) = self.round.pop() {
                if self.liveness(target).is_some_and(|liveness| liveness != Liveness::Dead) {
                    return Some(target);
                }
            }
            self.round = self.others();
            // In turns and not by lot: each node is probed within two rounds at most, so the time to detection is
            // bounded.
            self.random.shuffle(&mut self.round);
        }
        None
    }
}

#[cfg(test)]
mod tests;
