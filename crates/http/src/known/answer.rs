//! Responses about published entries that the formation has cached.

use std::sync::Arc;

use bivouac_publish::EntryRef;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::{PLACE, find, list};
use crate::body::{Body, typed};
use crate::error_response::ErrorResponse;
use crate::keys;
use crate::query::value;
use crate::request_path::behind;
use crate::tree::{Access, Tree};

/// Returns the part of a request's path below the prefix; `None` for other paths.
#[must_use]
pub fn part_of(path: &str) -> Option<&str> {
    behind(path, PLACE)
}

/// Answers a request: `entry.json` with `catalogue` and `id`, or `find.json` with `catalogue`. This may block.
///
/// # Errors
/// Why not: an entry says where files are that a key for a path need not know of.
pub fn answer(
    tree: &Arc<Tree>,
    access: &Access,
    part: &str,
    query: Option<&str>,
) -> Result<Response<Body>, ErrorResponse> {
    if !access.prefix.names.is_empty() {
        let text = "entries are of the whole formation, and the key is for a path in it; ask for one that is for all";
        return Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
    }
    let missing = |what: &str| ErrorResponse::bad_request(format!("the parameter {what} is missing"));
    let catalogue = value(query, "catalogue")?.ok_or_else(|| missing("catalogue"))?;
    let (client, now) = (tree.client()?, keys::now());
    match part {
        "/entry.json" => {
            let id = value(query, "id")?.ok_or_else(|| missing("id"))?;
            let found = find(client, EntryRef { catalogue: &catalogue, id: &id }, now)?;
            let text = found.and_then(|known| known.encode(&catalogue));
            let unknown = || ErrorResponse::new(StatusCode::NOT_FOUND, "not known here; ask the catalogue");
            Ok(sent(text.ok_or_else(unknown)?))
        }
        "/find.json" => {
            let known = list(client, &catalogue, now)?.into_iter();
            let texts: Vec<Value> =
                known.filter_map(|known| known.encode(&catalogue)).map(Value::from).collect();
            Ok(sent(json!({"entries": texts}).to_string()))
        }
        _ => Err(ErrorResponse::new(StatusCode::NOT_FOUND, "there are entry.json and find.json")),
    }
}

fn sent(text: String) -> Response<Body> {
    let mut response = typed(StatusCode::OK, "application/json", text);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
