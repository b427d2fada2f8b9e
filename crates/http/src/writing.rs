//! PUT, and what all requests that change something have in common.

use std::sync::Arc;
use std::time::Duration;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Response, StatusCode};
use ring::digest::{Context, SHA256};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::body::{Body, drop_outcome, drop_where_it_may_block, full};
use crate::conditions::{self, validators};
use crate::dav::{self, Asks, Depth, Guard, Lock, Reach};
use crate::digests::{self, Digest};
use crate::load::Share;
use crate::ranges::{ContentRange, content_range};
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::{Access, Asker, Tree};
use crate::uploads::{PartUpload, Replace, Upload};

/// Longest time that a client may send nothing in the middle of an upload.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Longest name of an upload in parts.
const UPLOAD_ID_MAX: usize = 64;

/// What an upload's bytes go to, one piece after the other.
pub trait Sink: Send + 'static {
    /// Takes the next piece. It may block.
    ///
    /// # Errors
    /// What the formation says.
    fn take(&mut self, bytes: &[u8]) -> Result<(), FsError>;
}

/// What takes pieces on threads that may block: one is written while the next one comes.
pub struct Pipe<S: Sink> {
    idle: Option<S>,
    busy: Option<JoinHandle<(S, Result<(), FsError>)>>,
    collected: Vec<u8>,
    share: Share,
}

impl<S: Sink> Pipe<S> {
    /// Into this.
    #[must_use]
    pub fn new(sink: S, share: Share) -> Pipe<S> {
        Pipe { idle: Some(sink), busy: None, collected: Vec::new(), share }
    }

    /// Takes some bytes.
    ///
    /// # Errors
    /// What became of those before.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.collected.extend_from_slice(bytes);
        if self.collected.len() >= self.share.piece() { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), Refusal> {
        let mut sink = self.settle().await?;
        let piece = std::mem::take(&mut self.collected);
        self.busy = Some(spawn_blocking(move || {
            let taken = sink.take(&piece);
            (sink, taken)
        }));
        Ok(())
    }

    async fn settle(&mut self) -> Result<S, Refusal> {
        if let Some(sink) = self.idle.take() {
            return Ok(sink);
        }
        let over = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the upload has failed");
        let (sink, taken) = self.busy.take().ok_or_else(over)?.await?;
        match taken {
            Ok(()) => Ok(sink),
            Err(error) => {
                drop_where_it_may_block(sink);
                Err(error.into())
            }
        }
    }

    /// Everything is there: what it went to.
    ///
    /// # Errors
    /// What became of it.
    pub async fn end(mut self) -> Result<S, Refusal> {
        if !self.collected.is_empty() {
            self.flush().await?;
        }
        self.settle().await
    }
}

impl<S: Sink> Drop for Pipe<S> {
    fn drop(&mut self) {
        if let Some(sink) = self.idle.take() {
            drop_where_it_may_block(sink);
        }
        if let Some(task) = self.busy.take() {
            drop_outcome(task);
        }
    }
}

/// The next bytes of a body; `None` at its end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    loop {
        let silent = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "nothing came for too long");
        let Some(frame) = tokio::time::timeout(SILENCE_MAX, body.frame()).await.map_err(silent)? else {
            return Ok(None);
        };
        let broken = |_| Refusal::new(StatusCode::BAD_REQUEST, "the body ends before its end");
        if let Ok(bytes) = frame.map_err(broken)?.into_data() {
            return Ok(Some(bytes));
        }
    }
}

pub fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// The digest that the body must have: that of a whole file is said by either header.
fn expected(headers: &HeaderMap, is_whole: bool) -> Result<Option<Digest>, Refusal> {
    for name in ["content-digest", "repr-digest"] {
        let Some(header) = text(headers, name).filter(|_| is_whole || name == "content-digest") else {
            continue;
        };
        if let Some(digest) =
            digests::said(header).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?
        {
            return Ok(Some(digest));
        }
    }
    Ok(None)
}

fn mismatch() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "the body has not the digest that the request says; nothing was changed",
    )
}

/// An upload with the digest of what has come.
struct Summed {
    upload: Upload,
    sum: Option<Context>,
}

impl Sink for Summed {
    fn take(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.upload.append(bytes)
    }
}

/// What a request to write names.
pub struct Writing {
    /// What its key allows.
    pub access: Access,
    /// The path.
    pub target: Target,
    /// Its headers.
    pub headers: HeaderMap,
    /// What the client calls an upload in parts.
    pub upload: Option<String>,
    /// What it says of locks.
    pub guard: Guard,
    /// Who waits for it.
    pub asker: Asker,
}

