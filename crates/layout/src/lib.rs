//! Placement of data: pure arithmetic from a file's layout, an inode number or a name to targets,
//! slots and nodes.
//!
//! - [`locate`], [`file_offset`], [`split`], [`subfile_len`], [`file_size_from`]: bytes of a file ↔ bytes of
//!   its subfiles. Stripes `k`, `k + width`, … of one target are adjacent in its subfile, so that a contiguous
//!   range of the file is at most one contiguous range per target.
//! - [`entry_hash`], [`slot_of_hash`], [`dir_slot`], [`slot_to_node`]: names → slots → nodes.
//! - [`runs`], [`placed`], [`part_of`], [`fill`], [`zero_behind`]: many places of one subfile, accessed together where
//!   they are neighbours.
//! - [`base_target`], [`layout_for`]: the layout of a new file.
//!
//! Every function is total: it returns for every input, also for layouts that [`Layout::check`] would
//! refuse, though only for those that it accepts is the answer meaningful.
//!
//! [`Layout::check`]: bivouac_types::Layout::check

mod hash;
mod place;
mod runs;
mod split;
mod stripes;

pub use hash::{
    COOKIE_FIRST, HASH_BITS, base_target, byte_sum_hash, dir_slot, entry_hash, first_hash_of_slot,
    slot_of_hash,
};
pub use place::{LayoutRequest, avoiding, layout_for, slot_to_node};
pub use runs::{fill, part_of, placed, runs, zero_behind};
pub use split::{Piece, Pieces, TargetRange, TargetRanges, split};
pub use stripes::{Location, file_offset, file_size_from, locate, subfile_len, target_of, targets_of};
