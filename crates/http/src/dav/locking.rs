//! LOCK and UNLOCK.

use std::sync::Arc;

use bivouac_types::{Errno, FsResult};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::{bodies, props};
use crate::body::{Body, empty, typed};
use crate::dav_headers::{self, Depth};
use crate::error_response::{ErrorResponse, no_parent};
use crate::keys;
use crate::locks::{self, ChangeScope, Lock, LockConditions, RequestHead, locked};
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};
use crate::uploads::Replace;
use crate::xml;

/// Duration of a lock on a resource that is still to be created, in seconds.
const PENDING_S: u64 = 60;

const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");

/// Carries out a LOCK. Without a body, it is one that is there that is to last longer. This may block.
pub fn lock(
    tree: &Arc<Tree>,
    (access, target): (&Access, &RequestPath),
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response<Body>, ErrorResponse> {
    let seconds = dav_headers::timeout(headers)?;
    let asks = RequestHead { access, target, headers };
    if body.is_empty() {
        return refresh(tree, asks, seconds);
    }
    let info = bodies::lockinfo(body)?;
    let deep = match dav_headers::depth(headers)? {
        None | Some(Depth::Infinity) => true,
        Some(Depth::Zero) => false,
        Some(Depth::One) => {
            return Err(ErrorResponse::bad_request("a lock's Depth is 0 or infinity"));
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
        // Nobody has the token yet: if this server is killed now, the name is locked for a minute only.
        expires: keys::now() + if is_new { PENDING_S } else { seconds },
        pending: is_new,
    };
    if let Err(refusal) = locks::change(tree, |all, _| take(tree, all, &wanted)) {
        // It may have been stored all the same, and the client gets no token.
        if refusal.status().is_server_error()
            && let Err(left) = release(tree, &wanted)
        {
            log::warn!(why:% = left.text(); "a lock that nobody has the token of may be left");
        }
        return Err(refusal);
    }
    if is_new {
        match make_file(tree, asks).and_then(|()| settle(tree, &wanted)) {
            Ok(settled) => wanted = settled,
            Err(refusal) => {
                // The client gets no token, so nobody could unlock it.
                if let Err(left) = release(tree, &wanted) {
                    log::warn!(why:% = left.text(); "a lock that nobody has the token of is left for a minute");
                }
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

fn take(tree: &Tree, all: &mut Vec<Lock>, wanted: &Lock) -> Result<(), ErrorResponse> {
    // An earlier attempt of this change has been stored.
    if all.iter().any(|lock| lock.token == wanted.token) {
        return Ok(());
    }
    // Locks of what an application has removed are in nobody's way.
    while let Some(other) = locks::conflicts(all, wanted) {
        if !locks::is_gone(tree, other) {
            let href = if other.path.is_empty() { "/" } else { &other.path };
            return Err(ErrorResponse::xml(
                StatusCode::LOCKED,
                xml::error("no-conflicting-lock", Some(href)),
            ));
        }
        let token = other.token.clone();
        all.retain(|lock| lock.token != token);
    }
    if !locks::has_room(all, wanted) {
        let text =
            "there is no more room for locks of this key; try again when some have ended, or UNLOCK them";
        return Err(ErrorResponse::new(StatusCode::INSUFFICIENT_STORAGE, text));
    }
    all.push(wanted.clone());
    Ok(())
}

/// Makes a pending lock permanent after its resource has been created.
fn settle(tree: &Tree, lock: &Lock) -> Result<Lock, ErrorResponse> {
    locks::change(tree, |all, _| {
        let late = || {
            let text = "to make the file took so long that its lock has ended; lock it again";
            ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        let own = all.iter_mut().find(|other| other.token == lock.token).ok_or_else(late)?;
        (own.pending, own.expires) = (false, keys::now() + own.seconds);
        Ok(own.clone())
    })
}

/// Returns a random token, as a URN of a UUID.
fn token() -> Result<String, ErrorResponse> {
    let failed = |_| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "there are no random numbers");
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(failed)?;
    let bits = u128::from_be_bytes(bits);
    // Version 4, variant 1 (RFC 9562).
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    Ok(format!("urn:uuid:{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)))
}

/// Returns whether nothing exists at the path yet. LOCK then creates an empty file.
fn may_lock(tree: &Arc<Tree>, asks: RequestHead<'_>) -> Result<bool, ErrorResponse> {
    let guard = LockConditions::of(asks.headers)?;
    match tree.attr(asks.access, asks.target) {
        Ok(attr) => {
            tree.may_change(asks.access, &attr)?;
            // The table reports an existing lock.
            guard.check(tree, asks, &[])?;
            Ok(false)
        }
        Err(error) if error.errno() == Errno::ENOENT => {
            if asks.target.is_dir {
                return Err(ErrorResponse::new(
                    StatusCode::CONFLICT,
                    "a directory is made by MKCOL, and then locked",
                ));
            }
            tree.place(asks.access, asks.target, true).map_err(no_parent)?;
            guard.check(tree, asks, &[(asks.target, ChangeScope::Member)])?;
            Ok(true)
        }
        Err(error) => Err(error.into()),
    }
}

fn make_file(tree: &Arc<Tree>, asks: RequestHead<'_>) -> Result<(), ErrorResponse> {
    let made: FsResult<()> =
        tree.upload(asks.access, asks.target).and_then(|(upload, _)| upload.finish(Replace::Never).map(drop));
    match made {
        // Created by another request in the meantime; the lock holds for that file.
        Err(error) if error.errno() == Errno::EEXIST => Ok(()),
        made => made.map_err(no_parent),
    }
}

fn refresh(tree: &Arc<Tree>, asks: RequestHead<'_>, seconds: u64) -> Result<Response<Body>, ErrorResponse> {
    let guard = LockConditions::of(asks.headers)?;
    if asks.access.key.read_only {
        return Err(bivouac_types::FsError::from(Errno::EACCES).into());
    }
    guard.check(tree, asks, &[])?;
    let path = locks::path(asks.target);
    let lock = locks::change(tree, |all, _| {
        let own = |lock: &&mut Lock| {
            lock.covers(&path) && lock.key == asks.access.key.id && guard.tokens().contains(&lock.token)
        };
        let none = || {
            let text = "there is no such lock there, or not by this key: LOCK with a body, or If: (<TOKEN>)";
            ErrorResponse::new(StatusCode::PRECONDITION_FAILED, text)
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
    typed(status, xml::KIND, text)
}

fn release(tree: &Tree, lock: &Lock) -> Result<(), ErrorResponse> {
    locks::change(tree, |all, _| {
        all.retain(|other| other.token != lock.token);
        Ok(())
    })
}

/// Carries out an UNLOCK. A key for all of the formation ends locks of others, too. This may block.
pub fn unlock(
    tree: &Arc<Tree>,
    (access, target): (&Access, &RequestPath),
    headers: &HeaderMap,
) -> Result<Response<Body>, ErrorResponse> {
    let token = dav_headers::lock_token(headers)?;
    if access.key.read_only || target.below(&access.prefix).is_none() {
        return Err(bivouac_types::FsError::from(Errno::EACCES).into());
    }
    let path = locks::path(target);
    let may_all = access.prefix.names.is_empty();
    locks::change(tree, |all, was_made| {
        let Some(at) = all.iter().position(|lock| lock.token == token && lock.covers(&path)) else {
            // An earlier attempt of this change has removed it.
            if was_made {
                return Ok(());
            }
            let text = xml::error("lock-token-matches-request-uri", None);
            return Err(ErrorResponse::xml(StatusCode::CONFLICT, text));
        };
        if let Some(lock) = all.get(at).filter(|lock| !may_all && lock.key != access.key.id) {
            return Err(locked(lock));
        }
        all.remove(at);
        Ok(())
    })?;
    Ok(empty(StatusCode::NO_CONTENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_uuids_of_version_4() {
        let (first, second) = (token().unwrap(), token().unwrap());
        assert_ne!(first, second);
        let parts: Vec<&str> = first.strip_prefix("urn:uuid:").unwrap().split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{first}");
    }
}
