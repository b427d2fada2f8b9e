//! A thread of a mount: it reads requests, serves them and answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bivouac_types::{Errno, FsError, FsResult, Ino};

use crate::abi::{Header, Opcode, Reader, Reply, flags};
use crate::caller;
use crate::channel::Buffer;
use crate::fs::FileSystem;
use crate::interrupts::CurrentRequest;
use crate::opens::Handle;
use crate::pipe::Pipe;
use crate::pool::{Pool, about_to_block};
use crate::serve::{self, Answer, Call};
use crate::session::{Session, for_the_kernel, warn_of};

/// Size in bytes from which reads are sent straight from local files; below, a copy costs less.
const SENT_MIN: u32 = 32 << 10;

/// A thread of a mount with its buffers.
pub struct Worker<'a, F> {
    session: &'a Session<F>,
    buffer: Buffer,
    /// Made when it is needed.
    pipe: Option<Pipe>,
    reply: Reply,
    channel: u16,
    thread: u16,
    current: CurrentRequest,
}

impl<'a, F: FileSystem> Worker<'a, F> {
    /// Creates a worker for the calling thread, of this number in the pool.
    pub fn new(session: &'a Session<F>, thread: u16) -> Worker<'a, F> {
        let current = CurrentRequest::default();
        let (waits, interrupts) = (current.clone(), Arc::clone(&session.interrupts));
        bivouac_client::on_block(Some(Rc::new(move || {
            interrupts.waits(&waits, thread);
            about_to_block();
        })));
        Worker {
            session,
            buffer: Buffer::new(session.negotiated.max_write as usize),
            pipe: None,
            reply: Reply::default(),
            channel: session.state.channel(thread),
            thread,
            current,
        }
    }

    /// Reads and serves until the mount ends or the pool needs the thread no more.
    pub fn run(&mut self, pool: &Arc<Pool>) {
        while pool.obtain(self.thread) {
            if !self.serve_while_permitted(pool) {
                pool.close();
            }
        }
    }

    /// Returns whether the mount goes on.
    fn serve_while_permitted(&mut self, pool: &Arc<Pool>) -> bool {
        while Pool::holds_permit() {
            let Some(received) = pool.read(|| self.session.channel.receive(&mut self.buffer)) else { break };
            match received {
                Ok(Some(len)) => self.serve(len),
                Ok(None) => return false,
                Err(error) => {
                    self.session.failure.lock().get_or_insert(error);
                    return false;
                }
            }
        }
        true
    }

    fn serve(&mut self, len: usize) {
        let Ok((header, _)) = Header::split(self.buffer.request(len)) else {
            log::error!(
                "a request of {len} bytes on the FUSE device has no whole header; it stays unanswered"
            );
            return;
        };
        let Some(op) = Opcode::from_number(header.opcode) else {
            // A kernel that is newer than this: it does without the operation from then on.
            return self.session.channel.reply_error(header.unique, Errno::ENOSYS);
        };
        self.session.stats.count(op);
        if op.is_waited_for() {
            self.session.cached_attrs.hears_from(header.pid);
            // A cut looks for itself.
            if op != Opcode::SetAttr {
                self.session.failed_writes.take(header.pid, Ino(header.nodeid));
            }
        }
        let _release = (op == Opcode::Release).then(|| self.session.releases.begin());
        // Before it is served: whatever has been begun is failed by the next daemon, rather than left.
        let noted = op.expects_reply() && self.session.note_in_flight(self.channel, header.id());
        self.session.interrupts.begin(&self.current, &header, op);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(len, &header, op)));
        let outcome = outcome.unwrap_or_else(|_| Err(FsError::with(Errno::EIO, "bug: the request panicked")));
        let looks_again = outcome.as_ref().is_err_and(|error| error.errno() == Errno::ESTALE);
        // Before the answer: the next request of its thread may come at once, and what that finds is held for it alone.
        let over = match op.is_waited_for() && !looks_again {
            true => self.session.held_lookups.served(header.pid, op, Instant::now()),
            false => Vec::new(),
        };
        // Decided before the answer: of this and the watcher one answers, under the lock of the request's place.
        if self.session.interrupts.end(&self.current, self.thread, op) {
            self.conclude(&header, op, &outcome);
        } else {
            self.send(&header, op, outcome);
        }
        over.into_iter().for_each(|ino| self.session.fs.close_open(ino, 0));
        if noted {
            self.session.note_in_flight(self.channel, 0);
        }
    }

    fn answer(&mut self, len: usize, header: &Header, op: Opcode) -> FsResult<Answer> {
        let (header_in, body) = Header::split(self.buffer.request(len))?;
        assert_eq!(
            header_in.unique, header.unique,
            "the buffer has another request than the one that is served"
        );
        // Also what a request has left that panicked.
        self.reply.clear();
        bivouac_client::on_behalf_of(header.pid, caller::process);
        let mut input = Reader::new(body);
        if op == Opcode::Read {
            let request = serve::ReadIn::decode(&mut input)?;
            if request.read_flags & flags::READ_LOCKOWNER == 0 {
                // Before the content is read, so that a write which ends later drops the page.
                self.session.page_cache.note_read(Ino(header.nodeid));
                self.session.laminated_pages.note_read(Handle(request.fh));
            }
            if request.size >= SENT_MIN
                && let Some(answer) = serve::send(self.session, header, &request, &mut self.pipe)
            {
                return answer;
            }
            return serve::read(self.session, header, &request, &mut self.buffer);
        }
        let (channel, out) = (self.channel, &mut self.reply);
        let call = Call { session: self.session, header: *header, channel, input, out };
        serve::handler(op)(call).map_err(|error| {
            if !serve::is_gone(op, &error) {
                return error;
            }
            let place = self.session.looked_up.place(header.pid, Ino(header.nodeid));
            self.session.held_lookups.note_stale(header.pid, place, Instant::now());
            Errno::ESTALE.into()
        })
    }

    /// Undoes what a request has opened whose program has been killed meanwhile, and was told so. The kernel knows of
    /// no file that it opened, and will not close it.
    fn conclude(&self, header: &Header, op: Opcode, outcome: &FsResult<Answer>) {
        let opens = matches!(op, Opcode::Open | Opcode::Create | Opcode::TmpFile);
        // The handle comes first in what every such answer ends with.
        let opened = self.reply.as_bytes().last_chunk::<16>().and_then(|opened| opened.first_chunk());
        if let (true, Ok(Answer::Reply), Some(handle)) = (opens, outcome, opened) {
            let handle = Handle(u64::from_ne_bytes(*handle));
            self.session.laminated_pages.close(handle);
            match self.session.opens.remove(&self.session.state, handle) {
                Ok(open) => {
                    open.into_iter().for_each(|(ino, flags)| self.session.fs.close_open(ino, flags));
                }
                Err(error) => {
                    log::warn!(why:% = error; "a file that a killed program was opening stays open")
                }
            }
        }
        log::info!("{} of inode {:016x} was done for a program that was killed", op.name(), header.nodeid);
        if let Err(error) = self.session.channel.forget_attributes(header.nodeid) {
            log::debug!(why:% = error; "the kernel may show old attributes of {:016x} for a moment", header.nodeid);
        }
    }

    fn send(&self, header: &Header, op: Opcode, outcome: FsResult<Answer>) {
        match outcome {
            _ if !op.expects_reply() => {}
            Ok(Answer::Nothing | Answer::Sent) => {}
            Ok(Answer::Reply) => self.session.channel.reply(header.unique, self.reply.as_bytes()),
            Ok(Answer::Payload(len)) => self.session.channel.reply(header.unique, self.buffer.payload(len)),
            Ok(Answer::Unsupported) => self.session.channel.reply_error(header.unique, Errno::ENOSYS),
            Err(error) => {
                warn_of(&error, op, header.nodeid);
                self.session.channel.reply_error(header.unique, for_the_kernel(error.errno()));
            }
        }
    }
}
