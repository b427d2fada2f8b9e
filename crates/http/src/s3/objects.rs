//! Buckets and single objects.

use std::time::SystemTime;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsError, FsResult};
use futures::StreamExt as _;
use hyper::StatusCode;
use md5::{Digest as _, Md5};
use s3s::checksum::ChecksumHasher;
use s3s::dto::{
    Bucket, ChecksumMode, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource,
    CreateBucketOutput, DeleteBucketOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, DeletedObject, ETag, ETagCondition, GetObjectInput, GetObjectOutput,
    HeadObjectInput, HeadObjectOutput, ListBucketsOutput, PutObjectInput, PutObjectOutput, StreamingBlob,
    Timestamp,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, StdError, s3_error};
use tokio::task::spawn_blocking;

use super::checksums::{Kept, Said, Sums, set_sums, sums};
use super::marks::{self, About};
use super::tags::{self, Tags};
use super::{On, Who, bucket, error, object, xml};
use crate::body::stream;
use crate::conditions::modified;
use crate::dav::Reach;
use crate::reading::content_type;
use crate::target::Target;
use crate::tree::{Node, OpenFile, Part, Sent, check_depth};
use crate::uploads::{Replace, Upload};
use crate::writing::{Pipe, Sink};

/// Most objects that one request removes.
const DELETED_MAX: usize = 1000;

/// When a file was last changed.
pub fn time(attr: &Attr) -> Timestamp {
    modified(attr).into()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An upload with the digests of what has come.
pub struct Summed {
    upload: Upload,
    md5: Md5,
    sums: ChecksumHasher,
}

impl Sink for Summed {
    fn take(&mut self, bytes: &[u8]) -> FsResult<()> {
        self.md5.update(bytes);
        self.sums.update(bytes);
        self.upload.append(bytes)
    }
}

/// What has come.
pub struct Received {
    pub upload: Upload,
    pub md5: Vec<u8>,
    pub sums: Sums,
}

impl Summed {
    fn new(upload: Upload, said: &Said) -> Summed {
        Summed { upload, md5: Md5::new(), sums: said.hasher() }
    }

    /// Compares the digests.
    fn compare(self, said: &Said) -> S3Result<Received> {
        let (md5, sums) = (self.md5.finalize().to_vec(), sums!(self.sums.finalize()));
        said.compare(&md5, &sums)?;
        Ok(Received { upload: self.upload, md5, sums })
    }
}

/// The next bytes of a body; `None` at its end.
async fn next(body: &mut StreamingBlob) -> S3Result<Option<bytes::Bytes>> {
    let next = tokio::time::timeout(crate::writing::SILENCE_MAX, body.next());
    let bytes = next.await.map_err(|_| s3_error!(RequestTimeout))?.transpose();
    bytes.map_err(refused)
}

/// What S3 calls the error that a body ends with.
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

/// Has a body written, and compares it with what is said of it.
pub async fn receive(upload: Upload, body: Option<StreamingBlob>, said: Said) -> S3Result<Received> {
    let share = upload.share();
    let mut pipe = Pipe::new(Summed::new(upload, &said), share);
    if let Some(mut body) = body {
        while let Some(bytes) = next(&mut body).await? {
            pipe.push(&bytes).await.map_err(|_| s3_error!(InternalError, "the upload has failed"))?;
        }
    }
    let summed = pipe.end().await.map_err(|_| s3_error!(InternalError, "the upload has failed"))?;
    spawn_blocking(move || summed.compare(&said)).await.map_err(S3Error::internal_error)?
}

/// Makes the directory that a key with a slash at its end is. It has no content.
async fn put_dir(
    who: Who,
    place: Target,
    (mut body, said): (Option<StreamingBlob>, Said),
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
        on.make_dirs(&place)
    });
    made.await.map_err(S3Error::internal_error)??;
    Ok(PutObjectOutput { e_tag: Some(e_tag(&hex(&md5))), ..Default::default() })
}

