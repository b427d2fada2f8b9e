//! Cached replies of a linked formation that were not requested yet: listings of the trees below listed directories,
//! and contents of small files. All of it is bounded and short-lived.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_source::{Entry, Listing, Version};
use parking_lot::Mutex;

use crate::protocol::WantedDir;

/// Validity of a listing that came unrequested, and of the information that a directory has not changed.
pub const LISTED_FOR: Duration = Duration::from_secs(2);
/// Time for which content waits to be read. It belongs to one version of the file, so it does not become outdated.
const CONTENT_FOR: Duration = Duration::from_secs(10);
/// Directories that were used within this time are looked at together.
const USED_WITHIN: Duration = Duration::from_secs(60);
/// Upper limits: bytes of listings that wait, directories that are known, bytes of contents.
const LISTING_BYTES_MAX: usize = 64 << 20;
const DIRS_MAX: usize = 1 << 14;
const CONTENT_BYTES_MAX: usize = 32 << 20;
/// Directories that one request looks at, at most, and the time that it may take at the gateway: what is known of them
/// counts from the request on, and has to be of use when the answer is there.
const TOGETHER_MAX: usize = 256;
const TOGETHER_FOR: Duration = Duration::from_millis(500);

/// Listings that wait, and directories as they were last listed.
#[derive(Default)]
pub struct ListingCache(Mutex<Listings>);

#[derive(Default)]
struct Listings {
    waiting: HashMap<Vec<u8>, (Instant, Listing)>,
    bytes: usize,
    known: HashMap<Vec<u8>, KnownDir>,
    /// Answers to what was asked before count for nothing: it is not known which directories were changed since.
    oldest: Option<Instant>,
    /// Time that the gateway takes for a directory, of late.
    per_dir: Duration,
}

struct KnownDir {
    /// Zero if it was changed from here since.
    digest: u128,
    /// When it was requested, or changed.
    at: Instant,
    used: Instant,
}

impl ListingCache {
    /// Takes a listing that came unasked, unless it is too old.
    pub fn take(&self, dir: &[u8], now: Instant) -> Option<Listing> {
        let mut all = self.0.lock();
        let (came, listing) = all.waiting.remove(dir)?;
        all.bytes -= bytes_of(&listing);
        all.known.entry(dir.to_vec()).and_modify(|known| known.used = now);
        (now.saturating_duration_since(came) < LISTED_FOR).then_some(listing)
    }

    /// Returns whether a directory was seen a moment ago with this digest.
    pub fn is_as_known(&self, dir: &[u8], digest: u128, now: Instant) -> bool {
        let mut all = self.0.lock();
        let Some(known) = all.known.get_mut(dir) else { return false };
        known.used = now;
        known.digest == digest && now.saturating_duration_since(known.at) < LISTED_FOR
    }

    /// Returns a directory to be looked at with others that were used lately.
    pub fn together(&self, dir: &[u8], digest: u128, now: Instant) -> Vec<WantedDir> {
        let all = self.0.lock();
        let is_due = |path: &[u8], known: &KnownDir| {
            path != dir
                && now.saturating_duration_since(known.used) < USED_WITHIN
                && now.saturating_duration_since(known.at) >= LISTED_FOR / 2
        };
        let mut others: Vec<_> = all.known.iter().filter(|(path, known)| is_due(path, known)).collect();
        // A tree is mostly walked in the order in which it was walked before: those come next that were used first.
        others.sort_by_key(|(_, known)| known.used);
        let fitting = TOGETHER_FOR.as_nanos() / all.per_dir.as_nanos().max(1);
        let most = usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, TOGETHER_MAX);
        let wanted =
            |path: &[u8], digest: u128| WantedDir { path: path.to_vec(), known: digest.to_le_bytes() };
        let others = others.into_iter().take(most - 1);
        std::iter::once(wanted(dir, digest))
            .chain(others.map(|(path, known)| wanted(path, known.digest)))
            .collect()
    }

    /// Notes how long the gateway took to look at so many directories.
    pub fn took(&self, dirs: usize, time: Duration) {
        let mut all = self.0.lock();
        let per_dir = time / u32::try_from(dirs.max(1)).unwrap_or(u32::MAX);
        all.per_dir = (all.per_dir + per_dir) / 2;
    }

    /// Notes that a directory had this digest when it was asked for.
    pub fn note(&self, dir: &[u8], digest: u128, asked: Instant, is_used: bool) {
        let mut all = self.0.lock();
        if all.is_past(dir, asked) {
            return;
        }
        all.make_room(dir);
        let used = match all.known.get(dir) {
            Some(known) if !is_used => known.used,
            _ => asked,
        };
        all.known.insert(dir.to_vec(), KnownDir { digest, at: asked, used });
    }

    /// Keeps a listing that was not asked for.
    pub fn keep(&self, dir: Vec<u8>, listing: Listing, asked: Instant) {
        let mut all = self.0.lock();
        if all.is_past(&dir, asked) {
            return;
        }
        let bytes = bytes_of(&listing);
        if all.bytes + bytes > LISTING_BYTES_MAX {
            all.waiting.retain(|_, (came, _)| asked.saturating_duration_since(*came) < LISTED_FOR);
            all.bytes = all.waiting.values().map(|(_, listing)| bytes_of(listing)).sum();
        }
        // Not kept: it is asked for when it is needed.
        if all.bytes + bytes > LISTING_BYTES_MAX {
            return;
        }
        if let Some((_, old)) = all.waiting.insert(dir, (asked, listing)) {
            all.bytes -= bytes_of(&old);
        }
        all.bytes += bytes;
    }

    /// Forgets a directory that is changed from here, also what an answer under way says of it.
    pub fn forget(&self, dir: &[u8], now: Instant) {
        let mut all = self.0.lock();
        if let Some((_, old)) = all.waiting.remove(dir) {
            all.bytes -= bytes_of(&old);
        }
        all.make_room(dir);
        let used = all.known.get(dir).map_or(now, |known| known.used);
        all.known.insert(dir.to_vec(), KnownDir { digest: 0, at: now, used });
    }
}