impl Writing {
    /// Refuses it if something locked is in its way. This may block.
    ///
    /// # Errors
    /// As [`Guard::check`].
    pub fn check_locks(&self, tree: &Arc<Tree>, reach: Reach) -> Result<Vec<Lock>, Refusal> {
        let Writing { access, target, headers, .. } = self;
        self.guard.check(tree, Asks { access, target, headers }, &[(target, reach)])
    }

    /// The same for a file that is put where something is, or nothing.
    fn check_put(&self, tree: &Arc<Tree>, found: Option<&Attr>) -> Result<(), Refusal> {
        let reach = if found.is_some() { Reach::Content } else { Reach::Member };
        self.check_locks(tree, reach).map(drop)
    }

    /// Whether all that is in a directory is removed with it: its path ends in a slash, or the request says so.
    ///
    /// # Errors
    /// 400 for a `Depth` that is none.
    pub fn removes_all(&self) -> Result<bool, Refusal> {
        let depth = dav::depth(&self.headers)?;
        Ok(self.upload.is_none() && depth.map_or(self.target.is_dir, |depth| depth == Depth::Infinity))
    }

    pub fn upload_id(&self) -> Result<Option<&str>, Refusal> {
        let is_id = |id: &str| {
            (1..=UPLOAD_ID_MAX).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
        };
        match self.upload.as_deref() {
            Some(id) if !is_id(id) => {
                let text = "an upload's name has 1 to 64 of A-Z a-z 0-9 - . _ ~: PUT PATH?upload=NAME";
                Err(Refusal::new(StatusCode::BAD_REQUEST, text))
            }
            id => Ok(id),
        }
    }
}

/// Carries out a PUT. What reads all of a file for that is done by a bounded number of requests at a time.
///
/// # Errors
/// Why not; then what has the name is as it was.
pub async fn put(
    tree: &Arc<Tree>,
    long: &Arc<Semaphore>,
    writing: Writing,
    body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let headers = &writing.headers;
    if headers.contains_key(header::CONTENT_ENCODING) {
        let text = "files are kept as they come: send it without Content-Encoding";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let id = writing.upload_id()?.map(str::to_owned);
    if let Some(range) = text(headers, header::CONTENT_RANGE) {
        let wrong = || {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "Content-Range is written bytes FIRST-LAST/SIZE, or bytes */SIZE",
            )
        };
        let range = content_range(range).ok_or_else(wrong)?;
        let nameless = || {
            let text = "parts need a name of their upload, which you draw for each: PUT PATH?upload=NAME";
            Refusal::new(StatusCode::BAD_REQUEST, text)
        };
        return put_part(tree, long, writing, &id.ok_or_else(nameless)?, range, body).await;
    }
    if id.is_some() {
        let text = "a part says where it belongs: Content-Range: bytes FIRST-LAST/SIZE";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let expected = expected(headers, true)?;
    let begun_in = Arc::clone(tree);
    let (upload, found, writing) = spawn_blocking(move || {
        let (upload, found) = begun_in.upload(&writing.access, &writing.target).map_err(dav::no_parent)?;
        conditions::check(&Method::PUT, &writing.headers, found.as_ref())?;
        writing.check_put(&begun_in, found.as_ref())?;
        Ok::<_, Refusal>((upload, found, writing))
    })
    .await??;
    let sum = expected.as_ref().map(|_| Context::new(&SHA256));
    let share = upload.share();
    let mut pipe = Pipe::new(Summed { upload, sum }, share);
    let mut body = body;
    while let Some(bytes) = next(&mut body).await? {
        pipe.push(&bytes).await?;
    }
    let Summed { upload, sum } = pipe.end().await?;
    let ended_in = Arc::clone(tree);
    let done = spawn_blocking(move || {
        if let (Some(expected), Some(sum)) = (expected, sum)
            && Digest::from(sum.finish()) != expected
        {
            return Err(mismatch());
        }
        // Somebody may have locked it meanwhile.
        writing.check_put(&ended_in, found.as_ref())?;
        upload.finish(replace(&writing, found)).map_err(overtaken)
    });
    let (is_new, attr) = done.await??;
    Ok(made(is_new, &attr))
}

/// What may be replaced, by the conditions that held when the upload began.
fn replace(writing: &Writing, found: Option<Attr>) -> Replace {
    let Writing { target, headers, guard, .. } = writing;
    let says = |name| headers.contains_key(name);
    let says_state = guard.says_state(target, headers) || says(header::IF_NONE_MATCH);
    match found {
        Some(attr) if says_state || says(header::IF_MATCH) || says(header::IF_UNMODIFIED_SINCE) => {
            Replace::Only(attr)
        }
        None if says_state => Replace::Never,
        _ => Replace::Always,
    }
}

/// A condition that held when the upload began may not hold at its end.
pub fn overtaken(error: FsError) -> Refusal {
    match error.errno() {
        Errno::EEXIST | Errno::ESTALE => {
            Refusal::new(StatusCode::PRECONDITION_FAILED, "somebody else has changed it meanwhile")
        }
        _ => error.into(),
    }
}

fn made(is_new: bool, attr: &Attr) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
    validators(attr, response.headers_mut());
    response
}

