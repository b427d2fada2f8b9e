//! The side that is linked to: serves directories of a mount to formations that have keys.

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_net::{Auth, SealedEnd, SealedReader, SealedWriter, Secret, accept_sealed};
use bivouac_source::{Cause, PosixSource, Source, SourceError, SourceResult};
use bivouac_types::FormationId;
use bivouac_types::limits::HANDSHAKE_MS_MAX;
use bivouac_types::units::format_utc;
use bivouac_wire::{Decode, Encode};
use parking_lot::Mutex;

use crate::budget::Budget;
use crate::export::{Answer, Export, UploadTable};
use crate::key::{LinkKey, OWN_KEY_ID, key_id_of};
use crate::protocol::{
    BODY_MAX, CHAIN_MAX, HEAD_LEN, Head, KeyFigures, PAYLOAD_MAX, Request, Session, VERSION, Welcome,
    status_of,
};
use crate::sessions::Sessions;
use crate::source::{LinkSource, LinkTarget};
use crate::stream::read_some;
use crate::usage::KeyUsage;
use crate::workers::Workers;

/// Connections that have not proven that they know a key, at most.
const HANDSHAKES_MAX: usize = 64;
/// Requests of one stream that are carried out at the same time, at most.
const REQUESTS_MAX: usize = 32;
/// Content of one stream, and of all, that is held at the same time, in bytes.
const STREAM_BYTES_MAX: usize = 64 << 20;
const BYTES_MAX: usize = 512 << 20;
/// Pause after the system had no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest time for the payload of a request to come, and for a reply to be taken, with its wait for others before it.
const TRANSFER_WAIT: Duration = Duration::from_secs(60);
/// Payload of a request that is refused is read past in parts of this size, in bytes.
const PAST_LEN: usize = 64 << 10;
/// Keys with figures, at most.
const USAGES_MAX: usize = 4096;

/// Upper limits of the connections of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// All of them.
    pub all: usize,
    /// Those with one key: others find room beside them. The processes that use the key share them evenly, so this is
    /// also how many there may be.
    pub per_key: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { all: 4096, per_key: 1024 }
    }
}

/// The rights of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The exported directory, from the formation's root on, without a slash in front.
    pub path: Vec<u8>,
    /// True if nothing can be changed.
    pub read_only: bool,
    /// Time when it expires, in seconds since 1970.
    pub expires: Option<u64>,
}

/// A link that the gateway's own formation has to another one.
#[derive(Clone, Debug)]
pub struct OutgoingLink {
    /// Its path from the formation's root on, without a slash in front.
    pub path: Vec<u8>,
    /// The formation that it leads to.
    pub target: LinkTarget,
}

/// Keys and links of a gateway's own formation.
pub trait KeyTable: Send + Sync {
    /// Returns the key with this id, whether or not it counts.
    fn key(&self, id: &str) -> LinkKey;

    /// Returns the rights of a key; `None` if it was revoked, or never made.
    ///
    /// # Errors
    /// The formation does not answer.
    fn grant(&self, id: &str) -> SourceResult<Option<Grant>>;

    /// Returns the links of this formation.
    fn links(&self) -> Vec<OutgoingLink>;

    /// Returns the seconds since 1970.
    fn now(&self) -> u64;

    /// Returns a mount of the formation on this host.
    ///
    /// # Errors
    /// [`Cause::Lost`] while there is none.
    fn mount(&self) -> SourceResult<MountPlace>;
}

/// A mount of a formation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountPlace {
    /// The directory.
    pub dir: PathBuf,
    /// The minor number of its device: by it the mount is told from the bare directory below it.
    pub device: u32,
}

/// A gateway's parts.
pub struct GatewayOptions {
    /// The formation.
    pub formation: FormationId,
    /// Its name.
    pub name: String,
    /// User and group of this process.
    pub owner: (u32, u32),
    /// Keys and links.
    pub keys: Arc<dyn KeyTable>,
    /// Connections, at most.
    pub limits: ConnectionLimits,
}

