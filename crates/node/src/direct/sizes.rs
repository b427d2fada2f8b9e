//! Sizes of files that are lent to processes of this machine: a process that makes a file longer tells so in shared
//! memory, and whoever looks at the file's record here sees what was told on top of it. See
//! docs/decisions/0019-sizes-are-lent.md.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bivouac_direct::{GrantTable, SizeGate, Told};
use bivouac_ranks::MutexGuard;
use bivouac_types::limits::{DIRECT_DRAIN_MS, DIRECT_SIZES_MAX};
use bivouac_types::{Attr, ClientId, FsResult, Ino, Timestamp};
use bivouac_wire::{Encode, SizeLease};

use super::holes::Holes;
use super::{Lending, Table};
use crate::handlers::without_set_id;
use crate::leases::Item;
use crate::locks::{Guard, Target};
use crate::node::Node;
use crate::record::{Inode, inode_key};

/// A file whose size is lent.
pub struct File {
    loans: Vec<Loan>,
    /// Nothing if its record could not be read.
    holes: Option<Holes>,
}

/// A size that is lent to one process.
struct Loan {
    /// Which one of this node's it is.
    number: u64,
    gate: SizeGate,
    epoch: u32,
    /// Nothing for what an earlier daemon lent.
    holder: Option<Holder>,
    /// What was told, once the process is gone.
    last: Option<Told>,
}

#[derive(Clone)]
struct Holder {
    client: ClientId,
    session: u32,
    /// Number of the gate in the session.
    gate: u32,
    grants: Arc<GrantTable>,
}

/// That a size is not lent: each end of a write is told by a message.
pub const NOT_LENT: SizeLease = SizeLease { lent: false, gate: 0, turn: 0, epoch: 0 };

impl Loan {
    fn told(&self) -> Told {
        self.last.unwrap_or_else(|| self.gate.told())
    }

    /// Whether nothing more can be told.
    fn is_over(&self) -> bool {
        self.last.is_some() || self.gate.is_empty()
    }

    fn is_of(&self, session: u32) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.session == session)
    }

    fn fresh_of(&self, attr: &Attr) -> u64 {
        if self.epoch == attr.epoch { self.told().fresh } else { 0 }
    }
}

impl File {
    /// What processes have told of bytes behind the size.
    fn fresh(&self, attr: &Attr) -> u64 {
        self.loans.iter().map(|loan| loan.fresh_of(attr)).fold(0, u64::saturating_add)
    }
}

impl Lending {
    /// Adds to a record what processes have told since it was written. The caller has the record's slot locked.
    pub fn add_to(&self, attr: &mut Attr) {
        let Some(table) = self.if_any() else { return };
        let Some(file) = table.sizes.get(&attr.ino) else { return };
        for loan in file.loans.iter().filter(|loan| loan.epoch == attr.epoch) {
            let told = loan.told();
            attr.size = attr.size.max(told.end);
            let at = timestamp(told.at_ns);
            // Whoever changed the record since has seen what was told before.
            if told.end > 0 && at > attr.ctime {
                (attr.mtime, attr.ctime) = (at, at);
                attr.mode = without_set_id(attr.mode);
            }
        }
        // After the sizes: bytes are told in front of the end that they are within.
        let holes = file.holes.as_ref().and_then(|holes| holes.at(attr, file.fresh(attr)));
        attr.holes = holes.unwrap_or(attr.holes);
    }

    /// A message made a file longer by so many bytes besides a hole. The slot of its record is locked.
    pub fn wrote(&self, ino: Ino, bytes: u64) {
        if let Some(mut table) = self.if_any()
            && let Some(holes) = table.sizes.get_mut(&ino).and_then(|file| file.holes.as_mut())
        {
            holes.add(bytes);
        }
    }

    /// The holes of a file were counted. The slot of its record is locked.
    pub fn counted(&self, attr: &Attr) {
        if let Some(mut table) = self.if_any()
            && let Some(file) = table.sizes.get_mut(&attr.ino)
        {
            let told = file.fresh(attr);
            file.holes.get_or_insert(Holes::of(attr)).count(attr, told);
        }
    }

    /// There may be bytes behind the end of a file from now on, or what processes that leave holes would uncover.
    pub fn forbid_holes(&self, ino: Ino) {
        if let Some(table) = self.if_any() {
            table.loans_of(ino).for_each(|loan| loan.gate.forbid_holes());
        }
    }

