//! Page of one file.

use std::sync::Arc;

use hyper::Response;

use super::{ExplainRequest, Views, made};
use crate::body::Body;
use crate::error_response::ErrorResponse;
use crate::query::value;
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};

/// Returns the path in a parameter, encoded as in a request.
///
/// # Errors
/// That it names nothing.
pub fn target(query: Option<&str>, name: &str) -> Result<RequestPath, ErrorResponse> {
    let missing = || ErrorResponse::bad_request(format!("the parameter {name} is missing"));
    let path = value(query, name)?.ok_or_else(missing)?;
    RequestPath::parse(&path).map_err(|why| ErrorResponse::bad_request(format!("{name}: {why}")))
}

/// Returns the location of a file's bytes.
pub fn explain(
    tree: &Arc<Tree>,
    views: &Views,
    access: &Access,
    query: Option<&str>,
) -> Result<Response<Body>, ErrorResponse> {
    let target = target(query, "path")?;
    let attr = tree.attr(access, &target)?;
    let path = target.path();
    let path = String::from_utf8_lossy(&path);
    let sees_places = access.prefix.names.is_empty();
    let dir = target.parent().and_then(|dir| tree.attr(access, &dir).ok()).map(|dir| dir.ino);
    let explained = ExplainRequest { client: tree.client()?, path: &path, ino: attr.ino, dir, sees_places };
    made("explain.json", (views.explain)(explained))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::StatusCode;

    #[test]
    fn parameters_are_decoded_once() {
        let query = Some("path=%2Fa%2520b%2F%25C3%25A4&words=two%20words&x");
        assert_eq!(target(query, "path").unwrap().path(), "/a b/ä".as_bytes());
        assert_eq!(value(query, "words").unwrap().as_deref(), Some("two words"));
        assert_eq!(value(query, "x").unwrap(), None);
        for wrong in [
            None,
            Some("path"),
            Some("path=a"),
            Some("path=%2F..%2Fx"),
            Some("path=%2F.bivouac-x"),
            Some("path=%ff"),
        ] {
            assert_eq!(target(wrong, "path").unwrap_err().status(), StatusCode::BAD_REQUEST, "{wrong:?}");
        }
    }
}
