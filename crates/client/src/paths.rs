//! Names of files as programs write them: paths from the root of the formation, over symbolic links.

use bivouac_types::limits::SYMLINK_LEN_MAX;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, mode};

use crate::client::Client;

/// Most symbolic links on one way, as in the kernel.
const LINKS_MAX: usize = 40;
/// Longest path, in bytes.
const PATH_LEN_MAX: usize = 4 * SYMLINK_LEN_MAX;

/// The last name of a path, and the directory that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub parent: Ino,
    /// The name; empty for the root.
    pub name: Vec<u8>,
    /// Whether the path ends in a slash, so that only a directory may be there.
    pub is_dir: bool,
}

impl Client {
    /// The inode at a path. A symbolic link at its end is followed if `follow` says so.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`; `ELOOP` for too many symbolic links; `EXDEV` for one with an absolute target, which leads
    /// out of the formation; `EIO`.
    pub fn find(&self, path: &[u8], follow: bool) -> FsResult<Attr> {
        let mut walk = Walk { client: self, links: 0 };
        let place = walk.place(Ino::ROOT, path, follow)?;
        let attr = walk.attr(&place)?;
        if place.is_dir && !attr.is_dir() { Err(Errno::ENOTDIR.into()) } else { Ok(attr) }
    }

    /// Where the last name of a path is, be there such a name or not. A symbolic link in its place is followed if
    /// `follow` says so.
    ///
    /// # Errors
    /// As [`Client::find`].
    pub fn place(&self, path: &[u8], follow: bool) -> FsResult<Place> {
        Walk { client: self, links: 0 }.place(Ino::ROOT, path, follow)
    }
}

struct Walk<'c> {
    client: &'c Client,
    links: usize,
}

impl Walk<'_> {
    fn place(&mut self, mut dir: Ino, path: &[u8], follow: bool) -> FsResult<Place> {
        if path.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if path.len() > PATH_LEN_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let ends_in_slash = path.last() == Some(&b'/');
        let mut names =
            path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).peekable();
        while let Some(name) = names.next() {
            let last = names.peek().is_none();
            if name == b".." {
                dir = self.client.parent(dir)?;
                continue;
            }
            let place = Place { parent: dir, name: name.to_vec(), is_dir: last && ends_in_slash };
            if last && !follow && !ends_in_slash {
                return Ok(place);
            }
            match self.client.lookup(dir, name) {
                Ok(attr) if attr.mode & mode::TYPE == mode::LINK => {
                    let target = self.target(attr.ino)?;
                    let there = self.place(dir, &target, true)?;
                    if last {
                        return Ok(Place { is_dir: there.is_dir || place.is_dir, ..there });
                    }
                    dir = self.directory(&there)?;
                }
                Ok(_) | Err(_) if last => return Ok(place),
                Ok(attr) if attr.is_dir() => dir = attr.ino,
                Ok(_) => return Err(Errno::ENOTDIR.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(Place { parent: dir, name: Vec::new(), is_dir: true })
    }

    fn target(&mut self, link: Ino) -> FsResult<Vec<u8>> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let target = self.client.readlink(link)?;
        if target.first() == Some(&b'/') {
            let text =
                format!("symbolic link to {} leads out of the formation", String::from_utf8_lossy(&target));
            return Err(FsError::with(Errno::EXDEV, text));
        }
        Ok(target)
    }

    fn attr(&self, place: &Place) -> FsResult<Attr> {
        match place.name.as_slice() {
            b"" => self.client.getattr(place.parent),
            name => self.client.lookup(place.parent, name),
        }
    }

    fn directory(&self, place: &Place) -> FsResult<Ino> {
        let attr = self.attr(place)?;
        if attr.is_dir() { Ok(attr.ino) } else { Err(Errno::ENOTDIR.into()) }
    }
}
