//! Entries of directories as JSON.

use bivouac_client::Attr;
use bivouac_types::mode;

use crate::request_path::encoded;

/// Type of an entry whose home does not answer.
pub const UNKNOWN: &str = "its node does not answer";

/// Like [`object`], for an entry whose home does not answer.
#[must_use]
pub fn unknown_object(name: &[u8]) -> serde_json::Value {
    serde_json::json!({
        "name": String::from_utf8_lossy(name),
        "href": encoded(name),
        "type": "unknown",
        "error": UNKNOWN,
    })
}

/// Returns an entry for programs. A name that is no UTF-8 is there with its bytes as a URL writes them.
#[must_use]
pub fn object(name: &[u8], attr: &Attr) -> serde_json::Value {
    let kind = match attr.mode & mode::TYPE {
        mode::DIR => "directory",
        mode::FILE => "file",
        mode::LINK => "link",
        _ => "other",
    };
    serde_json::json!({
        "name": String::from_utf8_lossy(name),
        "href": encoded(name),
        "type": kind,
        "size": attr.size,
        "modified": attr.mtime.secs,
        "mode": attr.mode & mode::PERM,
    })
}
