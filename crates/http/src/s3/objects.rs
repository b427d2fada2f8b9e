//! Buckets and single objects.

use std::time::SystemTime;

use bivouac_client::Attr;
use bivouac_types::hex::to_hex;
use bivouac_types::{Errno, FsResult};
use futures::StreamExt as _;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use md5::{Digest as _, Md5};
use s3s::checksum::ChecksumHasher;
use s3s::dto::{
    Bucket, ChecksumMode, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource,
    CreateBucketOutput, ETag, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput,
    ListBucketsInput, ListBucketsOutput, PutObjectInput, PutObjectOutput, Range, StreamingBlob, Timestamp,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, StdError, s3_error};
use tokio::task::spawn_blocking;

use super::checksums::{self, Checksums, DeclaredChecksums, Kind, StoredChecksums, set_sums, sums};
use super::conditions::{ReadConditions, WriteConditions, range_counts, read_conditions, source_conditions};
use super::marks::{self, ObjectMetadata, about_of, show_about};
use super::request_gate::no_version;
use super::tags::{self, Tags};
use super::{S3Context, Signer, bucket, error, error_answers, object};
use crate::body::stream;
use crate::conditions::modified;
use crate::content_type::content_type;
use crate::load::PIECE;
use crate::locks::ChangeScope;
use crate::open_file::{Node, OpenFile, Part, ResponseParts};
use crate::request_path::RequestPath;
use crate::tree::check_depth;
use crate::upload_pipe::{Pipe, SILENCE_MAX, Sink};
use crate::uploads::{Replace, Upload};

/// Highest number of a part.
pub const PARTS_MAX: i32 = 10_000;
/// Upper limit of buckets per page.
const BUCKETS_MAX: usize = 10_000;
/// The type of what has a key that ends in a slash.
const FOLDER_TYPE: &str = "application/x-directory";

/// Returns the modification time of a file.
pub fn time(attr: &Attr) -> Timestamp {
    modified(attr).into()
}

/// Returns the tag of what has no content.
pub fn empty_tag() -> String {
    to_hex(&Md5::digest(b""))
}

/// An object as it is when a request looks at it.
pub struct Snapshot {
    pub attr: Attr,
    /// Size, in bytes.
    pub size: u64,
    pub tag: String,
    about: ObjectMetadata,
    /// `None` for a directory.
    pub file: Option<OpenFile>,
}

/// The bytes of an object that an answer is about.
struct Selection {
    range: (u64, u64),
    /// `Content-Range`; `None` for the whole object.
    shown: Option<String>,
    /// Number of parts, if a part is requested.
    parts: Option<i32>,
}

impl Selection {
    fn part(range: (u64, u64), size: u64, parts: Option<usize>) -> Selection {
        let shown = (range.0 < range.1).then(|| format!("bytes {}-{}/{size}", range.0, range.1 - 1));
        Selection { range, shown, parts: parts.and_then(|parts| i32::try_from(parts).ok()) }
    }
}

/// An upload with the digests of what has come.
pub struct DigestedUpload {
    upload: Upload,
    md5: Md5,
    sums: ChecksumHasher,
}

impl Sink for DigestedUpload {
    fn take(&mut self, bytes: &[u8]) -> FsResult<()> {
        self.md5.update(bytes);
        self.sums.update(bytes);
        self.upload.append(bytes)
    }
}

/// A received body.
pub struct ReceivedUpload {
    pub upload: Upload,
    pub md5: Vec<u8>,
    pub sums: Checksums,
}

impl DigestedUpload {
    fn new(upload: Upload, said: &DeclaredChecksums) -> DigestedUpload {
        DigestedUpload { upload, md5: Md5::new(), sums: said.hasher() }
    }

    /// Compares the digests.
    fn compare(self, said: &DeclaredChecksums) -> S3Result<ReceivedUpload> {
        let (md5, sums) = (self.md5.finalize().to_vec(), sums!(self.sums.finalize()));
        said.compare(&md5, &sums)?;
        Ok(ReceivedUpload { upload: self.upload, md5, sums })
    }
}

/// Returns the next bytes of a body; `None` at its end.
async fn next(body: &mut StreamingBlob) -> S3Result<Option<bytes::Bytes>> {
    let next = tokio::time::timeout(SILENCE_MAX, body.next());
    let bytes = next.await.map_err(|_| s3_error!(RequestTimeout))?.transpose();
    bytes.map_err(refused)
}

