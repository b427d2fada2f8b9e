//! Answers that say why not.

use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::body::{Body, full};

/// Why a request is not carried out.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    text: String,
    is_xml: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    /// With a sentence for the user.
    #[must_use]
    pub fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into(), is_xml: false, headers: Vec::new() }
    }

    /// With a body of XML, for programs.
    #[must_use]
    pub fn xml(status: StatusCode, text: String) -> Refusal {
        Refusal { status, text, is_xml: true, headers: Vec::new() }
    }

    /// With a header besides.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Refusal {
        self.headers.push((name, value));
        self
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// As an answer.
    #[must_use]
    pub fn into_response(self) -> Response<Body> {
        let has_no_body = self.status == StatusCode::NOT_MODIFIED;
        let text = if has_no_body { Bytes::new() } else { Bytes::from(format!("{}\n", self.text)) };
        let mut response = Response::new(full(text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if !has_no_body {
            let kind =
                if self.is_xml { "application/xml; charset=utf-8" } else { "text/plain; charset=utf-8" };
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

/// What a request gets for an error of the formation. What is nobody's fault outside is logged, and not told.
impl From<FsError> for Refusal {
    fn from(error: FsError) -> Refusal {
        let status = match error.errno() {
            Errno::ENOENT | Errno::ENOTDIR => StatusCode::NOT_FOUND,
            Errno::EACCES | Errno::EPERM | Errno::EXDEV | Errno::ELOOP | Errno::EROFS => {
                StatusCode::FORBIDDEN
            }
            Errno::EISDIR | Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY => StatusCode::CONFLICT,
            Errno::ENAMETOOLONG => StatusCode::URI_TOO_LONG,
            Errno::EINVAL => StatusCode::BAD_REQUEST,
            Errno::EFBIG => StatusCode::PAYLOAD_TOO_LARGE,
            Errno::ENOSPC | Errno::EDQUOT => StatusCode::INSUFFICIENT_STORAGE,
            Errno::EAGAIN | Errno::ETIMEDOUT | Errno::ENOTCONN => StatusCode::SERVICE_UNAVAILABLE,
            // Whoever asked has gone.
            Errno::EINTR => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE {
            log::error!(why:% = error; "a request failed");
            return Refusal::new(status, "the formation could not do it; see: bivouac logs");
        }
        Refusal::new(status, FsError::from(error.errno()).to_string())
    }
}

/// A task that has panicked, or has been given up at the server's end.
impl From<tokio::task::JoinError> for Refusal {
    fn from(error: tokio::task::JoinError) -> Refusal {
        log::error!(why:% = error; "a request was given up");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server could not do it; see: bivouac logs")
    }
}
