//! What a URL has that is no entry: a metalink of it where the server makes one, and else its bytes as they come.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::digest::{Digest, Hasher, piece_len};
use crate::error::{Cause, PublishError, PublishResult};
use crate::fetch::Watch;
use crate::manifest::Item;
use crate::metalink;
use crate::names::check;
use crate::target::{Target, split};
use crate::web::{Sent, Web, shown};

const METALINK: &str = "application/metalink4+xml";
const BUFFER: usize = 1 << 20;

/// What there is to be fetched at a URL.
#[derive(Debug)]
pub enum Plain {
    /// Files whose digests are known.
    Files(Vec<Item>),
    /// One file of which nothing is known but its name.
    Bytes {
        /// Where it is.
        url: Url,
        /// What it would be called.
        name: String,
    },
}

/// Looks what a server says of a URL.
///
/// # Errors
/// What the server says; [`Cause::Damaged`] for a metalink that is none.
pub fn look(url: &Url, web: &Web) -> PublishResult<Plain> {
    let is_named = [".meta4", ".metalink"].iter().any(|end| url.path().ends_with(end));
    if is_named {
        return metalink_at(url, web).map(Plain::Files);
    }
    let headers =
        vec![("want-repr-digest", "sha-256=1".to_owned()), ("accept-encoding", "identity".to_owned())];
    let mut answer = web.ask("HEAD", url, &Sent { headers, is_slow: true, ..Sent::default() })?;
    // A signature may be for GET alone; what is refused to both is said by the other.
    if matches!(answer.status, 401 | 403 | 405 | 501) {
        return Ok(Plain::Bytes { url: url.clone(), name: name_of(url)? });
    }
    if !(200..300).contains(&answer.status) {
        return Err(answer.refusal());
    }
    if answer.header("content-type").is_some_and(|kind| kind.starts_with(METALINK)) {
        return metalink_at(url, web).map(Plain::Files);
    }
    let links: Vec<&str> =
        answer.headers.get_all("link").iter().filter_map(|link| link.to_str().ok()).collect();
    if let Some(place) = links.iter().find_map(|link| described_by(link)) {
        let place = answer.url.join(place).ok().filter(|place| place.origin() == answer.url.origin());
        let place = place.map(|place| with_secret(&place, url));
        let mut items = place.map(|place| metalink_at(&place, web)).transpose()?.unwrap_or_default();
        // A server's own metalink is of this file, whatever it calls it.
        if let [item] = items.as_mut_slice() {
            item.name = name_of(url)?;
            for place in &mut item.urls {
                if let Ok(to) = Url::parse(place) {
                    *place = with_secret(&to, url).to_string();
                }
            }
            return Ok(Plain::Files(items));
        }
    }
    let size = answer.header("content-length").and_then(|size| size.parse::<u64>().ok());
    let digest = answer.header("repr-digest").and_then(said_digest);
    let (name, url) = (name_of(url)?, with_secret(&answer.url, url));
    match (size, digest) {
        (Some(size), Some(digest)) => {
            let urls = vec![url.to_string()];
            let (digest, pieces) = (Some(digest), Vec::new());
            Ok(Plain::Files(vec![Item { name, size, digest, piece_len: piece_len(size), pieces, urls }]))
        }
        _ => Ok(Plain::Bytes { url, name }),
    }
}

/// Where something else is of the same server, asked for with what the URL had in front of its host.
fn with_secret(to: &Url, from: &Url) -> Url {
    let mut url = to.clone();
    if to.origin() == from.origin() {
        let _has_a_host = url.set_username(from.username()).and_then(|()| url.set_password(from.password()));
    }
    url
}

fn metalink_at(url: &Url, web: &Web) -> PublishResult<Vec<Item>> {
    let mut answer = web.ask("GET", url, &Sent { is_slow: true, ..Sent::default() })?;
    if answer.status != 200 {
        return Err(answer.refusal());
    }
    let text = answer.text(metalink::TEXT_MAX)?;
    metalink::decode(&text)
        .map_err(|why| PublishError::new(Cause::Damaged, format_args!("{}: {why}", shown(url))))
}

