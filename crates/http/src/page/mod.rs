//! The page for browsers. It is where no file can be: names that begin with `.bivouac-` are the server's own.
//!
//! Everything of it needs a key, which the browser asks for and keeps for this address and port alone; a cookie would
//! be shown to every server of the host. What the page shows comes from whoever put the server together ([`View`]), and
//! is for keys of the whole formation; of files ([`asked`]) each key sees what is below its path.

mod asked;
mod assets;
mod search;
mod shares;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bivouac_client::Client;
use bivouac_types::{Errno, FsError, Ino};
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde_json::json;

use crate::body::{Body, typed};
use crate::cancellation::Cancellation;
use crate::error_response::ErrorResponse;
use crate::keys::Deriver;
use crate::tree::{Access, Tree};
#[cfg(test)]
pub use asked::target;
use assets::{ASSETS, INDEX};

/// URL prefix of the page, without its trailing slash.
pub const PLACE: &str = "/.bivouac-page";

/// Header that forbids other sites to load the page or parts of it.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Random bytes of what marks the scripts of one answer.
const NONCE_LEN: usize = 16;
/// Placeholder of the nonce in the page.
const NONCE: &str = "{nonce}";

/// A page that is made for each request.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Content security policy of a response that differs from the default.
#[derive(Clone, Debug)]
pub struct ContentPolicy(pub HeaderValue);

/// Something that is seen of the whole formation.
pub struct PageView {
    /// Its name below the page's place.
    pub name: &'static str,
    /// The function that makes it, of the request's parameters. It may block. An error is a sentence for the log.
    pub make: MakeView,
}

/// A function that makes a view.
pub type MakeView = Box<dyn Fn(Option<&str>) -> Result<Page, String> + Send + Sync>;

/// A file or directory that is to be explained.
#[derive(Clone, Copy)]
pub struct ExplainRequest<'a> {
    /// The formation.
    pub client: &'a Client,
    /// Its path, for people.
    pub path: &'a str,
    /// Its inode.
    pub ino: Ino,
    /// Its directory, if the client may see that.
    pub dir: Option<Ino>,
    /// True if the client may see the places of subfiles.
    pub sees_places: bool,
}

/// Says where the bytes of a file are. It may block. An error is a sentence for the log.
pub type PathExplainer = Box<dyn Fn(ExplainRequest<'_>) -> Result<Page, String> + Send + Sync>;

/// Dynamic content of the page.
pub struct Views {
    /// Views of the whole formation.
    pub of_all: Vec<PageView>,
    /// View of a file.
    pub explain: PathExplainer,
}

/// Returns the part of a request's path below the prefix; `None` for other paths.
#[must_use]
pub fn part_of(path: &str) -> Option<&str> {
    crate::request_path::behind(path, PLACE)
}

/// Returns whether requests to this part of the page may change something.
#[must_use]
pub fn is_changed(part: &str) -> bool {
    part.strip_prefix('/') == Some(shares::NAME)
}

/// Returns whether a part of the page may wait for nodes; static parts do not.
#[must_use]
pub fn takes_long(part: &str) -> bool {
    let name = part.trim_start_matches('/');
    !name.is_empty() && name != "key.json" && !ASSETS.iter().any(|asset| asset.name == name)
}

/// A request for a part of the page.
#[derive(Debug)]
pub struct PageRequest {
    /// The part: nothing, or a slash and what is behind it.
    pub part: String,
    /// The method: GET, or what changes the links that were shared.
    pub method: Method,
    /// Its parameters.
    pub query: Option<String>,
    /// Cancellation by the client.
    pub cancellation: Cancellation,
}

/// Answers it. This may block.
pub fn answer(
    tree: &Arc<Tree>,
    (views, keys): (&Views, &Deriver),
    access: &Access,
    wanted: &PageRequest,
) -> Result<Response<Body>, ErrorResponse> {
    let query = wanted.query.as_deref();
    let Some(name) = wanted.part.strip_prefix('/') else {
        let place = HeaderValue::from_static("/.bivouac-page/");
        return Err(ErrorResponse::new(StatusCode::MOVED_PERMANENTLY, "the page has a slash at its end")
            .with(header::LOCATION, place));
    };
    if name.is_empty() {
        return index();
    }
    if let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) {
        return Ok(sent(asset.content_type, Bytes::from_static(asset.text.as_bytes())));
    }
    match name {
        "key.json" => of_json(&key(tree, access)?),
        "find.json" => of_json(&search::find(tree, access, query, &wanted.cancellation)?),
        "explain.json" => asked::explain(tree, views, access, query),
        shares::NAME => of_json(&shares::answer(tree, keys, access, (&wanted.method, query))?),
        _ => of_all(views, access, name, query),
    }
}

