//! Under which name the kernel knows each directory.
//!
//! A directory has one name in the kernel. A LOOKUP that finds one in another directory than the kernel knows it in has
//! the kernel move its name, for which it needs the lock of renames between directories; if a program has that, the
//! LOOKUP fails with ESTALE. So the kernel is made to forget the old name before such a LOOKUP is answered.

use std::collections::HashMap;

use bivouac_ranks::Mutex;
use bivouac_types::Ino;

/// Names are spread over so many tables, and so are directories.
const SHARDS: usize = 16;
/// Most entries per table. With more, any is dropped: a name may not be forgotten then.
const ENTRIES_PER_SHARD: usize = 4096;

/// A directory, and the hash of a name in it.
pub type NameKey = (Ino, u64);

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryName {
    pub parent: Ino,
    pub hash: u64,
    pub name: Box<[u8]>,
}

impl DirectoryName {
    pub fn new((parent, hash): NameKey, name: &[u8]) -> DirectoryName {
        DirectoryName { parent, hash, name: name.into() }
    }

    fn key(&self) -> NameKey {
        (self.parent, self.hash)
    }
}

/// The directories whose names the kernel was told.
#[derive(Debug)]
pub struct DirectoryNames {
    names: Vec<Mutex<HashMap<Ino, DirectoryName>>>,
    directories: Vec<Mutex<HashMap<NameKey, Ino>>>,
}