/// A gateway.
pub struct Gateway {
    options: GatewayOptions,
    mount: Mutex<Option<Arc<OpenMount>>>,
    workers: Arc<Workers>,
    uploads: UploadTable,
    usages: Mutex<HashMap<String, Arc<KeyUsage>>>,
    sessions: Sessions<Connection>,
    streams: AtomicUsize,
    handshakes: AtomicUsize,
    held: Budget,
}

/// A mount with its path.
struct OpenMount {
    source: PosixSource,
    path: String,
}

/// Counts something while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection, as its requests share it.
struct Connection {
    gateway: Arc<Gateway>,
    key: String,
    usage: Arc<KeyUsage>,
    writer: Mutex<SealedWriter>,
    end: SealedEnd,
    has_ended: AtomicBool,
    held: Budget,
    /// The formation that asks, once it has said which.
    asker: Mutex<Option<FormationId>>,
}

/// A request that is being carried out. One that ends without a reply ends its connection, so that nobody waits for it.
struct RunningRequest {
    connection: Arc<Connection>,
    bytes: usize,
    is_answered: bool,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.connection.held.give_back(self.bytes);
        self.connection.usage.held.give_back(self.bytes);
        self.connection.gateway.held.give_back(self.bytes);
        if !self.is_answered {
            self.connection.end.cut();
        }
    }
}

impl Gateway {
    /// Creates a gateway that serves nobody yet.
    #[must_use]
    pub fn new(options: GatewayOptions) -> Arc<Gateway> {
        let (mount, workers, uploads, usages, sessions) = Default::default();
        let (streams, handshakes) = Default::default();
        let held = Budget::new(usize::MAX, BYTES_MAX);
        Arc::new(Gateway { options, mount, workers, uploads, usages, sessions, streams, handshakes, held })
    }

    /// Returns the mount, opened again where it was taken away meanwhile.
    fn mount(&self) -> SourceResult<Arc<OpenMount>> {
        let known = self.mount.lock().clone();
        // Without the lock: a mount may take long to answer.
        if let Some(mount) = known.filter(|mount| mount.source.check().is_ok()) {
            return Ok(mount);
        }
        let MountPlace { dir, device } = self.options.keys.mount()?;
        let (source, path) = (PosixSource::open(&dir)?, dir.display().to_string());
        // Its supervisor may not have seen yet that it was taken away there: what is below it is not the formation.
        if rustix::fs::minor(source.device()) != device {
            let text = "the formation's mount at the gateway's host was taken away; there: bivouac mount DIR";
            return Err(SourceError::new(Cause::Lost, text));
        }
        let mount = Arc::new(OpenMount { source, path });
        *self.mount.lock() = Some(Arc::clone(&mount));
        Ok(mount)
    }

