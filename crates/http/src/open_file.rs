//! Files that are open for reading, and what is sent of them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_client::Attr;
use bivouac_types::{DIGEST_XATTR, Errno, FsError, FsResult, NodeId};
use bytes::Bytes;
use ring::digest::{Context, SHA256};
use rustix::fs::OFlags;

use crate::at_once;
use crate::body::BodySource;
use crate::cancellation::Cancellation;
use crate::conditions::content_state;
use crate::digests::Digest;
use crate::load::{PIECE, Share};
use crate::open_files::Open;
use crate::request_path::RequestPath;
use crate::tree::{Access, READ, Tree};

/// Time to wait for a file that is being written, and interval of the checks.
const SETTLE_MAX: Duration = Duration::from_millis(100);
const SETTLE_PAUSE: Duration = Duration::from_millis(2);
/// Time for which a file that went on being written is not waited for again, and number of such files remembered.
const LONG_WRITTEN_FOR: Duration = Duration::from_secs(10);
const LONG_WRITTEN_MAX: usize = 4096;

/// Object at a path.
pub enum Node {
    /// A directory.
    Dir(Attr),
    /// A regular file, open for reading.
    File(OpenFile),
}

/// A file that is open.
pub struct OpenFile {
    pub(crate) tree: Arc<Tree>,
    /// Its attributes when it was opened.
    pub attr: Attr,
    _open: Arc<Open>,
}

impl Tree {
    /// Opens what is at a path.
    ///
    /// # Errors
    /// As [`Tree::attr`]; `EACCES` for what may not be read, or is neither a file nor a directory.
    pub fn open(self: &Arc<Tree>, access: &Access, target: &RequestPath) -> FsResult<Node> {
        let attr = self.attr(access, target)?;
        self.may(&attr, READ)?;
        if attr.is_dir() {
            return Ok(Node::Dir(attr));
        }
        if !attr.is_file() {
            return Err(Errno::EACCES.into());
        }
        // A path with a slash at its end names a directory.
        if target.is_dir {
            return Err(Errno::ENOTDIR.into());
        }
        self.open_file(&self.settled(attr)?).map(Node::File)
    }

    /// Returns the attributes of a file once it is not being written any more: its last close may just be on its way to
    /// its home. A file that stays open is waited for once in a while only.
    pub(crate) fn settled(&self, attr: Attr) -> FsResult<Attr> {
        if !attr.is_being_written() {
            return Ok(attr);
        }
        if at_once::may_not_wait() {
            return Err(at_once::not_at_hand());
        }
        let begun = Instant::now();
        let is_passed = |until: &Instant| *until > begun;
        if self.long_written.lock().get(&attr.ino).is_some_and(is_passed) {
            return Ok(attr);
        }
        while begun.elapsed() < SETTLE_MAX {
            std::thread::park_timeout(SETTLE_PAUSE);
            let now = self.client()?.getattr(attr.ino)?;
            if !now.is_being_written() {
                return Ok(now);
            }
        }
        let mut long_written = self.long_written.lock();
        // Forgetting them costs one wait for each.
        if long_written.len() >= LONG_WRITTEN_MAX {
            long_written.clear();
        }
        long_written.insert(attr.ino, Instant::now() + LONG_WRITTEN_FOR);
        Ok(attr)
    }

    /// Opens a file with known attributes.
    pub(crate) fn open_file(self: &Arc<Tree>, attr: &Attr) -> FsResult<OpenFile> {
        self.may(attr, READ)?;
        let (open, attr) = self.open_files.open(&self.member, *attr)?;
        Ok(OpenFile { tree: Arc::clone(self), attr, _open: open })
    }
}

impl OpenFile {
    /// Wraps an inode that was just created, or opened to be written.
    pub(crate) fn of(tree: &Arc<Tree>, attr: Attr) -> OpenFile {
        let open = Arc::new(Open::of(&tree.member, attr.ino, OFlags::RDWR.bits()));
        OpenFile { tree: Arc::clone(tree), attr, _open: open }
    }

    /// Reads from an offset on; fewer bytes only at the file's end.
    pub fn read(&self, offset: u64, len: usize) -> FsResult<Bytes> {
        if at_once::may_not_wait() {
            return self.read_at_hand(offset, len)?.ok_or_else(at_once::not_at_hand);
        }
        let mut bytes = vec![0; len];
        let read = self.tree.client()?.read(self.attr.ino, offset, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes.into())
    }

