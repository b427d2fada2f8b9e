//! What a worker knows that there must be: names and what they lead to.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;
use rustix::io::Errno;

/// Number of a file; in its name, so that the journal can be searched for it.
pub type FileId = usize;

/// A file.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub content: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// How many names it has.
    pub links: u64,
    /// The value of its extended attribute; empty if it has none.
    pub note: Vec<u8>,
}

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    File(FileId),
    Dir,
    Link(PathBuf),
}

/// The names and files of one worker; paths begin below the mount.
#[derive(Default)]
pub struct Model {
    pub names: BTreeMap<PathBuf, Entry>,
    pub files: BTreeMap<FileId, File>,
}

/// What is seen at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    File { content: Vec<u8>, mode: u32, links: u64, note: Vec<u8> },
    Dir,
    Link(PathBuf),
}

impl Model {
    /// All that must be seen.
    pub fn shown(&self) -> BTreeMap<PathBuf, Shown> {
        self.names.iter().map(|(path, entry)| (path.clone(), self.show(entry))).collect()
    }

    /// What must be seen of an entry.
    pub fn show(&self, entry: &Entry) -> Shown {
        match entry {
            Entry::Dir => Shown::Dir,
            Entry::Link(target) => Shown::Link(target.clone()),
            Entry::File(id) => {
                let File { content, mode, links, note } = self.files[id].clone();
                Shown::File { content, mode, links, note }
            }
        }
    }

    /// Paths with entries of a kind.
    pub fn paths(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<PathBuf> {
        self.names.iter().filter(|(_, entry)| wanted(entry)).map(|(path, _)| path.clone()).collect()
    }

    /// The file that a path leads to.
    pub fn file(&mut self, path: &Path) -> Option<&mut File> {
        match self.names.get(path) {
            Some(Entry::File(id)) => self.files.get_mut(id),
            _ => None,
        }
    }

    /// A name goes; a file without names stays known while it is held open.
    pub fn remove(&mut self, path: &Path) -> Option<FileId> {
        let Some(Entry::File(id)) = self.names.remove(path) else { return None };
        let file = self.files.get_mut(&id)?;
        file.links -= 1;
        (file.links == 0).then_some(id)
    }

    /// A name becomes another, with all below it.
    pub fn rename(&mut self, from: &Path, to: &Path) {
        let moved: Vec<PathBuf> = self.names.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            let entry = self.names.remove(&path).unwrap();
            let below = path.strip_prefix(from).unwrap();
            let new = if below.as_os_str().is_empty() { to.into() } else { to.join(below) };
            self.names.insert(new, entry);
        }
    }

    /// Whether a directory has entries.
    pub fn has_entries(&self, dir: &Path) -> bool {
        self.names.keys().any(|path| path.parent() == Some(dir))
    }
}

impl Shown {
    /// What there is at a path.
    pub fn look(path: &Path) -> io::Result<Shown> {
        let metadata = fs::symlink_metadata(path)?;
        if metadata.is_dir() {
            return Ok(Shown::Dir);
        }
        if metadata.is_symlink() {
            return Ok(Shown::Link(fs::read_link(path)?));
        }
        let content = fs::read(path)?;
        if content.len() as u64 != metadata.len() && fs::symlink_metadata(path)?.len() == metadata.len() {
            let text = format!("size is {} but {} bytes can be read", metadata.len(), content.len());
            return Err(io::Error::other(text));
        }
        let (mode, links, note) = (metadata.permissions().mode() & 0o7777, metadata.nlink(), note_of(path)?);
        Ok(Shown::File { content, mode, links, note })
    }

    /// In what another one differs.
    pub fn differs(&self, found: &Shown) -> String {
        let (
            Shown::File { content, mode, links, note },
            Shown::File { content: c, mode: m, links: l, note: n },
        ) = (self, found)
        else {
            return format!("{found:?} instead of {self:?}");
        };
        if note != n {
            let (note, n) = (note.escape_ascii(), n.escape_ascii());
            return format!("extended attribute '{n}' instead of '{note}'");
        }
        let first = content.iter().zip(c).position(|(a, b)| a != b).unwrap_or(content.len().min(c.len()));
        let last = content.iter().zip(c).rposition(|(a, b)| a != b).unwrap_or(0);
        let zeros = c.get(first..=last).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        format!(
            "mode {m:o} instead of {mode:o}, {l} links instead of {links}, {} bytes instead of {}; they differ \
             from byte {first} to {last}, there are {}",
            c.len(),
            content.len(),
            if zeros { "zeros" } else { "other bytes" }
        )
    }
}

/// The extended attribute that workers set.
pub const NOTE: &str = "user.note";
/// Longest value of it, in bytes.
pub const NOTE_MAX: usize = 300;

fn note_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut value = vec![0; NOTE_MAX];
    match getxattr(path, NOTE, &mut value[..]) {
        Ok(len) => value.truncate(len),
        Err(Errno::NODATA) => value.clear(),
        Err(error) => return Err(error.into()),
    }
    Ok(value)
}
