//! Parts of files that changes concern.

use std::collections::BTreeMap;
use std::ops::Range;

use bivouac_wire::{SuspectPart, VolumeChange};

/// Position of a volume on its node, and the name of a file on it.
pub(super) type FileKey = (u16, String);

/// Parts of files in which a replica may differ: of each file one range that holds them all.
#[derive(Debug, Default)]
pub(super) struct Suspects(BTreeMap<FileKey, Range<u64>>);

impl Suspects {
    /// Adds a part.
    pub fn add(&mut self, part: SuspectPart) {
        let range = part.start..part.end;
        let known = self.0.entry((part.volume, part.name)).or_insert_with(|| range.clone());
        *known = known.start.min(range.start)..known.end.max(range.end);
    }

    /// Adds what a change concerns.
    pub fn add_change(&mut self, volume: u16, change: &VolumeChange) {
        parts_of(volume, change).into_iter().for_each(|part| self.add(part));
    }

    /// Returns all of them.
    pub fn parts(&self) -> Vec<SuspectPart> {
        let part = |((volume, name), range): (&FileKey, &Range<u64>)| SuspectPart {
            volume: *volume,
            name: name.clone(),
            start: range.start,
            end: range.end,
        };
        self.0.iter().map(part).collect()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the parts of files that may differ when a change was made on one side alone.
pub(super) fn parts_of(volume: u16, change: &VolumeChange) -> Vec<SuspectPart> {
    let part = |name: &String, range: Range<u64>| SuspectPart {
        volume,
        name: name.clone(),
        start: range.start,
        end: range.end,
    };
    let all = 0..u64::MAX;
    match change {
        VolumeChange::Create { name } | VolumeChange::Remove { name } => vec![part(name, all)],
        VolumeChange::Rename { from, to } => vec![part(from, all.clone()), part(to, all)],
        VolumeChange::Write { name, extents } => {
            let start = extents.first().map_or(0, |(offset, _)| *offset);
            let end = extents.last().map_or(0, |(offset, len)| offset.saturating_add(u64::from(*len)));
            vec![part(name, start..end)]
        }
        // What is cut off at one side is there at the other.
        VolumeChange::SetLen { name, len } => vec![part(name, *len..u64::MAX)],
        VolumeChange::Grow { name, len } => vec![part(name, *len..*len)],
        VolumeChange::Punch { name, start, end } => vec![part(name, *start..*end)],
        VolumeChange::MakeDir { .. }
        | VolumeChange::Allocate { .. }
        | VolumeChange::Sync { .. }
        | VolumeChange::SyncDir { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_become_one() {
        let mut suspects = Suspects::default();
        let write =
            |extents: &[(u64, u32)]| VolumeChange::Write { name: "f".into(), extents: extents.to_vec() };
        suspects.add_change(1, &write(&[(10, 5), (30, 5)]));
        suspects.add_change(1, &write(&[(5, 1)]));
        suspects.add_change(1, &VolumeChange::Sync { name: "g".into() });
        suspects.add_change(0, &VolumeChange::SetLen { name: "f".into(), len: 7 });
        let part = |volume, start, end| SuspectPart { volume, name: "f".into(), start, end };
        assert_eq!(suspects.parts(), [part(0, 7, u64::MAX), part(1, 5, 35)]);
        suspects.clear();
        assert!(suspects.parts().is_empty());
    }
}
