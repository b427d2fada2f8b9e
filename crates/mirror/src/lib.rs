//! The rules of mirrored volumes, without input, output or clocks: who may serve until when (leases), whose changes a
//! backup takes (epochs and sessions), and what of a copy that is under way has to be sent (plans).
//!
//! A *primary* is the node whose volumes are mirrored; its *backup* is the node that keeps the replicas. Reasons:
//! docs/decisions/0140-mirrored-volumes.md.

mod channel;
mod copy_plan;
mod lease;
mod replica_epoch;

pub use channel::{Admission, Channel};
pub use copy_plan::{CopyPlan, FileState};
pub use lease::{BackupLease, PrimaryLease};
pub use replica_epoch::{NotSealed, PrimaryRefusal, ReplicaEpoch, SessionStart};
