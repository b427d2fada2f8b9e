//! One thread of the load. What it makes has names of its own, in directories that all share, so it knows exactly
//! what there must be; every operation goes through another mount.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{XattrFlags, removexattr, setxattr};

use crate::harness::random::Random;
use crate::kill_loop::model::{self, Entry, FileId, Model, NOTE, NOTE_MAX, Shown};
use crate::kill_loop::shared::{SHARED_DIRS, Shared};
use crate::kill_loop::watch::{Journal, Watch};

/// Most files, directories and open files that a worker has.
const FILES_MAX: usize = 40;
const DIRS_MAX: usize = 12;
const HELD_MAX: usize = 5;
/// Longest single write, in bytes: several stripes.
const WRITE_MAX: usize = 24_000;
/// Size that files do not grow beyond, in bytes.
const SIZE_MAX: usize = 120_000;

type Done = Result<(), String>;

/// A worker, what it knows, and what it did.
pub struct Worker {
    id: usize,
    mounts: Vec<PathBuf>,
    random: Random,
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    count: usize,
    /// Files that it has open.
    held: Vec<(FileId, File)>,
    pub model: Model,
    pub journal: Journal,
}

impl Worker {
    /// A worker with a number.
    pub fn new(
        id: usize,
        mounts: Vec<PathBuf>,
        random: Random,
        shared: Arc<Shared>,
        watch: Arc<Watch>,
    ) -> Worker {
        let (model, journal) = Default::default();
        Worker { id, mounts, random, shared, watch, count: 0, held: Vec::new(), model, journal }
    }

    /// Works until there is enough; the error is the story of what went wrong.
    pub fn work(&mut self) -> Done {
        while !self.watch.stop.load(Ordering::Relaxed) {
            self.step()?;
        }
        self.held.clear();
        self.model.files.retain(|_, file| file.links > 0);
        Ok(())
    }

    fn step(&mut self) -> Done {
        match self.random.below(25) {
            0..=3 => self.create(),
            4 | 5 => self.append(),
            6 => self.overwrite(),
            7 => self.truncate(),
            8..=10 => self.rename(),
            11 | 12 => self.unlink(),
            13 => self.mkdir(),
            14 => self.rmdir(),
            15 => self.rename_dir(),
            16 => self.link(),
            17 => self.symlink(),
            18 => self.chmod(),
            19 => self.hold(),
            20 => self.use_held(),
            21 => self.list(),
            22 => self.share(),
            23 => self.note(),
            _ => self.verify(),
        }
    }

