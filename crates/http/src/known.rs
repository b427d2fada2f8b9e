//! Entries of catalogues that a formation knows: what was published from it, and what somebody of it has fetched. They
//! are files in a directory that is the server's own, so all hosts of the formation know the same, and it outlives
//! kills.
//!
//! Commands of the formation's user tell and ask by the client library; the server only reads ([`answer`]).

mod answer;

use bivouac_client::{Attr, Client, NewInode, OpCtx};
use bivouac_publish::{CachedEntry, Digest, EntryRef, FRESH_S, KNOWN_MAX, ro_crate};
use bivouac_types::{Errno, FsError, FsResult, Ino, Timestamp, mode};

use crate::keys;
use crate::request_path::behind;

pub use answer::{answer, part_of};

/// URL prefix of the entries, without its trailing slash, and their directory.
pub const PLACE: &str = "/.bivouac-published";
const DIR: &[u8] = b".bivouac-published";

/// Upper limit of entries; the oldest are dropped first.
const ENTRIES_MAX: usize = 1000;
/// Upper limit of sites per file.
const SITES_MAX: usize = 64;
/// Upper limit of bytes of entries that are read for one request.
const LIST_MAX: usize = 16 << 20;
/// Tolerated clock difference between hosts, in seconds.
const CLOCKS_S: u64 = 60;
/// Digits of the catalogue's digest in names: the text names the catalogue, so a collision only hides one of two
/// entries.
const CATALOGUE_LEN: usize = 24;
/// Prefix of temporary names, followed by random letters.
const NEW: &str = "new.";
/// Bytes of a directory that are read at once.
const DIR_PIECE: usize = 64 << 10;

/// An identity for each change.
pub type Identity<'a> = &'a dyn Fn() -> OpCtx;

fn catalogue_prefix(catalogue: &str) -> String {
    let mut digest = Digest::of(catalogue.as_bytes()).hex();
    digest.truncate(CATALOGUE_LEN);
    digest + "."
}

fn name_of(which: EntryRef<'_>) -> String {
    catalogue_prefix(which.catalogue) + which.id
}

/// Stores an entry that a catalogue has now. One that is too large is not stored.
pub fn tell(client: &Client, identity: Identity<'_>, catalogue: &str, known: &CachedEntry) -> FsResult<()> {
    let Some(text) = known.encode(catalogue) else { return Ok(()) };
    let dir = make_dir(client, identity)?;
    // Before the new one, for which this makes room.
    prune(client, identity, dir)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
    let new = format!("{NEW}{:016x}", u64::from_le_bytes(random));
    let made = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    let ino = client.create(&identity(), dir, new.as_bytes(), &made, true, false)?.attr.ino;
    let written = client.write(&identity(), ino, 0, text.as_bytes(), false);
    client.close(ino);
    let name = name_of(EntryRef { catalogue, id: &known.manifest.id });
    // Renamed when complete, so a reader sees all of it or nothing.
    let named =
        written.and_then(|_| client.rename(&identity(), dir, new.as_bytes(), dir, name.as_bytes(), 0));
    if named.is_err() {
        let _what_is_left_is_pruned = client.unlink(&identity(), dir, new.as_bytes());
    }
    named
}

/// Returns a stored entry, unless it is too old or has expired.
pub fn find(client: &Client, which: EntryRef<'_>, now: u64) -> FsResult<Option<CachedEntry>> {
    // What catalogues call no entry is no name here either.
    let dir = if ro_crate::is_id(which.id) { dir(client)? } else { None };
    let Some(dir) = dir else { return Ok(None) };
    let name = name_of(which);
    let Some(text) = read(client, dir, (name.as_bytes(), None), now)? else { return Ok(None) };
    match CachedEntry::decode(&text, which, now) {
        Ok(known) => Ok(Some(known)),
        Err(why) => {
            log::debug!(why:% = why; "{PLACE}/{name}");
            Ok(None)
        }
    }
}

