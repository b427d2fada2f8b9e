//! The state machine of sessions. It has no clock and no lock: callers pass the time.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use bivouac_types::limits::{CLIENTS_MAX, OPENS_MAX};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, OpenId};

/// Opens that a client reclaims.
pub type ReclaimedOpens = HashSet<(Ino, OpenId)>;

/// Result of comparing a floor with the one known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloorOrder {
    /// It is lower: the message that carried it is late.
    Late,
    /// It is the same or higher.
    InOrder,
    /// It is of a later process of the client: all opens of earlier ones have ended.
    OfAnotherProcess,
}

/// Work for a session that is done outside of the lock, by one thread at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Taking in the opens that the client reclaims.
    Reclaim,
    /// Revoking all that the client holds.
    End,
}

/// State of one client's session.
#[derive(Debug, Default)]
struct Session {
    /// Its record is written.
    logged: bool,
    /// It has not reclaimed since the start of this daemon.
    awaits: bool,
    connected: bool,
    /// When the session expires, for a client without a connection or with a dead node.
    expires: Option<Instant>,
    /// No open with a lower number is under way; `None` if unknown.
    floor: Option<OpenId>,
    /// The list of opens that it is sending, until that is complete.
    told: Option<ReclaimedOpens>,
    work: Option<Work>,
}

impl Session {
    /// Returns true if it holds no information, and may be dropped.
    fn is_empty(&self) -> bool {
        let Session { logged, awaits, connected, expires, floor, told, work } = self;
        let is_held = *logged || *awaits || *connected || work.is_some();
        !is_held && expires.is_none() && floor.is_none() && told.is_none()
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub struct ClientTable {
    sessions: HashMap<ClientId, Session>,
    logged: usize,
    awaiting: usize,
    /// Sessions that are being ended.
    ending: usize,
    /// Opens in unfinished lists.
    told: usize,
}

impl ClientTable {
    /// A client that an earlier daemon wrote down.
    pub fn adopt(&mut self, client: ClientId, expires: Instant) {
        let session = self.sessions.entry(client).or_default();
        (session.logged, session.awaits, session.expires) = (true, true, Some(expires));
        self.logged += 1;
        self.awaiting += 1;
    }

    /// Returns true if the client has a record.
    pub fn is_logged(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.logged)
    }

    /// Records that the client's record was written.
    pub fn log(&mut self, client: ClientId) {
        let session = self.sessions.entry(client).or_default();
        assert!(!session.logged, "a client is written down once");
        session.logged = true;
        self.logged += 1;
    }

    /// Returns the number of clients with a record.
    pub fn logged(&self) -> usize {
        self.logged
    }

    /// Returns the clients with a record.
    pub fn all_logged(&self) -> Vec<ClientId> {
        let logged = self.sessions.iter().filter(|(_, session)| session.logged);
        logged.map(|(client, _)| *client).collect()
    }

    /// Records that the client has a connection.
    pub fn connect(&mut self, client: ClientId) {
        let session = self.sessions.entry(client).or_default();
        (session.connected, session.expires) = (true, None);
    }

    /// Records that the client has lost its last connection.
    pub fn disconnect(&mut self, client: ClientId, expires: Instant) {
        let session = self.sessions.entry(client).or_default();
        (session.connected, session.expires) = (false, Some(expires));
    }

    /// Records that the client is alive: its session does not expire.
    pub fn renew(&mut self, client: ClientId) {
        self.change(client, |session| session.expires = None);
    }

    /// Like [`ClientTable::renew`], if the client is connected.
    pub fn renew_connected(&mut self, client: ClientId) {
        self.change(client, |session| session.expires = session.expires.filter(|_| !session.connected));
    }

    /// Lets a session expire then, unless it expires earlier already. The client may still be connected.
    pub fn cut_off(&mut self, client: ClientId, expires: Instant) {
        self.sessions.entry(client).or_default().expires.get_or_insert(expires);
    }

    /// Postpones the expiry of a session that expires at all.
    pub fn postpone(&mut self, client: ClientId, expires: Instant) {
        self.change(client, |session| session.expires = session.expires.map(|_| expires));
    }

    /// Returns true if any session awaits reclaim or is being ended; requests have to look their client's up then.
    pub fn is_in_grace(&self) -> bool {
        // Counted: every request asks, and looks its client up only then.
        self.awaiting + self.ending > 0
    }

    /// Returns true if a client awaits reclaim.
    pub fn is_awaited(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.awaits)
    }

