//! Multipart uploads, which are invisible until they are completed.

use bivouac_types::mode;
use rusty_s3::Method;

use super::error_response::RequestError;
use super::http_client::Request;
use super::metadata::{Headers, UPLOAD, headers_of};
use super::objects::{ObjectHead, WriteCondition, digest_of};
use super::{S3Source, xml_responses};
use crate::error::Cause;
use crate::{Attrs, Piece, Precondition, PutOutcome, Source as _, SourceError, SourceResult, Upload};

/// Smallest part that stores accept, in bytes, except for the last one.
const PART_MIN: u64 = 5 << 20;
/// Upper limit of parts per upload.
const PARTS_MAX: u64 = 10_000;
/// Upper limit of an upload id, in bytes.
const TOKEN_MAX: usize = 1024;
/// Token of an empty upload: it has no parts, and stores do not complete an upload without parts.
const EMPTY_UPLOAD: &str = "-";

/// Returns the smallest part size of an upload, except for the last part. Parts of at least this size have distinct
/// quotients of their offsets by it, from which their numbers derive.
pub fn piece_size(size: u64) -> u64 {
    size.div_ceil(PARTS_MAX).max(PART_MIN)
}

impl S3Source {
    pub(super) fn begin_upload(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        let Upload { path, size, tag, opened, .. } = plan;
        let key = self.http.address().key(&path)?;
        if size == 0 {
            return Ok(Upload { path, size, token: EMPTY_UPLOAD.to_owned(), tag, opened });
        }
        let (mut headers, _) = headers_of(mode::FILE, attrs, &self.object(&path));
        // The tag identifies the object after a crash between the completion and its record.
        headers.insert(UPLOAD.to_owned(), tag.clone());
        let query = vec![("uploads", String::new())];
        let request = || Request {
            path: &path,
            key: &key,
            query: query.clone(),
            headers: headers.clone(),
            ..Request::default()
        };
        let token = self.http.execute(Method::Post, request, |answer| {
            let text = answer.text().map_err(|error| self.http.connection_broken(&path, &error))?;
            let token = xml_responses::value_of(&text, "InitiateMultipartUploadResult", "UploadId");
            let is_token = |token: &String| {
                (1..=TOKEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
            };
            let nonsense = || {
                RequestError::Permanent(self.http.invalid_response(&path, "something else than an upload"))
            };
            token.filter(is_token).filter(|token| token != EMPTY_UPLOAD).ok_or_else(nonsense)
        })?;
        Ok(Upload { path, size, token, tag, opened })
    }

    /// Returns the part number of a range.
    fn number(&self, upload: &Upload, offset: u64, len: u64) -> SourceResult<u64> {
        let (least, end) = (piece_size(upload.size), offset.saturating_add(len));
        if len > 0 && (end == upload.size || end < upload.size && len >= least) {
            return Ok(offset / least + 1);
        }
        let object = self.object(&upload.path);
        let text = format!(
            "{object}: {len} bytes at {offset} are no part of {}: stores take parts of {least} bytes and more: use \
             larger stripes",
            upload.size
        );
        Err(SourceError::new(Cause::Unsupported, text))
    }

    pub(super) fn put_part(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        let number = self.number(upload, offset, data.len() as u64)?;
        let key = self.http.address().key(&upload.path)?;
        let query = vec![("partNumber", number.to_string()), ("uploadId", upload.token.clone())];
        let headers = [("content-md5".to_owned(), digest_of(data))].into();
        // Built once: the digest takes as long as a copy of the part, and a retry sends the same.
        let request = Request { path: &upload.path, key: &key, query, headers, body: data };
        let tag = self.http.execute(
            Method::Put,
            || request.clone(),
            |answer| {
                let tag = answer.header("etag").filter(|tag| tag.len() <= TOKEN_MAX).map(str::to_owned);
                tag.ok_or_else(|| {
                    RequestError::Permanent(self.http.invalid_response(&upload.path, "without an ETag"))
                })
            },
        );
        Ok(Piece { offset, len: data.len() as u64, tag: tag.map_err(missing_upload)? })
    }

    /// Writes a file with one request, up to the size of a part. With [`Precondition::Anything`] the target is not
    /// looked up.
    ///
    /// # Errors
    /// As [`Source::commit`](crate::Source::commit).
    pub fn put_file(
        &self,
        path: &[u8],
        content: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let plan = self.plan(path, content.len() as u64)?;
        self.put_single(mode::FILE, &plan, content, attrs, expect)
    }

    pub(super) fn put_single(
        &self,
        kind: u32,
        plan: &Upload,
        content: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.check()?;
        let (path, key) = (&plan.path[..], self.http.address().key(&plan.path)?);
        let condition = match expect {
            Precondition::Anything if kind == mode::FILE => WriteCondition::Always,
            expect => self.expect(path, expect)?,
        };
        let (mut headers, lost) = headers_of(kind, attrs, &self.object(path));
        headers.insert(UPLOAD.to_owned(), plan.tag.clone());
        // A single request is atomic at the store, so no multipart upload is needed.
        let put = self.put_object(path, &key, content, headers, &condition);
        let version = self.head_after_write(path, put, &plan.tag)?.meta.version;
        Ok(PutOutcome { version, lost })
    }

    pub(super) fn commit_upload(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let path = &upload.path;
        self.check_parts(upload, pieces)?;
        let condition = self.expect(path, expect)?;
        let put = if upload.token == EMPTY_UPLOAD {
            let (mut headers, _) = headers_of(mode::FILE, attrs, &self.object(path));
            headers.insert(UPLOAD.to_owned(), upload.tag.clone());
            self.put_object(path, &self.http.address().key(path)?, b"", headers, &condition)
        } else {
            let send = |headers: &Headers| self.complete(upload, pieces, headers);
            self.conditional(&condition, Headers::new(), send)
        };
        let found = self.head_after_write(path, put, &upload.tag).map_err(missing_upload)?;
        // The size is the last check before dirty data is dropped: a store that lost a part must not pass.
        if found.meta.version.size != upload.size {
            let (is, should) = (found.meta.version.size, upload.size);
            let text = format!("{}: is {is} bytes at the source, not {should}", self.object(path));
            return Err(SourceError::new(Cause::Other, text));
        }
        self.apply_changed_attrs(path, &found, attrs)
    }

    /// Checks that the parts cover the file without gap or overlap.
    fn check_parts(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        let object = self.object(&upload.path);
        let incomplete = |end: u64| {
            let text = format!(
                "{object}: parts from byte {end} on are not in its upload, or more than once: flush it again"
            );
            SourceError::new(Cause::Other, text)
        };
        let mut end = 0;
        for piece in pieces {
            self.number(upload, piece.offset, piece.len)?;
            if piece.offset != end {
                // A gap or an overlap. Parts come from several nodes, so this is checked before the store is asked.
                return Err(incomplete(end));
            }
            end = piece.offset + piece.len;
        }
        if end == upload.size { Ok(()) } else { Err(incomplete(end)) }
    }

    fn complete(&self, upload: &Upload, pieces: &[Piece], headers: &Headers) -> SourceResult<()> {
        let (path, key) = (&upload.path, self.http.address().key(&upload.path)?);
        let least = piece_size(upload.size);
        let number = |piece: &Piece| piece.offset / least + 1;
        // The store would keep only the last of two parts with one number.
        let is_ordered = pieces.is_sorted_by(|a, b| number(a) < number(b));
        assert!(
            is_ordered && pieces.last().is_none_or(|last| number(last) <= PARTS_MAX),
            "part numbers repeat"
        );
        let body = xml_responses::parts_xml(pieces.iter().map(|piece| (number(piece), &piece.tag[..])));
        let request = || Request {
            path,
            key: &key,
            query: vec![("uploadId", upload.token.clone())],
            headers: headers.clone(),
            body: body.as_bytes(),
        };
        self.http.execute(Method::Post, request, |answer| {
            let text = answer.text().map_err(|error| self.http.connection_broken(path, &error))?;
            // Stores send status 200 and blanks while they assemble the object, and report a failure in the body.
            match xml_responses::error_code(&text) {
                Some(_) => Err(self.http.error_response(path, answer, &text)),
                None => Ok(()),
            }
        })
    }

    /// Sets the attributes that have changed since the upload began.
    fn apply_changed_attrs(
        &self,
        path: &[u8],
        found: &ObjectHead,
        attrs: &Attrs,
    ) -> SourceResult<PutOutcome> {
        let (_, lost) = headers_of(mode::FILE, attrs, &self.object(path));
        let has = &found.meta.attrs;
        let wanted = (attrs.perm, attrs.uid, attrs.gid, attrs.mtime);
        let is_same = (has.perm, has.uid, has.gid, has.mtime) == wanted
            // What does not fit into metadata is missing there in any case, and no reason for a copy.
            && has.xattrs.len() + lost.len() == attrs.xattrs.len()
            && has.xattrs.iter().all(|xattr| attrs.xattrs.contains(xattr));
        let version = found.meta.version.clone();
        if is_same {
            return Ok(PutOutcome { version, lost });
        }
        match self.replace_attrs(path, found, attrs) {
            Err(error) if error.cause() == Cause::Unsupported => {
                let text = format!("{}: attributes are those of when its flush began", self.object(path));
                Ok(PutOutcome { version, lost: vec![text] })
            }
            kept => kept,
        }
    }

    /// Aborts unfinished multipart uploads to a path and below it, also those of other clients. Succeeds if the store
    /// does not list them.
    ///
    /// # Errors
    /// [`Cause::Lost`]; as [`Source::abort`](crate::Source::abort).
    pub fn abort_unfinished_uploads(&self, path: &[u8]) -> SourceResult<()> {
        let (key, below) = (self.http.address().key(path)?, self.http.address().dir_key(path)?);
        let mut after = None;
        loop {
            let page = match self.unfinished(path, &key, after.as_ref()) {
                // A permission to write does not imply one to list uploads.
                Err(error) if matches!(error.cause(), Cause::Unsupported | Cause::Denied) => return Ok(()),
                page => page?,
            };
            for (key, token) in page.uploads.iter().filter(|(to, _)| *to == key || to.starts_with(&below)) {
                self.abort_named(path, key, token)?;
            }
            if page.next.is_none() || page.next == after {
                return Ok(());
            }
            after = page.next;
        }
    }

    fn unfinished(
        &self,
        path: &[u8],
        prefix: &str,
        after: Option<&(String, String)>,
    ) -> SourceResult<xml_responses::UploadsPage> {
        let request = || {
            let mut query = vec![
                ("uploads", String::new()),
                ("encoding-type", "url".to_owned()),
                ("prefix", prefix.to_owned()),
            ];
            if let Some((key, token)) = after {
                query.extend([("key-marker", key.clone()), ("upload-id-marker", token.clone())]);
            }
            Request { path, query, ..Request::default() }
        };
        self.http.execute(Method::Get, request, |answer| {
            let text = answer.text().map_err(|error| self.http.connection_broken(path, &error))?;
            let nonsense = || {
                RequestError::Permanent(
                    self.http.invalid_response(path, "something else than a list of uploads"),
                )
            };
            xml_responses::unfinished_of(&text).ok_or_else(nonsense)
        })
    }

    pub(super) fn abort_upload(&self, upload: &Upload) -> SourceResult<()> {
        // An upload that was only planned has no id at the store.
        if upload.token == EMPTY_UPLOAD || upload.token.is_empty() {
            return Ok(());
        }
        let key = self.http.address().key(&upload.path)?;
        self.abort_named(&upload.path, &key, &upload.token)
    }

    fn abort_named(&self, path: &[u8], key: &str, token: &str) -> SourceResult<()> {
        let query = vec![("uploadId", token.to_owned())];
        let request = || Request { path, key, query: query.clone(), ..Request::default() };
        match self.http.execute(Method::Delete, request, |_| Ok(())) {
            Err(error) if error.cause() == Cause::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

/// Reports a missing upload as an error of the write: `NotFound` would mean that the file does not exist.
fn missing_upload(error: SourceError) -> SourceError {
    match error.cause() {
        Cause::NotFound => SourceError::new(Cause::Other, error.to_string()),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_large_as_stores_want_them() {
        assert_eq!((piece_size(0), piece_size(50_000 << 20)), (5 << 20, 5 << 20));
        for size in [5u64 << 40, u64::MAX / 2, (50_000 << 20) + 1] {
            assert!((size - 1) / piece_size(size) < PARTS_MAX);
        }
    }
}
