//! Checks of single records: they decode, are at their place, and belong to an inode.

use bivouac_node::record::{garbage_key, orphan_key, target_key, xattr_key};
use bivouac_types::Ino;

use super::Check;
use crate::facts::{FILE, LINK, RecordLocation, kind_name};
use crate::finding::{Finding, Kind};
use crate::repair_action::RepairAction;

impl Check<'_> {
    pub(super) fn records(&mut self) {
        self.undecodable();
        self.misplaced();
        self.link_targets();
        self.xattrs();
        self.orphans();
        self.garbage();
    }

    fn undecodable(&mut self) {
        for (place, cause) in &self.facts.undecodable {
            let object = format!("{} on {}, slot {}", table_of(&place.key), place.node, place.slot.0);
            let finding = Finding::new(Kind::Undecodable, object, format!("is damaged: {cause}"))
                .of(number_of(&place.key))
                .fix(
                    "--repair removes it, and rebuilds what it can from what is left",
                    RepairAction::Delete(place.clone()),
                );
            self.found.push(finding);
        }
    }

    fn misplaced(&mut self) {
        for place in &self.facts.misplaced {
            let object = format!("{} on {}, slot {}", table_of(&place.key), place.node, place.slot.0);
            let finding = Finding::new(Kind::Misplaced, object, "is where nobody looks for it")
                .of(number_of(&place.key));
            let fix = RepairAction::Move(place.clone());
            self.found.push(finding.fix("--repair moves it to its place, unless there is one", fix));
        }
    }

    /// Checks that symbolic links, and only they, have a target of the recorded length.
    fn link_targets(&mut self) {
        for row in self.wanted() {
            let cause = match (row.kind == LINK, row.link_target_len) {
                (true, None) => "has no target",
                (true, Some(len)) if u64::from(len) != row.size => {
                    "has a target of another length than its size"
                }
                (false, Some(_)) => "is no symbolic link, but has a target",
                _ => continue,
            };
            let object = format!("{} {}", kind_name(row.kind), self.paths.path(row.ino));
            let finding = Finding::new(Kind::Target, object, cause).of([row.ino]);
            let finding = match (row.kind == LINK, row.link_target_len) {
                (true, Some(len)) => finding
                    .fix("--repair sets its size", RepairAction::Size { ino: row.ino, size: len.into() }),
                (true, None) => finding.remedy("the target is lost: remove the link, and make it again"),
                _ => {
                    let place = self.place(row.ino, target_key(row.ino).to_vec());
                    finding.fix("--repair removes the target", RepairAction::Delete(place))
                }
            };
            self.found.push(finding);
        }
        for ino in self.facts.stray_link_targets.clone() {
            let place = self.place(ino, target_key(ino).to_vec());
            self.stray(Kind::Target, "target", ino, place);
        }
    }

    fn xattrs(&mut self) {
        for ino in self.facts.xattrs.clone() {
            if self.facts.inode(ino).is_none() {
                let place = self.place(ino, xattr_key(ino, b""));
                let finding = Finding::new(
                    Kind::StrayXattr,
                    format!("extended attributes of inode {ino}"),
                    "belong to an inode that is not there",
                );
                self.report(finding.of([ino]).fix("--repair removes them", RepairAction::DeleteAll(place)));
            }
        }
    }

    /// Checks that inodes without names are marked as orphans, and no others.
    fn orphans(&mut self) {
        for ino in self.facts.orphans.clone() {
            let row = self.facts.inode(ino);
            if row.is_some_and(|row| row.nlink == 0) {
                continue;
            }
            let place = self.place(ino, orphan_key(ino).to_vec());
            match row {
                None => self.stray(Kind::StaleOrphan, "mark of open", ino, place),
                Some(_) => {
                    let object = self.paths.path(ino);
                    let cause = "is marked to be removed when it is closed, but has names";
                    let finding = Finding::new(Kind::StaleOrphan, object, cause).of([ino]);
                    self.report(finding.fix("--repair removes the mark", RepairAction::Delete(place)));
                }
            }
        }
    }

    fn garbage(&mut self) {
        for ino in self.facts.garbage.clone() {
            if self.facts.inode(ino).is_some_and(|row| row.kind == FILE) {
                let place = self.place(ino, garbage_key(ino).to_vec());
                let (object, cause) =
                    (self.paths.path(ino), "its subfiles are marked for removal, but it is there");
                let finding = Finding::new(Kind::WrongGarbage, object, cause).of([ino]);
                self.report(finding.fix("--repair removes the mark", RepairAction::Delete(place)));
            }
        }
    }

    fn stray(&mut self, kind: Kind, what: &str, ino: Ino, place: RecordLocation) {
        let object = format!("{what} of inode {ino}");
        let finding = Finding::new(kind, object, "belongs to an inode that is not there").of([ino]);
        self.report(finding.fix("--repair removes it", RepairAction::Delete(place)));
    }

    /// Returns the place of an inode's record.
    pub(super) fn place(&self, ino: Ino, key: Vec<u8>) -> RecordLocation {
        let node = self.source.map().home(ino).unwrap_or(bivouac_types::NodeId(0));
        RecordLocation { node, slot: ino.slot(), key }
    }
}

fn table_of(key: &[u8]) -> String {
    let what = match key.first() {
        Some(b'D') => "entry",
        Some(b'I') => "inode",
        Some(b'L') => "target",
        Some(b'O') => "mark of open inode",
        Some(b'G') => "garbage of inode",
        Some(b'P') => "partition",
        Some(b'T') => "unfinished change",
        Some(b'S') => "part of directory",
        Some(b'V') => "count of the parts of directory",
        Some(b'X') => "extended attribute of inode",
        _ => "mark",
    };
    match (key.first(), number_of(key)) {
        (Some(b'D'), Some(parent)) => {
            let name = bivouac_node::record::dentry_of_key(key).map(|(_, name)| name.to_vec());
            format!("entry '{}' of directory {parent}", String::from_utf8_lossy(&name.unwrap_or_default()))
        }
        (_, Some(ino)) => format!("{what} {ino}"),
        (_, None) => what.to_owned(),
    }
}

fn number_of(key: &[u8]) -> Option<Ino> {
    let bytes = key.get(1..9)?.try_into().ok()?;
    Some(Ino(u64::from_be_bytes(bytes)))
}
