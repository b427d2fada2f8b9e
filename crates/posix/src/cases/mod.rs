//! All cases, by subject.

mod data;
mod dirs;
mod kinds;
mod links;
mod opens;
mod paths;
mod permissions;
mod renames;
mod set_id;
mod sizes;
mod times;
mod unlinked;
mod xattrs;

use crate::case::Case;

/// The whole table.
#[must_use]
pub fn all() -> Vec<Case> {
    let groups = [
        paths::cases,
        kinds::cases,
        opens::cases,
        data::cases,
        sizes::cases,
        unlinked::cases,
        links::cases,
        renames::cases,
        dirs::cases,
        times::cases,
        permissions::cases,
        set_id::cases,
        xattrs::cases,
    ];
    groups.iter().flat_map(|group| group()).collect()
}
