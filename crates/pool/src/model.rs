//! Pools and their rules, without clock or files.

use std::fmt;

use serde::Serialize;

use crate::pool_state::{Location, PoolState};
use crate::{PoolError, PoolName, PoolRef, PoolResult};

/// Seconds of a day.
pub const DAY_S: i64 = 86_400;
/// The user whom no rule binds.
pub(crate) const ROOT: u32 = 0;

/// The caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// All groups of the process.
    pub gids: Vec<u32>,
}

/// The site's rules, kept in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SiteRules {
    /// Upper limit of a pool's lifetime per grant, in days.
    pub days_max: u32,
    /// Days of a pool that does not say.
    pub days_default: u32,
    /// Number of times that a pool can be extended or restored.
    pub extensions: u32,
    /// Days after its end for which it can be restored.
    pub grace_days: u32,
}

impl Default for SiteRules {
    fn default() -> SiteRules {
        SiteRules { days_max: 100, days_default: 30, extensions: 3, grace_days: 14 }
    }
}

impl SiteRules {
    /// Returns the end of a pool whose lifetime starts now.
    ///
    /// # Errors
    /// That it is more than one may have.
    pub(crate) fn end(
        &self,
        who: &Caller,
        name: &PoolName,
        now_s: i64,
        days: Option<u32>,
    ) -> PoolResult<i64> {
        // A site may have lowered the one rule without the other.
        let days = days.unwrap_or(self.days_default.min(self.days_max));
        if days == 0 || days > self.days_max && who.uid != ROOT {
            let cause = format!("{days} days were asked for, and a pool has 1 to {} at once", self.days_max);
            return Err(PoolError::refused(name, cause, "ask for fewer, and extend it later"));
        }
        Ok(now_s.saturating_add(i64::from(days) * DAY_S))
    }

    /// Returns the end of the time of grace.
    pub(crate) fn end_of_grace(&self, ended_s: i64) -> i64 {
        ended_s.saturating_add(i64::from(self.grace_days) * DAY_S)
    }
}

/// Returns whether a source or an archive is a URL, and not a directory.
#[must_use]
pub fn is_url(source: &[u8]) -> bool {
    // The name of a directory may have `://` in it.
    source.windows(3).any(|three| three == b"://") && !source.starts_with(b"/")
}

bivouac_types::words! {
    /// Access to a pool's data, in ascending order.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    Access ("access") {
        /// Read.
        Ro = "ro",
        /// Read and write.
        Rw = "rw",
    }
}

/// User or group that a pool is shared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grantee {
    /// A user.
    User(u32),
    /// Members of a group.
    Group(u32),
    /// Everybody.
    All,
}

impl Grantee {
    pub(crate) fn columns(self) -> (&'static str, u32) {
        match self {
            Grantee::User(id) => ("user", id),
            Grantee::Group(id) => ("group", id),
            Grantee::All => ("all", 0),
        }
    }

    pub(crate) fn of_columns(kind: &str, id: u32) -> Option<Grantee> {
        let known = [Grantee::User(id), Grantee::Group(id), Grantee::All];
        known.into_iter().find(|grantee| grantee.columns().0 == kind)
    }

    fn is(self, who: &Caller) -> bool {
        match self {
            Grantee::User(uid) => uid == who.uid,
            Grantee::Group(gid) => who.gids.contains(&gid),
            Grantee::All => true,
        }
    }
}

/// A right that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The grantee.
    pub to: Grantee,
    /// The access.
    pub access: Access,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Its number: what its history hangs on, also after its name was given to another.
    pub id: i64,
    /// Its name, one of those of its owner.
    pub name: String,
    /// Its owner.
    pub owner: u32,
    /// Group id of its creator.
    pub gid: u32,
    /// Description.
    pub title: String,
    /// Directory or URL of site storage.
    #[serde(serialize_with = "as_text")]
    pub source: Vec<u8>,
    /// True if the directory was created for the pool and is removed with it.
    pub is_made: bool,
    /// Number of that directory in its file system, so that no other is taken for it.
    #[serde(skip)]
    pub inode: u64,
    /// Bytes, if known.
    pub bytes: Option<u64>,
    /// Files, if known.
    pub files: Option<u64>,
    /// State.
    pub state: PoolState,
    /// Creation time, in seconds since 1970.
    pub created_s: i64,
    /// End of its lifetime.
    pub expires_s: i64,
    /// Time at which its end was recorded.
    pub ended_s: Option<i64>,
    /// Remaining extensions and restorations.
    pub extensions_left: u32,
    /// Days before its end at which a reminder is sent.
    pub remind_days: Option<u32>,
    /// Recipient of the reminder; shown only to the owner.
    #[serde(skip)]
    pub mail: Option<String>,
    /// Location of its data.
    pub location: Location,
    /// Its copy in an archive.
    #[serde(serialize_with = "as_text_if_any")]
    pub archive: Option<Vec<u8>>,
    /// Digest of names and contents of that.
    pub archive_digest: Option<String>,
    /// Time of archiving.
    pub archived_s: Option<i64>,
    /// Access of other users.
    pub shares: Vec<Share>,
}

