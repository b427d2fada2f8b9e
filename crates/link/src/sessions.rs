//! Connections by the process that made them. A process that connects says which of its connections it uses; all others
//! have ended for it, also where their end has not been seen here yet.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bivouac_types::FormationId;
use parking_lot::Mutex;

use crate::protocol::Session;

/// The asking side: key, formation, and node or command.
type ClientIdentity = (String, FormationId, u64);

/// Connections of all askers.
pub struct Sessions<C>(Mutex<HashMap<ClientIdentity, Process<C>>>);

/// The connections of the process that asks for an asker.
struct Process<C> {
    id: u64,
    connections: Vec<(u32, Weak<C>)>,
}

impl<C> Default for Sessions<C> {
    fn default() -> Sessions<C> {
        Sessions(Mutex::default())
    }
}

impl<C> Sessions<C> {
    /// Adds a connection. Returns those that have ended for its process: the caller ends them before it answers.
    pub fn join(
        &self,
        (key, formation): (&str, FormationId),
        session: &Session,
        connection: &Arc<C>,
    ) -> Vec<Arc<C>> {
        let Session { asker, process, number, others } = session;
        let mut all = self.0.lock();
        let own = all
            .entry((key.to_owned(), formation, *asker))
            .or_insert(Process { id: *process, connections: Vec::new() });
        let is_same = own.id == *process;
        own.id = *process;
        // One with a greater number was made after this one had said what is used.
        let is_used = |known: u32| is_same && (known > *number || others.contains(&known));
        let (used, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut own.connections).into_iter().partition(|(known, _)| is_used(*known));
        own.connections = used;
        own.connections.push((*number, Arc::downgrade(connection)));
        ended.into_iter().filter_map(|(_, ended)| ended.upgrade()).collect()
    }

    /// Returns the number of processes that have connections with a key.
    pub fn processes(&self, key: &str) -> usize {
        self.0.lock().keys().filter(|(used, ..)| used == key).count()
    }

    /// Removes the latest connection of the process that has the most with a key, and returns it; `None` if none has
    /// more than one.
    pub fn surplus(&self, key: &str) -> Option<Arc<C>> {
        let mut all = self.0.lock();
        let of_key = all.iter_mut().filter(|((used, ..), _)| used == key).map(|(_, process)| process);
        let most = of_key.max_by_key(|process| process.connections.len());
        let most = most.filter(|process| process.connections.len() > 1)?;
        let latest = most.connections.iter().enumerate().max_by_key(|(_, (number, _))| *number)?.0;
        most.connections.remove(latest).1.upgrade()
    }

    /// Removes a connection that has ended.
    pub fn leave(&self, connection: &Arc<C>) {
        let gone = Arc::as_ptr(connection);
        self.0.lock().retain(|_, process| {
            process.connections.retain(|(_, known)| known.as_ptr() != gone);
            !process.connections.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(process: u64, number: u32, others: &[u32]) -> Session {
        Session { asker: 1, process, number, others: others.to_vec() }
    }

    #[test]
    fn the_latest_connection_of_who_has_most_makes_room() {
        let sessions = Sessions::default();
        let connections: Vec<Arc<u32>> = (0..4).map(Arc::new).collect();
        let join = |asker: u64, number: u32, others: &[u32], at: usize| {
            let session = Session { asker, process: asker, number, others: others.to_vec() };
            sessions.join(("key", FormationId([1; 16])), &session, &connections[at]);
        };
        join(1, 1, &[], 0);
        join(2, 1, &[], 1);
        assert_eq!((sessions.processes("key"), sessions.surplus("key")), (2, None));
        join(2, 3, &[1, 2], 2);
        join(2, 2, &[1, 3], 3);
        assert_eq!(sessions.surplus("other"), None);
        assert_eq!(sessions.surplus("key").as_deref(), Some(&2));
        assert_eq!(sessions.surplus("key").as_deref(), Some(&3));
        assert_eq!(sessions.surplus("key"), None, "each has one");
    }

    #[test]
    fn connections_that_are_not_named_have_ended() {
        let (sessions, of) = (Sessions::default(), ("key", FormationId([1; 16])));
        let connections: Vec<Arc<u32>> = (0..6).map(Arc::new).collect();
        let join = |session: &Session, at: usize| -> Vec<u32> {
            let ended = sessions.join(of, session, &connections[at]);
            ended.into_iter().map(|one| *one).collect()
        };
        assert!(join(&session(7, 1, &[]), 1).is_empty());
        assert!(join(&session(7, 3, &[1, 2]), 3).is_empty());
        assert!(join(&session(7, 2, &[1]), 2).is_empty(), "a later one is not named by an earlier one");
        assert_eq!(join(&session(7, 4, &[1, 3]), 4), [2]);
        sessions.leave(&connections[1]);
        assert_eq!(join(&session(8, 1, &[3, 4]), 5), [3, 4], "they are of the process before");
        let other = sessions.join(("key", FormationId([2; 16])), &session(8, 1, &[]), &connections[0]);
        assert!(other.is_empty());
        connections.iter().for_each(|connection| sessions.leave(connection));
        assert!(sessions.0.lock().is_empty());
    }
}
