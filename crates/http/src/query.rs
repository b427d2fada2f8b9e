//! Parameters of requests.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::error_response::ErrorResponse;

/// Returns a request's parameters, without values those that have none.
pub fn parameters(query: Option<&str>) -> impl Iterator<Item = (&str, Option<&str>)> {
    let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value))))
}

/// Returns whether the query has a parameter with this name.
#[must_use]
pub fn has_parameter(query: Option<&str>, name: &str) -> bool {
    parameters(query).any(|(known, _)| known == name)
}

/// Returns the value of a parameter, decoded.
///
/// # Errors
/// That it is no text.
pub fn value<'q>(query: Option<&'q str>, name: &str) -> Result<Option<Cow<'q, str>>, ErrorResponse> {
    let found = parameters(query).find(|(known, _)| *known == name).and_then(|(_, value)| value);
    found
        .map(|value| percent_decode_str(value).decode_utf8())
        .transpose()
        .map_err(|_| ErrorResponse::bad_request(format!("the parameter {name} is no UTF-8; encode it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_name() {
        assert!(
            has_parameter(Some("a&metalink"), "metalink") && has_parameter(Some("metalink=4"), "metalink")
        );
        assert!(!has_parameter(Some("metalinks=metalink"), "metalink") && !has_parameter(None, "metalink"));
    }
}
