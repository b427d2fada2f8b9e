//! Local direct access: subfiles of nodes on this machine are read and written on their own descriptors, with no
//! daemon on the way, as far as the daemon grants it. Where it does not, messages do the same.

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

/// How often a grant is asked for while others end it.
const GRANTS_MAX: usize = 3;
const SHARDS: usize = 64;
/// Most descriptors that are kept open, and the part of what the program may have open.
const HANDLES_MAX: usize = 1024;
const HANDLES_SHARE: usize = 4;

/// What an access is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// To read.
    Read,
    /// To write.
    Write,
}

/// What is known of direct access to one subfile.
#[derive(Debug)]
enum GrantState {
    /// It was used once.
    Used,
    /// Somebody asks.
    Asking,
    /// Not before then.
    Refused(Instant),
    /// Blocks have checksums, so the daemon reads and compares them.
    Compared,
    Held(Arc<Handle>),
}

type Targets = Vec<(TargetIndex, GrantState)>;

/// The subfiles that a client reads and writes itself.
pub struct Direct {
    connections: HashMap<NodeId, DirectConnection>,
    shards: Vec<Mutex<HashMap<Ino, Targets>>>,
    handles: Arc<AtomicUsize>,
    handles_max: usize,
    /// Whether blocks with checksums are read by their daemon, which compares them.
    compares: AtomicBool,
    /// Sizes of files that this process makes longer.
    pub sizes: Sizes,
    pub known: Arc<KnownFiles>,
}

impl Direct {
    /// For no nodes.
    pub fn none(known: Arc<KnownFiles>) -> Direct {
        let (connections, shards, handles, compares, sizes) = Default::default();
        Direct { connections, shards, handles, handles_max: 0, compares, sizes, known }
    }

    /// For these nodes of this machine.
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

    /// Whether a node is on this machine.
    pub fn is_here(&self, node: NodeId) -> bool {
        self.connections.contains_key(&node)
    }

    /// From now on no block that has a checksum is read without being compared, which costs a message for each read.
    pub fn compare_reads(&self) {
        self.compares.store(true, Ordering::Relaxed);
    }

    /// Reads from a subfile of this machine; the number of bytes and the subfile's epoch. `None` if a message
    /// has to do it.
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

    /// As [`Direct::read`], by what is to be done with the grant of the range.
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

    /// Writes to a subfile of this machine; whether the epoch was not older than the subfile's. `None` if a
    /// message has to do it.
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

    /// As [`Direct::write`], by what is to be done with the grant of the range.
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
            if epoch < handle.epoch() {
                return Some(false);
            }
            match write(&handle) {
                Ok(()) => return Some(true),
                Err(DirectError::Outside) if self.widen(&handle, range) => {}
                Err(DirectError::Over) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Shows a range of a subfile, of an epoch that is not above `epoch`, where it lies; whether it could be now.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it is not in memory of this machine.
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

    /// The handle for an access, if it is granted.
    fn handle(&self, node: NodeId, ino: Ino, range: &TargetRange, wish: AccessKind) -> Option<Arc<Handle>> {
        let way = self.connections.get(&node)?;
        let before = {
            let mut shard = self.shard(ino)?.lock();
            if !shard.contains_key(&ino) && !self.known.is_open(ino) {
                return None;
            }
            let targets = shard.entry(ino).or_default();
            let Some((_, state)) = targets.iter_mut().find(|(target, _)| *target == range.target) else {
                // An access that stays the only one is not worth a grant.
                targets.push((range.target, GrantState::Used));
                return None;
            };
            match state {
                GrantState::Held(handle) if handle.is_open() && handle.allows(wish) => {
                    return Some(Arc::clone(handle));
                }
                // Nobody writes and reads what others write, too; the daemon does.
                GrantState::Held(handle) if handle.is_open() && wish == AccessKind::Read => return None,
                GrantState::Refused(until) if *until > Instant::now() => return None,
                GrantState::Compared if wish == AccessKind::Read => return None,
                GrantState::Asking => return None,
                state => std::mem::replace(state, GrantState::Asking),
            }
        };
        if let GrantState::Held(handle) = before {
            // Its threads must not go on beside those of the next one.
            handle.retire();
        }
        let room = self.handles.load(Ordering::Relaxed) < self.handles_max;
        let granted = room.then(|| way.ask(node, ino, range, wish, &self.handles)).flatten();
        let is_compared = |handle: &Handle| self.compares.load(Ordering::Relaxed) && handle.is_summed();
        let after = match granted {
            Some(handle) if is_compared(&handle) && wish == AccessKind::Read => GrantState::Compared,
            Some(handle) if is_compared(&handle) => GrantState::Held(Arc::new(handle.without_reads())),
            Some(handle) => GrantState::Held(Arc::new(handle)),
            None => GrantState::Refused(Instant::now() + Duration::from_millis(DIRECT_CALM_MS)),
        };
        self.conclude(ino, range.target, after)
    }

    /// Writes down what came of asking; the handle, if it was granted.
    fn conclude(&self, ino: Ino, target: TargetIndex, after: GrantState) -> Option<Arc<Handle>> {
        let mut shard = self.shard(ino)?.lock();
        // Closed meanwhile: nobody would give the grant back.
        let targets = shard.get_mut(&ino).filter(|_| self.known.is_open(ino))?;
        let (_, state) = targets.iter_mut().find(|(known, _)| *known == target)?;
        let granted = if let GrantState::Held(handle) = &after { Some(Arc::clone(handle)) } else { None };
        *state = after;
        granted
    }

    /// The handle for reading a subfile, if there is one already.
    pub fn held(&self, ino: Ino, target: TargetIndex) -> Option<Arc<Handle>> {
        let shard = self.shard(ino)?.lock();
        match shard.get(&ino)?.iter().find(|(of, _)| *of == target)? {
            (_, GrantState::Held(handle)) if handle.is_open() && handle.allows(AccessKind::Read) => {
                Some(Arc::clone(handle))
            }
            _ => None,
        }
    }

    /// Has the window of a handle made wide enough for an access; whether that was granted.
    fn widen(&self, handle: &Handle, range: &TargetRange) -> bool {
        self.connections.get(&handle.node()).is_some_and(|way| way.widen(handle, range))
    }

    /// Gives the grants of a file back, and its size.
    pub fn forget(&self, ino: Ino) {
        self.sizes.forget(ino);
        let forgotten = self.shard(ino).and_then(|shard| shard.lock().remove(&ino));
        drop(forgotten);
    }

    fn shard(&self, ino: Ino) -> Option<&Mutex<HashMap<Ino, Targets>>> {
        self.shards.get(ino.0 as usize % SHARDS)
    }
}

/// How many files this process may have open.
fn files_max() -> Option<usize> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .and_then(|max| usize::try_from(max).ok())
}
