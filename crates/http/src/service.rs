//! Dispatch of requests: authorization, then the handler.

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
use crate::body::{Body, full, typed};
use crate::cancellation::Cancellation;
use crate::dav::{self, DavRequest};
use crate::error_response::ErrorResponse;
use crate::files::{self, ReadRequest, WriteRequest, read};
use crate::host;
use crate::keys::{self, Deriver, SECRET_LEN};
use crate::known;
use crate::locks::LockConditions;
use crate::origin;
use crate::page::{self, ContentPolicy, Page, Views};
use crate::query::parameters;
use crate::request_path::RequestPath;
use crate::s3::{self, S3Front};
use crate::tree::{Access, Tree};

/// Upper limit of concurrent requests that read or copy whole files or trees. Other requests do not wait for them.
const LONG_MAX: usize = 16;

/// A function that makes a page, in a form that the request's `Accept` names. It may block. An error is a sentence for
/// the log.
pub type MakePage = Box<dyn Fn(&str) -> Result<Page, String> + Send + Sync>;

/// A page at a path outside of the formation, for keys with access to all of it or to that path.
pub struct Route {
    /// The path, exactly.
    pub path: &'static str,
    /// The function that makes it.
    pub page: MakePage,
}

/// Address of a server.
pub struct ServerAddress {
    /// `https` or `http`.
    pub scheme: &'static str,
    /// Domain of virtual-hosted buckets.
    pub domain: Option<String>,
}

/// Dispatcher of requests.
pub struct Service {
    tree: Arc<Tree>,
    keys: Arc<Deriver>,
    own: Announced,
    routes: Arc<Vec<Route>>,
    views: Views,
    s3: S3Front,
    dav: dav::DavFront,
    long: Arc<Semaphore>,
    scheme: &'static str,
}

impl Service {
    /// Creates the dispatcher of a formation.
    #[must_use]
    pub fn new(
        tree: Arc<Tree>,
        secret: &[u8; SECRET_LEN],
        own: Announced,
        (routes, views): (Vec<Route>, Views),
        ServerAddress { scheme, domain }: ServerAddress,
    ) -> Service {
        let keys = Arc::new(Deriver::new(secret));
        let long = Arc::new(Semaphore::new(LONG_MAX));
        let s3 = S3Front::new(&tree, &keys, &long, domain.as_deref());
        let dav = dav::DavFront::new(&long);
        Service { tree, keys, own, routes: Arc::new(routes), views, s3, dav, long, scheme }
    }

