//! Coverage of signatures: `host` and every `x-amz-*` header of a request must be among its signed headers. Otherwise
//! the holder of a presigned link could add a header, such as `x-amz-copy-source`, that the signer has never seen.

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;

use crate::error_response::ErrorResponse;
use crate::query::parameters;

/// Prefix of headers with a meaning in S3.
const AMZ: &str = "x-amz-";

/// Refuses a request whose signature omits `host` or an `x-amz-*` header, or that is authorized in several ways.
///
/// # Errors
/// 403 with the names of the headers that are not signed; 400 for several signatures, or one without signed headers.
pub fn check(headers: &HeaderMap, query: Option<&str>) -> Result<(), ErrorResponse> {
    let mut lists: Vec<String> = Vec::new();
    let mut mechanisms = headers.get_all(header::AUTHORIZATION).iter().count();
    for (name, value) in parameters(query) {
        // As the service decodes them: a name that is written in another way is the same parameter.
        match decoded(name).as_str() {
            "X-Amz-Signature" | "Signature" => mechanisms += 1,
            "X-Amz-SignedHeaders" => lists.push(decoded(value.unwrap_or_default())),
            _ => {}
        }
    }
    let authorizations = headers.get_all(header::AUTHORIZATION).iter();
    for text in authorizations.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok()) {
        let listed = text.split_once("SignedHeaders=").map(|(_, rest)| rest);
        lists.extend(listed.and_then(|rest| rest.split(',').next()).map(str::to_owned));
    }
    let invalid = |text| ErrorResponse::bad_request(format!("InvalidArgument: {text}"));
    if mechanisms > 1 {
        return Err(invalid("only one authorization is allowed: an Authorization header, or a signed link"));
    }
    let [list] = lists.as_slice() else {
        return Err(invalid("a signature of version 4 names its headers, in SignedHeaders"));
    };
    // Names of headers are compared as the signature has them, in small letters.
    let is_signed = |name: &str| list.split(';').any(|signed| signed == name);
    let needed = |name: &&str| name.starts_with(AMZ) && !is_signed(name);
    let mut missing: Vec<&str> = headers.keys().map(HeaderName::as_str).filter(needed).collect();
    if !is_signed(header::HOST.as_str()) {
        missing.push(header::HOST.as_str());
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.sort_unstable();
    let text = format!(
        "AccessDenied: headers of the request were not signed: {}; sign host and all x-amz-* headers",
        missing.join(", ")
    );
    Err(ErrorResponse::new(StatusCode::FORBIDDEN, text))
}

/// Returns a name or value of a query, as forms encode them.
fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=BVK/20261125/us-east-1/s3/aws4_request, SignedHeaders=";

    fn status(query: Option<&str>, headers: &[(&'static str, &str)]) -> u16 {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        check(&headers, query).map_or_else(|refusal| refusal.status().as_u16(), |()| 200)
    }

    #[test]
    fn links_cover_all_headers_of_s3() {
        let link = Some("X-Amz-SignedHeaders=host&X-Amz-Signature=a");
        let two = Some("X-Amz-SignedHeaders=host%3Bx-amz-meta-a&X-Amz-Signature=a");
        for (query, headers, expected) in [
            (link, &[][..], 200),
            (link, &[("host", "x"), ("content-type", "text/plain"), ("range", "bytes=0-1")], 200),
            (link, &[("x-amz-copy-source", "/private/secret")], 403),
            (link, &[("x-amz-meta-a", "1")], 403),
            (link, &[("x-amz-content-sha256", "UNSIGNED-PAYLOAD")], 403),
            (two, &[("x-amz-meta-a", "1")], 200),
            (two, &[("x-amz-meta-a", "1"), ("x-amz-meta-b", "1")], 403),
            (Some("X-Amz-SignedHeaders=range&X-Amz-Signature=a"), &[("range", "bytes=0-1")], 403),
            (Some("X-Amz-SignedHeaders=Host&X-Amz-Signature=a"), &[], 403),
            (Some("X-Amz-SignedHeaders=&X-Amz-Signature=a"), &[], 403),
            (Some("X-Amz-Signature=a"), &[], 400),
            (Some("X-Amz-SignedHeaders=host&X-Amz-SignedHeaders=x&X-Amz-Signature=a"), &[], 400),
        ] {
            assert_eq!(status(query, headers), expected, "{query:?} {headers:?}");
        }
    }

    #[test]
    fn signatures_in_headers_cover_all_headers_of_s3() {
        let signed = |list: &str| format!("{SIGNED}{list}, Signature=a");
        let plain = signed("host;x-amz-content-sha256;x-amz-date");
        let dated = ("x-amz-date", "20261125T091500Z");
        for (authorization, more, expected) in [
            (&plain, None, 200),
            (&plain, Some(("x-amz-copy-source", "/private/secret")), 403),
            (&signed("x-amz-date"), None, 403),
            (&signed("host"), None, 403),
            (&signed("host;x-amz-copy-source;x-amz-date"), Some(("x-amz-copy-source", "/a/b")), 200),
            (&"AWS4-HMAC-SHA256 Credential=a".to_owned(), None, 400),
        ] {
            let mut headers = vec![dated, ("authorization", authorization.as_str())];
            headers.extend(more);
            assert_eq!(status(None, &headers), expected, "{authorization} {more:?}");
        }
    }

    /// What the service goes by is what was looked at, also where it is written in another way.
    #[test]
    fn a_request_has_one_signature() {
        let signed = format!("{SIGNED}host;x-amz-copy-source, Signature=a");
        let headers = [("authorization", signed.as_str()), ("x-amz-copy-source", "/private/secret")];
        assert_eq!(status(None, &headers), 200);
        for query in [
            "X-Amz-SignedHeaders=host&X-Amz-Signature=a",
            "X-Amz-SignedHeaders=host&X-Amz-Signatur%65=a",
            "X-Amz-SignedHeader%73=host",
            "AWSAccessKeyId=BVK&Expires=1&Signature=a",
        ] {
            assert_eq!(status(Some(query), &headers), 400, "{query}");
        }
    }
}
