//! Validators of files, and conditional requests.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bivouac_client::Attr;
use bivouac_types::BEING_WRITTEN;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};

use crate::error_response::ErrorResponse;

/// The last second that a date of HTTP can say: that of the year 9999.
const DATE_MAX: i64 = 253_402_300_799;

/// Identity of a file's content at a moment. Contents of a file that is being written are never equal, because changes
/// cannot be detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentState {
    ino: u64,
    size: u64,
    mtime: (i64, u32),
    epoch: u32,
    data_version: u64,
    /// Distinguishes moments of a file that is being written.
    moment: Option<u64>,
}

/// Returns the content's identity from attributes.
#[must_use]
pub fn content_state(attr: &Attr) -> ContentState {
    static MOMENTS: AtomicU64 = AtomicU64::new(0);
    // Random: tags of two servers, or of one before and after a restart, must not be equal by chance.
    let drawn = || RandomState::new().hash_one(MOMENTS.fetch_add(1, Ordering::Relaxed));
    ContentState {
        ino: attr.ino.0,
        size: attr.size,
        mtime: (attr.mtime.secs, attr.mtime.nanos),
        epoch: attr.epoch,
        data_version: attr.data_version & !BEING_WRITTEN,
        moment: attr.is_being_written().then(drawn),
    }
}

/// Returns the entity tag of a file as it is. It changes with every change of content, whatever the file's times are,
/// and with a file of its own under the name. While the file is being written each answer has another one.
#[must_use]
pub fn tag(attr: &Attr) -> String {
    let ContentState { ino, size, mtime, epoch, data_version, moment } = content_state(attr);
    let moment = moment.map_or_else(String::new, |moment| format!("-w{moment:x}"));
    format!("\"{ino:x}-{size:x}-{:x}.{:x}-{epoch:x}-{data_version:x}{moment}\"", mtime.0, mtime.1)
}

/// Returns the modification time as far as an HTTP date can express it.
#[must_use]
pub fn modified(attr: &Attr) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(attr.mtime.secs.clamp(0, DATE_MAX).unsigned_abs())
}

/// Sets the headers by which a client validates its copy of a file.
pub fn validators(attr: &Attr, headers: &mut HeaderMap) {
    if let Ok(value) = HeaderValue::from_str(&tag(attr)) {
        headers.insert(header::ETAG, value);
    }
    if let Ok(value) = HeaderValue::from_str(&httpdate::fmt_http_date(modified(attr))) {
        headers.insert(header::LAST_MODIFIED, value);
    }
}

/// Looks whether a request is to be carried out, in the order that RFC 9110 (13.2.2) has. `found` is what is at the
/// path.
///
/// # Errors
/// 304 or 412.
pub fn check(method: &Method, headers: &HeaderMap, found: Option<&Attr>) -> Result<(), ErrorResponse> {
    let failed =
        || ErrorResponse::new(StatusCode::PRECONDITION_FAILED, "the file is not as the request wants it");
    let is_read = method == Method::GET || method == Method::HEAD;
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    let date = |name| text(name).and_then(|date| httpdate::parse_http_date(date).ok());
    match text(header::IF_MATCH) {
        Some(tags) if !lists(headers, header::IF_MATCH, tags, found, true) => return Err(failed()),
        Some(_) => {}
        None => {
            let since = date(header::IF_UNMODIFIED_SINCE).zip(found);
            // Dates do not tell states of a file that is being written from each other.
            if since.is_some_and(|(since, attr)| modified(attr) > since || attr.is_being_written()) {
                return Err(failed());
            }
        }
    }
    let not_modified = || {
        let mut refusal = ErrorResponse::new(StatusCode::NOT_MODIFIED, "");
        let mut headers = HeaderMap::new();
        if let Some(attr) = found {
            validators(attr, &mut headers);
        }
        for (name, value) in headers {
            refusal = name.into_iter().fold(refusal, |refusal, name| refusal.with(name, value.clone()));
        }
        refusal
    };
    match text(header::IF_NONE_MATCH) {
        Some(tags) if lists(headers, header::IF_NONE_MATCH, tags, found, false) => {
            Err(if is_read { not_modified() } else { failed() })
        }
        Some(_) => Ok(()),
        None => {
            let since = date(header::IF_MODIFIED_SINCE).zip(found).filter(|_| is_read);
            if since.is_some_and(|(since, attr)| modified(attr) <= since && !attr.is_being_written()) {
                Err(not_modified())
            } else {
                Ok(())
            }
        }
    }
}

/// Returns whether a request has conditions on the content, and not only on the existence of a file.
#[must_use]
pub fn compares_content(headers: &HeaderMap) -> bool {
    let is_any = |value: &HeaderValue| value.as_bytes().trim_ascii() == b"*";
    headers.get(header::IF_MATCH).is_some_and(|tags| !is_any(tags))
        || headers.contains_key(header::IF_NONE_MATCH)
        || headers.contains_key(header::IF_UNMODIFIED_SINCE)
}

/// Returns whether a header lists the entity tag. In a strong comparison weak tags match nothing.
fn lists(
    headers: &HeaderMap,
    name: header::HeaderName,
    first: &str,
    found: Option<&Attr>,
    strictly: bool,
) -> bool {
    let Some(attr) = found else { return false };
    let own = tag(attr);
    let all = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
    first.trim() == "*"
        || all.flat_map(|value| value.split(',')).map(str::trim).any(|tag| {
            let tag = if strictly { tag } else { tag.strip_prefix("W/").unwrap_or(tag) };
            tag == own
        })
}

