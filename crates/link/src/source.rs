//! A formation behind a gateway, as a source.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bivouac_net::{Address, Auth, HandshakeRefusal, Identity, LaneKind, NetError, Secret, connect_sealed};
use bivouac_source::{
    Attrs, Cause, Entry, Listing, Meta, Piece, Precondition, PutOutcome, Source, SourceError, SourceResult,
    Upload, Version, check_path, plan_beside, split_path,
};
use bivouac_types::{ClientId, FormationId, NodeId};
use bivouac_wire::{Decode, Encode};
use parking_lot::{Condvar, Mutex};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::caches::{ContentCache, LISTED_FOR, ListingCache};
use crate::key::{LinkKey, key_number};
use crate::protocol::{
    BODY_MAX, Coded, DirChange, KeyFigures, LISTING_MAX, ListedDir, PAYLOAD_MAX, Request, Session, Usage,
    VERSION, WantedDir, Welcome, failure, plain,
};
use crate::round_trip::RoundTrip;
use crate::stream::{ReplyBytes, ReplyLimits, Stream, StreamError};
use crate::validate::{self, OwnerSwap};

/// Streams of content, beside the one of small requests.
const BULK_STREAMS: usize = 4;
/// Content from which on a request goes over a stream of content, in bytes.
const BULK_LEN: usize = 64 << 10;
/// Longest time for connecting, and for each step of a handshake.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Longest wait of questions for a connection, from its loss on: what is here is served without it.
const LOOK_WAIT: Duration = Duration::from_secs(3);
/// Longest wait of a question for its reply.
const REPLY_WAIT: Duration = Duration::from_secs(20);
/// First and longest time for which a gateway that did not answer gets no other request.
const SILENT_FOR: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Time after a refusal before a gateway is asked again.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// For so long a failed attempt counts for all requests, once a link has been down for as long as a request waits.
const GIVEN_UP_FOR: Duration = Duration::from_secs(10);
/// For so long a reply counts as a sign that the gateway is there.
const REPLY_COUNTS_FOR: Duration = Duration::from_secs(1);
/// Entries below a listed directory that may come with its listing, at most.
const BELOW_MAX: u32 = 8192;
/// Content that comes with a file's metadata, at most, and that goes as a whole file, in bytes.
const INLINE_MAX: u32 = 64 << 10;
const WHOLE_MAX: u64 = 1 << 20;
/// Names of directories count for so long: a listing is looked at again after it.
const NAMES_VALID: Duration = Duration::from_secs(3);
/// Start of the tag of an upload that is recognised by its content.
pub const CONTENT_TAG: char = '=';

/// A gateway and how it is asked.
#[derive(Clone, Debug)]
pub struct LinkTarget {
    /// Its address: `host:port`.
    pub address: String,
    /// The key.
    pub key: LinkKey,
    /// The formation that asks.
    pub formation: FormationId,
    /// User and group of this process.
    pub owner: (u32, u32),
    /// The asking side if there is one process of it at a time, and the same after a restart; `None` for one of many.
    pub asker: Option<u64>,
    /// Longest wait of a request through cuts.
    pub wait: Duration,
}

/// Returns the asking side of a node, for a link with this sealed key: of two links with one key each has its own
/// connections.
#[must_use]
pub fn asker_of(node: NodeId, sealed_key: &str) -> u64 {
    xxh3_64_with_seed(sealed_key.as_bytes(), node.0.into())
}

/// Description of the far formation and the rights of the key, from the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarSide {
    /// The formation.
    pub formation: FormationId,
    /// Its name.
    pub name: String,
    /// The exported directory.
    pub path: Vec<u8>,
    /// True if the key permits no changes.
    pub read_only: bool,
    /// Time when the key expires, in seconds since 1970.
    pub expires: Option<u64>,
}

/// Figures of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFigures {
    /// The shortest round trip of late.
    pub round_trip: Duration,
    /// The greatest rate of late, in bytes per second.
    pub rate: u64,
    /// True while there is a connection.
    pub is_up: bool,
    /// Connections that broke.
    pub breaks: u64,
    /// The last error of a connection.
    pub last_error: Option<(SystemTime, String)>,
}

/// A formation behind a gateway. Clones have the same connections.
#[derive(Clone)]
pub struct LinkSource {
    inner: Arc<GatewayConnections>,
    listings: Arc<ListingCache>,
    contents: Arc<ContentCache>,
}

/// The connections to a gateway.
struct GatewayConnections {
    target: LinkTarget,
    number: FormationId,
    /// This process, for the gateway.
    process: u64,
    state: Mutex<Connections>,
    changed: Condvar,
    way: RoundTrip,
}

