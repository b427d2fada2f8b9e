//! Creation of a small file by one ioctl of a formation's mount, instead of separate requests for name, content,
//! attributes and close. Where it is not supported, the file is created in steps.
#![allow(unsafe_code, reason = "an ioctl has no safe interface")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bivouac_types::limits::PUT_LEN_MAX;
use bivouac_types::put::{MadeFile, NewFile, number};
use bivouac_types::{Errno, Timestamp};
use rustix::io::Errno as OsErrno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use crate::meta::{Attrs, InodeVersion};
use crate::nofollow;

/// Set-user-id, set-group-id and sticky bits: only set in steps.
const SPECIAL: u32 = 0o7000;

/// The directory of the last creation, kept open.
#[derive(Default)]
pub(crate) struct PutIoctl {
    dir: Option<Dir>,
    bytes: Vec<u8>,
}

struct Dir {
    path: PathBuf,
    /// None if the directory does not support the ioctl.
    open: Option<File>,
}

impl PutIoctl {
    /// Creates a file with content and attributes; `None` if it must be created in steps.
    ///
    /// # Errors
    /// Errors that the creation in steps would have, too.
    pub(crate) fn put(
        &mut self,
        path: &Path,
        attrs: &Attrs,
        content: &[u8],
    ) -> io::Result<Option<InodeVersion>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let mtime = Timestamp { secs: attrs.mtime.0, nanos: u32::try_from(attrs.mtime.1).unwrap_or(0) };
        let file = NewFile { name: name.as_bytes(), mode: attrs.mode, mtime, content };
        if !is_plain(attrs) || content.len() > PUT_LEN_MAX || !file.encode(&mut self.bytes) {
            return Ok(None);
        }
        // The size of the request is part of the ioctl number.
        let Some(number) = number(self.bytes.len()) else { return Ok(None) };
        let Some(dir) = self.enter(parent) else { return Ok(None) };
        let request = Request { number, bytes: &mut self.bytes };
        // SAFETY: the number says how many bytes are read and written, and there are as many.
        let asked = unsafe { rustix::ioctl::ioctl(&dir, request) };
        let outcome = match asked {
            Ok(()) => MadeFile::from_bytes(&self.bytes).ok_or(OsErrno::NOTTY),
            Err(errno) => Err(errno),
        };
        match outcome {
            Ok(MadeFile { ino, ctime }) => {
                self.leave(parent, Some(dir));
                Ok(Some(InodeVersion { ino: ino.0, ctime: (ctime.secs, i64::from(ctime.nanos)) }))
            }
            // A temporary condition, such as a full request queue: this file is created in steps, later ones may use
            // the ioctl.
            Err(OsErrno::AGAIN) => {
                self.leave(parent, Some(dir));
                Ok(None)
            }
            Err(errno) if is_answer(errno) => {
                self.leave(parent, Some(dir));
                Err(errno.into())
            }
            Err(_) => {
                // Remembered, so that a file system without it is asked once per directory and not once per file.
                self.leave(parent, None);
                Ok(None)
            }
        }
    }

    /// Returns the open directory, if it supports the ioctl.
    fn enter(&mut self, path: &Path) -> Option<File> {
        match self.dir.take_if(|dir| dir.path == path) {
            Some(Dir { open: None, path }) => {
                self.dir = Some(Dir { path, open: None });
                None
            }
            Some(Dir { open, .. }) => open,
            // The error is reported by the creation in steps.
            None => nofollow::open_dir(path).ok(),
        }
    }

    fn leave(&mut self, path: &Path, open: Option<File>) {
        self.dir = Some(Dir { path: path.to_owned(), open });
    }
}

/// Returns whether owner and mode are those of a new file of this process.
fn is_plain(attrs: &Attrs) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // Only root preserves owners.
    let is_own = !uid.is_root() || (attrs.uid, attrs.gid) == (uid.as_raw(), gid.as_raw());
    is_own && attrs.mode & SPECIAL == 0
}

/// Returns whether the error is that of the creation, and not of an unsupported ioctl.
fn is_answer(errno: OsErrno) -> bool {
    let answers = [Errno::EEXIST, Errno::ENOSPC, Errno::EDQUOT, Errno::EIO];
    answers.iter().any(|answer| answer.code() == errno.raw_os_error())
}

struct Request<'a> {
    number: u32,
    bytes: &'a mut Vec<u8>,
}

// SAFETY: the number is that of an ioctl which reads and writes at most as many bytes as there are.
unsafe impl Ioctl for Request<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        Opcode::from(self.number)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs(mode: u32) -> Attrs {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Attrs { mode, uid, gid, mtime: (1, 2) }
    }

    #[test]
    fn elsewhere_files_are_made_in_steps() {
        let dir = tempfile::tempdir().unwrap();
        let mut putter = PutIoctl::default();
        for name in ["a", "b"] {
            assert_eq!(putter.put(&dir.path().join(name), &attrs(0o644), b"x").unwrap(), None);
        }
        assert!(putter.dir.is_some_and(|dir| dir.open.is_none()), "the directory is not asked again");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_special_is_made_in_steps() {
        assert!(is_plain(&attrs(0o755)) && !is_plain(&attrs(0o4755)) && !is_plain(&attrs(0o1755)));
        let mut putter = PutIoctl::default();
        let place = Path::new("/nonexistent/file");
        assert_eq!(putter.put(place, &attrs(0o644), &vec![0; PUT_LEN_MAX + 1]).unwrap(), None);
        assert!(putter.dir.is_none(), "nobody was asked");
    }

    #[test]
    fn a_full_formation_is_an_answer() {
        assert!(is_answer(OsErrno::NOSPC) && is_answer(OsErrno::EXIST) && is_answer(OsErrno::IO));
        assert!(!is_answer(OsErrno::NOTTY) && !is_answer(OsErrno::OPNOTSUPP) && !is_answer(OsErrno::ACCESS));
    }
}
