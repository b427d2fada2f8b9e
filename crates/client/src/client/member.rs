//! A client in a process that is no node, shared by its threads: what the libraries have in common.

use std::path::Path;
use std::time::Duration;

use bivouac_types::limits::CLIENT_CHANNELS_MAX;
use bivouac_types::{Errno, FsError, FsResult};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use super::{Client, OpCtx};

/// Longest `map` that is read, in bytes.
const MAP_LEN_MAX: usize = 64 << 20;

/// A process's part in a formation.
pub struct Member {
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
pub struct Change<'m> {
    member: &'m Member,
    /// Identity of the change.
    pub ctx: OpCtx,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        // The last one freed is the next one used: nodes keep a record for each channel that was ever used.
        self.member.channels.lock().free.push(self.ctx.channel);
    }
}

impl Member {
    /// Joins the formation whose directory this is: its files `map` and `secret` say how.
    ///
    /// # Errors
    /// What the system says of the files; `EINVAL` for what is no map or secret.
    pub fn join(directory: &Path, wait: Duration) -> FsResult<Member> {
        let client = Client::join(&read(directory, "map")?, &read(directory, "secret")?, wait)?;
        Ok(Member { client, channels: Mutex::default() })
    }

    /// Returns the client, in the process that made it.
    ///
    /// # Errors
    /// `EBADF` in a process that was forked from it.
    pub fn client(&self) -> FsResult<&Client> {
        if self.client.is_own() {
            return Ok(&self.client);
        }
        let text = "the connection is that of the process which forked this one; connect again";
        Err(FsError::with(Errno::EBADF, text))
    }

    /// Returns an identity for one change. One thread at a time uses a channel.
    ///
    /// # Errors
    /// `EAGAIN` when there are too many at a time; otherwise as [`Member::client`].
    pub fn change(&self) -> FsResult<Change<'_>> {
        let client = self.client()?;
        let mut channels = self.channels.lock();
        let channel = match channels.free.pop() {
            Some(channel) => channel,
            // Nodes refuse what comes on a higher channel.
            None if channels.made < CLIENT_CHANNELS_MAX => {
                channels.made += 1;
                channels.made - 1
            }
            None => return Err(Errno::EAGAIN.into()),
        };
        drop(channels);
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(Change { member: self, ctx: client.new_op(channel, uid, gid) })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Nobody will repeat anything.
        if self.client.is_own() {
            self.client.leave();
        }
    }
}

/// Reads a file of the formation's directory. The directory may have been named by somebody else: what is no plain
/// file of who runs this is not read.
fn read(directory: &Path, name: &str) -> FsResult<Vec<u8>> {
    let path = directory.join(name);
    let failed = |error: rustix::io::Errno| FsError::from_io(&error.into(), &path.display().to_string());
    // Without waiting: a FIFO that somebody put there would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let length = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    let plain = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    if !plain || stat.st_uid != rustix::process::geteuid().as_raw() || length > MAP_LEN_MAX {
        let text = format!("{} is no formation's, or another user's", path.display());
        return Err(FsError::with(Errno::EINVAL, text));
    }
    let (mut bytes, mut have) = (vec![0; length], 0);
    while have < length {
        match rustix::io::read(&file, bytes.get_mut(have..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("map"), b"some bytes").unwrap();
        std::os::unix::fs::symlink("map", dir.path().join("secret")).unwrap();
        assert_eq!(read(dir.path(), "map").unwrap(), b"some bytes");
        assert_eq!(read(dir.path(), "secret").unwrap_err().errno(), Errno::ELOOP);
        assert_eq!(read(dir.path(), "none").unwrap_err().errno(), Errno::ENOENT);
        let refused = Member::join(dir.path(), Duration::ZERO).map(drop).unwrap_err();
        assert_eq!(refused.errno(), Errno::ELOOP);
        assert_eq!(
            read(dir.path().parent().unwrap(), dir.path().file_name().unwrap().to_str().unwrap())
                .unwrap_err()
                .errno(),
            Errno::EINVAL
        );
    }
}
