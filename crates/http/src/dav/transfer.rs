//! COPY and MOVE.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};

use super::asked::{self, Depth};
use super::guard::{Asks, Guard};
use super::locking::{forget, no_parent};
use super::locks::{Lock, Reach};
use crate::body::{Body, full};
use crate::conditions;
use crate::placing::{Landed, State};
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::{Access, Asker, Tree};
use crate::trees::Copying;

/// A request.
pub struct Transfer {
    pub access: Access,
    /// What goes.
    pub from: Target,
    /// Where to.
    pub to: Target,
    pub headers: HeaderMap,
    /// Whether it is copied.
    pub is_copy: bool,
    pub asker: Asker,
}

impl Transfer {
    /// Of a request.
    ///
    /// # Errors
    /// Why it makes no sense.
    pub fn new(
        method: &Method,
        (access, from): (Access, Target),
        headers: HeaderMap,
    ) -> Result<Transfer, Refusal> {
        let to = asked::destination(&headers)?;
        let is_copy = method.as_str() == "COPY";
        let (from, to) = (named(from), named(to));
        let overlap = |text| Err(Refusal::new(StatusCode::FORBIDDEN, text));
        if to == from {
            return overlap("the Destination is what is to go there");
        }
        if to.below(&from).is_some() && (!is_copy || asked::depth(&headers)? != Some(Depth::Zero)) {
            return overlap("the Destination is inside of what is to go there");
        }
        if from.below(&to).is_some() {
            return overlap(
                "what is to go there is inside of the Destination, and would be replaced with it",
            );
        }
        Ok(Transfer { access, from, to, headers, is_copy, asker: Asker::default() })
    }
}

/// What is at a path, with or without a slash.
fn named(target: Target) -> Target {
    Target { is_dir: false, ..target }
}

/// Carries it out. This may block.
///
/// # Errors
/// Why not.
pub fn transfer(tree: &Arc<Tree>, transfer: &Transfer) -> Result<Response<Body>, Refusal> {
    let Transfer { access, from, to, headers, is_copy, .. } = transfer;
    let replace = asked::overwrite(headers)?;
    let depth = asked::depth(headers)?.unwrap_or(Depth::Infinity);
    if depth == Depth::One || depth == Depth::Zero && !is_copy {
        let text = "what is moved is moved with all that is in it, and copied with that or without";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let attr = if *is_copy { tree.attr(access, from)? } else { moved(tree, access, from)? };
    conditions::check(&Method::PUT, headers, Some(&attr))?;
    let all = check_locks(tree, transfer)?;
    let landed = match is_copy {
        true => copy_all(tree, transfer, (&attr, replace, depth == Depth::Infinity), |_| Ok(()))?,
        false => move_all(tree, transfer, (&attr, replace))?,
    };
    if !is_copy {
        forget(tree, &all, from)?;
    }
    // A file that was replaced by a file is locked as it was: whoever saves so still has it.
    if landed == Landed::OnTree {
        forget(tree, &all, to)?;
    }
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = if landed == Landed::New { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
    Ok(response)
}

/// What is to be moved: a link itself, and not what it leads to.
fn moved(tree: &Tree, access: &Access, from: &Target) -> Result<Attr, Refusal> {
    let place = tree.place(access, from, false)?;
    Ok(tree.at(&place)?.ok_or_else(|| FsError::from(Errno::ENOENT))?)
}

/// What is replaced may be a directory, with locks in it.
fn check_locks(tree: &Arc<Tree>, transfer: &Transfer) -> Result<Vec<Lock>, Refusal> {
    let Transfer { access, from, to, headers, is_copy, .. } = transfer;
    let is_there = match tree.place(access, to, false).and_then(|place| tree.at(&place)) {
        Ok(found) => found,
        Err(error) => return Err(no_parent(error)),
    };
    let reach = match is_there {
        Some(found) if found.is_file() && *is_copy => Reach::Content,
        _ => Reach::Tree,
    };
    let mut changes = vec![(to, reach)];
    if !is_copy {
        changes.push((from, Reach::Tree));
    }
    Guard::of(headers)?.check(tree, Asks { access, target: from, headers }, &changes)
}

/// Copies, and looks at locks again before what is copied gets its name: it may have taken long.
fn copy_all(
    tree: &Arc<Tree>,
    transfer: &Transfer,
    (attr, replace, deep): (&Attr, bool, bool),
    may_land: impl Fn(State) -> Result<(), Refusal>,
) -> Result<Landed, Refusal> {
    let why_not = RefCell::new(None);
    let ask = |copied| {
        let asked = check_locks(tree, transfer).and_then(|_| may_land(copied));
        asked.map_err(|refusal| {
            why_not.replace(Some(refusal));
            FsError::from(Errno::EBUSY)
        })
    };
    let remember = !transfer.is_copy;
    let copying = Copying { deep, asker: &transfer.asker, remember, may_land: &ask };
    let landed = tree.copy_all((&transfer.access, attr), (&transfer.to, replace), &copying);
    match why_not.take() {
        Some(refusal) => Err(refusal),
        None => landed.map_err(refused),
    }
}

fn refused(error: FsError) -> Refusal {
    match error.errno() {
        Errno::EEXIST => {
            Refusal::new(StatusCode::PRECONDITION_FAILED, "something is at the Destination already")
        }
        Errno::EINVAL => {
            let text = "the Destination is what is to go there, or inside of that";
            Refusal::new(StatusCode::FORBIDDEN, text)
        }
        _ => no_parent(error),
    }
}

fn move_all(
    tree: &Arc<Tree>,
    transfer: &Transfer,
    (attr, replace): (&Attr, bool),
) -> Result<Landed, Refusal> {
    let Transfer { access, from, to, .. } = transfer;
    let (source, target) = (tree.place(access, from, false)?, tree.place(access, to, false)?);
    match tree.put_in_place(&source, &target, replace) {
        Err(error) if error.errno() == Errno::EXDEV => {}
        landed => return landed.map_err(refused),
    }
    // Between partitions files are copied; and only what was copied is removed.
    tree.may_remove(attr)?;
    let changed = |text| Refusal::new(StatusCode::CONFLICT, text);
    let was_copied = Cell::new(State::default());
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