/// Returns all stored entries of a catalogue.
pub fn list(client: &Client, catalogue: &str, now: u64) -> FsResult<Vec<CachedEntry>> {
    let Some(dir) = dir(client)? else { return Ok(Vec::new()) };
    let prefix = catalogue_prefix(catalogue);
    let mut all = Vec::new();
    for (name, attr) in few(client, dir)?.iter().filter(|(name, _)| name.starts_with(prefix.as_bytes())) {
        let found =
            read(client, dir, (name, *attr), now)?.and_then(|text| CachedEntry::decode_any(&text, now).ok());
        all.extend(found.filter(|(of, _)| of == catalogue).map(|(_, known)| known));
    }
    Ok(all)
}

/// Returns further URLs of content with this digest from all stored entries: those that other hosts reach, and that are
/// not servers of this formation.
pub fn sites(client: &Client, sha256: &str, size: u64, own: &[String]) -> FsResult<Vec<String>> {
    let Some(dir) = dir(client)? else { return Ok(Vec::new()) };
    let now = keys::now();
    let mut all: Vec<String> = Vec::new();
    for (name, attr) in few(client, dir)? {
        let found =
            read(client, dir, (&name, attr), now)?.and_then(|text| CachedEntry::decode_any(&text, now).ok());
        let items = found.into_iter().flat_map(|(_, known)| known.items);
        let same =
            items.filter(|item| item.size == size && item.digest.is_some_and(|known| known.hex() == sha256));
        for url in same.flat_map(|item| item.urls) {
            let is_own = own.iter().any(|server| behind(&url, server).is_some());
            if is_elsewhere(&url) && !is_own && !all.contains(&url) && all.len() < SITES_MAX {
                all.push(url);
            }
        }
    }
    Ok(all)
}

/// Returns whether other hosts reach a URL.
fn is_elsewhere(url: &str) -> bool {
    ["https://", "http://", "s3://"].iter().any(|scheme| url.starts_with(scheme))
}

/// Returns the stored entries, up to the limit per request.
fn few(client: &Client, dir: Ino) -> FsResult<Vec<NamedAttr>> {
    let mut room = LIST_MAX;
    let all = names(client, dir)?.into_iter();
    let fits = all.take_while(|(_, attr)| {
        let len = attr.map_or(0, |attr| usize::try_from(attr.size).unwrap_or(usize::MAX));
        room = room.saturating_sub(len);
        room > 0
    });
    Ok(fits.collect())
}

/// Removes an entry that is not in its catalogue any more.
pub fn forget(client: &Client, identity: Identity<'_>, which: EntryRef<'_>) -> FsResult<()> {
    let Some(dir) = dir(client)? else { return Ok(()) };
    remove(client, identity, dir, name_of(which).as_bytes())
}

fn remove(client: &Client, identity: Identity<'_>, dir: Ino, name: &[u8]) -> FsResult<()> {
    match client.unlink(&identity(), dir, name) {
        Err(error) if error.errno() != Errno::ENOENT => Err(error),
        _ => Ok(()),
    }
}

fn make_dir(client: &Client, identity: Identity<'_>) -> FsResult<Ino> {
    if let Some(dir) = dir(client)? {
        return Ok(dir);
    }
    let new = NewInode { mode: mode::DIR | 0o700, rdev: 0, target: &[] };
    match client.mknod(&identity(), Ino::ROOT, DIR, &new) {
        Ok(made) => Ok(made.ino),
        // Another command was faster.
        Err(error) if error.errno() == Errno::EEXIST => dir(client)?.ok_or_else(|| Errno::ENOENT.into()),
        Err(error) => Err(error),
    }
}