    /// Serves all that connect, for ever.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((socket, _)) => self.admit(socket),
                Err(error) => {
                    // Descriptors may have run out: those that end give some back.
                    log::warn!(why:% = error; "a link could not be accepted");
                    bivouac_net::pause(PAUSE);
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: TcpStream) {
        let is_much = self.handshakes.load(Ordering::Relaxed) >= HANDSHAKES_MAX
            || self.streams.load(Ordering::Relaxed) >= self.options.limits.all;
        if is_much {
            log::warn!("a link is refused: there are too many connections");
            return;
        }
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        let this = Arc::clone(self);
        let serve = move || {
            let handshake = Counted(&this.handshakes);
            let auth_of = |number: FormationId| {
                let id = key_id_of(number).unwrap_or_default();
                let secret = Secret::new(*this.options.keys.key(&id).secret());
                Auth { formation: number, secret, is_secure: true }
            };
            let wait = Duration::from_millis(HANDSHAKE_MS_MAX);
            match accept_sealed(socket, auth_of, wait) {
                Ok((reader, writer, number)) => {
                    // It has proven itself, and does not take the place of a stranger any more.
                    drop(handshake);
                    this.serve_one(reader, writer, key_id_of(number).unwrap_or_default());
                }
                Err(error) => log::info!(why:% = error; "a link was not admitted"),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gateway".to_owned()).spawn(serve) {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
            log::warn!(why:% = error; "no thread to serve a link");
        }
    }

    fn usage(&self, key: &str) -> Arc<KeyUsage> {
        let mut usages = self.usages.lock();
        if usages.len() >= USAGES_MAX {
            // Figures of keys that nobody uses now go, so that their number stays bounded.
            usages.retain(|_, usage| usage.streams.load(Ordering::Relaxed) > 0);
        }
        Arc::clone(usages.entry(key.to_owned()).or_default())
    }

    /// Returns the gateway, the rights of a key, and how many connections a process may have with it.
    fn welcome(&self, grant: &Grant, streams: usize) -> Welcome {
        let GatewayOptions { formation, name, owner: (uid, gid), .. } = &self.options;
        let Grant { path, read_only, expires } = grant.clone();
        let (formation, name, uid, gid) = (*formation, name.clone(), *uid, *gid);
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        Welcome { version: VERSION, formation, name, path, read_only, expires, uid, gid, streams }
    }

    /// Returns the figures of all keys that were used.
    fn figures(&self) -> Vec<KeyFigures> {
        let usages = self.usages.lock();
        let of_others = usages.iter().filter(|(id, _)| *id != OWN_KEY_ID);
        of_others.map(|(id, usage)| KeyFigures { id: id.clone(), usage: usage.figures() }).collect()
    }

    fn serve_one(self: &Arc<Self>, mut reader: SealedReader, writer: SealedWriter, key: String) {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&self.streams);
        let usage = self.usage(&key);
        if usage.streams.fetch_add(1, Ordering::Relaxed) >= self.options.limits.per_key as u64 {
            // Another process has more than one, of which one makes room. What that was asked for is sent again.
            let Some(surplus) = self.sessions.surplus(&key) else {
                usage.streams.fetch_sub(1, Ordering::Relaxed);
                log::warn!("a link is refused: there are too many connections with key {key}");
                return;
            };
            surplus.end();
        }
        let end = writer.end();
        let connection = Arc::new(Connection {
            gateway: Arc::clone(self),
            key,
            usage: Arc::clone(&usage),
            writer: Mutex::new(writer),
            end,
            has_ended: AtomicBool::new(false),
            held: Budget::new(REQUESTS_MAX, STREAM_BYTES_MAX),
            asker: Mutex::new(None),
        });
        let connection = ServedConnection(connection);
        let why = loop {
            if let Err(why) = Connection::take(&connection.0, &mut reader) {
                break why;
            }
        };
        log::info!("a connection with key {} ended: {why}", connection.0.key);
    }
}

/// A connection while it is served: however that ends, it leaves its session, and another one may take its place.
struct ServedConnection(Arc<Connection>);

impl Drop for ServedConnection {
    fn drop(&mut self) {
        let ServedConnection(connection) = self;
        connection.end();
        connection.gateway.sessions.leave(connection);
        connection.usage.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Ends it; nothing is begun any more that it has asked for.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.end.cut();
    }