/// Where the metalink is that a `Link` header (RFC 6249) names.
fn described_by(link: &str) -> Option<&str> {
    let (place, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    (rest.contains("rel=describedby") && rest.contains(METALINK)).then_some(place)
}

/// The SHA-256 that a `Repr-Digest` (RFC 9530) says.
fn said_digest(header: &str) -> Option<Digest> {
    let value =
        header.split(',').find_map(|entry| entry.trim().strip_prefix("sha-256=:")?.strip_suffix(':'))?;
    Some(Digest(STANDARD.decode(value).ok()?.try_into().ok()?))
}

fn name_of(url: &Url) -> PublishResult<String> {
    let last = url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
    let name = percent_decode_str(last).decode_utf8().map(|name| name.into_owned()).unwrap_or_default();
    match check(&name) {
        Ok(()) if !name.contains('/') => Ok(name),
        _ => {
            let text = format!("{}: does not end in the name of a file; say how to call it: DST", shown(url));
            Err(PublishError::new(Cause::Usage, text))
        }
    }
}

/// Fetches bytes that nothing is known of, from the first to the last. How many, and their digest, which nobody has
/// compared with anything.
///
/// # Errors
/// [`Cause::Exists`] if something is there, [`Cause::Unreachable`] if the connection broke off: a server that says no
/// digests is asked again from the beginning.
pub fn fetch_plain(
    url: &Url,
    to: &Path,
    force: bool,
    web: &Web,
    watch: &dyn Watch,
    cancel: &AtomicBool,
) -> PublishResult<(u64, Digest)> {
    let (dir, name) = split(to)?;
    let spot = Target::open(&dir)?.spot(&name, &Digest::of(url.as_str().as_bytes()))?;
    if spot.existing()?.is_some() && !force {
        let text = format!(
            "{}: is there, and nothing tells whether it is the same; --force replaces it",
            to.display()
        );
        return Err(PublishError::new(Cause::Exists, text));
    }
    let headers = vec![("accept-encoding", "identity".to_owned())];
    let mut answer = web.ask("GET", url, &Sent { headers, ..Sent::default() })?;
    if answer.status != 200 {
        return Err(answer.refusal());
    }
    let size = answer.header("content-length").and_then(|size| size.parse::<u64>().ok());
    watch.found(1, size.unwrap_or(0));
    let mut file = spot.partial()?;
    let failed = |error: std::io::Error| PublishError::system(to.display(), &error);
    file.set_len(0).map_err(failed)?;
    let (mut reader, mut buffer, mut done, mut hasher) = (answer.reader(), vec![0; BUFFER], 0, Hasher::new());
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(PublishError::new(Cause::Interrupted, "interrupted"));
        }
        let read = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broke_off(url, &error.to_string())),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        file.write_all(bytes).map_err(failed)?;
        hasher.add(bytes);
        done += read as u64;
        watch.moved(read as u64);
    }
    drop(reader);
    if size.is_some_and(|size| size != done) {
        return Err(broke_off(url, "the connection broke off"));
    }
    spot.commit(&file, force)?;
    watch.file_done(&name);
    Ok((done, hasher.end()))
}

fn broke_off(url: &Url, why: &str) -> PublishError {
    PublishError::new(Cause::Unreachable, format_args!("{}: {why}; try again", shown(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read() {
        let link = "</a?metalink>; rel=describedby; type=\"application/metalink4+xml\"";
        assert_eq!(described_by(link), Some("/a?metalink"));
        for other in ["", "<", "</a>; rel=duplicate", "</a>; rel=describedby; type=\"text/html\""] {
            assert_eq!(described_by(other), None, "{other}");
        }
        let digest = "md5=:AA==:, sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
        assert_eq!(said_digest(digest), Some(Digest::of(b"abc")));
        assert_eq!((said_digest("sha-256=:AA==:"), said_digest("sha-256=x")), (None, None));
    }

    #[test]
    fn names_come_from_urls_and_lead_nowhere() {
        let name = |text: &str| name_of(&Url::parse(text).unwrap()).map_err(|error| error.cause());
        assert_eq!(name("http://h/a/b%20c?x"), Ok("b c".to_owned()));
        for wrong in ["http://h/", "http://h/a/", "http://h/a%2Fb", "http://h/%00", "http://h/a%0Ab"] {
            assert_eq!(name(wrong), Err(Cause::Usage), "{wrong}");
        }
    }
}
