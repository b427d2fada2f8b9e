//! Access to content of the node in the client's own process, without a copy.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use bivouac_types::{FsResult, Ino, TargetIndex};

use super::Content;
use crate::tokens::Access;

/// A function that sends a part of an open file: descriptor, offset in it and number of bytes. It returns true if the
/// part was sent.
pub type SendPart<'a> = dyn FnMut(BorrowedFd<'_>, u64, usize) -> bool + 'a;

/// Files of the node in the client's own process.
pub trait LocalFiles: Send + Sync {
    /// Calls `send` with this range of a subfile's data, if all of it is there as of an epoch not above `epoch`. No
    /// writer is in the subfile meanwhile. Returns true if it was sent.
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
    /// Calls `send` with content that one target of this process's node has. Returns `None` if it has to be read.
    pub(crate) fn send(
        &self,
        file: Access,
        offset: u64,
        len: usize,
        send: &mut SendPart<'_>,
    ) -> FsResult<Option<usize>> {
        let ino = file.ino;
        let Some(files) = &self.files else { return Ok(None) };
        // Before the home is asked for the size, which a read from another node does again.
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
        // A reply is spliced from one file: what lies on several targets is read.
        let (Some(range), None) = (ranges.next(), ranges.next()) else { return Ok(None) };
        let part = range.subfile_offset..range.subfile_offset + len;
        let sent = files.send_part(ino, range.target, known.epoch, part, send);
        Ok(sent.then_some(len as usize))
    }
}
