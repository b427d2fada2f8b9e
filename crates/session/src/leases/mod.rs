//! Leases on what a client may cache: the attributes of an inode, or a name in a directory, also that there is none.
//! Gray and Cheriton, "Leases", SOSP 1989; see docs/decisions/0073-leases.md.

mod contention;
mod item;
mod slot;

pub use contention::Contenders;
pub use item::Item;
pub use slot::{ChangesAtPlace, LeaseHolder, SlotLeases};
