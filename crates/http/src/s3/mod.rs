//! The same files as objects: a directory of the root is a bucket, what is below it are keys. Signatures are those of
//! keys: the access key is a key's id, the secret key is the key.

mod attributes;
mod checksums;
mod conditions;
mod cors;
mod dates;
mod domain;
mod error_answers;
mod incoming;
mod list;
mod marks;
mod objects;
mod parts;
mod region;
mod removal;
mod request_gate;
mod signed_headers;
mod tags;
mod unsigned_forms;
mod xml;

use std::sync::Arc;
use std::time::SystemTime;

use bivouac_types::{Errno, FsError};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use s3s::auth::{S3Auth, SecretKey};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput, CreateBucketOutput,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteBucketCorsInput, DeleteBucketCorsOutput,
    DeleteBucketInput, DeleteBucketOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectTaggingInput,
    DeleteObjectTaggingOutput, DeleteObjectsInput, DeleteObjectsOutput, GetBucketCorsInput,
    GetBucketCorsOutput, GetBucketLocationInput, GetBucketLocationOutput, GetObjectAttributesInput,
    GetObjectAttributesOutput, GetObjectInput, GetObjectOutput, GetObjectTaggingInput,
    GetObjectTaggingOutput, HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput,
    ListBucketsInput, ListBucketsOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput,
    ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, ListPartsInput,
    ListPartsOutput, PutBucketCorsInput, PutBucketCorsOutput, PutObjectInput, PutObjectOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput, UploadPartCopyInput, UploadPartCopyOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body::Body;
use crate::cancellation::Cancellation;
use crate::error_response::ErrorResponse;
use crate::keys::Deriver;
use crate::locks::{ChangeScope, LockConditions, RequestHead};
use crate::query::has_parameter;
use crate::request_path::{RequestPath, is_reserved};
use crate::tree::{Access, LEVELS_MAX, Tree};
use conditions::WriteConditions;
use domain::BucketDomain;
use incoming::{BoundedBody, BucketPosition, CollectedBytes};
use request_gate::RequestGate;
use unsigned_forms::{UnsignedForms, note_key, with_key_noted};

/// Longest field of a form that is no file, in bytes.
const FORM_FIELD_MAX: usize = 64 << 10;
/// Longest fields of a form together, with what of its file comes in one piece with them, in bytes.
const FORM_FIELDS_MAX: usize = 2 << 20;

/// Returns whether a request has an S3 signature.
#[must_use]
pub fn is_signed(headers: &HeaderMap, query: Option<&str>) -> bool {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    authorization.is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256"))
        || has_parameter(query, "X-Amz-Signature")
        || is_signed_by_version_2(headers, query)
}

/// Returns whether a request has a signature of version 2, which is refused.
fn is_signed_by_version_2(headers: &HeaderMap, query: Option<&str>) -> bool {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    authorization.is_some_and(|text| text.starts_with("AWS "))
        || has_parameter(query, "AWSAccessKeyId") && has_parameter(query, "Signature")
}

/// Handler of S3 requests.
pub struct S3Front {
    service: S3Service,
    domain: Option<BucketDomain>,
    room: CollectedBytes,
    tree: Arc<Tree>,
    rule_readers: cors::RuleReaders,
}

