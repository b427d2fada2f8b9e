//! Inodes that are about to be made.

use bivouac_layout::dir_slot;
use bivouac_types::{Attr, Contract, FsResult, Ino, Name, PartitionId, Slot, Timestamp, mode};
use bivouac_wire::{Inherited, MakeRequest};

use crate::directory::EntryPlace;
use crate::node::Node;
use crate::record::Inode;

/// Returns the inode that the request asks for, in a directory that passes on its group, layout, placement and
/// contract; in a directory without a contract the rules of its partition say that.
pub fn new_inode(
    node: &Node,
    ino: Ino,
    request: &MakeRequest<'_>,
    from: &Inherited,
    now: Timestamp,
) -> FsResult<Inode> {
    let is_dir = request.mode & mode::TYPE == mode::DIR;
    let inherits_group = from.mode & mode::SETGID != 0;
    let (layout, placement) = match is_dir {
        // A directory passes on what it was given; it has no content that would need targets.
        true => (from.layout, from.placement),
        false => {
            let (layout, placement) = node.new_layout(ino, from, request.name, request.near)?;
            (layout, Some(placement))
        }
    };
    let mode = request.mode | if inherits_group && is_dir { mode::SETGID } else { 0 };
    let attr = Attr {
        uid: request.uid,
        gid: if inherits_group { from.gid } else { request.gid },
        rdev: request.rdev,
        size: request.target.len() as u64,
        contract: node.new_contract(request, from)?,
        ..Attr::new(ino, mode, layout, now)
    };
    Ok(Inode { attr, parent: request.parent, placement })
}

impl Node {
    /// Returns the contract of its own that a new inode gets.
    fn new_contract(&self, request: &MakeRequest<'_>, from: &Inherited) -> FsResult<Option<Contract>> {
        let (kind, id) = (request.mode & mode::TYPE, from.layout.partition());
        if !matches!(kind, mode::DIR | mode::FILE) {
            return Ok(None);
        }
        if from.contract.is_some() || id == PartitionId::ROOT {
            return Ok(from.contract);
        }
        let partition = self.partition(id)?;
        let rule = match kind {
            mode::FILE => partition.settings.contract_rule(request.name),
            // What is below gets it from the directory.
            _ if request.parent == partition.dir => partition.settings.directory_contract_rule(request.name),
            _ => None,
        };
        Ok(rule.and_then(|rule| rule.contract))
    }

    /// Returns a new inode for an entry of this place, as the request describes it.
    pub(crate) fn new_inode_at(
        &self,
        place: &EntryPlace,
        name: &Name,
        request: &MakeRequest<'_>,
    ) -> FsResult<Inode> {
        let is_dir = request.mode & mode::TYPE == mode::DIR;
        let spread = || dir_slot(place.dir, name.as_bytes(), self.map.slot_count());
        // On a node that is dead it could not be made: it lives with its entry then, as files do.
        let home = is_dir.then(spread).filter(|slot| !self.is_of_the_dead(*slot)).unwrap_or(place.slot);
        let ino = self.allocator.next_ino(&self.records, home)?;
        new_inode(self, ino, request, &self.inherited(place)?, self.clock.now())
    }

    /// Returns whether the node of a slot is known to be dead.
    fn is_of_the_dead(&self, slot: Slot) -> bool {
        let dead = self.members.dead();
        !dead.is_empty() && self.map.slot_node(slot).is_none_or(|node| dead.contains(&node))
    }
}
