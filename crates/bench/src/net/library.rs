//! The client library as a way, from a process that is no node.

use bivouac_client::{Client, NewInode, OpCtx};
use bivouac_types::{Attr, FsError, Ino, mode};

use super::RemoteTask;
use super::copy::{CopyMethod, Outcome, copy};
use crate::barrier::Barrier;
use crate::{BenchError, BenchResult, Host, reach};

/// Does the part of a process with the client library.
///
/// # Errors
/// A formation that cannot be reached; what it refuses.
pub fn perform_remote(host: &Host<'_>, task: &RemoteTask, barrier: &mut dyn Barrier) -> BenchResult<Outcome> {
    let client = reach::client(host, &task.formation, task.reach)?;
    let file = OpenFile::new(&client)?;
    let way = |channel: u32| Stream { file: &file, ctx: file.ctx(channel as u16 + 1) };
    let mut ways: Vec<Stream<'_>> = (0..task.plan.streams).map(way).collect();
    copy(&task.plan, &mut ways, barrier)
}

/// A new file, open, without a name: gone with this value, and with its process however that ends.
struct OpenFile<'c> {
    client: &'c Client,
    attr: Attr,
}

impl OpenFile<'_> {
    fn new(client: &Client) -> BenchResult<OpenFile<'_>> {
        let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
        let attr = client.tmpfile(&context(client, 0), Ino::ROOT, &new, false).map_err(refused)?;
        Ok(OpenFile { client, attr })
    }

    fn ctx(&self, channel: u16) -> OpCtx {
        context(self.client, channel)
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.client.close(self.attr.ino);
    }
}

/// Owned by whoever runs the measurement.
fn context(client: &Client, channel: u16) -> OpCtx {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    client.new_op(channel, uid, gid)
}

fn refused(error: FsError) -> BenchError {
    BenchError::refused("the client library", error)
}

struct Stream<'f> {
    file: &'f OpenFile<'f>,
    ctx: OpCtx,
}

impl CopyMethod for Stream<'_> {
    fn write(&mut self, offset: u64, data: &[u8]) -> BenchResult<()> {
        let OpenFile { client, attr, .. } = self.file;
        client.write(&self.ctx, attr.ino, offset, data, false).map(drop).map_err(refused)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> BenchResult<()> {
        let OpenFile { client, attr, .. } = self.file;
        match client.read(attr.ino, offset, into).map_err(refused)? {
            len if len == into.len() => Ok(()),
            len => Err(BenchError::refused("the client library", format_args!("read {len} bytes only"))),
        }
    }

    fn ping(&mut self) -> BenchResult<()> {
        self.file.client.getattr(self.file.attr.ino).map(drop).map_err(refused)
    }
}