/// Carries out a PUT.
pub async fn put(who: Who, mut request: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
    let (before, md5) = (sums!(request.input), request.input.content_md5.take());
    let said = Said::new(&mut request, before, md5)?;
    let input = request.input;
    let place = object(&input.bucket, &input.key)?;
    if place.is_dir {
        return put_dir(who, place, (input.body, said)).await;
    }
    let tags = input.tagging.as_deref().map_or_else(|| Ok(Tags::new()), tags::said)?;
    let (if_match, if_none_match) = (input.if_match, input.if_none_match);
    let to = place.clone();
    let begun = spawn_blocking(move || {
        let on = who.look()?;
        let (upload, replace) = on.begin(&place, if_match.as_ref(), if_none_match.as_ref())?;
        Ok::<_, S3Error>((on, upload, replace))
    });
    let (on, upload, replace) = begun.await.map_err(S3Error::internal_error)??;
    let Received { upload, md5, sums } = receive(upload, input.body, said).await?;
    let kept = Kept::of(sums);
    let mut output = PutObjectOutput { checksum_type: kept.kind(), ..Default::default() };
    set_sums!(output, kept.sums);
    let content_type = input.content_type.map(|text| text.to_string());
    let about = About { content_type, metadata: input.metadata.unwrap_or_default() };
    let tag = spawn_blocking(move || {
        on.mark_tags(&upload, &tags)?;
        on.is_still_free(&to)?;
        on.end(upload, replace, Some(&hex(&md5)), (&kept, &about))
    });
    output.e_tag = Some(e_tag(&tag.await.map_err(S3Error::internal_error)??));
    Ok(output)
}

