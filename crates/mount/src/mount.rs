//! A mount from the first request, or from where a killed daemon left it, to the unmount.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bivouac_ranks::{Mutex, rank};
use bivouac_types::limits::LEASE_MS;
use bivouac_types::{Errno, FsError, Ino};

use crate::abi::{Header, InitRequest, NOTIFY_RESEND, Negotiated, Opcode, Reader, Reply, Wishes, flags};
use crate::cached_attrs::CachedAttrs;
use crate::cached_names::CachedNames;
use crate::caller;
use crate::channel::{Buffer, Channel};
use crate::fs::FileSystem;
use crate::interrupts::Interrupts;
use crate::looked_up::LookedUp;
use crate::negative_entries::NegativeEntries;
use crate::opens::Opens;
use crate::options::Options;
use crate::parked::Parked;
use crate::pool::{Limits, Pool};
use crate::session::Session;
use crate::state::{State, StateError};
use crate::stats::{Count, Stats};

/// Room for the requests before the agreement, in bytes; the kernel asks for at least 8 KiB.
const FIRST_REQUEST_MAX: usize = 1 << 16;

/// Why a mount cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The state that was kept cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel's interface is older than 7.31.
    #[error("this kernel speaks FUSE {0}.{1}; 7.31 (Linux 5.4) or later is needed")]
    KernelTooOld(u32, u32),
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
    state: Mutex<Option<State>>,
    options: Options,
    stats: Arc<Stats>,
    cached_attrs: Arc<CachedAttrs>,
    cached_names: Arc<CachedNames>,
}

impl<F: FileSystem> Mount<F> {
    /// Takes over the device of a mounted file system and the state that belongs to it: an empty one of
    /// [`crate::create_state`], or the one that a killed daemon worked with.
    ///
    /// # Errors
    /// When the state is damaged or belongs to another mount.
    pub fn new(fs: Arc<F>, device: OwnedFd, state: File, options: Options) -> Result<Mount<F>, MountError> {
        let state = State::open(state, options.identity)?;
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

    /// Has the kernel cache nothing of an inode's attributes for as long as a lease may run. For how long it may still
    /// show what it was told before.
    #[must_use]
    pub fn invalidate_attrs(&self, ino: Ino) -> Duration {
        let on_the_way = self.cached_attrs.silence(ino);
        match self.channel.forget_attributes(ino.0) {
            Ok(()) => on_the_way,
            Err(error) => {
                log::debug!(why:% = error; "{ino}");
                Duration::from_millis(LEASE_MS)
            }
        }
    }

    /// The same of the name with this hash in a directory.
    #[must_use]
    pub fn invalidate_name(&self, dir: Ino, hash: u64) -> Duration {
        self.cached_names.silence(dir, hash)
    }

    /// What it serves.
    #[must_use]
    pub fn file_system(&self) -> &F {
        &self.fs
    }

    /// Requests of each kind so far.
    #[must_use]
    pub fn stats(&self) -> Vec<Count> {
        self.stats.snapshot()
    }

    fn serve(&self, state: State, opens: Opens, negotiated: Negotiated) -> Result<(), MountError> {
        let parked = Arc::new(Parked::new(state.notes()?));
        let session = Arc::new(Session {
            fs: Arc::clone(&self.fs),
            channel: Arc::clone(&self.channel),
            state,
            opens,
            negative_entries: NegativeEntries::since_before(),
            cached_attrs: Arc::clone(&self.cached_attrs),
            cached_names: Arc::clone(&self.cached_names),
            looked_up: LookedUp::default(),
            negotiated,
            stats: Arc::clone(&self.stats),
            parked,
            interrupts: Interrupts::new(Arc::clone(&self.channel), caller::is_killed),
            formation: self.options.formation.clone(),
            failure: Mutex::default(),
        });
        let limits = Limits { readers_max: self.options.readers_max, threads_max: self.options.threads_max };
        let worker = Arc::clone(&session);
        let channel = Arc::clone(&session.channel);
        let work = move |pool: &Arc<Pool>, thread| worker.work(pool, thread);
        let pool = Pool::new(limits, work, move || channel.has_request());
        pool.start()?;
        pool.join();
        session.interrupts.close();
        self.fs.drop_locks();
        // At an unmount the kernel does not say of every file that it was closed.
        for (ino, count) in session.opens.counts() {
            (0..count).for_each(|_| self.fs.close(ino));
        }
        session.failure.lock().take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Goes on where a killed daemon stopped. Files are registered as open before any request is
    /// served, so that none of them is taken for unused.
    fn resume(&self, state: &State, opens: &Opens, negotiated: Negotiated) -> Result<Negotiated, MountError> {
        self.fs.reassert_opens(&opens.counts()).map_err(MountError::Reassert)?;
        let unanswered = state.take_in_flight().map_err(StateError::from)?;
        if negotiated.has(flags::init::HAS_RESEND) {
            self.channel.notify(NOTIFY_RESEND)?;
        } else {
            unanswered.into_iter().for_each(|unique| self.channel.reply_error(unique, Errno::EIO));
        }
        Ok(negotiated)
    }

    /// Agrees with the kernel on what both can do. `None` when it is unmounted before.
    fn shake_hands(&self, state: &mut State) -> Result<Option<Negotiated>, MountError> {
        if state.is_resumed() {
            // The daemon before may have died with the kernel's first request in its hands.
            self.channel.notify(NOTIFY_RESEND)?;
        }
        let mut buffer = Buffer::new(FIRST_REQUEST_MAX);
        while let Some(len) = self.channel.receive(&mut buffer)? {
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
        state: &mut State,
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
        let negotiated = Negotiated::new(&request, self.wishes());
        // Kept before it is said: a daemon that dies in between says the same again.
        state.set_negotiated(negotiated)?;
        negotiated.encode(&mut reply);
        self.channel.reply(header.unique, reply.as_bytes());
        Ok(Some(negotiated))
    }

    fn wishes(&self) -> Wishes {
        Wishes { max_write: self.options.max_write, readdirplus: self.options.readdirplus }
    }
}
