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

use super::health::{self, HolderChoice, HolderHealth};
use super::near::NearbyHolders;
use super::whole::WholeDigest;
use super::{BUFFER, FetchObserver, FetchRequest, FetchResult, WantedFile, digest_of, interrupted, tag};
use crate::digest::Hasher;
use crate::error::{Cause, PublishError, PublishResult};
use crate::holder::{Access, ReadError, Readers};
use crate::manifest::DataSetFile;
use crate::target::{TargetDir, TargetFile};

/// Interval at which a waiting thread checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Missing pieces of a file from which on its layout is queried.
const NEAR_FROM: usize = 4;
/// Parts that are examined to find one that an idle holder has locally; also the number of parts cut in advance, and
/// the tolerated difference in load.
const NEAR_AMONG: usize = 256;
const NEAR_BUSIER: u32 = 1;
/// Failures that are reported individually.
const FAILURES_MAX: usize = 20;

/// A file that is being fetched.
struct FetchedFile {
    number: usize,
    spot: TargetFile,
    file: File,
    left: AtomicUsize,
    /// Locality, if known.
    near: Option<NearbyHolders>,
    /// Whole digest, if it proves more than the digests of the pieces.
    whole: Option<WholeDigest>,
    /// True if the file was given up.
    failed: AtomicBool,
}

/// A piece that is missing, or a part of one.
struct Part {
    open: Arc<FetchedFile>,
    /// The piece.
    index: usize,
    range: Range<u64>,
    /// Missing parts of the piece; `None` for a piece of one part.
    left: Option<Arc<AtomicUsize>>,
    /// Reason of the last holder's failure.
    why: Option<String>,
}

struct Queue {
    /// Pieces that are not cut into parts yet: of large files there would be many.
    pieces: VecDeque<(Arc<FetchedFile>, usize)>,
    parts: VecDeque<Part>,
    files: VecDeque<usize>,
    busy: usize,
    health: Vec<HolderHealth>,
    done: u64,
    failures: Vec<String>,
}

impl Queue {
    fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.parts.is_empty() && self.files.is_empty() && self.busy == 0
    }
}

/// A fetch in progress.
pub struct FetchWork<'a> {
    order: &'a FetchRequest,
    target: &'a TargetDir,
    readers: &'a Readers<'a>,
    watch: &'a dyn FetchObserver,
    cancel: &'a AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
    moved: AtomicU64,
}

/// Next action of a thread.
enum NextStep {
    Prepare(usize),
    Fetch(Part, usize, String),
    GiveUp(Part),
    End,
}

