//! PROPFIND: properties of a file, or of a directory and what is in it. Directories are read and sent piece by piece,
//! however large they are.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError, FsResult, StatFs, mode};
use bytes::Bytes;
use hyper::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};

use super::bodies::{self, RequestedProperties};
use super::props::{self, LiveProperties};
use crate::body::{Body, BodySource, full, pull};
use crate::dav_headers::{self, Depth};
use crate::dead_properties;
use crate::error_response::ErrorResponse;
use crate::locks::{self, Lock};
use crate::request_path::{RequestPath, is_reserved};
use crate::tree::{Access, ListedEntry, READ, Tree};
use crate::xml::{self, DAV, Name};

/// A request.
pub struct PropfindRequest {
    pub access: Access,
    pub target: RequestPath,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Carries it out. This may block.
pub fn find(tree: &Arc<Tree>, finding: PropfindRequest) -> Result<Response<Body>, ErrorResponse> {
    let PropfindRequest { access, target, headers, body } = finding;
    let depth = dav_headers::depth(&headers)?.unwrap_or(Depth::Infinity);
    // A server may refuse it (RFC 4918, 9.1): the answer would be as large as the formation.
    if depth == Depth::Infinity {
        return Err(ErrorResponse::xml(StatusCode::FORBIDDEN, xml::error("propfind-finite-depth", None)));
    }
    let wanted = bodies::propfind(&body)?;
    let attr = tree.attr(&access, &target)?;
    let has_entries = depth == Depth::One && attr.is_dir();
    if has_entries {
        tree.may(&attr, READ)?;
    }
    let space = match wants_space(&wanted) && attr.is_dir() {
        true => Some(tree.client()?.homes.statfs(attr.ino)?),
        false => None,
    };
    let found = PropfindAnswer {
        tree: Arc::clone(tree),
        access,
        dir: attr,
        target,
        wanted,
        space,
        locks: locks::all(tree)?,
        cookie: 0,
        read: VecDeque::new(),
        done: !has_entries,
    };
    let first = found.first()?;
    let mut response = Response::new(if has_entries { pull(Some(first), found, None) } else { full(first) });
    *response.status_mut() = StatusCode::MULTI_STATUS;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(xml::KIND));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn wants_space(wanted: &RequestedProperties) -> bool {
    let (RequestedProperties::These(names) | RequestedProperties::All(names)) = wanted else { return false };
    names.iter().any(|name| name.space == DAV && name.local.starts_with("quota-"))
}

/// About how much of an answer is made at a time, in bytes.
const PIECE: usize = 256 << 10;

/// A PROPFIND response in progress.
struct PropfindAnswer {
    tree: Arc<Tree>,
    access: Access,
    dir: Attr,
    target: RequestPath,
    wanted: RequestedProperties,
    space: Option<StatFs>,
    locks: Vec<Lock>,
    cookie: u64,
    /// Entries that have been read and not sent.
    read: VecDeque<ListedEntry>,
    done: bool,
}

impl PropfindAnswer {
    /// Returns the beginning, with what the request names.
    fn first(&self) -> FsResult<Bytes> {
        let mut text = format!("{}<D:multistatus xmlns:D=\"DAV:\">\n", xml::HEAD);
        self.write(&self.target, &self.dir, &mut text)?;
        if self.done {
            text.push_str(END);
        }
        Ok(text.into())
    }

    fn write(&self, target: &RequestPath, attr: &Attr, text: &mut String) -> FsResult<()> {
        let target = RequestPath { is_dir: attr.is_dir(), ..target.clone() };
        let path = locks::path(&target);
        let covering: Vec<&Lock> = self.locks.iter().filter(|lock| lock.covers(&path)).collect();
        let name = target.name().unwrap_or_default();
        let thing = LiveProperties { name, attr, locks: &covering, space: self.space.as_ref() };
        let _to_a_text = write!(text, "<D:response><D:href>{}</D:href>", target.encoded());
        self.write_props(&thing, text)?;
        text.push_str("</D:response>\n");
        Ok(())
    }

