//! GET and HEAD.

use std::sync::Arc;

use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::archive::Archive;
use super::listing::{Listing, ListingFormat};
use super::metalink::{metalink, servers};
use crate::announce::{self, Announced};
use crate::at_once;
use crate::body::{Body, full, pull, typed};
use crate::cancellation::Cancellation;
use crate::conditions::{check, range_holds, validators};
use crate::content_type::content_type;
use crate::digests;
use crate::error_response::ErrorResponse;
use crate::known;
use crate::open_file::{Node, OpenFile, Part, ResponseParts};
use crate::query::has_parameter;
use crate::ranges::{SelectedRanges, wanted};
use crate::request_path::{RequestPath, encoded};
use crate::tree::{Access, Tree};

/// Upper limit of a range whose digest is computed on request: the range is read twice for it.
const DIGEST_MAX: u64 = 64 << 20;
/// Separator of the parts of several ranges. A file may contain it, which would mislead a client that searches for it
/// instead of using the parts' lengths; so it gets a random suffix in each reply.
const BOUNDARY: &str = "bivouac";

const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// A request to read, without its body.
pub struct ReadRequest {
    /// GET or HEAD.
    pub method: Method,
    /// The requested path.
    pub target: RequestPath,
    /// Its parameters.
    pub query: Option<String>,
    /// Its headers.
    pub headers: HeaderMap,
    /// `https` or `http`.
    pub scheme: &'static str,
    /// Cancellation by the client.
    pub cancellation: Cancellation,
}

impl ReadRequest {
    /// Returns whether the whole file is read before the response.
    #[must_use]
    pub fn reads_all(&self) -> bool {
        let wants = |name| {
            let value = self.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
            value.is_some_and(digests::is_wanted)
        };
        has_parameter(self.query.as_deref(), "metalink")
            || wants("want-repr-digest")
            || wants("want-content-digest")
    }

