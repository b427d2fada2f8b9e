//! Checks of subfiles against their files.

use bivouac_layout::{subfile_len, targets_of};
use bivouac_types::{Ino, TargetIndex};

use super::Check;
use crate::facts::{FILE, InodeRow, SubfileRow};
use crate::finding::{Finding, Kind};
use crate::repair_action::RepairAction;

impl Check<'_> {
    pub(super) fn subfiles(&mut self) {
        let mut rows = self.facts.subfiles.as_slice();
        while let Some(first) = rows.first() {
            let count = rows.iter().take_while(|row| row.ino == first.ino).count();
            let (of_one, rest) = rows.split_at(count);
            if self.wants(first.ino) {
                self.file(first.ino, of_one);
            }
            rows = rest;
        }
        // A truncation makes a subfile on each target; before the first one, targets without data have none.
        for row in self.wanted().filter(|row| row.kind == FILE && row.epoch > 0) {
            self.found.extend(self.missing(row));
        }
        for (ino, target) in &self.facts.lost {
            let row = self.facts.inode(*ino).filter(|row| row.kind == FILE && self.wants(*ino));
            self.found.extend(row.and_then(|row| self.lost(row, *target)));
        }
    }

    fn file(&mut self, ino: Ino, subfiles: &[SubfileRow]) {
        for subfile in subfiles {
            self.found.extend(self.wrong_place(subfile));
        }
        if !self.is_possible(ino) || self.is_known(ino) {
            match self.facts.inode(ino).filter(|row| row.kind == FILE) {
                Some(row) => subfiles.iter().for_each(|subfile| {
                    self.found.extend(self.header(row, subfile, subfiles));
                }),
                None => self.unreferenced(ino, subfiles),
            }
        }
    }

    /// Returns the name of a subfile for messages.
    fn object(&self, subfile: &SubfileRow) -> String {
        let SubfileRow { ino, target, node, volume, .. } = subfile;
        let path = if self.facts.inode(*ino).is_some() {
            format!(" ({})", self.paths.path(*ino))
        } else {
            String::new()
        };
        format!("subfile {ino}-{:04x} on volume {volume} of {node}{path}", target.0)
    }

    fn wrong_place(&self, subfile: &SubfileRow) -> Option<Finding> {
        let place = self.facts.place_of(self.source.map(), subfile.target);
        if place.is_some_and(|place| (place.node, place.volume) == (subfile.node, subfile.volume)) {
            return None;
        }
        let finding = |cause: String, remedy: String| {
            Finding::new(Kind::MisplacedSubfile, self.object(subfile), cause).of([subfile.ino]).remedy(remedy)
        };
        Some(match place {
            Some(place) => finding(
                format!(
                    "is of target {}, which is volume {} of {}",
                    subfile.target, place.volume, place.node
                ),
                "move the local file there while the formation is down".into(),
            ),
            None => finding(
                format!("is of target {}, which the formation does not have", subfile.target),
                "rescue it with --from-subfiles, then remove the local file".into(),
            ),
        })
    }

    fn header(&self, row: &InodeRow, subfile: &SubfileRow, all: &[SubfileRow]) -> Option<Finding> {
        assert_eq!(row.ino, subfile.ino, "a subfile is compared with another file");
        let layout = self.facts.layouts.get(row.layout);
        let of_file = |kind, cause: String| Finding::new(kind, self.object(subfile), cause).of([row.ino]);
        let rewrite = |epoch| RepairAction::Header { subfile: *subfile, layout, epoch };
        let used = targets_of(&layout).any(|target| target == subfile.target);
        let found = match subfile.layout {
            Err(problem) => {
                let cause = self.facts.problems.get(problem as usize).cloned().unwrap_or_default();
                let finding = of_file(Kind::BadHeader, cause);
                return Some(match used {
                    true => finding.fix("--repair writes it anew from the inode", rewrite(row.epoch)),
                    false => finding
                        .remedy("its file does not use it: remove the local file if nothing is missing"),
                });
            }
            Ok(number) => self.facts.layouts.get(number),
        };
        // The truncation reached the target but not the home: the later epoch is the true one.
        if subfile.epoch > row.epoch {
            let cause = format!("has epoch {}, its file has {}", subfile.epoch, row.epoch);
            let fix = RepairAction::Epoch { ino: row.ino, epoch: subfile.epoch };
            return Some(of_file(Kind::EpochAhead, cause).fix("--repair raises the file's epoch", fix));
        }
        // A target that the present layout does not use keeps its old header, and no data.
        if used && (found != layout || !subfile.places_right) {
            let what = if found == layout {
                "other places of its targets".into()
            } else {
                format!("layout {found}")
            };
            let cause = format!("says {what}, its file has layout {layout}");
            let finding = of_file(Kind::HeaderMismatch, cause);
            let agree = all.iter().filter(|other| other.layout == subfile.layout).count();
            // If all subfiles agree against the inode, the inode may be the damaged one.
            return Some(if agree > 1 && agree == all.len() && found != layout {
                finding.remedy("all its subfiles say so: compare with what --from-subfiles makes of it")
            } else {
                finding.fix("--repair writes it anew from the inode", rewrite(subfile.epoch))
            });
        }
        if !used && subfile.len > 0 {
            let finding =
                of_file(Kind::HeaderMismatch, format!("has data, but its file has layout {layout}"));
            return Some(finding.remedy("rescue it with --from-subfiles, then remove the local file"));
        }
        None
    }

    fn unreferenced(&mut self, ino: Ino, subfiles: &[SubfileRow]) {
        let named = self.facts.names_of(ino).iter().any(|entry| entry.kind == FILE);
        let leaving = [&self.facts.garbage, &self.facts.pending];
        if leaving.iter().any(|list| list.binary_search(&ino).is_ok()) || named && self.is_possible(ino) {
            // Already being removed, or reported with the entry that refers to the file.
            return;
        }
        let sound = subfiles.iter().any(|subfile| subfile.layout.is_ok());
        let has_data = subfiles.iter().any(|subfile| subfile.len > 0);
        let known = self.facts.inode(ino).is_some();
        for subfile in subfiles {
            let finding =
                Finding::new(Kind::Unreferenced, self.object(subfile), "belongs to no file").of([ino]);
            let finding = match (sound && has_data && !known && self.is_possible(ino), subfile.len) {
                (true, _) => finding.fix(
                    format!(
                        "--repair makes its file anew as /lost+found/{ino}, --discard-unreferenced removes it"
                    ),
                    RepairAction::RebuildFile { ino },
                ),
                (false, 0) => {
                    finding.fix("--repair removes it, it has no data", RepairAction::RemoveSubfile(*subfile))
                }
                (false, _) => finding.fix(
                    "rescue it with --from-subfiles; --discard-unreferenced removes it",
                    RepairAction::DiscardSubfile(*subfile),
                ),
            };
            self.found.push(finding);
        }
    }

    /// Checks that a file that was truncated has a subfile on each of its targets.
    fn missing(&self, row: &InodeRow) -> Vec<Finding> {
        let mut found = Vec::new();
        let layout = self.facts.layouts.get(row.layout);
        let there = self.facts.subfiles_of(row.ino);
        for (column, target) in targets_of(&layout).enumerate() {
            let place = self.facts.place_of(self.source.map(), target);
            let looked = place.is_some_and(|place| self.source.has_volume(place.node, place.volume));
            let is_there = there.iter().any(|subfile| subfile.target == target);
            if !looked || is_there || self.facts.is_lost(row.ino, target) {
                continue;
            }
            let bytes = subfile_len(&layout, column as u16, row.size);
            let cause =
                format!("its subfile on target {target} is not there: up to {bytes} bytes read as zeros");
            let finding = Finding::new(Kind::MissingSubfile, self.paths.path(row.ino), cause).of([row.ino]);
            found.push(finding.remedy("restore the file from a copy, or remove it"));
        }
        found
    }

    /// Reports a subfile that is in the volume's table but missing. On a target that the present layout does not use it
    /// had no data.
    fn lost(&self, row: &InodeRow, target: TargetIndex) -> Option<Finding> {
        let layout = self.facts.layouts.get(row.layout);
        let column = targets_of(&layout).position(|used| used == target)?;
        let bytes = subfile_len(&layout, u16::try_from(column).ok()?, row.size);
        let place = self.facts.place_of(self.source.map(), target)?;
        let cause = format!(
            "its subfile {:02x}/{}-{:04x} was on volume {} of {} and is not there any more: up to {bytes} bytes are lost, \
             and reading them fails",
            row.ino.0 & 0xff,
            row.ino,
            target.0,
            place.volume,
            place.node
        );
        let finding = Finding::new(Kind::MissingSubfile, self.paths.path(row.ino), cause).of([row.ino]);
        Some(finding.remedy(
            "put the local file back while the formation is down, restore the file from a copy, or remove it",
        ))
    }
}
