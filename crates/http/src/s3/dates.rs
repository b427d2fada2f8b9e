//! Times of signatures. Signatures in a header are good for a quarter of an hour before and after, so that who has seen
//! one cannot send it again later; links that are signed say themselves how long they are good for.

use std::time::SystemTime;

use hyper::StatusCode;
use hyper::header::{self, HeaderMap};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::error_response::ErrorResponse;
use crate::query::parameters;

/// Tolerated clock difference, in seconds, as in S3.
const SKEW_S: i64 = 900;
/// The longest that a signed link may be good for, in seconds, as in S3.
pub const LINK_S_MAX: u64 = 604_800;

/// Refuses what was signed too long ago, or is to be.
pub fn check(headers: &HeaderMap, query: Option<&str>, now: SystemTime) -> Result<(), ErrorResponse> {
    let now = jiff::Timestamp::try_from(now).map_or(0, jiff::Timestamp::as_second);
    if let Some((_, expires)) = parameters(query).find(|(name, _)| *name == "X-Amz-Expires") {
        let is_bounded = expires
            .and_then(|expires| expires.parse::<u64>().ok())
            .is_some_and(|seconds| (1..=LINK_S_MAX).contains(&seconds));
        let text = "X-Amz-Expires is a number of seconds from 1 to 604800";
        if !is_bounded {
            return Err(ErrorResponse::bad_request(text));
        }
        let date = parameters(query).find(|(name, _)| *name == "X-Amz-Date").and_then(|(_, date)| date);
        let is_later = date.and_then(seconds).is_some_and(|signed| signed.saturating_sub(now) > SKEW_S);
        let text =
            "RequestTimeTooSkewed: the link is signed for more than 15 minutes from now; set the clock";
        return if is_later { Err(ErrorResponse::new(StatusCode::FORBIDDEN, text)) } else { Ok(()) };
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::AUTHORIZATION.as_str()).is_none() {
        return Ok(());
    }
    let signed = match (text("x-amz-date"), text(header::DATE.as_str())) {
        (Some(date), _) => seconds(date),
        (None, date) => date
            .and_then(|date| httpdate::parse_http_date(date).ok())
            .map(|date| jiff::Timestamp::try_from(date).map_or(i64::MIN, jiff::Timestamp::as_second)),
    };
    match signed {
        Some(signed) if signed.saturating_sub(now).unsigned_abs() <= SKEW_S.unsigned_abs() => Ok(()),
        Some(_) => {
            let text = "RequestTimeTooSkewed: it was signed more than 15 minutes from now; set the clock, and sign it anew";
            Err(ErrorResponse::new(StatusCode::FORBIDDEN, text))
        }
        None => Err(ErrorResponse::new(
            StatusCode::FORBIDDEN,
            "AccessDenied: a signed request has a date, in x-amz-date",
        )),
    }
}

/// Returns `20261125T091500Z` in seconds since 1970.
fn seconds(date: &str) -> Option<i64> {
    let date = DateTime::strptime("%Y%m%dT%H%M%SZ", date).ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn status(headers: &[(&'static str, &str)], query: Option<&str>, now_s: u64) -> Option<StatusCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        check(&map, query, SystemTime::UNIX_EPOCH + Duration::from_secs(now_s))
            .err()
            .map(|refusal| refusal.status())
    }

    /// S359: what was seen cannot be sent again later.
    #[test]
    fn signatures_end() {
        let date = "20261125T091500Z";
        let then = 1_795_598_100;
        let signed = |date: &str, now| {
            status(&[("authorization", "AWS4-HMAC-SHA256 x"), ("x-amz-date", date)], None, now)
        };
        assert_eq!(seconds(date), Some(then as i64));
        assert_eq!(
            (signed(date, then), signed(date, then + 900), signed(date, then - 900)),
            (None, None, None)
        );
        let forbidden = Some(StatusCode::FORBIDDEN);
        assert_eq!((signed(date, then + 901), signed(date, then - 901)), (forbidden, forbidden));
        assert_eq!(
            (signed("19700101T000000Z", then), signed("yesterday", then), signed("", then)),
            (forbidden, forbidden, forbidden)
        );
        assert_eq!(status(&[("authorization", "AWS4-HMAC-SHA256 x")], None, then), forbidden);
        let dated =
            |date: &str| status(&[("authorization", "AWS4-HMAC-SHA256 x"), ("date", date)], None, then);
        assert_eq!(dated("Wed, 25 Nov 2026 09:16:00 GMT"), None);
        assert_eq!(dated("Wed, 25 Nov 2026 10:16:00 GMT"), forbidden);
        let link =
            |expires: &str| status(&[], Some(&format!("X-Amz-Signature=a&X-Amz-Expires={expires}")), then);
        assert_eq!((link("604800"), link("1")), (None, None));
        let from = |date: &str| link(&format!("60&X-Amz-Date={date}"));
        assert_eq!((from(date), from("20261125T093000Z"), from("20261125T093001Z")), (None, None, forbidden));
        for expires in ["604801", "0", "-1", "", "x"] {
            assert_eq!(link(expires), Some(StatusCode::BAD_REQUEST), "{expires}");
        }
    }
}
