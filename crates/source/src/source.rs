//! The interface to site storage.

use std::time::Duration;

use bivouac_types::Timestamp;

use crate::error::Cause;
use crate::{
    Attrs, Entry, Listing, Meta, Piece, Precondition, PutOutcome, SourceError, SourceResult, Upload, Version,
};

/// Site storage below one root. Paths are relative to it, without `.`, `..`, empty parts or a leading slash; the
/// root itself is the empty path. Symbolic links are never followed.
///
/// A file is written in pieces beside its target, by as many processes as like to, and takes its place as a whole:
/// [`plan`](Source::plan), [`start`](Source::start), [`put`](Source::put), [`commit`](Source::commit). Who wants to
/// know after a kill what became of it writes the upload down after the first two of these
/// ([`resume`](Source::resume)).
pub trait Source: Send + Sync {
    /// Checks that the storage responds and is still the same.
    ///
    /// # Errors
    /// [`Cause::Lost`].
    fn check(&self) -> SourceResult<()>;

    /// Returns all entries of a directory, in no particular order.
    ///
    /// # Errors
    /// [`Cause::NotFound`], [`Cause::WrongKind`], [`Cause::Denied`], [`Cause::Lost`].
    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>>;

    /// Returns how long the names of a listing count, for storage whose names change while it is used; `None` where a
    /// directory is listed once.
    fn names_valid_for(&self) -> Option<Duration> {
        None
    }

    /// Returns a directory with its entries, unless it is still as a listing with the digest `known` was.
    ///
    /// # Errors
    /// As [`Source::list`].
    fn list_changed(&self, dir: &[u8], known: Option<u128>) -> SourceResult<Option<Listing>> {
        let _ = known;
        Ok(Some(Listing { dir: self.stat(dir)?, entries: self.list(dir)?, digest: 0 }))
    }

    /// Returns how many pieces of this length have to be under way to keep the storage busy; `None` for the few that
    /// suffice for storage near by.
    fn pieces_under_way(&self, piece_len: u64) -> Option<usize> {
        let _ = piece_len;
        None
    }

    /// Returns the metadata of a path.
    ///
    /// # Errors
    /// As [`Source::list`].
    fn stat(&self, path: &[u8]) -> SourceResult<Meta>;

    /// Reads into `into` from a file that still has `version`; returns fewer bytes only at its end.
    ///
    /// # Errors
    /// [`Cause::Changed`] when it does not; as [`Source::list`].
    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize>;

    /// Plans an upload of `size` bytes, or of a link, to a path, with a unique name. Changes nothing at the storage.
    ///
    /// # Errors
    /// [`Cause::BadName`]; [`Cause::Other`] when the system has no random numbers.
    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload>;

    /// Creates the temporary file or the multipart upload.
    ///
    /// # Errors
    /// [`Cause::Full`], [`Cause::ReadOnly`], [`Cause::Denied`], [`Cause::BadName`], [`Cause::Lost`].
    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload>;

    /// Plans and starts an upload that is not recorded for recovery.
    ///
    /// # Errors
    /// As [`Source::plan`] and [`Source::start`].
    fn begin(&self, path: &[u8], size: u64, attrs: &Attrs) -> SourceResult<Upload> {
        self.start(self.plan(path, size)?, attrs)
    }

    /// Returns the smallest size of the pieces of an upload of `size` bytes, except for the last one; such pieces must
    /// cover the file. With `None` pieces may begin anywhere, and ranges without a piece read as zeros.
    fn piece_size(&self, size: u64) -> Option<u64>;

    /// Writes one piece. A repeated piece replaces the earlier one.
    ///
    /// # Errors
    /// As [`Source::begin`].
    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece>;

    /// Returns whether [`Source::verify`] does for pieces that other processes have written, and [`Source::commit`] for
    /// those that it gets.
    fn verifies_for_all(&self) -> bool {
        false
    }

    /// Makes pieces that this process has written durable, and verifies their content.
    ///
    /// # Errors
    /// [`Cause::Other`] when they are not the same; as [`Source::begin`].
    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()>;

    /// Moves the upload to its target. All its pieces must have been verified, but for those that are given to storage
    /// that [verifies for all](Source::verifies_for_all).
    ///
    /// # Errors
    /// [`Cause::Changed`] when the target is not what is expected: nothing is overwritten then. As
    /// [`Source::begin`].
    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome>;

    /// Returns the length up to which [`Source::put_whole`] saves requests; 0 where it does not.
    fn whole_len_max(&self) -> u64 {
        0
    }

