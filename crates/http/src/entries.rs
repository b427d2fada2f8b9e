//! DELETE and MKCOL.

use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};

use crate::body::{Body, full};
use crate::conditions;
use crate::dav::{self, Reach};
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::Tree;
use crate::trees::Stopped;
use crate::writing::{Writing, empty, text};

/// Carries out a DELETE. This may block.
///
/// # Errors
/// Why not.
pub fn delete(tree: &Arc<Tree>, writing: &Writing) -> Result<Response<Body>, Refusal> {
    let Writing { access, target, headers, .. } = writing;
    if let Some(id) = writing.upload_id()? {
        tree.discard_upload(access, target, id)?;
        return Ok(empty(StatusCode::NO_CONTENT));
    }
    let locks = writing.check_locks(tree, Reach::Tree)?;
    let check = |found: &Attr| conditions::check(&Method::DELETE, headers, Some(found));
    if writing.removes_all()? {
        if let Err(stopped) = remove_whole(tree, writing, check)? {
            return partly(target, stopped);
        }
    } else {
        tree.remove::<Refusal>(access, target, check).map_err(|refusal| match refusal.status() {
            StatusCode::CONFLICT => Refusal::new(
                StatusCode::CONFLICT,
                "the directory is not empty, or has what a killed server has left in it, which is not listed; \
                 by a path with a slash at its end it is removed with all that is in it",
            ),
            _ => refusal,
        })?;
    }
    dav::forget(tree, &locks, target)?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// Removes what is at a path with all that is in it, if a condition holds; for what is no directory, until it is gone.
fn remove_whole(
    tree: &Tree,
    writing: &Writing,
    check: impl Fn(&Attr) -> Result<(), Refusal>,
) -> Result<Result<(), Stopped>, Refusal> {
    let (place, _) = tree.to_remove(&writing.access, &writing.target)?;
    let alone = tree.names.of(&place).lock();
    let found = tree.at(&place)?.ok_or_else(|| FsError::from(Errno::ENOENT))?;
    check(&found)?;
    if !found.is_dir() {
        return Ok(tree.remove_all_for(&writing.asker, &place, found));
    }
    drop(alone);
    Ok(tree.remove_all_for(&writing.asker, &place, found))
}

/// That something below a directory could not be removed.
fn partly(target: &Target, stopped: Stopped) -> Result<Response<Body>, Refusal> {
    let mut below = Target { is_dir: true, ..target.clone() };
    let is_top = stopped.below.is_empty();
    below.names.extend(stopped.below);
    let refusal = Refusal::from(stopped.error);
    if is_top {
        return Err(refusal);
    }
    let status = dav::status(refusal.status());
    let text = format!(
        "{}<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{}</D:href><D:status>{status}</D:status></D:response>\
         </D:multistatus>\n",
        dav::HEAD,
        below.encoded()
    );
    let mut response = Response::new(full(Bytes::from(text)));
    *response.status_mut() = StatusCode::MULTI_STATUS;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(dav::KIND));
    Ok(response)
}

/// Carries out a MKCOL. This may block.
///
/// # Errors
/// Why not.
pub fn make_dir(tree: &Arc<Tree>, writing: &Writing) -> Result<Response<Body>, Refusal> {
    let Writing { access, target, headers, .. } = writing;
    let target = Target { is_dir: false, ..target.clone() };
    let is_empty = text(headers, header::CONTENT_LENGTH).is_none_or(|len| len.trim() == "0");
    if !is_empty || headers.contains_key(header::TRANSFER_ENCODING) {
        // Who may make none is told that, and not what it would need.
        tree.place(access, &target, true).map_err(dav::no_parent)?;
        let text = "a directory is made without a body";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    writing.check_locks(tree, Reach::Member)?;
    let made = tree.make_dir(access, &target);
    made.map_err(|error| match error.errno() {
        // As RFC 4918 (9.3.1) has them.
        Errno::EEXIST => Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "something has that name already")
            .with(HeaderName::from_static("allow"), HeaderValue::from_static("GET, HEAD, PUT, DELETE")),
        _ => dav::no_parent(error),
    })?;
    Ok(empty(StatusCode::CREATED))
}
