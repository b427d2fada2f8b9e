//! Names of files as programs write them: paths from the root of the formation, over symbolic links.

use bivouac_types::limits::SYMLINK_LEN_MAX;
use bivouac_types::{Attr, Errno, FsError, FsResult, Ino, mode};

use super::Client;
use crate::names::entries::Looker;

/// Most symbolic links in one lookup, as in the kernel.
const LINKS_MAX: usize = 40;
/// Longest path, in bytes.
const PATH_LEN_MAX: usize = 4 * SYMLINK_LEN_MAX;

/// The last name of a path, and the directory that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentAndName {
    /// The directory.
    pub parent: Ino,
    /// The name; empty for the root.
    pub name: Vec<u8>,
    /// Set if the path ends in a slash, so that only a directory may be there.
    pub is_dir: bool,
}

impl Client {
    /// Returns the inode at a path. A symbolic link at its end is followed if `follow` says so.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`; `ELOOP` for too many symbolic links; `EXDEV` for one with an absolute target, which leads
    /// out of the formation; `EIO`.
    pub fn find(&self, path: &[u8], follow: bool) -> FsResult<Attr> {
        self.find_beneath(Ino::ROOT, path, follow)
    }

    /// Like [`Client::find`], from a directory on, which no link and no `..` may lead out of: that is `EXDEV`.
    pub fn find_beneath(&self, top: Ino, path: &[u8], follow: bool) -> FsResult<Attr> {
        let mut walk = PathWalk::new(self, top);
        let way = walk.go(path, follow)?;
        let is_dir = way.place.is_dir;
        let attr = walk.attr(way)?;
        if is_dir && !attr.is_dir() { Err(Errno::ENOTDIR.into()) } else { Ok(attr) }
    }

    /// Like [`Client::find_beneath`], from what is cached or, with `may_ask`, from nodes of this machine alone: for
    /// callers that look up the same paths again and again. Returns `None` if [`Client::find_beneath`] has to be
    /// called.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn find_cached(&self, top: Ino, path: &[u8], may_ask: bool) -> Option<FsResult<Attr>> {
        self.cached(top, path, may_ask, None)
    }

    /// Like [`Client::find_cached`] with `may_ask`, for a caller that stands in for a kernel.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn find_as_kernel(&self, top: Ino, path: &[u8], looker: &Looker<'_>) -> Option<FsResult<Attr>> {
        self.cached(top, path, true, Some(looker))
    }

    fn cached(
        &self,
        top: Ino,
        path: &[u8],
        may_ask: bool,
        looker: Option<&Looker<'_>>,
    ) -> Option<FsResult<Attr>> {
        let found = self.names.entries.as_ref()?.find(top, path, may_ask, looker)?;
        // What this process has written and not told yet is later.
        Some(found).filter(|found| !found.as_ref().is_ok_and(|attr| self.has_unsent_times(attr.ino)))
    }

    /// Returns the place of the last name of a path, whether or not it exists. A symbolic link there is followed if
    /// `follow` is set.
    ///
    /// # Errors
    /// As [`Client::find`].
    pub fn place(&self, path: &[u8], follow: bool) -> FsResult<ParentAndName> {
        self.place_beneath(Ino::ROOT, path, follow)
    }

    /// Like [`Client::place`], from a directory on, which nothing leads out of.
    pub fn place_beneath(&self, top: Ino, path: &[u8], follow: bool) -> FsResult<ParentAndName> {
        Ok(PathWalk::new(self, top).go(path, follow)?.place)
    }
}

/// Result of walking a path.
struct WalkResult {
    place: ParentAndName,
    /// Result of the lookup there, if one was made.
    found: Option<FsResult<Attr>>,
}

struct PathWalk<'c> {
    client: &'c Client,
    links: usize,
    top: Ino,
    /// The directories between the top and where it is. They are what `..` goes by, so that no directory that somebody
    /// moves meanwhile leads out of the top.
    trail: Vec<Ino>,
}

impl PathWalk<'_> {
    fn new(client: &Client, top: Ino) -> PathWalk<'_> {
        PathWalk { client, links: 0, top, trail: Vec::new() }
    }

    fn dir(&self) -> Ino {
        self.trail.last().copied().unwrap_or(self.top)
    }

    fn up(&mut self) -> FsResult<()> {
        if self.trail.pop().is_some() || self.top == Ino::ROOT {
            return Ok(());
        }
        Err(FsError::with(Errno::EXDEV, "the path leads out of the directory that it begins in"))
    }

    fn go(&mut self, path: &[u8], follow: bool) -> FsResult<WalkResult> {
        // As POSIX has it, unlike `.`.
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
                self.up()?;
                continue;
            }
            let dir = self.dir();
            let place = ParentAndName { parent: dir, name: name.to_vec(), is_dir: last && ends_in_slash };
            // A slash behind a link means what it leads to.
            if last && !follow && !ends_in_slash {
                return Ok(WalkResult { place, found: None });
            }
            match self.client.lookup(dir, name) {
                Ok(attr) if attr.mode & mode::TYPE == mode::LINK => {
                    let target = self.target(attr.ino)?;
                    let mut there = self.go(&target, true)?;
                    if last {
                        // A slash behind the link asks for a directory as much as one behind its target.
                        there.place.is_dir |= place.is_dir;
                        return Ok(there);
                    }
                    // A target that ends in `.`, `..` or `/` has led the trail to its directory already.
                    let is_top = there.place.name.is_empty();
                    let attr = self.attr(there)?;
                    if !attr.is_dir() {
                        return Err(Errno::ENOTDIR.into());
                    }
                    if !is_top {
                        self.trail.push(attr.ino);
                    }
                }
                found if last => return Ok(WalkResult { place, found: Some(found) }),
                Ok(attr) if attr.is_dir() => self.trail.push(attr.ino),
                Ok(_) => return Err(Errno::ENOTDIR.into()),
                Err(error) => return Err(error),
            }
        }
        let place = ParentAndName { parent: self.dir(), name: Vec::new(), is_dir: true };
        Ok(WalkResult { place, found: None })
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

    fn attr(&self, way: WalkResult) -> FsResult<Attr> {
        match (way.found, way.place.name.as_slice()) {
            (Some(found), _) => found,
            (None, b"") => self.client.getattr(way.place.parent),
            (None, name) => self.client.lookup(way.place.parent, name),
        }
    }
}
