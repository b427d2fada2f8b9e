//! Content of the bare file system.

use std::collections::{BTreeMap, HashMap};

use bivouac_types::limits::{LEASE_MARGIN_MS, LEASE_MS};
use rustix::io::Errno;

use super::wire::{BLOCK, OPENED, PAGE, ROOT, Request, init, op, put, statfs};

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
/// `FATTR_SIZE`.
const SETS_SIZE: u32 = 1 << 3;
/// Files up to so many bytes take no blocks.
const SMALL: usize = 64 << 10;
/// Bytes of an entry of a listing without its name.
const ENTRY_LEN: usize = 24;
/// For how long the kernel may cache names and attributes: as long as those of a formation's mount.
const VALID_NSEC: u32 = (LEASE_MS - LEASE_MARGIN_MS) as u32 * 1_000_000;

#[derive(Default)]
struct Node {
    is_dir: bool,
    size: u64,
    /// The content, as long as it is small and there are no blocks.
    small: Vec<u8>,
    blocks: Vec<Box<[u8]>>,
    entries: BTreeMap<Vec<u8>, u64>,
}

/// Inode and number of a block.
type BlockId = (u64, usize);

/// The files, and blocks that were used before: their memory is there.
pub struct Files {
    nodes: HashMap<u64, Node>,
    next: u64,
    free: Vec<Box<[u8]>>,
}

impl Default for Files {
    fn default() -> Files {
        let root = Node { is_dir: true, ..Node::default() };
        Files { nodes: HashMap::from([(ROOT, root)]), next: ROOT, free: Vec::new() }
    }
}

impl Files {
    /// A block that nobody uses.
    pub fn block(&mut self) -> Box<[u8]> {
        self.free.pop().unwrap_or_else(|| {
            let mut block = vec![0; BLOCK].into_boxed_slice();
            // Allocated zeros are mapped when they are touched, and the first write would pay for that.
            block.iter_mut().step_by(PAGE).for_each(|byte| *std::hint::black_box(byte) = 0);
            block
        })
    }

    /// Takes the memory of a request as a block, and gives that block's memory for the next request.
    pub fn keep(&mut self, (ino, index): BlockId, block: &mut Box<[u8]>) {
        if let Some(there) = self.nodes.get_mut(&ino).and_then(|node| node.blocks.get_mut(index)) {
            std::mem::swap(there, block);
        }
    }

    /// Answer to a read. A read that goes over the end of a block answers less; none of the measurement's does.
    pub fn data(&self, request: &Request<'_>) -> &[u8] {
        let read = || {
            let node = self.nodes.get(&request.ino)?;
            let (offset, len) = (request.long(8).ok()?, u64::from(request.word(16).ok()?));
            let end = offset.saturating_add(len).min(node.size);
            if node.blocks.is_empty() {
                return node.small.get(offset as usize..end as usize);
            }
            let (index, from) = (offset as usize / BLOCK, offset as usize % BLOCK);
            let to = (from + end.saturating_sub(offset) as usize).min(BLOCK);
            node.blocks.get(index)?.get(from..to)
        };
        if request.op == op::READ { read().unwrap_or_default() } else { &[] }
    }

