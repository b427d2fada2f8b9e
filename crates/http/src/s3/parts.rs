//! Uploads in parts: each part is a file below its bucket, where no key can name it, until they are put together.

use bivouac_types::{Errno, FsError};
use md5::{Digest as _, Md5};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumType, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyPartResult, CopySource, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
    ListPartsOutput, MultipartUpload, Part, Range, UploadPartCopyInput, UploadPartCopyOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3Request, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::checksums::{self, Kept, Kind, Said, Sums, set_sums, sums};
use super::marks::{self, About};
use super::objects::{Received, check, e_tag, hex, receive, time};
use super::tags;
use super::xml::{self, Coding};
use super::{On, Who, bucket, error, object};
use crate::load::PIECE;
use crate::target::Target;
use crate::tree::{Node, OpenFile, check_depth};
use crate::uploads::Replace;

/// The directory of a bucket that has its uploads.
pub const UPLOADS: &[u8] = b".bivouac-uploads";
const UPLOAD: &[u8] = b"user.s3.upload";
/// Highest number of a part.
const PARTS_MAX: i32 = 10_000;
/// Most parts or uploads of a page.
const LISTED_MAX: i32 = 1000;
/// Least length of a part that is not the last, in bytes.
const PART_LEN_MIN: u64 = 5 << 20;

/// What is to become of the parts.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    key: String,
    about: About,
    #[serde(default)]
    tags: tags::Tags,
    /// The checksum that each part has.
    #[serde(default)]
    sums: Option<Kind>,
    /// Whether the checksum of the object is of its bytes, and not of those of its parts.
    #[serde(default)]
    is_whole: bool,
}

/// Where the parts of an upload are.
fn place(bucket_name: &str, id: &str) -> S3Result<Target> {
    if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(s3_error!(NoSuchUpload));
    }
    let mut place = bucket(bucket_name)?;
    place.names.extend([UPLOADS.to_vec(), id.as_bytes().to_vec()]);
    Ok(place)
}

fn part(dir: &Target, number: i32) -> S3Result<Target> {
    if !(1..=PARTS_MAX).contains(&number) {
        return Err(s3_error!(InvalidArgument, "parts have numbers from 1 to 10000"));
    }
    let mut part = dir.clone();
    part.names.push(number.to_string().into_bytes());
    Ok(part)
}

fn no_upload(missing: FsError) -> S3Error {
    if missing.errno() == Errno::ENOENT { s3_error!(NoSuchUpload) } else { error(missing) }
}

