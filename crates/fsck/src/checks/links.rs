//! Checks of entries against the inodes that they refer to.

use std::collections::HashSet;

use bivouac_types::Ino;

use super::Check;
use crate::facts::{DIR, EntryRow, FILE, InodeRow, kind_name};
use crate::finding::{Finding, Kind};
use crate::gather::place_of_entry;
use crate::repair_action::RepairAction;

impl Check<'_> {
    pub(super) fn links(&mut self) {
        self.entries();
        self.counts();
    }

    /// Checks that every entry refers to an inode of its type and lies in a directory.
    fn entries(&mut self) {
        let mut missing_parents = HashSet::new();
        for entry in &self.facts.entries {
            if !self.wants(entry.parent) {
                continue;
            }
            if self.is_known(entry.parent) && self.facts.inode(entry.parent).is_none_or(|row| row.kind != DIR)
            {
                missing_parents.insert(entry.parent);
            }
            if let Some(parent) = self.facts.inode(entry.parent).filter(|row| row.kind == DIR) {
                self.found.extend(self.misplaced_entry(entry, parent));
            }
            // An inode whose home was not read may well be there; one that no home can have is not.
            if self.wants(entry.ino) && (!self.is_possible(entry.ino) || self.is_known(entry.ino)) {
                match self.facts.inode(entry.ino) {
                    None => self.found.push(self.dangling(entry)),
                    Some(row) if row.kind != entry.kind => self.found.push(self.wrong_type(entry, row)),
                    Some(_) => {}
                }
            }
        }
        let mut missing: Vec<Ino> = missing_parents.into_iter().collect();
        missing.sort_unstable();
        missing.into_iter().for_each(|parent| self.no_directory(parent));
    }

    fn misplaced_entry(&self, entry: &EntryRow, parent: &InodeRow) -> Option<Finding> {
        let map = self.source.map();
        let slot = place_of_entry(map, entry.parent, parent.is_spread(), entry.hash);
        if entry.slot == slot && map.slot_node(slot) == Some(entry.node) {
            return None;
        }
        let cause = format!("is on {} in slot {}, where nobody looks for it", entry.node, entry.slot.0);
        let finding =
            Finding::new(Kind::Misplaced, self.paths.entry(entry), cause).of([entry.parent, entry.ino]);
        let fix = RepairAction::MoveEntry { entry: *entry, slot };
        Some(finding.fix("--repair moves it to its place, unless there is one", fix))
    }

    fn dangling(&self, entry: &EntryRow) -> Finding {
        let cause = format!("leads to inode {}, which is not there", entry.ino);
        let finding =
            Finding::new(Kind::MissingInode, self.paths.entry(entry), cause).of([entry.ino, entry.parent]);
        let has_subfiles = self.facts.subfiles_of(entry.ino).iter().any(|subfile| subfile.layout.is_ok());
        let has_entries = || self.facts.entries.iter().any(|other| other.parent == entry.ino);
        match entry.kind {
            FILE if has_subfiles && self.is_possible(entry.ino) => {
                let remedy = "--repair makes it anew from its subfiles, with mode 0600";
                finding.fix(remedy, RepairAction::RebuildFile { ino: entry.ino })
            }
            DIR if self.is_possible(entry.ino) && has_entries() => {
                let remedy = "--repair makes it anew for its entries, with mode 0700";
                finding.fix(remedy, RepairAction::RebuildDir { ino: entry.ino, parent: entry.parent })
            }
            _ => finding.fix("--repair removes the entry", RepairAction::DropEntry(*entry)),
        }
    }

    fn wrong_type(&self, entry: &EntryRow, row: &InodeRow) -> Finding {
        let cause = format!("says {}, its inode is a {}", kind_name(entry.kind), kind_name(row.kind));
        let finding =
            Finding::new(Kind::WrongType, self.paths.entry(entry), cause).of([entry.ino, entry.parent]);
        finding.fix("--repair corrects the entry", RepairAction::EntryKind { entry: *entry, kind: row.kind })
    }

    fn no_directory(&mut self, parent: Ino) {
        let row = self.facts.inode(parent);
        let cause = match row {
            Some(row) => format!("has entries, but is a {}", kind_name(row.kind)),
            None => "has entries, but is not there".to_owned(),
        };
        let object = format!("directory {}", self.paths.path(parent));
        let finding = Finding::new(Kind::MissingInode, object, cause).of([parent]);
        let named = self.facts.names_of(parent).first();
        let finding = match row {
            // If an entry refers to it, the repair of that entry creates it.
            None if named.is_none() => {
                let fix = RepairAction::RebuildDir { ino: parent, parent: Ino::ROOT };
                finding.fix("--repair makes it anew for its entries, with mode 0700", fix)
            }
            None => return,
            Some(_) => finding.remedy("nothing is done by itself: rescue its subfiles with --from-subfiles"),
        };
        self.report(finding);
    }

    /// Checks link counts against names, and sizes of directories against entries.
    fn counts(&mut self) {
        for row in self.wanted() {
            if row.kind == DIR {
                self.found.extend(self.entry_count(row));
                self.found.extend(self.directory_links(row));
            } else {
                self.found.extend(self.links_of(row));
            }
        }
    }

    fn entry_count(&self, row: &InodeRow) -> Option<Finding> {
        if row.size == u64::from(row.entries) || !self.follows(row) {
            return None;
        }
        let cause = format!("says that it has {} entries, there are {}", row.size, row.entries);
        let finding =
            Finding::new(Kind::EntryCount, format!("directory {}", self.paths.path(row.ino)), cause);
        Some(finding.of([row.ino]).fix(
            "--repair corrects the count",
            RepairAction::Size { ino: row.ino, size: row.entries.into() },
        ))
    }

    fn directory_links(&self, row: &InodeRow) -> Option<Finding> {
        if !self.follows(row) {
            return None;
        }
        let nlink = row.subdirs.saturating_add(2);
        self.wrong_links(row, nlink, format!("2 and {} subdirectories", row.subdirs))
    }

    /// Returns whether the counts of a directory must be current: those of a spread directory are updated on demand.
    fn follows(&self, row: &InodeRow) -> bool {
        !row.is_spread() || self.complete && self.facts.is_folded(row)
    }

    fn links_of(&self, row: &InodeRow) -> Option<Finding> {
        // An inode without names is reported as unreachable; if a home is missing there may be further names.
        if row.names == 0 || !self.complete && row.names < row.nlink {
            return None;
        }
        self.wrong_links(row, row.names, format!("{} names", row.names))
    }

    fn wrong_links(&self, row: &InodeRow, nlink: u32, what: String) -> Option<Finding> {
        if row.nlink == nlink {
            return None;
        }
        let object = format!("{} {}", kind_name(row.kind), self.paths.path(row.ino));
        let cause = format!("has a link count of {}, but {what}", row.nlink);
        let finding = Finding::new(Kind::LinkCount, object, cause).of([row.ino]);
        Some(finding.fix("--repair corrects the count", RepairAction::Links { ino: row.ino, nlink }))
    }
}
