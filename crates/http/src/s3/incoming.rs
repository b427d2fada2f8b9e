//! Bodies of requests, bounded before anything of them is collected: whose signature is over a digest of the body is
//! only known when all of it is here, and so is what is XML.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::error_response::ErrorResponse;
use crate::query::parameters;
use crate::upload_pipe::SILENCE_MAX;

/// Longest body that is XML, in bytes.
const XML_MAX: u64 = 8 << 20;
/// Longest body that is collected because its signature is over its digest, or because it is a form, in bytes.
const SIGNED_MAX: u64 = 64 << 20;
/// Upper limit of collected bodies of all requests together, in bytes.
const COLLECTED_MAX: usize = 256 << 20;
/// Longest time for a body that is collected.
const COLLECTED_FOR: Duration = Duration::from_secs(600);
/// Longest chunk of a body that is signed by chunks: each is collected.
const CHUNK_MAX: u64 = 16 << 20;
/// Longest line in front of a chunk.
const CHUNK_LINE_MAX: usize = 256;
/// Longest trailers, behind the last chunk, in bytes.
const TRAILERS_MAX: u64 = 4 << 10;

const CONTENT_SHA256: &str = "x-amz-content-sha256";
const DECODED_LEN: &str = "x-amz-decoded-content-length";
/// Values of `x-amz-content-sha256` for chunked bodies: each chunk signed, with and without trailers, or only trailers.
const BY_CHUNKS: [&str; 3] = [
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
];
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Method of reading a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyHandling {
    /// Piece by piece.
    AsItComes,
    /// Like `aws-chunked`.
    ByChunks,
    /// All at once, at most so many bytes.
    Whole(u64),
}

/// Position of the bucket in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketPosition {
    /// Before the key.
    InPath,
    /// In the host name.
    InHost,
}

/// Returns whether a body is an HTML form, which may contain a file.
pub fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().trim_ascii());
    let form = b"multipart/form-data";
    kind.and_then(|kind| kind.get(..form.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(form))
}

/// Returns how a body is read. Unknown requests are assumed to have XML.
fn taken(method: &Method, uri: &Uri, headers: &HeaderMap, place: BucketPosition) -> BodyHandling {
    let path = uri.path().trim_start_matches('/');
    let key = if place == BucketPosition::InHost { path } else { path.split_once('/').unwrap_or_default().1 };
    let has_key = !key.is_empty();
    let is_plain = |name: &str| {
        matches!(name, "partNumber" | "uploadId" | "x-id") || name.to_ascii_lowercase().starts_with("x-amz-")
    };
    if *method == Method::POST && is_form(headers) {
        return BodyHandling::Whole(SIGNED_MAX);
    }
    if *method != Method::PUT || !has_key || !parameters(uri.query()).all(|(name, _)| is_plain(name)) {
        return BodyHandling::Whole(XML_MAX);
    }
    let says = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    match says(CONTENT_SHA256) {
        // Links are signed without a digest of the body.
        _ if says(header::AUTHORIZATION.as_str()).is_none() => BodyHandling::AsItComes,
        Some(sum) if sum == UNSIGNED.as_bytes() => BodyHandling::AsItComes,
        Some(sum) if BY_CHUNKS.iter().any(|known| sum == known.as_bytes()) => BodyHandling::ByChunks,
        _ => BodyHandling::Whole(SIGNED_MAX),
    }
}

/// The limit on bytes of all bodies that are collected, in KiB.
#[derive(Clone)]
pub struct CollectedBytes(Arc<Semaphore>);

impl Default for CollectedBytes {
    fn default() -> CollectedBytes {
        CollectedBytes(Arc::new(Semaphore::new(COLLECTED_MAX >> 10)))
    }
}

/// Status of a refused body.
pub type RefusalStatus = Arc<OnceLock<StatusCode>>;

