//! Work pools: named data sets with an owner, a group, an end and a history, in a database that many commands share.
//! There is no daemon: each command is one transaction. Time and the caller are arguments.

mod attached;
mod changes;
mod counting;
mod database;
mod ending;
mod error;
mod model;
mod name;
mod reading;
mod slots;
mod sql;

pub use attached::{Attachment, Former, Wanted};
pub use changes::{Change, New};
pub use database::Pools;
pub use ending::{Due, Outcome};
pub use error::{PoolError, PoolResult};
pub use model::{Access, Event, Grantee, Pool, Rules, Share, State, Who};
pub use name::{PoolName, PoolRef};
pub use slots::{Announcement, Begun, Expected, SlotState, Slotted, Way, is_unset};

/// What site storage gives to stages.
pub use bivouac_schedule::Limits as StorageLimits;
