//! PUT, and what all requests that change something have in common.

use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Response, StatusCode};
use ring::digest::{Context, SHA256};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body::{Body, drop_where_it_may_block, empty};
use crate::cancellation::Cancellation;
use crate::conditions::{self, validators};
use crate::dav_headers::{self, Depth};
use crate::digests::{self, Digest};
use crate::error_response::{ErrorResponse, no_parent};
use crate::locks::{ChangeScope, Lock, LockConditions, RequestHead};
use crate::ranges::{ContentRange, content_range};
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};
use crate::upload_pipe::{Pipe, SILENCE_MAX, Sink};
use crate::uploads::{PartUpload, Replace, Upload};

/// Longest name of an upload in parts.
const UPLOAD_ID_MAX: usize = 64;

/// Returns the next bytes of a body; `None` at its end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, ErrorResponse> {
    loop {
        let silent = |_| ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, "nothing came for too long");
        let Some(frame) = tokio::time::timeout(SILENCE_MAX, body.frame()).await.map_err(silent)? else {
            return Ok(None);
        };
        let broken = |_| ErrorResponse::bad_request("the body ends before its end");
        // Trailers are passed over.
        if let Ok(bytes) = frame.map_err(broken)?.into_data() {
            return Ok(Some(bytes));
        }
    }
}

pub fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Returns the expected digest of the body: either header has that of a whole file.
fn expected(headers: &HeaderMap) -> Result<Option<Digest>, ErrorResponse> {
    for name in ["content-digest", "repr-digest"] {
        let Some(header) = text(headers, name) else { continue };
        if let Some(digest) = digests::said(header).map_err(ErrorResponse::bad_request)? {
            return Ok(Some(digest));
        }
    }
    Ok(None)
}

fn mismatch() -> ErrorResponse {
    ErrorResponse::bad_request("the body has not the digest that the request says; nothing was changed")
}

/// An upload with the digest of what has come.
struct DigestedUpload {
    upload: Upload,
    sum: Option<Context>,
}

impl Sink for DigestedUpload {
    fn take(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.upload.append(bytes)
    }
}

/// A request to write a file.
pub struct WriteRequest {
    /// Access of its key.
    pub access: Access,
    /// The path.
    pub target: RequestPath,
    /// Its headers.
    pub headers: HeaderMap,
    /// The client's name of an upload in parts.
    pub upload: Option<String>,
    /// Conditions on locks.
    pub guard: LockConditions,
    /// Cancellation by the client.
    pub cancellation: Cancellation,
}

impl WriteRequest {
    /// Refuses it if something locked is in its way. This may block.
    pub fn check_locks(&self, tree: &Arc<Tree>, reach: ChangeScope) -> Result<Vec<Lock>, ErrorResponse> {
        let WriteRequest { access, target, headers, .. } = self;
        self.guard.check(tree, RequestHead { access, target, headers }, &[(target, reach)])
    }

    /// Checks whether a file may be put where something is, or nothing.
    fn check_put(&self, tree: &Arc<Tree>, found: Option<&Attr>) -> Result<(), ErrorResponse> {
        let reach = if found.is_some() { ChangeScope::Content } else { ChangeScope::Member };
        self.check_locks(tree, reach).map(drop)
    }

    /// Returns whether a directory is removed with its content: its path ends in a slash, or the request says so.
    ///
    /// # Errors
    /// 400 for a `Depth` that is none.
    pub fn removes_all(&self) -> Result<bool, ErrorResponse> {
        let depth = dav_headers::depth(&self.headers)?;
        Ok(self.upload.is_none() && depth.map_or(self.target.is_dir, |depth| depth == Depth::Infinity))
    }

    pub fn upload_id(&self) -> Result<Option<&str>, ErrorResponse> {
        let is_id = |id: &str| {
            (1..=UPLOAD_ID_MAX).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        };
        match self.upload.as_deref() {
            Some(id) if !is_id(id) => {
                let text = "an upload's name has 1 to 64 of A-Z a-z 0-9 - . _ ~: PUT PATH?upload=NAME";
                Err(ErrorResponse::bad_request(text))
            }
            id => Ok(id),
        }
    }
}

