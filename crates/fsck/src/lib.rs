//! Check and repair of a formation: `bivouac fsck`.
//!
//! - [`check_online`] reads records and subfiles of a running formation page by page, and tells damage from change.
//! - [`check_offline`] does the same with the volumes of a stopped one, and repairs them if told to.
//! - [`scrub`] compares the content of a running formation with its checksums.
//! - [`rebuild_files`] makes files of a pile of subfiles whose records are gone.
//!
//! Everything is read once into packed rows (`facts.rs`, some hundred bytes per file), which the checks
//! (`checks/`, a file per group of invariants) compare with each other.

mod assemble;
mod checks;
mod derive;
mod facts;
mod finding;
mod gather;
mod offline;
mod online;
mod paths;
mod repair;
mod repair_action;
mod salvage;
mod scrub;
mod source;
mod stopped;
mod summary;
mod volumes;

pub use assemble::{Destination, RebuildResult, RebuiltFile, rebuild_files};
pub use finding::{Finding, Kind, Outcome, Report, Totals};
pub use offline::OfflineArgs;
pub use online::check_online;
pub use repair::RepairOptions;
pub use scrub::{ScrubArgs, ScrubReport, WrongContent, scrub};
pub use source::Progress;
pub use stopped::check_offline;