#[derive(Default)]
struct Connections {
    streams: [Option<Arc<Stream>>; BULK_STREAMS + 1],
    /// Numbers of those that are being made.
    connecting: [Option<u32>; BULK_STREAMS + 1],
    /// The number of the last one.
    last_number: u32,
    /// Numbers of those that ended with a change unanswered, and of which the gateway has not heard that they have:
    /// what they had asked for may still be carried out.
    unfenced: Vec<u32>,
    /// Connections that broke.
    breaks: u64,
    last_error: Option<(SystemTime, String)>,
    last_reply: Option<Instant>,
    welcome: Option<(FarSide, OwnerSwap)>,
    /// Connections that the gateway grants this process, as of the latest answer; 0 before the first one.
    granted: usize,
    /// Since when there is no connection, and why.
    down: Option<Down>,
    /// The last question was not answered, although there was a connection.
    silent: Option<Backoff>,
    pause: Duration,
}

impl Connections {
    /// Returns whether there is any connection.
    fn is_connected(&self) -> bool {
        self.count() > 0
    }

    /// Returns how many there are that have not ended.
    fn count(&self) -> usize {
        self.streams.iter().flatten().filter(|stream| stream.is_alive()).count()
    }

    /// Returns the numbers of all that are used or being made.
    fn numbers(&self) -> Vec<u32> {
        let alive = self.streams.iter().flatten().filter(|stream| stream.is_alive());
        alive.map(|stream| stream.number()).chain(self.connecting.iter().copied().flatten()).collect()
    }

    /// Drops connections that have ended, with their sockets. Returns how many.
    fn drop_ended(&mut self) -> u64 {
        let ended = self.streams.iter_mut().filter_map(|slot| slot.take_if(|stream| !stream.is_alive()));
        ended.count() as u64
    }

    /// Returns whether what a connection had asked for is not carried out any more, or another request waits for that.
    fn is_fenced(&self, number: u32) -> bool {
        self.streams.iter().flatten().any(|stream| stream.fences(number)) || self.unfenced.contains(&number)
    }
}

#[derive(Clone)]
struct Down {
    since: Instant,
    last: Instant,
    error: SourceError,
    is_refusal: bool,
}

struct Backoff {
    /// Until when no other request is sent.
    until: Instant,
    pause: Duration,
    error: SourceError,
}

/// Patience of a request with a link that is down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DownLinkRule {
    /// A question: what is here is served without its answer.
    Look,
    /// For requests without which nothing goes on.
    Work,
}

impl LinkSource {
    /// Connects to a gateway.
    ///
    /// # Errors
    /// [`Cause::Denied`] for a key that the gateway does not take, [`Cause::Lost`] if nobody answers, or another
    /// version.
    pub fn open(target: LinkTarget) -> SourceResult<LinkSource> {
        let link = LinkSource::later(target)?;
        link.far_side()?;
        Ok(link)
    }

    /// Like [`LinkSource::open`], which connects at the first request.
    ///
    /// # Errors
    /// [`Cause::Denied`] for what is no key.
    pub fn later(target: LinkTarget) -> SourceResult<LinkSource> {
        let not_one = || SourceError::new(Cause::Denied, format!("'{}' is no id of a key", target.key.id()));
        let number = key_number(target.key.id()).ok_or_else(not_one)?;
        let (state, changed, way) = Default::default();
        let mut process = [0; 8];
        getrandom::fill(&mut process).map_err(|error| SourceError::new(Cause::Other, error.to_string()))?;
        let process = u64::from_le_bytes(process);
        let inner = Arc::new(GatewayConnections { target, number, process, state, changed, way });
        Ok(LinkSource { inner, listings: Arc::default(), contents: Arc::default() })
    }

    /// Returns the description of the far formation.
    ///
    /// # Errors
    /// As [`LinkSource::open`].
    pub fn far_side(&self) -> SourceResult<FarSide> {
        if let Some((far, _)) = &self.inner.state.lock().welcome {
            return Ok(far.clone());
        }
        self.check_now()?;
        let state = self.inner.state.lock();
        let far = state.welcome.as_ref().map(|(far, _)| far.clone());
        far.ok_or_else(|| SourceError::new(Cause::Lost, "the gateway has said nothing of itself"))
    }