    /// Returns the clients that await reclaim.
    pub fn awaiting(&self) -> Vec<ClientId> {
        let awaiting = self.sessions.iter().filter(|(_, session)| session.awaits);
        awaiting.map(|(client, _)| *client).collect()
    }

    /// Records that the client's reclaim is complete. Returns true if it was awaited.
    pub fn finish_reclaim(&mut self, client: ClientId) -> bool {
        let mut awaited = false;
        self.change(client, |session| {
            awaited = std::mem::take(&mut session.awaits);
            // It reclaims, so it is there, however long it has been away.
            session.expires = None;
        });
        self.awaiting -= usize::from(awaited);
        self.check_counts();
        awaited
    }

    /// Adds to a client's list of opens; `first` begins the list anew.
    ///
    /// # Errors
    /// `EPROTO` for a continuation without a list; `EMFILE` if all lists together exceed [`OPENS_MAX`], and this
    /// client's is dropped.
    pub fn tell(&mut self, client: ClientId, first: bool, opens: Vec<(Ino, OpenId)>) -> FsResult<()> {
        let told = self.sessions.get(&client).and_then(|session| session.told.as_ref());
        let before = told.map_or(0, HashSet::len);
        if !first && told.is_none() {
            return Err(FsError::with(Errno::EPROTO, "a list of opens without its beginning"));
        }
        let session = self.sessions.entry(client).or_default();
        let told = session.told.get_or_insert_default();
        if first {
            told.clear();
        }
        told.extend(opens);
        // Added first: a list that is begun anew may be shorter than before.
        self.told = self.told + told.len() - before;
        if self.told as u64 > OPENS_MAX {
            self.take_told(client);
            let text = format!("more than {OPENS_MAX} files are said to be open whose home is here");
            return Err(FsError::with(Errno::EMFILE, text));
        }
        Ok(())
    }

    /// Takes the list that the client has sent.
    pub fn take_told(&mut self, client: ClientId) -> ReclaimedOpens {
        let mut told = ReclaimedOpens::new();
        self.change(client, |session| told = session.told.take().unwrap_or_default());
        self.told -= told.len();
        told
    }

    /// Raises the client's floor; no open below it is under way. Returns how that compares with the floor known so far.
    pub fn raise_floor(&mut self, client: ClientId, floor: OpenId) -> FloorOrder {
        // Twice as many as may have a record: those keep their floors.
        if self.sessions.len() >= 2 * CLIENTS_MAX && !self.sessions.contains_key(&client) {
            // Clients without a record have no opens; without a floor, a late message of theirs is no longer
            // recognised.
            self.sessions
                .values_mut()
                .filter(|session| !session.logged)
                .for_each(|session| session.floor = None);
            self.sessions.retain(|_, session| !session.is_empty());
        }
        let known = self.sessions.entry(client).or_default().floor.get_or_insert(floor);
        let before = std::mem::replace(known, floor.max(*known));
        match (before, floor) {
            _ if before > floor => FloorOrder::Late,
            _ if before.first_of_process() < floor.first_of_process() => FloorOrder::OfAnotherProcess,
            _ => FloorOrder::InOrder,
        }
    }

    /// Returns the client's floor.
    pub fn floor(&self, client: ClientId) -> OpenId {
        self.sessions.get(&client).and_then(|session| session.floor).unwrap_or(OpenId(0))
    }

