//! Content that the node in the client's own process has, without a copy of its own.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use bivouac_types::{FsResult, Ino, TargetIndex};

use super::Content;
use crate::tokens::Access;

/// Sends a part of an open file: descriptor, offset in it and number of bytes. Whether it did.
pub type SendPart<'a> = dyn FnMut(BorrowedFd<'_>, u64, usize) -> bool + 'a;

/// What the node in the client's own process has of files.
pub trait LocalFiles: Send + Sync {
    /// Has `send` send this range of a subfile's data, if all of it is there, as of an epoch that is not above
    /// `epoch`. Nobody writes to the subfile meanwhile. Whether it was sent.
    fn send_part(
        &self,
        ino: Ino,
        target: TargetIndex,
        epoch: u32,
        range: Range<u64>,
        send: &mut SendPart<'_>,
    ) -> bool;
}

impl Content {
    /// Has `send` send what is in one place of this process's node. `None` if it has to be read.
    pub(crate) fn send(
        &self,
        file: Access,
        offset: u64,
        len: usize,
        send: &mut SendPart<'_>,
    ) -> FsResult<Option<usize>> {
        let ino = file.ino;
        let Some(files) = &self.files else { return Ok(None) };
        // Before the home is asked for the size: who reads from another node asks it again.
        let first = bivouac_layout::split(&self.homes.know(ino)?.layout, offset, 1).next();
        if first.map(|range| self.partitions.target_node(&range)).transpose()? != self.connections.local {
            return Ok(None);
        }
        let known = self.checked(&file, self.homes.know_up_to(ino, offset.saturating_add(len as u64))?)?;
        let len = known.size.saturating_sub(offset).min(len as u64);
        if len == 0 {
            return Ok(Some(0));
        }
        let mut ranges = bivouac_layout::split(&known.layout, offset, len);
        let (Some(range), None) = (ranges.next(), ranges.next()) else { return Ok(None) };
        let part = range.subfile_offset..range.subfile_offset + len;
        let sent = files.send_part(ino, range.target, known.epoch, part, send);
        Ok(sent.then_some(len as usize))
    }
}
