//! A request and its answer, carried on without waiting, so that one thread can do so with many.

use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_wire::{Frame, FrameChecksum, FrameProtection};
use rustix::event::PollFlags;

use crate::connection::Connection;
use crate::readiness::Wait;
use crate::{NetError, ReplyHead, Request, slices};

/// The progress of a request and its answer over one connection.
pub(crate) struct ExchangeProgress {
    /// The header as it is sent.
    asked: [u8; FRAME_HEADER_LEN],
    len: usize,
    sent: usize,
    /// True if all of it has left: encrypted records may wait in the channel.
    is_flushed: bool,
    header: [u8; FRAME_HEADER_LEN],
    came: usize,
    answer: Option<Answer>,
    moved: Instant,
}

/// An answer whose header has come.
struct Answer {
    frame: Frame,
    body: Vec<u8>,
    came: usize,
    summing: FrameChecksum,
}

impl ExchangeProgress {
    pub fn new(connection: &Connection, request: &Request<'_>) -> ExchangeProgress {
        let frame = &request.frame;
        ExchangeProgress {
            asked: connection.header(request),
            len: FRAME_HEADER_LEN + frame.body_len as usize + frame.payload_len as usize,
            sent: 0,
            is_flushed: false,
            header: [0; FRAME_HEADER_LEN],
            came: 0,
            answer: None,
            moved: Instant::now(),
        }
    }

    /// Returns whether the request has been given away.
    pub fn is_sent(&self) -> bool {
        self.sent == self.len && self.is_flushed
    }

    /// Returns the event that carries it on.
    pub fn wait<'a>(&self, connection: &'a Connection) -> Wait<'a> {
        let events = if self.is_sent() { PollFlags::IN } else { PollFlags::OUT };
        Wait::new(connection, events, self.moved + connection.patience())
    }

    /// Sends as much as the connection takes; whether that was all.
    pub fn send(&mut self, connection: &Connection, request: &Request<'_>) -> Result<bool, NetError> {
        self.send_some(connection, request).map_err(|error| connection.last_word(request, error))
    }

    fn send_some(&mut self, connection: &Connection, request: &Request<'_>) -> Result<bool, NetError> {
        while self.sent < self.len {
            let mut parts = Vec::with_capacity(request.payload.len() + 2);
            parts.extend([IoSlice::new(&self.asked), IoSlice::new(request.body)]);
            parts.extend_from_slice(request.payload);
            let mut rest = parts.as_mut_slice();
            IoSlice::advance_slices(&mut rest, self.sent);
            match connection.send_now(rest)? {
                Some(sent) => self.sent += sent,
                None => return Ok(false),
            }
            assert!(self.sent <= self.len, "{} of {} bytes of a request are sent", self.sent, self.len);
            self.moved = Instant::now();
        }
        if !self.is_flushed && connection.flush_now()? {
            (self.is_flushed, self.moved) = (true, Instant::now());
        }
        Ok(self.is_flushed)
    }

    /// Sends and receives what goes without waiting; the answer if it is there.
    pub fn advance(
        &mut self,
        connection: &Connection,
        request: &Request<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Option<ReplyHead>, NetError> {
        let outcome =
            if self.send(connection, request)? { self.receive(connection, request, into)? } else { None };
        // Asked last: what has arrived counts, however late this thread comes to look.
        if outcome.is_none() && self.moved.elapsed() >= connection.patience() {
            return Err(connection.timed_out());
        }
        Ok(outcome)
    }

    fn receive(
        &mut self,
        connection: &Connection,
        request: &Request<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Option<ReplyHead>, NetError> {
        while self.answer.is_none() {
            let header = self.header.get_mut(self.came..).unwrap_or_default();
            let Some(came) = connection.receive_now(&mut [IoSliceMut::new(header)])? else { return Ok(None) };
            self.came += came;
            self.moved = Instant::now();
            if self.came == FRAME_HEADER_LEN {
                let frame = connection.decode(Some(&self.header))?;
                connection.check_reply(request, &frame, slices::total_mut(into))?;
                let body = vec![0; frame.body_len as usize];
                self.answer = Some(Answer { frame, body, came: 0, summing: FrameChecksum::default() });
            }
        }
        let Some(answer) = &mut self.answer else { return Ok(None) };
        let (body_len, payload_len) = (answer.body.len(), answer.frame.payload_len as usize);
        while answer.came < body_len + payload_len {
            let (body, paid) = (answer.body.get_mut(answer.came..), answer.came.saturating_sub(body_len));
            let mut parts = Vec::with_capacity(into.len() + 1);
            parts.push(IoSliceMut::new(body.unwrap_or_default()));
            parts.extend(slices::window_mut(into, paid, payload_len - paid));
            let room = slices::total_mut(&parts);
            let Some(came) = connection.receive_now(&mut parts)? else { return Ok(None) };
            assert!(came <= room, "{came} bytes were received into {room}");
            answer.add(came, into);
            self.moved = Instant::now();
            // Fewer bytes than asked for: the socket is empty, and to ask again would cost a call that says so.
            if came < room && !connection.holds_more() {
                break;
            }
        }
        let is_whole = answer.came == body_len + payload_len;
        if is_whole {
            connection.check_seal(&answer.frame, &answer.summing)?;
        }
        Ok(is_whole.then_some(ReplyHead { status: answer.frame.status, payload_len }))
    }

    /// Returns the body of the answer that came.
    pub fn body(self) -> Vec<u8> {
        self.answer.map(|answer| answer.body).unwrap_or_default()
    }
}

impl Answer {
    /// Notes that so many bytes more have come, and sums them up while they are near.
    fn add(&mut self, came: usize, into: &mut [IoSliceMut<'_>]) {
        let (from, end) = (self.came, self.came + came);
        self.came = end;
        if self.frame.seal.protection() != FrameProtection::Sum {
            return;
        }
        let body_len = self.body.len();
        self.summing.add(self.body.get(from.min(body_len)..end.min(body_len)).unwrap_or_default());
        let (paid, until) = (from.saturating_sub(body_len), end.saturating_sub(body_len));
        slices::window_mut(into, paid, until - paid).iter().for_each(|part| self.summing.add(part));
    }
}
