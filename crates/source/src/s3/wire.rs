//! Requests: signed, sent, asked again after a pause when they come to nothing, and never for ever.

use std::cell::Cell;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use rusty_s3::Method;
use ureq::http;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::failure::{Refusal, Trouble};
use super::keys::{Environment, Keys, read_small};
use super::metadata::Headers;
use super::place::Place;
use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// How often a request is sent, at most.
const TRIES_MAX: u32 = 5;
/// How long a signature is valid.
const SIGNATURE: Duration = Duration::from_secs(900);
/// How long a connection, an answer, and a silence may take.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(30);
/// Largest answer that is kept as a whole, in bytes: 1,000 keys of 1 KiB, each byte encoded as three, fit.
const TEXT_MAX: u64 = 8 << 20;
/// Largest refusal, in bytes.
const REFUSAL_MAX: u64 = 64 << 10;
/// Larger bodies may still be on their way when the answer comes, in bytes.
const LARGE: usize = 64 << 10;
/// Certificates that systems trust, in the places where they have them.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// One request.
#[derive(Clone, Default)]
pub struct Request<'a> {
    /// What it is about, below the source's root.
    pub path: &'a [u8],
    /// Key; empty for the bucket itself.
    pub key: &'a str,
    /// Parameters, by name.
    pub query: Vec<(&'static str, String)>,
    /// Headers by lower-case names.
    pub headers: Headers,
    /// What is sent.
    pub body: &'a [u8],
}

/// The beginning of an answer.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers by lower-case names; those that are not ASCII are left out.
    pub headers: Headers,
    body: ureq::Body,
}

/// The way to a store.
pub struct Wire {
    agent: ureq::Agent,
    place: Place,
    here: Environment,
    keys: Mutex<Keys>,
    /// When the store answered last.
    heard: Mutex<Option<Instant>>,
    /// Wait before the second try.
    pause: Duration,
}

impl Answer {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The body as a text.
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

    /// Fills as much as there is; how much that was, and what came in between.
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

impl Wire {
    /// The way to a place, with the credentials that there are.
    ///
    /// # Errors
    /// [`Cause::Denied`] without credentials; [`Cause::BadName`] for certificates that are none.
    pub fn new(place: Place, here: &Environment, pause: Duration) -> SourceResult<Wire> {
        let keys = Mutex::new(here.keys(&place.object(b""))?);
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("bivouac/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .max_idle_connections_per_host(32)
            .max_idle_connections(32);
        if place.is_https() {
            config = config.tls_config(TlsConfig::builder().root_certs(trusted_roots(here)?).build());
        } else {
            // A store of the site's own is not asked for through a proxy.
            config = config.proxy(None);
        }
        let heard = Mutex::new(None);
        Ok(Wire { agent: config.build().new_agent(), place, here: here.clone(), keys, heard, pause })
    }

    /// Waits so long before the second try.
    pub fn set_pause(&mut self, pause: Duration) {
        self.pause = pause;
    }

    /// Where it leads.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whether the store has answered within this time.
    pub fn has_heard(&self, within: Duration) -> bool {
        self.heard.lock().is_some_and(|heard| heard.elapsed() < within)
    }

    /// Sends a request until its answer is taken or there is no hope. Each time it is made anew: part of an answer may
    /// have been taken before.
    ///
    /// # Errors
    /// What `take` says; what the store refuses; [`Cause::Lost`] when it does not answer.
    pub fn ask<'a, T>(
        &self,
        method: Method,
        request: impl Fn() -> Request<'a>,
        mut take: impl FnMut(&mut Answer) -> Result<T, Trouble>,
    ) -> SourceResult<T> {
        let renewed = Cell::new(false);
        let mut tries = 1;
        loop {
            let request = request();
            match self
                .send(method, &request, tries > 1)
                .and_then(|mut answer| self.look(method, &request, &mut answer, &mut take))
            {
                Ok(taken) => {
                    *self.heard.lock() = Some(Instant::now());
                    return Ok(taken);
                }
                Err(Trouble::Passing(_)) if tries < TRIES_MAX => self.wait(tries),
                // Whoever renews credentials in a file need not tell.
                Err(Trouble::Final(error))
                    if error.cause() == Cause::Denied && !renewed.replace(true) && self.has_new_keys() => {}
                Err(trouble) => return Err(trouble.into_error()),
            }
            tries += 1;
        }
    }