    /// The table, if any size is lent.
    fn if_any(&self) -> Option<MutexGuard<'_, Table>> {
        (self.sizes_lent.load(Ordering::Acquire) > 0).then(|| self.table.lock())
    }

    fn is_lent(&self, ino: Ino) -> bool {
        self.if_any().is_some_and(|table| table.sizes.contains_key(&ino))
    }

    fn inos(&self, wanted: impl Fn(&Loan) -> bool) -> Vec<Ino> {
        let Some(table) = self.if_any() else { return Vec::new() };
        table.sizes.iter().filter(|(_, file)| file.loans.iter().any(&wanted)).map(|(ino, _)| *ino).collect()
    }

    /// The loans of a file that are over.
    fn over(&self, ino: Ino) -> Vec<u64> {
        let table = self.table.lock();
        table.loans_of(ino).filter(|loan| loan.is_over()).map(|loan| loan.number).collect()
    }

    /// Adds a loan of a file that has these attributes without it, if its record can be read. Not if its session has
    /// ended meanwhile: nobody has told anything then, since who asked has no answer yet.
    fn add(&self, ino: Ino, attr: Option<&Attr>, gate: SizeGate, holder: Option<Holder>) -> bool {
        let (_, epoch) = gate.file();
        let last = holder.is_none().then(|| gate.told());
        let mut table = self.table.lock();
        if holder.as_ref().is_some_and(|holder| !table.has_session(holder.session, holder.client)) {
            gate.close();
            gate.clear();
            return false;
        }
        table.next_loan += 1;
        let number = table.next_loan;
        let new = || File { loans: Vec::new(), holes: attr.map(Holes::of) };
        table.sizes.entry(ino).or_insert_with(new).loans.push(Loan { number, gate, epoch, holder, last });
        self.sizes_lent.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Closes all gates for a file.
    fn close(&self, ino: Ino) -> Vec<(SizeGate, Option<Holder>)> {
        let table = self.table.lock();
        let loans = table.loans_of(ino).inspect(|loan| loan.gate.close());
        loans.map(|loan| (loan.gate.clone(), loan.holder.clone())).collect()
    }

    /// Takes out the loans of a file that are over, and frees their gates. Who had them.
    fn end_loans(&self, ino: Ino, is_over: impl Fn(&Loan) -> bool) -> Vec<ClientId> {
        let mut table = self.table.lock();
        let Some(File { loans, mut holes }) = table.sizes.remove(&ino) else { return Vec::new() };
        let (over, loans): (Vec<Loan>, Vec<Loan>) = loans.into_iter().partition(is_over);
        if !loans.is_empty() {
            if let Some(holes) = &mut holes {
                over.iter().for_each(|loan| holes.add(loan.told().fresh));
            }
            table.sizes.insert(ino, File { loans, holes });
        }
        self.sizes_lent.fetch_sub(over.len(), Ordering::AcqRel);
        for loan in &over {
            loan.gate.clear();
            if let Some(holder) = loan.holder.as_ref().filter(|_| loan.last.is_none()) {
                table.give_back(holder.client, (holder.session, holder.gate));
            }
        }
        over.into_iter().filter_map(|loan| loan.holder).map(|holder| holder.client).collect()
    }
}

impl Table {
    fn loans_of(&self, ino: Ino) -> impl Iterator<Item = &Loan> {
        self.sizes.get(&ino).into_iter().flat_map(|file| &file.loans)
    }

    /// A session is over: what its process told is final.
    pub(super) fn end_loans_of(&mut self, session: u32) {
        let loans = self.sizes.values_mut().flat_map(|file| &mut file.loans);
        for loan in loans.filter(|loan| loan.is_of(session)) {
            loan.gate.close();
            loan.last.get_or_insert_with(|| loan.gate.told());
        }
    }
}

