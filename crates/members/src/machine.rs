//! One node's view of the others.

use bivouac_types::{Liveness, News, NodeId, epoch_of};

use crate::Options;
use crate::gossip::Gossip;
use crate::random::Random;

/// By how much a node that finds itself slow makes its limits longer, at most.
const STRAIN_MAX: u64 = 4;

/// What happened. Any message comes with news, which are told first, by [`Event::Heard`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Time passed.
    Tick,
    /// A node sent something.
    Heard {
        /// Which.
        from: NodeId,
        /// What it says of others, and of itself.
        news: &'a [News],
    },
    /// A node answered a probe.
    Answered(NodeId),
    /// A probe of a node came to nothing, before its time was over.
    Failed(NodeId),
    /// A node asks for a probe of another.
    ProbeFor {
        /// Who asks.
        asker: NodeId,
        /// Who is to be probed.
        target: NodeId,
    },
    /// A node that was asked to probe another got an answer.
    Reached(NodeId),
    /// Somebody who knows says that a node is dead and will not come back.
    Lost(NodeId),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Ask a node for a sign of life.
    Probe {
        /// Which.
        to: NodeId,
        /// News for it.
        news: Vec<News>,
    },
    /// Ask a node to probe another.
    AskFor {
        /// Whom.
        to: NodeId,
        /// The other.
        target: NodeId,
        /// News for it.
        news: Vec<News>,
    },
    /// Tell who asked that a node answered.
    Report {
        /// Who asked.
        to: NodeId,
        /// The node that answered.
        target: NodeId,
        /// News for it.
        news: Vec<News>,
    },
    /// Tell a node news; its answer does not matter.
    Tell {
        /// Which.
        to: NodeId,
        /// The news.
        news: Vec<News>,
    },
    /// Something else is known of a node than before.
    Changed(News),
    /// This node has a new incarnation: others suspected it, or took it for dead, and it has just said otherwise; or they
    /// knew it before it was restarted ([`Liveness::Alive`]).
    Accused(Liveness),
    /// This node did not run for so many milliseconds, though it should have.
    StoodStill(u64),
}

/// One node's view of the others.
#[derive(Clone, Debug)]
pub struct Members {
    me: NodeId,
    options: Options,
    random: Random,
    known: Vec<News>,
    /// Who was ever heard of, by node.
    heard: Vec<bool>,
    /// When the first event came.
    began: Option<u64>,
    gossip: Gossip,
    /// Suspected nodes, and until when they can say that they live.
    suspects: Vec<(NodeId, u64)>,
    /// Who is probed in which order.
    round: Vec<NodeId>,
    probe: Option<Probe>,
    next_probe: u64,
    periods: u64,
    /// Probes for others: whom, for whom, until when.
    favours: Vec<(NodeId, NodeId, u64)>,
    /// How slow this node finds itself.
    strain: u64,
    /// When it was to be woken at the latest.
    promised: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    target: NodeId,
    /// Until when it may answer before others are asked.
    direct: Option<u64>,
    /// Until when it may answer at all.
    end: u64,
}

