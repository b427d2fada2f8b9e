//! The region that a request is signed for. Any is taken, if it is written as regions are; others are told one, as S3
//! does, so that clients sign again: s3cmd begins with `US`.

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};

use crate::body::{Body, typed};

/// Region that is reported to clients.
const TOLD: &str = "us-east-1";
const TOLD_BY: &str = "x-amz-bucket-region";
const MALFORMED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AuthorizationHeaderMalformed</Code>\
    <Message>a region has small letters, digits and dashes; sign for us-east-1</Message><Region>us-east-1</Region></Error>";

/// Returns the redirection of a client that has signed for a malformed region.
pub fn refused(headers: &HeaderMap) -> Option<Response<Body>> {
    let region = region(headers.get(header::AUTHORIZATION)?.to_str().ok()?)?;
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if region.bytes().all(is_plain) {
        return None;
    }
    let mut response = typed(StatusCode::BAD_REQUEST, "application/xml", MALFORMED);
    response.headers_mut().insert(TOLD_BY, HeaderValue::from_static(TOLD));
    Some(response)
}

/// Parses the region of `AWS4-HMAC-SHA256 Credential=ID/DATE/REGION/SERVICE/aws4_request, …`.
fn region(authorization: &str) -> Option<&str> {
    let (_, rest) = authorization.split_once("Credential=")?;
    rest.split([',', ' ']).next()?.split('/').nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_regions_are_told_one() {
        assert!(MALFORMED.contains(&format!("<Region>{TOLD}</Region>")));
        let told =
            |text: &str| refused(&[(header::AUTHORIZATION, text.parse().unwrap())].into_iter().collect());
        let signed = |region: &str| {
            told(&format!(
                "AWS4-HMAC-SHA256 Credential=BVK/20261125/{region}/s3/aws4_request,SignedHeaders=host"
            ))
        };
        for region in ["us-east-1", "eu-west-2", "garage", ""] {
            assert!(signed(region).is_none(), "{region}");
        }
        for region in ["US", "EU", "us_east_1"] {
            let answer = signed(region).unwrap();
            assert_eq!(
                (answer.status(), answer.headers()[TOLD_BY].to_str().unwrap()),
                (StatusCode::BAD_REQUEST, TOLD),
                "{region}"
            );
        }
        for text in ["", "AWS4-HMAC-SHA256 Credential=", "AWS4-HMAC-SHA256 Credential=a/b", "Bearer US/US/US"]
        {
            assert!(told(text).is_none(), "{text}");
        }
    }
}
