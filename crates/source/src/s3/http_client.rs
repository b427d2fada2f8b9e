//! HTTP requests: signed, sent, and retried with exponential back-off a limited number of times.

use std::cell::Cell;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use rusty_s3::Method;
use ureq::http;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::bucket_address::BucketAddress;
use super::credentials::{Credentials, Environment, read_small};
use super::error_response::{ErrorResponse, RequestError};
use super::metadata::Headers;
use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// Upper limit of attempts per request.
const TRIES_MAX: u32 = 5;
/// Validity of a signature.
const SIGNATURE: Duration = Duration::from_secs(900);
/// Timeouts of connecting, of the response, and of a single read or write.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(30);
/// Upper limit of a response body that is kept in memory, in bytes: fits 1,000 percent-encoded keys of 1 KiB.
const TEXT_MAX: u64 = 8 << 20;
/// Upper limit of an error response, in bytes.
const REFUSAL_MAX: u64 = 64 << 10;
/// Size of a body, in bytes, from which on a retry waits for `100 Continue`.
const LARGE: usize = 64 << 10;
/// Usual paths of the system's trusted certificates.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// An HTTP request.
#[derive(Clone, Default)]
pub struct Request<'a> {
    /// Path below the source's root, for messages.
    pub path: &'a [u8],
    /// Key; empty for the bucket itself.
    pub key: &'a str,
    /// Query parameters.
    pub query: Vec<(&'static str, String)>,
    /// Headers by lower-case names.
    pub headers: Headers,
    /// Body.
    pub body: &'a [u8],
}

/// An HTTP response whose body has not been read.
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Headers by lower-case names; non-ASCII values are omitted.
    pub headers: Headers,
    body: ureq::Body,
}

/// HTTP client of one bucket.
pub struct HttpClient {
    agent: ureq::Agent,
    address: BucketAddress,
    here: Environment,
    keys: Mutex<Credentials>,
    /// Time of the last response.
    last_response: Mutex<Option<Instant>>,
    /// Delay before the first retry.
    pause: Duration,
}

impl Response {
    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the body as text.
    pub fn text(&mut self) -> io::Result<String> {
        self.text_of(TEXT_MAX)
    }

