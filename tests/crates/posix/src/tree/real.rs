//! The real file system: makes the calls, and looks at everything.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FileType, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

use super::operation::{Call, KEPT, Operation, text};
use super::reference::{Node, Reference};
use crate::case::same;
use crate::sys::{self, Kind, mode_of};

/// A directory under its paths, and what is kept open.
pub struct Real {
    dirs: Vec<PathBuf>,
    kept: [Option<OwnedFd>; KEPT],
}

type Outcome = Result<(), Errno>;

impl Real {
    /// A new directory.
    pub fn new(dirs: &[PathBuf]) -> Result<Real, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tree-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| dir.join(&name)).collect();
        let first = dirs.first().ok_or("no directory to work in")?;
        sys::mkdir(first, 0o755).map_err(|errno| format!("{}: {errno:?}", first.display()))?;
        Ok(Real { dirs, kept: [const { None }; KEPT] })
    }

    /// Takes it away.
    pub fn remove(self) -> Result<(), String> {
        std::fs::remove_dir_all(&self.dirs[0]).map_err(|error| format!("{}: {error}", self.dirs[0].display()))
    }

    /// Number of mounts.
    pub fn mounts(&self) -> usize {
        self.dirs.len()
    }

    fn path(&self, mount: usize, path: &[u8]) -> PathBuf {
        let mut whole = self.dirs[mount % self.dirs.len()].clone();
        whole.extend(path.iter().map(|name| char::from(*name).to_string()));
        whole
    }

    /// Makes a call and says what came of it.
    pub fn apply(&mut self, operation: &Operation) -> Result<Outcome, String> {
        let outcome = self.call(operation)?;
        match operation.renamed().filter(|_| outcome == Err(Errno::STALE)) {
            // S92: after a look at both names it is not said again.
            Some((from, to)) => {
                for path in [from, to] {
                    let _what_is_there_does_not_matter = sys::lstat(&self.path(operation.mount, path));
                }
                self.call(operation)
            }
            None => Ok(outcome),
        }
    }

    fn call(&mut self, operation: &Operation) -> Result<Outcome, String> {
        let at = |path: &[u8]| self.path(operation.mount, path);
        let rename = |from: &[u8], to: &[u8], flags| sys::rename(&at(from), &at(to), flags);
        Ok(match &operation.call {
            Call::Create(path, mode) => {
                sys::open(&at(path), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, *mode).map(drop)
            }
            Call::Mkdir(path, mode) => sys::mkdir(&at(path), *mode),
            Call::Symlink(path, target) => rustix::fs::symlink(text(target), at(path)),
            Call::Mknod(path, kind) => kind.make(&at(path), 0o644),
            Call::Link(from, to) => rustix::fs::link(at(from), at(to)),
            Call::Unlink(path) => rustix::fs::unlink(at(path)),
            Call::Rmdir(path) => rustix::fs::rmdir(at(path)),
            Call::Rename(from, to) => rename(from, to, RenameFlags::empty()),
            Call::Noreplace(from, to) => rename(from, to, RenameFlags::NOREPLACE),
            Call::Exchange(from, to) => rename(from, to, RenameFlags::EXCHANGE),
            Call::Chmod(path, mode) => sys::chmod(&at(path), *mode),
            Call::Times(path, secs) => sys::utimens(&at(path), sys::at_time(5, 0), sys::at_time(*secs, 7)),
            Call::Readlink(path) => rustix::fs::readlink(at(path), Vec::new()).map(drop),
            _ => return self.apply_to_content(operation),
        })
    }

    fn apply_to_content(&mut self, operation: &Operation) -> Result<Outcome, String> {
        let at = |path: &[u8]| self.path(operation.mount, path);
        let open = |path: &[u8], flags| sys::open(&at(path), flags, 0);
        Ok(match &operation.call {
            Call::Truncate(path, size) => sys::truncate(&at(path), *size),
            Call::Write(path, offset, len, fill) => open(path, OFlags::WRONLY)
                .and_then(|file| sys::write_all_at(&file, &vec![*fill; *len], *offset)),
            Call::Append(path, len, fill) => open(path, OFlags::WRONLY | OFlags::APPEND)
                .and_then(|file| sys::write_all_at(&file, &vec![*fill; *len], 0)),
            Call::Empty(path) => open(path, OFlags::WRONLY | OFlags::TRUNC).map(drop),
            Call::SetXattr(path, name, len, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                rustix::fs::setxattr(at(path), xattr(*name), &vec![*name; *len], flags)
            }
            Call::RemoveXattr(path, name) => rustix::fs::removexattr(at(path), xattr(*name)),
            Call::Keep(slot, path) => open(path, OFlags::RDWR).map(|file| self.kept[*slot] = Some(file)),
            Call::KeptWrite(slot, offset, len, fill) => {
                sys::write_all_at(self.kept(*slot)?, &vec![*fill; *len], *offset)
            }
            Call::KeptTruncate(slot, size) => rustix::fs::ftruncate(self.kept(*slot)?, *size),
            Call::KeptChmod(slot, mode) => rustix::fs::fchmod(self.kept(*slot)?, (*mode).into()),
            Call::Close(slot) => {
                self.kept[*slot] = None;
                Ok(())
            }
            other => return Err(format!("{other:?} is no call on content")),
        })
    }

    fn kept(&self, slot: usize) -> Result<&OwnedFd, String> {
        self.kept[slot].as_ref().ok_or_else(|| format!("nothing is kept as {slot}"))
    }

    /// Compares everything, through one mount, with the reference.
    pub fn look(&self, reference: &Reference, mount: usize) -> Result<(), String> {
        let mut numbers = BTreeMap::new();
        self.look_below(reference, mount, 0, &mut Vec::new(), &mut numbers)?;
        for (slot, node) in reference.kept.iter().enumerate() {
            let Some(node) = node else { continue };
            let (file, wanted) = (self.kept(slot)?, &reference.nodes[*node]);
            let seen = rustix::fs::fstat(file).map_err(|errno| format!("fstat of kept {slot}: {errno:?}"))?;
            let what = |what: &str| format!("{what} of kept {slot}");
            same(&what("links"), sys::links_of(&seen), reference.links(*node))?;
            same(&what("mode"), mode_of(&seen), wanted.mode)?;
            let content =
                sys::read_at(file, 0, wanted.content.len() + 10).map_err(|errno| format!("{errno:?}"))?;
            same(
                &what("size"),
                (content.len(), seen.st_size as usize),
                (wanted.content.len(), wanted.content.len()),
            )?;
            same(&what("content"), content == wanted.content, true)?;
        }
        Ok(())
    }

    fn look_below(
        &self,
        reference: &Reference,
        mount: usize,
        node: usize,
        path: &mut Vec<u8>,
        numbers: &mut BTreeMap<u64, usize>,
    ) -> Result<(), String> {
        let (wanted, place) = (&reference.nodes[node], self.path(mount, path));
        let shown =
            |text: String| format!("through mount {}, {}: {text}", mount % self.dirs.len(), place.display());
        let number = look_at(wanted, reference.links(node), &place).map_err(shown)?;
        same("one number, one inode", *numbers.entry(number).or_insert(node), node).map_err(shown)?;
        if wanted.kind != Kind::Dir {
            return Ok(());
        }
        let listed = self.list(mount, path).map_err(|text| shown(format!("listing: {text}")))?;
        let names: Vec<String> = wanted.entries.keys().map(|name| char::from(*name).to_string()).collect();
        same("listing", listed, names).map_err(shown)?;
        for (name, child) in &wanted.entries {
            path.push(*name);
            self.look_below(reference, mount, *child, path, numbers)?;
            path.pop();
        }
        Ok(())
    }

    /// Lists a directory entry by entry, each at its cookie and through the next mount.
    fn list(&self, mount: usize, path: &[u8]) -> Result<Vec<String>, String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        for turn in mount.. {
            let place = self.path(turn, path);
            let dir = sys::open(&place, OFlags::RDONLY | OFlags::DIRECTORY, 0)
                .map_err(|errno| format!("{errno:?}"))?;
            rustix::fs::seek(&dir, SeekFrom::Start(cookie)).map_err(|errno| format!("seek: {errno:?}"))?;
            let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
            let mut entries = rustix::fs::RawDir::new(&dir, &mut buffer);
            let Some(entry) = entries.next() else { break };
            let entry = entry.map_err(|errno| format!("{errno:?}"))?;
            cookie = entry.next_entry_cookie();
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }
}

