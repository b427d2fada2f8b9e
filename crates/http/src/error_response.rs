//! Answers to requests that are not carried out.

use bivouac_types::{Errno, FsError};
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::body::{Body, full};

/// The answer to a request that is not carried out.
#[derive(Debug)]
pub struct ErrorResponse {
    status: StatusCode,
    text: String,
    is_xml: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ErrorResponse {
    /// Creates the response with a sentence for the user.
    #[must_use]
    pub fn new(status: StatusCode, text: impl Into<String>) -> ErrorResponse {
        ErrorResponse { status, text: text.into(), is_xml: false, headers: Vec::new() }
    }

    /// Creates a response of 400, with a sentence for the user.
    #[must_use]
    pub fn bad_request(text: impl Into<String>) -> ErrorResponse {
        ErrorResponse::new(StatusCode::BAD_REQUEST, text)
    }

    /// Creates a response with a body of XML, for programs.
    #[must_use]
    pub fn xml(status: StatusCode, text: String) -> ErrorResponse {
        ErrorResponse { status, text, is_xml: true, headers: Vec::new() }
    }

    /// Returns the response with a header besides.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> ErrorResponse {
        self.headers.push((name, value));
        self
    }

    /// Returns its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns its sentence.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the response with a body of XML, which is made of its sentence.
    #[must_use]
    pub fn into_xml(self, write: impl FnOnce(&str) -> String) -> ErrorResponse {
        ErrorResponse { text: write(&self.text), is_xml: true, ..self }
    }

    /// Converts the error to a response.
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

/// Converts an error of the formation. Internal errors are logged, and not sent to the client.
impl From<FsError> for ErrorResponse {
    fn from(error: FsError) -> ErrorResponse {
        let status = match error.errno() {
            Errno::ENOENT | Errno::ENOTDIR => StatusCode::NOT_FOUND,
            Errno::EACCES | Errno::EPERM | Errno::EXDEV | Errno::ELOOP | Errno::EROFS => {
                StatusCode::FORBIDDEN
            }
            Errno::EISDIR | Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY => StatusCode::CONFLICT,
            Errno::ECANCELED => StatusCode::PRECONDITION_FAILED,
            Errno::ENAMETOOLONG => StatusCode::URI_TOO_LONG,
            Errno::EINVAL => StatusCode::BAD_REQUEST,
            Errno::EFBIG => StatusCode::PAYLOAD_TOO_LARGE,
            Errno::ENOSPC | Errno::EDQUOT => StatusCode::INSUFFICIENT_STORAGE,
            Errno::EAGAIN | Errno::ETIMEDOUT | Errno::ENOTCONN => StatusCode::SERVICE_UNAVAILABLE,
            // The client has disconnected.
            Errno::EINTR => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        // Space is the user's to make: no fault of the formation, and worth saying.
        if status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE {
            log::error!(why:% = error; "a request failed");
            return ErrorResponse::new(status, "the formation could not do it; see: bivouac logs");
        }
        // Without the detail, which may name nodes and paths.
        ErrorResponse::new(status, FsError::from(error.errno()).to_string())
    }
}

/// A task that has panicked, or has been given up at the server's end.
impl From<tokio::task::JoinError> for ErrorResponse {
    fn from(error: tokio::task::JoinError) -> ErrorResponse {
        log::error!(why:% = error; "a request was given up");
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "the server could not do it; see: bivouac logs")
    }
}

/// Returns the error of a missing parent directory.
pub fn no_parent(error: FsError) -> ErrorResponse {
    match error.errno() {
        Errno::ENOENT | Errno::ENOTDIR => {
            ErrorResponse::new(StatusCode::CONFLICT, "the directory that it would be in is not there")
        }
        _ => error.into(),
    }
}
