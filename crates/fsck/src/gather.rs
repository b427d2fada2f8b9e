//! Reads everything once, page by page, into [`FormationFacts`].

use std::collections::HashSet;

use bivouac_layout::{entry_hash, targets_of};
use bivouac_node::record::{
    Dentry, FoldedShards, Garbage, Inode, Shard, dentry_of_key, number_of_key, pending_node,
};
use bivouac_types::limits::{LIST_BYTES_MAX, PARTITION_TEXT_MAX, TARGETS_MAX};
use bivouac_types::{ClientId, FsResult, Ino, NodeId, Slot};
use bivouac_wire::{
    Decode, FormationMap, ListRecordsRequest, ListSubfilesRequest, ListedRecord, Partition, SubfileFacts,
};

use crate::facts::{
    DIR, EntryRow, FormationFacts, InodeRow, IntentRow, RecordLocation, ShardRow, SubfileRow, kind_of,
};
use crate::source::{Progress, Source, nodes, volumes};

/// Tables to read; those of sessions and clients depend on nothing.
const TABLES: &[u8] = b"DGILOSTVWX";
/// Partitions, read first because they place the targets.
const PARTITIONS: &[u8] = b"P";
/// The allocators' marks, read last because they only rise.
const MARKS: &[u8] = b"A";
/// Longest value to read: an intent with two names.
const VALUE_MAX: u32 = 4096;
const PARTITION_MAX: u32 = (TARGETS_MAX * 4 + PARTITION_TEXT_MAX + 1024) as u32;
/// Subfiles per request.
const SUBFILES: u32 = 512;

