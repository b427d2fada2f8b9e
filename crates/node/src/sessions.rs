//! Sessions: what this node knows of each of its clients, in one table under one lock.
//!
//! A client that opens or locks anything is written down, so that a restarted daemon knows who may have files open:
//! those sessions *await reclaim* until the client has said again what it has. A client without a connection *expires*
//! after a grace time: its session ends, with everything that it held. Reclaim and end are done outside of the lock and
//! exclude each other, client by client. The terms are those of NFSv4.1 (RFC 8881, 2.10 and 8.4).
//!
//! [`ClientTable`] is the machine: it is told what happened and when, and says what follows. [`Sessions`] has its lock,
//! its records and who waits.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex, MutexGuard, rank};
use bivouac_session::{ClientTable, FloorOrder, ReclaimedOpens, Work};
use bivouac_store::Records;
use bivouac_types::limits::CLIENTS_MAX;
use bivouac_types::{ClientId, Errno, FormationId, FsError, FsResult, Ino, NodeId, OpenId, Slot};

use crate::record::{number_of_key, session_key, table as records_of};

/// The sessions of a node.
pub struct Sessions {
    /// Slot of their records.
    slot: Slot,
    /// Grace time: a session expires so long after its last connection.
    grace: Duration,
    /// True if any session awaits reclaim or is being ended; read without the lock on each request.
    in_grace: AtomicBool,
    table: Mutex<ClientTable>,
    /// A reclaim or an end is over.
    over: Condvar,
}

/// Exclusive right to reclaim for a client or to end its session; one holder at a time for each client.
#[must_use = "it ends when it is dropped"]
pub struct Exclusive<'a> {
    sessions: &'a Sessions,
    client: ClientId,
}

impl Sessions {
    /// Creates the table from the records of an earlier daemon, whose clients await reclaim for the grace time.
    pub fn open(records: &Records, slot: Slot, grace: Duration) -> Sessions {
        let mut table = ClientTable::default();
        let until = Instant::now() + grace;
        records.scan(slot, &records_of(b'C'), &records_of(b'C'), |key, _| {
            number_of_key(key).into_iter().for_each(|client| table.adopt(ClientId(client), until));
            ControlFlow::Continue(())
        });
        let in_grace = AtomicBool::new(table.is_in_grace());
        Sessions { slot, grace, in_grace, table: Mutex::new(rank::SESSIONS, table), over: Condvar::new() }
    }

    /// Records that a client is about to open or lock a file. The caller must not be inside a transaction: the record
    /// is written before the table is changed, and transactions look into the table.
    ///
    /// # Errors
    /// `EMFILE` when there are [`CLIENTS_MAX`] already; errors of the log.
    pub fn note(&self, records: &Records, client: ClientId) -> FsResult<()> {
        if self.table.lock().is_logged(client) {
            return Ok(());
        }
        let mut txn = records.txn(&[self.slot]);
        // Of two that note the same client the second finds it here: the slot is locked.
        let mut table = self.table.lock();
        if table.is_logged(client) {
            return Ok(());
        }
        if table.logged() >= CLIENTS_MAX {
            let text = format!("{CLIENTS_MAX} clients have files open whose home is here");
            return Err(FsError::with(Errno::EMFILE, text));
        }
        txn.put(self.slot, &session_key(client), &[]);
        // Before the open is answered: a restarted daemon waits for no client that it finds no record of.
        txn.commit()?;
        table.log(client);
        Ok(())
    }

    /// Records that the client has a connection.
    pub fn connect(&self, client: ClientId) {
        self.table.lock().connect(client);
    }

    /// Records that the client lost its last connection: its session expires after the grace time.
    pub fn disconnect(&self, client: ClientId) {
        self.table.lock().disconnect(client, Instant::now() + self.grace);
    }

    /// Records that the client is alive, by a connection or because this process serves it. While its session is being
    /// ended this waits, so that the client keeps what it is granted next.
    pub fn renew(&self, client: ClientId) {
        self.unless(client, Work::End).renew(client);
    }

    /// Gives a client that has no connection here, but is alive elsewhere, another grace time.
    pub fn postpone_expiry(&self, client: ClientId) {
        self.table.lock().postpone(client, Instant::now() + self.grace);
    }

    /// Lets the sessions of a dead node's mounts expire after the grace time.
    pub fn cut_off(&self, clients: &[ClientId]) {
        let (mut table, until) = (self.table.lock(), Instant::now() + self.grace);
        clients.iter().for_each(|client| table.cut_off(*client, until));
    }

