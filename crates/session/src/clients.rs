//! The machine: what happens to sessions, and what follows.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use bivouac_types::limits::{CLIENTS_MAX, OPENS_MAX};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, OpenId};

/// What a client says that it has open.
pub type ReclaimedOpens = HashSet<(Ino, OpenId)>;

/// How a floor fits with the one that was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloorOrder {
    /// It was said before the one that was known.
    Late,
    /// It was said after that, or says the same.
    InOrder,
    /// A later process of the client says it: what the earlier ones had open has ended.
    OfAnotherProcess,
}

/// What is done for a session outside of the lock, by one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// What the client has open is taken in.
    Reclaim,
    /// Everything that it has is taken away.
    End,
}

/// What is known of one client.
#[derive(Debug, Default)]
struct Session {
    /// Its record is written.
    logged: bool,
    /// It has not said yet, since the start of this daemon, what it has open.
    awaits: bool,
    connected: bool,
    /// When it ends, for a client that is gone.
    expires: Option<Instant>,
    /// No open with a lower number is under way.
    floor: Option<OpenId>,
    /// What it has told so far of what it has open, while it tells it.
    told: Option<ReclaimedOpens>,
    work: Option<Work>,
}

impl Session {
    /// Whether there is nothing to know of it.
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

    /// Whether the client's record is written.
    pub fn is_logged(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.logged)
    }

    /// The client's record is written.
    pub fn log(&mut self, client: ClientId) {
        let session = self.sessions.entry(client).or_default();
        assert!(!session.logged, "a client is written down once");
        session.logged = true;
        self.logged += 1;
    }

    /// How many are written down.
    pub fn logged(&self) -> usize {
        self.logged
    }

    /// Those that are written down.
    pub fn all_logged(&self) -> Vec<ClientId> {
        let logged = self.sessions.iter().filter(|(_, session)| session.logged);
        logged.map(|(client, _)| *client).collect()
    }

    /// The client has a connection.
    pub fn connect(&mut self, client: ClientId) {
        let session = self.sessions.entry(client).or_default();
        (session.connected, session.expires) = (true, None);
    }

    /// The client has no connection any more.
    pub fn disconnect(&mut self, client: ClientId, expires: Instant) {
        let session = self.sessions.entry(client).or_default();
        (session.connected, session.expires) = (false, Some(expires));
    }

    /// The client is here.
    pub fn renew(&mut self, client: ClientId) {
        self.change(client, |session| session.expires = None);
    }

    /// The client is here if it is connected.
    pub fn renew_connected(&mut self, client: ClientId) {
        self.change(client, |session| session.expires = session.expires.filter(|_| !session.connected));
    }

    /// The client is cut off, if not for longer already.
    pub fn cut_off(&mut self, client: ClientId, expires: Instant) {
        self.sessions.entry(client).or_default().expires.get_or_insert(expires);
    }

    /// A client that is gone has longer to come back. One that has come back is not gone by this.
    pub fn postpone(&mut self, client: ClientId, expires: Instant) {
        self.change(client, |session| session.expires = session.expires.map(|_| expires));
    }

    /// Whether any awaits reclaim, or is being ended: then requests look for their client's.
    pub fn is_in_grace(&self) -> bool {
        self.awaiting + self.ending > 0
    }

    /// Whether a client awaits reclaim.
    pub fn is_awaited(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.awaits)
    }

    /// Those that await reclaim.
    pub fn awaiting(&self) -> Vec<ClientId> {
        let awaiting = self.sessions.iter().filter(|(_, session)| session.awaits);
        awaiting.map(|(client, _)| *client).collect()
    }

    /// What the client has open is known. Whether that was awaited.
    pub fn finish_reclaim(&mut self, client: ClientId) -> bool {
        let mut awaited = false;
        self.change(client, |session| {
            awaited = std::mem::take(&mut session.awaits);
            session.expires = None;
        });
        self.awaiting -= usize::from(awaited);
        self.check_counts();
        awaited
    }

    /// The client goes on with a list of what it has open, or begins it.
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
        self.told = self.told + told.len() - before;
        if self.told as u64 > OPENS_MAX {
            self.take_told(client);
            let text = format!("more than {OPENS_MAX} files are said to be open whose home is here");
            return Err(FsError::with(Errno::EMFILE, text));
        }
        Ok(())
    }

    /// All that the client has told.
    pub fn take_told(&mut self, client: ClientId) -> ReclaimedOpens {
        let mut told = ReclaimedOpens::new();
        self.change(client, |session| told = session.told.take().unwrap_or_default());
        self.told -= told.len();
        told
    }

    /// No open of the client below `floor` is under way. How this fits with what was known.
    pub fn raise_floor(&mut self, client: ClientId, floor: OpenId) -> FloorOrder {
        if self.sessions.len() >= 2 * CLIENTS_MAX && !self.sessions.contains_key(&client) {
            // Of clients without opens; without a floor, what comes late is not told any more.
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

    /// The client's floor.
    pub fn floor(&self, client: ClientId) -> OpenId {
        self.sessions.get(&client).and_then(|session| session.floor).unwrap_or(OpenId(0))
    }

    /// Whether somebody is at this work for the client.
    pub fn is_at(&self, client: ClientId, work: Work) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.work == Some(work))
    }

    /// Begins work for a client, unless somebody is at work for it.
    pub fn begin(&mut self, client: ClientId, work: Work) -> bool {
        let session = self.sessions.entry(client).or_default();
        let is_free = session.work.is_none();
        if is_free {
            session.work = Some(work);
            self.ending += usize::from(work == Work::End);
        }
        is_free
    }

    /// The work for a client is over.
    pub fn end_work(&mut self, client: ClientId) {
        let mut work = None;
        self.change(client, |session| work = session.work.take());
        assert!(work.is_some(), "work for client {} ends that nobody has begun", client.0);
        self.ending -= usize::from(work == Some(Work::End));
        self.check_counts();
    }

    /// Begins to end a session that has expired, unless somebody is at work for it.
    pub fn expire(&mut self, now: Instant) -> Option<ClientId> {
        let has_expired = |session: &Session| session.expires.is_some_and(|moment| moment <= now);
        let mut all = self.sessions.iter();
        let (client, _) = all.find(|(_, session)| session.work.is_none() && has_expired(session))?;
        let client = *client;
        self.expire_now(client).then_some(client)
    }

    /// Begins to end the session of a client that is gone, whatever time it has left.
    pub fn expire_now(&mut self, client: ClientId) -> bool {
        let session = self.sessions.get(&client);
        let is_gone = session.is_some_and(|session| session.expires.is_some() && session.work.is_none());
        // The moment stays, so that who comes back meanwhile can be told from who does not.
        is_gone && self.begin(client, Work::End)
    }

    /// When the next session expires at which nobody works.
    pub fn next_expiry(&self) -> Option<Instant> {
        let idle = self.sessions.values().filter(|session| session.work.is_none());
        idle.filter_map(|session| session.expires).min()
    }

    /// The session has ended: what is left is whether the client is connected, and who is at work.
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

    /// A count that has become less than nothing is more than there are sessions.
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

    /// It was asked whether it lives while it came back, and was taken for gone with a connection; or its end could not be
    /// logged while it came back.
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
