//! Serves requests: what all threads of a mount share, and what each has for itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use bivouac_client::FormationPlace;
use bivouac_ranks::Mutex;
use bivouac_types::{Errno, FsError, FsResult};

use crate::abi::{Header, Negotiated, Opcode, Reader, Reply, flags};
use crate::cached_attrs::CachedAttrs;
use crate::cached_names::CachedNames;
use crate::caller;
use crate::channel::{Buffer, Channel};
use crate::fs::FileSystem;
use crate::interrupts::{Interrupts, Serving};
use crate::looked_up::LookedUp;
use crate::negative_entries::NegativeEntries;
use crate::opens::{Handle, Opens};
use crate::parked::{Parked, Place};
use crate::pipe::Pipe;
use crate::pool::{Pool, about_to_block};
use crate::serve::{self, Answer, Call};
use crate::state::State;
use crate::stats::Stats;

/// From this size on, in bytes, reads are sent from the file where it is here; below, the copy costs less.
const SENT_MIN: u32 = 32 << 10;

/// What all threads of a mount share.
pub struct Session<F> {
    pub fs: Arc<F>,
    pub channel: Arc<Channel>,
    pub state: State,
    pub opens: Opens,
    pub negative_entries: NegativeEntries,
    pub cached_attrs: Arc<CachedAttrs>,
    pub cached_names: Arc<CachedNames>,
    pub looked_up: LookedUp,
    pub negotiated: Negotiated,
    pub stats: Arc<Stats>,
    pub parked: Arc<Parked>,
    pub interrupts: Arc<Interrupts>,
    pub formation: Option<Arc<FormationPlace>>,
    pub failure: Mutex<Option<io::Error>>,
}

/// What one thread has for itself.
struct Desk {
    buffer: Buffer,
    /// Made when it is needed.
    pipe: Option<Pipe>,
    reply: Reply,
    channel: u16,
    thread: u16,
    serving: Serving,
}

impl<F: FileSystem> Session<F> {
    /// Reads and serves until the mount ends or the pool needs the thread no more.
    pub fn work(&self, pool: &Arc<Pool>, thread: u16) {
        let serving = Serving::default();
        let (waits, interrupts) = (serving.clone(), Arc::clone(&self.interrupts));
        bivouac_client::on_block(Some(Rc::new(move || {
            interrupts.waits(&waits, thread);
            about_to_block();
        })));
        let buffer = Buffer::new(self.negotiated.max_write as usize);
        let channel = self.state.channel(thread);
        let mut desk = Desk { buffer, pipe: None, reply: Reply::default(), channel, thread, serving };
        while pool.obtain(thread) {
            if !self.serve_while_permitted(pool, &mut desk) {
                pool.close();
            }
        }
    }

    /// Whether the mount goes on.
    fn serve_while_permitted(&self, pool: &Arc<Pool>, desk: &mut Desk) -> bool {
        while Pool::holds_permit() {
            let Some(received) = pool.read(|| self.channel.receive(&mut desk.buffer)) else { break };
            match received {
                Ok(Some(len)) => self.serve(desk, len),
                Ok(None) => return false,
                Err(error) => {
                    self.failure.lock().get_or_insert(error);
                    return false;
                }
            }
        }
        true
    }

