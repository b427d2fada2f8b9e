//! Forms without a signature, refused before the file in them is collected: the service checks who may do something
//! behind that.

use std::cell::Cell;

use hyper::header::HeaderMap;
use hyper::http::Extensions;
use hyper::{Method, Uri};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};

use super::incoming::is_form;

tokio::task_local! {
    /// True if the request of this task names an existing key. A signature that does not match that key is refused at
    /// once.
    static HAS_KEY: Cell<bool>;
}

/// Runs the service of a request with a note of whether it names a key.
pub async fn with_key_noted<F: Future>(answer: F) -> F::Output {
    HAS_KEY.scope(Cell::new(false), answer).await
}

/// Notes that the request of this task names a key that there is.
pub fn note_key() {
    // Outside of a request nobody asks for it.
    let _ = HAS_KEY.try_with(|has_key| has_key.set(true));
}

/// Takes forms without a signature, and refuses them.
pub struct UnsignedForms;

#[async_trait::async_trait]
impl S3Route for UnsignedForms {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        *method == Method::POST && is_form(headers) && !HAS_KEY.try_with(Cell::get).unwrap_or(false)
    }

    async fn call(&self, _: S3Request<Body>) -> S3Result<S3Response<Body>> {
        Err(s3_error!(AccessDenied, "a form is signed by its fields"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_forms_without_a_key_are_taken() {
        let headers =
            |kind: &str| [(hyper::header::CONTENT_TYPE, kind.parse().unwrap())].into_iter().collect();
        let (form, other): (HeaderMap, HeaderMap) =
            (headers("multipart/form-data; boundary=x"), headers("application/xml"));
        let (uri, mut more) = (Uri::from_static("/b"), Extensions::new());
        with_key_noted(async {
            assert!(UnsignedForms.is_match(&Method::POST, &uri, &form, &mut more));
            assert!(!UnsignedForms.is_match(&Method::PUT, &uri, &form, &mut more));
            assert!(!UnsignedForms.is_match(&Method::POST, &uri, &other, &mut more));
            note_key();
            assert!(!UnsignedForms.is_match(&Method::POST, &uri, &form, &mut more));
        })
        .await;
        with_key_noted(async {
            assert!(UnsignedForms.is_match(&Method::POST, &uri, &form, &mut more), "each request for itself");
        })
        .await;
    }
}
