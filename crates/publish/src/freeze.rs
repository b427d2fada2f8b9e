//! Scan of what is published: every file is read and hashed, and must not change meanwhile.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::digest::{Hasher, piece_len};
use crate::error::{Cause, PublishError, PublishResult};
use crate::fetch::FetchObserver;
use crate::holder::{Access, ReadError, Readers};
use crate::manifest::{DataSetFile, DatasetLocation};
use crate::names::check;

/// Bytes that are read at a time.
const BUFFER: usize = 1 << 20;

/// Result of a scan.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// The files, by name; without places.
    pub items: Vec<DataSetFile>,
    /// True if the path is a single file.
    pub is_file: bool,
    /// Objects that are not published, because they are not files.
    pub skipped: Vec<Skipped>,
}

/// Something that is not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Path.
    pub path: PathBuf,
    /// Type.
    pub what: &'static str,
}

/// A file as it was found.
struct ScannedFile {
    path: PathBuf,
    name: String,
    state: FileState,
}

/// Identity of a file's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    file: (u64, u64),
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl FileState {
    fn of(seen: &Metadata) -> FileState {
        FileState {
            file: (seen.dev(), seen.ino()),
            size: seen.len(),
            mtime: (seen.mtime(), seen.mtime_nsec()),
            ctime: (seen.ctime(), seen.ctime_nsec()),
        }
    }
}

/// Reads all files at a path, several at a time. The path's last name is that of a single file.
///
/// # Errors
/// [`Cause::Changed`] if a file is not at the end what it was at the beginning, [`Cause::Interrupted`], what the
/// system says.
pub fn freeze(
    path: &Path,
    jobs: usize,
    watch: &dyn FetchObserver,
    cancel: &AtomicBool,
) -> PublishResult<ScanResult> {
    let failed = |error| PublishError::system(path.display(), &error);
    let top = fs::metadata(path).map_err(failed)?;
    let (mut files, mut skipped) = (Vec::new(), Vec::new());
    if top.is_dir() {
        scan(path, "", &mut files, &mut skipped)?;
    } else if top.is_file() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        files.push(ScannedFile {
            path: path.to_owned(),
            name: named(path, name)?,
            state: FileState::of(&top),
        });
    }
    if files.is_empty() {
        return Err(PublishError::new(Cause::Usage, format_args!("{}: has no files", path.display())));
    }
    // By name, so that a tree has one metalink, whatever order its directories are read in.
    files.sort_by(|a, b| a.name.cmp(&b.name));
    watch.found(files.len() as u64, files.iter().map(|file| file.state.size).sum());
    let items = hash_all(&files, jobs, watch, cancel)?;
    // Those that were read first have had the most time to change.
    files.iter().try_for_each(|file| match fs::metadata(&file.path) {
        Ok(seen) if FileState::of(&seen) == file.state => Ok(()),
        _ => Err(changed(&file.path)),
    })?;
    Ok(ScanResult { items, is_file: top.is_file(), skipped })
}

fn changed(path: &Path) -> PublishError {
    let text = format!(
        "{}: changed while it was read, so nothing is published; publish again when nobody writes there",
        path.display()
    );
    PublishError::new(Cause::Changed, text)
}

fn named(path: &Path, name: String) -> PublishResult<String> {
    let refused = |why: &str| {
        let text = format!("{}: cannot be published: its name {why}; rename it", path.display());
        PublishError::new(Cause::Usage, text)
    };
    if path.to_str().is_none() {
        return Err(refused("is no text"));
    }
    check(&name).map_err(refused)?;
    Ok(name)
}

