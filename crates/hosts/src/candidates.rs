//! Connections of candidates to a voter. Anybody can connect; only one who knows the formation's secret is answered.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};

use bivouac_net::{Auth, Link, Message, NetError};

/// Greatest number of connections of which nobody has proven who they are.
const UNPROVEN_MAX: usize = 64;
/// Greatest number of those that have: each of the five voters may have some that it has given up.
const PROVEN_MAX: usize = 32;
/// Time that one may take to prove itself, in milliseconds.
const UNPROVEN_MS: u64 = 10_000;
/// Most connections that are accepted in a row, so that a client that connects without pause does not block the host.
const ACCEPTS_MAX: usize = 64;

/// Connections of candidates. Time is an argument, in milliseconds, and rises.
#[derive(Default)]
pub(crate) struct Candidates {
    /// The oldest comes first.
    links: Vec<Candidate>,
}

struct Candidate {
    link: Link,
    since_ms: u64,
    /// The address that it comes from.
    ip: Option<IpAddr>,
}

impl Candidate {
    fn is_stranger(&self) -> bool {
        !self.link.is_proven()
    }
}

impl Candidates {
    /// Returns the connections, to be polled.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().map(|candidate| &candidate.link)
    }

    /// Accepts those that wait. `voters` are the addresses of hosts that can be candidates.
    pub fn accept(&mut self, listener: &TcpListener, auth: &Auth, voters: &[IpAddr], now_ms: u64) {
        self.links
            .retain(|known| known.link.is_proven() || now_ms.saturating_sub(known.since_ms) < UNPROVEN_MS);
        for _ in 0..ACCEPTS_MAX {
            let Ok(link) = Link::accept(listener, auth) else { return };
            let ip = link.peer().map(|address| address.ip().to_canonical());
            self.links.push(Candidate { link, since_ms: now_ms, ip });
            self.push_out(voters);
        }
    }

    /// Returns the time when the first of those that have not proven themselves is late.
    pub fn due_ms(&self) -> Option<u64> {
        let strangers = self.links.iter().filter(|known| known.is_stranger());
        strangers.map(|known| known.since_ms.saturating_add(UNPROVEN_MS)).min()
    }

    /// Answers what candidates say; who breaks off, or is no candidate, is dropped.
    pub fn answer(&mut self, mut reply: impl FnMut(&mut Link, Vec<Message>) -> Result<(), NetError>) {
        for mut known in std::mem::take(&mut self.links) {
            let answered = known.link.flush().and_then(|()| known.link.receive());
            match answered.and_then(|messages| reply(&mut known.link, messages)) {
                Ok(()) => self.links.push(known),
                Err(error) => log::debug!(error:%; "a candidate is gone: {error}"),
            }
        }
        self.drop_former();
    }

    /// Makes room for strangers that come later.
    fn push_out(&mut self, voters: &[IpAddr]) {
        let strangers = || self.links.iter().enumerate().filter(|(_, known)| known.is_stranger());
        let ips: Vec<Option<IpAddr>> = strangers().map(|(_, known)| known.ip).collect();
        let victim = first_to_go(&ips, voters).filter(|_| ips.len() > UNPROVEN_MAX);
        if let Some((at, _)) = victim.and_then(|at| strangers().nth(at)) {
            self.links.remove(at);
        }
    }

    /// Drops the oldest of those that have proven themselves, where they are too many.
    fn drop_former(&mut self) {
        let proven = self.links.iter().filter(|known| !known.is_stranger()).count();
        let mut surplus = proven.saturating_sub(PROVEN_MAX);
        self.links.retain(|known| {
            let stays = known.is_stranger() || surplus == 0;
            surplus -= usize::from(!stays);
            stays
        });
    }
}

