//! Directories: common prefixes of keys, and marker objects.

use std::collections::HashSet;

use bivouac_types::mode;
use parking_lot::Mutex;
use rusty_s3::Method;

use super::error_response::RequestError;
use super::http_client::Request;
use super::metadata::{Headers, attrs_of};
use super::objects::{ObjectHead, WriteCondition};
use super::{S3Source, at, xml_responses};
use crate::error::Cause;
use crate::parallel::for_each_parallel;
use crate::source::join_path;
use crate::{Entry, Meta, SourceError, SourceResult};

/// Keys per page.
const PAGE: usize = 1000;
/// Upper limit of consecutive empty pages: stores may return some for removed keys.
const EMPTY_MAX: usize = 1000;
/// Upper limit of entries of one directory.
const ENTRIES_MAX: usize = 4 << 20;
/// Concurrent `HeadObject` requests.
const HEADS_MAX: usize = 16;

/// A name in a directory, without metadata.
struct ListedName {
    name: String,
    is_dir: bool,
}

impl S3Source {
    /// Returns the first keys with a prefix, at least `least` of them if there are as many.
    pub(super) fn list_some(&self, path: &[u8], prefix: &str, least: usize) -> SourceResult<Vec<String>> {
        let mut keys = Vec::new();
        self.pages(path, prefix, None, least, |page| {
            keys.extend(page.keys);
            Ok(keys.len() < least)
        })?;
        Ok(keys)
    }

