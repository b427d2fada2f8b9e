//! Threads that take pieces from one queue.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::health::{self, Choice, Health};
use super::near::Near;
use super::{BUFFER, Fetched, Order, Wanted, Watch, digest_of, interrupted, tag};
use crate::digest::Hasher;
use crate::error::{Cause, PublishError, PublishResult};
use crate::holder::{Access, Readers, Trouble};
use crate::manifest::Item;
use crate::target::{Spot, Target};

/// How often a thread that waits looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Files of so many pieces are asked about first: who has which of them.
const NEAR_FROM: usize = 4;
/// So many pieces are looked at for one that an idle holder has itself, and that holder may have so many more to do than the
/// idlest.
const NEAR_AMONG: usize = 256;
const NEAR_BUSIER: u32 = 1;
/// Most failures that are told one by one.
const FAILURES_MAX: usize = 20;

/// A file that is being fetched.
struct Open {
    number: usize,
    spot: Spot,
    file: File,
    left: AtomicUsize,
    /// Once that is known, if it ever is.
    near: OnceLock<Near>,
    /// Whether it was given up.
    failed: AtomicBool,
}

/// A piece that is missing.
struct Piece {
    open: Arc<Open>,
    index: usize,
    /// Why the last holder did not give it.
    why: Option<String>,
}

struct Queue {
    pieces: VecDeque<Piece>,
    files: VecDeque<usize>,
    busy: usize,
    health: Vec<Health>,
    done: u64,
    failures: Vec<String>,
}

/// What is being fetched, and by whom.
pub struct Work<'a> {
    order: &'a Order,
    target: &'a Target,
    readers: &'a Readers<'a>,
    watch: &'a dyn Watch,
    cancel: &'a AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
    moved: AtomicU64,
}

/// What a thread does next.
enum Step {
    Prepare(usize),
    Fetch(Piece, usize, String),
    GiveUp(Piece),
    End,
}

