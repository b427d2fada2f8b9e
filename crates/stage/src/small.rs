//! Small files: each is read once, by one worker, and many are put in place together.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

use crate::baseline::Baseline;
use crate::draft::Draft;
use crate::job::open_for_reading;
use crate::line::{Line, LineKind};
use crate::meta::{Mark, Stamp, copy_xattrs, has_xattrs};
use crate::put::Putter;
use crate::target::Spot;
use crate::{Cause, Failure, Skipped};

/// Largest size of a small file, in bytes: what is read at once.
pub(crate) const SMALL: u64 = crate::blocks::BUFFER as u64;

/// A small file that is complete, but perhaps neither on stable storage nor in place.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Number of the entry in the plan.
    pub(crate) number: usize,
    pub(crate) draft: Draft,
    pub(crate) line: Line,
    /// Attributes that the target did not take.
    pub(crate) skipped: Vec<Skipped>,
}

/// What became of an attempt.
pub(crate) enum Attempt {
    Sealed(Box<Sealed>),
    /// It is not small any more.
    Large,
}

/// How a small file is written.
pub(crate) struct SmallCopy<'a> {
    pub(crate) spot: &'a Spot,
    /// Whether each file is written to stable storage by itself.
    pub(crate) sync: bool,
    pub(crate) buffer: &'a mut [u8],
    /// Where the target may make files at once.
    pub(crate) putter: Option<&'a mut Putter>,
}

impl SmallCopy<'_> {
    /// Copies one file. `Changed` and `Altered` are worth another attempt.
    pub(crate) fn copy(
        &mut self,
        number: usize,
        source: PathBuf,
        path: &Path,
        known: Option<&Baseline>,
    ) -> Result<Attempt, Failure> {
        let read = |error| Failure::io("read", &source, error);
        let from = open_for_reading(&source).map_err(|error| Failure::io("open", &source, error))?;
        let meta = from.metadata().map_err(read)?;
        let before = Stamp::of(&meta);
        if !meta.is_file() {
            return Err(Failure::new(&source, Cause::Changed));
        }
        if before.size > SMALL {
            return Ok(Attempt::Large);
        }
        let bytes = read_all(&from, before.size, self.buffer).map_err(read)?;
        let bytes = bytes.ok_or_else(|| Failure::new(&source, Cause::Changed))?;
        let mut line = Line::of(LineKind::File, &before, path);
        line.digest = Some(blake3::hash(bytes));
        let place = self.spot.place(path);
        let made = Made { path, source: &source, place: &place, before: &before, from: &from, bytes };
        let (draft, mark, refused) = match made.at_once(self.spot, self.putter.as_deref_mut())? {
            Some((draft, mark)) => (draft, mark, Vec::new()),
            None => made.in_steps(self.spot, self.sync)?,
        };
        if Stamp::of(&from.metadata().map_err(read)?) != before {
            return Err(Failure::new(&source, Cause::Changed));
        }
        if known.is_some_and(|known| line.is_altered(known)) {
            return Err(Failure::new(&source, Cause::Altered));
        }
        line.target = Some(mark);
        let skipped = refused.into_iter().map(|what| Skipped { path: source.clone(), what }).collect();
        Ok(Attempt::Sealed(Box::new(Sealed { number, draft, line, skipped })))
    }
}

/// A file to be made at the target.
struct Made<'a> {
    path: &'a Path,
    source: &'a Path,
    place: &'a Path,
    before: &'a Stamp,
    from: &'a File,
    bytes: &'a [u8],
}

impl Made<'_> {
    /// Has the formation make it by one request, if that is possible.
    fn at_once(&self, spot: &Spot, putter: Option<&mut Putter>) -> Result<Option<(Draft, Mark)>, Failure> {
        let Some(putter) = putter else { return Ok(None) };
        if has_xattrs(self.from).map_err(self.failed("copy attributes"))? {
            return Ok(None);
        }
        let made = spot.put_file(self.path, putter, &self.before.attrs, self.bytes);
        made.map_err(self.failed("make it"))
    }

    fn in_steps(&self, spot: &Spot, sync: bool) -> Result<(Draft, Mark, Vec<String>), Failure> {
        let attrs = &self.before.attrs;
        let (draft, to) = spot.file(self.path, attrs.mode, false).map_err(self.failed("make it"))?;
        // Asked before the first write, the kernel knows the answer.
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
        Ok((draft, Mark::of(&made), refused))
    }

    fn failed(&self, doing: &'static str) -> impl Fn(std::io::Error) -> Failure {
        move |error| Failure::io(doing, self.place, error)
    }
}

impl Sealed {
    /// Reads the copy back and compares it. `stored` if it is on stable storage, from which it is then read.
    pub(crate) fn verify(&self, place: &Path, stored: bool, buffer: &mut [u8]) -> Result<(), Failure> {
        let read = |error| Failure::io("read it back", place, error);
        let file = crate::straight::open(self.draft.path(), rustix::fs::OFlags::RDONLY, 0).map_err(read)?;
        if stored {
            let _only_advice = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        let bytes = read_all(&file, self.line.size, buffer).map_err(read)?;
        let same = bytes.is_some_and(|bytes| Some(blake3::hash(bytes)) == self.line.digest);
        if same { Ok(()) } else { Err(Failure::new(place, Cause::Differs { offset: 0 })) }
    }
}

/// All bytes of a file of this size; `None` if it is shorter.
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
