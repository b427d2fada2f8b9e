//! LOCK and UNLOCK.

use std::sync::Arc;

use bivouac_types::{Errno, FsResult};
use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::asked::{self, Depth};
use super::guard::{Asks, Guard, locked};
use super::locks::{self, Lock, Reach};
use super::xml;
use super::{kept, props};
use crate::body::{Body, full};
use crate::keys;
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::{Access, Tree};
use crate::uploads::Replace;

/// How long something is locked that is still to be made, in seconds.
const PENDING_S: u64 = 60;

const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");

/// Carries out a LOCK. Without a body, it is one that is there that is to last longer. This may block.
///
/// # Errors
/// Why not.
pub fn lock(
    tree: &Arc<Tree>,
    (access, target): (&Access, &Target),
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response<Body>, Refusal> {
    let seconds = asked::timeout(headers)?;
    let asks = Asks { access, target, headers };
    if body.is_empty() {
        return refresh(tree, asks, seconds);
    }
    let info = xml::lockinfo(body)?;
    let deep = match asked::depth(headers)? {
        None | Some(Depth::Infinity) => true,
        Some(Depth::Zero) => false,
        Some(Depth::One) => {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "a lock's Depth is 0 or infinity"));
        }
    };
    let is_new = may_lock(tree, asks)?;
    let mut wanted = Lock {
        token: token()?,
        path: locks::path(target),
        deep,
        exclusive: info.exclusive,
        owner: info.owner,
        key: access.key.id.clone(),
        seconds,
        expires: keys::now() + if is_new { PENDING_S } else { seconds },
        pending: is_new,
    };
    kept::change(tree, |all, _| take(tree, all, &wanted))?;
    if is_new {
        match make_file(tree, asks).and_then(|()| settle(tree, &wanted)) {
            Ok(settled) => wanted = settled,
            Err(refusal) => {
                release(tree, &wanted)?;
                return Err(refusal);
            }
        }
    }
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = answer(status, &wanted);
    if let Ok(value) = HeaderValue::from_str(&format!("<{}>", wanted.token)) {
        response.headers_mut().insert(LOCK_TOKEN, value);
    }
    Ok(response)
}

fn take(tree: &Tree, all: &mut Vec<Lock>, wanted: &Lock) -> Result<(), Refusal> {
    if all.iter().any(|lock| lock.token == wanted.token) {
        return Ok(());
    }
    while let Some(other) = locks::conflicts(all, wanted) {
        if !is_gone(tree, other) {
            let href = if other.path.is_empty() { "/" } else { &other.path };
            return Err(Refusal::xml(StatusCode::LOCKED, xml::error("no-conflicting-lock", Some(href))));
        }
        let token = other.token.clone();
        all.retain(|lock| lock.token != token);
    }
    if !kept::has_room(all, wanted) {
        let text =
            "there is no more room for locks of this key; try again when some have ended, or UNLOCK them";
        return Err(Refusal::new(StatusCode::INSUFFICIENT_STORAGE, text));
    }
    all.push(wanted.clone());
    Ok(())
}

/// What was locked to be made is there: from now on the lock is one like any other.
fn settle(tree: &Tree, lock: &Lock) -> Result<Lock, Refusal> {
    kept::change(tree, |all, _| {
        let late = || {
            let text = "to make the file took so long that its lock has ended; lock it again";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        let own = all.iter_mut().find(|other| other.token == lock.token).ok_or_else(late)?;
        (own.pending, own.expires) = (false, keys::now() + own.seconds);
        Ok(own.clone())
    })
}

/// Whether there is nothing any more where something was locked: a program has removed it, and nobody finds the lock.
fn is_gone(tree: &Tree, lock: &Lock) -> bool {
    let Ok(target) = Target::parse(&format!("/{}", lock.path)) else { return false };
    let found = tree.client().and_then(|client| client.find(&target.path(), true));
    !lock.pending && found.is_err_and(|error| matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR))
}

/// Ends a lock if there is nothing any more where it is. Whether it has ended.
///
/// # Errors
/// As [`kept::change`].
pub fn end_if_gone(tree: &Tree, lock: &Lock) -> Result<bool, Refusal> {
    if !is_gone(tree, lock) {
        return Ok(false);
    }
    kept::change(tree, |all, _| {
        let Some(at) = all.iter().position(|other| other.token == lock.token) else { return Ok(true) };
        let is_gone = is_gone(tree, lock);
        if is_gone {
            all.remove(at);
        }
        Ok(is_gone)
    })
}

