//! What homes report: attributes, sizes and epochs of inodes, with leases; where entries are; and which partitions
//! there are.

pub mod known;
pub mod leases;
pub mod partitions;
pub mod pending;
pub mod spread;

use std::sync::Arc;

use bivouac_types::{Attr, Contract, FsResult, Ino, NodeId, PartitionId, StatFs};
use bivouac_wire::{InoOnly, Partition, Seen, StatFsRequest, op};
use scopeguard::guard;

use crate::connections::Connections;
use known::{KnownFile, KnownFiles};
use leases::{ClientTime, Leases};
use partitions::Partitions;
use spread::SpreadDirs;

/// The homes of files, as this client asks them, and what they have said.
pub struct Homes {
    connections: Arc<Connections>,
    known: Arc<KnownFiles>,
    partitions: Arc<Partitions>,
    /// Leases on what they report.
    pub(crate) leases: Leases,
    /// The directories that they have spread.
    pub(crate) spread: SpreadDirs,
}

impl Homes {
    pub(crate) fn new(
        connections: Arc<Connections>,
        known: Arc<KnownFiles>,
        partitions: Arc<Partitions>,
    ) -> Homes {
        let (leases, spread) = (Leases::new(connections.map.slot_count()), SpreadDirs::default());
        Homes { connections, known, partitions, leases, spread }
    }

    /// Returns the attributes of an inode as its home has them.
    pub(crate) fn attr(&self, ino: Ino) -> FsResult<Attr> {
        // What this client has written and not told would be missing in the times.
        self.tell_times(ino)?;
        let (home, asked) = (self.connections.home(ino)?, self.leases.now());
        let seen = self.connections.ask::<op::GetAttr>(home, &InoOnly { ino })?;
        Ok(self.looked(asked, seen))
    }

    /// Takes in what a home said of an inode that it changed for this client.
    pub(crate) fn saw(&self, asked: ClientTime, seen: Seen) -> Attr {
        self.known.invalidate(seen.attr.ino, self.leases.now());
        self.looked(asked, seen)
    }

    /// Takes in what a home said of an inode.
    pub(crate) fn looked(&self, asked: ClientTime, seen: Seen) -> Attr {
        self.leases.of_attrs(seen.attr.ino, asked, seen.lease_ms);
        self.spread.note(&seen.attr);
        self.partitions.note(&seen.attr);
        self.known.learn(&seen.attr, asked, asked.plus_lease(seen.lease_ms));
        seen.attr
    }

    /// Runs `change`, which changes a file's size at its home. Other clients may see the change before this one gets
    /// the reply, so that no lease on the file counts meanwhile.
    pub(crate) fn changing<T>(&self, ino: Ino, change: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        self.known.begin_change(ino);
        // Also where it panics: nothing of the file would count as current any more.
        let _end = guard((), |()| self.known.end_change(ino, self.leases.now()));
        change()
    }

    /// Returns the state of a file, asking its home if it is unknown.
    pub(crate) fn know(&self, ino: Ino) -> FsResult<KnownFile> {
        self.known.get(ino).map_or_else(|| self.ask(ino), Ok)
    }

    /// Returns the state of a file for a read up to `end`: with a size that is certain at this moment, if `end` lies
    /// behind the known one.
    pub(crate) fn know_up_to(&self, ino: Ino, end: u64) -> FsResult<KnownFile> {
        let known = self.know(ino)?;
        if end <= known.size || known.contract == Some(Contract::Laminated) {
            return Ok(known);
        }
        self.known.current(ino, self.leases.now()).map_or_else(|| self.ask(ino), Ok)
    }

    /// Asks the home for the state of a file.
    pub(crate) fn ask(&self, ino: Ino) -> FsResult<KnownFile> {
        self.attr(ino).map(|attr| KnownFile::from(&attr))
    }

    /// Returns the state of a file, if it is open.
    pub(crate) fn known(&self, ino: Ino) -> Option<KnownFile> {
        self.known.get(ino)
    }