impl S3Front {
    /// Creates the handler; `long` limits expensive requests. For hosts in the domain, the first label is a bucket.
    #[must_use]
    pub fn new(
        tree: &Arc<Tree>,
        keys: &Arc<Deriver>,
        long: &Arc<Semaphore>,
        domain: Option<&str>,
    ) -> S3Front {
        let mut builder =
            S3ServiceBuilder::new(S3Handlers { tree: Arc::clone(tree), long: Arc::clone(long) });
        builder.set_auth(Secrets { tree: Arc::clone(tree), keys: Arc::clone(keys) });
        builder.set_access(RequestGate);
        builder.set_route(UnsignedForms);
        // Forms are good for as long as their policy says, 7 days at most; signatures of others are bounded by `dates`.
        let mut config = S3Config::default();
        config.presigned_url_max_skew_time_secs = dates::LINK_S_MAX as u32;
        config.form_max_field_size = FORM_FIELD_MAX;
        config.form_max_fields_size = FORM_FIELDS_MAX;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let domain = domain.map(BucketDomain::new);
        if let Some(domain) = domain.clone() {
            builder.set_host(domain);
        }
        S3Front {
            service: builder.build(),
            domain,
            room: CollectedBytes::default(),
            tree: Arc::clone(tree),
            rule_readers: cors::RuleReaders::default(),
        }
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let id = getrandom::u64().map_or_else(|_| String::from("0"), |drawn| format!("{drawn:016X}"));
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let origin = request.headers().get(header::ORIGIN).cloned();
        let bucket = origin.as_ref().map(|_| self.bucket_of(&path, request.headers()));
        let answered = self.answer_or_refuse(request).await;
        let mut response = answered.unwrap_or_else(|refusal| error_answers::answer(refusal, &id));
        // The service has no status for it.
        if response.status() == StatusCode::OK && response.headers().contains_key(header::CONTENT_RANGE) {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        if response.status().is_server_error() && response.status() != StatusCode::NOT_IMPLEMENTED {
            let status = response.status().as_u16();
            log::warn!("S3 request {id} was answered {status}: {method} {path}");
        }
        // Refusals, too: without the headers a page could not read why.
        if let (Some(origin), Some(bucket)) =
            (origin.as_ref().and_then(|origin| origin.to_str().ok()), bucket)
        {
            match self.rules(bucket).await {
                Ok(rules) => cors::allow(&rules, (origin, method.as_str()), response.headers_mut()),
                Err(refusal) => log::warn!("rules of a bucket could not be read: {}", refusal.text()),
            }
        }
        error_answers::complete(response, &id).await
    }

    /// Says whether a page of another place may have a request made. It needs no key, and changes nothing.
    pub async fn preflight(&self, path: &str, headers: &HeaderMap) -> Response<Body> {
        let answer = match self.rules(self.bucket_of(path, headers)).await {
            Ok(rules) => cors::preflight(&rules, headers),
            Err(refusal) => Err(refusal),
        };
        answer.unwrap_or_else(|refusal| error_answers::answer(refusal, "0"))
    }

    /// Returns the bucket that a request names, be there one or not.
    fn bucket_of(&self, path: &str, headers: &HeaderMap) -> String {
        let in_host = self.domain.as_ref().and_then(|domain| domain.bucket_of(headers));
        in_host.unwrap_or_else(|| path.split('/').nth(1).unwrap_or_default().to_owned())
    }

    async fn rules(&self, bucket: String) -> Result<Vec<cors::Rule>, ErrorResponse> {
        let tree = Arc::clone(&self.tree);
        Ok(self.rule_readers.read(move || cors::rules(&tree, &bucket)).await??)
    }

    async fn answer_or_refuse(&self, request: Request<Incoming>) -> Result<Response<Body>, ErrorResponse> {
        if is_signed_by_version_2(request.headers(), request.uri().query()) {
            let text = "InvalidRequest: signatures of version 2 are not taken, sign with AWS4-HMAC-SHA256: aws s3 \
                        presign does so with --region eu-central-1, or after: aws configure set s3.signature_version s3v4";
            return Err(ErrorResponse::bad_request(text));
        }
        if is_form(&request) {
            request_gate::check_form_head(request.headers(), request.uri().query())?;
            return self.serve(request).await;
        }
        signed_headers::check(request.headers(), request.uri().query())?;
        dates::check(request.headers(), request.uri().query(), SystemTime::now())?;
        if let Some(told) = region::refused(request.headers()) {
            return Ok(told);
        }
        self.serve(request).await
    }

    /// Handles a request.
    async fn serve(&self, request: Request<Incoming>) -> Result<Response<Body>, ErrorResponse> {
        let (parts, body) = request.into_parts();
        let in_host = self.domain.as_ref().is_some_and(|domain| domain.has_bucket(&parts.headers));
        let place = if in_host { BucketPosition::InHost } else { BucketPosition::InPath };
        let said = (&parts.method, &parts.uri, &parts.headers);
        let (body, cause) = BoundedBody::new(body, said, place, &self.room)?;
        let request = Request::from_parts(parts, s3s::Body::http_body_unsync(body));
        let answered = with_key_noted(self.service.call(request)).await;
        // First, as the service only knows that the body broke off.
        if let Some(status) = cause.get() {
            return Err(incoming::refusal(*status));
        }
        let response = answered.map_err(|error| {
            log::error!("a request of S3 failed: {}", s3s::StdError::from(error));
            ErrorResponse::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the server could not do it; see: bivouac logs",
            )
        })?;
        Ok(response.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
    }
}

/// Returns whether a request puts an object by an HTML form, whose signature is in its body.
#[must_use]
pub fn is_form<B>(request: &Request<B>) -> bool {
    *request.method() == Method::POST && incoming::is_form(request.headers())
}

/// Returns whether a request is a CORS preflight.
#[must_use]
pub fn is_preflight<B>(request: &Request<B>) -> bool {
    *request.method() == Method::OPTIONS && cors::is_preflight(request.headers())
}

/// Secrets of the keys that may sign.
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
            Some(_) => {
                note_key();
                Ok(self.keys.key(access_key).into())
            }
            None => Err(s3_error!(InvalidAccessKeyId, "there is no such key, or it has expired")),
        }
    }
}

