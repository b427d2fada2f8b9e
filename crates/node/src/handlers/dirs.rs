//! `ReadDir`.

use std::ops::ControlFlow;

use bivouac_types::limits::READDIR_BYTES_MAX;
use bivouac_types::{Attr, Errno, FsResult};
use bivouac_wire::{Decode, DirEntry, DirPage, ReadDirRequest, op};

use crate::dispatch::Handle;
use crate::namespace::entry_slot;
use crate::node::Node;
use crate::record::{Dentry, dentry_from, dentry_of_key, dentry_prefix};
use crate::session::Ctx;

/// Bytes of an encoded entry besides name and attributes.
const ENTRY_LEN: usize = 8 + 4 + 8 + 4 + 1;
/// Upper bound of encoded attributes, in bytes.
const ATTR_LEN: usize = size_of::<Attr>();

impl Handle for op::ReadDir {
    fn handle(node: &Node, _: &Ctx<'_>, request: ReadDirRequest) -> FsResult<DirPage> {
        if !node.inode(request.ino)?.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let mut page = node.entries(&request);
        if request.attrs {
            page.entries.iter_mut().for_each(|entry| entry.attr = node.attr_at_hand(entry));
        }
        Ok(page)
    }
}

impl Node {
    fn entries(&self, request: &ReadDirRequest) -> DirPage {
        let room = (request.max_bytes as usize).min(READDIR_BYTES_MAX);
        let each = ENTRY_LEN + if request.attrs { ATTR_LEN } else { 0 };
        let from = dentry_from(request.ino, request.cookie.saturating_add(1));
        let mut page = DirPage { entries: Vec::new(), end: true };
        let mut used = 0;
        self.records.scan(entry_slot(request.ino), &from, &dentry_prefix(request.ino), |key, value| {
            let (Some((cookie, name)), Ok(dentry)) = (dentry_of_key(key), Dentry::from_bytes(value)) else {
                log::error!("an entry of directory {} is damaged and left out", request.ino);
                return ControlFlow::Continue(());
            };
            used += each + name.len();
            // Names with one hash have one cookie: they must not be torn apart.
            let torn = page.entries.last().is_some_and(|last: &DirEntry| last.cookie == cookie);
            if used > room && !page.entries.is_empty() && !torn {
                page.end = false;
                return ControlFlow::Break(());
            }
            let Dentry { ino, kind } = dentry;
            page.entries.push(DirEntry { ino, kind, cookie, name: name.to_vec(), attr: None });
            ControlFlow::Continue(())
        });
        page
    }

    fn attr_at_hand(&self, entry: &DirEntry) -> Option<Attr> {
        if self.map.home(entry.ino) == Some(self.id) { Some(self.inode(entry.ino).ok()?.attr) } else { None }
    }
}
