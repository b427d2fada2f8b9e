//! Locks of WebDAV (RFC 4918, 6), which all that changes files honours, whatever it is asked by.

mod condition;
mod ended;
mod guard;
mod lock;
mod table;

pub use ended::{forget, is_gone};
pub use guard::{LockConditions, RequestHead, locked};
pub use lock::{ChangeScope, Lock, conflicts, path};
pub use table::{all, change, has_room};

/// Parses arbitrary text and bytes.
#[cfg(test)]
pub fn fuzzed(text: &str, bytes: &[u8]) {
    if let Ok(lists) = condition::parse(text) {
        assert!(!lists.is_empty() && lists.iter().all(|list| !list.conditions.is_empty()));
    }
    table::fuzzed(bytes);
}