    /// Returns the shortest round trip of late.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.inner.way.get()
    }

    /// Returns the figures of the connections, as this process has seen them.
    #[must_use]
    pub fn figures(&self) -> LinkFigures {
        let (way, state) = (&self.inner.way, self.inner.state.lock());
        LinkFigures {
            round_trip: way.get(),
            rate: way.rate(),
            is_up: state.is_connected(),
            breaks: state.breaks,
            last_error: state.last_error.clone(),
        }
    }

    /// Returns the figures of the key at the gateway.
    ///
    /// # Errors
    /// As [`LinkSource::open`].
    pub fn usage(&self) -> SourceResult<Usage> {
        let usage: Usage = self.question(&Request::Usage {})?;
        Ok(Usage { last_error: plain(&usage.last_error), ..usage })
    }

    /// Returns the figures of all keys, for the formation of the gateway itself, whose key is that of [`OWN_KEY_ID`].
    ///
    /// # Errors
    /// As [`LinkSource::open`].
    ///
    /// [`OWN_KEY_ID`]: crate::OWN_KEY_ID
    pub fn key_figures(&self) -> SourceResult<Vec<KeyFigures>> {
        self.question(&Request::Figures {})
    }

    /// Asks whether links of the far formation lead to one of these.
    ///
    /// # Errors
    /// [`Cause::Exists`] if so; as [`LinkSource::open`].
    pub fn reaches(&self, chain: Vec<FormationId>) -> SourceResult<()> {
        self.question(&Request::Reach { chain })
    }

    /// Asks whether the exported directory is there.
    fn check_now(&self) -> SourceResult<()> {
        self.question(&Request::Check {})
    }

    fn question<T: for<'a> Decode<'a>>(&self, request: &Request) -> SourceResult<T> {
        let reply = self.inner.ask(request, &[], ReplyLimits::SMALL, DownLinkRule::Look)?;
        decoded(&reply.body)
    }

    fn change<T: for<'a> Decode<'a>>(&self, request: &Request, payload: &[u8]) -> SourceResult<T> {
        let reply = self.inner.ask(request, payload, ReplyLimits::SMALL, DownLinkRule::Work)?;
        decoded(&reply.body)
    }

    /// Like [`LinkSource::change`], for changes of names, after which cached listings of the directory are invalid.
    fn change_names<T: for<'a> Decode<'a>>(
        &self,
        path: &[u8],
        request: &Request,
        payload: &[u8],
    ) -> SourceResult<T> {
        let changed = self.change(request, payload);
        let now = Instant::now();
        // Also after an error: it may have been carried out.
        self.listings.forget(split_path(path).0, now);
        self.listings.forget(path, now);
        self.contents.forget(path);
        changed
    }

    fn outcome(&self, path: &[u8], request: &Request, payload: &[u8]) -> SourceResult<PutOutcome> {
        let Coded(outcome): Coded<PutOutcome> = self.change_names(path, request, payload)?;
        Ok(PutOutcome { version: validate::version(outcome.version)?, lost: outcome.lost })
    }

    fn owners(&self) -> OwnerSwap {
        let here = self.inner.target.owner;
        self.inner.state.lock().welcome.as_ref().map_or(OwnerSwap { here, far: here }, |(_, owners)| *owners)
    }

    fn out(&self, attrs: &Attrs) -> SourceResult<Coded<Attrs>> {
        // The owners are known from the first connection on.
        self.far_side()?;
        Ok(Coded(self.owners().swap(attrs)))
    }

    /// Lists directories; those that came unasked are kept for later.
    fn list_dirs(
        &self,
        dirs: Vec<WantedDir>,
        below_max: u32,
    ) -> SourceResult<Vec<(Vec<u8>, Option<Listing>)>> {
        let request = Request::List { dirs, below_max };
        let limits = ReplyLimits { body: LISTING_MAX, payload: 0 };
        let reply = self.inner.ask(&request, &[], limits, DownLinkRule::Look)?;
        let owners = self.owners();
        let checked = |ListedDir { path, listing }: ListedDir| {
            check_path(&path)?;
            let listing = listing.map(|Coded(listing)| validate::listing(listing, &owners)).transpose()?;
            Ok((path, listing))
        };
        decoded::<Vec<ListedDir>>(&reply.body)?.into_iter().map(checked).collect()
    }

    /// Returns the wanted directory of those that were listed, and keeps the rest.
    fn sort_out(
        &self,
        dir: &[u8],
        listed: Vec<(Vec<u8>, Option<Listing>)>,
        asked: Instant,
    ) -> SourceResult<Option<Listing>> {
        let mut wanted = None;
        for (path, listing) in listed {
            let is_wanted = path == dir;
            if let Some(listing) = &listing {
                self.listings.note(&path, listing.digest, asked, is_wanted);
            }
            match (is_wanted, listing) {
                (true, listing) => wanted = Some(listing),
                (false, Some(listing)) => self.listings.keep(path, listing, asked),
                (false, None) => {}
            }
        }
        wanted.ok_or_else(|| {
            SourceError::new(Cause::Other, "the gateway lists other directories than were wanted")
        })
    }
}

