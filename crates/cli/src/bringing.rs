//! Brings content of site storage when a partition is made, as far as its policies say so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bivouac_client::{Client, Partition, TreeEntry};
use bivouac_types::{FsResult, ReadPolicy};

/// Files that are brought at the same time.
const JOBS: usize = 8;

/// Brings the files whose policy is `at-start`, and says what could not be brought: it comes when it is read.
pub fn bring_at_start(client: &Client, partition: &Partition, path: &str) -> FsResult<()> {
    let settings = &partition.settings;
    let is_asked = |policy| policy == ReadPolicy::AtStart;
    let by_rule = settings.rules.iter().filter_map(|rule| rule.read).any(is_asked);
    if settings.source.is_none() || !(is_asked(settings.read) || by_rule) {
        return Ok(());
    }
    let (mut files, dir) = (Vec::new(), partition.dir);
    let top = TreeEntry { attr: client.getattr(dir)?, dir, path: Vec::new() };
    // A walk sees what is here: the first look into a directory has its entries brought.
    client.readdir(dir, 0, 1, false)?;
    client.walk_partition(&top, &mut |found| {
        if found.attr.is_dir() {
            client.readdir(found.attr.ino, 0, 1, false)?;
        }
        if found.attr.is_file() && is_asked(settings.read_of(&found.path)) {
            files.push(found.clone());
        }
        Ok(())
    })?;
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                // A file that does not come is no failure of the partition, which is made: it comes when it is read.
                if let Err(error) = client.site.bring_file(file.attr.ino) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push((file, error));
                }
            }
        };
        for _ in 0..JOBS.min(files.len()) {
            scope.spawn(work);
        }
    });
    for (file, error) in failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let name = String::from_utf8_lossy(&file.path);
        errln!("bivouac: {path}/{name}: is not here yet, and comes when it is read: {error}");
    }
    Ok(())
}
