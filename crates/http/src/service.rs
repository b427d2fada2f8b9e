//! From a request to its answer: who asks, then what for; pages are where the formation has nothing.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::announce::Announced;
use crate::at_once::at_once;
use crate::body::{Body, full};
use crate::dav::{self, Asked, Guard};
use crate::digests;
use crate::entries;
use crate::host;
use crate::keys::{self, Deriver, SECRET_LEN};
use crate::known;
use crate::origin;
use crate::page::{self, Views};
use crate::reading::{Reading, read};
use crate::refusal::Refusal;
use crate::s3::{self, S3Front};
use crate::target::{Target, has_parameter, parameters};
use crate::tree::{Access, Asker, Tree};
use crate::writing::{self, Writing};

/// What all methods are that are answered.
const ALLOW: &str = "GET, HEAD, PUT, DELETE, OPTIONS, MKCOL, COPY, MOVE, PROPFIND, PROPPATCH, LOCK, UNLOCK";

/// Most requests at a time that read or copy whole files, or go through whole trees. The others are not kept waiting by them.
const LONG_MAX: usize = 16;

/// A page that is made for each request.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Makes a page, in a form that the request's `Accept` names. It may block. An error is a sentence for the log.
pub type MakePage = Box<dyn Fn(&str) -> Result<Page, String> + Send + Sync>;

/// A page where the formation has nothing, for those who have a key for all of it, or for that path.
pub struct Route {
    /// The path, exactly.
    pub path: &'static str,
    /// Makes it.
    pub page: MakePage,
}

/// What a browser may do with an answer, where that is not what all others forbid.
#[derive(Clone, Debug)]
pub struct Policy(pub HeaderValue);

/// How a server is reached.
pub struct Ways {
    /// `https` or `http`.
    pub scheme: &'static str,
    /// The domain whose names have a bucket of S3 in front.
    pub domain: Option<String>,
}

/// What answers requests.
pub struct Service {
    tree: Arc<Tree>,
    keys: Arc<Deriver>,
    own: Announced,
    routes: Arc<Vec<Route>>,
    views: Views,
    s3: S3Front,
    dav: dav::Front,
    long: Arc<Semaphore>,
    scheme: &'static str,
}

impl Service {
    /// For a formation.
    #[must_use]
    pub fn new(
        tree: Arc<Tree>,
        secret: &[u8; SECRET_LEN],
        own: Announced,
        (routes, views): (Vec<Route>, Views),
        Ways { scheme, domain }: Ways,
    ) -> Service {
        let keys = Arc::new(Deriver::new(secret));
        let long = Arc::new(Semaphore::new(LONG_MAX));
        let s3 = S3Front::new(&tree, &keys, &long, domain.as_deref());
        let dav = dav::Front::new(&long);
        Service { tree, keys, own, routes: Arc::new(routes), views, s3, dav, long, scheme }
    }

