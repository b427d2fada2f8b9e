//! Uploads in parts: each part is a file below its bucket, where no key can name it, until they are put together.

use bivouac_types::hex::{from_hex, to_hex};
use bivouac_types::{Errno, FsError, Ino};
use md5::{Digest as _, Md5};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumType, CommonPrefix,
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CopyPartResult, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
    ListPartsOutput, MultipartUpload, Part, Range, UploadPartCopyInput, UploadPartCopyOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::checksums::{self, Checksums, DeclaredChecksums, Kind, StoredChecksums, set_sums, sums};
use super::conditions::{ReadConditions, WriteConditions, source_conditions};
use super::marks::{self, ObjectMetadata, PartTable, about_of};
use super::objects::{PARTS_MAX, ReceivedUpload, e_tag, receive, source, time};
use super::tags;
use super::xml::{self, Coding};
use super::{S3Context, Signer, bucket, error, list, object};
use crate::cancellation::Cancellation;
use crate::open_file::{Node, OpenFile};
use crate::request_path::RequestPath;
use crate::tree::{REPLACED_TRIES, check_depth};
use crate::uploads::Replace;

/// The directory of a bucket that has its uploads.
pub const UPLOADS: &[u8] = b".bivouac-uploads";
const UPLOAD: &[u8] = b"user.s3.upload";
/// Upper limit of parts or uploads per page.
const LISTED_MAX: i32 = 1000;
/// Least length of a part that is not the last, in bytes.
const PART_LEN_MIN: u64 = 5 << 20;

/// Record of a multipart upload, stored with its parts.
#[derive(Debug, Serialize, Deserialize)]
struct UploadRecord {
    key: String,
    about: ObjectMetadata,
    #[serde(default)]
    tags: tags::Tags,
    /// The checksum that each part has.
    #[serde(default)]
    sums: Option<Kind>,
    /// True if the object's checksum covers its bytes instead of the checksums of its parts.
    #[serde(default)]
    is_whole: bool,
}

/// Returns the directory of an upload's parts.
fn place(bucket_name: &str, id: &str) -> S3Result<RequestPath> {
    // It becomes a name on a path.
    if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(s3_error!(NoSuchUpload));
    }
    let mut place = bucket(bucket_name)?;
    place.names.extend([UPLOADS.to_vec(), id.as_bytes().to_vec()]);
    Ok(place)
}

