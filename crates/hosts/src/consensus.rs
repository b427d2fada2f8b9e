//! Consensus of hosts on which keeper leads a formation, and on what it has decided. No I/O.
//!
//! Single-decree Paxos with a leader, over one register that holds the formation's whole state (Lamport, *Paxos Made
//! Simple*, 2001; Rystsov, *CASPaxos*, 2018). The agents of a few hosts are *voters*. A *keeper* holds a *term*, which
//! a majority of voters has promised to it; it writes *records*, each of which replaces the one before, and acts on a
//! record only once a majority has accepted it. A voter that has promised a later term accepts nothing of an earlier
//! one. So a deposed keeper can have nothing accepted, and its successor has read all that was.
//!
//! A voter keeps this in memory: its process is the host's part of the formation, and a part that has ended does not
//! come back.

use std::collections::BTreeSet;

/// The hosts whose agreement counts, by position. A change is in force once a majority of both sets has accepted it, as
/// in Raft's joint consensus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Voters {
    /// The hosts; none if the present keeper decides alone, and nobody can succeed it.
    pub now: Vec<u16>,
    /// Hosts that voted before a change of voters, until that is accepted.
    pub former: Vec<u16>,
}

impl Voters {
    /// Returns true if a record is accepted once these hosts have accepted it.
    pub fn accept(&self, hosts: &BTreeSet<u16>) -> bool {
        [&self.now, &self.former].into_iter().all(|voters| is_majority(voters, hosts))
    }

    /// Returns true if these hosts make a candidate the keeper.
    pub fn elect(&self, hosts: &BTreeSet<u16>) -> bool {
        !self.now.is_empty() && self.accept(hosts)
    }

    /// Returns true if these hosts may elect a keeper, while it is unknown whether a change of voters was accepted.
    pub fn may_elect(&self, hosts: &BTreeSet<u16>) -> bool {
        let settled = if self.former.is_empty() { &self.now } else { &self.former };
        !settled.is_empty() && is_majority(settled, hosts)
    }

    /// Returns all of them, each once.
    pub fn all(&self) -> BTreeSet<u16> {
        self.now.iter().chain(&self.former).copied().collect()
    }
}

fn is_majority(voters: &[u16], hosts: &BTreeSet<u16>) -> bool {
    let agreed = voters.iter().filter(|voter| hosts.contains(voter)).count();
    // Without voters the keeper decides alone; `elect` excludes that case.
    voters.is_empty() || 2 * agreed > voters.len()
}

/// Everything that keepers have decided, as one record that replaces the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Term of the keeper that wrote it.
    pub term: u32,
    /// Its number; rises from record to record.
    pub version: u64,
    /// The hosts that vote.
    pub voters: Voters,
    /// The formation's state.
    pub body: Vec<u8>,
}

impl Record {
    fn order(&self) -> (u32, u64) {
        (self.term, self.version)
    }
}

/// A host's vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Voter {
    promised: u32,
    accepted: Option<Record>,
}

impl Voter {
    /// Returns the newest record that it has accepted.
    pub fn accepted(&self) -> Option<&Record> {
        self.accepted.as_ref()
    }

    /// Returns the highest term that it has promised.
    pub fn promised(&self) -> u32 {
        self.promised
    }

    /// Accepts a record; one older than the latest of the same keeper changes nothing.
    ///
    /// # Errors
    /// The later term that it has promised.
    pub fn accept(&mut self, record: Record) -> Result<(), u32> {
        if record.term < self.promised {
            return Err(self.promised);
        }
        // To accept a later term is to promise it.
        self.promised = record.term;
        if self.accepted.as_ref().is_none_or(|known| known.order() < record.order()) {
            self.accepted = Some(record);
        }
        Ok(())
    }

    /// Returns true if it would promise this term. A host without a record is not a voter yet.
    pub fn would_promise(&self, term: u32) -> bool {
        term > self.promised && self.accepted.is_some()
    }

