//! Directories form a tree, and everything is in it.

use std::collections::HashMap;

use bivouac_types::Ino;

use super::Check;
use crate::facts::{DIR, EntryRow, InodeRow, kind_name};
use crate::finding::{Finding, Kind};
use crate::repair::Fix;

/// How a directory relates to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// On the way that is being followed, with the number of that way.
    OnWay(u32),
    Done,
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
            let fix = Fix::RebuildDir { ino: Ino::ROOT, parent: Ino::ROOT };
            self.report(finding.fix("--repair makes it anew for its entries, with mode 0700", fix));
        }
        for entry in self.facts.names_of(Ino::ROOT) {
            let finding = Finding::new(
                Kind::SeveralNames,
                self.paths.name(entry),
                "is an entry that leads to the root",
            );
            let fix = Fix::DropEntry(*entry);
            self.found.push(finding.of([Ino::ROOT, entry.parent]).fix("--repair removes the entry", fix));
        }
    }

    /// A directory has one name.
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
                Fix::DropEntry(*entry),
            )
        };
        extra.map(|(_, entry)| finding(entry)).collect()
    }

    /// Which of its names a directory keeps: that in the parent that it names, else the first.
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
        let fix = Fix::Parent { ino: row.ino, parent: entry.parent };
        Some(finding.of([row.ino, entry.parent]).fix("--repair corrects it", fix))
    }

    fn unreachable(&self, row: &InodeRow) -> Option<Finding> {
        let orphan = row.nlink == 0 && self.facts.orphans.binary_search(&row.ino).is_ok();
        if row.names > 0 || row.ino == Ino::ROOT || orphan || !self.complete {
            return None;
        }
        let object = format!("{} {}", kind_name(row.kind), row.ino);
        let finding = Finding::new(Kind::Unreachable, object, "no name leads to it").of([row.ino]);
        let name = String::from_utf8_lossy(&self.facts.found_name(row.ino)).into_owned();
        Some(finding.fix(
            format!("--repair links it as /lost+found/{name}{}", self.former_place(row)),
            Fix::Relink { ino: row.ino, from: None },
        ))
    }

    /// Where an inode without names was: by what is lost of records, or the directory that it was made in.
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

    /// Follows every directory up to the root, each only once.
    fn loops(&mut self) {
        let mut seen: HashMap<Ino, Seen> = HashMap::from([(Ino::ROOT, Seen::Done)]);
        let mut way = Vec::new();
        for (number, row) in self.facts.inodes.iter().enumerate().filter(|(_, row)| row.kind == DIR) {
            let (number, mut at) = (number as u32, row.ino);
            let closed = loop {
                match seen.get(&at) {
                    Some(Seen::OnWay(other)) if *other == number => break true,
                    Some(_) => break false,
                    None => {}
                }
                seen.insert(at, Seen::OnWay(number));
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
                let wanted = ring.iter().all(|ino| self.wants(*ino));
                self.found.extend(wanted.then(|| self.ring(&ring)).flatten());
            }
            seen.extend(way.drain(..).map(|ino| (ino, Seen::Done)));
        }
    }

    fn ring(&self, ring: &[Ino]) -> Option<Finding> {
        let first = *ring.iter().min()?;
        let row = self.facts.inode(first)?;
        let entry = *self.facts.names_of(first).get(self.true_name(row)?)?;
        let object = format!("directory {first} ('{}')", self.paths.name(&entry));
        let cause = format!("is in itself, {} directories round, and not below the root", ring.len());
        let finding = Finding::new(Kind::Loop, object, cause).of(ring.iter().copied());
        let remedy = format!("--repair opens the loop and links it as /lost+found/{first}");
        Some(finding.fix(remedy, Fix::Relink { ino: first, from: Some(entry) }))
    }
}
