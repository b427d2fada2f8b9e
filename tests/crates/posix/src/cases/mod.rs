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

/// Cases on one subject.
pub struct Group {
    /// The subject.
    pub subject: &'static str,
    /// What makes its cases.
    pub cases: fn() -> Vec<Case>,
}

/// The whole table.
pub const GROUPS: [Group; 13] = [
    Group { subject: "paths that lead nowhere, for 31 calls", cases: paths::cases },
    Group { subject: "files of all seven kinds", cases: kinds::cases },
    Group { subject: "opening: flags, positions, running programs", cases: opens::cases },
    Group { subject: "content: reads, writes, holes, mappings, copies", cases: data::cases },
    Group { subject: "truncation", cases: sizes::cases },
    Group { subject: "open without a name; working directories", cases: unlinked::cases },
    Group { subject: "hard and symbolic links, odd and deep names", cases: links::cases },
    Group { subject: "renames: everything over everything, with all flags", cases: renames::cases },
    Group { subject: "directories: listings, cookies, links; statx, statvfs", cases: dirs::cases },
    Group { subject: "times: which call changes which", cases: times::cases },
    Group { subject: "permissions of owner, group, others, root; sticky", cases: permissions::cases },
    Group { subject: "set-id bits", cases: set_id::cases },
    Group { subject: "extended attributes", cases: xattrs::cases },
];

/// All cases.
#[must_use]
pub fn all() -> Vec<Case> {
    GROUPS.iter().flat_map(|group| (group.cases)()).collect()
}
