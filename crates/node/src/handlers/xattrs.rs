//! Extended attributes. `user.bivouac.layout` is made from the layout itself.

use std::ops::ControlFlow;

use bivouac_types::limits::{NAME_LEN_MAX, XATTR_LIST_LEN_MAX, XATTR_VALUE_LEN_MAX};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, Placement, SeatIndex, check_stripe, mode, units};
use bivouac_wire::{Blob, InoOnly, SetXattrRequest, XattrName, op};

use crate::dispatch::Handle;
use crate::locks::Target;
use crate::node::Node;
use crate::record::{Inode, xattr_key};
use crate::session::Ctx;

/// Name of the attribute that shows and sets the layout.
pub const LAYOUT_XATTR: &[u8] = b"user.bivouac.layout";
/// What names may begin with.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// `XATTR_CREATE` of the kernel.
const CREATE: u32 = 1;
/// `XATTR_REPLACE` of the kernel.
const REPLACE: u32 = 2;

impl Handle for op::GetXattr {
    fn handle(node: &Node, _: &Ctx<'_>, request: XattrName<'_>) -> FsResult<Blob> {
        check_name(request.name)?;
        let inode = node.inode(request.ino)?;
        if request.name == LAYOUT_XATTR && has_layout(&inode) {
            return Ok(Blob { bytes: describe(&inode).into_bytes() });
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
        if request.name == LAYOUT_XATTR {
            return node.set_layout(ctx, request.ino, request.value);
        }
        let (ino, slot) = (request.ino, request.ino.slot());
        node.check_slot(slot)?;
        if ctx.done_before(&node.records, slot)?.is_some() {
            return Ok(());
        }
        let mut change = node.change(&[slot])?;
        let mut inode = change.inode(ino)?;
        let key = xattr_key(ino, request.name);
        match (change.txn.get(slot, &key).is_some(), request.flags) {
            (true, CREATE) => return Err(Errno::EEXIST.into()),
            (false, REPLACE) => return Err(Errno::ENODATA.into()),
            (_, 0 | CREATE | REPLACE) => {}
            _ => return Err(Errno::EINVAL.into()),
        }
        change.txn.must_fit();
        change.txn.put(slot, &key, request.value);
        let mut names = 0;
        change.txn.scan(slot, &xattr_key(ino, b""), &xattr_key(ino, b""), |key, _| {
            names += key.len();
            ControlFlow::Continue(())
        });
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
        let (ino, slot) = (request.ino, request.ino.slot());
        node.check_slot(slot)?;
        if ctx.done_before(&node.records, slot)?.is_some() {
            return Ok(());
        }
        let mut change = node.change(&[slot])?;
        let mut inode = change.inode(ino)?;
        let key = xattr_key(ino, request.name);
        if change.txn.get(slot, &key).is_none() {
            let refusal = if request.name == LAYOUT_XATTR { Errno::EPERM } else { Errno::ENODATA };
            return Err(refusal.into());
        }
        change.txn.delete(slot, &key);
        inode.attr.ctime = change.now;
        change.put_inode(&inode);
        change.commit_for(ctx, slot, 0)
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

fn has_layout(inode: &Inode) -> bool {
    matches!(inode.attr.mode & mode::TYPE, mode::FILE | mode::DIR)
}

fn describe(inode: &Inode) -> String {
    let Layout { stripe, width, base, seats } = inode.attr.layout;
    let placement = match inode.placement {
        Placement::Striped => "striped",
        Placement::Local => "local",
        Placement::Hashed => "hashed",
    };
    match inode.attr.is_dir() {
        true => format!("stripe={stripe} width={width} placement={placement}"),
        false => format!("stripe={stripe} width={width} base={} seats={seats}", base.0),
    }
}

impl Node {
    fn xattr_names(&self, ino: Ino) -> Vec<u8> {
        let (prefix, mut names) = (xattr_key(ino, b""), Vec::new());
        self.records.scan(ino.slot(), &prefix, &prefix, |key, _| {
            names.extend_from_slice(key.get(prefix.len()..).unwrap_or_default());
            names.push(0);
            ControlFlow::Continue(())
        });
        names
    }

    /// Sets the layout of an empty file, or the default of a directory's new files.
    fn set_layout(&self, ctx: &Ctx<'_>, ino: Ino, value: &[u8]) -> FsResult<()> {
        let size = self.locks.lock(Target::Size(ino))?;
        let mut inode = self.inode(ino)?;
        let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
        let (layout, placement) = parse(text, inode.attr.layout, inode.placement)
            .map_err(|text| FsError::with(Errno::EINVAL, format!("{}: {text}", "user.bivouac.layout")))?;
        match inode.attr.mode & mode::TYPE {
            mode::DIR if inode.attr.is_spread() => {
                drop(size);
                self.set_spread(ctx, ino, |inode, now| {
                    inode.attr.layout = layout;
                    inode.placement = placement;
                    inode.attr.ctime = now;
                })
                .map(drop)
            }
            mode::DIR => {
                let mut change = self.change(&[ino.slot()])?;
                inode = change.inode(ino)?;
                inode.attr.layout = layout;
                inode.placement = placement;
                inode.attr.ctime = change.now;
                change.put_inode(&inode);
                change.commit()
            }
            mode::FILE if inode.attr.size > 0 => Err(FsError::with(
                Errno::EBUSY,
                "layout of a file that has data: set it while the file is empty",
            )),
            mode::FILE if placement != inode.placement => {
                Err(FsError::with(Errno::EINVAL, "placement is a matter of directories: set base of a file"))
            }
            mode::FILE => self.cut(ctx, &inode, 0, layout),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

/// Reads `stripe=64k width=2 placement=local`; what is not named stays as it is.
fn parse(text: &str, mut layout: Layout, mut placement: Placement) -> Result<(Layout, Placement), String> {
    for word in text.trim_end_matches('\0').split([' ', ',', '\n']).filter(|word| !word.is_empty()) {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("'{word}' is not of the form key=value"))?;
        let number = || value.parse::<u16>().map_err(|_| format!("{key}={value} is not a small number"));
        match key {
            "stripe" => {
                let stripe = units::parse_size(value)?;
                check_stripe(stripe)?;
                layout.stripe = stripe as u32;
            }
            "width" => layout.width = if number()? == 0 { layout.seats } else { number()? },
            "base" => layout.base = SeatIndex(number()?),
            "seats" if number()? == layout.seats => {}
            "seats" => return Err(format!("seats={value}: the formation has {}", layout.seats)),
            "placement" => {
                placement = match value {
                    "striped" => Placement::Striped,
                    "local" => Placement::Local,
                    "hashed" => Placement::Hashed,
                    _ => return Err(format!("placement={value} is none of striped, local, hashed")),
                }
            }
            _ => return Err(format!("'{key}' is none of stripe, width, base, placement")),
        }
    }
    layout.check()?;
    Ok((layout, placement))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Layout = Layout { stripe: 1 << 20, width: 4, base: SeatIndex(2), seats: 4 };

    #[test]
    fn layouts_are_read() {
        let (layout, placement) = parse("stripe=64k width=2", OLD, Placement::Striped).unwrap();
        assert_eq!(
            (layout.stripe, layout.width, layout.base, placement),
            (65_536, 2, SeatIndex(2), Placement::Striped)
        );
        let (layout, placement) = parse("placement=local,width=0\0", OLD, Placement::Striped).unwrap();
        assert_eq!((layout, placement), (OLD, Placement::Local));
    }

    #[test]
    fn bad_layouts_are_refused_by_name() {
        let refusal = |text| parse(text, OLD, Placement::Striped).unwrap_err();
        assert!(refusal("width=5").contains("width 5"));
        assert!(refusal("stripe=5000").contains("5000"));
        assert!(refusal("colour=red").contains("colour"));
        assert!(refusal("stripe").contains("key=value"));
        assert!(refusal("seats=9").contains("has 4"));
    }

    #[test]
    fn whatever_is_written_is_read_or_refused() {
        let seeds = ["stripe=64k width=2 placement=local", "base=1,seats=4\n", "width=0 stripe=1m"];
        let seeds = seeds.map(|seed| seed.as_bytes().to_vec()).to_vec();
        crate::mutate::Mutator::new(seeds).each(100_000, |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok((layout, _)) = parse(text, OLD, Placement::Striped) {
                assert_eq!((layout.check(), layout.seats), (Ok(()), OLD.seats));
            }
        });
    }

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