fn of_all(
    views: &Views,
    access: &Access,
    name: &str,
    query: Option<&str>,
) -> Result<Response<Body>, ErrorResponse> {
    let missing = || ErrorResponse::new(StatusCode::NOT_FOUND, "the page has no such part");
    let view = views.of_all.iter().find(|view| view.name == name).ok_or_else(missing)?;
    if !access.prefix.names.is_empty() {
        let text =
            "this is of the whole formation, and the key is for a path in it; ask for one that is for all";
        return Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
    }
    made(name, (view.make)(query))
}

fn made(name: &str, page: Result<Page, String>) -> Result<Response<Body>, ErrorResponse> {
    let page = page.map_err(|error| {
        log::error!(why:% = error; "{PLACE}/{name}");
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be made; see: bivouac logs")
    })?;
    Ok(sent(page.content_type, page.bytes.into()))
}

/// Returns the access of the presented key.
fn key(tree: &Tree, access: &Access) -> Result<serde_json::Value, ErrorResponse> {
    let mut top = access.prefix.clone();
    top.is_dir = tree.attr(access, &access.prefix)?.is_dir();
    Ok(json!({
        "formation": tree.client()?.map().name,
        "path": String::from_utf8_lossy(&top.path()),
        "href": top.encoded(),
        "whole": top.names.is_empty(),
        "read_only": access.key.read_only,
        "expires": access.key.expires,
        "shares": shares::may_share(&access.key),
    }))
}

fn index() -> Result<Response<Body>, ErrorResponse> {
    let mut random = [0; NONCE_LEN];
    getrandom::fill(&mut random)
        .map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
    let nonce = URL_SAFE_NO_PAD.encode(random);
    let mut response = sent("text/html; charset=utf-8", INDEX.replace(NONCE, &nonce).into());
    // Scripts are the page's own, by the mark and not by their address: files of the formation have the same.
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self'; \
         connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let policy = HeaderValue::from_str(&policy)
        .map_err(|error| FsError::with(Errno::EIO, format!("the page's policy: {error}")))?;
    response.extensions_mut().insert(ContentPolicy(policy));
    Ok(response)
}

fn of_json(value: &serde_json::Value) -> Result<Response<Body>, ErrorResponse> {
    Ok(sent("application/json", value.to_string().into()))
}

fn sent(content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = typed(StatusCode::OK, content_type, bytes);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_path::is_reserved;

    #[test]
    fn the_page_is_where_no_file_is() {
        assert!(is_reserved(PLACE.trim_start_matches('/').as_bytes()));
        assert_eq!(
            [PLACE, "/.bivouac-page/", "/.bivouac-page/a.js"].map(part_of),
            [Some(""), Some("/"), Some("/a.js")]
        );
        assert_eq!(
            ["/", "/.bivouac-pages", "/x/.bivouac-page/", "/.bivouac-uploads"].map(part_of),
            [None; 4]
        );
    }

    #[test]
    fn each_answer_has_a_mark_of_its_own() {
        let nonce = |response: &Response<Body>| {
            let ContentPolicy(policy) = response.extensions().get().unwrap();
            policy
                .to_str()
                .unwrap()
                .split("script-src 'nonce-")
                .nth(1)
                .unwrap()
                .split('\'')
                .next()
                .unwrap()
                .to_owned()
        };
        let (one, other) = (index().unwrap(), index().unwrap());
        assert_eq!(nonce(&one).len(), 22);
        assert_ne!(nonce(&one), nonce(&other));
    }
}
