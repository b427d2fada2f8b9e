//! A volume in memory, for tests and simulation: pages, holes and a limit, as on tmpfs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bivouac_types::Errno;
use parking_lot::{Mutex, RwLock};

use super::{
    Entry, FileStat, OpenMode, Space, Volume, VolumeFile, VolumeKind, check_name, parent_of, system_error,
};

const PAGE: usize = 4096;

/// A volume that is gone when it is dropped.
#[derive(Debug)]
pub struct MemVolume {
    path: PathBuf,
    names: Mutex<BTreeMap<String, Node>>,
    pages: Arc<Pages>,
}

#[derive(Clone, Debug)]
enum Node {
    File(Arc<MemFile>),
    Dir,
}

/// Pages of all files together.
#[derive(Debug)]
struct Pages {
    used: AtomicU64,
    max: u64,
}

impl MemVolume {
    /// Creates an empty volume with room for `capacity` bytes, in pages of 4096.
    #[must_use]
    pub fn new(capacity: u64) -> MemVolume {
        let pages = Pages { used: AtomicU64::new(0), max: capacity / PAGE as u64 };
        MemVolume { path: PathBuf::from("(memory)"), names: Mutex::default(), pages: Arc::new(pages) }
    }
}

impl Default for MemVolume {
    fn default() -> MemVolume {
        MemVolume::new(1 << 50)
    }
}

impl Volume for MemVolume {
    fn path(&self) -> &Path {
        &self.path
    }

    fn kind(&self) -> VolumeKind {
        VolumeKind::Memory
    }

