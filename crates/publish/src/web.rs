//! Web servers: requests, redirects that stay on the web, keys that are shown to those alone for whom they are.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bivouac_source::{Environment, trusted_roots};
use parking_lot::{Condvar, Mutex};
use percent_encoding::percent_decode_str;
use ureq::http::{self, HeaderMap};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use url::{Host, Url};

use crate::error::{Cause, PublishError, PublishResult};
use crate::trust;

/// Timeouts of connecting, of the start of a response, and of inactivity.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);
/// Timeout of a response for which the server reads a whole file.
const ANSWER_SLOW: Duration = Duration::from_secs(600);
const SILENCE: Duration = Duration::from_secs(30);
/// Interval at which requests check for cancellation.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Upper limit of redirects per request.
const REDIRECTS_MAX: usize = 5;
/// Largest refusal that is read, in bytes.
const REFUSAL_MAX: u64 = 4 << 10;

/// Options of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions<'a> {
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Body of a PUT.
    pub body: Option<&'a [u8]>,
    /// True if the server has to read a whole file to respond.
    pub is_slow: bool,
    /// Timeout of the whole request; none if the response may take as long as data arrives.
    pub within: Option<Duration>,
}

/// The beginning of an answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Final URL after redirects.
    pub url: Url,
    body: ureq::Body,
}

impl Answer {
    /// Returns a header as a text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body, piece by piece.
    pub fn reader(&mut self) -> impl Read + '_ {
        self.body.as_reader()
    }

    /// Returns all of the body, which is a text of at most so many bytes.
    ///
    /// # Errors
    /// [`Cause::Damaged`] if it is longer, or no text; [`Cause::Unreachable`] if it broke off.
    pub fn text(&mut self, max: usize) -> PublishResult<String> {
        let mut bytes = Vec::new();
        let read = self.body.as_reader().take(max as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| unreachable(&self.url, &error.to_string()))?;
        let damaged =
            |why: &str| PublishError::new(Cause::Damaged, format_args!("{}: {why}", shown(&self.url)));
        if bytes.len() > max {
            return Err(damaged("is too large"));
        }
        String::from_utf8(bytes).map_err(|_| damaged("is no text"))
    }

    /// Returns the error that a status stands for.
    pub fn refusal(&mut self) -> PublishError {
        let mut text = Vec::new();
        let _as_far_as_it_comes = self.body.as_reader().take(REFUSAL_MAX).read_to_end(&mut text);
        let text: String =
            String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).take(200).collect();
        let (cause, remedy) = match self.status {
            401 | 403 => (Cause::Denied, "show a key that it takes, in a file: --key-file FILE"),
            404 | 410 => (Cause::NotFound, "look whether it has moved"),
            412 => (Cause::Exists, "something is there already"),
            408 | 425 | 429 | 500.. => (Cause::Unreachable, "try again later"),
            _ => (Cause::Other, "the server does not do this"),
        };
        PublishError::new(
            cause,
            format_args!("{}: status {}: {text}; {remedy}", shown(&self.url), self.status),
        )
    }
}

/// The way to web servers.
pub struct Web {
    here: Environment,
    /// Credentials by origin.
    keys: HashMap<String, String>,
    /// SHA-256 of the certificate of which origin.
    pins: HashMap<String, String>,
    ways: Arc<AgentPool>,
}

#[derive(Default)]
struct AgentPool {
    agents: Mutex<Agents>,
    ended: Condvar,
}

#[derive(Default)]
struct Agents {
    /// Agents of origins with a pinned certificate; all others share one.
    by_name: HashMap<String, ureq::Agent>,
    is_over: bool,
}

impl Web {
    /// Creates the client, with the certificates that the environment trusts.
    #[must_use]
    pub fn new(here: &Environment) -> Web {
        let (keys, pins, ways) = (HashMap::new(), HashMap::new(), Arc::default());
        Web { here: here.clone(), keys, pins, ways }
    }

    /// Cancels all requests when this is set, including those that wait for a response.
    pub fn heed(&self, cancel: &Arc<AtomicBool>) {
        let (ways, cancel) = (Arc::clone(&self.ways), Arc::clone(cancel));
        // A request that waits in a socket looks at no flag: shutting its agent down is what ends it.
        std::thread::spawn(move || {
            let mut agents = ways.agents.lock();
            while !agents.is_over {
                if cancel.load(Ordering::Relaxed) {
                    agents.end();
                } else {
                    ways.ended.wait_for(&mut agents, LOOK_EVERY);
                }
            }
        });
    }

    /// Shows a key to the server of a URL.
    pub fn add_key(&mut self, url: &Url, key: &str) {
        self.keys.insert(origin_of(url), key.to_owned());
    }

