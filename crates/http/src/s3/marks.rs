//! S3 metadata of an object in extended attributes of the file: entity tag, checksums, content type and user metadata.

use std::collections::HashMap;

use bivouac_client::{Attr, Client, OpCtx};
use bivouac_types::{Errno, FsResult, Ino};
use s3s::dto::{Timestamp, TimestampFormat};
use serde::{Deserialize, Serialize};

use super::checksums::StoredChecksums;
use crate::conditions;

const TAG: &[u8] = b"user.s3.etag";
const SUMS: &[u8] = b"user.s3.checksums";
const ABOUT: &[u8] = b"user.s3.metadata";
const PARTS: &[u8] = b"user.s3.parts";

/// Upper limit of stored runs of parts: parts of an upload have one length, except for the last.
const RUNS_MAX: usize = 1024;
/// Content coding that only describes the transfer.
const CHUNKED: &str = "aws-chunked";

/// Content type and user metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectMetadata {
    /// Its type.
    pub content_type: Option<String>,
    /// User metadata.
    pub metadata: HashMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_language: Option<String>,
    /// A date of HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The state of the file that `content_encoding` is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) encoded: Option<String>,
}

impl ObjectMetadata {
    /// Returns the metadata without the coding by which a body was only sent.
    #[must_use]
    pub fn into_stored(mut self) -> ObjectMetadata {
        let coding = self.content_encoding.take().unwrap_or_default();
        let codings = coding.split(',').map(str::trim).filter(|coding| !coding.eq_ignore_ascii_case(CHUNKED));
        self.content_encoding = Some(codings.collect::<Vec<_>>().join(",")).filter(|left| !left.is_empty());
        self
    }
}

/// Extracts the metadata from a request.
macro_rules! about_of {
    ($input:expr) => {{
        let input = &$input;
        let expires = input.expires.as_ref().and_then($crate::s3::marks::http_date);
        let about = ObjectMetadata {
            content_type: input.content_type.as_ref().map(ToString::to_string),
            metadata: input.metadata.clone().unwrap_or_default(),
            cache_control: input.cache_control.clone(),
            content_disposition: input.content_disposition.clone(),
            content_encoding: input.content_encoding.clone(),
            content_language: input.content_language.clone(),
            expires,
            ..ObjectMetadata::default()
        };
        about.into_stored()
    }};
}

/// Sets the metadata in a response.
macro_rules! show_about {
    ($to:expr, $about:expr) => {{
        let about = $about;
        $to.content_type = about.content_type.and_then(|text| text.parse().ok());
        $to.metadata = Some(about.metadata);
        $to.cache_control = about.cache_control;
        $to.content_disposition = about.content_disposition;
        $to.content_encoding = about.content_encoding;
        $to.content_language = about.content_language;
        $to.expires = about.expires.as_deref().and_then($crate::s3::marks::timestamp);
    }};
}

pub(super) use {about_of, show_about};

/// Returns a date of HTTP.
pub fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// Parses a date of HTTP.
pub fn timestamp(date: &str) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, date).ok()
}

/// The upload in parts that an object was made by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTable {
    /// The upload's id.
    pub upload: String,
    /// Number of parts.
    pub count: usize,
    /// Numbers of parts that follow each other, with their length in bytes; `None` if there are too many runs.
    runs: Option<Vec<(usize, u64)>>,
}

impl PartTable {
    /// Creates the table from the lengths of the parts, in bytes.
    #[must_use]
    pub fn new(upload: String, lens: impl IntoIterator<Item = u64>) -> PartTable {
        let (mut runs, mut count) = (Vec::<(usize, u64)>::new(), 0);
        for len in lens {
            count += 1;
            match runs.last_mut() {
                Some((number, last)) if *last == len => *number += 1,
                _ => runs.push((1, len)),
            }
        }
        PartTable { upload, count, runs: Some(runs).filter(|runs| runs.len() <= RUNS_MAX) }
    }