    fn text_of(&mut self, max: u64) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.body.as_reader().take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "answer is too long"));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads the body until `into` is full; returns the number of bytes read, and the error that ended it early.
    pub fn fill(&mut self, into: &mut [u8]) -> (usize, io::Result<()>) {
        let mut reader = self.body.as_reader();
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match reader.read(rest) {
                Ok(0) => return (done, Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }
}

impl HttpClient {
    /// Creates a client with the credentials of the environment.
    ///
    /// # Errors
    /// [`Cause::Denied`] without credentials; [`Cause::BadName`] for certificates that are none.
    pub fn new(address: BucketAddress, here: &Environment, pause: Duration) -> SourceResult<HttpClient> {
        let keys = Mutex::new(here.keys(&address.object(b""))?);
        let mut config = ureq::Agent::config_builder()
            // The body of an error response has its code.
            .http_status_as_error(false)
            // A redirect would send the signature to another host. Region errors are reported instead.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("bivouac/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .max_idle_connections_per_host(32)
            .max_idle_connections(32);
        if address.is_https() {
            config = config.tls_config(TlsConfig::builder().root_certs(trusted_roots(here)?).build());
        } else {
            // Plain HTTP is used within a site, where the proxy of the environment does not lead.
            config = config.proxy(None);
        }
        let last_response = Mutex::new(None);
        Ok(HttpClient {
            agent: config.build().new_agent(),
            address,
            here: here.clone(),
            keys,
            last_response,
            pause,
        })
    }

    /// Sets the delay before the first retry.
    pub fn set_pause(&mut self, pause: Duration) {
        self.pause = pause;
    }

    /// Returns the bucket's address.
    pub fn address(&self) -> &BucketAddress {
        &self.address
    }

    /// Returns whether the store has responded within this time.
    pub fn has_recent_response(&self, within: Duration) -> bool {
        self.last_response.lock().is_some_and(|last_response| last_response.elapsed() < within)
    }

    /// Sends a request until `take` accepts its response or the error is permanent. The request is built anew for each
    /// attempt, because part of a response may have been consumed.
    ///
    /// # Errors
    /// What `take` says; what the store refuses; [`Cause::Lost`] when it does not answer.
    pub fn execute<'a, T>(
        &self,
        method: Method,
        request: impl Fn() -> Request<'a>,
        mut take: impl FnMut(&mut Response) -> Result<T, RequestError>,
    ) -> SourceResult<T> {
        let renewed = Cell::new(false);
        let mut tries = 1;
        loop {
            let request = request();
            match self
                .send(method, &request, tries > 1)
                .and_then(|mut answer| self.check_status(method, &request, &mut answer, &mut take))
            {
                Ok(taken) => {
                    *self.last_response.lock() = Some(Instant::now());
                    return Ok(taken);
                }
                Err(RequestError::Transient(_)) if tries < TRIES_MAX => self.back_off(tries),
                // Temporary credentials are renewed by rewriting their file; one more attempt is made if it has
                // changed.
                Err(RequestError::Permanent(error))
                    if error.cause() == Cause::Denied
                        && !renewed.replace(true)
                        && self.reload_credentials() => {}
                Err(trouble) => return Err(trouble.into_error()),
            }
            tries += 1;
        }
    }

    fn check_status<T>(
        &self,
        method: Method,
        request: &Request<'_>,
        answer: &mut Response,
        take: &mut impl FnMut(&mut Response) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        if (200..300).contains(&answer.status) {
            return take(answer);
        }
        // Responses to HEAD have no body, whatever their length header says.
        let text = if method == Method::Head {
            String::new()
        } else {
            answer.text_of(REFUSAL_MAX).unwrap_or_default()
        };
        Err(self.error_response(request.path, answer, &text))
    }

    /// Classifies an error response, also one with status 200.
    pub fn error_response(&self, path: &[u8], answer: &Response, text: &str) -> RequestError {
        let (object, host) = (self.address.object(path), self.address.host());
        let (date, region) = (answer.header("date"), answer.header("x-amz-bucket-region"));
        ErrorResponse { object: &object, host: &host, status: answer.status, text, date, region }.explain()
    }

    /// Creates the error of a malformed response.
    pub fn invalid_response(&self, path: &[u8], what: &str) -> SourceError {
        let text = format!(
            "{}: {} answers {what}: is it an object store that speaks S3?",
            self.address.object(path),
            self.address.host()
        );
        SourceError::new(Cause::Other, text)
    }

    /// Creates the error of a broken connection.
    pub fn connection_broken(&self, path: &[u8], error: &io::Error) -> RequestError {
        let text = format!("{}: {}: {}", self.address.object(path), self.address.host(), cause_of(error));
        RequestError::Transient(SourceError::new(Cause::Lost, text))
    }

    /// Sends a request. With `asks_first` a large body is sent only after `100 Continue`: a store that refuses a body
    /// it is still receiving resets the connection, and its response is lost.
    fn send(
        &self,
        method: Method,
        request: &Request<'_>,
        asks_first: bool,
    ) -> Result<Response, RequestError> {
        let url = self.signed_url(method, request);
        let mut built = http::Request::builder().method(method.to_str()).uri(url);
        for (name, value) in &request.headers {
            built = built.header(name, value);
        }
        if asks_first && request.body.len() > LARGE {
            built = built.header("expect", "100-continue");
        }
        let sent = if matches!(method, Method::Put | Method::Post) {
            built.body(request.body).map_err(ureq::Error::Http).and_then(|built| self.agent.run(built))
        } else {
            built.body(()).map_err(ureq::Error::Http).and_then(|built| self.agent.run(built))
        };
        let (parts, body) = sent.map_err(|error| self.transport_error(request.path, error))?.into_parts();
        let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
        let headers = parts.headers.iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?)));
        Ok(Response { status: parts.status.as_u16(), headers: headers.collect(), body })
    }

    /// Returns the signed URL. It is a secret: no message contains it.
    fn signed_url(&self, method: Method, request: &Request<'_>) -> String {
        let (keys, mut query) = (self.keys.lock().clone(), request.query.clone());
        // The signature covers the parameters in sorted order.
        query.sort();
        let signed = rusty_s3::signing::sign(
            &Timestamp::now(),
            method,
            self.address.url(request.key),
            &keys.id,
            &keys.secret,
            keys.token.as_deref(),
            self.address.region(),
            SIGNATURE.as_secs(),
            query.iter().map(|(name, value)| (*name, value.as_str())),
            request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())),
        );
        signed.into()
    }

    fn transport_error(&self, path: &[u8], error: ureq::Error) -> RequestError {
        let (object, host) = (self.address.object(path), self.address.host());
        let failed = |cause, what: &str| SourceError::new(cause, format!("{object}: {what}"));
        match error {
            // ureq reports a failed name resolution as an I/O error that differs only in its text.
            ureq::Error::Io(error) if !error.to_string().contains("lookup address") => {
                self.connection_broken(path, &error)
            }
            ureq::Error::Timeout(_) => {
                RequestError::Transient(failed(Cause::Lost, &format!("{host} does not answer in time")))
            }
            ureq::Error::Io(_) | ureq::Error::HostNotFound => {
                let what =
                    format!("there is no host {host}: correct AWS_ENDPOINT_URL or the source's endpoint");
                RequestError::Transient(failed(Cause::Lost, &what))
            }
            ureq::Error::Protocol(_) => {
                RequestError::Transient(self.invalid_response(path, "something else than HTTP"))
            }
            ureq::Error::Http(_) => {
                RequestError::Permanent(failed(Cause::BadName, "has a header that cannot be sent"))
            }
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => {
                RequestError::Permanent(failed(Cause::Lost, &untrusted(&host)))
            }
            _ => RequestError::Transient(failed(Cause::Lost, &format!("{host} cannot be reached"))),
        }
    }

    fn reload_credentials(&self) -> bool {
        let Ok(new) = self.here.keys("") else { return false };
        let mut keys = self.keys.lock();
        std::mem::replace(&mut *keys, new.clone()) != new
    }

    /// Waits before the next attempt, with exponential back-off and jitter.
    fn back_off(&self, tries: u32) {
        let longest = self.pause.saturating_mul(3u32.saturating_pow(tries - 1));
        // Jitter of half the delay keeps many clients from retrying in step.
        let share = f64::from(random() % 512) / 1024.0;
        let until = Instant::now() + longest.mul_f64(0.5 + share);
        // A lock of this call alone: concurrent requests wait independently, and no notification ends the wait.
        let (lock, never) = (Mutex::new(()), Condvar::new());
        let mut guard = lock.lock();
        while !never.wait_until(&mut guard, until).timed_out() {}
    }
}

