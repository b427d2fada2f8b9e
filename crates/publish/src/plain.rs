//! URLs that are no catalogue entries: their metalink if the server offers one, else their bytes.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bivouac_types::units::format_size;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::digest::{Digest, Hasher, piece_len};
use crate::error::{Cause, PublishError, PublishResult};
use crate::fetch::FetchObserver;
use crate::manifest::DataSetFile;
use crate::metalink;
use crate::names::check;
use crate::place::Location;
use crate::space::is_short;
use crate::target::{TargetDir, split};
use crate::web::{RequestOptions, Web, shown};

const METALINK: &str = "application/metalink4+xml";
const BUFFER: usize = 1 << 20;
/// Bytes of a body without a length after which it is looked again whether there is space.
const LOOK_EVERY: u64 = 32 << 20;

/// Content that a URL offers.
#[derive(Debug)]
pub enum UrlContent {
    /// Files with known digests.
    Files(Vec<DataSetFile>),
    /// A single file of which only the name is known.
    Bytes {
        /// Its URL.
        url: Url,
        /// Its name.
        name: String,
    },
}

/// Queries a URL.
///
/// # Errors
/// What the server says; [`Cause::Damaged`] for a metalink that is none.
pub fn look(url: &Url, web: &Web) -> PublishResult<UrlContent> {
    let is_named = [".meta4", ".metalink"].iter().any(|end| url.path().ends_with(end));
    if is_named {
        return metalink_at(url, web).map(UrlContent::Files);
    }
    let headers =
        vec![("want-repr-digest", "sha-256=1".to_owned()), ("accept-encoding", "identity".to_owned())];
    let mut answer =
        web.ask("HEAD", url, &RequestOptions { headers, is_slow: true, ..RequestOptions::default() })?;
    // A signature may be for GET alone; what is refused to both is said by the other.
    if matches!(answer.status, 401 | 403 | 405 | 501) {
        return Ok(UrlContent::Bytes { url: url.clone(), name: name_of(url)? });
    }
    if !(200..300).contains(&answer.status) {
        return Err(answer.refusal());
    }
    if answer.header("content-type").is_some_and(|kind| kind.starts_with(METALINK)) {
        return metalink_at(url, web).map(UrlContent::Files);
    }
    let links: Vec<&str> =
        answer.headers.get_all("link").iter().filter_map(|link| link.to_str().ok()).collect();
    if let Some(place) = links.iter().find_map(|link| described_by(link)) {
        // Only of the same server, whose key it gets: a link to another one would have a stranger's metalink obeyed.
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
            return Ok(UrlContent::Files(items));
        }
    }
    let size = answer.header("content-length").and_then(|size| size.parse::<u64>().ok());
    let digest = answer.header("repr-digest").and_then(said_digest);
    let (name, url) = (name_of(url)?, with_secret(&answer.url, url));
    match (size, digest) {
        (Some(size), Some(digest)) => {
            let urls = vec![url.to_string()];
            let (digest, pieces) = (Some(digest), Vec::new());
            Ok(UrlContent::Files(vec![DataSetFile {
                name,
                size,
                digest,
                piece_len: piece_len(size),
                pieces,
                urls,
            }]))
        }
        _ => Ok(UrlContent::Bytes { url, name }),
    }
}

/// Returns a URL of the same server with the credentials of another one.
fn with_secret(to: &Url, from: &Url) -> Url {
    let mut url = to.clone();
    if to.origin() == from.origin() {
        let _has_a_host = url.set_username(from.username()).and_then(|()| url.set_password(from.password()));
    }
    url
}

fn metalink_at(url: &Url, web: &Web) -> PublishResult<Vec<DataSetFile>> {
    let mut answer = web.ask("GET", url, &RequestOptions { is_slow: true, ..RequestOptions::default() })?;
    if answer.status != 200 {
        return Err(answer.refusal());
    }
    let text = answer.text(metalink::TEXT_MAX)?;
    let damaged = |why: String| PublishError::new(Cause::Damaged, format_args!("{}: {why}", shown(url)));
    let mut items = metalink::decode(&text).map_err(damaged)?;
    for item in &mut items {
        // A server does not say which files of this machine are read.
        item.urls.retain(|place| !matches!(Location::of_url(place), Some(Location::Path(_))));
        if item.urls.is_empty() {
            let why = "names only files of the machine that reads it (file:), which a server may not; ask who wrote it";
            return Err(damaged(format!("{:?}: {why}", item.name)));
        }
    }
    Ok(items)
}

