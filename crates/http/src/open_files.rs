//! Files that stay open for a moment after they were sent: who asks for a small file asks for it again, or for others
//! beside it, and opening and closing take longer than sending.
//!
//! Where a path leads, and how large the file is, is asked of the formation for each request, or cached under its
//! leases; so nothing is seen later than it would be otherwise. What was removed keeps its space for that moment.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bivouac_client::{Attr, Member};
use bivouac_types::{Contract, FsResult, Ino, PartitionId};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::at_once;

/// Upper limit of cached open files.
const FILES_MAX: usize = 256;
/// Time for which an unused file stays open.
const MOMENT: Duration = Duration::from_secs(1);

/// A file that is open, and closed with the last of these.
pub struct Open {
    member: Arc<Member>,
    ino: Ino,
    /// The kernel's flags of the open.
    flags: u32,
}

impl Open {
    /// Wraps an inode that was just created, or opened with these flags of the kernel.
    pub fn of(member: &Arc<Member>, ino: Ino, flags: u32) -> Open {
        Open { member: Arc::clone(member), ino, flags }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let (member, ino, flags) = (Arc::clone(&self.member), self.ino, self.flags);
        let close = move || {
            if let Ok(client) = member.client() {
                client.close_open(ino, flags);
            }
        };
        // Closed by another thread at the same moment.
        if at_once::may_not_wait() { drop(spawn_blocking(close)) } else { close() }
    }
}

#[derive(Default)]
pub struct OpenFiles {
    files: Mutex<HashMap<Ino, CachedFile>>,
}

struct CachedFile {
    open: Arc<Open>,
    used: Instant,
}

impl OpenFiles {
    /// Opens a file with these attributes, which have just been asked for; and the attributes that it has then.
    pub fn open(self: &Arc<OpenFiles>, member: &Arc<Member>, attr: Attr) -> FsResult<(Arc<Open>, Attr)> {
        // What else is promised at an open, of files in front of a source and under the session contract, begins with
        // one.
        let may_stay =
            attr.layout.partition() == PartitionId::ROOT && attr.contract != Some(Contract::Session);
        if may_stay && let Some(kept) = self.files.lock().get_mut(&attr.ino) {
            kept.used = Instant::now();
            return Ok((Arc::clone(&kept.open), attr));
        }
        if at_once::may_not_wait() {
            return Err(at_once::not_at_hand());
        }
        let change = member.change()?;
        let attr = member.client()?.open(&change.ctx, attr.ino, 0)?;
        let open = Arc::new(Open::of(member, attr.ino, 0));
        Ok((if may_stay { self.keep(open) } else { open }, attr))
    }

    fn keep(self: &Arc<OpenFiles>, open: Arc<Open>) -> Arc<Open> {
        // Without a runtime no task would close it.
        let Ok(runtime) = Handle::try_current() else { return open };
        let mut files = self.files.lock();
        let (is_first, is_full) = (files.is_empty(), files.len() >= FILES_MAX);
        match files.entry(open.ino) {
            Entry::Occupied(mut kept) => {
                kept.get_mut().used = Instant::now();
                return Arc::clone(&kept.get().open);
            }
            Entry::Vacant(place) if !is_full => {
                place.insert(CachedFile { open: Arc::clone(&open), used: Instant::now() });
            }
            Entry::Vacant(_) => {}
        }
        assert!(files.len() <= FILES_MAX, "{} files are kept open", files.len());
        // Known under the lock in which the task sees that nothing is left: there is always one, and only one.
        if is_first {
            runtime.spawn(close_unused(Arc::downgrade(self)));
        }
        open
    }

    /// Takes out what has not been used for a moment; and whether anything is left.
    fn take_unused(&self) -> (Vec<CachedFile>, bool) {
        let mut files = self.files.lock();
        let now = Instant::now();
        let is_unused = |kept: &CachedFile| now.saturating_duration_since(kept.used) >= MOMENT;
        let unused = files.extract_if(|_, kept| is_unused(kept)).map(|(_, kept)| kept).collect();
        (unused, !files.is_empty())
    }
}

/// Closes files that are not used any more, as long as there are any.
async fn close_unused(files: Weak<OpenFiles>) {
    let mut is_any_left = true;
    while is_any_left {
        tokio::time::sleep(MOMENT).await;
        let Some(files) = files.upgrade() else { return };
        let (unused, left) = files.take_unused();
        is_any_left = left;
        if spawn_blocking(move || drop(unused)).await.is_err() {
            log::warn!("files could not be closed");
        }
    }
}