    fn write_props(&self, thing: &LiveProperties<'_>, text: &mut String) -> FsResult<()> {
        let client = self.tree.client()?;
        let given = || match self.tree.may(thing.attr, READ) {
            // As in a mount, attributes require read permission.
            Err(_) => Ok(Vec::new()),
            Ok(()) => match dead_properties::read(client, thing.attr.ino) {
                Err(error) if error.errno() == Errno::ENOENT => Ok(Vec::new()),
                read => read,
            },
        };
        let (mut has, mut lacks) = (String::new(), String::new());
        match &self.wanted {
            RequestedProperties::Names => {
                thing.said().for_each(|local| has.push_str(&Name::dav(local).empty()));
                given()?.iter().for_each(|given| has.push_str(&given.name.empty()));
            }
            RequestedProperties::All(besides) => {
                for local in thing.said() {
                    thing.write(local, &mut has);
                }
                given()?.iter().for_each(|given| has.push_str(&given.element));
                // Those of other namespaces are there already, or not at all.
                let besides = besides.iter().filter(|name| name.space == DAV);
                for name in besides.filter(|name| !thing.said().any(|said| said == name.local)) {
                    thing.write(&name.local, &mut has);
                }
            }
            RequestedProperties::These(names) => {
                // Most clients request no dead properties, so they are read on request only.
                let given = if names.iter().all(props::is_live) { Vec::new() } else { given()? };
                for name in names {
                    let own = given.iter().find(|given| given.name == *name);
                    match own {
                        Some(own) => has.push_str(&own.element),
                        None if name.space == DAV && thing.write(&name.local, &mut has) => {}
                        None => lacks.push_str(&name.empty()),
                    }
                }
            }
        }
        // Each response has one propstat at least (RFC 4918, 14.24).
        if !has.is_empty() || lacks.is_empty() {
            write_status(&has, StatusCode::OK, text);
        }
        if !lacks.is_empty() {
            write_status(&lacks, StatusCode::NOT_FOUND, text);
        }
        Ok(())
    }

    /// Returns an entry as a client sees it: where a link leads, as far as it leads anywhere.
    fn behind(&self, attr: Attr, target: &RequestPath) -> Attr {
        if attr.mode & mode::TYPE != mode::LINK {
            return attr;
        }
        self.tree.attr(&self.access, target).unwrap_or(attr)
    }

    /// Writes an entry; one whose home does not answer with the status of that alone.
    fn write_entry(&self, target: &RequestPath, attr: FsResult<Attr>, text: &mut String) {
        let start = text.len();
        let written = attr.and_then(|attr| self.write(target, &self.behind(attr, target), text));
        if let Err(error) = written {
            text.truncate(start);
            write_failure(target, error, text);
        }
    }
}

const END: &str = "</D:multistatus>\n";

/// Writes the status of an entry whose properties could not be read. Entries that are gone are omitted.
fn write_failure(target: &RequestPath, error: FsError, text: &mut String) {
    if error.errno() == Errno::ENOENT {
        return;
    }
    log::warn!(error:%; "an entry is answered without properties");
    let status = xml::status(ErrorResponse::from(error).status());
    let href = target.encoded();
    let _to_a_text =
        writeln!(text, "<D:response><D:href>{href}</D:href><D:status>{status}</D:status></D:response>");
}

/// Properties with one status.
pub fn write_status(props: &str, status: StatusCode, text: &mut String) {
    let _to_a_text = write!(
        text,
        "<D:propstat><D:prop>{props}</D:prop><D:status>{}</D:status></D:propstat>",
        xml::status(status)
    );
}

impl BodySource for PropfindAnswer {
    fn produce(&mut self) -> io::Result<Bytes> {
        if self.read.is_empty() {
            let entries = self.tree.entries_there(self.dir.ino, self.cookie).map_err(io::Error::other)?;
            match entries.last() {
                Some(last) => self.cookie = last.entry.cookie,
                None => self.done = true,
            }
            self.read = entries.into();
        }
        let mut text = String::new();
        while text.len() < PIECE
            && let Some(ListedEntry { entry, attr }) = self.read.pop_front()
        {
            if is_reserved(&entry.name) {
                continue;
            }
            let mut target = RequestPath { is_dir: false, ..self.target.clone() };
            target.names.push(entry.name.clone());
            self.write_entry(&target, attr, &mut text);
        }
        if self.done {
            text.push_str(END);
        }
        Ok(text.into())
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_whose_home_does_not_answer_has_a_status_of_its_own() {
        let target = RequestPath::plain(b"d/a b").unwrap();
        let mut text = String::new();
        write_failure(&target, Errno::ENOENT.into(), &mut text);
        assert_eq!(text, "", "it is gone");
        write_failure(&target, Errno::ETIMEDOUT.into(), &mut text);
        assert!(text.starts_with("<D:response><D:href>/d/a%20b</D:href><D:status>HTTP/1.1 50"), "{text}");
    }
}
