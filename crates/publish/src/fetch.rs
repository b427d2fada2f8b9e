//! Fetching: pieces of files from all that have them, each piece compared before it counts.
//!
//! Threads take pieces from one queue, and for each the holder that has least to do, if they can one that has the piece
//! at a node of its own; a piece of which several have parts is so many parts there. Before it is known who has what of
//! a file, nothing of it is in the queue. A holder that does not answer rests, longer each time; one that sends wrong
//! bytes is left out and named. What is fetched lies beside its name until all of it is there; what an earlier run left
//! is compared, and only the rest is fetched.

mod health;
mod near;
mod whole;
mod work;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::digest::{Digest, Hasher};
use crate::error::{Cause, PublishError, PublishResult};
use crate::holder::Readers;
use crate::manifest::DataSetFile;
use crate::target::TargetDir;
use work::FetchWork;

/// Bytes that are compared at a time.
const BUFFER: usize = 1 << 20;

/// A fetch request.
pub struct FetchRequest {
    /// The files.
    pub files: Vec<WantedFile>,
    /// URLs of the holders, the nearest first.
    pub holders: Vec<String>,
    /// The directory that the files are put into.
    pub into: PathBuf,
    /// True to replace existing files with other content.
    pub force: bool,
    /// Number of parallel requests.
    pub jobs: usize,
}

/// A file that is to be fetched.
pub struct WantedFile {
    /// The file; its name is the path below the directory.
    pub item: DataSetFile,
    /// Holders, by their number, and URLs there.
    pub places: Vec<(usize, String)>,
}

/// Hears how far it is.
pub trait FetchObserver: Sync {
    /// Reports the number of files and bytes.
    fn found(&self, _files: u64, _bytes: u64) {}
    /// Reports that bytes were moved.
    fn moved(&self, _bytes: u64) {}
    /// Reports that bytes were there already.
    fn already(&self, _bytes: u64) {}
    /// Reports that bytes have to be moved again.
    fn again(&self, _bytes: u64) {}
    /// Reports that a file is complete.
    fn file_done(&self, _name: &str) {}
    /// Reports that a holder is not asked any more.
    fn left_out(&self, _holder: &str, _why: &str) {}
}

/// Result of a fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchResult {
    /// Files that are there now.
    pub files: u64,
    /// Files that existed before.
    pub already: u64,
    /// Bytes that were moved.
    pub moved: u64,
    /// Parts by holder: pieces, or what each of several had of one.
    pub parts: Vec<(String, u64)>,
}

/// Fetches files. Goes on after a failure, so that as much as possible is there.
///
/// # Errors
/// [`Cause::Exists`] if something else is there, [`Cause::Other`] if it does not fit: nothing is fetched then.
/// Otherwise everything that did not come.
pub fn fetch(
    order: &FetchRequest,
    readers: &Readers<'_>,
    watch: &dyn FetchObserver,
    cancel: &AtomicBool,
) -> PublishResult<FetchResult> {
    let target = TargetDir::open(&order.into)?;
    let sizes = order.files.iter().map(|wanted| wanted.item.size);
    watch.found(order.files.len() as u64, sizes.fold(0, u64::saturating_add));
    let missing = missing(order, &target, watch, cancel)?;
    check_room(order, &target, &missing)?;
    let already = (order.files.len() - missing.len()) as u64;
    let work = FetchWork::new(order, &target, readers, watch, cancel, missing);
    std::thread::scope(|scope| {
        for _ in 0..order.jobs.max(1) {
            scope.spawn(|| work.run());
        }
    });
    work.ended(already)
}

/// Returns the files that are missing or differ.
fn missing(
    order: &FetchRequest,
    target: &TargetDir,
    watch: &dyn FetchObserver,
    cancel: &AtomicBool,
) -> PublishResult<Vec<usize>> {
    let (mut missing, mut different) = (Vec::new(), Vec::new());
    for (number, WantedFile { item, .. }) in order.files.iter().enumerate() {
        if cancel.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        // Nothing is created before all files have been examined.
        let Some(spot) = target.spot_if_there(&item.name, &tag(item))? else {
            missing.push(number);
            continue;
        };
        match spot.existing()? {
            Some(file)
                if is_as_said(&file, item)
                    .map_err(|error| PublishError::system(spot.path.display(), &error))? =>
            {
                watch.already(item.size);
                watch.file_done(&item.name);
            }
            // All that differ are looked for, so that one message names their number and one --force settles them.
            Some(_) if !order.force => different.push(spot.path.display().to_string()),
            _ => missing.push(number),
        }
    }
    let Some(first) = different.first() else { return Ok(missing) };
    let others =
        if different.len() > 1 { format!(" and {} more", different.len() - 1) } else { String::new() };
    let text =
        format!("{first}{others}: is there and has other content; nothing was fetched; --force replaces it");
    Err(PublishError::new(Cause::Exists, text))
}

/// Refuses a fetch that does not fit. The sizes are claims of the sender.
fn check_room(order: &FetchRequest, target: &TargetDir, missing: &[usize]) -> PublishResult<()> {
    let mut needed = 0_u64;
    for WantedFile { item, .. } in missing.iter().filter_map(|number| order.files.get(*number)) {
        let left = target.spot_if_there(&item.name, &tag(item))?.map_or(0, |spot| spot.partial_space());
        needed = needed.saturating_add(item.size.saturating_sub(left));
    }
    // Partial files of an earlier attempt occupy their space already.
    target.check_fits(needed)
}

fn interrupted() -> PublishError {
    PublishError::new(Cause::Interrupted, "interrupted; the same command goes on with what is missing")
}

/// Returns the identity of a file's content, for its temporary name.
fn tag(item: &DataSetFile) -> Digest {
    item.digest.unwrap_or_else(|| {
        let mut hasher = Hasher::new();
        item.pieces.iter().for_each(|piece| hasher.add(&piece.0));
        hasher.end()
    })
}

/// Returns whether a file has the expected content.
fn is_as_said(file: &File, item: &DataSetFile) -> io::Result<bool> {
    if file.metadata()?.len() != item.size {
        return Ok(false);
    }
    let mut buffer = vec![0; BUFFER];
    if let Some(wanted) = item.digest {
        return Ok(digest_of(file, 0, item.size, &mut buffer)? == Some(wanted));
    }
    for index in 0..item.piece_count() {
        let (offset, len) = item.piece(index);
        if digest_of(file, offset, len, &mut buffer)? != item.piece_digest(index) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the digest of a part of a file; `None` if it ends before.
fn digest_of(file: &File, offset: u64, len: u64, buffer: &mut [u8]) -> io::Result<Option<Digest>> {
    let mut hasher = Hasher::new();
    Ok(add_part(&mut hasher, file, offset, len, buffer)?.then(|| hasher.end()))
}

/// Adds a part of a file. Whether that is there: of one that ends before, what there is was added.
fn add_part(hasher: &mut Hasher, file: &File, offset: u64, len: u64, buffer: &mut [u8]) -> io::Result<bool> {
    let mut done = 0;
    while done < len {
        let want = usize::try_from(len - done).unwrap_or(usize::MAX).min(buffer.len());
        let read = match file.read_at(buffer.get_mut(..want).unwrap_or_default(), offset + done) {
            // A signal says nothing about the file; as an error it would be taken for a cancelled fetch.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(false);
        }
        hasher.add(buffer.get(..read).unwrap_or_default());
        done += read as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