fn decoded<T: for<'a> Decode<'a>>(body: &[u8]) -> SourceResult<T> {
    let odd =
        |error| SourceError::new(Cause::Other, format!("the gateway does not keep to the protocol: {error}"));
    T::from_bytes(body).map_err(odd)
}

impl Source for LinkSource {
    fn check(&self) -> SourceResult<()> {
        let is_answered = {
            let state = self.inner.state.lock();
            let is_late = |replied: Instant| replied.elapsed() > REPLY_COUNTS_FOR;
            state.is_connected() && !state.last_reply.is_none_or(is_late)
        };
        // Each request is checked at the gateway; this one would only be a round trip more.
        if is_answered { Ok(()) } else { self.check_now() }
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        Ok(self.list_changed(dir, None)?.map(|listing| listing.entries).unwrap_or_default())
    }

    fn names_valid_for(&self) -> Option<Duration> {
        Some(NAMES_VALID)
    }

    fn list_changed(&self, dir: &[u8], known: Option<u128>) -> SourceResult<Option<Listing>> {
        check_path(dir)?;
        let now = Instant::now();
        if let Some(listing) = self.listings.take(dir, now) {
            return Ok((known != Some(listing.digest)).then_some(listing));
        }
        let (dirs, below_max) = match known {
            Some(digest) if self.listings.is_as_known(dir, digest, now) => return Ok(None),
            Some(digest) => (self.listings.together(dir, digest, now), 0),
            None => (vec![WantedDir { path: dir.to_vec(), known: [0; 16] }], BELOW_MAX),
        };
        let asked_for = dirs.clone();
        let listed = self.list_dirs(dirs, below_max)?;
        if known.is_some() {
            self.listings.took(asked_for.len(), now.elapsed().saturating_sub(self.inner.way.get()));
        }
        for unchanged in &asked_for {
            let is_unchanged =
                |(path, listing): &(Vec<u8>, Option<Listing>)| *path == unchanged.path && listing.is_none();
            if listed.iter().any(is_unchanged) {
                let digest = u128::from_le_bytes(unchanged.known);
                self.listings.note(&unchanged.path, digest, now, unchanged.path == dir);
            }
        }
        match self.sort_out(dir, listed, now)? {
            None if known.is_none() => Err(SourceError::new(
                Cause::Other,
                "the gateway says that a directory is as it was, of which nothing is known",
            )),
            listing => Ok(listing),
        }
    }

