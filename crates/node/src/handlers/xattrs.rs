//! Extended attributes. `user.bivouac.layout`, `user.bivouac.partition` and `user.bivouac.contract` are not kept, but
//! made from what they show.

use std::ops::ControlFlow;

use bivouac_types::limits::{NAME_LEN_MAX, XATTR_LIST_LEN_MAX, XATTR_VALUE_LEN_MAX};
use bivouac_types::{CONTRACT_XATTR, DIGEST_XATTR, Errno, FsError, FsResult, Ino};
use bivouac_wire::{Blob, InoOnly, SetXattrRequest, XattrName, op};

use super::layout::{LAYOUT_XATTR, PARTITION_XATTR};
use crate::node::Node;
use crate::record::xattr_key;
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

/// Prefixes that names of extended attributes may have.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// `XATTR_CREATE` of the kernel.
const CREATE: u32 = 1;
/// `XATTR_REPLACE` of the kernel.
const REPLACE: u32 = 2;

impl Handle for op::GetXattr {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: XattrName<'_>) -> FsResult<Blob> {
        check_name(request.name)?;
        let inode = node.inode(request.ino)?;
        if let Some(text) = node.made_value(ctx, &inode, request.name)? {
            return Ok(Blob { bytes: text.into_bytes() });
        }
        // It is kept as bytes, of laminated files only.
        if request.name == DIGEST_XATTR {
            return Err(Errno::ENODATA.into());
        }
        let key = xattr_key(request.ino, request.name);
        let value = node.records.read(request.ino.slot(), &key, |bytes| bytes.map(<[u8]>::to_vec));
        value.map(|bytes| Blob { bytes }).ok_or_else(|| Errno::ENODATA.into())
    }
}

impl Handle for op::ListXattr {
    fn handle(node: &Node, _: &Ctx<'_>, InoOnly { ino }: InoOnly) -> FsResult<Blob> {
        node.inode(ino)?;
        // Without the layout: programs that copy attributes set them when a file has its content, and then fail.
        Ok(Blob { bytes: node.xattr_names(ino) })
    }
}

impl Handle for op::SetXattr {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetXattrRequest<'_>) -> FsResult<()> {
        check_name(request.name)?;
        if request.value.len() > XATTR_VALUE_LEN_MAX {
            return Err(Errno::E2BIG.into());
        }
        if request.name == PARTITION_XATTR {
            let text = "partitions are changed with `bivouac partition set`";
            return Err(FsError::with(Errno::EPERM, text));
        }
        if request.name == CONTRACT_XATTR {
            return Err(FsError::with(Errno::EPERM, "contracts are changed by an operation of their own"));
        }
        if request.name == DIGEST_XATTR {
            return Err(FsError::with(Errno::EPERM, "the digest of a file is taken when it is laminated"));
        }
        if request.name == LAYOUT_XATTR {
            return node.set_layout(ctx, request.ino, request.value);
        }
        node.with_room_for_names(ctx, || node.set_xattr(ctx, &request))
    }
}

impl Node {
    fn set_xattr(&self, ctx: &Ctx<'_>, request: &SetXattrRequest<'_>) -> FsResult<()> {
        let (ino, slot) = (request.ino, request.ino.slot());
        self.check_slot(slot)?;
        let mut change = self.change_at(&[slot], &[Item::Attrs(ino)])?;
        // Not before that has waited: a first try may have been done meanwhile.
        if ctx.done_within(&change.txn, slot)?.is_some() {
            return Ok(());
        }
        let mut inode = change.inode(ino)?;
        let key = xattr_key(ino, request.name);
        check_flags(change.txn.get(slot, &key).is_some(), request.flags)?;
        change.txn.must_fit();
        change.txn.put(slot, &key, request.value);
        let mut names = 0;
        change.txn.scan(slot, &xattr_key(ino, b""), &xattr_key(ino, b""), |key, _| {
            names += key.len();
            ControlFlow::Continue(())
        });
        // Linux refuses to list more, and with that every name of the inode.
        if names > XATTR_LIST_LEN_MAX {
            return Err(Errno::ENOSPC.into());
        }
        inode.attr.ctime = change.now;
        change.put_inode(&inode);
        change.commit_for(ctx, slot, 0)
    }
}

impl Handle for op::RemoveXattr {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: XattrName<'_>) -> FsResult<()> {
        check_name(request.name)?;
        if request.name == DIGEST_XATTR {
            return Err(FsError::with(
                Errno::EPERM,
                "the digest of a laminated file stays as long as it is that",
            ));
        }
        let (ino, slot) = (request.ino, request.ino.slot());
        node.check_slot(slot)?;
        let mut change = node.change_at(&[slot], &[Item::Attrs(ino)])?;
        if ctx.done_within(&change.txn, slot)?.is_some() {
            return Ok(());
        }
        let mut inode = change.inode(ino)?;
        let key = xattr_key(ino, request.name);
        if change.txn.get(slot, &key).is_none() {
            let refusal = if [LAYOUT_XATTR, PARTITION_XATTR, CONTRACT_XATTR].contains(&request.name) {
                Errno::EPERM
            } else {
                Errno::ENODATA
            };
            return Err(refusal.into());
        }
        change.txn.delete(slot, &key);
        inode.attr.ctime = change.now;
        change.put_inode(&inode);
        change.commit_for(ctx, slot, 0)
    }
}

/// Checks the flags of `setxattr` for an attribute that is there, or is not.
pub fn check_flags(is_there: bool, flags: u32) -> FsResult<()> {
    match (is_there, flags) {
        (true, CREATE) => Err(Errno::EEXIST.into()),
        (false, REPLACE) => Err(Errno::ENODATA.into()),
        (_, 0 | CREATE | REPLACE) => Ok(()),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn check_name(name: &[u8]) -> FsResult<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    if name.len() > NAME_LEN_MAX {
        return Err(Errno::ERANGE.into());
    }
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        // Access control lists are not kept: refusing them tells tools to fall back to modes.
        None => Err(Errno::EOPNOTSUPP.into()),
        Some(b"") => Err(Errno::EINVAL.into()),
        Some(_) => Ok(()),
    }
}

impl Node {
    fn xattr_names(&self, ino: Ino) -> Vec<u8> {
        let (prefix, mut names) = (xattr_key(ino, b""), Vec::new());
        self.records.scan(ino.slot(), &prefix, &prefix, |key, _| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            // A copy of the file is not laminated.
            if name != DIGEST_XATTR {
                names.extend_from_slice(name);
                names.push(0);
            }
            ControlFlow::Continue(())
        });
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(check_name(b"user.x"), Ok(()));
        assert_eq!(check_name(b"").map_err(|e| e.errno()), Err(Errno::EINVAL));
        assert_eq!(check_name(&[b'u'; 256]).map_err(|e| e.errno()), Err(Errno::ERANGE));
        assert_eq!(check_name(b"system.posix_acl_access").map_err(|e| e.errno()), Err(Errno::EOPNOTSUPP));
        assert_eq!(check_name(b"plain").map_err(|e| e.errno()), Err(Errno::EOPNOTSUPP));
        assert_eq!(check_name(b"user.").map_err(|e| e.errno()), Err(Errno::EINVAL));
    }
}
