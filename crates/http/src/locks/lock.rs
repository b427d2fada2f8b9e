//! WebDAV locks: covered paths and conflicts.

use serde::{Deserialize, Serialize};

use crate::request_path::RequestPath;

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Lock token.
    pub token: String,
    /// Locked path, in the form of [`path`].
    pub path: String,
    /// True if everything below the path is locked, too.
    pub deep: bool,
    /// True for an exclusive lock.
    pub exclusive: bool,
    /// Owner as given by the client, as XML.
    pub owner: String,
    /// The id of the key that it was asked for with.
    pub key: String,
    /// Duration per refresh, in seconds.
    pub seconds: u64,
    /// Expiry, in seconds since 1970.
    pub expires: u64,
    /// True if the resource is still to be created, and the client has no response yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pending: bool,
}

/// Extent of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeScope {
    /// The content or the properties of what is at a path.
    Content,
    /// The entry itself, which is made or removed.
    Member,
    /// The entry and all that is below it.
    Tree,
}

/// Returns a path as locks have it: encoded, and without a slash at its end; empty for the root.
#[must_use]
pub fn path(target: &RequestPath) -> String {
    RequestPath { is_dir: false, ..target.clone() }.encoded()
}

/// Returns whether a path is below another one.
fn is_below(path: &str, top: &str) -> bool {
    // `/ab` is not below `/a`.
    path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

impl Lock {
    /// Returns whether the lock covers a path.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        self.path == path || self.deep && is_below(path, &self.path)
    }

    /// Returns whether the lock covers only a path or something below it.
    #[must_use]
    pub fn is_within(&self, path: &str) -> bool {
        self.path == path || is_below(&self.path, path)
    }
}

/// The key of a request and the lock tokens that it shows.
#[derive(Clone, Copy, Debug)]
pub struct TokenHolder<'a> {
    /// The key.
    pub key: &'a str,
    /// The tokens.
    pub tokens: &'a [String],
}

impl TokenHolder<'_> {
    fn has(&self, lock: &Lock) -> bool {
        // A token is no secret: PROPFIND shows it to every key.
        lock.key == self.key && self.tokens.contains(&lock.token)
    }

    /// Returns the first lock of those that is in the way: if there are several they are shared, and one of them is
    /// enough.
    fn stopped_by<'l>(&self, locks: impl Iterator<Item = &'l Lock> + Clone) -> Option<&'l Lock> {
        let mut all = locks.clone();
        if all.any(|lock| self.has(lock)) { None } else { locks.into_iter().next() }
    }
}

/// Returns a lock that prevents a change.
#[must_use]
pub fn stopped<'l>(
    locks: &'l [Lock],
    path: &str,
    reach: ChangeScope,
    shown: TokenHolder<'_>,
) -> Option<&'l Lock> {
    let over = |path: &str| {
        let path = path.to_owned();
        locks.iter().filter(move |lock| lock.covers(&path))
    };
    if let Some(lock) = shown.stopped_by(over(path)) {
        return Some(lock);
    }
    if reach == ChangeScope::Content {
        return None;
    }
    // A directory that is locked keeps its entries.
    let parent = path.rsplit_once('/').map(|(parent, _)| parent);
    if let Some(lock) = parent.and_then(|parent| shown.stopped_by(over(parent))) {
        return Some(lock);
    }
    if reach == ChangeScope::Member {
        return None;
    }
    locks.iter().filter(|lock| is_below(&lock.path, path)).find_map(|lock| shown.stopped_by(over(&lock.path)))
}

/// Returns the lock that another one cannot be beside, if there is one.
#[must_use]
pub fn conflicts<'l>(locks: &'l [Lock], new: &Lock) -> Option<&'l Lock> {
    let meets = |lock: &&Lock| lock.covers(&new.path) || new.covers(&lock.path);
    locks.iter().filter(meets).find(|lock| lock.exclusive || new.exclusive)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(token: &str, path: &str, deep: bool, exclusive: bool) -> Lock {
        Lock {
            token: token.into(),
            path: path.into(),
            deep,
            exclusive,
            owner: String::new(),
            key: "K".into(),
            seconds: 60,
            expires: 100,
            pending: false,
        }
    }

    /// S640.
    #[test]
    fn a_lock_keeps_others_from_what_it_covers() {
        let locks =
            [lock("d", "/d", false, true), lock("t", "/t", true, true), lock("f", "/x/f", true, true)];
        let stopped_by = |path: &str, reach, tokens: &[&str], key: &str| {
            let tokens: Vec<String> = tokens.iter().map(|token| (*token).to_owned()).collect();
            let by = stopped(&locks, path, reach, TokenHolder { key, tokens: &tokens });
            by.map(|lock| lock.token.clone())
        };
        let by = |token: &str| Some(token.to_owned());
        for (path, reach, expected) in [
            ("/d", ChangeScope::Content, by("d")),
            ("/d/f", ChangeScope::Content, None),
            ("/d/f", ChangeScope::Member, by("d")),
            ("/d/e/f", ChangeScope::Member, None),
            ("/d/f", ChangeScope::Tree, by("d")),
            ("/dd", ChangeScope::Tree, None),
            ("/t/a/b", ChangeScope::Content, by("t")),
            ("/tt", ChangeScope::Content, None),
            ("/x", ChangeScope::Content, None),
            ("/x", ChangeScope::Member, None),
            ("/x", ChangeScope::Tree, by("f")),
            ("", ChangeScope::Content, None),
            ("", ChangeScope::Tree, by("d")),
        ] {
            assert_eq!(stopped_by(path, reach, &[], "K"), expected, "{path} {reach:?}");
            assert_eq!(stopped_by(path, reach, &["d", "t", "f"], "K"), None, "{path} {reach:?}");
            assert_eq!(stopped_by(path, reach, &["d", "t", "f"], "L"), expected, "of another key");
        }
        assert_eq!(stopped_by("", ChangeScope::Tree, &["d", "t"], "K"), by("f"));
    }

    #[test]
    fn one_of_several_shared_locks_is_enough() {
        let locks = [lock("a", "/f", false, false), lock("b", "/f", false, false)];
        let tokens = ["b".to_owned()];
        assert_eq!(stopped(&locks, "/f", ChangeScope::Tree, TokenHolder { key: "K", tokens: &tokens }), None);
        assert!(stopped(&locks, "/f", ChangeScope::Content, TokenHolder { key: "K", tokens: &[] }).is_some());
    }

    #[test]
    fn locks_meet_above_and_below() {
        let has = [lock("a", "/d/f", false, false)];
        for (path, deep, exclusive, meets) in [
            ("/d/f", false, true, true),
            ("/d/f", false, false, false),
            ("/d", true, true, true),
            ("/d", true, false, false),
            ("/d", false, true, false),
            ("", true, true, true),
            ("/d/f/g", true, true, false),
            ("/d/ff", true, true, false),
        ] {
            let new = lock("n", path, deep, exclusive);
            assert_eq!(conflicts(&has, &new).is_some(), meets, "{path} {deep} {exclusive}");
        }
        assert!(conflicts(&[lock("a", "/d", true, true)], &lock("n", "/d/e/f", false, false)).is_some());
    }

    #[test]
    fn paths_are_written_in_one_way() {
        for (written, path_of) in [("/", ""), ("/a%20b/", "/a%20b"), ("//%61/b", "/a/b")] {
            assert_eq!(path(&RequestPath::parse(written).unwrap()), path_of);
        }
    }
}