    /// Revokes that, for a node that is alive after all: mounts that stayed connected need not reconnect.
    pub fn reached(&self, clients: &[ClientId]) {
        let mut table = self.table.lock();
        clients.iter().for_each(|client| table.renew_connected(*client));
    }

    /// Handles a request of a client that has not reclaimed: it has nothing open then. Returns true if reclaim was
    /// awaited from it. While its session is being ended this waits, so that what it asks for is not ended with it.
    pub fn reclaim_nothing(&self, client: ClientId) -> bool {
        if !self.in_grace.load(Ordering::Acquire) {
            return false;
        }
        let mut table = self.unless(client, Work::End);
        table.is_awaited(client) && self.changed(&mut table, |table| table.finish_reclaim(client))
    }

    /// Records that a client's reclaim is complete. Returns true if it was awaited.
    pub fn finish_reclaim(&self, client: ClientId) -> bool {
        self.changed(&mut self.table.lock(), |table| table.finish_reclaim(client))
    }

    /// Returns the clients that have not reclaimed, and may have any file open. To be read before
    /// [`crate::opens::Opens::holders`]: a client that is not among these any more has its opens there.
    pub fn awaiting(&self) -> Vec<ClientId> {
        if self.in_grace.load(Ordering::Acquire) { self.table.lock().awaiting() } else { Vec::new() }
    }

    /// Raises the client's floor: no open with a lower number is under way. Returns how that compares with the floor
    /// known so far.
    pub fn raise_floor(&self, client: ClientId, floor: OpenId) -> FloorOrder {
        self.table.lock().raise_floor(client, floor)
    }

    /// Returns the client's floor.
    pub fn floor(&self, client: ClientId) -> OpenId {
        self.table.lock().floor(client)
    }

    /// Returns the clients with a record that are mounts of this node.
    pub fn of_node(&self, formation: FormationId, node: NodeId) -> Vec<ClientId> {
        let mut clients = self.table.lock().all_logged();
        clients.retain(|client| client.mounted_through(formation) == Some(node));
        clients
    }

    /// Waits for the exclusive right to reclaim for a client.
    pub fn reclaim(&self, client: ClientId) -> Exclusive<'_> {
        loop {
            let mut table = self.unless(client, Work::End);
            if table.begin(client, Work::Reclaim) {
                return Exclusive { sessions: self, client };
            }
            self.over.wait(&mut table);
        }
    }

    /// Returns the right to end a session that has expired, if there is one.
    pub fn expire(&self) -> Option<Exclusive<'_>> {
        let client = self.changed(&mut self.table.lock(), |table| table.expire(Instant::now()))?;
        Some(Exclusive { sessions: self, client })
    }

    /// Returns the right to end a client's session whatever time it has left, `None` if it has reconnected.
    pub fn expire_now(&self, client: ClientId) -> Option<Exclusive<'_>> {
        let begun = self.changed(&mut self.table.lock(), |table| table.expire_now(client));
        // Not `then_some`, whose argument would be dropped: that ends the work of another thread.
        if begun { Some(Exclusive { sessions: self, client }) } else { None }
    }

    /// Waits for the right to end the session of a client that closes it.
    pub fn end(&self, client: ClientId) -> Exclusive<'_> {
        let mut table = self.table.lock();
        while !self.changed(&mut table, |table| table.begin(client, Work::End)) {
            self.over.wait(&mut table);
        }
        Exclusive { sessions: self, client }
    }

    /// Returns when the next session expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.table.lock().next_expiry()
    }

    /// Returns true if its lock can be taken within `patience`; for detecting a standstill.
    pub(crate) fn can_be_taken(&self, patience: Duration) -> bool {
        self.table.try_lock_for(patience).is_some()
    }

    /// Makes the client await reclaim, as after a restart.
    #[cfg(test)]
    pub fn await_reclaim(&self, client: ClientId) {
        let later = Instant::now() + Duration::from_secs(3600);
        self.changed(&mut self.table.lock(), |table| {
            table.remove(client);
            table.adopt(client, later);
        });
    }

    /// Changes the table, and says whether requests have to look into it from now on.
    fn changed<R>(&self, table: &mut ClientTable, act: impl FnOnce(&mut ClientTable) -> R) -> R {
        let outcome = act(table);
        self.in_grace.store(table.is_in_grace(), Ordering::Release);
        outcome
    }

    /// The table, once nobody is at this work for the client.
    fn unless(&self, client: ClientId, work: Work) -> MutexGuard<'_, ClientTable> {
        let mut table = self.table.lock();
        while table.is_at(client, work) {
            self.over.wait(&mut table);
        }
        table
    }
}

