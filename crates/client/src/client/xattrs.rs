//! Extended attributes.

use bivouac_types::{FsResult, Ino};
use bivouac_wire::{InoOnly, SetXattrRequest, XattrName, op};

use super::{Client, OpCtx};

impl Client {
    /// Value of an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP` for access control lists, `ENOENT`, `EIO`.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        Ok(self.ways.ask::<op::GetXattr>(self.ways.home(ino)?, &XattrName { ino, name })?.bytes)
    }

    /// Names of all attributes, each with a NUL behind it.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.ways.ask::<op::ListXattr>(self.ways.home(ino)?, &InoOnly { ino })?.bytes)
    }

    /// Sets an attribute; `flags` are the kernel's.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` as the flags ask; `E2BIG`, `ENOSPC`, `EINVAL` for a layout that cannot be, `EIO`.
    pub fn setxattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> FsResult<()> {
        let request = SetXattrRequest { ino, name, value, flags };
        let home = self.ways.home(ino)?;
        self.names.room.when_there_is(|| self.ways.change::<op::SetXattr>(home, ctx, &request, &[]))
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `ENOENT`, `EIO`.
    pub fn removexattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8]) -> FsResult<()> {
        self.ways.change::<op::RemoveXattr>(self.ways.home(ino)?, ctx, &XattrName { ino, name }, &[])
    }
}
