//! A mount from the first request, or from where a killed daemon left it, to the unmount.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::limits::LEASE_MS;
use bivouac_types::{Errno, FsError, Ino};

use crate::abi::{
    Header, InitRequest, MountPreferences, NOTIFY_RESEND, Negotiated, Opcode, Reader, Reply, flags,
};
use crate::background::Background;
use crate::cached_attrs::CachedAttrs;
use crate::cached_names::CachedNames;
use crate::caller;
use crate::channel::{Buffer, Channel};
use crate::directory_names::DirectoryNames;
use crate::fs::FileSystem;
use crate::held_lookups::HeldLookups;
use crate::interrupts::Interrupts;
use crate::laminated_pages::LaminatedPages;
use crate::looked_up::LookedUp;
use crate::negative_entries::NegativeEntries;
use crate::opens::Opens;
use crate::options::Options;
use crate::page_cache::PageCache;
use crate::parked::Parked;
use crate::pool::{Limits, Pool};
use crate::releases::Releases;
use crate::session::Session;
use crate::state::{MountState, StateError};
use crate::stats::{Count, Stats};
use crate::worker::Worker;

/// Room for the requests before the agreement, in bytes; the kernel asks for at least 8 KiB.
const FIRST_REQUEST_MAX: usize = 1 << 16;

/// Longest time for which a change of a file's size waits until the kernel knows it: it may be that the kernel waits
/// for a request that needs the home of the file.
const GROWTH_WAIT: Duration = Duration::from_millis(20);

/// Reason why a mount cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The state that was kept cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel's interface is older than 7.31.
    #[error("this kernel speaks FUSE {0}.{1}; 7.31 (Linux 5.4) or later is needed")]
    KernelTooOld(u32, u32),
    /// A daemon was killed with the kernel's first request, which the kernel does not send again.
    #[error(
        "a killed daemon had taken the kernel's first request: unmount this file system, and mount it anew"
    )]
    FirstRequestLost,
    /// The device or a thread failed.
    #[error("the FUSE device failed: {0}")]
    Device(#[from] io::Error),
    /// The open files of the killed daemon could not be registered again.
    #[error("the files that were open could not be registered again: {0}")]
    Reassert(FsError),
}

/// A mounted file system, ready to be served.
pub struct Mount<F> {
    fs: Arc<F>,
    channel: Arc<Channel>,
    state: Mutex<Option<MountState>>,
    options: Options,
    stats: Arc<Stats>,
    cached_attrs: Arc<CachedAttrs>,
    cached_names: Arc<CachedNames>,
    /// Threads for what may wait for requests, while it is served.
    background: OnceLock<Arc<Background>>,
}

impl<F: FileSystem> Mount<F> {
    /// Takes over the device of a mounted file system and the state that belongs to it: an empty one of
    /// [`crate::create_state`], or the one that a killed daemon worked with.
    ///
    /// # Errors
    /// When the state is damaged or belongs to another mount.
    pub fn new(fs: Arc<F>, device: OwnedFd, state: File, options: Options) -> Result<Mount<F>, MountError> {
        let state = MountState::open(state, options.identity)?;
        let cached_attrs = CachedAttrs::new(state.is_resumed());
        let cached_names = CachedNames::new(state.is_resumed());
        Ok(Mount {
            fs,
            channel: Arc::new(Channel::new(device)),
            state: Mutex::new(rank::LEAF, Some(state)),
            options,
            stats: Arc::default(),
            cached_attrs: Arc::new(cached_attrs),
            cached_names: Arc::new(cached_names),
            background: OnceLock::new(),
        })
    }

    /// Serves the mount, in threads of its own, and returns when it is unmounted. A second call returns
    /// at once.
    ///
    /// # Errors
    /// When the kernel is too old, the state cannot be used, the device fails or open files
    /// cannot be registered again.
    pub fn run(&self) -> Result<(), MountError> {
        let Some(mut state) = self.state.lock().take() else { return Ok(()) };
        // Before the device is used: a state that makes no sense is an error, and no request is lost to it.
        let opens = Opens::load(&state)?;
        let negotiated = match state.negotiated() {
            Some(negotiated) => self.resume(&state, &opens, negotiated)?,
            None => match self.shake_hands(&mut state)? {
                Some(negotiated) => negotiated,
                None => return Ok(()),
            },
        };
        self.serve(state, opens, negotiated)
    }

