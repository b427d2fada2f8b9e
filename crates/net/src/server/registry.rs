//! Who is connected, and who has yet to prove itself.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bivouac_ranks::{Mutex, rank};
use bivouac_types::ClientId;
use bivouac_types::limits::HANDSHAKES_MAX;

use crate::Service;

/// Proven connections per client.
pub(super) struct Clients(Mutex<HashMap<ClientId, usize>>);

impl Default for Clients {
    fn default() -> Clients {
        Clients(Mutex::new(rank::CONNECTED_CLIENTS, HashMap::new()))
    }
}

impl Clients {
    /// Proven connections of all clients.
    pub fn connections(&self) -> usize {
        self.0.lock().values().sum()
    }

    /// Counts a connection. The service is told under the lock, so that it hears of a client's coming and
    /// going in their order.
    pub fn connected(&self, client: ClientId, service: &dyn Service) {
        let mut clients = self.0.lock();
        let count = clients.entry(client).or_default();
        *count += 1;
        if *count == 1 {
            service.client_connected(client);
        }
    }

    /// Forgets a connection.
    pub fn disconnected(&self, client: ClientId, service: &dyn Service) {
        let mut clients = self.0.lock();
        let Some(count) = clients.get_mut(&client) else { return };
        *count -= 1;
        if *count == 0 {
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
    /// Each connection has `limit` to prove itself.
    pub fn new(limit: Duration) -> Handshakes {
        Handshakes { limit, deadlines: BTreeMap::new() }
    }

    /// Adds a connection; returns the one that must go for it, if any.
    pub fn begin(&mut self, key: u64, now: Instant) -> Option<u64> {
        self.deadlines.insert(key, now.checked_add(self.limit).unwrap_or(now));
        if self.deadlines.len() <= HANDSHAKES_MAX {
            return None;
        }
        self.deadlines.pop_first().map(|(key, _)| key)
    }

    /// Forgets a connection that has proven itself or is closed.
    pub fn end(&mut self, key: u64) {
        self.deadlines.remove(&key);
    }

    /// When the next connection's time is over; `None` while there is none.
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
            clients.connected(ClientId(client), &diary);
        }
        assert_eq!(clients.connections(), 3);
        for client in [1, 2, 1, 1] {
            clients.disconnected(ClientId(client), &diary);
        }
        assert_eq!(*diary.0.lock(), ["+1", "+2", "-2", "-1"]);
        assert_eq!(clients.connections(), 0);
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
