//! Headers and parameters that change what a request means, and are not understood: a request that has one is refused.
//! Otherwise an object would be replaced or removed although the condition on it does not hold, or the parameter names
//! something else.

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use s3s::access::{S3Access, S3AccessContext};
use s3s::dto::PostObjectInput;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};

#[cfg(test)]
use super::conditions::WriteConditions;
use crate::error_response::ErrorResponse;
use crate::query::parameters;

/// Refuses requests that are not signed, and those of which something is not understood.
pub struct RequestGate;

#[async_trait::async_trait]
impl S3Access for RequestGate {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "a signature is required"));
        }
        check(context.s3_op().name(), context.headers(), context.uri().query())
    }

    async fn post_object(&self, request: &mut S3Request<PostObjectInput>) -> S3Result<()> {
        check_form(request)
    }
}

/// Refuses a form with parameters in its header that belong to its fields: the fields are signed, the header is not.
///
/// # Errors
/// 403.
pub fn check_form_head(headers: &HeaderMap, query: Option<&str>) -> Result<(), ErrorResponse> {
    let is_ours = |name: &str| name.to_ascii_lowercase().starts_with("x-amz-");
    let has_header = headers.keys().any(|name| is_ours(name.as_str()) || *name == header::AUTHORIZATION);
    // Decoded, as the service has them: a name may be written in several ways.
    if !has_header
        && !parameters(query).any(|(name, _)| is_ours(&percent_decode_str(name).decode_utf8_lossy()))
    {
        return Ok(());
    }
    let text =
        "AccessDenied: a form is signed by its fields; send it without Authorization and x-amz-* headers";
    Err(ErrorResponse::new(StatusCode::FORBIDDEN, text))
}

/// Refuses a form of which something is not understood: its fields say what headers say otherwise.
fn check_form(request: &S3Request<PostObjectInput>) -> S3Result<()> {
    // Only signatures of version 4 name a region.
    if request.region.is_none() {
        return Err(s3_error!(InvalidRequest, "a form is signed by version 4: AWS4-HMAC-SHA256"));
    }
    let input = &request.input;
    let text = |text: Option<&str>| text.map(str::to_owned);
    let there = |is_there: bool| is_there.then(String::new);
    let fields = [
        ("x-amz-acl", text(input.acl.as_ref().map(|acl| acl.as_str()))),
        ("x-amz-grant-", there(input.grant_full_control.is_some() || input.grant_read.is_some())),
        ("x-amz-grant-", there(input.grant_read_acp.is_some() || input.grant_write_acp.is_some())),
        ("x-amz-object-lock-", there(input.object_lock_mode.is_some())),
        ("x-amz-object-lock-", there(input.object_lock_legal_hold_status.is_some())),
        ("x-amz-object-lock-", there(input.object_lock_retain_until_date.is_some())),
        ("x-amz-server-side-encryption", there(input.server_side_encryption.is_some())),
        ("x-amz-server-side-encryption", there(input.ssekms_key_id.is_some())),
        ("x-amz-server-side-encryption", there(input.ssekms_encryption_context.is_some())),
        ("x-amz-server-side-encryption-customer-key", there(input.sse_customer_algorithm.is_some())),
        ("x-amz-server-side-encryption-customer-key", there(input.sse_customer_key.is_some())),
        ("x-amz-website-redirect-location", there(input.website_redirect_location.is_some())),
        ("x-amz-write-offset-bytes", there(input.write_offset_bytes.is_some())),
    ];
    for (name, value) in fields {
        if let Some(missing) = value.and_then(|value| missing(name, &value)) {
            return Err(refused(format!("the form asks for {missing}, which are not there")));
        }
    }
    if input.expected_bucket_owner.is_some() {
        return Err(no_owner());
    }
    Ok(())
}

fn no_owner() -> S3Error {
    s3_error!(AccessDenied, "buckets belong to no account: send it without an expected bucket owner")
}

const ON_READING: &[&str] =
    &["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"];
const ON_WRITING: &[&str] = &["if-match", "if-none-match"];
const ON_SOURCE: &[&str] = &[
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];
const ON_REMOVING: &[&str] = &["if-match", "x-amz-if-match-size", "x-amz-if-match-last-modified-time"];

/// Returns the conditions that an operation understands.
fn conditions(operation: &str) -> [&'static [&'static str]; 2] {
    match operation {
        "GetObject" | "HeadObject" => [ON_READING, &[]],
        "PutObject" | "CompleteMultipartUpload" => [ON_WRITING, &[]],
        "CopyObject" => [ON_WRITING, ON_SOURCE],
        "UploadPartCopy" => [ON_SOURCE, &[]],
        "DeleteObject" => [ON_REMOVING, &[]],
        _ => [&[], &[]],
    }
}

