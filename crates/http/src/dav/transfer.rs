//! COPY and MOVE.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError};
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};

use crate::body::{Body, empty};
use crate::cancellation::Cancellation;
use crate::conditions;
use crate::copying::CopyRequest;
use crate::dav_headers::{self, Depth};
use crate::error_response::{ErrorResponse, no_parent};
use crate::locks::{ChangeScope, Lock, LockConditions, RequestHead, forget};
use crate::placing::PlacementOutcome;
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};
use crate::tree_state::TreeState;

/// A request.
pub struct Transfer {
    pub access: Access,
    /// Source.
    pub from: RequestPath,
    /// Destination.
    pub to: RequestPath,
    pub headers: HeaderMap,
    /// True for COPY, false for MOVE.
    pub is_copy: bool,
    pub cancellation: Cancellation,
}

impl Transfer {
    /// Parses the transfer of a request.
    ///
    /// # Errors
    /// A description of what is malformed.
    pub fn new(
        method: &Method,
        (access, from): (Access, RequestPath),
        headers: HeaderMap,
    ) -> Result<Transfer, ErrorResponse> {
        let to = dav_headers::destination(&headers)?;
        let is_copy = method.as_str() == "COPY";
        let (from, to) = (named(from), named(to));
        let overlap = |text| Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
        if to == from {
            return overlap("the Destination is what is to go there");
        }
        // A directory without what is in it can be copied into itself.
        if to.below(&from).is_some() && (!is_copy || dav_headers::depth(&headers)? != Some(Depth::Zero)) {
            return overlap("the Destination is inside of what is to go there");
        }
        if from.below(&to).is_some() {
            return overlap(
                "what is to go there is inside of the Destination, and would be replaced with it",
            );
        }
        Ok(Transfer { access, from, to, headers, is_copy, cancellation: Cancellation::default() })
    }
}

/// Returns the path without its trailing slash.
fn named(target: RequestPath) -> RequestPath {
    RequestPath { is_dir: false, ..target }
}

/// Carries it out. This may block.
pub fn transfer(tree: &Arc<Tree>, transfer: &Transfer) -> Result<Response<Body>, ErrorResponse> {
    let Transfer { access, from, to, headers, is_copy, .. } = transfer;
    let replace = dav_headers::overwrite(headers)?;
    let depth = dav_headers::depth(headers)?.unwrap_or(Depth::Infinity);
    if depth == Depth::One || depth == Depth::Zero && !is_copy {
        let text = "what is moved is moved with all that is in it, and copied with that or without";
        return Err(ErrorResponse::bad_request(text));
    }
    let attr = if *is_copy { tree.attr(access, from)? } else { moved(tree, access, from)? };
    // As for a change: with 304 a client would take it for done.
    conditions::check(&Method::PUT, headers, Some(&attr))?;
    let all = check_locks(tree, transfer)?;
    let landed = match is_copy {
        true => copy_all(tree, transfer, (&attr, replace, depth == Depth::Infinity), |_| Ok(()))?,
        false => move_all(tree, transfer, (&attr, replace))?,
    };
    if !is_copy {
        forget(tree, &all, from)?;
    }
    // A replaced file keeps its lock: clients save by moving a new file over the old one.
    if landed == PlacementOutcome::OnTree {
        forget(tree, &all, to)?;
    }
    Ok(empty(if landed == PlacementOutcome::New { StatusCode::CREATED } else { StatusCode::NO_CONTENT }))
}

/// Returns the object to move: a link itself, not its target.
fn moved(tree: &Tree, access: &Access, from: &RequestPath) -> Result<Attr, ErrorResponse> {
    let place = tree.place(access, from, false)?;
    Ok(tree.at(&place)?.ok_or_else(|| FsError::from(Errno::ENOENT))?)
}

/// Checks locks at source and destination; a replaced directory may contain locks.
fn check_locks(tree: &Arc<Tree>, transfer: &Transfer) -> Result<Vec<Lock>, ErrorResponse> {
    let Transfer { access, from, to, headers, is_copy, .. } = transfer;
    let is_there = match tree.place(access, to, false).and_then(|place| tree.at(&place)) {
        Ok(found) => found,
        Err(error) => return Err(no_parent(error)),
    };
    let reach = match is_there {
        Some(found) if found.is_file() && *is_copy => ChangeScope::Content,
        _ => ChangeScope::Tree,
    };
    let mut changes = vec![(to, reach)];
    if !is_copy {
        changes.push((from, ChangeScope::Tree));
    }
    LockConditions::of(headers)?.check(tree, RequestHead { access, target: from, headers }, &changes)
}

/// Copies, and looks at locks again before what is copied gets its name: it may have taken long.
fn copy_all(
    tree: &Arc<Tree>,
    transfer: &Transfer,
    (attr, replace, deep): (&Attr, bool, bool),
    may_land: impl Fn(TreeState) -> Result<(), ErrorResponse>,
) -> Result<PlacementOutcome, ErrorResponse> {
    let why_not = RefCell::new(None);
    let ask = |copied| {
        let asked = check_locks(tree, transfer).and_then(|_| may_land(copied));
        // Below, errors are those of the formation: the refusal itself goes past it.
        asked.map_err(|refusal| {
            why_not.replace(Some(refusal));
            FsError::from(Errno::EBUSY)
        })
    };
    let remember = !transfer.is_copy;
    let copying = CopyRequest { deep, cancellation: &transfer.cancellation, remember, may_land: &ask };
    let landed = tree.copy_all((&transfer.access, attr), (&transfer.to, replace), &copying);
    match why_not.take() {
        Some(refusal) => Err(refusal),
        None => landed.map_err(refused),
    }
}

fn refused(error: FsError) -> ErrorResponse {
    match error.errno() {
        Errno::EEXIST => {
            ErrorResponse::new(StatusCode::PRECONDITION_FAILED, "something is at the Destination already")
        }
        Errno::EINVAL => {
            let text = "the Destination is what is to go there, or inside of that";
            ErrorResponse::new(StatusCode::FORBIDDEN, text)
        }
        _ => no_parent(error),
    }
}

fn move_all(
    tree: &Arc<Tree>,
    transfer: &Transfer,
    (attr, replace): (&Attr, bool),
) -> Result<PlacementOutcome, ErrorResponse> {
    let Transfer { access, from, to, .. } = transfer;
    let (source, target) = (tree.place(access, from, false)?, tree.place(access, to, false)?);
    match tree.put_in_place(&source, &target, replace) {
        Err(error) if error.errno() == Errno::EXDEV => {}
        landed => return landed.map_err(refused),
    }
    // Between partitions files are copied; and only what was copied is removed.
    // Asked before, as the copy would be for nothing.
    tree.may_remove(attr)?;
    let changed = |text| ErrorResponse::new(StatusCode::CONFLICT, text);
    let was_copied = Cell::new(TreeState::default());
    let landed = copy_all(tree, transfer, (attr, replace, true), |copied| {
        let now = tree.at(&source)?.map(|top| tree.state(&top)).transpose()?;
        let is_as_it_was = now.as_ref() == Some(&copied);
        was_copied.set(copied);
        match is_as_it_was {
            true => Ok(()),
            false => Err(changed("what is to go there was changed while it was copied, so it has not moved")),
        }
    })?;
    match tree.remove_as_it_was(&source, attr.ino, &was_copied.take())? {
        true => Ok(landed),
        false => Err(changed(
            "what is to go there was changed while it went: it is where it was, and the Destination has a copy of what \
             it had been",
        )),
    }
}