impl Default for DirectoryNames {
    fn default() -> DirectoryNames {
        DirectoryNames {
            names: (0..SHARDS).map(|_| Mutex::default()).collect(),
            directories: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl DirectoryNames {
    /// Notes that the kernel is about to be told by a LOOKUP that a name leads to a directory. Returns the name in
    /// another directory under which the kernel may know it.
    pub fn looked_up(&self, ino: Ino, key: NameKey, name: &[u8]) -> Option<DirectoryName> {
        let is_known = |known: &DirectoryName| known.key() == key && *known.name == *name;
        // Mostly it is so; then nothing is allocated for the name.
        if self.names_of(ino).lock().get(&ino).is_some_and(is_known)
            && self.at(key).lock().get(&key) == Some(&ino)
        {
            return None;
        }
        // A new name in the same directory the kernel takes without the lock of renames.
        let old = self.set(ino, DirectoryName::new(key, name)).filter(|old| old.parent != key.0)?;
        // The kernel knows something else under that name if it was told so later.
        let was_there = {
            let mut directories = self.at(old.key()).lock();
            let is_it = directories.get(&old.key()) == Some(&ino);
            is_it && directories.remove(&old.key()).is_some()
        };
        was_there.then_some(old)
    }

    /// Notes that the kernel is about to be told the same by a listing. It does not move a name then if it cannot.
    pub fn listed(&self, ino: Ino, key: NameKey, name: &[u8]) {
        let is_known = self.names_of(ino).lock().contains_key(&ino);
        if !is_known {
            self.set(ino, DirectoryName::new(key, name));
        }
    }

    /// Notes that the kernel has not forgotten a directory's old name in time: it may know it under that.
    pub fn stays(&self, ino: Ino, old: DirectoryName) {
        self.set(ino, old);
    }

    /// Notes that the kernel is about to be told that a name leads to no directory.
    pub fn is_none(&self, key: NameKey) {
        self.at(key).lock().remove(&key);
    }

    /// Notes that a program has renamed something; with `exchange` both names lead to the other's inode now.
    pub fn renamed(&self, from: &DirectoryName, to: &DirectoryName, exchange: bool) {
        let moved = self.at(from.key()).lock().remove(&from.key());
        let replaced = self.at(to.key()).lock().remove(&to.key());
        if let Some(ino) = moved {
            self.set(ino, to.clone());
        }
        match replaced {
            Some(ino) if exchange => drop(self.set(ino, from.clone())),
            Some(ino) => drop(self.names_of(ino).lock().remove(&ino)),
            None => {}
        }
    }

    /// Returns the name that the directory had.
    fn set(&self, ino: Ino, name: DirectoryName) -> Option<DirectoryName> {
        let key = name.key();
        let old = {
            let mut names = self.names_of(ino).lock();
            make_room(&mut names, &ino);
            names.insert(ino, name)
        };
        let mut directories = self.at(key).lock();
        make_room(&mut directories, &key);
        directories.insert(key, ino);
        old
    }

    fn names_of(&self, ino: Ino) -> &Mutex<HashMap<Ino, DirectoryName>> {
        &self.names[shard(ino.0)]
    }

    fn at(&self, (parent, hash): NameKey) -> &Mutex<HashMap<NameKey, Ino>> {
        &self.directories[shard(parent.0 ^ hash)]
    }
}

fn shard(value: u64) -> usize {
    let mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed as usize % SHARDS
}

fn make_room<K: Copy + Eq + std::hash::Hash, V>(table: &mut HashMap<K, V>, new: &K) {
    if table.len() >= ENTRIES_PER_SHARD
        && !table.contains_key(new)
        && let Some(any) = table.keys().next().copied()
    {
        table.remove(&any);
    }
    assert!(table.len() < ENTRIES_PER_SHARD || table.contains_key(new), "no room was made for a name");
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);
    const OTHER: Ino = Ino(8);
    const A: NameKey = (Ino(1), 10);
    const A2: NameKey = (Ino(1), 11);
    const B: NameKey = (Ino(2), 20);

    fn name(key: NameKey) -> DirectoryName {
        DirectoryName::new(key, b"name")
    }

    fn looked_up(names: &DirectoryNames, ino: Ino, key: NameKey) -> Option<NameKey> {
        names.looked_up(ino, key, b"name").map(|old| old.key())
    }

    #[test]
    fn only_a_name_in_another_directory_has_to_be_forgotten() {
        let names = DirectoryNames::default();
        assert_eq!(looked_up(&names, DIR, A), None);
        assert_eq!(looked_up(&names, DIR, A), None);
        assert_eq!(looked_up(&names, DIR, A2), None, "the kernel moves it within a directory by itself");
        assert_eq!(looked_up(&names, DIR, B), Some(A2));
        assert_eq!(looked_up(&names, DIR, B), None);
        names.listed(DIR, A, b"name");
        assert_eq!(looked_up(&names, DIR, A), Some(B), "a listing need not move it");
        names.stays(DIR, name(B));
        assert_eq!(looked_up(&names, DIR, A), Some(B), "it was not forgotten");
    }

    #[test]
    fn a_name_under_which_something_else_was_told_stays() {
        let names = DirectoryNames::default();
        assert_eq!((looked_up(&names, DIR, A), looked_up(&names, OTHER, A)), (None, None));
        assert_eq!(looked_up(&names, DIR, B), None, "another directory");
        names.is_none(B);
        assert_eq!(looked_up(&names, DIR, A2), None, "a file");
        assert_eq!(looked_up(&names, OTHER, B), Some(A));
    }

    #[test]
    fn renames_of_this_mount_are_followed() {
        let names = DirectoryNames::default();
        looked_up(&names, DIR, A);
        names.renamed(&name(A), &name(B), false);
        assert_eq!(looked_up(&names, DIR, B), None);
        looked_up(&names, OTHER, A);
        names.renamed(&name(A), &name(B), true);
        assert_eq!((looked_up(&names, DIR, A), looked_up(&names, OTHER, B)), (None, None));
        names.renamed(&name(A), &name(B), false);
        assert_eq!(looked_up(&names, OTHER, A), None, "it was replaced");
        assert_eq!(looked_up(&names, DIR, A2), Some(B));
    }

    #[test]
    fn the_tables_do_not_grow_without_limit() {
        let names = DirectoryNames::default();
        for ino in 0..2 * (SHARDS * ENTRIES_PER_SHARD) as u64 {
            names.looked_up(Ino(ino), (Ino::ROOT, ino), b"x");
        }
        assert!(names.names.iter().all(|table| table.lock().len() <= ENTRIES_PER_SHARD));
        assert!(names.directories.iter().all(|table| table.lock().len() <= ENTRIES_PER_SHARD));
    }
}
