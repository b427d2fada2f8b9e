//! Bytes of an open file where they lie in memory of this machine: many small places of them are then read, or written,
//! with no call and no copy for each.

use std::ops::Range;

use bivouac_types::limits::FILE_SIZE_MAX;
use bivouac_types::{FsResult, Ino};

use super::Content;
use super::direct::AccessKind;
use crate::homes::known::KnownFile;
use crate::tokens::Access;
use crate::traffic::count_content;

/// Most bytes of a stretch, since others wait while one is shown.
const STRETCH_MAX: u64 = 256 << 10;

/// Called for each stretch with its offset in the file and its bytes; returns how many of them it read or wrote. During
/// the call they are mapped, and only other writers access them. They are written only if that was asked for.
pub type ShowFn<'a> = dyn FnMut(u64, *mut [u8]) -> usize + 'a;

impl Content {
    /// Shows a range stretch by stretch, in order; how many bytes were read or written. `None` if not all of it can be
    /// shown now: it is behind the end, has holes that are read, or others access it in a way that does not go
    /// together. Then some may have been shown, and all has to be done otherwise.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it is not in memory of this machine; the rest is the same then. `EIO` when a node cannot be
    /// reached.
    pub(crate) fn show(
        &self,
        file: Access,
        wish: AccessKind,
        offset: u64,
        len: u64,
        show: &mut ShowFn<'_>,
    ) -> FsResult<Option<usize>> {
        let ino = file.ino;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX) else { return Ok(None) };
        let known = match wish {
            AccessKind::Read => self.homes.know_up_to(ino, end)?,
            AccessKind::Write => self.homes.know(ino)?,
        };
        let known = self.checked(&file, known)?;
        if end > known.size {
            return Ok(None);
        }
        let mut moved = 0;
        let shown = self.show_each(ino, &known, wish, offset..end, &mut |at, bytes| {
            moved += show(at, bytes).min(bytes.len());
        });
        // Before `shown` is looked at: what was written before an error is there.
        if wish == AccessKind::Write && moved > 0 {
            // Holes among these pages are none any more.
            self.known.fill(ino);
            self.tell_write(ino)?;
        }
        let is_shown = shown?;
        if is_shown {
            count_content(true, moved as u64);
        }
        Ok(is_shown.then_some(moved))
    }

    /// Calls `show` for each stretch. Returns true if all could be shown.
    fn show_each(
        &self,
        ino: Ino,
        known: &KnownFile,
        wish: AccessKind,
        range: Range<u64>,
        show: &mut dyn FnMut(u64, *mut [u8]),
    ) -> FsResult<bool> {
        let mut at = range.start;
        while at < range.end {
            let run = bivouac_layout::locate(&known.layout, at).run.min(STRETCH_MAX);
            let Some(part) = bivouac_layout::split(&known.layout, at, run.min(range.end - at)).next() else {
                return Ok(false);
            };
            let node = self.partitions.target_node(&part)?;
            if !self.direct.show(node, ino, &part, known.epoch, wish, &mut |bytes| show(at, bytes))? {
                return Ok(false);
            }
            assert!(part.len > 0, "inode {ino}: no bytes are shown at {at}");
            at += part.len;
        }
        Ok(true)
    }
}
