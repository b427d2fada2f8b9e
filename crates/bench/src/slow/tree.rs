//! Directories and files in memory, as a file system of site storage has them: without links and extended attributes.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::fuse::wire::ROOT;

/// First inode that is given to something new.
const FIRST: u64 = 1000;
/// Bytes of a block; one that nobody has written to is a hole.
const BLOCK: u64 = 1 << 16;
const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// Attributes that are kept of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attrs {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Access, change of content, change of attributes: since 1970.
    pub times: [Duration; 3],
}

impl Attrs {
    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & DIR != 0
    }
}

/// A change of attributes.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Access and change of content.
    pub times: [Option<Duration>; 2],
}

struct Node {
    attrs: Attrs,
    blocks: BTreeMap<u64, Box<[u8]>>,
    entries: BTreeMap<Vec<u8>, u64>,
    /// Lookups of it that the kernel has not forgotten.
    known: u64,
    has_name: bool,
}

/// All of it.
pub struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
    owner: (u32, u32),
}

/// The time, since 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl Tree {
    /// An empty root directory of an owner.
    pub fn new(owner: (u32, u32)) -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), next: FIRST, owner };
        tree.nodes.insert(ROOT, tree.fresh(DIR | 0o755));
        tree
    }

    fn fresh(&self, mode: u32) -> Node {
        let (uid, gid) = self.owner;
        let attrs = Attrs { mode, uid, gid, size: 0, times: [now(); 3] };
        Node { attrs, blocks: BTreeMap::new(), entries: BTreeMap::new(), known: 0, has_name: true }
    }

    fn node(&self, ino: u64) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::STALE)
    }

    fn node_mut(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    /// Attributes, and how many names there are.
    pub fn attrs(&self, ino: u64) -> Result<(&Attrs, u32), Errno> {
        let node = self.node(ino)?;
        Ok((&node.attrs, if node.attrs.is_dir() { 2 } else { u32::from(node.has_name) }))
    }

    /// Looks a name up; the kernel knows of it from here on.
    pub fn lookup(&mut self, dir: u64, name: &[u8]) -> Result<u64, Errno> {
        let ino = *self.node(dir)?.entries.get(name).ok_or(Errno::NOENT)?;
        // The kernel counts its look-ups as well, and forgets as many.
        self.node_mut(ino)?.known += 1;
        Ok(ino)
    }

    /// The kernel forgets something that it was told of so many times.
    pub fn forget(&mut self, ino: u64, times: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.known = node.known.saturating_sub(times);
        }
        self.drop_unused(ino);
    }

    fn drop_unused(&mut self, ino: u64) {
        // A removed file that is open, or known to the kernel, stays until that forgets it.
        if self.nodes.get(&ino).is_some_and(|node| node.known == 0 && !node.has_name) {
            self.nodes.remove(&ino);
        }
    }

    /// Makes a directory.
    pub fn make_dir(&mut self, dir: u64, name: Vec<u8>, perm: u32) -> Result<u64, Errno> {
        self.make(dir, name, DIR | perm & 0o7777)
    }

    /// Makes a file.
    pub fn make_file(&mut self, dir: u64, name: Vec<u8>, perm: u32) -> Result<u64, Errno> {
        self.make(dir, name, FILE | perm & 0o7777)
    }

    fn make(&mut self, dir: u64, name: Vec<u8>, mode: u32) -> Result<u64, Errno> {
        if self.node(dir)?.entries.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        let (ino, node) = (self.next, self.fresh(mode));
        self.next += 1;
        self.nodes.insert(ino, Node { known: 1, ..node });
        self.dir_changed(dir)?.insert(name, ino);
        Ok(ino)
    }

    /// Removes a file or an empty directory.
    pub fn remove(&mut self, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let ino = *self.node(dir)?.entries.get(name).ok_or(Errno::NOENT)?;
        let node = self.node_mut(ino)?;
        if !node.entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        node.has_name = false;
        self.dir_changed(dir)?.remove(name);
        self.drop_unused(ino);
        Ok(())
    }

    /// Gives something another name, in the place of what has it unless that is to stay.
    pub fn rename(
        &mut self,
        (dir, name): (u64, &[u8]),
        (to_dir, to_name): (u64, Vec<u8>),
        replace: bool,
    ) -> Result<(), Errno> {
        let ino = *self.node(dir)?.entries.get(name).ok_or(Errno::NOENT)?;
        match self.node(to_dir)?.entries.get(&to_name) {
            Some(old) if *old == ino => return Ok(()),
            Some(_) if !replace => return Err(Errno::EXIST),
            Some(_) => self.remove(to_dir, &to_name)?,
            None => {}
        }
        self.dir_changed(dir)?.remove(name);
        self.dir_changed(to_dir)?.insert(to_name, ino);
        Ok(())
    }

    fn dir_changed(&mut self, dir: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, Errno> {
        let node = self.node_mut(dir)?;
        let [_, modified, changed] = &mut node.attrs.times;
        (*modified, *changed) = (now(), now());
        Ok(&mut node.entries)
    }

    /// Entries behind one, by their inodes: removing some does not move the others.
    pub fn entries(&self, dir: u64, behind: u64) -> Result<Vec<(u64, &[u8])>, Errno> {
        let all = self.node(dir)?.entries.iter().map(|(name, ino)| (*ino, name.as_slice()));
        let mut entries: Vec<_> = all.filter(|(ino, _)| *ino > behind).collect();
        entries.sort_unstable();
        Ok(entries)
    }

    /// Changes attributes.
    pub fn change(&mut self, ino: u64, change: &Change) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        if let Some(size) = change.size {
            resize(node, size);
        }
        let attrs = &mut node.attrs;
        attrs.mode = change.mode.map_or(attrs.mode, |mode| attrs.mode & !0o7777 | mode & 0o7777);
        attrs.uid = change.uid.unwrap_or(attrs.uid);
        attrs.gid = change.gid.unwrap_or(attrs.gid);
        attrs.times[2] = now();
        for (time, new) in attrs.times.iter_mut().zip(change.times) {
            *time = new.unwrap_or(*time);
        }
        Ok(())
    }

    /// Writes.
    pub fn write(&mut self, ino: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let from = (at % BLOCK) as usize;
            let (now, later) = rest.split_at(rest.len().min(BLOCK as usize - from));
            let block =
                node.blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize].into_boxed_slice());
            block.get_mut(from..from + now.len()).ok_or(Errno::IO)?.copy_from_slice(now);
            (at, rest) = (at + now.len() as u64, later);
        }
        node.attrs.size = node.attrs.size.max(end);
        let [_, modified, changed] = &mut node.attrs.times;
        (*modified, *changed) = (now(), now());
        Ok(())
    }

    /// Reads up to `len` bytes, fewer at the end.
    pub fn read(&self, ino: u64, offset: u64, len: u64) -> Result<Vec<u8>, Errno> {
        let node = self.node(ino)?;
        let end = offset.saturating_add(len).min(node.attrs.size);
        let mut out = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut at = offset;
        while at < end {
            let from = (at % BLOCK) as usize;
            let len = (BLOCK - at % BLOCK).min(end - at) as usize;
            match node.blocks.get(&(at / BLOCK)).and_then(|block| block.get(from..from + len)) {
                Some(part) => out.extend_from_slice(part),
                None => out.resize(out.len() + len, 0),
            }
            at += len as u64;
        }
        Ok(out)
    }
}

