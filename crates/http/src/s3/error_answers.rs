//! Errors as clients of S3 read them: a body of XML with a code and a sentence. Many errors of `s3s` have a code alone,
//! and what is refused in front of it has no XML.

use bivouac_types::escape_markup;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use s3s::{S3Error, S3ErrorCode};

use crate::body::{Body, full};
use crate::error_response::ErrorResponse;

/// Header with the id of a request, which is in the log.
pub const REQUEST_ID: &str = "x-amz-request-id";
/// Longest body of an error, in bytes.
const BODY_MAX: usize = 64 << 10;

const NO_SPACE: &str = "no space left in the formation: bivouac status says which volumes are full";

/// Returns the error of an upload for which there is no space.
pub fn no_space() -> S3Error {
    of_status(StatusCode::INSUFFICIENT_STORAGE, NO_SPACE.to_owned())
}

/// Returns the error for a status, with a sentence.
fn of_status(status: StatusCode, text: String) -> S3Error {
    let code = S3ErrorCode::from_bytes(code_of(status).as_bytes());
    let mut error = S3Error::with_message(code.unwrap_or(S3ErrorCode::InternalError), text);
    error.set_status_code(status);
    error
}

/// Returns the S3 error of a refusal.
pub fn error_of(refusal: &ErrorResponse) -> S3Error {
    match refusal.status() {
        StatusCode::INSUFFICIENT_STORAGE => no_space(),
        status => of_status(status, refusal.text().to_owned()),
    }
}

/// Returns the code for a status.
fn code_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "InvalidRequest",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "AccessDenied",
        StatusCode::NOT_FOUND => "NoSuchKey",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::REQUEST_TIMEOUT => "RequestTimeout",
        StatusCode::CONFLICT | StatusCode::LOCKED => "OperationAborted",
        StatusCode::PRECONDITION_FAILED => "PreconditionFailed",
        StatusCode::PAYLOAD_TOO_LARGE => "EntityTooLarge",
        StatusCode::URI_TOO_LONG => "KeyTooLongError",
        StatusCode::NOT_IMPLEMENTED => "NotImplemented",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::INSUFFICIENT_STORAGE => "InsufficientStorage",
        _ => "InternalError",
    }
}

/// Returns a sentence for a code that came without one.
fn sentence(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "the key does not allow this, or the user of the formation may not",
        "BadDigest" => "the body has not the digest that the request says",
        "BucketAlreadyOwnedByYou" => "the bucket is there already",
        "BucketNotEmpty" => "there are objects in the bucket, or files that are none",
        "EntityTooSmall" => "only the last part may have less than 5 MiB",
        "IncompleteBody" => "the body ends before its end",
        "InternalError" => "the formation could not do it; see: bivouac logs",
        "InvalidAccessKeyId" => "there is no such key, or it has expired; make one: bivouac key create",
        "InvalidArgument" => "a parameter or header has a value that it cannot have",
        "InvalidBucketName" => "a bucket's name has 3 to 63 small letters, digits, dots and dashes",
        "InvalidPart" => "a part is not there, or is not the one that the request says",
        "InvalidPartOrder" => "parts are named in the order of their numbers",
        "InvalidRange" => "the object has no such range",
        "InvalidURI" => "the path or its parameters cannot be read",
        "MalformedXML" => "the body is not the XML that the request needs",
        "MethodNotAllowed" => "there is no such method for this",
        "MissingContentLength" => "the request needs a Content-Length",
        "NoSuchBucket" => "there is no such bucket",
        "NoSuchKey" => "there is no such object",
        "NoSuchUpload" => "there is no such upload: it is complete, was given up, or is of another key",
        "NotImplemented" => "this is not there",
        "OperationAborted" => "something else that is done at the same time is in the way",
        "PreconditionFailed" => "the object is not as the request wants it",
        "RequestTimeout" => "the body did not come in time",
        "ServiceUnavailable" => "nodes of the formation do not answer; try again",
        "SignatureDoesNotMatch" => {
            "the signature is not that of the request: compare the secret key and the clock"
        }
        "XAmzContentSHA256Mismatch" => "the body has not the digest that x-amz-content-sha256 says",
        _ => "the request was refused",
    }
}

/// Returns the body of an error.
fn body(code: &str, text: &str, id: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{}</Code><Message>{}</Message>\
         <RequestId>{id}</RequestId></Error>",
        escape_markup(code),
        escape_markup(text)
    )
}

