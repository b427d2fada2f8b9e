//! Small files: each is read once by one worker, and many are renamed together.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

use crate::baseline::Baseline;
use crate::error::{Cause, Failure};
use crate::manifest_line::{Line, LineKind};
use crate::meta::{InodeVersion, MetadataStamp, copy_xattrs, has_xattrs};
use crate::nofollow;
use crate::put_ioctl::PutIoctl;
use crate::summary::Skipped;
use crate::target::TargetWriter;
use crate::temporary::TemporaryObject;

/// Largest small file, in bytes: the size of a read.
pub(crate) const SMALL: u64 = crate::blocks::BUFFER as u64;

/// A complete small file that is neither synced nor renamed yet.
#[derive(Debug)]
pub(crate) struct UnsyncedFile {
    /// Entry number in the plan.
    pub(crate) number: usize,
    pub(crate) draft: TemporaryObject,
    pub(crate) line: Line,
    /// Attributes that the target does not support.
    pub(crate) skipped: Vec<Skipped>,
}

/// Result of an attempt.
pub(crate) enum SmallCopyResult {
    Sealed(Box<UnsyncedFile>),
    /// The file has grown and is not small any more.
    Large,
}

/// Context for writing small files.
pub(crate) struct SmallCopy<'a> {
    pub(crate) writer: &'a TargetWriter,
    /// True if each file is synced separately.
    pub(crate) sync: bool,
    pub(crate) buffer: &'a mut [u8],
    /// The ioctl of a formation's mount.
    pub(crate) putter: Option<&'a mut PutIoctl>,
}

impl SmallCopy<'_> {
    /// Copies one file. `Changed` and `Altered` may be retried.
    pub(crate) fn copy(
        &mut self,
        number: usize,
        source: PathBuf,
        path: &Path,
        known: Option<&Baseline>,
    ) -> Result<SmallCopyResult, Failure> {
        let read = |error| Failure::io("read", &source, error);
        let from =
            nofollow::open_for_reading(&source).map_err(|error| Failure::io("open", &source, error))?;
        let meta = from.metadata().map_err(read)?;
        let before = MetadataStamp::of(&meta);
        if !meta.is_file() {
            return Err(Failure::new(&source, Cause::Changed));
        }
        if before.size > SMALL {
            return Ok(SmallCopyResult::Large);
        }
        let bytes = read_all(&from, before.size, self.buffer).map_err(read)?;
        let bytes = bytes.ok_or_else(|| Failure::new(&source, Cause::Changed))?;
        assert_eq!(bytes.len() as u64, before.size, "a small file was not read as a whole");
        let mut line = Line::of(LineKind::File, &before, path);
        line.digest = Some(blake3::hash(bytes));
        let place = self.writer.place(path);
        let made = SmallFile { path, source: &source, place: &place, before: &before, from: &from, bytes };
        let (draft, version, refused) = match made.at_once(self.writer, self.putter.as_deref_mut())? {
            Some((draft, version)) => (draft, version, Vec::new()),
            None => made.in_steps(self.writer, self.sync)?,
        };
        // A writer may have changed the file between the two reads of its metadata; the copy would be a mixture.
        if MetadataStamp::of(&from.metadata().map_err(read)?) != before {
            return Err(Failure::new(&source, Cause::Changed));
        }
        if known.is_some_and(|known| known.is_altered(&line)) {
            return Err(Failure::new(&source, Cause::Altered));
        }
        line.target = Some(version);
        let skipped = refused.into_iter().map(|what| Skipped { path: source.clone(), what }).collect();
        Ok(SmallCopyResult::Sealed(Box::new(UnsyncedFile { number, draft, line, skipped })))
    }
}

/// A small file to create at the target.
struct SmallFile<'a> {
    path: &'a Path,
    source: &'a Path,
    place: &'a Path,
    before: &'a MetadataStamp,
    from: &'a File,
    bytes: &'a [u8],
}

impl SmallFile<'_> {
    /// Creates the file by one ioctl, if possible.
    fn at_once(
        &self,
        writer: &TargetWriter,
        putter: Option<&mut PutIoctl>,
    ) -> Result<Option<(TemporaryObject, InodeVersion)>, Failure> {
        let Some(putter) = putter else { return Ok(None) };
        // The ioctl takes no attributes of this kind.
        if has_xattrs(self.from).map_err(self.failed("copy attributes"))? {
            return Ok(None);
        }
        let made = writer.put_file(self.path, putter, &self.before.attrs, self.bytes);
        made.map_err(self.failed("make it"))
    }

    fn in_steps(
        &self,
        writer: &TargetWriter,
        sync: bool,
    ) -> Result<(TemporaryObject, InodeVersion, Vec<String>), Failure> {
        let attrs = &self.before.attrs;
        let (draft, to) = writer.file(self.path, attrs.mode, false).map_err(self.failed("make it"))?;
        // Before the first write the attributes are in the kernel's cache; afterwards they cost a request.
        let fresh = to.metadata().map_err(self.failed("look at it"))?;
        to.write_all_at(self.bytes, 0).map_err(self.failed("write"))?;
        let refused = copy_xattrs(self.from, &to).map_err(self.failed("set attributes"))?;
        attrs.apply_over(&to, fresh).map_err(self.failed("set mode and times"))?;
        if sync {
            to.sync_all().map_err(self.failed("write to stable storage"))?;
        }
        let made = to.metadata().map_err(self.failed("look at it"))?;
        if made.len() != self.before.size {
            return Err(Failure::new(self.source, Cause::Changed));
        }
        Ok((draft, InodeVersion::of(&made), refused))
    }

    fn failed(&self, doing: &'static str) -> impl Fn(std::io::Error) -> Failure {
        move |error| Failure::io(doing, self.place, error)
    }
}

impl UnsyncedFile {
    /// Reads the copy back and compares it; `stored` drops it from the page cache first.
    pub(crate) fn verify(&self, place: &Path, stored: bool, buffer: &mut [u8]) -> Result<(), Failure> {
        let read = |error| Failure::io("read it back", place, error);
        let file = nofollow::open(self.draft.path(), rustix::fs::OFlags::RDONLY, 0).map_err(read)?;
        if stored {
            let _only_advice = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        let bytes = read_all(&file, self.line.size, buffer).map_err(read)?;
        // One block, so the digest is compared directly.
        let same = bytes.is_some_and(|bytes| Some(blake3::hash(bytes)) == self.line.digest);
        if same { Ok(()) } else { Err(Failure::new(place, Cause::Differs { offset: 0 })) }
    }
}

/// Reads `size` bytes of a file; `None` if it is shorter.
fn read_all<'a>(file: &File, size: u64, buffer: &'a mut [u8]) -> std::io::Result<Option<&'a [u8]>> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let Some(wanted) = buffer.get_mut(..size) else { return Ok(None) };
    let mut filled = 0;
    while let Some(rest) = wanted.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64) {
            Ok(0) => return Ok(None),
            Ok(len) => filled += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(wanted))
}