/// Compares one inode; answers its number.
fn look_at(wanted: &Node, links: u64, place: &std::path::Path) -> Result<u64, String> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {errno:?}");
    let seen = sys::lstat(place).map_err(failed("lstat"))?;
    same("type", FileType::from_raw_mode(seen.st_mode), wanted.kind.file_type())?;
    same("mode", mode_of(&seen), wanted.mode)?;
    same("links", sys::links_of(&seen), links)?;
    if let Some(mtime) = wanted.mtime {
        same("mtime", (seen.st_mtime, seen.st_mtime_nsec as i64), (mtime, 7))?;
    }
    match wanted.kind {
        Kind::File => {
            same("size", seen.st_size as usize, wanted.content.len())?;
            let content = sys::get(place).map_err(failed("read"))?;
            same("content", content == wanted.content, true)?;
        }
        Kind::Link => {
            let target = rustix::fs::readlink(place, Vec::new()).map_err(failed("readlink"))?;
            same("target", target.to_string_lossy().into_owned(), text(&wanted.target))?;
        }
        _ => {}
    }
    if matches!(wanted.kind, Kind::File | Kind::Dir) {
        let names: Vec<String> = wanted.xattrs.keys().map(|name| xattr(*name)).collect();
        same("attributes", sys::listxattr(place).map_err(failed("listxattr"))?, names)?;
        for (name, value) in &wanted.xattrs {
            same("value", &sys::getxattr(place, &xattr(*name)).map_err(failed("getxattr"))?, value)?;
        }
    }
    Ok(seen.st_ino)
}

fn xattr(name: u8) -> String {
    format!("user.n{name}")
}
