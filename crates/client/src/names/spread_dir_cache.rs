//! Attributes of spread directories as the kernel needs them, for every entry that is opened or made there: for a
//! moment the answer is what the home said last, with what this client has done there since.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bivouac_types::limits::{SPREAD_ATTR_MS, SPREAD_KNOWN_MAX};
use bivouac_types::{Attr, FsResult, Ino, Timestamp};
use parking_lot::Mutex;

use super::Names;

/// Sum of this client's changes in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    entries: i64,
    subdirs: i32,
    count: u64,
    /// Changes whose effect is not known here.
    unknown: u64,
}

struct CachedDirAttrs {
    attr: Attr,
    /// Changes that had been made when the home was asked.
    before: Changes,
    until: Instant,
}

#[derive(Default)]
struct Dir {
    changes: Changes,
    /// Time of the last change.
    changed: Timestamp,
    cached: Option<CachedDirAttrs>,
}

/// The directories that were looked at lately.
#[derive(Default)]
pub struct SpreadDirCache {
    any: AtomicBool,
    dirs: Mutex<HashMap<Ino, Dir>>,
}

impl SpreadDirCache {
    /// Counts an entry that this client has made (1), removed (-1) or replaced (0).
    pub fn changed(&self, dir: Ino, entries: i64, subdirs: i32) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Some(dir) = self.dirs.lock().get_mut(&dir) {
            dir.changes.entries += entries;
            dir.changes.subdirs += subdirs;
            dir.changes.count += 1;
            dir.changed = now();
        }
    }

    /// Returns the attributes of a directory if they are fresh enough, otherwise the changes so far.
    fn look(&self, ino: Ino) -> Result<Attr, Changes> {
        let mut dirs = self.dirs.lock();
        if dirs.len() >= SPREAD_KNOWN_MAX && !dirs.contains_key(&ino) {
            // Room for this one; the others cost a question each.
            dirs.clear();
        }
        assert!(
            dirs.len() < SPREAD_KNOWN_MAX || dirs.contains_key(&ino),
            "{} directories are cached",
            dirs.len()
        );
        self.any.store(true, Ordering::Release);
        let dir = dirs.entry(ino).or_default();
        match &dir.cached {
            Some(cached) if cached.until > Instant::now() => Ok(cached.with(dir)),
            _ => Err(dir.changes),
        }
    }

    /// Returns the home's answer to who had changed so much when it was asked.
    fn keep(&self, attr: Attr, before: Changes, asked: Instant) -> Attr {
        let mut dirs = self.dirs.lock();
        // Cleared since the look: what was counted until then is not in the counts of today.
        let Some(dir) = dirs.get_mut(&attr.ino).filter(|dir| dir.changes.count >= before.count) else {
            return attr;
        };
        // The answer may be from before or after that change: shown once, and not kept.
        if dir.changes.unknown != before.unknown {
            return attr;
        }
        let cached = CachedDirAttrs { attr, before, until: asked + Duration::from_millis(SPREAD_ATTR_MS) };
        let attr = cached.with(dir);
        dir.cached = Some(cached);
        attr
    }

    /// Returns for how long cached attributes may still be shown.
    pub fn left(&self, ino: Ino) -> Duration {
        let dirs = self.dirs.lock();
        let cached = dirs.get(&ino).and_then(|dir| dir.cached.as_ref());
        cached.map_or(Duration::ZERO, |cached| cached.until.saturating_duration_since(Instant::now()))
    }

    /// Counts a change of this client whose effect is not known here.
    pub fn forget(&self, ino: Ino) {
        if self.any.load(Ordering::Acquire)
            && let Some(dir) = self.dirs.lock().get_mut(&ino)
        {
            dir.cached = None;
            dir.changes.unknown += 1;
        }
    }
}

impl CachedDirAttrs {
    fn with(&self, dir: &Dir) -> Attr {
        let mut attr = self.attr;
        if dir.changes.count != self.before.count {
            attr.size = attr.size.saturating_add_signed(dir.changes.entries - self.before.entries);
            let subdirs = dir.changes.subdirs.wrapping_sub(self.before.subdirs);
            attr.nlink = attr.nlink.saturating_add_signed(subdirs).max(2);
            attr.mtime = attr.mtime.latest(dir.changed);
            attr.ctime = attr.ctime.latest(dir.changed);
        }
        attr
    }
}

impl Names {
    /// Like `look`, for a kernel: attributes of a spread directory may be up to [`SPREAD_ATTR_MS`] old with respect to
    /// other clients' changes. A change of this client that is under way may be counted twice for as long.
    pub fn getattr_cached(&self, ino: Ino, look: impl FnOnce(Ino) -> FsResult<Attr>) -> FsResult<Attr> {
        if !self.homes.spread.has(ino) {
            return look(ino);
        }
        match self.spread_dirs.look(ino) {
            Ok(attr) => Ok(attr),
            Err(before) => {
                let asked = Instant::now();
                Ok(self.spread_dirs.keep(look(ino)?, before, asked))
            }
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Layout, TargetIndex, mode};

    fn attr(size: u64) -> Attr {
        let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
        let time = Timestamp { secs: 5, nanos: 0 };
        Attr { nlink: 3, size, epoch: 1, ..Attr::new(Ino(9), mode::DIR | 0o755, layout, time) }
    }

    #[test]
    fn own_changes_are_seen_at_once() {
        let spread_dirs = SpreadDirCache::default();
        let before = spread_dirs.look(Ino(9)).unwrap_err();
        spread_dirs.changed(Ino(9), 1, 0);
        let (begun, hour) = (Instant::now(), Duration::from_secs(3600));
        let seen = spread_dirs.keep(attr(10), before, begun + hour);
        assert_eq!((seen.size, seen.nlink), (11, 3), "what was done while the home was asked");
        // Together with what has passed since: that may be much on a busy machine.
        assert!(spread_dirs.left(Ino(9)) + begun.elapsed() > hour && spread_dirs.left(Ino(8)).is_zero());
        spread_dirs.changed(Ino(9), 1, 1);
        spread_dirs.changed(Ino(9), -1, 0);
        spread_dirs.changed(Ino(8), 1, 0);
        let seen = spread_dirs.look(Ino(9)).unwrap();
        assert_eq!((seen.size, seen.nlink), (11, 4));
        assert!(seen.mtime > attr(0).mtime && seen.ctime == seen.mtime);
        spread_dirs.forget(Ino(9));
        assert!(spread_dirs.left(Ino(9)).is_zero(), "nobody may go on caching it");
        let before = spread_dirs.look(Ino(9)).unwrap_err();
        assert_eq!(spread_dirs.keep(attr(11), before, Instant::now()), attr(11));
        spread_dirs.forget(Ino(9));
        assert_eq!(spread_dirs.keep(attr(11), before, Instant::now() + Duration::from_secs(3600)), attr(11));
        assert!(spread_dirs.look(Ino(9)).is_err(), "it may be from before the change");
    }
}