/// Returns the S3 error of a broken body.
fn refused(broken: StdError) -> S3Error {
    let broken = match broken.downcast::<S3Error>() {
        Ok(refused) => return *refused,
        Err(broken) => broken,
    };
    // The types that the service has for these are its own.
    let text = broken.to_string();
    let code = match () {
        () if text.ends_with("Sha256Mismatch") => S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()),
        () if text.ends_with("SignatureMismatch") => S3ErrorCode::SignatureDoesNotMatch,
        () => S3ErrorCode::IncompleteBody,
    };
    let mut refused = S3Error::with_source(code, broken);
    if refused.status_code().is_none() {
        refused.set_status_code(StatusCode::BAD_REQUEST);
    }
    refused
}

/// Writes a body and compares it with its declared checksums.
pub async fn receive(
    upload: Upload,
    body: Option<StreamingBlob>,
    said: DeclaredChecksums,
) -> S3Result<ReceivedUpload> {
    let share = upload.share();
    let mut pipe = Pipe::new(DigestedUpload::new(upload, &said), share);
    if let Some(mut body) = body {
        while let Some(bytes) = next(&mut body).await? {
            pipe.push(&bytes).await.map_err(|refusal| error_answers::error_of(&refusal))?;
        }
    }
    let summed = pipe.end().await.map_err(|refusal| error_answers::error_of(&refusal))?;
    spawn_blocking(move || summed.compare(&said)).await.map_err(S3Error::internal_error)?
}

/// Metadata of an object that is put.
struct Description {
    about: ObjectMetadata,
    tags: Tags,
}

/// Makes the directory that a key with a slash at its end is. It has no content.
async fn put_folder(
    who: Signer,
    (place, conditions): (RequestPath, WriteConditions),
    (mut body, said): (Option<StreamingBlob>, DeclaredChecksums),
    description: Description,
) -> S3Result<PutObjectOutput> {
    while let Some(bytes) = match &mut body {
        Some(body) => next(body).await?,
        None => None,
    } {
        if !bytes.is_empty() {
            return Err(s3_error!(
                InvalidRequest,
                "a key that ends in a slash is a directory, without content"
            ));
        }
    }
    let (md5, sums) = (Md5::digest(b""), sums!(said.hasher().finalize()));
    said.compare(&md5, &sums)?;
    let made = spawn_blocking(move || {
        let on = who.look()?;
        on.is_bucket_of(&place)?;
        on.make_folder(&place, &conditions, &description)
    });
    made.await.map_err(S3Error::internal_error)??;
    Ok(PutObjectOutput { e_tag: Some(e_tag(&to_hex(&md5))), ..Default::default() })
}

/// Carries out a PUT.
pub async fn put(who: Signer, mut request: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
    let (before, md5) = (sums!(request.input), request.input.content_md5.take());
    let said = DeclaredChecksums::new(&mut request, before, md5)?;
    let input = request.input;
    let place = object(&input.bucket, &input.key)?;
    let tags = input.tagging.as_deref().map_or_else(|| Ok(Tags::new()), tags::said)?;
    let about = about_of!(input);
    let conditions = WriteConditions { if_match: input.if_match, if_none_match: input.if_none_match };
    if place.is_dir {
        let description = Description { about, tags };
        return put_folder(who, (place, conditions), (input.body, said), description).await;
    }
    let to = place.clone();
    let begun = spawn_blocking(move || {
        let on = who.look()?;
        let (upload, replace) = on.begin(&place, &conditions)?;
        Ok::<_, S3Error>((on, upload, replace))
    });
    let (on, upload, replace) = begun.await.map_err(S3Error::internal_error)??;
    let ReceivedUpload { upload, md5, sums } = receive(upload, input.body, said).await?;
    let kept = StoredChecksums::of(sums);
    let mut output = PutObjectOutput { checksum_type: kept.kind(), ..Default::default() };
    set_sums!(output, kept.sums);
    let tag = spawn_blocking(move || {
        on.mark_tags(&upload, &tags)?;
        on.is_still_free(&to)?;
        on.end(upload, replace, Some(&to_hex(&md5)), (&kept, &about))
    });
    output.e_tag = Some(e_tag(&tag.await.map_err(S3Error::internal_error)??));
    Ok(output)
}

