//! WebDAV (RFC 4918) for file managers: what HTTP alone does not have. Files come and go as without it; what changes
//! them honours locks.

mod asked;
mod condition;
mod find;
mod guard;
mod kept;
mod locking;
mod locks;
mod patch;
mod props;
mod transfer;
mod xml;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub use asked::{Depth, depth};
pub use guard::{Asks, Guard};
pub use kept::Desk;
pub use locking::{forget, no_parent};
pub use locks::{Lock, Reach};
pub use props::{given, set};
pub use xml::{HEAD, KIND, status};

use crate::body::Body;
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::{Access, Tree};
use transfer::Transfer;

/// What a server can do, as the `DAV` header says it: with locks.
pub const CLASSES: &str = "1, 2";
/// Longest body of XML, in bytes.
const BODY_MAX: usize = 64 << 10;
/// Longest time for such a body to come.
const BODY_FOR: Duration = Duration::from_secs(20);
/// Most of them that are collected at the same time.
const BODIES_MAX: usize = 1024;

/// Whether only WebDAV has a method.
#[must_use]
pub fn is_method(method: &Method) -> bool {
    matches!(method.as_str(), "PROPFIND" | "PROPPATCH" | "COPY" | "MOVE" | "LOCK" | "UNLOCK")
}

/// What answers requests of WebDAV.
pub struct Front {
    bodies: Semaphore,
    long: Arc<Semaphore>,
}

/// A request of somebody with a key.
pub struct Asked {
    pub method: Method,
    pub access: Access,
    pub target: Target,
    pub headers: HeaderMap,
}

impl Front {
    /// What takes long is done for a bounded number of requests at a time.
    #[must_use]
    pub fn new(long: &Arc<Semaphore>) -> Front {
        Front { bodies: Semaphore::new(BODIES_MAX), long: Arc::clone(long) }
    }

    /// Answers a request with one of these methods.
    ///
    /// # Errors
    /// Why not.
    pub async fn answer(
        &self,
        tree: &Arc<Tree>,
        asked: Asked,
        body: Incoming,
    ) -> Result<Response<Body>, Refusal> {
        match asked.method.as_str() {
            "COPY" | "MOVE" => self.transfer(tree, asked).await,
            _ => self.with_body(tree, asked, body).await,
        }
    }

    async fn with_body(
        &self,
        tree: &Arc<Tree>,
        asked: Asked,
        body: Incoming,
    ) -> Result<Response<Body>, Refusal> {
        let body = self.collected(body).await?;
        let tree = Arc::clone(tree);
        spawn_blocking(move || {
            let Asked { method, access, target, headers } = asked;
            let at = (&access, &target);
            match method.as_str() {
                "PROPPATCH" => patch::patch(&tree, at, &headers, &body),
                "LOCK" => locking::lock(&tree, at, &headers, &body),
                "UNLOCK" => locking::unlock(&tree, at, &headers),
                _ => find::find(&tree, find::Finding { access, target, headers, body }),
            }
        })
        .await?
    }

    async fn transfer(&self, tree: &Arc<Tree>, asked: Asked) -> Result<Response<Body>, Refusal> {
        let Asked { method, access, target, headers } = asked;
        let wanted = Transfer::new(&method, (access, target), headers)?;
        let turn = match wanted.is_copy {
            true => Arc::clone(&self.long).acquire_owned().await.ok(),
            false => None,
        };
        // Who breaks off has no copy; what is being moved is moved.
        let _there = wanted.is_copy.then(|| wanted.asker.presence());
        let tree = Arc::clone(tree);
        spawn_blocking(move || {
            let _turn = turn;
            transfer::transfer(&tree, &wanted)
        })
        .await?
    }

    /// All of a body.
    async fn collected(&self, body: Incoming) -> Result<Bytes, Refusal> {
        if hyper::body::Body::is_end_stream(&body) {
            return Ok(Bytes::new());
        }
        let over = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server ends");
        let _place = self.bodies.acquire().await.map_err(over)?;
        let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        let all =
            tokio::time::timeout(BODY_FOR, Limited::new(body, BODY_MAX).collect()).await.map_err(late)?;
        let refused = |error: Box<dyn std::error::Error + Send + Sync>| match error
            .is::<http_body_util::LengthLimitError>(
        ) {
            true => Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "bodies of WebDAV have at most 64 KiB"),
            false => Refusal::new(StatusCode::BAD_REQUEST, "the body ends before its end"),
        };
        Ok(all.map_err(refused)?.to_bytes())
    }
}

/// What is read of requests and attributes, for arbitrary text.
#[cfg(test)]
pub mod fuzzed {
    use super::{asked, condition, kept, locks, props, xml};
    use crate::target::{Target, is_reserved};
    use hyper::header::{HOST, HeaderMap, HeaderName};

    /// Has all of it read.
    pub fn read(text: &str, bytes: &[u8]) {
        if let Ok(lists) = condition::parse(text) {
            assert!(!lists.is_empty() && lists.iter().all(|list| !list.conditions.is_empty()));
        }
        let mut headers = HeaderMap::new();
        for name in ["depth", "overwrite", "destination", "timeout", "lock-token", "if"] {
            if let Ok(value) = text.parse() {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        headers.insert(HOST, "h".parse().unwrap());
        let _ = (asked::depth(&headers), asked::overwrite(&headers), asked::lock_token(&headers));
        assert!(
            asked::timeout(&headers).is_ok_and(|seconds| (1..=asked::LOCK_S_MAX).contains(&seconds))
                || !text.is_ascii()
        );
        if let Ok(target) = asked::destination(&headers) {
            for name in &target.names {
                assert!(!is_reserved(name) && name != b".." && name != b"." && !name.contains(&b'/'));
            }
            let again = Target::parse(&format!("/{}", locks::path(&target))).unwrap();
            assert_eq!(locks::path(&again), locks::path(&target));
        }
        let _ = (xml::propfind(bytes), xml::lockinfo(bytes));
        if let Ok(changes) = xml::proppatch(bytes) {
            for change in changes {
                let xml::Change::Set(name, element) = change else { continue };
                let again = format!(
                    "<propertyupdate xmlns='DAV:'><set><prop>{element}</prop></set></propertyupdate>"
                );
                assert_eq!(xml::proppatch(again.as_bytes()).unwrap(), [xml::Change::Set(name, element)]);
            }
        }
        kept::fuzzed(bytes);
        props::fuzzed(bytes);
    }
}
