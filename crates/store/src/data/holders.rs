//! Processes that read and write a subfile themselves, on its descriptor. The daemon decides who may, and ends it
//! before it does anything that must not meet their accesses. The caller of everything here holds the
//! subfile's lock for writing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_types::limits::{DIRECT_AHEAD_BYTES, DIRECT_CALM_MS, DIRECT_DRAIN_MS, DIRECT_TURNS_MAX};

use super::subfile::OpenSubfile;
use super::{DataStore, LocalFile, SubfileId};
use crate::StoreResult;

/// Minimum of the wait for accesses that are under way, also if others have waited long before.
const DRAIN_MIN: Duration = Duration::from_millis(20);

/// A process that may read or write a subfile directly.
pub trait DirectClient: Send + Sync + fmt::Debug {
    /// Lets no further access begin.
    fn close(&self);

    /// Waits until no access is under way after [`DirectClient::close`]. Returns true if that was so in time.
    fn drain(&self, patience: Duration) -> bool;

    /// Returns true if it has gone, or does not use the subfile any more, and no access is under way.
    fn is_over(&self) -> bool;

    /// Returns the places that it has written to, once it is over.
    fn written(&self) -> Written {
        Written::Anywhere
    }
}

/// Words of a map of where somebody has written.
pub const MARK_WORDS: usize = 4;

/// Places of a subfile that may have been written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Anywhere.
    Anywhere,
    /// The parts whose bit n of the map is set: numbers n, n + 256, n + 512 and so on, of 2^`shift` bytes each.
    Parts {
        /// Binary logarithm of a part's length.
        shift: u32,
        /// The map, lowest bits first.
        map: [u64; MARK_WORDS],
    },
}

/// Union of the places that several holders have written to.
#[derive(Debug, Default)]
pub(super) struct WriteMarks(Vec<Written>);

impl WriteMarks {
    fn add(&mut self, written: Written) {
        let Written::Parts { shift, map } = written else { return self.0.push(written) };
        for known in &mut self.0 {
            if let Written::Parts { shift: same, map: known } = known
                && *same == shift
            {
                known.iter_mut().zip(map).for_each(|(known, more)| *known |= more);
                return;
            }
        }
        self.0.push(written);
    }

    /// Returns the parts of a range that may have been written to, in order.
    pub(super) fn parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let finest = |known: &Written| match known {
            Written::Anywhere => None,
            Written::Parts { shift, .. } => Some(*shift),
        };
        let Some(shifts) = self.0.iter().map(finest).collect::<Option<Vec<u32>>>() else {
            return if range.is_empty() { Vec::new() } else { vec![range.clone()] };
        };
        let Some(shift) = shifts.into_iter().min() else { return Vec::new() };
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = (((at >> shift) + 1) << shift).min(range.end);
            if self.0.iter().any(|known| known.has(at)) {
                match parts.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end = end,
                    None => parts.push(at..end),
                }
            }
            at = end;
        }
        parts
    }
}

impl Written {
    fn has(&self, at: u64) -> bool {
        match self {
            Written::Anywhere => true,
            Written::Parts { shift, map } => {
                let bit = (at >> shift) as usize % (MARK_WORDS * 64);
                map.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
            }
        }
    }
}

/// Returns the length of parts by which 256 of them are a window or more: 64 KiB at least.
fn shift_for(window: &Range<u64>) -> u32 {
    let part = window.end.div_ceil(MARK_WORDS as u64 * 64).max(1 << 16);
    part.next_power_of_two().trailing_zeros()
}

/// Kind of a direct access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// A grant of direct access.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The descriptor.
    pub file: LocalFile,
    /// The subfile's epoch, for as long as the grant lasts.
    pub epoch: u32,
    /// True if it may be read.
    pub reads: bool,
    /// Range of data that may be written; empty if none.
    pub window: Range<u64>,
    /// Binary logarithm of the parts in which written places are marked, if they have to be.
    pub marks_shift: Option<u32>,
}

/// Accesses allowed to holders; the same for all of one subfile. Writes do not tear each other, since the kernel
/// makes them one after the other, but reads may see half of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Readers,
    Writers,
    /// One process reads and writes.
    Sole,
}

/// The holders of one subfile.
#[derive(Debug, Default)]
pub(super) struct Holders {
    list: Vec<Arc<dyn DirectClient>>,
    mode: Mode,
    /// Range that they may write: every byte of it is on the volume or is counted as if it were.
    window: Range<u64>,
    closed_at: Option<Instant>,
    /// Number of conflicts between holders, since the first of these.
    turns: Option<(Instant, u32)>,
    /// Writes of several met, and no reads: the next who writes is not alone either.
    several_write: bool,
    /// Places written by holders that are over.
    marks: WriteMarks,
}

