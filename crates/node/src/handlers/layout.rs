//! Layouts, partitions and contracts as extended attributes: `user.bivouac.layout` shows and sets,
//! `user.bivouac.partition` and `user.bivouac.contract` show.

use bivouac_types::{
    CONTRACT_XATTR, Contract, DIGEST_XATTR, Errno, FsError, FsResult, Ino, Layout, PartitionId, Placement,
    TargetIndex, check_stripe, format_contract, mode, units,
};
use bivouac_wire::Partition;

use crate::identity::is_peer;
use crate::node::Node;
use crate::record::{Inode, xattr_key};
use crate::session::Ctx;
use bivouac_session::Item;

/// Name of the attribute that shows and sets the layout.
pub const LAYOUT_XATTR: &[u8] = b"user.bivouac.layout";
/// Name of the attribute that shows the partition: its number, and its settings.
pub const PARTITION_XATTR: &[u8] = b"user.bivouac.partition";
/// The placement of a directory that leaves everything to its partition.
const OF_PARTITION: &str = "partition";

/// Placement that new files of a directory get, or that a file has; without a placement the partition decides.
type FilePlacement = (Layout, Option<Placement>);

impl Node {
    /// Returns the value of an attribute that is made from something else; `None` for any other.
    pub(super) fn made_value(&self, ctx: &Ctx<'_>, inode: &Inode, name: &[u8]) -> FsResult<Option<String>> {
        if !has_layout(inode) {
            return Ok(None);
        }
        let id = inode.attr.layout.partition();
        // Steps of the peer lane ask nobody.
        let partition = || match is_peer(ctx.client) {
            true => self.partitions.get(id).ok_or_else(|| FsError::new(Errno::ESTALE)),
            false => self.partition(id),
        };
        match name {
            LAYOUT_XATTR if id == PartitionId::ROOT => Ok(Some(describe(inode, None))),
            LAYOUT_XATTR => Ok(Some(describe(inode, Some(&*partition()?)))),
            CONTRACT_XATTR => {
                let own = inode.attr.contract;
                let effective = match own {
                    Some(own) => own,
                    None if id == PartitionId::ROOT => Contract::default(),
                    None => partition()?.settings.contract,
                };
                Ok(Some(format_contract(own, effective)))
            }
            DIGEST_XATTR if inode.attr.is_laminated() => Ok(self.kept_digest(inode.attr.ino)),
            PARTITION_XATTR if id == PartitionId::ROOT => Ok(None),
            PARTITION_XATTR => Ok(Some(format!("id={}\n{}", id.0, partition()?.settings))),
            _ => Ok(None),
        }
    }

