//! The same files as objects: a directory of the root is a bucket, what is below it are keys. Signatures are those of keys:
//! the access key is a key's id, the secret key is the key.

mod checksums;
mod dates;
mod domain;
mod incoming;
mod list;
mod marks;
mod objects;
mod parts;
mod region;
mod tags;
mod xml;

use std::sync::Arc;
use std::time::SystemTime;

use bivouac_types::{Errno, FsError};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput, CreateBucketOutput,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteBucketInput, DeleteBucketOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectTaggingInput, DeleteObjectTaggingOutput,
    DeleteObjectsInput, DeleteObjectsOutput, GetBucketLocationInput, GetBucketLocationOutput, GetObjectInput,
    GetObjectOutput, GetObjectTaggingInput, GetObjectTaggingOutput, HeadBucketInput, HeadBucketOutput,
    HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    ListPartsInput, ListPartsOutput, PutObjectInput, PutObjectOutput, PutObjectTaggingInput,
    PutObjectTaggingOutput, UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body::Body;
use crate::dav::{Asks, Guard, Reach};
use crate::keys::Deriver;
use crate::refusal::Refusal;
use crate::target::{Target, has_parameter, is_reserved};
use crate::tree::{Access, LEVELS_MAX, Tree};
use domain::Domain;
use incoming::{Bounded, Place, Room};

/// Whether a request is signed as S3 has it; then it is meant for that.
#[must_use]
pub fn is_signed(headers: &HeaderMap, query: Option<&str>) -> bool {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    authorization.is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256"))
        || has_parameter(query, "X-Amz-Signature")
}

/// What answers requests of S3.
pub struct S3Front {
    service: S3Service,
    domain: Option<Domain>,
    room: Room,
}

impl S3Front {
    /// For a formation. What takes long is done for a bounded number of requests at a time. Of hosts in the domain, the
    /// first part of the name is a bucket.
    #[must_use]
    pub fn new(
        tree: &Arc<Tree>,
        keys: &Arc<Deriver>,
        long: &Arc<Semaphore>,
        domain: Option<&str>,
    ) -> S3Front {
        let mut builder = S3ServiceBuilder::new(Front { tree: Arc::clone(tree), long: Arc::clone(long) });
        builder.set_auth(Secrets { tree: Arc::clone(tree), keys: Arc::clone(keys) });
        let domain = domain.map(Domain::new);
        if let Some(domain) = domain.clone() {
            builder.set_host(domain);
        }
        S3Front { service: builder.build(), domain, room: Room::default() }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// When it is not even looked at, or the service itself fails.
    pub async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        if is_form(&request) {
            let text = "objects are put by PUT, not by forms";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, text));
        }
        dates::check(request.headers(), request.uri().query(), SystemTime::now())?;
        if let Some(told) = region::refused(request.headers()) {
            return Ok(told);
        }
        let (parts, body) = request.into_parts();
        let in_host = self.domain.as_ref().is_some_and(|domain| domain.has_bucket(&parts.headers));
        let place = if in_host { Place::InHost } else { Place::InPath };
        let said = (&parts.method, &parts.uri, &parts.headers);
        let (body, cause) = Bounded::new(body, said, place, &self.room)?;
        let request = Request::from_parts(parts, s3s::Body::http_body_unsync(body));
        let answered = self.service.call(request).await;
        if let Some(status) = cause.get() {
            return Err(incoming::refusal(*status));
        }
        let response = answered.map_err(|error| {
            log::error!("a request of S3 failed: {}", s3s::StdError::from(error));
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server could not do it; see: bivouac logs")
        })?;
        Ok(response.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
    }
}

/// Whether an object is to be put by a form of HTML, whose signature is in its body.
fn is_form<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().trim_ascii());
    let form = b"multipart/";
    *request.method() == Method::POST
        && kind.and_then(|kind| kind.get(..form.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(form))
}

/// Who may sign.
struct Secrets {
    tree: Arc<Tree>,
    keys: Arc<Deriver>,
}

#[async_trait::async_trait]
impl S3Auth for Secrets {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let (tree, id) = (Arc::clone(&self.tree), access_key.to_owned());
        let known = spawn_blocking(move || tree.access(&id)).await.map_err(S3Error::internal_error)?;
        match known.map_err(error)? {
            Some(_) => Ok(self.keys.key(access_key).into()),
            None => Err(s3_error!(InvalidAccessKeyId, "there is no such key, or it has expired")),
        }
    }
}