/// Carries out a PUT. What reads all of a file for that is done by a bounded number of requests at a time.
///
/// # Errors
/// The refusal, as a response to the request; then what has the name is as it was.
pub async fn put(
    tree: &Arc<Tree>,
    long: &Arc<Semaphore>,
    writing: WriteRequest,
    body: Incoming,
) -> Result<Response<Body>, ErrorResponse> {
    let headers = &writing.headers;
    if headers.contains_key(header::CONTENT_ENCODING) {
        let text = "files are kept as they come: send it without Content-Encoding";
        return Err(ErrorResponse::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let id = writing.upload_id()?.map(str::to_owned);
    if let Some(range) = text(headers, header::CONTENT_RANGE) {
        let wrong =
            || ErrorResponse::bad_request("Content-Range is written bytes FIRST-LAST/SIZE, or bytes */SIZE");
        let range = content_range(range).ok_or_else(wrong)?;
        let nameless = || {
            let text = "parts need a name of their upload, which you draw for each: PUT PATH?upload=NAME";
            ErrorResponse::bad_request(text)
        };
        return put_part(tree, long, writing, &id.ok_or_else(nameless)?, range, body).await;
    }
    if id.is_some() {
        let text = "a part says where it belongs: Content-Range: bytes FIRST-LAST/SIZE";
        return Err(ErrorResponse::bad_request(text));
    }
    let expected = expected(headers)?;
    let begun_in = Arc::clone(tree);
    let (upload, found, writing) = spawn_blocking(move || {
        let (upload, found) = begun_in.upload(&writing.access, &writing.target).map_err(no_parent)?;
        // Before the body, which a client that expects 100 (Continue) then need not send.
        conditions::check(&Method::PUT, &writing.headers, found.as_ref())?;
        writing.check_put(&begun_in, found.as_ref())?;
        Ok::<_, ErrorResponse>((upload, found, writing))
    })
    .await??;
    let sum = expected.as_ref().map(|_| Context::new(&SHA256));
    let share = upload.share();
    let mut pipe = Pipe::new(DigestedUpload { upload, sum }, share);
    let mut body = body;
    while let Some(bytes) = next(&mut body).await? {
        pipe.push(&bytes).await?;
    }
    let DigestedUpload { upload, sum } = pipe.end().await?;
    let ended_in = Arc::clone(tree);
    let done = spawn_blocking(move || {
        if let (Some(expected), Some(sum)) = (expected, sum)
            && Digest::from(sum.finish()) != expected
        {
            return Err(mismatch());
        }
        // It may have been locked during the transfer.
        writing.check_put(&ended_in, found.as_ref())?;
        upload.finish(replace(&writing, found)).map_err(overtaken)
    });
    let (is_new, attr) = done.await??;
    Ok(made(is_new, &attr))
}

/// Returns the replacement rule for the conditions that held when the upload began.
fn replace(writing: &WriteRequest, found: Option<Attr>) -> Replace {
    let WriteRequest { target, headers, guard, .. } = writing;
    let says = |name| headers.contains_key(name);
    let says_state = guard.says_state(target, headers) || says(header::IF_NONE_MATCH);
    let any = text(headers, header::IF_MATCH).is_some_and(|tags| tags.trim() == "*");
    match found {
        Some(_) if any && !says_state && !says(header::IF_UNMODIFIED_SINCE) => Replace::Existing,
        Some(attr) if says_state || says(header::IF_MATCH) || says(header::IF_UNMODIFIED_SINCE) => {
            Replace::Only(attr)
        }
        None if says_state => Replace::Never,
        _ => Replace::Always,
    }
}

/// Returns the response for an error at the end of an upload: a condition that held when it began may not hold any
/// more.
pub fn overtaken(error: FsError) -> ErrorResponse {
    match error.errno() {
        Errno::EEXIST | Errno::ESTALE => {
            ErrorResponse::new(StatusCode::PRECONDITION_FAILED, "somebody else has changed it meanwhile")
        }
        _ => error.into(),
    }
}

fn made(is_new: bool, attr: &Attr) -> Response<Body> {
    let mut response = empty(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT });
    validators(attr, response.headers_mut());
    response
}

impl Sink for PartUpload {
    fn take(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.append(bytes)
    }
}

/// Handles a PUT of a part. Bytes count as soon as they are here, also those of a request that breaks off; the file
/// gets its name with its last byte.
async fn put_part(
    tree: &Arc<Tree>,
    long: &Arc<Semaphore>,
    writing: WriteRequest,
    id: &str,
    range: ContentRange,
    body: Incoming,
) -> Result<Response<Body>, ErrorResponse> {
    let headers = &writing.headers;
    if headers.contains_key("content-digest") {
        let text = "an upload in parts takes no Content-Digest; send Repr-Digest with its last part";
        return Err(ErrorResponse::bad_request(text));
    }
    if range.total == 0 {
        return Err(ErrorResponse::bad_request("an empty file has no parts: PUT it whole"));
    }
    let expected = expected(headers)?;
    let (ended_in, tree, id) = (Arc::clone(tree), Arc::clone(tree), id.to_owned());
    let begun = spawn_blocking(move || {
        let WriteRequest { access, target, headers, .. } = &writing;
        let begun = tree.part_upload(access, target, &id, range.part.is_some());
        let (mut upload, found) = begun.map_err(no_parent)?;
        conditions::check(&Method::PUT, headers, found.as_ref())?;
        writing.check_put(&tree, found.as_ref())?;
        // Bytes behind the part belong to an earlier attempt.
        if let (Some(upload), Some((first, _))) = (&mut upload, range.part) {
            upload.cut(first)?;
        }
        Ok::<_, ErrorResponse>((upload, found, writing))
    });
    let (upload, found, writing) = begun.await??;
    let Some(upload) = upload else { return Ok(incomplete(0)) };
    let end = PartEnd { total: range.total, expected, found, writing };
    let Some((first, last)) = range.part else { return part_done(&ended_in, upload, end, long).await };
    if first > upload.len() {
        let refusal = ErrorResponse::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "parts come one behind the other; go on where Range ends",
        );
        let len = upload.len();
        drop_where_it_may_block(upload);
        return Err(so_far(len)
            .into_iter()
            .fold(refusal, |refusal, value| refusal.with(header::RANGE, value)));
    }
    let share = upload.share();
    let mut pipe = Pipe::new(upload, share);
    assert!(first < last, "a part from {first} to {last}");
    let (mut left, mut body) = (last - first, body);
    // Whatever ends the body, what has come counts: it is passed on to the upload before the refusal.
    let failed = loop {
        match next(&mut body).await {
            Ok(None) if left == 0 => break None,
            Ok(None) => {
                break Some(ErrorResponse::bad_request("the body is shorter than Content-Range says"));
            }
            Ok(Some(bytes)) if bytes.len() as u64 > left => {
                break Some(ErrorResponse::bad_request("the body is longer than Content-Range says"));
            }
            Ok(Some(bytes)) => {
                left -= bytes.len() as u64;
                pipe.push(&bytes).await?;
            }
            Err(refusal) => break Some(refusal),
        }
    };
    let upload = pipe.end().await?;
    if let Some(refusal) = failed {
        drop_where_it_may_block(upload);
        return Err(refusal);
    }
    part_done(&ended_in, upload, end, long).await
}