    /// Returns true if this work is under way for the client.
    pub fn is_at(&self, client: ClientId, work: Work) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.work == Some(work))
    }

    /// Begins work for a client. Returns false if any is under way for it.
    pub fn begin(&mut self, client: ClientId, work: Work) -> bool {
        let session = self.sessions.entry(client).or_default();
        let is_free = session.work.is_none();
        if is_free {
            session.work = Some(work);
            self.ending += usize::from(work == Work::End);
        }
        is_free
    }

    /// Ends the work for a client.
    pub fn end_work(&mut self, client: ClientId) {
        let mut work = None;
        self.change(client, |session| work = session.work.take());
        assert!(work.is_some(), "work for client {} ends that nobody has begun", client.0);
        self.ending -= usize::from(work == Some(Work::End));
        self.check_counts();
    }

    /// Begins the end of a session that has expired, unless work is under way for it.
    pub fn expire(&mut self, now: Instant) -> Option<ClientId> {
        let has_expired = |session: &Session| session.expires.is_some_and(|moment| moment <= now);
        let mut all = self.sessions.iter();
        let (client, _) = all.find(|(_, session)| session.work.is_none() && has_expired(session))?;
        let client = *client;
        self.expire_now(client).then_some(client)
    }

    /// Begins the end of the session of a client without a connection, whatever time it has left. Returns false if it
    /// has none, has reconnected, or work is under way for it.
    pub fn expire_now(&mut self, client: ClientId) -> bool {
        let session = self.sessions.get(&client);
        let is_gone = session.is_some_and(|session| session.expires.is_some() && session.work.is_none());
        // `expires` stays set meanwhile: `connect` clears it, which tells a client that came back from one that did
        // not.
        is_gone && self.begin(client, Work::End)
    }

    /// Returns when the next session expires, apart from those with work under way.
    pub fn next_expiry(&self) -> Option<Instant> {
        let idle = self.sessions.values().filter(|session| session.work.is_none());
        idle.filter_map(|session| session.expires).min()
    }

    /// Removes what the session was; connection and work under way remain known.
    pub fn remove(&mut self, client: ClientId) {
        self.take_told(client);
        let (mut logged, mut awaits) = (false, false);
        self.change(client, |session| {
            logged = std::mem::take(&mut session.logged);
            awaits = std::mem::take(&mut session.awaits);
            (session.floor, session.expires) = (None, None);
        });
        self.logged -= usize::from(logged);
        self.awaiting -= usize::from(awaits);
        self.check_counts();
    }

    /// Checks the counters: one that went below zero would exceed the number of sessions.
    fn check_counts(&self) {
        let ClientTable { sessions, logged, awaiting, ending, .. } = self;
        assert!(
            awaiting <= logged && *logged.max(ending) <= sessions.len(),
            "{} sessions, of which {logged} have records, {awaiting} await reclaim and {ending} end",
            sessions.len()
        );
    }

    /// Changes a session, if there is one, and drops it if nothing is left to know.
    fn change(&mut self, client: ClientId, act: impl FnOnce(&mut Session)) {
        let Some(session) = self.sessions.get_mut(&client) else { return };
        act(session);
        assert!(session.logged || !session.awaits, "client {} awaits reclaim without a record", client.0);
        if session.is_empty() {
            self.sessions.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const A: ClientId = ClientId(1);

    #[test]
    fn a_floor_never_sinks_and_tells_a_new_process() {
        let (mut table, id) = (ClientTable::default(), OpenId);
        assert_eq!(table.raise_floor(A, id(9)), FloorOrder::InOrder);
        assert_eq!(table.raise_floor(A, id(9)), FloorOrder::InOrder);
        assert_eq!(table.raise_floor(A, id(4)), FloorOrder::Late);
        assert_eq!(table.floor(A), id(9));
        assert_eq!(table.raise_floor(A, OpenId::first(1)), FloorOrder::OfAnotherProcess);
        assert_eq!(table.raise_floor(A, id(9)), FloorOrder::Late, "of the earlier process");
        assert_eq!(table.floor(A), OpenId::first(1));
    }

    #[test]
    fn a_list_has_a_beginning_and_a_limit() {
        let mut table = ClientTable::default();
        let open = |number| (Ino(number), OpenId(number));
        assert_eq!(table.tell(A, false, vec![open(1)]).unwrap_err().errno(), Errno::EPROTO);
        table.tell(A, true, vec![open(1)]).unwrap();
        table.tell(A, true, vec![open(2), open(3)]).unwrap();
        table.tell(A, false, vec![open(3), open(4)]).unwrap();
        assert_eq!(table.told, 3);
        table.told += OPENS_MAX as usize - 3;
        assert_eq!(table.tell(A, false, vec![open(5)]).unwrap_err().errno(), Errno::EMFILE);
        table.told -= OPENS_MAX as usize - 3;
        assert_eq!((table.take_told(A), table.told), (ReclaimedOpens::new(), 1 - 1));
    }

    #[test]
    fn a_session_ends_once_and_not_while_it_is_reclaimed() {
        let (mut table, now) = (ClientTable::default(), Instant::now());
        table.adopt(A, now);
        assert!(table.begin(A, Work::Reclaim));
        assert_eq!((table.expire(now), table.next_expiry()), (None, None));
        assert!(table.finish_reclaim(A));
        table.end_work(A);
        assert_eq!(table.expire(now), None, "it is here");
        table.disconnect(A, now + Duration::from_secs(1));
        assert_eq!((table.expire(now), table.next_expiry()), (None, Some(now + Duration::from_secs(1))));
        table.renew_connected(A);
        assert!(table.next_expiry().is_some(), "it is not connected");
        assert!(table.expire_now(A) && !table.expire_now(A) && !table.begin(A, Work::Reclaim));
        table.remove(A);
        table.end_work(A);
        assert!(table.sessions.is_empty() && table.logged() == 0);
    }

    /// It was asked whether it lives while it came back, and was taken for gone with a connection; or its end could not
    /// be logged while it came back.
    #[test]
    fn who_has_come_back_is_not_made_to_be_gone_by_what_was_asked_before() {
        let (mut table, now) = (ClientTable::default(), Instant::now());
        let later = now + Duration::from_secs(9);
        table.log(A);
        table.disconnect(A, now);
        table.postpone(A, later);
        assert_eq!((table.expire(now), table.next_expiry()), (None, Some(later)));
        table.connect(A);
        table.postpone(A, later);
        assert_eq!((table.next_expiry(), table.expire_now(A)), (None, false), "it is connected");
        table.disconnect(A, now);
        assert_eq!(table.expire(now), Some(A));
        table.connect(A);
        table.postpone(A, later);
        table.end_work(A);
        assert_eq!((table.next_expiry(), table.is_logged(A)), (None, true), "and has what it had");
    }

    /// An event: what happens, to which of three clients, and when.
    type Event = (u8, u64, u64);

    fn apply(table: &mut ClientTable, (what, client, second): Event, start: Instant) {
        let (client, moment) = (ClientId(client), start + Duration::from_secs(second));
        match what {
            0 => table.connect(client),
            1 => table.disconnect(client, moment),
            2 if !table.is_logged(client) => table.log(client),
            3 => drop(table.finish_reclaim(client)),
            4 => drop(table.tell(client, second.is_multiple_of(2), vec![(Ino(second), OpenId(second))])),
            5 => drop(table.take_told(client)),
            6 => _ = table.raise_floor(client, OpenId(second)),
            7 => _ = table.begin(client, Work::Reclaim),
            8 if [Work::Reclaim, Work::End].iter().any(|work| table.is_at(client, *work)) => {
                table.end_work(client);
            }
            9 => _ = table.expire(moment),
            10 => table.cut_off(client, moment),
            11 => table.remove(client),
            12 if !table.sessions.contains_key(&client) => table.adopt(client, moment),
            _ => table.renew(client),
        }
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_sessions(events in proptest::collection::vec((0..14u8, 0..3u64, 0..9u64), 0..60)) {
            let (mut table, start) = (ClientTable::default(), Instant::now());
            for event in events {
                apply(&mut table, event, start);
                let count = |is_it: fn(&Session) -> bool| table.sessions.values().filter(|one| is_it(one)).count();
                prop_assert_eq!(table.logged, count(|session| session.logged));
                prop_assert_eq!(table.ending, count(|session| session.work == Some(Work::End)));
                prop_assert_eq!(table.awaiting, count(|session| session.awaits));
                let told: usize = table.sessions.values().flat_map(|one| &one.told).map(HashSet::len).sum();
                prop_assert_eq!(table.told, told);
                prop_assert_eq!(count(Session::is_empty), 0, "an empty session is forgotten");
            }
        }
    }
}