    /// Answers a request.
    pub async fn answer(self: Arc<Service>, request: Request<Incoming>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        // Where it ends may be seen otherwise by whoever is in front of this server (RFC 9112, 6.1).
        let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        let mut response = self.answer_or_refuse(request).await.unwrap_or_else(Refusal::into_response);
        if is_head && !response.headers().contains_key(header::CONTENT_LENGTH) {
            *response.body_mut() = full(Bytes::new());
        }
        shield(&mut response);
        if is_chunked {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer_or_refuse(
        self: Arc<Service>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        host::check(request.version(), request.headers())
            .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
        if !is_plainly_coded(request.headers()) {
            let text = "bodies come whole or by chunks: Transfer-Encoding: chunked, and nothing else";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, text));
        }
        if s3::is_signed(request.headers(), request.uri().query()) {
            return self.s3.answer(request).await;
        }
        if page::part_of(request.uri().path()).is_some() {
            return self.page_part(request).await;
        }
        if known::part_of(request.uri().path()).is_some() {
            return self.known_part(request).await;
        }
        let target =
            Target::parse(request.uri().path()).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
        let key = shown(request.headers());
        let (parts, body) = request.into_parts();
        let route = self.routes.iter().position(|route| route.path == parts.uri.path());
        if matches!(parts.method, Method::GET | Method::HEAD) {
            let asker = Asker::default();
            let _there = asker.presence();
            let reading = Reading {
                method: parts.method,
                target,
                query: parts.uri.query().map(str::to_owned),
                headers: parts.headers,
                scheme: self.scheme,
                asker,
            };
            let takes_long = route.is_some() || reads_all(&reading);
            let at_hand = || read(&self.tree, &self.access(key.as_deref())?, &self.own, &reading);
            if !takes_long && let Some(done) = at_once(at_hand) {
                return done;
            }
            let turn = match takes_long {
                true => Arc::clone(&self.long).acquire_owned().await.ok(),
                false => None,
            };
            return spawn_blocking(move || {
                let _turn = turn;
                let access = match (self.access(key.as_deref()), route) {
                    (Err(refusal), Some(route)) if refusal.status() == StatusCode::NOT_FOUND => {
                        // Of a key for what is not there.
                        self.check_is_for(key.as_deref(), route, refusal)?;
                        return self.page(route, &reading.headers);
                    }
                    (access, _) => access?,
                };
                match (read(&self.tree, &access, &self.own, &reading), route) {
                    (Err(refusal), Some(route)) if refusal.status() == StatusCode::NOT_FOUND => {
                        self.page(route, &reading.headers)
                    }
                    (read, _) => read,
                }
            })
            .await?;
        }
        if parts.method != Method::OPTIONS {
            origin::check(&parts.headers)?;
        }
        let service = Arc::clone(&self);
        let access = spawn_blocking(move || service.access(key.as_deref())).await??;
        if dav::is_method(&parts.method) {
            let asked = Asked { method: parts.method, access, target, headers: parts.headers };
            return self.dav.answer(&self.tree, asked, body).await;
        }
        let upload = parameters(parts.uri.query())
            .find(|(name, _)| *name == "upload")
            .map(|(_, id)| id.unwrap_or_default().to_owned());
        let guard = Guard::of(&parts.headers)?;
        let asker = Asker::default();
        let writing = Writing { access, target, headers: parts.headers, upload, guard, asker };
        self.write(parts.method, writing, body).await
    }

