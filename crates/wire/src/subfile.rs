//! The header of a subfile: what one target holds of one file, and how the file is put together
//! again. Byte by byte in docs/format.md.

use bivouac_types::limits::{SUBFILE_HEADER_LEN, SUMMED_DATA_AT};
use bivouac_types::{FormationId, Ino, Layout, NodeId, PartitionId, Placement, TargetIndex};

use crate::TargetEntry;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = SUBFILE_HEADER_LEN as usize;
/// First bytes of every subfile.
pub const MAGIC: &[u8; 8] = b"BVKSUBF1";
/// Newest version that this release reads: that of subfiles with checksums.
pub const VERSION: u16 = 2;
/// Length of the header proper of a subfile with checksums; what is said of these follows it.
pub const SUMMED_HEADER_LEN: usize = 2048;
/// Most places that fit into a header; fewer with checksums.
pub const PLACES_MAX: usize = (HEADER_LEN - CRC_LEN - PLACES_AT) / PLACE_LEN;

/// Version of subfiles without checksums.
const PLAIN: u16 = 1;
const PLACES_AT: usize = 64;
const PLACE_LEN: usize = 4;
const CRC_LEN: usize = 4;
const FLAG_CUT: u8 = 1;

const _: () = assert!(PLACES_MAX == 1007 && SUMMED_HEADER_LEN > PLACES_AT + CRC_LEN);
const _: () = assert!(SUMMED_HEADER_LEN <= HEADER_LEN);

/// The header of a subfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubfileHeader {
    /// Formation that the file belongs to.
    pub formation: FormationId,
    /// The file.
    pub ino: Ino,
    /// The target whose part of the file this is, of the file's partition.
    pub target: TargetIndex,
    /// The layout of the file's bytes; names the partition.
    pub layout: Layout,
    /// How that was chosen.
    pub placement: Placement,
    /// Epoch of the last cut that the subfile took part in.
    pub trim_epoch: u32,
    /// The file's targets, from the base target on: the first [`PLACES_MAX`] of them, or fewer with checksums.
    pub places: Vec<TargetEntry>,
    /// True if its blocks have checksums.
    pub sums: bool,
}

/// Reason why bytes are not the header of a subfile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubfileError {
    /// Fewer bytes than a header has.
    Short,
    /// Something else than a subfile.
    Magic,
    /// Written by a newer release.
    Version(u16),
    /// Damaged.
    Checksum,
    /// A field that contradicts the others.
    Invalid(&'static str),
}

impl std::fmt::Display for SubfileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SubfileError::Short => f.write_str("shorter than a subfile header"),
            SubfileError::Magic => f.write_str("not a bivouac subfile"),
            SubfileError::Version(v) => write!(f, "subfile version {v} is newer than {VERSION}"),
            SubfileError::Checksum => f.write_str("subfile header is damaged (checksum)"),
            SubfileError::Invalid(what) => write!(f, "subfile header has an impossible {what}"),
        }
    }
}

impl std::error::Error for SubfileError {}

impl SubfileHeader {
    /// Returns the bytes that the header itself takes; those behind it are not its own.
    #[must_use]
    pub fn own_len(&self) -> usize {
        own_len(self.sums)
    }

    /// Returns the offset at which data begins in the local file.
    #[must_use]
    pub fn data_at(&self) -> u64 {
        if self.sums { SUMMED_DATA_AT } else { SUBFILE_HEADER_LEN }
    }