    /// Promises a term to a candidate; returns the newest record that it has accepted.
    ///
    /// # Errors
    /// The term that it has promised already.
    pub fn promise(&mut self, term: u32) -> Result<Record, u32> {
        match &self.accepted {
            Some(record) if term > self.promised => {
                self.promised = term;
                Ok(record.clone())
            }
            _ => Err(self.promised),
        }
    }
}

/// Candidacy of a host to become the keeper. It first asks whether it would be elected, without a promise (as Raft's
/// pre-vote), so that a host that is cut off does not depose a keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidacy {
    term: u32,
    is_trial: bool,
    newest: Record,
    agreed: BTreeSet<u16>,
}

impl Candidacy {
    /// Begins a candidacy for a term above `known`. Returns `None` if this host has no vote, or no keeper but the
    /// present one can be elected.
    pub fn begin(voter: &Voter, host: u16, known: u32) -> Option<Candidacy> {
        let newest = voter.accepted.clone().filter(|record| record.voters.now.contains(&host))?;
        let term = voter.promised.max(known).checked_add(1)?;
        Some(Candidacy { term, is_trial: true, newest, agreed: BTreeSet::from([host]) })
    }

    /// Returns the term that it asks for.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// Returns true while it only asks.
    pub fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// Returns the voters to ask.
    pub fn voters(&self) -> BTreeSet<u16> {
        self.newest.voters.all()
    }

    /// Counts a voter's agreement, with the newest record that it has accepted.
    pub fn agrees(&mut self, host: u16, record: Record) {
        if self.newest.order() < record.order() {
            self.newest = record;
        }
        self.agreed.insert(host);
    }

    /// Returns true if enough voters would promise.
    pub fn would_be_elected(&self) -> bool {
        self.is_trial && self.newest.voters.elect(&self.agreed)
    }

    /// Asks for promises, once enough voters would give them. This host's own voter promises first. Returns false if it
    /// is too early, or that voter refuses.
    pub fn stand(&mut self, voter: &mut Voter, host: u16) -> bool {
        if !self.would_be_elected() {
            return false;
        }
        let Ok(record) = voter.promise(self.term) else { return false };
        (self.is_trial, self.agreed) = (false, BTreeSet::new());
        self.agrees(host, record);
        true
    }

    /// Returns the newest record that may have been accepted, if this host is the keeper now.
    pub fn elected(&self) -> Option<&Record> {
        (!self.is_trial && self.newest.voters.elect(&self.agreed)).then_some(&self.newest)
    }
}

/// A keeper's newest record, while voters accept it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// The voters that have accepted it.
    accepted: BTreeSet<u16>,
}

impl Proposal {
    /// Counts a voter's acceptance.
    pub fn accepts(&mut self, host: u16) {
        self.accepted.insert(host);
    }

    /// Returns true if a voter has not accepted it yet.
    pub fn lacks(&self, host: u16) -> bool {
        !self.accepted.contains(&host)
    }

    /// Returns true if the keeper may act on it.
    pub fn is_accepted(&self, voters: &Voters) -> bool {
        voters.accept(&self.accepted)
    }
}

/// Fewest hosts with which a majority survives the loss of one.
pub(crate) const VOTERS_MIN: usize = 3;

