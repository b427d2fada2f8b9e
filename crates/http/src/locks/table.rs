//! Lock tables, stored in the formation, so that they hold on all of its servers and survive restarts.
//!
//! The table is an extended attribute of the root directory whose name has a number in it; the highest counts. A change
//! makes the one with the next number, which only one of several servers can, and removes those below. Who has read a
//! table that was replaced twice since may succeed in making a number that is past; it sees the higher one, and begins
//! anew.

use std::collections::BTreeSet;

use bivouac_client::Client;
use bivouac_types::limits::XATTR_VALUE_LEN_MAX;
use bivouac_types::{Errno, FsError, FsResult, Ino};
use hyper::StatusCode;

use super::lock::Lock;
use crate::error_response::ErrorResponse;
use crate::keys;
use crate::tree::Tree;

/// Prefix of a table's attribute. Only a privileged user sees such attributes in a mount.
const ATTRIBUTE: &str = "trusted.bivouac.dav.";
/// Attempts of a change in competition with other servers.
const TRIES: usize = 64;
/// `XATTR_CREATE` of the kernel.
const CREATE: u32 = 1;

fn attribute(number: u64) -> Vec<u8> {
    format!("{ATTRIBUTE}{number}").into_bytes()
}

/// Returns the numbers of all tables that are there.
fn numbers(client: &Client) -> FsResult<BTreeSet<u64>> {
    let names = client.listxattr(Ino::ROOT)?;
    let texts = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Ok(texts.filter_map(|name| name.strip_prefix(ATTRIBUTE)?.parse().ok()).collect())
}

/// Returns the table that counts, with its number; 0 if there is none yet.
fn table(client: &Client) -> FsResult<(u64, Vec<Lock>)> {
    for _ in 0..TRIES {
        let Some(number) = numbers(client)?.last().copied() else { return Ok((0, Vec::new())) };
        match client.getxattr(Ino::ROOT, &attribute(number)) {
            Ok(value) => return Ok((number, parse(&value)?)),
            // Replaced by another server.
            Err(error) if error.errno() == Errno::ENODATA => {}
            Err(error) => return Err(error),
        }
    }
    Err(FsError::with(Errno::EAGAIN, "the table of locks changes all the time"))
}

fn parse(value: &[u8]) -> FsResult<Vec<Lock>> {
    let damaged =
        |error: serde_json::Error| FsError::with(Errno::EIO, format!("the table of locks: {error}"));
    serde_json::from_slice(value).map_err(damaged)
}

/// Returns all locks that have not ended.
pub fn all(tree: &Tree) -> FsResult<Vec<Lock>> {
    let (_, mut locks) = table(tree.client()?)?;
    let now = keys::now();
    locks.retain(|lock| lock.expires > now);
    Ok(locks)
}

/// Changes the table. `act` may be called again if another server was faster; its argument tells whether an earlier
/// attempt may have been stored.
///
/// # Errors
/// Errors of `act` or of the formation; 507 if there are too many locks.
pub fn change<T>(
    tree: &Tree,
    mut act: impl FnMut(&mut Vec<Lock>, bool) -> Result<T, ErrorResponse>,
) -> Result<T, ErrorResponse> {
    // Only other servers have to be competed with.
    let _alone = tree.lock_table.lock();
    let client = tree.client()?;
    let mut was_made = false;
    for _ in 0..TRIES {
        let (number, mut locks) = table(client)?;
        let before = locks.clone();
        let now = keys::now();
        locks.retain(|lock| lock.expires > now);
        let done = act(&mut locks, was_made)?;
        if locks == before {
            return Ok(done);
        }
        let next = number + 1;
        if !make(tree, next, &locks)? {
            continue;
        }
        was_made = true;
        // The change is stored: without the numbers it is looked at again, and `act` finds what it made.
        let Ok(numbers) = numbers(client) else { continue };
        if numbers.last().is_some_and(|last| *last > next) {
            // If it cannot be removed, the next change does that: the higher one counts.
            if let Err(error) = remove(tree, next) {
                log::warn!(why:% = error; "a table of locks that is past is left");
            }
            continue;
        }
        for past in numbers.range(..next) {
            // The change is made, and the next one removes what is left of earlier tables.
            if let Err(error) = remove(tree, *past) {
                log::warn!(why:% = error; "an earlier table of locks is left");
            }
        }
        return Ok(done);
    }
    Err(FsError::with(Errno::EAGAIN, "the table of locks changes all the time").into())
}

/// Returns whether another lock is permitted: a key gets at most half of what the others leave.
#[must_use]
pub fn has_room(all: &[Lock], wanted: &Lock) -> bool {
    // With what is between two of them.
    let len = |lock: &Lock| serde_json::to_vec(lock).unwrap_or_default().len() + 1;
    let (own, others): (Vec<_>, Vec<_>) = all.iter().partition(|lock| lock.key == wanted.key);
    let sum = |locks: Vec<&Lock>| locks.into_iter().map(len).sum::<usize>();
    2 * (sum(own) + len(wanted)) + sum(others) <= XATTR_VALUE_LEN_MAX
}

/// Creates a table; returns false if it exists.
fn make(tree: &Tree, number: u64, locks: &[Lock]) -> Result<bool, ErrorResponse> {
    let value = serde_json::to_vec(locks).unwrap_or_default();
    if value.len() > XATTR_VALUE_LEN_MAX {
        let text = "there are too many locks; try again when some of them have ended";
        return Err(ErrorResponse::new(StatusCode::INSUFFICIENT_STORAGE, text));
    }
    let change = tree.member().change()?;
    match tree.client()?.setxattr(&change.ctx, Ino::ROOT, &attribute(number), &value, CREATE) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Errno::EEXIST => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remove(tree: &Tree, number: u64) -> FsResult<()> {
    let change = tree.member().change()?;
    match tree.client()?.removexattr(&change.ctx, Ino::ROOT, &attribute(number)) {
        // Another server has.
        Err(error) if error.errno() == Errno::ENODATA => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
pub fn fuzzed(bytes: &[u8]) {
    let _ = parse(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_takes_all_the_room() {
        let lock = |key: usize, number: usize| Lock {
            token: format!("{key} {number}"),
            path: format!("/{key}/{number}"),
            deep: true,
            exclusive: true,
            owner: "o".repeat(1024),
            key: format!("{key}"),
            seconds: 86_400,
            expires: u64::from(u32::MAX),
            pending: false,
        };
        let mut all = Vec::new();
        let counts: Vec<usize> = (0..4)
            .map(|key| {
                let before = all.len();
                while has_room(&all, &lock(key, all.len())) {
                    all.push(lock(key, all.len()));
                }
                all.len() - before
            })
            .collect();
        assert!(counts[0] > 20 && counts.iter().all(|count| *count > 0), "{counts:?}");
        assert!(serde_json::to_vec(&all).unwrap().len() <= XATTR_VALUE_LEN_MAX);
        all.retain(|lock| lock.key == "0");
        assert!(!has_room(&all, &lock(0, 99)) && has_room(&all, &lock(9, 0)));
    }
}
