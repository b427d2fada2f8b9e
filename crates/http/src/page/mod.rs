//! The page for browsers. It is where no file can be: names that begin with `.bivouac-` are the server's own.
//!
//! Everything of it needs a key, which the browser asks for and keeps for this address and port alone; a cookie would be
//! shown to every server of the host. What the page shows comes from whoever put the server together ([`View`]), and is for
//! keys of the whole formation; of files ([`asked`]) each key sees what is below its path.

mod asked;
mod assets;
mod search;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bivouac_client::Client;
use bivouac_types::{Errno, FsError, Ino};
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::body::{Body, full};
use crate::refusal::Refusal;
use crate::service::{Page, Policy};
use crate::tree::{Access, Asker, Tree};
#[cfg(test)]
pub use asked::target;
pub use asked::value;
use assets::{ASSETS, INDEX};

/// Where the page is, without the slash behind it.
pub const PLACE: &str = "/.bivouac-page";

/// What a page of another place in the browser must not load from here, or into itself.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Random bytes of what marks the scripts of one answer.
const NONCE_LEN: usize = 16;
/// What stands for it in the page.
const NONCE: &str = "{nonce}";

/// Something that is seen of the whole formation.
pub struct View {
    /// Its name below the page's place.
    pub name: &'static str,
    /// Makes it, of the request's parameters. It may block. An error is a sentence for the log.
    pub make: MakeView,
}

/// Makes a view.
pub type MakeView = Box<dyn Fn(Option<&str>) -> Result<Page, String> + Send + Sync>;

/// A file or directory that is to be explained.
#[derive(Clone, Copy)]
pub struct Explained<'a> {
    /// The formation.
    pub client: &'a Client,
    /// Its path, for people.
    pub path: &'a str,
    /// Its inode.
    pub ino: Ino,
    /// Whether whoever asks may know the places of subfiles on the nodes.
    pub sees_places: bool,
}

/// Says where the bytes of a file are. It may block. An error is a sentence for the log.
pub type Explain = Box<dyn Fn(Explained<'_>) -> Result<Page, String> + Send + Sync>;

/// What the page is made of, besides its own text.
pub struct Views {
    /// What is seen of the whole formation.
    pub of_all: Vec<View>,
    /// What is seen of a file.
    pub explain: Explain,
}

/// What of the page a request's path names; nothing, if it is not of the page.
#[must_use]
pub fn part_of(path: &str) -> Option<&str> {
    crate::target::behind(path, PLACE)
}

/// Whether a part of the page may wait for nodes: what is the page's own text does not.
#[must_use]
pub fn takes_long(part: &str) -> bool {
    let name = part.trim_start_matches('/');
    !name.is_empty() && name != "key.json" && !ASSETS.iter().any(|asset| asset.name == name)
}

/// A request for a part of the page.
#[derive(Debug)]
pub struct Wanted {
    /// The part: nothing, or a slash and what is behind it.
    pub part: String,
    /// Its parameters.
    pub query: Option<String>,
    /// Who waits for the answer.
    pub asker: Asker,
}

/// Answers it. This may block.
///
/// # Errors
/// Why not.
pub fn answer(
    tree: &Arc<Tree>,
    views: &Views,
    access: &Access,
    wanted: &Wanted,
) -> Result<Response<Body>, Refusal> {
    let query = wanted.query.as_deref();
    let Some(name) = wanted.part.strip_prefix('/') else {
        let place = HeaderValue::from_static("/.bivouac-page/");
        return Err(Refusal::new(StatusCode::MOVED_PERMANENTLY, "the page has a slash at its end")
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
        "find.json" => of_json(&search::find(tree, access, query, &wanted.asker)?),
        "explain.json" => asked::explain(tree, views, access, query),
        _ => of_all(views, access, name, query),
    }
}

fn of_all(
    views: &Views,
    access: &Access,
    name: &str,
    query: Option<&str>,
) -> Result<Response<Body>, Refusal> {
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "the page has no such part");
    let view = views.of_all.iter().find(|view| view.name == name).ok_or_else(missing)?;
    if !access.prefix.names.is_empty() {
        let text =
            "this is of the whole formation, and the key is for a path in it; ask for one that is for all";
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    made(name, (view.make)(query))
}

fn made(name: &str, page: Result<Page, String>) -> Result<Response<Body>, Refusal> {
    let page = page.map_err(|error| {
        log::error!(why:% = error; "{PLACE}/{name}");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be made; see: bivouac logs")
    })?;
    Ok(sent(page.content_type, page.bytes.into()))
}

/// What the key that is shown is for.
fn key(tree: &Tree, access: &Access) -> Result<serde_json::Value, Refusal> {
    let mut top = access.prefix.clone();
    top.is_dir = tree.attr(access, &access.prefix)?.is_dir();
    Ok(json!({
        "formation": tree.client()?.map().name,
        "path": String::from_utf8_lossy(&top.path()),
        "href": top.encoded(),
        "whole": top.names.is_empty(),
        "read_only": access.key.read_only,
        "expires": access.key.expires,
    }))
}

fn index() -> Result<Response<Body>, Refusal> {
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
    response.extensions_mut().insert(Policy(policy));
    Ok(response)
}

fn of_json(value: &serde_json::Value) -> Result<Response<Body>, Refusal> {
    Ok(sent("application/json", value.to_string().into()))
}

fn sent(content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::is_reserved;

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
            let Policy(policy) = response.extensions().get().unwrap();
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
