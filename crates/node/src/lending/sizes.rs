//! Sizes of files that are lent to processes of this machine; see docs/decisions/0003-file-size.md.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bivouac_direct::{GrantTable, SizeGate, WriteProgress};
use bivouac_ranks::MutexGuard;
use bivouac_types::{Attr, ClientId, Ino, Timestamp};
use bivouac_wire::SizeLease;

use super::holes::Holes;
use super::{Lending, LendingTable};
use crate::record::without_set_id;

/// A file whose size is lent.
pub struct LentFile {
    loans: Vec<SizeLoan>,
    /// `None` if the file's record could not be read.
    holes: Option<Holes>,
}

/// What a count of holes has replaced.
pub struct HolesBefore {
    before: Option<Holes>,
    counted: Holes,
}

/// A size that is lent to one process.
pub struct SizeLoan {
    /// Number of the loan.
    pub number: u64,
    gate: SizeGate,
    epoch: u32,
    /// `None` for a loan of an earlier daemon.
    holder: Option<LoanHolder>,
    /// The last report of a process that has ended.
    last: Option<WriteProgress>,
}

/// The session of a client that a size is lent to.
#[derive(Clone)]
pub struct LoanHolder {
    pub client: ClientId,
    pub session: u32,
    /// Serial number of the session.
    pub serial: u64,
    /// Number of the gate in the session.
    pub gate: u32,
    pub grants: Arc<GrantTable>,
}

/// The answer that a size is not lent: each extending write needs a message.
pub const NOT_LENT: SizeLease = SizeLease { lent: false, gate: 0, turn: 0, epoch: 0 };

impl SizeLoan {
    fn told(&self) -> WriteProgress {
        self.last.unwrap_or_else(|| self.gate.told())
    }

    /// Returns whether no further report can come.
    pub fn is_over(&self) -> bool {
        self.last.is_some() || self.gate.is_empty()
    }

    fn is_of(&self, session: u32) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.session == session)
    }

    fn fresh_of(&self, attr: &Attr) -> u64 {
        if self.epoch == attr.epoch { self.told().fresh } else { 0 }
    }
}

impl LentFile {
    /// Returns the growth that processes have reported in memory.
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

    /// Notes that a message made a file longer by so many bytes besides a hole. The slot of its record is locked.
    pub fn wrote(&self, ino: Ino, bytes: u64) {
        if let Some(mut table) = self.if_any()
            && let Some(holes) = table.sizes.get_mut(&ino).and_then(|file| file.holes.as_mut())
        {
            holes.add(bytes);
        }
    }

    /// Takes back what [`Lending::wrote`] has noted, if the record could not be committed.
    pub fn did_not_write(&self, ino: Ino, bytes: u64) {
        if let Some(mut table) = self.if_any()
            && let Some(holes) = table.sizes.get_mut(&ino).and_then(|file| file.holes.as_mut())
        {
            holes.take_back(bytes);
        }
    }

    /// Notes that the holes of a file were counted. The slot of its record is locked: a write between the record and
    /// this would count as a hole. Returns what [`Lending::did_not_count`] takes.
    pub fn counted(&self, attr: &Attr) -> Option<HolesBefore> {
        let mut table = self.if_any()?;
        let file = table.sizes.get_mut(&attr.ino)?;
        let (told, before) = (file.fresh(attr), file.holes);
        let holes = file.holes.get_or_insert(Holes::of(attr));
        holes.count(attr, told);
        Some(HolesBefore { before, counted: *holes })
    }

    /// Takes back what [`Lending::counted`] has noted, if the record could not be committed.
    pub fn did_not_count(&self, ino: Ino, before: Option<HolesBefore>) {
        if let Some(HolesBefore { before, counted }) = before
            && let Some(mut table) = self.if_any()
            && let Some(file) = table.sizes.get_mut(&ino)
        {
            // Unless they were counted again since.
            let is_same = |holes: &Holes| holes.back_to(counted) == *holes;
            if let Some(holes) = file.holes.filter(is_same) {
                file.holes = before.map(|before| holes.back_to(before));
            }
        }
    }