impl On {
    pub fn begin_parts(&self, input: CreateMultipartUploadInput) -> S3Result<CreateMultipartUploadOutput> {
        let to = object(&input.bucket, &input.key)?;
        // Not only when all parts have come.
        check_depth(&to).map_err(error)?;
        self.is_bucket_of(&to)?;
        let tags = input.tagging.as_deref().map_or_else(|| Ok(tags::Tags::new()), tags::said)?;
        let sums = input.checksum_algorithm.as_ref().map(Kind::named).transpose()?;
        let is_whole = is_whole(sums, input.checksum_type.as_ref())?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| s3_error!(InternalError, "there are no random numbers"))?;
        let id = hex(&random);
        let dir = place(&input.bucket, &id)?;
        self.tree.make_dirs(&self.access, &dir).map_err(error)?;
        let content_type = input.content_type.map(|text| text.to_string());
        let about = About { content_type, metadata: input.metadata.unwrap_or_default() };
        let begun = Begun { key: input.key.clone(), about, tags, sums, is_whole };
        let begun = serde_json::to_vec(&begun).unwrap_or_default();
        let attr = self.tree.attr(&self.access, &dir).map_err(error)?;
        let change = self.tree.member().change().map_err(error)?;
        self.tree
            .client()
            .map_err(error)?
            .setxattr(&change.ctx, attr.ino, UPLOAD, &begun, 0)
            .map_err(error)?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            checksum_algorithm: sums.map(Kind::algorithm),
            checksum_type: sums.map(|_| checksums::type_of(is_whole)),
            key: xml::text(input.key),
            upload_id: Some(id),
            ..Default::default()
        })
    }

    /// Where the parts of an upload are, and what is to become of them.
    fn begun(&self, bucket: &str, key: &str, id: &str) -> S3Result<(Target, Begun)> {
        let dir = place(bucket, id)?;
        let attr = self.tree.attr(&self.access, &dir).map_err(no_upload)?;
        let value = self.tree.client().map_err(error)?.getxattr(attr.ino, UPLOAD);
        let begun: Option<Begun> = value.ok().and_then(|value| serde_json::from_slice(&value).ok());
        let begun = begun.filter(|begun| begun.key == key).ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok((dir, begun))
    }

    pub fn complete_parts(
        &self,
        mut input: CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let to = object(&input.bucket, &input.key)?;
        let (dir, begun) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        let wanted = input.multipart_upload.take().and_then(|upload| upload.parts).unwrap_or_default();
        if wanted.is_empty() {
            return Err(s3_error!(MalformedXML));
        }
        let (mut files, mut sums): (Vec<OpenFile>, Vec<(Sums, u64)>) = (Vec::new(), Vec::new());
        let (mut sum, mut last) = (Md5::new(), 0);
        let needs_sums = begun.sums.is_some() || !sums!(input).is_empty();
        for part_wanted in &wanted {
            let number = part_wanted.part_number.unwrap_or(0);
            if number <= last {
                return Err(s3_error!(InvalidPartOrder));
            }
            last = number;
            let Ok(Node::File(file)) = self.tree.open(&self.access, &part(&dir, number)?) else {
                return Err(s3_error!(InvalidPart));
            };
            let tag = self.tag(&file.attr)?;
            let said = sums!(part_wanted);
            let own = match needs_sums || !said.is_empty() {
                true => marks::sums(self.tree.client().map_err(error)?, &file.attr).map_err(error)?.sums,
                false => Sums::new(),
            };
            let differs = said.iter().any(|(kind, sum)| own.get(kind) != Some(sum));
            if differs || part_wanted.e_tag.as_ref().is_some_and(|said| *said != e_tag(&tag)) {
                return Err(s3_error!(InvalidPart));
            }
            sums.push((own, file.attr.size));
            sum.update(bytes_of(tag.trim_matches('"')).ok_or_else(|| s3_error!(InvalidPart))?);
            files.push(file);
        }
        if files.iter().rev().skip(1).any(|file| file.attr.size < PART_LEN_MIN) {
            return Err(s3_error!(EntityTooSmall));
        }
        let kept = joined(&begun, &input, &sums)?;
        let (mut upload, replace) = self.begin(&to, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        for file in &files {
            upload.append_file(file, (0, file.attr.size)).map_err(error)?;
        }
        self.mark_tags(&upload, &begun.tags)?;
        self.is_still_free(&to)?;
        let tag = format!("{}-{}", hex(&sum.finalize()), files.len());
        let tag = self.end(upload, replace, Some(&tag), (&kept, &begun.about))?;
        drop(files);
        // What of them could not be removed is in nobody's way.
        if let Err(left) = self.remove_parts(&dir) {
            log::warn!("parts of an upload that is complete are left: {left}");
        }
        let mut output = CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            checksum_type: kept.kind(),
            key: xml::text(input.key),
            e_tag: Some(e_tag(&tag)),
            ..Default::default()
        };
        set_sums!(output, kept.sums);
        Ok(output)
    }

    fn remove_parts(&self, dir: &Target) -> Result<(), FsError> {
        let attr = self.tree.attr(&self.access, dir)?;
        loop {
            let entries = self.tree.entries(attr.ino, 0)?;
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                let mut part = dir.clone();
                part.names.push(entry.name);
                self.tree.remove(&self.access, &part, |_| Ok::<_, FsError>(()))?;
            }
        }
        self.tree.remove(&self.access, dir, |_| Ok::<_, FsError>(()))?;
        let mut all = dir.clone();
        all.names.pop();
        match self.tree.remove(&self.access, &all, |_| Ok::<_, FsError>(())) {
            // Other uploads are under way, or have ended meanwhile.
            Err(error) if matches!(error.errno(), Errno::ENOTEMPTY | Errno::ENOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Takes a part from an object that is there. Its tag is the MD5 of what was copied, whatever becomes of that object meanwhile.
    pub fn copy_part(&self, input: &UploadPartCopyInput) -> S3Result<UploadPartCopyOutput> {
        let CopySource::Bucket { bucket, key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let (dir, begun) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        let file = self.open(&object(bucket, key)?)?;
        let tag = self.tag(&file.attr)?;
        check(&tag, input.copy_source_if_match.as_ref(), input.copy_source_if_none_match.as_ref())?;
        let range = match &input.copy_source_range {
            None => (0, file.attr.size),
            Some(text) => {
                let wrong = || s3_error!(InvalidArgument, "the range to copy is written bytes=FIRST-LAST");
                let range = match Range::parse(text) {
                    Ok(range @ Range::Int { last: Some(last), .. }) if last < file.attr.size => range,
                    _ => return Err(wrong()),
                };
                let range = range.check(file.attr.size)?;
                (range.start, range.end)
            }
        };
        let (mut upload, _) =
            self.tree.upload(&self.access, &part(&dir, input.part_number)?).map_err(no_upload)?;
        upload.append_file(&file, range).map_err(error)?;
        let (mut md5, mut hasher, mut at) = (Md5::new(), checksums::hasher(begun.sums), 0);
        while at < upload.len {
            let bytes = upload.written().and_then(|file| file.read(at, PIECE)).map_err(error)?;
            if bytes.is_empty() {
                return Err(s3_error!(InternalError, "what was copied is not there"));
            }
            md5.update(&bytes);
            hasher.update(&bytes);
            at += bytes.len() as u64;
        }
        let (tag, kept) = (hex(&md5.finalize()), Kept::of(sums!(hasher.finalize())));
        let tag = self.end(upload, Replace::Always, Some(&tag), (&kept, &About::default()))?;
        let mut result = CopyPartResult {
            e_tag: Some(e_tag(&tag)),
            last_modified: Some(std::time::SystemTime::now().into()),
            ..Default::default()
        };
        set_sums!(result, kept.sums);
        Ok(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() })
    }

    pub fn list_parts(&self, input: ListPartsInput) -> S3Result<ListPartsOutput> {
        let (dir, _) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        let attr = self.tree.attr(&self.access, &dir).map_err(no_upload)?;
        let after = input.part_number_marker.unwrap_or(0);
        let max = limit(input.max_parts)?;
        let named = self.entries(attr.ino)?.into_iter();
        let mut all: Vec<(i32, bivouac_client::Attr)> =
            named.filter_map(|(name, attr)| Some((name.parse().ok()?, attr))).collect();
        all.retain(|(number, _)| *number > after);
        all.sort_by_key(|&(number, _)| number);
        let is_truncated = max > 0 && all.len() > max;
        all.truncate(max);
        let next = all.last().filter(|_| is_truncated).map(|last| last.0);
        let shown = |(number, attr): &(i32, bivouac_client::Attr)| {
            Ok(Part {
                part_number: Some(*number),
                size: i64::try_from(attr.size).ok(),
                e_tag: Some(e_tag(&self.tag(attr)?)),
                last_modified: Some(time(attr)),
                ..Default::default()
            })
        };
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: xml::text(input.key),
            upload_id: Some(input.upload_id),
            is_truncated: Some(is_truncated),
            max_parts: i32::try_from(max).ok(),
            next_part_number_marker: next,
            part_number_marker: input.part_number_marker,
            parts: Some(all.iter().map(shown).collect::<S3Result<_>>()?),
            ..Default::default()
        })
    }

    pub fn list_uploads(&self, input: ListMultipartUploadsInput) -> S3Result<ListMultipartUploadsOutput> {
        if input.delimiter.as_deref().is_some_and(|delimiter| !delimiter.is_empty()) {
            return Err(s3_error!(NotImplemented, "uploads are listed without a delimiter"));
        }
        self.is_bucket(&input.bucket)?;
        let mut dir = bucket(&input.bucket)?;
        dir.names.push(UPLOADS.to_vec());
        let entries = match self.tree.attr(&self.access, &dir) {
            Ok(attr) => self.entries(attr.ino)?,
            Err(missing) if missing.errno() == Errno::ENOENT => Vec::new(),
            Err(other) => return Err(error(other)),
        };
        let coding = Coding::wanted(input.encoding_type.as_ref())?;
        let client = self.tree.client().map_err(error)?;
        let prefix = input.prefix.as_deref().unwrap_or_default();
        let mut all = Vec::new();
        for (id, attr) in entries {
            // What is gone meanwhile, or is only being begun, is left out.
            let value = client.getxattr(attr.ino, UPLOAD).ok();
            let begun: Option<Begun> = value.and_then(|value| serde_json::from_slice(&value).ok());
            all.extend(
                begun
                    .filter(|begun| begun.key.starts_with(prefix) && coding.can_write(&begun.key))
                    .map(|begun| (begun.key, id, attr)),
            );
        }
        all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        if let Some(after) = &input.key_marker {
            let id = input.upload_id_marker.as_deref();
            all.retain(|(key, own, _)| key > after || key == after && id.is_some_and(|id| own.as_str() > id));
        }
        let max = limit(input.max_uploads)?;
        let is_truncated = max > 0 && all.len() > max;
        all.truncate(max);
        let next = all.last().filter(|_| is_truncated).cloned();
        let shown = |(key, id, attr): (String, String, bivouac_client::Attr)| MultipartUpload {
            initiated: Some(time(&attr)),
            key: Some(coding.write(key)),
            upload_id: Some(id),
            ..Default::default()
        };
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            key_marker: coding.repeat(input.key_marker)?,
            max_uploads: i32::try_from(max).ok(),
            next_key_marker: next.as_ref().map(|(key, ..)| coding.write(key.clone())),
            next_upload_id_marker: next.map(|(_, id, _)| id),
            prefix: coding.repeat(input.prefix)?,
            upload_id_marker: input.upload_id_marker.and_then(xml::text),
            uploads: Some(all.into_iter().map(shown).collect()),
            ..Default::default()
        })
    }

    pub fn abort_parts(&self, input: &AbortMultipartUploadInput) -> S3Result<AbortMultipartUploadOutput> {
        let (dir, _) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        self.remove_parts(&dir).map_err(error)?;
        Ok(AbortMultipartUploadOutput::default())
    }
}