impl Holders {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether a read may see half of what they write.
    pub(super) fn may_write(&self) -> bool {
        !self.list.is_empty() && self.mode != Mode::Readers
    }

    pub(super) fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// Returns whether somebody else may write beside them: none of them reads, and none is about to end.
    fn take_writers(&self) -> bool {
        !self.list.is_empty() && self.mode == Mode::Writers && self.closed_at.is_none()
    }

    fn reach(&self, range: &Range<u64>) -> bool {
        self.window.start <= range.start && range.end <= self.window.end
    }

    /// Lets no access begin any more, and waits for none.
    pub(super) fn close(&self) {
        self.list.iter().for_each(|holder| holder.close());
    }

    /// Ends all grants; whether no access is under way any more.
    fn end(&mut self) -> bool {
        // The first attempt counts: a holder that stands still is waited for once, not by each access that comes to it.
        let closed_at = *self.closed_at.get_or_insert_with(Instant::now);
        self.close();
        let deadline = closed_at + Duration::from_millis(DIRECT_DRAIN_MS);
        // The first one to end them waits for all of the time, those behind it for what is left: a process that
        // stands still must not hold up every access in turn.
        let patience = deadline.saturating_duration_since(Instant::now()).max(DRAIN_MIN);
        self.remove(|holder| holder.drain(patience));
        self.list.is_empty()
    }

    /// Removes those that are over.
    fn remove(&mut self, mut is_over: impl FnMut(&dyn DirectClient) -> bool) {
        // The places are asked for as each one goes, since afterwards nobody has its map any more.
        let (marks, may_write) = (&mut self.marks, self.mode != Mode::Readers);
        self.list.retain(|holder| {
            let is_over = is_over(&**holder);
            if is_over && may_write {
                marks.add(holder.written());
            }
            !is_over
        });
    }

    /// Ends the mode and the window; returns the places that were written.
    fn forget_all(&mut self) -> WriteMarks {
        // Whoever still writes would do so in blocks whose checksums are settled without it.
        assert!(self.list.is_empty(), "{} holders are forgotten", self.list.len());
        (self.mode, self.window, self.closed_at) = (Mode::Readers, 0..0, None);
        std::mem::take(&mut self.marks)
    }

    /// Accesses of several have met.
    fn take_turn(&mut self) {
        let now = Instant::now();
        let (since, turns) = self.turns_of_late(now).unwrap_or((now, 0));
        // The last one that there may be begins the time in which the daemon serves alone.
        let since = if turns + 1 == DIRECT_TURNS_MAX { now } else { since };
        self.turns = Some((since, turns + 1));
    }

    fn turns_of_late(&self, now: Instant) -> Option<(Instant, u32)> {
        self.turns.filter(|(since, _)| {
            now.saturating_duration_since(*since) < Duration::from_millis(DIRECT_CALM_MS)
        })
    }

    /// Returns whether there may be holders: not while those who do not go together take turns so often that it costs
    /// more than it gains.
    fn is_calm(&self) -> bool {
        self.turns_of_late(Instant::now()).is_none_or(|(_, turns)| turns < DIRECT_TURNS_MAX)
    }

    /// Returns the mode of the present holders with a further one; `None` if they conflict.
    fn mode_with(&self, access: Access) -> Option<Mode> {
        match (access, self.mode, self.list.is_empty()) {
            (Access::Read, _, true) | (Access::Read, Mode::Readers, _) => Some(Mode::Readers),
            (Access::Write, _, true) if self.several_write => Some(Mode::Writers),
            (Access::Write, _, true) => Some(Mode::Sole),
            (Access::Write, Mode::Writers, _) => Some(Mode::Writers),
            _ => None,
        }
    }
}

