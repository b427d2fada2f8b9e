//! Requests of linked formations, carried out below one directory of a mount.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bivouac_source::{
    Attrs, Cause, Entry, Listing, Meta, Piece, PosixSource, Precondition, PutOutcome, Source, SourceError,
    SourceResult, TEMPORARY, Upload, Version, check_path, join_path,
};
use bivouac_types::mode;
use bivouac_wire::Encode;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::protocol::{Coded, DirChange, LISTING_MAX, ListedDir, PAYLOAD_MAX, Request, WantedDir};
use crate::source::CONTENT_TAG;
use crate::validate;

/// Longest walk of the tree below a listed directory.
const WALK_MAX: Duration = Duration::from_secs(1);
/// Bytes of all directories of a reply, at most: their number is in front of them.
const DIRS_BYTES_MAX: usize = LISTING_MAX - size_of::<u32>();
/// Bytes of listings below a listed directory, at most.
const BELOW_BYTES_MAX: usize = 4 << 20;
/// Entries that come unasked, at most, and directories of one request.
const BELOW_ENTRIES_MAX: u32 = 1 << 14;
const DIRS_MAX: usize = 256;
/// Descriptors of uploads that are kept open.
const UPLOADS_MAX: usize = 256;
/// Locks that all paths share.
const PATH_LOCKS: usize = 32;
/// Bytes that are read at once to compare a content.
const COMPARE_LEN: usize = 1 << 20;

/// A directory of a mount, with what the key permits below it.
pub struct Export<'a> {
    /// The mount.
    pub mount: &'a PosixSource,
    /// Path of the mount, which is cut out of messages to others.
    pub mount_path: &'a str,
    /// The directory's path from the mount on.
    pub prefix: &'a [u8],
    /// Uploads with their descriptors.
    pub uploads: &'a UploadTable,
    /// Paths from the mount on that are not walked unasked.
    pub links: &'a [Vec<u8>],
    /// True once the connection of the request has ended: it is sent again over another one.
    pub has_ended: &'a AtomicBool,
}

/// A reply: body and payload.
pub type Answer = (Vec<u8>, Vec<u8>);

/// Directories of a reply.
#[derive(Default)]
struct EncodedDirs {
    count: u32,
    bytes: Vec<u8>,
}

impl EncodedDirs {
    /// Adds a directory, unless all would be longer than that then. Returns whether it did.
    fn add(&mut self, listed: &ListedDir, bytes_max: usize) -> bool {
        let before = self.bytes.len();
        listed.encode(&mut self.bytes);
        let fits = self.bytes.len() <= bytes_max;
        if fits {
            self.count += 1
        } else {
            self.bytes.truncate(before)
        }
        fits
    }

    fn into_bytes(self) -> Vec<u8> {
        [&self.count.to_le_bytes()[..], &self.bytes].concat()
    }
}

/// Uploads whose descriptors are open, and locks of paths.
#[derive(Default)]
pub struct UploadTable {
    open: Mutex<HashMap<(Vec<u8>, String), Upload>>,
    /// By a hash of the path. A request that is sent again waits here for its first transmission, which may still be
    /// carried out; so does what places an upload for the pieces of it.
    paths: [RwLock<()>; PATH_LOCKS],
}