struct S3Handlers {
    tree: Arc<Tree>,
    long: Arc<Semaphore>,
}

/// The formation, and what of it the key of a request reaches.
struct S3Context {
    tree: Arc<Tree>,
    access: Access,
    /// Ends copies whose client has gone.
    cancellation: Cancellation,
}

impl S3Context {
    /// Refuses to change a resource that is locked by WebDAV.
    fn check_locks(&self, place: &RequestPath, reach: ChangeScope) -> S3Result<()> {
        // S3 has no header for lock tokens.
        let headers = HeaderMap::new();
        let asks = RequestHead { access: &self.access, target: place, headers: &headers };
        let checked = LockConditions::default().check(&self.tree, asks, &[(place, reach)]);
        checked.map(drop).map_err(|refusal| match refusal.status() {
            StatusCode::LOCKED => s3_error!(OperationAborted, "somebody has locked it over WebDAV"),
            StatusCode::FORBIDDEN => s3_error!(AccessDenied),
            StatusCode::SERVICE_UNAVAILABLE => s3_error!(ServiceUnavailable),
            _ => s3_error!(InternalError, "see: bivouac logs"),
        })
    }
}

/// Returns the S3 error of an error of the formation.
fn error(error: FsError) -> S3Error {
    let code = match error.errno() {
        Errno::ENOENT | Errno::ENOTDIR => S3ErrorCode::NoSuchKey,
        Errno::EACCES | Errno::EPERM | Errno::EXDEV | Errno::ELOOP | Errno::EROFS => {
            S3ErrorCode::AccessDenied
        }
        Errno::EEXIST | Errno::ESTALE | Errno::ECANCELED => S3ErrorCode::PreconditionFailed,
        Errno::ENAMETOOLONG => {
            let text = format!("a name has more than 255 bytes, or the key more than {LEVELS_MAX} levels");
            return S3Error::with_message(S3ErrorCode::KeyTooLongError, text);
        }
        Errno::EISDIR | Errno::ENOTEMPTY | Errno::EINVAL => S3ErrorCode::InvalidRequest,
        Errno::EFBIG => S3ErrorCode::EntityTooLarge,
        Errno::EAGAIN | Errno::ETIMEDOUT | Errno::ENOTCONN | Errno::EINTR => S3ErrorCode::ServiceUnavailable,
        Errno::ENOSPC | Errno::EDQUOT => {
            return error_answers::no_space();
        }
        Errno::E2BIG => {
            return s3_error!(
                MetadataTooLarge,
                "metadata, tags and headers of an object have at most 64 KiB"
            );
        }
        _ => {
            log::error!(why:% = error; "a request of S3 failed");
            return s3_error!(InternalError, "the formation could not do it; see: bivouac logs");
        }
    };
    S3Error::with_message(code, FsError::from(error.errno()).to_string())
}

/// Returns the place of a bucket.
fn bucket(name: &str) -> S3Result<RequestPath> {
    let target = RequestPath::plain(name.as_bytes()).map_err(|_| s3_error!(InvalidBucketName))?;
    if target.names.len() == 1 {
        // A bucket has one name, with a slash behind it or without.
        Ok(RequestPath { is_dir: false, ..target })
    } else {
        Err(s3_error!(InvalidBucketName))
    }
}

