//! What each request does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use md5::{Digest, Md5};
use parking_lot::Mutex;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CommonPrefix, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, ETag,
    ETagCondition, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsV2Input, ListObjectsV2Output,
    MultipartUpload, Object as Listed, PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::contents::{Contents, Object, Upload, tag_of, tag_of_parts};
use crate::server::BUCKET;

/// Smallest part of an upload but the last.
const PART_MIN: usize = 5 << 20;

#[derive(Clone)]
pub struct Protocol(pub Arc<Mutex<Contents>>);

fn check_bucket(bucket: &str) -> S3Result<()> {
    if bucket == BUCKET { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
}

async fn bytes_of(body: Option<StreamingBlob>, digest: Option<&str>) -> S3Result<Bytes> {
    let mut bytes = BytesMut::new();
    if let Some(mut body) = body {
        while let Some(part) = body.next().await {
            bytes.extend_from_slice(&part.map_err(|_| s3_error!(IncompleteBody))?);
        }
    }
    if digest.is_some_and(|digest| digest != STANDARD.encode(Md5::digest(&bytes))) {
        return Err(s3_error!(BadDigest));
    }
    Ok(bytes.freeze())
}

/// Whether an object with this tag is not the one that is wanted.
fn differs(wanted: &ETagCondition, tag: &ETag) -> bool {
    wanted.as_etag().is_some_and(|wanted| wanted != tag)
}

impl Contents {
    fn object(&self, bucket: &str, key: &str) -> S3Result<Arc<Object>> {
        check_bucket(bucket)?;
        self.objects.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }

    /// Whether a write may be.
    fn check(
        &self,
        key: &str,
        if_match: Option<&ETagCondition>,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<()> {
        if self.is_old && (if_match.is_some() || if_none_match.is_some()) {
            return Err(s3_error!(NotImplemented));
        }
        let found = self.objects.get(key);
        if if_none_match.is_some() && found.is_some() {
            return Err(s3_error!(PreconditionFailed));
        }
        match (if_match, found) {
            (Some(_), None) => Err(s3_error!(NoSuchKey)),
            (Some(tag), Some(found)) if differs(tag, &found.tag) => Err(s3_error!(PreconditionFailed)),
            _ => Ok(()),
        }
    }

    fn tag(&self, object: &Object) -> Option<ETag> {
        (!self.has_no_tags).then(|| object.tag.clone())
    }
}

fn time(time: SystemTime) -> Option<Timestamp> {
    Some(Timestamp::from(time))
}

/// As in a URL, all but the plainest bytes.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[async_trait::async_trait]
impl S3 for Protocol {
    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let contents = self.0.lock();
        let object = contents.object(&req.input.bucket, &req.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(object.bytes.len() as i64),
            content_type: object.content_type.as_ref().and_then(|text| text.parse().ok()),
            e_tag: contents.tag(&object),
            last_modified: time(object.since),
            metadata: Some(object.metadata.clone()),
            ..HeadObjectOutput::default()
        }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let contents = self.0.lock();
        let object = contents.object(&req.input.bucket, &req.input.key)?;
        if req.input.if_match.is_some_and(|tag| differs(&tag, &object.tag)) {
            return Err(s3_error!(PreconditionFailed));
        }
        let all = object.bytes.len() as u64;
        let (bytes, content_range) = match req.input.range.filter(|_| !contents.ignores_ranges) {
            Some(range) => {
                let part = range.check(all)?;
                let shown = format!("bytes {}-{}/{all}", part.start, part.end - 1);
                (object.bytes.slice(part.start as usize..part.end as usize), Some(shown))
            }
            None => (object.bytes.clone(), None),
        };
        let len = bytes.len() as i64;
        let stream = futures::stream::once(std::future::ready(Ok::<_, std::io::Error>(bytes)));
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::wrap(stream)),
            content_length: Some(len),
            content_range,
            e_tag: contents.tag(&object),
            last_modified: time(object.since),
            metadata: Some(object.metadata.clone()),
            ..GetObjectOutput::default()
        }))
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let bytes = bytes_of(input.body, input.content_md5.as_deref()).await?;
        let mut contents = self.0.lock();
        contents.check(&input.key, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let mut object = Object::new(bytes, input.metadata.unwrap_or_default());
        object.content_type = input.content_type.map(|text| text.to_string());
        let e_tag = contents.tag(&object);
        contents.objects.insert(input.key, Arc::new(object));
        Ok(S3Response::new(PutObjectOutput { e_tag, ..PutObjectOutput::default() }))
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = req.input;
        let CopySource::Bucket { bucket, key, .. } = input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let mut contents = self.0.lock();
        let from = contents.object(&bucket, &key)?;
        if input.copy_source_if_match.is_some_and(|tag| differs(&tag, &from.tag)) {
            return Err(s3_error!(PreconditionFailed));
        }
        let mut object = Object::new(from.bytes.clone(), input.metadata.unwrap_or_default());
        object.content_type = input.content_type.map(|text| text.to_string());
        contents.objects.insert(input.key, Arc::new(object));
        let result =
            CopyObjectResult { last_modified: time(SystemTime::now()), ..CopyObjectResult::default() };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..CopyObjectOutput::default()
        }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        check_bucket(&req.input.bucket)?;
        let mut contents = self.0.lock();
        contents.check(&req.input.key, req.input.if_match.as_ref(), None)?;
        contents.objects.remove(&req.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let mut contents = self.0.lock();
        contents.begun += 1;
        let name = format!("upload-{}+/=", contents.begun);
        let metadata = input.metadata.unwrap_or_default();
        let upload = Upload { key: input.key.clone(), metadata, parts: Default::default() };
        contents.uploads.insert(name.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(name),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let bytes = bytes_of(input.body, input.content_md5.as_deref()).await?;
        let tag = tag_of(&bytes);
        let mut contents = self.0.lock();
        let upload = contents.uploads.get_mut(&input.upload_id).filter(|upload| upload.key == input.key);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(input.part_number, (bytes, tag.clone()));
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(tag), ..UploadPartOutput::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let mut contents = self.0.lock();
        let upload = contents.uploads.get(&input.upload_id).cloned().filter(|upload| upload.key == input.key);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        contents.check(&input.key, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let wanted = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        if wanted.is_empty() {
            return Err(s3_error!(MalformedXML));
        }
        let mut parts = Vec::new();
        for part in &wanted {
            let found = upload.parts.get(&part.part_number.unwrap_or(0));
            let found = found.filter(|found| part.e_tag.as_ref() == Some(&found.1));
            parts.push(found.ok_or_else(|| s3_error!(InvalidPart))?.0.clone());
        }
        if parts.iter().rev().skip(1).any(|part| part.len() < PART_MIN) {
            return Err(s3_error!(EntityTooSmall));
        }
        let mut object = Object::new(parts.concat(), upload.metadata);
        object.tag = tag_of_parts(parts.iter());
        let e_tag = contents.tag(&object);
        contents.objects.insert(input.key.clone(), Arc::new(object));
        contents.uploads.remove(&input.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag,
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let gone = self.0.lock().uploads.remove(&req.input.upload_id);
        gone.ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let contents = self.0.lock();
        let max = if contents.page == 0 { 1000 } else { contents.page };
        let prefix = input.prefix.unwrap_or_default();
        let after = (input.key_marker.unwrap_or_default(), input.upload_id_marker.unwrap_or_default());
        let all = contents.uploads.iter().map(|(name, upload)| (upload.key.clone(), name.clone()));
        let is_wanted = |key: &String| {
            if contents.shows_uploads_by_key { *key == prefix } else { key.starts_with(&prefix) }
        };
        let wanted = all.filter(|(key, name)| is_wanted(key) && (key, name) > (&after.0, &after.1));
        let mut wanted: Vec<_> = wanted.collect();
        wanted.sort();
        let is_truncated = wanted.len() > max;
        wanted.truncate(max);
        let (next_key, next_name) = wanted.last().filter(|_| is_truncated).cloned().unzip();
        let shown = |(key, name): (String, String)| MultipartUpload {
            key: Some(encoded(&key)),
            upload_id: Some(name),
            ..MultipartUpload::default()
        };
        Ok(S3Response::new(ListMultipartUploadsOutput {
            uploads: Some(wanted.into_iter().map(shown).collect()),
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            next_key_marker: next_key.map(|key| encoded(&key)),
            next_upload_id_marker: next_name,
            ..ListMultipartUploadsOutput::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        check_bucket(&input.bucket)?;
        let contents = self.0.lock();
        let page = if contents.page == 0 { 1000 } else { contents.page };
        let max = page.min(input.max_keys.unwrap_or(1000).max(0) as usize);
        let (prefix, after) = (input.prefix.unwrap_or_default(), input.continuation_token);
        let (mut keys, mut prefixes) = (Vec::new(), BTreeSet::new());
        let mut next = None;
        for (key, object) in contents.objects.range(prefix.clone()..) {
            let Some(rest) = key.strip_prefix(&prefix) else { break };
            let cut = input.delimiter.as_ref().and_then(|by| rest.find(by).map(|at| at + by.len()));
            let name = cut.map_or(key.clone(), |cut| format!("{prefix}{}", &rest[..cut]));
            if after.as_ref().is_some_and(|after| name <= *after) || prefixes.contains(&name) {
                continue;
            }
            if keys.len() + prefixes.len() == max {
                next = keys.last().map(|(key, _): &(String, _)| key).max(prefixes.last()).cloned();
                break;
            }
            match cut {
                Some(_) => drop(prefixes.insert(name)),
                None => keys.push((name, Arc::clone(object))),
            }
        }
        let of = |(key, object): (String, Arc<Object>)| Listed {
            key: Some(encoded(&key)),
            size: Some(object.bytes.len() as i64),
            e_tag: contents.tag(&object),
            last_modified: time(object.since),
            ..Listed::default()
        };
        let shown = |prefix: String| CommonPrefix { prefix: Some(encoded(&prefix)) };
        Ok(S3Response::new(ListObjectsV2Output {
            contents: Some(keys.into_iter().map(of).collect()),
            common_prefixes: Some(prefixes.into_iter().map(shown).collect()),
            encoding_type: input.encoding_type,
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            ..ListObjectsV2Output::default()
        }))
    }
}