/// While this lives, nothing else that it excludes is done at a path.
enum PathGuard<'a> {
    None,
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl UploadTable {
    fn insert(&self, upload: &Upload) {
        let mut all = self.open.lock();
        if all.len() >= UPLOADS_MAX {
            // They are opened again when they are needed.
            all.clear();
        }
        all.insert((upload.path.clone(), upload.token.clone()), upload.clone());
    }

    /// Returns the upload as it was begun, if it is known and the same.
    fn find(&self, upload: Upload) -> Upload {
        let all = self.open.lock();
        let known = all.get(&(upload.path.clone(), upload.token.clone()));
        known
            .filter(|known| known.tag == upload.tag || upload.tag.is_empty())
            .map_or(upload.clone(), |known| Upload { opened: known.opened.clone(), ..upload })
    }

    fn remove(&self, upload: &Upload) {
        self.open.lock().remove(&(upload.path.clone(), upload.token.clone()));
    }

    /// Locks what a request changes.
    fn lock(&self, request: &Request) -> PathGuard<'_> {
        let lock_of = |path: &[u8]| {
            let [first, ..] = &self.paths;
            self.paths.get(xxh3_128(path) as usize % PATH_LOCKS).unwrap_or(first)
        };
        match request {
            Request::Put { upload, .. } | Request::Verify { upload, .. } => {
                PathGuard::Shared { _guard: lock_of(&upload.0.path).read() }
            }
            Request::Start { upload, .. }
            | Request::StartLink { upload, .. }
            | Request::Commit { upload, .. }
            | Request::PutLink { upload, .. }
            | Request::PutWhole { upload, .. }
            | Request::Abort { upload }
            | Request::Resume { upload, .. } => PathGuard::Alone { _guard: lock_of(&upload.0.path).write() },
            Request::SetAttrs { path, .. }
            | Request::PutDir { path, .. }
            | Request::FinishRemoval { path, .. }
            | Request::Remove { path, .. } => PathGuard::Alone { _guard: lock_of(path).write() },
            Request::Join { .. }
            | Request::Check {}
            | Request::List { .. }
            | Request::Stat { .. }
            | Request::Read { .. }
            | Request::Reach { .. }
            | Request::Usage {}
            | Request::Figures {} => PathGuard::None,
        }
    }
}

fn encoded(value: &impl Encode) -> Answer {
    (value.to_bytes(), Vec::new())
}

fn refused(cause: Cause, text: &str) -> SourceError {
    SourceError::new(cause, text)
}

