//! Sockets, event counters and epoll sets of the simulated hosts, and what is under way between them.
//!
//! A connection carries bytes in order, as TCP does: nothing is lost or doubled, but what a cut stops comes late, in pieces of
//! any size, or never, when the sender has given up meanwhile. A half-open connection has ended for one of its ends alone: what
//! that end has sent before may still arrive, and the other end is told nothing for a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::sched::{Event, Kernel, Lie, Process};

/// First descriptor that is no real one.
pub const FIRST_FD: i32 = 1 << 20;
/// How long a sender repeats what is not confirmed before its connection ends.
const UNCONFIRMED_NS: u64 = 15_000_000_000;
/// How often what a cut stops is sent again.
const REPEAT_NS: u64 = 200_000_000;

/// Where a socket is bound to: address and port.
pub type Place = (u32, u16);

pub enum Object {
    Fresh {
        bound: Option<Place>,
    },
    Stream {
        conn: usize,
        end: usize,
    },
    Listener {
        at: Place,
        backlog: VecDeque<usize>,
    },
    Epoll(Vec<Watched>),
    Counter(u64),
    /// Nobody has it any more.
    Gone,
}

pub struct Watched {
    pub fd: i32,
    pub object: usize,
    pub data: u64,
    pub events: u32,
    pub armed: bool,
}

/// What belongs to an open socket, not to a descriptor.
#[derive(Clone, Copy, Default)]
pub struct Settings {
    pub nonblocking: bool,
    pub receive_ns: u64,
    pub send_ns: u64,
    /// Whether somebody looks if the other side is still there, after how long, how often and how many times.
    pub keeps_alive: bool,
    pub idle_ns: u64,
    pub interval_ns: u64,
    pub looks: u64,
}

pub struct Open {
    pub object: Object,
    pub settings: Settings,
    references: usize,
}

#[derive(Clone, Copy)]
pub struct Descriptor {
    pub object: usize,
    owner: Process,
}

struct Segment {
    at: u64,
    sent: u64,
    /// None ends the stream.
    bytes: Option<Vec<u8>>,
    reset: bool,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    under_way: VecDeque<Segment>,
    under_way_bytes: usize,
    ready: VecDeque<u8>,
    ended: bool,
}

#[derive(Default)]
struct End {
    host: u32,
    place: Place,
    closed: bool,
    shut: bool,
    /// Nothing leaves this end or reaches it any more.
    cut_off: bool,
    error: Option<i32>,
}

struct Conn {
    ends: [End; 2],
    /// From the end of this number to the other.
    ways: [Way; 2],
    established: bool,
}

#[derive(Default)]
pub struct Net {
    pub descriptors: BTreeMap<i32, Descriptor>,
    pub objects: Vec<Open>,
    conns: Vec<Conn>,
    pub cuts: BTreeSet<(u32, u32)>,
    /// Real descriptors and who opened them.
    pub real: BTreeMap<i32, Process>,
    next_port: u16,
}

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

impl Net {
    pub fn add(&mut self, object: Object, settings: Settings, owner: Process) -> i32 {
        self.objects.push(Open { object, settings, references: 0 });
        self.give(self.objects.len() - 1, owner)
    }

    /// Another descriptor of an object.
    pub fn give(&mut self, object: usize, owner: Process) -> i32 {
        self.objects[object].references += 1;
        let free = (FIRST_FD..).find(|fd| !self.descriptors.contains_key(fd)).unwrap_or(i32::MAX);
        self.descriptors.insert(free, Descriptor { object, owner });
        free
    }

    pub fn open(&mut self, fd: i32) -> Option<&mut Open> {
        let object = self.descriptors.get(&fd)?.object;
        self.objects.get_mut(object)
    }

    pub fn readiness(&self, fd: i32) -> u32 {
        self.descriptors.get(&fd).map_or(ERR | HUP, |descriptor| self.readiness_of(descriptor.object))
    }

    fn readiness_of(&self, object: usize) -> u32 {
        match &self.objects[object].object {
            Object::Stream { conn, end } => {
                let conn = &self.conns[*conn];
                let (own, to, from) = (&conn.ends[*end], &conn.ways[*end], &conn.ways[1 - *end]);
                let mut events = 0;
                if own.error.is_some() {
                    return IN | OUT | RDHUP | HUP | ERR;
                }
                if !from.ready.is_empty() || from.ended {
                    events |= IN;
                }
                if from.ended || own.shut {
                    events |= RDHUP;
                }
                if from.ended && own.shut {
                    events |= HUP;
                }
                if conn.established && to.under_way_bytes + to.ready.len() < usize::MAX / 2 {
                    events |= OUT;
                }
                events
            }
            Object::Listener { backlog, .. } if !backlog.is_empty() => IN,
            Object::Counter(count) if *count > 0 => IN | OUT,
            Object::Counter(_) => OUT,
            Object::Fresh { .. } => OUT | HUP,
            _ => 0,
        }
    }

