//! What is asked about one file.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{Response, StatusCode};
use percent_encoding::percent_decode_str;

use super::{Explained, Views, made};
use crate::body::Body;
use crate::refusal::Refusal;
use crate::target::{Target, parameters};
use crate::tree::{Access, Tree};

/// The value of a parameter, decoded.
///
/// # Errors
/// That it is no text.
pub fn value<'q>(query: Option<&'q str>, name: &str) -> Result<Option<Cow<'q, str>>, Refusal> {
    let found = parameters(query).find(|(known, _)| *known == name).and_then(|(_, value)| value);
    found.map(|value| percent_decode_str(value).decode_utf8()).transpose().map_err(|_| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the parameter {name} is no UTF-8; encode it"))
    })
}

/// What a parameter names: a path as a request writes it, encoded once more.
///
/// # Errors
/// That it names nothing.
pub fn target(query: Option<&str>, name: &str) -> Result<Target, Refusal> {
    let missing = || Refusal::new(StatusCode::BAD_REQUEST, format!("the parameter {name} is missing"));
    let path = value(query, name)?.ok_or_else(missing)?;
    Target::parse(&path).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, format!("{name}: {why}")))
}

/// Where the bytes of a file are.
pub fn explain(
    tree: &Arc<Tree>,
    views: &Views,
    access: &Access,
    query: Option<&str>,
) -> Result<Response<Body>, Refusal> {
    let target = target(query, "path")?;
    let attr = tree.attr(access, &target)?;
    let path = target.path();
    let path = String::from_utf8_lossy(&path);
    let sees_places = access.prefix.names.is_empty();
    let explained = Explained { client: tree.client()?, path: &path, ino: attr.ino, sees_places };
    made("explain.json", (views.explain)(explained))
}

#[cfg(test)]
mod tests {
    use super::*;

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