/// Returns the response to a request whose body was refused.
pub fn refusal(status: StatusCode) -> ErrorResponse {
    let text = match status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            "bodies of XML have at most 8 MiB, forms and those signed by their digest 64 MiB, chunks 16 MiB; send larger ones \
             in parts, or with UNSIGNED-PAYLOAD"
        }
        StatusCode::BAD_REQUEST => {
            "the body has no such chunks as it should, or not as many bytes as x-amz-decoded-content-length says"
        }
        StatusCode::REQUEST_TIMEOUT => "the body did not come in time",
        _ => "too many bodies that have to be collected come at the same time; try again",
    };
    ErrorResponse::new(status, text).with(header::RETRY_AFTER, HeaderValue::from_static("1"))
}

/// A body that is not longer, and does not take longer, than can be borne.
pub struct BoundedBody<B> {
    body: B,
    cause: RefusalStatus,
    left: Option<u64>,
    room: CollectedBytes,
    held: Vec<OwnedSemaphorePermit>,
    /// Bytes for which there is room, but which have not come.
    spare: usize,
    chunks: Option<Chunks>,
    silence: Pin<Box<Sleep>>,
    end: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes>> BoundedBody<B> {
    /// Creates the reader of a request's body.
    ///
    /// # Errors
    /// 413 for one that says itself that it is too long.
    pub fn new(
        body: B,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        place: BucketPosition,
        room: &CollectedBytes,
    ) -> Result<(BoundedBody<B>, RefusalStatus), ErrorResponse> {
        let taken = taken(method, uri, headers, place);
        let left = if let BodyHandling::Whole(max) = taken { Some(max) } else { None };
        if left.is_some_and(|max| body.size_hint().lower() > max) {
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE));
        }
        let cause = RefusalStatus::default();
        let bounded = BoundedBody {
            body,
            cause: Arc::clone(&cause),
            left,
            room: room.clone(),
            held: Vec::new(),
            spare: 0,
            chunks: (taken == BodyHandling::ByChunks).then(|| Chunks::new(headers)),
            silence: Box::pin(sleep(SILENCE_MAX)),
            end: left.map(|_| Box::pin(sleep(COLLECTED_FOR))),
        };
        Ok((bounded, cause))
    }

    /// Accepts or refuses received bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<(), StatusCode> {
        if let Some(chunks) = &mut self.chunks {
            chunks.take(bytes)?;
        }
        let Some(left) = &mut self.left else { return Ok(()) };
        *left = left.checked_sub(bytes.len() as u64).ok_or(StatusCode::PAYLOAD_TOO_LARGE)?;
        if self.spare < bytes.len() {
            let wanted = (bytes.len() - self.spare).div_ceil(1 << 10);
            let permits = u32::try_from(wanted).map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
            // Without waiting: bodies that wait for each other's room would never end.
            let permit = Arc::clone(&self.room.0).try_acquire_many_owned(permits);
            self.held.push(permit.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?);
            self.spare += wanted << 10;
        }
        assert!(self.spare >= bytes.len(), "{} bytes are taken without room", bytes.len());
        self.spare -= bytes.len();
        Ok(())
    }

    fn refuse(&self, status: StatusCode) -> std::io::Error {
        // The first cause is the one that counts.
        let _ = self.cause.set(status);
        std::io::Error::other("the body is not taken")
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for BoundedBody<B>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                this.silence = Box::pin(sleep_until(Instant::now() + SILENCE_MAX));
                let taken = frame.data_ref().map_or(Ok(()), |bytes| this.take(bytes));
                Poll::Ready(Some(taken.map(|()| frame).map_err(|status| this.refuse(status))))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(std::io::Error::other(error)))),
            Poll::Ready(None) if this.chunks.as_ref().is_some_and(|chunks| !chunks.is_whole()) => {
                Poll::Ready(Some(Err(this.refuse(StatusCode::BAD_REQUEST))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                // Looked at only while nothing comes: a body that comes without a pause is bounded by its length.
                let is_over = this.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
                if is_over || this.silence.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Some(Err(this.refuse(StatusCode::REQUEST_TIMEOUT))));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Completeness is known only after the last chunk.
        self.chunks.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Position in an `aws-chunked` body: `LENGTH;chunk-signature=…`, a line's end, so many bytes, a line's end; after the
/// last chunk, of no bytes, trailers. The content of lines and trailers is checked by the service.
#[derive(Debug, Default)]
struct Chunks {
    line: Vec<u8>,
    /// Remaining bytes of the chunk, with its line end.
    left: u64,
    /// Bytes of chunks so far.
    len: u64,
    /// Declared number of bytes.
    wanted: Option<u64>,
    /// Bytes behind the last chunk.
    trailers: Option<u64>,
}

impl Chunks {
    fn new(headers: &HeaderMap) -> Chunks {
        let wanted =
            headers.get(DECODED_LEN).and_then(|len| len.to_str().ok()).and_then(|len| len.parse().ok());
        Chunks { wanted, ..Chunks::default() }
    }

    /// Returns whether the last chunk has been received.
    fn is_whole(&self) -> bool {
        self.trailers.is_some() && self.wanted.is_none_or(|wanted| wanted == self.len)
    }

    /// Consumes bytes; refuses chunks that are too long.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), StatusCode> {
        while let Some((first, rest)) = bytes.split_first() {
            if let Some(trailers) = &mut self.trailers {
                *trailers += bytes.len() as u64;
                return if *trailers > TRAILERS_MAX { Err(StatusCode::PAYLOAD_TOO_LARGE) } else { Ok(()) };
            }
            if self.left > 0 {
                let skipped = self.left.min(bytes.len() as u64);
                self.left -= skipped;
                bytes = bytes.get(skipped as usize..).unwrap_or_default();
                continue;
            }
            bytes = rest;
            if *first != b'\n' {
                self.line.push(*first);
                if self.line.len() > CHUNK_LINE_MAX {
                    return Err(StatusCode::BAD_REQUEST);
                }
                continue;
            }
            self.begin()?;
        }
        Ok(())
    }

    /// Begins the chunk of a line.
    fn begin(&mut self) -> Result<(), StatusCode> {
        let line = std::mem::take(&mut self.line);
        let len = line.split(|byte| *byte == b';').next().and_then(|len| std::str::from_utf8(len).ok());
        let digits = len.map(str::trim).filter(|len| len.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits.and_then(|len| u64::from_str_radix(len, 16).ok()) {
            None => return Err(StatusCode::BAD_REQUEST),
            Some(0) => self.trailers = Some(0),
            Some(len) if len <= CHUNK_MAX => {
                self.len = self.len.saturating_add(len);
                self.left = len + 2;
            }
            Some(_) => return Err(StatusCode::PAYLOAD_TOO_LARGE),
        }
        // Bytes beyond the declared length are refused at once.
        if self.wanted.is_some_and(|wanted| self.len > wanted) {
            Err(StatusCode::BAD_REQUEST)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
pub fn fuzzed(bytes: &[u8]) {
    let (mut whole, mut pieces) = (Chunks::default(), Chunks::default());
    let taken = whole.take(bytes);
    assert_eq!(taken, bytes.chunks(3).try_for_each(|piece| pieces.take(piece)));
    assert!(taken.is_err() || whole.is_whole() == pieces.is_whole());
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    fn of(method: &str, path: &str, headers: &[(&'static str, &str)]) -> BodyHandling {
        let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        taken(&method.parse().unwrap(), &path.parse().unwrap(), &headers, BucketPosition::InPath)
    }

    /// S645.
    #[test]
    fn a_bucket_in_the_host_leaves_the_path_to_the_key() {
        let unsigned: HeaderMap = [
            (header::AUTHORIZATION, HeaderValue::from_static("AWS4-HMAC-SHA256 x")),
            (CONTENT_SHA256.parse().unwrap(), HeaderValue::from_static(UNSIGNED)),
        ]
        .into_iter()
        .collect();
        let of = |path: &'static str| {
            taken(&Method::PUT, &Uri::from_static(path), &unsigned, BucketPosition::InHost)
        };
        assert_eq!(
            (of("/k"), of("/k/l?partNumber=1&uploadId=a")),
            (BodyHandling::AsItComes, BodyHandling::AsItComes)
        );
        assert_eq!((of("/"), of("/k?acl")), (BodyHandling::Whole(XML_MAX), BodyHandling::Whole(XML_MAX)));
    }

    #[test]
    fn what_is_collected_has_an_end() {
        let by_digest: &[_] = &[("authorization", "AWS4-HMAC-SHA256 x"), (CONTENT_SHA256, "0f")];
        let unsigned: &[_] = &[("authorization", "AWS4-HMAC-SHA256 x"), (CONTENT_SHA256, UNSIGNED)];
        let [chunks, signed, trailers] =
            BY_CHUNKS.map(|sum| [("authorization", "AWS4-HMAC-SHA256 x"), (CONTENT_SHA256, sum)]);
        let form: &[_] = &[("content-type", "Multipart/form-data; boundary=x")];
        let mixed: &[_] = &[("content-type", "multipart/mixed; boundary=x")];
        let part = "/b/k?partNumber=1&uploadId=ab";
        for (method, path, headers, expected) in [
            ("PUT", "/b/k", unsigned, BodyHandling::AsItComes),
            ("PUT", part, unsigned, BodyHandling::AsItComes),
            ("PUT", part, &chunks, BodyHandling::ByChunks),
            ("PUT", part, &signed, BodyHandling::ByChunks),
            ("PUT", "/b/k", &trailers, BodyHandling::ByChunks),
            ("PUT", "/b/k?X-Amz-Signature=x&X-Amz-Date=y", &[], BodyHandling::AsItComes),
            ("PUT", part, by_digest, BodyHandling::Whole(SIGNED_MAX)),
            ("PUT", "/b/k", &unsigned[..1], BodyHandling::Whole(SIGNED_MAX)),
            ("PUT", "/b/k?acl", unsigned, BodyHandling::Whole(XML_MAX)),
            ("PUT", "/b/k?tagging=", unsigned, BodyHandling::Whole(XML_MAX)),
            ("PUT", "/b/k?%61cl", unsigned, BodyHandling::Whole(XML_MAX)),
            ("PUT", "/b", unsigned, BodyHandling::Whole(XML_MAX)),
            ("PUT", "/b/", unsigned, BodyHandling::Whole(XML_MAX)),
            ("POST", "/b?delete", unsigned, BodyHandling::Whole(XML_MAX)),
            ("POST", "/b/k", unsigned, BodyHandling::Whole(XML_MAX)),
            ("POST", "/b", form, BodyHandling::Whole(SIGNED_MAX)),
            ("POST", "/b", mixed, BodyHandling::Whole(XML_MAX)),
        ] {
            assert_eq!(of(method, path, headers), expected, "{method} {path} {headers:?}");
        }
    }

    async fn collect(
        len: usize,
        room: &CollectedBytes,
    ) -> Result<(Bytes, BoundedBody<Full<Bytes>>), StatusCode> {
        let request = (&Method::POST, &Uri::from_static("/b?delete"), &HeaderMap::new());
        let body = Full::new(Bytes::from(vec![0; len]));
        let Ok((mut bounded, cause)) = BoundedBody::new(body, request, BucketPosition::InPath, room) else {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        };
        match (&mut bounded).collect().await {
            Ok(all) => Ok((all.to_bytes(), bounded)),
            Err(_) => Err(*cause.get().unwrap()),
        }
    }

    #[tokio::test]
    async fn bodies_together_have_room_and_give_it_back() {
        let room = CollectedBytes(Arc::new(Semaphore::new(10)));
        let (bytes, held) = collect(6 << 10, &room).await.unwrap();
        assert_eq!(bytes.len(), 6 << 10);
        assert_eq!(collect(6 << 10, &room).await.err(), Some(StatusCode::SERVICE_UNAVAILABLE));
        drop(held);
        assert_eq!(collect(9000, &room).await.unwrap().0.len(), 9000);
        assert_eq!(collect(XML_MAX as usize + 1, &room).await.err(), Some(StatusCode::PAYLOAD_TOO_LARGE));
    }

    #[test]
    fn chunks_are_counted_however_they_come() {
        let signed = "5;chunk-signature=ab\r\nhello\r\n0;chunk-signature=cd\r\n\r\n";
        let trailers = "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n";
        for (text, end) in [(signed, signed.len() - 2), (trailers, "5\r\nhello\r\n0\r\n".len())] {
            for piece in 1..text.len() {
                let mut chunks = Chunks { wanted: Some(5), ..Chunks::default() };
                assert_eq!(text.as_bytes().chunks(piece).try_for_each(|piece| chunks.take(piece)), Ok(()));
                assert!(chunks.is_whole() && chunks.len == 5, "{piece}");
            }
            for cut in 0..end {
                let mut chunks = Chunks::default();
                assert_eq!(chunks.take(&text.as_bytes()[..cut]), Ok(()));
                assert!(!chunks.is_whole(), "{:?}", &text[..cut]);
            }
        }
    }

    #[test]
    fn chunks_have_lengths_that_can_be_borne() {
        let (large, bad) = (Err(StatusCode::PAYLOAD_TOO_LARGE), Err(StatusCode::BAD_REQUEST));
        let long = "1".repeat(CHUNK_LINE_MAX + 1);
        let trailers = format!("0\r\n{}", "x".repeat(TRAILERS_MAX as usize + 1));
        for (text, expected) in [
            ("1000001;x\r\n", large),
            ("ffffffff;x\r\n", large),
            (&trailers, large),
            ("x;\r\n", bad),
            (";\r\n", bad),
            ("\n", bad),
            ("-1;\n", bad),
            ("+1\r\n", bad),
            ("11111111111111111\r\n", bad),
            (&long, bad),
            ("1000000;x\r\n", Ok(())),
        ] {
            assert_eq!(Chunks::default().take(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn bodies_are_as_long_as_they_say() {
        let headers =
            |len: &str| [(DECODED_LEN.parse().unwrap(), len.parse().unwrap())].into_iter().collect();
        let take = |len: &str, text: &str| {
            let mut chunks = Chunks::new(&headers(len));
            chunks.take(text.as_bytes()).map(|()| chunks.is_whole())
        };
        assert_eq!(take("3", "3\r\nabc\r\n0\r\n\r\n"), Ok(true));
        assert_eq!(take("4", "3\r\nabc\r\n0\r\n\r\n"), Ok(false));
        assert_eq!(take("2", "3\r\nabc\r\n"), Err(StatusCode::BAD_REQUEST));
        assert_eq!(take("0", "0\r\n\r\n"), Ok(true));
    }

    #[tokio::test]
    async fn a_body_that_is_cut_off_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "AWS4-HMAC-SHA256 x".parse().unwrap());
        headers.insert(CONTENT_SHA256, BY_CHUNKS[2].parse().unwrap());
        for (text, expected) in [
            ("3\r\nabc\r\n0\r\n\r\n", None),
            ("3\r\nabc\r\n", Some(StatusCode::BAD_REQUEST)),
            ("", Some(StatusCode::BAD_REQUEST)),
        ] {
            let request = (&Method::PUT, &Uri::from_static("/b/k"), &headers);
            let (bounded, cause) = BoundedBody::new(
                Full::new(Bytes::from(text)),
                request,
                BucketPosition::InPath,
                &CollectedBytes::default(),
            )
            .unwrap();
            assert_eq!(bounded.collect().await.is_err(), expected.is_some(), "{text:?}");
            assert_eq!(cause.get().copied(), expected, "{text:?}");
        }
    }
}