    /// As it is for who sends: room is looked at, too.
    pub fn room(&self, conn: usize, end: usize, max: usize) -> usize {
        let way = &self.conns[conn].ways[end];
        max.saturating_sub(way.under_way_bytes + way.ready.len())
    }

    pub fn has_event(&self, epoll: i32) -> bool {
        let object = self.descriptors.get(&epoll).map(|descriptor| descriptor.object);
        let Some(Object::Epoll(watched)) = object.map(|object| &self.objects[object].object) else {
            return true;
        };
        watched.iter().any(|entry| entry.armed && self.fires(entry) != 0)
    }

    fn fires(&self, entry: &Watched) -> u32 {
        self.readiness_of(entry.object) & (entry.events | HUP | ERR)
    }

    /// One event of an epoll set, from a place of its list on.
    pub fn take_event(&mut self, epoll: i32, from: usize) -> Option<(u32, u64)> {
        let object = self.descriptors.get(&epoll)?.object;
        let Object::Epoll(watched) = &self.objects[object].object else { return None };
        let len = watched.len();
        let at = (0..len)
            .map(|at| (at + from) % len)
            .find(|at| watched[*at].armed && self.fires(&watched[*at]) != 0)?;
        let events = self.fires(&watched[at]);
        let Object::Epoll(watched) = &mut self.objects[object].object else { return None };
        let entry = &mut watched[at];
        if entry.events & ONESHOT != 0 {
            entry.armed = false;
        }
        Some((events, entry.data))
    }

    pub fn epoll_len(&self, epoll: i32) -> usize {
        let object = self.descriptors.get(&epoll).map(|descriptor| descriptor.object);
        match object.map(|object| &self.objects[object].object) {
            Some(Object::Epoll(watched)) => watched.len(),
            _ => 0,
        }
    }

    pub fn listener_at(&self, place: Place) -> Option<usize> {
        self.objects
            .iter()
            .position(|open| matches!(&open.object, Object::Listener { at, .. } if *at == place))
    }

    pub fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.wrapping_add(1);
        32768 + self.next_port % 28000
    }

    /// The address of an end of a connection: the own one, or the other's.
    pub fn place_of(&self, conn: usize, end: usize) -> Place {
        self.conns[conn].ends[end].place
    }

    pub fn error_of(&mut self, conn: usize, end: usize) -> Option<i32> {
        self.conns[conn].ends[end].error
    }

    pub fn is_established(&self, conn: usize) -> bool {
        self.conns[conn].established
    }

    pub fn is_shut(&self, conn: usize, end: usize) -> bool {
        self.conns[conn].ends[end].shut
    }

    /// After how long an end notices that the other one is gone without a word; never, if nobody looks.
    fn notices_after(&self, conn: usize, end: usize) -> Option<u64> {
        let is_it = |open: &&Open| matches!(&open.object, Object::Stream { conn: c, end: e } if (*c, *e) == (conn, end));
        let settings = self.objects.iter().find(is_it)?.settings;
        settings.keeps_alive.then_some(settings.idle_ns + settings.interval_ns * settings.looks)
    }

    /// Bytes that are there to be read, and whether there will be no more.
    pub fn readable(&self, conn: usize, end: usize) -> (usize, bool) {
        let way = &self.conns[conn].ways[1 - end];
        (way.ready.len(), way.ended)
    }

    pub fn read(&mut self, conn: usize, end: usize, len: usize) -> Vec<u8> {
        let ready = &mut self.conns[conn].ways[1 - end].ready;
        ready.drain(..len.min(ready.len())).collect()
    }

    pub fn peek(&self, conn: usize, end: usize, len: usize) -> Vec<u8> {
        self.conns[conn].ways[1 - end].ready.iter().take(len).copied().collect()
    }
}

impl Kernel {
    fn way_ns(&mut self, from: u32, to: u32) -> u64 {
        let (least, most) = self.latency_us;
        if from == to {
            return self.chance.within(1000, 10_000);
        }
        // Seldom, something else is in the way.
        let more = if self.chance.one_in(64) { 20 } else { 1 };
        self.chance.within(least * 1000, most * 1000 * more)
    }

