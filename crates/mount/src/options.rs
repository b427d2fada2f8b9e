//! Settings of how a mount is served.

use std::sync::Arc;
use std::thread;

use bivouac_client::FormationPlace;

/// Payload of one write or read unless chosen otherwise, in bytes: what Linux allows by default.
pub const MAX_WRITE_DEFAULT: u32 = 1 << 20;
/// Most threads that read requests unless chosen otherwise.
const READERS_MAX: usize = 8;
/// Most threads unless chosen otherwise.
const THREADS_MAX: usize = 64;

/// Settings of how a mount is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Identity of the mount; the state of another mount is refused.
    pub identity: u64,
    /// Most threads that read requests at the same time.
    pub readers_max: usize,
    /// Threads in all, those that wait for other nodes included; at most 64.
    pub threads_max: usize,
    /// Largest payload of one read or write, in bytes. More than 1 MiB needs `fs.fuse.max_pages_limit`.
    pub max_write: u32,
    /// Send attributes with listings: worth it as long as the file system gives leases.
    pub readdirplus: bool,
    /// How processes of this machine find the formation, if they reach its files without the mount.
    pub formation: Option<Arc<FormationPlace>>,
}

impl Default for Options {
    fn default() -> Options {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Options {
            identity: 0,
            readers_max: cores.clamp(1, READERS_MAX),
            threads_max: THREADS_MAX,
            max_write: MAX_WRITE_DEFAULT,
            readdirplus: true,
            formation: None,
        }
    }
}