/// Behind the end there is nothing but zeros when it moves back.
fn resize(node: &mut Node, size: u64) {
    if size < node.attrs.size {
        node.blocks.split_off(&size.div_ceil(BLOCK));
        if let Some(last) = node.blocks.get_mut(&(size / BLOCK)) {
            last.iter_mut().skip((size % BLOCK) as usize).for_each(|byte| *byte = 0);
        }
    }
    if size != node.attrs.size {
        node.attrs.times[1] = now();
    }
    node.attrs.size = size;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree() -> Tree {
        Tree::new((7, 8))
    }

    #[test]
    fn names_lead_to_what_was_made() {
        let mut tree = tree();
        let dir = tree.make_dir(ROOT, b"d".to_vec(), 0o700).unwrap();
        let file = tree.make_file(dir, b"f".to_vec(), 0o640).unwrap();
        assert_eq!(tree.lookup(ROOT, b"d"), Ok(dir));
        assert_eq!((tree.lookup(dir, b"f"), tree.lookup(dir, b"g")), (Ok(file), Err(Errno::NOENT)));
        assert_eq!(tree.make_file(dir, b"f".to_vec(), 0o600), Err(Errno::EXIST));
        let (attrs, links) = tree.attrs(file).unwrap();
        assert_eq!((attrs.mode, attrs.uid, attrs.gid, attrs.size, links), (0o100_640, 7, 8, 0, 1));
        assert_eq!(tree.remove(ROOT, b"d"), Err(Errno::NOTEMPTY));
        tree.remove(dir, b"f").unwrap();
        tree.remove(ROOT, b"d").unwrap();
        assert_eq!(tree.entries(ROOT, 0), Ok(Vec::new()));
    }

    #[test]
    fn what_has_no_name_stays_until_the_kernel_forgets_it() {
        let mut tree = tree();
        let file = tree.make_file(ROOT, b"f".to_vec(), 0o600).unwrap();
        tree.lookup(ROOT, b"f").unwrap();
        tree.write(file, 0, b"still here").unwrap();
        tree.remove(ROOT, b"f").unwrap();
        tree.forget(file, 1);
        assert_eq!(tree.read(file, 6, 100), Ok(b"here".to_vec()));
        assert_eq!(tree.attrs(file).unwrap().1, 0);
        tree.forget(file, 1);
        assert_eq!(tree.read(file, 0, 1), Err(Errno::STALE));
    }

    #[test]
    fn a_rename_replaces_unless_it_must_not() {
        let mut tree = tree();
        let (new, old) = (tree.make_file(ROOT, b"new".to_vec(), 0), tree.make_file(ROOT, b"old".to_vec(), 0));
        let from = (ROOT, &b"new"[..]);
        assert_eq!(tree.rename(from, (ROOT, b"old".to_vec()), false), Err(Errno::EXIST));
        tree.rename(from, (ROOT, b"old".to_vec()), true).unwrap();
        assert_eq!(tree.entries(ROOT, 0), Ok(vec![(new.unwrap(), &b"old"[..])]));
        tree.forget(old.unwrap(), 1);
        assert_eq!(tree.attrs(old.unwrap()).unwrap_err(), Errno::STALE);
        let dir = tree.make_dir(ROOT, b"dir".to_vec(), 0).unwrap();
        tree.rename((ROOT, b"old"), (dir, b"moved".to_vec()), false).unwrap();
        assert_eq!(tree.lookup(dir, b"moved"), new);
    }

    #[test]
    fn a_listing_goes_on_where_it_was_while_entries_are_removed() {
        let mut tree = tree();
        for name in [b"a", b"b", b"c", b"d"] {
            tree.make_file(ROOT, name.to_vec(), 0).unwrap();
        }
        let (second, _) = tree.entries(ROOT, 0).unwrap()[1];
        tree.remove(ROOT, b"a").unwrap();
        tree.remove(ROOT, b"b").unwrap();
        let names: Vec<_> = tree.entries(ROOT, second).unwrap().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, [b"c", b"d"]);
    }

    #[test]
    fn attributes_are_kept_as_they_are_given() {
        let mut tree = tree();
        let file = tree.make_file(ROOT, b"f".to_vec(), 0o600).unwrap();
        let time = Duration::new(1_000_000_007, 9);
        let change = Change {
            mode: Some(0o4755),
            uid: Some(1),
            gid: Some(2),
            times: [None, Some(time)],
            ..Change::default()
        };
        tree.change(file, &change).unwrap();
        let (attrs, _) = tree.attrs(file).unwrap();
        assert_eq!((attrs.mode, attrs.uid, attrs.gid, attrs.times[1]), (0o104_755, 1, 2, time));
        assert!(attrs.times[0] > time && attrs.times[2] > time);
    }

    proptest! {
        #[test]
        fn content_is_that_of_a_plain_vector(ops in prop::collection::vec((0u64..300_000, 0usize..200_000, any::<u8>()), 1..12)) {
            let mut tree = tree();
            let file = tree.make_file(ROOT, b"f".to_vec(), 0).unwrap();
            let mut model: Vec<u8> = Vec::new();
            for (offset, len, byte) in ops {
                if byte < 60 {
                    tree.change(file, &Change { size: Some(offset), ..Change::default() }).unwrap();
                    model.resize(offset as usize, 0);
                } else {
                    let end = offset as usize + len;
                    tree.write(file, offset, &vec![byte; len]).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].fill(byte);
                }
            }
            prop_assert_eq!(tree.read(file, 0, u64::MAX), Ok(model.clone()));
            let middle = model.len() / 2;
            prop_assert_eq!(tree.read(file, middle as u64, 70_000), Ok(model[middle..model.len().min(middle + 70_000)].to_vec()));
        }
    }
}
