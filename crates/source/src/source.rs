//! The seam to site storage.

use bivouac_types::Timestamp;

use crate::error::Cause;
use crate::{Attrs, Entry, Expect, Kept, Meta, Piece, SourceError, SourceResult, Upload, Version};

/// Site storage below one root. Paths are relative to it, without `.`, `..`, empty parts or a leading slash; the
/// root itself is the empty path. Symbolic links are never followed.
///
/// A file is written in pieces beside its target, by as many processes as like to, and takes its place as a whole:
/// [`plan`](Source::plan), [`start`](Source::start), [`put`](Source::put), [`commit`](Source::commit). Who wants to
/// know after a kill what became of it writes the upload down after the first two of these
/// ([`resume`](Source::resume)).
pub trait Source: Send + Sync {
    /// Whether the storage is where it was, and answers.
    ///
    /// # Errors
    /// [`Cause::Lost`].
    fn check(&self) -> SourceResult<()>;

    /// All entries of a directory, in no particular order.
    ///
    /// # Errors
    /// [`Cause::NotFound`], [`Cause::WrongKind`], [`Cause::Denied`], [`Cause::Lost`].
    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>>;

    /// What is at a path.
    ///
    /// # Errors
    /// As [`Source::list`].
    fn stat(&self, path: &[u8]) -> SourceResult<Meta>;

    /// Fills `into` from a file that still looks like `version`; fewer bytes only at its end.
    ///
    /// # Errors
    /// [`Cause::Changed`] when it does not; as [`Source::list`].
    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize>;

    /// Names what is to be put at a path, a file of `size` bytes or a link, as nothing else is named. Nothing is done
    /// yet.
    ///
    /// # Errors
    /// [`Cause::BadName`]; [`Cause::Other`] when the system has no random numbers.
    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload>;

    /// Begins a file beside its target.
    ///
    /// # Errors
    /// [`Cause::Full`], [`Cause::ReadOnly`], [`Cause::Denied`], [`Cause::BadName`], [`Cause::Lost`].
    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload>;

    /// Both, for who writes nothing down.
    ///
    /// # Errors
    /// As [`Source::plan`] and [`Source::start`].
    fn begin(&self, path: &[u8], size: u64, attrs: &Attrs) -> SourceResult<Upload> {
        self.start(self.plan(path, size)?, attrs)
    }

    /// Smallest size of the pieces of an upload of `size` bytes, all but the last, if there is one: they must cover all
    /// of it then. Pieces of other uploads may begin anywhere, and what no piece covers is zeros.
    fn piece_size(&self, size: u64) -> Option<u64>;

    /// Writes one piece. The same piece again replaces it.
    ///
    /// # Errors
    /// As [`Source::begin`].
    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece>;

    /// Makes pieces that this process has put durable, and reads them again or has the source say that it has them
    /// as they were.
    ///
    /// # Errors
    /// [`Cause::Other`] when they are not the same; as [`Source::begin`].
    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()>;

    /// Puts the upload in the place of its target, all pieces of it having been verified.
    ///
    /// # Errors
    /// [`Cause::Changed`] when the target is not what is expected: nothing is overwritten then. As
    /// [`Source::begin`].
    fn commit(&self, upload: &Upload, pieces: &[Piece], attrs: &Attrs, expect: &Expect)
    -> SourceResult<Kept>;

    /// Throws an upload away; none there is no error.
    ///
    /// # Errors
    /// As [`Source::begin`].
    fn abort(&self, upload: &Upload) -> SourceResult<()>;

