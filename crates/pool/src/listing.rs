//! Listing of a pool's directory with names, sizes and times, for comparison.

use std::collections::BTreeMap;

/// Entries up to which they are kept one by one.
const KEPT_MAX: u64 = 100_000;

/// An entry of a directory tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// True for a regular file, false for a symbolic link.
    pub is_file: bool,
    /// Bytes.
    pub size: u64,
    /// Modification time: seconds since 1970, and nanoseconds.
    pub changed: (i64, u32),
}

/// All entries of a tree but directories.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    hasher: blake3::Hasher,
    entries: u64,
    kept: BTreeMap<Vec<u8>, Entry>,
}

/// Difference between two listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Entries that were not there.
    pub added: u64,
    /// Entries with another size or time.
    pub changed: u64,
    /// Entries that are not there any more.
    pub removed: u64,
}

impl Listing {
    /// Adds an entry by its path below the tree. Entries come in a fixed order.
    pub fn add(&mut self, path: &[u8], entry: Entry) {
        let mut row = Vec::with_capacity(path.len() + 32);
        write(&mut row, path, &entry);
        self.hasher.update(&row);
        self.entries += 1;
        if entry.is_file {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(entry.size);
        }
        if self.entries <= KEPT_MAX {
            self.kept.insert(path.to_vec(), entry);
        } else {
            // Too many to be compared later: a part of them would be of no use.
            self.kept.clear();
        }
        assert!(self.files <= self.entries, "{} of {} entries are files", self.files, self.entries);
        assert!(self.kept.len() as u64 <= self.entries.min(KEPT_MAX), "{} entries are kept", self.kept.len());
    }

    /// Returns a digest of names, sizes and times; contents are not read.
    #[must_use]
    pub fn digest(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }

    /// Returns the entries, to compare a later one with; nothing where there are too many.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.kept.iter().for_each(|(path, entry)| write(&mut bytes, path, entry));
        bytes
    }

    /// Returns the difference from an earlier listing, given its number of entries and the bytes of
    /// [`Listing::to_bytes`]; `None` if one of the two was too large to store.
    pub(crate) fn since(&self, entries: u64, bytes: &[u8]) -> Option<Difference> {
        let mut before = BTreeMap::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (path, entry) = read(&mut rest)?;
            before.insert(path, entry);
        }
        // Counted before the loop takes them out.
        let known = before.len() as u64;
        let is_whole = known == entries && self.kept.len() as u64 == self.entries;
        let mut difference = Difference::default();
        for (path, entry) in &self.kept {
            match before.remove(path) {
                None => difference.added += 1,
                Some(known) => difference.changed += u64::from(known != *entry),
            }
        }
        difference.removed = before.len() as u64;
        assert_eq!(
            self.kept.len() as u64 + difference.removed,
            known + difference.added,
            "a path was neither there before, nor added, nor removed"
        );
        is_whole.then_some(difference)
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }
}

/// Writes an entry: `u32` length of the path and the path, `u8` whether it is a file, `u64` size, `i64` seconds, `u32`
/// nanoseconds; little-endian.
fn write(out: &mut Vec<u8>, path: &[u8], entry: &Entry) {
    out.extend(u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(path);
    out.push(u8::from(entry.is_file));
    out.extend(entry.size.to_le_bytes());
    out.extend(entry.changed.0.to_le_bytes());
    out.extend(entry.changed.1.to_le_bytes());
}

fn read(bytes: &mut &[u8]) -> Option<(Vec<u8>, Entry)> {
    let len = u32::from_le_bytes(take(bytes)?);
    let (path, rest) = bytes.split_at_checked(len as usize)?;
    *bytes = rest;
    let [is_file] = take(bytes)?;
    let size = u64::from_le_bytes(take(bytes)?);
    let changed = (i64::from_le_bytes(take(bytes)?), u32::from_le_bytes(take(bytes)?));
    Some((path.to_vec(), Entry { is_file: is_file != 0, size, changed }))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[(&str, u64, i64)]) -> Listing {
        let mut listing = Listing::default();
        for (path, size, secs) in entries {
            listing.add(path.as_bytes(), Entry { is_file: true, size: *size, changed: (*secs, 7) });
        }
        listing
    }

    #[test]
    fn what_differs_is_counted() {
        let before = of(&[("a", 1, 1), ("b", 2, 1), ("c/d", 3, 1), ("e", 4, 1)]);
        let after = of(&[("a", 1, 1), ("b", 2, 9), ("c/d", 5, 1), ("new\nline \u{e9}", 1, 1)]);
        let bytes = before.to_bytes();
        let difference = Difference { added: 1, changed: 2, removed: 1 };
        assert_eq!(after.since(4, &bytes), Some(difference));
        assert_eq!(before.since(4, &bytes), Some(Difference::default()));
        assert_eq!(after.since(0, &[]), Some(Difference { added: 4, changed: 0, removed: 0 }));
        assert!(
            before.digest() != after.digest()
                && before.digest() == of(&[("a", 1, 1), ("b", 2, 1), ("c/d", 3, 1), ("e", 4, 1)]).digest()
        );
        assert_eq!((before.files, before.bytes), (4, 10));
    }

    #[test]
    fn bytes_of_anybody_are_no_difference() {
        let listing = of(&[("a", 1, 1)]);
        let bytes = listing.to_bytes();
        (0..bytes.len()).for_each(|cut| assert_eq!(listing.since(1, &bytes[..cut]), None, "{cut}"));
        assert_eq!(listing.since(1, &[0xff; 64]), None);
        assert_eq!(listing.since(2, &bytes), None, "one was not kept");
    }

    #[test]
    fn too_many_entries_are_told_together() {
        let mut listing = Listing::default();
        let entry = Entry { is_file: true, size: 1, changed: (0, 0) };
        (0..=KEPT_MAX).for_each(|number| listing.add(number.to_string().as_bytes(), entry));
        assert_eq!((listing.files, listing.to_bytes().len()), (KEPT_MAX + 1, 0));
        assert_eq!(listing.since(0, &[]), None);
    }
}