/// Returns the place of an object. Keys that would be the same file as another key are none.
fn object(bucket_name: &str, key: &str) -> S3Result<RequestPath> {
    let mut target = bucket(bucket_name)?;
    let wrong = || s3_error!(InvalidArgument, "a key is a path without empty names, . and ..");
    let below = RequestPath::plain(key.as_bytes()).map_err(|_| wrong())?;
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

impl S3Handlers {
    /// Runs an operation for the signer of a request on a thread that may block.
    async fn on<I: Send + 'static, O: Send + 'static>(
        &self,
        request: S3Request<I>,
        act: impl FnOnce(S3Context, I) -> S3Result<O> + Send + 'static,
    ) -> S3Result<S3Response<O>> {
        let on = self.who(&request);
        let input = request.input;
        // Also what the key reaches is looked up there: that may block, too.
        let done = spawn_blocking(move || act(on?.look()?, input));
        done.await.map_err(S3Error::internal_error)?.map(S3Response::new)
    }

    /// Like [`S3Handlers::on`], for what takes long.
    async fn on_long<I: Send + 'static, O: Send + 'static>(
        &self,
        request: S3Request<I>,
        act: impl FnOnce(S3Context, I) -> S3Result<O> + Send + 'static,
    ) -> S3Result<S3Response<O>> {
        // The turn goes with the work, which may run on when the client is gone.
        let turn = Arc::clone(&self.long).acquire_owned().await.map_err(S3Error::internal_error)?;
        let cancellation = Cancellation::default();
        let _cancel_on_drop = cancellation.cancel_on_drop();
        self.on(request, move |on, input| {
            let _turn = turn;
            act(S3Context { cancellation, ..on }, input)
        })
        .await
    }

    fn who<I>(&self, request: &S3Request<I>) -> S3Result<Signer> {
        let signed = request.credentials.as_ref().ok_or_else(|| s3_error!(AccessDenied))?;
        Ok(Signer { tree: Arc::clone(&self.tree), id: signed.access_key.clone() })
    }
}

/// Signer of a request, before its access is known.
struct Signer {
    tree: Arc<Tree>,
    id: String,
}

impl Signer {
    fn look(self) -> S3Result<S3Context> {
        let access =
            self.tree.access(&self.id).map_err(error)?.ok_or_else(|| s3_error!(InvalidAccessKeyId))?;
        Ok(S3Context { tree: self.tree, access, cancellation: Cancellation::default() })
    }
}

/// Implements the trait: operations that are one call of [`S3Context`] by a row each, the others in full.
macro_rules! operations {
    ({ $($name:ident($input:ty) -> $output:ty = $runs:ident $act:expr;)* } $($others:tt)*) => {
        #[async_trait::async_trait]
        impl S3 for S3Handlers {
            $(async fn $name(&self, req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                self.$runs(req, $act).await
            })*

            $($others)*
        }
    };
}

operations! {
    {
        list_buckets(ListBucketsInput) -> ListBucketsOutput = on |on, input| on.list_buckets(input);
        create_bucket(CreateBucketInput) -> CreateBucketOutput = on |on, input| on.create_bucket(&input.bucket);
        delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = on_long |on, input| on.delete_bucket(&input.bucket);
        head_bucket(HeadBucketInput) -> HeadBucketOutput = on |on, input| on.is_bucket(&input.bucket).map(|_| HeadBucketOutput::default());
        get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = on |on, input| on.is_bucket(&input.bucket).map(|_| GetBucketLocationOutput::default());
        get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = on |on, input| on.cors(&input);
        put_bucket_cors(PutBucketCorsInput) -> PutBucketCorsOutput = on |on, input| on.set_cors(input);
        delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput = on |on, input| on.remove_cors(&input);
        get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = on |on, input| on.attributes(&input);
        delete_object(DeleteObjectInput) -> DeleteObjectOutput = on |on, input| on.delete(input);
        delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = on_long |on, input| on.delete_several(input);
        list_objects(ListObjectsInput) -> ListObjectsOutput = on_long |on, input| on.list_old(input);
        list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = on_long |on, input| on.list(input);
        create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = on |on, input| on.begin_parts(input);
        upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = on_long |on, input| on.copy_part(&input);
        list_parts(ListPartsInput) -> ListPartsOutput = on_long |on, input| on.list_parts(input);
        list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = on_long |on, input| on.list_uploads(input);
        get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = on |on, input| on.tags_of(input);
        put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = on |on, input| on.set_tags_of(input);
        delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = on |on, input| on.remove_tags_of(input);
        complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = on_long |on, input| on.complete_parts(input);
        abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = on_long |on, input| on.abort_parts(&input);
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let headers = req.headers.clone();
        let answer = self.on(req, move |on, input| on.head(&input, &headers)).await?;
        let (output, tags) = answer.output;
        let mut response = S3Response::new(output);
        if tags > 0 {
            response.headers.insert("x-amz-tagging-count", HeaderValue::from(tags));
        }
        Ok(response)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let headers = req.headers.clone();
        self.on(req, move |on, input| on.get(&input, &headers)).await
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let who = self.who(&req)?;
        objects::put(who, req).await.map(S3Response::new)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let conditions = WriteConditions::of_headers(&req.headers)?;
        self.on_long(req, move |on, input| on.copy(&input, &conditions)).await
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let who = self.who(&req)?;
        parts::put(who, req).await.map(S3Response::new)
    }
}

/// Entry points for fuzzing of parsers.
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
        request_gate::fuzzed(text);
        error_answers::fuzzed(text);
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