/// Returns the position of the one that goes, of connections by their address, the oldest first: one from elsewhere
/// before one from a voter's host, then one of the address that has the most, then the oldest. So neither a flood from
/// one host nor one from outside pushes out a voter that is proving itself.
fn first_to_go(ips: &[Option<IpAddr>], voters: &[IpAddr]) -> Option<usize> {
    let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
    ips.iter().for_each(|ip| *counts.entry(*ip).or_default() += 1);
    let is_elsewhere = |ip: &Option<IpAddr>| ip.is_none_or(|ip| !voters.contains(&ip));
    let rank = |(at, ip): (usize, &Option<IpAddr>)| {
        (is_elsewhere(ip), counts.get(ip).copied().unwrap_or_default(), ips.len() - at)
    };
    ips.iter().enumerate().max_by_key(|(at, ip)| rank((*at, ip))).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::fd::{AsFd, OwnedFd};

    use bivouac_launch::polling::wait_readable;
    use bivouac_net::{Identity, LaneKind, Secret};
    use bivouac_types::{ClientId, FormationId};
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

    use super::*;

    const VOTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const WAIT_MS: u64 = 10_000;

    fn identity() -> Identity {
        let auth = Auth { formation: FormationId([7; 16]), secret: Secret::new([3; 32]), is_secure: false };
        Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 }
    }

    struct Voter {
        listener: TcpListener,
        address: SocketAddr,
        candidates: Candidates,
    }

    impl Voter {
        fn new() -> Voter {
            let listener = TcpListener::bind((VOTER, 0)).unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            Voter { listener, address, candidates: Candidates::default() }
        }

        /// Accepts, and notes what is said.
        fn attend(&mut self, now_ms: u64) -> Vec<Message> {
            let mut said = Vec::new();
            self.candidates.accept(&self.listener, &identity().auth, &[VOTER], now_ms);
            self.candidates.answer(|_, messages| {
                said.extend(messages);
                Ok(())
            });
            said
        }

        /// A connection from another address that never says anything.
        fn stranger(&self) -> OwnedFd {
            let stranger = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&stranger, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
            connect(&stranger, &self.address).unwrap();
            assert!(wait_readable(self.listener.as_fd(), WAIT_MS));
            stranger
        }

        fn count(&self) -> (usize, usize) {
            let all = self.candidates.links();
            let proven = all.filter(|link| link.is_proven()).count();
            (self.candidates.links().count() - proven, proven)
        }
    }

    #[test]
    fn strangers_are_few_and_go_after_a_while() {
        let mut voter = Voter::new();
        let mut strangers = Vec::new();
        for _ in 0..3 * UNPROVEN_MAX {
            strangers.push(voter.stranger());
            voter.attend(5);
        }
        assert_eq!((voter.count(), voter.candidates.due_ms()), ((UNPROVEN_MAX, 0), Some(5 + UNPROVEN_MS)));
        voter.attend(4 + UNPROVEN_MS);
        assert_eq!(voter.count(), (UNPROVEN_MAX, 0));
        voter.attend(5 + UNPROVEN_MS);
        assert_eq!((voter.count(), voter.candidates.due_ms()), ((0, 0), None));
    }

    #[test]
    fn a_candidate_is_heard_among_any_number_of_strangers() {
        let mut voter = Voter::new();
        let mut link = Link::reach(voter.address, &identity()).unwrap();
        let message = Message { op: 5, body: vec![1], payload: Vec::new() };
        let (mut strangers, mut is_asked, mut said) = (Vec::new(), false, Vec::new());
        while said.is_empty() {
            // More at each of its steps than there is room for.
            for _ in 0..UNPROVEN_MAX + 1 {
                strangers.push(voter.stranger());
                said.extend(voter.attend(0));
            }
            link.flush().unwrap();
            link.receive().unwrap();
            if link.is_proven() && !is_asked {
                is_asked = true;
                link.send(&message).unwrap();
            }
            strangers.clear();
        }
        assert_eq!(said, [message]);
        // It may take its time now.
        voter.attend(2 * UNPROVEN_MS);
        assert_eq!(voter.count(), (0, 1));
    }

    #[test]
    fn those_that_have_proven_themselves_are_few() {
        let mut voter = Voter::new();
        let mut links = Vec::new();
        for _ in 0..2 * PROVEN_MAX {
            let mut link = Link::reach(voter.address, &identity()).unwrap();
            while !link.is_proven() {
                voter.attend(0);
                link.flush().unwrap();
                link.receive().unwrap();
            }
            links.push(link);
        }
        assert_eq!(voter.count(), (0, PROVEN_MAX));
    }

    #[test]
    fn a_flood_pushes_itself_out() {
        let ip = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let voters = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        assert_eq!(first_to_go(&[], &voters), None);
        assert_eq!(first_to_go(&[ip(1), ip(9), ip(2)], &voters), Some(1), "from elsewhere");
        assert_eq!(first_to_go(&[ip(1), ip(9), ip(8), ip(8)], &voters), Some(2), "of those that have most");
        assert_eq!(first_to_go(&[ip(1), ip(2), ip(2)], &voters), Some(1), "also on a voter's host");
        assert_eq!(first_to_go(&[ip(1), None], &voters), Some(1));
    }
}
