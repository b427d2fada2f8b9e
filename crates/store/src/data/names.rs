//! Names of subfiles on a volume: `2f/000100000000002f-0005`, and `2f/000100000000002f-00030005` in partition 3.

use bivouac_types::{Ino, PartitionId, TargetIndex};

use super::SubfileId;

/// Digits of a target of the root partition, whose number is left out.
const ROOT_DIGITS: usize = 4;
/// Digits of any other target: partition and position.
const DIGITS: usize = 8;

/// Returns the directory that a subfile is in: the last two digits of the inode number, which are a counter's.
pub(super) fn dir_of(id: SubfileId) -> String {
    format!("{:02x}", id.ino.0 & 0xff)
}

pub(super) fn name_of(id: SubfileId) -> String {
    let digits = if id.target.partition() == PartitionId::ROOT { ROOT_DIGITS } else { DIGITS };
    format!("{:02x}/{:016x}-{:0digits$x}", id.ino.0 & 0xff, id.ino.0, id.target.0)
}

pub(super) fn is_dir_name(name: &str) -> bool {
    name.len() == 2 && is_hex(name)
}

/// Returns the subfile with this name in this directory; `None` if it is no name of ours.
pub(super) fn parse(volume: u16, dir: &str, name: &str) -> Option<SubfileId> {
    let (ino, target) = name.split_once('-')?;
    // The directory is compared too: a file that was moved to another one is never found by its id, and must not be
    // listed.
    if ino.len() != 16 || !is_hex(ino) || !is_hex(target) || !ino.ends_with(dir) {
        return None;
    }
    let (ino, digits) = (Ino(u64::from_str_radix(ino, 16).ok()?), target.len());
    let target = TargetIndex(u32::from_str_radix(target, 16).ok()?);
    let expected = if target.partition() == PartitionId::ROOT { ROOT_DIGITS } else { DIGITS };
    (digits == expected).then_some(SubfileId { volume, ino, target })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let id = SubfileId { volume: 3, ino: Ino(0x0001_0000_0000_002f), target: TargetIndex(5) };
        assert_eq!(name_of(id), "2f/000100000000002f-0005");
        assert_eq!(parse(3, "2f", "000100000000002f-0005"), Some(id));
        let target = TargetIndex::new(PartitionId(3), 5);
        let inside = SubfileId { target, ..id };
        assert_eq!(name_of(inside), "2f/000100000000002f-00030005");
        assert_eq!(parse(3, "2f", "000100000000002f-00030005"), Some(inside));
        assert_eq!(parse(3, "2f", "000100000000002f-00000005"), None, "one name for one subfile");
        for alien in ["000100000000002F-0005", "000100000000002e-0005", "2f-0005", "000100000000002f-5", "x"]
        {
            assert_eq!(parse(3, "2f", alien), None, "{alien}");
        }
        assert!(is_dir_name("0f") && !is_dir_name("0F") && !is_dir_name("records"));
    }
}