    /// Serves a request; of a write that is a block, which one it is.
    pub fn serve(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<Option<BlockId>, Errno> {
        match request.op {
            op::INIT => init(out),
            op::LOOKUP => {
                let ino = *self.node(request.ino)?.entries.get(&request.name(0)).ok_or(Errno::NOENT)?;
                self.entry(ino, out)?;
            }
            op::GETATTR => self.attr_out(request.ino, out)?,
            op::SETATTR => {
                if request.word(0)? & SETS_SIZE != 0 {
                    self.resize(request.ino, request.long(16)?)?;
                }
                self.attr_out(request.ino, out)?;
            }
            op::MKDIR => {
                let ino = self.make(request.ino, request.name(8), true)?;
                self.entry(ino, out)?;
            }
            op::CREATE => {
                let ino = self.make(request.ino, request.name(16), false)?;
                self.entry(ino, out)?;
                put(out, &[0], &[OPENED, 0]);
            }
            op::UNLINK | op::RMDIR => self.remove(request.ino, &request.name(0))?,
            op::OPEN => put(out, &[0], &[OPENED, 0]),
            op::OPENDIR => put(out, &[0], &[0, 0]),
            op::READDIR => self.list(request, out)?,
            op::WRITE => return self.write(request, out),
            op::STATFS => statfs(out),
            op::READ | op::RELEASE | op::RELEASEDIR => {}
            // FLUSH, ACCESS, GETXATTR: the kernel remembers the answer, and does not ask again.
            _ => return Err(Errno::NOSYS),
        }
        Ok(None)
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    fn make(&mut self, parent: u64, name: Vec<u8>, is_dir: bool) -> Result<u64, Errno> {
        self.next += 1;
        let ino = self.next;
        self.node(parent)?.entries.insert(name, ino);
        self.nodes.insert(ino, Node { is_dir, ..Node::default() });
        Ok(ino)
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let ino = self.node(parent)?.entries.remove(name).ok_or(Errno::NOENT)?;
        let gone = self.nodes.remove(&ino).ok_or(Errno::NOENT)?;
        self.free.extend(gone.blocks);
        Ok(())
    }

    fn resize(&mut self, ino: u64, size: u64) -> Result<(), Errno> {
        let node = self.node(ino)?;
        if size as usize <= SMALL && node.blocks.is_empty() {
            node.small.resize(size as usize, 0);
            node.size = size;
            return Ok(());
        }
        let small = std::mem::take(&mut node.small);
        let blocks = (size as usize).div_ceil(BLOCK);
        while self.node(ino)?.blocks.len() < blocks {
            let block = self.block();
            self.node(ino)?.blocks.push(block);
        }
        let node = self.node(ino)?;
        if let Some(first) = node.blocks.first_mut().and_then(|block| block.get_mut(..small.len())) {
            first.copy_from_slice(&small);
        }
        node.size = size;
        let freed = node.blocks.split_off(blocks);
        self.free.extend(freed);
        Ok(())
    }

    fn write(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<Option<BlockId>, Errno> {
        let (offset, data) = (request.long(8)?, request.payload());
        let end = offset + data.len() as u64;
        if end > self.node(request.ino)?.size {
            self.resize(request.ino, end)?;
        }
        put(out, &[], &[data.len() as u32, 0]);
        if data.len() == BLOCK && offset.is_multiple_of(BLOCK as u64) {
            return Ok(Some((request.ino, offset as usize / BLOCK)));
        }
        let (mut at, mut rest) = (offset as usize, data);
        let node = self.node(request.ino)?;
        if node.blocks.is_empty() {
            node.small.get_mut(at..at + rest.len()).ok_or(Errno::IO)?.copy_from_slice(rest);
            return Ok(None);
        }
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK - at % BLOCK));
            let block = node.blocks.get_mut(at / BLOCK).ok_or(Errno::IO)?;
            block.get_mut(at % BLOCK..at % BLOCK + now.len()).ok_or(Errno::IO)?.copy_from_slice(now);
            (at, rest) = (at + now.len(), later);
        }
        Ok(None)
    }

    fn attr(&mut self, ino: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.node(ino)?;
        let (mode, links) = if node.is_dir { (DIR, 2) } else { (FILE, 1) };
        put(
            out,
            &[ino, node.size, node.size.div_ceil(512), 0, 0, 0],
            &[0, 0, 0, mode, links, 0, 0, 0, 4096, 0],
        );
        Ok(())
    }

    fn attr_out(&mut self, ino: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
        put(out, &[0], &[VALID_NSEC, 0]);
        self.attr(ino, out)
    }

    fn entry(&mut self, ino: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
        put(out, &[ino, 0, 0, 0], &[VALID_NSEC, VALID_NSEC]);
        self.attr(ino, out)
    }

    /// As many entries as there is room for.
    fn list(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let (from, room) = (request.long(8)? as usize, request.word(16)? as usize);
        for (at, (name, ino)) in self.node(request.ino)?.entries.iter().enumerate().skip(from) {
            if out.len() + (ENTRY_LEN + name.len()).next_multiple_of(8) > room {
                break;
            }
            put(out, &[*ino, at as u64 + 1], &[name.len() as u32, 0]);
            out.extend(name);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        Ok(())
    }
}