impl Members {
    /// The node `me` of `count`, all of which live as far as is known. The first probe is made at once: one that was
    /// restarted hears from it what was said of it before.
    #[must_use]
    pub fn new(me: NodeId, count: usize, options: Options, seed: u64, now: u64) -> Members {
        Members {
            me,
            options,
            known: (0..count).map(|node| News::first(NodeId(node as u16))).collect(),
            heard: vec![false; count],
            began: None,
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
                    self.learn(now, News { liveness: Liveness::Dead, ..known }, None, &mut out);
                }
            }
        }
        self.pass_time(now, &mut out);
        self.promised = self.next_tick();
        out
    }

    /// When the next [`Event::Tick`] is due; never if there is nobody to watch.
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

    /// What is known of every node, this one included, by node.
    #[must_use]
    pub fn known(&self) -> &[News] {
        &self.known
    }

    /// The own incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.of(self.me).map_or(0, |news| news.incarnation)
    }

    /// The epoch of a map of this version, as this node sees it.
    #[must_use]
    pub fn epoch(&self, version: u64) -> u64 {
        epoch_of(version, &self.known)
    }

    /// News to send along to a node: first what concerns the two, then what is to be spread.
    pub fn news_for(&mut self, to: NodeId) -> Vec<News> {
        let own = self.of(self.me);
        let theirs = self.of(to).filter(|news| *news != News::first(to));
        let mut news: Vec<News> = own.into_iter().chain(theirs).collect();
        let more = self.gossip.take(self.options.news_max, self.known.len());
        news.extend(more.into_iter().filter(|item| item.node != self.me && item.node != to));
        news
    }

    fn of(&self, node: NodeId) -> Option<News> {
        self.known.get(usize::from(node.0)).copied()
    }

    fn liveness(&self, node: NodeId) -> Option<Liveness> {
        self.of(node).map(|news| news.liveness)
    }

    /// All others that are not taken for dead.
    fn others(&self) -> Vec<NodeId> {
        let others = self.known.iter().filter(|news| news.node != self.me && news.liveness != Liveness::Dead);
        others.map(|news| news.node).collect()
    }

    /// Some others of which this holds, none twice. Draws instead of listing them, since there may be many.
    fn pick(&mut self, count: usize, holds: impl Fn(&News) -> bool) -> Vec<NodeId> {
        const DRAWS: usize = 32;
        let mut picked = Vec::new();
        for _ in 0..DRAWS {
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

    /// Who did not run itself knows nothing of others: it lets the time pass again.
    fn notice_standstill(&mut self, now: u64, out: &mut Vec<Command>) {
        let late = self.promised.map_or(0, |promised| now.saturating_sub(promised));
        if late <= self.options.direct_ms {
            return;
        }
        if let Some(probe) = &mut self.probe {
            probe.direct = probe.direct.map(|_| now + self.options.direct_ms);
            probe.end = now + self.options.period_ms;
        }
        self.suspects.iter_mut().for_each(|(_, until)| *until += late);
        self.strain = (self.strain + 1).min(STRAIN_MAX);
        out.push(Command::StoodStill(late));
    }

    fn hear(&mut self, now: u64, from: NodeId, news: &[News], out: &mut Vec<Command>) {
        self.heard.get_mut(usize::from(from.0)).into_iter().for_each(|heard| *heard = true);
        for item in news {
            if item.node == self.me {
                self.hear_of_me(*item, out);
            } else if self.of(item.node).is_some_and(|known| item.overrides(&known)) {
                self.learn(now, *item, Some(from), out);
            }
        }
    }

    /// Only this node says what its incarnation is; and that it lives it knows best.
    fn hear_of_me(&mut self, news: News, out: &mut Vec<Command>) {
        let Some(mine) = self.known.get_mut(usize::from(self.me.0)) else { return };
        if !news.overrides(mine) {
            return;
        }
        mine.incarnation = news.incarnation + u32::from(news.liveness != Liveness::Alive);
        let mine = *mine;
        self.gossip.add(mine);
        out.push(Command::Accused(news.liveness));
        if news.liveness != Liveness::Alive {
            self.strain = (self.strain + 1).min(STRAIN_MAX);
            self.spread(None, out);
        }
    }

    /// Learns something new of another node, and says so to others.
    fn learn(&mut self, now: u64, news: News, from: Option<NodeId>, out: &mut Vec<Command>) {
        let Some(known) = self.known.get_mut(usize::from(news.node.0)) else { return };
        let before = std::mem::replace(known, news);
        self.suspects.retain(|(node, _)| *node != news.node);
        if news.liveness == Liveness::Suspect {
            let until = now + self.options.suspect_ms * (1 + self.strain);
            self.suspects.push((news.node, until));
        }
        self.gossip.add(news);
        if before.liveness == Liveness::Dead && news.liveness != Liveness::Dead {
            self.say_all_again();
        }
        if before.liveness != news.liveness {
            out.push(Command::Changed(news));
        }
        if before.weight() != news.weight() {
            self.spread(from, out);
        }
    }

    /// Who comes back has not heard what was said meanwhile, and others have not heard what it said.
    fn say_all_again(&mut self) {
        let known = self.known.iter().filter(|news| **news != News::first(news.node));
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

    /// What is refused at once need not be waited for: others are asked now.
    fn failed(&mut self, now: u64, to: NodeId) {
        if let Some(probe) = self.probe.as_mut().filter(|probe| probe.target == to) {
            probe.direct = probe.direct.map(|_| now);
        }
    }

    fn probe_for(&mut self, now: u64, asker: NodeId, target: NodeId, out: &mut Vec<Command>) {
        self.favours.retain(|(_, _, until)| *until > now);
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
                self.learn(now, News { liveness: Liveness::Dead, ..known }, None, out);
            }
        }
    }

    /// Whether a node may be still starting: formations of many nodes do not start in a moment.
    fn may_start(&self, now: u64, node: NodeId) -> bool {
        let heard = self.heard.get(usize::from(node.0)).is_some_and(|heard| *heard);
        !heard && self.began.is_some_and(|began| now < began + self.options.start_ms)
    }

    fn judge_probe(&mut self, now: u64, out: &mut Vec<Command>) {
        let Some(target) = self.probe.map(|probe| probe.target) else { return };
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
        self.learn(now, News { liveness: Liveness::Suspect, ..known }, None, out);
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
            let (direct, end) = (now + direct_ms * (1 + self.strain), now + period_ms * (1 + self.strain));
            self.probe = Some(Probe { target, direct: Some(direct), end });
            out.push(Command::Probe { to: target, news: self.news_for(target) });
        }
        if self.periods.is_multiple_of(dead_every) {
            for to in self.pick(1, |news| news.liveness == Liveness::Dead) {
                out.push(Command::Tell { to, news: self.news_for(to) });
            }
        }
    }

    /// All others in turn, in an order that is drawn anew each time (SWIM, 4.3).
    fn next_target(&mut self) -> Option<NodeId> {
        for _ in 0..2 {
            while let Some(target) = self.round.pop() {
                if self.liveness(target).is_some_and(|liveness| liveness != Liveness::Dead) {
                    return Some(target);
                }
            }
            self.round = self.others();
            self.random.shuffle(&mut self.round);
        }
        None
    }
}

#[cfg(test)]
mod tests;