/// Returns the directory, if it belongs to this user and nobody else can write to it.
fn dir(client: &Client) -> FsResult<Option<Ino>> {
    match client.lookup(Ino::ROOT, DIR) {
        Ok(attr) if attr.is_dir() && is_own(&attr) => Ok(Some(attr.ino)),
        Ok(_) => {
            let text = format!("{PLACE} in the formation is not this user's alone; remove it");
            Err(FsError::with(Errno::EACCES, text))
        }
        Err(error) if error.errno() == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_own(attr: &Attr) -> bool {
    // What others write there would lead clients to their servers.
    attr.uid == rustix::process::geteuid().as_raw() && attr.mode & 0o022 == 0
}

/// Returns whether an entry is recent. A time in the future comes from a wrong clock.
fn is_fresh(written: Timestamp, now: u64) -> bool {
    let told = u64::try_from(written.secs).unwrap_or(0);
    told <= now.saturating_add(CLOCKS_S) && now < told.saturating_add(FRESH_S)
}

/// Returns a file's text, if it counts. Its attributes are looked up if they have not come with its name.
fn read(
    client: &Client,
    dir: Ino,
    (name, attr): (&[u8], Option<Attr>),
    now: u64,
) -> FsResult<Option<String>> {
    let attr = match attr.map_or_else(|| client.lookup(dir, name), Ok) {
        Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
        found => found?,
    };
    let len = usize::try_from(attr.size).unwrap_or(usize::MAX);
    if !attr.is_file() || !is_own(&attr) || len > KNOWN_MAX || !is_fresh(attr.mtime, now) {
        return Ok(None);
    }
    let (mut bytes, mut done) = (vec![0; len], 0);
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match client.read(attr.ino, done as u64, rest) {
            Ok(0) => break,
            Ok(read) => done += read,
            // Removed since the look-up.
            Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ESTALE) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(String::from_utf8(bytes).ok())
}

/// A name, and the attributes that have come with it.
type NamedAttr = (Vec<u8>, Option<Attr>);

fn names(client: &Client, dir: Ino) -> FsResult<Vec<NamedAttr>> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let page = client.readdir(dir, cookie, DIR_PIECE, true)?;
        let Some(last) = page.last() else { return Ok(all) };
        cookie = last.cookie;
        all.extend(page.into_iter().map(|entry| (entry.name, entry.attr)));
    }
}

/// Removes what counts no more, and what is too much.
fn prune(client: &Client, identity: Identity<'_>, dir: Ino) -> FsResult<()> {
    let now = keys::now();
    let mut kept: Vec<(i64, Vec<u8>)> = Vec::new();
    for (name, attr) in names(client, dir)? {
        match attr.map_or_else(|| client.lookup(dir, &name), Ok) {
            Ok(attr) if is_fresh(attr.mtime, now) => kept.push((attr.mtime.secs, name)),
            Ok(_) => remove(client, identity, dir, &name)?,
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
    }
    kept.sort();
    // One place is for the new entry.
    let many = kept.len().saturating_sub(ENTRIES_MAX - 1);
    kept.iter().take(many).try_for_each(|(_, name)| remove(client, identity, dir, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_path::is_reserved;

    #[test]
    fn entries_are_where_no_file_of_a_client_is() {
        assert!(is_reserved(DIR) && PLACE.as_bytes().strip_prefix(b"/") == Some(DIR));
        assert_eq!(
            [PLACE, "/.bivouac-published/x", "/.bivouac-publishedx"].map(part_of),
            [Some(""), Some("/x"), None]
        );
    }

    #[test]
    fn sites_are_places_that_others_reach() {
        assert!(is_elsewhere("https://a/b") && is_elsewhere("s3://b/k"));
        assert!(!is_elsewhere("file:///a") && !is_elsewhere("javascript:x"));
        let is_of = |url, server| behind(url, server).is_some();
        assert!(is_of("https://a:1/b", "https://a:1") && !is_of("https://a:12/b", "https://a:1"));
    }

    #[test]
    fn names_are_told_apart_by_catalogue() {
        let name = |catalogue, id| name_of(EntryRef { catalogue, id });
        assert_eq!(name("/a", "x-01").len(), CATALOGUE_LEN + 1 + 4);
        assert!(name("/a", "x-01") != name("/b", "x-01") && name("/a", "x-01").ends_with(".x-01"));
        assert!(!name("/a", "x").starts_with(NEW));
    }

    #[test]
    fn what_was_told_counts_for_a_while() {
        let now = 1_700_000_000;
        let told = |secs: u64| is_fresh(Timestamp { secs: secs as i64, nanos: 0 }, now);
        assert!(told(now) && told(now - FRESH_S + 1) && told(now + CLOCKS_S));
        assert!(!told(now - FRESH_S) && !told(now + CLOCKS_S + 1) && !told(0));
    }
}
