//! Where the data of a pool is: on site storage, in an archive, or both.

use serde::Serialize;

use crate::sql::params;
use crate::{Change, Pool, PoolError, PoolRef, PoolResult, Pools, State, attached};

pub(crate) const COLUMNS: &str = "
ALTER TABLE pool ADD COLUMN location TEXT NOT NULL DEFAULT 'site';
ALTER TABLE pool ADD COLUMN archive BLOB;
ALTER TABLE pool ADD COLUMN archive_digest TEXT;
ALTER TABLE pool ADD COLUMN archived_s INTEGER;
";

/// Where the data of a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Location {
    /// On site storage.
    Site,
    /// There, and as it was at some time in an archive.
    Both,
    /// In an archive alone.
    Archive,
}

impl Location {
    const ALL: [Location; 3] = [Location::Site, Location::Both, Location::Archive];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Location::Site => "site",
            Location::Both => "both",
            Location::Archive => "archive",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Location> {
        Location::ALL.into_iter().find(|location| location.word() == word)
    }
}

/// A copy in an archive.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Digest of its names and contents.
    pub digest: &'a str,
}

impl Pools {
    /// Whether a pool can be archived now, and as it is: who asks is its owner, it lives, and is on site storage.
    ///
    /// # Errors
    /// Why not.
    pub fn archivable(&self, change: &Change<'_>, meant: &PoolRef) -> PoolResult<Pool> {
        let pool = self.find(change.who, meant)?;
        pool.must_be_own(change.who)?;
        pool.must_live(meant, change.now_s)?;
        pool.must_be_on_site()?;
        Ok(pool)
    }

    /// Notes that an archive has a copy of all that a pool holds.
    ///
    /// # Errors
    /// That it is not the caller's, has ended, or is not on site storage.
    pub fn archived(&mut self, change: &Change<'_>, meant: &PoolRef, copy: &Copy<'_>) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            pool.must_live(meant, change.now_s)?;
            pool.must_be_on_site()?;
            transaction.execute(
                "UPDATE pool SET location = 'both', archive = ?2, archive_digest = ?3, archived_s = ?4 WHERE id = ?1",
                params![pool.id, copy.path, copy.digest, change.now_s],
            )?;
            change.note(transaction, pool.id, "archive", &String::from_utf8_lossy(copy.path))
        })
    }

    /// Notes where a pool is that has a copy in an archive: from when on it is there alone, its directory may be
    /// removed. With `inode` the directory that it has on site storage, or will have, is another one.
    ///
    /// # Errors
    /// That it is not the caller's, has no copy in an archive, or, if it shall be there alone, is attached or has no
    /// directory of its own.
    pub fn set_location(
        &mut self,
        change: &Change<'_>,
        meant: &PoolRef,
        location: Location,
        inode: Option<u64>,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            if pool.archive.is_none() || location == Location::Site {
                let remedy = format!("make one: bivouac pool archive {} --to DIR", pool.name);
                return Err(PoolError::refused(pool.full_name(), "has no copy in an archive", remedy).into());
            }
            if location == Location::Archive && pool.location != Location::Archive {
                pool.must_be_free(&attached::of(transaction, pool.id)?)?;
            }
            transaction.execute(
                "UPDATE pool SET location = ?2, inode = ?3 WHERE id = ?1",
                params![pool.id, location.word(), inode.unwrap_or(pool.inode).cast_signed()],
            )?;
            change.note(transaction, pool.id, "location", location.word())
        })
    }
}

impl Pool {
    /// Whether its copy on site storage can be given up.
    fn must_be_free(&self, attached: &[attached::Attachment]) -> PoolResult<()> {
        if !self.is_made {
            let remedy = "remove it yourself, if it is yours to remove; then: bivouac pool release";
            return Err(PoolError::refused(self.full_name(), "its data was there before the pool", remedy));
        }
        if let Some(one) = attached.first() {
            let cause = format!("is attached to formation {} on {}", one.formation, one.host);
            let remedy = format!("take that down first: bivouac down --name {}", one.formation);
            return Err(PoolError::refused(self.full_name(), cause, remedy));
        }
        Ok(())
    }

    /// Whether its data is on site storage.
    ///
    /// # Errors
    /// That it is in an archive alone, and how to get it back.
    pub fn must_be_on_site(&self) -> PoolResult<()> {
        if self.location != Location::Archive || self.state == State::Removed {
            return Ok(());
        }
        let path = String::from_utf8_lossy(self.archive.as_deref().unwrap_or_default());
        let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let remedy = format!("get it back with: bivouac pool restore {}", self.name);
        Err(PoolError::refused(self.full_name(), format!("its data is in an archive, {path}"), remedy))
    }
}