/// Returns whether a `Range` applies: `If-Range` names the state of the file that it refers to.
#[must_use]
pub fn range_holds(headers: &HeaderMap, attr: &Attr) -> bool {
    let Some(seen) = headers.get(header::IF_RANGE) else { return true };
    let seen = seen.to_str().unwrap_or_default().trim();
    if seen.starts_with('"') {
        return seen == tag(attr);
    }
    // Exactly that date (RFC 9110, 13.1.5): with an earlier one the client has another state.
    !attr.is_being_written() && httpdate::parse_http_date(seen).is_ok_and(|date| date == modified(attr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{Ino, Layout, TargetIndex, Timestamp, mode};

    fn attr() -> Attr {
        let time = Timestamp { secs: 784_111_777, nanos: 5 };
        let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
        Attr { size: 3, ..Attr::new(Ino(20), mode::FILE | 0o644, layout, time) }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn conditions_are_looked_at_as_the_rfc_orders_them() {
        let (attr, own) = (attr(), tag(&attr()));
        let (then, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
        let earlier = "Sun, 06 Nov 1994 08:49:36 GMT";
        let weak = format!("\"x\", W/{own}");
        for (method, pairs, there, gone) in [
            (Method::GET, vec![], 200, 200),
            (Method::GET, vec![("if-none-match", own.as_str())], 304, 200),
            (Method::GET, vec![("if-none-match", weak.as_str())], 304, 200),
            (Method::PUT, vec![("if-none-match", "*")], 412, 200),
            (Method::PUT, vec![("if-match", "*")], 200, 412),
            (Method::PUT, vec![("if-match", own.as_str())], 200, 412),
            (Method::PUT, vec![("if-match", weak.as_str())], 412, 412),
            (Method::GET, vec![("if-modified-since", then)], 304, 200),
            (Method::GET, vec![("if-modified-since", earlier)], 200, 200),
            (Method::PUT, vec![("if-modified-since", then)], 200, 200),
            (Method::GET, vec![("if-modified-since", then), ("if-none-match", "\"x\"")], 200, 200),
            (Method::GET, vec![("if-unmodified-since", earlier)], 412, 200),
            (Method::GET, vec![("if-unmodified-since", later)], 200, 200),
            (Method::GET, vec![("if-unmodified-since", earlier), ("if-match", "*")], 200, 412),
            (Method::GET, vec![("if-modified-since", "soon")], 200, 200),
        ] {
            let status = |found| {
                check(&method, &headers(&pairs), found).map_or_else(|r| r.status().as_u16(), |()| 200)
            };
            assert_eq!((status(Some(&attr)), status(None)), (there, gone), "{method} {pairs:?}");
        }
    }

    #[test]
    fn a_range_of_another_state_is_none() {
        let attr = attr();
        for (seen, holds) in [
            (tag(&attr).as_str(), true),
            ("\"x\"", false),
            (&format!("W/{}", tag(&attr)), false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
        ] {
            assert_eq!(range_holds(&headers(&[("if-range", seen)]), &attr), holds, "{seen}");
        }
        assert!(range_holds(&HeaderMap::new(), &attr));
        let other = Attr { mtime: Timestamp { nanos: 6, ..attr.mtime }, ..attr };
        assert_ne!(tag(&attr), tag(&other));
        let set_back = Attr { data_version: 6, ..attr };
        assert_ne!(tag(&attr), tag(&set_back));
        let renamed = Attr { ctime: Timestamp { nanos: 6, ..attr.ctime }, ..attr };
        assert_eq!(tag(&attr), tag(&renamed), "its content is the same");
    }

    /// Nobody is told that such a file is as it was.
    #[test]
    fn a_file_that_is_being_written_meets_no_tag() {
        let attr = Attr { data_version: 6 | BEING_WRITTEN, ..attr() };
        let [first, second] = [tag(&attr), tag(&attr)];
        assert_ne!(first, second);
        assert_ne!(content_state(&attr), content_state(&attr));
        let status = |name: &'static str, value: &str| {
            let headers = headers(&[(name, value)]);
            check(&Method::GET, &headers, Some(&attr)).map_or_else(|r| r.status().as_u16(), |()| 200)
        };
        assert_eq!([status("if-none-match", &first), status("if-match", &first)], [200, 412]);
        assert_eq!(status("if-match", "*"), 200);
        assert!(!range_holds(&headers(&[("if-range", &first)]), &attr));
    }

    #[test]
    fn times_that_no_date_can_say_are_said_as_the_nearest_one() {
        for (secs, date) in [
            (i64::MIN, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (-1, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (253_402_300_800, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            let attr = Attr { mtime: Timestamp { secs, nanos: 0 }, ..attr() };
            assert_eq!(httpdate::fmt_http_date(modified(&attr)), date);
            let mut headers = HeaderMap::new();
            validators(&attr, &mut headers);
            assert_eq!(headers.get("last-modified").unwrap(), date);
            // As listings of S3 write it.
            let mut text = Vec::new();
            s3s::dto::Timestamp::from(modified(&attr))
                .format(s3s::dto::TimestampFormat::DateTime, &mut text)
                .unwrap();
        }
    }
}