    /// Answers a request.
    pub async fn answer(self: Arc<Service>, request: Request<Incoming>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        // A proxy may see another end of the body (RFC 9112, 6.1): request smuggling.
        let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        let mut response = self.answer_or_refuse(request).await.unwrap_or_else(ErrorResponse::into_response);
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
    ) -> Result<Response<Body>, ErrorResponse> {
        host::check(request.version(), request.headers()).map_err(ErrorResponse::bad_request)?;
        if !is_plainly_coded(request.headers()) {
            let text = "bodies come whole or by chunks: Transfer-Encoding: chunked, and nothing else";
            return Err(ErrorResponse::new(StatusCode::NOT_IMPLEMENTED, text));
        }
        if s3::is_preflight(&request) {
            return Ok(self.s3.preflight(request.uri().path(), request.headers()).await);
        }
        if s3::is_signed(request.headers(), request.uri().query()) || s3::is_form(&request) {
            return Ok(self.s3.answer(request).await);
        }
        if page::part_of(request.uri().path()).is_some() {
            return self.page_part(request).await;
        }
        if known::part_of(request.uri().path()).is_some() {
            return self.known_part(request).await;
        }
        let target = RequestPath::parse(request.uri().path()).map_err(ErrorResponse::bad_request)?;
        let key = shown(request.headers());
        let (parts, body) = request.into_parts();
        let route = self.routes.iter().position(|route| route.path == parts.uri.path());
        if matches!(parts.method, Method::GET | Method::HEAD) {
            let cancellation = Cancellation::default();
            let _cancel_on_drop = cancellation.cancel_on_drop();
            let reading = ReadRequest {
                method: parts.method,
                target,
                query: parts.uri.query().map(str::to_owned),
                headers: parts.headers,
                scheme: self.scheme,
                cancellation,
            };
            let takes_long = route.is_some() || reading.reads_all();
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
                    // A file at that path comes before the page.
                    (Err(refusal), Some(route)) if refusal.status() == StatusCode::NOT_FOUND => {
                        self.page(route, &reading.headers)
                    }
                    (read, _) => read,
                }
            })
            .await?;
        }
        // OPTIONS changes nothing, and browsers ask by it on behalf of other places.
        if parts.method != Method::OPTIONS {
            origin::check(&parts.headers)?;
        }
        let service = Arc::clone(&self);
        let access = spawn_blocking(move || service.access(key.as_deref())).await??;
        if dav::is_method(&parts.method) {
            let asked = DavRequest { method: parts.method, access, target, headers: parts.headers };
            return self.dav.answer(&self.tree, asked, body).await;
        }
        let upload = parameters(parts.uri.query())
            .find(|(name, _)| *name == "upload")
            .map(|(_, id)| id.unwrap_or_default().to_owned());
        let guard = LockConditions::of(&parts.headers)?;
        let cancellation = Cancellation::default();
        let writing = WriteRequest { access, target, headers: parts.headers, upload, guard, cancellation };
        files::change(&self.tree, &self.long, parts.method, writing, body).await
    }

    /// Returns a part of the page for browsers.
    async fn page_part(
        self: Arc<Service>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ErrorResponse> {
        let part = page::part_of(request.uri().path()).unwrap_or_default().to_owned();
        if !page::is_changed(&part) {
            only_read(&request, "the page is only read")?;
        }
        let key = shown(request.headers());
        // Whoever follows a link comes from elsewhere; what the page takes along, it asks for itself.
        if !part.trim_start_matches('/').is_empty() {
            origin::check(request.headers())?;
        }
        let cancellation = Cancellation::default();
        let _cancel_on_drop = cancellation.cancel_on_drop();
        let (method, query) = (request.method().clone(), request.uri().query().map(str::to_owned));
        let wanted = page::PageRequest { part, method, query, cancellation };
        let turn = match page::takes_long(&wanted.part) {
            true => Arc::clone(&self.long).acquire_owned().await.ok(),
            false => None,
        };
        spawn_blocking(move || {
            let _turn = turn;
            let access = self.access(key.as_deref())?;
            page::answer(&self.tree, (&self.views, &self.keys), &access, &wanted)
        })
        .await?
    }

    /// Handles a request for published entries.
    async fn known_part(
        self: Arc<Service>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ErrorResponse> {
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

    /// Returns the access of a key. It may block.
    fn access(&self, key: Option<&str>) -> Result<Access, ErrorResponse> {
        let id = key.and_then(|key| self.keys.id_of(key));
        let access = id.map(|id| self.tree.access(id)).transpose()?.flatten();
        access.ok_or_else(|| {
            let text = "this needs a key, one that was neither revoked nor has expired; make one: bivouac key create";
            let refusal = ErrorResponse::new(StatusCode::UNAUTHORIZED, text);
            refusal.with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"bivouac\"")).with(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"bivouac\", charset=\"UTF-8\""),
            )
        })
    }

    /// Refuses a key that is not for the page itself. This may block.
    fn check_is_for(
        &self,
        key: Option<&str>,
        route: usize,
        refusal: ErrorResponse,
    ) -> Result<(), ErrorResponse> {
        let id = key.and_then(|key| self.keys.id_of(key)).unwrap_or_default();
        let key = keys::find(self.tree.client()?, id, keys::now())?;
        let path = self.routes.get(route).map(|route| route.path);
        if key.is_some_and(|key| Some(key.path.as_str()) == path) { Ok(()) } else { Err(refusal) }
    }

    /// Makes a page. May block.
    fn page(&self, route: usize, headers: &HeaderMap) -> Result<Response<Body>, ErrorResponse> {
        let missing = || ErrorResponse::new(StatusCode::NOT_FOUND, "no such page");
        let route = self.routes.get(route).ok_or_else(missing)?;
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let page = (route.page)(accept).map_err(|error| {
            log::error!(why:% = error; "{}", route.path);
            let text = "the page could not be made; see: bivouac logs";
            ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        })?;
        let mut response = typed(StatusCode::OK, page.content_type, page.bytes);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        Ok(response)
    }
}

/// Sets headers that keep a browser from executing content of the formation.
fn shield(response: &mut Response<Body>) {
    let all = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; media-src 'self'";
    let own = response.extensions_mut().remove::<ContentPolicy>();
    let policy = own.map_or_else(|| HeaderValue::from_static(all), |ContentPolicy(policy)| policy);
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
}

/// Refuses a request that would change something.
fn only_read(request: &Request<Incoming>, text: &'static str) -> Result<(), ErrorResponse> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let refusal = ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, text);
    Err(refusal.with(header::ALLOW, HeaderValue::from_static("GET, HEAD")))
}

/// Returns whether a body has no content coding: an encoded one would be stored as it is, and taken for the file.
fn is_plainly_coded(headers: &HeaderMap) -> bool {
    let mut coded = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    coded.next().is_none_or(is_chunked) && coded.next().is_none()
}

/// Returns the presented key: a bearer token, or the password of any user.
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
