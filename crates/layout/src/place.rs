//! The first map of slots to nodes, and the layout of a new file.

use bivouac_types::{Ino, Layout, MasterHash, NodeId, PartitionId, Placement, SeatIndex, Slot};

use crate::hash::{base_seat, byte_sum_hash};

/// What the layout of a new file is made from.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Its partition.
    pub partition: PartitionId,
    /// Bytes per stripe.
    pub stripe: u32,
    /// Seats to use; 0 or more than there are means all of them.
    pub width: u16,
    /// Seats of the partition.
    pub seats: u16,
    /// Rule for the base seat.
    pub placement: Placement,
    /// What decides on the base seat where the rule leaves it open.
    pub hash: MasterHash,
    /// The file's name, for [`MasterHash::ByteSum`].
    pub name: &'a [u8],
    /// Positions of the seats of the node through which the file is created, for [`Placement::Local`]; those that the
    /// partition does not have are left out, and without any the file is placed as [`Placement::Hashed`].
    pub local: &'a [u16],
}

/// The layout of a new file. Depends on the arguments only.
///
/// # Errors
/// A sentence of [`Layout::check`]: a stripe size that is not allowed, or no seats.
pub fn layout_for(ino: Ino, wish: &Wish<'_>) -> Result<Layout, String> {
    let (width, base) = match wish.placement {
        Placement::Striped => (all_if_zero(wish.width, wish.seats), master(ino, wish)),
        Placement::Hashed => (1, master(ino, wish)),
        Placement::Local => (1, local_seat(ino, wish).unwrap_or_else(|| master(ino, wish))),
    };
    let base = SeatIndex::new(wish.partition, base);
    let layout = Layout { stripe: wish.stripe, width, base, seats: wish.seats };
    layout.check().map(|()| layout)
}

/// The node of a slot in a new formation: each node has consecutive slots, all the same number within 1.
/// 0 for no nodes or no slots; a slot behind the last counts as the last.
#[must_use]
pub fn slot_to_node(slot: Slot, slots: u16, nodes: u16) -> NodeId {
    let last = slots.saturating_sub(1);
    let share = u32::from(slot.0.min(last)) * u32::from(nodes);
    NodeId(share.checked_div(u32::from(slots)).unwrap_or(0) as u16)
}

fn all_if_zero(width: u16, seats: u16) -> u16 {
    if width == 0 { seats } else { width.min(seats) }
}

/// The base seat that the hash decides on.
fn master(ino: Ino, wish: &Wish<'_>) -> u16 {
    match wish.hash {
        MasterHash::Xxh3 => base_seat(ino, wish.seats),
        MasterHash::ByteSum => byte_sum_hash(wish.name, wish.seats),
    }
}

/// One of the local seats; files take turns by their numbers.
fn local_seat(ino: Ino, wish: &Wish<'_>) -> Option<u16> {
    let usable = || wish.local.iter().filter(|seat| **seat < wish.seats);
    let count = u16::try_from(usable().count()).unwrap_or(u16::MAX);
    usable().nth(usize::from(base_seat(ino, count))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISH: Wish<'_> = Wish {
        partition: PartitionId(3),
        stripe: 1 << 20,
        width: 0,
        seats: 8,
        placement: Placement::Striped,
        hash: MasterHash::Xxh3,
        name: b"name",
        local: &[],
    };

    #[test]
    fn width_zero_is_all_seats_and_too_much_is_all_there_are() {
        let width = |width| layout_for(Ino(5), &Wish { width, ..WISH }).map(|l| l.width);
        assert_eq!([0, 1, 7, 8, 9].map(width), [8, 1, 7, 8, 8].map(Ok));
    }

    #[test]
    fn placements_choose_as_documented() {
        for number in 0..100 {
            let ino = Ino(number);
            let of = |placement, local| layout_for(ino, &Wish { placement, local, ..WISH }).unwrap();
            let base = SeatIndex::new(PartitionId(3), base_seat(ino, 8));
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
    fn the_published_hash_goes_by_the_name_alone() {
        let base = |ino, name, placement| {
            let wish = Wish { hash: MasterHash::ByteSum, name, placement, ..WISH };
            layout_for(Ino(ino), &wish).unwrap().base.position()
        };
        for ino in 0..20 {
            assert_eq!(base(ino, b"ab", Placement::Striped), (97 + 98) % 8);
            assert_eq!(base(ino, b"ba", Placement::Hashed), (97 + 98) % 8);
        }
    }

    #[test]
    fn absurd_wishes_are_refused_by_name() {
        let refusal = |wish: Wish<'_>| layout_for(Ino(1), &wish).unwrap_err();
        assert!(refusal(Wish { seats: 0, ..WISH }).contains("width 0"));
        assert!(refusal(Wish { stripe: 1000, ..WISH }).contains("stripe size 1000"));
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