    /// Carries out what changes something by the methods of HTTP.
    async fn write(
        &self,
        method: Method,
        writing: Writing,
        body: Incoming,
    ) -> Result<Response<Body>, Refusal> {
        let tree = Arc::clone(&self.tree);
        match method.as_str() {
            "PUT" => writing::put(&tree, &self.long, writing, body).await,
            "DELETE" => {
                // Who breaks off keeps what is not removed yet.
                let _there = writing.asker.presence();
                let turn = match writing.removes_all()? {
                    true => Arc::clone(&self.long).acquire_owned().await.ok(),
                    false => None,
                };
                spawn_blocking(move || {
                    let _turn = turn;
                    entries::delete(&tree, &writing)
                })
                .await?
            }
            "MKCOL" => spawn_blocking(move || entries::make_dir(&tree, &writing)).await?,
            "OPTIONS" => {
                let mut response = Response::new(full(Bytes::new()));
                let headers = response.headers_mut();
                headers.insert(header::ALLOW, HeaderValue::from_static(ALLOW));
                headers.insert("dav", HeaderValue::from_static(dav::CLASSES));
                // Without it some take a server for one that is only read.
                headers.insert("ms-author-via", HeaderValue::from_static("DAV"));
                Ok(response)
            }
            _ => {
                let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("methods are {ALLOW}"));
                Err(refusal.with(header::ALLOW, HeaderValue::from_static(ALLOW)))
            }
        }
    }

    /// A part of the page for browsers.
    async fn page_part(self: Arc<Service>, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        only_read(&request, "the page is only read")?;
        let key = shown(request.headers());
        let part = page::part_of(request.uri().path()).unwrap_or_default().to_owned();
        // Whoever follows a link comes from elsewhere; what the page takes along, it asks for itself.
        if !part.trim_start_matches('/').is_empty() {
            origin::check(request.headers())?;
        }
        let asker = Asker::default();
        let _there = asker.presence();
        let wanted = page::Wanted { part, query: request.uri().query().map(str::to_owned), asker };
        let turn = match page::takes_long(&wanted.part) {
            true => Arc::clone(&self.long).acquire_owned().await.ok(),
            false => None,
        };
        spawn_blocking(move || {
            let _turn = turn;
            let access = self.access(key.as_deref())?;
            page::answer(&self.tree, &self.views, &access, &wanted)
        })
        .await?
    }

    /// What the formation knows of published entries.
    async fn known_part(self: Arc<Service>, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        only_read(&request, "what is known of entries is only read")?;
        origin::check(request.headers())?;
        let key = shown(request.headers());
        let turn = Arc::clone(&self.long).acquire_owned().await.ok();
        spawn_blocking(move || {
            let _turn = turn;
            let access = self.access(key.as_deref())?;
            let part = known::part_of(request.uri().path()).unwrap_or_default();
            known::answer(&self.tree, &access, part, request.uri().query())
        })
        .await?
    }

    /// What a key allows. This may block.
    fn access(&self, key: Option<&str>) -> Result<Access, Refusal> {
        let id = key.and_then(|key| self.keys.id_of(key));
        let access = id.map(|id| self.tree.access(id)).transpose()?.flatten();
        access.ok_or_else(|| {
            let text = "this needs a key, one that was neither revoked nor has expired; make one: bivouac key create";
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, text);
            refusal.with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"bivouac\"")).with(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"bivouac\", charset=\"UTF-8\""),
            )
        })
    }

    /// Refuses a key that is not for the page itself. This may block.
    fn check_is_for(&self, key: Option<&str>, route: usize, refusal: Refusal) -> Result<(), Refusal> {
        let id = key.and_then(|key| self.keys.id_of(key)).unwrap_or_default();
        let key = keys::find(self.tree.client()?, id, keys::now())?;
        let path = self.routes.get(route).map(|route| route.path);
        if key.is_some_and(|key| Some(key.path.as_str()) == path) { Ok(()) } else { Err(refusal) }
    }

    /// This may block.
    fn page(&self, route: usize, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        let missing = || Refusal::new(StatusCode::NOT_FOUND, "no such page");
        let route = self.routes.get(route).ok_or_else(missing)?;
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let page = (route.page)(accept).map_err(|error| {
            log::error!(why:% = error; "{}", route.path);
            let text = "the page could not be made; see: bivouac logs";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        })?;
        let mut response = Response::new(full(page.bytes.into()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(page.content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        Ok(response)
    }
}

/// Whether all of a file is read before anything is answered.
fn reads_all(reading: &Reading) -> bool {
    let wants = |name| {
        let value = reading.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        value.is_some_and(digests::is_wanted)
    };
    has_parameter(reading.query.as_deref(), "metalink")
        || wants("want-repr-digest")
        || wants("want-content-digest")
}

/// What somebody put into the formation is not to act in the browser of somebody else, however it is asked for.
fn shield(response: &mut Response<Body>) {
    let all = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; media-src 'self'";
    let own = response.extensions_mut().remove::<Policy>();
    let policy = own.map_or_else(|| HeaderValue::from_static(all), |Policy(policy)| policy);
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
}

/// Refuses a request that would change something.
fn only_read(request: &Request<Incoming>, text: &'static str) -> Result<(), Refusal> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text);
    Err(refusal.with(header::ALLOW, HeaderValue::from_static("GET, HEAD")))
}

/// Whether a body comes as it is: what is coded further would be kept as it came, and be taken for the file.
fn is_plainly_coded(headers: &HeaderMap) -> bool {
    let mut coded = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    coded.next().is_none_or(is_chunked) && coded.next().is_none()
}

/// The key that a request shows: as a bearer's, or as the password of anybody.
fn shown(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = text.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_coded_by_chunks_at_most() {
        for (coded, is_plain) in [
            (&[][..], true),
            (&["chunked"], true),
            (&["Chunked "], true),
            (&["gzip, chunked"], false),
            (&["gzip", "chunked"], false),
            (&["chunked", "chunked"], false),
            (&["identity"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in coded {
                headers.append(header::TRANSFER_ENCODING, value.parse().unwrap());
            }
            assert_eq!(is_plainly_coded(&headers), is_plain, "{coded:?}");
        }
    }

    #[test]
    fn keys_are_found_in_either_scheme() {
        for (text, key) in [
            ("Bearer a.b", Some("a.b")),
            ("bearer  a.b ", Some("a.b")),
            ("Basic dTphLmI=", Some("a.b")),
            ("Basic OmEuYg==", Some("a.b")),
            ("Basic YS5i", None),
            ("Basic !", None),
            ("Digest a.b", None),
            ("a.b", None),
        ] {
            let headers = [(header::AUTHORIZATION, text.parse().unwrap())].into_iter().collect();
            assert_eq!(shown(&headers).as_deref(), key, "{text}");
        }
        assert_eq!(shown(&HeaderMap::new()), None);
    }
}
