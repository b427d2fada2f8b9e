//! Threads that take pieces, or parts of them, from one queue.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::health::{self, Choice, Health};
use super::near::Near;
use super::whole::Whole;
use super::{BUFFER, Fetched, Order, Wanted, Watch, digest_of, interrupted, tag};
use crate::digest::Hasher;
use crate::error::{Cause, PublishError, PublishResult};
use crate::holder::{Access, Readers, Trouble};
use crate::manifest::Item;
use crate::target::{Spot, Target};

/// How often a thread that waits looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Files of which so many pieces are missing are asked about first: who has which of them.
const NEAR_FROM: usize = 4;
/// So many parts are looked at for one that an idle holder has itself, so many are cut ahead for that, and that holder may
/// have so many more to do than the idlest.
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
    /// If that is known.
    near: Option<Near>,
    /// If that says more than the digests of pieces.
    whole: Option<Whole>,
    /// Whether it was given up.
    failed: AtomicBool,
}

/// A piece that is missing, or a part of one.
struct Part {
    open: Arc<Open>,
    /// The piece.
    index: usize,
    range: Range<u64>,
    /// How many parts of the piece are missing; of a piece that is one part it is not needed.
    left: Option<Arc<AtomicUsize>>,
    /// Why the last holder did not give it.
    why: Option<String>,
}

struct Queue {
    /// Pieces that are not cut into parts yet: of large files there would be many.
    pieces: VecDeque<(Arc<Open>, usize)>,
    parts: VecDeque<Part>,
    files: VecDeque<usize>,
    busy: usize,
    health: Vec<Health>,
    done: u64,
    failures: Vec<String>,
}

