//! DELETE and MKCOL.

use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, ExpectedFile};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::writing::{WriteRequest, text};
use crate::body::{Body, empty, typed};
use crate::conditions;
use crate::error_response::{ErrorResponse, no_parent};
use crate::locks::{self, ChangeScope};
use crate::removal::RemovalError;
use crate::request_path::RequestPath;
use crate::tree::Tree;
use crate::xml;

/// Carries out a DELETE. This may block.
pub fn delete(tree: &Arc<Tree>, writing: &WriteRequest) -> Result<Response<Body>, ErrorResponse> {
    let WriteRequest { access, target, headers, .. } = writing;
    if let Some(id) = writing.upload_id()? {
        tree.discard_upload(access, target, id)?;
        return Ok(empty(StatusCode::NO_CONTENT));
    }
    let locks = writing.check_locks(tree, ChangeScope::Tree)?;
    let says_state = writing.guard.says_state(target, headers);
    let check = |found: &Attr| {
        conditions::check(&Method::DELETE, headers, Some(found))?;
        let compares = says_state || conditions::compares_content(headers);
        // The home compares once more: until then the file may change.
        Ok(compares.then_some(ExpectedFile { ino: found.ino, data_version: Some(found.data_version) }))
    };
    if writing.removes_all()? {
        if let Err(stopped) = remove_whole(tree, writing, check)? {
            return partly(target, stopped);
        }
    } else {
        tree.remove::<ErrorResponse>(access, target, check).map_err(|refusal| match refusal.status() {
            StatusCode::CONFLICT => ErrorResponse::new(
                StatusCode::CONFLICT,
                "the directory is not empty, or has what a killed server has left in it, which is not listed; \
                 by a path with a slash at its end it is removed with all that is in it",
            ),
            _ => refusal,
        })?;
    }
    locks::forget(tree, &locks, target)?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// Removes what is at a path with all that is in it, if a condition holds; for what is no directory, until it is gone.
fn remove_whole(
    tree: &Tree,
    writing: &WriteRequest,
    check: impl Fn(&Attr) -> Result<Option<ExpectedFile>, ErrorResponse>,
) -> Result<Result<(), RemovalError>, ErrorResponse> {
    let (place, _) = tree.to_remove(&writing.access, &writing.target)?;
    let alone = tree.names.of(&place).lock();
    let dir = tree.remove_file::<ErrorResponse>(&place, check)?;
    // Not held while a tree is removed, which may take hours.
    drop(alone);
    Ok(dir.map_or(Ok(()), |dir| tree.remove_all_for(&writing.cancellation, &place, dir)))
}

/// Returns the response to a removal that failed below a directory.
fn partly(target: &RequestPath, stopped: RemovalError) -> Result<Response<Body>, ErrorResponse> {
    let mut below = RequestPath { is_dir: true, ..target.clone() };
    let is_top = stopped.below.is_empty();
    below.names.extend(stopped.below);
    let refusal = ErrorResponse::from(stopped.error);
    if is_top {
        return Err(refusal);
    }
    let status = xml::status(refusal.status());
    let text = format!(
        "{}<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{}</D:href><D:status>{status}</D:status></D:response>\
         </D:multistatus>\n",
        xml::HEAD,
        below.encoded()
    );
    Ok(typed(StatusCode::MULTI_STATUS, xml::KIND, text))
}

/// Carries out a MKCOL. This may block.
pub fn make_dir(tree: &Arc<Tree>, writing: &WriteRequest) -> Result<Response<Body>, ErrorResponse> {
    let WriteRequest { access, target, headers, .. } = writing;
    let target = RequestPath { is_dir: false, ..target.clone() };
    let is_empty = text(headers, header::CONTENT_LENGTH).is_none_or(|len| len.trim() == "0");
    if !is_empty || headers.contains_key(header::TRANSFER_ENCODING) {
        // Without permission to create it, the answer is 403 and not what is missing.
        tree.place(access, &target, true).map_err(no_parent)?;
        let text = "a directory is made without a body";
        return Err(ErrorResponse::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    writing.check_locks(tree, ChangeScope::Member)?;
    let made = tree.make_dir(access, &target);
    made.map_err(|error| match error.errno() {
        // As RFC 4918 (9.3.1) has them.
        Errno::EEXIST => {
            ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "something has that name already")
                .with(HeaderName::from_static("allow"), HeaderValue::from_static("GET, HEAD, PUT, DELETE"))
        }
        _ => no_parent(error),
    })?;
    Ok(empty(StatusCode::CREATED))
}
