//! Work pools: named data sets with an owner, a group, an end and a history, in a database that many commands share.
//! There is no daemon: each command is one transaction. Time and the caller are arguments.

mod archiving;
mod attached;
pub mod calendar;
mod change;
mod changes;
mod database;
mod ending;
mod error;
mod listing;
mod model;
mod name;
mod pool_state;
mod reading;
mod reminders;
mod schema;
mod slots;
mod sql;
mod versions;

pub use archiving::ArchiveCopy;
pub use attached::{AttachRequest, AttachingFormation, Attachment};
pub use change::ChangeOrigin;
pub use changes::NewPool;
pub use database::Pools;
pub use ending::{ExpiryAction, Outcome};
pub use error::{PoolError, PoolResult};
pub use listing::{Entry, Listing};
pub use model::{Access, Caller, Event, Grantee, Pool, Share, SiteRules, is_url};
pub use name::{PoolName, PoolRef};
pub use pool_state::{Location, PoolState};
pub use reminders::{Address, Reminder};
pub use slots::{Announcement, Direction, JobForecast, ScheduledStage, SlotState, StartAnswer, is_unset};
pub use sql::ServerEnvironment;
pub use versions::{Origin, Version};

/// Bandwidth limits of site storage.
pub use bivouac_schedule::Limits as StorageLimits;
