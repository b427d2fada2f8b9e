//! `bivouac pool count`, and what counts by itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bivouac_launch::Environment;
use bivouac_pool::{Access, Caller, Pool, PoolRef, is_url};
use bivouac_types::units::{format_count, format_size};

use super::pool::{changing, opened};
use crate::failure::Failure;
use crate::options::{DatabaseArgs, PoolChangeArgs};
use crate::pools::now_s;
use crate::versions::{listing, origin};

/// Counts what a pool holds, and says it.
///
/// # Errors
/// That it may not be written, that its data cannot be looked at, or is not a directory.
pub fn run(here: &Environment, who: &Caller, args: &PoolChangeArgs) -> Result<(), Failure> {
    let pool = count(here, who, &args.database, &args.pool, &args.request.request, "count")?;
    let (files, bytes) = (pool.files.unwrap_or(0), pool.bytes.unwrap_or(0));
    outln!("pool {} holds {} in {}", pool.name, format_size(bytes), format_count(files, "file"));
    Ok(())
}

/// Counts what a pool holds after something was done, by itself or by hand.
pub fn count(
    here: &Environment,
    who: &Caller,
    database: &DatabaseArgs,
    meant: &PoolRef,
    request: &Option<String>,
    what: &str,
) -> Result<Pool, Failure> {
    let mut pools = opened(here, database)?;
    let pool = pools.usable(who, meant, Access::Rw, now_s())?;
    if is_url(&pool.source) {
        let text = "is a bucket, which is not counted; say how much it is: bivouac pool announce --size";
        return Err(Failure::new(1, format_args!("pool {meant}: {text}")));
    }
    // Outside of the change: looking through a large tree takes minutes.
    let found = listing(Path::new(OsStr::from_bytes(&pool.source)))?;
    Ok(pools.count(&changing(who, request), meant, &found, &origin(what))?)
}
