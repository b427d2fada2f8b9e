//! Work pools: named data sets with an owner, a group, an end and a history, in a database that many commands share.
//! There is no daemon: each command is one transaction. Time and the caller are arguments.

mod archiving;
mod attached;
mod changes;
mod database;
mod ending;
mod error;
mod listing;
mod model;
mod name;
mod reading;
mod reminders;
mod slots;
mod sql;
mod versions;

pub use archiving::{Copy, Location};
pub use attached::{Attachment, Former, Wanted};
pub use changes::{Change, New};
pub use database::Pools;
pub use ending::{Due, Outcome};
pub use error::{PoolError, PoolResult};
pub use listing::{Entry, Listing};
pub use model::{Access, Event, Grantee, Pool, Rules, Share, State, Who};
pub use name::{PoolName, PoolRef};
pub use reminders::{Address, Reminder};
pub use slots::{Announcement, Begun, Expected, SlotState, Slotted, Way, is_unset};
pub use sql::ServerEnvironment;
pub use versions::{Origin, Version};

/// What site storage gives to stages.
pub use bivouac_schedule::Limits as StorageLimits;
