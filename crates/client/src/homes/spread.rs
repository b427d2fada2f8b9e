//! Directories whose entries are spread over all nodes: which they are, as far as this client has learned, and how
//! their entries are reached. A directory that is spread stays so.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_layout::{entry_hash, first_hash_of_slot, slot_of_hash};
use bivouac_types::limits::SPREAD_KNOWN_MAX;
use bivouac_types::{Attr, Errno, FsResult, Ino, NodeId, Slot};
use bivouac_wire::{DirPage, ReadDirRequest, op};
use parking_lot::RwLock;

use super::Homes;

/// The directories that are known to be spread. What is forgotten is learned again by a detour over the home.
#[derive(Default)]
pub struct SpreadDirs {
    any: AtomicBool,
    dirs: RwLock<HashSet<Ino>>,
}

impl SpreadDirs {
    /// Notes attributes that were seen.
    pub fn note(&self, attr: &Attr) {
        if attr.is_spread() {
            self.add(attr.ino);
        }
    }

    /// Adds a directory that is spread.
    pub fn add(&self, dir: Ino) {
        if self.has(dir) {
            return;
        }
        let mut dirs = self.dirs.write();
        if dirs.len() >= SPREAD_KNOWN_MAX {
            // All at once: which were used last is not known, and each costs one detour.
            dirs.clear();
        }
        assert!(dirs.len() < SPREAD_KNOWN_MAX, "{} directories are known to be spread", dirs.len());
        dirs.insert(dir);
        self.any.store(true, Ordering::Release);
    }

    /// Returns true if this directory is known to be spread.
    pub fn has(&self, dir: Ino) -> bool {
        self.any.load(Ordering::Acquire) && self.dirs.read().contains(&dir)
    }
}

impl Homes {
    /// Calls `act` for the node and the slot of an entry. A `retry` begins at the directory's home, which alone knows
    /// what was done there before the directory spread.
    pub(crate) fn at_entry<T>(
        &self,
        dir: Ino,
        name: &[u8],
        retry: bool,
        act: impl Fn(NodeId, Slot) -> FsResult<T>,
    ) -> FsResult<T> {
        if retry || !self.spread.has(dir) {
            match act(self.connections.home(dir)?, dir.slot()) {
                Err(error) if error.errno() == Errno::EREMOTE => self.spread.add(dir),
                outcome => return outcome,
            }
        }
        let slot = self.shard_slot(dir, name);
        act(self.connections.map.slot_node(slot).ok_or(Errno::ESTALE)?, slot)
    }

    /// Returns the slot of an entry of a spread directory.
    fn shard_slot(&self, dir: Ino, name: &[u8]) -> Slot {
        slot_of_hash(entry_hash(dir, name), self.connections.map.slot_count())
    }

    /// Returns the entries behind a cookie. No entries mean the end.
    pub(crate) fn dir_page(&self, request: &ReadDirRequest) -> FsResult<DirPage> {
        let asked = self.leases.now();
        if !self.spread.has(request.ino) {
            match self.connections.ask::<op::ReadDir>(self.connections.home(request.ino)?, request) {
                Err(error) if error.errno() == Errno::EREMOTE => self.spread.add(request.ino),
                outcome => {
                    return outcome.inspect(|page| self.leases.of_page(request.ino, asked, page.lease_ms));
                }
            }
        }
        self.shard_page(request).inspect(|page| self.leases.of_page(request.ino, asked, page.lease_ms))
    }

    /// Goes from node to node in the order of the hashes.
    fn shard_page(&self, request: &ReadDirRequest) -> FsResult<DirPage> {
        let slots = self.connections.map.slot_count();
        let mut request = ReadDirRequest { shard: true, ..request.clone() };
        loop {
            let slot = slot_of_hash(request.cookie.saturating_add(1), slots);
            let node = self.connections.map.slot_node(slot).ok_or(Errno::ESTALE)?;
            let page = self.connections.ask::<op::ReadDir>(node, &request)?;
            if !page.entries.is_empty() {
                return Ok(page);
            }
            let next =
                (slot.0..slots).map(Slot).find(|slot| self.connections.map.slot_node(*slot) != Some(node));
            match next.and_then(|slot| first_hash_of_slot(slot, slots)) {
                Some(hash) => {
                    // Otherwise the same node would be asked for ever.
                    assert!(hash > request.cookie, "a listing goes back from {} to {hash}", request.cookie);
                    request.cookie = hash - 1;
                }
                None => return Ok(page),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_bounded() {
        let dirs = SpreadDirs::default();
        assert!(!dirs.has(Ino(1)));
        (0..SPREAD_KNOWN_MAX as u64 + 1).for_each(|ino| dirs.add(Ino(ino)));
        assert!(dirs.has(Ino(SPREAD_KNOWN_MAX as u64)));
        assert_eq!(dirs.dirs.read().len(), 1);
    }
}