impl On {
    /// Begins an upload to an object's place, if the conditions hold; its directories are made.
    pub fn begin(
        &self,
        place: &Target,
        if_match: Option<&ETagCondition>,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<(Upload, Replace)> {
        self.is_bucket_of(place)?;
        let mut dir = place.clone();
        dir.names.pop();
        self.make_dirs(&dir)?;
        let (upload, found) = self.tree.upload(&self.access, place).map_err(error)?;
        self.check_locks(place, if found.is_some() { Reach::Content } else { Reach::Member })?;
        let replace = match (if_match, if_none_match, found) {
            (None, None, _) => Replace::Always,
            (None, Some(ETagCondition::Any), None) => Replace::Never,
            (None, Some(_), Some(_)) => return Err(s3_error!(PreconditionFailed)),
            (Some(_), _, None) => return Err(s3_error!(NoSuchKey)),
            (Some(wanted), _, Some(attr)) if is_match(wanted, &self.tag(&attr)?) => Replace::Only(attr),
            (Some(_), ..) => return Err(s3_error!(PreconditionFailed)),
            (None, Some(_), None) => {
                return Err(s3_error!(NotImplemented, "If-None-Match is only understood with *"));
            }
        };
        Ok((upload, replace))
    }

    /// Makes a directory and those above it, unless the first that is missing would be in one that is locked.
    fn make_dirs(&self, dir: &Target) -> S3Result<()> {
        check_depth(dir).map_err(error)?;
        let upto = |len| Target { names: dir.names.iter().take(len).cloned().collect(), is_dir: false };
        // Where one is missing all below it are.
        let (mut there, mut missing) = (self.access.prefix.names.len(), dir.names.len() + 1);
        while there + 1 < missing {
            let middle = there.midpoint(missing);
            match self.tree.attr(&self.access, &upto(middle)) {
                Ok(_) => there = middle,
                Err(gone) if gone.errno() == Errno::ENOENT => missing = middle,
                Err(other) => return Err(error(other)),
            }
        }
        if missing > dir.names.len() {
            return self.tree.make_dirs(&self.access, dir).map_err(error);
        }
        self.check_locks(&upto(missing), Reach::Member)?;
        self.tree.make_dirs(&self.access, dir).map_err(error)
    }

    /// Looks at locks again, before an upload gets its name.
    pub fn is_still_free(&self, place: &Target) -> S3Result<()> {
        let is_there = self.tree.attr(&self.access, place).is_ok();
        self.check_locks(place, if is_there { Reach::Content } else { Reach::Member })
    }

    /// Gives an upload its name, with what is known about it. Its tag, which is one of S3 if that is known.
    pub fn end(
        &self,
        upload: Upload,
        replace: Replace,
        tag: Option<&str>,
        (kept, about): (&Kept, &About),
    ) -> S3Result<String> {
        upload.mark(|client, ctx, attr| marks::set_about(client, ctx, attr.ino, about)).map_err(error)?;
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

    /// The checksums of a file, to who asks for them.
    pub fn sums(&self, attr: &Attr, mode: Option<&ChecksumMode>) -> S3Result<Kept> {
        match mode.map(ChecksumMode::as_str) {
            Some(ChecksumMode::ENABLED) => {
                marks::sums(self.tree.client().map_err(error)?, attr).map_err(error)
            }
            _ => Ok(Kept::default()),
        }
    }

    pub fn is_bucket(&self, name: &str) -> S3Result<Attr> {
        self.is_bucket_of(&bucket(name)?)
    }

    /// The directory that is the bucket. A key for something in it may not look at it, but may work there.
    pub fn is_bucket_of(&self, place: &Target) -> S3Result<Attr> {
        let top = Target { names: place.names.iter().take(1).cloned().collect(), is_dir: false };
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

    pub fn list_buckets(&self) -> S3Result<ListBucketsOutput> {
        if let Some(only) = self.access.prefix.names.first() {
            let name = String::from_utf8_lossy(only).into_owned();
            let bucket = Bucket { name: Some(name), ..Default::default() };
            return Ok(ListBucketsOutput { buckets: Some(vec![bucket]), ..Default::default() });
        }
        let root =
            self.tree.attr(&self.access, &Target { is_dir: true, ..Default::default() }).map_err(error)?;
        let entries = self.entries(root.ino)?;
        let of = |(name, attr): (String, Attr)| {
            attr.is_dir().then(|| Bucket {
                name: Some(name),
                creation_date: Some(time(&attr)),
                ..Default::default()
            })
        };
        Ok(ListBucketsOutput {
            buckets: Some(entries.into_iter().filter_map(of).collect()),
            ..Default::default()
        })
    }

    pub fn create_bucket(&self, name: &str) -> S3Result<CreateBucketOutput> {
        self.check_locks(&bucket(name)?, Reach::Member)?;
        match self.tree.make_dir(&self.access, &bucket(name)?) {
            Err(exists) if exists.errno() == Errno::EEXIST => Err(s3_error!(BucketAlreadyOwnedByYou)),
            made => made.map(|()| CreateBucketOutput::default()).map_err(error),
        }
    }

    /// Directories without files are no objects, so they keep no bucket.
    pub fn delete_bucket(&self, name: &str) -> S3Result<DeleteBucketOutput> {
        self.is_bucket(name)?;
        self.check_locks(&bucket(name)?, Reach::Tree)?;
        self.tree.remove_dirs(&self.access, &bucket(name)?).map_err(|failed| match failed.errno() {
            Errno::ENOTEMPTY => s3_error!(BucketNotEmpty),
            _ => error(failed),
        })?;
        Ok(DeleteBucketOutput::default())
    }

    pub fn open(&self, place: &Target) -> S3Result<OpenFile> {
        match self.tree.open(&self.access, place) {
            Ok(Node::File(file)) => Ok(file),
            Ok(Node::Dir(_)) => Err(s3_error!(NoSuchKey)),
            Err(missing) if missing.errno() == Errno::ENOENT => {
                self.is_bucket_of(place)?;
                Err(s3_error!(NoSuchKey))
            }
            Err(other) => Err(error(other)),
        }
    }

    fn about(&self, attr: &Attr, place: &Target) -> S3Result<About> {
        let about = marks::about(self.tree.client().map_err(error)?, attr.ino).map_err(error)?;
        let kind =
            about.content_type.unwrap_or_else(|| content_type(place.name().unwrap_or_default()).to_owned());
        Ok(About { content_type: Some(kind), ..about })
    }

    pub fn head(&self, input: &HeadObjectInput) -> S3Result<HeadObjectOutput> {
        let place = object(&input.bucket, &input.key)?;
        if place.is_dir {
            let attr = self.tree.attr(&self.access, &place).map_err(error)?;
            let e_tag = Some(e_tag(&hex(&Md5::digest(b""))));
            let last_modified = Some(time(&attr));
            return Ok(HeadObjectOutput {
                content_length: Some(0),
                e_tag,
                last_modified,
                ..Default::default()
            });
        }
        let attr = self.open(&place)?.attr;
        let (tag, about) = (self.tag(&attr)?, self.about(&attr, &place)?);
        check(&tag, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let kept = self.sums(&attr, input.checksum_mode.as_ref())?;
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            checksum_type: kept.kind(),
            content_length: i64::try_from(attr.size).ok(),
            content_type: about.content_type.and_then(|text| text.parse().ok()),
            e_tag: Some(e_tag(&tag)),
            last_modified: Some(time(&attr)),
            metadata: Some(about.metadata),
            ..Default::default()
        };
        set_sums!(output, kept.sums);
        Ok(output)
    }

    pub fn get(&self, input: &GetObjectInput) -> S3Result<GetObjectOutput> {
        let place = object(&input.bucket, &input.key)?;
        let file = self.open(&place)?;
        let attr = file.attr;
        let (tag, about) = (self.tag(&attr)?, self.about(&attr, &place)?);
        check(&tag, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let (range, shown) = match &input.range {
            Some(range) => {
                let range = range.check(attr.size)?;
                let shown = format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), attr.size);
                ((range.start, range.end), Some(shown))
            }
            None => ((0, attr.size), None),
        };
        let tags = tags::tags(self.tree.client().map_err(error)?, attr.ino).map_err(error)?;
        // Of a part there is no checksum.
        let kept = match shown {
            None => self.sums(&attr, input.checksum_mode.as_ref())?,
            Some(_) => Kept::default(),
        };
        let left = if range.0 < range.1 { vec![Part::Range(range.0, range.1)] } else { Vec::new() };
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".into()),
            checksum_type: kept.kind(),
            body: Some(StreamingBlob::wrap(stream(Sent::new(file, left)))),
            content_length: i64::try_from(range.1 - range.0).ok(),
            content_range: shown,
            content_type: about.content_type.and_then(|text| text.parse().ok()),
            e_tag: Some(e_tag(&tag)),
            last_modified: Some(time(&attr)),
            metadata: Some(about.metadata),
            tag_count: i32::try_from(tags.len()).ok().filter(|count| *count > 0),
            ..Default::default()
        };
        set_sums!(output, kept.sums);
        Ok(output)
    }

    pub fn copy(&self, input: &CopyObjectInput) -> S3Result<CopyObjectOutput> {
        let CopySource::Bucket { bucket, key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let (from, to) = (object(bucket, key)?, object(&input.bucket, &input.key)?);
        let file = self.open(&from)?;
        let (tag, mut about) = (self.tag(&file.attr)?, self.about(&file.attr, &from)?);
        check(&tag, input.copy_source_if_match.as_ref(), input.copy_source_if_none_match.as_ref())?;
        if input.metadata_directive.as_ref().is_some_and(|directive| directive.as_str() == "REPLACE") {
            let content_type = input.content_type.as_ref().map(ToString::to_string);
            about = About { content_type, metadata: input.metadata.clone().unwrap_or_default() };
        }
        let tags = match &input.tagging_directive {
            Some(directive) if directive.as_str() == "REPLACE" => {
                tags::said(input.tagging.as_deref().unwrap_or_default())?
            }
            _ => tags::tags(self.tree.client().map_err(error)?, file.attr.ino).map_err(error)?,
        };
        let kept = marks::sums(self.tree.client().map_err(error)?, &file.attr).map_err(error)?;
        let (mut upload, replace) = self.begin(&to, None, None)?;
        upload.append_file(&file, (0, file.attr.size)).map_err(error)?;
        self.mark_tags(&upload, &tags)?;
        // What has changed meanwhile has not the tag and the checksums that it had.
        let is_as_it_was =
            self.tag(&self.tree.client().map_err(error)?.getattr(file.attr.ino).map_err(error)?)? == tag;
        let tag = Some(tag.trim_matches('"')).filter(|_| is_as_it_was);
        let kept = if is_as_it_was { kept } else { Kept::default() };
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

    fn remove(&self, place: &Target) -> S3Result<()> {
        self.check_locks(place, Reach::Tree)?;
        // A directory is an object only by its name with the slash.
        let is_object = |found: &Attr| {
            if found.is_dir() && !place.is_dir { Err(FsError::from(Errno::ENOENT)) } else { Ok(()) }
        };
        match self.tree.remove(&self.access, place, is_object) {
            // It is not there afterwards, as S3 promises; and a directory with something in it is no object.
            Err(gone) if matches!(gone.errno(), Errno::ENOENT | Errno::ENOTDIR | Errno::ENOTEMPTY) => Ok(()),
            removed => removed.map_err(error),
        }
    }

    pub fn delete(&self, input: &DeleteObjectInput) -> S3Result<DeleteObjectOutput> {
        if input.if_match.is_some() {
            return Err(s3_error!(NotImplemented, "objects are removed without If-Match"));
        }
        let place = object(&input.bucket, &input.key)?;
        self.is_bucket_of(&place)?;
        self.remove(&place).map(|()| DeleteObjectOutput::default())
    }

    pub fn delete_several(&self, input: DeleteObjectsInput) -> S3Result<DeleteObjectsOutput> {
        self.is_bucket(&input.bucket)?;
        if input.delete.objects.len() > DELETED_MAX {
            return Err(s3_error!(MalformedXML));
        }
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for wanted in input.delete.objects {
            match object(&input.bucket, &wanted.key).and_then(|place| self.remove(&place)) {
                Ok(()) => deleted.push(DeletedObject { key: xml::text(wanted.key), ..Default::default() }),
                Err(refused) => errors.push(s3s::dto::Error {
                    code: Some(refused.code().as_str().to_owned()),
                    key: xml::text(wanted.key),
                    message: refused.message().map(str::to_owned),
                    ..Default::default()
                }),
            }
        }
        let is_quiet = input.delete.quiet.unwrap_or(false);
        let deleted = (!is_quiet).then_some(deleted);
        Ok(DeleteObjectsOutput { deleted, errors: Some(errors), ..Default::default() })
    }
}

/// A tag as the protocol has it.
pub fn e_tag(tag: &str) -> ETag {
    ETag::Strong(tag.trim_matches('"').to_owned())
}

/// Whether a tag is one that a condition wants.
fn is_match(wanted: &ETagCondition, tag: &str) -> bool {
    wanted.as_etag().is_none_or(|wanted| wanted.strong_cmp(&e_tag(tag)))
}

/// Conditions of a request that reads.
pub fn check(
    tag: &str,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    if if_match.is_some_and(|wanted| !is_match(wanted, tag)) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_none_match.is_some_and(|wanted| wanted.as_etag().is_none_or(|wanted| wanted.weak_cmp(&e_tag(tag))))
    {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}
