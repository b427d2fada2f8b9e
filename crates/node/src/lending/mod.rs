//! Table of what this node lends to processes of its machine: gates by which they access subfiles, and sizes of files.
//! The requests for that are handled by `direct`.

mod holes;
mod sizes;

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_direct::{Gate, GrantTable, Invalidations};
use bivouac_ranks::{Mutex, rank};
use bivouac_store::{Access, DataStore, DirectClient, Granted, LocalFile, SubfileId, Written};
use bivouac_types::limits::{DIRECT_GATES_MAX, DIRECT_GRANTS_MAX};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino};
use bivouac_wire::Invalidation;

use crate::served::Cache;
use sizes::LentFile;

pub use sizes::{LoanHolder, NOT_LENT, SizeLoan};

/// Session and gate of a grant.
type Key = (u32, u32);

/// Grants, size leases and sessions of processes on this machine.
pub struct Lending {
    data: Arc<DataStore>,
    pub grants: OnceLock<Arc<GrantTable>>,
    /// Invalidation words, once there are any.
    invalidations: OnceLock<Arc<Invalidations>>,
    /// Number of sizes lent, read without the lock.
    pub sizes_lent: AtomicUsize,
    /// Taken while slots are locked, so that a record and what was raised in shared memory since are read as one. Never
    /// taken while a subfile is locked.
    pub table: Mutex<LendingTable>,
}

/// Sessions of processes, and what is lent to each.
#[derive(Default)]
pub struct LendingTable {
    pub sessions: HashMap<u32, Lessee>,
    /// Files whose sizes are lent.
    sizes: HashMap<Ino, LentFile>,
    /// Number of the next loan of a size.
    next_loan: u64,
    /// Serial number of the next session.
    next_session: u64,
    grants: HashMap<Key, LentSubfile>,
    pub by_file: HashMap<SubfileId, Vec<Key>>,
    /// Subfiles of ended sessions whose space is to be counted anew.
    left: Vec<SubfileId>,
}

/// A session's process.
pub struct Lessee {
    client: ClientId,
    /// Serial number of the session: session numbers are used again.
    serial: u64,
    pub free: Vec<u32>,
    unused: Range<u32>,
}

impl Lessee {
    /// Takes back a gate that is not used any more.
    fn take_back(&mut self, session: u32, gate: u32) {
        // A gate that is free twice is given to two grants: the end of one would leave the other without.
        assert!(
            gate < self.unused.start && self.free.len() < self.unused.start as usize,
            "gate {gate} of session {session} is given back once more than it was given out"
        );
        self.free.push(gate);
    }
}

/// A gate that is not used.
pub struct FreeGate {
    pub grants: Arc<GrantTable>,
    /// Serial number of its session.
    pub serial: u64,
    /// Its number in the session.
    pub number: u32,
    pub gate: Gate,
}

/// A subfile that a process may access directly.
struct LentSubfile {
    id: SubfileId,
    gate: Gate,
    holder: Arc<Passage>,
    /// Keeps the subfile open.
    _file: LocalFile,
}

/// A grant, as the store deals with it.
#[derive(Debug)]
pub struct Passage {
    grants: Arc<GrantTable>,
    session: u32,
    gate: Gate,
    /// The range that was written, kept when the gate was released.
    written: OnceLock<Written>,
}

impl Passage {
    pub fn new(grants: Arc<GrantTable>, session: u32, gate: Gate) -> Arc<Passage> {
        Arc::new(Passage { grants, session, gate, written: OnceLock::new() })
    }

    /// Reads the written range from the gate, which is about to be another grant's, and keeps it.
    pub fn keep(&self) -> Written {
        *self.written.get_or_init(|| match self.gate.written() {
            // A process that is still inside may go on writing.
            Some((shift, map)) if self.is_over() => Written::Parts { shift, map },
            _ => Written::Anywhere,
        })
    }
}

impl Cache for Invalidations {
    fn invalidate(&self, what: &[Invalidation]) -> Duration {
        what.iter().for_each(|one| self.raise(one.key()));
        Duration::ZERO
    }
}

impl DirectClient for Passage {
    fn close(&self) {
        self.gate.close();
    }

    fn drain(&self, patience: Duration) -> bool {
        self.gate.drain(patience, || self.grants.lives(self.session))
    }

    fn is_over(&self) -> bool {
        self.gate.is_empty() || !self.grants.lives(self.session)
    }

    fn written(&self) -> Written {
        self.keep()
    }
}

/// A grant that was just made.
pub struct NewGrant {
    /// Number of its gate.
    pub gate: u32,
    /// Turn of the gate that is the grant's.
    pub turn: u32,
    /// The granted access.
    pub granted: Granted,
}

