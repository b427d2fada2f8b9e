//! Operations on single objects: head, ranged read, put, metadata change, delete.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bivouac_types::mode;
use md5::{Digest, Md5};
use rusty_s3::Method;

use super::error_response::{RequestError, parse_date};
use super::http_client::{Request, Response};
use super::metadata::{Headers, UPLOAD, attrs_of, headers_of, other_headers};
use super::{S3Source, at, xml_responses};
use crate::error::Cause;
use crate::source::check_path;
use crate::{Attrs, Meta, PutOutcome, Source as _, SourceError, SourceResult, Version};

/// Upper limit of an `ETag`, in bytes.
const TAG_MAX: usize = 128;
/// Upper limit of a symbolic link's target, in bytes.
const TARGET_MAX: u64 = 4096;
/// Upper limit of an object that one `CopyObject` copies, in bytes.
const COPY_MAX: u64 = 5 << 30;

/// Metadata of an object or of a directory.
pub struct ObjectHead {
    /// File metadata.
    pub meta: Meta,
    /// Response headers.
    pub headers: Headers,
}

/// Condition of a write, sent as a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteCondition {
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match` with this `ETag`.
    Tag(String),
    /// Unconditional.
    Always,
}

impl ObjectHead {
    /// Returns the condition that the object is unchanged.
    pub fn unchanged_condition(&self) -> WriteCondition {
        self.headers.get("etag").map_or(WriteCondition::Always, |tag| WriteCondition::Tag(tag.clone()))
    }
}

impl WriteCondition {
    fn put_into(&self, headers: &mut Headers) {
        let (name, value) = match self {
            WriteCondition::Absent => ("if-none-match", "*"),
            WriteCondition::Tag(tag) => ("if-match", tag.as_str()),
            WriteCondition::Always => return,
        };
        headers.insert(name.to_owned(), value.to_owned());
    }
}

impl S3Source {
    /// Sends `HeadObject`.
    pub(super) fn head(&self, path: &[u8], key: &str) -> SourceResult<ObjectHead> {
        let request = || Request { path, key, ..Request::default() };
        self.http.execute(Method::Head, request, |answer| {
            self.found(path, key, answer).map_err(RequestError::Permanent)
        })
    }

    fn found(&self, path: &[u8], key: &str, answer: &Response) -> SourceResult<ObjectHead> {
        let size = answer.header("content-length").and_then(|text| text.parse().ok());
        let size: u64 = size.ok_or_else(|| self.http.invalid_response(path, "without a size"))?;
        let changed = at(answer.header("last-modified").and_then(parse_date).unwrap_or(0));
        let kind = if key.ends_with('/') || key.is_empty() { mode::DIR } else { mode::FILE };
        let (kind, attrs) = attrs_of(&answer.headers, kind, changed, self.owner);
        let version = match kind {
            mode::DIR => Version::default(),
            _ => self.version(path, size, answer)?,
        };
        let meta = Meta { kind, attrs, version, links: 1, ..Meta::default() };
        Ok(ObjectHead { meta, headers: answer.headers.clone() })
    }

    /// Returns the version of an object: its `ETag`, or its time if the store sends none.
    fn version(&self, path: &[u8], size: u64, answer: &Response) -> SourceResult<Version> {
        let changed = answer.header("last-modified").and_then(parse_date);
        let Some(tag) = answer.header("etag") else {
            let secs = changed.ok_or_else(|| self.http.invalid_response(path, "neither ETag nor time"))?;
            return Ok(Version { size, mtime: at(secs), tag: String::new() });
        };
        let is_plain = |text: &str| text.len() <= TAG_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(tag) {
            return Err(self.http.invalid_response(path, "an ETag that is none"));
        }
        let made_by = answer.header(UPLOAD).filter(|made_by| is_plain(made_by));
        let tag = made_by.map_or_else(|| tag.to_owned(), |made_by| format!("{tag} {made_by}"));
        Ok(Version { size, mtime: at(0), tag })
    }

    /// Returns the file or link at a path.
    pub(super) fn find_file(&self, path: &[u8]) -> SourceResult<ObjectHead> {
        let key = self.http.address().key(path)?;
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

    /// Reads a range of an object that still has `version`.
    pub(super) fn read_range(
        &self,
        path: &[u8],
        version: &Version,
        offset: u64,
        into: &mut [u8],
    ) -> SourceResult<usize> {
        check_path(path)?;
        let key = self.http.address().key(path)?;
        let len = (into.len() as u64).min(version.size.saturating_sub(offset)) as usize;
        if len == 0 {
            // Nothing to read: the version is checked all the same, as the caller relies on it.
            let is_same = self.head(path, &key)?.meta.version == *version;
            return if is_same { Ok(0) } else { Err(SourceError::changed(&self.object(path))) };
        }
        let into = into.get_mut(..len).unwrap_or_default();
        // A retry continues behind the bytes that arrived before the connection broke.
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
        self.http.execute(Method::Get, request, |answer| {
            let first = offset + done.get() as u64;
            self.check_range(path, version, first, answer).map_err(RequestError::Permanent)?;
            let (read, outcome) = answer.fill(into.get_mut(done.get()..).unwrap_or_default());
            done.set(done.get() + read);
            assert!(done.get() <= len, "a response filled more than its range");
            outcome.map_err(|error| self.http.connection_broken(path, &error))
        })?;
        Ok(len)
    }

    /// Checks that a response has the requested version and range.
    fn check_range(&self, path: &[u8], version: &Version, first: u64, answer: &Response) -> SourceResult<()> {
        let total = match (answer.status, answer.header("content-range")) {
            (206, Some(range)) => total_of(range, first),
            (200, _) if first == 0 => answer.header("content-length").and_then(|text| text.parse().ok()),
            _ => None,
        };
        let total =
            total.ok_or_else(|| self.http.invalid_response(path, "another range than was asked for"))?;
        match self.version(path, total, answer)? == *version {
            true => Ok(()),
            false => Err(SourceError::changed(&self.object(path))),
        }
    }

    /// Sends `PutObject`.
    pub(super) fn put_object(
        &self,
        path: &[u8],
        key: &str,
        body: &[u8],
        mut headers: Headers,
        condition: &WriteCondition,
    ) -> SourceResult<()> {
        // The store refuses a body that was damaged on the way, also over plain HTTP.
        headers.insert("content-md5".to_owned(), digest_of(body));
        self.conditional(condition, headers, |headers| {
            let request = || Request { path, key, headers: headers.clone(), body, ..Request::default() };
            self.http.execute(Method::Put, request, |_| Ok(()))
        })
    }

    /// Sends a write with its condition, and again without it to a store that does not support conditions: the caller
    /// has checked the precondition just before.
    pub(super) fn conditional<T>(
        &self,
        condition: &WriteCondition,
        mut headers: Headers,
        send: impl Fn(&Headers) -> SourceResult<T>,
    ) -> SourceResult<T> {
        let without = headers.clone();
        condition.put_into(&mut headers);
        match send(&headers) {
            Err(error) if error.cause() == Cause::Unsupported && *condition != WriteCondition::Always => {
                send(&without)
            }
            outcome => outcome,
        }
    }

    /// Returns the object after a write. A failed write may still have succeeded if its response was lost, so the
    /// upload tag decides.
    pub(super) fn head_after_write<T>(
        &self,
        path: &[u8],
        put: SourceResult<T>,
        made_by: &str,
    ) -> SourceResult<ObjectHead> {
        let found = match put {
            Err(error) if matches!(error.cause(), Cause::Changed | Cause::Other | Cause::NotFound) => {
                // The upload tag is unique, so it tells this write from one of equal content.
                let is_ours =
                    |found: &ObjectHead| found.headers.get(UPLOAD).is_some_and(|tag| tag == made_by);
                return match self.find_file(path) {
                    Ok(found) if is_ours(&found) => Ok(found),
                    // The state of the target is unknown. `Changed` would be reported as a conflict with another
                    // writer.
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

    /// Sets the attributes of an object.
    pub(super) fn replace_attrs(
        &self,
        path: &[u8],
        found: &ObjectHead,
        attrs: &Attrs,
    ) -> SourceResult<PutOutcome> {
        if found.meta.version.size > COPY_MAX {
            let text =
                format!("{}: attributes of objects above 5 GiB come with content only", self.object(path));
            return Err(SourceError::new(Cause::Unsupported, text));
        }
        let key = self.http.address().key(path)?;
        let (mut headers, lost) = headers_of(found.meta.kind, attrs, &self.object(path));
        headers.extend(other_headers(&found.headers));
        if let Some(made_by) = found.headers.get(UPLOAD) {
            headers.insert(UPLOAD.to_owned(), made_by.clone());
        }
        let copied = self.copy_over_itself(path, &key, found, headers);
        let now = self.head(path, &key)?.meta;
        match copied {
            // The response of a successful copy may have been lost; the retry was refused because the `ETag` had
            // changed.
            Err(error)
                if error.cause() != Cause::Changed
                    || !self.has_attrs_applied(&now, &found.meta.version, attrs) =>
            {
                Err(error)
            }
            _ => Ok(PutOutcome { version: now.version, lost }),
        }
    }

    /// Replaces the metadata of an object by a copy onto itself.
    pub(super) fn copy_over_itself(
        &self,
        path: &[u8],
        key: &str,
        found: &ObjectHead,
        mut headers: Headers,
    ) -> SourceResult<()> {
        headers.insert("x-amz-copy-source".to_owned(), self.http.address().copy_source(key));
        headers.insert("x-amz-metadata-directive".to_owned(), "REPLACE".to_owned());
        if let WriteCondition::Tag(tag) = found.unchanged_condition() {
            // Without it, a concurrent write between the head request and the copy would be overwritten by old content.
            headers.insert("x-amz-copy-source-if-match".to_owned(), tag);
        }
        let request = || Request { path, key, headers: headers.clone(), ..Request::default() };
        self.http.execute(Method::Put, request, |answer| {
            let text = answer.text().map_err(|error| self.http.connection_broken(path, &error))?;
            // Stores send status 200 first, and report a failure of the copy in the body.
            match xml_responses::error_code(&text) {
                Some(_) => Err(self.http.error_response(path, answer, &text)),
                None => Ok(()),
            }
        })
    }

    /// Removes an object; succeeds if it does not exist.
    pub(super) fn delete(&self, path: &[u8], key: &str, condition: &WriteCondition) -> SourceResult<()> {
        let outcome = self.conditional(condition, Headers::new(), |headers| {
            let request = || Request { path, key, headers: headers.clone(), ..Request::default() };
            self.http.execute(Method::Delete, request, |_| Ok(()))
        });
        match outcome {
            Err(error) if error.cause() == Cause::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

/// Returns the `Content-MD5` of a body.
pub fn digest_of(body: &[u8]) -> String {
    STANDARD.encode(Md5::digest(body))
}

/// Returns the `ETag` part of a version's tag.
fn etag_of(version: &Version) -> Option<&str> {
    version.tag.split(' ').next().filter(|tag| !tag.is_empty())
}

/// Parses `Content-Range` and returns the total size, if the range begins at `first`.
fn total_of(range: &str, first: u64) -> Option<u64> {
    let (span, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let begins: u64 = span.split_once('-')?.0.parse().ok()?;
    (begins == first).then(|| total.parse().ok())?
}
