//! Local direct access: subfiles of nodes on this machine are read and written on their own descriptors, without a
//! daemon on the way, as far as it grants that. Otherwise messages do the same.

mod handle;
mod size;
mod way;

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_layout::TargetRange;
use bivouac_net::{Address, Identity};
use bivouac_types::limits::DIRECT_CALM_MS;
use bivouac_types::{Errno, FsResult, Ino, NodeId, TargetIndex};
use parking_lot::Mutex;

pub use self::handle::{DirectError, Handle};
use self::size::Sizes;
use self::way::DirectConnection;
pub use self::way::open_session;
use crate::homes::known::KnownFiles;

/// Most attempts to get a grant while others end it.
const GRANTS_MAX: usize = 3;
const SHARDS: usize = 64;
/// Most descriptors that are kept open, and the share of the process's limit.
const HANDLES_MAX: usize = 1024;
const HANDLES_SHARE: usize = 4;

/// Purpose of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

/// State of direct access to one subfile.
#[derive(Debug)]
enum GrantState {
    /// It was used once.
    Used,
    /// A thread is asking for a grant.
    Asking,
    /// A grant was refused; not to be asked for before this time.
    Refused(Instant),
    /// Blocks have checksums, so that its daemon reads and compares them.
    Compared,
    Held(Arc<Handle>),
}

type Targets = Vec<(TargetIndex, GrantState)>;

/// Subfiles that a client reads and writes itself.
pub struct Direct {
    connections: HashMap<NodeId, DirectConnection>,
    shards: Vec<Mutex<HashMap<Ino, Targets>>>,
    handles: Arc<AtomicUsize>,
    handles_max: usize,
    /// Set if blocks with checksums are read by their daemon, which compares them.
    compares: AtomicBool,
    /// Sizes of files that this process makes longer.
    pub sizes: Sizes,
    pub known: Arc<KnownFiles>,
}

impl Direct {
    /// Creates it without any nodes.
    pub fn none(known: Arc<KnownFiles>) -> Direct {
        let (connections, shards, handles, compares, sizes) = Default::default();
        Direct { connections, shards, handles, handles_max: 0, compares, sizes, known }
    }