    /// Returns whether credentials are known for a URL's server.
    #[must_use]
    pub fn has_key(&self, url: &Url) -> bool {
        self.keys.contains_key(&origin_of(url))
    }

    /// Trusts one certificate of the server of a URL, and no other.
    pub fn add_pin(&mut self, url: &Url, fingerprint: &str) {
        self.pins.insert(origin_of(url), fingerprint.to_owned());
    }

    /// Asks, and follows redirects of what only reads.
    ///
    /// # Errors
    /// [`Cause::Unreachable`] if nobody answers; [`Cause::Denied`] for certificates and redirects that are not to be
    /// trusted.
    pub fn ask(&self, method: &str, url: &Url, sent: &RequestOptions<'_>) -> PublishResult<Answer> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.ask_once(method, &url, sent)?;
            let follows = matches!(method, "GET" | "HEAD") && matches!(answer.status, 301..=303 | 307 | 308);
            let Some(place) = answer.header("location").filter(|_| follows) else { return Ok(answer) };
            url = redirected(&url, place)?;
        }
        Err(PublishError::new(Cause::Other, format_args!("{}: leads on and on", shown(&url))))
    }

    fn ask_once(&self, method: &str, url: &Url, sent: &RequestOptions<'_>) -> PublishResult<Answer> {
        let agent = self.agent(url)?;
        // Credentials go into a header: request lines are logged by servers and proxies.
        let mut plain = url.clone();
        let _has_a_host = plain.set_username("").and_then(|()| plain.set_password(None));
        plain.set_fragment(None);
        let mut request = http::Request::builder().method(method).uri(plain.as_str());
        for (name, value) in &sent.headers {
            request = request.header(*name, value);
        }
        if let Some(value) = self.authorization(url) {
            request = request.header("authorization", value);
        }
        let wait = Some(if sent.is_slow { ANSWER_SLOW } else { ANSWER });
        let answered = match sent.body {
            Some(body) => request.body(body).map_err(ureq::Error::Http).and_then(|request| {
                let request = agent.configure_request(request).timeout_recv_response(wait);
                agent.run(request.timeout_global(sent.within).build())
            }),
            None => request.body(()).map_err(ureq::Error::Http).and_then(|request| {
                let request = agent.configure_request(request).timeout_recv_response(wait);
                agent.run(request.timeout_global(sent.within).build())
            }),
        };
        let (parts, body) = answered.map_err(|error| self.failed(url, &error))?.into_parts();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, url: plain, body })
    }

    fn failed(&self, url: &Url, error: &ureq::Error) -> PublishError {
        if self.ways.agents.lock().is_over {
            return PublishError::new(Cause::Interrupted, format_args!("{}: interrupted", shown(url)));
        }
        failed(url, error)
    }

    /// Returns the credentials for a URL: those in the URL itself, or those of its origin.
    fn authorization(&self, url: &Url) -> Option<String> {
        if let Some(password) = url.password() {
            let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let pair = format!("{}:{}", decoded(url.username()), decoded(password));
            return Some(format!("Basic {}", STANDARD.encode(pair)));
        }
        self.keys.get(&origin_of(url)).map(|key| format!("Bearer {key}"))
    }

    fn agent(&self, url: &Url) -> PublishResult<ureq::Agent> {
        let origin = origin_of(url);
        let pin = self.pins.get(&origin).filter(|_| url.scheme() == "https");
        let near = is_near(url) || pin.is_some();
        let name = match (pin, near) {
            // Each pin has an agent of its own, which trusts that certificate alone.
            (Some(_), _) => origin.as_str(),
            (None, true) => "near",
            (None, false) => "far",
        };
        if let Some(agent) = self.ways.agents.lock().by_name.get(name) {
            return Ok(agent.clone());
        }
        // Not under the lock: a pin makes a connection of its own first, and cancelling needs the lock.
        let roots = match pin {
            Some(pin) => pinned(url, pin)?,
            None => trusted_roots(&self.here)?,
        };
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            // Followed by `ask`, where each place is judged, and gets no key but its own.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("bivouac/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .max_idle_connections_per_host(64)
            .max_idle_connections(256)
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        if near {
            config = config.proxy(None);
        }
        let agent = config.build().new_agent();
        let mut agents = self.ways.agents.lock();
        // Cancelled while it was made, so it was not shut down with the others.
        if agents.is_over {
            agent.clone().shutdown();
        }
        Ok(agents.by_name.entry(name.to_owned()).or_insert(agent).clone())
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.ways.agents.lock().is_over = true;
        self.ways.ended.notify_all();
    }
}