/// Reads a source: everything, or only what concerns some inodes, with all directories.
pub fn gather(
    source: &dyn Source,
    only: Option<&HashSet<Ino>>,
    progress: &dyn Progress,
) -> FsResult<FormationFacts> {
    let count = source.map().nodes.len();
    let facts = FormationFacts {
        marks: vec![None; count],
        highest: vec![(0, Ino(0)); count],
        ..FormationFacts::default()
    };
    let mut run = Gather { source, only, facts, targets: Vec::new() };
    for node in nodes(source.map()).filter(|node| source.has_records(*node)) {
        run.records(node, PARTITIONS, progress)?;
    }
    // Subfiles first: a file that is created during the check is then seen without its subfiles, and not the other way
    // round, which would be a finding.
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
    facts: FormationFacts,
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
            // Records that are attached to an inode and lie in its slot.
            Some(letter @ (b'L' | b'X' | b'O' | b'G' | b'V')) => {
                self.attached(node, slot, *letter, &key, &value, value_len)
            }
            _ => Ok(RecordHome::Right),
        };
        let place = RecordLocation { node, slot, key };
        match outcome {
            Ok(RecordHome::Right) => {}
            Ok(RecordHome::Wrong) => self.facts.misplaced.push(place),
            Err(cause) => self.facts.undecodable.push((place, cause)),
        }
    }

    /// Returns whether records of this inode are looked up here.
    fn is_home(&self, node: NodeId, slot: Slot, ino: Ino) -> bool {
        ino.slot() == slot && self.source.map().home(ino) == Some(node)
    }

    fn inode(&mut self, node: NodeId, slot: Slot, key: &[u8], value: &[u8]) -> Result<RecordHome, String> {
        let ino = Ino(number_of_key(key).ok_or("key of the wrong length")?);
        let inode = Inode::from_bytes(value).map_err(|e| e.to_string())?;
        let Inode { attr, parent, .. } = inode;
        if attr.ino != ino {
            return Err(format!("says that it is inode {}", attr.ino));
        }
        if !self.is_home(node, slot, ino) {
            return Ok(RecordHome::Wrong);
        }
        self.note_number(ino);
        if attr.is_spread() {
            self.facts.inherited.insert(ino, inode.inherited());
        }
        let kind = kind_of(attr.mode);
        // Directories in any case: paths, parents and loops are found by them.
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
                link_target_len: None,
                kind,
            });
        }
        Ok(RecordHome::Right)
    }

    fn entry(&mut self, node: NodeId, slot: Slot, key: &[u8], value: &[u8]) -> Result<RecordHome, String> {
        let parent = key.get(1..9).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let parent = Ino(parent.ok_or("key of the wrong length")?);
        let (hash, name) = dentry_of_key(key).ok_or("key of the wrong length")?;
        let Dentry { ino, kind } = Dentry::from_bytes(value).map_err(|e| e.to_string())?;
        if hash != entry_hash(parent, name) || name.is_empty() {
            return Err("key is not that of its name".into());
        }
        self.note_number(ino);
        let kind = kind_of(kind);
        // Of a wanted directory all entries, which are compared with its count.
        if kind == DIR || self.wants(ino) || self.wants(parent) {
            self.facts.entries.push(EntryRow { parent, ino, hash, node, slot, kind });
        }
        Ok(RecordHome::Right)
    }

    fn shard(&mut self, node: NodeId, slot: Slot, key: &[u8], value: &[u8]) -> Result<RecordHome, String> {
        let dir = Ino(number_of_key(key).ok_or("key of the wrong length")?);
        let record = Shard::from_bytes(value).map_err(|e| e.to_string())?;
        if slot != place_of_shard(self.source.map(), node, dir) {
            return Ok(RecordHome::Wrong);
        }
        self.facts.shards.push(ShardRow { dir, node, slot, record });
        Ok(RecordHome::Right)
    }

    fn intent(&mut self, node: NodeId, key: &[u8], value: &[u8]) -> Result<RecordHome, String> {
        let tx = number_of_key(key).ok_or("key of the wrong length")?;
        let concerns = bivouac_node::concerns(value).map_err(|e| e.to_string())?;
        self.facts.intents.push(IntentRow { node, tx, concerns });
        Ok(RecordHome::Right)
    }

    fn partition(&mut self, key: &[u8], value: &[u8]) -> Result<RecordHome, String> {
        let partition = Partition::from_bytes(value).map_err(|e| e.to_string())?;
        if number_of_key(key) != Some(u64::from(partition.id.0)) {
            return Err(format!("says that it is {}", partition.id));
        }
        self.facts.partitions.learn(self.source.map(), partition);
        Ok(RecordHome::Right)
    }

    fn mark(&mut self, node: NodeId, value: &[u8]) -> Result<RecordHome, String> {
        let mark = u64::from_bytes(value).map_err(|e| e.to_string())?;
        if let Some(known) = self.facts.marks.get_mut(usize::from(node.0)) {
            *known = Some(known.unwrap_or(0).max(mark));
        }
        Ok(RecordHome::Right)
    }

    fn attached(
        &mut self,
        node: NodeId,
        slot: Slot,
        letter: u8,
        key: &[u8],
        value: &[u8],
        value_len: u32,
    ) -> Result<RecordHome, String> {
        let number = key.get(1..9).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let ino =
            Ino(number.filter(|_| letter == b'X' || key.len() == 9).ok_or("key of the wrong length")?);
        if !self.is_home(node, slot, ino) {
            return Ok(RecordHome::Wrong);
        }
        match letter {
            b'V' => {
                let folded = FoldedShards::from_bytes(value).map_err(|e| e.to_string())?;
                self.facts.folded.push((ino, folded.versions));
            }
            b'G' => drop(Garbage::from_bytes(value).map_err(|e| e.to_string())?),
            // A value that is longer than what was asked for has been cut, and cannot be decoded.
            b'O' if value.len() == value_len as usize => {
                drop(Vec::<ClientId>::from_bytes(value).map_err(|e| e.to_string())?);
            }
            _ => {}
        }
        if !self.wants(ino) {
            return Ok(RecordHome::Right);
        }
        match letter {
            // No link has so long a target: it fits no size.
            b'L' => self.targets.push((ino, u16::try_from(value_len).unwrap_or(u16::MAX))),
            b'X' if self.facts.xattrs.last() != Some(&ino) => self.facts.xattrs.push(ino),
            b'O' => self.facts.orphans.push(ino),
            b'G' => self.facts.garbage.push(ino),
            _ => {}
        }
        Ok(RecordHome::Right)
    }

    /// Reads a record of a subfile that is still to be removed by a node that was down.
    fn pending(&mut self, node: NodeId, slot: Slot, key: &[u8]) -> Result<RecordHome, String> {
        let (_, ino) = pending_node(key).ok_or("key of the wrong length")?;
        if !self.is_home(node, slot, ino) {
            return Ok(RecordHome::Wrong);
        }
        if self.wants(ino) {
            self.facts.pending.push(ino);
        }
        Ok(RecordHome::Right)
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
            let last = page.subfiles.last().map(|found| (found.ino, found.target));
            let (lost, there): (Vec<_>, Vec<_>) = page.subfiles.into_iter().partition(|found| found.lost);
            self.facts.lost.extend(lost.iter().map(|found| (found.ino, found.target)));
            for found in there {
                sum = (sum.0 + 1, sum.1 + found.allocated);
                self.subfile(node, volume, found);
            }
            progress.at("subfiles", self.facts.subfiles.len() as u64);
            if page.end || last.is_none() {
                self.facts.volumes.insert((node, volume), sum);
                return Ok(());
            }
            // Continues behind the last subfile, whether or not others appear meanwhile.
            request.after = last;
        }
    }

    fn subfile(&mut self, node: NodeId, volume: u16, found: SubfileFacts) {
        let SubfileFacts { ino, target, len, header, problem, .. } = found;
        // Also of what has no inode any more: given out again, the number would lead to this subfile.
        self.note_number(ino);
        if !self.wants(ino) {
            return;
        }
        let (layout, epoch, places_right) = match header {
            Some(header) => {
                let expected =
                    targets_of(&header.layout).map(|target| self.facts.place_of(self.source.map(), target));
                // Of a wide file a header has only the first places.
                let right = header.places.iter().zip(expected).all(|(place, target)| Some(*place) == target);
                (Ok(self.facts.layouts.number(header.layout)), header.epoch, right)
            }
            None => {
                // The text is kept once; the row has its index.
                self.facts.problems.push(problem);
                (Err(self.facts.problems.len() as u32 - 1), 0, true)
            }
        };
        assert!(layout.is_ok() || places_right, "a damaged header names no places");
        self.facts.subfiles.push(SubfileRow { ino, len, layout, epoch, target, node, volume, places_right });
    }

    /// Sorts the rows, and counts what belongs to each inode.
    fn finish(self) -> FormationFacts {
        let Gather { mut facts, targets, .. } = self;
        assert_eq!(facts.marks.len(), facts.highest.len(), "each node has one allocator");
        facts.inodes.sort_unstable_by_key(|row| row.ino);
        facts.shards.sort_unstable_by_key(|row| (row.dir, row.node));
        facts.folded.sort_unstable();
        facts.lost.sort_unstable();
        // It looks inodes up, which are sorted now, and comes before entries are counted.
        drop_spread_copies(&mut facts);
        facts.subfiles.sort_unstable_by_key(|row| (row.ino, row.target));
        // Entries of one directory are adjacent in the order of reading, so each directory is looked up once.
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
        assert!(facts.inodes.is_sorted_by(|a, b| a.ino <= b.ino), "inodes are not in order");
        // Only now: the loop above relies on the entries of one directory being adjacent.
        facts.entries.sort_unstable_by_key(|row| (row.ino, row.parent, row.hash));
        let mut rows = facts.inodes.iter_mut().peekable();
        for entry in &facts.entries {
            // Both are sorted by inode number: one pass over each.
            while rows.next_if(|row| row.ino < entry.ino).is_some() {}
            if let Some(row) = rows.peek_mut().filter(|row| row.ino == entry.ino) {
                row.names += 1;
            }
        }
        for (ino, len) in targets {
            match facts.inodes.binary_search_by_key(&ino, |row| row.ino) {
                Ok(at) => facts.inodes[at].link_target_len = Some(len),
                Err(_) => facts.stray_link_targets.push(ino),
            }
        }
        let (attached, leaving) =
            ([&mut facts.stray_link_targets, &mut facts.xattrs], [&mut facts.garbage, &mut facts.pending]);
        for list in attached.into_iter().chain(leaving).chain([&mut facts.orphans]) {
            list.sort_unstable();
            list.dedup();
        }
        facts
    }
}