/// Returns the parameters of an operation that changes something; `None` for others, which may have any.
fn parameters_of(operation: &str) -> Option<&'static [&'static str]> {
    Some(match operation {
        "PutObject" | "CopyObject" | "PostObject" | "CreateBucket" | "DeleteBucket" => &[],
        "DeleteObject" => &["versionId"],
        "DeleteObjects" => &["delete"],
        "UploadPart" | "UploadPartCopy" => &["partNumber", "uploadId"],
        "CreateMultipartUpload" => &["uploads"],
        "CompleteMultipartUpload" | "AbortMultipartUpload" => &["uploadId"],
        "PutObjectTagging" | "DeleteObjectTagging" => &["tagging", "versionId"],
        "PutBucketCors" | "DeleteBucketCors" => &["cors"],
        _ => return None,
    })
}

/// Returns whether a header is a precondition.
fn is_condition(name: &str) -> bool {
    name == "if" || name.starts_with("if-") || name.contains("-if-")
}

/// Returns whether a condition names several tags, which the service would take for one.
fn lists_tags(value: &HeaderValue) -> bool {
    let quotes = value.as_bytes().iter().filter(|byte| **byte == b'"').count();
    // `*` has none.
    !matches!(quotes, 0 | 2)
}

/// Returns the unsupported feature that a header requests; `None` for one that may be ignored.
fn missing(name: &str, value: &str) -> Option<&'static str> {
    match name {
        // A request for the default behaviour is accepted.
        "x-amz-acl" if matches!(value, "private" | "bucket-owner-full-control") => None,
        "x-amz-bucket-object-lock-enabled" if value.eq_ignore_ascii_case("false") => None,
        "x-amz-acl" => Some("access lists"),
        "x-amz-bucket-object-lock-enabled" | "x-amz-mfa" => Some("locks of objects"),
        "x-amz-website-redirect-location" => Some("redirections"),
        "x-amz-write-offset-bytes" => Some("appending"),
        "x-amz-rename-source" => Some("renaming"),
        "content-range" => Some("writing a part of an object"),
        _ if name.starts_with("x-amz-grant-") => Some("access lists"),
        _ if name.starts_with("x-amz-object-lock-") => Some("locks of objects"),
        _ if name.contains("server-side-encryption") => Some("encryption by S3"),
        _ => None,
    }
}

/// Refuses what is not understood.
fn check(operation: &str, headers: &HeaderMap, query: Option<&str>) -> S3Result<()> {
    let known = conditions(operation);
    for (name, value) in headers {
        let name = name.as_str();
        // User metadata has arbitrary names.
        if name.starts_with("x-amz-meta-") {
            continue;
        }
        if is_condition(name) && !known.iter().any(|known| known.contains(&name)) {
            return Err(refused(format!("{operation} has no condition {name} here; send it without")));
        }
        if is_condition(name) && (lists_tags(value) || headers.get_all(name).iter().nth(1).is_some()) {
            return Err(s3_error!(InvalidArgument, "{name} is there once, with one tag, or *"));
        }
        if name.ends_with("expected-bucket-owner") {
            return Err(no_owner());
        }
        if let Some(missing) = missing(name, value.to_str().unwrap_or_default()) {
            return Err(refused(format!("{name} is not understood: there is nothing here for {missing}")));
        }
    }
    let known = parameters_of(operation);
    for (name, value) in parameters(query) {
        let name = percent_decode_str(name).decode_utf8_lossy();
        if name == "versionId" && !matches!(value, None | Some("" | "null")) {
            return Err(no_version());
        }
        // SDKs add `x-id`, which only repeats what the operation is.
        let is_plain = name == "x-id" || name.to_ascii_lowercase().starts_with("x-amz-");
        if known.is_some_and(|known| !is_plain && !known.contains(&&*name)) {
            return Err(refused(format!("{operation} has no parameter {name} here; send it without")));
        }
    }
    Ok(())
}

fn refused(text: String) -> S3Error {
    S3Error::with_message(S3ErrorCode::NotImplemented, text)
}

/// Returns the error for a request for a version of an object.
pub fn no_version() -> S3Error {
    s3_error!(NoSuchVersion, "objects have no versions here, but for the one named null")
}

