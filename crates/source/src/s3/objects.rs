//! Single objects: looked at, read, written as a whole, given other metadata, removed.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bivouac_types::mode;
use md5::{Digest, Md5};
use rusty_s3::Method;

use super::failure::{Trouble, parse_date};
use super::metadata::{Headers, UPLOAD, attrs_of, headers_besides, headers_of};
use super::wire::{Answer, Request};
use super::{S3Source, answers, at};
use crate::error::Cause;
use crate::source::check_path;
use crate::{Attrs, Kept, Meta, Source as _, SourceError, SourceResult, Version};

/// Longest name that tells contents apart, in bytes.
const TAG_MAX: usize = 128;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: u64 = 4096;
/// Largest object that is copied in one go, in bytes.
const COPY_MAX: u64 = 5 << 30;

/// An object, or what keys say of a directory.
pub struct Found {
    /// What it is to a file system.
    pub meta: Meta,
    /// What the store says of it.
    pub headers: Headers,
}

/// What must be there for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum If {
    /// Nothing.
    Absent,
    /// Content with this name.
    Tag(String),
    /// Whatever.
    Always,
}

impl Found {
    /// The condition that it is still there.
    pub fn is_still(&self) -> If {
        self.headers.get("etag").map_or(If::Always, |tag| If::Tag(tag.clone()))
    }
}

impl If {
    fn put_into(&self, headers: &mut Headers) {
        let (name, value) = match self {
            If::Absent => ("if-none-match", "*"),
            If::Tag(tag) => ("if-match", tag.as_str()),
            If::Always => return,
        };
        headers.insert(name.to_owned(), value.to_owned());
    }
}

impl S3Source {
    /// What is said of an object.
    pub(super) fn head(&self, path: &[u8], key: &str) -> SourceResult<Found> {
        let request = || Request { path, key, ..Request::default() };
        self.wire.ask(Method::Head, request, |answer| self.found(path, key, answer).map_err(Trouble::Final))
    }

    fn found(&self, path: &[u8], key: &str, answer: &Answer) -> SourceResult<Found> {
        let size = answer.header("content-length").and_then(|text| text.parse().ok());
        let size: u64 = size.ok_or_else(|| self.wire.nonsense(path, "without a size"))?;
        let changed = at(answer.header("last-modified").and_then(parse_date).unwrap_or(0));
        let kind = if key.ends_with('/') || key.is_empty() { mode::DIR } else { mode::FILE };
        let (kind, attrs) = attrs_of(&answer.headers, kind, changed, self.owner);
        let version = match kind {
            mode::DIR => Version::default(),
            _ => self.version(path, size, answer)?,
        };
        let meta = Meta { kind, attrs, version, links: 1, target: Vec::new(), rdev: 0 };
        Ok(Found { meta, headers: answer.headers.clone() })
    }

    /// How content looks: the store's name for it, or where it has none the time that it came.
    fn version(&self, path: &[u8], size: u64, answer: &Answer) -> SourceResult<Version> {
        let changed = answer.header("last-modified").and_then(parse_date);
        let Some(tag) = answer.header("etag") else {
            let secs = changed.ok_or_else(|| self.wire.nonsense(path, "neither ETag nor time"))?;
            return Ok(Version { size, mtime: at(secs), tag: String::new() });
        };
        let is_plain = |text: &str| text.len() <= TAG_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(tag) {
            return Err(self.wire.nonsense(path, "an ETag that is none"));
        }
        let made_by = answer.header(UPLOAD).filter(|made_by| is_plain(made_by));
        let tag = made_by.map_or_else(|| tag.to_owned(), |made_by| format!("{tag} {made_by}"));
        Ok(Version { size, mtime: at(0), tag })
    }