/// Returns the metalink named by a `Link` header (RFC 6249).
fn described_by(link: &str) -> Option<&str> {
    let (place, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    (rest.contains("rel=describedby") && rest.contains(METALINK)).then_some(place)
}

/// Parses the SHA-256 of a `Repr-Digest` header (RFC 9530).
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

/// Fetches bytes without a known digest; at most `most` if the server reports no length. Returns their number and
/// digest, which are unverified.
///
/// # Errors
/// [`Cause::Exists`] if something is there, [`Cause::Other`] if it does not fit, or is more than that;
/// [`Cause::Unreachable`] if the connection broke off: a server that says no digests is asked again from the beginning.
pub fn fetch_plain(
    url: &Url,
    to: &Path,
    force: bool,
    most: u64,
    web: &Web,
    watch: &dyn FetchObserver,
    cancel: &AtomicBool,
) -> PublishResult<(u64, Digest)> {
    let (dir, name) = split(to)?;
    let target = TargetDir::open(&dir)?;
    let spot = target.spot(&name, &Digest::of(url.as_str().as_bytes()))?;
    if spot.existing()?.is_some() && !force {
        let text = format!(
            "{}: is there, and nothing tells whether it is the same; --force replaces it",
            to.display()
        );
        return Err(PublishError::new(Cause::Exists, text));
    }
    let headers = vec![("accept-encoding", "identity".to_owned())];
    let mut answer = web.ask("GET", url, &RequestOptions { headers, ..RequestOptions::default() })?;
    if answer.status != 200 {
        return Err(answer.refusal());
    }
    let size = answer.header("content-length").and_then(|size| size.parse::<u64>().ok());
    watch.found(1, size.unwrap_or(0));
    target.check_fits(size.map_or(0, |size| size.saturating_sub(spot.partial_space())))?;
    let mut file = spot.partial()?;
    let failed = |error: std::io::Error| PublishError::system(to.display(), &error);
    // Not resumed: without digests nothing tells whether what is there is of the same content.
    file.set_len(0).map_err(failed)?;
    let (mut reader, mut buffer, mut done, mut hasher) =
        (answer.reader(), vec![0; BUFFER], 0_u64, Hasher::new());
    let mut look_at = LOOK_EVERY;
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
        if size.is_none() && done.saturating_add(read as u64) > most {
            spot.discard();
            return Err(unbounded(
                url,
                &format!("more than {} came; --max-size SIZE allows more", format_size(most)),
            ));
        }
        // A length can stand beside a body in chunks, which is as long as its server likes.
        if size.is_some_and(|size| done.saturating_add(read as u64) > size) {
            spot.discard();
            return Err(broke_off(url, "more came than its server said"));
        }
        if size.is_none() && done >= look_at {
            look_at = done.saturating_add(LOOK_EVERY);
            if is_short(&file) {
                spot.discard();
                let why = format!(
                    "space was running out after {}; free some, or choose another DST",
                    format_size(done)
                );
                return Err(unbounded(url, &why));
            }
        }
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

fn unbounded(url: &Url, why: &str) -> PublishError {
    let text = format_args!("{}: its server says no length, and {why}; nothing of it was kept", shown(url));
    PublishError::new(Cause::Other, text)
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

    /// A server that answers one request with this, and with more of the same if that has no end.
    fn served(answer: Vec<u8>, is_endless: bool) -> (Url, std::thread::JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}/f.meta4", listener.local_addr().unwrap())).unwrap();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            stream.write_all(&answer).unwrap();
            // Until the other side has had enough.
            while is_endless && stream.write_all(&[7; 1 << 16]).is_ok() {}
        };
        (url, std::thread::spawn(serve))
    }

    struct Nobody;
    impl FetchObserver for Nobody {}

    #[test]
    fn a_body_that_never_ends_is_bounded_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let web = Web::new(&bivouac_source::Environment::default());
        let to = dir.path().join("f");
        let get = |head: &str, most: u64| {
            let (url, server) = served(format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes(), true);
            let got = fetch_plain(&url, &to, false, most, &web, &Nobody, &AtomicBool::new(false));
            server.join().unwrap();
            got
        };
        let refusal = get("", 5 << 20).unwrap_err().to_string();
        assert!(refusal.contains("more than 5 MiB came; --max-size"), "{refusal}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let refusal = get(&format!("content-length: {}\r\n", u64::MAX / 2), 5 << 20).unwrap_err().to_string();
        assert!(refusal.contains("does not fit"), "{refusal}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // Chunks of 64 KiB follow the length of a few bytes.
        let both = "content-length: 10\r\ntransfer-encoding: chunked\r\n\r\n10000\r\n";
        let refusal = get(both, 5 << 20).unwrap_err().to_string();
        assert!(refusal.contains("more came than its server said"), "{refusal}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(
            get("content-length: 6000000\r\n", 5 << 20).unwrap().0,
            6_000_000,
            "one that says its length"
        );
        assert_eq!(std::fs::metadata(&to).unwrap().len(), 6_000_000);
    }

    #[test]
    fn a_server_names_no_files_of_this_machine() {
        let web = Web::new(&bivouac_source::Environment::default());
        let look_at = |urls: &[&str]| {
            let urls = urls.iter().map(|url| (*url).to_owned()).collect();
            let digest = Some(Digest::of(b"x"));
            let item =
                DataSetFile { name: "f".into(), size: 1, digest, piece_len: 1, pieces: Vec::new(), urls };
            let text = metalink::encode(&[item]);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
            let (url, server) = served(head.into_bytes(), false);
            let found = look(&url, &web);
            server.join().unwrap();
            found
        };
        let UrlContent::Files(items) = look_at(&["file:///etc/passwd", "http://h/f"]).unwrap() else {
            unreachable!()
        };
        assert_eq!(items[0].urls, ["http://h/f"]);
        let refusal = look_at(&["file:///etc/passwd"]).unwrap_err();
        assert!(refusal.cause() == Cause::Damaged && refusal.to_string().contains("(file:)"), "{refusal}");
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
