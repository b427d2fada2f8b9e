//! Links that users of the page share: keys that only read one file or directory. Each ends by itself, ends with the
//! key that it was made with, and reaches nothing that the other does not. A key that was made like this makes no
//! others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_types::{Errno, FsResult, mode};
use hyper::{Method, StatusCode, header};
use serde_json::{Value, json};

use super::asked::target;
use crate::error_response::ErrorResponse;
use crate::keys::{self, Deriver, Key};
use crate::query::value;
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};

/// Name of this part below the page's path.
pub const NAME: &str = "shares.json";

/// Maximum number of links of one key: all keys are attributes of one directory.
const SHARES_MAX: usize = 64;
/// Minimum and maximum lifetime of a link, in seconds.
const SHORTEST_S: u64 = 60;
const LONGEST_S: u64 = 366 * 24 * 3600;
/// Maximum time for which other servers still accept an ended link, twice what they cache keys for.
const FORGOTTEN: Duration = keys::CACHED.saturating_mul(2);

/// Returns whether links can be made with a key.
pub fn may_share(key: &Key) -> bool {
    key.made_by.is_none()
}

/// Tells the links of a key, makes one (PUT, `path` and `seconds`; no page of another place can have a
/// browser send that), or ends one (DELETE, `id`).
pub fn answer(
    tree: &Arc<Tree>,
    deriver: &Deriver,
    access: &Access,
    (method, query): (&Method, Option<&str>),
) -> Result<Value, ErrorResponse> {
    match *method {
        Method::GET | Method::HEAD => {
            let own = own(tree, access)?;
            let shares: Vec<Value> = own.iter().map(|key| shown(tree, deriver, access, key)).collect();
            Ok(json!({ "shares": shares }))
        }
        Method::PUT => make(tree, deriver, access, query),
        Method::DELETE => end(tree, access, query),
        _ => {
            let refusal =
                ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "links are listed, made and ended");
            Err(refusal.with(header::ALLOW, header::HeaderValue::from_static("GET, HEAD, PUT, DELETE")))
        }
    }
}

/// Returns the links that were made with a key and have not ended; what ends first is first.
fn own(tree: &Tree, access: &Access) -> Result<Vec<Key>, ErrorResponse> {
    let now = keys::now();
    let mut own = keys::list(tree.client()?)?;
    own.retain(|key| is_by(key, access) && !key.has_expired(now));
    own.sort_by_key(|key| key.expires);
    Ok(own)
}

fn is_by(key: &Key, access: &Access) -> bool {
    key.made_by.as_ref() == Some(&access.key.id)
}

/// Returns a link as the page shows it. What it was for may be gone, and may come again.
fn shown(tree: &Tree, deriver: &Deriver, access: &Access, key: &Key) -> Value {
    let mut target = RequestPath::plain(key.path.as_bytes()).unwrap_or_default();
    let attr = tree.beneath(access, &target);
    target.is_dir = attr.as_ref().is_ok_and(bivouac_client::Attr::is_dir);
    json!({
        "id": key.id,
        "path": String::from_utf8_lossy(&target.path()),
        "href": target.encoded(),
        "key": deriver.key(&key.id),
        "created": key.created,
        "expires": key.expires,
        "gone": attr.is_err_and(|error| matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR)),
    })
}

fn make(
    tree: &Arc<Tree>,
    deriver: &Deriver,
    access: &Access,
    query: Option<&str>,
) -> Result<Value, ErrorResponse> {
    if !may_share(&access.key) {
        let text = "you came by a shared link, and with that none is made: pass on the link that you have, or ask \
                    whoever gave it to you for another one";
        return Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
    }
    let wrong = |text: String| ErrorResponse::bad_request(text);
    let seconds = value(query, "seconds")?.and_then(|seconds| seconds.parse::<u64>().ok());
    let seconds = seconds
        .filter(|seconds| (SHORTEST_S..=LONGEST_S).contains(seconds))
        .ok_or_else(|| wrong(format!("seconds is a number from {SHORTEST_S} to {LONGEST_S}")))?;
    let target = target(query, "path")?;
    if target.names.is_empty() {
        let text =
            "a link is for a file or directory; a key for the whole formation is made by: bivouac key create";
        return Err(wrong(text.to_owned()));
    }
    let attr = tree.beneath(access, &target)?;
    if attr.mode & mode::TYPE == mode::LINK {
        return Err(wrong("it is a symbolic link: share what it leads to".to_owned()));
    }
    // A link must not give more access than its creator has.
    tree.open(access, &target)?;
    let path = String::from_utf8(RequestPath { is_dir: false, ..target }.path())
        .map_err(|_| wrong("its path is no UTF-8, so no key can be for it: rename it".to_owned()))?;
    let (client, now) = (tree.client()?, keys::now());
    let all = keys::list(client)?;
    // Expired links are removed here, because nothing else does it.
    let mut ended = all.iter().filter(|key| key.made_by.is_some() && key.has_expired(now));
    ended.try_for_each(|key| revoke(tree, key))?;
    let count = |all: &[Key]| all.iter().filter(|key| is_by(key, access) && !key.has_expired(now)).count();
    let too_many = || {
        let text = format!("your key has {SHARES_MAX} links already: end one of them first");
        ErrorResponse::new(StatusCode::CONFLICT, text)
    };
    if count(&all) >= SHARES_MAX {
        return Err(too_many());
    }
    let end = now.saturating_add(seconds);
    let wanted = Key {
        id: String::new(),
        path,
        read_only: true,
        created: now,
        // It ends with that key in any case, and the page shows when.
        expires: Some(access.key.expires.map_or(end, |own| own.min(end))),
        link: false,
        made_by: Some(access.key.id.clone()),
    };
    let change = tree.member().change()?;
    let made = keys::create(client, &change.ctx, &wanted)?;
    // Other requests, also of other servers, may have made some since the count.
    if count(&keys::list(client)?) > SHARES_MAX {
        revoke(tree, &made)?;
        return Err(too_many());
    }
    Ok(shown(tree, deriver, access, &made))
}

/// Revokes a key, unless it has been revoked already.
fn revoke(tree: &Tree, key: &Key) -> FsResult<()> {
    let change = tree.member().change()?;
    match keys::revoke(tree.client()?, &change.ctx, &key.id) {
        Err(error) if error.errno() != Errno::ENODATA => Err(error),
        _ => Ok(()),
    }
}

fn end(tree: &Tree, access: &Access, query: Option<&str>) -> Result<Value, ErrorResponse> {
    let id = value(query, "id")?.ok_or_else(|| ErrorResponse::bad_request("the parameter id is missing"))?;
    // Whether a key of somebody else has that id is not told.
    let found = keys::find(tree.client()?, &id, keys::now())?.filter(|key| is_by(key, access));
    let missing =
        || ErrorResponse::new(StatusCode::NOT_FOUND, "your key has no such link; it may have ended");
    let key = found.ok_or_else(missing)?;
    revoke(tree, &key)?;
    // Other servers may still accept the key for as long as they cache it.
    let begun = Instant::now();
    while let Some(rest) = FORGOTTEN.checked_sub(begun.elapsed()) {
        std::thread::park_timeout(rest);
    }
    Ok(json!({ "ended": key.id }))
}
