//! The calls that are measured, each with a look at what it brought.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

/// Bytes for the entries of one call.
const ENTRIES_LEN: usize = 32 << 10;

/// Opens a file.
pub fn open(file: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(file, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

/// Makes a file that was not there, with this content.
pub fn create(file: &CStr, content: &[u8]) -> Result<(), Errno> {
    let made = open(file, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
    if content.is_empty() { Ok(()) } else { expect(content.len(), rustix::io::write(made, content)?) }
}

/// Writes the content of a file that is there.
pub fn write(file: &CStr, content: &[u8]) -> Result<(), Errno> {
    expect(content.len(), rustix::io::write(open(file, OFlags::WRONLY)?, content)?)
}

/// Asks for attributes.
pub fn stat(file: &CStr, size: usize) -> Result<(), Errno> {
    let found = rustix::fs::statx(CWD, file, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    expect(size as u64, found.stx_size)
}

/// Reads a file, which must have this content and nothing behind it. The buffer is longer by one byte.
pub fn read(file: &CStr, buffer: &mut [u8], content: &[u8]) -> Result<(), Errno> {
    let descriptor = open(file, OFlags::RDONLY)?;
    let len = retry_on_intr(|| rustix::io::read(&descriptor, &mut *buffer))?;
    if buffer.get(..len) == Some(content) { Ok(()) } else { Err(Errno::IO) }
}

/// Number of entries that are not directories.
pub fn entries(dir: &CStr) -> Result<u64, Errno> {
    let descriptor = open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = Vec::with_capacity(ENTRIES_LEN);
    let mut listing = RawDir::new(descriptor, buffer.spare_capacity_mut());
    let mut count = 0;
    while let Some(entry) = listing.next() {
        count += u64::from(entry?.file_type() != FileType::Directory);
    }
    Ok(count)
}

/// A wrong figure is an I/O error like any other.
fn expect<T: PartialEq>(wanted: T, found: T) -> Result<(), Errno> {
    if wanted == found { Ok(()) } else { Err(Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::path::Path;

    fn name(path: &Path) -> CString {
        CString::new(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn wrong_content_and_sizes_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let file = name(&dir.path().join("f"));
        create(&file, b"abc").unwrap();
        assert_eq!(create(&file, b"abc"), Err(Errno::EXIST));
        assert_eq!(read(&file, &mut [0; 4], b"abc"), Ok(()));
        assert_eq!(read(&file, &mut [0; 4], b"abd"), Err(Errno::IO));
        assert_eq!(read(&file, &mut [0; 4], b"ab"), Err(Errno::IO));
        assert_eq!(stat(&file, 3), Ok(()));
        assert_eq!(stat(&file, 4), Err(Errno::IO));
        write(&file, b"xyz").unwrap();
        assert_eq!(read(&file, &mut [0; 4], b"xyz"), Ok(()));
    }

    #[test]
    fn files_are_counted_and_directories_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        (0..5000).for_each(|i| std::fs::write(dir.path().join(format!("f{i}")), b"").unwrap());
        assert_eq!(entries(&name(dir.path())), Ok(5000));
        assert_eq!(entries(&name(&dir.path().join("f0"))), Err(Errno::NOTDIR));
    }
}