impl Agents {
    fn end(&mut self) {
        self.is_over = true;
        self.by_name.values().cloned().for_each(ureq::Agent::shutdown);
    }
}

/// Returns the origin: scheme, host and port.
#[must_use]
pub fn origin_of(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Returns a URL without what is secret in it.
pub(crate) fn shown(url: &Url) -> String {
    format!("{}{}", origin_of(url), url.path())
}

fn redirected(from: &Url, place: &str) -> PublishResult<Url> {
    let refused = |why: &str| {
        let text = format!("{}: leads to {:?}, {why}; it is not followed", shown(from), place);
        PublishError::new(Cause::Denied, text)
    };
    let to = from.join(place).map_err(|_| refused("which is no URL"))?;
    match (from.scheme(), to.scheme()) {
        _ if !to.has_host() => Err(refused("which is no server")),
        ("https", "https") | ("http", "http" | "https") => Ok(to),
        ("https", "http") => Err(refused("which is not encrypted")),
        _ => Err(refused("which is no place on the web")),
    }
}

/// Returns whether a server is on this host or a private network, which no proxy reaches.
fn is_near(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback() || address.is_private() || address.is_link_local(),
        Some(Host::Ipv6(address)) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
        Some(Host::Domain(name)) => name == "localhost" || !name.contains('.'),
        None => false,
    }
}

fn pinned(url: &Url, fingerprint: &str) -> PublishResult<RootCerts> {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(443));
    let der = trust::certificate(host, port, fingerprint).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::Other => {
            let text = format!("{}: {error}; have its fingerprint said again", shown(url));
            PublishError::new(Cause::Denied, text)
        }
        _ => unreachable(url, &error.to_string()),
    })?;
    Ok(RootCerts::from(vec![Certificate::from_der(&der).to_owned()]))
}

fn unreachable(url: &Url, why: &str) -> PublishError {
    PublishError::new(Cause::Unreachable, format_args!("{}: {why}", shown(url)))
}

fn failed(url: &Url, error: &ureq::Error) -> PublishError {
    match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => untrusted(url),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => untrusted(url),
        ureq::Error::Io(error) => unreachable(url, &error.to_string()),
        ureq::Error::Timeout(_) => unreachable(url, "does not answer in time"),
        ureq::Error::HostNotFound => unreachable(url, "there is no such host"),
        ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
            PublishError::new(Cause::Usage, format_args!("{}: cannot be asked for", shown(url)))
        }
        other => unreachable(url, &other.to_string()),
    }
}

fn untrusted(url: &Url) -> PublishError {
    let remedy = "name a file with the certificate to trust in SSL_CERT_FILE";
    PublishError::new(Cause::Denied, format_args!("{}: its certificate is not trusted; {remedy}", shown(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_the_web() {
        let from = Url::parse("https://a/x?secret").unwrap();
        assert_eq!(redirected(&from, "/y").unwrap().as_str(), "https://a/y");
        assert_eq!(redirected(&from, "https://b/z").unwrap().as_str(), "https://b/z");
        for wrong in ["file:///etc/passwd", "http://a/y", "ftp://a/y", "data:,x", "https://", "unix:/x"] {
            let refusal = redirected(&from, wrong).unwrap_err();
            assert!(refusal.cause() == Cause::Denied && !refusal.to_string().contains("secret"), "{refusal}");
        }
    }

    #[test]
    fn keys_are_shown_to_their_server_alone() {
        let mut web = Web::new(&Environment::default());
        let url = |text: &str| Url::parse(text).unwrap();
        web.add_key(&url("http://a:1/x"), "k");
        assert_eq!(web.authorization(&url("http://a:1/y")).as_deref(), Some("Bearer k"));
        for other in ["http://a:2/y", "https://a:1/y", "http://b:1/y", "http://a.b:1/"] {
            assert_eq!(web.authorization(&url(other)), None, "{other}");
        }
        assert_eq!(web.authorization(&url("http://u:p%20w@c/")).as_deref(), Some("Basic dTpwIHc="));
        assert_eq!(shown(&url("http://u:pw@c/a?X-Amz-Signature=1")), "http://c/a");
    }

    #[test]
    fn proxies_are_for_what_is_far() {
        for (text, near) in [
            ("http://127.0.0.1:8/", true),
            ("http://10.1.2.3/", true),
            ("http://node7/", true),
            ("http://[::1]/", true),
            ("http://example.org/", false),
            ("http://8.8.8.8/", false),
        ] {
            assert_eq!(is_near(&Url::parse(text).unwrap()), near, "{text}");
        }
    }
}