#[cfg(test)]
pub fn fuzzed(text: &str) {
    let mut headers = HeaderMap::new();
    for name in ["if-match", "x-amz-acl", "if-range"] {
        headers.extend(
            HeaderValue::from_str(text).ok().map(|value| (header::HeaderName::from_static(name), value)),
        );
    }
    for operation in ["GetObject", "PutObject", "DeleteObject", text] {
        let _ = check(operation, &headers, Some(text));
    }
    let _ = (check_form_head(&headers, Some(text)), WriteConditions::of_headers(&headers));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(operation: &str, headers: &[(&'static str, &str)], query: &str) -> Option<String> {
        let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        check(operation, &headers, Some(query)).err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let refused = Some("NotImplemented".to_owned());
        for (operation, name, understood) in [
            ("GetObject", "if-modified-since", true),
            ("HeadObject", "if-range", true),
            ("PutObject", "if-none-match", true),
            ("PutObject", "if-unmodified-since", false),
            ("PutObject", "x-amz-copy-source-if-match", false),
            ("CopyObject", "if-match", true),
            ("CopyObject", "x-amz-copy-source-if-modified-since", true),
            ("UploadPartCopy", "x-amz-copy-source-if-none-match", true),
            ("UploadPart", "if-match", false),
            ("DeleteObject", "x-amz-if-match-size", true),
            ("DeleteObject", "if-none-match", false),
            ("DeleteObjects", "if-match", false),
            ("DeleteBucket", "if-match", false),
            ("AbortMultipartUpload", "x-amz-if-match-initiated-time", false),
            ("PutObjectTagging", "if-match", false),
            ("PutObject", "x-amz-if-something-new", false),
            ("PutObject", "if", false),
            ("PutObject", "content-range", false),
            ("PutObject", "x-amz-write-offset-bytes", false),
            ("PutObject", "x-amz-server-side-encryption-customer-algorithm", false),
            ("CopyObject", "x-amz-copy-source-server-side-encryption-customer-key", false),
            ("PutObject", "x-amz-object-lock-mode", false),
            ("PutObject", "x-amz-meta-what-if-not", true),
            ("PutObject", "x-amz-storage-class", true),
        ] {
            let expected = if understood { None } else { refused.clone() };
            assert_eq!(code(operation, &[(name, "x")], ""), expected, "{operation} {name}");
        }
        for (tag, is_one) in [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("*", true),
            ("a", true),
            ("\"a\", \"b\"", false),
            ("\"a\"b\"", false),
            ("\"a", false),
        ] {
            let expected = if is_one { None } else { Some("InvalidArgument".to_owned()) };
            assert_eq!(code("PutObject", &[("if-none-match", tag)], ""), expected, "{tag}");
            assert_eq!(code("CopyObject", &[("x-amz-copy-source-if-match", tag)], ""), expected, "{tag}");
        }
        assert_eq!(code("PutObject", &[("x-amz-acl", "private")], ""), None);
        assert_eq!(code("PutObject", &[("x-amz-acl", "public-read")], ""), refused);
        let owned = [("x-amz-expected-bucket-owner", "111122223333")];
        assert_eq!(code("GetObject", &owned, ""), Some("AccessDenied".to_owned()));
    }

    #[test]
    fn forms_say_all_in_their_fields() {
        let status = |headers: &[(&'static str, &str)], query| {
            let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
            check_form_head(&headers, Some(query)).err().map(|refusal| refusal.status())
        };
        let forbidden = Some(StatusCode::FORBIDDEN);
        assert_eq!(status(&[("origin", "https://a"), ("content-type", "multipart/form-data")], "a=b"), None);
        assert_eq!(status(&[("authorization", "AWS4-HMAC-SHA256 x")], ""), forbidden);
        assert_eq!(status(&[("x-amz-meta-a", "b")], ""), forbidden);
        assert_eq!(status(&[], "X-Amz-Signature=a"), forbidden);
        assert_eq!(status(&[], "X%2DAmz-Signature=a"), forbidden);
    }

    #[test]
    fn parameters_name_what_is_changed() {
        let refused = Some("NotImplemented".to_owned());
        for (operation, query, understood) in [
            ("PutObject", "x-id=PutObject&X-Amz-Signature=a", true),
            ("PutObject", "partNumber=1", false),
            ("PutObject", "uploadId=1", false),
            ("PutObject", "renameObject", false),
            ("DeleteBucket", "metadataConfiguration", false),
            ("DeleteBucket", "%6detadata", false),
            ("DeleteObject", "versionId=null", true),
            ("UploadPart", "partNumber=1&uploadId=a", true),
            ("GetObject", "anything=1", true),
        ] {
            let expected = if understood { None } else { refused.clone() };
            assert_eq!(code(operation, &[], query), expected, "{operation} {query}");
        }
        for operation in ["GetObject", "DeleteObject", "PutObjectTagging"] {
            let version = Some("NoSuchVersion".to_owned());
            assert_eq!(code(operation, &[], "versionId=abc"), version, "{operation}");
            assert_eq!(code(operation, &[], "%76ersionId=abc"), version, "{operation}");
        }
    }
}