fn part(dir: &RequestPath, number: i32) -> S3Result<RequestPath> {
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

impl S3Context {
    pub fn begin_parts(&self, input: CreateMultipartUploadInput) -> S3Result<CreateMultipartUploadOutput> {
        let to = object(&input.bucket, &input.key)?;
        // Refused before the client has sent any part.
        check_depth(&to).map_err(error)?;
        self.is_bucket_of(&to)?;
        let tags = input.tagging.as_deref().map_or_else(|| Ok(tags::Tags::new()), tags::said)?;
        let sums = input.checksum_algorithm.as_ref().map(Kind::named).transpose()?;
        let is_whole = is_whole(sums, input.checksum_type.as_ref())?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| s3_error!(InternalError, "there are no random numbers"))?;
        let id = to_hex(&random);
        let dir = place(&input.bucket, &id)?;
        self.tree.make_dirs(&self.access, &dir).map_err(error)?;
        let about = about_of!(input);
        let begun = UploadRecord { key: input.key.clone(), about, tags, sums, is_whole };
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

    /// Returns the directory of an upload's parts, and its record.
    fn begun(&self, bucket: &str, key: &str, id: &str) -> S3Result<(RequestPath, UploadRecord)> {
        let dir = place(bucket, id)?;
        let attr = self.tree.attr(&self.access, &dir).map_err(no_upload)?;
        // Only what is not there is no upload: a client gives it up for good then.
        let value = marks::optional(self.tree.client().map_err(error)?.getxattr(attr.ino, UPLOAD));
        let value = value.map_err(no_upload)?;
        let begun: Option<UploadRecord> = value.and_then(|value| serde_json::from_slice(&value).ok());
        let begun = begun.filter(|begun| begun.key == key).ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok((dir, begun))
    }

    /// Puts the parts of an upload together. A request that is sent again, since its answer was lost, gets that answer
    /// again as long as the object is the one that it made.
    pub fn complete_parts(
        &self,
        mut input: CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let to = object(&input.bucket, &input.key)?;
        if to.is_dir {
            return Err(s3_error!(InvalidRequest, "a key that ends in a slash has no content"));
        }
        if let Some(done) = self.completed(&to, &input)? {
            return Ok(done);
        }
        // A repeated request may run at the same time, and have removed the parts.
        let failed = match self.put_together(&to, &mut input) {
            Err(failed) => failed,
            done => return done,
        };
        if let Some(done) = self.completed(&to, &input)? {
            return Ok(done);
        }
        // If the upload has ended, that is the reason for whatever failed.
        match self.begun(&input.bucket, &input.key, &input.upload_id) {
            Err(gone) if *gone.code() == S3ErrorCode::NoSuchUpload => Err(gone),
            _ => Err(failed),
        }
    }

    /// Returns the answer to a request that was carried out before.
    fn completed(
        &self,
        to: &RequestPath,
        input: &CompleteMultipartUploadInput,
    ) -> S3Result<Option<CompleteMultipartUploadOutput>> {
        let attr = match self.tree.attr(&self.access, to) {
            Ok(attr) => attr,
            Err(missing) if matches!(missing.errno(), Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(other) => return Err(error(other)),
        };
        let client = self.tree.client().map_err(error)?;
        if !attr.is_file() {
            return Ok(None);
        }
        let known = || -> Result<Option<(StoredChecksums, String)>, FsError> {
            let table = marks::parts(client, &attr)?;
            if table.is_none_or(|table| table.upload != input.upload_id) {
                return Ok(None);
            }
            Ok(Some((marks::sums(client, &attr)?, marks::tag(client, &attr)?)))
        };
        let (kept, tag) = match known() {
            Ok(Some(known)) => known,
            Ok(None) => return Ok(None),
            // Replaced or removed since the look-up.
            Err(gone) if gone.errno() == Errno::ENOENT => return Ok(None),
            Err(failed) => return Err(error(failed)),
        };
        self.remove_left(&place(&input.bucket, &input.upload_id)?);
        Ok(Some(completed(input, &tag, &kept)))
    }

    /// Removes the parts of a completed upload. What cannot be removed stays hidden.
    fn remove_left(&self, dir: &RequestPath) {
        match self.remove_parts(dir) {
            Err(gone) if gone.errno() == Errno::ENOENT => {}
            Err(left) => log::warn!("parts of an upload that is complete are left: {left}"),
            Ok(()) => {}
        }
    }

    fn put_together(
        &self,
        to: &RequestPath,
        input: &mut CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let (dir, begun) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        let wanted = input.multipart_upload.take().and_then(|upload| upload.parts).unwrap_or_default();
        if wanted.is_empty() {
            return Err(s3_error!(MalformedXML));
        }
        let (mut files, mut sums): (Vec<OpenFile>, Vec<(Checksums, u64)>) = (Vec::new(), Vec::new());
        let (mut sum, mut last) = (Md5::new(), 0);
        let needs_sums = begun.sums.is_some() || !sums!(input).is_empty();
        for part_wanted in &wanted {
            let number = part_wanted.part_number.unwrap_or(0);
            if number <= last {
                return Err(s3_error!(InvalidPartOrder));
            }
            last = number;
            let file = match self.tree.open(&self.access, &part(&dir, number)?) {
                Ok(Node::File(file)) => file,
                Ok(Node::Dir(_)) => return Err(s3_error!(InvalidPart)),
                Err(missing) if missing.errno() == Errno::ENOENT => return Err(s3_error!(InvalidPart)),
                Err(other) => return Err(error(other)),
            };
            let tag = self.tag(&file.attr)?;
            let said = sums!(part_wanted);
            let own = match needs_sums || !said.is_empty() {
                true => marks::sums(self.tree.client().map_err(error)?, &file.attr).map_err(error)?.sums,
                false => Checksums::new(),
            };
            let differs = said.iter().any(|(kind, sum)| own.get(kind) != Some(sum));
            if differs || part_wanted.e_tag.as_ref().is_some_and(|said| *said != e_tag(&tag)) {
                return Err(s3_error!(InvalidPart));
            }
            sums.push((own, file.attr.size));
            sum.update(bytes_of(tag.trim_matches('"')).ok_or_else(|| s3_error!(InvalidPart))?);
            files.push(file);
        }
        // All but the last part: S3 requires it, and clients rely on the refusal.
        if files.iter().rev().skip(1).any(|file| file.attr.size < PART_LEN_MIN) {
            return Err(s3_error!(EntityTooSmall));
        }
        assert_eq!(files.len(), sums.len(), "a part without its checksums");
        let kept = joined(&begun, input, &sums)?;
        let conditions =
            WriteConditions { if_match: input.if_match.take(), if_none_match: input.if_none_match.take() };
        let (mut upload, replace) = self.begin(to, &conditions)?;
        for file in &files {
            // Whoever has gone meanwhile sends the request again, and gets the answer of this one.
            let goes_on = Cancellation::default();
            upload.append_file(file, (0, file.attr.size), &goes_on).map_err(error)?;
        }
        let parts_len: u64 = files.iter().map(|file| file.attr.size).sum();
        assert_eq!(upload.len, parts_len, "an object is not as long as its parts");
        self.mark_tags(&upload, &begun.tags)?;
        let table = PartTable::new(input.upload_id.clone(), files.iter().map(|file| file.attr.size));
        upload.mark(|client, ctx, attr| marks::set_parts(client, ctx, attr, &table)).map_err(error)?;
        self.is_still_free(to)?;
        let tag = format!("{}-{}", to_hex(&sum.finalize()), files.len());
        // A repeated request may have completed the upload, and its object may be replaced by now. The removal of the
        // upload's directory removes the file's name in it, so the final rename fails then.
        let from = self.tree.attr(&self.access, &dir).map_err(no_upload)?;
        upload.goes_through(from.ino);
        let tag = self.end(upload, replace, Some(&tag), (&kept, &begun.about))?;
        // Closed before they are removed, which then frees their space.
        drop(files);
        self.remove_left(&dir);
        Ok(completed(input, &tag, &kept))
    }

    /// Gives up all uploads of a bucket.
    pub fn remove_uploads(&self, uploads: &RequestPath, dir: Ino) -> S3Result<()> {
        for (id, _) in self.entries(dir)? {
            let mut upload = uploads.clone();
            upload.names.push(id.into_bytes());
            match self.remove_parts(&upload) {
                Err(gone) if gone.errno() == Errno::ENOENT => {}
                removed => removed.map_err(error)?,
            }
        }
        Ok(())
    }

    fn remove_parts(&self, dir: &RequestPath) -> Result<(), FsError> {
        let attr = self.tree.attr(&self.access, dir)?;
        let mut tries = 0..REPLACED_TRIES;
        loop {
            let entries = self.tree.entries(attr.ino, 0)?;
            if entries.is_empty() {
                match self.remove_any(dir) {
                    // Filled again since the listing.
                    Err(full) if full.errno() == Errno::ENOTEMPTY && tries.next().is_some() => continue,
                    removed => break removed?,
                }
            }
            for entry in entries {
                let mut part = dir.clone();
                part.names.push(entry.name);
                match self.remove_any(&part) {
                    // A concurrent completion has removed its name.
                    Err(gone) if gone.errno() == Errno::ENOENT && tries.next().is_some() => {}
                    removed => removed?,
                }
            }
        }
        let mut all = dir.clone();
        all.names.pop();
        match self.remove_any(&all) {
            // Other uploads exist, or the directory is gone already.
            Err(error) if matches!(error.errno(), Errno::ENOTEMPTY | Errno::ENOENT) => Ok(()),
            removed => removed,
        }
    }

    fn remove_any(&self, target: &RequestPath) -> Result<(), FsError> {
        self.tree.remove(&self.access, target, |_| Ok::<_, FsError>(None))
    }

    /// Copies a part from an existing object. Its tag is the MD5 of what was copied, whatever happens to that object
    /// meanwhile.
    pub fn copy_part(&self, input: &UploadPartCopyInput) -> S3Result<UploadPartCopyOutput> {
        let (dir, begun) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        let file = self.open(&source(&input.copy_source)?)?;
        let tag = self.tag(&file.attr)?;
        source_conditions!(input).check_source(&tag, &file.attr)?;
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
        upload.append_file(&file, range, &self.cancellation).map_err(error)?;
        let (tag, sums) = self.summed(&upload, begun.sums)?;
        let kept = StoredChecksums::of(sums);
        let tag = self.end(upload, Replace::Always, Some(&tag), (&kept, &ObjectMetadata::default()))?;
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
            // Uploads that are gone, or whose record is not written yet, are omitted.
            let value = match marks::optional(client.getxattr(attr.ino, UPLOAD)) {
                Err(gone) if gone.errno() == Errno::ENOENT => None,
                value => value.map_err(error)?,
            };
            let begun: Option<UploadRecord> = value.and_then(|value| serde_json::from_slice(&value).ok());
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
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let common = |key: &str| list::common_prefix(key, prefix, delimiter?).map(str::to_owned);
        let (mut uploads, mut prefixes, mut last) = (Vec::new(), Vec::<String>::new(), None);
        let mut is_truncated = false;
        for (key, id, attr) in all {
            let common = common(&key);
            // A prefix is there once, and not again behind the page that had it last.
            if let Some(common) = &common
                && (prefixes.last() == Some(common)
                    || input.key_marker.as_ref().is_some_and(|at| common <= at))
            {
                continue;
            }
            if uploads.len() + prefixes.len() >= max {
                is_truncated = max > 0;
                break;
            }
            match common {
                Some(common) => {
                    last = Some((common.clone(), None));
                    prefixes.push(common);
                }
                None => {
                    last = Some((key.clone(), Some(id.clone())));
                    uploads.push(MultipartUpload {
                        initiated: Some(time(&attr)),
                        key: Some(coding.write(key)),
                        upload_id: Some(id),
                        ..Default::default()
                    });
                }
            }
        }
        let next = last.filter(|_| is_truncated);
        let shown = |prefix| CommonPrefix { prefix: Some(coding.write(prefix)) };
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: Some(prefixes.into_iter().map(shown).collect()),
            delimiter: coding.repeat(input.delimiter.clone())?,
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            key_marker: coding.repeat(input.key_marker)?,
            max_uploads: i32::try_from(max).ok(),
            next_key_marker: next.as_ref().map(|(key, _)| coding.write(key.clone())),
            next_upload_id_marker: next.and_then(|(_, id)| id),
            prefix: coding.repeat(input.prefix)?,
            upload_id_marker: input.upload_id_marker.and_then(xml::text),
            uploads: Some(uploads),
            ..Default::default()
        })
    }

    pub fn abort_parts(&self, input: &AbortMultipartUploadInput) -> S3Result<AbortMultipartUploadOutput> {
        let (dir, _) = self.begun(&input.bucket, &input.key, &input.upload_id)?;
        self.remove_parts(&dir).map_err(error)?;
        Ok(AbortMultipartUploadOutput::default())
    }
}

