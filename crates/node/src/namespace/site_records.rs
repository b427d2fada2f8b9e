//! Records of an inode's state at site storage, at its home.

use bivouac_types::{Errno, FsResult, Ino, mode};
use bivouac_wire::{Encode, Origin, SiteVersion, Whence};

use super::{Change, decode};
use crate::node::Node;
use crate::record::{FORMER_NAMES_MAX, Inode, SiteFile, site_key};

impl SiteFile {
    /// Creates the record of an inode that was never at site storage.
    pub fn new_here() -> SiteFile {
        let (origin, dir, name) = (None, Ino(0), Vec::new());
        let (limit, pin, former) = (0, 0, Vec::new());
        SiteFile { origin, limit, changed: true, flushing: false, listed: true, dir, name, pin, former }
    }

    /// Returns the record of an inode that was never at site storage and has a name here.
    pub fn named_here(dir: Ino, name: &[u8]) -> SiteFile {
        SiteFile { dir, name: name.to_vec(), ..SiteFile::new_here() }
    }

    /// Returns the record of an inode that is made as site storage has it.
    pub fn brought((dir, name): (Ino, &[u8]), path: Vec<u8>, seen: SiteVersion, is_dir: bool) -> SiteFile {
        let (limit, origin, name) = (seen.size, Some(Origin { path, seen }), name.to_vec());
        let listed = !is_dir;
        let (pin, former) = (0, Vec::new());
        SiteFile { origin, limit, changed: false, flushing: false, listed, dir, name, pin, former }
    }

    /// Takes note of a name: it is the last one, and one that was known before may lead to the inode still.
    fn give_name(&mut self, dir: Ino, name: &[u8]) {
        if !self.name.is_empty() {
            self.former.insert(0, (self.dir, std::mem::take(&mut self.name)));
        }
        self.former.retain(|(known_dir, known)| (*known_dir, &known[..]) != (dir, name));
        // The oldest go: a record with more of them would not be read again.
        self.former.truncate(FORMER_NAMES_MAX);
        (self.dir, self.name) = (dir, name.to_vec());
    }

    /// Forgets a name that does not lead to the inode any more, unless no other is known.
    fn take_name(&mut self, dir: Ino, name: &[u8]) {
        if (self.dir, &self.name[..]) != (dir, name) {
            self.former.retain(|(known_dir, known)| (*known_dir, &known[..]) != (dir, name));
        } else if !self.former.is_empty() {
            (self.dir, self.name) = self.former.remove(0);
        }
    }

    /// Returns the names that may lead to the inode, the last one first.
    pub fn names(&self) -> impl Iterator<Item = (Ino, &[u8])> {
        let former = self.former.iter().map(|(dir, name)| (*dir, &name[..]));
        std::iter::once((self.dir, &self.name[..])).chain(former)
    }

    /// Returns whether something besides content is not at site storage yet.
    pub fn is_unsaved(&self) -> bool {
        self.changed || self.flushing
    }
}

impl Node {
    /// Returns the record of an inode at site storage, if its partition has a source.
    pub(crate) fn site_file(&self, ino: Ino) -> FsResult<Option<SiteFile>> {
        self.records.read(ino.slot(), &site_key(ino), |bytes| {
            bytes.map(|bytes| decode(bytes, "site storage", ino)).transpose()
        })
    }
}