/// Whether the checksum of an object in parts is of its bytes. That of NVMe always is, digests never are.
fn is_whole(kind: Option<Kind>, wanted: Option<&ChecksumType>) -> S3Result<bool> {
    let wanted = wanted.map(|wanted| wanted.as_str() == ChecksumType::FULL_OBJECT);
    match (kind, wanted) {
        (Some(Kind::Crc64Nvme), Some(false)) | (Some(Kind::Sha1 | Kind::Sha256), Some(true)) => {
            Err(s3_error!(InvalidRequest, "CRC64NVME is of the whole object, SHA1 and SHA256 of its parts"))
        }
        (kind, wanted) => Ok(wanted.unwrap_or(kind == Some(Kind::Crc64Nvme))),
    }
}

/// The checksum of what parts give, compared with what is said of it.
fn joined(begun: &Begun, input: &CompleteMultipartUploadInput, parts: &[(Sums, u64)]) -> S3Result<Kept> {
    let len = parts.iter().map(|(_, len)| len).sum();
    if input.mpu_object_size.is_some_and(|said| u64::try_from(said) != Ok::<u64, _>(len)) {
        return Err(s3_error!(InvalidRequest, "the parts together are not as long as the request says"));
    }
    for (kind, said) in sums!(input) {
        let kept = Kept::joined(kind, !said.contains('-'), parts);
        let kept =
            kept.ok_or_else(|| s3_error!(InvalidRequest, "not all parts came with such a checksum"))?;
        if kept.sums.get(&kind) != Some(&said) {
            return Err(s3_error!(BadDigest, "the parts have not the checksum that is said"));
        }
    }
    let kept = begun.sums.and_then(|kind| Kept::joined(kind, begun.is_whole, parts));
    Ok(kept.unwrap_or_default())
}

