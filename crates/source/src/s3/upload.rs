//! Files in the making: uploads in parts, which nobody sees until they are complete.

use bivouac_types::mode;
use rusty_s3::Method;

use super::failure::Trouble;
use super::metadata::{Headers, UPLOAD, headers_of};
use super::objects::{Found, If, digest_of};
use super::wire::Request;
use super::{S3Source, answers};
use crate::error::Cause;
use crate::{Attrs, Expect, Kept, Piece, Source as _, SourceError, SourceResult, Upload};

/// Smallest part, in bytes, that stores take, but the last.
const PART_MIN: u64 = 5 << 20;
/// Most parts of one upload.
const PARTS_MAX: u64 = 10_000;
/// Longest name of an upload, in bytes.
const TOKEN_MAX: usize = 1024;
/// The name of an upload of nothing: it has no parts, and stores complete none without.
const NOTHING: &str = "-";

/// Smallest size of the parts of an upload, all but the last. Parts that are no smaller begin so far from each other that
/// where they begin gives each a number of its own.
pub fn piece_size(size: u64) -> u64 {
    size.div_ceil(PARTS_MAX).max(PART_MIN)
}

impl S3Source {
    pub(super) fn begin_upload(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        let Upload { path, size, tag, opened, .. } = plan;
        let key = self.wire.place().key(&path)?;
        if size == 0 {
            return Ok(Upload { path, size, token: NOTHING.to_owned(), tag, opened });
        }
        let (mut headers, _) = headers_of(mode::FILE, attrs, &self.object(&path));
        headers.insert(UPLOAD.to_owned(), tag.clone());
        let query = vec![("uploads", String::new())];
        let request = || Request {
            path: &path,
            key: &key,
            query: query.clone(),
            headers: headers.clone(),
            ..Request::default()
        };
        let token = self.wire.ask(Method::Post, request, |answer| {
            let text = answer.text().map_err(|error| self.wire.broken(&path, &error))?;
            let token = answers::value_of(&text, "InitiateMultipartUploadResult", "UploadId");
            let is_token = |token: &String| {
                (1..=TOKEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
            };
            let nonsense = || Trouble::Final(self.wire.nonsense(&path, "something else than an upload"));
            token.filter(is_token).filter(|token| token != NOTHING).ok_or_else(nonsense)
        })?;
        Ok(Upload { path, size, token, tag, opened })
    }

    /// The number of a part.
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
        let key = self.wire.place().key(&upload.path)?;
        let query = vec![("partNumber", number.to_string()), ("uploadId", upload.token.clone())];
        let headers = [("content-md5".to_owned(), digest_of(data))].into();
        let request = Request { path: &upload.path, key: &key, query, headers, body: data };
        let tag = self.wire.ask(
            Method::Put,
            || request.clone(),
            |answer| {
                let tag = answer.header("etag").filter(|tag| tag.len() <= TOKEN_MAX).map(str::to_owned);
                tag.ok_or_else(|| Trouble::Final(self.wire.nonsense(&upload.path, "without an ETag")))
            },
        );
        Ok(Piece { offset, len: data.len() as u64, tag: tag.map_err(gone)? })
    }

    /// Puts a file in the place of its target by one request, as long as it is no larger than a part may be. If anything may
    /// be there, nobody looks what that is.
    ///
    /// # Errors
    /// As [`Source::commit`](crate::Source::commit).
    pub fn put_file(
        &self,
        path: &[u8],
        content: &[u8],
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        let plan = self.plan(path, content.len() as u64)?;
        self.put_whole(mode::FILE, &plan, content, attrs, expect)
    }

    pub(super) fn put_whole(
        &self,
        kind: u32,
        plan: &Upload,
        content: &[u8],
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        self.check()?;
        let (path, key) = (&plan.path[..], self.wire.place().key(&plan.path)?);
        let condition = match expect {
            Expect::Anything if kind == mode::FILE => If::Always,
            expect => self.expect(path, expect)?,
        };
        let (mut headers, lost) = headers_of(kind, attrs, &self.object(path));
        headers.insert(UPLOAD.to_owned(), plan.tag.clone());
        let put = self.put_object(path, &key, content, headers, &condition);
        let version = self.taken(path, put, &plan.tag)?.meta.version;
        Ok(Kept { version, lost })
    }