    fn read_at_hand(&self, offset: u64, len: usize) -> FsResult<Option<Bytes>> {
        if len > at_once::LEN_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        let read = self.tree.member.client()?.read_granted(self.attr.ino, offset, &mut bytes);
        Ok(read.map(|()| bytes.into()))
    }

    /// Returns the SHA-256 of a range, and of each piece of it of this length.
    ///
    /// # Errors
    /// Errors of the formation; `EIO` if the file has become shorter, `EINTR` if nobody waits for it any more.
    pub fn digest(
        &self,
        (start, end): (u64, u64),
        piece: Option<u64>,
        cancellation: &Cancellation,
    ) -> FsResult<(Digest, Vec<Digest>)> {
        let (mut whole, mut part) = (Context::new(&SHA256), Context::new(&SHA256));
        let (mut at, mut pieces) = (start, Vec::new());
        let piece_len = piece.unwrap_or(u64::MAX).max(1);
        while at < end {
            cancellation.check_cancelled()?;
            let left_of_piece = piece_len - (at - start) % piece_len;
            let len = (end - at).min(left_of_piece).min(PIECE as u64) as usize;
            let bytes = self.read(at, len)?;
            if bytes.len() < len {
                return Err(self.shrunk());
            }
            whole.update(&bytes);
            at += len as u64;
            if piece.is_some() {
                part.update(&bytes);
                if at == end || (at - start).is_multiple_of(piece_len) {
                    pieces.push(std::mem::replace(&mut part, Context::new(&SHA256)).finish().into());
                }
            }
        }
        let count = piece.map_or(0, |_| end.saturating_sub(start).div_ceil(piece_len));
        assert_eq!(pieces.len() as u64, count, "each piece of {start} to {end} has a digest");
        Ok((whole.finish().into(), pieces))
    }

    /// Returns the SHA-256 of all of it, computed once for each state of the file.
    pub fn digest_of_all(&self, cancellation: &Cancellation) -> FsResult<Digest> {
        let state = content_state(&self.attr);
        if let Some(known) = self.tree.digests.lock().get(self.attr.ino, &state) {
            return Ok(known);
        }
        let digest = match self.kept_digest()? {
            Some(kept) => kept,
            None => self.digest((0, self.attr.size), None, cancellation)?.0,
        };
        self.tree.digests.lock().put(self.attr.ino, state, digest.clone());
        Ok(digest)
    }

    /// Returns the digest that was taken when the file was laminated.
    fn kept_digest(&self) -> FsResult<Option<Digest>> {
        if !self.attr.is_laminated() {
            return Ok(None);
        }
        match self.tree.client()?.getxattr(self.attr.ino, DIGEST_XATTR) {
            Ok(text) => Ok(Digest::from_hex(&text)),
            // It is laminated no more.
            Err(error) if error.errno() == Errno::ENODATA => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the nodes that hold it.
    pub fn holders(&self) -> FsResult<Vec<NodeId>> {
        self.tree.holders(&self.attr)
    }

    pub(crate) fn shrunk(&self) -> FsError {
        FsError::with(Errno::EIO, format!("inode {} became shorter while it was read", self.attr.ino))
    }
}

/// Parts of a response: texts and ranges of a file, in order.
pub struct ResponseParts {
    file: OpenFile,
    left: Vec<Part>,
    share: Share,
}

impl ResponseParts {
    /// Creates the parts; the next one is last in `left`.
    #[must_use]
    pub fn new(file: OpenFile, left: Vec<Part>) -> ResponseParts {
        let share = file.tree.load.share();
        ResponseParts { file, left, share }
    }
}

/// A part of what is sent.
pub enum Part {
    /// A text.
    Text(Bytes),
    /// A range of the file.
    Range(u64, u64),
}

impl BodySource for ResponseParts {
    fn produce(&mut self) -> io::Result<Bytes> {
        match self.left.pop() {
            None => Ok(Bytes::new()),
            Some(Part::Text(text)) => Ok(text),
            Some(Part::Range(start, end)) => {
                assert!(start <= end, "a part from {start} to {end}");
                let len = (end - start).min(self.share.piece() as u64);
                if start + len < end {
                    self.left.push(Part::Range(start + len, end));
                }
                let bytes = self.file.read(start, len as usize).map_err(io::Error::other)?;
                if (bytes.len() as u64) < len {
                    return Err(io::Error::other(self.file.shrunk()));
                }
                Ok(bytes)
            }
        }
    }

    fn is_done(&self) -> bool {
        self.left.is_empty()
    }
}
