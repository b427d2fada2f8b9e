//! The file of a measurement, by system calls or through the client library.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bivouac_client::{Client, OpCtx};
use bivouac_types::mount_table::{MountLine, mount_lines, unescape};
use bivouac_types::{FsError, Ino};

use super::Api;
use crate::reach::{self, NodeConnections};
use crate::{BenchError, BenchResult, Host};

/// Interface by which a process reaches files below a directory.
pub enum Access {
    /// By system calls.
    Calls,
    /// Through the library: the client, and where the formation is mounted.
    Library(Box<Client>, PathBuf),
}

impl Access {
    /// The way to a directory: through the library where that is wanted and the directory is a formation's.
    ///
    /// # Errors
    /// A formation that cannot be reached.
    pub fn to(host: &Host<'_>, dir: &Path, api: Api) -> BenchResult<Access> {
        let place = if api == Api::Client { formation_of(dir) } else { None };
        let Some((formation, mount)) = place else { return Ok(Access::Calls) };
        let client = reach::client(host, &formation, NodeConnections::Best)?;
        Ok(Access::Library(Box::new(client), mount))
    }

    /// Opens a file that exists.
    pub fn open(&self, path: &Path, write: bool) -> BenchResult<Open<'_>> {
        match self {
            Access::Calls => {
                let opened = OpenOptions::new().read(!write).write(write).open(path);
                opened.map(Open::File).map_err(BenchError::system(path.display()))
            }
            Access::Library(client, mount) => {
                let within = path.strip_prefix(mount).unwrap_or(path).as_os_str().as_bytes();
                let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                // Only appending is told apart by it, and nothing here appends: it serves all writes.
                let ctx = client.new_op(0, uid, gid);
                let opened =
                    client.find(within, true).and_then(|attr| client.open(&ctx, attr.ino, flags_of(write)));
                let opened = opened.map_err(|error| BenchError::refused(path.display(), error))?;
                Ok(Open::Library(client, opened.ino, ctx, flags_of(write)))
            }
        }
    }
}

/// The access mode of an open to be written, or to be read.
fn flags_of(write: bool) -> u32 {
    u32::from(write)
}

/// An open file.
pub enum Open<'a> {
    /// A descriptor.
    File(File),
    /// Of the library.
    Library(&'a Client, Ino, OpCtx, u32),
}

impl Open<'_> {
    /// Writes all of it at a place.
    pub fn write(&self, data: &[u8], offset: u64) -> BenchResult<()> {
        let what = || format!("write at {offset}");
        match self {
            Open::File(file) => file.write_all_at(data, offset).map_err(BenchError::system(what())),
            Open::Library(client, ino, ctx, _) => {
                client.write(ctx, *ino, offset, data, false).map(drop).map_err(refused(what()))
            }
        }
    }

    /// Reads all of it from a place.
    ///
    /// # Errors
    /// What refuses it; an end in between.
    pub fn read(&self, into: &mut [u8], offset: u64) -> BenchResult<()> {
        let what = || format!("read at {offset}");
        match self {
            Open::File(file) => file.read_exact_at(into, offset).map_err(BenchError::system(what())),
            Open::Library(client, ino, ..) => {
                match client.read(*ino, offset, into).map_err(refused(what()))? {
                    len if len == into.len() => Ok(()),
                    len => Err(BenchError::refused(what(), format_args!("{len} bytes only"))),
                }
            }
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Open::Library(client, ino, _, flags) = self {
            client.close_open(*ino, *flags);
        }
    }
}

fn refused(what: String) -> impl Fn(FsError) -> BenchError {
    move |error| BenchError::refused(&what, error)
}

/// The formation that a directory is a mount of, or is in, and where that mount is.
fn formation_of(dir: &Path) -> Option<(String, PathBuf)> {
    let dir = dir.canonicalize().ok()?;
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let entries = mount_lines(&mounts).filter_map(entry);
    // Mounts can be one in another: the innermost has the directory.
    entries.filter(|(_, mount)| dir.starts_with(mount)).max_by_key(|(_, mount)| mount.as_os_str().len())
}

/// Formation and place of a mount, if it is a formation's.
fn entry(mount: MountLine<'_>) -> Option<(String, PathBuf)> {
    let name = String::from_utf8(mount.formation()?.to_vec()).ok()?;
    Some((name, PathBuf::from(OsString::from_vec(unescape(mount.dir)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_formation_is_reached_by_system_calls() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access::to(&crate::tests::host(), dir.path(), Api::Client).unwrap();
        assert!(matches!(access, Access::Calls));
        std::fs::write(dir.path().join("f"), b"12345").unwrap();
        access.open(&dir.path().join("f"), true).unwrap().write(b"xy", 1).unwrap();
        let mut read = [0; 3];
        access.open(&dir.path().join("f"), false).unwrap().read(&mut read, 1).unwrap();
        assert_eq!(&read, b"xy4");
        assert!(access.open(&dir.path().join("f"), false).unwrap().read(&mut read, 4).is_err());
    }
}