impl Lending {
    /// Creates an empty table.
    pub fn new(data: Arc<DataStore>) -> Lending {
        let table = Mutex::new(rank::DIRECT_TABLE, LendingTable::default());
        let (grants, invalidations) = (OnceLock::new(), OnceLock::new());
        Lending { data, grants, invalidations, sizes_lent: AtomicUsize::new(0), table }
    }

    /// Opens a session for a client.
    pub fn open_session(&self, client: ClientId) -> FsResult<(u32, OwnedFd)> {
        let refused = |error: std::io::Error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_code);
            FsError::with(errno, format!("direct access: {error}"))
        };
        let grants = self.grants.get().ok_or(Errno::EOPNOTSUPP)?;
        let given = grants.new_session().map_err(refused)?;
        let (session, file) = given.ok_or_else(|| {
            FsError::with(
                Errno::EAGAIN,
                "direct access: too many processes; they read and write through the daemon",
            )
        })?;
        self.table.lock().begin_session(session, client);
        Ok((session, file))
    }

    /// Returns the cache of processes with sessions, which invalidation words call back instead of messages. `None`
    /// without direct access.
    pub fn cache(&self) -> Option<Arc<dyn Cache>> {
        if self.invalidations.get().is_none() {
            match self.grants.get()?.invalidations() {
                Ok(made) => drop(self.invalidations.set(Arc::new(made))),
                Err(error) => {
                    log::warn!(why:% = error; "a process is not called back, and waited for instead")
                }
            }
        }
        self.invalidations.get().map(|words| Arc::clone(words) as Arc<dyn Cache>)
    }

    /// Ends the sessions of a client that lost its last connection. What it did not use of its windows is free again
    /// soon. Returns true if it had any.
    pub fn forget(&self, client: ClientId) -> bool {
        let mut table = self.table.lock();
        let of_client = table.sessions.iter().filter(|(_, lessee)| lessee.client == client);
        let sessions: Vec<u32> = of_client.map(|(session, _)| *session).collect();
        sessions.iter().for_each(|session| table.end_session(*session));
        !sessions.is_empty()
    }

    /// Closes all gates: processes have to ask for each access from now on. Does not wait for those inside.
    pub(crate) fn close_all(&self) {
        if let Some(Err(error)) = self.grants.get().map(|grants| grants.close_all(Duration::ZERO)) {
            log::warn!(why:% = error; "direct access");
        }
    }

    /// Takes a free gate of a client's session, if there is one.
    pub fn gate(&self, session: u32, client: ClientId) -> Option<FreeGate> {
        let grants = self.grants.get()?;
        let mut table = self.table.lock();
        if table.grants.len() >= DIRECT_GRANTS_MAX {
            return None;
        }
        let lessee = table.sessions.get_mut(&session).filter(|lessee| lessee.client == client)?;
        let number = lessee.free.pop().or_else(|| lessee.unused.next())?;
        assert!(number < DIRECT_GATES_MAX, "gate {number} of session {session} is another session's");
        let gate = grants.gate(session, number)?;
        // Before it is looked at: from here on nobody can enter.
        gate.close();
        // A gate with a process inside is left alone until the session ends.
        let serial = lessee.serial;
        gate.is_empty().then(|| FreeGate { grants: Arc::clone(grants), serial, number, gate })
    }

    fn holder(&self, key: Key, turn: u32, client: ClientId) -> Option<(SubfileId, Arc<dyn DirectClient>)> {
        let table = self.table.lock();
        table.sessions.get(&key.0).filter(|lessee| lessee.client == client)?;
        let lent = table.grants.get(&key).filter(|lent| lent.gate.turn() == turn)?;
        Some((lent.id, Arc::clone(&lent.holder) as Arc<dyn DirectClient>))
    }

    /// Grants access to a range of a subfile. Returns `None` if the process has to send a request for each access.
    pub fn grant(
        &self,
        client: ClientId,
        session: u32,
        id: SubfileId,
        access: Access,
        range: Range<u64>,
    ) -> FsResult<Option<NewGrant>> {
        let Some(FreeGate { grants, serial, number, gate }) = self.gate(session, client) else {
            self.sweep();
            return Ok(None);
        };
        // Before the store knows of it: whom the store revokes meanwhile must not be opened afterwards.
        let gate = gate.open_next();
        gate.mark([id.ino.0 as u32, (id.ino.0 >> 32) as u32, id.target.0]);
        let passage = Passage::new(grants, session, gate.clone());
        let holder: Arc<dyn DirectClient> = Arc::clone(&passage) as Arc<dyn DirectClient>;
        let granted = self.data.grant(id, access, range, &holder);
        let Ok(Some(granted)) = granted else {
            gate.close();
            // By the serial: the session may have ended meanwhile, and its number may be another one's.
            self.table.lock().give_back(serial, (session, number));
            return Ok(granted.map(|_| None)?);
        };
        gate.track(granted.marks_shift);
        let lent = LentSubfile { id, gate: gate.clone(), holder: passage, _file: granted.file.clone() };
        let mut table = self.table.lock();
        if !table.has_session(session, serial) {
            // The session ended meanwhile, and its process will not enter. Its number may be another session's already.
            gate.close();
            table.left.push(id);
            return Ok(None);
        }
        table.add((session, number), lent);
        Ok(Some(NewGrant { gate: number, turn: gate.turn(), granted }))
    }

    /// Widens the window of a grant. Returns `None` if the grant has ended.
    pub fn widen(
        &self,
        client: ClientId,
        key: Key,
        turn: u32,
        range: Range<u64>,
    ) -> FsResult<Option<Range<u64>>> {
        match self.holder(key, turn, client) {
            Some((id, holder)) => Ok(self.data.widen(id, range, &holder)?),
            None => Ok(None),
        }
    }

    /// Releases the grants that are over, and what ended sessions left.
    pub fn sweep(&self) {
        let mut table = self.table.lock();
        let keys: Vec<Key> = table.grants.keys().copied().collect();
        let over = table.take_over(&keys);
        let mut ids = std::mem::take(&mut table.left);
        // The store is called without the lock: it locks subfiles, under which this table is never locked.
        drop(table);
        ids.extend(over.iter().map(|lent| lent.id));
        for id in ids {
            if let Err(error) = self.data.release(id) {
                log::warn!(error:%; "{error}");
            }
        }
    }

    /// Drops the grants of a removed subfile that are over: its space is free once nobody has it open.
    pub fn removed(&self, id: SubfileId) {
        let mut table = self.table.lock();
        if let Some(keys) = table.by_file.get(&id).cloned() {
            let over = table.take_over(&keys);
            drop(table);
            // Without the lock of the table: closing the files frees their space, which may take a while.
            drop(over);
        }
    }
}

