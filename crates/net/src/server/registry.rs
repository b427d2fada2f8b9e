//! Registry of connected clients, and of connections that have yet to prove themselves.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, rank};
use bivouac_session::{GenerationMatch, NewestGeneration};
use bivouac_types::ClientId;
use bivouac_types::limits::HANDSHAKES_MAX;

use crate::{Generation, LaneKind, Service};

/// Proven connections per client.
pub(super) struct Clients(Mutex<HashMap<ClientId, Connections>>);

/// Connections of one client.
#[derive(Default)]
struct Connections {
    count: usize,
    /// Newest generation on the client's own lane, and on the mirror lane.
    own: LaneGenerations,
    mirror: LaneGenerations,
}

/// Generations of a client's connections on one lane.
#[derive(Default)]
struct LaneGenerations {
    newest: NewestGeneration,
    /// Shared with the connections of the newest one, whose requests ask it whether they still count.
    generation: Generation,
}

impl LaneGenerations {
    /// The generation of a new connection. A higher number than before supersedes what there was.
    fn join(&mut self, number: (u32, u64)) -> Generation {
        match self.newest.join(number) {
            GenerationMatch::Apart => Generation::default(),
            // Begun before the newest one, and admitted behind it: what it carries must not count any more.
            GenerationMatch::Superseded => {
                let late = Generation::default();
                late.supersede();
                late
            }
            GenerationMatch::Same => self.generation.clone(),
            GenerationMatch::Newer => {
                self.generation.supersede();
                self.generation = Generation::default();
                self.generation.clone()
            }
        }
    }
}

impl Default for Clients {
    fn default() -> Clients {
        Clients(Mutex::new(rank::CONNECTED_CLIENTS, HashMap::new()))
    }
}

impl Clients {
    /// Returns the number of proven connections of all clients.
    pub fn connections(&self) -> usize {
        self.0.lock().values().map(|connections| connections.count).sum()
    }

    /// Counts a connection, and returns its generation. The service is told under the lock, so that it hears of a
    /// client's coming and going in their order.
    pub fn connected(
        &self,
        (client, lane): (ClientId, LaneKind),
        generation: (u32, u64),
        service: &dyn Service,
    ) -> Generation {
        let mut clients = self.0.lock();
        // Told before it is counted: if the service panics, the next connection is the first one again.
        if !clients.contains_key(&client) {
            service.client_connected(client);
        }
        let connections = clients.entry(client).or_default();
        connections.count += 1;
        match lane {
            LaneKind::Client | LaneKind::Peer => connections.own.join(generation),
            LaneKind::Mirror => connections.mirror.join(generation),
        }
    }

    /// Supersedes the present connections of a client: requests over them change nothing any more.
    pub fn supersede(&self, client: ClientId) {
        if let Some(connections) = self.0.lock().get_mut(&client) {
            // The number stays: the client may come back before it has heard of the end of the others.
            for lane in [&mut connections.own, &mut connections.mirror] {
                std::mem::take(&mut lane.generation).supersede();
            }
        }
    }

    /// Forgets a connection.
    pub fn disconnected(&self, client: ClientId, service: &dyn Service) {
        let mut clients = self.0.lock();
        let Some(connections) = clients.get_mut(&client) else { return };
        // The service hears of a client's end once, with its last connection: its locks and opens go then.
        assert!(connections.count > 0, "client {} has no connection to lose", client.0);
        connections.count -= 1;
        if connections.count == 0 {
            clients.remove(&client);
            service.client_gone(client);
        }
    }
}

/// Connections that have not proven themselves. Keys grow, so the lowest is the oldest.
pub(super) struct Handshakes {
    limit: Duration,
    deadlines: BTreeMap<u64, Instant>,
}

impl Handshakes {
    /// Creates the list of handshakes, each of which has `limit` to prove itself.
    pub fn new(limit: Duration) -> Handshakes {
        Handshakes { limit, deadlines: BTreeMap::new() }
    }

    /// Adds a connection; returns the one that must go for it, if any.
    pub fn begin(&mut self, key: u64, now: Instant) -> Option<u64> {
        self.deadlines.insert(key, now.checked_add(self.limit).unwrap_or(now));
        if self.deadlines.len() <= HANDSHAKES_MAX {
            return None;
        }
        let count = self.deadlines.len();
        assert!(count == HANDSHAKES_MAX + 1, "{count} handshakes, at most {HANDSHAKES_MAX} are kept");
        self.deadlines.pop_first().map(|(key, _)| key)
    }

    /// Forgets a connection that has proven itself or is closed.
    pub fn end(&mut self, key: u64) {
        self.deadlines.remove(&key);
    }