    fn pieces_under_way(&self, piece_len: u64) -> Option<usize> {
        Some(self.inner.way.pieces(piece_len))
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        check_path(path)?;
        // Content that is here need not come again.
        let inline_max = if self.contents.has(path) { 0 } else { INLINE_MAX };
        let request = Request::Stat { path: path.to_vec(), inline_max };
        let limits = ReplyLimits { body: BODY_MAX, payload: inline_max as usize };
        let reply = self.inner.ask(&request, &[], limits, DownLinkRule::Look)?;
        let Coded(found): Coded<Meta> = decoded(&reply.body)?;
        let found = validate::meta(found, &self.owners())?;
        if found.is_file() && found.version.size > 0 && reply.payload.len() as u64 == found.version.size {
            self.contents.keep(path, &found.version, reply.payload, Instant::now());
        }
        Ok(found)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        check_path(path)?;
        if let Some(len) = self.contents.take(path, version, offset, into) {
            return Ok(len);
        }
        let mut done = 0;
        while done < into.len() {
            let rest = into.get_mut(done..).unwrap_or_default();
            let len = rest.len().min(PAYLOAD_MAX);
            let request = Request::Read {
                path: path.to_vec(),
                version: Coded(version.clone()),
                offset: offset + done as u64,
                len: len as u32,
            };
            let limits = ReplyLimits { body: BODY_MAX, payload: len };
            let reply = self.inner.ask(&request, &[], limits, DownLinkRule::Work)?;
            let got = reply.payload.len();
            assert!(got <= len, "a reply of {got} bytes was taken where {len} were asked for");
            rest.get_mut(..got).unwrap_or_default().copy_from_slice(&reply.payload);
            done += got;
            if got < len {
                break;
            }
        }
        Ok(done)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        plan_beside(path, size)
    }

    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        let request = Request::Start { upload: Coded(plan.clone()), attrs: self.out(attrs)? };
        let Coded(begun): Coded<Upload> = self.change(&request, &[])?;
        validate::upload(&plan, begun)
    }

    fn piece_size(&self, _: u64) -> Option<u64> {
        None
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        // Longer ones go in parts; the digest is of the whole, which `verify` has compared in the same parts.
        let mut at = 0;
        // Once also without data: there may be an empty piece.
        while at < data.len() || at == 0 {
            let part = data.get(at..data.len().min(at + PAYLOAD_MAX)).unwrap_or_default();
            let offset = offset + at as u64;
            let request = Request::Put { upload: Coded(upload.clone()), offset };
            let Coded(piece): Coded<Piece> = self.change(&request, part)?;
            let digest = format!("{:032x}", xxh3_128(part));
            if (piece.offset, piece.len, &piece.tag) != (offset, part.len() as u64, &digest) {
                let text = format!("{}: other content came than was sent", shown(&upload.path));
                return Err(SourceError::new(Cause::Other, text));
            }
            at += part.len().max(1);
        }
        let tag = data.chunks(PAYLOAD_MAX).map(|part| format!("{:032x}", xxh3_128(part)));
        Ok(Piece { offset, len: data.len() as u64, tag: tag.collect::<Vec<_>>().join(",") })
    }

    fn verifies_for_all(&self) -> bool {
        true
    }

    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        self.change(&Request::Verify { upload: Coded(upload.clone()), pieces: parts_of(pieces) }, &[])
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let (attrs, expect) = (self.out(attrs)?, Coded(expect.clone()));
        let (upload, pieces) = (Coded(upload.clone()), parts_of(pieces));
        self.outcome(&upload.0.path.clone(), &Request::Commit { upload, pieces, attrs, expect }, &[])
    }

    fn whole_len_max(&self) -> u64 {
        WHOLE_MAX
    }

    fn plan_whole(&self, path: &[u8], data: &[u8]) -> SourceResult<Upload> {
        let plan = self.plan(path, data.len() as u64)?;
        Ok(Upload { tag: format!("{CONTENT_TAG}{:032x}", xxh3_128(data)), ..plan })
    }

    fn put_whole(
        &self,
        plan: &Upload,
        data: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let (attrs, expect) = (self.out(attrs)?, Coded(expect.clone()));
        self.outcome(&plan.path, &Request::PutWhole { upload: Coded(plan.clone()), attrs, expect }, data)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.change(&Request::Abort { upload: Coded(upload.clone()) }, &[])
    }

    fn resume(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        check_path(&upload.path)?;
        let request = Request::Resume { upload: Coded(upload.clone()), expect: Coded(expect.clone()) };
        let found: Option<Coded<Version>> = self.change_names(&upload.path, &request, &[])?;
        found.map(|Coded(found)| validate::version(found)).transpose()
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.put_dir_as(path, attrs, DirChange::All)
    }

    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.put_dir_as(path, attrs, DirChange::Open)
    }

    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.put_dir_as(path, attrs, DirChange::Times)
    }

    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        let request = Request::StartLink { upload: Coded(plan.clone()), target: target.to_vec() };
        let Coded(begun): Coded<Upload> = self.change(&request, &[])?;
        validate::upload(&plan, begun)
    }

    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let (upload, target) = (Coded(link.clone()), target.to_vec());
        let (attrs, expect) = (self.out(attrs)?, Coded(expect.clone()));
        self.outcome(&link.path, &Request::PutLink { upload, target, attrs, expect }, &[])
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome> {
        check_path(path)?;
        let (version, attrs) = (Coded(version.clone()), self.out(attrs)?);
        self.outcome(path, &Request::SetAttrs { path: path.to_vec(), version, attrs }, &[])
    }

    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let request = Request::FinishRemoval { path: path.to_vec(), version: Coded(version.clone()) };
        self.change_names(path, &request, &[])
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        let version = version.map(|version| Coded(version.clone()));
        self.change_names(path, &Request::Remove { path: path.to_vec(), version }, &[])
    }
}

impl LinkSource {
    fn put_dir_as(&self, path: &[u8], attrs: &Attrs, change: DirChange) -> SourceResult<PutOutcome> {
        check_path(path)?;
        let attrs = self.out(attrs)?;
        self.outcome(path, &Request::PutDir { path: path.to_vec(), attrs, change }, &[])
    }
}

