//! The first map of slots to nodes, and the layout of a new file.

use bivouac_types::{Ino, Layout, MasterHash, NodeId, PartitionId, Placement, Slot, TargetIndex};

use crate::hash::{base_target, byte_sum_hash};

/// Inputs of the layout of a new file.
#[derive(Clone, Copy, Debug)]
pub struct LayoutRequest<'a> {
    /// Its partition.
    pub partition: PartitionId,
    /// Bytes per stripe.
    pub stripe: u32,
    /// Targets to use; 0 or more than there are means all of them.
    pub width: u16,
    /// Targets of the partition.
    pub targets: u16,
    /// Rule for the base target.
    pub placement: Placement,
    /// Hash that decides on the base target where the rule leaves it open.
    pub hash: MasterHash,
    /// The file's name, for [`MasterHash::ByteSum`].
    pub name: &'a [u8],
    /// Positions of the targets of the node through which the file is created, for [`Placement::Local`]; those that the
    /// partition does not have are left out, and without any the file is placed as [`Placement::Hashed`].
    pub local: &'a [u16],
}

/// Returns the layout of a new file. Depends on the arguments only.
///
/// # Errors
/// A sentence of [`Layout::check`]: a stripe size that is not allowed, or no targets.
pub fn layout_for(ino: Ino, wish: &LayoutRequest<'_>) -> Result<Layout, String> {
    let (width, base) = match wish.placement {
        Placement::Striped => (all_if_zero(wish.width, wish.targets), master(ino, wish)),
        Placement::Hashed => (1, master(ino, wish)),
        Placement::Local => (1, local_target(ino, wish).unwrap_or_else(|| master(ino, wish))),
    };
    let base = TargetIndex::new(wish.partition, base);
    let layout = Layout { stripe: wish.stripe, width, base, targets: wish.targets };
    layout.check().map(|()| layout)
}

/// Returns the same layout on targets of which none is to be avoided: from its base on, the first that begins so many
/// in a row, or else the longest row that there is, which makes the file narrower. Unchanged where all targets are to
/// be avoided.
#[must_use]
pub fn avoiding(layout: &Layout, is_avoided: impl Fn(u16) -> bool) -> Layout {
    let (targets, base) = (u32::from(layout.targets), u32::from(layout.base.position()));
    let is_free = |position: u32| !is_avoided((position % targets.max(1)) as u16);
    let row = |start: u32| (0..u32::from(layout.width)).take_while(|column| is_free(start + column)).count();
    let mut best = (base, 0);
    // From the base on, so that a file keeps its targets where none of them is to be avoided.
    for start in base..base + targets {
        let len = row(start);
        if len > best.1 {
            best = (start, len);
        }
        if len == usize::from(layout.width) {
            break;
        }
    }
    assert!(best.1 <= usize::from(layout.width), "a file of {} targets on {}", layout.width, best.1);
    match best {
        (_, 0) => *layout,
        (start, len) => {
            let position = (start % targets.max(1)) as u16;
            Layout {
                base: TargetIndex::new(layout.base.partition(), position),
                width: u16::try_from(len).unwrap_or(layout.width),
                ..*layout
            }
        }
    }
}

/// Returns the node of a slot in a new formation: each node has consecutive slots, all the same number within 1. 0 for
/// no nodes or no slots; a slot behind the last counts as the last.
#[must_use]
pub fn slot_to_node(slot: Slot, slots: u16, nodes: u16) -> NodeId {
    let last = slots.saturating_sub(1);
    let share = u32::from(slot.0.min(last)) * u32::from(nodes);
    let node = share.checked_div(u32::from(slots)).unwrap_or(0);
    assert!(node < u32::from(nodes.max(1)), "slot {} of {slots} on node {node} of {nodes}", slot.0);
    NodeId(node as u16)
}

fn all_if_zero(width: u16, targets: u16) -> u16 {
    if width == 0 { targets } else { width.min(targets) }
}

/// Returns the base target that the hash decides on.
fn master(ino: Ino, wish: &LayoutRequest<'_>) -> u16 {
    match wish.hash {
        MasterHash::Xxh3 => base_target(ino, wish.targets),
        MasterHash::ByteSum => byte_sum_hash(wish.name, wish.targets),
    }
}

