//! The order in which locks are taken: the one table of all ranks.
//!
//! A thread that holds a lock takes only locks with higher numbers. Numbers are spaced so that a new lock finds a
//! place. The outermost are *long*: they are held while a request is carried out and while other nodes are asked. All
//! others are held for a moment, and nobody waits for another node, for a client, or for a condition of another lock
//! under them.

use std::fmt;

/// The place of a kind of lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    number: u16,
    name: &'static str,
    siblings: bool,
    may_wait: bool,
}

impl Rank {
    /// Creates a lock that is held for a moment.
    const fn new(number: u16, name: &'static str) -> Rank {
        Rank { number, name, siblings: false, may_wait: false }
    }

    /// A thread may hold several of this rank, taken in the order of their numbers.
    const fn numbered(self) -> Rank {
        Rank { siblings: true, ..self }
    }

    /// Permits waiting for others while it is held.
    const fn long(self) -> Rank {
        Rank { may_wait: true, ..self }
    }

    /// Returns its position: locks with higher numbers are taken later.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Returns true if a thread may hold several.
    #[must_use]
    pub const fn has_siblings(&self) -> bool {
        self.siblings
    }

    /// Returns true if a thread may wait for others while it holds it.
    #[must_use]
    pub const fn may_wait(&self) -> bool {
        self.may_wait
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock of {} (rank {})", self.name, self.number)
    }
}

/// Writes the table.
macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal $(, $more:ident)*;)*) => {
        $($(#[$doc])* pub const $name: Rank = Rank::new($number, $text)$(.$more())*;)*

        /// All of them, outermost first.
        pub const ALL: &[Rank] = &[$($name),*];
    };
}

ranks! {
    /// A connection, while a request that came over it is carried out.
    CONNECTION = 50, "a connection", long;
    /// Connected clients; the service is notified under this lock.
    CONNECTED_CLIENTS = 60, "connected clients";
    /// Held by changes under way, and alone by who ends the formation.
    CHANGES_FENCE = 100, "the fence before changes", long;
    /// A node's turn at moving directories.
    MOVES = 102, "the turn at moving directories", long;
    /// Directories in which requests are at work.
    DIRECTORY = 104, "a directory", long, numbered;
    /// Entries that requests change.
    ENTRY = 106, "an entry", long, numbered;
    /// Sizes and epochs of files.
    FILE_SIZE = 108, "the size of a file", long, numbered;
    /// Held by who reads what was brought, and alone by who makes room: a writer does that against the order, and not
    /// for longer than a time.
    EVICTION = 110, "making room", long;
    /// Held by who writes a part of a file in front of site storage.
    PART_WRITES = 120, "writes of a part", long, numbered;
    /// The turn at gathering what the shards of a directory have.
    GATHER_TURN = 130, "gathering a directory's shards", long;

    /// The one thread that compacts the records.
    COMPACTION = 200, "compaction of records", long;
    /// Syncs of the records' log.
    RECORDS_SYNC = 205, "a sync of the records", long;
    /// Advisory locks of files.
    ADVISORY = 210, "advisory locks of a file";
    /// Numbers of new inodes.
    ALLOCATOR = 220, "numbers of inodes";
    /// Records of a slot, while a transaction on it lasts.
    SLOT = 300, "a slot's records", numbered;

    /// Opens of inodes.
    OPENS = 320, "opens";
    /// The sessions of clients.
    SESSIONS = 330, "the sessions";
    /// Range tokens.
    TOKENS = 340, "range tokens";
    /// Direct sessions and grants.
    DIRECT_TABLE = 400, "the table of direct grants";
    /// Syncs of a subfile.
    SUBFILE_SYNC = 490, "a sync of a subfile", long;
    /// Syncs of a directory of subfiles.
    SUBFILE_DIR_SYNC = 495, "a sync of a directory of subfiles", long;
    /// A subfile.
    SUBFILE = 500, "a subfile", long;
    /// Open subfiles.
    SUBFILE_CACHE = 510, "open subfiles";
    /// Blocks that are wrong, and subfiles that wait for checksums.
    DAMAGE = 515, "wrong blocks";
    /// Syncs of subfiles that failed.
    SYNC_FAILURES = 516, "syncs that failed";
    /// Subfiles of a volume.
    SUBFILE_TABLE = 517, "the table of a volume's subfiles";
    /// Rooms of partitions on a volume.
    VOLUME_ROOMS = 520, "rooms of a volume";
    /// The grant table's next session.
    GRANT_TABLE = 530, "the next session of the grant table";
    /// The tail of the records' log.
    RECORDS_LOG = 600, "the log of records";
    /// A file of a mirrored volume, while it is changed.
    MIRRORED_FILE = 610, "a mirrored file", long, numbered;
    /// Files of a mirrored volume that are open.
    MIRRORED_FILES = 612, "the table of mirrored files";
    /// The turn at making the deferred writes of a mirror.
    MIRROR_DEFERRED = 613, "a mirror's deferred writes", long;
    /// The session of a mirror with its backup, while it is used.
    MIRROR_SESSION = 614, "a mirror's session", long;
    /// The replicas of a node, while they are changed.
    REPLICA = 620, "a node's replicas", long;
    /// A channel of the session of a replica.
    REPLICA_CHANNEL = 622, "a channel of a replica", long;

    /// Known partitions.
    PARTITION_TABLE = 650, "the table of partitions";
    /// Background jobs.
    AGENDA = 700, "the agenda";
    /// Threads for it.
    AGENDA_THREADS = 710, "background threads";
    /// Rounds of threads that nodes share.
    ROUNDS = 720, "rounds";
    /// Threads of a mount that read requests.
    MOUNT_POOL = 790, "a mount's threads";
    /// Files that are being flushed.
    FLUSH_JOBS = 800, "the jobs of flushes";
    /// A lock under which nothing else is taken: what a lock has that is given no rank.
    LEAF = 900, "a table of its own";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_its_own_order() {
        assert!(ALL.is_sorted_by(|a, b| a.number < b.number));
    }

    #[test]
    fn long_locks_are_named_by_what_they_are_of() {
        assert_eq!(SLOT.to_string(), "the lock of a slot's records (rank 300)");
    }
}