    /// Forbids the processes that a size is lent to to leave holes: there may be bytes behind the end that a hole would
    /// uncover.
    pub fn forbid_holes(&self, ino: Ino) {
        if let Some(table) = self.if_any() {
            table.loans_of(ino).for_each(|loan| loan.gate.forbid_holes());
        }
    }

    /// Returns the table, if any size is lent.
    fn if_any(&self) -> Option<MutexGuard<'_, LendingTable>> {
        (self.sizes_lent.load(Ordering::Acquire) > 0).then(|| self.table.lock())
    }

    /// Returns whether the size of a file is lent.
    pub fn is_lent(&self, ino: Ino) -> bool {
        self.if_any().is_some_and(|table| table.sizes.contains_key(&ino))
    }

    pub fn inos(&self, wanted: impl Fn(&SizeLoan) -> bool) -> Vec<Ino> {
        let Some(table) = self.if_any() else { return Vec::new() };
        table.sizes.iter().filter(|(_, file)| file.loans.iter().any(&wanted)).map(|(ino, _)| *ino).collect()
    }

    /// Returns the loans of a file that are over.
    pub fn over(&self, ino: Ino) -> Vec<u64> {
        let table = self.table.lock();
        table.loans_of(ino).filter(|loan| loan.is_over()).map(|loan| loan.number).collect()
    }

    /// Adds a loan of a file that has these attributes without it, if its record can be read. Not if its session has
    /// ended meanwhile: nobody has told anything then, since who asked has no answer yet.
    pub fn add(&self, ino: Ino, attr: Option<&Attr>, gate: SizeGate, holder: Option<LoanHolder>) -> bool {
        let (_, epoch) = gate.file();
        let last = holder.is_none().then(|| gate.told());
        let mut table = self.table.lock();
        if holder.as_ref().is_some_and(|holder| !table.has_session(holder.session, holder.serial)) {
            gate.close();
            gate.clear();
            return false;
        }
        table.next_loan += 1;
        let number = table.next_loan;
        let new = || LentFile { loans: Vec::new(), holes: attr.map(Holes::of) };
        table.sizes.entry(ino).or_insert_with(new).loans.push(SizeLoan { number, gate, epoch, holder, last });
        // Before the process hears of the loan: from its first word on whoever looks sees that there is one.
        self.sizes_lent.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Closes all gates for a file.
    pub fn close(&self, ino: Ino) -> Vec<(SizeGate, Option<LoanHolder>)> {
        let table = self.table.lock();
        let loans = table.loans_of(ino).inspect(|loan| loan.gate.close());
        loans.map(|loan| (loan.gate.clone(), loan.holder.clone())).collect()
    }

    /// Takes out the loans of a file that are over, and frees their gates. Who had them.
    pub fn end_loans(&self, ino: Ino, is_over: impl Fn(&SizeLoan) -> bool) -> Vec<ClientId> {
        let mut table = self.table.lock();
        let Some(LentFile { loans, mut holes }) = table.sizes.remove(&ino) else { return Vec::new() };
        let (over, loans): (Vec<SizeLoan>, Vec<SizeLoan>) = loans.into_iter().partition(is_over);
        if !loans.is_empty() {
            if let Some(holes) = &mut holes {
                over.iter().for_each(|loan| holes.add(loan.told().fresh));
            }
            table.sizes.insert(ino, LentFile { loans, holes });
        }
        let lent = self.sizes_lent.fetch_sub(over.len(), Ordering::AcqRel);
        // With 0 nobody looks at the table, and what processes tell is not seen.
        assert!(lent >= over.len(), "{} of {lent} lent sizes end with those of inode {ino}", over.len());
        for loan in &over {
            loan.gate.clear();
            // One with a last report is of a session that has ended, and its gates with it.
            if let Some(holder) = loan.holder.as_ref().filter(|_| loan.last.is_none()) {
                table.give_back(holder.serial, (holder.session, holder.gate));
            }
        }
        over.into_iter().filter_map(|loan| loan.holder).map(|holder| holder.client).collect()
    }
}

impl LendingTable {
    fn loans_of(&self, ino: Ino) -> impl Iterator<Item = &SizeLoan> {
        self.sizes.get(&ino).into_iter().flat_map(|file| &file.loans)
    }

    /// Ends the loans of a session that is over: what its process told is final.
    pub fn end_loans_of(&mut self, session: u32) {
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
