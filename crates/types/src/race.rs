//! Accesses of clients to files, the operations that order them, and conflicting accesses that these operations leave
//! unordered: what clients report while races are detected, and what is found.

use crate::{ByteRange, Contract, Ino, NodeId};

/// Name of the extended attribute by which programs tell of an order that they make themselves, on any file or
/// directory.
pub const POINT_XATTR: &[u8] = b"user.bivouac.point";

/// Reads what a program tells of a point: `reach NUMBER` before, `pass NUMBER` behind it. Who passes it comes after all
/// who had reached it.
///
/// # Errors
/// A sentence that says what there is.
pub fn parse_point(text: &str) -> Result<RaceEvent, String> {
    let point = |number: &str| number.parse().map(SyncObject::Point);
    let wrong = || format!("'{text}' is no point: write `reach NUMBER` before it, `pass NUMBER` behind it");
    match text.trim_end_matches('\0').split_once(' ') {
        Some(("reach", number)) => point(number).map(RaceEvent::Release).map_err(|_| wrong()),
        Some(("pass", number)) => point(number).map(RaceEvent::Acquire).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// A process that reads or writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RaceProcess {
    /// Its number; 0 if it cannot be seen from its mount's daemon.
    pub pid: u32,
    /// Its MPI rank, if its launcher has told it one.
    pub rank: Option<u32>,
    /// The program that it runs, as the kernel names it.
    pub program: Vec<u8>,
}

/// Bytes that a process read or wrote, by one call or by several that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The file.
    pub ino: Ino,
    /// The bytes.
    pub range: ByteRange,
    /// True if they were written.
    pub is_write: bool,
    /// True if each call stayed within one stripe, where calls are atomic also under the coherent contract.
    pub is_in_stripe: bool,
    /// True if the file was under the session contract.
    pub is_session: bool,
    /// Position of the process in the list of the report.
    pub process: u16,
    /// Time of the first call's end, in milliseconds since 1970, by the client's clock.
    pub first_ms: u64,
    /// The same of the last call.
    pub last_ms: u64,
}

/// Something other than a file's content through which clients order what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncObject {
    /// A name in a directory, by its hash.
    Name(Ino, u64),
    /// All names of a directory.
    Names(Ino),
    /// A point that programs have agreed on, such as a barrier.
    Point(u64),
}

/// An operation by which a client takes in what others have published of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Opening it.
    Open,
    /// Locking bytes of it.
    Lock,
    /// Syncing it.
    Sync,
}

/// One event of a client, in the client's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaceEvent {
    /// A process has read or written.
    Access(FileAccess),
    /// The client reaches a point that others may learn of by this object.
    Release(SyncObject),
    /// The client may have learned by this object how far others have come.
    Acquire(SyncObject),
    /// Makes what the client has written to a file visible to others: a close, a sync, an unlock.
    Publish(Ino),
    /// The client sees what others have published of a file.
    Refresh(Ino, Refresh),
    /// An open of the client has ended.
    Close(Ino),
}

/// Models of consistency under which two conflicting accesses are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OrderedBy {
    /// One happens before the other.
    pub posix: bool,
    /// A sync or close of the first client is between them.
    pub commit: bool,
    /// A close, sync or unlock of the first client and then an open or lock of the second are between them.
    pub session: bool,
    /// Session semantics in which a sync of the second client counts as an open: sync, barrier, sync.
    pub mpi_io: bool,
}

/// One side of a pair of conflicting accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaceAccess {
    /// The host of the client.
    pub host: String,
    /// The node that serves the client, if it is a mount.
    pub node: Option<NodeId>,
    /// The process.
    pub process: RaceProcess,
    /// True if it wrote.
    pub is_write: bool,
    /// The bytes.
    pub range: ByteRange,
    /// Time of its first call's end, in milliseconds since 1970, by its host's clock.
    pub first_ms: u64,
    /// The same of the last call.
    pub last_ms: u64,
}

/// Conflicting accesses of two processes of different clients that are not ordered by all models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The file.
    pub ino: Ino,
    /// The bytes that both accessed: from the first to the last, of all pairs that are counted here.
    pub range: ByteRange,
    /// Number of pairs like this.
    pub count: u64,
    /// Models that order them.
    pub ordered: OrderedBy,
    /// True if all calls stayed within one stripe.
    pub is_in_stripe: bool,
    /// True if the file was under the session contract.
    pub is_session: bool,
    /// One access; where they are ordered, the earlier one.
    pub first: RaceAccess,
    /// The other.
    pub second: RaceAccess,
}