/// Pieces as the parts in which they were put.
fn parts_of(pieces: &[Piece]) -> Vec<Coded<Piece>> {
    let mut parts = Vec::new();
    for Piece { offset, len, tag } in pieces {
        for (number, tag) in tag.split(',').enumerate().filter(|_| *len > 0) {
            let before = (number * PAYLOAD_MAX) as u64;
            let len = len.saturating_sub(before).min(PAYLOAD_MAX as u64);
            parts.push(Coded(Piece { offset: offset + before, len, tag: tag.to_owned() }));
        }
    }
    parts
}

fn shown(path: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(path))
}

impl GatewayConnections {
    /// Sends a request until it is answered, over other connections where one breaks.
    fn ask(
        self: &Arc<Self>,
        request: &Request,
        payload: &[u8],
        limits: ReplyLimits,
        patience: DownLinkRule,
    ) -> SourceResult<ReplyBytes> {
        let body = request.to_bytes();
        for (len, most) in [(body.len(), BODY_MAX), (payload.len(), PAYLOAD_MAX)] {
            if len > most {
                let text = format!("a request of {len} bytes is above the limit of {most}");
                return Err(SourceError::new(Cause::BadName, text));
            }
        }
        let asked = Instant::now();
        let deadline = asked + if patience == DownLinkRule::Look { REPLY_WAIT } else { self.target.wait };
        let is_bulk = payload.len() + limits.payload > BULK_LEN;
        if patience == DownLinkRule::Look
            && let Some(silent) = self.state.lock().silent.as_ref().filter(|silent| asked < silent.until)
        {
            return Err(silent.error.clone());
        }
        let (mut is_again, is_change) = (false, request.is_change());
        loop {
            let stream = self.stream(is_bulk, is_change, patience, deadline)?;
            let (sent, before) = (Instant::now(), self.under_way());
            let outcome = stream.ask((&body, payload), is_again, limits, deadline);
            if outcome.is_ok() {
                let mut state = self.state.lock();
                (state.silent, state.last_reply) = (None, Some(Instant::now()));
            }
            match outcome {
                Ok(reply) if reply.status == 0 => {
                    // The round trip shows in small questions and the rate in content. A change waits for the gateway's
                    // disks, too.
                    match (payload.len() + reply.payload.len()) as u64 {
                        0 if !is_change => self.way.record(sent.elapsed()),
                        len if is_bulk => self.way.record_content(before + len, sent.elapsed()),
                        _ => {}
                    }
                    return Ok(reply);
                }
                Ok(reply) => return Err(failure(reply.status, &reply.body)),
                Err(StreamError::TimedOut) => {
                    let text = format!(
                        "the gateway at {} did not answer within {} s: look at the network, and there at: bivouac status",
                        self.target.address,
                        asked.elapsed().as_secs()
                    );
                    let error = SourceError::new(Cause::Lost, text);
                    self.note_broken(&error.to_string(), is_change.then(|| stream.number()));
                    if patience == DownLinkRule::Look {
                        self.note_silent(&error);
                    }
                    return Err(error);
                }
                // It may have been carried out: the gateway looks first.
                Err(StreamError::Broken(why)) => {
                    is_again = true;
                    self.note_broken(&why, is_change.then(|| stream.number()));
                }
            }
        }
    }