impl DataStore {
    /// Lets somebody read or write a subfile without asking; `None` if there is no subfile, if it has no
    /// descriptor, or if others' accesses do not go together with this one. A writer gets a window around
    /// the range that it is about to write.
    ///
    /// # Errors
    /// `NoVolume`, `Corrupt` and the like, `Io`.
    pub fn grant(
        &self,
        id: SubfileId,
        access: Access,
        range: Range<u64>,
        holder: &Arc<dyn DirectClient>,
    ) -> StoreResult<Option<Granted>> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(None) };
        self.drop_over(id, open)?;
        // A local file that another program has cut is refused here: whoever reads it directly would take what is
        // missing for zeros.
        self.check_len(id, open)?;
        // Who reads by itself compares nothing: not where it is known that something is wrong.
        if !open.holders.is_calm() || open.file().as_fd().is_none() || self.damage.may_be_wrong(id) {
            return Ok(None);
        }
        // Nobody hears where who writes itself has written anew.
        if access == Access::Write && self.sync_failures.has(id) {
            return Ok(None);
        }
        let Some(mode) = self.agree(id, open, access)? else { return Ok(None) };
        if access == Access::Write && !self.promise(id, open, range)? {
            return Ok(None);
        }
        // One that reads and writes may see half of what another one writes.
        assert!(mode != Mode::Sole || open.holders.is_empty(), "a sole holder is one of several");
        open.holders.mode = mode;
        open.holders.list.push(Arc::clone(holder));
        // From here on length and bytes change without the daemon's knowledge.
        open.become_measured();
        let (epoch, window) = (open.epoch(), open.holders.window());
        let is_marked = open.is_summed() && access == Access::Write;
        let marks_shift = is_marked.then(|| shift_for(&window));
        let file =
            LocalFile { file: open.file().clone(), data_at: open.data_at(), _place: Arc::clone(&place) };
        Ok(Some(Granted { file, epoch, reads: mode != Mode::Writers, window, marks_shift }))
    }

    /// Makes the window larger, so that a holder may write this range too; `None` if its grant is over or there
    /// is no room.
    ///
    /// # Errors
    /// As [`DataStore::grant`].
    pub fn widen(
        &self,
        id: SubfileId,
        range: Range<u64>,
        holder: &Arc<dyn DirectClient>,
    ) -> StoreResult<Option<Range<u64>>> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        let Some(open) = self.opened(id, &mut state)? else { return Ok(None) };
        let holders = &open.holders;
        // One whose end has begun must not get more: what it writes from then on, nobody waits for or counts.
        let holds =
            holders.closed_at.is_none() && holders.list.iter().any(|other| Arc::ptr_eq(other, holder));
        if !holds || !holders.may_write() || !self.promise(id, open, range)? {
            return Ok(None);
        }
        Ok(Some(open.holders.window()))
    }

    /// Counts what holders that are over left behind as it is.
    ///
    /// # Errors
    /// As [`DataStore::grant`].
    pub fn release(&self, id: SubfileId) -> StoreResult<()> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        match self.opened(id, &mut state)? {
            Some(open) => self.drop_over(id, open),
            None => Ok(()),
        }
    }

    /// Ends all grants of a subfile, to have the room back that they do not use.
    ///
    /// # Errors
    /// As [`DataStore::grant`]; `Io` if a process stands still in the middle of an access.
    pub fn revoke(&self, id: SubfileId) -> StoreResult<()> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        match self.opened(id, &mut state)? {
            Some(open) => self.end_holders(id, open),
            None => Ok(()),
        }
    }

    /// Takes over a holder of an earlier daemon's that is still in the middle of an access.
    ///
    /// # Errors
    /// As [`DataStore::grant`].
    pub fn adopt(&self, id: SubfileId, holder: Arc<dyn DirectClient>) -> StoreResult<()> {
        let place = self.place(id)?;
        let mut state = place.state.write();
        if let Some(open) = self.opened(id, &mut state)? {
            // Whether it reads or writes is not known here, and nobody else gets access beside a sole holder.
            open.holders.mode = Mode::Sole;
            // It has not heard of this daemon, and may write anywhere until it has left its gate.
            open.holders.closed_at.get_or_insert_with(Instant::now);
            open.holders.list.push(holder);
            open.lend_all();
            open.become_measured();
        }
        Ok(())
    }

    /// Ends all grants before an access that must not meet theirs. If that happens too often, there are none for a
    /// while.
    pub(super) fn interrupt(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        self.drop_gone(id, open)?;
        if open.holders.is_empty() {
            return Ok(());
        }
        self.end_holders(id, open)?;
        // Counted only where holders really had to end: those that had gone by themselves show no conflict.
        open.holders.take_turn();
        open.holders.several_write = false;
        Ok(())
    }

    /// Returns true if a write of the daemon's own to a range goes on beside holders, as one more who writes within
    /// their window. If not, there are none any more.
    ///
    /// Why it may: writers do not read, the kernel makes their writes one after the other, but for short places of
    /// lists, which may be mixed (S121), and the window is counted. Checksums are the exception, since a block's is of
    /// what one writer alone has made of it.
    pub(super) fn write_beside(
        &self,
        id: SubfileId,
        open: &mut OpenSubfile,
        range: &Range<u64>,
    ) -> StoreResult<bool> {
        self.drop_gone(id, open)?;
        let is_plain = !open.is_summed();
        if is_plain && open.holders.take_writers() {
            if open.holders.reach(range) || self.promise(id, open, range.clone())? {
                return Ok(true);
            }
        } else if is_plain && !open.holders.is_empty() && open.holders.mode == Mode::Sole {
            // Who was alone asks again. It will not have to end for the next write of this kind, so this is no turn.
            self.end_holders(id, open)?;
            open.holders.several_write = true;
        }
        self.interrupt(id, open)?;
        Ok(false)
    }

    pub(super) fn end_holders(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        if open.holders.is_empty() {
            return Ok(());
        }
        if !open.holders.end() {
            let cause = "a process that accesses it directly stands still; let it go on, or end it";
            return Err(self.io_error(id, "wait", std::io::Error::new(std::io::ErrorKind::TimedOut, cause)));
        }
        self.count_anew(id, open)
    }

    /// Drops holders that are over by themselves, as after a close of the file: nothing has to be waited for.
    fn drop_gone(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        if open.holders.closed_at.is_none() { self.drop_over(id, open) } else { Ok(()) }
    }

    /// Takes note of holders that are over.
    pub(super) fn drop_over(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        if open.holders.is_empty() {
            return Ok(());
        }
        open.holders.remove(|holder| holder.is_over());
        if open.holders.is_empty() { self.count_anew(id, open) } else { Ok(()) }
    }

    fn count_anew(&self, id: SubfileId, open: &mut OpenSubfile) -> StoreResult<()> {
        let marks = open.holders.forget_all();
        open.end_lending(&marks);
        self.damage.expect(id, open);
        open.end_sharing(&*self.room(id)?);
        Ok(())
    }

    /// Returns the mode of a further grant. Where it does not go together with those that there are, they end.
    fn agree(&self, id: SubfileId, open: &mut OpenSubfile, access: Access) -> StoreResult<Option<Mode>> {
        if let Some(mode) = open.holders.mode_with(access) {
            return Ok(Some(mode));
        }
        // No turn is counted: several writers go together from here on, so this conflict does not come again.
        if access == Access::Write && open.holders.mode == Mode::Sole {
            // Who was alone asks again, and both write.
            self.end_holders(id, open)?;
            return Ok(Some(Mode::Writers));
        }
        self.interrupt(id, open)?;
        Ok(open.holders.is_calm().then(|| open.holders.mode_with(access)).flatten())
    }

    /// Takes room for writes to a range, and for what is likely to follow; whether there was enough.
    fn promise(&self, id: SubfileId, open: &mut OpenSubfile, range: Range<u64>) -> StoreResult<bool> {
        if range.end > open.len_max() || range.is_empty() {
            return Ok(false);
        }
        let room = &*self.room(id)?;
        let promised = open.promise(room, range.clone(), DIRECT_AHEAD_BYTES.min(room.free() / 8));
        let Some(window) = promised.map_err(|error| self.io_error(id, "stat", error))? else {
            return Ok(false);
        };
        // What is written outside of the window is counted by nobody.
        assert!(window.start <= range.start && range.end <= window.end, "{window:?} does not have {range:?}");
        // Noted on the volume before the window is given out: after a kill these blocks are known to have no right
        // sums.
        open.lend(&window).map_err(|error| self.io_error(id, "note", error))?;
        open.holders.window = window;
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of one part is meant")]
mod tests {
    use super::*;

    #[test]
    fn marks_say_where_somebody_may_have_written() {
        let mut marks = WriteMarks::default();
        assert_eq!(marks.parts(&(0..1 << 20)), []);
        marks.add(Written::Parts { shift: 16, map: [1, 0, 0, 0] });
        marks.add(Written::Parts { shift: 16, map: [2, 0, 0, 1 << 63] });
        assert_eq!(marks.parts(&(5..100)), [5..100]);
        assert_eq!(marks.parts(&(1 << 17..1 << 20)), []);
        let all = marks.parts(&(0..(256 << 16) + 10));
        assert_eq!(all, [0..2 << 16, 255 << 16..(256 << 16) + 10], "it begins again behind the last bit");
        marks.add(Written::Parts { shift: 20, map: [4, 0, 0, 0] });
        assert_eq!(marks.parts(&(1 << 20..4 << 20)), [2 << 20..3 << 20]);
        marks.add(Written::Anywhere);
        assert_eq!(marks.parts(&(7..9)), [7..9]);
    }

    #[test]
    fn a_window_has_at_most_as_many_parts_as_bits() {
        for end in [1, 1 << 24, (1 << 24) + 1, 1 << 40] {
            let shift = shift_for(&(0..end));
            assert!(end <= 256 << shift && shift >= 16, "{end}: {shift}");
        }
    }
}