    /// Returns the digest that was taken of a file when it was laminated, in hexadecimal digits.
    fn kept_digest(&self, ino: Ino) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.records.read(ino.slot(), &xattr_key(ino, DIGEST_XATTR), |bytes| bytes.map(hex))
    }

    /// Sets the layout of an empty file, or the default of a directory's new files.
    pub(super) fn set_layout(&self, ctx: &Ctx<'_>, ino: Ino, value: &[u8]) -> FsResult<()> {
        let _dir = self.stay(ino)?;
        let size = self.lock_size(ino)?;
        let mut inode = self.inode(ino)?;
        inode.attr.check_changeable()?;
        let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
        let said = parse(text, self.effective(&inode)?)
            .map_err(|text| FsError::with(Errno::EINVAL, format!("user.bivouac.layout: {text}")))?;
        let (layout, placement) = said;
        match inode.attr.mode & mode::TYPE {
            mode::DIR if inode.attr.is_spread() => {
                // The same lock is taken there: holding it would wait for itself.
                drop(size);
                self.set_spread(ctx, ino, |inode, now| {
                    inode.attr.layout = layout;
                    inode.placement = placement;
                    inode.attr.ctime = now;
                })
                .map(drop)
            }
            mode::DIR => {
                let mut change = self.change_at(&[ino.slot()], &[Item::Attrs(ino)])?;
                inode = change.inode(ino)?;
                // The text was read with the partition of before: a change since must not be undone by it.
                if inode.attr.layout.partition() != layout.partition() {
                    return Err(FsError::with(Errno::EBUSY, "the directory has come to another partition"));
                }
                inode.attr.layout = layout;
                inode.placement = placement;
                inode.attr.ctime = change.now;
                change.put_inode(&inode);
                change.commit_repeatable_for(ctx)
            }
            mode::FILE if inode.attr.size > 0 => Err(FsError::with(
                Errno::EBUSY,
                "layout of a file that has data: set it while the file is empty",
            )),
            mode::FILE if placement != inode.placement => {
                Err(FsError::with(Errno::EINVAL, "placement is a matter of directories: set base of a file"))
            }
            // By a cut: its new epoch refuses writers that would go by the old layout.
            mode::FILE => self.cut(ctx, &inode, 0, layout),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Returns the placement in force for an inode: the partition's, for a directory that leaves it to that.
    fn effective(&self, inode: &Inode) -> FsResult<FilePlacement> {
        let layout = inode.attr.layout;
        match (inode.placement, layout.partition()) {
            (None, id) if id != PartitionId::ROOT => {
                let partition = self.partition(id)?;
                Ok((partition.layout(), Some(partition.settings.placement)))
            }
            (placement, _) => Ok((layout, Some(placement.unwrap_or_default()))),
        }
    }
}

fn has_layout(inode: &Inode) -> bool {
    matches!(inode.attr.mode & mode::TYPE, mode::FILE | mode::DIR)
}

fn describe(inode: &Inode, partition: Option<&Partition>) -> String {
    let of_partition = partition.filter(|_| inode.placement.is_none());
    let layout = of_partition.map_or(inode.attr.layout, Partition::layout);
    let Layout { stripe, width, base, targets } = layout;
    let number = partition.map_or(String::new(), |partition| format!(" partition={}", partition.id.0));
    if !inode.attr.is_dir() {
        return format!("stripe={stripe} width={width} base={} targets={targets}{number}", base.position());
    }
    let placement = match (of_partition, inode.placement) {
        (Some(_), _) => OF_PARTITION.to_owned(),
        (None, placement) => placement.unwrap_or_default().to_string(),
    };
    format!("stripe={stripe} width={width} placement={placement}{number}")
}

/// Reads `stripe=64k width=2 placement=local`; what is not named stays as it is.
fn parse(text: &str, (mut layout, mut placement): FilePlacement) -> Result<FilePlacement, String> {
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
            "width" => layout.width = if number()? == 0 { layout.targets } else { number()? },
            "base" => layout.base = TargetIndex::new(layout.partition(), number()?),
            "targets" if number()? == layout.targets => {}
            "targets" => return Err(format!("targets={value}: there are {}", layout.targets)),
            "partition" if number()? == layout.partition().0 => {}
            "partition" => return Err(format!("partition={value}: a file stays in its partition, copy it")),
            "placement" if value == OF_PARTITION && layout.partition() != PartitionId::ROOT => {
                placement = None
            }
            "placement" => placement = Some(value.parse()?),
            _ => return Err(format!("'{key}' is none of stripe, width, base, placement")),
        }
    }
    layout.check()?;
    Ok((layout, placement))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Layout = Layout { stripe: 1 << 20, width: 4, base: TargetIndex(2), targets: 4 };
    const SAID: FilePlacement = (OLD, Some(Placement::Striped));

    #[test]
    fn layouts_are_read() {
        let (layout, placement) = parse("stripe=64k width=2", SAID).unwrap();
        assert_eq!(
            (layout.stripe, layout.width, layout.base, placement),
            (65_536, 2, TargetIndex(2), Some(Placement::Striped))
        );
        assert_eq!(parse("placement=local,width=0\0", SAID), Ok((OLD, Some(Placement::Local))));
        let inside = Layout { base: TargetIndex::new(PartitionId(7), 2), ..OLD };
        let base = |text| parse(text, (inside, None)).map(|(layout, placement)| (layout.base, placement));
        assert_eq!(base("base=1 partition=7"), Ok((TargetIndex::new(PartitionId(7), 1), None)));
        assert_eq!(base("placement=hashed placement=partition"), Ok((inside.base, None)));
    }

    #[test]
    fn bad_layouts_are_refused_by_name() {
        let refusal = |text| parse(text, SAID).unwrap_err();
        assert!(refusal("width=5").contains("width 5"));
        assert!(refusal("stripe=5000").contains("5000"));
        assert!(refusal("colour=red").contains("colour"));
        assert!(refusal("stripe").contains("key=value"));
        assert!(refusal("targets=9").contains("there are 4"));
        assert!(refusal("partition=1").contains("copy it"));
        assert!(refusal("placement=partition").contains("none of striped, local, hashed"));
    }

    #[test]
    fn whatever_is_written_is_read_or_refused() {
        let seeds = ["stripe=64k width=2 placement=local", "base=1,targets=4\n", "width=0 stripe=1m"];
        let seeds = seeds.map(|seed| seed.as_bytes().to_vec()).to_vec();
        crate::mutate::Mutator::new(seeds).each(100_000, |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok((layout, _)) = parse(text, SAID) {
                assert_eq!((layout.check(), layout.targets), (Ok(()), OLD.targets));
            }
        });
    }
}