    /// Reads a request and has it carried out.
    fn take(this: &Arc<Connection>, reader: &mut SealedReader) -> Result<(), String> {
        let mut head = [0; HEAD_LEN];
        reader.read_exact(&mut head).map_err(|error| error.to_string())?;
        let head = Head::from_bytes(&head).ok_or("a head that is none")?;
        let (body_len, payload_len) = (head.body_len as usize, head.payload_len as usize);
        if body_len > BODY_MAX || payload_len > PAYLOAD_MAX || head.status > 1 {
            return Err("a request that is too long".to_owned());
        }
        let body = read_some(reader, body_len)?;
        let request = Request::from_bytes(&body).map_err(|error| format!("no request: {error}"))?;
        let reply_len = match &request {
            Request::Read { len, .. } => *len as usize,
            Request::Stat { inline_max, .. } => *inline_max as usize,
            _ => 0,
        };
        if payload_len > 0
            && let Err(error) = this.grant()
        {
            // Nothing is held for it.
            reader.set_deadline(Some(Instant::now() + TRANSFER_WAIT)).map_err(|error| error.to_string())?;
            for at in (0..payload_len).step_by(PAST_LEN) {
                read_some(reader, PAST_LEN.min(payload_len - at))?;
            }
            reader.set_deadline(None).map_err(|error| error.to_string())?;
            this.usage.note(payload_len, 0, Some(&error));
            return this.send(head.id, &Err(error)).map_err(|error| error.to_string());
        }
        let bytes = payload_len + reply_len.min(PAYLOAD_MAX);
        // The narrowest first: who waits for that holds nothing of what others wait for.
        this.held.take(bytes);
        this.usage.held.take(bytes);
        this.gateway.held.take(bytes);
        let pending = RunningRequest { connection: Arc::clone(this), bytes, is_answered: false };
        reader.set_deadline(Some(Instant::now() + TRANSFER_WAIT)).map_err(|error| error.to_string())?;
        let payload = read_some(reader, payload_len)?;
        reader.set_deadline(None).map_err(|error| error.to_string())?;
        let work = move || pending.carry_out(head, request, &payload);
        this.gateway.workers.run(Box::new(work));
        Ok(())
    }

    fn answer(self: &Arc<Self>, request: Request, payload: &[u8], is_again: bool) -> SourceResult<Answer> {
        let gateway = &self.gateway;
        if self.key == OWN_KEY_ID {
            return self.answer_own(&request);
        }
        let grant = self.grant()?;
        let needs_links = matches!(request, Request::List { .. } | Request::Reach { .. });
        let links = if needs_links { gateway.options.keys.links() } else { Vec::new() };
        let link_paths: Vec<Vec<u8>> = links.iter().map(|link| link.path.clone()).collect();
        let mount = gateway.mount()?;
        let export = Export {
            mount: &mount.source,
            mount_path: &mount.path,
            prefix: &grant.path,
            uploads: &gateway.uploads,
            links: &link_paths,
            has_ended: &self.has_ended,
        };
        if let Request::Join { version, formation, session } = &request {
            return self.join((*version, *formation, session), &grant, &export);
        }
        if self.asker.lock().is_none() {
            return Err(SourceError::new(Cause::Denied, "it has not been said who asks"));
        }
        match request {
            Request::Reach { chain } => self.reach(chain, &grant, links),
            Request::Usage {} => Ok((self.usage.figures().to_bytes(), Vec::new())),
            request if grant.read_only && request.is_change() => {
                let text =
                    format!("key {} permits no changes: ask there for one without --read-only", self.key);
                Err(SourceError::new(Cause::ReadOnly, text))
            }
            request => export.carry_out(request, payload, is_again),
        }
    }

    /// Answers the gateway's own formation.
    fn answer_own(&self, request: &Request) -> SourceResult<Answer> {
        match request {
            Request::Join { .. } => {
                Ok((self.gateway.welcome(&Grant::default(), usize::MAX).to_bytes(), Vec::new()))
            }
            Request::Figures {} => Ok((self.gateway.figures().to_bytes(), Vec::new())),
            _ => Err(SourceError::new(Cause::Denied, "the formation's own key opens nothing")),
        }
    }

    /// Returns the rights that the key has now.
    fn grant(&self) -> SourceResult<Grant> {
        let keys = &self.gateway.options.keys;
        let refused = |text: String| Err(SourceError::new(Cause::Denied, text));
        let Some(grant) = keys.grant(&self.key)? else {
            return refused(format!(
                "key {} was revoked, or is not for links: ask there for another one",
                self.key
            ));
        };
        match grant.expires {
            Some(end) if end <= keys.now() => refused(format!(
                "key {} has expired, at {}Z: ask there for another one",
                self.key,
                format_utc(end)
            )),
            _ => Ok(grant),
        }
    }

