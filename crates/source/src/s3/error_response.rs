//! Error responses of stores: cause, remedy, and whether a retry may succeed.

use jiff::Timestamp;
use jiff::fmt::rfc2822;

use super::xml_responses::error_code;
use crate::SourceError;
use crate::error::Cause;

/// Clock skew from which on a 403 response is attributed to it, in seconds.
const SKEW_MAX: u64 = 300;

/// Reason why a request has failed, and whether to retry it.
#[derive(Debug)]
pub enum RequestError {
    /// A retry may succeed.
    Transient(SourceError),
    /// A retry cannot succeed.
    Permanent(SourceError),
}

impl RequestError {
    /// Returns the error.
    pub fn into_error(self) -> SourceError {
        match self {
            RequestError::Transient(error) | RequestError::Permanent(error) => error,
        }
    }
}

/// An error response of a store.
pub struct ErrorResponse<'a> {
    /// Object of the request, as shown to users.
    pub object: &'a str,
    /// Host and port of the store.
    pub host: &'a str,
    /// HTTP status; 200 if the store failed after it had begun to respond.
    pub status: u16,
    /// Body, truncated.
    pub text: &'a str,
    /// `Date` header.
    pub date: Option<&'a str>,
    /// `x-amz-bucket-region` header: the region of the bucket if the request went to another one.
    pub region: Option<&'a str>,
}

impl ErrorResponse<'_> {
    /// Returns the error with object, cause and remedy.
    pub fn explain(&self) -> RequestError {
        let code = error_code(self.text).unwrap_or_default();
        let (cause, what) = self.kind(&code);
        let named = if code.is_empty() { format!("HTTP {}", self.status) } else { code.clone() };
        let error = SourceError::new(cause, format!("{}: {what} ({named})", self.object));
        if self.is_passing(&code) { RequestError::Transient(error) } else { RequestError::Permanent(error) }
    }

    fn is_passing(&self, code: &str) -> bool {
        let by_code = matches!(
            code,
            "SlowDown"
                | "InternalError"
                | "ServiceUnavailable"
                | "RequestTimeout"
                | "OperationAborted"
                | "ConditionalRequestConflict"
                | "Throttling"
                | "TooManyRequests"
                | "BadDigest"
                | "IncompleteBody"
        );
        // Proxies in front of a store answer without a code.
        by_code || matches!(self.status, 408 | 429 | 500 | 502 | 503 | 504)
    }

    fn kind(&self, code: &str) -> (Cause, String) {
        let said = |cause, what: &str| (cause, what.to_owned());
        // Before the code: stores call a skewed clock a wrong signature, which sends the user after another secret.
        if let (403, Some(seconds)) = (self.status, self.skew()) {
            let what = format!("clocks differ by {seconds} s: set this machine's clock, then try again");
            return (Cause::Lost, what);
        }
        match code {
            // Not `NotFound`: all files of the partition would be taken for removed.
            "NoSuchBucket" => said(Cause::Lost, "there is no such bucket: make it, or correct the source"),
            "NoSuchKey" => said(Cause::NotFound, "there is no such object"),
            "NoSuchUpload" => said(Cause::NotFound, "the upload is gone: try again"),
            "AccessDenied" | "AllAccessDisabled" => {
                said(Cause::Denied, "access denied: these credentials lack the permission")
            }
            "InvalidAccessKeyId" => {
                said(Cause::Denied, "the store does not know the key: check AWS_ACCESS_KEY_ID")
            }
            "SignatureDoesNotMatch" => {
                said(Cause::Denied, "the secret does not fit the key: check AWS_SECRET_ACCESS_KEY")
            }
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => {
                said(Cause::Denied, "the session token has expired: renew the credentials")
            }
            "RequestTimeTooSkewed" | "RequestExpired" => {
                said(Cause::Lost, "clocks differ: set this machine's clock, then try again")
            }
            "PreconditionFailed" | "ConditionalRequestConflict" | "InvalidRange" => {
                said(Cause::Changed, "changed at the source meanwhile")
            }
            "InvalidObjectState" => said(
                Cause::Unsupported,
                "is in a storage class that is not read at once: have the store bring it back, then try again",
            ),
            "NotImplemented" => said(Cause::Unsupported, "the store cannot do this"),
            "KeyTooLongError" => said(Cause::BadName, "the store takes no key as long as this"),
            "QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded" => {
                said(Cause::Full, "the store is full, or its quota is")
            }
            "EntityTooLarge" => said(Cause::Unsupported, "the store takes no object as large as this"),
            "MetadataTooLarge" => said(Cause::Unsupported, "its attributes do not fit into metadata"),
            _ => self.kind_of_status(),
        }
    }

    fn kind_of_status(&self) -> (Cause, String) {
        let host = self.host;
        let (cause, what) = match self.status {
            301 | 307 | 308 | 400 if self.region.is_some() => {
                let region = self.region.unwrap_or_default();
                let region: String =
                    region.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(32).collect();
                return (Cause::Lost, format!("the bucket is in region '{region}': set AWS_REGION"));
            }
            300..=399 => (Cause::Lost, format!("{host} sends elsewhere: correct endpoint and region")),
            401 | 403 => (Cause::Denied, "access denied: check credentials and their permissions".to_owned()),
            // Answers to `HEAD` have no body, and so no code.
            404 => (Cause::NotFound, "there is no such object".to_owned()),
            409 | 412 | 416 => (Cause::Changed, "changed at the source meanwhile".to_owned()),
            405 | 501 => (Cause::Unsupported, format!("{host} cannot do this")),
            507 => (Cause::Full, "the store is full".to_owned()),
            408 | 429 | 500..=599 => (Cause::Lost, format!("{host} cannot answer now: try again later")),
            _ => (Cause::Other, format!("{host} refuses")),
        };
        (cause, what)
    }

    /// Returns the clock skew in seconds, if it is too large.
    fn skew(&self) -> Option<u64> {
        let theirs = parse_date(self.date?)?;
        let seconds = Timestamp::now().as_second().abs_diff(theirs);
        (seconds > SKEW_MAX).then_some(seconds)
    }
}

