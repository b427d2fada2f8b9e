//! Headers that only WebDAV has.

use hyper::header::{self, HeaderMap};
use hyper::{StatusCode, Uri};

use crate::error_response::ErrorResponse;
use crate::request_path::RequestPath;

/// Compliance classes of the `DAV` header; 2 means locks.
pub const CLASSES: &str = "1, 2";
/// Longest time that a lock is given for without being refreshed, in seconds.
pub const LOCK_S_MAX: u64 = 86_400;
/// The time of a lock that is asked for without one, in seconds.
const LOCK_S: u64 = 3600;

/// Value of a `Depth` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only the resource itself.
    Zero,
    /// And what is in it.
    One,
    /// And all below it.
    Infinity,
}

/// Returns the only header of a name.
fn one<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, ErrorResponse> {
    let mut all = headers.get_all(name).iter();
    let unclear = || ErrorResponse::bad_request(format!("the {name} header is not one text of ASCII"));
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(|text| Some(text.trim())).map_err(|_| unclear()),
        (Some(_), Some(_)) => Err(unclear()),
    }
}

/// Returns `Depth`, if it is said.
///
/// # Errors
/// 400.
pub fn depth(headers: &HeaderMap) -> Result<Option<Depth>, ErrorResponse> {
    match one(headers, "depth")? {
        None => Ok(None),
        Some("0") => Ok(Some(Depth::Zero)),
        Some("1") => Ok(Some(Depth::One)),
        Some(text) if text.eq_ignore_ascii_case("infinity") => Ok(Some(Depth::Infinity)),
        Some(_) => Err(ErrorResponse::bad_request("Depth is 0, 1 or infinity")),
    }
}

/// Returns whether the destination may be replaced.
///
/// # Errors
/// 400.
pub fn overwrite(headers: &HeaderMap) -> Result<bool, ErrorResponse> {
    match one(headers, "overwrite")? {
        None => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("t") => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("f") => Ok(false),
        Some(_) => Err(ErrorResponse::bad_request("Overwrite is T or F")),
    }
}

/// Returns the destination.
///
/// # Errors
/// 400; 502 for another server.
pub fn destination(headers: &HeaderMap) -> Result<RequestPath, ErrorResponse> {
    let text = one(headers, "destination")?
        .ok_or_else(|| ErrorResponse::bad_request("a Destination header says where to"))?;
    here(text, headers)?.ok_or_else(|| {
        ErrorResponse::new(
            StatusCode::BAD_GATEWAY,
            "the Destination is at another server; copy it through the client",
        )
    })
}

/// Returns the path of a URL on this server, or of a path; `None` for a URL of another server.
///
/// # Errors
/// 400.
pub fn here(url: &str, headers: &HeaderMap) -> Result<Option<RequestPath>, ErrorResponse> {
    let uri: Uri =
        url.parse().map_err(|_| ErrorResponse::bad_request("a header has a URL in it that is none"))?;
    if let Some(scheme) = uri.scheme_str() {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let theirs = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        // The name of a user in front of the host makes it no other server.
        let theirs = theirs.rsplit_once('@').map_or(theirs, |(_, host)| host);
        if !with_port(theirs, scheme).eq_ignore_ascii_case(&with_port(host, scheme)) {
            return Ok(None);
        }
    } else if !url.starts_with('/') {
        return Err(ErrorResponse::bad_request("a header has a URL in it that is neither whole nor a path"));
    }
    let refused = |why| ErrorResponse::bad_request(why);
    RequestPath::parse(uri.path()).map(Some).map_err(refused)
}

fn with_port(host: &str, scheme: &str) -> String {
    // The last colon of an IPv6 address is followed by digits and a bracket, which is no port.
    let has_port =
        host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    match scheme {
        _ if has_port => host.to_owned(),
        "http" => format!("{host}:80"),
        _ => format!("{host}:443"),
    }
}