    /// Lists page by page while `each` returns true. A page may have fewer keys than requested, or none.
    fn pages(
        &self,
        path: &[u8],
        prefix: &str,
        delimiter: Option<&str>,
        max: usize,
        mut each: impl FnMut(xml_responses::ListPage) -> SourceResult<bool>,
    ) -> SourceResult<()> {
        let (mut after, mut empty) = (None, 0);
        loop {
            let mut page = self.page(path, prefix, delimiter, max, after.as_deref())?;
            empty = if page.keys.is_empty() && page.prefixes.is_empty() { empty + 1 } else { 0 };
            let next = page.next.take();
            // A store that repeats its token or sends only empty pages would keep this loop running for ever.
            if empty > EMPTY_MAX || next.is_some() && next == after {
                return Err(self.http.invalid_response(path, "the same page again and again"));
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
    ) -> SourceResult<xml_responses::ListPage> {
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
            // A listing of an unknown prefix is empty, so `NotFound` refers to the bucket.
            Cause::NotFound => self.http.invalid_response(path, "that there is nothing to list"),
            _ => error,
        };
        self.http
            .execute(Method::Get, request, |answer| {
                let text = answer.text().map_err(|error| self.http.connection_broken(path, &error))?;
                let page = xml_responses::page_of(&text).ok_or("something else than a listing");
                // A store that ignores the prefix would show keys of others as files of this partition.
                let page = page.and_then(|page| {
                    let is_wanted = page.keys.iter().chain(&page.prefixes).all(|key| key.starts_with(prefix));
                    if is_wanted { Ok(page) } else { Err("keys that were not asked for") }
                });
                page.map_err(|what| RequestError::Permanent(self.http.invalid_response(path, what)))
            })
            .map_err(missing)
    }

    /// Returns the directory at a path, if a key has it as its prefix. The root always exists.
    pub(super) fn find_dir(&self, path: &[u8]) -> SourceResult<Option<ObjectHead>> {
        let key = self.http.address().dir_key(path)?;
        // One key suffices, and the marker comes first: its key is the prefix itself, which sorts before all others.
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

    /// Returns the metadata of a directory without a marker object.
    fn implied(&self) -> ObjectHead {
        let (kind, attrs) = attrs_of(&Headers::new(), mode::DIR, at(0), self.owner);
        let meta = Meta { kind, attrs, links: 1, ..Meta::default() };
        ObjectHead { meta, headers: Headers::new() }
    }

    pub(super) fn list_dir(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        let prefix = self.http.address().dir_key(dir)?;
        let (names, has_any) = self.names(dir, &prefix)?;
        if !has_any && !dir.is_empty() {
            let cause = match self.find_file(dir) {
                Ok(_) => Cause::WrongKind,
                Err(error) if error.cause() == Cause::NotFound => Cause::NotFound,
                Err(error) => return Err(error),
            };
            return Err(SourceError::new(cause, format!("{}: is no directory", self.object(dir))));
        }
        self.head_all(dir, &names)
    }

    /// Returns the names in a directory, and whether any key has its prefix.
    fn names(&self, dir: &[u8], prefix: &str) -> SourceResult<(Vec<ListedName>, bool)> {
        let (mut names, mut has_any) = (Vec::new(), false);
        self.pages(dir, prefix, Some("/"), PAGE, |page| {
            has_any |= !page.keys.is_empty() || !page.prefixes.is_empty();
            let files = page.keys.iter().map(|key| (key.as_str(), false));
            let dirs = page.prefixes.iter().map(|key| (key.strip_suffix('/').unwrap_or(key), true));
            for (key, is_dir) in files.chain(dirs) {
                let name = key.strip_prefix(prefix).unwrap_or_default();
                // The empty name is the marker object of the directory itself.
                if is_dir || !name.is_empty() {
                    names.push(ListedName { name: name.to_owned(), is_dir });
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

    /// Fetches the metadata of many names in parallel, because listings contain too little of it.
    fn head_all(&self, dir: &[u8], names: &[ListedName]) -> SourceResult<Vec<Entry>> {
        let dirs: HashSet<&str> = names.iter().filter(|n| n.is_dir).map(|n| n.name.as_str()).collect();
        let entries = Mutex::new(Vec::with_capacity(names.len()));
        for_each_item(names, |named| {
            entries.lock().extend(self.entry(dir, named, &dirs)?);
            Ok(())
        })?;
        Ok(entries.into_inner())
    }

    /// Removes all objects and unfinished uploads below a directory. Succeeds if there are none.
    ///
    /// # Errors
    /// As [`Source::remove`](crate::Source::remove).
    pub fn clear(&self, dir: &[u8]) -> SourceResult<()> {
        let prefix = self.http.address().dir_key(dir)?;
        if dir.is_empty() {
            return Err(self.root_stays(dir));
        }
        self.abort_unfinished_uploads(dir)?;
        // Always the first page: the previous one has been deleted, so its continuation token is of no use.
        loop {
            let keys = self.list_some(dir, &prefix, PAGE)?;
            if keys.is_empty() {
                return Ok(());
            }
            for_each_item(&keys, |key| self.delete(dir, key, &WriteCondition::Always))?;
        }
    }

    /// Returns the entry of a name; `None` if it has gone. Names that no file system can represent get no type.
    fn entry(&self, dir: &[u8], named: &ListedName, dirs: &HashSet<&str>) -> SourceResult<Option<Entry>> {
        let name = named.name.clone().into_bytes();
        let path = join_path(dir, &name);
        let is_name = !matches!(&name[..], b"" | b"." | b"..") && !name.contains(&0);
        if !is_name || !named.is_dir && dirs.contains(named.name.as_str()) {
            return Ok(Some(Entry { name, meta: Meta::default() }));
        }
        let found = match named.is_dir {
            true => self.head(&path, &self.http.address().dir_key(&path)?),
            false => self.find_file(&path),
        };
        match found {
            Ok(found) => Ok(Some(Entry { name, meta: found.meta })),
            Err(error) if error.cause() == Cause::NotFound && named.is_dir => {
                Ok(Some(Entry { name, meta: self.implied().meta }))
            }
            // Removed or replaced between the listing and this request.
            Err(error) if matches!(error.cause(), Cause::NotFound | Cause::Changed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn remove_dir(&self, path: &[u8]) -> SourceResult<()> {
        if path.is_empty() {
            return Err(self.root_stays(path));
        }
        let key = self.http.address().dir_key(path)?;
        if self.list_some(path, &key, 2)?.iter().any(|found| *found != key) {
            return Err(SourceError::new(Cause::NotEmpty, format!("{}: is not empty", self.object(path))));
        }
        self.delete(path, &key, &WriteCondition::Always)
    }

    fn root_stays(&self, path: &[u8]) -> SourceError {
        SourceError::new(Cause::Unsupported, format!("{}: the root is not removed", self.object(path)))
    }
}

/// Calls `work` for each item in parallel; the first failure ends it.
fn for_each_item<T: Sync>(all: &[T], work: impl Fn(&T) -> SourceResult<()> + Sync) -> SourceResult<()> {
    for_each_parallel(all.len() as u64, HEADS_MAX, |at| all.get(at as usize).map_or(Ok(()), &work))
}