/// Returns whether the checksum of a multipart object covers its bytes. That of CRC64NVME always does, those of digests
/// never.
fn is_whole(kind: Option<Kind>, wanted: Option<&ChecksumType>) -> S3Result<bool> {
    let wanted = wanted.map(|wanted| wanted.as_str() == ChecksumType::FULL_OBJECT);
    match (kind, wanted) {
        (Some(Kind::Crc64Nvme), Some(false)) | (Some(Kind::Sha1 | Kind::Sha256), Some(true)) => {
            Err(s3_error!(InvalidRequest, "CRC64NVME is of the whole object, SHA1 and SHA256 of its parts"))
        }
        (kind, wanted) => Ok(wanted.unwrap_or(kind == Some(Kind::Crc64Nvme))),
    }
}

/// Returns the checksum of the parts, compared with the declared one.
fn joined(
    begun: &UploadRecord,
    input: &CompleteMultipartUploadInput,
    parts: &[(Checksums, u64)],
) -> S3Result<StoredChecksums> {
    let len = parts.iter().map(|(_, len)| len).sum();
    if input.mpu_object_size.is_some_and(|said| u64::try_from(said) != Ok::<u64, _>(len)) {
        return Err(s3_error!(InvalidRequest, "the parts together are not as long as the request says"));
    }
    let kind = checksums::type_of(begun.is_whole);
    if begun.sums.is_some() && input.checksum_type.as_ref().is_some_and(|said| *said != kind) {
        return Err(s3_error!(InvalidRequest, "the upload was begun with another type of checksum"));
    }
    for (kind, said) in sums!(input) {
        let kept = StoredChecksums::joined(kind, !said.contains('-'), parts);
        let kept =
            kept.ok_or_else(|| s3_error!(InvalidRequest, "not all parts came with such a checksum"))?;
        if kept.sums.get(&kind) != Some(&said) {
            return Err(s3_error!(BadDigest, "the parts have not the checksum that is said"));
        }
    }
    let kept = begun.sums.and_then(|kind| StoredChecksums::joined(kind, begun.is_whole, parts));
    Ok(kept.unwrap_or_default())
}

