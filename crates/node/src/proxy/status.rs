//! What site storage has of an inode, at its home.

use bivouac_types::{Errno, FsResult, Ino, mode};
use bivouac_wire::{Decode, Encode, InoOnly, Origin, SiteVersion, Whence, op};

use crate::dispatch::SYSTEM;
use crate::namespace::{Change, decode};
use crate::node::Node;
use crate::peers::Steps;
use crate::record::{Inode, SiteFile, site_key};

impl SiteFile {
    /// Of an inode that has never been there.
    pub fn new_here() -> SiteFile {
        let (origin, dir, name) = (None, Ino(0), Vec::new());
        SiteFile { origin, limit: 0, changed: true, flushing: false, listed: true, dir, name, pin: 0 }
    }

    /// Of an inode that has never been there, and has a name here.
    pub fn named_here(dir: Ino, name: &[u8]) -> SiteFile {
        SiteFile { dir, name: name.to_vec(), ..SiteFile::new_here() }
    }

    /// Of an inode that is made as it is there.
    pub fn brought((dir, name): (Ino, &[u8]), path: Vec<u8>, seen: SiteVersion, is_dir: bool) -> SiteFile {
        let (limit, origin, name) = (seen.size, Some(Origin { path, seen }), name.to_vec());
        let listed = !is_dir;
        SiteFile { origin, limit, changed: false, flushing: false, listed, dir, name, pin: 0 }
    }

    /// Whether anything but content is not there.
    pub fn is_unsaved(&self) -> bool {
        self.changed || self.flushing
    }
}

impl Node {
    /// What site storage has of an inode, if its partition stands in front of any.
    pub(crate) fn site_file(&self, ino: Ino) -> FsResult<Option<SiteFile>> {
        self.records.read(ino.slot(), &site_key(ino), |bytes| {
            bytes.map(|bytes| decode(bytes, "site storage", ino)).transpose()
        })
    }

    /// Whence the content of a file may have to be brought; of a directory, what it is at site storage.
    pub(crate) fn whence(&self, ino: Ino) -> FsResult<Whence> {
        let layout = self.inode(ino)?.attr.layout;
        let file = self.site_file(ino)?.unwrap_or_else(SiteFile::new_here);
        Ok(Whence { origin: file.origin, limit: file.limit, layout, pin: file.pin })
    }

    /// Whether a directory may get another path: one that site storage has may not, since all below it would have to move
    /// there as well.
    ///
    /// # Errors
    /// `EXDEV` when it may not: programs copy then.
    pub(crate) fn check_movable(&self, dir: Ino) -> FsResult<()> {
        if !self.partitions.all().iter().any(|partition| partition.settings.source.is_some()) {
            return Ok(());
        }
        let (home, steps) = (self.home_of(dir)?, Steps::question(SYSTEM));
        match self.step::<op::FindOrigin>(home, steps, 0, InoOnly { ino: dir })?.origin {
            Some(_) => Err(Errno::EXDEV.into()),
            None => Ok(()),
        }
    }
}

impl Change<'_> {
    /// Takes note that an inode is not what site storage has, if its partition stands in front of any.
    pub(crate) fn note_changed(&mut self, inode: &Inode) {
        let (ino, partition) = (inode.attr.ino, inode.attr.layout.partition());
        let Some(root) = self.bound_dir(partition) else { return };
        let known =
            self.txn.get(ino.slot(), &site_key(ino)).and_then(|bytes| SiteFile::from_bytes(bytes).ok());
        let mut file = known.clone().unwrap_or_else(SiteFile::new_here);
        if known.is_none() && ino == root {
            file = SiteFile::brought((ino, b""), Vec::new(), root_version(), true);
        }
        let is_file = inode.attr.mode & mode::TYPE == mode::FILE;
        file.limit = if is_file { file.limit.min(inode.attr.size) } else { 0 };
        (file.changed, file.flushing) = (ino != root, false);
        if known.as_ref() != Some(&file) {
            self.put_site_file(ino, &file);
            if ino != root {
                self.node.note_written(ino, partition, 0);
            }
        }
    }

    /// Before a directory gets another path: site storage does not have it. Where a move is undone it may have got it in
    /// between, at the path that is not to be, and gets it again.
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
        if let Some(file) = self.site_file(ino)? {
            let pin = self.pin_of(ino, name, file.pin)?;
            self.put_site_file(ino, &SiteFile { dir, name: name.to_vec(), pin, ..file });
        }
        Ok(())
    }

    /// Whether what site storage has of an inode that goes has to be known on: a directory below which names were deleted
    /// that it may still have.
    pub(crate) fn is_told_of(&self, inode: &Inode) -> bool {
        inode.attr.is_dir()
            && self.node.mirrors(inode.attr.layout.partition())
            && self.site_file(inode.attr.ino).is_ok_and(|file| file.is_some_and(|file| file.origin.is_some()))
    }

    /// Writes down what site storage has of an inode.
    pub(crate) fn put_site_file(&mut self, ino: Ino, file: &SiteFile) {
        self.txn.put(ino.slot(), &site_key(ino), &file.to_bytes());
    }

    /// What site storage has of an inode.
    pub(crate) fn site_file(&self, ino: Ino) -> FsResult<Option<SiteFile>> {
        let bytes = self.txn.get(ino.slot(), &site_key(ino));
        bytes.map(|bytes| decode(bytes, "site storage", ino)).transpose()
    }
}

/// The root directory of site storage is what it is.
fn root_version() -> SiteVersion {
    SiteVersion { size: 0, mtime: bivouac_types::Timestamp::default(), tag: String::new() }
}
