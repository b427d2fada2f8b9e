//! Reading everything once, page by page, into [`Facts`].

use std::collections::HashSet;

use bivouac_layout::{entry_hash, seats_of};
use bivouac_node::record::{
    Dentry, Folded, Garbage, Inode, Shard, dentry_of_key, number_of_key, pending_node,
};
use bivouac_types::limits::{LIST_BYTES_MAX, PARTITION_TEXT_MAX, SEATS_MAX};
use bivouac_types::{ClientId, FsResult, Ino, NodeId, Slot};
use bivouac_wire::{
    Decode, FormationMap, ListRecordsRequest, ListSubfilesRequest, ListedRecord, Partition, SubfileFacts,
};

use crate::facts::{DIR, EntryRow, Facts, InodeRow, IntentRow, RecordPlace, ShardRow, SubfileRow, kind_of};
use crate::source::{Progress, Source, nodes, volumes};

/// Tables that are read; those of sessions and clients depend on nothing.
const TABLES: &[u8] = b"DGILOSTVWX";
/// Partitions, read first: they say where seats are.
const PARTITIONS: &[u8] = b"P";
/// The allocators' marks, read last: they only rise.
const MARKS: &[u8] = b"A";
/// Longest value that has to be read whole: an intent with two names, and a partition.
const VALUE_MAX: u32 = 4096;
const PARTITION_MAX: u32 = (SEATS_MAX * 4 + PARTITION_TEXT_MAX + 1024) as u32;
/// Most subfiles asked for at once.
const SUBFILES: u32 = 512;

/// Reads what a source has: all of it, or only what concerns some inodes, and all directories.
pub fn gather(source: &dyn Source, only: Option<&HashSet<Ino>>, progress: &dyn Progress) -> FsResult<Facts> {
    let count = source.map().nodes.len();
    let facts = Facts { marks: vec![None; count], highest: vec![(0, Ino(0)); count], ..Facts::default() };
    let mut run = Gather { source, only, facts, targets: Vec::new() };
    for node in nodes(source.map()).filter(|node| source.has_records(*node)) {
        run.records(node, PARTITIONS, progress)?;
    }
    // Subfiles before the rest: what belongs to a file that is made meanwhile is then not seen without it.
    for (node, volume) in volumes(source.map()) {
        if source.has_volume(node, volume) {
            run.subfiles(node, volume, progress)?;
        }
    }
    for tables in [TABLES, MARKS] {
        for node in nodes(source.map()).filter(|node| source.has_records(*node)) {
            run.records(node, tables, progress)?;
        }
    }
    Ok(run.finish())
}

struct Gather<'a> {
    source: &'a dyn Source,
    only: Option<&'a HashSet<Ino>>,
    facts: Facts,
    targets: Vec<(Ino, u16)>,
}