/// Chooses the voters: five of the living hosts, three if there are fewer, none if there are fewer than three. Present
/// voters that live stay.
pub(crate) fn choose_voters(present: &[u16], living: &[u16]) -> Vec<u16> {
    let count = match living.len() {
        0..VOTERS_MIN => return Vec::new(),
        VOTERS_MIN..5 => VOTERS_MIN,
        _ => 5,
    };
    let stay = present.iter().filter(|host| living.contains(host));
    let join = living.iter().filter(|host| !present.contains(host));
    let mut chosen: Vec<u16> = stay.chain(join).copied().take(count).collect();
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(term: u32, version: u64, now: &[u16]) -> Record {
        let voters = Voters { now: now.to_vec(), former: Vec::new() };
        Record { term, version, voters, body: Vec::new() }
    }

    #[test]
    fn a_voter_accepts_nothing_of_a_keeper_that_was_deposed() {
        let mut voter = Voter::default();
        assert_eq!(voter.promise(1), Err(0), "it is no voter yet");
        assert_eq!(voter.accept(record(0, 1, &[0, 1, 2])), Ok(()));
        assert_eq!(voter.promise(2), Ok(record(0, 1, &[0, 1, 2])));
        assert_eq!(voter.promise(2), Err(2), "a term is promised once");
        assert_eq!(voter.accept(record(0, 2, &[])), Err(2));
        assert_eq!(voter.accept(record(2, 2, &[0, 1, 2])), Ok(()));
        // An older one of the same keeper, heard late, replaces nothing.
        assert_eq!(voter.accept(record(2, 1, &[])), Ok(()));
        assert_eq!(voter.accepted(), Some(&record(2, 2, &[0, 1, 2])));
    }

    #[test]
    fn where_the_keeper_decides_alone_nobody_succeeds_it() {
        let mut voter = Voter::default();
        voter.accept(record(0, 1, &[])).unwrap();
        assert_eq!(Candidacy::begin(&voter, 0, 0), None);
        let leaving = Voters { now: Vec::new(), former: vec![0, 1, 2] };
        assert!(leaving.accept(&BTreeSet::from([0, 1])) && !leaving.elect(&BTreeSet::from([0, 1])));
        assert!(!leaving.accept(&BTreeSet::from([0])));
    }

    #[test]
    fn a_change_of_voters_that_is_not_accepted_leaves_the_former_ones_their_majority() {
        let changing = Voters { now: vec![2, 3, 4], former: vec![0, 1, 2] };
        assert!(changing.may_elect(&BTreeSet::from([0, 1])) && !changing.elect(&BTreeSet::from([0, 1])));
        assert!(!changing.may_elect(&BTreeSet::from([2, 3, 4])));
        let settled = Voters { former: Vec::new(), ..changing };
        assert!(settled.may_elect(&BTreeSet::from([2, 4])) && !settled.may_elect(&BTreeSet::from([0, 1, 2])));
        assert!(!Voters::default().may_elect(&BTreeSet::from([0, 1, 2])));
    }

    /// S817.
    #[test]
    fn voters_are_an_odd_number_of_living_hosts() {
        assert_eq!(choose_voters(&[], &[0, 1]), [0; 0]);
        assert_eq!(choose_voters(&[], &[0, 1, 2, 3]), [0, 1, 2]);
        assert_eq!(choose_voters(&[0, 1, 2], &[0, 2, 3]), [0, 2, 3]);
        assert_eq!(choose_voters(&[0, 1, 2], &[0, 2]), [0; 0]);
        assert_eq!(choose_voters(&[1, 4], &[0, 1, 2, 3, 4, 5, 6]), [0, 1, 2, 3, 4]);
    }

    /// A message on its way. It may be lost, arrive late, or twice.
    #[derive(Clone, Debug)]
    enum Letter {
        Ask { to: u16, term: u32, is_trial: bool, from: u16 },
        Agreed { to: u16, term: u32, is_trial: bool, from: u16, record: Record },
        Write { to: u16, record: Record, from: usize },
        Accepted { to: usize, term: u32, version: u64, from: u16 },
    }

    /// A keeper, deposed or not.
    #[derive(Debug)]
    struct Reign {
        term: u32,
        version: u64,
        voters: Voters,
        proposal: Proposal,
        history: Vec<u8>,
    }

    /// Hosts, what is under way, and all that was ever accepted.
    struct Model {
        hosts: Vec<Option<Voter>>,
        candidacies: Vec<Option<Candidacy>>,
        reigns: Vec<Reign>,
        letters: Vec<Letter>,
        accepted: Vec<u8>,
        decisions: u8,
        elections: usize,
    }

    impl Model {
        fn new(hosts: u16) -> Model {
            let first = Reign {
                term: 0,
                version: 0,
                voters: Voters::default(),
                proposal: Proposal::default(),
                history: Vec::new(),
            };
            let mut model = Model {
                hosts: vec![Some(Voter::default()); usize::from(hosts)],
                candidacies: vec![None; usize::from(hosts)],
                reigns: vec![first],
                letters: Vec::new(),
                accepted: Vec::new(),
                decisions: 0,
                elections: 0,
            };
            model.change_voters(0, &(0..hosts).collect::<Vec<_>>());
            model
        }

        /// A keeper writes its next record. It may not know that it was deposed.
        fn write(&mut self, at: usize) {
            let reign = &mut self.reigns[at];
            reign.version += 1;
            reign.proposal = Proposal::default();
            let record = Record {
                term: reign.term,
                version: reign.version,
                voters: reign.voters.clone(),
                body: reign.history.clone(),
            };
            for to in reign.voters.all() {
                self.letters.push(Letter::Write { to, record: record.clone(), from: at });
            }
            self.note_accepted(at);
        }

        fn decide(&mut self, at: usize) {
            self.decisions += 1;
            self.reigns[at].history.push(self.decisions);
            self.write(at);
        }

        /// As a keeper does it: one change at a time.
        fn change_voters(&mut self, at: usize, living: &[u16]) {
            let reign = &mut self.reigns[at];
            let is_settled = reign.version == 0
                || (reign.proposal.is_accepted(&reign.voters) && reign.voters.former.is_empty());
            let chosen = choose_voters(&reign.voters.now, living);
            // A keeper that decides alone stays so.
            let is_alone = reign.version > 0 && reign.voters.now.is_empty();
            if is_settled && !is_alone && chosen != reign.voters.now {
                reign.voters.former = std::mem::replace(&mut reign.voters.now, chosen);
                self.write(at);
            }
        }

        /// What two keepers have accepted is one history.
        fn note_accepted(&mut self, at: usize) {
            let reign = &mut self.reigns[at];
            if reign.version == 0 || !reign.proposal.is_accepted(&reign.voters) {
                return;
            }
            let changes_voters = !reign.voters.former.is_empty();
            reign.voters.former.clear();
            let history = reign.history.clone();
            let both = history.len().min(self.accepted.len());
            assert_eq!(history[..both], self.accepted[..both], "two keepers decide: {:?}", self.reigns);
            if history.len() > both {
                self.accepted = history;
            }
            if changes_voters {
                self.write(at);
            }
        }

        fn ask(&mut self, host: u16) {
            let Some(candidacy) = &self.candidacies[usize::from(host)] else { return };
            let (term, is_trial) = (candidacy.term(), candidacy.is_trial());
            for to in candidacy.voters().into_iter().filter(|to| *to != host) {
                self.letters.push(Letter::Ask { to, term, is_trial, from: host });
            }
        }

        fn stand(&mut self, host: u16) {
            let at = usize::from(host);
            let Some(voter) = &self.hosts[at] else { return };
            self.candidacies[at] = Candidacy::begin(voter, host, 0);
            self.ask(host);
            self.go_on(host);
        }

        fn go_on(&mut self, host: u16) {
            let at = usize::from(host);
            let (Some(candidacy), Some(voter)) = (&mut self.candidacies[at], &mut self.hosts[at]) else {
                return;
            };
            if candidacy.stand(voter, host) {
                self.ask(host);
            }
            let Some(candidacy) = &self.candidacies[at] else { return };
            if let Some(newest) = candidacy.elected().cloned() {
                let term = candidacy.term();
                self.candidacies[at] = None;
                assert!(self.reigns.iter().all(|reign| reign.term != term), "two keepers have term {term}");
                self.elections += 1;
                let Record { version, voters, body: history, .. } = newest;
                self.reigns.push(Reign { term, version, voters, proposal: Proposal::default(), history });
                self.write(self.reigns.len() - 1);
            }
        }

        fn deliver(&mut self, letter: Letter) {
            match letter {
                Letter::Ask { to, term, is_trial, from } => {
                    let Some(voter) = &mut self.hosts[usize::from(to)] else { return };
                    let record = match is_trial {
                        true => voter.accepted().cloned().filter(|_| voter.would_promise(term)),
                        false => voter.promise(term).ok(),
                    };
                    let agreed = |record| Letter::Agreed { to: from, term, is_trial, from: to, record };
                    self.letters.extend(record.map(agreed));
                }
                Letter::Agreed { to, term, is_trial, from, record } => {
                    if let Some(candidacy) = &mut self.candidacies[usize::from(to)]
                        && (candidacy.term(), candidacy.is_trial()) == (term, is_trial)
                    {
                        let before = candidacy.voters();
                        candidacy.agrees(from, record);
                        if candidacy.voters() != before {
                            self.ask(to);
                        }
                        self.go_on(to);
                    }
                }
                Letter::Write { to, record, from } => {
                    let Some(voter) = &mut self.hosts[usize::from(to)] else { return };
                    let (term, version) = record.order();
                    if voter.accept(record).is_ok() {
                        self.letters.push(Letter::Accepted { to: from, term, version, from: to });
                    }
                }
                Letter::Accepted { to, term, version, from } => {
                    let reign = &mut self.reigns[to];
                    if (reign.term, reign.version) == (term, version) {
                        let was_accepted = reign.proposal.is_accepted(&reign.voters);
                        reign.proposal.accepts(from);
                        if !was_accepted {
                            self.note_accepted(to);
                        }
                    }
                }
            }
        }

        fn step(&mut self, (what, choice): (u8, usize)) {
            let host = (choice % self.hosts.len()) as u16;
            match what {
                0..12 if !self.letters.is_empty() => {
                    let at = choice % self.letters.len();
                    let letter = self.letters.swap_remove(at);
                    self.deliver(letter);
                }
                // In the order in which they were sent.
                12..24 if !self.letters.is_empty() => {
                    let letter = self.letters.remove(0);
                    self.deliver(letter);
                }
                24 if !self.letters.is_empty() => {
                    let letter = self.letters[choice % self.letters.len()].clone();
                    self.deliver(letter);
                }
                25 if !self.letters.is_empty() => {
                    self.letters.swap_remove(choice % self.letters.len());
                }
                26 | 27 => self.stand(host),
                28 if choice % 7 == 0 => self.hosts[usize::from(host)] = None,
                29 => {
                    let living = (0u16..).zip(&self.hosts).filter(|(_, voter)| voter.is_some());
                    let living: Vec<u16> = living.map(|(host, _)| host).collect();
                    self.change_voters(choice % self.reigns.len(), &living);
                }
                _ => self.decide(choice % self.reigns.len()),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// S818: messages are lost, late and repeated, hosts are lost, and deposed keepers go on as if they were not.
        #[test]
        fn what_keepers_have_accepted_is_one_history(
            hosts in 3u16..8,
            steps in proptest::collection::vec((0u8..33, 0usize..1000), 1..300),
        ) {
            let mut model = Model::new(hosts);
            steps.into_iter().for_each(|step| model.step(step));
        }

        /// S817: as long as a majority of voters is connected, a keeper is elected, whoever the former one was.
        #[test]
        fn a_majority_elects_a_keeper(
            steps in proptest::collection::vec((0u8..33, 0usize..1000), 0..100),
            lost in 0u16..3,
        ) {
            let mut model = Model::new(3);
            while let Some(letter) = (!model.letters.is_empty()).then(|| model.letters.remove(0)) {
                model.deliver(letter);
            }
            for (what, choice) in steps {
                // No host is lost but the one below.
                model.step((if what == 28 { 0 } else { what }, choice));
            }
            model.hosts[usize::from(lost)] = None;
            model.letters.clear();
            let elections = model.elections;
            // Terms that were promised on the way are overtaken by later attempts.
            for attempt in 0..200u16 {
                model.stand((lost + 1 + attempt % 2) % 3);
                while let Some(letter) = (!model.letters.is_empty()).then(|| model.letters.remove(0)) {
                    model.deliver(letter);
                }
            }
            prop_assert!(model.elections > elections);
            let last = model.reigns.last().unwrap();
            prop_assert!(last.proposal.is_accepted(&last.voters));
            prop_assert_eq!(&last.history, &model.accepted);
        }
    }
}