    /// Makes the kernel cache no attributes of an inode for the length of a lease. Returns for how long it may still
    /// use those it has.
    #[must_use]
    pub fn invalidate_attrs(&self, ino: Ino) -> Duration {
        // Before the notification: an answer that goes out in between would be cached behind it.
        let on_the_way = self.cached_attrs.silence(ino);
        match self.channel.forget_attributes(ino.0) {
            Ok(()) => on_the_way,
            Err(error) => {
                log::debug!(why:% = error; "{ino}");
                Duration::from_millis(LEASE_MS)
            }
        }
    }

    /// Makes the kernel cache no reply about the name with this hash in a directory, for the length of a lease. Returns
    /// for how long it may still use those it has.
    #[must_use]
    pub fn invalidate_name(&self, dir: Ino, hash: u64) -> Duration {
        self.cached_names.silence(dir, hash)
    }

    /// Reports a file's growth to at least `size` bytes to the kernel, in a thread of its own, and waits
    /// [`GROWTH_WAIT`] at most for that.
    pub fn has_grown(&self, ino: Ino, size: u64) {
        let Some(background) = self.background.get() else { return };
        let (done, is_done) = mpsc::channel();
        let channel = Arc::clone(&self.channel);
        let raise = Box::new(move || {
            if let Err(error) = channel.raise_size(ino.0, size) {
                log::debug!(why:% = error; "the kernel may end asynchronous reads of {ino} at an old size");
            }
            // The receiver may have given up.
            let _ = done.send(());
        });
        if background.submit(raise).is_ok() && is_done.recv_timeout(GROWTH_WAIT).is_err() {
            log::debug!("the kernel waits for a request before it learns of the new size of {ino}");
        }
    }

    /// Returns the file system.
    #[must_use]
    pub fn file_system(&self) -> &F {
        &self.fs
    }

    /// Returns the requests of each kind so far.
    #[must_use]
    pub fn stats(&self) -> Vec<Count> {
        self.stats.snapshot()
    }

