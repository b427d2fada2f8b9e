//! GET and HEAD.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};

use crate::announce::{self, Announced};
use crate::at_once;
use crate::body::{Body, full, pull};
use crate::conditions::{check, range_holds, validators};
use crate::digests;
use crate::known;
use crate::listing::{Form, Listing};
use crate::metalink::{metalink, servers};
use crate::ranges::{Wanted, wanted};
use crate::refusal::Refusal;
use crate::target::{Target, has_parameter};
use crate::tree::{Access, Asker, Node, OpenFile, Part, Sent, Tree};

/// Largest range whose digest is computed for a client that wants it: the range is read twice then.
const DIGEST_MAX: u64 = 64 << 20;
/// What separates the parts of several ranges. A file may have it in it: then a client that searches for it, instead of
/// counting as the parts say, is mistaken; so it is drawn anew for each answer.
const BOUNDARY: &str = "bivouac";

const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// A request to read, without its body.
pub struct Reading {
    /// GET or HEAD.
    pub method: Method,
    /// What it names.
    pub target: Target,
    /// Its parameters.
    pub query: Option<String>,
    /// Its headers.
    pub headers: HeaderMap,
    /// `https` or `http`.
    pub scheme: &'static str,
    /// Who waits for the answer.
    pub asker: Asker,
}