    /// Returns the lengths of the parts from the one at `index` on, in bytes; `None` if they are not kept.
    #[must_use]
    pub fn lens(&self, index: usize) -> Option<impl Iterator<Item = u64>> {
        // By runs: programs can set the attribute, and a run may claim any number of parts.
        let mut skipped = index;
        let behind = self.runs.as_ref()?.iter().map(move |(number, len)| {
            let left = number.saturating_sub(skipped);
            skipped = skipped.saturating_sub(*number);
            (left, *len)
        });
        Some(behind.flat_map(|(number, len)| std::iter::repeat_n(len, number)))
    }

    /// Returns the offset of the part at `index`, in bytes; `None` if it is not kept or cannot be.
    #[must_use]
    pub fn start(&self, index: usize) -> Option<u64> {
        let (mut left, mut start) = (index, 0_u64);
        for (number, len) in self.runs.as_ref()? {
            let taken = left.min(*number);
            start = start.checked_add(len.checked_mul(taken as u64)?)?;
            left -= taken;
        }
        Some(start)
    }
}

/// Returns the state of the file that a tag belongs to.
fn state(attr: &Attr) -> String {
    // Size and times alone do not tell: programs set times, and overwrites reach the home late.
    let Attr { size, mtime, epoch, data_version, .. } = attr;
    format!("{size}.{}.{:09}.{epoch}.{data_version}", mtime.secs, mtime.nanos)
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

/// Returns the entity tag of a file: the MD5 of what was put, as long as nothing else has changed it; otherwise one
/// with a dash, which marks it as no MD5.
pub fn tag(client: &Client, attr: &Attr) -> FsResult<String> {
    Ok(kept(client, attr, TAG)?.map_or_else(|| conditions::tag(attr), |tag| format!("\"{tag}\"")))
}

/// Returns a stored value of a file, as long as nothing else has changed the file or may be changing it.
fn kept(client: &Client, attr: &Attr, name: &[u8]) -> FsResult<Option<String>> {
    // What is being written may not have raised the version yet.
    if attr.is_being_written() {
        return Ok(None);
    }
    let value = optional(client.getxattr(attr.ino, name))?.and_then(|value| String::from_utf8(value).ok());
    let known = value.as_deref().and_then(|value| value.split_once(' '));
    Ok(known.filter(|(of, _)| *of == state(attr)).map(|(_, kept)| kept.to_owned()))
}

/// Keeps the tag of a file as it is.
pub fn set_tag(client: &Client, ctx: &OpCtx, attr: &Attr, tag: &str) -> FsResult<()> {
    client.setxattr(ctx, attr.ino, TAG, format!("{} {tag}", state(attr)).as_bytes(), 0)
}

/// Returns the checksums of a file as it is, as long as nothing else has changed it.
pub fn sums(client: &Client, attr: &Attr) -> FsResult<StoredChecksums> {
    let known = kept(client, attr, SUMS)?;
    Ok(known.and_then(|sums| serde_json::from_str(&sums).ok()).unwrap_or_default())
}

/// Keeps the checksums of a file as it is.
pub fn set_sums(client: &Client, ctx: &OpCtx, attr: &Attr, kept: &StoredChecksums) -> FsResult<()> {
    let text = serde_json::to_string(kept).unwrap_or_default();
    client.setxattr(ctx, attr.ino, SUMS, format!("{} {text}", state(attr)).as_bytes(), 0)
}

/// Returns the upload in parts that a file was made by, as long as nothing else has changed it.
pub fn parts(client: &Client, attr: &Attr) -> FsResult<Option<PartTable>> {
    Ok(kept(client, attr, PARTS)?.and_then(|table| serde_json::from_str(&table).ok()))
}

/// Keeps the upload in parts that a file was made by.
pub fn set_parts(client: &Client, ctx: &OpCtx, attr: &Attr, table: &PartTable) -> FsResult<()> {
    let text = serde_json::to_string(table).unwrap_or_default();
    client.setxattr(ctx, attr.ino, PARTS, format!("{} {text}", state(attr)).as_bytes(), 0)
}

/// Returns the metadata of a file. A content coding is dropped when something else has changed the content.
pub fn about(client: &Client, attr: &Attr) -> FsResult<ObjectMetadata> {
    let kept = optional(client.getxattr(attr.ino, ABOUT))?;
    let mut about: ObjectMetadata =
        kept.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default();
    if about.encoded.take().is_none_or(|of| of != state(attr)) {
        about.content_encoding = None;
    }
    Ok(about)
}

/// Stores metadata of a file, if there is any.
///
/// # Errors
/// Errors of the formation; `E2BIG` for too much.
pub fn set_about(client: &Client, ctx: &OpCtx, attr: &Attr, about: &ObjectMetadata) -> FsResult<()> {
    if *about == ObjectMetadata::default() {
        return Ok(());
    }
    let encoded = about.content_encoding.as_ref().map(|_| state(attr));
    write_about(client, ctx, attr.ino, &ObjectMetadata { encoded, ..about.clone() })
}

fn write_about(client: &Client, ctx: &OpCtx, ino: Ino, about: &ObjectMetadata) -> FsResult<()> {
    client.setxattr(ctx, ino, ABOUT, &serde_json::to_vec(about).unwrap_or_default(), 0)
}

/// Marks a directory as an object whose key ends in a slash.
pub fn set_folder(client: &Client, ctx: &OpCtx, dir: Ino, about: &ObjectMetadata) -> FsResult<()> {
    write_about(client, ctx, dir, about)
}

/// Returns whether a directory was put as an object whose key ends in a slash.
pub fn is_folder(client: &Client, dir: Ino) -> FsResult<bool> {
    Ok(optional(client.getxattr(dir, ABOUT))?.is_some())
}

/// Makes a directory no object any more.
pub fn unset_folder(client: &Client, ctx: &OpCtx, dir: Ino) -> FsResult<()> {
    optional(client.removexattr(ctx, dir, ABOUT)).map(drop)
}

#[cfg(test)]
pub fn fuzzed(bytes: &[u8]) {
    let _ = serde_json::from_slice::<ObjectMetadata>(bytes);
    if let Ok(table) = serde_json::from_slice::<PartTable>(bytes) {
        let _ = (table.lens(3).map(|lens| lens.take(10).count()), table.start(7));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codings_of_the_content_are_kept() {
        for (coding, kept) in [
            (None, None),
            (Some("gzip"), Some("gzip")),
            (Some("aws-chunked"), None),
            (Some("AWS-Chunked, gzip"), Some("gzip")),
            (Some("gzip,aws-chunked"), Some("gzip")),
            (Some(""), None),
        ] {
            let about =
                ObjectMetadata { content_encoding: coding.map(str::to_owned), ..ObjectMetadata::default() };
            assert_eq!(about.into_stored().content_encoding.as_deref(), kept, "{coding:?}");
        }
    }

    #[test]
    fn lengths_of_parts_are_kept_in_runs() {
        let lens: Vec<u64> = std::iter::repeat_n(5, 9_999).chain([3]).collect();
        let table = PartTable::new("id".into(), lens.clone());
        let text = serde_json::to_vec(&table).unwrap();
        assert!(text.len() < 100);
        let read: PartTable = serde_json::from_slice(&text).unwrap();
        assert_eq!((read.count, read.lens(0).unwrap().collect::<Vec<_>>()), (10_000, lens));
        assert_eq!(read.lens(9_998).unwrap().collect::<Vec<_>>(), [5, 3]);
        assert_eq!((read.start(0), read.start(3), read.start(10_000)), (Some(0), Some(15), Some(49_998)));
        let table = PartTable::new("id".into(), 0..10_000);
        assert!(table.lens(0).is_none() && table.start(1).is_none() && table.count == 10_000);
    }

    #[test]
    fn a_run_that_claims_any_number_of_parts_takes_no_time() {
        let huge = PartTable { upload: String::new(), count: usize::MAX, runs: Some(vec![(usize::MAX, 1)]) };
        assert_eq!(huge.lens(usize::MAX - 2).unwrap().count(), 2);
        assert_eq!((huge.start(1 << 40), huge.lens(1 << 40).unwrap().next()), (Some(1 << 40), Some(1)));
        let long = PartTable { runs: Some(vec![(3, u64::MAX)]), ..huge };
        assert_eq!(long.start(2), None);
    }
}
