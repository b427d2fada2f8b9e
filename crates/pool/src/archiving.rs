//! Archives of pools: the copy that an archive has, and where the data is since.

use crate::pool_state::{Location, PoolState};
use crate::sql::params;
use crate::{ChangeOrigin, Pool, PoolError, PoolRef, PoolResult, Pools, attached};

/// A copy in an archive.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveCopy<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Digest of its names and contents.
    pub digest: &'a str,
}

impl Pools {
    /// Returns the pool if it can be archived as it is now: the caller is its owner, it is live, and its data is on
    /// site storage.
    pub fn archivable(&self, change: &ChangeOrigin<'_>, meant: &PoolRef) -> PoolResult<Pool> {
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
    pub fn archived(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        copy: &ArchiveCopy<'_>,
    ) -> PoolResult<Pool> {
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
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        location: Location,
        inode: Option<u64>,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_be_own(change.who)?;
            // Copies in archives are never removed, so no pool becomes one without a copy again.
            if pool.archive.is_none() || location == Location::Site {
                let remedy = format!("make one: bivouac pool archive {} --to DIR", pool.name);
                return Err(PoolError::refused(pool.full_name(), "has no copy in an archive", remedy).into());
            }
            // One that is in the archive alone already can have no attachments.
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
    /// Refuses a pool that is attached, whose copy on site storage cannot be dropped.
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

    /// Refuses a pool whose data is not on site storage.
    ///
    /// # Errors
    /// That it is in an archive alone, and how to get it back.
    pub fn must_be_on_site(&self) -> PoolResult<()> {
        if self.location != Location::Archive || self.state == PoolState::Removed {
            return Ok(());
        }
        let path = String::from_utf8_lossy(self.archive.as_deref().unwrap_or_default());
        let path = bivouac_types::printable(&path);
        let remedy = format!("get it back with: bivouac pool restore {}", self.name);
        Err(PoolError::refused(self.full_name(), format!("its data is in an archive, {path}"), remedy))
    }
}
