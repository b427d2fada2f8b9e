//! A target's part of a flush: its stripes are written beside the file at site storage, made durable and read again.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bivouac_source::{Piece, Upload};
use bivouac_types::{Errno, FsResult, Ino, TargetIndex};
use bivouac_wire::{FlushMark, FlushPartsRequest, FlushedPart, FlushedParts, MarkFlushRequest, Whence};

use bivouac_ranks::{Mutex, rank};

use super::bring::offset_in_file;
use super::marks::MarksChange;
use crate::node::Node;
use crate::proxy_state::{Part, Site};
use crate::record::SubfileOrigin;
use crate::session::Ctx;

/// Bytes that one request moves at most, and for how long it goes on at most: it is answered within the bounded time.
const BYTES_MAX: u64 = 64 << 20;
const TIME_MAX: Duration = Duration::from_secs(2);
/// Targets with different times, by their positions: while one syncs and reads again, the others put.
const TIMES: u16 = 4;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Stripes that are put at the same time, since site storage lets each wait for a while; and how many bytes these are
/// at most unless a single one is larger: what has been begun has to end within the bounded time, too.
const AT_ONCE_MAX: u64 = 8;
const AT_ONCE_BYTES: u64 = 4 << 20;
/// The least that is put at the same time of each range of a target to a source far away.
const FAR_AT_ONCE_MIN: u64 = 2;
/// Bytes after which one of the threads syncs and verifies what was put while the others go on: at the end, storage
/// would be idle meanwhile.
const SETTLE_BYTES: u64 = 8 << 20;

/// Returns the part of some memory that begins with a page. File systems that take whole pages take such a stripe as
/// one request, and others as two, the second of which waits for everything that has been asked meanwhile.
fn on_a_page(memory: &mut [u8], len: usize) -> &mut [u8] {
    let from = memory.as_ptr().align_offset(PAGE).min(memory.len());
    let rest = memory.split_at_mut(from).1;
    // What does not fit would be missing at site storage.
    assert!(len <= rest.len(), "{len} bytes do not fit behind the first page of {} bytes", rest.len());
    rest.split_at_mut(len).0
}

/// Returns for how long one request of a target goes on.
fn time_of(target: TargetIndex) -> Duration {
    TIME_MAX * u32::from(target.position() % TIMES + TIMES) / u32::from(2 * TIMES - 1)
}

/// The stripes of one request, as several threads put them.
struct Putting {
    until: Instant,
    next: AtomicU64,
    moved: AtomicU64,
    put: Mutex<FsResult<PutPieces>>,
}

/// Pieces that were put.
#[derive(Default)]
struct PutPieces {
    verified: Vec<Piece>,
    rest: Vec<Piece>,
}

impl Putting {
    fn from(stripe: u64, time: Duration) -> Putting {
        let (next, moved) = (AtomicU64::new(stripe), AtomicU64::new(0));
        Putting {
            until: Instant::now() + time,
            next,
            moved,
            put: Mutex::new(rank::LEAF, Ok(PutPieces::default())),
        }
    }