/// Returns a refusal as clients of S3 read it. A sentence may begin with its code: `AccessDenied: …`.
pub fn answer(refusal: ErrorResponse, id: &str) -> Response<Body> {
    let is_code = |code: &str| {
        code.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && code.bytes().filter(u8::is_ascii_uppercase).count() > 1
            && code.starts_with(|first: char| first.is_ascii_uppercase())
    };
    let status = refusal.status();
    refusal
        .into_xml(|text| match text.split_once(": ").filter(|(code, _)| is_code(code)) {
            Some((code, text)) => body(code, text, id),
            None => body(code_of(status), text, id),
        })
        .into_response()
}

/// Completes an answer of the service: errors get their sentence, all the id of their request.
pub async fn complete(mut response: Response<Body>, id: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status();
    // It has no body (RFC 9110, 15.4.5).
    if status == StatusCode::NOT_MODIFIED {
        response.headers_mut().remove(header::CONTENT_TYPE);
        *response.body_mut() = full(Bytes::new());
        return response;
    }
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let (mut parts, given) = response.into_parts();
    let given = match Limited::new(given, BODY_MAX).collect().await {
        Ok(given) => given.to_bytes(),
        Err(error) => {
            log::error!("the text of an error could not be read: {error}");
            Bytes::new()
        }
    };
    let completed = completed(status, &String::from_utf8_lossy(&given), id);
    let whole = completed.map_or(given, Bytes::from);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    // It is that of the body that was given.
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, full(whole))
}

/// Returns the body of an error with all that it lacks; `None` where it lacks nothing that can be given.
fn completed(status: StatusCode, given: &str, id: &str) -> Option<String> {
    let end = "</Error>";
    let Some(at) = given.rfind(end) else {
        let code = code_of(status);
        return given.is_empty().then(|| body(code, sentence(code), id));
    };
    let code =
        given.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let mut more = String::new();
    if !given.contains("<Message>") {
        more.push_str(&format!("<Message>{}</Message>", escape_markup(sentence(code.unwrap_or_default()))));
    }
    if !given.contains("<RequestId>") {
        more.push_str(&format!("<RequestId>{id}</RequestId>"));
    }
    let (before, behind) = given.split_at_checked(at)?;
    Some(format!("{before}{more}{behind}"))
}

#[cfg(test)]
pub fn fuzzed(text: &str) {
    let completed = completed(StatusCode::BAD_REQUEST, text, "0AB").unwrap_or_default();
    let mark = text.rfind("</Error>").map(|_| "</Message>");
    assert!(mark.is_none_or(|mark| completed.contains(mark) || text.contains("<Message>")), "{text:?}");
    let _ = answer(ErrorResponse::bad_request(text), "0AB");
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response<Body>) -> (u16, String) {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn errors_have_a_sentence_and_an_id() {
        let error = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>";
        let mut response = Response::new(full(Bytes::from(error)));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("1"));
        let response = complete(response, "0AB").await;
        assert_eq!(response.headers()[REQUEST_ID], "0AB");
        assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
        let expected = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code>\
                        <Message>there is no such object</Message><RequestId>0AB</RequestId></Error>";
        assert_eq!(text(response).await, (404, expected.to_owned()));
        let said = "<Error><Code>A</Code><Message>b</Message><RequestId>c</RequestId></Error>";
        assert_eq!(completed(StatusCode::BAD_REQUEST, said, "0AB").as_deref(), Some(said));
        let empty = completed(StatusCode::FORBIDDEN, "", "0AB").unwrap();
        assert!(empty.contains("<Code>AccessDenied</Code><Message>the key"), "{empty}");
        let mut response = Response::new(full(Bytes::from_static(b"x")));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        assert_eq!(text(complete(response, "0AB").await).await, (304, String::new()));
    }

    #[tokio::test]
    async fn refusals_are_xml() {
        for (status, said, code, sentence) in [
            (403, "RequestTimeTooSkewed: too <late>", "RequestTimeTooSkewed", "too &lt;late&gt;"),
            (403, "Note: not a code", "AccessDenied", "Note: not a code"),
            (507, "no room", "InsufficientStorage", "no room"),
            (501, "not there", "NotImplemented", "not there"),
        ] {
            let refusal = ErrorResponse::new(StatusCode::from_u16(status).unwrap(), said);
            let (got, text) = text(answer(refusal, "0AB")).await;
            let wanted = format!("<Code>{code}</Code><Message>{sentence}</Message>");
            assert!(got == status && text.contains(&wanted), "{text}");
        }
    }

    #[test]
    fn a_full_volume_is_said() {
        let error = error_of(&ErrorResponse::new(StatusCode::INSUFFICIENT_STORAGE, ""));
        assert_eq!((error.code().as_str(), error.message()), ("InsufficientStorage", Some(NO_SPACE)));
        assert_eq!(error.status_code(), Some(StatusCode::INSUFFICIENT_STORAGE));
    }
}