struct Front {
    tree: Arc<Tree>,
    long: Arc<Semaphore>,
}

/// What a request works on.
struct On {
    tree: Arc<Tree>,
    access: Access,
}

impl On {
    /// Refuses to change what somebody has locked over WebDAV.
    fn check_locks(&self, place: &Target, reach: Reach) -> S3Result<()> {
        let headers = HeaderMap::new();
        let asks = Asks { access: &self.access, target: place, headers: &headers };
        let checked = Guard::default().check(&self.tree, asks, &[(place, reach)]);
        checked.map(drop).map_err(|refusal| match refusal.status() {
            StatusCode::LOCKED => s3_error!(OperationAborted, "somebody has locked it over WebDAV"),
            StatusCode::FORBIDDEN => s3_error!(AccessDenied),
            StatusCode::SERVICE_UNAVAILABLE => s3_error!(ServiceUnavailable),
            _ => s3_error!(InternalError, "see: bivouac logs"),
        })
    }
}

/// What S3 calls an error of the formation.
fn error(error: FsError) -> S3Error {
    let code = match error.errno() {
        Errno::ENOENT | Errno::ENOTDIR => S3ErrorCode::NoSuchKey,
        Errno::EACCES | Errno::EPERM | Errno::EXDEV | Errno::ELOOP | Errno::EROFS => {
            S3ErrorCode::AccessDenied
        }
        Errno::EEXIST | Errno::ESTALE => S3ErrorCode::PreconditionFailed,
        Errno::ENAMETOOLONG => {
            let text = format!("a name has more than 255 bytes, or the key more than {LEVELS_MAX} levels");
            return S3Error::with_message(S3ErrorCode::KeyTooLongError, text);
        }
        Errno::EISDIR | Errno::ENOTEMPTY | Errno::EINVAL => S3ErrorCode::InvalidRequest,
        Errno::EFBIG => S3ErrorCode::EntityTooLarge,
        Errno::EAGAIN | Errno::ETIMEDOUT | Errno::ENOTCONN => S3ErrorCode::ServiceUnavailable,
        Errno::ENOSPC | Errno::EDQUOT => {
            return S3Error::with_message(S3ErrorCode::InternalError, "no space left in the formation");
        }
        _ => {
            log::error!(why:% = error; "a request of S3 failed");
            return S3Error::with_message(S3ErrorCode::InternalError, "see: bivouac logs");
        }
    };
    S3Error::with_message(code, FsError::from(error.errno()).to_string())
}

/// The place of a bucket.
fn bucket(name: &str) -> S3Result<Target> {
    let target = Target::plain(name.as_bytes()).map_err(|_| s3_error!(InvalidBucketName))?;
    if target.names.len() == 1 {
        Ok(Target { is_dir: false, ..target })
    } else {
        Err(s3_error!(InvalidBucketName))
    }
}

/// The place of an object. Keys that would be the same file as another key are none.
fn object(bucket_name: &str, key: &str) -> S3Result<Target> {
    let mut target = bucket(bucket_name)?;
    let wrong = || s3_error!(InvalidArgument, "a key is a path without empty names, . and ..");
    let below = Target::plain(key.as_bytes()).map_err(|_| wrong())?;
    let plain = key.strip_suffix('/').unwrap_or(key);
    if plain.is_empty() || plain.split('/').any(str::is_empty) {
        return Err(wrong());
    }
    if below.names.iter().any(|name| is_reserved(name)) {
        return Err(s3_error!(AccessDenied, "names that begin with .bivouac- are the server's own"));
    }
    target.names.extend(below.names);
    target.is_dir = below.is_dir;
    Ok(target)
}

impl Front {
    /// Does something for who has signed a request, on a thread that may block.
    async fn on<I: Send + 'static, O: Send + 'static>(
        &self,
        request: S3Request<I>,
        act: impl FnOnce(On, I) -> S3Result<O> + Send + 'static,
    ) -> S3Result<S3Response<O>> {
        let on = self.who(&request);
        let input = request.input;
        let done = spawn_blocking(move || act(on?.look()?, input));
        done.await.map_err(S3Error::internal_error)?.map(S3Response::new)
    }