impl S3Context {
    /// Begins an upload to an object's place, if the conditions hold; its directories are made.
    pub fn begin(&self, place: &RequestPath, conditions: &WriteConditions) -> S3Result<(Upload, Replace)> {
        self.is_bucket_of(place)?;
        let mut dir = place.clone();
        dir.names.pop();
        self.check_absent(place, conditions)?;
        self.make_dirs(&dir)?;
        let (upload, found) = self.tree.upload(&self.access, place).map_err(error)?;
        self.check_locks(place, if found.is_some() { ChangeScope::Content } else { ChangeScope::Member })?;
        let compared = found.as_ref().filter(|_| !conditions.is_empty());
        let tag = compared.map(|attr| self.tag(attr)).transpose()?;
        let replace = conditions.replace(compared.zip(tag.as_deref()))?;
        Ok((upload, replace))
    }

    /// Compares conditions with an object that does not exist, before anything is made for it.
    fn check_absent(&self, place: &RequestPath, conditions: &WriteConditions) -> S3Result<()> {
        if conditions.is_empty() {
            return Ok(());
        }
        match self.tree.attr(&self.access, place) {
            Err(missing) if missing.errno() == Errno::ENOENT => conditions.replace(None).map(drop),
            // One that exists is compared once it is open; other errors are reported there, too.
            _ => Ok(()),
        }
    }

    /// Makes the directory that is an object, or has it be one.
    fn make_folder(
        &self,
        place: &RequestPath,
        conditions: &WriteConditions,
        Description { about, tags }: &Description,
    ) -> S3Result<()> {
        let found = match self.tree.attr(&self.access, place) {
            Ok(attr) => Some(attr),
            Err(missing) if missing.errno() == Errno::ENOENT => None,
            Err(other) => return Err(not_below(other)),
        };
        let tag = empty_tag();
        let replace = conditions.replace(found.as_ref().map(|attr| (attr, tag.as_str())))?;
        // Only one of several requests makes it: `make_dirs` is content with what is there.
        if replace == Replace::Never {
            let (mut above, own) = (place.clone(), RequestPath { is_dir: false, ..place.clone() });
            above.names.pop();
            self.make_dirs(&above)?;
            self.check_locks(&own, ChangeScope::Member)?;
            self.tree.make_dir(&self.access, &own).map_err(error)?;
        } else {
            self.make_dirs(place)?;
        }
        self.check_locks(place, ChangeScope::Content)?;
        let attr = self.tree.attr(&self.access, place).map_err(error)?;
        self.tree.may_change(&self.access, &attr).map_err(error)?;
        let client = self.tree.client().map_err(error)?;
        let change = self.tree.member().change().map_err(error)?;
        marks::set_folder(client, &change.ctx, attr.ino, about).map_err(error)?;
        tags::set_tags(client, &change.ctx, attr.ino, tags).map_err(error)
    }

    /// Makes a directory and those above it, unless the first that is missing would be in one that is locked.
    fn make_dirs(&self, dir: &RequestPath) -> S3Result<()> {
        check_depth(dir).map_err(error)?;
        let upto = |len| RequestPath { names: dir.names.iter().take(len).cloned().collect(), is_dir: false };
        // If one directory is missing, all below it are.
        // By halves: a key may have many levels, and each look-up may cost a message.
        let (mut there, mut missing) = (self.access.prefix.names.len(), dir.names.len() + 1);
        while there + 1 < missing {
            let middle = there.midpoint(missing);
            match self.tree.attr(&self.access, &upto(middle)) {
                Ok(_) => there = middle,
                Err(gone) if gone.errno() == Errno::ENOENT => missing = middle,
                Err(other) => return Err(not_below(other)),
            }
        }
        // All of it is there, and may be something else than directories.
        if missing > dir.names.len() {
            return self.tree.make_dirs(&self.access, dir).map_err(not_below);
        }
        self.check_locks(&upto(missing), ChangeScope::Member)?;
        self.tree.make_dirs(&self.access, dir).map_err(not_below)
    }

    /// Looks at locks again, before an upload gets its name.
    pub fn is_still_free(&self, place: &RequestPath) -> S3Result<()> {
        let is_there = self.tree.attr(&self.access, place).is_ok();
        self.check_locks(place, if is_there { ChangeScope::Content } else { ChangeScope::Member })
    }