impl LendingTable {
    /// Begins a client's session, whose number an earlier session may have had.
    pub fn begin_session(&mut self, session: u32, client: ClientId) {
        self.end_session(session);
        self.next_session += 1;
        let (serial, unused) = (self.next_session, 0..DIRECT_GATES_MAX);
        self.sessions.insert(session, Lessee { client, serial, free: Vec::new(), unused });
    }

    /// Ends a session and closes its gates.
    fn end_session(&mut self, session: u32) {
        self.sessions.remove(&session);
        self.end_loans_of(session);
        let keys: Vec<Key> = self.grants.keys().filter(|key| key.0 == session).copied().collect();
        for key in keys {
            if let Some(lent) = self.take(key) {
                // Before its range is read: what is written behind that would be missed.
                lent.holder.close();
                lent.holder.keep();
                self.left.push(lent.id);
            }
        }
    }

    /// Returns whether the session with this serial number has not ended.
    pub fn has_session(&self, session: u32, serial: u64) -> bool {
        self.sessions.get(&session).is_some_and(|lessee| lessee.serial == serial)
    }

    /// Returns a gate to its session. Does nothing if that has ended: all its gates are free then.
    pub fn give_back(&mut self, serial: u64, (session, gate): Key) {
        if let Some(lessee) = self.sessions.get_mut(&session).filter(|lessee| lessee.serial == serial) {
            lessee.take_back(session, gate);
        }
    }

    fn add(&mut self, key: Key, lent: LentSubfile) {
        self.by_file.entry(lent.id).or_default().push(key);
        let former = self.grants.insert(key, lent);
        assert!(former.is_none(), "gate {} of session {} has two grants", key.1, key.0);
    }

    fn take(&mut self, key: Key) -> Option<LentSubfile> {
        let lent = self.grants.remove(&key)?;
        let keys = self.by_file.entry(lent.id).or_default();
        let at = keys.iter().position(|other| *other == key);
        assert!(at.is_some(), "the grant {key:?} is not among those of {:?}", lent.id);
        at.map(|at| keys.swap_remove(at));
        if keys.is_empty() {
            self.by_file.remove(&lent.id);
        }
        Some(lent)
    }

    /// Removes those of the grants that are over, frees their gates, and returns the subfiles.
    fn take_over(&mut self, keys: &[Key]) -> Vec<LentSubfile> {
        let mut over = Vec::new();
        for key in keys.iter().copied() {
            if self.grants.get(&key).is_some_and(|lent| lent.gate.is_empty())
                && let Some(lent) = self.take(key)
            {
                // Before the gate is given to another grant, which would mark it anew.
                lent.holder.keep();
                if let Some(lessee) = self.sessions.get_mut(&key.0) {
                    lessee.take_back(key.0, key.1);
                }
                over.push(lent);
            }
        }
        over
    }
}