impl Change<'_> {
    /// Takes note that an inode is not what site storage has, if its partition stands in front of any.
    pub(crate) fn note_changed(&mut self, inode: &Inode) {
        let (ino, partition) = (inode.attr.ino, inode.attr.layout.partition());
        let Some(root) = self.node.bound_dir(partition) else { return };
        let known = match self.site_file(ino) {
            // Without a name it is not flushed, and can be removed whatever is known of it.
            Err(error) if inode.attr.nlink > 0 => return self.note_damage(error),
            known => known.unwrap_or_default(),
        };
        let mut file = known.clone().unwrap_or_else(SiteFile::new_here);
        if known.is_none() && ino == root {
            file = SiteFile::brought((ino, b""), Vec::new(), root_version(), true);
        }
        let is_file = inode.attr.mode & mode::TYPE == mode::FILE;
        // What was cut off does not come back from site storage when the file grows again.
        file.limit = if is_file { file.limit.min(inode.attr.size) } else { 0 };
        // The root is what the settings of the partition name, and is not flushed.
        (file.changed, file.flushing) = (ino != root, false);
        if known.as_ref() != Some(&file) {
            self.put_site_file(ino, &file);
            if ino != root {
                // Only then: what was marked as changed before has its flush scheduled.
                self.node.note_written(ino, partition, 0);
            }
        }
    }

    /// Notes, before a directory gets another path, that site storage does not have it there. Where a move is undone it
    /// may have got it in between, at the path that is not to be, and gets it again.
    ///
    /// # Errors
    /// `EXDEV` when it has.
    pub(crate) fn leave_site(&mut self, dir: Ino, back: bool) -> FsResult<()> {
        match self.site_file(dir)? {
            Some(file) if file.origin.is_some() && back => {
                self.put_site_file(dir, &SiteFile { origin: None, changed: true, ..file });
                Ok(())
            }
            Some(file) if file.origin.is_some() => Err(Errno::EXDEV.into()),
            _ => Ok(()),
        }
    }

    /// Takes note of the name of an inode, if its partition stands in front of site storage.
    ///
    /// # Errors
    /// `EIO` for a record that is damaged.
    pub(crate) fn note_name(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> FsResult<()> {
        if let Some(mut file) = self.site_file(ino)? {
            file.pin = self.pin_of(ino, name, file.pin)?;
            file.give_name(dir, name);
            self.put_site_file(ino, &file);
        }
        Ok(())
    }

    /// Takes note that a name of an inode of this node leads to it no more.
    ///
    /// # Errors
    /// `EIO` for a record that is damaged.
    pub(crate) fn note_name_gone(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> FsResult<()> {
        if let Some(file) = self.site_file(ino)? {
            let mut now = file.clone();
            now.take_name(dir, name);
            if now != file {
                self.put_site_file(ino, &now);
            }
        }
        Ok(())
    }

    /// Returns true if the site records of a removed inode are still needed: it is a directory, and names deleted below
    /// it may still exist at site storage.
    pub(crate) fn is_told_of(&self, inode: &Inode) -> bool {
        inode.attr.is_dir()
            && self.node.mirrors(inode.attr.layout.partition())
            && self.site_file(inode.attr.ino).is_ok_and(|file| file.is_some_and(|file| file.origin.is_some()))
    }

    /// Writes down what site storage has of an inode.
    pub(crate) fn put_site_file(&mut self, ino: Ino, file: &SiteFile) {
        self.txn.put(ino.slot(), &site_key(ino), &file.to_bytes());
    }

    /// Returns the record of an inode at site storage.
    pub(crate) fn site_file(&self, ino: Ino) -> FsResult<Option<SiteFile>> {
        let bytes = self.txn.get(ino.slot(), &site_key(ino));
        bytes.map(|bytes| decode(bytes, "site storage", ino)).transpose()
    }

    /// Returns the number of an inode that gets a name which a rule may pin, and that had `known` so far: what was
    /// pinned or unpinned by hand stays so.
    fn pin_of(&mut self, ino: Ino, name: &[u8], known: u32) -> FsResult<u32> {
        let attr = self.inode(ino)?.attr;
        let partition = self.node.partitions.get(attr.layout.partition());
        let pins = attr.is_file() && partition.is_some_and(|partition| partition.settings.pins(name));
        Ok(known.max(u32::from(pins)))
    }

    /// Makes a file what it is at site storage.
    pub(crate) fn renew_site_file(&mut self, ino: Ino, known: SiteFile, whence: Whence) {
        let (origin, limit) = (whence.origin, whence.limit);
        self.put_site_file(ino, &SiteFile { origin, limit, changed: false, flushing: false, ..known });
    }
}

/// Returns the version that stands for the root directory of site storage, which is what it is.
fn root_version() -> SiteVersion {
    SiteVersion { size: 0, mtime: bivouac_types::Timestamp::default(), tag: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_wire::Decode;

    fn named(names: &[&str]) -> SiteFile {
        let mut file = SiteFile::new_here();
        names.iter().for_each(|name| file.give_name(Ino(7), name.as_bytes()));
        file
    }

    fn names(file: &SiteFile) -> Vec<&str> {
        file.names().map(|(_, name)| std::str::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn all_names_are_known_until_they_go() {
        let mut file = named(&["a", "b", "c", "a"]);
        assert_eq!(names(&file), ["a", "c", "b"]);
        file.take_name(Ino(8), b"b");
        file.take_name(Ino(7), b"a");
        assert_eq!(names(&file), ["c", "b"]);
        assert_eq!(SiteFile::from_bytes(&file.to_bytes()), Ok(file.clone()));
        file.take_name(Ino(7), b"b");
        file.take_name(Ino(7), b"c");
        assert_eq!(names(&file), ["c"], "the last one is told of");
    }

    /// What was known of its version at the source, and of its names, was replaced as if there were nothing.
    #[test]
    fn a_damaged_record_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let node = crate::testing::alone(dir.path());
        crate::testing::put_in_partition(&node, 1, "source=bivouac://h:1/far?key=k");
        let root = Ino::ROOT;
        let change = |damages: bool| {
            let mut change = node.change(&[root.slot()]).unwrap();
            let inode = change.inode(root).unwrap();
            if damages {
                change.txn.put(root.slot(), &site_key(root), b"no record");
            } else {
                change.put_inode(&inode);
            }
            change.commit().map_err(|error| error.errno())
        };
        assert_eq!((change(false), change(true), change(false)), (Ok(()), Ok(()), Err(Errno::EIO)));
        assert!(node.site_file(root).is_err());
    }

    #[test]
    fn as_many_names_are_kept_as_a_record_may_have() {
        let many: Vec<String> = (0..FORMER_NAMES_MAX + 9).map(|number| number.to_string()).collect();
        let mut file = named(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(names(&file)[FORMER_NAMES_MAX], "8");
        assert_eq!(SiteFile::from_bytes(&file.to_bytes()), Ok(file.clone()));
        file.former.push((Ino(7), b"one more".to_vec()));
        assert!(SiteFile::from_bytes(&file.to_bytes()).is_err());
        let long = SiteFile { former: vec![(Ino(7), vec![b'x'; 256])], ..SiteFile::new_here() };
        assert!(SiteFile::from_bytes(&long.to_bytes()).is_err());
    }
}
