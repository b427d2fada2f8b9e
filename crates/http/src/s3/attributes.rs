//! Response of `GetObjectAttributes`.

use s3s::dto::{
    Checksum, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectAttributes, ObjectPart, StorageClass,
};
use s3s::{S3Result, s3_error};

use super::checksums::set_sums;
use super::marks::{self, PartTable};
use super::objects::{e_tag, time};
use super::{S3Context, error, object};

/// Upper limit of parts per page.
const PARTS_MAX: usize = 1000;

impl S3Context {
    pub fn attributes(&self, input: &GetObjectAttributesInput) -> S3Result<GetObjectAttributesOutput> {
        let found = self.snapshot(&object(&input.bucket, &input.key)?)?;
        let known = [
            ObjectAttributes::CHECKSUM,
            ObjectAttributes::ETAG,
            ObjectAttributes::OBJECT_PARTS,
            ObjectAttributes::OBJECT_SIZE,
            ObjectAttributes::STORAGE_CLASS,
        ];
        let names =
            || input.object_attributes.iter().flat_map(|names| names.as_str().split(',')).map(str::trim);
        if names().next().is_none() || names().any(|name| !known.contains(&name)) {
            return Err(s3_error!(
                InvalidArgument,
                "x-amz-object-attributes names ETag, Checksum, ObjectParts, StorageClass and ObjectSize"
            ));
        }
        let wants = |name| names().any(|wanted| wanted == name);
        let client = self.tree.client().map_err(error)?;
        let mut output =
            GetObjectAttributesOutput { last_modified: Some(time(&found.attr)), ..Default::default() };
        if wants(ObjectAttributes::ETAG) {
            output.e_tag = Some(e_tag(&found.tag));
        }
        if wants(ObjectAttributes::OBJECT_SIZE) {
            output.object_size = i64::try_from(found.size).ok();
        }
        if wants(ObjectAttributes::STORAGE_CLASS) {
            output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
        }
        // A folder is no file: nothing was kept of it.
        if wants(ObjectAttributes::CHECKSUM) && found.file.is_some() {
            let kept = marks::sums(client, &found.attr).map_err(error)?;
            let mut sums = Checksum { checksum_type: kept.kind(), ..Default::default() };
            set_sums!(sums, kept.sums);
            output.checksum = Some(sums).filter(|_| !kept.sums.is_empty());
        }
        if wants(ObjectAttributes::OBJECT_PARTS) && found.file.is_some() {
            let table = marks::parts(client, &found.attr).map_err(error)?;
            output.object_parts = table.map(|table| page(&table, input)).transpose()?;
        }
        Ok(output)
    }
}

/// Returns a page of the parts of an object.
fn page(table: &PartTable, input: &GetObjectAttributesInput) -> S3Result<GetObjectAttributesParts> {
    let number = |number: Option<i32>, otherwise| {
        usize::try_from(number.unwrap_or(otherwise)).map_err(|_| s3_error!(InvalidArgument))
    };
    let after = number(input.part_number_marker, 0)?;
    let max = number(input.max_parts, PARTS_MAX as i32)?.min(PARTS_MAX);
    let part = |(index, len): (usize, u64)| ObjectPart {
        part_number: i32::try_from(index + 1).ok(),
        size: i64::try_from(len).ok(),
        ..Default::default()
    };
    let parts: Option<Vec<ObjectPart>> =
        table.lens(after).map(|lens| (after..).zip(lens).take(max).map(part).collect());
    let last = parts.as_ref().and_then(|parts| parts.last()?.part_number);
    let is_truncated = parts
        .as_ref()
        .is_some_and(|parts| !parts.is_empty() && after.saturating_add(parts.len()) < table.count);
    Ok(GetObjectAttributesParts {
        is_truncated: Some(is_truncated),
        max_parts: i32::try_from(max).ok(),
        next_part_number_marker: last.filter(|_| is_truncated),
        part_number_marker: i32::try_from(after).ok(),
        parts,
        total_parts_count: i32::try_from(table.count).ok(),
    })
}