    /// Returns the MD5 and the checksums of what an upload has, in hexadecimal and base64.
    pub fn summed(
        &self,
        upload: &Upload,
        kinds: impl IntoIterator<Item = Kind>,
    ) -> S3Result<(String, Checksums)> {
        let (mut md5, mut hasher, mut at) = (Md5::new(), checksums::hasher(kinds), 0);
        while at < upload.len {
            self.cancellation.check_cancelled().map_err(error)?;
            let bytes = upload.written().and_then(|file| file.read(at, PIECE)).map_err(error)?;
            if bytes.is_empty() {
                return Err(s3_error!(InternalError, "what was copied is not there"));
            }
            md5.update(&bytes);
            hasher.update(&bytes);
            at += bytes.len() as u64;
        }
        Ok((to_hex(&md5.finalize()), sums!(hasher.finalize())))
    }

    /// Renames an upload and stores its metadata. Returns its tag, an MD5 if that is known.
    pub fn end(
        &self,
        upload: Upload,
        replace: Replace,
        tag: Option<&str>,
        (kept, about): (&StoredChecksums, &ObjectMetadata),
    ) -> S3Result<String> {
        upload.mark(|client, ctx, attr| marks::set_about(client, ctx, attr, about)).map_err(error)?;
        if let Some(tag) = tag {
            upload.mark(|client, ctx, attr| marks::set_tag(client, ctx, attr, tag)).map_err(error)?;
            if !kept.sums.is_empty() {
                upload.mark(|client, ctx, attr| marks::set_sums(client, ctx, attr, kept)).map_err(error)?;
            }
        }
        let (_, attr) = upload.finish(replace).map_err(error)?;
        tag.map_or_else(|| self.tag(&attr), |tag| Ok(format!("\"{tag}\"")))
    }

    /// Gives an upload tags, if there are any.
    pub fn mark_tags(&self, upload: &Upload, tags: &Tags) -> S3Result<()> {
        if tags.is_empty() {
            return Ok(());
        }
        upload.mark(|client, ctx, attr| tags::set_tags(client, ctx, attr.ino, tags)).map_err(error)
    }

    pub fn tag(&self, attr: &Attr) -> S3Result<String> {
        marks::tag(self.tree.client().map_err(error)?, attr).map_err(error)
    }

    /// Sets the checksums of an object in a response; those of a range are unknown.
    fn sums(
        &self,
        of: &Snapshot,
        selected: &Selection,
        mode: Option<&ChecksumMode>,
    ) -> S3Result<StoredChecksums> {
        let is_wanted = mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
        if !is_wanted || of.file.is_none() || selected.range != (0, of.size) {
            return Ok(StoredChecksums::default());
        }
        marks::sums(self.tree.client().map_err(error)?, &of.attr).map_err(error)
    }

    pub fn is_bucket(&self, name: &str) -> S3Result<Attr> {
        self.is_bucket_of(&bucket(name)?)
    }

    /// Returns the directory that is the bucket. A key for something in it may not look at it, but may work there.
    pub fn is_bucket_of(&self, place: &RequestPath) -> S3Result<Attr> {
        let top = RequestPath { names: place.names.iter().take(1).cloned().collect(), is_dir: false };
        let own = &self.access.prefix;
        if own.names.len() > 1 && own.names.first() == top.names.first() {
            return self.tree.attr(&self.access, own).map_err(error);
        }
        let attr = match self.tree.attr(&self.access, &top) {
            Err(missing) if missing.errno() == Errno::ENOENT => return Err(s3_error!(NoSuchBucket)),
            other => other.map_err(error)?,
        };
        if attr.is_dir() { Ok(attr) } else { Err(s3_error!(NoSuchBucket)) }
    }