impl<'a> Work<'a> {
    /// Of files that are missing, by their number.
    pub fn new(
        order: &'a Order,
        target: &'a Target,
        readers: &'a Readers<'a>,
        watch: &'a dyn Watch,
        cancel: &'a AtomicBool,
        missing: Vec<usize>,
    ) -> Work<'a> {
        let health = order.holders.iter().map(|_| Health::default()).collect();
        let (pieces, failures) = (VecDeque::new(), Vec::new());
        let queue = Mutex::new(Queue { pieces, files: missing.into(), busy: 0, health, done: 0, failures });
        Work {
            order,
            target,
            readers,
            watch,
            cancel,
            queue,
            changed: Condvar::new(),
            moved: AtomicU64::new(0),
        }
    }

    /// Works until nothing is left to do: one thread.
    pub fn run(&self) {
        loop {
            let outcome = match self.next() {
                Step::End => return,
                Step::Prepare(number) => self.prepare(number),
                Step::Fetch(piece, holder, url) => self.fetch(piece, holder, &url),
                Step::GiveUp(piece) => Err(self.gave_up(&piece)),
            };
            let mut queue = self.queue.lock();
            queue.busy -= 1;
            queue.failures.extend(outcome.err());
            self.changed.notify_all();
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Step {
        let mut queue = self.queue.lock();
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return Step::End;
            }
            let now = Instant::now();
            if let Some(step) = self.choose(&mut queue, now) {
                queue.busy += 1;
                return step;
            }
            if queue.pieces.is_empty() && queue.files.is_empty() && queue.busy == 0 {
                self.changed.notify_all();
                return Step::End;
            }
            self.changed.wait_for(&mut queue, LOOK_EVERY);
        }
    }

    /// The first piece that somebody can be asked at once, or the next file.
    fn choose(&self, queue: &mut Queue, now: Instant) -> Option<Step> {
        if let Some(step) = self.choose_near(queue, now) {
            return Some(step);
        }
        for _ in 0..queue.pieces.len() {
            let piece = queue.pieces.pop_front()?;
            if piece.open.failed.load(Ordering::Relaxed) {
                continue;
            }
            let places = self.order.files.get(piece.open.number).map_or(&[][..], |wanted| &wanted.places);
            match health::choose(&queue.health, places, piece.open.number, now) {
                Choice::Ask(holder, url) => {
                    queue.health.get_mut(holder)?.begin();
                    return Some(Step::Fetch(piece, holder, url));
                }
                Choice::Wait => queue.pieces.push_back(piece),
                Choice::Nobody => return Some(Step::GiveUp(piece)),
            }
        }
        // As few files as possible are open: a new one only where nothing of the others can be had.
        // Of each that waits a piece is in the queue, so these are few even if all holders rest.
        let has_room = queue.pieces.len() < 2 * self.order.jobs.max(1);
        if has_room { queue.files.pop_front().map(Step::Prepare) } else { None }
    }

    /// A piece that a holder has itself which is about the idlest.
    fn choose_near(&self, queue: &mut Queue, now: Instant) -> Option<Step> {
        let Queue { pieces, health, .. } = queue;
        let of_piece = |(at, piece): (usize, &Piece)| {
            let near = piece.open.near.get().filter(|_| !piece.open.failed.load(Ordering::Relaxed))?;
            let Wanted { item, places } = self.order.files.get(piece.open.number)?;
            let holders = near.at(item.piece(piece.index).0);
            let able =
                health::idlest(health, places, piece.open.number, now, |holder| holders.contains(&holder))?;
            let idlest = health::idlest(health, places, piece.open.number, now, |_| true)?;
            (able.asked <= idlest.asked + NEAR_BUSIER).then_some((able.asked, at, able.holder, able.url))
        };
        let (_, at, holder, url) = pieces
            .iter()
            .take(NEAR_AMONG)
            .enumerate()
            .filter_map(of_piece)
            .min_by_key(|(asked, at, ..)| (*asked, *at))?;
        let url = url.to_owned();
        let piece = pieces.remove(at)?;
        health.get_mut(holder)?.begin();
        Some(Step::Fetch(piece, holder, url))
    }

    /// Who has which pieces of a file. What cannot be found out costs nothing but links.
    fn near(&self, number: usize, wanted: &Wanted) -> Option<Near> {
        if wanted.places.len() < 2 || wanted.item.piece_count() < NEAR_FROM {
            return None;
        }
        let choice = health::choose(&self.queue.lock().health, &wanted.places, number, Instant::now());
        let Choice::Ask(holder, url) = choice else { return None };
        self.note(holder, Health::begin);
        let seen = self.readers.look(&url);
        // Whether pieces come from there is found out by asking for some.
        self.note(holder, Health::end);
        Near::of(&seen.ok()??, &wanted.places)
    }

    /// Looks what of a file is there from before, and has the rest fetched.
    fn prepare(&self, number: usize) -> Result<(), String> {
        let Some(wanted) = self.order.files.get(number) else { return Ok(()) };
        let item = &wanted.item;
        let spot = self.target.spot(&item.name, &tag(item)).map_err(|error| error.to_string())?;
        let file = spot.partial().map_err(|error| error.to_string())?;
        let missing =
            self.missing_pieces(&file, item).map_err(|error| format!("{}: {error}", spot.path.display()))?;
        let left = AtomicUsize::new(missing.len());
        let (failed, near) = (AtomicBool::new(false), OnceLock::new());
        let open = Arc::new(Open { number, spot, file, left, near, failed });
        if missing.is_empty() {
            return self.complete(&open, item);
        }
        let pieces = missing.into_iter().map(|index| Piece { open: Arc::clone(&open), index, why: None });
        // Who waits for pieces takes these when it is known who has which, or when they look next: an answer that does not come
        // holds nobody up.
        self.queue.lock().pieces.extend(pieces);
        if let Some(near) = self.near(number, wanted) {
            open.near.get_or_init(|| near);
        }
        Ok(())
    }

    fn missing_pieces(&self, file: &File, item: &Item) -> io::Result<Vec<usize>> {
        let has_content = file.metadata()?.len() > 0;
        file.set_len(item.size)?;
        let mut buffer = vec![0; if has_content { BUFFER } else { 0 }];
        let mut missing = Vec::new();
        for index in 0..item.piece_count() {
            let (offset, len) = item.piece(index);
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if has_content && digest_of(file, offset, len, &mut buffer)? == item.piece_digest(index) {
                self.watch.already(len);
            } else {
                missing.push(index);
            }
        }
        Ok(missing)
    }

    /// Asks a holder for a piece, and notes how that went.
    fn fetch(&self, mut piece: Piece, holder: usize, url: &str) -> Result<(), String> {
        let Some(Wanted { item, .. }) = self.order.files.get(piece.open.number) else { return Ok(()) };
        let (offset, len) = item.piece(piece.index);
        let (mut hasher, mut at) = (Hasher::new(), offset);
        let read = self.readers.read(url, Access { offset, len, size: item.size }, &mut |bytes| {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            piece.open.file.write_all_at(bytes, at)?;
            hasher.add(bytes);
            at += bytes.len() as u64;
            self.watch.moved(bytes.len() as u64);
            Ok(())
        });
        self.moved.fetch_add(at - offset, Ordering::Relaxed);
        let why = match read {
            Ok(()) if Some(hasher.end()) == item.piece_digest(piece.index) => {
                self.note(holder, |health| health.served());
                return if piece.open.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.complete(&piece.open, item)
                } else {
                    Ok(())
                };
            }
            Ok(()) => {
                let why = format!("wrong bytes of {} (from {offset}, {len} bytes)", item.name);
                self.leave_out(holder, &why);
                why
            }
            Err(Trouble::Here(error)) => {
                self.note(holder, |health| health.end());
                let is_first = !piece.open.failed.swap(true, Ordering::Relaxed);
                let is_told = is_first && error.kind() != io::ErrorKind::Interrupted;
                let text = format!("{}: {error}", piece.open.spot.path.display());
                return if is_told { Err(text) } else { Ok(()) };
            }
            Err(Trouble::Refused(why)) => {
                self.leave_out(holder, &why);
                why
            }
            Err(Trouble::Lacks(why)) => {
                self.note(holder, |health| health.lacks(piece.open.number));
                why
            }
            Err(Trouble::Passing(why)) => {
                if self.note(holder, |health| health.failed(Instant::now())) == Some(true) {
                    self.tell_left_out(holder, &why);
                }
                why
            }
        };
        self.watch.again(at - offset);
        let name = self.order.holders.get(holder).map_or("?", String::as_str);
        piece.why = Some(format!("{name}: {why}"));
        self.queue.lock().pieces.push_front(piece);
        Ok(())
    }

    fn note<T>(&self, holder: usize, note: impl FnOnce(&mut Health) -> T) -> Option<T> {
        self.queue.lock().health.get_mut(holder).map(note)
    }

    fn leave_out(&self, holder: usize, why: &str) {
        if self.note(holder, |health| health.leave_out()) == Some(true) {
            self.tell_left_out(holder, why);
        }
    }

    fn tell_left_out(&self, holder: usize, why: &str) {
        if let Some(name) = self.order.holders.get(holder) {
            self.watch.left_out(name, why);
        }
    }

    /// Said once of each file.
    fn gave_up(&self, piece: &Piece) -> String {
        piece.open.failed.store(true, Ordering::Relaxed);
        let path = piece.open.spot.path.display();
        let why = piece.why.as_deref().unwrap_or("nobody who had it is left");
        format!("{path}: nobody has it any more: {why}; what came is kept, the same command goes on")
    }

    /// Gives a file its name, all pieces of it being there.
    fn complete(&self, open: &Open, item: &Item) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", open.spot.path.display());
        // What pieces and whole say may contradict each other.
        if item.size == 0 || !item.pieces.is_empty() {
            let whole = digest_of(&open.file, 0, item.size, &mut vec![0; BUFFER]).map_err(failed)?;
            if item.digest.is_some_and(|wanted| whole != Some(wanted)) {
                let text = "its pieces are right and its SHA-256 is not: the entry contradicts itself";
                return Err(format!("{}: {text}", open.spot.path.display()));
            }
        }
        open.spot.commit(&open.file, self.order.force).map_err(|error| error.to_string())?;
        self.queue.lock().done += 1;
        self.watch.file_done(&item.name);
        Ok(())
    }

    /// What came of it, all threads having ended.
    ///
    /// # Errors
    /// Everything that did not come.
    pub fn ended(self, already: u64) -> PublishResult<Fetched> {
        let queue = self.queue.into_inner();
        if self.cancel.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if !queue.failures.is_empty() {
            let more = queue.failures.len().saturating_sub(FAILURES_MAX);
            let mut lines = queue.failures;
            lines.truncate(FAILURES_MAX);
            lines.extend((more > 0).then(|| format!("and {more} more")));
            return Err(PublishError::new(Cause::Unreachable, lines.join("\n")));
        }
        let named = self.order.holders.iter().zip(&queue.health);
        let pieces =
            named.map(|(name, health)| (name.clone(), health.pieces())).filter(|(_, pieces)| *pieces > 0);
        let (files, moved) = (already + queue.done, self.moved.into_inner());
        Ok(Fetched { files, already, moved, pieces: pieces.collect() })
    }
}
