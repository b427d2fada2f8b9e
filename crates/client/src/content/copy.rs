//! Copies between files of the formation: in large pieces, with holes, and not through this process where both files
//! have the bytes on the same targets.

use bivouac_layout::TargetRange;
use bivouac_types::limits::TRANSFER_MAX;
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout};
use bivouac_wire::{Copied, CopyRequest, op};

use super::carry::Carried;
use super::publish::{OVERTAKEN_MAX, Update};
use super::space::SeekKind;
use super::{Content, finish_numbered};
use crate::homes::known::KnownFile;
use crate::tokens::Access;

/// Most bytes copied by one call, so that a program can be interrupted in between.
pub const COPY_MAX: u64 = 1 << 27;

/// A copy of a range to another place.
#[derive(Clone, Copy, Debug)]
pub struct CopyJob {
    /// The file to read.
    pub from: Ino,
    /// Offset in it.
    pub from_offset: u64,
    /// The file to write.
    pub to: Ino,
    /// Offset in it.
    pub to_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl CopyJob {
    /// Returns the part of it from its byte `at` on.
    fn part(&self, at: u64, len: u64) -> CopyJob {
        CopyJob { from_offset: self.from_offset + at, to_offset: self.to_offset + at, len, ..*self }
    }
}

impl Content {
    /// Copies a range as far as the source file has it; returns the number of bytes.
    pub(crate) fn copy(&self, copy: &CopyJob, (from, to): (Access, Access)) -> FsResult<u64> {
        let size = self.homes.attr(copy.from)?.size;
        let len = size.saturating_sub(copy.from_offset).min(copy.len).min(COPY_MAX);
        let (mut done, mut turns_left) = (0, OVERTAKEN_MAX);
        while done < len {
            match self.copy_run(&copy.part(done, len - done), (from, to)) {
                // Either the end came nearer, or data was turned into a hole since the search.
                Ok(0) if turns_left == 0 || self.homes.attr(copy.from)?.size <= copy.from_offset + done => {
                    break;
                }
                Ok(0) => turns_left -= 1,
                Ok(copied) => done += copied,
                // As `copy_file_range` does: what was copied is the answer, and the next call gets the error.
                Err(error) if done > 0 && error.errno() != Errno::ERESTART => break,
                Err(error) => return Err(error),
            }
        }
        assert!(done <= len, "{done} bytes of inode {} are copied, of {len}", copy.from);
        if from.epoch().is_some() {
            // Holes are not read as of an epoch: nobody else may have got the tokens that cover them up to now.
            self.checked(&from, self.homes.ask(copy.from)?)?;
        }
        Ok(done)
    }

    /// Copies the hole or the data at the beginning; returns its length.
    fn copy_run(&self, copy: &CopyJob, (from, to): (Access, Access)) -> FsResult<u64> {
        let at = copy.from_offset;
        let data = match self.seek(copy.from, at, SeekKind::Data) {
            Err(error) if error.errno() == Errno::ENXIO => {
                // A hole up to the end, wherever that is by now.
                self.homes.attr(copy.from)?.size.max(at)
            }
            data => data?,
        };
        let hole = (data - at).min(copy.len);
        if hole > 0 || data > at {
            return self.copy_hole(&CopyJob { len: hole, ..*copy }, to).map(|()| hole);
        }
        let end = match self.seek(copy.from, at, SeekKind::Hole) {
            Err(error) if error.errno() == Errno::ENXIO => return Ok(0),
            end => end?,
        };
        self.copy_data(&CopyJob { len: copy.len.min(end - at), ..*copy }, (from, to))
    }

    fn copy_hole(&self, copy: &CopyJob, to: Access) -> FsResult<()> {
        let (start, end) = (copy.to_offset, copy.to_offset + copy.len);
        let size = self.homes.attr(copy.to)?.size;
        // Behind the end there is nothing to punch, and the size is raised below.
        if start < size {
            self.punch(to, start..end.min(size))?;
            // Its number of holes has changed in a way that only the targets know.
            self.known.fill(copy.to);
        }
        if size >= end {
            return Ok(());
        }
        self.publish(&Update { has_bytes: false, ..Update::of(to, end) }, |_| end, |_, _| Ok(true))
    }

    fn copy_data(&self, copy: &CopyJob, files: (Access, Access)) -> FsResult<u64> {
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < copy.len {
            let part = copy.part(done, (copy.len - done).min(TRANSFER_MAX as u64));
            let copied = match self.copy_at_targets(&part, files)? {
                true => part.len,
                false => self.copy_through(&part, files, &mut buffer)?,
            };
            done += copied;
            if copied < part.len {
                break;
            }
        }
        Ok(done)
    }