    /// The file or link at a path.
    pub(super) fn find_file(&self, path: &[u8]) -> SourceResult<Found> {
        let key = self.wire.place().key(path)?;
        let mut found = self.head(path, &key)?;
        if found.meta.kind == mode::LINK {
            found.meta.target = self.target(path, &found.meta.version)?;
        }
        Ok(found)
    }

    fn target(&self, path: &[u8], version: &Version) -> SourceResult<Vec<u8>> {
        let mut target = vec![0; version.size.min(TARGET_MAX) as usize];
        let len = self.read_range(path, version, 0, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    /// Fills from content that still has the same name.
    pub(super) fn read_range(
        &self,
        path: &[u8],
        version: &Version,
        offset: u64,
        into: &mut [u8],
    ) -> SourceResult<usize> {
        check_path(path)?;
        let key = self.wire.place().key(path)?;
        let len = (into.len() as u64).min(version.size.saturating_sub(offset)) as usize;
        if len == 0 {
            let is_same = self.head(path, &key)?.meta.version == *version;
            return if is_same { Ok(0) } else { Err(SourceError::changed(&self.object(path))) };
        }
        let into = into.get_mut(..len).unwrap_or_default();
        // What came before a connection broke off is not asked for again.
        let done = Cell::new(0);
        let request = || {
            let first = offset + done.get() as u64;
            let mut headers = Headers::new();
            headers.insert("range".to_owned(), format!("bytes={first}-{}", offset + len as u64 - 1));
            if let Some(tag) = etag_of(version) {
                headers.insert("if-match".to_owned(), tag.to_owned());
            }
            Request { path, key: &key, headers, ..Request::default() }
        };
        self.wire.ask(Method::Get, request, |answer| {
            let first = offset + done.get() as u64;
            self.check_range(path, version, first, answer).map_err(Trouble::Final)?;
            let (read, outcome) = answer.fill(into.get_mut(done.get()..).unwrap_or_default());
            done.set(done.get() + read);
            outcome.map_err(|error| self.wire.broken(path, &error))
        })?;
        Ok(len)
    }

    /// What comes is what was asked for: neither another version, nor another range.
    fn check_range(&self, path: &[u8], version: &Version, first: u64, answer: &Answer) -> SourceResult<()> {
        let total = match (answer.status, answer.header("content-range")) {
            (206, Some(range)) => total_of(range, first),
            (200, _) if first == 0 => answer.header("content-length").and_then(|text| text.parse().ok()),
            _ => None,
        };
        let total = total.ok_or_else(|| self.wire.nonsense(path, "another range than was asked for"))?;
        match self.version(path, total, answer)? == *version {
            true => Ok(()),
            false => Err(SourceError::changed(&self.object(path))),
        }
    }

    /// Writes an object as a whole.
    pub(super) fn put_object(
        &self,
        path: &[u8],
        key: &str,
        body: &[u8],
        mut headers: Headers,
        condition: &If,
    ) -> SourceResult<()> {
        headers.insert("content-md5".to_owned(), digest_of(body));
        self.conditional(condition, headers, |headers| {
            let request = || Request { path, key, headers: headers.clone(), body, ..Request::default() };
            self.wire.ask(Method::Put, request, |_| Ok(()))
        })
    }

    /// Sends a write with its condition; without it to a store that does not know conditions: what is there was looked at
    /// just before.
    pub(super) fn conditional<T>(
        &self,
        condition: &If,
        mut headers: Headers,
        send: impl Fn(&Headers) -> SourceResult<T>,
    ) -> SourceResult<T> {
        let without = headers.clone();
        condition.put_into(&mut headers);
        match send(&headers) {
            Err(error) if error.cause() == Cause::Unsupported && *condition != If::Always => send(&without),
            outcome => outcome,
        }
    }

    /// What is there after a write: also when its answer was lost, and the same again was refused.
    pub(super) fn taken<T>(&self, path: &[u8], put: SourceResult<T>, made_by: &str) -> SourceResult<Found> {
        let found = match put {
            Err(error) if matches!(error.cause(), Cause::Changed | Cause::Other | Cause::NotFound) => {
                let is_ours = |found: &Found| found.headers.get(UPLOAD).is_some_and(|tag| tag == made_by);
                return match self.find_file(path) {
                    Ok(found) if is_ours(&found) => Ok(found),
                    // It is not known what is there: that is no change of somebody else's.
                    Err(unseen) if unseen.cause() != Cause::NotFound => Err(unseen),
                    _ => Err(error),
                };
            }
            Err(error) => return Err(error),
            Ok(_) => self.find_file(path)?,
        };
        if found.headers.get(UPLOAD).is_none_or(|tag| tag != made_by) {
            return Err(SourceError::changed(&self.object(path)));
        }
        Ok(found)
    }

    /// Gives an object other attributes.
    pub(super) fn give_attrs(&self, path: &[u8], found: &Found, attrs: &Attrs) -> SourceResult<Kept> {
        if found.meta.version.size > COPY_MAX {
            let text =
                format!("{}: attributes of objects above 5 GiB come with content only", self.object(path));
            return Err(SourceError::new(Cause::Unsupported, text));
        }
        let key = self.wire.place().key(path)?;
        let (mut headers, lost) = headers_of(found.meta.kind, attrs, &self.object(path));
        headers.extend(headers_besides(&found.headers));
        if let Some(made_by) = found.headers.get(UPLOAD) {
            headers.insert(UPLOAD.to_owned(), made_by.clone());
        }
        let copied = self.copy_over_itself(path, &key, found, headers);
        let now = self.head(path, &key)?.meta;
        match copied {
            // The answer was lost, and the same again was refused.
            Err(error)
                if error.cause() != Cause::Changed || !self.is_given(&now, &found.meta.version, attrs) =>
            {
                Err(error)
            }
            _ => Ok(Kept { version: now.version, lost }),
        }
    }

    /// An object's metadata is changed by a copy of it over itself.
    pub(super) fn copy_over_itself(
        &self,
        path: &[u8],
        key: &str,
        found: &Found,
        mut headers: Headers,
    ) -> SourceResult<()> {
        headers.insert("x-amz-copy-source".to_owned(), self.wire.place().copy_source(key));
        headers.insert("x-amz-metadata-directive".to_owned(), "REPLACE".to_owned());
        if let If::Tag(tag) = found.is_still() {
            headers.insert("x-amz-copy-source-if-match".to_owned(), tag);
        }
        let request = || Request { path, key, headers: headers.clone(), ..Request::default() };
        self.wire.ask(Method::Put, request, |answer| {
            let text = answer.text().map_err(|error| self.wire.broken(path, &error))?;
            // A copy may fail after it has begun to answer.
            match answers::code_of(&text) {
                Some(_) => Err(self.wire.refused(path, answer, &text)),
                None => Ok(()),
            }
        })
    }

    /// Removes an object; none there is no error.
    pub(super) fn delete(&self, path: &[u8], key: &str, condition: &If) -> SourceResult<()> {
        let outcome = self.conditional(condition, Headers::new(), |headers| {
            let request = || Request { path, key, headers: headers.clone(), ..Request::default() };
            self.wire.ask(Method::Delete, request, |_| Ok(()))
        });
        match outcome {
            Err(error) if error.cause() == Cause::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

/// The digest that a store compares with what it gets.
pub fn digest_of(body: &[u8]) -> String {
    STANDARD.encode(Md5::digest(body))
}

/// The store's name for content.
fn etag_of(version: &Version) -> Option<&str> {
    version.tag.split(' ').next().filter(|tag| !tag.is_empty())
}

/// Size of the whole, of a range that begins where it should.
fn total_of(range: &str, first: u64) -> Option<u64> {
    let (span, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let begins: u64 = span.split_once('-')?.0.parse().ok()?;
    (begins == first).then(|| total.parse().ok())?
}