fn as_text<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

fn as_text_if_any<S: serde::Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    bytes.as_deref().map(String::from_utf8_lossy).serialize(serializer)
}

impl Pool {
    /// Returns the state at a time: the end of a pool may not have been recorded yet.
    #[must_use]
    pub fn state_at(&self, now_s: i64) -> PoolState {
        match self.state {
            PoolState::Live if now_s >= self.expires_s => PoolState::Expired,
            state => state,
        }
    }

    /// Returns the caller's access to the data.
    #[must_use]
    pub fn access(&self, who: &Caller) -> Option<Access> {
        if self.is_own(who) {
            return Some(Access::Rw);
        }
        self.shares.iter().filter(|share| share.to.is(who)).map(|share| share.access).max()
    }

    /// Returns whether the caller may change lifetime and access.
    #[must_use]
    pub fn is_own(&self, who: &Caller) -> bool {
        who.uid == self.owner || who.uid == ROOT
    }

    /// Returns the name by which users other than its owner refer to it.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// Returns the reference to the pool.
    pub(crate) fn meant(&self) -> PoolResult<PoolRef> {
        let damaged = |cause| PoolError::refused(self.full_name(), cause, "look at the database");
        Ok(PoolRef { owner: Some(self.owner), name: self.name.parse().map_err(damaged)?, id: Some(self.id) })
    }

    pub(crate) fn must_be_own(&self, who: &Caller) -> PoolResult<()> {
        if self.is_own(who) {
            return Ok(());
        }
        let cause = format!("is user {}'s, and only they and root may do that", self.owner);
        Err(PoolError::refused(self.full_name(), cause, "ask them"))
    }

    pub(crate) fn must_allow(&self, who: &Caller, wanted: Access) -> PoolResult<()> {
        if self.access(who).is_some_and(|access| access >= wanted) {
            return Ok(());
        }
        let cause = format!("you may not use it {}", wanted.word());
        let remedy =
            format!("its owner can change that: bivouac pool share {} --{}", self.name, wanted.word());
        Err(PoolError::refused(self.full_name(), cause, remedy))
    }

    pub(crate) fn must_live(&self, meant: &PoolRef, now_s: i64) -> PoolResult<()> {
        match self.state_at(now_s) {
            PoolState::Live => Ok(()),
            state => Err(PoolError::Ended { name: meant.clone(), state }),
        }
    }

    /// Takes one of its extensions; root has no number of them.
    pub(crate) fn one_extension_less(&self, who: &Caller) -> PoolResult<u32> {
        match (self.extensions_left.checked_sub(1), who.uid) {
            (Some(left), _) => Ok(left),
            (None, ROOT) => Ok(0),
            (None, _) => {
                let remedy = "copy the data elsewhere, or ask an administrator to extend it";
                Err(PoolError::refused(
                    self.full_name(),
                    "it has been extended as often as is allowed",
                    remedy,
                ))
            }
        }
    }
}

/// Something that happened to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Time, in seconds since 1970.
    pub at_s: i64,
    /// User id.
    pub uid: u32,
    /// Operation.
    pub what: String,
    /// Details.
    pub detail: String,
}

/// Rights in one line.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Grantee::User(id) => write!(f, "user {id}: {}", self.access.word()),
            Grantee::Group(id) => write!(f, "group {id}: {}", self.access.word()),
            Grantee::All => write!(f, "all: {}", self.access.word()),
        }
    }
}