    /// Returns the header's bytes, of which [`SubfileHeader::own_len`] are its own. Of more places than fit the first
    /// ones are kept.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        let places_max = places_max(self.sums);
        let places = self.places.get(..places_max).unwrap_or(&self.places);
        // Of a wider file the first places are written, and the flag says that there are more.
        let cut = usize::from(self.layout.width) > places_max;
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &(if self.sums { VERSION } else { PLAIN }).to_le_bytes());
        put(10, &[placement_number(self.placement), if cut { FLAG_CUT } else { 0 }]);
        put(12, &self.target.position().to_le_bytes());
        put(14, &self.layout.base.position().to_le_bytes());
        put(16, &self.formation.0);
        put(32, &self.ino.0.to_le_bytes());
        put(40, &self.layout.stripe.to_le_bytes());
        put(44, &self.layout.width.to_le_bytes());
        put(46, &self.layout.targets.to_le_bytes());
        put(48, &u32::from(self.layout.partition().0).to_le_bytes());
        put(52, &self.trim_epoch.to_le_bytes());
        put(56, &(places.len() as u16).to_le_bytes());
        // With them a file is put together from its subfiles alone, when records and map are lost.
        for (index, place) in places.iter().enumerate() {
            put(PLACES_AT + index * PLACE_LEN, &place.node.0.to_le_bytes());
            put(PLACES_AT + index * PLACE_LEN + 2, &place.volume.to_le_bytes());
        }
        seal(&mut out, self.sums);
        out
    }

    /// Reads a header from the front of `bytes`.
    ///
    /// # Errors
    /// See [`SubfileError`]. In an accepted header layout, target and places fit together.
    pub fn from_bytes(bytes: &[u8]) -> Result<SubfileHeader, SubfileError> {
        let (bytes, _) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(SubfileError::Short)?;
        if !bytes.starts_with(MAGIC) {
            return Err(SubfileError::Magic);
        }
        let version = half(bytes, 8);
        // Before the checksum, which a newer release may have put elsewhere.
        if version > VERSION {
            return Err(SubfileError::Version(version));
        }
        let sums = version == VERSION;
        if word(bytes, own_len(sums) - CRC_LEN) != checksum(bytes, sums) {
            return Err(SubfileError::Checksum);
        }
        let header = fields(bytes, sums)?;
        header.check(half(bytes, 56), bytes[11])?;
        Ok(header)
    }

    /// Returns the position of this subfile's target among the targets of the file: stripe `k` with `k mod width` equal
    /// to it is here. `None` if the file does not use the target.
    #[must_use]
    pub fn column(&self) -> Option<u16> {
        let Layout { base, targets, width, .. } = self.layout;
        let (targets, target) = (u32::from(targets), u32::from(self.target.position()));
        // Stripes go round: a target in front of the base comes after the last one.
        let behind_base = (target + targets).checked_sub(u32::from(base.position()))?.checked_rem(targets)?;
        let same = self.target.partition() == base.partition();
        u16::try_from(behind_base).ok().filter(|column| same && *column < width)
    }

    fn check(&self, count: u16, flags: u8) -> Result<(), SubfileError> {
        self.layout.check().map_err(|_| SubfileError::Invalid("layout"))?;
        if self.target.position() >= self.layout.targets || self.column().is_none() {
            return Err(SubfileError::Invalid("target"));
        }
        let width = usize::from(self.layout.width);
        let (cut, places_max) = (flags & FLAG_CUT != 0, places_max(self.sums));
        if usize::from(count) != width.min(places_max) || cut != (width > places_max) {
            return Err(SubfileError::Invalid("number of places"));
        }
        Ok(())
    }
}

fn fields(bytes: &[u8; HEADER_LEN], sums: bool) -> Result<SubfileHeader, SubfileError> {
    let mut formation = [0u8; 16];
    formation.copy_from_slice(&bytes[16..32]);
    // One that is too large is refused later; until then, nothing behind the header may be read for it.
    let count = usize::from(half(bytes, 56)).min(places_max(sums));
    let partition = u16::try_from(word(bytes, 48)).map_err(|_| SubfileError::Invalid("partition"))?;
    let target = |position| TargetIndex::new(PartitionId(partition), position);
    let place = |index: usize| {
        let at = PLACES_AT + index * PLACE_LEN;
        TargetEntry { node: NodeId(half(bytes, at)), volume: half(bytes, at + 2) }
    };
    Ok(SubfileHeader {
        formation: FormationId(formation),
        ino: Ino(u64::from(word(bytes, 32)) | u64::from(word(bytes, 36)) << 32),
        target: target(half(bytes, 12)),
        layout: Layout {
            stripe: word(bytes, 40),
            width: half(bytes, 44),
            base: target(half(bytes, 14)),
            targets: half(bytes, 46),
        },
        placement: placement_of(bytes[10])?,
        trim_epoch: word(bytes, 52),
        places: (0..count).map(place).collect(),
        sums,
    })
}

