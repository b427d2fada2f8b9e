//! The base of the house: identifiers, ranges, the one errno table, named limits and the
//! small options that every layer shares. Nothing here does I/O.

mod attr;
mod error;
mod ids;
mod layout;
pub mod limits;
mod name;
mod time;
pub mod units;

pub use attr::{Attr, SetAttr, SetTime, StatFs, mode};
pub use error::{Errno, FsError, FsResult};
pub use ids::{ClientId, FormationId, Ino, NodeId, OpId, OpenId, SeatIndex, Slot};
pub use layout::{Layout, Placement, check_stripe};
pub use name::Name;
pub use time::Timestamp;