impl Listings {
    /// Returns whether a directory was asked for before what is known of it.
    fn is_past(&self, dir: &[u8], asked: Instant) -> bool {
        let known = self.known.get(dir).map(|known| known.at);
        known.max(self.oldest).is_some_and(|newer| asked < newer)
    }

    /// Makes room for what is known of one more directory.
    fn make_room(&mut self, dir: &[u8]) {
        if self.known.len() >= DIRS_MAX && !self.known.contains_key(dir) {
            self.oldest = self.known.values().map(|known| known.at).max();
            self.known.clear();
        }
    }
}

/// Returns the memory of a listing, about.
fn bytes_of(listing: &Listing) -> usize {
    let of_entry = |entry: &Entry| {
        let xattrs: usize =
            entry.meta.attrs.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        size_of::<Entry>()
            + entry.name.len()
            + entry.meta.version.tag.len()
            + entry.meta.target.len()
            + xattrs
    };
    size_of::<Listing>() + listing.entries.iter().map(of_entry).sum::<usize>()
}

/// Contents of small files.
#[derive(Default)]
pub struct ContentCache(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    by_path: HashMap<Vec<u8>, (Instant, Version, Vec<u8>)>,
    bytes: usize,
}

impl ContentCache {
    /// Keeps the content of a version of a file.
    pub fn keep(&self, path: &[u8], version: &Version, content: Vec<u8>, now: Instant) {
        let mut all = self.0.lock();
        if all.bytes + content.len() > CONTENT_BYTES_MAX {
            all.by_path.retain(|_, (came, ..)| now.saturating_duration_since(*came) < CONTENT_FOR);
            all.bytes = all.by_path.values().map(|(.., content)| content.len()).sum();
        }
        if all.bytes + content.len() > CONTENT_BYTES_MAX {
            return;
        }
        all.bytes += content.len();
        if let Some((.., old)) = all.by_path.insert(path.to_vec(), (now, version.clone(), content)) {
            all.bytes -= old.len();
        }
    }

    /// Returns whether a version of a file is here.
    pub fn has(&self, path: &[u8]) -> bool {
        self.0.lock().by_path.contains_key(path)
    }

    /// Forgets the content of a file that is changed from here.
    pub fn forget(&self, path: &[u8]) {
        let mut all = self.0.lock();
        if let Some((.., old)) = all.by_path.remove(path) {
            all.bytes -= old.len();
        }
    }

