//! Versions of a pool: what its directory held whenever something had been written there.

use serde::Serialize;

use crate::change::reread;
use crate::database::TransactionResult;
use crate::listing::Listing;
use crate::slots::signed;
use crate::sql::{Row, Transaction, Value, params};
use crate::{Access, ChangeOrigin, Pool, PoolRef, PoolResult, Pools};

const COLUMNS: &str = "number, at_s, uid, what, job, files, bytes, added, changed, removed, digest";

/// Origin of a change of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The operation: `stage out`, `drain of FORMATION`, `count`.
    pub what: String,
    /// The job of a batch system in which it was done, if it was in one.
    pub job: String,
}

/// A recorded state of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Version {
    /// Its number, from 1 on.
    pub number: i64,
    /// Time of the record, in seconds since 1970.
    pub at_s: i64,
    /// User id.
    pub uid: u32,
    /// The operation before it.
    pub what: String,
    /// Batch job; empty if there was none.
    pub job: String,
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries that the version before did not have; nothing where there are too many to compare.
    pub added: Option<u64>,
    /// Entries with another size or time than before.
    pub changed: Option<u64>,
    /// Entries that only the version before had.
    pub removed: Option<u64>,
    /// Digest of names, sizes and times; contents are not read.
    pub digest: String,
}

impl Pools {
    /// Notes what a pool holds now: what announcements count with from then on, and, if that is not what its last
    /// version held, a new version.
    ///
    /// # Errors
    /// That it has ended, or that the caller may not write it.
    pub fn count(
        &mut self,
        change: &ChangeOrigin<'_>,
        meant: &PoolRef,
        listing: &Listing,
        origin: &Origin,
    ) -> PoolResult<Pool> {
        self.change(change, meant, |transaction, pool| {
            pool.must_live(meant, change.now_s)?;
            pool.must_allow(change.who, Access::Rw)?;
            let (files, bytes) = (signed(listing.files), signed(listing.bytes));
            transaction.execute(
                "UPDATE pool SET bytes = ?2, files = ?3 WHERE id = ?1",
                params![pool.id, bytes, files],
            )?;
            note(transaction, change, pool, listing, origin)?;
            change.note(transaction, pool.id, "count", &format!("{files} files, {bytes} bytes"))
        })
    }

    /// Records the content of a pool at the end of a formation that had it attached, also after the pool's end.
    ///
    /// # Errors
    /// That it is gone, or that the caller may not write it.
    pub fn drained(
        &mut self,
        change: &ChangeOrigin<'_>,
        id: i64,
        listing: &Listing,
        origin: &Origin,
    ) -> PoolResult<Pool> {
        self.in_transaction(|transaction| {
            // By number: its name may be another pool's since it ended.
            let pool = reread(transaction, id)?;
            pool.must_allow(change.who, Access::Rw)?;
            transaction.execute(
                "UPDATE pool SET bytes = ?2, files = ?3 WHERE id = ?1",
                params![pool.id, signed(listing.bytes), signed(listing.files)],
            )?;
            note(transaction, change, &pool, listing, origin)?;
            reread(transaction, id)
        })
    }

    /// Returns the versions of a pool, in order.
    pub fn versions(&self, pool: &Pool) -> PoolResult<Vec<Version>> {
        let order = format!("SELECT {COLUMNS} FROM pool_version WHERE pool = ?1 ORDER BY number");
        self.connection.rows(&order, params![pool.id], version).map_err(|error| self.failed(&error))
    }
}

fn version(row: &Row) -> crate::sql::SqlResult<Version> {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let some = |column: usize| Ok::<_, crate::sql::SqlError>(row.get::<Option<i64>>(column)?.map(count));
    Ok(Version {
        number: row.get(0)?,
        at_s: row.get(1)?,
        uid: row.get(2)?,
        what: row.get(3)?,
        job: row.get(4)?,
        files: count(row.get(5)?),
        bytes: count(row.get(6)?),
        added: some(7)?,
        changed: some(8)?,
        removed: some(9)?,
        digest: row.get(10)?,
    })
}

/// The previous version.
struct PreviousVersion {
    number: i64,
    digest: String,
    entries: u64,
    listing: Vec<u8>,
}

fn last(transaction: &Transaction<'_>, pool: &Pool) -> TransactionResult<Option<PreviousVersion>> {
    let order = "SELECT number, digest, entries, listing FROM pool_version WHERE pool = ?1 ORDER BY number DESC LIMIT 1";
    let read = |row: &Row| {
        let entries = u64::try_from(row.get::<i64>(2)?).unwrap_or(0);
        Ok(PreviousVersion { number: row.get(0)?, digest: row.get(1)?, entries, listing: row.get(3)? })
    };
    Ok(transaction.row(order, params![pool.id], read)?)
}

/// Notes a version, if it is another one than the last.
fn note(
    transaction: &Transaction<'_>,
    change: &ChangeOrigin<'_>,
    pool: &Pool,
    listing: &Listing,
    origin: &Origin,
) -> TransactionResult<()> {
    let (last, digest) = (last(transaction, pool)?, listing.digest());
    // A pool that was just made would begin its versions with an empty directory.
    let is_first_and_empty = last.is_none() && listing.entries() == 0;
    if is_first_and_empty || last.as_ref().is_some_and(|last| last.digest == digest) {
        return Ok(());
    }
    let difference = match &last {
        None => listing.since(0, &[]),
        Some(last) => listing.since(last.entries, &last.listing),
    };
    let number = last.map_or(1, |last| last.number.saturating_add(1));
    let some =
        |of: fn(&crate::listing::Difference) -> u64| difference.as_ref().map(|found| signed(of(found)));
    let values: &[Value] = params![
        pool.id,
        number,
        change.now_s,
        change.who.uid,
        origin.what,
        origin.job,
        signed(listing.files),
        signed(listing.bytes),
        signed(listing.entries()),
        some(|found| found.added),
        some(|found| found.changed),
        some(|found| found.removed),
        digest,
        listing.to_bytes()
    ];
    // Only the latest version is compared with, so earlier listings only take space.
    transaction.execute(
        "UPDATE pool_version SET listing = ?2 WHERE pool = ?1",
        params![pool.id, Vec::<u8>::new()],
    )?;
    transaction.execute(
        "INSERT INTO pool_version (pool, number, at_s, uid, what, job, files, bytes, entries, added, changed, removed, digest,
         listing) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        values,
    )?;
    let plain = ChangeOrigin { request: None, ..change.clone() };
    plain.note(transaction, pool.id, "version", &format!("{number}: {}", origin.what))
}
