//! Tags of objects, as an extended attribute of the file.

use std::collections::BTreeMap;

use bivouac_client::{Attr, Client, OpCtx};
use bivouac_types::{FsResult, Ino};
use percent_encoding::percent_decode_str;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
};
use s3s::{S3Result, s3_error};

use super::marks::optional;
use super::{S3Context, error, object};
use crate::locks::ChangeScope;

const TAGS: &[u8] = b"user.s3.tags";
/// Most tags of an object.
const TAGS_MAX: usize = 10;
/// Longest name of a tag, in characters.
const KEY_MAX: usize = 128;
/// Longest value of a tag, in characters.
const VALUE_MAX: usize = 256;

/// The tags of an object.
pub type Tags = BTreeMap<String, String>;

/// Tags as a request says them, each once.
fn checked(tags: impl IntoIterator<Item = (String, String)>) -> S3Result<Tags> {
    let mut all = Tags::new();
    for (key, value) in tags {
        let is_text = |text: &str| !text.chars().any(char::is_control);
        let (key_len, value_len) = (key.chars().count(), value.chars().count());
        if key_len == 0 || key_len > KEY_MAX || value_len > VALUE_MAX || !is_text(&key) || !is_text(&value) {
            return Err(s3_error!(
                InvalidTag,
                "a tag has a name of 1 to 128 characters, and a value of at most 256"
            ));
        }
        if all.insert(key, value).is_some() {
            return Err(s3_error!(InvalidTag, "a tag is there twice"));
        }
    }
    if all.len() > TAGS_MAX {
        return Err(s3_error!(InvalidTag, "an object has at most 10 tags"));
    }
    Ok(all)
}

/// Tags as the header of a PUT writes them, as parameters.
///
/// # Errors
/// A description of what is malformed.
pub fn said(header: &str) -> S3Result<Tags> {
    let text = |part: &str| {
        // Before decoding, as an encoded plus is a plus.
        let part = part.replace('+', " ");
        let decoded = percent_decode_str(&part).decode_utf8().map(std::borrow::Cow::into_owned);
        decoded.map_err(|_| s3_error!(InvalidTag, "a tag is not UTF-8"))
    };
    let pairs = crate::query::parameters(Some(header));
    let tags = pairs.map(|(key, value)| Ok((text(key)?, text(value.unwrap_or_default())?)));
    checked(tags.collect::<S3Result<Vec<_>>>()?)
}

/// Returns the tags of a file.
pub fn tags(client: &Client, ino: Ino) -> FsResult<Tags> {
    let kept = optional(client.getxattr(ino, TAGS))?;
    Ok(kept.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
}

/// Keeps the tags of a file.
pub fn set_tags(client: &Client, ctx: &OpCtx, ino: Ino, tags: &Tags) -> FsResult<()> {
    if tags.is_empty() {
        return optional(client.removexattr(ctx, ino, TAGS)).map(drop);
    }
    client.setxattr(ctx, ino, TAGS, &serde_json::to_vec(tags).unwrap_or_default(), 0)
}

impl S3Context {
    fn tagged(&self, bucket: &str, key: &str, changes: bool) -> S3Result<Attr> {
        let place = object(bucket, key)?;
        let attr = self.open(&place)?.attr;
        if changes {
            self.check_locks(&place, ChangeScope::Content)?;
            self.tree.may_change(&self.access, &attr).map_err(error)?;
        }
        Ok(attr)
    }

    pub fn tags_of(&self, input: GetObjectTaggingInput) -> S3Result<GetObjectTaggingOutput> {
        let attr = self.tagged(&input.bucket, &input.key, false)?;
        let tags = tags(self.tree.client().map_err(error)?, attr.ino).map_err(error)?;
        let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
        Ok(GetObjectTaggingOutput { tag_set: tags.into_iter().map(tag).collect(), version_id: None })
    }

    fn tag_anew(&self, bucket: &str, key: &str, tags: &Tags) -> S3Result<()> {
        let attr = self.tagged(bucket, key, true)?;
        let change = self.tree.member().change().map_err(error)?;
        set_tags(self.tree.client().map_err(error)?, &change.ctx, attr.ino, tags).map_err(error)
    }

    pub fn set_tags_of(&self, input: PutObjectTaggingInput) -> S3Result<PutObjectTaggingOutput> {
        let tags = input
            .tagging
            .tag_set
            .into_iter()
            .map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default()));
        self.tag_anew(&input.bucket, &input.key, &checked(tags)?)?;
        Ok(PutObjectTaggingOutput::default())
    }

    pub fn remove_tags_of(&self, input: DeleteObjectTaggingInput) -> S3Result<DeleteObjectTaggingOutput> {
        self.tag_anew(&input.bucket, &input.key, &Tags::new())?;
        Ok(DeleteObjectTaggingOutput::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_parameters() {
        let of = |text: &str| said(text).ok().map(|tags| tags.into_iter().collect::<Vec<_>>());
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(of("a=b&c%20d=%C3%A4+e&f"), Some(vec![pair("a", "b"), pair("c d", "ä e"), pair("f", "")]));
        assert_eq!(of(""), Some(vec![]));
        let many: String = (0..=TAGS_MAX).map(|at| format!("k{at}=v&")).collect();
        let (long_key, long_value) = ("k".repeat(KEY_MAX + 1), format!("k={}", "v".repeat(VALUE_MAX + 1)));
        for wrong in ["=b", "a=b&a=c", "a=%ff", "a=%0a", &many, &long_key, &long_value] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