    fn note_silent(&self, error: &SourceError) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        // Of questions that were asked together one counts.
        if state.silent.as_ref().is_some_and(|silent| now < silent.until) {
            return;
        }
        let pause = state.silent.as_ref().map_or(SILENT_FOR.0, |silent| (silent.pause * 2).min(SILENT_FOR.1));
        state.silent = Some(Backoff { until: now + pause, pause, error: error.clone() });
    }

    /// Returns the content that is under way on all connections, in bytes.
    fn under_way(&self) -> u64 {
        self.state.lock().streams.iter().flatten().map(|stream| stream.under_way()).sum()
    }

    /// Notes that a connection broke; if a change that it was asked for is unanswered, its number is given.
    fn note_broken(&self, why: &str, unfenced: Option<u32>) {
        let mut state = self.state.lock();
        let ended = state.drop_ended();
        state.breaks += ended;
        if let Some(number) = unfenced.filter(|number| !state.is_fenced(*number)) {
            state.unfenced.push(number);
        }
        state.last_error = Some((SystemTime::now(), why.to_owned()));
        if !state.is_connected() && state.down.is_none() {
            log::warn!("the link to {} is down: {why}; it is connected again", self.target.address);
            let text = format!("the link to {} is down: {why}", self.target.address);
            let now = Instant::now();
            let error = SourceError::new(Cause::Lost, text);
            state.down = Some(Down { since: now, last: now, error, is_refusal: false });
        }
    }

    /// Returns a connection for a request: of those for content the one with the least under way.
    fn stream(
        self: &Arc<Self>,
        is_bulk: bool,
        is_change: bool,
        patience: DownLinkRule,
        deadline: Instant,
    ) -> SourceResult<Arc<Stream>> {
        let mut state = self.state.lock();
        loop {
            let alive = |slot: &Option<Arc<Stream>>| slot.as_ref().is_some_and(|stream| stream.is_alive());
            let of_kind = if is_bulk { 1..BULK_STREAMS + 1 } else { 0..1 };
            let granted = state.granted.max(1);
            let ready = state.streams.get(of_kind.clone()).unwrap_or_default();
            let best = ready.iter().filter(|slot| alive(slot)).flatten().min_by_key(|one| one.under_way());
            let best = best.or_else(|| state.streams.iter().flatten().find(|one| one.is_alive()));
            // What was asked for before is carried out before, or not at all.
            let is_fenced = !is_change || state.unfenced.is_empty();
            let best = best.cloned().filter(|_| is_fenced);
            // One more while all have something to do.
            let is_busy = best.as_ref().is_none_or(|stream| is_bulk && stream.under_way() > 0);
            if is_busy {
                let is_missing = |at: &usize| !state.streams.get(*at).is_some_and(alive);
                // The first one of all tells whether the gateway takes us.
                let missing = match best {
                    Some(_) if state.count() >= granted => None,
                    Some(_) => of_kind.into_iter().find(is_missing),
                    None => (0..=BULK_STREAMS).find(is_missing),
                };
                if let Some(at) = missing {
                    self.connect_later(&mut state, at);
                }
            }
            if let Some(best) = best {
                return Ok(best);
            }
            let now = Instant::now();
            if let Some(down) = &state.down {
                let age = now.saturating_duration_since(down.last);
                let is_fresh = down.is_refusal && age < REFUSED_FOR;
                // Each of many requests that waited in turn would wait for as long as the first one.
                let is_given_up = now >= down.since + self.target.wait && age < GIVEN_UP_FOR;
                let waits_until =
                    if patience == DownLinkRule::Look { down.since + LOOK_WAIT } else { deadline };
                if is_fresh || is_given_up || now >= waits_until.min(deadline) {
                    return Err(down.error.clone());
                }
            }
            if now >= deadline {
                let text = format!("the gateway at {} did not answer in time", self.target.address);
                return Err(SourceError::new(Cause::Lost, text));
            }
            // Woken now and then as well: times like those above pass without a notification.
            let wake = deadline.min(now + LOOK_WAIT / 4);
            self.changed.wait_until(&mut state, wake);
        }
    }

    /// Connects in a thread; requests wait for what comes of it.
    fn connect_later(self: &Arc<Self>, state: &mut Connections, at: usize) {
        if state.connecting.get(at).is_none_or(Option::is_some) {
            return;
        }
        let (number, others) = (state.last_number + 1, state.numbers());
        state.last_number = number;
        let set = |state: &mut Connections, number| {
            state.connecting.iter_mut().skip(at).take(1).for_each(|one| *one = number);
        };
        set(state, Some(number));
        let this = Arc::clone(self);
        let work = move || this.connect_one(at, number, others);
        if let Err(error) = std::thread::Builder::new().name("link".to_owned()).spawn(work) {
            set(state, None);
            let error = SourceError::new(Cause::Lost, format!("no thread to connect a link: {error}"));
            note_down(state, error, false);
        }
    }

    fn connect_one(&self, at: usize, number: u32, others: Vec<u32>) {
        let outcome = self.connect(number, others);
        let mut state = self.state.lock();
        let pause = match outcome {
            Ok((stream, far, owners, granted)) => {
                state.granted = granted;
                state.unfenced.retain(|ended| !stream.fences(*ended));
                if let Some(slot) = state.streams.get_mut(at) {
                    *slot = Some(Arc::new(stream));
                }
                state.welcome = Some((far, owners));
                if let Some(down) = state.down.take() {
                    let s = down.since.elapsed().as_secs();
                    log::info!("the link to {} is up again after {s} s", self.target.address);
                }
                state.pause = Duration::ZERO;
                Duration::ZERO
            }
            Err((error, is_refusal)) => {
                if state.down.is_none() {
                    log::warn!(why:% = error; "the link to {} is down", self.target.address);
                }
                let text = format!("the link to {} is down: {error}", self.target.address);
                let error = if is_refusal { error } else { SourceError::new(error.cause(), text) };
                // One stream of several that does not come about is not the end of the others.
                if !state.is_connected() {
                    note_down(&mut state, error, is_refusal);
                } else if !is_refusal {
                    // The gateway may have no room for more; the next one that it takes is told how many.
                    state.granted = state.count().max(1);
                }
                state.pause = (state.pause * 2).clamp(PAUSES.0, PAUSES.1);
                state.pause
            }
        };
        drop(state);
        // Who waits learns of the outcome now, but the slot stays taken for the pause: nobody connects it meanwhile.
        self.changed.notify_all();
        if !pause.is_zero() {
            bivouac_net::pause(pause);
        }
        if let Some(connecting) = self.state.lock().connecting.get_mut(at) {
            *connecting = None;
        }
        self.changed.notify_all();
    }

    /// Makes a connection, and returns what the gateway says of itself; or the error, and true if it is final.
    fn connect(
        &self,
        number: u32,
        others: Vec<u32>,
    ) -> Result<(Stream, FarSide, OwnerSwap, usize), (SourceError, bool)> {
        let LinkTarget { address, key, formation, owner, asker, .. } = &self.target;
        let auth = Auth { formation: self.number, secret: Secret::new(*key.secret()), is_secure: true };
        let identity = Identity { auth, client: ClientId(0), lane: LaneKind::Client, epoch: 0 };
        let connected = connect_sealed(&Address::tcp(address.as_str()), &identity, CONNECT_WAIT);
        let (reader, writer) = connected.map_err(|error| self.explained(&error))?;
        let failed = |why: String| (SourceError::new(Cause::Lost, format!("{address}: {why}")), false);
        let stream = Stream::begin(reader, writer, number, others.clone())
            .map_err(|error| failed(error.to_string()))?;
        let (asker, process) = (asker.unwrap_or(self.process), self.process);
        let session = Session { asker, process, number, others };
        let join = Request::Join { version: VERSION, formation: *formation, session }.to_bytes();
        let asked = Instant::now();
        let reply = stream.ask((&join, &[]), false, ReplyLimits::SMALL, asked + CONNECT_WAIT);
        self.way.record(asked.elapsed());
        let reply = match reply {
            Ok(reply) => reply,
            Err(StreamError::Broken(why)) => return Err(failed(why)),
            Err(StreamError::TimedOut) => return Err(failed("does not answer".to_owned())),
        };
        if reply.status != 0 {
            let error = failure(reply.status, &reply.body);
            return Err((error.clone(), error.cause() != Cause::Lost));
        }
        let welcome: Welcome = decoded(&reply.body).map_err(|error| (error, true))?;
        let far = FarSide {
            formation: welcome.formation,
            name: plain(&welcome.name).chars().take(100).collect(),
            path: welcome.path,
            read_only: welcome.read_only,
            expires: welcome.expires,
        };
        let owners = OwnerSwap { here: *owner, far: (welcome.uid, welcome.gid) };
        Ok((stream, far, owners, welcome.streams as usize))
    }

    fn explained(&self, error: &NetError) -> (SourceError, bool) {
        let (address, id) = (&self.target.address, self.target.key.id());
        match error {
            NetError::Refused { reason: HandshakeRefusal::Secret | HandshakeRefusal::Formation, .. } => {
                let text = format!(
                    "the gateway at {address} does not know key {id}: it is another formation's; make one there with: bivouac key create --link"
                );
                (SourceError::new(Cause::Denied, text), true)
            }
            NetError::Refused { reason: HandshakeRefusal::Version { theirs }, .. } => {
                let text = format!(
                    "the gateway at {address} speaks version {theirs} of the protocol, this one another: use the same release of bivouac on both sides"
                );
                (SourceError::new(Cause::Lost, text), true)
            }
            error => (SourceError::new(Cause::Lost, format!("gateway: {error}")), false),
        }
    }
}

fn note_down(state: &mut Connections, error: SourceError, is_refusal: bool) {
    let now = Instant::now();
    state.last_error = Some((SystemTime::now(), error.to_string()));
    let since = state.down.as_ref().map_or(now, |down| down.since);
    state.down = Some(Down { since, last: now, error, is_refusal });
}

const _: () =
    assert!(LISTED_FOR.as_millis() < NAMES_VALID.as_millis(), "names that came unasked count shorter");
