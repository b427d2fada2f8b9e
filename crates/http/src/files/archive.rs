//! A directory as one tar archive: made while it is sent, however large the directory is.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bivouac_client::{Attr, DirEntry};
use bivouac_types::{FsError, FsResult, Ino, mode};
use bytes::Bytes;
use tar::{Builder, EntryType, Header};

use crate::body::BodySource;
use crate::open_file::{OpenFile, Part, ResponseParts};
use crate::request_path::is_reserved;
use crate::tree::{READ, Tree};

/// The unit of an archive: every header and content fills whole records of so many bytes.
const RECORD: u64 = 512;
/// Headers of small entries are sent together, up to about so many bytes.
const PIECE: usize = 256 << 10;

/// The rest of an archive: directories that are being walked, innermost last, and the file that is being sent.
///
/// Links are archived as links, and hard links as files of their own. Device nodes and sockets are left out. A file
/// that cannot be read, or becomes shorter meanwhile, ends the answer early: the client sees that it is incomplete.
pub struct Archive {
    tree: Arc<Tree>,
    walked: Vec<Directory>,
    content: Option<Content>,
    is_done: bool,
}

struct Directory {
    ino: Ino,
    path: PathBuf,
    cookie: u64,
    /// Entries that were fetched and not archived yet, the next one last.
    entries: Vec<DirEntry>,
}

struct Content {
    sent: ResponseParts,
    /// Zeros behind the content, up to the end of its last record.
    padding: u64,
}

impl Archive {
    /// Begins the archive of a directory, below `name`, with its first bytes.
    ///
    /// # Errors
    /// The errors of reading the directory and its first entries.
    pub fn begin(tree: Arc<Tree>, dir: &Attr, name: &[u8]) -> io::Result<(Bytes, Archive)> {
        let mut archive = Archive { tree, walked: Vec::new(), content: None, is_done: false };
        let mut builder = Builder::new(Vec::new());
        archive.enter(dir, PathBuf::from(OsStr::from_bytes(name)), &mut builder)?;
        let bytes = archive.fill(builder)?;
        Ok((bytes, archive))
    }

    fn enter(&mut self, dir: &Attr, path: PathBuf, builder: &mut Builder<Vec<u8>>) -> io::Result<()> {
        self.tree.may(dir, READ).map_err(|error| unreadable(&path, error))?;
        builder.append_data(&mut header(dir, EntryType::Directory, 0), &path, io::empty())?;
        self.walked.push(Directory { ino: dir.ino, path, cookie: 0, entries: Vec::new() });
        Ok(())
    }

    /// Archives entries until there is enough to send, a file has content to be sent, or everything is archived.
    fn fill(&mut self, mut builder: Builder<Vec<u8>>) -> io::Result<Bytes> {
        while self.content.is_none() && builder.get_ref().len() < PIECE {
            let Some((entry, path)) = self.next_entry().map_err(io::Error::other)? else {
                self.is_done = true;
                // It writes the empty records that end an archive, too.
                return Ok(builder.into_inner()?.into());
            };
            let Some(attr) = entry.attr.filter(|_| !is_reserved(&entry.name)) else { continue };
            self.append(&attr, path, &mut builder)?;
        }
        Ok(std::mem::take(builder.get_mut()).into())
    }

    fn next_entry(&mut self) -> FsResult<Option<(DirEntry, PathBuf)>> {
        while let Some(dir) = self.walked.last_mut() {
            if let Some(entry) = dir.entries.pop() {
                let path = dir.path.join(OsStr::from_bytes(&entry.name));
                return Ok(Some((entry, path)));
            }
            let mut entries = self.tree.entries(dir.ino, dir.cookie)?;
            match entries.last() {
                Some(last) => {
                    dir.cookie = last.cookie;
                    entries.reverse();
                    dir.entries = entries;
                }
                None => {
                    self.walked.pop();
                }
            }
        }
        Ok(None)
    }

    fn append(&mut self, attr: &Attr, path: PathBuf, builder: &mut Builder<Vec<u8>>) -> io::Result<()> {
        match attr.mode & mode::TYPE {
            mode::DIR => self.enter(attr, path, builder),
            mode::LINK => {
                let text = self.tree.client().and_then(|client| client.readlink(attr.ino));
                let text = text.map_err(io::Error::other)?;
                let target = Path::new(OsStr::from_bytes(&text));
                builder.append_link(&mut header(attr, EntryType::Symlink, 0), path, target)
            }
            mode::FILE => {
                let file = self.tree.open_file(attr).map_err(|error| unreadable(&path, error))?;
                self.append_file(file, &path, builder)
            }
            mode::FIFO => builder.append_data(&mut header(attr, EntryType::Fifo, 0), path, io::empty()),
            _ => Ok(()),
        }
    }

    fn append_file(&mut self, file: OpenFile, path: &Path, builder: &mut Builder<Vec<u8>>) -> io::Result<()> {
        // The size at the open is what the header promises; the content is cut there if the file grows.
        let size = file.attr.size;
        let mut header = header(&file.attr, EntryType::Regular, size);
        // The builder pads what it copies, which is nothing here: the content follows behind the header.
        builder.append_data(&mut header, path, io::empty().take(0))?;
        if size > 0 {
            let sent = ResponseParts::new(file, vec![Part::Range(0, size)]);
            self.content = Some(Content { sent, padding: size.next_multiple_of(RECORD) - size });
        }
        Ok(())
    }
}

impl BodySource for Archive {
    fn produce(&mut self) -> io::Result<Bytes> {
        let Some(content) = &mut self.content else { return self.fill(Builder::new(Vec::new())) };
        if !content.sent.is_done() {
            return content.sent.produce();
        }
        let mut rest = Vec::with_capacity(PIECE);
        rest.resize(content.padding as usize, 0);
        self.content = None;
        self.fill(Builder::new(rest))
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

fn header(attr: &Attr, kind: EntryType, size: u64) -> Header {
    // In GNU's format names and sizes may have any length.
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(attr.mode & mode::PERM);
    header.set_uid(u64::from(attr.uid));
    header.set_gid(u64::from(attr.gid));
    header.set_mtime(u64::try_from(attr.mtime.secs).unwrap_or(0));
    header.set_size(size);
    header
}

fn unreadable(path: &Path, error: FsError) -> io::Error {
    let text = format!("{}: {error}; the archive is incomplete", path.display());
    io::Error::other(FsError::with(error.errno(), text))
}