    fn look<T>(
        &self,
        method: Method,
        request: &Request<'_>,
        answer: &mut Answer,
        take: &mut impl FnMut(&mut Answer) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        if (200..300).contains(&answer.status) {
            return take(answer);
        }
        // Answers to HEAD have no body, whatever they say.
        let text = if method == Method::Head {
            String::new()
        } else {
            answer.text_of(REFUSAL_MAX).unwrap_or_default()
        };
        Err(self.refused(request.path, answer, &text))
    }

    /// What a refusal means, also one that came with a good status.
    pub fn refused(&self, path: &[u8], answer: &Answer, text: &str) -> Trouble {
        let (object, host) = (self.place.object(path), self.place.host());
        let (date, region) = (answer.header("date"), answer.header("x-amz-bucket-region"));
        Refusal { object: &object, host: &host, status: answer.status, text, date, region }.explain()
    }

    /// An answer that makes no sense.
    pub fn nonsense(&self, path: &[u8], what: &str) -> SourceError {
        let text = format!(
            "{}: {} answers {what}: is it an object store that speaks S3?",
            self.place.object(path),
            self.place.host()
        );
        SourceError::new(Cause::Other, text)
    }

    /// A connection that did not last.
    pub fn broken(&self, path: &[u8], error: &io::Error) -> Trouble {
        let text = format!("{}: {}: {}", self.place.object(path), self.place.host(), cause_of(error));
        Trouble::Passing(SourceError::new(Cause::Lost, text))
    }

    /// Sends a request. With `asks_first` a large body comes only when the store wants it: one that refuses it closes the
    /// connection under what does not stop coming, so that its answer is lost.
    fn send(&self, method: Method, request: &Request<'_>, asks_first: bool) -> Result<Answer, Trouble> {
        let url = self.sign(method, request);
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
        let (parts, body) = sent.map_err(|error| self.unanswered(request.path, error))?.into_parts();
        let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
        let headers = parts.headers.iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?)));
        Ok(Answer { status: parts.status.as_u16(), headers: headers.collect(), body })
    }

    /// The URL with its signature. It is for the store alone: no message shows it.
    fn sign(&self, method: Method, request: &Request<'_>) -> String {
        let (keys, mut query) = (self.keys.lock().clone(), request.query.clone());
        query.sort();
        let signed = rusty_s3::signing::sign(
            &Timestamp::now(),
            method,
            self.place.url(request.key),
            &keys.id,
            &keys.secret,
            keys.token.as_deref(),
            self.place.region(),
            SIGNATURE.as_secs(),
            query.iter().map(|(name, value)| (*name, value.as_str())),
            request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())),
        );
        signed.into()
    }

    fn unanswered(&self, path: &[u8], error: ureq::Error) -> Trouble {
        let (object, host) = (self.place.object(path), self.place.host());
        let failed = |cause, what: &str| SourceError::new(cause, format!("{object}: {what}"));
        match error {
            // Nothing but its text tells a name that leads nowhere.
            ureq::Error::Io(error) if !error.to_string().contains("lookup address") => {
                self.broken(path, &error)
            }
            ureq::Error::Timeout(_) => {
                Trouble::Passing(failed(Cause::Lost, &format!("{host} does not answer in time")))
            }
            ureq::Error::Io(_) | ureq::Error::HostNotFound => {
                let what =
                    format!("there is no host {host}: correct AWS_ENDPOINT_URL or the source's endpoint");
                Trouble::Passing(failed(Cause::Lost, &what))
            }
            ureq::Error::Protocol(_) => Trouble::Passing(self.nonsense(path, "something else than HTTP")),
            ureq::Error::Http(_) => {
                Trouble::Final(failed(Cause::BadName, "has a header that cannot be sent"))
            }
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => {
                Trouble::Final(failed(Cause::Lost, &untrusted(&host)))
            }
            _ => Trouble::Passing(failed(Cause::Lost, &format!("{host} cannot be reached"))),
        }
    }

    fn has_new_keys(&self) -> bool {
        let Ok(new) = self.here.keys("") else { return false };
        let mut keys = self.keys.lock();
        std::mem::replace(&mut *keys, new.clone()) != new
    }

    /// Waits, longer each time, and not as long as others.
    fn wait(&self, tries: u32) {
        let longest = self.pause.saturating_mul(3u32.saturating_pow(tries - 1));
        let share = f64::from(random() % 512) / 1024.0;
        let until = Instant::now() + longest.mul_f64(0.5 + share);
        // One's own: nobody tells, and others wait as well.
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
        // The text of others may be anything.
        kind => format!("{kind}"),
    }
}

/// The certificates to trust: those that are named, those of the system, or Mozilla's.
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
