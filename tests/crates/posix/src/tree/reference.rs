//! A file system in memory: what POSIX and Linux say, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::operation::{Call, KEPT, Operation};
use crate::sys::Kind;

/// Symbolic links that one path may lead through.
const LINKS_MAX: usize = 40;
/// `XATTR_CREATE` and `XATTR_REPLACE`.
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub content: Vec<u8>,
    pub target: Vec<u8>,
    pub entries: BTreeMap<u8, usize>,
    pub xattrs: BTreeMap<u8, Vec<u8>>,
    /// The modification time that was set, unless it has changed since.
    pub mtime: Option<i64>,
}

/// The file system.
#[derive(Clone, Debug)]
pub struct Reference {
    pub nodes: Vec<Node>,
    pub kept: [Option<usize>; KEPT],
}

/// Where a path ends: the directory, the name, and what it leads to.
struct End {
    dir: usize,
    name: u8,
    node: Option<usize>,
}

type Outcome = Result<(), Errno>;

impl Reference {
    /// An empty root.
    pub fn new() -> Reference {
        let mut reference = Reference { nodes: Vec::new(), kept: [None; KEPT] };
        reference.make(Kind::Dir, 0o755);
        reference
    }

    /// Applies a call and says what comes of it; nothing for one that is not to be made.
    pub fn apply(&mut self, operation: &Operation) -> Option<Outcome> {
        Some(match &operation.call {
            Call::Create(path, mode) => self.add(path, Kind::File, *mode, &[]),
            Call::Mkdir(path, mode) => self.add(path, Kind::Dir, *mode, &[]),
            Call::Symlink(path, target) => self.add(path, Kind::Link, 0o777, target),
            Call::Mknod(path, kind) => self.add(path, *kind, 0o644, &[]),
            Call::Link(from, to) => self.link(from, to),
            Call::Unlink(path) => self.unlink(path),
            Call::Rmdir(path) => self.rmdir(path),
            Call::Rename(from, to) => self.rename(from, to, false),
            Call::Noreplace(from, to) => self.rename(from, to, true),
            Call::Exchange(from, to) => self.exchange(from, to),
            Call::Chmod(path, mode) => self.found(path, true).map(|node| self.nodes[node].mode = *mode),
            Call::Times(path, secs) => {
                self.found(path, false).map(|node| self.nodes[node].mtime = Some(*secs))
            }
            Call::Readlink(path) => self.found(path, false).and_then(|node| match self.nodes[node].kind {
                Kind::Link => Ok(()),
                _ => Err(Errno::INVAL),
            }),
            _ => return self.apply_to_content(operation),
        })
    }

    fn apply_to_content(&mut self, operation: &Operation) -> Option<Outcome> {
        match &operation.call {
            Call::Truncate(path, size) => self.on_file(path, |node| node.resize(*size)),
            Call::Write(path, at, len, fill) => self.on_file(path, |node| node.write(*at, *len, *fill)),
            Call::Append(path, len, fill) => {
                self.on_file(path, |node| node.write(node.content.len() as u64, *len, *fill))
            }
            Call::Empty(path) => self.on_file(path, |node| node.resize(0)),
            Call::SetXattr(path, name, len, flags) => {
                self.on_attributes(path, |node| node.set_xattr(*name, *len, *flags))
            }
            Call::RemoveXattr(path, name) => {
                self.on_attributes(path, |node| node.xattrs.remove(name).map(drop).ok_or(Errno::NODATA))
            }
            Call::Keep(slot, path) => self.keep(*slot, path),
            Call::KeptWrite(slot, at, len, fill) => self.on_kept(*slot, |node| node.write(*at, *len, *fill)),
            Call::KeptTruncate(slot, size) => self.on_kept(*slot, |node| node.resize(*size)),
            Call::KeptChmod(slot, mode) => self.on_kept(*slot, |node| node.mode = *mode),
            Call::Close(slot) => self.kept[*slot].take().map(|_| Ok(())),
            _ => None,
        }
    }