fn timestamp(ns: u64) -> Timestamp {
    Timestamp { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
}

impl Node {
    /// Lends the size of a file to a client's process, if that can be. The caller has the size locked.
    pub(crate) fn lend_size(&self, client: ClientId, session: u32, ino: Ino) -> FsResult<SizeLease> {
        self.sweep_sizes_of(ino)?;
        // What is wrong with it, the message says that tells its size.
        let Ok(Inode { attr, .. }) = self.regular_file(ino) else { return Ok(NOT_LENT) };
        let is_full = self.lending.sizes_lent.load(Ordering::Relaxed) >= DIRECT_SIZES_MAX;
        if is_full || !self.opens.is_held(ino, client) {
            return Ok(NOT_LENT);
        }
        let Some((grants, number, gate)) = self.lending.gate(session, client) else { return Ok(NOT_LENT) };
        // From now on it may change at any moment: nobody else gets a lease on it.
        self.callbacks.leases.begin(client, &[Item::Attrs(ino)], &|_, _, _| None);
        let gate = SizeGate::open(&gate, ino.0, attr.epoch, !self.stale_tails.may_have_tail(ino));
        let lent = SizeLease { lent: true, gate: number, turn: gate.turn(), epoch: attr.epoch };
        let holder = Holder { client, session, gate: number, grants };
        if !self.lending.add(ino, Some(&attr), gate, Some(holder)) {
            self.callbacks.leases.end(client, &[Item::Attrs(ino)]);
            return Ok(NOT_LENT);
        }
        if self.stale_tails.may_have_tail(ino) {
            // Who was marked meanwhile may have found no loan to change.
            self.lending.forbid_holes(ino);
        }
        Ok(lent)
    }

    /// Locks the size of a file, and has it back from everybody whom it is lent to.
    pub(crate) fn lock_size(&self, ino: Ino) -> FsResult<Guard<'_>> {
        let guard = self.locks.lock(Target::Size(ino))?;
        self.have_size_back(ino).map(|()| guard)
    }

    /// Has the size of a file back from everybody. The caller has it locked.
    pub(crate) fn have_size_back(&self, ino: Ino) -> FsResult<()> {
        if self.lending.is_lent(ino) {
            for (gate, holder) in self.lending.close(ino) {
                // Who stands still inside finds it closed afterwards, and sends a message.
                let lives = || holder.as_ref().is_some_and(|holder| holder.grants.lives(holder.session));
                let _ = gate.drain(Duration::from_millis(DIRECT_DRAIN_MS), lives);
            }
            self.write_down(ino)?;
            self.end_loans(ino, |_| true);
        }
        Ok(())
    }

    /// Clients that had these open are gone, or could not write what they wanted to: there may be bytes behind the
    /// ends.
    pub(crate) fn mark_tails(&self, inos: Vec<Ino>) {
        self.stale_tails.mark(inos.clone());
        inos.into_iter().for_each(|ino| self.lending.forbid_holes(ino));
    }

    /// Takes note of sizes of a file that are not lent any more.
    pub(crate) fn sweep_sizes_of(&self, ino: Ino) -> FsResult<()> {
        if !self.lending.is_lent(ino) {
            return Ok(());
        }
        // As of before they are written down: who is over only then may have told something since.
        let over = self.lending.over(ino);
        if !over.is_empty() {
            self.write_down(ino)?;
            self.end_loans(ino, |loan| over.contains(&loan.number));
        }
        Ok(())
    }

    /// The same for all files.
    pub(crate) fn sweep_sizes(&self) {
        for ino in self.lending.inos(Loan::is_over) {
            if let Err(error) = self.sweep_sizes_of(ino) {
                log::warn!(why:% = error; "size of inode {ino} is not in its record yet");
            }
        }
    }

    /// Writes down all that was told so far.
    pub(crate) fn write_down_sizes(&self) -> FsResult<()> {
        self.lending.inos(|_| true).into_iter().try_for_each(|ino| self.write_down(ino))
    }

    /// What processes told an earlier daemon.
    pub(crate) fn adopt_sizes(&self, gates: Vec<SizeGate>) {
        for gate in gates {
            let ino = Ino(gate.file().0);
            let attr = self.inode(ino).ok().map(|inode| inode.attr);
            self.lending.add(ino, attr.as_ref(), gate, None);
        }
        self.sweep_sizes();
    }

    /// Writes down what was told of a file so far.
    fn write_down(&self, ino: Ino) -> FsResult<()> {
        let mut change = self.change_of(ino)?;
        let Some(record) = change.txn.get(ino.slot(), &inode_key(ino)) else { return Ok(()) };
        let told = self.told_inode(ino, Some(record))?;
        if told.to_bytes() == record {
            return Ok(());
        }
        change.put_inode(&told);
        change.commit()
    }

    fn end_loans(&self, ino: Ino, is_over: impl Fn(&Loan) -> bool) {
        let clients = self.lending.end_loans(ino, is_over);
        clients.into_iter().for_each(|client| self.callbacks.leases.end(client, &[Item::Attrs(ino)]));
    }
}
