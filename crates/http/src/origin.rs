//! Origin of a browser's request. A browser sends its key with every request, also with those made by pages of other
//! sites.

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName};

use crate::error_response::ErrorResponse;

/// Header by which browsers tell the origin (Fetch Metadata).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses requests made by pages of other sites. Other clients do not send the header.
///
/// # Errors
/// 403.
pub fn check(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_own = match (text(FETCH_SITE), text(header::ORIGIN)) {
        // `none`: the user has typed the address, or followed a bookmark.
        // Other ports of this host, which may be of other users, are `same-site`, and refused.
        (Some(site), _) if !matches!(site, "same-origin" | "none") => false,
        (_, Some(origin)) => {
            let host = text(header::HOST).unwrap_or_default();
            let place = origin.split_once("://").map(|(_, place)| place);
            place.is_some_and(|place| !host.is_empty() && place.eq_ignore_ascii_case(host))
        }
        _ => true,
    };
    if is_own {
        return Ok(());
    }
    Err(ErrorResponse::new(
        StatusCode::FORBIDDEN,
        "a page of another place may not ask for this; open it here",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_places_are_refused() {
        let all = |pairs: &[(&'static str, &str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            check(&pairs.collect()).is_ok()
        };
        let host = ("host", "127.0.0.1:8443");
        assert!(all(&[host]));
        assert!(all(&[host, ("origin", "https://127.0.0.1:8443"), ("sec-fetch-site", "same-origin")]));
        assert!(all(&[host, ("sec-fetch-site", "none")]));
        for other in ["https://127.0.0.1:8444", "https://evil", "null", "127.0.0.1:8443", ""] {
            assert!(!all(&[host, ("origin", other)]), "{other}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(!all(&[host, ("sec-fetch-site", site)]), "{site}");
        }
        assert!(!all(&[("origin", "https://")]));
    }
}
