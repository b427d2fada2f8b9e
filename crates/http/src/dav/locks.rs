//! Which paths are locked, and what that keeps others from.

use serde::{Deserialize, Serialize};

use crate::target::Target;

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// What whoever has it shows.
    pub token: String,
    /// What is locked, as [`path`] writes it.
    pub path: String,
    /// Whether all that is below is locked, too.
    pub deep: bool,
    /// Whether nobody else has one.
    pub exclusive: bool,
    /// Who has it, in the client's words, as XML.
    pub owner: String,
    /// The id of the key that it was asked for with.
    pub key: String,
    /// For how many seconds it is given at a time.
    pub seconds: u64,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
    /// Whether what is locked is still to be made, and nobody has heard of the lock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pending: bool,
}

/// What somebody wants to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What a path has in it, or is said of it.
    Content,
    /// Whether there is anything at a path.
    Member,
    /// That, and all that is below.
    Tree,
}

/// A path as locks have it: encoded, and without a slash at its end; empty for the root.
#[must_use]
pub fn path(target: &Target) -> String {
    Target { is_dir: false, ..target.clone() }.encoded()
}

/// Whether a path is that of something below another.
fn is_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

impl Lock {
    /// Whether it locks what is at a path.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        self.path == path || self.deep && is_below(path, &self.path)
    }

    /// Whether it locks anything at a path or below it, and nothing else.
    #[must_use]
    pub fn is_within(&self, path: &str) -> bool {
        self.path == path || is_below(&self.path, path)
    }
}

/// Who asks: the id of a key, and the tokens that the request shows.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The key.
    pub key: &'a str,
    /// The tokens.
    pub tokens: &'a [String],
}

impl Shown<'_> {
    fn has(&self, lock: &Lock) -> bool {
        lock.key == self.key && self.tokens.contains(&lock.token)
    }

    /// The first lock of those that is in the way: if there are several they are shared, and one of them is enough.
    fn stopped_by<'l>(&self, locks: impl Iterator<Item = &'l Lock> + Clone) -> Option<&'l Lock> {
        let mut all = locks.clone();
        if all.any(|lock| self.has(lock)) { None } else { locks.into_iter().next() }
    }
}

/// The lock that keeps somebody from a change, if one does.
#[must_use]
pub fn stopped<'l>(locks: &'l [Lock], path: &str, reach: Reach, shown: Shown<'_>) -> Option<&'l Lock> {
    let over = |path: &str| {
        let path = path.to_owned();
        locks.iter().filter(move |lock| lock.covers(&path))
    };
    if let Some(lock) = shown.stopped_by(over(path)) {
        return Some(lock);
    }
    if reach == Reach::Content {
        return None;
    }
    // A directory that is locked keeps its entries.
    let parent = path.rsplit_once('/').map(|(parent, _)| parent);
    if let Some(lock) = parent.and_then(|parent| shown.stopped_by(over(parent))) {
        return Some(lock);
    }
    if reach == Reach::Member {
        return None;
    }
    locks.iter().filter(|lock| is_below(&lock.path, path)).find_map(|lock| shown.stopped_by(over(&lock.path)))
}

/// The lock that another one cannot be beside, if there is one.
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
            let by = stopped(&locks, path, reach, Shown { key, tokens: &tokens });
            by.map(|lock| lock.token.clone())
        };
        let by = |token: &str| Some(token.to_owned());
        for (path, reach, expected) in [
            ("/d", Reach::Content, by("d")),
            ("/d/f", Reach::Content, None),
            ("/d/f", Reach::Member, by("d")),
            ("/d/e/f", Reach::Member, None),
            ("/d/f", Reach::Tree, by("d")),
            ("/dd", Reach::Tree, None),
            ("/t/a/b", Reach::Content, by("t")),
            ("/tt", Reach::Content, None),
            ("/x", Reach::Content, None),
            ("/x", Reach::Member, None),
            ("/x", Reach::Tree, by("f")),
            ("", Reach::Content, None),
            ("", Reach::Tree, by("d")),
        ] {
            assert_eq!(stopped_by(path, reach, &[], "K"), expected, "{path} {reach:?}");
            assert_eq!(stopped_by(path, reach, &["d", "t", "f"], "K"), None, "{path} {reach:?}");
            assert_eq!(stopped_by(path, reach, &["d", "t", "f"], "L"), expected, "of another key");
        }
        assert_eq!(stopped_by("", Reach::Tree, &["d", "t"], "K"), by("f"));
    }

    #[test]
    fn one_of_several_shared_locks_is_enough() {
        let locks = [lock("a", "/f", false, false), lock("b", "/f", false, false)];
        let tokens = ["b".to_owned()];
        assert_eq!(stopped(&locks, "/f", Reach::Tree, Shown { key: "K", tokens: &tokens }), None);
        assert!(stopped(&locks, "/f", Reach::Content, Shown { key: "K", tokens: &[] }).is_some());
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
            assert_eq!(path(&Target::parse(written).unwrap()), path_of);
        }
    }
}
