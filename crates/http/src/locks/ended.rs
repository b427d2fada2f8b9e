//! Locks that end with what they are of.

use bivouac_types::Errno;

use super::lock::{self, Lock};
use super::table;
use crate::error_response::ErrorResponse;
use crate::request_path::RequestPath;
use crate::tree::Tree;

/// Returns whether a locked resource was removed by an application, so that the lock has no effect any more.
pub fn is_gone(tree: &Tree, lock: &Lock) -> bool {
    let Ok(target) = RequestPath::parse(&format!("/{}", lock.path)) else { return false };
    let found = tree.client().and_then(|client| client.find(&target.path(), true));
    // Where a lock is pending there is nothing yet.
    !lock.pending && found.is_err_and(|error| matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR))
}

/// Ends a lock if there is nothing any more where it is. Whether it has ended.
pub fn end_if_gone(tree: &Tree, lock: &Lock) -> Result<bool, ErrorResponse> {
    if !is_gone(tree, lock) {
        return Ok(false);
    }
    table::change(tree, |all, _| {
        let Some(at) = all.iter().position(|other| other.token == lock.token) else { return Ok(true) };
        // Once more under the lock: it may have been made anew since.
        let is_gone = is_gone(tree, lock);
        if is_gone {
            all.remove(at);
        }
        Ok(is_gone)
    })
}

/// Ends those of some locks that are of what is not at a path any more, and below. One that was given since is of what
/// is there since.
pub fn forget(tree: &Tree, seen: &[Lock], target: &RequestPath) -> Result<(), ErrorResponse> {
    let path = lock::path(target);
    // Mostly there is none, and the table need not be read again.
    if !seen.iter().any(|lock| lock.is_within(&path)) {
        return Ok(());
    }
    table::change(tree, |all, _| {
        end_within(&path, seen, all);
        Ok(())
    })
}

fn end_within(path: &str, seen: &[Lock], all: &mut Vec<Lock>) {
    let was_seen = |lock: &Lock| seen.iter().any(|before| before.token == lock.token);
    all.retain(|lock| !(lock.is_within(path) && was_seen(lock)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_that_were_seen_end_with_what_is_removed() {
        let lock = |token: &str, path: &str| Lock {
            token: token.into(),
            path: path.into(),
            deep: false,
            exclusive: true,
            owner: String::new(),
            key: "K".into(),
            seconds: 60,
            expires: 100,
            pending: false,
        };
        let seen = [lock("a", "/d/f"), lock("b", "/x")];
        let mut all = vec![lock("a", "/d/f"), lock("b", "/x"), lock("c", "/d/f")];
        end_within("/d", &seen, &mut all);
        assert_eq!(all, [lock("b", "/x"), lock("c", "/d/f")]);
    }
}
