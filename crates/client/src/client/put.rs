//! Whole small files, each made by one message to the directory's home.

use std::io::IoSlice;

use bivouac_types::put::NewFile;
use bivouac_types::{Attr, FsResult, Ino};
use bivouac_wire::{PutRequest, op};

use super::{Client, OpCtx};

impl Client {
    /// Makes a file with its content, permissions and time; who asks owns it. It is not open afterwards.
    ///
    /// # Errors
    /// `EEXIST`; `EACCES` for a directory that is not theirs; `EOPNOTSUPP` where it has to be made in steps: in large
    /// directories, those that pass on their group, and in front of site storage. `ENOENT`, `ENOSPC`, `EIO`: then there may be an empty file.
    pub fn put(&self, ctx: &OpCtx, parent: Ino, file: &NewFile<'_>) -> FsResult<Attr> {
        let NewFile { name, mode, mtime, content } = *file;
        let (uid, gid, near) = (ctx.uid, ctx.gid, self.names.near_seat());
        let request = PutRequest { parent, name, mode, uid, gid, mtime, near };
        let asked = self.homes.leases.now();
        let seen = self.names.making(parent, name, || {
            let payload = [IoSlice::new(content)];
            self.homes.at_entry(parent, name, ctx.retry, |node, _| {
                self.ways.change::<op::Put>(node, ctx, &request, &payload)
            })
        })?;
        self.names.glimpses.changed(parent, 1, 0);
        Ok(self.homes.saw(asked, seen))
    }
}