    fn serve(&self, state: MountState, opens: Opens, negotiated: Negotiated) -> Result<(), MountError> {
        let parked = Arc::new(Parked::new(state.notes()?));
        let background = match negotiated.has(flags::init::HAS_RESEND) {
            true => Background::with_device(self.channel.as_fd()),
            // What notes which requests are unanswered needs the state, too.
            false => Background::default(),
        };
        let background = Arc::new(background);
        // The mount is served once.
        let _ = self.background.set(Arc::clone(&background));
        let page_cache = PageCache::new(opens.counts().into_iter().map(|(ino, ..)| ino));
        let session = Arc::new(Session {
            fs: Arc::clone(&self.fs),
            channel: Arc::clone(&self.channel),
            state,
            opens,
            negative_entries: NegativeEntries::since_before(),
            cached_attrs: Arc::clone(&self.cached_attrs),
            cached_names: Arc::clone(&self.cached_names),
            looked_up: LookedUp::default(),
            held_lookups: HeldLookups::default(),
            directory_names: DirectoryNames::default(),
            releases: Releases::default(),
            page_cache,
            laminated_pages: LaminatedPages::default(),
            failed_writes: Arc::default(),
            background: Arc::clone(&background),
            negotiated,
            stats: Arc::clone(&self.stats),
            parked,
            interrupts: Interrupts::new(Arc::clone(&self.channel), caller::is_killed),
            formation: self.options.formation.clone(),
            failure: Mutex::default(),
        });
        // Weak: the file system keeps it, and the session keeps the file system.
        let closes = Arc::downgrade(&session);
        self.fs.settle_locks_with(Arc::new(move || {
            if let Some(session) = closes.upgrade() {
                session.settle_releases();
            }
        }));
        let limits = Limits { readers_max: self.options.readers_max, threads_max: self.options.threads_max };
        let shared = Arc::clone(&session);
        let channel = Arc::clone(&session.channel);
        let work = move |pool: &Arc<Pool>, thread| Worker::new(&shared, thread).run(pool);
        let pool = Pool::new(limits, work, move || channel.has_request());
        pool.start()?;
        pool.join();
        let failure = session.failure.lock().take();
        // Where the device has failed the kernel may go on: what a notification waits for is then answered by the next
        // daemon, and this one must end first.
        if failure.is_none() {
            session.background.close();
        } else {
            // Before what is queued is dropped, and the waits for locks.
            session.parked.keep();
            session.background.abandon();
        }
        // Behind the threads that serve: they call the watcher.
        session.interrupts.close();
        self.fs.drop_locks();
        session.held_lookups.take_all().into_iter().for_each(|ino| self.fs.close_open(ino, 0));
        // At an unmount the kernel does not say of every file that it was closed.
        for (ino, flags, count) in session.opens.counts() {
            (0..count).for_each(|_| self.fs.close_open(ino, flags));
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Goes on where a killed daemon stopped. Files are registered as open before any request is
    /// served, so that none of them is taken for unused.
    fn resume(
        &self,
        state: &MountState,
        opens: &Opens,
        negotiated: Negotiated,
    ) -> Result<Negotiated, MountError> {
        self.fs.reassert_opens(&opens.counts()).map_err(MountError::Reassert)?;
        // Behind the opens: the requests that come again may be about these files.
        let unanswered = state.take_in_flight().map_err(StateError::from)?;
        if negotiated.has(flags::init::HAS_RESEND) {
            self.channel.notify(NOTIFY_RESEND)?;
        } else {
            unanswered.into_iter().for_each(|unique| self.channel.reply_error(unique, Errno::EIO));
        }
        Ok(negotiated)
    }

    /// Agrees with the kernel on what both can do. `None` when it is unmounted before.
    fn shake_hands(&self, state: &mut MountState) -> Result<Option<Negotiated>, MountError> {
        if state.is_resumed() {
            // The daemon before may have died with the kernel's first request in its hands.
            match self.channel.notify(NOTIFY_RESEND) {
                // Linux before 6.9 sends nothing again: the request is still to be read, or is lost.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    if !self.channel.has_request() {
                        return Err(MountError::FirstRequestLost);
                    }
                }
                sent => sent?,
            }
        }
        let mut buffer = Buffer::new(FIRST_REQUEST_MAX);
        while let Some(len) = self.channel.receive(&mut buffer)? {
            // Nothing says which request it was, so there is nobody to answer.
            let Ok((header, body)) = Header::split(buffer.request(len)) else { continue };
            if Opcode::from_number(header.opcode) != Some(Opcode::Init) {
                self.channel.reply_error(header.unique, Errno::EIO);
                continue;
            }
            if let Some(negotiated) = self.agree(state, &header, body)? {
                return Ok(Some(negotiated));
            }
        }
        Ok(None)
    }

    fn agree(
        &self,
        state: &mut MountState,
        header: &Header,
        body: &[u8],
    ) -> Result<Option<Negotiated>, MountError> {
        let Ok(request) = InitRequest::decode(&mut Reader::new(body)) else {
            self.channel.reply_error(header.unique, Errno::EPROTO);
            return Ok(None);
        };
        if request.is_too_old() {
            self.channel.reply_error(header.unique, Errno::EPROTO);
            return Err(MountError::KernelTooOld(request.major, request.minor));
        }
        let mut reply = Reply::default();
        if request.is_ahead() {
            Negotiated::encode_version_only(&mut reply);
            self.channel.reply(header.unique, reply.as_bytes());
            return Ok(None);
        }
        let negotiated = Negotiated::new(&request, self.preferences());
        // Kept before it is said: a daemon that dies in between says the same again.
        state.set_negotiated(negotiated)?;
        negotiated.encode(&mut reply);
        self.channel.reply(header.unique, reply.as_bytes());
        Ok(Some(negotiated))
    }

    fn preferences(&self) -> MountPreferences {
        MountPreferences { max_write: self.options.max_write, readdirplus: self.options.readdirplus }
    }
}