impl Exclusive<'_> {
    /// Returns the client whose session it is.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Adds to the client's list of its opens; `first` begins the list anew.
    ///
    /// # Errors
    /// `EPROTO` for a list without its beginning; `EMFILE` when all lists together are too long.
    pub fn tell(&self, first: bool, opens: Vec<(Ino, OpenId)>) -> FsResult<()> {
        self.sessions.table.lock().tell(self.client, first, opens)
    }

    /// Takes the list that the client has sent.
    pub fn take_told(&self) -> ReclaimedOpens {
        self.sessions.table.lock().take_told(self.client)
    }

    /// Gives up the end of the session: it expires once more after `time`, unless its client has reconnected.
    pub fn put_off(self, time: Duration) {
        self.sessions.table.lock().postpone(self.client, Instant::now() + time);
    }

    /// Removes the session and its record; the caller has revoked everything that the client held.
    ///
    /// # Errors
    /// When its record cannot be removed; the session stays.
    pub fn forget(&self, records: &Records) -> FsResult<()> {
        // The transaction first, as in `note`: whoever has one may look into the table.
        let Sessions { slot, table, .. } = self.sessions;
        let mut txn = records.txn(&[*slot]);
        let mut table = table.lock();
        if table.is_logged(self.client) {
            txn.delete(*slot, &session_key(self.client));
            txn.commit()?;
        }
        self.sessions.changed(&mut table, |table| table.remove(self.client));
        Ok(())
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let Exclusive { sessions, client } = self;
        sessions.changed(&mut sessions.table.lock(), |table| table.end_work(*client));
        self.sessions.over.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_store::{MemVolume, RecordsOptions, Volume};
    use std::sync::Arc;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    fn opened(volume: &Arc<dyn Volume>) -> (Records, Sessions) {
        let options = RecordsOptions { slots: 1, ..RecordsOptions::default() };
        let records = Records::open(volume.clone(), FormationId([7; 16]), NodeId(0), options).unwrap().0;
        let sessions = Sessions::open(&records, Slot(0), Duration::from_secs(3600));
        (records, sessions)
    }

    #[test]
    fn who_had_files_open_is_waited_for_after_a_restart() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let (records, sessions) = opened(&volume);
        let c = ClientId(3);
        [A, B, c, A].into_iter().for_each(|client| sessions.note(&records, client).unwrap());
        sessions.end(c).forget(&records).unwrap();
        assert_eq!((sessions.awaiting(), sessions.reclaim_nothing(A)), (vec![], false));
        drop(records);
        let (records, sessions) = opened(&volume);
        let mut awaiting = sessions.awaiting();
        awaiting.sort_unstable();
        assert_eq!(awaiting, [A, B]);
        assert!(sessions.reclaim_nothing(A) && !sessions.reclaim_nothing(A) && !sessions.reclaim_nothing(c));
        sessions.end(B).forget(&records).unwrap();
        assert!(sessions.awaiting().is_empty());
    }

    /// An unlink looks for who may have a file open within its transaction, a first open writes its client down, and
    /// the two stood still for ever: each held what the other wanted.
    #[test]
    fn transactions_look_at_sessions_that_are_being_written_down() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let (records, sessions) = opened(&volume);
        sessions.note(&records, A).unwrap();
        drop(records);
        let (records, sessions) = opened(&volume);
        std::thread::scope(|scope| {
            for first in [1000, 2000] {
                let (records, sessions) = (&records, &sessions);
                scope.spawn(move || {
                    for client in (first..first + 500).map(ClientId) {
                        sessions.note(records, client).unwrap();
                        sessions.end(client).forget(records).unwrap();
                    }
                });
                scope.spawn(move || {
                    for _ in 0..500 {
                        let txn = records.txn(&[Slot(0)]);
                        assert_eq!(sessions.awaiting(), [A]);
                        drop(txn);
                    }
                });
            }
        });
    }

    #[test]
    fn who_comes_back_while_its_session_ends_waits_for_that() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let (records, sessions) = opened(&volume);
        sessions.note(&records, A).unwrap();
        sessions.raise_floor(A, OpenId(7));
        sessions.table.lock().disconnect(A, Instant::now());
        let ending = sessions.expire().unwrap();
        assert!(ending.client() == A && sessions.expire().is_none(), "one ends it");
        std::thread::scope(|scope| {
            let back = scope.spawn(|| {
                sessions.connect(A);
                assert!(!sessions.reclaim_nothing(A), "nothing was awaited");
                sessions.floor(A)
            });
            ending.forget(&records).unwrap();
            drop(ending);
            assert_eq!(back.join().unwrap(), OpenId(0), "it begins anew");
        });
        assert!(sessions.next_expiry().is_none(), "it is connected");
    }
}