    /// Copies by a read and a write.
    fn copy_through(
        &self,
        copy: &CopyJob,
        (from, to): (Access, Access),
        buffer: &mut Vec<u8>,
    ) -> FsResult<u64> {
        buffer.resize(copy.len as usize, 0);
        let read = self.read(from, copy.from_offset, buffer)?;
        self.write(to, copy.to_offset, buffer.get(..read).unwrap_or_default())?;
        Ok(read as u64)
    }

    /// Asks the targets to copy, if each byte stays on its target. Returns true if that was so and all of it was
    /// copied.
    fn copy_at_targets(&self, copy: &CopyJob, (source, file): (Access, Access)) -> FsResult<bool> {
        let from = self.checked(&source, self.homes.know(copy.from)?)?;
        let to = self.homes.know(copy.to)?;
        if !stay_on_targets(copy, &from.layout, &to.layout) || self.is_local(&to.layout) {
            return Ok(false);
        }
        // One attempt: if a truncation overtakes it, the bytes go through this process instead.
        let update = Update { tries: 1, ..Update::of(file, copy.to_offset + copy.len) };
        let carry = |to: &KnownFile, carried: &mut Carried| self.copy_ranges(copy, &from, to, carried);
        self.publish_within(&update, |_| copy.to_offset, carry)
    }

    /// Asks the targets to copy what is left. Returns false if one had a newer epoch.
    fn copy_ranges(
        &self,
        copy: &CopyJob,
        from: &KnownFile,
        to: &KnownFile,
        carried: &mut Carried,
    ) -> FsResult<bool> {
        // Bytes would have to move between targets: these copy within themselves only.
        if !stay_on_targets(copy, &from.layout, &to.layout) {
            return Ok(false);
        }
        let sources = bivouac_layout::split(&from.layout, copy.from_offset, copy.len);
        let targets = bivouac_layout::split(&to.layout, copy.to_offset, copy.len);
        let lens: Vec<u64> = targets.clone().map(|target| target.len).collect();
        let left = sources.zip(targets).enumerate().filter(|(number, _)| !carried.has(*number));
        let started = left.map(|(number, (source, target))| {
            let part = carried.part(number);
            let request = request((copy, part), &source, &target, from, to);
            let start = |node| self.connections.start::<op::CopyRange>(node, &request, &[]);
            (number, self.partitions.target_node(&target).and_then(start))
        });
        let started = started.collect();
        let judge = |number: usize, copied: &Copied, carried: &mut Carried| {
            if !copied.accepted || !copied.current {
                return Ok(false);
            }
            let part = carried.part(number).saturating_add(copied.len.into());
            if part < lens[number] {
                carried.add_part(number, copied.len.into());
                // The next attempt gets the reason why the rest is not copied.
                return Err(FsError::with(
                    Errno::EINPROGRESS,
                    format!("{part} of {} bytes are copied", lens[number]),
                ));
            }
            Ok(true)
        };
        finish_numbered::<op::CopyRange>(started, judge, carried)
    }

    /// Returns true if all targets are this process's own: a copy through it costs no message then.
    fn is_local(&self, layout: &Layout) -> bool {
        let here = |target| {
            self.partitions.target_place(target).is_ok_and(|place| Some(place.node) == self.connections.local)
        };
        self.connections.local.is_some() && bivouac_layout::targets_of(layout).all(here)
    }
}

/// Returns true if every byte's copy is on its own target.
fn stay_on_targets(copy: &CopyJob, from: &Layout, to: &Layout) -> bool {
    // The same place in a round of stripes is the same target, and the same offset in its stripe.
    let round = u64::from(to.stripe) * u64::from(to.width);
    from == to && copy.from_offset % round.max(1) == copy.to_offset % round.max(1)
}

/// Returns a target's request, without the first `part` bytes.
fn request(
    (copy, part): (&CopyJob, u64),
    source: &TargetRange,
    target: &TargetRange,
    from: &KnownFile,
    to: &KnownFile,
) -> CopyRequest {
    CopyRequest {
        from: copy.from,
        from_offset: source.subfile_offset + part,
        from_epoch: from.epoch,
        to: copy.to,
        target: target.target,
        layout: to.layout,
        epoch: to.epoch,
        offset: target.subfile_offset + part,
        len: target.len.saturating_sub(part) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::TargetIndex;

    #[test]
    fn bytes_stay_on_their_targets_if_layouts_and_places_in_the_round_agree() {
        let layout = Layout { stripe: 4096, width: 3, base: TargetIndex(1), targets: 4 };
        let copy =
            |from_offset, to_offset| CopyJob { from: Ino(1), from_offset, to: Ino(2), to_offset, len: 9 };
        assert!(stay_on_targets(&copy(5, 5), &layout, &layout));
        assert!(stay_on_targets(&copy(5, 5 + 4096 * 6), &layout, &layout));
        assert!(!stay_on_targets(&copy(5, 5 + 4096), &layout, &layout));
        assert!(!stay_on_targets(&copy(5, 5), &layout, &Layout { base: TargetIndex(2), ..layout }));
    }
}