    /// Begins to connect: the connection, whose first end is the asker's.
    pub fn connect(&mut self, to: Place) -> usize {
        let (host, there) = (self.host(), to.0 & 0xff);
        let port = self.net.free_port();
        let ends = [
            End { host, place: (0x0a00_0000 | host, port), ..End::default() },
            End { host: there, place: to, closed: true, ..End::default() },
        ];
        self.net.conns.push(Conn { ends, ways: Default::default(), established: false });
        let conn = self.net.conns.len() - 1;
        let at = self.now + self.way_ns(host, there);
        self.at(at, Event::Syn { conn });
        conn
    }

    pub fn send(&mut self, conn: usize, end: usize, bytes: Option<Vec<u8>>, reset: bool) {
        if self.net.conns[conn].ends[end].cut_off {
            return;
        }
        let (from, to) = (self.net.conns[conn].ends[end].host, self.net.conns[conn].ends[1 - end].host);
        let earliest = self.now + self.way_ns(from, to);
        let sent = self.now;
        let way = &mut self.net.conns[conn].ways[end];
        let at = way.under_way.back().map_or(earliest, |last| last.at.max(earliest));
        way.under_way_bytes += bytes.as_ref().map_or(0, Vec::len);
        way.under_way.push_back(Segment { at, sent, bytes, reset });
        self.at(at, Event::Arrive { conn, from: end });
    }

    /// Leaves each connection between two hosts half open: it ends for `from`, and `to` notices that after this time. Of what
    /// `from` has sent and has not arrived some may be lost, and the rest arrives within the time.
    pub fn leave_half_open(&mut self, from: u32, to: u32, unnoticed_ns: u64) {
        for conn in 0..self.net.conns.len() {
            let ends = &self.net.conns[conn].ends;
            let is_open = |end: &End| !end.closed && end.error.is_none() && !end.cut_off;
            let Some(end) = (0..2).find(|end| (ends[*end].host, ends[1 - *end].host) == (from, to)) else {
                continue;
            };
            if !self.net.conns[conn].established || !ends.iter().all(is_open) {
                continue;
            }
            let own = &mut self.net.conns[conn].ends[end];
            (own.cut_off, own.error) = (true, Some(libc::ECONNRESET));
            let count = self.net.conns[conn].ways[end].under_way.len();
            let kept = self.chance.below(count as u64 + 1) as usize;
            let late = self.now + self.chance.below(unnoticed_ns);
            let way = &mut self.net.conns[conn].ways[end];
            way.under_way.truncate(kept);
            // An end of the stream tells that there was one.
            way.under_way.retain(|segment| segment.bytes.is_some());
            way.under_way.iter_mut().for_each(|segment| segment.at = segment.at.max(late));
            way.under_way_bytes = way.under_way.iter().flat_map(|s| &s.bytes).map(Vec::len).sum();
            let latest = way.under_way.back().map_or(late, |segment| segment.at);
            self.at(latest, Event::Arrive { conn, from: end });
            self.at(self.now + unnoticed_ns, Event::Noticed { conn, end: 1 - end });
        }
    }

    pub fn shut(&mut self, conn: usize, end: usize) {
        if !self.net.conns[conn].ends[end].shut {
            self.net.conns[conn].ends[end].shut = true;
            self.send(conn, end, None, false);
        }
    }

    /// No descriptor of this end is open any more.
    fn close_end(&mut self, conn: usize, end: usize) {
        let own = &mut self.net.conns[conn].ends[end];
        own.closed = true;
        if self.lies(Lie::HiddenEnds, 1) {
            return;
        }
        let unread = !self.net.conns[conn].ways[1 - end].ready.is_empty();
        if unread {
            self.net.conns[conn].ends[end].shut = true;
            self.send(conn, end, None, true);
        } else {
            self.shut(conn, end);
        }
    }

    pub fn close(&mut self, fd: i32) {
        let Some(Descriptor { object, .. }) = self.net.descriptors.remove(&fd) else { return };
        let open = &mut self.net.objects[object];
        open.references -= 1;
        if open.references > 0 {
            return;
        }
        let was = std::mem::replace(&mut open.object, Object::Gone);
        for open in &mut self.net.objects {
            if let Object::Epoll(watched) = &mut open.object {
                watched.retain(|entry| entry.object != object);
            }
        }
        match was {
            Object::Stream { conn, end } => self.close_end(conn, end),
            Object::Listener { backlog, .. } => backlog.into_iter().for_each(|conn| {
                self.net.conns[conn].ends[1].closed = true;
                self.send(conn, 1, None, true);
            }),
            _ => {}
        }
    }
}