impl Export<'_> {
    /// Carries out a request; `is_again` says that it may have been carried out before.
    pub fn carry_out(&self, request: Request, payload: &[u8], is_again: bool) -> SourceResult<Answer> {
        let _alone = self.uploads.lock(&request);
        // Its repetition may have been carried out by now.
        if request.is_change() && self.has_ended.load(Ordering::Acquire) {
            return Err(refused(Cause::Lost, "the connection has ended"));
        }
        // Of these "it is not there" is no error.
        let takes_absence = matches!(
            request,
            Request::Remove { .. } | Request::FinishRemoval { .. } | Request::Resume { .. }
        );
        let mut outcome = self.carry_out_there(request, payload, is_again);
        if takes_absence && outcome.is_ok() {
            outcome = self.check_still_there().and(outcome);
        }
        outcome.map_err(|error| {
            // Without the exported directory nothing is known of what is in it.
            let error = match error.cause() {
                Cause::NotFound => self.check_still_there().err().unwrap_or(error),
                _ => error,
            };
            let text = error.to_string().replace(self.mount_path, "");
            SourceError::new(error.cause(), text)
        })
    }

    fn carry_out_there(&self, request: Request, payload: &[u8], is_again: bool) -> SourceResult<Answer> {
        match request {
            Request::Check {} => self.check().map(|()| encoded(&())),
            Request::List { dirs, below_max } => self.list(dirs, below_max),
            Request::Stat { path, inline_max } => self.stat(&path, inline_max),
            Request::Read { path, version, offset, len } => {
                let mut content = vec![0; (len as usize).min(PAYLOAD_MAX)];
                let len = self.mount.read(&self.path(&path)?, &version.0, offset, &mut content)?;
                content.truncate(len);
                Ok((Vec::new(), content))
            }
            Request::Start { upload: Coded(plan), attrs } => {
                let (plan, attrs) = (self.upload(plan)?, validate::given(attrs.0, mode::FILE)?);
                if is_again {
                    self.mount.abort(&Upload { tag: String::new(), ..plan.clone() })?;
                }
                let begun = self.mount.start(plan, &attrs)?;
                self.uploads.insert(&begun);
                Ok(encoded(&Coded(self.outward(begun))))
            }
            Request::Put { upload: Coded(upload), offset } => {
                let upload = self.uploads.find(self.upload(upload)?);
                Ok(encoded(&Coded(self.mount.put(&upload, offset, payload)?)))
            }
            Request::Verify { upload: Coded(upload), pieces } => {
                let upload = self.uploads.find(self.upload(upload)?);
                Ok(encoded(&self.verify(&upload, pieces)?))
            }
            Request::Commit { upload: Coded(upload), pieces, attrs, expect } => {
                let attrs = validate::given(attrs.0, mode::FILE)?;
                let upload = self.uploads.find(self.upload(upload)?);
                if is_again && let Some(done) = self.done_before(&upload, &attrs, &expect.0)? {
                    return Ok(encoded(&done));
                }
                self.verify(&upload, pieces)?;
                let outcome = self.mount.commit(&upload, &[], &attrs, &expect.0);
                self.uploads.remove(&upload);
                Ok(encoded(&Coded(outcome?)))
            }
            Request::Abort { upload: Coded(upload) } => {
                let upload = self.uploads.find(self.upload(upload)?);
                let discarded = self.mount.abort(&by_content(upload.clone()));
                self.uploads.remove(&upload);
                Ok(encoded(&discarded?))
            }
            Request::Resume { upload: Coded(upload), expect } => self.resume(upload, &expect.0),
            Request::PutDir { path, attrs: Coded(attrs), change } => {
                let (path, attrs) = (self.changed_path(&path)?, validate::given(attrs, mode::DIR)?);
                let outcome = match change {
                    DirChange::All => self.mount.put_dir(&path, &attrs),
                    DirChange::Open => self.mount.put_open_dir(&path, &attrs),
                    DirChange::Times => self.mount.put_dir_times(&path, &attrs),
                };
                Ok(encoded(&Coded(outcome?)))
            }
            Request::StartLink { upload: Coded(plan), target } => {
                let plan = self.upload(plan)?;
                if is_again {
                    self.mount.abort(&Upload { tag: String::new(), ..plan.clone() })?;
                }
                Ok(encoded(&Coded(self.outward(self.mount.start_link(plan, &target)?))))
            }
            Request::PutLink { upload: Coded(link), target, attrs, expect } => {
                let (link, attrs) = (self.upload(link)?, validate::given(attrs.0, mode::LINK)?);
                if is_again && let Some(done) = self.done_before(&link, &attrs, &expect.0)? {
                    return Ok(encoded(&done));
                }
                Ok(encoded(&Coded(self.mount.put_link(&link, &target, &attrs, &expect.0)?)))
            }
            Request::SetAttrs { path, version: Coded(was), attrs: Coded(attrs) } => {
                let (path, attrs) = (self.changed_path(&path)?, validate::given(attrs, mode::FILE)?);
                // Done twice it is the same, and the time alone does not tell whether the rest was done.
                match self.mount.set_attrs(&path, &was, &attrs) {
                    Err(error) if is_again && error.cause() == Cause::Changed => {
                        let found = self.mount.stat(&path)?;
                        if !self.mount.has_attrs_applied(&found, &was, &attrs) {
                            return Err(error);
                        }
                        let outcome = PutOutcome { version: found.version, lost: Vec::new() };
                        Ok(encoded(&Coded(outcome)))
                    }
                    outcome => Ok(encoded(&Coded(outcome?))),
                }
            }
            Request::FinishRemoval { path, version } => {
                Ok(encoded(&self.mount.finish_removal(&self.changed_path(&path)?, &version.0)?))
            }
            Request::Remove { path, version } => {
                let (path, version) = (self.changed_path(&path)?, version.map(|Coded(version)| version));
                let removed = self.mount.remove(&path, version.as_ref());
                match removed {
                    // The first of the two requests has removed it.
                    Err(_) if is_again && self.is_absent(&path)? => Ok(encoded(&())),
                    removed => Ok(encoded(&removed?)),
                }
            }
            Request::PutWhole { upload: Coded(plan), attrs, expect } => {
                let attrs = validate::given(attrs.0, mode::FILE)?;
                self.put_whole(plan, payload, &attrs, &expect.0, is_again)
            }
            Request::Join { .. } | Request::Reach { .. } | Request::Usage {} | Request::Figures {} => {
                Err(refused(Cause::Unsupported, "a request that is not about files"))
            }
        }
    }

    fn verify(&self, upload: &Upload, pieces: Vec<Coded<Piece>>) -> SourceResult<()> {
        let pieces: Vec<_> = pieces.into_iter().map(|Coded(piece)| piece).collect();
        if pieces.is_empty() { Ok(()) } else { self.mount.verify(upload, &pieces) }
    }

    /// Returns a path from the mount on.
    fn path(&self, path: &[u8]) -> SourceResult<Vec<u8>> {
        check_path(path)?;
        // What is being uploaded is nobody's to see, whoever knows its name.
        if path.split(|byte| *byte == b'/').any(|name| name.starts_with(TEMPORARY.as_bytes())) {
            let text =
                format!("'{}' is the name of a file that is being written", String::from_utf8_lossy(path));
            return Err(SourceError::new(Cause::BadName, text));
        }
        Ok(match (self.prefix, path) {
            (prefix, []) => prefix.to_vec(),
            (prefix, path) => join_path(prefix, path),
        })
    }

    /// Returns a path that is to be changed: not the exported directory itself.
    fn changed_path(&self, path: &[u8]) -> SourceResult<Vec<u8>> {
        if path.is_empty() {
            return Err(refused(
                Cause::Denied,
                "the exported directory itself is not changed through a link",
            ));
        }
        self.path(path)
    }

    /// Returns an upload from the mount on. Its token names a file beside its target.
    fn upload(&self, upload: Upload) -> SourceResult<Upload> {
        if !upload.token.starts_with(TEMPORARY) || upload.token.contains(['/', '\0']) {
            let text =
                format!("'{}' is no name of a file that is being written", upload.token.escape_debug());
            return Err(SourceError::new(Cause::BadName, text));
        }
        Ok(Upload { path: self.changed_path(&upload.path)?, ..upload })
    }

    /// Returns an upload as the other side knows it.
    fn outward(&self, upload: Upload) -> Upload {
        let own = upload.path.get(self.prefix.len()..).unwrap_or_default();
        let path = own.strip_prefix(b"/").unwrap_or(own).to_vec();
        Upload { path, ..upload }
    }

    /// Checks that the exported directory is there.
    pub fn check(&self) -> SourceResult<()> {
        self.mount.check()?;
        match self.mount.stat(self.prefix)?.is_dir() {
            true => Ok(()),
            false => Err(refused(Cause::WrongKind, "what is exported is no directory")),
        }
    }

    /// Like [`Export::check`], except that a missing export is reported as `Lost`: it says nothing about the content.
    fn check_still_there(&self) -> SourceResult<()> {
        self.check().map_err(|error| match error.cause() {
            Cause::Lost => error,
            _ => SourceError::new(Cause::Lost, format!("what is exported is not there: {error}")),
        })
    }

    fn is_absent(&self, path: &[u8]) -> SourceResult<bool> {
        match self.mount.stat(path) {
            Err(error) if error.cause() == Cause::NotFound => self.check_still_there().map(|()| true),
            found => found.map(|_| false),
        }
    }

    /// Returns the outcome of an upload that has reached its target before; `None` otherwise.
    fn done_before(
        &self,
        upload: &Upload,
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<Option<Coded<PutOutcome>>> {
        let found = match self.mount.stat(&upload.path) {
            Err(error) if error.cause() == Cause::NotFound => return Ok(None),
            found => found?,
        };
        if !self.mount.is_made_by(&found.version, &upload.tag) {
            return Ok(None);
        }
        // Also finishes an exchange that was cut off.
        let version = self.mount.resume(upload, expect)?;
        // As it was when it was put there: who has written to it since has made another version.
        Ok(version.map(|now| {
            let version = Version { size: upload.size, mtime: attrs.mtime, tag: now.tag };
            Coded(PutOutcome { version, lost: Vec::new() })
        }))
    }

    fn stat(&self, path: &[u8], inline_max: u32) -> SourceResult<Answer> {
        let path = self.path(path)?;
        let found = self.mount.stat(&path)?;
        let size = found.version.size;
        let mut content = Vec::new();
        if found.is_file() && size > 0 && size <= u64::from(inline_max.min(PAYLOAD_MAX as u32)) {
            content.resize(size as usize, 0);
            match self.mount.read(&path, &found.version, 0, &mut content) {
                Ok(len) if len as u64 == size => {}
                // Who wants it asks for it, and learns why it cannot be had.
                _ => content.clear(),
            }
        }
        Ok((Coded(found).to_bytes(), content))
    }

    fn list(&self, dirs: Vec<WantedDir>, below_max: u32) -> SourceResult<Answer> {
        if dirs.len() > DIRS_MAX {
            return Err(refused(Cause::BadName, "too many directories at once"));
        }
        self.mount.check()?;
        let mut all = EncodedDirs::default();
        for (number, WantedDir { path, known }) in dirs.into_iter().enumerate() {
            let listing = match self.list_one(&path) {
                Ok(listing) => listing,
                // The others are looked at on the way.
                Err(_) if number > 0 => continue,
                Err(error) => return Err(error),
            };
            let known = u128::from_le_bytes(known);
            let listing = (known != listing.digest).then_some(listing);
            let walked = listing.as_ref().filter(|_| number == 0).map(|listing| self.dirs_of(&path, listing));
            let listed = ListedDir { path, listing: listing.map(Coded) };
            if !all.add(&listed, DIRS_BYTES_MAX) && number == 0 {
                let text = "the directory has more entries than a link can list: spread it over several";
                return Err(refused(Cause::Unsupported, text));
            }
            if let Some(next) = walked {
                self.walk(next, below_max.min(BELOW_ENTRIES_MAX), &mut all);
            }
        }
        Ok((all.into_bytes(), Vec::new()))
    }

    fn list_one(&self, path: &[u8]) -> SourceResult<Listing> {
        let there = self.path(path)?;
        let dir = self.mount.stat(&there)?;
        let mut entries = self.mount.list(&there)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        let digest = digest_of(&dir, &entries);
        Ok(Listing { dir, entries, digest })
    }

    /// Directories in a directory, of which a walk goes on.
    fn dirs_of(&self, path: &[u8], listing: &Listing) -> VecDeque<Vec<u8>> {
        let dirs = listing.entries.iter().filter(|entry| entry.meta.is_dir());
        let dirs = dirs.map(|entry| join_path(path, &entry.name));
        dirs.filter(|path| self.path(path).is_ok_and(|there| !self.links.contains(&there))).collect()
    }

    /// Lists the trees below directories, breadth first, as far as they fit.
    fn walk(&self, mut next: VecDeque<Vec<u8>>, below_max: u32, all: &mut EncodedDirs) {
        let (begun, bytes_max) = (Instant::now(), all.bytes.len() + BELOW_BYTES_MAX);
        let mut left = below_max as usize;
        while let Some(path) = next.pop_front().filter(|_| begun.elapsed() < WALK_MAX) {
            let Ok(listing) = self.list_one(&path) else { continue };
            let Some(rest) = left.checked_sub(listing.entries.len() + 1) else { return };
            left = rest;
            next.extend(self.dirs_of(&path, &listing));
            if !all.add(&ListedDir { path, listing: Some(Coded(listing)) }, bytes_max.min(DIRS_BYTES_MAX)) {
                return;
            }
        }
    }

    /// Puts a whole file. One that is there with the same content and was put by the same request is done.
    fn put_whole(
        &self,
        plan: Upload,
        content: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
        is_again: bool,
    ) -> SourceResult<Answer> {
        let plan = self.upload(plan)?;
        if plan.size != content.len() as u64 || plan.tag != content_tag(content) {
            return Err(refused(Cause::Other, "other content came than was sent"));
        }
        if is_again && let Some(version) = self.resume_by_content(&plan, expect)? {
            return Ok(encoded(&Coded(PutOutcome { version, lost: Vec::new() })));
        }
        let upload = self.mount.start(Upload { tag: String::new(), ..plan }, attrs)?;
        let put = || {
            let piece = self.mount.put(&upload, 0, content)?;
            self.mount.verify(&upload, std::slice::from_ref(&piece))?;
            self.mount.commit(&upload, &[piece], attrs, expect)
        };
        match put() {
            Ok(outcome) => Ok(encoded(&Coded(outcome))),
            Err(error) => {
                // It is discarded again by whoever asks what became of it.
                let _left = self.mount.abort(&upload);
                Err(error)
            }
        }
    }

    fn resume(&self, upload: Upload, expect: &Precondition) -> SourceResult<Answer> {
        let upload = self.upload(upload)?;
        self.uploads.remove(&upload);
        let version = match upload.tag.starts_with(CONTENT_TAG) {
            true => self.resume_by_content(&upload, expect)?,
            // With the size that it had when it was put there: an append since has made another version.
            false => {
                let version = self.mount.resume(&upload, expect)?;
                version.map(|now| Version { size: upload.size, ..now })
            }
        };
        Ok(encoded(&version.map(Coded)))
    }

    /// Returns the outcome of an upload of a whole file: it has reached its target if that has the same content.
    fn resume_by_content(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        let found = match self.mount.stat(&upload.path) {
            Err(error) if error.cause() == Cause::NotFound => None,
            found => Some(found?).filter(Meta::is_file),
        };
        let tag = match found {
            // The object to be replaced is still there, perhaps with the same content and other attributes.
            Some(found) if *expect == Precondition::Version(found.version.clone()) => String::new(),
            Some(found) if self.tag_of(&upload.path, &found)? == upload.tag => found.version.tag,
            _ => String::new(),
        };
        self.mount.resume(&Upload { tag, ..upload.clone() }, expect)
    }

    fn tag_of(&self, path: &[u8], found: &Meta) -> SourceResult<String> {
        let (mut digest, mut at, mut buffer) = (Xxh3::new(), 0, vec![0; COMPARE_LEN]);
        while at < found.version.size {
            let len = self.mount.read(path, &found.version, at, &mut buffer)?;
            if len == 0 {
                break;
            }
            digest.update(buffer.get(..len).unwrap_or_default());
            at += len as u64;
        }
        Ok(format!("{CONTENT_TAG}{:032x}", digest.digest128()))
    }
}