    /// Whether what was found at its path came of the upload with this tag: after a kill a file is known again. Without
    /// a tag it had not been started.
    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        !tag.is_empty() && found.tag == tag
    }

    /// What became of an upload, known by path, token and tag, whose maker was killed while it was to take the place of
    /// what is expected: how it looks if it has, and otherwise it is thrown away. The same again answers the same.
    ///
    /// # Errors
    /// As [`Source::commit`].
    fn resume(&self, upload: &Upload, expect: &Expect) -> SourceResult<Option<Version>> {
        let _ = expect;
        match self.stat(&upload.path) {
            Ok(meta) if self.is_made_by(&meta.version, &upload.tag) => Ok(Some(meta.version)),
            Err(error) if error.cause() != Cause::NotFound => Err(error),
            _ => self.abort(upload).map(|()| None),
        }
    }

    /// Makes a directory, or gives an existing one these attributes.
    ///
    /// # Errors
    /// [`Cause::WrongKind`] when something else is there; as [`Source::begin`].
    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept>;

    /// As [`Source::put_dir`], of a directory that more is to be put into: its times can be left as they come.
    ///
    /// # Errors
    /// As [`Source::put_dir`].
    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept> {
        self.put_dir(path, attrs)
    }

    /// Gives a directory only its times, which what was put into it has moved on. One that is not there is made.
    ///
    /// # Errors
    /// As [`Source::put_dir`].
    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<Kept> {
        let found = match self.stat(path) {
            Err(error) if error.cause() == Cause::NotFound => None,
            found => Some(found?).filter(Meta::is_dir),
        };
        let Some(Meta { attrs: there, .. }) = found else { return self.put_dir(path, attrs) };
        let Attrs { mtime, atime, .. } = *attrs;
        self.put_dir(path, &Attrs { mtime, atime, ..there })
    }

    /// Begins a symbolic link beside the place that it is to have.
    ///
    /// # Errors
    /// As [`Source::start`].
    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload>;

    /// Puts a symbolic link that was started in its place.
    ///
    /// # Errors
    /// [`Cause::Changed`] when the path is not what is expected; as [`Source::begin`].
    fn put_link(&self, link: &Upload, target: &[u8], attrs: &Attrs, expect: &Expect) -> SourceResult<Kept>;

    /// Gives an existing file that still looks like `version` other attributes, leaving its content alone.
    ///
    /// # Errors
    /// [`Cause::Changed`] when it does not; as [`Source::begin`].
    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<Kept>;

    /// Whether what is found at a path is what looked like `was` with these attributes: after a kill in the middle of
    /// [`Source::set_attrs`] it is known whether that was done.
    fn is_given(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        let version = &found.version;
        (version.size, &version.tag) == (was.size, &was.tag) && is_time_kept(version.mtime, attrs.mtime)
    }

    /// Finishes a removal of what looked like `version` whose maker was killed, or takes it back. None is no error.
    ///
    /// # Errors
    /// As [`Source::remove`].
    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let _ = (path, version);
        Ok(())
    }

    /// Removes a file or link that still looks like `version`, or an empty directory that is still that one; none there
    /// is no error.
    ///
    /// # Errors
    /// [`Cause::Changed`], [`Cause::NotEmpty`]; as [`Source::begin`].
    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()>;
}

/// Whether storage shows a time that was given as this one: some keep only its first digits.
fn is_time_kept(found: Timestamp, given: Timestamp) -> bool {
    const UNITS_NS: [u32; 7] = [1, 100, 1000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
    let is_cut = |unit: u32| found.nanos == given.nanos - given.nanos % unit;
    let is_even = given.secs - given.secs.rem_euclid(2) == found.secs && found.nanos == 0;
    found.secs == given.secs && UNITS_NS.into_iter().any(is_cut) || is_even
}

/// Whether a path has the form that sources take.
///
/// # Errors
/// [`Cause::BadName`].
pub fn check_path(path: &[u8]) -> SourceResult<()> {
    let bad = |name: &[u8]| name.is_empty() || name == b"." || name == b".." || name.contains(&0);
    if !path.is_empty() && path.split(|byte| *byte == b'/').any(bad) {
        let text = format!("'{}' is no path below a source", String::from_utf8_lossy(path));
        return Err(SourceError::new(Cause::BadName, text));
    }
    Ok(())
}

/// The directory of a path, and the name in it.
#[must_use]
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => path
            .split_at_checked(at)
            .map_or((&[][..], path), |(dir, rest)| (dir, rest.get(1..).unwrap_or_default())),
        None => (&[], path),
    }
}

/// A path below a directory.
#[must_use]
pub fn join_path(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_known_again_where_storage_cuts_them() {
        let at = |secs, nanos| Timestamp { secs, nanos };
        let given = at(1_234_567_891, 123_456_789);
        for kept in [given, at(given.secs, 123_456_700), at(given.secs, 0), at(given.secs - 1, 0)] {
            assert!(is_time_kept(kept, given), "{kept:?}");
        }
        for other in [at(given.secs, 123_456_788), at(given.secs + 1, 0), at(given.secs - 1, 123_456_789)] {
            assert!(!is_time_kept(other, given), "{other:?}");
        }
    }
}