/// Returns the answer when parts were put together.
fn completed(
    input: &CompleteMultipartUploadInput,
    tag: &str,
    kept: &StoredChecksums,
) -> CompleteMultipartUploadOutput {
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(input.bucket.clone()),
        checksum_type: kept.kind(),
        key: xml::text(input.key.clone()),
        e_tag: Some(e_tag(tag)),
        ..Default::default()
    };
    set_sums!(output, kept.sums);
    output
}

/// Returns the number of entries of a page.
fn limit(wanted: Option<i32>) -> S3Result<usize> {
    let wanted = usize::try_from(wanted.unwrap_or(LISTED_MAX)).map_err(|_| s3_error!(InvalidArgument))?;
    Ok(wanted.min(LISTED_MAX as usize))
}

/// Returns the bytes out of hexadecimal.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    from_hex(&text.to_ascii_lowercase())
}

/// Takes a part. Several come at the same time.
pub async fn put(who: Signer, mut request: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
    let (before, md5) = (sums!(request.input), request.input.content_md5.take());
    let said = DeclaredChecksums::new(&mut request, before, md5)?;
    let input = request.input;
    let begun = spawn_blocking(move || {
        let on = who.look()?;
        let (dir, _) = on.begun(&input.bucket, &input.key, &input.upload_id)?;
        let (upload, _) = on.tree.upload(&on.access, &part(&dir, input.part_number)?).map_err(no_upload)?;
        Ok::<_, S3Error>((on, upload, input.body))
    });
    let (on, upload, body) = begun.await.map_err(S3Error::internal_error)??;
    let ReceivedUpload { upload, md5, sums } = receive(upload, body, said).await?;
    let mut output = UploadPartOutput::default();
    set_sums!(output, sums);
    let ended = spawn_blocking(move || {
        let about = ObjectMetadata::default();
        on.end(upload, Replace::Always, Some(&to_hex(&md5)), (&StoredChecksums::of(sums), &about))
    });
    output.e_tag = Some(e_tag(&ended.await.map_err(S3Error::internal_error)??));
    Ok(output)
}

#[cfg(test)]
pub fn fuzzed(text: &str, bytes: &[u8]) {
    let _ = (place("bucket", text), bytes_of(text), serde_json::from_slice::<UploadRecord>(bytes));
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
