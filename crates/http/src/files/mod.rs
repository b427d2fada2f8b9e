//! Files by the methods of HTTP: read whole, in ranges and as archives, listed, put, and removed.

mod archive;
mod entries;
mod listing;
mod metalink;
mod reading;
mod writing;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body::{Body, empty};
use crate::dav_headers;
use crate::error_response::ErrorResponse;
use crate::tree::Tree;
pub use reading::{ReadRequest, read};
pub use writing::WriteRequest;

/// Allowed methods.
const ALLOW: &str = "GET, HEAD, PUT, DELETE, OPTIONS, MKCOL, COPY, MOVE, PROPFIND, PROPPATCH, LOCK, UNLOCK";

/// Carries out what changes something by the methods of HTTP. What takes long is done for a bounded number of requests
/// at a time.
pub async fn change(
    tree: &Arc<Tree>,
    long: &Arc<Semaphore>,
    method: Method,
    writing: WriteRequest,
    body: Incoming,
) -> Result<Response<Body>, ErrorResponse> {
    match method.as_str() {
        "PUT" => writing::put(tree, long, writing, body).await,
        "DELETE" => {
            // A removal ends when the client disconnects.
            let _cancel_on_drop = writing.cancellation.cancel_on_drop();
            let tree = Arc::clone(tree);
            let turn = match writing.removes_all()? {
                true => Arc::clone(long).acquire_owned().await.ok(),
                false => None,
            };
            spawn_blocking(move || {
                let _turn = turn;
                entries::delete(&tree, &writing)
            })
            .await?
        }
        "MKCOL" => {
            let tree = Arc::clone(tree);
            spawn_blocking(move || entries::make_dir(&tree, &writing)).await?
        }
        "OPTIONS" => {
            let mut response = empty(StatusCode::OK);
            let headers = response.headers_mut();
            headers.insert(header::ALLOW, HeaderValue::from_static(ALLOW));
            headers.insert("dav", HeaderValue::from_static(dav_headers::CLASSES));
            // Without this header some clients take the server for read-only.
            headers.insert("ms-author-via", HeaderValue::from_static("DAV"));
            Ok(response)
        }
        _ => {
            let refusal = ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, format!("methods are {ALLOW}"));
            Err(refusal.with(header::ALLOW, HeaderValue::from_static(ALLOW)))
        }
    }
}
