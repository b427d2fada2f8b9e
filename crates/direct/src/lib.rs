//! Memory that a daemon shares with processes that read and write its subfiles themselves.
//!
//! The *grant table* of a node is a file in memory, the supervisor's, so that it outlives daemons. It has a page
//! of *gates* per *session*; a session is one process's, for as long as that process holds a lock on it. An access
//! passes a gate: it [enters](Gate::enter), makes its system call, and leaves. Once a gate is closed nobody
//! enters any more, and when those inside have left, the daemon may do what must not meet an access. A
//! process that is killed inside loses its lock, which the kernel does when its last system call is over.
//! Why it is sound is in docs/decisions/0017-local-direct-access.md. A gate may also be for the size of a file that its
//! process makes longer: [`SizeGate`], docs/decisions/0003-file-size.md.
//! Who only looks is called back by [`Invalidations`].

mod gate;
mod grant_table;
mod invalidations;
mod lock;
mod mapped;
mod marks;
mod memory;
mod session;
mod size;

pub use gate::{Gate, GateGuard};
pub use grant_table::GrantTable;
pub use invalidations::{Counts, Invalidations, PendingTimeCounters};
pub use mapped::{ReadOnlyPages, WritablePages};
pub use marks::MAP_WORDS;
pub use memory::Memory;
pub use session::{Session, forked, forks};
pub use size::{SizeGate, WriteEnd, WriteProgress};

use bivouac_types::limits::{DIRECT_GATES_MAX, DIRECT_SESSIONS_MAX};

/// Bytes of one gate: a line of the processors' caches, so that gates do not disturb each other.
const GATE_LEN: usize = 64;
/// Bytes of one session.
const SESSION_LEN: usize = DIRECT_GATES_MAX as usize * GATE_LEN;
/// Bytes of a grant table: its sessions, and behind them as much for the words of [`Invalidations`] and
/// [`PendingTimeCounters`]. Only what is used takes memory.
const BOARD_LEN: usize = (DIRECT_SESSIONS_MAX as usize + 1) * SESSION_LEN;

// Sessions are mapped one by one, at multiples of the page size of every machine that we run on.
const _: () = assert!(SESSION_LEN.is_multiple_of(65_536));
