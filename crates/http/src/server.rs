//! Connections: how many there are, how long they may be silent, TLS.

use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use bivouac_client::Member;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::announce::{Announced, announce};
use crate::certificate;
use crate::keys;
use crate::page::Views;
use crate::service::{Route, ServerAddress, Service};
use crate::timeout_stream::TimeoutStream;
use crate::tree::Tree;

/// Threads that wait for sockets.
const THREADS: usize = 2;
/// Threads that work for requests, at most.
const WORKERS_MAX: usize = 64;
/// Upper limit of connections; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16_384;
/// Descriptors that are left for other things than connections.
const DESCRIPTORS_LEFT: usize = 256;
/// Longest time for the head of a request to come, also of the next one on a connection.
const HEAD_MAX: Duration = Duration::from_secs(20);
/// Longest time for a client to agree on TLS.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Longest time in which a client may take nothing of what it is sent.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Longest head of a request, in bytes.
const HEAD_LEN_MAX: usize = 64 << 10;
/// Upper limit of headers of a request.
const HEADERS_MAX: usize = 100;
/// Pause after a connection could not be accepted, as when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Options of a server.
pub struct Options {
    /// The listening socket.
    pub listener: StdListener,
    /// Its part in the formation.
    pub member: Member,
    /// The formation's secret.
    pub secret: [u8; keys::SECRET_LEN],
    /// Certificate and private key; without them what is sent can be read by others.
    pub pem: Option<String>,
    /// Public name of this host, if the server listens at all addresses.
    pub host: String,
    /// Domain of virtual-hosted buckets.
    pub domain: Option<String>,
    /// The nodes of this host.
    pub nodes: Vec<u16>,
    /// Pages that are not files.
    pub routes: Vec<Route>,
    /// Content of the page for browsers.
    pub views: Views,
}

/// Serves until the process ends.
///
/// # Errors
/// The server cannot start.
pub fn serve(options: Options, ready: impl FnOnce()) -> io::Result<()> {
    let tls = options.pem.as_deref().map(certificate::config).transpose()?.map(TlsAcceptor::from);
    let address = options.listener.local_addr()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let host = match address.ip() {
        ip if ip.is_unspecified() => format!("{}:{}", options.host, address.port()),
        _ => address.to_string(),
    };
    let fingerprint = options.pem.as_deref().map(certificate::fingerprint).transpose()?;
    let own = Announced { url: format!("{scheme}://{host}"), fingerprint, nodes: options.nodes };
    let tree = Arc::new(Tree::new(options.member));
    announce(&tree, &own).map_err(|error| io::Error::other(error.to_string()))?;
    let pages = (options.routes, options.views);
    let ways = ServerAddress { scheme, domain: options.domain };
    let service = Arc::new(Service::new(tree, &options.secret, own, pages, ways));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(WORKERS_MAX)
        // The recorder shows this name as the program of what the server reads and writes.
        .thread_name("bivouac-http")
        .enable_all()
        .build()?;
    runtime.block_on(async move {
        let listener = listener(options.listener)?;
        ready();
        accept(&listener, tls, service).await;
        Ok(())
    })
}

fn listener(listener: StdListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn connections_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    descriptors
        .map_or(CONNECTIONS_MAX, |limit| limit.saturating_sub(DESCRIPTORS_LEFT).clamp(16, CONNECTIONS_MAX))
}

async fn accept(listener: &TcpListener, tls: Option<TlsAcceptor>, service: Arc<Service>) {
    let places = Arc::new(Semaphore::new(connections_max()));
    loop {
        // Before the connection is accepted: who finds no place waits in the kernel's backlog.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!(why:% = error; "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (tls, service) = (tls.clone(), Arc::clone(&service));
        tokio::spawn(async move {
            greet(stream, tls, service).await;
            drop(place);
        });
    }
}

async fn greet(stream: TcpStream, tls: Option<TlsAcceptor>, service: Arc<Service>) {
    if let Err(error) = stream.set_nodelay(true) {
        log::debug!(why:% = error; "a connection");
    }
    let stream = TimeoutStream::new(stream, STALL_MAX);
    match tls {
        None => converse(stream, service).await,
        Some(tls) => match tokio::time::timeout(GREETING_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => converse(stream, service).await,
            // Strangers can cause it, and must not fill the log.
            Ok(Err(error)) => log::debug!(why:% = error; "a client could not agree on TLS"),
            Err(_) => log::debug!("a client did not agree on TLS in time"),
        },
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, service: Arc<Service>) {
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_LEN_MAX)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_LEN_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = conversation.await {
        // A failure of the connection; failures of the server have been logged where they occurred.
        log::debug!(why:% = error; "a connection ended early");
    }
}