    fn space(&self) -> io::Result<Space> {
        let used = self.pages.used.load(Ordering::Relaxed);
        let bytes = |pages: u64| pages * PAGE as u64;
        Ok(Space { total: bytes(self.pages.max), free: bytes(self.pages.max.saturating_sub(used)) })
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>> {
        check_name(name)?;
        let mut names = self.names.lock();
        match (names.get(name), mode) {
            (Some(_), OpenMode::CreateNew) => Err(system_error(Errno::EEXIST)),
            (Some(Node::Dir), _) => Err(system_error(Errno::EISDIR)),
            (Some(Node::File(file)), _) => Ok(file.clone()),
            (None, OpenMode::Existing) => Err(system_error(Errno::ENOENT)),
            (None, OpenMode::Create | OpenMode::CreateNew) => {
                check_parent(&names, name)?;
                let file = Arc::new(MemFile { content: RwLock::default(), pages: self.pages.clone() });
                names.insert(name.to_owned(), Node::File(file.clone()));
                Ok(file)
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut names = self.names.lock();
        check_parent(&names, to)?;
        if matches!(names.get(to), Some(Node::Dir)) {
            return Err(system_error(Errno::EISDIR));
        }
        let node = names.remove(from).ok_or_else(|| system_error(Errno::ENOENT))?;
        names.insert(to.to_owned(), node);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let mut names = self.names.lock();
        match names.get(name) {
            None => return Err(system_error(Errno::ENOENT)),
            Some(Node::Dir) => return Err(system_error(Errno::EISDIR)),
            Some(Node::File(_)) => names.remove(name),
        };
        Ok(())
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let mut names = self.names.lock();
        if names.contains_key(name) {
            return Err(system_error(Errno::EEXIST));
        }
        check_parent(&names, name)?;
        names.insert(name.to_owned(), Node::Dir);
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        let names = self.names.lock();
        if !dir.is_empty() {
            check_dir(&names, dir)?;
        }
        let inside = names.iter().filter(|(name, _)| parent_of(name) == dir);
        Ok(inside.map(|(name, node)| entry_of(name, node)).collect())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        if dir.is_empty() { Ok(()) } else { check_dir(&self.names.lock(), dir) }
    }
}

fn check_parent(names: &BTreeMap<String, Node>, name: &str) -> io::Result<()> {
    match parent_of(name) {
        "" => Ok(()),
        parent => check_dir(names, parent),
    }
}

fn check_dir(names: &BTreeMap<String, Node>, dir: &str) -> io::Result<()> {
    match names.get(dir) {
        Some(Node::Dir) => Ok(()),
        Some(Node::File(_)) => Err(system_error(Errno::ENOTDIR)),
        None => Err(system_error(Errno::ENOENT)),
    }
}

fn entry_of(name: &str, node: &Node) -> Entry {
    let last = name.rsplit('/').next().unwrap_or(name).to_owned();
    match node {
        Node::Dir => Entry { name: last, is_dir: true, stat: FileStat::default() },
        Node::File(file) => Entry { name: last, is_dir: false, stat: file.content.read().stat() },
    }
}

#[derive(Debug)]
struct MemFile {
    content: RwLock<Content>,
    pages: Arc<Pages>,
}

#[derive(Debug, Default)]
struct Content {
    len: u64,
    /// `None` for a page that was allocated and never written.
    pages: BTreeMap<u64, Option<Box<[u8; PAGE]>>>,
}

impl Content {
    fn stat(&self) -> FileStat {
        FileStat { len: self.len, allocated: (self.pages.len() * PAGE) as u64 }
    }

    fn copy_out(&self, out: &mut [u8], offset: u64) {
        for (at, range) in by_page(offset, out.len()) {
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let out = &mut out[range];
            match self.pages.get(&page) {
                Some(Some(page)) => out.copy_from_slice(&page[within..within + out.len()]),
                _ => out.fill(0),
            }
        }
    }
}

/// Returns the parts of a range that are within one page each: offset, and indices into the buffer.
fn by_page(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let count = (PAGE - (at % PAGE as u64) as usize).min(len - done);
        let range = done..done + count;
        done += count;
        (count > 0).then_some((at, range))
    })
}

impl MemFile {
    fn write_one(&self, content: &mut Content, bytes: &[u8], offset: u64) -> usize {
        for (at, range) in by_page(offset, bytes.len()) {
            let (number, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let page = match content.pages.entry(number) {
                MapEntry::Occupied(page) => page.into_mut(),
                // As tmpfs does it: a write that finds no page is short, and an error only if it wrote nothing.
                MapEntry::Vacant(_) if !self.pages.take() => return range.start,
                MapEntry::Vacant(page) => page.insert(None),
            };
            let page = page.get_or_insert_with(|| Box::new([0; PAGE]));
            page[within..within + range.len()].copy_from_slice(&bytes[range.clone()]);
            content.len = content.len.max(at + range.len() as u64);
        }
        bytes.len()
    }
}

impl Pages {
    fn take(&self) -> bool {
        let one_more = |used: u64| (used < self.max).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn give_back(&self, count: usize) {
        let used = self.used.fetch_sub(count as u64, Ordering::Relaxed);
        assert!(used >= count as u64, "{count} of {used} pages are given back");
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.pages.give_back(self.content.get_mut().pages.len());
    }
}

impl VolumeFile for MemFile {
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let content = self.content.read();
        let mut done = 0;
        for buf in bufs {
            let left = content.len.saturating_sub(offset.saturating_add(done as u64));
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            content.copy_out(&mut buf[..count], offset + done as u64);
            done += count;
        }
        Ok(done)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if offset.checked_add(total as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(system_error(Errno::EFBIG));
        }
        let mut content = self.content.write();
        let mut done = 0;
        for buf in bufs {
            let count = self.write_one(&mut content, buf, offset + done as u64);
            done += count;
            if count < buf.len() {
                break;
            }
        }
        if done == 0 && total > 0 { Err(system_error(Errno::ENOSPC)) } else { Ok(done) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content.write();
        let (whole, rest) = (len / PAGE as u64, (len % PAGE as u64) as usize);
        let cut = content.pages.split_off(&len.div_ceil(PAGE as u64));
        self.pages.give_back(cut.len());
        // When the file grows again, zeros have to be there.
        if let Some(Some(page)) = content.pages.get_mut(&whole) {
            page[rest..].fill(0);
        }
        content.len = len;
        Ok(())
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(self.content.read().stat())
    }

    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let content = self.content.read();
        let written = |(number, page): (&u64, &Option<_>)| page.is_some().then_some(*number);
        let mut pages = content.pages.range(from / PAGE as u64..).filter_map(written);
        let Some(first) = pages.next() else { return Ok(None) };
        let adjacent = pages.zip(first + 1..).take_while(|(page, expected)| page == expected).count();
        let next = first + 1 + adjacent as u64;
        let start = from.max(first * PAGE as u64);
        Ok((start < content.len).then(|| start..content.len.min(next * PAGE as u64)))
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let mut content = self.content.write();
        let pages = range.start / PAGE as u64..range.end.div_ceil(PAGE as u64);
        let missing: Vec<u64> = pages.filter(|page| !content.pages.contains_key(page)).collect();
        for (done, page) in missing.iter().enumerate() {
            if !self.pages.take() {
                missing[..done].iter().for_each(|page| drop(content.pages.remove(page)));
                self.pages.give_back(done);
                return Err(system_error(Errno::ENOSPC));
            }
            content.pages.insert(*page, None);
        }
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.allocate(len.saturating_sub(1)..len)?;
        let mut content = self.content.write();
        content.len = content.len.max(len);
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let mut content = self.content.write();
        let mut given_back = 0;
        let touched = range.start / PAGE as u64..range.end.div_ceil(PAGE as u64);
        let touched: Vec<u64> = content.pages.range(touched).map(|(number, _)| *number).collect();
        for number in touched {
            let start = number * PAGE as u64;
            if range.start <= start && start + PAGE as u64 <= range.end {
                content.pages.remove(&number);
                given_back += 1;
            } else if let Some(Some(page)) = content.pages.get_mut(&number) {
                let within = |at: u64| at.saturating_sub(start).min(PAGE as u64) as usize;
                page[within(range.start)..within(range.end)].fill(0);
            }
        }
        self.pages.give_back(given_back);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_volume() {
        crate::conformance::volume(|| Arc::new(MemVolume::default()));
    }

    #[test]
    fn a_full_volume_takes_what_fits_and_gives_back_what_is_removed() {
        let volume = MemVolume::new(2 * PAGE as u64);
        let file = volume.open("f", OpenMode::Create).unwrap();
        let bytes = vec![1u8; 3 * PAGE];
        assert_eq!(file.write_vectored_at(&[IoSlice::new(&bytes)], 0).unwrap(), 2 * PAGE);
        let error = file.write_vectored_at(&[IoSlice::new(&bytes)], 2 * PAGE as u64).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC.code()));
        assert_eq!(volume.space().unwrap().free, 0);
        file.set_len(1).unwrap();
        assert_eq!(volume.space().unwrap().free, PAGE as u64);
        volume.remove("f").unwrap();
        drop(file);
        assert_eq!(volume.space().unwrap().free, 2 * PAGE as u64);
    }
}