    pub(super) fn commit_upload(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Expect,
    ) -> SourceResult<Kept> {
        let path = &upload.path;
        self.check_whole(upload, pieces)?;
        let condition = self.expect(path, expect)?;
        let put = if upload.token == NOTHING {
            let (mut headers, _) = headers_of(mode::FILE, attrs, &self.object(path));
            headers.insert(UPLOAD.to_owned(), upload.tag.clone());
            self.put_object(path, &self.wire.place().key(path)?, b"", headers, &condition)
        } else {
            let send = |headers: &Headers| self.complete(upload, pieces, headers);
            self.conditional(&condition, Headers::new(), send)
        };
        let found = self.taken(path, put, &upload.tag).map_err(gone)?;
        if found.meta.version.size != upload.size {
            let (is, should) = (found.meta.version.size, upload.size);
            let text = format!("{}: is {is} bytes at the source, not {should}", self.object(path));
            return Err(SourceError::new(Cause::Other, text));
        }
        self.finish(path, &found, attrs)
    }

    /// The parts are all there, each once.
    fn check_whole(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        let mut end = 0;
        for piece in pieces {
            self.number(upload, piece.offset, piece.len)?;
            if piece.offset != end {
                break;
            }
            end = piece.offset + piece.len;
        }
        if end == upload.size {
            return Ok(());
        }
        let text = format!("{}: bytes from {end} on are not in its upload", self.object(&upload.path));
        Err(SourceError::new(Cause::Other, text))
    }

    fn complete(&self, upload: &Upload, pieces: &[Piece], headers: &Headers) -> SourceResult<()> {
        let (path, key) = (&upload.path, self.wire.place().key(&upload.path)?);
        let least = piece_size(upload.size);
        let body = answers::parts_xml(pieces.iter().map(|piece| (piece.offset / least + 1, &piece.tag[..])));
        let request = || Request {
            path,
            key: &key,
            query: vec![("uploadId", upload.token.clone())],
            headers: headers.clone(),
            body: body.as_bytes(),
        };
        self.wire.ask(Method::Post, request, |answer| {
            let text = answer.text().map_err(|error| self.wire.broken(path, &error))?;
            // It may fail after it has begun to answer.
            match answers::code_of(&text) {
                Some(_) => Err(self.wire.refused(path, answer, &text)),
                None => Ok(()),
            }
        })
    }

    /// Attributes came when the upload began; those that have changed since are given again.
    fn finish(&self, path: &[u8], found: &Found, attrs: &Attrs) -> SourceResult<Kept> {
        let (_, lost) = headers_of(mode::FILE, attrs, &self.object(path));
        let has = &found.meta.attrs;
        let wanted = (attrs.perm, attrs.uid, attrs.gid, attrs.mtime);
        let is_same = (has.perm, has.uid, has.gid, has.mtime) == wanted
            && has.xattrs.len() + lost.len() == attrs.xattrs.len()
            && has.xattrs.iter().all(|xattr| attrs.xattrs.contains(xattr));
        let version = found.meta.version.clone();
        if is_same {
            return Ok(Kept { version, lost });
        }
        match self.give_attrs(path, found, attrs) {
            Err(error) if error.cause() == Cause::Unsupported => {
                let text = format!("{}: attributes are those of when its flush began", self.object(path));
                Ok(Kept { version, lost: vec![text] })
            }
            kept => kept,
        }
    }

    /// Throws uploads to a path, and to what is below it, away that nobody has completed: those of others, too. A store
    /// that does not show them is no error.
    ///
    /// # Errors
    /// [`Cause::Lost`]; as [`Source::abort`](crate::Source::abort).
    pub fn abort_left(&self, path: &[u8]) -> SourceResult<()> {
        let (key, below) = (self.wire.place().key(path)?, self.wire.place().dir_key(path)?);
        let mut after = None;
        loop {
            let page = match self.unfinished(path, &key, after.as_ref()) {
                // Who may write need not be allowed to list.
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
    ) -> SourceResult<answers::Unfinished> {
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
        self.wire.ask(Method::Get, request, |answer| {
            let text = answer.text().map_err(|error| self.wire.broken(path, &error))?;
            let nonsense =
                || Trouble::Final(self.wire.nonsense(path, "something else than a list of uploads"));
            answers::unfinished_of(&text).ok_or_else(nonsense)
        })
    }

    pub(super) fn abort_upload(&self, upload: &Upload) -> SourceResult<()> {
        // What had not been started, as far as is known, has no name.
        if upload.token == NOTHING || upload.token.is_empty() {
            return Ok(());
        }
        let key = self.wire.place().key(&upload.path)?;
        self.abort_named(&upload.path, &key, &upload.token)
    }

    fn abort_named(&self, path: &[u8], key: &str, token: &str) -> SourceResult<()> {
        let query = vec![("uploadId", token.to_owned())];
        let request = || Request { path, key, query: query.clone(), ..Request::default() };
        match self.wire.ask(Method::Delete, request, |_| Ok(())) {
            Err(error) if error.cause() == Cause::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

/// What is not there is the upload: the file is made by its end only.
fn gone(error: SourceError) -> SourceError {
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
