//! Attributes that change at a source without content: mode, owner and extended attributes.

use std::ops::ControlFlow;

use bivouac_source::Meta;
use bivouac_types::{DIGEST_XATTR, FsResult, Ino, Timestamp, mode};

use crate::node::Node;
use crate::record::{act_key, xattr_key};

impl Node {
    /// Gives an inode of which nothing is only here the attributes that its source had after `asked`, unless it was
    /// changed here since then. Returns true if it has them. Extended attributes that could not be read there stay as
    /// they are here.
    pub(super) fn take_attrs(&self, ino: Ino, there: &Meta, asked: Timestamp) -> FsResult<bool> {
        let attr = self.inode(ino)?.attr;
        let (there, takes_xattrs) = (&there.attrs, !there.hides_xattrs);
        let is_same = (attr.mode & mode::PERM, attr.uid, attr.gid) == (there.perm, there.uid, there.gid)
            && (!takes_xattrs || without_digest(&self.user_xattrs(ino)) == without_digest(&there.xattrs));
        // Spread directories get theirs by `set_spread` only, which tells their shards.
        if is_same || attr.is_laminated() || attr.is_spread() {
            return Ok(true);
        }
        let _quiet = self.recall_attr_leases(ino);
        let mut change = self.change_of(ino)?;
        let mut inode = change.inode(ino)?;
        let file = change.site_file(ino)?.filter(|file| !file.is_unsaved() && file.origin.is_some());
        let is_changing = change.txn.get(ino.slot(), &act_key(ino)).is_some() || self.is_being_flushed(ino);
        let Some(file) = file.filter(|_| !is_changing && inode.attr.ctime < asked) else { return Ok(false) };
        inode.attr.mode = inode.attr.mode & mode::TYPE | there.perm;
        (inode.attr.uid, inode.attr.gid, inode.attr.ctime) = (there.uid, there.gid, change.now);
        let digest = xattr_key(ino, DIGEST_XATTR);
        for key in change.keys_below(ino.slot(), &xattr_key(ino, b"user.")) {
            if takes_xattrs && key != digest {
                change.txn.delete(ino.slot(), &key);
            }
        }
        for (name, value) in without_digest(&there.xattrs) {
            change.txn.put(ino.slot(), &xattr_key(ino, &name), &value);
        }
        change.put_inode(&inode);
        // It is what it is there.
        change.put_site_file(ino, &file);
        change.commit().map(|()| true)
    }

    /// Returns the extended attributes of users that an inode has here.
    pub(super) fn user_xattrs(&self, ino: Ino) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (prefix, mut found) = (xattr_key(ino, b""), Vec::new());
        self.records.scan(ino.slot(), &prefix, &prefix, |key, value| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            if name.starts_with(b"user.") {
                found.push((name.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        });
        found
    }
}

/// Returns all but the digest, which is one that was taken here; by name.
fn without_digest(xattrs: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found: Vec<_> = xattrs.iter().filter(|(name, _)| name != DIGEST_XATTR).cloned().collect();
    found.sort();
    found
}