    /// Takes a range of it, if it is here; with its end it goes.
    pub fn take(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> Option<usize> {
        let mut all = self.0.lock();
        let (_, known, content) = all.by_path.get(path)?;
        if known != version {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        let rest = content.get(offset.min(content.len())..)?;
        let len = rest.len().min(into.len());
        into.get_mut(..len)?.copy_from_slice(rest.get(..len)?);
        if offset + len >= content.len() {
            let gone = content.len();
            all.by_path.remove(path);
            all.bytes -= gone;
        }
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use bivouac_source::Meta;

    use super::*;

    fn listing(count: usize, digest: u128) -> Listing {
        let entry = |number: usize| Entry { name: number.to_string().into_bytes(), meta: Default::default() };
        Listing { entries: (0..count).map(entry).collect(), digest, ..Listing::default() }
    }

    #[test]
    fn listings_count_for_a_moment_and_once() {
        let (cache, now) = (ListingCache::default(), Instant::now());
        cache.keep(b"d".to_vec(), listing(3, 1), now);
        assert_eq!(cache.take(b"d", now).unwrap().entries.len(), 3);
        assert!(cache.take(b"d", now).is_none());
        cache.keep(b"d".to_vec(), listing(3, 1), now);
        assert!(cache.take(b"d", now + LISTED_FOR).is_none());
        assert_eq!(cache.0.lock().bytes, 0);
    }

    #[test]
    fn what_was_asked_for_before_a_change_is_not_believed() {
        let (cache, asked) = (ListingCache::default(), Instant::now());
        let (changed, later) = (asked + Duration::from_millis(1), asked + Duration::from_millis(2));
        cache.note(b"d", 5, asked, true);
        cache.forget(b"d", changed);
        // The answer comes now, and is of the directory as it was.
        cache.note(b"d", 5, asked, true);
        cache.keep(b"d".to_vec(), listing(3, 5), asked);
        assert!(!cache.is_as_known(b"d", 5, later) && cache.take(b"d", later).is_none());
        cache.note(b"d", 6, later, true);
        cache.keep(b"d".to_vec(), listing(2, 6), later);
        assert!(cache.is_as_known(b"d", 6, later) && cache.take(b"d", later).is_some());
        // Where there is no room to know of each change, nothing older is believed of any.
        (0..DIRS_MAX as u32).for_each(|number| cache.forget(&number.to_le_bytes(), later));
        cache.keep(b"e".to_vec(), listing(1, 7), changed);
        assert!(cache.take(b"e", later).is_none());
    }

    #[test]
    fn listings_are_bounded() {
        let (cache, now) = (ListingCache::default(), Instant::now());
        let quarter = || {
            let meta = Meta { target: vec![b'x'; LISTING_BYTES_MAX / 4], ..Meta::default() };
            Listing { entries: vec![Entry { name: b"l".to_vec(), meta }], digest: 1, ..Listing::default() }
        };
        for number in 0..10_u8 {
            cache.keep(vec![b'a' + number], quarter(), now);
        }
        assert_eq!(cache.0.lock().waiting.len(), 3);
        assert!(cache.0.lock().bytes <= LISTING_BYTES_MAX);
        cache.keep(b"later".to_vec(), quarter(), now + LISTED_FOR);
        assert!(cache.take(b"later", now + LISTED_FOR).is_some());
    }

    #[test]
    fn directories_in_use_are_looked_at_together() {
        let (cache, now) = (ListingCache::default(), Instant::now());
        cache.note(b"a", 1, now, true);
        cache.note(b"b", 2, now, true);
        assert!(cache.is_as_known(b"a", 1, now) && !cache.is_as_known(b"a", 2, now));
        let later = now + LISTED_FOR;
        assert!(!cache.is_as_known(b"a", 1, later));
        let paths = |dirs: Vec<WantedDir>| dirs.into_iter().map(|dir| dir.path).collect::<Vec<_>>();
        assert_eq!(paths(cache.together(b"a", 1, later)), [b"a", b"b"]);
        let much_later = later + USED_WITHIN;
        assert_eq!(paths(cache.together(b"a", 1, much_later)), [b"a"]);
        cache.forget(b"a", now);
        assert!(!cache.is_as_known(b"a", 1, now));
    }

    #[test]
    fn as_many_directories_are_looked_at_together_as_are_known_in_time() {
        let (cache, now) = (ListingCache::default(), Instant::now());
        let at = |number: u8| now + Duration::from_millis(number.into());
        (0..50).for_each(|number| cache.note(&[b'a' + number], 1, at(number), true));
        let looked_at = |dir: u8| -> Vec<u8> {
            let dirs = cache.together(&[b'a' + dir], 1, now + 2 * LISTED_FOR);
            dirs.into_iter().map(|dir| dir.path[0] - b'a').collect()
        };
        assert_eq!(looked_at(7).len(), 50);
        cache.took(50, Duration::from_secs(10));
        assert_eq!(looked_at(7), [7, 0, 1, 2, 3], "that which was used first comes first");
        cache.took(5, Duration::from_secs(60));
        assert_eq!(looked_at(7), [7]);
        (0..20).for_each(|_| cache.took(1, Duration::ZERO));
        assert_eq!(looked_at(7).len(), 50);
    }

    #[test]
    fn contents_are_of_one_version() {
        let (cache, now) = (ContentCache::default(), Instant::now());
        let version = Version { size: 5, ..Version::default() };
        cache.keep(b"f", &version, b"abcde".to_vec(), now);
        let mut into = [0; 3];
        assert_eq!(cache.take(b"f", &Version::default(), 0, &mut into), None);
        assert_eq!(cache.take(b"f", &version, 0, &mut into), Some(3));
        assert_eq!((cache.take(b"f", &version, 3, &mut into), &into[..2]), (Some(2), &b"de"[..]));
        assert_eq!(cache.take(b"f", &version, 0, &mut into), None);
        assert_eq!(cache.0.lock().bytes, 0);
    }
}