fn own_len(sums: bool) -> usize {
    if sums { SUMMED_HEADER_LEN } else { HEADER_LEN }
}

fn places_max(sums: bool) -> usize {
    (own_len(sums) - CRC_LEN - PLACES_AT) / PLACE_LEN
}

fn placement_number(placement: Placement) -> u8 {
    match placement {
        Placement::Striped => 0,
        Placement::Local => 1,
        Placement::Hashed => 2,
    }
}

fn placement_of(number: u8) -> Result<Placement, SubfileError> {
    match number {
        0 => Ok(Placement::Striped),
        1 => Ok(Placement::Local),
        2 => Ok(Placement::Hashed),
        _ => Err(SubfileError::Invalid("placement")),
    }
}

fn checksum(bytes: &[u8; HEADER_LEN], sums: bool) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..own_len(sums) - CRC_LEN]) as u32
}

fn seal(bytes: &mut [u8; HEADER_LEN], sums: bool) {
    let crc = checksum(bytes, sums);
    bytes[own_len(sums) - CRC_LEN..own_len(sums)].copy_from_slice(&crc.to_le_bytes());
}

fn half(bytes: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn formation() -> FormationId {
        FormationId(std::array::from_fn(|i| i as u8))
    }

    fn sample() -> SubfileHeader {
        SubfileHeader {
            formation: formation(),
            ino: Ino(0x0001_0000_0000_002f),
            target: TargetIndex(0),
            layout: Layout { stripe: 1 << 20, width: 2, base: TargetIndex(3), targets: 4 },
            placement: Placement::Striped,
            trim_epoch: 7,
            places: vec![
                TargetEntry { node: NodeId(3), volume: 0 },
                TargetEntry { node: NodeId(0), volume: 0 },
            ],
            sums: false,
        }
    }

    fn resealed(mut bytes: [u8; HEADER_LEN], at: usize, value: &[u8]) -> [u8; HEADER_LEN] {
        bytes[at..at + value.len()].copy_from_slice(value);
        seal(&mut bytes, false);
        bytes
    }

    #[test]
    fn the_worked_example_of_the_format_document() {
        let bytes = sample().to_bytes();
        assert_eq!(&bytes[..16], b"BVKSUBF1\x01\x00\x00\x00\x00\x00\x03\x00");
        assert_eq!(bytes[16..32], formation().0);
        assert_eq!(
            bytes[32..48],
            [0x2f, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x10, 0, 2, 0, 4, 0],
            "inode, stripe, width, targets"
        );
        assert_eq!(bytes[48..64], [0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[64..72], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert!(bytes[72..HEADER_LEN - CRC_LEN].iter().all(|byte| *byte == 0));
        assert_eq!(SubfileHeader::from_bytes(&bytes), Ok(sample()));
        assert_eq!(sample().column(), Some(1));
    }

    #[test]
    fn a_very_wide_file_keeps_what_fits() {
        let layout = Layout { stripe: 4096, width: 2000, base: TargetIndex(0), targets: 2000 };
        let place = |k: u16| TargetEntry { node: NodeId(k), volume: k % 2 };
        let wide = SubfileHeader { layout, places: (0..2000).map(place).collect(), ..sample() };
        let bytes = wide.to_bytes();
        assert_eq!(bytes[11], FLAG_CUT);
        let back = SubfileHeader::from_bytes(&bytes).unwrap();
        assert_eq!(back.places, wide.places[..PLACES_MAX]);
        assert_eq!(back.layout, layout);
        let summed = SubfileHeader { sums: true, ..wide };
        let back = SubfileHeader::from_bytes(&summed.to_bytes()).unwrap();
        assert_eq!((back.places.len(), back.sums), (495, true));
    }

    #[test]
    fn what_follows_a_header_with_checksums_is_not_its_own() {
        let header = SubfileHeader { sums: true, ..sample() };
        let mut bytes = header.to_bytes();
        assert_eq!((bytes[8], header.data_at()), (2, SUMMED_DATA_AT));
        bytes[SUMMED_HEADER_LEN..].fill(0xaa);
        assert_eq!(SubfileHeader::from_bytes(&bytes), Ok(header));
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let good = sample().to_bytes();
        let refusal = |at, value: &[u8]| SubfileHeader::from_bytes(&resealed(good, at, value)).unwrap_err();
        assert_eq!(refusal(8, &[3, 0]), SubfileError::Version(3));
        assert_eq!(refusal(10, &[3]), SubfileError::Invalid("placement"));
        assert_eq!(refusal(11, &[1]), SubfileError::Invalid("number of places"));
        assert_eq!(refusal(12, &[1, 0]), SubfileError::Invalid("target"));
        assert_eq!(refusal(40, &[1]), SubfileError::Invalid("layout"));
        assert_eq!(refusal(50, &[1]), SubfileError::Invalid("partition"));
        assert_eq!(refusal(56, &[255, 255]), SubfileError::Invalid("number of places"));
        assert_eq!(SubfileHeader::from_bytes(&good[..4095]), Err(SubfileError::Short));
        assert_eq!(SubfileHeader::from_bytes(&[0; 5000]), Err(SubfileError::Magic));
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(sums in any::<bool>(), at in 0..HEADER_LEN, bit in 0u8..8) {
            let header = SubfileHeader { sums, ..sample() };
            let mut bytes = header.to_bytes();
            bytes[at % header.own_len()] ^= 1 << bit;
            prop_assert!(SubfileHeader::from_bytes(&bytes).is_err());
        }

        #[test]
        fn any_sealed_bytes_decode_to_something_consistent_or_fail(head in any::<[u8; 32]>(), tail in any::<[u8; 32]>()) {
            let mut bytes = [0u8; HEADER_LEN];
            bytes[..8].copy_from_slice(MAGIC);
            bytes[8] = 1;
            bytes[10..32].copy_from_slice(&head[10..]);
            let sealed = resealed(bytes, 32, &tail);
            if let Ok(header) = SubfileHeader::from_bytes(&sealed) {
                prop_assert!(header.column().is_some());
                prop_assert_eq!(SubfileHeader::from_bytes(&header.to_bytes()), Ok(header));
            }
        }

        #[test]
        fn headers_come_back(sums in any::<bool>(), ino in any::<u64>(), targets in 1u16..2000, pick in any::<(u16, u16, u16)>(), epoch in any::<u32>(), partition in any::<u16>()) {
            let width = pick.0 % targets + 1;
            let base = pick.1 % targets;
            let target = ((u32::from(base) + u32::from(pick.2 % width)) % u32::from(targets)) as u16;
            let of = |position| TargetIndex::new(PartitionId(partition), position);
            let header = SubfileHeader {
                ino: Ino(ino), target: of(target), trim_epoch: epoch, placement: Placement::Hashed,
                layout: Layout { stripe: 8192, width, base: of(base), targets },
                places: (0..width.min(places_max(sums) as u16)).map(|k| TargetEntry { node: NodeId(k), volume: 1 }).collect(),
                sums,
                ..sample()
            };
            prop_assert_eq!(header.column(), Some(pick.2 % width));
            prop_assert_eq!(SubfileHeader::from_bytes(&header.to_bytes()), Ok(header));
        }
    }
}