/// All that a process has open is closed.
pub fn close_all(kernel: &mut Kernel, process: Process) {
    let own = |(fd, descriptor): (&i32, &Descriptor)| (descriptor.owner == process).then_some(*fd);
    let simulated: Vec<i32> = kernel.net.descriptors.iter().filter_map(own).collect();
    simulated.into_iter().for_each(|fd| kernel.close(fd));
    let real: Vec<i32> =
        kernel.net.real.iter().filter_map(|(fd, owner)| (*owner == process).then_some(*fd)).collect();
    for fd in real {
        kernel.net.real.remove(&fd);
        crate::calls::raw::close(fd);
    }
}

/// Something arrives.
pub fn happen(kernel: &mut Kernel, event: Event) {
    match event {
        Event::Syn { conn } => syn(kernel, conn),
        Event::Accepted { conn } => {
            let (from, to) = hosts(kernel, conn, 1);
            if kernel.net.cuts.contains(&(from, to)) {
                let at = kernel.now + REPEAT_NS;
                kernel.at(at, Event::Accepted { conn });
            } else {
                kernel.net.conns[conn].established = true;
            }
        }
        Event::Arrive { conn, from } => arrive(kernel, conn, from),
        Event::Noticed { conn, end } => {
            kernel.net.conns[conn].ends[end].error.get_or_insert(libc::ETIMEDOUT);
        }
        Event::Timer { .. } => {}
    }
}

fn hosts(kernel: &Kernel, conn: usize, end: usize) -> (u32, u32) {
    let ends = &kernel.net.conns[conn].ends;
    (ends[end].host, ends[1 - end].host)
}

fn syn(kernel: &mut Kernel, conn: usize) {
    if kernel.net.conns[conn].ends[0].closed {
        return;
    }
    let (from, to) = hosts(kernel, conn, 0);
    if kernel.net.cuts.contains(&(from, to)) {
        let at = kernel.now + REPEAT_NS;
        kernel.at(at, Event::Syn { conn });
        return;
    }
    let back = kernel.now + kernel.way_ns(to, from);
    let place = kernel.net.conns[conn].ends[1].place;
    match kernel.net.listener_at(place) {
        Some(listener) => {
            if let Object::Listener { backlog, .. } = &mut kernel.net.objects[listener].object {
                backlog.push_back(conn);
            }
            kernel.net.conns[conn].ends[1].closed = false;
            kernel.at(back, Event::Accepted { conn });
        }
        None => kernel.net.conns[conn].ends[0].error = Some(libc::ECONNREFUSED),
    }
}

fn arrive(kernel: &mut Kernel, conn: usize, from: usize) {
    let (host, to) = hosts(kernel, conn, from);
    let is_cut_off = kernel.net.conns[conn].ends[1 - from].cut_off;
    let (now, cut) = (kernel.now, is_cut_off || kernel.net.cuts.contains(&(host, to)));
    let Some(first) = kernel.net.conns[conn].ways[from].under_way.front() else { return };
    if first.at > now {
        return;
    }
    if cut {
        if now.saturating_sub(first.sent) > UNCONFIRMED_NS {
            // The sender gives up; the other side hears nothing of it.
            let way = &mut kernel.net.conns[conn].ways[from];
            (way.under_way_bytes, _) = (0, way.under_way.clear());
            kernel.net.conns[conn].ends[from].error.get_or_insert(libc::ETIMEDOUT);
            if let Some(time) = kernel.net.notices_after(conn, 1 - from) {
                kernel.at(now + time, Event::Noticed { conn, end: 1 - from });
            }
        } else {
            let at = now + REPEAT_NS + kernel.chance.below(REPEAT_NS);
            kernel.net.conns[conn].ways[from]
                .under_way
                .iter_mut()
                .for_each(|segment| segment.at = segment.at.max(at));
            kernel.at(at, Event::Arrive { conn, from });
        }
        return;
    }
    while let Some(segment) = {
        let way = &mut kernel.net.conns[conn].ways[from];
        way.under_way.pop_front_if(|segment| segment.at <= now)
    } {
        let target = &mut kernel.net.conns[conn];
        target.ways[from].under_way_bytes -= segment.bytes.as_ref().map_or(0, Vec::len);
        let is_gone = target.ends[1 - from].closed || target.ends[1 - from].error.is_some();
        match segment.bytes {
            _ if segment.reset => {
                target.ends[1 - from].error.get_or_insert(libc::ECONNRESET);
            }
            Some(_) if is_gone => kernel.send(conn, 1 - from, None, true),
            Some(bytes) => target.ways[from].ready.extend(bytes),
            None => target.ways[from].ended = true,
        }
    }
}
