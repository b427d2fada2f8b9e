//! How much a pool holds, as somebody has counted it.

use crate::sql::params;
use crate::{Access, Change, Pool, PoolRef, PoolResult, Pools};

impl Pools {
    /// Notes how much a pool holds now: what announcements count with from then on.
    ///
    /// # Errors
    /// That it has ended, or that the caller may not write it.
    pub fn count(
        &mut self,
        change: &Change<'_>,
        meant: &PoolRef,
        bytes: u64,
        files: u64,
    ) -> PoolResult<Pool> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.change(change, meant, |transaction, pool| {
            pool.must_live(meant, change.now_s)?;
            pool.must_allow(change.who, Access::Rw)?;
            transaction.execute(
                "UPDATE pool SET bytes = ?2, files = ?3 WHERE id = ?1",
                params![pool.id, signed(bytes), signed(files)],
            )?;
            change.note(transaction, pool.id, "count", &format!("{files} files, {bytes} bytes"))
        })
    }
}
