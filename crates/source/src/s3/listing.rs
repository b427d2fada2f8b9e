//! Directories: what keys that begin with the same words make of themselves.

use std::collections::HashSet;

use bivouac_types::mode;
use parking_lot::Mutex;
use rusty_s3::Method;

use super::failure::Trouble;
use super::metadata::{Headers, attrs_of};
use super::objects::{Found, If};
use super::wire::Request;
use super::{S3Source, answers, at};
use crate::at_once::for_each_at_once;
use crate::error::Cause;
use crate::source::join_path;
use crate::{Entry, Meta, SourceError, SourceResult};

/// Keys of one page.
const PAGE: usize = 1000;
/// Pages without keys that are put up with, one after another: stores may pass over what was removed.
const EMPTY_MAX: usize = 1000;
/// Most entries of one directory.
const ENTRIES_MAX: usize = 4 << 20;
/// Objects that are looked at at the same time.
const LOOKS_MAX: usize = 16;

/// A name in a directory, before it has been looked at.
struct Named {
    name: String,
    is_dir: bool,
}

impl S3Source {
    /// The first keys that begin with a prefix, at least so many if there are.
    pub(super) fn list_some(&self, path: &[u8], prefix: &str, least: usize) -> SourceResult<Vec<String>> {
        let mut keys = Vec::new();
        self.pages(path, prefix, None, least, |page| {
            keys.extend(page.keys);
            Ok(keys.len() < least)
        })?;
        Ok(keys)
    }

    /// Pages one after another, as long as `each` wants more. One may have fewer keys than asked for, or none.
    fn pages(
        &self,
        path: &[u8],
        prefix: &str,
        delimiter: Option<&str>,
        max: usize,
        mut each: impl FnMut(answers::Page) -> SourceResult<bool>,
    ) -> SourceResult<()> {
        let (mut after, mut empty) = (None, 0);
        loop {
            let mut page = self.page(path, prefix, delimiter, max, after.as_deref())?;
            empty = if page.keys.is_empty() && page.prefixes.is_empty() { empty + 1 } else { 0 };
            let next = page.next.take();
            if empty > EMPTY_MAX || next.is_some() && next == after {
                return Err(self.wire.nonsense(path, "the same page again and again"));
            }
            after = next;
            if !each(page)? || after.is_none() {
                return Ok(());
            }
        }
    }

    fn page(
        &self,
        path: &[u8],
        prefix: &str,
        delimiter: Option<&str>,
        max: usize,
        after: Option<&str>,
    ) -> SourceResult<answers::Page> {
        let request = || {
            let mut query = vec![
                ("list-type", "2".to_owned()),
                ("encoding-type", "url".to_owned()),
                ("prefix", prefix.to_owned()),
                ("max-keys", max.to_string()),
            ];
            query.extend(delimiter.map(|delimiter| ("delimiter", delimiter.to_owned())));
            query.extend(after.map(|after| ("continuation-token", after.to_owned())));
            Request { path, query, ..Request::default() }
        };
        let missing = |error: SourceError| match error.cause() {
            // What is not there is the bucket: prefixes always are.
            Cause::NotFound => self.wire.nonsense(path, "that there is nothing to list"),
            _ => error,
        };
        self.wire
            .ask(Method::Get, request, |answer| {
                let text = answer.text().map_err(|error| self.wire.broken(path, &error))?;
                let page = answers::page_of(&text).ok_or("something else than a listing");
                let page = page.and_then(|page| {
                    let is_wanted = page.keys.iter().chain(&page.prefixes).all(|key| key.starts_with(prefix));
                    if is_wanted { Ok(page) } else { Err("keys that were not asked for") }
                });
                page.map_err(|what| Trouble::Final(self.wire.nonsense(path, what)))
            })
            .map_err(missing)
    }

    /// The directory at a path, if keys say that there is one. The root always is.
    pub(super) fn find_dir(&self, path: &[u8]) -> SourceResult<Option<Found>> {
        let key = self.wire.place().dir_key(path)?;
        let first = self.list_some(path, &key, 1)?;
        let has_marker = !key.is_empty() && first.first().is_some_and(|first| *first == key);
        if first.is_empty() && !path.is_empty() {
            return Ok(None);
        }
        match has_marker.then(|| self.head(path, &key)) {
            Some(Err(error)) if error.cause() != Cause::NotFound => Err(error),
            Some(Ok(found)) => Ok(Some(found)),
            _ => Ok(Some(self.implied())),
        }
    }

    /// A directory that nobody has made, and that keys below it need.
    fn implied(&self) -> Found {
        let (kind, attrs) = attrs_of(&Headers::new(), mode::DIR, at(0), self.owner);
        let meta = Meta { kind, attrs, links: 1, ..Meta::default() };
        Found { meta, headers: Headers::new() }
    }

