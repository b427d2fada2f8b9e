//! Checks of inode numbers against the allocators' marks.

use super::Check;
use crate::finding::{Finding, Kind};
use crate::repair_action::RepairAction;
use crate::source::nodes;

impl Check<'_> {
    /// Checks that no allocator will assign a number that is in use.
    pub(super) fn numbers(&mut self) {
        for node in nodes(self.source.map()).filter(|node| self.source.has_records(*node)) {
            let Some((highest, ino)) = self.facts.highest.get(usize::from(node.0)).copied() else { continue };
            let mark = self.facts.marks.get(usize::from(node.0)).copied().flatten().unwrap_or(0);
            // The next allocation would overwrite an existing inode.
            if highest > 0 && highest >= mark {
                let cause = format!(
                    "would give out number {mark} next, but number {highest} is in use (inode {ino})"
                );
                let finding =
                    Finding::new(Kind::FutureNumber, format!("allocator of {node}"), cause).of([ino]);
                let fix = RepairAction::Mark { node, mark: highest + 1 };
                self.report(finding.fix("--repair raises its mark", fix));
            }
        }
    }
}