/// Completion of an upload in parts.
struct PartEnd {
    total: u64,
    expected: Option<Digest>,
    /// The file at the path when the upload began.
    found: Option<Attr>,
    writing: WriteRequest,
}

/// Renames a complete upload, and otherwise reports its length.
async fn part_done(
    tree: &Arc<Tree>,
    upload: PartUpload,
    end: PartEnd,
    long: &Arc<Semaphore>,
) -> Result<Response<Body>, ErrorResponse> {
    let (len, PartEnd { total, expected, found, writing }) = (upload.len(), end);
    if len < total {
        drop_where_it_may_block(upload);
        return Ok(incomplete(len));
    }
    let turn = match expected {
        Some(_) => Some(Arc::clone(long).acquire_owned().await.map_err(|_| over())?),
        None => None,
    };
    // Only the digest ends with the client: the upload stays, and the request can be repeated.
    let cancellation = Cancellation::default();
    let _cancel_on_drop = cancellation.cancel_on_drop();
    let tree = Arc::clone(tree);
    let finished = spawn_blocking(move || {
        let _turn = turn;
        if len > total {
            let text = "the upload is longer than Content-Range says; begin anew, with another name";
            return Err(ErrorResponse::new(StatusCode::CONFLICT, text));
        }
        if let Some(expected) = expected {
            let (sum, _) = upload.file().digest((0, total), None, &cancellation)?;
            if sum != expected {
                upload.discard()?;
                return Err(mismatch());
            }
        }
        // It may have been locked since the first part.
        writing.check_put(&tree, found.as_ref())?;
        upload.finish(replace(&writing, found)).map_err(overtaken)
    });
    let (is_new, attr) = finished.await??;
    Ok(made(is_new, &attr))
}

fn over() -> ErrorResponse {
    ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "the server ends")
}

fn incomplete(len: u64) -> Response<Body> {
    let mut response = empty(StatusCode::PERMANENT_REDIRECT);
    if let Some(value) = so_far(len) {
        response.headers_mut().insert(header::RANGE, value);
    }
    response
}

/// Returns the received range; no header means that nothing was received.
fn so_far(len: u64) -> Option<HeaderValue> {
    let last = len.checked_sub(1)?;
    HeaderValue::from_str(&format!("bytes=0-{last}")).ok()
}
