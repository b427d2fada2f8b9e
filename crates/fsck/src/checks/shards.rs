//! Checks of spread directories: each node has a shard with correct counts and inherited attributes.

use std::collections::BTreeSet;

use bivouac_node::record::{folded_key, shard_key};
use bivouac_types::{NodeId, mode};
use bivouac_wire::Inherited;

use super::Check;
use crate::facts::{InodeRow, RecordLocation, ShardRow};
use crate::finding::{Finding, Kind};
use crate::repair_action::RepairAction;

impl Check<'_> {
    pub(super) fn shards(&mut self) {
        for shard in &self.facts.shards {
            // Without the home's records it is not known whether the directory is spread.
            if self.wants(shard.dir) && self.is_known(shard.dir) {
                match self.facts.inode(shard.dir).filter(|row| row.is_spread()) {
                    Some(_) => self.found.extend(self.part(shard)),
                    None => self.found.push(self.stray_part(shard)),
                }
            }
        }
        for row in self.wanted().filter(|row| row.is_spread()) {
            self.found.extend(self.missing_parts(row));
        }
        for (dir, _) in &self.facts.folded {
            if self.wants(*dir) && self.facts.inode(*dir).is_none_or(|row| !row.is_spread()) {
                let place = self.place(*dir, folded_key(*dir).to_vec());
                let object = format!("count of the parts of directory {dir}");
                let finding = Finding::new(Kind::Shard, object, "belongs to no spread directory").of([*dir]);
                self.found.push(finding.fix("--repair removes it", RepairAction::Delete(place)));
            }
        }
    }

    fn object_of(&self, shard: &ShardRow) -> String {
        format!("part of directory {} on {}", self.paths.path(shard.dir), shard.node)
    }

    fn stray_part(&self, shard: &ShardRow) -> Finding {
        let finding = Finding::new(Kind::Shard, self.object_of(shard), "belongs to no spread directory");
        finding.of([shard.dir]).fix("--repair removes it", RepairAction::Delete(place_of(shard)))
    }

    fn part(&self, shard: &ShardRow) -> Vec<Finding> {
        let mut found = Vec::new();
        let new = |kind, cause: String| Finding::new(kind, self.object_of(shard), cause).of([shard.dir]);
        let (entries, subdirs) = self.facts.parts.get(&(shard.dir, shard.node)).copied().unwrap_or_default();
        let record = &shard.record;
        if (record.entries, record.subdirs) != (entries, subdirs) {
            let cause = format!(
                "says that it has {} entries with {} directories, there are {entries} with {subdirs}",
                record.entries, record.subdirs
            );
            let fix = RepairAction::ShardCounts { place: place_of(shard), entries, subdirs };
            found.push(new(Kind::ShardCount, cause).fix("--repair corrects the counts", fix));
        }
        if record.sealed.is_some() {
            let cause = "is closed for a removal that nobody is at".to_owned();
            found.push(
                new(Kind::Shard, cause).fix("--repair opens it", RepairAction::Unseal(place_of(shard))),
            );
        }
        if let Some(expected) =
            self.facts.inherited.get(&shard.dir).filter(|expected| differ(expected, &record.inherited))
        {
            let cause =
                "gives its entries another group, layout or contract than the directory says".to_owned();
            let fix = RepairAction::Inherit { place: place_of(shard), inherited: *expected };
            found.push(new(Kind::Shard, cause).fix("--repair corrects it", fix));
        }
        found
    }

    fn missing_parts(&self, row: &InodeRow) -> Vec<Finding> {
        let nodes: BTreeSet<NodeId> = self.source.map().slots.iter().copied().collect();
        let there = self.facts.shards_of(row.ino);
        let lacks =
            |node: &NodeId| self.source.has_records(*node) && !there.iter().any(|shard| shard.node == *node);
        let finding = |node: NodeId| {
            let object = format!("part of directory {} on {node}", self.paths.path(row.ino));
            let finding = Finding::new(Kind::Shard, object, "is not there").of([row.ino]);
            finding.fix("--repair makes it anew", RepairAction::AddShard { node, dir: row.ino })
        };
        nodes.into_iter().filter(lacks).map(finding).collect()
    }
}

fn place_of(shard: &ShardRow) -> RecordLocation {
    RecordLocation { node: shard.node, slot: shard.slot, key: shard_key(shard.dir).to_vec() }
}

/// Returns whether new entries would inherit different attributes; permissions are not inherited.
fn differ(a: &Inherited, b: &Inherited) -> bool {
    let what = |i: &Inherited| (i.mode & mode::SETGID, i.gid, i.layout, i.placement, i.contract);
    what(a) != what(b)
}
