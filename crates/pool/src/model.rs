//! What a pool is, and the rules: no clock, no files.

use serde::Serialize;

use crate::{Location, PoolError, PoolName, PoolRef, PoolResult};

/// Seconds of a day.
pub const DAY_S: i64 = 86_400;
/// The user whom no rule binds.
pub(crate) const ROOT: u32 = 0;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Effective user.
    pub uid: u32,
    /// All groups of the process.
    pub gids: Vec<u32>,
}

/// The site's rules, kept in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Most days that a pool is given at once.
    pub days_max: u32,
    /// Days of a pool that does not say.
    pub days_default: u32,
    /// How often it can be extended or restored.
    pub extensions: u32,
    /// Days after its end for which it can be restored.
    pub grace_days: u32,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { days_max: 100, days_default: 30, extensions: 3, grace_days: 14 }
    }
}

impl Rules {
    /// When a pool ends that is given `days` now.
    ///
    /// # Errors
    /// That it is more than one may have.
    pub(crate) fn end(&self, who: &Who, name: &PoolName, now_s: i64, days: Option<u32>) -> PoolResult<i64> {
        let days = days.unwrap_or(self.days_default.min(self.days_max));
        if days == 0 || days > self.days_max && who.uid != ROOT {
            let cause = format!("{days} days were asked for, and a pool has 1 to {} at once", self.days_max);
            return Err(PoolError::refused(name, cause, "ask for fewer, and extend it later"));
        }
        Ok(now_s.saturating_add(i64::from(days) * DAY_S))
    }

    /// When a pool that ended then may be removed.
    pub(crate) fn end_of_grace(&self, ended_s: i64) -> i64 {
        ended_s.saturating_add(i64::from(self.grace_days) * DAY_S)
    }
}

/// How far a pool is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// In use.
    Live,
    /// Its owner gave it up; it can be restored.
    Released,
    /// Its time is over; it can be restored.
    Expired,
    /// Its data is being removed.
    Removing,
    /// Its data is gone, if it was made for the pool; only its history is left.
    Removed,
}

impl State {
    const ALL: [State; 5] = [State::Live, State::Released, State::Expired, State::Removing, State::Removed];

    /// The state as the database and users have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Live => "live",
            State::Released => "released",
            State::Expired => "expired",
            State::Removing => "removing",
            State::Removed => "removed",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// What somebody may do with a pool's data. Greater is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Read.
    Ro,
    /// Read and write.
    Rw,
}

impl Access {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Access::Ro => "ro",
            Access::Rw => "rw",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Access> {
        [Access::Ro, Access::Rw].into_iter().find(|access| access.word() == word)
    }
}

/// Whom a pool is shared with.
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

    fn is(self, who: &Who) -> bool {
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
    /// To whom.
    pub to: Grantee,
    /// For what.
    pub access: Access,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Its number: what its history hangs on, also after its name was given to another.
    pub id: i64,
    /// Its name, one of those of its owner.
    pub name: String,
    /// Whose it is.
    pub owner: u32,
    /// The group of who made it.
    pub gid: u32,
    /// What people read about it.
    pub title: String,
    /// Directory or URL of site storage.
    #[serde(serialize_with = "as_text")]
    pub source: Vec<u8>,
    /// Whether the directory was made for the pool, and goes with it.
    pub is_made: bool,
    /// Number of that directory in its file system, so that no other is taken for it.
    #[serde(skip)]
    pub inode: u64,
    /// Bytes, as far as is known.
    pub bytes: Option<u64>,
    /// Files, as far as is known.
    pub files: Option<u64>,
    /// How far it is.
    pub state: State,
    /// When it was made, in seconds since 1970.
    pub created_s: i64,
    /// When it ends.
    pub expires_s: i64,
    /// When its end was noted.
    pub ended_s: Option<i64>,
    /// How often it can still be extended or restored.
    pub extensions_left: u32,
    /// How many days before its end somebody is reminded of it.
    pub remind_days: Option<u32>,
    /// Who is; for its owner to know.
    #[serde(skip)]
    pub mail: Option<String>,
    /// Where its data is.
    pub location: Location,
    /// Its copy in an archive.
    #[serde(serialize_with = "as_text_if_any")]
    pub archive: Option<Vec<u8>>,
    /// Digest of names and contents of that.
    pub archive_digest: Option<String>,
    /// When that was made.
    pub archived_s: Option<i64>,
    /// Who else may use it.
    pub shares: Vec<Share>,
}

fn as_text<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

fn as_text_if_any<S: serde::Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    bytes.as_deref().map(String::from_utf8_lossy).serialize(serializer)
}

impl Pool {
    /// The state at this time: who has not been noted as ended may have.
    #[must_use]
    pub fn state_at(&self, now_s: i64) -> State {
        match self.state {
            State::Live if now_s >= self.expires_s => State::Expired,
            state => state,
        }
    }

    /// What somebody may do with its data.
    #[must_use]
    pub fn access(&self, who: &Who) -> Option<Access> {
        if self.is_own(who) {
            return Some(Access::Rw);
        }
        self.shares.iter().filter(|share| share.to.is(who)).map(|share| share.access).max()
    }

    /// Whether somebody may change its life and its rights.
    #[must_use]
    pub fn is_own(&self, who: &Who) -> bool {
        who.uid == self.owner || who.uid == ROOT
    }

    /// How others than its owner mean it.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// How it is meant.
    pub(crate) fn meant(&self) -> PoolResult<PoolRef> {
        let damaged = |cause| PoolError::refused(self.full_name(), cause, "look at the database");
        Ok(PoolRef { owner: Some(self.owner), name: self.name.parse().map_err(damaged)?, id: Some(self.id) })
    }

    pub(crate) fn must_be_own(&self, who: &Who) -> PoolResult<()> {
        if self.is_own(who) {
            return Ok(());
        }
        let cause = format!("is user {}'s, and only they and root may do that", self.owner);
        Err(PoolError::refused(self.full_name(), cause, "ask them"))
    }

    pub(crate) fn must_allow(&self, who: &Who, wanted: Access) -> PoolResult<()> {
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
            State::Live => Ok(()),
            state => Err(PoolError::Ended { name: meant.clone(), state }),
        }
    }

    /// Takes one of its extensions; root has no number of them.
    pub(crate) fn one_extension_less(&self, who: &Who) -> PoolResult<u32> {
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
    /// When, in seconds since 1970.
    pub at_s: i64,
    /// By whom.
    pub uid: u32,
    /// What.
    pub what: String,
    /// More about it.
    pub detail: String,
}