impl Sink for PartUpload {
    fn take(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.append(bytes)
    }
}

/// A PUT of a part. Bytes count as soon as they are here, also those of a request that breaks off; the file gets its name
/// with its last byte.
async fn put_part(
    tree: &Arc<Tree>,
    long: &Arc<Semaphore>,
    writing: Writing,
    id: &str,
    range: ContentRange,
    body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let headers = &writing.headers;
    if headers.contains_key("content-digest") {
        let text = "an upload in parts takes no Content-Digest; send Repr-Digest with its last part";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    if range.total == 0 {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "an empty file has no parts: PUT it whole"));
    }
    let expected = expected(headers, true)?;
    let (ended_in, tree, id) = (Arc::clone(tree), Arc::clone(tree), id.to_owned());
    let begun = spawn_blocking(move || {
        let Writing { access, target, headers, .. } = &writing;
        let begun = tree.part_upload(access, target, &id, range.part.is_some());
        let (mut upload, found) = begun.map_err(dav::no_parent)?;
        conditions::check(&Method::PUT, headers, found.as_ref())?;
        writing.check_put(&tree, found.as_ref())?;
        // What is behind the part is of an earlier try.
        if let (Some(upload), Some((first, _))) = (&mut upload, range.part) {
            upload.cut(first)?;
        }
        Ok::<_, Refusal>((upload, found, writing))
    });
    let (upload, found, writing) = begun.await??;
    let Some(upload) = upload else { return Ok(incomplete(0)) };
    let end = PartEnd { total: range.total, expected, found, writing };
    let Some((first, last)) = range.part else { return part_done(&ended_in, upload, end, long).await };
    if first > upload.len() {
        let refusal = Refusal::new(
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
    let (mut left, mut body) = (last - first, body);
    let failed = loop {
        match next(&mut body).await {
            Ok(None) if left == 0 => break None,
            Ok(None) => {
                break Some(Refusal::new(
                    StatusCode::BAD_REQUEST,
                    "the body is shorter than Content-Range says",
                ));
            }
            Ok(Some(bytes)) if bytes.len() as u64 > left => {
                break Some(Refusal::new(
                    StatusCode::BAD_REQUEST,
                    "the body is longer than Content-Range says",
                ));
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

/// What is done with the last part.
struct PartEnd {
    total: u64,
    expected: Option<Digest>,
    /// What was at the path when it began.
    found: Option<Attr>,
    writing: Writing,
}

/// Names the upload if it is whole, and otherwise says how far it is.
async fn part_done(
    tree: &Arc<Tree>,
    upload: PartUpload,
    end: PartEnd,
    long: &Arc<Semaphore>,
) -> Result<Response<Body>, Refusal> {
    let (len, PartEnd { total, expected, found, writing }) = (upload.len(), end);
    if len < total {
        drop_where_it_may_block(upload);
        return Ok(incomplete(len));
    }
    let turn = match expected {
        Some(_) => Some(Arc::clone(long).acquire_owned().await.map_err(|_| over())?),
        None => None,
    };
    let asker = Asker::default();
    let _there = asker.presence();
    let tree = Arc::clone(tree);
    let finished = spawn_blocking(move || {
        let _turn = turn;
        if len > total {
            let text = "the upload is longer than Content-Range says; begin anew, with another name";
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        if let Some(expected) = expected {
            let (sum, _) = upload.file().digest((0, total), None, &asker)?;
            if sum != expected {
                upload.discard()?;
                return Err(mismatch());
            }
        }
        writing.check_put(&tree, found.as_ref())?;
        upload.finish(replace(&writing, found)).map_err(overtaken)
    });
    let (is_new, attr) = finished.await??;
    Ok(made(is_new, &attr))
}

fn over() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server ends")
}

fn incomplete(len: u64) -> Response<Body> {
    let mut response = empty(StatusCode::PERMANENT_REDIRECT);
    if let Some(value) = so_far(len) {
        response.headers_mut().insert(header::RANGE, value);
    }
    response
}

/// The bytes that are there; nothing says that none are.
fn so_far(len: u64) -> Option<HeaderValue> {
    let last = len.checked_sub(1)?;
    HeaderValue::from_str(&format!("bytes=0-{last}")).ok()
}

pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}