    /// The same for what takes long.
    async fn on_long<I: Send + 'static, O: Send + 'static>(
        &self,
        request: S3Request<I>,
        act: impl FnOnce(On, I) -> S3Result<O> + Send + 'static,
    ) -> S3Result<S3Response<O>> {
        let turn = Arc::clone(&self.long).acquire_owned().await.map_err(S3Error::internal_error)?;
        self.on(request, move |on, input| {
            let _turn = turn;
            act(on, input)
        })
        .await
    }

    fn who<I>(&self, request: &S3Request<I>) -> S3Result<Who> {
        let signed = request.credentials.as_ref().ok_or_else(|| s3_error!(AccessDenied))?;
        Ok(Who { tree: Arc::clone(&self.tree), id: signed.access_key.clone() })
    }
}

/// Who has signed a request, before it is looked up what that allows.
struct Who {
    tree: Arc<Tree>,
    id: String,
}

impl Who {
    fn look(self) -> S3Result<On> {
        let access =
            self.tree.access(&self.id).map_err(error)?.ok_or_else(|| s3_error!(InvalidAccessKeyId))?;
        Ok(On { tree: self.tree, access })
    }
}

#[async_trait::async_trait]
impl S3 for Front {
    async fn list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.on(req, |on, _| on.list_buckets()).await
    }

    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.on(req, |on, input| on.create_bucket(&input.bucket)).await
    }

    async fn delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.on_long(req, |on, input| on.delete_bucket(&input.bucket)).await
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.on(req, |on, input| on.is_bucket(&input.bucket).map(|_| HeadBucketOutput::default())).await
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.on(req, |on, input| on.is_bucket(&input.bucket).map(|_| GetBucketLocationOutput::default()))
            .await
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.on(req, |on, input| on.head(&input)).await
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.on(req, |on, input| on.get(&input)).await
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let who = self.who(&req)?;
        objects::put(who, req).await.map(S3Response::new)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        self.on_long(req, |on, input| on.copy(&input)).await
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.on(req, |on, input| on.delete(&input)).await
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.on_long(req, |on, input| on.delete_several(input)).await
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.on_long(req, |on, input| on.list_old(input)).await
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.on_long(req, |on, input| on.list(input)).await
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.on(req, |on, input| on.begin_parts(input)).await
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let who = self.who(&req)?;
        parts::put(who, req).await.map(S3Response::new)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.on_long(req, |on, input| on.copy_part(&input)).await
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.on_long(req, |on, input| on.list_parts(input)).await
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.on_long(req, |on, input| on.list_uploads(input)).await
    }

    async fn get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        self.on(req, |on, input| on.tags_of(input)).await
    }

    async fn put_object_tagging(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        self.on(req, |on, input| on.set_tags_of(input)).await
    }

    async fn delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.on(req, |on, input| on.remove_tags_of(input)).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.on_long(req, |on, input| on.complete_parts(input)).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.on_long(req, |on, input| on.abort_parts(&input)).await
    }
}

/// What is read of requests and attributes, for arbitrary text.
#[cfg(test)]
pub mod fuzzed {
    use super::*;

    /// Has all of it read.
    pub fn read(text: &str, bytes: &[u8]) {
        if let Ok(target) = object("bucket", text) {
            assert_eq!(target.names.len(), 1 + text.trim_end_matches('/').split('/').count());
            assert!(target.names.iter().all(|name| !is_reserved(name)));
        }
        let _ = (bucket(text), tags::said(text), parts::fuzzed(text, bytes), marks::fuzzed(bytes));
        if let Ok(tags) = tags::said(text) {
            assert!(tags.len() <= 10);
        }
        let _ = is_signed(&HeaderMap::new(), Some(text));
        incoming::fuzzed(bytes);
        checksums::fuzzed(text, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_below_their_bucket_and_nothing_else() {
        assert_eq!(object("b", "a/c d").unwrap().path(), b"/b/a/c d");
        assert!(object("b", "a/").unwrap().is_dir);
        for wrong in [
            "",
            "/",
            "/a",
            "a//b",
            "../x",
            "a/../b",
            "a/.",
            ".",
            "a\0b",
            ".bivouac-uploads/x",
            "a/.bivouac-put-1",
        ] {
            assert!(object("b", wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "a/b", "..", "."] {
            assert!(bucket(wrong).is_err(), "{wrong}");
        }
    }
}