impl Gather<'_> {
    fn wants(&self, ino: Ino) -> bool {
        self.only.is_none_or(|only| only.contains(&ino))
    }

    fn records(&mut self, node: NodeId, tables: &[u8], progress: &dyn Progress) -> FsResult<()> {
        let mut request = ListRecordsRequest {
            slot: Slot(0),
            after: Vec::new(),
            tables: tables.to_vec(),
            one_slot: false,
            max_bytes: LIST_BYTES_MAX as u32,
            value_max: if tables == PARTITIONS { PARTITION_MAX } else { VALUE_MAX },
        };
        loop {
            let page = self.source.records(node, &request)?;
            page.records.into_iter().for_each(|record| self.record(node, record));
            progress.at("records", (self.facts.inodes.len() + self.facts.entries.len()) as u64);
            match page.next {
                Some((slot, key)) => (request.slot, request.after) = (slot, key),
                None => return Ok(()),
            }
        }
    }

    fn record(&mut self, node: NodeId, record: ListedRecord) {
        let ListedRecord { slot, key, value, value_len } = record;
        let outcome = match key.first() {
            Some(b'D') => self.entry(node, slot, &key, &value),
            Some(b'I') => self.inode(node, slot, &key, &value),
            Some(b'P') => self.partition(&key, &value),
            Some(b'T') => self.intent(node, &key, &value),
            Some(b'S') => self.shard(node, slot, &key, &value),
            Some(b'A') => self.mark(node, &value),
            Some(b'W') => self.pending(node, slot, &key),
            Some(letter @ (b'L' | b'X' | b'O' | b'G' | b'V')) => {
                self.attached(node, slot, *letter, &key, &value, value_len)
            }
            _ => Ok(Placed::Right),
        };
        let place = RecordPlace { node, slot, key };
        match outcome {
            Ok(Placed::Right) => {}
            Ok(Placed::Wrong) => self.facts.misplaced.push(place),
            Err(cause) => self.facts.undecodable.push((place, cause)),
        }
    }

    /// Whether somebody would look for records of this inode here.
    fn is_home(&self, node: NodeId, slot: Slot, ino: Ino) -> bool {
        ino.slot() == slot && self.source.map().home(ino) == Some(node)
    }

    fn inode(&mut self, node: NodeId, slot: Slot, key: &[u8], value: &[u8]) -> Result<Placed, String> {
        let ino = Ino(number_of_key(key).ok_or("key of the wrong length")?);
        let inode = Inode::from_bytes(value).map_err(|e| e.to_string())?;
        let Inode { attr, parent, .. } = inode;
        if attr.ino != ino {
            return Err(format!("says that it is inode {}", attr.ino));
        }
        if !self.is_home(node, slot, ino) {
            return Ok(Placed::Wrong);
        }
        self.note_number(ino);
        if attr.is_spread() {
            self.facts.inherited.insert(ino, inode.inherited());
        }
        let kind = kind_of(attr.mode);
        if kind == DIR || self.wants(ino) {
            let layout = self.facts.layouts.number(attr.layout);
            self.facts.inodes.push(InodeRow {
                ino,
                parent,
                size: attr.size,
                nlink: attr.nlink,
                epoch: attr.epoch,
                layout,
                names: 0,
                entries: 0,
                subdirs: 0,
                target: None,
                kind,
            });
        }
        Ok(Placed::Right)
    }

    fn entry(&mut self, node: NodeId, slot: Slot, key: &[u8], value: &[u8]) -> Result<Placed, String> {
        let parent = key.get(1..9).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let parent = Ino(parent.ok_or("key of the wrong length")?);
        let (hash, name) = dentry_of_key(key).ok_or("key of the wrong length")?;
        let Dentry { ino, kind } = Dentry::from_bytes(value).map_err(|e| e.to_string())?;
        if hash != entry_hash(parent, name) || name.is_empty() {
            return Err("key is not that of its name".into());
        }
        self.note_number(ino);
        let kind = kind_of(kind);
        if kind == DIR || self.wants(ino) || self.wants(parent) {
            self.facts.entries.push(EntryRow { parent, ino, hash, node, slot, kind });
        }
        Ok(Placed::Right)
    }

    fn shard(&mut self, node: NodeId, slot: Slot, key: &[u8], value: &[u8]) -> Result<Placed, String> {
        let dir = Ino(number_of_key(key).ok_or("key of the wrong length")?);
        let record = Shard::from_bytes(value).map_err(|e| e.to_string())?;
        if slot != place_of_shard(self.source.map(), node, dir) {
            return Ok(Placed::Wrong);
        }
        self.facts.shards.push(ShardRow { dir, node, slot, record });
        Ok(Placed::Right)
    }

    fn intent(&mut self, node: NodeId, key: &[u8], value: &[u8]) -> Result<Placed, String> {
        let tx = number_of_key(key).ok_or("key of the wrong length")?;
        let concerns = bivouac_node::concerns(value).map_err(|e| e.to_string())?;
        self.facts.intents.push(IntentRow { node, tx, concerns });
        Ok(Placed::Right)
    }

    fn partition(&mut self, key: &[u8], value: &[u8]) -> Result<Placed, String> {
        let partition = Partition::from_bytes(value).map_err(|e| e.to_string())?;
        if number_of_key(key) != Some(u64::from(partition.id.0)) {
            return Err(format!("says that it is {}", partition.id));
        }
        self.facts.partitions.learn(self.source.map(), partition);
        Ok(Placed::Right)
    }

    fn mark(&mut self, node: NodeId, value: &[u8]) -> Result<Placed, String> {
        let mark = u64::from_bytes(value).map_err(|e| e.to_string())?;
        if let Some(known) = self.facts.marks.get_mut(usize::from(node.0)) {
            *known = Some(known.unwrap_or(0).max(mark));
        }
        Ok(Placed::Right)
    }

    fn attached(
        &mut self,
        node: NodeId,
        slot: Slot,
        letter: u8,
        key: &[u8],
        value: &[u8],
        value_len: u32,
    ) -> Result<Placed, String> {
        let number = key.get(1..9).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let ino =
            Ino(number.filter(|_| letter == b'X' || key.len() == 9).ok_or("key of the wrong length")?);
        if !self.is_home(node, slot, ino) {
            return Ok(Placed::Wrong);
        }
        match letter {
            b'V' => {
                let folded = Folded::from_bytes(value).map_err(|e| e.to_string())?;
                self.facts.folded.push((ino, folded.versions));
            }
            b'G' => drop(Garbage::from_bytes(value).map_err(|e| e.to_string())?),
            b'O' if value.len() == value_len as usize => {
                drop(Vec::<ClientId>::from_bytes(value).map_err(|e| e.to_string())?);
            }
            _ => {}
        }
        if !self.wants(ino) {
            return Ok(Placed::Right);
        }
        match letter {
            b'L' => self.targets.push((ino, u16::try_from(value_len).unwrap_or(u16::MAX))),
            b'X' if self.facts.xattrs.last() != Some(&ino) => self.facts.xattrs.push(ino),
            b'O' => self.facts.orphans.push(ino),
            b'G' => self.facts.garbage.push(ino),
            _ => {}
        }
        Ok(Placed::Right)
    }

    /// Subfiles that a node could not remove yet when their file went.
    fn pending(&mut self, node: NodeId, slot: Slot, key: &[u8]) -> Result<Placed, String> {
        let (_, ino) = pending_node(key).ok_or("key of the wrong length")?;
        if !self.is_home(node, slot, ino) {
            return Ok(Placed::Wrong);
        }
        if self.wants(ino) {
            self.facts.pending.push(ino);
        }
        Ok(Placed::Right)
    }

    fn note_number(&mut self, ino: Ino) {
        if let Some(highest) = self.facts.highest.get_mut(usize::from(ino.allocator().0))
            && ino != Ino::ROOT
        {
            *highest = (*highest).max((ino.counter(), ino));
        }
    }

    fn subfiles(&mut self, node: NodeId, volume: u16, progress: &dyn Progress) -> FsResult<()> {
        let mut request = ListSubfilesRequest { volume, after: None, max: SUBFILES };
        let mut sum = (0, 0);
        loop {
            let page = self.source.subfiles(node, &request)?;
            let last = page.subfiles.last().map(|found| (found.ino, found.seat));
            let (lost, there): (Vec<_>, Vec<_>) = page.subfiles.into_iter().partition(|found| found.lost);
            self.facts.lost.extend(lost.iter().map(|found| (found.ino, found.seat)));
            for found in there {
                sum = (sum.0 + 1, sum.1 + found.allocated);
                self.subfile(node, volume, found);
            }
            progress.at("subfiles", self.facts.subfiles.len() as u64);
            if page.end || last.is_none() {
                self.facts.volumes.insert((node, volume), sum);
                return Ok(());
            }
            request.after = last;
        }
    }

    fn subfile(&mut self, node: NodeId, volume: u16, found: SubfileFacts) {
        let SubfileFacts { ino, seat, len, header, problem, .. } = found;
        self.note_number(ino);
        if !self.wants(ino) {
            return;
        }
        let (layout, epoch, places_right) = match header {
            Some(header) => {
                let expected =
                    seats_of(&header.layout).map(|seat| self.facts.place_of(self.source.map(), seat));
                let right = header.places.iter().zip(expected).all(|(place, seat)| Some(*place) == seat);
                (Ok(self.facts.layouts.number(header.layout)), header.epoch, right)
            }
            None => {
                self.facts.problems.push(problem);
                (Err(self.facts.problems.len() as u32 - 1), 0, true)
            }
        };
        self.facts.subfiles.push(SubfileRow { ino, len, layout, epoch, seat, node, volume, places_right });
    }

    /// Sorts, and counts what belongs to each inode.
    fn finish(self) -> Facts {
        let Gather { mut facts, targets, .. } = self;
        facts.inodes.sort_unstable_by_key(|row| row.ino);
        facts.shards.sort_unstable_by_key(|row| (row.dir, row.node));
        facts.folded.sort_unstable();
        facts.lost.sort_unstable();
        leave_out_copies(&mut facts);
        facts.subfiles.sort_unstable_by_key(|row| (row.ino, row.seat));
        // In the order of their directories as they were read: neighbours have the same.
        let mut at = None;
        for entry in &facts.entries {
            if at.is_none_or(|(parent, _)| parent != entry.parent) {
                let found = facts.inodes.binary_search_by_key(&entry.parent, |row| row.ino);
                at = Some((entry.parent, found.ok()));
            }
            let row = at.and_then(|(_, index)| index).and_then(|index| facts.inodes.get_mut(index));
            if let Some(row) = row {
                row.entries += 1;
                row.subdirs += u32::from(entry.kind == DIR);
                if row.is_spread() {
                    let part = facts.parts.entry((entry.parent, entry.node)).or_default();
                    *part = (part.0 + 1, part.1 + u32::from(entry.kind == DIR));
                }
            }
        }
        facts.entries.sort_unstable_by_key(|row| (row.ino, row.parent, row.hash));
        let mut rows = facts.inodes.iter_mut().peekable();
        for entry in &facts.entries {
            while rows.next_if(|row| row.ino < entry.ino).is_some() {}
            if let Some(row) = rows.peek_mut().filter(|row| row.ino == entry.ino) {
                row.names += 1;
            }
        }
        for (ino, len) in targets {
            match facts.inodes.binary_search_by_key(&ino, |row| row.ino) {
                Ok(at) => facts.inodes[at].target = Some(len),
                Err(_) => facts.targets.push(ino),
            }
        }
        let (attached, leaving) =
            ([&mut facts.targets, &mut facts.xattrs], [&mut facts.garbage, &mut facts.pending]);
        for list in attached.into_iter().chain(leaving).chain([&mut facts.orphans]) {
            list.sort_unstable();
            list.dedup();
        }
        facts
    }
}

