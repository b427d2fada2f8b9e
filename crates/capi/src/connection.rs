//! Connections.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::{OsStr, c_char, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use bivouac_client::{Client, OpCtx};
use bivouac_types::limits::WAIT_MS_DEFAULT;
use bivouac_types::{Errno, FsError, FsResult};
use parking_lot::Mutex;

use crate::failure::{answer, finish};
use crate::pointers;

/// A connection, as the header's `bivouac`.
pub struct Formation(pub(crate) Arc<Shared>);

/// What a connection and its files have in common.
pub struct Shared {
    client: Client,
    /// Channels that no thread uses at the moment; the lowest is used first.
    channels: Mutex<Channels>,
}

#[derive(Default)]
struct Channels {
    free: Vec<u16>,
    made: u16,
}

/// A channel as long as one change takes.
pub struct Change<'s> {
    shared: &'s Shared,
    pub ctx: OpCtx,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.shared.channels.lock().free.push(self.ctx.channel);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last file is closed too: nobody will repeat anything.
        if self.client.is_own() {
            self.client.leave();
        }
    }
}

impl Shared {
    /// The client, in the process that made it.
    pub fn client(&self) -> FsResult<&Client> {
        if self.client.is_own() {
            return Ok(&self.client);
        }
        Err(FsError::with(
            Errno::EBADF,
            "the connection is that of the process which forked this one; connect again",
        ))
    }

    /// An identity for one change. One thread at a time uses a channel.
    pub fn change(&self) -> FsResult<Change<'_>> {
        let client = self.client()?;
        let mut channels = self.channels.lock();
        let channel = match channels.free.pop() {
            Some(channel) => channel,
            None => {
                let next = channels.made;
                channels.made = next.checked_add(1).ok_or(Errno::EAGAIN)?;
                next
            }
        };
        drop(channels);
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(Change { shared: self, ctx: client.new_op(channel, uid, gid) })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_connect(directory: *const c_char, wait_ms: c_uint) -> *mut Formation {
    answer(|| {
        // SAFETY: the header asks for a text.
        let directory = unsafe { pointers::text(directory, "directory")? };
        let shared = connect(Path::new(OsStr::from_bytes(directory)), u64::from(wait_ms))?;
        Ok(Box::into_raw(Box::new(Formation(Arc::new(shared)))))
    })
}

fn connect(directory: &Path, wait_ms: u64) -> FsResult<Shared> {
    watch_forks();
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read(&path).map_err(|error| FsError::from_io(&error, &path.display().to_string()))
    };
    let wait = Duration::from_millis(if wait_ms == 0 { WAIT_MS_DEFAULT } else { wait_ms });
    let client = Client::join(&read("map")?, &read("secret")?, wait)?;
    Ok(Shared { client, channels: Mutex::default() })
}

/// Children must not go on with their parents' connections.
fn watch_forks() {
    extern "C" fn in_child() {
        bivouac_client::forked();
    }
    static ONCE: Once = Once::new();
    // SAFETY: the function only adds to a counter, and is there as long as the library: it is not unloaded while
    // connections are open.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_disconnect(formation: *mut Formation) {
    if !formation.is_null() {
        // SAFETY: the header asks for an object that was not ended.
        finish(|| drop(unsafe { Box::from_raw(formation) }));
    }
}