fn scan(
    dir: &Path,
    above: &str,
    files: &mut Vec<ScannedFile>,
    skipped: &mut Vec<Skipped>,
) -> PublishResult<()> {
    for entry in fs::read_dir(dir).map_err(|error| PublishError::system(dir.display(), &error))? {
        let entry = entry.map_err(|error| PublishError::system(dir.display(), &error))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let seen =
            // Links are not followed: what is published is below the path, and a loop has no end.
            fs::symlink_metadata(&path).map_err(|error| PublishError::system(path.display(), &error))?;
        let name = if above.is_empty() { name } else { format!("{above}/{name}") };
        if seen.is_dir() {
            scan(&path, &name, files, skipped)?;
        } else if seen.is_file() {
            let name = named(&path, name)?;
            files.push(ScannedFile { path, name, state: FileState::of(&seen) });
        } else {
            let what = if seen.is_symlink() { "symbolic link" } else { "no file" };
            skipped.push(Skipped { path, what });
        }
    }
    Ok(())
}

fn hash_all(
    files: &[ScannedFile],
    jobs: usize,
    watch: &dyn FetchObserver,
    cancel: &AtomicBool,
) -> PublishResult<Vec<DataSetFile>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(files.len())));
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, files.len()) {
            scope.spawn(|| {
                while failure.lock().is_none()
                    && let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    match hash(file, watch, cancel) {
                        Ok(item) => done.lock().push(item),
                        Err(error) => *failure.lock() = Some(error),
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    let mut items = done.into_inner();
    assert_eq!(items.len(), files.len(), "a file was neither read nor reported");
    items.sort_by(|a: &DataSetFile, b: &DataSetFile| a.name.cmp(&b.name));
    Ok(items)
}

fn hash(file: &ScannedFile, watch: &dyn FetchObserver, cancel: &AtomicBool) -> PublishResult<DataSetFile> {
    let failed = |error: std::io::Error| PublishError::system(file.path.display(), &error);
    // The path may lead to a FIFO by now, and to open that would wait for a writer.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut open = File::options().read(true).custom_flags(flags).open(&file.path).map_err(failed)?;
    // Again from the descriptor: the path may have been replaced between the scan and this.
    if FileState::of(&open.metadata().map_err(failed)?) != file.state {
        return Err(changed(&file.path));
    }
    let size = file.state.size;
    let len = piece_len(size);
    let (mut whole, mut pieces, mut buffer) = (Hasher::new(), Vec::new(), vec![0; BUFFER]);
    let mut left = size;
    while left > 0 {
        let mut piece = Hasher::new();
        let mut piece_left = len.min(left);
        left -= piece_left;
        while piece_left > 0 {
            if cancel.load(Ordering::Relaxed) {
                return Err(PublishError::new(Cause::Interrupted, "interrupted; nothing is published"));
            }
            let want = usize::try_from(piece_left).unwrap_or(BUFFER).min(BUFFER);
            let read = match open.read(buffer.get_mut(..want).unwrap_or_default()) {
                Ok(0) => return Err(changed(&file.path)),
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let bytes = buffer.get(..read).unwrap_or_default();
            piece.add(bytes);
            whole.add(bytes);
            piece_left -= read as u64;
            watch.moved(read as u64);
        }
        pieces.push(piece.end());
    }
    // Written to while it was read: the digests may be of neither content.
    if FileState::of(&open.metadata().map_err(failed)?) != file.state {
        return Err(changed(&file.path));
    }
    assert_eq!(
        pieces.len() as u64,
        size.div_ceil(len),
        "a file has another number of digests than of pieces"
    );
    watch.file_done(&file.name);
    Ok(DataSetFile {
        name: file.name.clone(),
        size,
        digest: Some(whole.end()),
        piece_len: len,
        pieces,
        urls: Vec::new(),
    })
}

fn interrupted() -> PublishError {
    PublishError::new(Cause::Interrupted, "interrupted; nothing is published")
}

/// Compares what a holder has with the digests, all of it.
///
/// # Errors
/// [`Cause::Changed`] with the name of the first file that is not the same there, [`Cause::Unreachable`] if the holder
/// does not answer, [`Cause::Interrupted`].
pub fn compare(
    frozen: &ScanResult,
    holder: &DatasetLocation,
    readers: &Readers<'_>,
    cancel: &AtomicBool,
) -> PublishResult<()> {
    for item in &frozen.items {
        let url = holder.url(if frozen.is_file { "" } else { &item.name });
        for index in 0..item.piece_count() {
            if cancel.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
            let (offset, len) = item.piece(index);
            let mut hasher = Hasher::new();
            let read = readers.read(&url, Access { offset, len, size: item.size }, &mut |bytes| {
                hasher.add(bytes);
                Ok(())
            });
            let why = match read {
                Ok(()) if Some(hasher.end()) == item.piece_digest(index) => continue,
                Ok(()) => "has other bytes than what is published".to_owned(),
                Err(ReadError::Lacks(why)) => why,
                // A reader that is interrupted fails in some way.
                Err(_) if cancel.load(Ordering::Relaxed) => return Err(interrupted()),
                // Nothing is known of what it has.
                Err(ReadError::Transient(why) | ReadError::Permanent(why)) => {
                    let text = format!("{url}: {why}; nothing is published; try again when it answers");
                    return Err(PublishError::new(Cause::Unreachable, text));
                }
                Err(ReadError::Local(error)) => return Err(PublishError::system(&url, &error)),
            };
            let text =
                format!("{url}: {why}; bring it there first, for instance by bivouac flush or stage out");
            return Err(PublishError::new(Cause::Changed, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::web::Web;
    use bivouac_source::Environment;

    struct Silent;
    impl FetchObserver for Silent {}

    /// Changes a file when it has been read.
    struct Meddling(PathBuf);
    impl FetchObserver for Meddling {
        fn file_done(&self, name: &str) {
            if name == "b" {
                fs::write(&self.0, "other").unwrap();
            }
        }
    }

    #[test]
    fn a_tree_is_read_with_all_digests() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("d/e")).unwrap();
        let large: Vec<u8> = (0..(2 << 20) + 5u32).map(|at| (at % 251) as u8).collect();
        fs::write(dir.path().join("d/e/large"), &large).unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("empty", dir.path().join("link")).unwrap();
        let frozen = freeze(dir.path(), 4, &Silent, &AtomicBool::new(false)).unwrap();
        let names: Vec<&str> = frozen.items.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["d/e/large", "empty"]);
        assert_eq!(frozen.items[0].digest, Some(Digest::of(&large)));
        assert_eq!(frozen.items[0].pieces[2], Digest::of(&large[2 << 20..]));
        assert_eq!((frozen.items[1].pieces.len(), frozen.items[1].digest), (0, Some(Digest::of(b""))));
        assert_eq!(frozen.skipped, [Skipped { path: dir.path().join("link"), what: "symbolic link" }]);

        let (here, web) = (Environment::default(), Web::new(&Environment::default()));
        let readers = Readers::new(&here, &web);
        let base = format!("file://{}", dir.path().display());
        let holder = DatasetLocation { kind: crate::Kind::Site, base, fingerprint: None };
        compare(&frozen, &holder, &readers, &AtomicBool::new(false)).unwrap();
        let mut wrong = large;
        wrong[5] ^= 1;
        fs::write(dir.path().join("d/e/large"), &wrong).unwrap();
        let refusal = compare(&frozen, &holder, &readers, &AtomicBool::new(false)).unwrap_err();
        assert!(refusal.to_string().contains("d/e/large: has other bytes"), "{refusal}");
    }

    #[test]
    fn what_changes_meanwhile_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let refusal =
            freeze(dir.path(), 1, &Meddling(dir.path().join("a")), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(refusal.cause(), Cause::Changed);
        assert!(refusal.to_string().contains("/a: changed while it was read"), "{refusal}");
        let stopped = freeze(dir.path(), 1, &Silent, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(stopped.cause(), Cause::Interrupted);
        fs::write(dir.path().join("x\ny"), "").unwrap();
        let refusal = freeze(dir.path(), 1, &Silent, &AtomicBool::new(false)).unwrap_err();
        assert!(refusal.to_string().contains("control character"), "{refusal}");
    }
}