/// Returns the lock duration in seconds: the first valid one of the header, within limits.
///
/// # Errors
/// 400.
pub fn timeout(headers: &HeaderMap) -> Result<u64, ErrorResponse> {
    let text = one(headers, "timeout")?.unwrap_or_default();
    let said = text.split(',').map(str::trim).find_map(|time| match time.split_once('-') {
        Some((unit, seconds)) if unit.eq_ignore_ascii_case("second") => {
            // Digits only: more than a number can have are a long time, too.
            seconds.bytes().all(|byte| byte.is_ascii_digit()).then(|| seconds.parse().unwrap_or(LOCK_S_MAX))
        }
        _ => time.eq_ignore_ascii_case("infinite").then_some(LOCK_S_MAX),
    });
    Ok(said.unwrap_or(LOCK_S).clamp(1, LOCK_S_MAX))
}

/// Returns the token of an UNLOCK.
///
/// # Errors
/// 400.
pub fn lock_token(headers: &HeaderMap) -> Result<&str, ErrorResponse> {
    let text = one(headers, "lock-token")?.unwrap_or_default();
    let token = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
    token.ok_or_else(|| ErrorResponse::bad_request("a Lock-Token header says which lock: <TOKEN>"))
}

/// Returns the `If` header.
///
/// # Errors
/// 400.
pub fn condition(headers: &HeaderMap) -> Result<Option<&str>, ErrorResponse> {
    one(headers, "if")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    /// S642.
    #[test]
    fn destinations_are_paths_of_this_server() {
        let of = |text: &str| {
            let to = destination(&headers(&[("host", "node7:8443"), ("destination", text)]));
            to.map_or_else(|refusal| Err(refusal.status().as_u16()), |target| Ok(target.path()))
        };
        for right in [
            "https://node7:8443/a%20b/",
            "http://NODE7:8443/a%20b/",
            "/a%20b/",
            "https://me@node7:8443/a%20b/",
        ] {
            assert_eq!(of(right), Ok(b"/a b/".to_vec()), "{right}");
        }
        for (wrong, status) in [
            ("https://node8:8443/a", 502),
            ("https://node7/a", 502),
            ("https://node7:8443.evil/a", 502),
            ("https://node7:8443/a%2fb", 400),
            ("https://node7:8443/../a", 400),
            ("/%2e%2e/a", 400),
            ("/a%00", 400),
            ("/.bivouac-put-1", 400),
            ("a", 400),
            ("", 400),
            ("https://", 400),
        ] {
            assert_eq!(of(wrong), Err(status), "{wrong}");
        }
        let plain = headers(&[("host", "h"), ("destination", "https://h:443/a")]);
        assert!(destination(&plain).is_ok());
        assert_eq!(destination(&HeaderMap::new()).unwrap_err().status(), StatusCode::BAD_REQUEST);
        let twice = headers(&[("host", "h"), ("destination", "/a"), ("destination", "/b")]);
        assert!(destination(&twice).is_err());
    }

    #[test]
    fn times_of_locks_are_bounded() {
        for (text, seconds) in [
            ("Second-600", 600),
            ("Infinite, Second-4100000000", LOCK_S_MAX),
            ("Second-4100000000", LOCK_S_MAX),
            ("Second-99999999999999999999", LOCK_S_MAX),
            ("Second-0", 1),
            ("Minute-1, second-5", 5),
            ("Second--5", LOCK_S),
            ("", LOCK_S),
        ] {
            assert_eq!(timeout(&headers(&[("timeout", text)])).unwrap(), seconds, "{text}");
        }
    }

    #[test]
    fn other_headers_say_one_thing() {
        let of = |value: &str| depth(&headers(&[("depth", value)])).map_err(drop);
        assert_eq!(
            (of("0"), of("1"), of("Infinity")),
            (Ok(Some(Depth::Zero)), Ok(Some(Depth::One)), Ok(Some(Depth::Infinity)))
        );
        assert_eq!((of("2"), of("")), (Err(()), Err(())));
        let of = |value: &str| overwrite(&headers(&[("overwrite", value)])).map_err(drop);
        assert_eq!((of("T"), of("f"), of("x")), (Ok(true), Ok(false), Err(())));
        assert_eq!(lock_token(&headers(&[("lock-token", "<urn:a>")])).unwrap(), "urn:a");
        for wrong in ["urn:a", "<urn:a", ""] {
            assert!(lock_token(&headers(&[("lock-token", wrong)])).is_err(), "{wrong}");
        }
    }
}