impl<'a> FetchWork<'a> {
    /// Creates the work for missing files, by their indices.
    pub fn new(
        order: &'a FetchRequest,
        target: &'a TargetDir,
        readers: &'a Readers<'a>,
        watch: &'a dyn FetchObserver,
        cancel: &'a AtomicBool,
        missing: Vec<usize>,
    ) -> FetchWork<'a> {
        let health = order.holders.iter().map(|_| HolderHealth::default()).collect();
        let (pieces, parts, failures) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let queue =
            Mutex::new(Queue { pieces, parts, files: missing.into(), busy: 0, health, done: 0, failures });
        FetchWork {
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
                NextStep::End => return,
                NextStep::Prepare(number) => self.prepare(number),
                NextStep::Fetch(part, holder, url) => self.fetch(part, holder, &url),
                NextStep::GiveUp(part) => Err(self.gave_up(&part)),
            };
            let mut queue = self.queue.lock();
            assert!(queue.busy > 0, "a step ended that was not running");
            queue.busy -= 1;
            queue.failures.extend(outcome.err());
            // Whatever the step put into the queue was put there before this, so one call wakes those who wait for it.
            self.changed.notify_all();
        }
    }

    /// Waits for something to do.
    fn next(&self) -> NextStep {
        let mut queue = self.queue.lock();
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return NextStep::End;
            }
            let now = Instant::now();
            if let Some(step) = self.choose(&mut queue, now) {
                queue.busy += 1;
                return step;
            }
            if queue.is_done() {
                self.changed.notify_all();
                return NextStep::End;
            }
            // For an interruption, which notifies nobody, and for the end of holders' pauses.
            self.changed.wait_for(&mut queue, LOOK_EVERY);
        }
    }

    /// Returns the first part with an available holder, or the next file.
    fn choose(&self, queue: &mut Queue, now: Instant) -> Option<NextStep> {
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
                HolderChoice::Ask(holder, url) => {
                    queue.health.get_mut(holder)?.begin();
                    return Some(NextStep::Fetch(part, holder, url));
                }
                HolderChoice::Wait => queue.parts.push_back(part),
                HolderChoice::Nobody => {
                    // Under the queue's lock, so that no other thread gives up another part of the same file.
                    part.open.failed.store(true, Ordering::Relaxed);
                    return Some(NextStep::GiveUp(part));
                }
            }
        }
        // A new file is opened only if no part of an open one is available, so few are open.
        // Each waiting file has a part in the queue, so they are few even if all holders pause.
        let has_room = queue.parts.len() < 2 * self.order.jobs.max(1);
        if has_room { queue.files.pop_front().map(NextStep::Prepare) } else { None }
    }

    /// Returns a part that a holder has itself which is about the idlest.
    fn choose_near(&self, queue: &mut Queue, now: Instant) -> Option<NextStep> {
        let Queue { parts, health, .. } = queue;
        let of_part = |(at, part): (usize, &Part)| {
            let near = part.open.near.as_ref().filter(|_| !part.open.failed.load(Ordering::Relaxed))?;
            let WantedFile { places, .. } = self.order.files.get(part.open.number)?;
            let holders = near.at(part.range.start);
            let able =
                health::idlest(health, places, part.open.number, now, |holder| holders.contains(&holder))?;
            let idlest = health::idlest(health, places, part.open.number, now, |_| true)?;
            // It may be this much busier than the idlest, which would have to get the part from it first.
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
        Some(NextStep::Fetch(part, holder, url))
    }

    /// Queries the locality of a file with many missing pieces. A failure only costs efficiency.
    fn near(&self, number: usize, wanted: &WantedFile, missing: usize) -> Option<NearbyHolders> {
        if wanted.places.len() < 2 || missing < NEAR_FROM {
            return None;
        }
        let choice = health::choose(&self.queue.lock().health, &wanted.places, number, Instant::now());
        let HolderChoice::Ask(holder, url) = choice else { return None };
        // Counted as a request, so that threads that begin at the same time do not all look at one holder.
        self.note(holder, HolderHealth::begin);
        let seen = self.readers.look(&url);
        // The health of the holder is decided by requests for pieces, not by this query.
        self.note(holder, HolderHealth::end);
        NearbyHolders::of(&seen.ok()??, &wanted.places)
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
        // Before the first piece: otherwise every client would fetch the first pieces from any holder, over two links
        // of servers each.
        let near = self.near(number, wanted, missing.len());
        // The digests of the pieces and of the file are independent claims, and both must hold.
        let is_said_twice = item.digest.is_some() && (item.size == 0 || !item.pieces.is_empty());
        let whole = is_said_twice.then(|| WholeDigest::new(item, &missing));
        let failed = AtomicBool::new(false);
        let open = Arc::new(FetchedFile { number, spot, file, left, near, whole, failed });
        if missing.is_empty() {
            return self.complete(&open, item);
        }
        self.queue.lock().pieces.extend(missing.into_iter().map(|index| (Arc::clone(&open), index)));
        Ok(())
    }

    fn missing_pieces(&self, file: &File, item: &DataSetFile) -> io::Result<Vec<usize>> {
        let has_content = file.metadata()?.len() > 0;
        // Sparse at once: pieces arrive in any order, and each is written where it belongs.
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
        let Some(WantedFile { item, .. }) = self.order.files.get(part.open.number) else { return Ok(()) };
        let (offset, len) = (part.range.start, part.range.end - part.range.start);
        let (mut hasher, mut at) = (Hasher::new(), offset);
        let read = self.readers.read(url, Access { offset, len, size: item.size }, &mut |bytes| {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            // Written before it is verified: the file has a temporary name until all digests match.
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
            Err(ReadError::Local(error)) => {
                self.note(holder, |health| health.end());
                return self.failed_here(&part, &error);
            }
            Err(ReadError::Permanent(why)) => {
                self.leave_out(holder, &why);
                why
            }
            Err(ReadError::Lacks(why)) => {
                self.note(holder, |health| health.lacks(part.open.number));
                why
            }
            Err(ReadError::Transient(why)) => {
                if self.note(holder, |health| health.failed(Instant::now())) == Some(true) {
                    self.tell_left_out(holder, &why);
                }
                why
            }
        };
        // The bytes of the failed attempt do not count as progress.
        self.watch.again(at - offset);
        let name = self.order.holders.get(holder).map_or("?", String::as_str);
        part.why = Some(format!("{name}: {why}"));
        // To the front: the sooner its file is complete, the fewer are open.
        self.queue.lock().parts.push_front(part);
        Ok(())
    }

    /// Records that a part is written. The last part of a piece triggers its comparison; if that fails, the whole piece
    /// is fetched from one holder, because the wrong part is unknown.
    fn joined(&self, part: Part, item: &DataSetFile) -> Result<(), String> {
        let left = part.left.as_ref().map_or(1, |left| left.fetch_sub(1, Ordering::AcqRel));
        assert!(left > 0, "a part of a piece was counted twice");
        if left > 1 {
            return Ok(());
        }
        let (offset, len) = item.piece(part.index);
        match digest_of(&part.open.file, offset, len, &mut vec![0; BUFFER]) {
            Ok(digest) if digest == item.piece_digest(part.index) => self.arrived(&part, item),
            Ok(_) => {
                self.watch.again(len);
                let range = offset..offset + len;
                let why = Some(format!("several: {}", wrong_bytes(&range, item)));
                // Which holder sent wrong bytes is unknown, so one holder sends the whole piece.
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

    fn note<T>(&self, holder: usize, note: impl FnOnce(&mut HolderHealth) -> T) -> Option<T> {
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

    /// Gives up a part. Returns the reason, which is said once of each file.
    fn gave_up(&self, part: &Part) -> String {
        assert!(part.open.failed.load(Ordering::Relaxed), "a part is given up of a file that is not");
        let path = part.open.spot.path.display();
        let why = part.why.as_deref().unwrap_or("nobody who had it is left");
        format!("{path}: nobody has it any more: {why}; what came is kept, the same command goes on")
    }

    /// Notes that a piece is in its file.
    fn arrived(&self, part: &Part, item: &DataSetFile) -> Result<(), String> {
        let open = &part.open;
        open.whole.iter().for_each(|whole| whole.came(part.index));
        // Only now may `complete` read what other threads wrote: each of them counted down after its write.
        let left = open.left.fetch_sub(1, Ordering::AcqRel);
        assert!(left > 0, "a piece was counted twice");
        if left == 1 {
            return self.complete(open, item);
        }
        open.whole.iter().for_each(|whole| whole.go_on(&open.file, item));
        Ok(())
    }

    /// Gives a file its name, all pieces of it being there.
    fn complete(&self, open: &FetchedFile, item: &DataSetFile) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", open.spot.path.display());
        if let Some(whole) = &open.whole
            && item.digest != Some(whole.end(&open.file, item).map_err(failed)?)
        {
            let text = "its pieces are right and its SHA-256 is not: the entry contradicts itself";
            return Err(format!("{}: {text}", open.spot.path.display()));
        }
        assert_eq!(open.left.load(Ordering::Acquire), 0, "a file with missing pieces gets its name");
        open.spot.commit(&open.file, self.order.force).map_err(|error| error.to_string())?;
        self.queue.lock().done += 1;
        self.watch.file_done(&item.name);
        Ok(())
    }

    /// Returns the result, after all threads have ended.
    ///
    /// # Errors
    /// Everything that did not come.
    pub fn ended(self, already: u64) -> PublishResult<FetchResult> {
        let queue = self.queue.into_inner();
        assert_eq!(queue.busy, 0, "a fetch ends while a step of it runs");
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
        assert_eq!(
            already + queue.done,
            self.order.files.len() as u64,
            "a file was neither fetched nor reported"
        );
        let (files, moved) = (already + queue.done, self.moved.into_inner());
        Ok(FetchResult { files, already, moved, parts: parts.collect() })
    }
}

/// Splits a piece by the locality of its parts.
fn parts_of(open: &Arc<FetchedFile>, item: &DataSetFile, index: usize) -> Vec<Part> {
    let (offset, len) = item.piece(index);
    let range = offset..offset + len;
    let ranges = open.near.as_ref().map_or_else(|| vec![range.clone()], |near| near.cut(range.clone()));
    let cut: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    assert_eq!(cut, len, "the parts of a piece are not all of it");
    let left = (ranges.len() > 1).then(|| Arc::new(AtomicUsize::new(ranges.len())));
    let part = |range| Part { open: Arc::clone(open), index, range, left: left.clone(), why: None };
    ranges.into_iter().map(part).collect()
}

fn wrong_bytes(range: &Range<u64>, item: &DataSetFile) -> String {
    format!("wrong bytes of {} (from {}, {} bytes)", item.name, range.start, range.end - range.start)
}