impl Queue {
    fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.parts.is_empty() && self.files.is_empty() && self.busy == 0
    }
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
    Fetch(Part, usize, String),
    GiveUp(Part),
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
        let (pieces, parts, failures) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let queue =
            Mutex::new(Queue { pieces, parts, files: missing.into(), busy: 0, health, done: 0, failures });
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
                Step::Fetch(part, holder, url) => self.fetch(part, holder, &url),
                Step::GiveUp(part) => Err(self.gave_up(&part)),
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
            if queue.is_done() {
                self.changed.notify_all();
                return Step::End;
            }
            self.changed.wait_for(&mut queue, LOOK_EVERY);
        }
    }

    /// The first part that somebody can be asked at once, or the next file.
    fn choose(&self, queue: &mut Queue, now: Instant) -> Option<Step> {
        while queue.parts.len() < NEAR_AMONG
            && let Some((open, index)) = queue.pieces.pop_front()
        {
            let wanted = self.order.files.get(open.number)?;
            queue.parts.extend(parts_of(&open, &wanted.item, index));
        }
        if let Some(step) = self.choose_near(queue, now) {
            return Some(step);
        }
        for _ in 0..queue.parts.len() {
            let part = queue.parts.pop_front()?;
            if part.open.failed.load(Ordering::Relaxed) {
                continue;
            }
            let places = self.order.files.get(part.open.number).map_or(&[][..], |wanted| &wanted.places);
            match health::choose(&queue.health, places, part.open.number, now) {
                Choice::Ask(holder, url) => {
                    queue.health.get_mut(holder)?.begin();
                    return Some(Step::Fetch(part, holder, url));
                }
                Choice::Wait => queue.parts.push_back(part),
                Choice::Nobody => return Some(Step::GiveUp(part)),
            }
        }
        // As few files as possible are open: a new one only where nothing of the others can be had.
        // Of each that waits a part is in the queue, so these are few even if all holders rest.
        let has_room = queue.parts.len() < 2 * self.order.jobs.max(1);
        if has_room { queue.files.pop_front().map(Step::Prepare) } else { None }
    }

    /// A part that a holder has itself which is about the idlest.
    fn choose_near(&self, queue: &mut Queue, now: Instant) -> Option<Step> {
        let Queue { parts, health, .. } = queue;
        let of_part = |(at, part): (usize, &Part)| {
            let near = part.open.near.as_ref().filter(|_| !part.open.failed.load(Ordering::Relaxed))?;
            let Wanted { places, .. } = self.order.files.get(part.open.number)?;
            let holders = near.at(part.range.start);
            let able =
                health::idlest(health, places, part.open.number, now, |holder| holders.contains(&holder))?;
            let idlest = health::idlest(health, places, part.open.number, now, |_| true)?;
            (able.asked <= idlest.asked + NEAR_BUSIER).then_some((able.asked, at, able.holder, able.url))
        };
        let (_, at, holder, url) = parts
            .iter()
            .take(NEAR_AMONG)
            .enumerate()
            .filter_map(of_part)
            .min_by_key(|(asked, at, ..)| (*asked, *at))?;
        let url = url.to_owned();
        let part = parts.remove(at)?;
        health.get_mut(holder)?.begin();
        Some(Step::Fetch(part, holder, url))
    }

    /// Who has which pieces of a file of which so many are missing. What cannot be found out costs nothing but links.
    fn near(&self, number: usize, wanted: &Wanted, missing: usize) -> Option<Near> {
        if wanted.places.len() < 2 || missing < NEAR_FROM {
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
        // No piece is asked for before this: of the first ones, which would come from anybody, each would go over two links
        // of servers, at the same time for everybody who fetches the file.
        let near = self.near(number, wanted, missing.len());
        // What pieces and whole say may contradict each other.
        let is_said_twice = item.digest.is_some() && (item.size == 0 || !item.pieces.is_empty());
        let whole = is_said_twice.then(|| Whole::new(item, &missing));
        let failed = AtomicBool::new(false);
        let open = Arc::new(Open { number, spot, file, left, near, whole, failed });
        if missing.is_empty() {
            return self.complete(&open, item);
        }
        self.queue.lock().pieces.extend(missing.into_iter().map(|index| (Arc::clone(&open), index)));
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

    /// Asks a holder for a part, and notes how that went.
    fn fetch(&self, mut part: Part, holder: usize, url: &str) -> Result<(), String> {
        let Some(Wanted { item, .. }) = self.order.files.get(part.open.number) else { return Ok(()) };
        let (offset, len) = (part.range.start, part.range.end - part.range.start);
        let (mut hasher, mut at) = (Hasher::new(), offset);
        let read = self.readers.read(url, Access { offset, len, size: item.size }, &mut |bytes| {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            part.open.file.write_all_at(bytes, at)?;
            if part.left.is_none() {
                hasher.add(bytes);
            }
            at += bytes.len() as u64;
            self.watch.moved(bytes.len() as u64);
            Ok(())
        });
        self.moved.fetch_add(at - offset, Ordering::Relaxed);
        let why = match read {
            Ok(()) if part.left.is_some() => {
                self.note(holder, |health| health.served());
                return self.joined(part, item);
            }
            Ok(()) if Some(hasher.end()) == item.piece_digest(part.index) => {
                self.note(holder, |health| health.served());
                return self.arrived(&part, item);
            }
            Ok(()) => {
                let why = wrong_bytes(&part.range, item);
                self.leave_out(holder, &why);
                why
            }
            Err(Trouble::Here(error)) => {
                self.note(holder, |health| health.end());
                return self.failed_here(&part, &error);
            }
            Err(Trouble::Refused(why)) => {
                self.leave_out(holder, &why);
                why
            }
            Err(Trouble::Lacks(why)) => {
                self.note(holder, |health| health.lacks(part.open.number));
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
        part.why = Some(format!("{name}: {why}"));
        self.queue.lock().parts.push_front(part);
        Ok(())
    }

    /// A part of a piece is in its file. If that was the last one, the piece is compared. Whose bytes are wrong then cannot be
    /// told, so all of it is asked of one holder.
    fn joined(&self, part: Part, item: &Item) -> Result<(), String> {
        if part.left.as_ref().is_some_and(|left| left.fetch_sub(1, Ordering::AcqRel) > 1) {
            return Ok(());
        }
        let (offset, len) = item.piece(part.index);
        match digest_of(&part.open.file, offset, len, &mut vec![0; BUFFER]) {
            Ok(digest) if digest == item.piece_digest(part.index) => self.arrived(&part, item),
            Ok(_) => {
                self.watch.again(len);
                let range = offset..offset + len;
                let why = Some(format!("several: {}", wrong_bytes(&range, item)));
                self.queue.lock().parts.push_front(Part { range, left: None, why, ..part });
                Ok(())
            }
            Err(error) => self.failed_here(&part, &error),
        }
    }

    /// Gives a file up for what is wrong on this side.
    fn failed_here(&self, part: &Part, error: &io::Error) -> Result<(), String> {
        let is_first = !part.open.failed.swap(true, Ordering::Relaxed);
        let is_told = is_first && error.kind() != io::ErrorKind::Interrupted;
        if is_told { Err(format!("{}: {error}", part.open.spot.path.display())) } else { Ok(()) }
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
    fn gave_up(&self, part: &Part) -> String {
        part.open.failed.store(true, Ordering::Relaxed);
        let path = part.open.spot.path.display();
        let why = part.why.as_deref().unwrap_or("nobody who had it is left");
        format!("{path}: nobody has it any more: {why}; what came is kept, the same command goes on")
    }

    /// A piece is in its file.
    fn arrived(&self, part: &Part, item: &Item) -> Result<(), String> {
        let open = &part.open;
        open.whole.iter().for_each(|whole| whole.came(part.index));
        if open.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            return self.complete(open, item);
        }
        open.whole.iter().for_each(|whole| whole.go_on(&open.file, item));
        Ok(())
    }

    /// Gives a file its name, all pieces of it being there.
    fn complete(&self, open: &Open, item: &Item) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", open.spot.path.display());
        if let Some(whole) = &open.whole
            && item.digest != Some(whole.end(&open.file, item).map_err(failed)?)
        {
            let text = "its pieces are right and its SHA-256 is not: the entry contradicts itself";
            return Err(format!("{}: {text}", open.spot.path.display()));
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
        let parts =
            named.map(|(name, health)| (name.clone(), health.parts())).filter(|(_, parts)| *parts > 0);
        let (files, moved) = (already + queue.done, self.moved.into_inner());
        Ok(Fetched { files, already, moved, parts: parts.collect() })
    }
}

/// A piece by who has what of it.
fn parts_of(open: &Arc<Open>, item: &Item, index: usize) -> Vec<Part> {
    let (offset, len) = item.piece(index);
    let range = offset..offset + len;
    let ranges = open.near.as_ref().map_or_else(|| vec![range.clone()], |near| near.cut(range.clone()));
    let left = (ranges.len() > 1).then(|| Arc::new(AtomicUsize::new(ranges.len())));
    let part = |range| Part { open: Arc::clone(open), index, range, left: left.clone(), why: None };
    ranges.into_iter().map(part).collect()
}

fn wrong_bytes(range: &Range<u64>, item: &Item) -> String {
    format!("wrong bytes of {} (from {}, {} bytes)", item.name, range.start, range.end - range.start)
}