/// Returns a local target; files take turns by their numbers.
fn local_target(ino: Ino, wish: &LayoutRequest<'_>) -> Option<u16> {
    let usable = || wish.local.iter().filter(|target| **target < wish.targets);
    // By number and not at random: the files of one program, made one after the other, use all of its node’s
    // volumes alike.
    let count = u16::try_from(usable().count()).unwrap_or(u16::MAX);
    usable().nth(usize::from(base_target(ino, count))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISH: LayoutRequest<'_> = LayoutRequest {
        partition: PartitionId(3),
        stripe: 1 << 20,
        width: 0,
        targets: 8,
        placement: Placement::Striped,
        hash: MasterHash::Xxh3,
        name: b"name",
        local: &[],
    };

    #[test]
    fn width_zero_is_all_targets_and_too_much_is_all_there_are() {
        let width = |width| layout_for(Ino(5), &LayoutRequest { width, ..WISH }).map(|l| l.width);
        assert_eq!([0, 1, 7, 8, 9].map(width), [8, 1, 7, 8, 8].map(Ok));
    }

    #[test]
    fn placements_choose_as_documented() {
        for number in 0..100 {
            let ino = Ino(number);
            let of = |placement, local| layout_for(ino, &LayoutRequest { placement, local, ..WISH }).unwrap();
            let base = TargetIndex::new(PartitionId(3), base_target(ino, 8));
            assert_eq!(of(Placement::Striped, &[]).base, base);
            let hashed = of(Placement::Hashed, &[]);
            assert_eq!((hashed.width, hashed.base), (1, base));
            assert_eq!(of(Placement::Local, &[]), hashed);
            assert_eq!(of(Placement::Local, &[8]), hashed);
            assert_eq!(of(Placement::Local, &[99, 3]).base.position(), 3);
            assert!([2, 6].contains(&of(Placement::Local, &[2, 6]).base.position()));
        }
    }

    #[test]
    fn targets_of_dead_nodes_are_avoided_as_far_as_there_are_others() {
        let layout = |base, width| Layout {
            stripe: 4096,
            width,
            base: TargetIndex::new(PartitionId(3), base),
            targets: 6,
        };
        let around = |base, width, dead: &[u16]| {
            let found = avoiding(&layout(base, width), |target| dead.contains(&target));
            assert_eq!(found.check(), Ok(()));
            (found.base.position(), found.width)
        };
        assert_eq!(around(4, 3, &[]), (4, 3));
        assert_eq!(around(4, 3, &[2]), (4, 3), "none of its own");
        assert_eq!(around(2, 1, &[2, 3]), (4, 1));
        assert_eq!(around(4, 3, &[5]), (0, 3));
        assert_eq!(around(1, 6, &[5]), (0, 5), "all but one");
        assert_eq!(around(2, 6, &[0, 2]), (3, 3), "the longest row");
        assert_eq!(around(2, 6, &[0, 1, 2, 3, 4, 5]), (2, 6), "there are no others");
        for base in 0..6 {
            for width in 1..=6 {
                for dead in 0..63u16 {
                    let is_dead = |target: u16| dead >> target & 1 == 1;
                    let found = avoiding(&layout(base, width), is_dead);
                    let used = (0..found.width).map(|column| (found.base.position() + column) % 6);
                    assert!(
                        used.into_iter().all(|target| !is_dead(target)) && found.width >= 1,
                        "{base} {width} {dead}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_published_hash_goes_by_the_name_alone() {
        let base = |ino, name, placement| {
            let wish = LayoutRequest { hash: MasterHash::ByteSum, name, placement, ..WISH };
            layout_for(Ino(ino), &wish).unwrap().base.position()
        };
        for ino in 0..20 {
            assert_eq!(base(ino, b"ab", Placement::Striped), (97 + 98) % 8);
            assert_eq!(base(ino, b"ba", Placement::Hashed), (97 + 98) % 8);
        }
    }

    #[test]
    fn absurd_wishes_are_refused_by_name() {
        let refusal = |wish: LayoutRequest<'_>| layout_for(Ino(1), &wish).unwrap_err();
        assert!(refusal(LayoutRequest { targets: 0, ..WISH }).contains("width 0"));
        assert!(refusal(LayoutRequest { stripe: 1000, ..WISH }).contains("stripe size 1000"));
    }

    #[test]
    fn slots_are_dealt_out_evenly_and_in_order() {
        for (slots, nodes) in [(1024, 1), (1024, 3), (1024, 1000), (4096, 4096), (16, 64), (1, 7)] {
            let owners: Vec<u16> = (0..slots).map(|slot| slot_to_node(Slot(slot), slots, nodes).0).collect();
            assert!(owners.is_sorted() && owners.iter().all(|owner| *owner < nodes));
            let counts: Vec<usize> =
                (0..nodes).map(|node| owners.iter().filter(|owner| **owner == node).count()).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{slots} slots, {nodes} nodes: {least} to {most}");
        }
        assert_eq!(slot_to_node(Slot(9), 0, 4), NodeId(0));
        assert_eq!(slot_to_node(Slot(9), 8, 0), NodeId(0));
        assert_eq!(slot_to_node(Slot(u16::MAX), 8, 4), NodeId(3));
    }
}