impl Reading {
    fn text(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Answers it. This may block, unless the thread [may not](crate::at_once).
///
/// # Errors
/// Why not.
pub fn read(
    tree: &Arc<Tree>,
    access: &Access,
    own: &Announced,
    request: &Reading,
) -> Result<Response<Body>, Refusal> {
    match tree.open(access, &request.target)? {
        Node::Dir(_) if !request.target.is_dir => {
            let query = request.query.as_ref().map_or_else(String::new, |query| format!("?{query}"));
            // Names are encoded, so no header is made of them; and the first of several slashes names no host.
            let location = format!("{}/{query}", request.target.encoded());
            let location = HeaderValue::from_str(&location).map_err(|_| {
                Refusal::new(StatusCode::BAD_REQUEST, "the request's parameters make no sense")
            })?;
            Err(Refusal::new(StatusCode::MOVED_PERMANENTLY, "it is a directory")
                .with(header::LOCATION, location))
        }
        Node::Dir(attr) => list(tree, attr, request),
        Node::File(file) if has_parameter(request.query.as_deref(), "metalink") => {
            described(tree, &file, (access, own), request)
        }
        Node::File(file) => send(tree, file, own, request),
    }
}

fn list(tree: &Arc<Tree>, attr: bivouac_client::Attr, request: &Reading) -> Result<Response<Body>, Refusal> {
    let is_json = has_parameter(request.query.as_deref(), "json")
        || request
            .text(header::ACCEPT)
            .split(',')
            .next()
            .is_some_and(|first| first.trim().starts_with("application/json"));
    let (form, kind) = match is_json {
        true => (Form::Json, "application/json"),
        false => (Form::Html, "text/html; charset=utf-8"),
    };
    let (first, listing) = Listing::begin(Arc::clone(tree), attr, &request.target, form)?;
    let body =
        if request.method == Method::HEAD { full(Bytes::new()) } else { pull(Some(first), listing, None) };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

fn described(
    tree: &Arc<Tree>,
    file: &OpenFile,
    (access, own): (&Access, &Announced),
    request: &Reading,
) -> Result<Response<Body>, Refusal> {
    check(&request.method, &request.headers, Some(&file.attr))?;
    let holders: Vec<u16> = file.holders()?.into_iter().map(|node| node.0).collect();
    let here = format!("{}://{}", request.scheme, request.text(header::HOST));
    let announced = announce::list(tree.client()?)?;
    let servers = servers(&announced, own, &here, &holders);
    let all: Vec<String> = announced.iter().map(|server| server.url.clone()).collect();
    let others = |sha256: &str| match access.prefix.names.is_empty() {
        true => known::sites(tree.client()?, sha256, file.attr.size, &all),
        // Who may see a part of the formation need not know who else has it.
        false => Ok(Vec::new()),
    };
    let text = metalink(file, &request.target, (&servers, &others), &request.asker)?;
    let mut response = Response::new(full(text.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/metalink4+xml"));
    Ok(response)
}

fn send(
    tree: &Arc<Tree>,
    file: OpenFile,
    own: &Announced,
    request: &Reading,
) -> Result<Response<Body>, Refusal> {
    let attr = file.attr;
    check(&request.method, &request.headers, Some(&attr))?;
    let ranges = match request.headers.get(header::RANGE).and_then(|value| value.to_str().ok()) {
        Some(range) if request.method == Method::GET && range_holds(&request.headers, &attr) => {
            wanted(range, attr.size)
        }
        _ => Wanted::All,
    };
    let mut headers = HeaderMap::new();
    describe(tree, &file, own, request, &mut headers)?;
    let kind = content_type(request.target.name().unwrap_or_default());
    let (status, mut left, range) = match ranges {
        Wanted::Nothing => {
            let range = number(format_args!("bytes */{}", attr.size))?;
            let refusal = Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "nothing of the range is there");
            return Err(refusal.with(header::CONTENT_RANGE, range));
        }
        Wanted::All => (StatusCode::OK, vec![Part::Range(0, attr.size)], Some((0, attr.size))),
        Wanted::Parts(parts) => match parts.as_slice() {
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
    left.retain(|part| !matches!(part, Part::Range(start, end) if start == end));
    left.reverse();
    let body =
        if request.method == Method::HEAD { full(Bytes::new()) } else { first_and_rest(file, left, len)? };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// A body whose first piece is read at once: most files are not longer.
pub fn first_and_rest(file: OpenFile, left: Vec<Part>, len: u64) -> Result<Body, Refusal> {
    use crate::body::Producer as _;
    let mut sent = Sent::new(file, left);
    if sent.is_done() {
        return Ok(full(Bytes::new()));
    }
    let first = sent.produce().map_err(|error| {
        if at_once::may_not_wait() {
            return Refusal::from(at_once::not_at_hand());
        }
        log::error!(why:% = error; "a file could not be read");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the formation could not read it; see: bivouac logs")
    })?;
    Ok(if sent.is_done() { full(first) } else { pull(Some(first), sent, Some(len)) })
}

/// The parts of an answer with several ranges.
fn several(
    parts: &[(u64, u64)],
    kind: &str,
    size: u64,
    headers: &mut HeaderMap,
) -> Result<Vec<Part>, Refusal> {
    let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "there are no random numbers");
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

/// What is said of a file whatever part of it is sent.
fn describe(
    tree: &Arc<Tree>,
    file: &OpenFile,
    own: &Announced,
    request: &Reading,
    headers: &mut HeaderMap,
) -> Result<(), Refusal> {
    validators(&file.attr, headers);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
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
    request: &Reading,
    headers: &mut HeaderMap,
) -> Result<(), Refusal> {
    if digests::is_wanted(request.text("want-repr-digest")) {
        headers
            .insert(REPR_DIGEST, number(format_args!("{}", file.digest_of_all(&request.asker)?.header()))?);
    }
    let Some((start, end)) = range.filter(|_| digests::is_wanted(request.text("want-content-digest"))) else {
        return Ok(());
    };
    let is_all = (start, end) == (0, file.attr.size);
    if is_all || end - start <= DIGEST_MAX {
        let digest = if is_all {
            file.digest_of_all(&request.asker)?
        } else {
            file.digest((start, end), None, &request.asker)?.0
        };
        headers.insert(CONTENT_DIGEST, number(format_args!("{}", digest.header()))?);
    }
    Ok(())
}

fn joined(nodes: &[u16]) -> String {
    nodes.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

fn number(text: std::fmt::Arguments<'_>) -> Result<HeaderValue, Refusal> {
    HeaderValue::from_str(&text.to_string())
        .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the request's host or path makes no header"))
}

/// By the ending of a name.
pub fn content_type(name: &[u8]) -> &'static str {
    const TYPES: [(&str, &str); 22] = [
        ("txt", "text/plain; charset=utf-8"),
        ("log", "text/plain; charset=utf-8"),
        ("out", "text/plain; charset=utf-8"),
        ("md", "text/plain; charset=utf-8"),
        ("csv", "text/csv; charset=utf-8"),
        ("html", "text/html; charset=utf-8"),
        ("htm", "text/html; charset=utf-8"),
        ("css", "text/css; charset=utf-8"),
        ("js", "text/javascript; charset=utf-8"),
        ("json", "application/json"),
        ("xml", "application/xml"),
        ("pdf", "application/pdf"),
        ("png", "image/png"),
        ("jpg", "image/jpeg"),
        ("jpeg", "image/jpeg"),
        ("gif", "image/gif"),
        ("svg", "image/svg+xml"),
        ("mp4", "video/mp4"),
        ("gz", "application/gzip"),
        ("zip", "application/zip"),
        ("tar", "application/x-tar"),
        ("h5", "application/x-hdf5"),
    ];
    let ending = name.rsplit(|byte| *byte == b'.').next().filter(|ending| ending.len() < name.len());
    let known =
        TYPES.iter().find(|(known, _)| ending.is_some_and(|e| e.eq_ignore_ascii_case(known.as_bytes())));
    known.map_or("application/octet-stream", |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_go_by_the_ending() {
        assert_eq!(content_type(b"a.b.JSON"), "application/json");
        for plain in ["json", "a.", "a.unknown", ""] {
            assert_eq!(content_type(plain.as_bytes()), "application/octet-stream", "{plain}");
        }
    }
}