/// Parses an HTTP date to seconds since 1970.
pub fn parse_date(text: &str) -> Option<i64> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok().map(Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(status: u16, text: &str, date: Option<&str>) -> RequestError {
        let refusal = ErrorResponse { object: "s3://b/f", host: "h:1", status, text, date, region: None };
        refusal.explain()
    }

    #[test]
    fn refusals_name_object_cause_and_remedy() {
        let cases = [
            ("AccessDenied", Cause::Denied, "lack the permission"),
            ("NoSuchBucket", Cause::Lost, "make it, or correct the source"),
            ("InvalidAccessKeyId", Cause::Denied, "check AWS_ACCESS_KEY_ID"),
            ("SignatureDoesNotMatch", Cause::Denied, "check AWS_SECRET_ACCESS_KEY"),
            ("ExpiredToken", Cause::Denied, "renew"),
            ("RequestTimeTooSkewed", Cause::Lost, "clock"),
            ("QuotaExceeded", Cause::Full, "full"),
            ("InvalidObjectState", Cause::Unsupported, "have the store bring it back"),
        ];
        for (code, cause, what) in cases {
            let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
            let RequestError::Permanent(error) = explained(403, &text, None) else {
                panic!("{code} does not pass")
            };
            assert_eq!(error.cause(), cause, "{code}");
            let said = error.to_string();
            assert!(said.starts_with("s3://b/f: ") && said.contains(what) && said.contains(code), "{said}");
        }
    }

    #[test]
    fn a_wrong_clock_is_told_from_a_wrong_key() {
        let error = explained(403, "", Some("Fri, 24 May 2013 00:00:00 GMT")).into_error();
        assert!(error.cause() == Cause::Lost && error.to_string().contains("clocks differ by"), "{error}");
        assert_eq!(parse_date("Fri, 24 May 2013 00:00:00 GMT"), Some(1_369_353_600));
        assert_eq!(parse_date("yesterday"), None);
    }

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        for status in [429, 500, 503] {
            assert!(matches!(explained(status, "", None), RequestError::Transient(_)), "{status}");
        }
        for status in [400, 403, 404, 412, 501] {
            assert!(matches!(explained(status, "", None), RequestError::Permanent(_)), "{status}");
        }
    }
}