    /// Returns the deadline of the oldest handshake; `None` while there is none.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first_key_value().map(|(_, deadline)| *deadline)
    }

    /// Takes out one connection whose time is over.
    pub fn expired(&mut self, now: Instant) -> Option<u64> {
        let entry = self.deadlines.first_entry().filter(|entry| *entry.get() <= now)?;
        Some(entry.remove_entry().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, Reply};
    use bivouac_ranks::Mutex;

    #[derive(Default)]
    struct Diary(Mutex<Vec<String>>);

    impl Service for Diary {
        fn serve(&self, _call: &Call<'_>, _reply: &mut Reply<'_>) {}
        fn client_connected(&self, client: ClientId) {
            self.0.lock().push(format!("+{}", client.0));
        }
        fn client_gone(&self, client: ClientId) {
            self.0.lock().push(format!("-{}", client.0));
        }
    }

    #[test]
    fn only_first_and_last_connection_are_told() {
        let (clients, diary) = (Clients::default(), Diary::default());
        for client in [1, 1, 2] {
            clients.connected((ClientId(client), LaneKind::Peer), (0, 1), &diary);
        }
        assert_eq!(clients.connections(), 3);
        for client in [1, 2, 1, 1] {
            clients.disconnected(ClientId(client), &diary);
        }
        assert_eq!(*diary.0.lock(), ["+1", "+2", "-2", "-1"]);
        assert_eq!(clients.connections(), 0);
    }

    #[test]
    fn a_newer_generation_supersedes_those_before_and_no_others() {
        let (clients, diary) = (Clients::default(), Diary::default());
        let connect_on =
            |lane, client, number| clients.connected((ClientId(client), lane), (0, number), &diary);
        let connect = |client, number| connect_on(LaneKind::Peer, client, number);
        let (first, other, apart) = (connect(1, 5), connect(2, 5), connect(1, 0));
        let same = connect(1, 5);
        assert!(!first.is_superseded() && !same.is_superseded());
        let second = connect(1, 6);
        assert!(first.is_superseded() && same.is_superseded());
        assert!(connect(1, 5).is_superseded(), "it was begun before the newer one");
        // Those for replicas are made apart.
        let mirror = connect_on(LaneKind::Mirror, 1, 3);
        assert!(!mirror.is_superseded() && !second.is_superseded());
        assert!(!connect_on(LaneKind::Mirror, 1, 4).is_superseded() && mirror.is_superseded());
        assert!(!connect(1, 0).is_superseded());
        assert!(!second.is_superseded() && !other.is_superseded() && !apart.is_superseded());
        clients.supersede(ClientId(1));
        assert!(second.is_superseded() && !other.is_superseded());
        assert!(!connect(1, 6).is_superseded() && connect(1, 5).is_superseded());
    }

    #[test]
    fn a_node_that_moved_supersedes_its_former_daemon_whatever_its_clock_says() {
        let (clients, diary) = (Clients::default(), Diary::default());
        let connect = |number| clients.connected((ClientId(1), LaneKind::Peer), number, &diary);
        let former = connect((0, 1_000_000));
        let moved = connect((2, 5));
        assert!(former.is_superseded() && !moved.is_superseded());
        assert!(connect((0, 2_000_000)).is_superseded() && !moved.is_superseded());
        assert!(!connect((2, 5)).is_superseded());
    }

    #[test]
    fn the_oldest_handshake_goes_for_a_newer_one() {
        let mut handshakes = Handshakes::new(Duration::from_secs(1));
        let now = Instant::now();
        let gone: Vec<_> =
            (0..HANDSHAKES_MAX as u64 + 2).filter_map(|key| handshakes.begin(key, now)).collect();
        assert_eq!(gone, [0, 1]);
        handshakes.end(2);
        assert_eq!(handshakes.begin(9_999, now), None);
    }

    #[test]
    fn handshakes_expire_in_their_order() {
        let mut handshakes = Handshakes::new(Duration::from_secs(1));
        let now = Instant::now();
        assert_eq!(handshakes.next_deadline(), None);
        handshakes.begin(5, now);
        handshakes.begin(6, now + Duration::from_secs(1));
        assert_eq!(handshakes.next_deadline(), Some(now + Duration::from_secs(1)));
        assert_eq!(handshakes.expired(now), None);
        assert_eq!(handshakes.expired(now + Duration::from_secs(1)), Some(5));
        assert_eq!(handshakes.expired(now + Duration::from_secs(1)), None);
        assert_eq!(handshakes.expired(now + Duration::from_secs(2)), Some(6));
    }
}