/// How many a page has.
fn limit(wanted: Option<i32>) -> S3Result<usize> {
    let wanted = usize::try_from(wanted.unwrap_or(LISTED_MAX)).map_err(|_| s3_error!(InvalidArgument))?;
    Ok(wanted.min(LISTED_MAX as usize))
}

/// Out of hexadecimal.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// Takes a part. Several come at the same time.
pub async fn put(who: Who, mut request: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
    let (before, md5) = (sums!(request.input), request.input.content_md5.take());
    let said = Said::new(&mut request, before, md5)?;
    let input = request.input;
    let begun = spawn_blocking(move || {
        let on = who.look()?;
        let (dir, _) = on.begun(&input.bucket, &input.key, &input.upload_id)?;
        let (upload, _) = on.tree.upload(&on.access, &part(&dir, input.part_number)?).map_err(no_upload)?;
        Ok::<_, S3Error>((on, upload, input.body))
    });
    let (on, upload, body) = begun.await.map_err(S3Error::internal_error)??;
    let Received { upload, md5, sums } = receive(upload, body, said).await?;
    let mut output = UploadPartOutput::default();
    set_sums!(output, sums);
    let ended = spawn_blocking(move || {
        let about = About::default();
        on.end(upload, Replace::Always, Some(&hex(&md5)), (&Kept::of(sums), &about))
    });
    output.e_tag = Some(e_tag(&ended.await.map_err(S3Error::internal_error)??));
    Ok(output)
}

#[cfg(test)]
pub fn fuzzed(text: &str, bytes: &[u8]) {
    let _ = (place("bucket", text), bytes_of(text), serde_json::from_slice::<Begun>(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_and_parts_have_their_places() {
        let id = "0123456789abcdef0123456789abcdef";
        let dir = place("b", id).unwrap();
        assert_eq!(part(&dir, 7).unwrap().path(), format!("/b/.bivouac-uploads/{id}/7").into_bytes());
        for wrong in ["", "..", "0123456789abcdef0123456789abcde/", "x"] {
            assert!(place("b", wrong).is_err(), "{wrong}");
        }
        assert!(part(&dir, 0).is_err() && part(&dir, 10_001).is_err());
        assert_eq!((bytes_of("00ff"), bytes_of("0g"), bytes_of("é")), (Some(vec![0, 255]), None, None));
    }
}