    fn text(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Answers it. This may block, unless the thread [may not](crate::at_once).
pub fn read(
    tree: &Arc<Tree>,
    access: &Access,
    own: &Announced,
    request: &ReadRequest,
) -> Result<Response<Body>, ErrorResponse> {
    match tree.open(access, &request.target)? {
        Node::Dir(_) if !request.target.is_dir => {
            let query = request.query.as_ref().map_or_else(String::new, |query| format!("?{query}"));
            // Names are encoded, so no header is made of them; and the first of several slashes names no host.
            let location = format!("{}/{query}", request.target.encoded());
            let location = HeaderValue::from_str(&location)
                .map_err(|_| ErrorResponse::bad_request("the request's parameters make no sense"))?;
            Err(ErrorResponse::new(StatusCode::MOVED_PERMANENTLY, "it is a directory")
                .with(header::LOCATION, location))
        }
        Node::Dir(attr) if has_parameter(request.query.as_deref(), "tar") => archive(tree, &attr, request),
        Node::Dir(attr) => list(tree, attr, access, request),
        Node::File(file) if has_parameter(request.query.as_deref(), "metalink") => {
            described(tree, &file, (access, own), request)
        }
        Node::File(file) => send(tree, file, own, request),
    }
}

fn list(
    tree: &Arc<Tree>,
    attr: bivouac_client::Attr,
    access: &Access,
    request: &ReadRequest,
) -> Result<Response<Body>, ErrorResponse> {
    let is_json = has_parameter(request.query.as_deref(), "json")
        || request
            .text(header::ACCEPT)
            .split(',')
            .next()
            .is_some_and(|first| first.trim().starts_with("application/json"));
    let (form, kind) = match is_json {
        true => (ListingFormat::Json, "application/json"),
        false => (ListingFormat::Html, "text/html; charset=utf-8"),
    };
    let (first, listing) = Listing::begin(Arc::clone(tree), attr, (access, &request.target), form)?;
    let body =
        if request.method == Method::HEAD { full(Bytes::new()) } else { pull(Some(first), listing, None) };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

fn archive(
    tree: &Arc<Tree>,
    dir: &bivouac_client::Attr,
    request: &ReadRequest,
) -> Result<Response<Body>, ErrorResponse> {
    let formation = tree.client()?.map().name.clone();
    let name = request.target.name().unwrap_or(formation.as_bytes());
    let begun = Archive::begin(Arc::clone(tree), dir, name);
    let (first, archive) = begun.map_err(|error| match error.downcast::<FsError>() {
        Ok(error) => ErrorResponse::from(error),
        Err(error) => {
            FsError::with(Errno::EIO, format!("the directory could not be archived: {error}")).into()
        }
    })?;
    // For HEAD, too: otherwise the response would describe an empty archive.
    let mut response = Response::new(pull(Some(first), archive, None));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // RFC 8187: a percent-encoded name is one that every file name fits.
    let attached = format!("attachment; filename*=UTF-8''{}.tar", encoded(name));
    headers.insert(header::CONTENT_DISPOSITION, number(format_args!("{attached}"))?);
    Ok(response)
}

fn described(
    tree: &Arc<Tree>,
    file: &OpenFile,
    (access, own): (&Access, &Announced),
    request: &ReadRequest,
) -> Result<Response<Body>, ErrorResponse> {
    check(&request.method, &request.headers, Some(&file.attr))?;
    let holders: Vec<u16> = file.holders()?.into_iter().map(|node| node.0).collect();
    let here = format!("{}://{}", request.scheme, request.text(header::HOST));
    let announced = announce::list(tree.client()?)?;
    let servers = servers(&announced, own, &here, &holders);
    let all: Vec<String> = announced.iter().map(|server| server.url.clone()).collect();
    let others = |sha256: &str| match access.prefix.names.is_empty() {
        true => known::sites(tree.client()?, sha256, file.attr.size, &all),
        // A key for a part of the formation must not reveal other servers.
        false => Ok(Vec::new()),
    };
    let text = metalink(file, &request.target, (&servers, &others), &request.cancellation)?;
    Ok(typed(StatusCode::OK, "application/metalink4+xml", text))
}

fn send(
    tree: &Arc<Tree>,
    file: OpenFile,
    own: &Announced,
    request: &ReadRequest,
) -> Result<Response<Body>, ErrorResponse> {
    let attr = file.attr;
    check(&request.method, &request.headers, Some(&attr))?;
    let ranges = match request.headers.get(header::RANGE).and_then(|value| value.to_str().ok()) {
        // Of other methods the header is ignored (RFC 9110, 14.2).
        Some(range) if request.method == Method::GET && range_holds(&request.headers, &attr) => {
            wanted(range, attr.size)
        }
        _ => SelectedRanges::All,
    };
    let mut headers = HeaderMap::new();
    describe(tree, &file, own, request, &mut headers)?;
    let kind = content_type(request.target.name().unwrap_or_default());
    let (status, mut left, range) = match ranges {
        SelectedRanges::Nothing => {
            let range = number(format_args!("bytes */{}", attr.size))?;
            let refusal =
                ErrorResponse::new(StatusCode::RANGE_NOT_SATISFIABLE, "nothing of the range is there");
            return Err(refusal.with(header::CONTENT_RANGE, range));
        }
        SelectedRanges::All => (StatusCode::OK, vec![Part::Range(0, attr.size)], Some((0, attr.size))),
        SelectedRanges::Parts(parts) => match parts.as_slice() {
            [(start, end)] => {
                let value = number(format_args!("bytes {start}-{}/{}", end - 1, attr.size))?;
                headers.insert(header::CONTENT_RANGE, value);
                (StatusCode::PARTIAL_CONTENT, vec![Part::Range(*start, *end)], Some((*start, *end)))
            }
            _ => (StatusCode::PARTIAL_CONTENT, several(&parts, kind, attr.size, &mut headers)?, None),
        },
    };
    if range.is_some() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    digest(&file, range, request, &mut headers)?;
    let len = left.iter().map(|part| match part {
        Part::Text(text) => text.len() as u64,
        Part::Range(start, end) => end - start,
    });
    let len = len.sum();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    // An answer without parts is at its end from the start, as that of an empty file.
    left.retain(|part| !matches!(part, Part::Range(start, end) if start == end));
    left.reverse();
    let body =
        if request.method == Method::HEAD { full(Bytes::new()) } else { first_and_rest(file, left, len)? };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Returns a body whose first piece is read at once, which completes most files.
pub fn first_and_rest(file: OpenFile, left: Vec<Part>, len: u64) -> Result<Body, ErrorResponse> {
    use crate::body::BodySource as _;
    let mut sent = ResponseParts::new(file, left);
    if sent.is_done() {
        return Ok(full(Bytes::new()));
    }
    let first = sent.produce().map_err(|error| {
        // Not an error of the file: it is read again where that may take time.
        if at_once::may_not_wait() {
            return ErrorResponse::from(at_once::not_at_hand());
        }
        log::error!(why:% = error; "a file could not be read");
        ErrorResponse::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the formation could not read it; see: bivouac logs",
        )
    })?;
    Ok(if sent.is_done() { full(first) } else { pull(Some(first), sent, Some(len)) })
}

/// Returns the parts of an answer with several ranges.
fn several(
    parts: &[(u64, u64)],
    kind: &str,
    size: u64,
    headers: &mut HeaderMap,
) -> Result<Vec<Part>, ErrorResponse> {
    let failed = |_| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "there are no random numbers");
    let boundary = format!("{BOUNDARY}-{:016x}", getrandom::u64().map_err(failed)?);
    let mut all = Vec::with_capacity(2 * parts.len() + 1);
    for (index, (start, end)) in parts.iter().enumerate() {
        let before = if index == 0 { "" } else { "\r\n" };
        let text = format!(
            "{before}--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: bytes {start}-{}/{size}\r\n\r\n",
            end - 1
        );
        all.push(Part::Text(text.into()));
        all.push(Part::Range(*start, *end));
    }
    all.push(Part::Text(format!("\r\n--{boundary}--\r\n").into()));
    headers.insert(header::CONTENT_TYPE, number(format_args!("multipart/byteranges; boundary={boundary}"))?);
    Ok(all)
}

/// Sets the headers that are the same for every range of a file.
fn describe(
    tree: &Arc<Tree>,
    file: &OpenFile,
    own: &Announced,
    request: &ReadRequest,
    headers: &mut HeaderMap,
) -> Result<(), ErrorResponse> {
    validators(&file.attr, headers);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Caches have to ask each time: files change, and keys are revoked.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    // Not with each GET, as it costs questions to the formation.
    if request.method == Method::HEAD {
        let holders: Vec<u16> = file.holders()?.into_iter().map(|node| node.0).collect();
        let (stripe, nodes, own_nodes) = (file.attr.layout.stripe, joined(&holders), joined(&own.nodes));
        let value = format!("stripe={stripe}; nodes={nodes}; here={own_nodes}");
        headers.insert(HeaderName::from_static("bivouac-layout"), number(format_args!("{value}"))?);
        let here = format!("{}://{}", request.scheme, request.text(header::HOST));
        let announced = announce::list(tree.client()?)?;
        let all = servers(&announced, own, &here, &holders);
        let path = request.target.encoded();
        for (place, (server, nodes)) in all.iter().filter(|(server, _)| *server != here).enumerate() {
            let (pri, nodes) = (place + 1, joined(nodes));
            let link = format!("<{server}{path}>; rel=duplicate; pri={pri}; nodes=\"{nodes}\"");
            headers.append(header::LINK, number(format_args!("{link}"))?);
        }
        let described = format!("<{path}?metalink>; rel=describedby; type=\"application/metalink4+xml\"");
        headers.append(header::LINK, number(format_args!("{described}"))?);
    }
    Ok(())
}

/// Digests that the client wants.
fn digest(
    file: &OpenFile,
    range: Option<(u64, u64)>,
    request: &ReadRequest,
    headers: &mut HeaderMap,
) -> Result<(), ErrorResponse> {
    if digests::is_wanted(request.text("want-repr-digest")) {
        headers.insert(
            REPR_DIGEST,
            number(format_args!("{}", file.digest_of_all(&request.cancellation)?.header()))?,
        );
    }
    let Some((start, end)) = range.filter(|_| digests::is_wanted(request.text("want-content-digest"))) else {
        return Ok(());
    };
    let is_all = (start, end) == (0, file.attr.size);
    if is_all || end - start <= DIGEST_MAX {
        let digest = if is_all {
            file.digest_of_all(&request.cancellation)?
        } else {
            file.digest((start, end), None, &request.cancellation)?.0
        };
        headers.insert(CONTENT_DIGEST, number(format_args!("{}", digest.header()))?);
    }
    Ok(())
}

fn joined(nodes: &[u16]) -> String {
    nodes.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

fn number(text: std::fmt::Arguments<'_>) -> Result<HeaderValue, ErrorResponse> {
    HeaderValue::from_str(&text.to_string())
        .map_err(|_| ErrorResponse::bad_request("the request's host or path makes no header"))
}