    /// Puts a planned file that is not longer than [`Source::whole_len_max`] as a whole, in place of start, put, verify
    /// and commit. `plan` is recorded for [`Source::resume`] before.
    ///
    /// # Errors
    /// As [`Source::commit`].
    fn put_whole(
        &self,
        plan: &Upload,
        data: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let upload = self.start(plan.clone(), attrs)?;
        let piece = self.put(&upload, 0, data)?;
        self.verify(&upload, std::slice::from_ref(&piece))?;
        self.commit(&upload, &[piece], attrs, expect)
    }

    /// Returns the plan of an upload with what [`Source::resume`] recognises it by if it is put as a whole.
    ///
    /// # Errors
    /// As [`Source::plan`].
    fn plan_whole(&self, path: &[u8], data: &[u8]) -> SourceResult<Upload> {
        self.plan(path, data.len() as u64)
    }

    /// Discards an upload. Succeeds if it does not exist.
    ///
    /// # Errors
    /// As [`Source::begin`].
    fn abort(&self, upload: &Upload) -> SourceResult<()>;

    /// Returns whether a file results from the upload with this tag. Used after a crash; an upload without a tag had
    /// not been started.
    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        !tag.is_empty() && found.tag == tag
    }

    /// Decides after a crash whether an upload, given by path, token and tag, has reached its target: returns the
    /// version if it has, and discards the upload otherwise. Idempotent.
    ///
    /// # Errors
    /// As [`Source::commit`].
    fn resume(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        let _ = expect;
        match self.stat(&upload.path) {
            Ok(meta) if self.is_made_by(&meta.version, &upload.tag) => Ok(Some(meta.version)),
            // An error must not discard the upload: it may be the only copy of the data.
            Err(error) if error.cause() != Cause::NotFound => Err(error),
            _ => self.abort(upload).map(|()| None),
        }
    }

    /// Creates a directory, or sets the attributes of an existing one.
    ///
    /// # Errors
    /// [`Cause::WrongKind`] when something else is there; as [`Source::begin`].
    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome>;

    /// Like [`Source::put_dir`], for a directory whose entries follow: its times need not be set.
    ///
    /// # Errors
    /// As [`Source::put_dir`].
    fn put_open_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.put_dir(path, attrs)
    }

    /// Sets only the times of a directory, after its entries have been written. Creates it if it is missing.
    ///
    /// # Errors
    /// As [`Source::put_dir`].
    fn put_dir_times(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        let found = match self.stat(path) {
            Err(error) if error.cause() == Cause::NotFound => None,
            found => Some(found?).filter(Meta::is_dir),
        };
        let Some(Meta { attrs: there, .. }) = found else { return self.put_dir(path, attrs) };
        let Attrs { mtime, atime, .. } = *attrs;
        self.put_dir(path, &Attrs { mtime, atime, ..there })
    }

    /// Creates a symbolic link under a temporary name.
    ///
    /// # Errors
    /// As [`Source::start`].
    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload>;

    /// Moves a symbolic link to its target path.
    ///
    /// # Errors
    /// [`Cause::Changed`] when the path is not what is expected; as [`Source::begin`].
    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome>;

    /// Sets the attributes of a file that still has `version`; its content does not change.
    ///
    /// # Errors
    /// [`Cause::Changed`] when it does not; as [`Source::begin`].
    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome>;

    /// Returns whether the metadata found is the result of [`Source::set_attrs`] on `was` with `attrs`. Used after a
    /// crash.
    fn has_attrs_applied(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        let version = &found.version;
        (version.size, &version.tag) == (was.size, &was.tag) && is_time_kept(version.mtime, attrs.mtime)
    }

    /// Completes or reverts a removal after a crash. Succeeds if there was none.
    ///
    /// # Errors
    /// As [`Source::remove`].
    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        let _ = (path, version);
        Ok(())
    }

    /// Removes a file or link that still has `version`, or an empty directory with the same tag. Succeeds if nothing is
    /// there.
    ///
    /// # Errors
    /// [`Cause::Changed`], [`Cause::NotEmpty`]; as [`Source::begin`].
    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()>;
}

/// Returns whether storage with a coarser clock may show `given` as `found`.
#[must_use]
pub fn is_time_kept(found: Timestamp, given: Timestamp) -> bool {
    const UNITS_NS: [u32; 7] = [1, 100, 1000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
    let is_cut = |unit: u32| found.nanos == given.nanos - given.nanos % unit;
    let is_even = given.secs - given.secs.rem_euclid(2) == found.secs && found.nanos == 0;
    // FAT has two seconds, ext3 and HTTP one second, others hundreds of nanoseconds.
    found.secs == given.secs && UNITS_NS.into_iter().any(is_cut) || is_even
}

/// Checks that a path has the form that sources accept.
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

/// Splits a path into its directory and its last name.
#[must_use]
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => path
            .split_at_checked(at)
            .map_or((&[][..], path), |(dir, rest)| (dir, rest.get(1..).unwrap_or_default())),
        None => (&[], path),
    }
}

/// Joins a directory and a name.
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
