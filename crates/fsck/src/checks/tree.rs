//! Checks that directories form a tree that contains everything.

use std::collections::HashMap;

use bivouac_types::Ino;

use super::Check;
use crate::facts::{DIR, EntryRow, InodeRow, kind_name};
use crate::finding::{Finding, Kind};
use crate::repair_action::RepairAction;

/// Visiting state of a directory in the search for loops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitState {
    /// On the path that starts at the directory with this number.
    OnPath(u32),
    Finished,
}

impl Check<'_> {
    pub(super) fn tree(&mut self) {
        self.root();
        for row in self.wanted() {
            if row.kind == DIR && row.ino != Ino::ROOT {
                self.found.extend(self.one_name(row));
                self.found.extend(self.parent_pointer(row));
            }
            self.found.extend(self.unreachable(row));
        }
        self.loops();
    }

    fn root(&mut self) {
        if self.is_known(Ino::ROOT) && self.facts.inode(Ino::ROOT).is_none_or(|row| row.kind != DIR) {
            let finding = Finding::new(Kind::MissingInode, "root directory", "is not there").of([Ino::ROOT]);
            let fix = RepairAction::RebuildDir { ino: Ino::ROOT, parent: Ino::ROOT };
            self.report(finding.fix("--repair makes it anew for its entries, with mode 0700", fix));
        }
        for entry in self.facts.names_of(Ino::ROOT) {
            let finding = Finding::new(
                Kind::SeveralNames,
                self.paths.name(entry),
                "is an entry that leads to the root",
            );
            let fix = RepairAction::DropEntry(*entry);
            self.found.push(finding.of([Ino::ROOT, entry.parent]).fix("--repair removes the entry", fix));
        }
    }

    /// Checks that a directory has one name.
    fn one_name(&self, row: &InodeRow) -> Vec<Finding> {
        let names = self.facts.names_of(row.ino);
        let kept = self.true_name(row);
        let extra = names.iter().filter(|_| names.len() > 1).enumerate();
        let extra = extra.filter(|(at, _)| Some(*at) != kept);
        let finding = |entry: &EntryRow| {
            let cause = format!("is one of {} names of directory {}", names.len(), row.ino);
            let inos = [row.ino, entry.parent];
            Finding::new(Kind::SeveralNames, self.paths.entry(entry), cause).of(inos).fix(
                "--repair keeps the name in the directory's own parent, and removes this one",
                RepairAction::DropEntry(*entry),
            )
        };
        extra.map(|(_, entry)| finding(entry)).collect()
    }

    /// Returns which of its names a directory keeps: that in its recorded parent, else the first.
    fn true_name(&self, row: &InodeRow) -> Option<usize> {
        let names = self.facts.names_of(row.ino);
        names.iter().position(|entry| entry.parent == row.parent).or((!names.is_empty()).then_some(0))
    }

    fn parent_pointer(&self, row: &InodeRow) -> Option<Finding> {
        let entry = self.facts.names_of(row.ino).get(self.true_name(row)?)?;
        if entry.parent == row.parent {
            return None;
        }
        let cause = format!("names {} as its parent, its entry is in {}", row.parent, entry.parent);
        let finding =
            Finding::new(Kind::ParentPointer, format!("directory {}", self.paths.path(row.ino)), cause);
        let fix = RepairAction::Parent { ino: row.ino, parent: entry.parent };
        Some(finding.of([row.ino, entry.parent]).fix("--repair corrects it", fix))
    }

    fn unreachable(&self, row: &InodeRow) -> Option<Finding> {
        // An open file without names is no finding.
        let orphan = row.nlink == 0 && self.facts.orphans.binary_search(&row.ino).is_ok();
        // With a home missing, the name may be in its records.
        if row.names > 0 || row.ino == Ino::ROOT || orphan || !self.complete {
            return None;
        }
        let object = format!("{} {}", kind_name(row.kind), row.ino);
        let finding = Finding::new(Kind::Unreachable, object, "no name leads to it").of([row.ino]);
        let name = String::from_utf8_lossy(&self.facts.found_name(row.ino)).into_owned();
        Some(finding.fix(
            format!("--repair links it as /lost+found/{name}{}", self.former_place(row)),
            RepairAction::Relink { ino: row.ino, from: None },
        ))
    }

    /// Returns the former directory of an inode without names, from damaged records or its recorded parent.
    fn former_place(&self, row: &InodeRow) -> String {
        let (parent, how) = match self.facts.lost_names.get(&row.ino) {
            Some(lost) => (lost.parent, "by what is left of the damaged records it was in"),
            None => (row.parent, "it was made in"),
        };
        match self.facts.inode(parent) {
            Some(dir) if dir.kind == DIR && parent != row.ino => {
                format!(" ({how} {})", self.paths.path(parent))
            }
            _ => String::new(),
        }
    }

    /// Searches for loops by following every directory to the root, each once.
    fn loops(&mut self) {
        let mut seen: HashMap<Ino, VisitState> = HashMap::from([(Ino::ROOT, VisitState::Finished)]);
        let mut way = Vec::new();
        for (number, row) in self.facts.inodes.iter().enumerate().filter(|(_, row)| row.kind == DIR) {
            let (number, mut at) = (number as u32, row.ino);
            let closed = loop {
                match seen.get(&at) {
                    Some(VisitState::OnPath(other)) if *other == number => break true,
                    Some(_) => break false,
                    None => {}
                }
                seen.insert(at, VisitState::OnPath(number));
                way.push(at);
                let up =
                    self.facts.inode(at).and_then(|row| self.facts.names_of(at).get(self.true_name(row)?));
                match up {
                    Some(entry) => at = entry.parent,
                    None => break false,
                }
            };
            if closed {
                let ring: Vec<Ino> = way.iter().copied().skip_while(|ino| *ino != at).collect();
                assert!(!ring.is_empty(), "a loop without a directory, at {at}");
                let wanted = ring.iter().all(|ino| self.wants(*ino));
                self.found.extend(wanted.then(|| self.ring(&ring)).flatten());
            }
            // Directories that lead to the root, to a reported loop, or to a missing parent are not visited again.
            seen.extend(way.drain(..).map(|ino| (ino, VisitState::Finished)));
        }
    }

    fn ring(&self, ring: &[Ino]) -> Option<Finding> {
        // The same one wherever the search began, so that a later look finds the same object.
        let first = *ring.iter().min()?;
        let row = self.facts.inode(first)?;
        let entry = *self.facts.names_of(first).get(self.true_name(row)?)?;
        let object = format!("directory {first} ('{}')", self.paths.name(&entry));
        let cause = format!("is in itself, {} directories round, and not below the root", ring.len());
        let finding = Finding::new(Kind::Loop, object, cause).of(ring.iter().copied());
        let remedy = format!("--repair opens the loop and links it as /lost+found/{first}");
        Some(finding.fix(remedy, RepairAction::Relink { ino: first, from: Some(entry) }))
    }
}