    fn serve(&self, desk: &mut Desk, len: usize) {
        let Ok((header, _)) = Header::split(desk.buffer.request(len)) else {
            log::error!(
                "a request of {len} bytes on the FUSE device has no whole header; it stays unanswered"
            );
            return;
        };
        let Some(op) = Opcode::from_number(header.opcode) else {
            return self.channel.reply_error(header.unique, Errno::ENOSYS);
        };
        self.stats.count(op);
        if op.is_waited_for() {
            self.cached_attrs.hears_from(header.pid);
        }
        let noted = op.expects_reply() && self.note_in_flight(desk.channel, header.id());
        self.interrupts.begin(&desk.serving, &header, op);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(desk, len, &header, op)));
        let outcome = outcome.unwrap_or_else(|_| Err(FsError::with(Errno::EIO, "bug: the request panicked")));
        if self.interrupts.end(&desk.serving, desk.thread, op) {
            self.conclude(desk, &header, op, &outcome);
        } else {
            self.send(desk, &header, op, outcome);
        }
        if noted {
            self.note_in_flight(desk.channel, 0);
        }
    }

    /// Where the kernel cannot send unanswered requests again, the next incarnation must know them to
    /// fail them. Says whether that is so.
    fn note_in_flight(&self, channel: u16, unique: u64) -> bool {
        let needed = !self.negotiated.has(flags::init::HAS_RESEND);
        if needed && let Err(error) = self.state.set_in_flight(channel, unique) {
            log::warn!(why:% = error; "the state of the mount cannot be written");
        }
        needed
    }

    /// Notes a request that is answered by another thread later, where the next incarnation must know it as
    /// above.
    ///
    /// # Errors
    /// `ENOLCK` when there are too many of them.
    pub fn park(&self, unique: u64) -> FsResult<Option<Place>> {
        if self.negotiated.has(flags::init::HAS_RESEND) {
            return Ok(None);
        }
        self.parked.park(unique).map(Some)
    }

    fn answer(&self, desk: &mut Desk, len: usize, header: &Header, op: Opcode) -> FsResult<Answer> {
        let (header_in, body) = Header::split(desk.buffer.request(len))?;
        debug_assert_eq!(header_in.unique, header.unique);
        desk.reply.clear();
        bivouac_client::on_behalf_of(header.pid, caller::process);
        let mut input = Reader::new(body);
        if op == Opcode::Read {
            let request = serve::ReadIn::decode(&mut input)?;
            if request.size >= SENT_MIN
                && let Some(answer) = serve::send(self, header, &request, &mut desk.pipe)
            {
                return answer;
            }
            return serve::read(self, header, &request, &mut desk.buffer);
        }
        let (channel, out) = (desk.channel, &mut desk.reply);
        let call = Call { session: self, header: *header, channel, input, out };
        serve::handler(op)(call)
            .map_err(|error| if serve::is_gone(op, &error) { Errno::ESTALE.into() } else { error })
    }

    /// A request was done whose program has been killed meanwhile, and was told so. The kernel knows of no file that it
    /// opened, and will not close it.
    fn conclude(&self, desk: &Desk, header: &Header, op: Opcode, outcome: &FsResult<Answer>) {
        let opens = matches!(op, Opcode::Open | Opcode::Create | Opcode::TmpFile);
        // The handle comes first in what every such answer ends with.
        let opened = desk.reply.as_bytes().last_chunk::<16>().and_then(|opened| opened.first_chunk());
        if let (true, Ok(Answer::Reply), Some(handle)) = (opens, outcome, opened) {
            match self.opens.remove(&self.state, Handle(u64::from_ne_bytes(*handle))) {
                Ok(ino) => ino.into_iter().for_each(|ino| self.fs.close(ino)),
                Err(error) => {
                    log::warn!(why:% = error; "a file that a killed program was opening stays open")
                }
            }
        }
        log::info!("{} of inode {:016x} was done for a program that was killed", op.name(), header.nodeid);
        if let Err(error) = self.channel.forget_attributes(header.nodeid) {
            log::debug!(why:% = error; "the kernel may show old attributes of {:016x} for a moment", header.nodeid);
        }
    }

    fn send(&self, desk: &Desk, header: &Header, op: Opcode, outcome: FsResult<Answer>) {
        match outcome {
            _ if !op.expects_reply() => {}
            Ok(Answer::Nothing | Answer::Sent) => {}
            Ok(Answer::Reply) => self.channel.reply(header.unique, desk.reply.as_bytes()),
            Ok(Answer::Payload(len)) => self.channel.reply(header.unique, desk.buffer.payload(len)),
            Ok(Answer::Unsupported) => self.channel.reply_error(header.unique, Errno::ENOSYS),
            Err(error) => {
                warn_of(&error, op, header.nodeid);
                self.channel.reply_error(header.unique, for_the_kernel(error.errno()));
            }
        }
    }
}

/// A single `ENOSYS` would make the kernel stop asking for good.
pub fn for_the_kernel(errno: Errno) -> Errno {
    if errno == Errno::ENOSYS { Errno::EOPNOTSUPP } else { errno }
}

/// Errors that say something about the formation rather than about the request.
fn warn_of(error: &FsError, op: Opcode, nodeid: u64) {
    let grave = matches!(error.errno(), Errno::EIO | Errno::ETIMEDOUT | Errno::ENOTCONN | Errno::EPROTO);
    if grave {
        log::warn!(why:% = error; "{} of inode {nodeid:016x}", op.name());
    }
}