    pub(super) fn list_dir(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        let prefix = self.wire.place().dir_key(dir)?;
        let (names, has_any) = self.names(dir, &prefix)?;
        if !has_any && !dir.is_empty() {
            let cause = match self.find_file(dir) {
                Ok(_) => Cause::WrongKind,
                Err(error) if error.cause() == Cause::NotFound => Cause::NotFound,
                Err(error) => return Err(error),
            };
            return Err(SourceError::new(cause, format!("{}: is no directory", self.object(dir))));
        }
        self.look_at(dir, &names)
    }

    /// Names in a directory, and whether any key says that there is one.
    fn names(&self, dir: &[u8], prefix: &str) -> SourceResult<(Vec<Named>, bool)> {
        let (mut names, mut has_any) = (Vec::new(), false);
        self.pages(dir, prefix, Some("/"), PAGE, |page| {
            has_any |= !page.keys.is_empty() || !page.prefixes.is_empty();
            let files = page.keys.iter().map(|key| (key.as_str(), false));
            let dirs = page.prefixes.iter().map(|key| (key.strip_suffix('/').unwrap_or(key), true));
            for (key, is_dir) in files.chain(dirs) {
                let name = key.strip_prefix(prefix).unwrap_or_default();
                // The directory itself.
                if is_dir || !name.is_empty() {
                    names.push(Named { name: name.to_owned(), is_dir });
                }
            }
            if names.len() > ENTRIES_MAX {
                let text = format!("{}: has more than {ENTRIES_MAX} entries", self.object(dir));
                return Err(SourceError::new(Cause::Unsupported, text));
            }
            Ok(true)
        })?;
        Ok((names, has_any))
    }

    /// Listings say little of objects: each is asked, many at the same time.
    fn look_at(&self, dir: &[u8], names: &[Named]) -> SourceResult<Vec<Entry>> {
        let dirs: HashSet<&str> = names.iter().filter(|n| n.is_dir).map(|n| n.name.as_str()).collect();
        let entries = Mutex::new(Vec::with_capacity(names.len()));
        each_at_once(names, |named| {
            entries.lock().extend(self.entry(dir, named, &dirs)?);
            Ok(())
        })?;
        Ok(entries.into_inner())
    }

    /// Removes all objects below a directory, whatever they are, and uploads to there that nobody has completed. None
    /// there is no error.
    ///
    /// # Errors
    /// As [`Source::remove`](crate::Source::remove).
    pub fn clear(&self, dir: &[u8]) -> SourceResult<()> {
        let prefix = self.wire.place().dir_key(dir)?;
        if dir.is_empty() {
            return Err(self.root_stays(dir));
        }
        self.abort_left(dir)?;
        // Each page again from the beginning: what it had is gone.
        loop {
            let keys = self.list_some(dir, &prefix, PAGE)?;
            if keys.is_empty() {
                return Ok(());
            }
            each_at_once(&keys, |key| self.delete(dir, key, &If::Always))?;
        }
    }

    /// What a name stands for; `None` when it is gone. What no file system can hold is of no kind.
    fn entry(&self, dir: &[u8], named: &Named, dirs: &HashSet<&str>) -> SourceResult<Option<Entry>> {
        let name = named.name.clone().into_bytes();
        let path = join_path(dir, &name);
        let is_name = !matches!(&name[..], b"" | b"." | b"..") && !name.contains(&0);
        if !is_name || !named.is_dir && dirs.contains(named.name.as_str()) {
            return Ok(Some(Entry { name, meta: Meta::default() }));
        }
        let found = match named.is_dir {
            true => self.head(&path, &self.wire.place().dir_key(&path)?),
            false => self.find_file(&path),
        };
        match found {
            Ok(found) => Ok(Some(Entry { name, meta: found.meta })),
            Err(error) if error.cause() == Cause::NotFound && named.is_dir => {
                Ok(Some(Entry { name, meta: self.implied().meta }))
            }
            // Removed or replaced since it was listed.
            Err(error) if matches!(error.cause(), Cause::NotFound | Cause::Changed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn remove_dir(&self, path: &[u8]) -> SourceResult<()> {
        if path.is_empty() {
            return Err(self.root_stays(path));
        }
        let key = self.wire.place().dir_key(path)?;
        if self.list_some(path, &key, 2)?.iter().any(|found| *found != key) {
            return Err(SourceError::new(Cause::NotEmpty, format!("{}: is not empty", self.object(path))));
        }
        self.delete(path, &key, &If::Always)
    }

    fn root_stays(&self, path: &[u8]) -> SourceError {
        SourceError::new(Cause::Unsupported, format!("{}: the root is not removed", self.object(path)))
    }
}

/// Does the same for many, some of them at once. The first failure ends it.
fn each_at_once<T: Sync>(all: &[T], work: impl Fn(&T) -> SourceResult<()> + Sync) -> SourceResult<()> {
    for_each_at_once(all.len() as u64, LOOKS_MAX, |at| all.get(at as usize).map_or(Ok(()), &work))
}