/// Place of a record, by its key.
enum RecordHome {
    Right,
    Wrong,
}

/// Drops the copies of entries of a directory that is being spread: they are not looked up yet.
fn drop_spread_copies(facts: &mut FormationFacts) {
    let spreads = facts.intents.iter().filter(|intent| intent.concerns.what == "spread");
    let dirs: HashSet<Ino> = spreads.flat_map(|intent| intent.concerns.inos.iter().copied()).collect();
    if !dirs.is_empty() {
        let compact: HashSet<Ino> =
            dirs.into_iter().filter(|dir| facts.inode(*dir).is_none_or(|row| !row.is_spread())).collect();
        facts.entries.retain(|entry| !compact.contains(&entry.parent) || entry.slot == entry.parent.slot());
    }
}

/// Returns the slot in which an entry is looked up.
pub fn place_of_entry(map: &FormationMap, dir: Ino, is_spread: bool, hash: u64) -> Slot {
    bivouac_node::entry_slot(dir, is_spread, hash, map.slot_count())
}

/// Returns the slot in which a shard is looked up.
pub fn place_of_shard(map: &FormationMap, node: NodeId, dir: Ino) -> Slot {
    let own = map.slots.iter().enumerate().filter(|(_, holder)| **holder == node);
    let own: Vec<Slot> = own.map(|(slot, _)| Slot(slot as u16)).collect();
    bivouac_node::shard_slot(&own, dir)
}
