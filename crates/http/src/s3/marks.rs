//! What S3 knows of an object besides its bytes, as extended attributes of the file: its entity tag,
//! checksums, type and metadata.

use std::collections::HashMap;

use bivouac_client::{Attr, Client, OpCtx};
use bivouac_types::{Errno, FsResult, Ino};
use serde::{Deserialize, Serialize};

use super::checksums::Kept;
use crate::conditions;

const TAG: &[u8] = b"user.s3.etag";
const SUMS: &[u8] = b"user.s3.checksums";
const ABOUT: &[u8] = b"user.s3.metadata";

/// Its type and what the user says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its type.
    pub content_type: Option<String>,
    /// What the user says.
    #[serde(default)]
    pub metadata: HashMap<String, String>,
}

/// Which state of the file a tag is of.
fn state(attr: &Attr) -> String {
    format!("{}.{}.{:09}.{}", attr.size, attr.mtime.secs, attr.mtime.nanos, attr.epoch)
}

/// `None` for an attribute that is not there.
///
/// # Errors
/// What else it is.
pub fn optional<T>(value: FsResult<T>) -> FsResult<Option<T>> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Errno::ENODATA => Ok(None),
        Err(error) => Err(error),
    }
}

/// The tag of a file as it is: the MD5 of what was put, as long as nothing else has changed it; otherwise one with a dash,
/// which says that it is none.
///
/// # Errors
/// What the formation says.
pub fn tag(client: &Client, attr: &Attr) -> FsResult<String> {
    Ok(kept(client, attr, TAG)?.map_or_else(|| conditions::tag(attr), |tag| format!("\"{tag}\"")))
}

/// What is kept of a file as it is, as long as nothing else has changed it.
fn kept(client: &Client, attr: &Attr, name: &[u8]) -> FsResult<Option<String>> {
    let value = optional(client.getxattr(attr.ino, name))?.and_then(|value| String::from_utf8(value).ok());
    let known = value.as_deref().and_then(|value| value.split_once(' '));
    Ok(known.filter(|(of, _)| *of == state(attr)).map(|(_, kept)| kept.to_owned()))
}

/// Keeps the tag of a file as it is.
///
/// # Errors
/// What the formation says.
pub fn set_tag(client: &Client, ctx: &OpCtx, attr: &Attr, tag: &str) -> FsResult<()> {
    client.setxattr(ctx, attr.ino, TAG, format!("{} {tag}", state(attr)).as_bytes(), 0)
}

/// The checksums of a file as it is, as long as nothing else has changed it.
///
/// # Errors
/// What the formation says.
pub fn sums(client: &Client, attr: &Attr) -> FsResult<Kept> {
    let known = kept(client, attr, SUMS)?;
    Ok(known.and_then(|sums| serde_json::from_str(&sums).ok()).unwrap_or_default())
}

/// Keeps the checksums of a file as it is.
///
/// # Errors
/// What the formation says.
pub fn set_sums(client: &Client, ctx: &OpCtx, attr: &Attr, kept: &Kept) -> FsResult<()> {
    let text = serde_json::to_string(kept).unwrap_or_default();
    client.setxattr(ctx, attr.ino, SUMS, format!("{} {text}", state(attr)).as_bytes(), 0)
}

/// What is known about a file.
///
/// # Errors
/// What the formation says.
pub fn about(client: &Client, ino: Ino) -> FsResult<About> {
    let kept = optional(client.getxattr(ino, ABOUT))?;
    Ok(kept.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
}

/// Keeps what is said about a file, if anything is.
///
/// # Errors
/// What the formation says; `E2BIG` for too much.
pub fn set_about(client: &Client, ctx: &OpCtx, ino: Ino, about: &About) -> FsResult<()> {
    if *about == About::default() {
        return Ok(());
    }
    client.setxattr(ctx, ino, ABOUT, &serde_json::to_vec(about).unwrap_or_default(), 0)
}

#[cfg(test)]
pub fn fuzzed(bytes: &[u8]) {
    let _ = serde_json::from_slice::<About>(bytes);
}
