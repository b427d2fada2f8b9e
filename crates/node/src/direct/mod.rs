//! What this node lends to processes of its machine, each of which has a *direct session*: access to subfiles (grants),
//! and sizes of files (`sizes.rs`). Both are gates in memory that the process and this node share. All of them end with
//! the process, and with the last connection of its client, which is the process's own.
//!
//! Whether accesses go together is decided in the store; see docs/decisions/0017-local-direct-access.md.

mod holes;
mod sizes;

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bivouac_direct::{Gate, GrantTable, Invalidations, SizeGate, Untold};
use bivouac_ranks::{Mutex, rank};
use bivouac_store::{Access, DataStore, Granted, Headroom, Holder, LocalFile, SubfileId, Written};
use bivouac_types::limits::{DIRECT_GATES_MAX, DIRECT_GRANTS_MAX};
use bivouac_types::{ClientId, Errno, FsError, FsResult, Ino, SeatIndex};
use bivouac_wire::Invalidation;

use crate::node::Node;
use crate::served::Cache;
use sizes::File;

pub use sizes::NOT_LENT;

/// Session and gate of a grant.
type Key = (u32, u32);

/// What this node lends to processes of its machine.
pub struct Lending {
    data: Arc<DataStore>,
    grants: OnceLock<Arc<GrantTable>>,
    /// By which they are called back, once there are any.
    invalidations: OnceLock<Arc<Invalidations>>,
    /// Sizes that are lent; for a look without the lock.
    sizes_lent: AtomicUsize,
    /// Locked within the locks of slots: a look at a record, and at what was told since, is one look. Never locked
    /// while a subfile is.
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<u32, Lessee>,
    /// Files whose sizes are lent.
    sizes: HashMap<Ino, File>,
    /// Number of the next loan of a size.
    next_loan: u64,
    grants: HashMap<Key, Lent>,
    by_file: HashMap<SubfileId, Vec<Key>>,
    /// Subfiles of those who are gone, that are to be counted anew.
    left: Vec<SubfileId>,
}

/// Who has a session.
struct Lessee {
    client: ClientId,
    free: Vec<u32>,
    unused: Range<u32>,
}

struct Lent {
    id: SubfileId,
    gate: Gate,
    holder: Arc<Passage>,
    /// Keeps the subfile open.
    _file: LocalFile,
}

/// A grant, as the store sees it.
#[derive(Debug)]
struct Passage {
    grants: Arc<GrantTable>,
    session: u32,
    gate: Gate,
    /// Where it wrote, kept when the gate became free for others.
    written: OnceLock<Written>,
}

impl Passage {
    fn new(grants: Arc<GrantTable>, session: u32, gate: Gate) -> Arc<Passage> {
        Arc::new(Passage { grants, session, gate, written: OnceLock::new() })
    }

