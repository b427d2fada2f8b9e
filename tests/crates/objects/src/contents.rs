//! What the store has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use md5::{Digest, Md5};
use s3s::dto::ETag;

/// One object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its content.
    pub bytes: Bytes,
    /// Metadata by names without `x-amz-meta-`.
    pub metadata: HashMap<String, String>,
    /// Content type, if one was given.
    pub content_type: Option<String>,
    /// Its name for this content, in quotes.
    pub tag: ETag,
    /// When it came.
    pub since: SystemTime,
}

/// An upload that is not complete.
#[derive(Clone, Debug)]
pub struct Upload {
    /// What it will be.
    pub key: String,
    /// Metadata that it will have.
    pub metadata: HashMap<String, String>,
    /// Its parts.
    pub parts: BTreeMap<i32, (Bytes, ETag)>,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Contents {
    /// Objects by key.
    pub objects: BTreeMap<String, Arc<Object>>,
    /// Uploads by name.
    pub uploads: HashMap<String, Upload>,
    /// How many there have been.
    pub begun: u64,
    /// Does not know conditions of writes, as older stores.
    pub is_old: bool,
    /// Sends all content, whatever part was asked for.
    pub ignores_ranges: bool,
    /// Gives no names for content.
    pub has_no_tags: bool,
    /// Shows uploads that are not complete only to whom names the whole key, as MinIO.
    pub shows_uploads_by_key: bool,
    /// Keys of one page of a listing, at most; 0 for the usual 1,000.
    pub page: usize,
}

/// The usual name for content.
pub fn tag_of(bytes: &[u8]) -> ETag {
    ETag::Strong(hex(&Md5::digest(bytes)))
}

/// The usual name for content that came in parts.
pub fn tag_of_parts<'a>(parts: impl Iterator<Item = &'a Bytes>) -> ETag {
    let (mut digest, mut count) = (Md5::new(), 0);
    for part in parts {
        digest.update(Md5::digest(part));
        count += 1;
    }
    ETag::Strong(format!("{}-{count}", hex(&digest.finalize())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Object {
    /// An object with this content and metadata.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>, metadata: HashMap<String, String>) -> Object {
        let bytes = bytes.into();
        let tag = tag_of(&bytes);
        Object { bytes, metadata, content_type: None, tag, since: SystemTime::now() }
    }
}