    fn join(
        self: &Arc<Self>,
        (version, formation, session): (u16, FormationId, &Session),
        grant: &Grant,
        export: &Export<'_>,
    ) -> SourceResult<Answer> {
        let options = &self.gateway.options;
        if version != VERSION {
            let text = format!(
                "this gateway has version {VERSION} of links, not {version}: use the same release of bivouac on both sides"
            );
            return Err(SourceError::new(Cause::Unsupported, text));
        }
        if formation == options.formation {
            let text = "the link leads to the formation that it is in: leave it out";
            return Err(SourceError::new(Cause::Exists, text));
        }
        export.check().map_err(|error| {
            let path = String::from_utf8_lossy(&grant.path);
            SourceError::new(
                error.cause(),
                format!("/{path}, which key {} is for, cannot be exported: {error}", self.key),
            )
        })?;
        let ended = self.gateway.sessions.join((self.key.as_str(), formation), session, self);
        ended.iter().for_each(|connection| connection.end());
        let share = (options.limits.per_key / self.gateway.sessions.processes(&self.key).max(1)).max(1);
        *self.asker.lock() = Some(formation);
        Ok((self.gateway.welcome(grant, share).to_bytes(), Vec::new()))
    }

    /// Follows the links of this formation that are seen through the key.
    fn reach(
        &self,
        mut chain: Vec<FormationId>,
        grant: &Grant,
        links: Vec<OutgoingLink>,
    ) -> SourceResult<Answer> {
        let own = self.gateway.options.formation;
        if chain.contains(&own) {
            let text = format!("links lead in a circle over formation '{}'", self.gateway.options.name);
            return Err(SourceError::new(Cause::Exists, text));
        }
        if chain.len() >= CHAIN_MAX {
            let text = format!("more than {CHAIN_MAX} formations are linked behind each other");
            return Err(SourceError::new(Cause::Exists, text));
        }
        chain.push(own);
        let is_below = |path: &[u8], top: &[u8]| {
            top.is_empty()
                || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        for link in links {
            if !is_below(&link.path, &grant.path) && !is_below(&grant.path, &link.path) {
                continue;
            }
            match LinkSource::later(link.target).and_then(|next| next.reaches(chain.clone())) {
                // What is not there leads nowhere now; it is asked again when it is connected.
                Err(error) if error.cause() == Cause::Exists => return Err(error),
                Err(error) => log::info!(why:% = error; "where a link leads is not known"),
                Ok(()) => {}
            }
        }
        Ok((Vec::new(), Vec::new()))
    }

    fn send(&self, id: u32, outcome: &SourceResult<Answer>) -> std::io::Result<()> {
        let (status, text);
        let (body, payload) = match outcome {
            Ok((body, payload)) => {
                status = 0;
                (body.as_slice(), payload.as_slice())
            }
            Err(error) => {
                status = status_of(error.cause());
                text = error.to_string();
                (text.as_bytes().get(..text.len().min(BODY_MAX)).unwrap_or_default(), &[][..])
            }
        };
        let (body_len, payload_len) = (body.len() as u32, payload.len() as u32);
        let head = Head { id, body_len, payload_len, status };
        let deadline = Instant::now() + TRANSFER_WAIT;
        let writer = self.writer.try_lock_until(deadline);
        let mut writer = writer.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::TimedOut))?;
        writer.write_until(&[&head.to_bytes(), body, payload], deadline)
    }
}

impl RunningRequest {
    fn carry_out(mut self, head: Head, request: Request, payload: &[u8]) {
        let begun = Instant::now();
        let outcome = self.connection.answer(request, payload, head.status == 1);
        let sent = outcome.as_ref().map_or(0, |(_, payload)| payload.len());
        self.connection.usage.note(payload.len(), sent, outcome.as_ref().err());
        match self.connection.send(head.id, &outcome) {
            Ok(()) => self.is_answered = true,
            Err(error) => {
                log::info!(why:% = error; "a reply after {} ms was not sent", begun.elapsed().as_millis())
            }
        }
    }
}