    /// Keeps what is marked on the gate: it is about to be another grant's.
    fn keep(&self) -> Written {
        *self.written.get_or_init(|| match self.gate.written() {
            // Who is still inside may still write.
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

impl Holder for Passage {
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

/// A grant that was made.
pub struct Made {
    /// The gate to pass.
    pub gate: u32,
    /// Its turn.
    pub turn: u32,
    /// What is granted.
    pub granted: Granted,
}

impl Lending {
    /// Nothing is lent.
    pub fn new(data: Arc<DataStore>) -> Lending {
        let table = Mutex::new(rank::DIRECT_TABLE, Table::default());
        let (grants, invalidations) = (OnceLock::new(), OnceLock::new());
        Lending { data, grants, invalidations, sizes_lent: AtomicUsize::new(0), table }
    }

    /// Begins a session of a client.
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
        let lessee = Lessee { client, free: Vec::new(), unused: 0..DIRECT_GATES_MAX };
        let mut table = self.table.lock();
        // An earlier one may have had its number.
        table.end_session(session);
        table.sessions.insert(session, lessee);
        Ok((session, file))
    }

    /// What processes with sessions cache of what they are told, with words instead of messages to call them back.
    fn cache(&self) -> Option<Arc<dyn Cache>> {
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

    /// A client has lost its last connection: its sessions end, and what it did not use of its windows is free again
    /// soon. Whether there were any.
    pub fn forget(&self, client: ClientId) -> bool {
        let mut table = self.table.lock();
        let of_client = table.sessions.iter().filter(|(_, lessee)| lessee.client == client);
        let sessions: Vec<u32> = of_client.map(|(session, _)| *session).collect();
        sessions.iter().for_each(|session| table.end_session(*session));
        !sessions.is_empty()
    }

    /// Lets nobody access anything any more who does not ask. Waits for nobody.
    pub(crate) fn close_all(&self) {
        if let Some(Err(error)) = self.grants.get().map(|grants| grants.close_all(Duration::ZERO)) {
            log::warn!(why:% = error; "direct access");
        }
    }

    /// A gate of a session that is in no use, if there is one.
    fn gate(&self, session: u32, client: ClientId) -> Option<(Arc<GrantTable>, u32, Gate)> {
        let grants = self.grants.get()?;
        let mut table = self.table.lock();
        if table.grants.len() >= DIRECT_GRANTS_MAX {
            return None;
        }
        let lessee = table.sessions.get_mut(&session).filter(|lessee| lessee.client == client)?;
        let number = lessee.free.pop().or_else(|| lessee.unused.next())?;
        let gate = grants.gate(session, number)?;
        gate.close();
        // One that somebody is still inside is left alone until the session ends.
        gate.is_empty().then(|| (Arc::clone(grants), number, gate))
    }

    fn holder(&self, key: Key, turn: u32, client: ClientId) -> Option<(SubfileId, Arc<dyn Holder>)> {
        let table = self.table.lock();
        table.sessions.get(&key.0).filter(|lessee| lessee.client == client)?;
        let lent = table.grants.get(&key).filter(|lent| lent.gate.turn() == turn)?;
        Some((lent.id, Arc::clone(&lent.holder) as Arc<dyn Holder>))
    }

    /// Grants what a session's process asks for; `None` if it is to ask for each access.
    pub fn grant(
        &self,
        client: ClientId,
        session: u32,
        id: SubfileId,
        access: Access,
        range: Range<u64>,
    ) -> FsResult<Option<Made>> {
        let Some((grants, number, gate)) = self.gate(session, client) else {
            self.sweep();
            return Ok(None);
        };
        let gate = gate.open_next();
        gate.mark([id.ino.0 as u32, (id.ino.0 >> 32) as u32, id.seat.0]);
        let passage = Passage::new(grants, session, gate.clone());
        let holder: Arc<dyn Holder> = Arc::clone(&passage) as Arc<dyn Holder>;
        let granted = self.data.grant(id, access, range, &holder);
        let Some(granted) = granted.inspect_err(|_| gate.close())? else {
            gate.close();
            self.table.lock().give_back(client, (session, number));
            return Ok(None);
        };
        gate.track(granted.marks_shift);
        let lent = Lent { id, gate: gate.clone(), holder: passage, _file: granted.file.clone() };
        let mut table = self.table.lock();
        if !table.sessions.contains_key(&session) {
            // It ended meanwhile, and nobody will enter.
            gate.close();
            table.left.push(id);
            return Ok(None);
        }
        table.add((session, number), lent);
        Ok(Some(Made { gate: number, turn: gate.turn(), granted }))
    }

    /// Makes the window of a grant wider.
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

    /// Takes note of grants that are over.
    fn sweep(&self) {
        let mut table = self.table.lock();
        let keys: Vec<Key> = table.grants.keys().copied().collect();
        let over = table.take_over(&keys);
        let mut ids = std::mem::take(&mut table.left);
        drop(table);
        ids.extend(over.iter().map(|lent| lent.id));
        for id in ids {
            if let Err(error) = self.data.release(id) {
                log::warn!(error:%; "{error}");
            }
        }
    }

    /// A subfile was removed: its bytes are gone once nobody has it open.
    pub fn removed(&self, id: SubfileId) {
        let mut table = self.table.lock();
        if let Some(keys) = table.by_file.get(&id).cloned() {
            let over = table.take_over(&keys);
            drop(table);
            drop(over);
        }
    }
}

impl Table {
    /// A session ends: nobody enters by its gates any more.
    fn end_session(&mut self, session: u32) {
        self.sessions.remove(&session);
        self.end_loans_of(session);
        let keys: Vec<Key> = self.grants.keys().filter(|key| key.0 == session).copied().collect();
        for key in keys {
            if let Some(lent) = self.take(key) {
                lent.holder.close();
                lent.holder.keep();
                self.left.push(lent.id);
            }
        }
    }

    /// Whether a client's session has not ended.
    fn has_session(&self, session: u32, client: ClientId) -> bool {
        self.sessions.get(&session).is_some_and(|lessee| lessee.client == client)
    }

    /// A client does not use a gate any more; of a session that has ended, all are free anyway.
    fn give_back(&mut self, client: ClientId, (session, gate): Key) {
        if let Some(lessee) = self.sessions.get_mut(&session).filter(|lessee| lessee.client == client) {
            lessee.free.push(gate);
        }
    }

    fn add(&mut self, key: Key, lent: Lent) {
        self.by_file.entry(lent.id).or_default().push(key);
        self.grants.insert(key, lent);
    }

    fn take(&mut self, key: Key) -> Option<Lent> {
        let lent = self.grants.remove(&key)?;
        if let Some(keys) = self.by_file.get_mut(&lent.id) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_file.remove(&lent.id);
            }
        }
        Some(lent)
    }

    /// Takes out those of these grants that are over, and frees their gates.
    fn take_over(&mut self, keys: &[Key]) -> Vec<Lent> {
        let is_over =
            |table: &Table, key: &Key| table.grants.get(key).is_some_and(|lent| lent.gate.is_empty());
        let over: Vec<Key> = keys.iter().filter(|key| is_over(self, key)).copied().collect();
        over.iter().filter_map(|key| self.grants.get(key)).for_each(|lent| {
            lent.holder.keep();
        });
        for (session, gate) in &over {
            if let Some(lessee) = self.sessions.get_mut(session) {
                lessee.free.push(*gate);
            }
        }
        over.into_iter().filter_map(|key| self.take(key)).collect()
    }
}

impl Node {
    /// Begins a direct session of a client, whose process may cache what it is told from then on.
    pub(crate) fn open_direct_session(&self, client: ClientId) -> FsResult<(u32, OwnedFd)> {
        let opened = self.lending.open_session(client)?;
        self.served
            .change(client, |served| served.cache = served.cache.take().or_else(|| self.lending.cache()));
        Ok(opened)
    }

    /// A process has lost its last connection: what was lent to it ends. It is waited for as long as it may show what it
    /// caches.
    pub(crate) fn end_direct_sessions(&self, client: ClientId) {
        if self.lending.forget(client) {
            self.served.change(client, |served| served.cache = None);
            self.reaper.wake();
        }
    }

    /// Takes no more for its volumes in memory than is left of that, from now on.
    pub fn shares_memory(&self, headroom: &Arc<dyn Headroom>) {
        self.data.share_memory(headroom);
    }

    /// Lets processes of this machine read and write subfiles themselves from now on. No gate of the grant table may be
    /// open; `stuck` are those with somebody inside nevertheless, and their sessions.
    ///
    /// # Errors
    /// When the grant table cannot be read.
    pub fn lend(&self, grants: GrantTable, stuck: Vec<(u32, Gate)>) -> std::io::Result<()> {
        let grants = Arc::new(grants);
        self.adopt_sizes(grants.sizes()?);
        // Who stands still in the middle of telling a size finds afterwards that nobody has heard it.
        let accesses = stuck.into_iter().filter(|(_, gate)| !SizeGate::is_one(gate));
        for (session, gate) in accesses {
            let [low, high, seat] = gate.marked();
            let (ino, seat) = (Ino(u64::from(low) | u64::from(high) << 32), SeatIndex(seat));
            let holder = Passage::new(Arc::clone(&grants), session, gate);
            let adopted = self.subfile(ino, seat).and_then(|id| Ok(self.data.adopt(id, holder)?));
            if let Err(error) = adopted {
                log::warn!(why:% = error; "inode {ino}: a process is in the middle of an access");
            }
        }
        // A second grant table would be a mistake of the caller's; the first stays.
        let _ = self.lending.grants.set(grants);
        Ok(())
    }

    /// Where processes of this machine see what mounts of this node have not told.
    #[must_use]
    pub fn untold(&self) -> Option<Arc<Untold>> {
        let grants = self.lending.grants.get()?;
        let refused =
            |error: &std::io::Error| log::warn!(why:% = error; "processes look at names through mounts");
        grants.untold().inspect_err(refused).ok().map(Arc::new)
    }

    /// Takes note of what is not lent any more.
    pub(crate) fn sweep_direct(&self) {
        self.sweep_sizes();
        self.lending.sweep();
    }

    /// Takes back what writers of a volume were promised and have not used. Whether there was any writer.
    pub(crate) fn reclaim_direct(&self, volume: u16) -> bool {
        self.sweep_direct();
        let table = self.lending.table.lock();
        let ids: Vec<SubfileId> = table.by_file.keys().filter(|id| id.volume == volume).copied().collect();
        drop(table);
        for id in &ids {
            if let Err(error) = self.data.revoke(*id) {
                log::warn!(error:%; "{error}");
            }
        }
        !ids.is_empty()
    }
}