    pub fn list_buckets(&self, input: ListBucketsInput) -> S3Result<ListBucketsOutput> {
        let only = self.access.prefix.names.first();
        let all = match only {
            Some(only) => vec![(String::from_utf8_lossy(only).into_owned(), None)],
            None => {
                let top = RequestPath { is_dir: true, ..Default::default() };
                let root = self.tree.attr(&self.access, &top).map_err(error)?;
                let entries = self.entries(root.ino)?.into_iter().filter(|(_, attr)| attr.is_dir());
                let mut all: Vec<_> = entries.map(|(name, attr)| (name, Some(time(&attr)))).collect();
                // The order of entries is that of keys, in which a directory's name ends in a slash.
                all.sort_by(|(one, _), (other, _)| one.cmp(other));
                all
            }
        };
        let (prefix, after) = (input.prefix.unwrap_or_default(), input.continuation_token);
        let max = usize::try_from(input.max_buckets.unwrap_or(BUCKETS_MAX as i32)).unwrap_or(0);
        if !(1..=BUCKETS_MAX).contains(&max) {
            return Err(s3_error!(InvalidArgument, "max-buckets is a number from 1 to {BUCKETS_MAX}"));
        }
        // Other directories have names that no request can name.
        let is_listed = |name: &str| {
            s3s::path::check_bucket_name(name)
                && name.starts_with(&prefix)
                && after.as_deref().is_none_or(|after| name > after)
        };
        let mut buckets: Vec<Bucket> = all
            .into_iter()
            .filter(|(name, _)| is_listed(name))
            .map(|(name, creation_date)| Bucket { name: Some(name), creation_date, ..Default::default() })
            .collect();
        let is_truncated = buckets.len() > max;
        buckets.truncate(max);
        let last = buckets.last().and_then(|last| last.name.clone());
        Ok(ListBucketsOutput {
            buckets: Some(buckets),
            continuation_token: last.filter(|_| is_truncated),
            prefix: Some(prefix).filter(|prefix| !prefix.is_empty()),
            ..Default::default()
        })
    }

    pub fn create_bucket(&self, name: &str) -> S3Result<CreateBucketOutput> {
        self.check_locks(&bucket(name)?, ChangeScope::Member)?;
        match self.tree.make_dir(&self.access, &bucket(name)?) {
            Err(exists) if exists.errno() == Errno::EEXIST => Err(s3_error!(BucketAlreadyOwnedByYou)),
            made => made.map(|()| CreateBucketOutput::default()).map_err(error),
        }
    }

    pub fn open(&self, place: &RequestPath) -> S3Result<OpenFile> {
        match self.tree.open(&self.access, place) {
            Ok(Node::File(file)) => Ok(file),
            Ok(Node::Dir(_)) => Err(s3_error!(NoSuchKey)),
            Err(missing) if missing.errno() == Errno::ENOENT => {
                // Says so if it is the bucket that is missing.
                self.is_bucket_of(place)?;
                Err(s3_error!(NoSuchKey))
            }
            Err(other) => Err(error(other)),
        }
    }

    fn about(&self, attr: &Attr, place: &RequestPath) -> S3Result<ObjectMetadata> {
        let about = marks::about(self.tree.client().map_err(error)?, attr).map_err(error)?;
        let by_name = || content_type(place.name().unwrap_or_default()).to_owned();
        let kind = about
            .content_type
            .unwrap_or_else(|| if attr.is_dir() { FOLDER_TYPE.to_owned() } else { by_name() });
        Ok(ObjectMetadata { content_type: Some(kind), ..about })
    }

    /// Looks at an object.
    pub fn snapshot(&self, place: &RequestPath) -> S3Result<Snapshot> {
        if !place.is_dir {
            let file = self.open(place)?;
            let attr = file.attr;
            let (tag, about) = (self.tag(&attr)?, self.about(&attr, place)?);
            return Ok(Snapshot { attr, size: attr.size, tag, about, file: Some(file) });
        }
        let attr = match self.tree.attr(&self.access, place) {
            Ok(attr) if attr.is_dir() => attr,
            Ok(_) => return Err(s3_error!(NoSuchKey)),
            Err(missing) if missing.errno() == Errno::ENOENT => {
                self.is_bucket_of(place)?;
                return Err(s3_error!(NoSuchKey));
            }
            Err(other) => return Err(error(other)),
        };
        let about = self.about(&attr, place)?;
        Ok(Snapshot { attr, size: 0, tag: empty_tag(), about, file: None })
    }