impl Race {
    /// Counts other pairs of the same processes with this one.
    pub fn merge(&mut self, other: &Race) {
        assert_eq!(
            (self.ino, self.ordered),
            (other.ino, other.ordered),
            "races of different files, or orders, are counted as one"
        );
        self.range = self.range.hull(&other.range);
        self.count = self.count.saturating_add(other.count);
        self.is_in_stripe &= other.is_in_stripe;
        self.is_session |= other.is_session;
        for (side, more) in [(&mut self.first, &other.first), (&mut self.second, &other.second)] {
            side.range = side.range.hull(&more.range);
            side.first_ms = side.first_ms.min(more.first_ms);
            side.last_ms = side.last_ms.max(more.last_ms);
        }
        assert!(self.range.covers(&other.range), "a merged race leaves out bytes");
    }

    /// Returns the weakest contract under which both accesses have a defined outcome: an order, or, where nothing
    /// orders them, each of them whole.
    #[must_use]
    pub fn weakest_contract(&self) -> Contract {
        match (self.ordered.session, self.ordered.posix || self.is_in_stripe) {
            (true, _) => Contract::Session,
            (false, true) => Contract::Coherent,
            (false, false) => Contract::Strict,
        }
    }

    /// Returns whether the contract that held for the file leaves the accesses unordered.
    #[must_use]
    pub fn is_race(&self) -> bool {
        !self.ordered.posix || self.is_session && !self.ordered.session
    }
}

/// Numbers of a detection, and what it had to leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaceCounts {
    /// Accesses that were reported.
    pub accesses: u64,
    /// Conflicting pairs that were compared.
    pub conflicts: u64,
    /// Pairs that are in no [`Race`], since there were too many different ones.
    pub unlisted: u64,
    /// Accesses that were forgotten for lack of memory, and compared with nothing later.
    pub forgotten: u64,
    /// Times that all that was known was forgotten, since reports of a client were lost.
    pub lost_reports: u64,
    /// Times that operations which order clients were merged for lack of memory: they may order more than they did.
    pub merged: u64,
    /// Clients that count as one with others, of which there were too many.
    pub shared_clients: u64,
}

impl RaceCounts {
    /// Returns whether nothing was left out.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unlisted + self.forgotten + self.lost_reports + self.merged + self.shared_clients == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race(ordered: OrderedBy, is_in_stripe: bool, is_session: bool) -> Race {
        let access = RaceAccess {
            host: "h".into(),
            node: None,
            process: RaceProcess::default(),
            is_write: true,
            range: ByteRange::at(0, 1),
            first_ms: 0,
            last_ms: 0,
        };
        let (range, second) = (access.range, access.clone());
        Race { ino: Ino(1), range, count: 1, ordered, is_in_stripe, is_session, first: access, second }
    }

    #[test]
    fn the_weakest_contract_orders_or_keeps_calls_whole() {
        let none = OrderedBy::default();
        let posix = OrderedBy { posix: true, ..none };
        let session = OrderedBy { commit: true, session: true, ..posix };
        let weakest = |ordered, in_stripe| race(ordered, in_stripe, false).weakest_contract();
        assert_eq!(weakest(none, false), Contract::Strict);
        assert_eq!(weakest(none, true), Contract::Coherent);
        assert_eq!(weakest(posix, false), Contract::Coherent);
        assert_eq!(weakest(session, false), Contract::Session);
        assert!(race(none, true, false).is_race() && race(posix, false, true).is_race());
        assert!(!race(posix, false, false).is_race() && !race(session, false, true).is_race());
    }

    /// S779.
    #[test]
    fn points_are_reached_and_passed() {
        assert_eq!(parse_point("reach 7"), Ok(RaceEvent::Release(SyncObject::Point(7))));
        assert_eq!(parse_point("pass 7\0"), Ok(RaceEvent::Acquire(SyncObject::Point(7))));
        for wrong in ["", "reach", "reach ", "pass -1", "leave 7", "reach 7 8"] {
            assert!(
                parse_point(wrong).unwrap_err().starts_with(&format!("'{wrong}' is no point")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn what_is_left_out_is_told() {
        assert!(RaceCounts { accesses: 7, conflicts: 3, ..RaceCounts::default() }.is_complete());
        assert!(!RaceCounts { merged: 1, ..RaceCounts::default() }.is_complete());
    }
}