/// Returns the upload as the mount knows it: one that is recognised by its content has no tag there.
fn by_content(upload: Upload) -> Upload {
    match upload.tag.starts_with(CONTENT_TAG) {
        true => Upload { tag: String::new(), ..upload },
        false => upload,
    }
}

fn content_tag(content: &[u8]) -> String {
    format!("{CONTENT_TAG}{:032x}", xxh3_128(content))
}

/// Returns the digest of all but times of access, which change as others read; never 0.
fn digest_of(dir: &Meta, entries: &[Entry]) -> u128 {
    let mut bytes = Vec::new();
    let without_atime = |meta: &Meta| {
        let mut meta = meta.clone();
        meta.attrs.atime = Default::default();
        Coded(meta)
    };
    without_atime(dir).encode(&mut bytes);
    for entry in entries {
        entry.name.encode(&mut bytes);
        without_atime(&entry.meta).encode(&mut bytes);
    }
    xxh3_128(&bytes).max(1)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use bivouac_types::Timestamp;
    use bivouac_wire::Decode;
    use tempfile::TempDir;

    use super::*;

    fn carry_out(dir: &TempDir, request: Request, payload: &[u8], is_again: bool) -> SourceResult<Answer> {
        let (mount, uploads) = (PosixSource::open(dir.path()).unwrap(), UploadTable::default());
        let (links, has_ended) = (&[], &AtomicBool::new(false));
        let export =
            Export { mount: &mount, mount_path: "/far", prefix: b"", uploads: &uploads, links, has_ended };
        export.carry_out(request, payload, is_again)
    }

    fn outcome(answer: SourceResult<Answer>) -> PutOutcome {
        Coded::<PutOutcome>::from_bytes(&answer.unwrap().0).unwrap().0
    }

    fn attrs(perm: u32) -> Attrs {
        let mtime = Timestamp { secs: 1000, nanos: 5 };
        Attrs { perm, uid: rustix::process::geteuid().as_raw(), mtime, atime: mtime, ..Attrs::default() }
    }

    fn started(dir: &TempDir) -> Upload {
        let upload =
            Upload { path: b"f".to_vec(), size: 4, token: format!("{TEMPORARY}t"), ..Upload::default() };
        let start = Request::Start { upload: Coded(upload), attrs: Coded(attrs(0o600)) };
        Coded::<Upload>::from_bytes(&carry_out(dir, start, &[], false).unwrap().0).unwrap().0
    }

    fn commit(upload: &Upload) -> Request {
        let (upload, attrs) = (Coded(upload.clone()), Coded(attrs(0o4640)));
        Request::Commit { upload, pieces: Vec::new(), attrs, expect: Coded(Precondition::Absent) }
    }

    #[test]
    fn what_is_written_behind_a_commit_is_not_taken_for_it() {
        let dir = TempDir::new().unwrap();
        let upload = started(&dir);
        let put = Request::Put { upload: Coded(upload.clone()), offset: 0 };
        carry_out(&dir, put, b"ours", false).unwrap();
        let kept = outcome(carry_out(&dir, commit(&upload), &[], false));
        assert_eq!(outcome(carry_out(&dir, commit(&upload), &[], true)), kept, "again");
        let mut file = fs::OpenOptions::new().append(true).open(dir.path().join("f")).unwrap();
        file.write_all(b" and theirs").unwrap();
        let again = outcome(carry_out(&dir, commit(&upload), &[], true));
        assert_eq!(again.version, kept.version, "the version that was put there");
        let resume = Request::Resume { upload: Coded(upload), expect: Coded(Precondition::Absent) };
        let resumed = carry_out(&dir, resume, &[], true).unwrap().0;
        let Coded(resumed) = Option::<Coded<Version>>::from_bytes(&resumed).unwrap().unwrap();
        let is_there = PosixSource::open(dir.path()).unwrap().stat(b"f").unwrap().version;
        assert!(resumed != is_there && is_there.size == 15, "{resumed:?} {is_there:?}");
        let perm = fs::metadata(dir.path().join("f")).unwrap().permissions().mode();
        assert_eq!(perm & 0o7777, 0o640, "another site gives no rights");
    }

    #[test]
    fn a_file_that_was_begun_again_is_not_committed_without_its_content() {
        let dir = TempDir::new().unwrap();
        let upload = started(&dir);
        let put = Request::Put { upload: Coded(upload.clone()), offset: 0 };
        carry_out(&dir, put, b"ours", false).unwrap();
        // A late repetition of its beginning; the descriptor keeps the number from being used again.
        let _held = fs::File::open(dir.path().join(&upload.token)).unwrap();
        let start = Request::Start {
            upload: Coded(Upload { tag: String::new(), ..upload.clone() }),
            attrs: Coded(attrs(0o600)),
        };
        carry_out(&dir, start, &[], true).unwrap();
        let refused = carry_out(&dir, commit(&upload), &[], false).unwrap_err();
        assert!(refused.to_string().contains("another file is beside its target"), "{refused}");
        assert!(!dir.path().join("f").exists());
    }

    #[test]
    fn attributes_whose_first_request_did_not_arrive_are_set() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("f"), "x").unwrap();
        let was = PosixSource::open(dir.path()).unwrap().stat(b"f").unwrap();
        // The same times as before.
        let wanted = Attrs { perm: 0o711, ..was.attrs };
        let set = || Request::SetAttrs {
            path: b"f".to_vec(),
            version: Coded(was.version.clone()),
            attrs: Coded(wanted.clone()),
        };
        let first = outcome(carry_out(&dir, set(), &[], true));
        assert_eq!(outcome(carry_out(&dir, set(), &[], true)), first);
        let perm = fs::metadata(dir.path().join("f")).unwrap().permissions().mode();
        assert_eq!(perm & 0o7777, 0o711);
    }

    #[test]
    fn the_same_content_is_put_with_other_attributes() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("f"), "ours").unwrap();
        let was = PosixSource::open(dir.path()).unwrap().stat(b"f").unwrap().version;
        let (path, token, tag) = (b"f".to_vec(), format!("{TEMPORARY}t"), content_tag(b"ours"));
        let put = || Request::PutWhole {
            upload: Coded(Upload {
                path: path.clone(),
                size: 4,
                token: token.clone(),
                tag: tag.clone(),
                ..Upload::default()
            }),
            attrs: Coded(attrs(0o711)),
            expect: Coded(Precondition::Version(was.clone())),
        };
        // The first transmission did not arrive.
        let kept = outcome(carry_out(&dir, put(), b"ours", true));
        assert_eq!(outcome(carry_out(&dir, put(), b"ours", true)), kept);
        let found = fs::metadata(dir.path().join("f")).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o711);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn attributes_that_no_file_has_are_refused() {
        let dir = TempDir::new().unwrap();
        let set = |attrs: Attrs| {
            let change = DirChange::All;
            carry_out(&dir, Request::PutDir { path: b"d".to_vec(), attrs: Coded(attrs), change }, &[], false)
        };
        let time = Timestamp { secs: 0, nanos: 2_000_000_000 };
        assert!(set(Attrs { mtime: time, ..attrs(0o700) }).is_err());
        assert!(set(Attrs { xattrs: vec![(b"trusted.x".to_vec(), Vec::new())], ..attrs(0o700) }).is_err());
        assert!(!dir.path().join("d").exists());
        set(attrs(0o700)).unwrap();
    }
}
