//! The file of a measurement, by system calls or through the client library.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bivouac_client::{Client, OpCtx};
use bivouac_types::{FsError, Ino};

use super::Api;
use crate::reach::{self, Reach};
use crate::{BenchError, BenchResult, Host};

/// What the source of a formation's mount begins with, and its type.
const SOURCE: &[u8] = b"bivouac:";
const FS_TYPE: &[u8] = b"fuse.bivouac";

/// How a process reaches files below a directory.
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
        let client = reach::client(host, &formation, Reach::Best)?;
        Ok(Access::Library(Box::new(client), mount))
    }

    /// Opens a file that exists.
    ///
    /// # Errors
    /// What refuses it.
    pub fn open(&self, path: &Path, write: bool) -> BenchResult<Open<'_>> {
        match self {
            Access::Calls => {
                let opened = OpenOptions::new().read(!write).write(write).open(path);
                opened.map(Open::File).map_err(BenchError::system(path.display()))
            }
            Access::Library(client, mount) => {
                let within = path.strip_prefix(mount).unwrap_or(path).as_os_str().as_bytes();
                let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                let ctx = client.new_op(0, uid, gid);
                let opened = client.find(within, true).and_then(|attr| client.open(&ctx, attr.ino, 0));
                let opened = opened.map_err(|error| BenchError::refused(path.display(), error))?;
                Ok(Open::Library(client, opened.ino, ctx))
            }
        }
    }
}

/// An open file.
pub enum Open<'a> {
    /// A descriptor.
    File(File),
    /// Of the library.
    Library(&'a Client, Ino, OpCtx),
}

impl Open<'_> {
    /// Writes all of it at a place.
    ///
    /// # Errors
    /// What refuses it.
    pub fn write(&self, data: &[u8], offset: u64) -> BenchResult<()> {
        let what = || format!("write at {offset}");
        match self {
            Open::File(file) => file.write_all_at(data, offset).map_err(BenchError::system(what())),
            Open::Library(client, ino, ctx) => {
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
            Open::Library(client, ino, _) => {
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
        if let Open::Library(client, ino, _) = self {
            client.close(*ino);
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
    let entries = mounts.split(|byte| *byte == b'\n').filter_map(entry);
    entries.filter(|(_, mount)| dir.starts_with(mount)).max_by_key(|(_, mount)| mount.as_os_str().len())
}

/// Formation and place of a line of the kernel's list of mounts, if it is a formation's.
fn entry(line: &[u8]) -> Option<(String, PathBuf)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
    let mut kind = fields.skip_while(|field| *field != b"-").skip(1);
    let (fs_type, source) = (kind.next()?, kind.next()?);
    let name = source.strip_prefix(SOURCE).filter(|_| fs_type == FS_TYPE)?;
    Some((String::from_utf8(name.to_vec()).ok()?, mount))
}

/// The kernel writes spaces and the like as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_formations_are_found() {
        let line =
            b"36 35 0:33 / /mnt/my\\040camp rw,nosuid shared:1 - fuse.bivouac bivouac:camp-1 rw,user_id=0";
        assert_eq!(entry(line), Some(("camp-1".to_owned(), PathBuf::from("/mnt/my camp"))));
        let other = b"36 35 0:33 / /dev/shm rw,nosuid - tmpfs bivouac:x rw";
        assert_eq!((entry(other), entry(b""), entry(b"1 2 3")), (None, None, None));
        assert_eq!(unescaped(b"a\\134b\\0"), b"a\\b\\0");
    }

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