    /// Returns true if a file is open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.known.is_open(ino)
    }

    /// Takes in what a home said of a file, without a promise.
    pub(crate) fn told(&self, attr: &Attr) -> KnownFile {
        self.known.changed(attr);
        KnownFile::from(attr)
    }

    /// Returns the size of an open file as last heard: it may be another one by now.
    #[must_use]
    pub fn size_heard(&self, ino: Ino) -> Option<u64> {
        self.known.get(ino).map(|known| known.size)
    }

    /// Tells the home that content changed, if it has not heard: others see the time of the last write from then on.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when it cannot be reached.
    pub fn tell_times(&self, ino: Ino) -> FsResult<()> {
        if self.known.is_dirty(ino) {
            // Before it is clean: who looks in between waits for this message.
            let _update = self.known.mtime_updates.begin(ino);
            if self.known.take_dirty(ino) {
                return self.touch(ino);
            }
        }
        // Whoever is telling it just now, as at a close, has not been heard yet.
        self.known.mtime_updates.wait(ino);
        Ok(())
    }

    /// Tells the home that content has changed; if that fails, the next that tells does.
    pub(crate) fn touch(&self, ino: Ino) -> FsResult<()> {
        let _update = self.known.mtime_updates.begin(ino);
        self.known.take_dirty(ino);
        let told = self
            .connections
            .home(ino)
            .and_then(|home| self.connections.ask::<op::Touch>(home, &InoOnly { ino }));
        told.inspect_err(|_| self.known.mark_dirty(ino))
    }

    /// Returns the partition of an inode, if it stands in front of site storage.
    pub(crate) fn bound(&self, ino: Ino) -> FsResult<Option<Arc<Partition>>> {
        // Not as a program would ask: that sends what was written, which may be what is being done.
        self.partitions.bound(self.know(ino)?.layout.partition())
    }

    /// Returns true if an open file is, or may be, in a partition with a source.
    pub(crate) fn may_be_bound(&self, ino: Ino) -> bool {
        let bound = |known: KnownFile| self.partitions.bound(known.layout.partition());
        self.known.get(ino).is_none_or(|known| bound(known).map_or(true, |bound| bound.is_some()))
    }

    /// Returns the space where an inode is: of the formation, or of its partition; and inodes of the formation.
    ///
    /// # Errors
    /// `EIO` when no node can be reached, or of a partition not every one; `ENOENT`.
    pub fn statfs(&self, ino: Ino) -> FsResult<StatFs> {
        let id = if ino == Ino::ROOT { PartitionId::ROOT } else { self.attr(ino)?.layout.partition() };
        let Some(partition) = self.partitions.get(id)? else { return self.statfs_all() };
        let mut nodes: Vec<NodeId> =
            partition.places(&self.connections.map).iter().map(|place| place.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let parts: FsResult<Vec<StatFs>> = self.statfs_of(id, nodes)?.into_iter().collect();
        let (space, all) = (sum(parts?), self.statfs_all()?);
        Ok(StatFs { files: all.files, files_free: all.files_free, ..space })
    }

    /// Returns the space of all nodes that can be reached.
    fn statfs_all(&self) -> FsResult<StatFs> {
        let answers = self.statfs_of(PartitionId::ROOT, self.connections.node_ids())?;
        // A dead node must not make `df` fail: its space cannot be used.
        let (parts, failures): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        match failures.into_iter().find_map(Result::err) {
            Some(failure) if parts.is_empty() => Err(failure),
            _ => Ok(sum(parts.into_iter().flatten())),
        }
    }

    fn statfs_of(
        &self,
        partition: PartitionId,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> FsResult<Vec<FsResult<StatFs>>> {
        let ask = |node| self.connections.start::<op::StatFs>(node, &StatFsRequest { partition }, &[]);
        let started = nodes.into_iter().map(ask).collect::<FsResult<Vec<_>>>()?;
        Ok(started.into_iter().map(|started| started.finish(&mut []).map(|(part, _)| part)).collect())
    }
}

fn sum(parts: impl IntoIterator<Item = StatFs>) -> StatFs {
    parts.into_iter().fold(StatFs::default(), |sum, part| StatFs {
        block_size: part.block_size,
        blocks: sum.blocks + part.blocks,
        blocks_free: sum.blocks_free + part.blocks_free,
        files: sum.files + part.files,
        files_free: sum.files_free.saturating_add(part.files_free),
    })
}