    /// Returns the range that a request selects.
    fn select(
        &self,
        of: &Snapshot,
        (range, part): (Option<&Range>, Option<i32>),
        headers: &HeaderMap,
    ) -> S3Result<Selection> {
        let whole = Selection { range: (0, of.size), shown: None, parts: None };
        let Some(part) = part else {
            let range = range.filter(|_| range_counts(headers, &of.tag, &of.attr));
            let Some(range) = range else { return Ok(whole) };
            let range = range.check(of.size)?;
            return Ok(Selection::part((range.start, range.end), of.size, None));
        };
        if range.is_some() {
            return Err(s3_error!(InvalidRequest, "a request has Range or partNumber, not both"));
        }
        if !(1..=PARTS_MAX).contains(&part) {
            return Err(s3_error!(InvalidArgument, "parts have numbers from 1 to {PARTS_MAX}"));
        }
        let table = match &of.file {
            Some(_) => marks::parts(self.tree.client().map_err(error)?, &of.attr).map_err(error)?,
            None => None,
        };
        let (index, count) = (part.unsigned_abs() as usize - 1, table.as_ref().map(|table| table.count));
        if index >= count.unwrap_or(1) {
            let text = format!("the object has no part {part}");
            let mut refused = S3Error::with_message(S3ErrorCode::Custom("InvalidPartNumber".into()), text);
            refused.set_status_code(StatusCode::RANGE_NOT_SATISFIABLE);
            return Err(refused);
        }
        let Some(table) = table else { return Ok(Selection::part((0, of.size), of.size, None)) };
        let Some(mut lens) = table.lens(index) else {
            return Err(s3_error!(NotImplemented, "parts of too many different lengths are not kept"));
        };
        // An application may have written to the parts.
        let start = table.start(index);
        let end = start.and_then(|start| start.checked_add(lens.next().unwrap_or_default()));
        match start.zip(end).filter(|(_, end)| *end <= of.size) {
            Some(range) => Ok(Selection::part(range, of.size, count)),
            None => {
                Err(s3_error!(InternalError, "what is kept of the object's parts is wrong; put it again"))
            }
        }
    }