    /// Creates it for these nodes of this machine.
    pub fn with(
        known: Arc<KnownFiles>,
        nodes: Vec<(NodeId, Address)>,
        identity: &Identity,
        wait: Duration,
    ) -> Direct {
        let way = |(node, address)| (node, DirectConnection::new(address, identity.clone(), wait));
        Direct {
            connections: nodes.into_iter().map(way).collect(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            handles_max: files_max().map_or(HANDLES_MAX, |max| (max / HANDLES_SHARE).min(HANDLES_MAX)),
            ..Direct::none(known)
        }
    }

    /// Returns true if a node is on this machine.
    pub fn is_here(&self, node: NodeId) -> bool {
        self.connections.contains_key(&node)
    }

    /// From now on reads blocks with checksums through their daemons, which compare them. That costs a message for each
    /// read.
    pub fn compare_reads(&self) {
        self.compares.store(true, Ordering::Relaxed);
    }

    /// Reads from a subfile of this machine; returns the number of bytes and the subfile's epoch. Returns `None` if a
    /// message is needed.
    pub fn read(
        &self,
        node: NodeId,
        ino: Ino,
        range: &TargetRange,
        into: &mut [IoSliceMut<'_>],
    ) -> Option<(usize, u32)> {
        self.read_granted(node, ino, range, |handle| {
            handle.read(range.subfile_offset, into).map(|len| (len, handle.epoch()))
        })
    }

    /// Like [`Direct::read`], with `read` as what to do with the grant of the range.
    pub fn read_granted<T>(
        &self,
        node: NodeId,
        ino: Ino,
        range: &TargetRange,
        mut read: impl FnMut(&Handle) -> Result<T, DirectError>,
    ) -> Option<T> {
        for _ in 0..GRANTS_MAX {
            let handle = self.handle(node, ino, range, AccessKind::Read)?;
            match read(&handle) {
                Ok(read) => return Some(read),
                Err(DirectError::Over) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Writes to a subfile of this machine; returns false if the epoch is older than the subfile's, `None` if a message
    /// is needed.
    pub fn write(
        &self,
        node: NodeId,
        ino: Ino,
        range: &TargetRange,
        epoch: u32,
        payload: &[IoSlice<'_>],
    ) -> Option<bool> {
        self.write_granted(node, ino, range, epoch, |handle| {
            handle.write(range.subfile_offset, range.len, &mut payload.to_vec())
        })
    }

    /// Like [`Direct::write`], with `write` as what to do with the grant of the range.
    pub fn write_granted(
        &self,
        node: NodeId,
        ino: Ino,
        range: &TargetRange,
        epoch: u32,
        mut write: impl FnMut(&Handle) -> Result<(), DirectError>,
    ) -> Option<bool> {
        for _ in 0..GRANTS_MAX {
            let handle = self.handle(node, ino, range, AccessKind::Write)?;
            // The grant fixes the subfile's epoch, so the comparison that targets make can be made here.
            if epoch < handle.epoch() {
                return Some(false);
            }
            match write(&handle) {
                Ok(()) => return Some(true),
                // A wider window is the same grant: the next turn writes by it.
                Err(DirectError::Outside) if self.widen(&handle, range) => {}
                // The grant was taken back meanwhile: the next turn asks for another.
                Err(DirectError::Over) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Shows a range of a subfile, of an epoch not above `epoch`, in place. Returns true if it could be shown now.
    ///
    ///  # Errors
    ///
    /// `EOPNOTSUPP` if it is not in memory of this machine.
    pub fn show(
        &self,
        node: NodeId,
        ino: Ino,
        range: &TargetRange,
        epoch: u32,
        wish: AccessKind,
        show: &mut dyn FnMut(*mut [u8]),
    ) -> FsResult<bool> {
        let mut is_far = !self.is_here(node);
        let act = |handle: &Handle| {
            // Known only with a handle: a node of this machine may have its volume on a disk.
            is_far = !handle.is_in_memory();
            if is_far || handle.epoch() > epoch {
                return Err(DirectError::Refused);
            }
            handle.show(wish, range.subfile_offset, range.len, show)
        };
        let shown = match wish {
            AccessKind::Read => self.read_granted(node, ino, range, act).is_some(),
            AccessKind::Write => self.write_granted(node, ino, range, epoch, act) == Some(true),
        };
        if is_far { Err(Errno::EOPNOTSUPP.into()) } else { Ok(shown) }
    }

    /// Returns the handle for an access, if it is granted.
    fn handle(&self, node: NodeId, ino: Ino, range: &TargetRange, wish: AccessKind) -> Option<Arc<Handle>> {
        let way = self.connections.get(&node)?;
        let before = {
            let mut shard = self.shard(ino)?.lock();
            // Nobody would return the grant of a file that is not open.
            if !shard.contains_key(&ino) && !self.known.is_open(ino) {
                return None;
            }
            let targets = shard.entry(ino).or_default();
            let Some((_, state)) = targets.iter_mut().find(|(target, _)| *target == range.target) else {
                // A single access is not worth a grant.
                targets.push((range.target, GrantState::Used));
                return None;
            };
            match state {
                GrantState::Held(handle) if handle.is_open() && handle.allows(wish) => {
                    return Some(Arc::clone(handle));
                }
                // A process with a write grant may not read beside other writers: the daemon reads.
                GrantState::Held(handle) if handle.is_open() && wish == AccessKind::Read => return None,
                GrantState::Refused(until) if *until > Instant::now() => return None,
                GrantState::Compared if wish == AccessKind::Read => return None,
                GrantState::Asking => return None,
                // Used before, refused long ago, or closed: this thread asks, and all others send messages meanwhile.
                state => std::mem::replace(state, GrantState::Asking),
            }
        };
        if let GrantState::Held(handle) = before {
            // Its threads must not go on beside those of the next grant.
            handle.retire();
        }
        // Descriptors are the program's as well: beyond a share of them messages do the same.
        let room = self.handles.load(Ordering::Relaxed) < self.handles_max;
        let granted = room.then(|| way.ask(node, ino, range, wish, &self.handles)).flatten();
        let is_compared = |handle: &Handle| self.compares.load(Ordering::Relaxed) && handle.is_summed();
        let after = match granted {
            Some(handle) if is_compared(&handle) && wish == AccessKind::Read => GrantState::Compared,
            Some(handle) if is_compared(&handle) => GrantState::Held(Arc::new(handle.without_reads())),
            Some(handle) => GrantState::Held(Arc::new(handle)),
            // The daemon refused since others use the subfile, which lasts for a while.
            None => GrantState::Refused(Instant::now() + Duration::from_millis(DIRECT_CALM_MS)),
        };
        self.conclude(ino, range.target, after)
    }

    /// Records the outcome of asking for a grant; returns the handle, if it was granted.
    fn conclude(&self, ino: Ino, target: TargetIndex, after: GrantState) -> Option<Arc<Handle>> {
        let mut shard = self.shard(ino)?.lock();
        // Closed meanwhile: nobody would return the grant.
        let targets = shard.get_mut(&ino).filter(|_| self.known.is_open(ino))?;
        let (_, state) = targets.iter_mut().find(|(known, _)| *known == target)?;
        let granted = if let GrantState::Held(handle) = &after { Some(Arc::clone(handle)) } else { None };
        *state = after;
        granted
    }

    /// Returns the handle for reading a subfile, if there is one already.
    pub fn held(&self, ino: Ino, target: TargetIndex) -> Option<Arc<Handle>> {
        let shard = self.shard(ino)?.lock();
        match shard.get(&ino)?.iter().find(|(of, _)| *of == target)? {
            (_, GrantState::Held(handle)) if handle.is_open() && handle.allows(AccessKind::Read) => {
                Some(Arc::clone(handle))
            }
            _ => None,
        }
    }

    /// Widens the window of a handle for an access. Returns true if that was granted.
    fn widen(&self, handle: &Handle, range: &TargetRange) -> bool {
        self.connections.get(&handle.node()).is_some_and(|way| way.widen(handle, range))
    }

    /// Gives the grants of a file back, and its size.
    pub fn forget(&self, ino: Ino) {
        self.sizes.forget(ino);
        // Dropped outside of the lock: closing descriptors takes system calls.
        let forgotten = self.shard(ino).and_then(|shard| shard.lock().remove(&ino));
        drop(forgotten);
    }

    fn shard(&self, ino: Ino) -> Option<&Mutex<HashMap<Ino, Targets>>> {
        self.shards.get(ino.0 as usize % SHARDS)
    }
}

/// Returns how many files this process may have open.
fn files_max() -> Option<usize> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .and_then(|max| usize::try_from(max).ok())
}