/// Where a record is.
enum Placed {
    Right,
    Wrong,
}

/// Entries of a directory that is about to spread are copied first, to where nobody looks yet.
fn leave_out_copies(facts: &mut Facts) {
    let spreads = facts.intents.iter().filter(|intent| intent.concerns.what == "spread");
    let dirs: HashSet<Ino> = spreads.flat_map(|intent| intent.concerns.inos.iter().copied()).collect();
    if !dirs.is_empty() {
        let compact: HashSet<Ino> =
            dirs.into_iter().filter(|dir| facts.inode(*dir).is_none_or(|row| !row.is_spread())).collect();
        facts.entries.retain(|entry| !compact.contains(&entry.parent) || entry.slot == entry.parent.slot());
    }
}

/// The one rule for where an entry must be: the slot that whoever looks the name up asks for.
pub fn place_of_entry(map: &FormationMap, dir: Ino, is_spread: bool, hash: u64) -> Slot {
    bivouac_node::entry_slot(dir, is_spread, hash, map.slot_count())
}

/// The same of a part of a spread directory.
pub fn place_of_shard(map: &FormationMap, node: NodeId, dir: Ino) -> Slot {
    let own = map.slots.iter().enumerate().filter(|(_, holder)| **holder == node);
    let own: Vec<Slot> = own.map(|(slot, _)| Slot(slot as u16)).collect();
    bivouac_node::shard_slot(&own, dir)
}