    /// Does something that must succeed, and writes it down.
    fn attempt<T>(&mut self, what: String, mut act: impl FnMut() -> io::Result<T>) -> Result<T, String> {
        self.watch.begin(self.id, &what);
        let mut outcome = act();
        while outcome.as_ref().is_err_and(|error| self.is_moved_directory(&what, error)) {
            self.watch.moved.fetch_add(1, Ordering::Relaxed);
            self.look_at_directories();
            outcome = act();
        }
        self.watch.idle(self.id);
        self.watch.operations.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(value) => {
                self.journal.note(what);
                Ok(value)
            }
            Err(error) => Err(self.story(&format!("{what}: {error}"))),
        }
    }

    /// Linux says ESTALE when it has to learn in the middle of a rename from directory to directory that a
    /// directory was moved through another mount; docs/semantics/names.md.
    fn is_moved_directory(&self, what: &str, error: &io::Error) -> bool {
        let dirs = self.model.paths(|entry| *entry == Entry::Dir);
        let concerns = dirs.iter().any(|dir| what.contains(dir.to_str().unwrap()));
        concerns && error.kind() == io::ErrorKind::StaleNetworkFileHandle
    }

    /// Has Linux learn where its directories are.
    fn look_at_directories(&self) {
        for dir in self.model.paths(|entry| *entry == Entry::Dir) {
            self.mounts.iter().for_each(|mount| drop(fs::symlink_metadata(mount.join(&dir))));
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }

    /// A failure, and what has to do with it.
    fn story(&self, failure: &str) -> String {
        let name =
            failure.split_whitespace().find_map(|word| word.rsplit_once('/')).map_or("", |(_, name)| name);
        let name = name.trim_end_matches(':');
        let (about, last) = (self.journal.about(name).join("\n"), self.journal.last(12).join("\n"));
        format!("worker {}: {failure}\nabout {name}:\n{about}\nat last:\n{last}", self.id)
    }

    fn mount(&mut self) -> (usize, PathBuf) {
        let node = self.random.below(self.mounts.len());
        (node, self.mounts[node].clone())
    }

    /// A name that never was.
    fn fresh(&mut self) -> PathBuf {
        let mut dirs: Vec<PathBuf> = SHARED_DIRS.iter().map(PathBuf::from).collect();
        dirs.extend(self.model.paths(|entry| *entry == Entry::Dir));
        self.count += 1;
        self.random.pick(&dirs).join(format!("w{}-{}", self.id, self.count))
    }

    /// One of its files, and a line that names it.
    fn any_file(&mut self) -> Option<(PathBuf, FileId)> {
        let paths = self.model.paths(|entry| matches!(entry, Entry::File(_)));
        let path = (!paths.is_empty()).then(|| self.random.pick(&paths).clone())?;
        let Some(Entry::File(id)) = self.model.names.get(&path).cloned() else { return None };
        Some((path, id))
    }

    fn create(&mut self) -> Done {
        if self.model.files.len() >= FILES_MAX {
            return self.unlink();
        }
        let (path, (node, mount), len) = (self.fresh(), self.mount(), self.random.below(WRITE_MAX));
        let (id, content, mode) = (self.count, self.random.bytes(len), 0o600);
        let full = mount.join(&path);
        let what = format!("create #{id} {} via {node}", path.display());
        let open = || OpenOptions::new().write(true).create_new(true).mode(mode).open(&full);
        let file = self.attempt(what, open)?;
        self.model.names.insert(path, Entry::File(id));
        self.model.files.insert(id, model::File { mode, links: 1, ..model::File::default() });
        self.attempt(format!("write #{id} {len} bytes via {node}"), || (&file).write_all(&content))?;
        self.model.files.get_mut(&id).unwrap().content = content;
        Ok(())
    }

    fn append(&mut self) -> Done {
        let Some((path, id)) = self.any_file() else { return Ok(()) };
        let ((node, mount), len) = (self.mount(), self.random.below(WRITE_MAX));
        if self.model.files[&id].content.len() + len > SIZE_MAX {
            return self.truncate();
        }
        let bytes = self.random.bytes(len);
        let what = format!("append #{id} {len} bytes {} via {node}", path.display());
        let full = mount.join(&path);
        self.attempt(what, || OpenOptions::new().append(true).open(&full)?.write_all(&bytes))?;
        self.model.file(&path).unwrap().content.extend(bytes);
        Ok(())
    }

    fn overwrite(&mut self) -> Done {
        let Some((path, id)) = self.any_file() else { return Ok(()) };
        let (node, mount) = self.mount();
        let (at, len) =
            (self.random.below(self.model.files[&id].content.len() + 5000), self.random.below(WRITE_MAX));
        let bytes = self.random.bytes(len);
        let what = format!("overwrite #{id} {len} bytes at {at} {} via {node}", path.display());
        let full = mount.join(&path);
        self.attempt(what, || OpenOptions::new().write(true).open(&full)?.write_all_at(&bytes, at as u64))?;
        put(&mut self.model.file(&path).unwrap().content, at, &bytes);
        Ok(())
    }

    fn truncate(&mut self) -> Done {
        let Some((path, id)) = self.any_file() else { return Ok(()) };
        let (node, mount) = self.mount();
        let size = self.random.below(self.model.files[&id].content.len() * 5 / 4 + 100);
        let what = format!("truncate #{id} to {size} {} via {node}", path.display());
        let full = mount.join(&path);
        self.attempt(what, || OpenOptions::new().write(true).open(&full)?.set_len(size as u64))?;
        self.model.file(&path).unwrap().content.resize(size, 0);
        Ok(())
    }

    /// To a new name, or over another file.
    fn rename(&mut self) -> Done {
        let Some((from, id)) = self.any_file() else { return Ok(()) };
        let over = self.random.once_in(3).then(|| self.any_file()).flatten();
        let over = over.filter(|(_, other)| *other != id);
        let ((node, mount), fresh) = (self.mount(), self.fresh());
        let to = over.map_or(fresh, |(path, _)| path);
        let what = format!("rename #{id} {} to {} via {node}", from.display(), to.display());
        let (a, b) = (mount.join(&from), mount.join(&to));
        self.attempt(what, || fs::rename(&a, &b))?;
        let gone = self.model.remove(&to);
        self.model.rename(&from, &to);
        self.forget(gone);
        Ok(())
    }

    fn unlink(&mut self) -> Done {
        let links = self.model.paths(|entry| matches!(entry, Entry::Link(_)));
        let path = match self.any_file() {
            _ if !links.is_empty() && self.random.once_in(4) => self.random.pick(&links).clone(),
            Some((path, _)) => path,
            None => return Ok(()),
        };
        let (node, mount) = self.mount();
        let full = mount.join(&path);
        self.attempt(format!("unlink {} via {node}", path.display()), || fs::remove_file(&full))?;
        if self.random.once_in(3) {
            let (other, mount) = self.mount();
            if Shown::look(&mount.join(&path)).is_ok() {
                return Err(self.story(&format!("{} is still there via {other}", path.display())));
            }
        }
        let gone = self.model.remove(&path);
        self.forget(gone);
        Ok(())
    }

    /// A file without names is gone, unless it is held open.
    fn forget(&mut self, gone: Option<FileId>) {
        if let Some(id) = gone.filter(|id| !self.held.iter().any(|(held, _)| held == id)) {
            self.model.files.remove(&id);
        }
    }

    fn mkdir(&mut self) -> Done {
        if self.model.paths(|entry| *entry == Entry::Dir).len() >= DIRS_MAX {
            return self.rmdir();
        }
        let (path, (node, mount)) = (self.fresh(), self.mount());
        let full = mount.join(&path);
        self.attempt(format!("mkdir {} via {node}", path.display()), || fs::create_dir(&full))?;
        self.model.names.insert(path, Entry::Dir);
        Ok(())
    }

    /// An empty one goes; one that is not is refused.
    fn rmdir(&mut self) -> Done {
        let dirs = self.model.paths(|entry| *entry == Entry::Dir);
        if dirs.is_empty() {
            return Ok(());
        }
        let (path, (node, mount)) = (self.random.pick(&dirs).clone(), self.mount());
        let full = mount.join(&path);
        let what = format!("rmdir {} via {node}", path.display());
        if !self.model.has_entries(&path) {
            self.attempt(what, || fs::remove_dir(&full))?;
            self.model.names.remove(&path);
            return Ok(());
        }
        self.attempt(format!("{what}, refused"), || match fs::remove_dir(&full) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(io::Error::other("has removed a directory with entries")),
        })
    }

    fn rename_dir(&mut self) -> Done {
        let dirs = self.model.paths(|entry| *entry == Entry::Dir);
        if dirs.is_empty() {
            return self.mkdir();
        }
        let (from, to, (node, mount)) = (self.random.pick(&dirs).clone(), self.fresh(), self.mount());
        if to.starts_with(&from) {
            return Ok(());
        }
        let what = format!("rename directory {} to {} via {node}", from.display(), to.display());
        let (a, b) = (mount.join(&from), mount.join(&to));
        self.attempt(what, || fs::rename(&a, &b))?;
        self.model.rename(&from, &to);
        Ok(())
    }

    fn link(&mut self) -> Done {
        let Some((old, id)) = self.any_file() else { return Ok(()) };
        let (new, (node, mount)) = (self.fresh(), self.mount());
        let what = format!("link #{id} {} as {} via {node}", old.display(), new.display());
        let (a, b) = (mount.join(&old), mount.join(&new));
        self.attempt(what, || fs::hard_link(&a, &b))?;
        self.model.files.get_mut(&id).unwrap().links += 1;
        self.model.names.insert(new, Entry::File(id));
        Ok(())
    }

    fn symlink(&mut self) -> Done {
        if self.model.paths(|entry| matches!(entry, Entry::Link(_))).len() >= DIRS_MAX {
            return Ok(());
        }
        let (path, (node, mount)) = (self.fresh(), self.mount());
        let (target, full) = (PathBuf::from(format!("to/{}", self.count)), mount.join(&path));
        let what = format!("symlink {} via {node}", path.display());
        self.attempt(what, || symlink(&target, &full))?;
        self.model.names.insert(path, Entry::Link(target));
        Ok(())
    }

    fn chmod(&mut self) -> Done {
        let Some((path, id)) = self.any_file() else { return Ok(()) };
        let ((node, mount), mode) = (self.mount(), 0o600 | self.random.below(0o200) as u32);
        let what = format!("chmod #{id} {mode:o} {} via {node}", path.display());
        let full = mount.join(&path);
        self.attempt(what, || fs::set_permissions(&full, fs::Permissions::from_mode(mode)))?;
        self.model.file(&path).unwrap().mode = mode;
        Ok(())
    }

    /// Sets or removes an extended attribute.
    fn note(&mut self) -> Done {
        let Some((path, id)) = self.any_file() else { return Ok(()) };
        let ((node, mount), len) = (self.mount(), self.random.below(NOTE_MAX));
        let note = if self.random.once_in(4) { Vec::new() } else { self.random.bytes(len) };
        let had = !self.model.files[&id].note.is_empty();
        let what = format!("note #{id} {} bytes on {} via {node}", note.len(), path.display());
        let full = mount.join(&path);
        self.attempt(what, || match note.is_empty() {
            true if had => Ok(removexattr(&full, NOTE)?),
            true => Ok(()),
            false => Ok(setxattr(&full, NOTE, &note, XattrFlags::empty())?),
        })?;
        self.model.file(&path).unwrap().note = note;
        Ok(())
    }

    /// Keeps a file open, over whatever happens to its names and to daemons.
    fn hold(&mut self) -> Done {
        if self.held.len() >= HELD_MAX {
            let (id, file) = self.held.remove(0);
            let mut file = Some(file);
            self.attempt(format!("close #{id}"), || {
                drop(file.take());
                Ok(())
            })?;
            let gone = self.model.files.get(&id).is_some_and(|file| file.links == 0);
            self.forget(gone.then_some(id));
        }
        let Some((path, id)) = self.any_file() else { return Ok(()) };
        let (node, mount) = self.mount();
        let full = mount.join(&path);
        let what = format!("open #{id} {} via {node}", path.display());
        let file = self.attempt(what, || OpenOptions::new().read(true).write(true).open(&full))?;
        self.held.push((id, file));
        Ok(())
    }

    fn use_held(&mut self) -> Done {
        if self.held.is_empty() {
            return Ok(());
        }
        let turn = self.random.below(self.held.len());
        let (id, file) = (self.held[turn].0, self.held[turn].1.try_clone().unwrap());
        let mut content = self.model.files[&id].content.clone();
        let (at, len) = (self.random.below(content.len() + 1), self.random.below(WRITE_MAX));
        let bytes = self.random.bytes(len);
        let what = format!("write #{id} {len} bytes at {at} where it is open");
        self.attempt(what, || file.write_all_at(&bytes, at as u64))?;
        put(&mut content, at, &bytes);
        let mut found = vec![0; content.len() + 10];
        let what = format!("read #{id} where it is open");
        let read = self.attempt(what, || read_all_at(&file, &mut found))?;
        found.truncate(read);
        if found != content {
            let same = content.iter().zip(&found).take_while(|(a, b)| a == b).count();
            let lens = (content.len(), found.len());
            return Err(self.story(&format!("/#{id} differs from byte {same}; lengths are {lens:?}")));
        }
        self.model.files.get_mut(&id).unwrap().content = content;
        Ok(())
    }

    /// Its names are in the listing of a directory, and none that it has not made.
    fn list(&mut self) -> Done {
        let dir = PathBuf::from(*self.random.pick(&SHARED_DIRS));
        let (node, mount) = self.mount();
        let prefix = format!("w{}-", self.id);
        let full = mount.join(&dir);
        let mut found = self.attempt(format!("list {} via {node}", dir.display()), || {
            let names = fs::read_dir(&full)?.map(|entry| Ok(entry?.file_name().into_string().unwrap()));
            names.collect::<io::Result<Vec<String>>>()
        })?;
        found.retain(|name| name.starts_with(&prefix));
        found.sort();
        let paths = self.model.paths(|_| true);
        let own = paths.iter().filter(|path| path.parent() == Some(&dir));
        let mut wanted: Vec<String> = own.map(|path| name_of(path)).collect();
        wanted.sort();
        if found == wanted {
            return Ok(());
        }
        let wrong = found.iter().find(|name| !wanted.contains(name));
        let wrong = wrong.or(wanted.iter().find(|name| !found.contains(name)));
        let wrong = wrong.map_or("a name is listed twice", |name| name.as_str());
        Err(self.story(&format!("listing of {} via {node}: {}/{wrong}", dir.display(), dir.display())))
    }

    fn verify(&mut self) -> Done {
        let paths = self.model.paths(|_| true);
        if paths.is_empty() {
            return Ok(());
        }
        let (path, (node, mount)) = (self.random.pick(&paths).clone(), self.mount());
        let full = mount.join(&path);
        let what = format!("look at {} via {node}", path.display());
        let found = self.attempt(what.clone(), || Shown::look(&full))?;
        let wanted = self.model.show(&self.model.names[&path]);
        if found == wanted {
            return Ok(());
        }
        Err(self.story(&format!("{what}: {}", wanted.differs(&found))))
    }

    fn share(&mut self) -> Done {
        let ((node, mount), shared) = (self.mount(), Arc::clone(&self.shared));
        let (id, turn) = (self.id, self.random.below(3));
        self.count += 1;
        let count = self.count;
        match turn {
            0 => self.attempt(format!("append to the shared log via {node}"), || shared.append(&mount, id)),
            1 => self.attempt(format!("replace the shared target, {count}, via {node}"), || {
                shared.replace(&mount, id, count)
            }),
            _ => self.attempt(format!("lock the shared lock via {node}"), || shared.lock(&mount, id)),
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().into()
}

/// What a write does to a file's content.
fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        content.resize(content.len().max(at + bytes.len()), 0);
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn read_all_at(file: &File, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    loop {
        match file.read_at(&mut into[done..], done as u64)? {
            0 => return Ok(done),
            read => done += read,
        }
    }
}