    /// Returns the response to `HEAD`, and the number of tags of the object.
    pub fn head(&self, input: &HeadObjectInput, headers: &HeaderMap) -> S3Result<(HeadObjectOutput, usize)> {
        let found = self.snapshot(&object(&input.bucket, &input.key)?)?;
        read_conditions!(input).check(&found.tag, &found.attr)?;
        let selected = self.select(&found, (input.range.as_ref(), input.part_number), headers)?;
        let tags = tags::tags(self.tree.client().map_err(error)?, found.attr.ino).map_err(error)?;
        let kept = self.sums(&found, &selected, input.checksum_mode.as_ref())?;
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            checksum_type: kept.kind(),
            content_length: i64::try_from(selected.range.1 - selected.range.0).ok(),
            content_range: selected.shown,
            e_tag: Some(e_tag(&found.tag)),
            last_modified: Some(time(&found.attr)),
            parts_count: selected.parts,
            ..Default::default()
        };
        set_sums!(output, kept.sums);
        let mut about = found.about;
        let said = |own: &mut Option<String>, said: &Option<String>| {
            if said.is_some() {
                own.clone_from(said);
            }
        };
        said(&mut about.content_type, &input.response_content_type);
        said(&mut about.cache_control, &input.response_cache_control);
        said(&mut about.content_disposition, &input.response_content_disposition);
        said(&mut about.content_encoding, &input.response_content_encoding);
        said(&mut about.content_language, &input.response_content_language);
        said(&mut about.expires, &input.response_expires.as_ref().and_then(marks::http_date));
        show_about!(output, about);
        Ok((output, tags.len()))
    }

    pub fn get(&self, input: &GetObjectInput, headers: &HeaderMap) -> S3Result<GetObjectOutput> {
        let found = self.snapshot(&object(&input.bucket, &input.key)?)?;
        read_conditions!(input).check(&found.tag, &found.attr)?;
        let selected = self.select(&found, (input.range.as_ref(), input.part_number), headers)?;
        let tags = tags::tags(self.tree.client().map_err(error)?, found.attr.ino).map_err(error)?;
        let kept = self.sums(&found, &selected, input.checksum_mode.as_ref())?;
        let (start, end) = selected.range;
        let left = if start < end { vec![Part::Range(start, end)] } else { Vec::new() };
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".into()),
            checksum_type: kept.kind(),
            body: found.file.map(|file| StreamingBlob::wrap(stream(ResponseParts::new(file, left)))),
            content_length: i64::try_from(end - start).ok(),
            content_range: selected.shown,
            e_tag: Some(e_tag(&found.tag)),
            last_modified: Some(time(&found.attr)),
            parts_count: selected.parts,
            tag_count: i32::try_from(tags.len()).ok().filter(|count| *count > 0),
            ..Default::default()
        };
        set_sums!(output, kept.sums);
        show_about!(output, found.about);
        Ok(output)
    }

    pub fn copy(&self, input: &CopyObjectInput, conditions: &WriteConditions) -> S3Result<CopyObjectOutput> {
        let from = source(&input.copy_source)?;
        let to = object(&input.bucket, &input.key)?;
        let replaces = |directive: Option<&str>| match directive {
            None | Some("COPY") => Ok(false),
            Some("REPLACE") => Ok(true),
            Some(_) => Err(s3_error!(InvalidArgument, "a directive is COPY or REPLACE")),
        };
        let new_about = replaces(input.metadata_directive.as_ref().map(|directive| directive.as_str()))?;
        let new_tags = replaces(input.tagging_directive.as_ref().map(|directive| directive.as_str()))?;
        let changes =
            new_about || new_tags || input.storage_class.is_some() || input.checksum_algorithm.is_some();
        if from == to && !changes {
            return Err(s3_error!(
                InvalidRequest,
                "a copy of an object onto itself changes something: metadata or tags with the directive REPLACE"
            ));
        }
        let found = self.snapshot(&from)?;
        source_conditions!(input).check_source(&found.tag, &found.attr)?;
        let client = self.tree.client().map_err(error)?;
        let tags = match new_tags {
            true => tags::said(input.tagging.as_deref().unwrap_or_default())?,
            false => tags::tags(client, found.attr.ino).map_err(error)?,
        };
        let about = if new_about { about_of!(input) } else { found.about };
        let Some(file) = found.file else {
            if !to.is_dir {
                return Err(s3_error!(
                    InvalidRequest,
                    "a key that ends in a slash is copied to one that does"
                ));
            }
            self.make_folder(&to, conditions, &Description { about, tags })?;
            let e_tag = Some(e_tag(&empty_tag()));
            let result = CopyObjectResult {
                e_tag,
                last_modified: Some(SystemTime::now().into()),
                ..Default::default()
            };
            return Ok(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() });
        };
        let wanted = input.checksum_algorithm.as_ref().map(Kind::named).transpose()?;
        let kept = marks::sums(client, &file.attr).map_err(error)?;
        let (mut upload, replace) = self.begin(&to, conditions)?;
        upload.append_file(&file, (0, file.attr.size), &self.cancellation).map_err(error)?;
        self.mark_tags(&upload, &tags)?;
        // A changed object has neither the tag nor the checksums any more.
        let is_as_it_was = self.tag(&client.getattr(file.attr.ino).map_err(error)?)? == found.tag;
        let tag = Some(found.tag.trim_matches('"')).filter(|_| is_as_it_was);
        let mut kept = if is_as_it_was { kept } else { StoredChecksums::default() };
        if let Some(wanted) = wanted.filter(|wanted| !kept.sums.contains_key(wanted)) {
            kept = StoredChecksums::of(self.summed(&upload, Some(wanted))?.1);
        }
        self.is_still_free(&to)?;
        let tag = self.end(upload, replace, tag, (&kept, &about))?;
        let mut result = CopyObjectResult {
            checksum_type: kept.kind(),
            e_tag: Some(e_tag(&tag)),
            last_modified: Some(SystemTime::now().into()),
            ..Default::default()
        };
        set_sums!(result, kept.sums);
        Ok(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() })
    }
}

/// Returns the place of what is copied.
///
/// # Errors
/// For what is no object of a bucket here.
pub fn source(source: &CopySource) -> S3Result<RequestPath> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(s3_error!(NotImplemented, "there are no access points: name a bucket and a key"));
    };
    if version_id.as_deref().is_some_and(|version| !matches!(version, "" | "null")) {
        return Err(no_version());
    }
    object(bucket, key)
}

/// Returns the error of a key whose directory cannot be created.
fn not_below(failed: bivouac_types::FsError) -> S3Error {
    if failed.errno() == Errno::ENOTDIR {
        return s3_error!(InvalidRequest, "a directory of the key is a file, which is another object");
    }
    error(failed)
}

/// Returns a tag as the protocol has it.
pub fn e_tag(tag: &str) -> ETag {
    ETag::Strong(tag.trim_matches('"').to_owned())
}