    /// Returns the next stripe, which has to be put; nothing when that is enough for one request, or something failed.
    fn take(&self) -> Option<u64> {
        let is_enough = self.moved.load(Ordering::Relaxed) >= BYTES_MAX || Instant::now() > self.until;
        let goes_on = !is_enough && self.put.lock().is_ok();
        goes_on.then(|| self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Notes that a stripe was put, or was not; the first failure is kept. Returns pieces that the caller has to
    /// verify.
    fn moved(&self, piece: FsResult<Piece>) -> Vec<Piece> {
        let mut put = self.put.lock();
        match (&mut *put, piece) {
            (Ok(all), Ok(piece)) => {
                self.moved.fetch_add(piece.len, Ordering::Relaxed);
                all.rest.push(piece);
                let is_much = all.rest.iter().map(|piece| piece.len).sum::<u64>() >= SETTLE_BYTES;
                return if is_much { std::mem::take(&mut all.rest) } else { Vec::new() };
            }
            (Ok(_), Err(error)) => *put = Err(error),
            (Err(_), _) => {}
        }
        Vec::new()
    }

    /// Pieces were verified, or were not.
    fn verified(&self, pieces: Vec<Piece>, outcome: FsResult<()>) {
        let mut put = self.put.lock();
        match (&mut *put, outcome) {
            (Ok(all), Ok(())) => all.verified.extend(pieces),
            (Ok(_), Err(error)) => *put = Err(error),
            (Err(_), _) => {}
        }
    }

    /// Returns what was put without a gap, and the stripe behind it.
    fn over(self) -> FsResult<(PutPieces, u64)> {
        Ok((self.put.into_inner()?, self.next.into_inner()))
    }
}

impl Node {
    /// Marks what a flush takes, or what came of it. Answers the bytes that are not saved.
    pub(crate) fn mark_flush(&self, ctx: &Ctx<'_>, request: MarkFlushRequest) -> FsResult<u64> {
        let part = Part { ino: request.ino, target: request.target };
        self.subfile(part.ino, part.target)?;
        // What is late would turn the marks of a later flush, and of what was written since.
        let current = || {
            let alone = self.proxy.uses.no_writes(part);
            ctx.check_current().map(|()| alone)
        };
        let stripes = match request.mark {
            FlushMark::Begin => {
                let _alone = current()?;
                self.turn_marks(part, MarksChange::Begin)?
            }
            FlushMark::Known { epoch, whence, offset, len } => {
                drop(self.bring_known(part, SubfileOrigin { whence, epoch }, offset, len)?);
                0
            }
            FlushMark::Own { epoch, whence, offset, len } => {
                self.own_part(part, SubfileOrigin { whence, epoch }, offset, len)?;
                0
            }
            FlushMark::Close { epoch, layout } => {
                let _alone = current()?;
                let unsaved = self.turn_marks(part, MarksChange::Count)?;
                if unsaved == 0 {
                    // Cuts nothing: from here on the subfile refuses writers of older epochs.
                    let id = self.subfile(part.ino, part.target)?;
                    self.data.trim(id, &self.spec(layout)?.get(), epoch, u64::MAX)?;
                }
                unsaved
            }
            FlushMark::Drop { epoch, mut whence } => {
                let _alone = current()?;
                let id = self.subfile(part.ino, part.target)?;
                self.data.trim(id, &self.spec(whence.layout)?.get(), epoch, 0)?;
                // A newer pin than the one that the home knew stays.
                let pin = self.stored_held(part)?.map_or(0, |held| held.whence.pin);
                whence.pin = whence.pin.max(pin);
                self.turn_marks(part, MarksChange::Remove)?;
                self.hold(part, SubfileOrigin { whence, epoch })?;
                0
            }
            FlushMark::Failed => {
                let _alone = current()?;
                self.turn_marks(part, MarksChange::Fail)?
            }
            FlushMark::Done { epoch, whence } => {
                let _alone = current()?;
                self.end_flush(part, epoch, whence)?
            }
            FlushMark::Pin { epoch, whence } => {
                self.note_pin(part, epoch, whence)?;
                0
            }
        };
        if stripes == 0 { Ok(0) } else { Ok(stripes * self.stripe_of(part.ino, part.target)?) }
    }

    /// Writes stripes from one on, several at the same time.
    pub(crate) fn flush_parts(&self, request: &FlushPartsRequest) -> FsResult<FlushedParts> {
        let FlushPartsRequest { target, whence, path, size, token, from, to, .. } = request;
        let site = self.site_of(target.partition())?;
        let (path, token) = (path.clone(), token.clone());
        let upload = Upload { path, size: *size, token, ..Upload::default() };
        let is_wanted = |stripe: u64| {
            stripe < *to && offset_in_file(whence, *target, stripe).is_some_and(|at| at < *size)
        };
        let putting = Putting::from(*from, time_of(*target));
        // Many at once: on some file systems a sync and the writes of others wait for each other.
        let verify = |pieces: &[Piece]| -> FsResult<()> {
            // The home does, while the next parts are put.
            if site.source.verifies_for_all() { Ok(()) } else { Ok(site.source.verify(&upload, pieces)?) }
        };
        let put = || {
            while let Some(stripe) = putting.take().filter(|stripe| is_wanted(*stripe)) {
                let pieces = putting.moved(self.put_stripe(&site, &upload, request, stripe));
                if !pieces.is_empty() {
                    let outcome = verify(&pieces);
                    putting.verified(pieces, outcome);
                }
            }
        };
        let near_by = (AT_ONCE_BYTES / u64::from(whence.layout.stripe).max(1)).clamp(1, AT_ONCE_MAX);
        // Two ranges of each target are put at the same time.
        let far_away = site
            .source
            .pieces_under_way(whence.layout.stripe.into())
            .map(|all| all.div_ceil(2 * usize::from(whence.layout.width.max(1))) as u64);
        let at_once = far_away.map_or(near_by, |far_away| far_away.max(FAR_AT_ONCE_MIN));
        std::thread::scope(|scope| {
            for _ in (*from + 1..*from + at_once).take_while(|stripe| is_wanted(*stripe)) {
                // Without another thread it goes on in this one.
                let _started = std::thread::Builder::new().name("flush".to_owned()).spawn_scoped(scope, put);
            }
            put();
        });
        let (PutPieces { verified: mut pieces, rest }, next) = putting.over()?;
        if !rest.is_empty() {
            verify(&rest)?;
        }
        pieces.extend(rest);
        let part = |Piece { offset, len, tag }| FlushedPart { offset, len, tag };
        let next = Some(next).filter(|next| is_wanted(*next));
        Ok(FlushedParts { parts: pieces.into_iter().map(part).collect(), next })
    }

    /// Puts a stripe; one that was never brought is copied from site storage to site storage.
    fn put_stripe(
        &self,
        site: &Site,
        upload: &Upload,
        request: &FlushPartsRequest,
        stripe: u64,
    ) -> FsResult<Piece> {
        let (part, whence) = (Part { ino: request.ino, target: request.target }, &request.whence);
        let at = offset_in_file(whence, part.target, stripe).ok_or(Errno::EINVAL)?;
        assert!(at < upload.size, "stripe {stripe} at {at} is behind the end of {} bytes", upload.size);
        let len = (upload.size - at).min(u64::from(whence.layout.stripe)) as usize;
        // Nothing that is here may be evicted meanwhile.
        let _here = self.proxy.uses.stay();
        let is_there = at < whence.limit && whence.origin.is_some();
        if is_there && !self.marks(part, stripe)?.is_present(stripe) {
            let mut content = self.read_origin(part, whence, stripe)?;
            content.resize(len, 0);
            return Ok(site.source.put(upload, at, &content)?);
        }
        let mut memory = vec![0; len + PAGE];
        let content = on_a_page(&mut memory, len);
        self.read_stripe(part, whence, stripe, content)?;
        Ok(site.source.put(upload, at, content)?)
    }

    /// Returns the content of a file of one stripe that is on this node.
    pub(super) fn only_stripe(&self, part: Part, whence: &Whence, len: usize) -> FsResult<Vec<u8>> {
        let _here = self.proxy.uses.stay();
        if whence.limit > 0 && whence.origin.is_some() && !self.marks(part, 0)?.is_present(0) {
            let mut content = self.read_origin(part, whence, 0)?;
            content.resize(len, 0);
            return Ok(content);
        }
        let mut content = vec![0; len];
        self.read_stripe(part, whence, 0, &mut content)?;
        Ok(content)
    }

    fn read_stripe(&self, part: Part, whence: &Whence, stripe: u64, content: &mut [u8]) -> FsResult<()> {
        let id = self.subfile(part.ino, part.target)?;
        let offset = stripe * u64::from(whence.layout.stripe);
        let (read, _) = self.data.read(id, offset, &mut [IoSliceMut::new(content)])?;
        // Behind the end of the subfile there are zeros, as far as the file goes on.
        content.get_mut(read..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Ends a flush: site storage has the same content under a new name and version, so that what is here is still
    /// right. What was written here only is there as well now, up to the limit; so it counts as brought.
    fn end_flush(&self, part: Part, epoch: u32, whence: Whence) -> FsResult<u64> {
        let now = self.subfile_epoch(part)?;
        let known = self.stored_held(part)?;
        if epoch >= now && known.as_ref().is_none_or(|held| held.epoch < now) {
            // Cut since, and not asked for: as it is now, it can make room.
            let unsaved = self.turn_marks(part, MarksChange::End)?;
            self.replace_held(part, SubfileOrigin { whence, epoch })?;
            return Ok(unsaved);
        }
        let Some(held) = known else { return self.turn_marks(part, MarksChange::End) };
        let (old, limit) = (held.whence.limit, whence.limit);
        let whence = Whence { layout: held.whence.layout, ..whence };
        let stripe_at = |at: u64| {
            // The first stripe of this subfile that begins at or behind a place of the file.
            let round = u64::from(whence.layout.stripe) * u64::from(whence.layout.width);
            let guess = at / round.max(1);
            (guess..guess + 2)
                .find(|stripe| offset_in_file(&whence, part.target, *stripe).is_none_or(|from| from >= at))
        };
        let is_behind = old < limit && now <= held.epoch;
        let behind = stripe_at(old).unwrap_or(0)..stripe_at(limit).unwrap_or(0);
        if is_behind {
            self.mark_all_present(part, behind)?;
        }
        let unsaved = self.turn_marks(part, MarksChange::End)?;
        let limit = if is_behind { limit } else { old.min(limit) };
        self.replace_held(part, SubfileOrigin { whence: Whence { limit, ..whence }, epoch: held.epoch })?;
        Ok(unsaved)
    }

    /// Returns the number of bytes of a stripe of a subfile.
    pub(super) fn stripe_of(&self, ino: Ino, target: TargetIndex) -> FsResult<u64> {
        let held = self.stored_held(Part { ino, target })?;
        Ok(held.map_or(0, |held| u64::from(held.whence.layout.stripe)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any machine takes.
    const LONG: Duration = Duration::from_secs(3600);

    fn piece(stripe: u64, len: u64) -> Piece {
        Piece { offset: stripe, len, tag: String::new() }
    }

    #[test]
    fn several_threads_put_all_stripes_once_and_leave_no_gap() {
        let putting = Putting::from(10, LONG);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(stripe) = putting.take() {
                        let pieces = putting.moved(Ok(piece(stripe, 1 << 20)));
                        assert!(pieces.is_empty() || pieces.len() == (SETTLE_BYTES >> 20) as usize);
                        putting.verified(pieces, Ok(()));
                    }
                });
            }
        });
        let (PutPieces { verified: mut pieces, rest }, next) = putting.over().unwrap();
        assert!(pieces.len() >= rest.len() && rest.len() < (SETTLE_BYTES >> 20) as usize);
        pieces.extend(rest);
        pieces.sort_by_key(|piece| piece.offset);
        let put: Vec<u64> = pieces.iter().map(|piece| piece.offset).collect();
        assert_eq!(put, (10..next).collect::<Vec<_>>());
        // Those that were under way when it was enough are put as well.
        assert!(next - 10 <= (BYTES_MAX >> 20) + 3, "{next}");
    }

    #[test]
    fn targets_beside_each_other_go_on_for_different_times() {
        let times: Vec<Duration> = (0..4).map(|target| time_of(TargetIndex(target))).collect();
        assert!(times.is_sorted_by(|one, other| one < other) && times[0] > TIME_MAX / 2, "{times:?}");
        assert_eq!((times[3], time_of(TargetIndex(4))), (TIME_MAX, times[0]));
    }

    #[test]
    fn a_stripe_begins_with_a_page() {
        for len in [0, 1, PAGE, 3 * PAGE + 5] {
            let mut memory = vec![0; len + PAGE];
            let stripe = on_a_page(&mut memory, len);
            assert_eq!((stripe.as_ptr().align_offset(PAGE), stripe.len()), (0, len));
        }
    }

    #[test]
    fn it_is_enough_when_the_bytes_are() {
        let putting = Putting::from(0, LONG);
        assert_eq!(putting.take(), Some(0));
        let pieces = putting.moved(Ok(piece(0, BYTES_MAX)));
        assert_eq!(pieces, [piece(0, BYTES_MAX)]);
        assert_eq!(putting.take(), None);
        putting.verified(pieces, Ok(()));
        let (put, next) = putting.over().unwrap();
        assert_eq!((put.verified, put.rest, next), (vec![piece(0, BYTES_MAX)], vec![], 1));
    }

    #[test]
    fn the_first_failure_ends_it_and_is_told() {
        let putting = Putting::from(0, LONG);
        assert_eq!((putting.take(), putting.take()), (Some(0), Some(1)));
        putting.moved(Err(Errno::ENOSPC.into()));
        assert_eq!(putting.take(), None);
        putting.moved(Err(Errno::EIO.into()));
        putting.moved(Ok(piece(1, 1)));
        assert_eq!(putting.over().map(|(_, next)| next).unwrap_err().errno(), Errno::ENOSPC);
    }

    #[test]
    fn what_cannot_be_verified_ends_it_and_is_told() {
        let putting = Putting::from(0, LONG);
        assert_eq!(putting.take(), Some(0));
        let pieces = putting.moved(Ok(piece(0, SETTLE_BYTES)));
        putting.verified(pieces, Err(Errno::EIO.into()));
        assert_eq!(putting.take(), None);
        assert_eq!(putting.over().map(|(_, next)| next).unwrap_err().errno(), Errno::EIO);
    }
}