fn random() -> u32 {
    getrandom::u32().unwrap_or(0)
}

fn untrusted(host: &str) -> String {
    format!("{host} has a certificate that is not trusted: name the one to trust with AWS_CA_BUNDLE")
}

fn cause_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused: is the store running?".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the connection broke off".to_owned()
        }
        // The text of other kinds may be long or contain the signed URL.
        kind => format!("{kind}"),
    }
}

/// Returns the trusted certificates: those of `AWS_CA_BUNDLE`, of the system, or Mozilla's.
///
/// # Errors
/// [`Cause::BadName`] for a file that has none.
pub fn trusted_roots(here: &Environment) -> SourceResult<RootCerts> {
    let read = |path: &std::path::Path| {
        let text = read_small(path)?;
        let is_certificate = |item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        };
        let found: Vec<Certificate<'static>> =
            parse_pem(text.as_bytes()).filter_map(is_certificate).collect();
        (!found.is_empty()).then_some(found)
    };
    if let Some(path) = here.certificates() {
        let none = || {
            let text = format!("{}: has no certificates in PEM; see AWS_CA_BUNDLE", path.display());
            SourceError::new(Cause::BadName, text)
        };
        return Ok(read(&path).ok_or_else(none)?.into());
    }
    let of_system = CERTIFICATES.iter().find_map(|path| read(path.as_ref()));
    Ok(of_system.map_or(RootCerts::WebPki, RootCerts::from))
}
