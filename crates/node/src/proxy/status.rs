//! The state of an inode at site storage, at its home.

use bivouac_types::{Errno, FsResult, Ino};
use bivouac_wire::{InoOnly, Whence, op};

use crate::identity::SYSTEM;
use crate::node::Node;
use crate::peers::StepContext;
use crate::record::SiteFile;

impl Node {
    /// Returns whence the content of a file may have to be brought; of a directory, what it is at site storage.
    pub(crate) fn whence(&self, ino: Ino) -> FsResult<Whence> {
        let layout = self.inode(ino)?.attr.layout;
        let file = self.site_file(ino)?.unwrap_or_else(SiteFile::new_here);
        Ok(Whence { origin: file.origin, limit: file.limit, layout, pin: file.pin })
    }

    /// Checks that a directory may get another path: not if site storage has it, since all below it would have to move
    /// there as well.
    ///
    /// # Errors
    /// `EXDEV` when it may not: programs copy then.
    pub(crate) fn check_movable(&self, dir: Ino) -> FsResult<()> {
        // Without any source the question, which may go to another node, is spared.
        if !self.partitions.all().iter().any(|partition| partition.settings.source.is_some()) {
            return Ok(());
        }
        let (home, steps) = (self.home_of(dir)?, StepContext::question(SYSTEM));
        match self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: dir })?.origin {
            Some(_) => Err(Errno::EXDEV.into()),
            None => Ok(()),
        }
    }
}