/// A token that nobody guesses, as a URN of a UUID.
fn token() -> Result<String, Refusal> {
    let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "there are no random numbers");
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(failed)?;
    let bits = u128::from_be_bytes(bits);
    // Version 4, of the variant that the standard describes.
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    Ok(format!("urn:uuid:{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)))
}

/// Whether there is nothing at the path yet. Then it is made, empty, when it is locked.
fn may_lock(tree: &Arc<Tree>, asks: Asks<'_>) -> Result<bool, Refusal> {
    let guard = Guard::of(asks.headers)?;
    match tree.attr(asks.access, asks.target) {
        Ok(attr) => {
            tree.may_change(asks.access, &attr)?;
            // What is locked already is told by the table.
            guard.check(tree, asks, &[])?;
            Ok(false)
        }
        Err(error) if error.errno() == Errno::ENOENT => {
            if asks.target.is_dir {
                return Err(Refusal::new(
                    StatusCode::CONFLICT,
                    "a directory is made by MKCOL, and then locked",
                ));
            }
            tree.place(asks.access, asks.target, true).map_err(no_parent)?;
            guard.check(tree, asks, &[(asks.target, Reach::Member)])?;
            Ok(true)
        }
        Err(error) => Err(error.into()),
    }
}

/// Where the directory is missing that something would be in.
pub fn no_parent(error: bivouac_types::FsError) -> Refusal {
    match error.errno() {
        Errno::ENOENT | Errno::ENOTDIR => {
            Refusal::new(StatusCode::CONFLICT, "the directory that it would be in is not there")
        }
        _ => error.into(),
    }
}

fn make_file(tree: &Arc<Tree>, asks: Asks<'_>) -> Result<(), Refusal> {
    let made: FsResult<()> =
        tree.upload(asks.access, asks.target).and_then(|(upload, _)| upload.finish(Replace::Never).map(drop));
    match made {
        // Somebody else was faster; it is locked all the same.
        Err(error) if error.errno() == Errno::EEXIST => Ok(()),
        made => made.map_err(no_parent),
    }
}

fn refresh(tree: &Arc<Tree>, asks: Asks<'_>, seconds: u64) -> Result<Response<Body>, Refusal> {
    let guard = Guard::of(asks.headers)?;
    if asks.access.key.read_only {
        return Err(bivouac_types::FsError::from(Errno::EACCES).into());
    }
    guard.check(tree, asks, &[])?;
    let path = locks::path(asks.target);
    let lock = kept::change(tree, |all, _| {
        let own = |lock: &&mut Lock| {
            lock.covers(&path) && lock.key == asks.access.key.id && guard.tokens().contains(&lock.token)
        };
        let none = || {
            let text = "there is no such lock there, or not by this key: LOCK with a body, or If: (<TOKEN>)";
            Refusal::new(StatusCode::PRECONDITION_FAILED, text)
        };
        let lock = all.iter_mut().find(own).ok_or_else(none)?;
        (lock.seconds, lock.expires) = (seconds, keys::now() + seconds);
        Ok(lock.clone())
    })?;
    Ok(answer(StatusCode::OK, &lock))
}

fn answer(status: StatusCode, lock: &Lock) -> Response<Body> {
    let text = format!(
        "{}<D:prop xmlns:D=\"DAV:\"><D:lockdiscovery>{}</D:lockdiscovery></D:prop>\n",
        xml::HEAD,
        props::active(lock)
    );
    let mut response = Response::new(full(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(xml::KIND));
    response
}

fn release(tree: &Tree, lock: &Lock) -> Result<(), Refusal> {
    kept::change(tree, |all, _| {
        all.retain(|other| other.token != lock.token);
        Ok(())
    })
}

/// Carries out an UNLOCK. A key for all of the formation ends locks of others, too. This may block.
///
/// # Errors
/// Why not.
pub fn unlock(
    tree: &Arc<Tree>,
    (access, target): (&Access, &Target),
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    let token = asked::lock_token(headers)?;
    if access.key.read_only || target.below(&access.prefix).is_none() {
        return Err(bivouac_types::FsError::from(Errno::EACCES).into());
    }
    let path = locks::path(target);
    let may_all = access.prefix.names.is_empty();
    kept::change(tree, |all, was_made| {
        let Some(at) = all.iter().position(|lock| lock.token == token && lock.covers(&path)) else {
            if was_made {
                return Ok(());
            }
            let text = xml::error("lock-token-matches-request-uri", None);
            return Err(Refusal::xml(StatusCode::CONFLICT, text));
        };
        if let Some(lock) = all.get(at).filter(|lock| !may_all && lock.key != access.key.id) {
            return Err(locked(lock));
        }
        all.remove(at);
        Ok(())
    })?;
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

/// Ends those of some locks that are of what is not at a path any more, and below. One that was given since is of what
/// is there since.
///
/// # Errors
/// As [`kept::change`].
pub fn forget(tree: &Tree, seen: &[Lock], target: &Target) -> Result<(), Refusal> {
    let path = locks::path(target);
    if !seen.iter().any(|lock| lock.is_within(&path)) {
        return Ok(());
    }
    kept::change(tree, |all, _| {
        end_within(&path, seen, all);
        Ok(())
    })
}

fn end_within(path: &str, seen: &[Lock], all: &mut Vec<Lock>) {
    let was_seen = |lock: &Lock| seen.iter().any(|before| before.token == lock.token);
    all.retain(|lock| !(lock.is_within(path) && was_seen(lock)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_that_were_seen_end_with_what_is_removed() {
        let lock = |token: &str, path: &str| Lock {
            token: token.into(),
            path: path.into(),
            deep: false,
            exclusive: true,
            owner: String::new(),
            key: "K".into(),
            seconds: 60,
            expires: 100,
            pending: false,
        };
        let seen = [lock("a", "/d/f"), lock("b", "/x")];
        let mut all = vec![lock("a", "/d/f"), lock("b", "/x"), lock("c", "/d/f")];
        end_within("/d", &seen, &mut all);
        assert_eq!(all, [lock("b", "/x"), lock("c", "/d/f")]);
    }

    #[test]
    fn tokens_are_uuids_of_version_4() {
        let (first, second) = (token().unwrap(), token().unwrap());
        assert_ne!(first, second);
        let parts: Vec<&str> = first.strip_prefix("urn:uuid:").unwrap().split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{first}");
    }
}
