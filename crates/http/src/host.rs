//! The host that a request names (RFC 9112, 3.2).

use hyper::Version;
use hyper::header::{HOST, HeaderMap};

/// Checks that a request names its host: proxies may route by it.
///
/// # Errors
/// A description of what is malformed.
pub fn check(version: Version, headers: &HeaderMap) -> Result<(), &'static str> {
    let mut said = headers.get_all(HOST).iter();
    match (said.next(), said.next()) {
        (None, _) if version >= Version::HTTP_11 => Err("a request has to name its host: Host: HOST[:PORT]"),
        (None, _) => Ok(()),
        (Some(_), Some(_)) => Err("a request names one host, and this one has several Host headers"),
        (Some(host), None) if is_host(host.as_bytes()) => Ok(()),
        (Some(_), None) => {
            Err("the Host header is none: it is a name or an address, and a port behind a colon")
        }
    }
}

/// Returns whether the text is a host with an optional port (RFC 3986, 3.2.2 and 3.2.3). Both may be empty.
fn is_host(text: &[u8]) -> bool {
    let (host, port) = match text.iter().rposition(|byte| *byte == b':') {
        // The colons of an address are within brackets.
        Some(at) if !text.ends_with(b"]") => {
            let (host, port) = text.split_at(at);
            (host, port.get(1..).unwrap_or_default())
        }
        _ => (text, &b""[..]),
    };
    let is_name = match host.strip_prefix(b"[").map(|rest| rest.strip_suffix(b"]")) {
        Some(Some(address)) => is_address(address),
        Some(None) => false,
        None => is_name(host),
    };
    is_name && port.iter().all(u8::is_ascii_digit) && port.len() <= 5
}

fn is_address(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let is_later = |text: &str| {
        let version = text.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.'));
        version.is_some_and(|(version, rest)| {
            let is_hex = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex && !rest.is_empty() && rest.bytes().all(|byte| is_plain(byte) || byte == b':')
        })
    };
    text.parse::<std::net::Ipv6Addr>().is_ok() || is_later(text)
}

fn is_name(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = match (first, behind) {
            (b'%', [high, low, behind @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => behind,
            (byte, behind) if is_plain(*byte) => behind,
            _ => return false,
        };
    }
    true
}

/// Returns true for unreserved characters and delimiters below those of a URL.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn checked(version: Version, said: &[&[u8]]) -> bool {
        let of = |host: &&[u8]| (HOST, HeaderValue::from_bytes(host).unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in said.iter().map(of) {
            headers.append(name, value);
        }
        check(version, &headers).is_ok()
    }

    #[test]
    fn a_request_names_one_host() {
        assert!(!checked(Version::HTTP_11, &[]) && checked(Version::HTTP_10, &[]));
        for version in [Version::HTTP_10, Version::HTTP_11] {
            assert!(checked(version, &[b"a"]) && !checked(version, &[b"a", b"a"]));
        }
        for right in [
            "",
            ":",
            "a:",
            "a:80",
            "node-7.x_y:65535",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:80",
            "[::ffff:1.2.3.4]",
            "[v1.a:b]",
            "a%20b",
            "a.b.",
            "a,b",
        ] {
            assert!(checked(Version::HTTP_11, &[right.as_bytes()]), "{right}");
        }
        let wrong: [&[u8]; 16] = [
            b"a b",
            b"a/b",
            b"u@a",
            b"a:b",
            b"a:1:2",
            b"::1",
            b"[::1",
            b"::1]",
            b"[a]",
            b"[]",
            b"a?b",
            b"a#b",
            b"a%2",
            b"a:123456",
            b"http://a",
            b"\xc3\xa4",
        ];
        for wrong in wrong {
            assert!(!checked(Version::HTTP_11, &[wrong]), "{wrong:?}");
        }
    }
}