    fn make(&mut self, kind: Kind, mode: u32) -> usize {
        let (content, target, entries) = (Vec::new(), Vec::new(), BTreeMap::new());
        let node = Node { kind, mode, content, target, entries, xattrs: BTreeMap::new(), mtime: None };
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Follows a path; a link at its end only if that is asked for.
    fn walk(&self, start: usize, path: &[u8], follow: bool, links: &mut usize) -> Result<End, Errno> {
        let (last, dirs) = path.split_last().ok_or(Errno::NOENT)?;
        let mut dir = start;
        for name in dirs {
            let end = self.step(dir, *name, true, links)?;
            dir = end.node.ok_or(Errno::NOENT)?;
        }
        self.step(dir, *last, follow, links)
    }

    fn step(&self, dir: usize, name: u8, follow: bool, links: &mut usize) -> Result<End, Errno> {
        if self.nodes[dir].kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        let node = self.nodes[dir].entries.get(&name).copied();
        match node.map(|node| &self.nodes[node]) {
            Some(link) if link.kind == Kind::Link && follow => {
                *links += 1;
                if *links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                self.walk(dir, &link.target, true, links)
            }
            _ => Ok(End { dir, name, node }),
        }
    }

    fn end(&self, path: &[u8], follow: bool) -> Result<End, Errno> {
        self.walk(0, path, follow, &mut 0)
    }

    fn found(&self, path: &[u8], follow: bool) -> Result<usize, Errno> {
        self.end(path, follow)?.node.ok_or(Errno::NOENT)
    }

    fn room(&self, path: &[u8]) -> Result<End, Errno> {
        let end = self.end(path, false)?;
        if end.node.is_some() { Err(Errno::EXIST) } else { Ok(end) }
    }

    fn add(&mut self, path: &[u8], kind: Kind, mode: u32, target: &[u8]) -> Outcome {
        let end = self.room(path)?;
        let node = self.make(kind, mode);
        self.nodes[node].target = target.to_vec();
        self.put(end.dir, end.name, node);
        Ok(())
    }

    fn put(&mut self, dir: usize, name: u8, node: usize) {
        self.nodes[dir].entries.insert(name, node);
        self.nodes[dir].mtime = None;
    }

    fn take(&mut self, dir: usize, name: u8) {
        self.nodes[dir].entries.remove(&name);
        self.nodes[dir].mtime = None;
    }

    fn is_dir(&self, node: usize) -> bool {
        self.nodes[node].kind == Kind::Dir
    }

    fn link(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let node = self.found(from, false)?;
        let end = self.room(to)?;
        if self.is_dir(node) {
            return Err(Errno::PERM);
        }
        self.put(end.dir, end.name, node);
        Ok(())
    }

    fn unlink(&mut self, path: &[u8]) -> Outcome {
        let end = self.end(path, false)?;
        let node = end.node.ok_or(Errno::NOENT)?;
        if self.is_dir(node) {
            return Err(Errno::ISDIR);
        }
        self.take(end.dir, end.name);
        Ok(())
    }

    fn rmdir(&mut self, path: &[u8]) -> Outcome {
        let end = self.end(path, false)?;
        let node = end.node.ok_or(Errno::NOENT)?;
        match self.is_dir(node) {
            false => Err(Errno::NOTDIR),
            true if !self.nodes[node].entries.is_empty() => Err(Errno::NOTEMPTY),
            true => {
                self.take(end.dir, end.name);
                Ok(())
            }
        }
    }

    /// Whether `node` is `dir` or above it.
    fn is_above(&self, node: usize, dir: usize) -> bool {
        node == dir || self.nodes[node].entries.values().any(|child| self.is_above(*child, dir))
    }

    fn rename(&mut self, from: &[u8], to: &[u8], noreplace: bool) -> Outcome {
        let (old, new) = (self.end(from, false)?, self.end(to, false)?);
        let node = old.node.ok_or(Errno::NOENT)?;
        if noreplace && new.node.is_some() {
            return Err(Errno::EXIST);
        }
        if self.is_dir(node) && self.is_above(node, new.dir) {
            return Err(Errno::INVAL);
        }
        if let Some(replaced) = new.node {
            if self.is_dir(replaced) && self.is_above(replaced, old.dir) {
                return Err(Errno::NOTEMPTY);
            }
            match (self.is_dir(node), self.is_dir(replaced)) {
                _ if node == replaced => return Ok(()),
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                _ if !self.nodes[replaced].entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.take(old.dir, old.name);
        self.put(new.dir, new.name, node);
        Ok(())
    }

    fn exchange(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let (old, new) = (self.end(from, false)?, self.end(to, false)?);
        let (a, b) = (old.node.ok_or(Errno::NOENT)?, new.node.ok_or(Errno::NOENT)?);
        let above = |node: usize, dir: usize| self.is_dir(node) && self.is_above(node, dir);
        if above(a, new.dir) || above(b, old.dir) {
            return Err(Errno::INVAL);
        }
        if a != b {
            self.put(old.dir, old.name, b);
            self.put(new.dir, new.name, a);
        }
        Ok(())
    }

    /// Content is only touched of regular files: opening others does what they are for.
    fn on_file(&mut self, path: &[u8], act: impl FnOnce(&mut Node)) -> Option<Outcome> {
        match self.found(path, true) {
            Err(errno) => Some(Err(errno)),
            Ok(node) => match self.nodes[node].kind {
                Kind::File => {
                    act(&mut self.nodes[node]);
                    Some(Ok(()))
                }
                Kind::Dir => Some(Err(Errno::ISDIR)),
                _ => None,
            },
        }
    }

    fn on_attributes(&mut self, path: &[u8], act: impl FnOnce(&mut Node) -> Outcome) -> Option<Outcome> {
        match self.found(path, true) {
            Err(errno) => Some(Err(errno)),
            Ok(node) => match self.nodes[node].kind {
                Kind::File | Kind::Dir => Some(act(&mut self.nodes[node])),
                _ => None,
            },
        }
    }

    fn keep(&mut self, slot: usize, path: &[u8]) -> Option<Outcome> {
        let outcome = self.on_file(path, |_| {})?;
        if outcome.is_ok() {
            self.kept[slot] = self.found(path, true).ok();
        }
        Some(outcome)
    }

    fn on_kept(&mut self, slot: usize, act: impl FnOnce(&mut Node)) -> Option<Outcome> {
        let node = self.kept[slot]?;
        act(&mut self.nodes[node]);
        Some(Ok(()))
    }

    /// How many names an inode has; for a directory 2 and one per subdirectory.
    pub fn links(&self, node: usize) -> u64 {
        if self.is_dir(node) {
            return 2 + self.nodes[node].entries.values().filter(|child| self.is_dir(**child)).count() as u64;
        }
        let reached = self.reached();
        let entries = reached.iter().flat_map(|dir| self.nodes[*dir].entries.values());
        entries.filter(|child| **child == node).count() as u64
    }

    /// Inodes that the root leads to.
    fn reached(&self) -> BTreeSet<usize> {
        let (mut reached, mut next) = (BTreeSet::from([0]), vec![0]);
        while let Some(node) = next.pop() {
            for child in self.nodes[node].entries.values() {
                if reached.insert(*child) {
                    next.push(*child);
                }
            }
        }
        reached
    }
}

impl Node {
    fn resize(&mut self, size: u64) {
        self.content.resize(size as usize, 0);
        self.mtime = None;
    }

    fn write(&mut self, at: u64, len: usize, fill: u8) {
        let (at, end) = (at as usize, at as usize + len);
        self.content.resize(self.content.len().max(end), 0);
        self.content[at..end].fill(fill);
        self.mtime = None;
    }

    fn set_xattr(&mut self, name: u8, len: usize, flags: u32) -> Outcome {
        match (self.xattrs.contains_key(&name), flags) {
            (true, CREATE) => Err(Errno::EXIST),
            (false, REPLACE) => Err(Errno::NODATA),
            _ => {
                self.xattrs.insert(name, vec![name; len]);
                Ok(())
            }
        }
    }
}
