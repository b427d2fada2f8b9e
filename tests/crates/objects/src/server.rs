//! The server: a thread that serves until it is stopped, and forgets nothing when it is.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use hyper::body::Incoming;
use hyper::header::{ETAG, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{oneshot, watch};

use crate::contents::{Contents, Object};
use crate::faults::{Fault, Faults, Storm, What};
use crate::protocol::Protocol;

/// The one bucket.
pub const BUCKET: &str = "bucket";
/// The one key that may ask.
pub const ACCESS_KEY: &str = "AKIDEXAMPLE";
/// Its secret.
pub const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// A store that answers on a port of this machine.
pub struct Server {
    contents: Arc<Mutex<Contents>>,
    faults: Arc<Mutex<Faults>>,
    /// Methods and targets of the requests so far.
    asked: Arc<Mutex<Vec<String>>>,
    /// How many requests wait; they go on when it is none.
    held: watch::Sender<usize>,
    address: SocketAddr,
    /// Has the port while nobody listens there.
    _reserved: TcpSocket,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// What a connection is served with.
#[derive(Clone)]
struct Service {
    s3: Arc<S3Service>,
    faults: Arc<Mutex<Faults>>,
    asked: Arc<Mutex<Vec<String>>>,
    held: watch::Sender<usize>,
}

impl Service {
    fn note(&self, request: &Request<Incoming>) {
        let range = request.headers().get("range").and_then(|range| range.to_str().ok()).unwrap_or_default();
        let asked = format!("{} {} {range}", request.method(), request.uri());
        self.asked.lock().push(asked.trim_end().to_owned());
    }

    /// Waits until nothing goes wrong any more.
    async fn hold(&self) {
        self.held.send_modify(|held| *held += 1);
        let mut told = self.held.subscribe();
        let _or_the_server_ends = told.wait_for(|held| *held == 0).await.is_ok();
    }
}

impl Server {
    /// Serves an empty store on a port that is free.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn start() -> Server {
        Server::start_at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// The same on a port that is named.
    ///
    /// # Panics
    /// When it is not free.
    #[must_use]
    pub fn start_at(address: SocketAddr) -> Server {
        let (contents, faults, asked) = Default::default();
        let held = watch::Sender::new(0);
        let (reserved, address) = reserved(address);
        let mut server =
            Server { contents, faults, asked, held, address, _reserved: reserved, running: None };
        server.serve();
        server
    }

    /// Serves again, where it did.
    ///
    /// # Panics
    /// When it does already.
    pub fn serve(&mut self) {
        let mut builder = S3ServiceBuilder::new(Protocol(Arc::clone(&self.contents)));
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let (faults, asked) = (Arc::clone(&self.faults), Arc::clone(&self.asked));
        let service = Service { s3: Arc::new(builder.build()), faults, asked, held: self.held.clone() };
        let (told, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let wanted = self.address;
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind(wanted).await.expect("a free port");
                told.send(listener.local_addr().expect("an address")).expect("who asked waits");
                tokio::select! {
                    () = accept(listener, service) => {}
                    _ = stopped => {}
                }
            });
            // Connections end with it, wherever they are.
            runtime.shutdown_background();
        });
        self.address = address.recv().expect("the server starts");
        self.running = Some((stop, thread));
    }

    /// Stops serving: connections end, and there are no new ones. What it has stays.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }

    /// Its URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Something goes wrong.
    pub fn fail(&self, method: &'static str, within: &'static str, times: usize, what: What) {
        self.faults.lock().add(Fault { method, within, after: 0, times, what });
    }

    /// Something goes wrong after a while.
    pub fn fail_after(&self, fault: Fault) {
        self.faults.lock().add(fault);
    }

    /// Any request may go wrong from now on.
    pub fn storm(&self, storm: Storm) {
        self.faults.lock().storm(storm);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.faults.lock().clear();
        self.held.send_replace(0);
    }

    /// How many requests are held.
    #[must_use]
    pub fn held(&self) -> usize {
        *self.held.borrow()
    }

    /// What it has.
    pub fn contents(&self) -> parking_lot::MutexGuard<'_, Contents> {
        self.contents.lock()
    }

    /// An object.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Arc<Object>> {
        self.contents.lock().objects.get(key).cloned()
    }

    /// Puts an object there as somebody else would.
    pub fn put(&self, key: &str, bytes: &[u8], metadata: &[(&str, &str)]) {
        let metadata = metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let object = Object::new(bytes.to_vec(), metadata.collect());
        self.contents.lock().objects.insert(key.to_owned(), Arc::new(object));
    }

    /// How many requests of a method have had this in their path or parameters.
    #[must_use]
    pub fn count(&self, method: &str, within: &str) -> usize {
        self.asked(method, within).len()
    }

    /// These requests, in their order: method, path with parameters, and range.
    #[must_use]
    pub fn asked(&self, method: &str, within: &str) -> Vec<String> {
        let is_such = |asked: &&String| asked.starts_with(method) && asked.contains(within);
        self.asked.lock().iter().filter(is_such).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A socket that has a port and does not listen: who reuses addresses may listen there, and nobody else gets the port.
fn reserved(address: SocketAddr) -> (TcpSocket, SocketAddr) {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.expect("a socket");
    socket.set_reuseaddr(true).expect("a socket that reuses addresses");
    socket.bind(address).expect("a free port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

async fn accept(listener: TcpListener, service: Service) {
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let _ = socket.set_nodelay(true);
        let service = service.clone();
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(move |request| answer(service.clone(), request));
            // A connection that breaks off is the client's affair, or a fault on purpose.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), answer)
                .await;
        });
    }
}

async fn answer(service: Service, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (method, target) = (request.method().to_string(), request.uri().to_string());
    service.note(&request);
    let fault = service.faults.lock().next(&method, &target);
    match fault {
        Some(What::Refuse(status, code)) => return Ok(refusal(status, code)),
        Some(What::Drop) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Some(What::Hold) => service.hold().await,
        _ => {}
    }
    let answered = service.s3.call(request.map(Body::from)).await;
    let mut response = answered.map_err(|error| io::Error::other(s3s::StdError::from(error)))?;
    match fault {
        Some(What::Forget) => Err(io::ErrorKind::ConnectionAborted.into()),
        Some(What::HoldDone) => {
            service.hold().await;
            Ok(response)
        }
        Some(What::Cut(len)) => Ok(cut(response, len).await),
        Some(What::Alter) => Ok(alter(response).await),
        Some(What::Rename) => {
            response.headers_mut().insert(ETAG, HeaderValue::from_static("\"another\""));
            Ok(response)
        }
        _ => Ok(response),
    }
}

fn refusal(status: u16, code: &str) -> Response<Body> {
    let text =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>on purpose</Message></Error>");
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = hyper::StatusCode::from_u16(status).expect("a status");
    response
}

/// The answer with another last byte.
async fn alter(response: Response<Body>) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let mut bytes = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    Response::from_parts(parts, Body::from(bytes))
}

/// The beginning of an answer that says to be longer.
async fn cut(response: Response<Body>, len: usize) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let mut bytes = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes();
    bytes.truncate(len);
    let broken = || Err::<bytes::Bytes, io::Error>(io::ErrorKind::ConnectionAborted.into());
    let frames = futures::stream::iter([Ok(bytes), broken()]);
    let frames = futures::StreamExt::map(frames, |frame| frame.map(hyper::body::Frame::data));
    Response::from_parts(parts, Body::http_body_unsync(http_body_util::StreamBody::new(frames)))
}
