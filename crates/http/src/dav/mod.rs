//! WebDAV (RFC 4918) for file managers: what HTTP alone does not have. Files come and go as without it; what changes
//! them honours locks.

mod bodies;
mod find;
mod locking;
mod patch;
mod props;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body::Body;
use crate::error_response::ErrorResponse;
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};
use transfer::Transfer;

/// Longest body of XML, in bytes.
const BODY_MAX: usize = 64 << 10;
/// Longest time for such a body to come.
const BODY_FOR: Duration = Duration::from_secs(20);
/// Upper limit of bodies that are collected at the same time.
const BODIES_MAX: usize = 1024;

/// Returns whether a method belongs to WebDAV only.
#[must_use]
pub fn is_method(method: &Method) -> bool {
    matches!(method.as_str(), "PROPFIND" | "PROPPATCH" | "COPY" | "MOVE" | "LOCK" | "UNLOCK")
}

/// Handler of WebDAV requests.
pub struct DavFront {
    bodies: Semaphore,
    long: Arc<Semaphore>,
}

/// An authorized request.
pub struct DavRequest {
    pub method: Method,
    pub access: Access,
    pub target: RequestPath,
    pub headers: HeaderMap,
}

impl DavFront {
    /// Creates the handler; `long` limits expensive requests.
    #[must_use]
    pub fn new(long: &Arc<Semaphore>) -> DavFront {
        DavFront { bodies: Semaphore::new(BODIES_MAX), long: Arc::clone(long) }
    }

    /// Answers a request with one of these methods.
    pub async fn answer(
        &self,
        tree: &Arc<Tree>,
        asked: DavRequest,
        body: Incoming,
    ) -> Result<Response<Body>, ErrorResponse> {
        match asked.method.as_str() {
            "COPY" | "MOVE" => self.transfer(tree, asked).await,
            _ => self.with_body(tree, asked, body).await,
        }
    }

    async fn with_body(
        &self,
        tree: &Arc<Tree>,
        asked: DavRequest,
        body: Incoming,
    ) -> Result<Response<Body>, ErrorResponse> {
        let body = self.collected(body).await?;
        let tree = Arc::clone(tree);
        spawn_blocking(move || {
            let DavRequest { method, access, target, headers } = asked;
            let at = (&access, &target);
            match method.as_str() {
                "PROPPATCH" => patch::patch(&tree, at, &headers, &body),
                "LOCK" => locking::lock(&tree, at, &headers, &body),
                "UNLOCK" => locking::unlock(&tree, at, &headers),
                _ => find::find(&tree, find::PropfindRequest { access, target, headers, body }),
            }
        })
        .await?
    }

    async fn transfer(&self, tree: &Arc<Tree>, asked: DavRequest) -> Result<Response<Body>, ErrorResponse> {
        let DavRequest { method, access, target, headers } = asked;
        let wanted = Transfer::new(&method, (access, target), headers)?;
        let turn = match wanted.is_copy {
            true => Arc::clone(&self.long).acquire_owned().await.ok(),
            false => None,
        };
        // A copy is abandoned when the client disconnects; a move is completed.
        let _cancel_on_drop = wanted.is_copy.then(|| wanted.cancellation.cancel_on_drop());
        let tree = Arc::clone(tree);
        spawn_blocking(move || {
            let _turn = turn;
            transfer::transfer(&tree, &wanted)
        })
        .await?
    }

    /// Returns all of a body.
    async fn collected(&self, body: Incoming) -> Result<Bytes, ErrorResponse> {
        // What has no body needs no place among those that are collected.
        if hyper::body::Body::is_end_stream(&body) {
            return Ok(Bytes::new());
        }
        let over = |_| ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "the server ends");
        let _place = self.bodies.acquire().await.map_err(over)?;
        let late = |_| ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        let all =
            tokio::time::timeout(BODY_FOR, Limited::new(body, BODY_MAX).collect()).await.map_err(late)?;
        let refused = |error: Box<dyn std::error::Error + Send + Sync>| match error
            .is::<http_body_util::LengthLimitError>(
        ) {
            true => ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "bodies of WebDAV have at most 64 KiB"),
            false => ErrorResponse::bad_request("the body ends before its end"),
        };
        Ok(all.map_err(refused)?.to_bytes())
    }
}

/// Entry points for fuzzing of parsers.
#[cfg(test)]
pub mod fuzzed {
    use super::bodies;
    use crate::dead_properties::{self, PropertyChange};
    use crate::request_path::{RequestPath, is_reserved};
    use crate::{dav_headers, locks};
    use hyper::header::{HOST, HeaderMap, HeaderName};

    /// Has all of it read.
    pub fn read(text: &str, bytes: &[u8]) {
        let mut headers = HeaderMap::new();
        for name in ["depth", "overwrite", "destination", "timeout", "lock-token", "if"] {
            if let Ok(value) = text.parse() {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        headers.insert(HOST, "h".parse().unwrap());
        let _ = (
            dav_headers::depth(&headers),
            dav_headers::overwrite(&headers),
            dav_headers::lock_token(&headers),
        );
        assert!(
            dav_headers::timeout(&headers)
                .is_ok_and(|seconds| (1..=dav_headers::LOCK_S_MAX).contains(&seconds))
                || !text.is_ascii()
        );
        if let Ok(target) = dav_headers::destination(&headers) {
            for name in &target.names {
                assert!(!is_reserved(name) && name != b".." && name != b"." && !name.contains(&b'/'));
            }
            let again = RequestPath::parse(&format!("/{}", locks::path(&target))).unwrap();
            assert_eq!(locks::path(&again), locks::path(&target));
        }
        let _ = (bodies::propfind(bytes), bodies::lockinfo(bytes));
        if let Ok(changes) = bodies::proppatch(bytes) {
            for change in changes {
                let PropertyChange::Set(name, element) = change else { continue };
                let again = format!(
                    "<propertyupdate xmlns='DAV:'><set><prop>{element}</prop></set></propertyupdate>"
                );
                assert_eq!(
                    bodies::proppatch(again.as_bytes()).unwrap(),
                    [PropertyChange::Set(name, element)]
                );
            }
        }
        locks::fuzzed(text, bytes);
        dead_properties::fuzzed(bytes);
    }
}
