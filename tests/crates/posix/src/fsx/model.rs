//! The file beside a copy of its content in memory.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, Result};

use super::{Operation, Plan};
use crate::mapping::Mapping;
use crate::random::Random;
use crate::sys;

/// Names that the file has in turn.
const NAMES: [&str; 2] = ["fsx-one", "fsx-two"];
const PAGE: u64 = 4096;

/// A file, open through every mount, and what it should be.
pub struct Model<'a> {
    plan: &'a Plan,
    files: Vec<OwnedFd>,
    wanted: Vec<u8>,
    name: usize,
    looks: usize,
}

impl<'a> Model<'a> {
    /// An empty file.
    pub fn new(plan: &'a Plan) -> std::result::Result<Model<'a>, String> {
        let mut model = Model { plan, files: Vec::new(), wanted: Vec::new(), name: 0, looks: 0 };
        for mount in 0..plan.dirs.len() {
            model.files.push(model.open(mount, OFlags::CREATE)?);
        }
        Ok(model)
    }

    /// Its size.
    pub fn size(&self) -> u64 {
        self.wanted.len() as u64
    }

    /// Takes it away.
    pub fn remove(self) -> std::result::Result<(), String> {
        let path = self.path(0);
        rustix::fs::unlink(&path).map_err(|errno| format!("{}: {errno:?}", path.display()))
    }

    fn path(&self, mount: usize) -> PathBuf {
        self.plan.dirs[mount % self.plan.dirs.len()].join(NAMES[self.name % 2])
    }

    fn open(&self, mount: usize, flags: OFlags) -> std::result::Result<OwnedFd, String> {
        let path = self.path(mount);
        sys::open(&path, OFlags::RDWR | flags, 0o644)
            .map_err(|errno| format!("{}: {errno:?}", path.display()))
    }

    fn file(&self, mount: usize) -> &OwnedFd {
        &self.files[mount % self.files.len()]
    }

    /// Does it to both, and compares them.
    pub fn apply(&mut self, operation: &Operation) -> std::result::Result<(), String> {
        let outcome = match *operation {
            Operation::Reopen { mount } => {
                let at = mount % self.files.len();
                self.files[at] = self.open(mount, OFlags::empty())?;
                Ok(())
            }
            Operation::Empty { mount } => {
                drop(self.open(mount, OFlags::TRUNC)?);
                self.wanted.clear();
                Ok(())
            }
            Operation::MapRead { mount, at, len } => {
                return self.map(mount, at, len, None).and_then(|()| self.compare());
            }
            Operation::MapWrite { mount, at, len, seed } => self.map_write(mount, at, len, seed)?,
            _ => self.call(operation),
        };
        match outcome {
            // What a file system does not have.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NODEV) => self.compare(),
            Err(errno) => Err(format!("{operation:?}: {errno:?}")),
        }
    }

    fn map_write(
        &mut self,
        mount: usize,
        at: u64,
        len: usize,
        seed: u64,
    ) -> std::result::Result<Result<()>, String> {
        let bytes = Random::new(seed).bytes(len);
        let len = len.min((self.size() - at.min(self.size())) as usize);
        if len > 0 {
            self.map(mount, at, len, Some(&bytes[..len]))?;
            self.put(at, &bytes[..len]);
        }
        Ok(Ok(()))
    }

    /// What system calls alone do.
    fn call(&mut self, operation: &Operation) -> Result<()> {
        match *operation {
            Operation::Read { mount, at, len } => self.read(mount, at, len),
            Operation::Write { mount, at, len, seed } => {
                let bytes = Random::new(seed).bytes(len);
                sys::write_all_at(self.file(mount), &bytes, at)?;
                self.put(at, &bytes);
                Ok(())
            }
            Operation::Append { mount, len, seed } => {
                let bytes = Random::new(seed).bytes(len);
                let file = sys::open(&self.path(mount), OFlags::WRONLY | OFlags::APPEND, 0)?;
                sys::write_all_at(&file, &bytes, 0)?;
                self.wanted.extend(bytes);
                Ok(())
            }
            Operation::Truncate { mount, size } => {
                rustix::fs::ftruncate(self.file(mount), size)?;
                self.wanted.resize(size as usize, 0);
                Ok(())
            }
            Operation::Copy { mount, from, to, len } => self.copy(mount, from, to, len),
            Operation::Sync { mount } => rustix::fs::fsync(self.file(mount)),
            Operation::Rename { mount } => {
                let old = self.path(mount);
                self.name += 1;
                rustix::fs::rename(old, self.path(mount))
            }
            _ => self.allocate(operation),
        }
    }

    fn allocate(&mut self, operation: &Operation) -> Result<()> {
        let keep = FallocateFlags::KEEP_SIZE;
        let (mount, flags, at, len) = match *operation {
            Operation::Allocate { mount, at, len } => (mount, FallocateFlags::empty(), at, len),
            Operation::Reserve { mount, at, len } => (mount, keep, at, len),
            Operation::Punch { mount, at, len } => (mount, keep | FallocateFlags::PUNCH_HOLE, at, len),
            Operation::Zero { mount, at, len } => (mount, FallocateFlags::ZERO_RANGE, at, len),
            _ => return Ok(()),
        };
        rustix::fs::fallocate(self.file(mount), flags, at, len)?;
        let end = (at + len) as usize;
        if !flags.contains(keep) {
            self.wanted.resize(self.wanted.len().max(end), 0);
        }
        if !matches!(operation, Operation::Allocate { .. } | Operation::Reserve { .. }) {
            let size = self.wanted.len();
            self.wanted[(at as usize).min(size)..end.min(size)].fill(0);
        }
        Ok(())
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        self.wanted.resize(self.wanted.len().max(end), 0);
        self.wanted[at..end].copy_from_slice(bytes);
    }

    fn read(&self, mount: usize, at: u64, len: usize) -> Result<()> {
        let found = sys::read_at(self.file(mount), at, len)?;
        let size = self.wanted.len();
        let wanted = &self.wanted[(at as usize).min(size)..(at as usize + len).min(size)];
        // A difference is found, and said, by the comparison that follows.
        if found == wanted { Ok(()) } else { Err(Errno::ILSEQ) }
    }

    fn copy(&mut self, mount: usize, from: u64, to: u64, len: usize) -> Result<()> {
        let len = len.min((self.size() - from.min(self.size())) as usize);
        if len == 0 {
            return Ok(());
        }
        let bytes = self.wanted[from as usize..from as usize + len].to_vec();
        let (target, mut off_in, mut off_out, mut left) = (self.file(mount + 1), from, to, len);
        // Source and target are of one mount: between two the kernel would not have one file system copy.
        let source = sys::open(&self.path(mount + 1), OFlags::RDONLY, 0)?;
        while left > 0 {
            match rustix::fs::copy_file_range(&source, Some(&mut off_in), target, Some(&mut off_out), left)? {
                0 => return Err(Errno::NODATA),
                done => left -= done,
            }
        }
        self.put(to, &bytes);
        Ok(())
    }

    /// Reads or writes a part through a mapping of a file that was just opened: older ones may show what was there before.
    fn map(
        &self,
        mount: usize,
        at: u64,
        len: usize,
        bytes: Option<&[u8]>,
    ) -> std::result::Result<(), String> {
        let len = len.min((self.size() - at.min(self.size())) as usize);
        if len == 0 {
            return Ok(());
        }
        let (file, start) = (self.open(mount, OFlags::empty())?, at / PAGE * PAGE);
        let before = (at - start) as usize;
        let mapping = match Mapping::new(&file, start, before + len, true) {
            Err(Errno::NODEV) => return Ok(()),
            mapping => mapping.map_err(|errno| format!("mmap: {errno:?}"))?,
        };
        self.use_mapping(mapping, (at, len, before), bytes)
    }

    fn use_mapping(
        &self,
        mut mapping: Mapping,
        (at, len, before): (u64, usize, usize),
        bytes: Option<&[u8]>,
    ) -> std::result::Result<(), String> {
        if let Some(bytes) = bytes {
            mapping.write(before, bytes);
            return mapping.sync().map_err(|errno| format!("msync: {errno:?}"));
        }
        let found = mapping.read(before, len);
        differs(&found, &self.wanted[at as usize..at as usize + len]).map_or(Ok(()), |(n, found, wanted)| {
            Err(format!("mapped byte {} is {found}, should be {wanted}", at as usize + n))
        })
    }

    /// The whole file, through the next mount.
    fn compare(&mut self) -> std::result::Result<(), String> {
        self.looks += 1;
        let mount = self.looks % self.files.len();
        let found = sys::read_at(self.file(mount), 0, self.wanted.len() + 10)
            .map_err(|errno| format!("read: {errno:?}"))?;
        let size = rustix::fs::fstat(self.file(mount)).map_err(|errno| format!("fstat: {errno:?}"))?.st_size;
        if (found.len(), size as usize) != (self.wanted.len(), self.wanted.len()) {
            return Err(format!(
                "through mount {mount}: {} bytes read, size {size}, should be {}",
                found.len(),
                self.wanted.len()
            ));
        }
        differs(&found, &self.wanted).map_or(Ok(()), |(at, found, wanted)| {
            Err(format!("through mount {mount}: byte {at} is {found}, should be {wanted}"))
        })
    }
}

/// The first byte that differs: where, and which two.
fn differs(found: &[u8], wanted: &[u8]) -> Option<(usize, u8, u8)> {
    if found == wanted {
        return None;
    }
    found.iter().zip(wanted).enumerate().find(|(_, (a, b))| a != b).map(|(at, (a, b))| (at, *a, *b))
}
