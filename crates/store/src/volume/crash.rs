//! A volume that remembers every change, so that a test can stop the world after each of them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::transfer::write_all_at;
use super::{Entry, FileStat, MemVolume, OpenMode, Space, Volume, VolumeFile, VolumeKind};

/// What a crash takes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was done: the process was killed.
    Nothing,
    /// As before, but the change that comes next, if it is a write, is done for this many bytes.
    Torn(usize),
    /// What was written to files and not synced: the host went down. Names stay.
    Unsynced,
}

/// A volume in memory with a record of its changes.
#[derive(Debug, Default)]
pub struct CrashVolume {
    inner: MemVolume,
    history: Arc<History>,
}

#[derive(Debug, Default)]
struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    steps: Vec<Step>,
    ids: BTreeMap<String, u64>,
    next_id: u64,
}

/// One change. Files are known by a number, since names change.
#[derive(Clone, Debug)]
enum Step {
    MakeDir { name: String },
    Create { name: String, id: u64 },
    Rename { from: String, to: String },
    Remove { name: String },
    Write { id: u64, offset: u64, bytes: Vec<u8> },
    SetLen { id: u64, len: u64 },
    Allocate { id: u64, range: Range<u64> },
    Grow { id: u64, len: u64 },
    Punch { id: u64, range: Range<u64> },
    Sync { id: u64 },
}

impl CrashVolume {
    /// Changes so far.
    pub fn steps(&self) -> usize {
        self.history.state.lock().steps.len()
    }

    /// The volume as a crash after the first `steps` changes leaves it, ready to be used and to crash again.
    ///
    /// # Errors
    /// None, unless the volume was used beside this type.
    pub fn after(&self, steps: usize, loss: Loss) -> io::Result<CrashVolume> {
        let kept = self.kept(steps, loss);
        let crashed = CrashVolume::default();
        let mut files: HashMap<u64, Arc<dyn VolumeFile>> = HashMap::new();
        for step in &kept {
            redo(&crashed, &mut files, step)?;
        }
        Ok(crashed)
    }

    fn kept(&self, steps: usize, loss: Loss) -> Vec<Step> {
        let state = self.history.state.lock();
        let done = state.steps.get(..steps).unwrap_or(&state.steps);
        let mut kept = match loss {
            Loss::Nothing | Loss::Torn(_) => done.to_vec(),
            Loss::Unsynced => without_unsynced(done),
        };
        if let (Loss::Torn(max), Some(Step::Write { id, offset, bytes })) = (loss, state.steps.get(steps)) {
            let bytes = bytes.get(..max).unwrap_or(bytes).to_vec();
            kept.push(Step::Write { id: *id, offset: *offset, bytes });
        }
        kept
    }
}

fn without_unsynced(done: &[Step]) -> Vec<Step> {
    let mut synced: HashMap<u64, usize> = HashMap::new();
    for (index, step) in done.iter().enumerate() {
        if let Step::Sync { id } = step {
            synced.insert(*id, index);
        }
    }
    let lost = |index: usize, id: &u64| synced.get(id).is_none_or(|last| *last < index);
    let keep = |(index, step): &(usize, &Step)| match step {
        Step::Write { id, .. } | Step::SetLen { id, .. } => !lost(*index, id),
        Step::Allocate { id, .. } | Step::Grow { id, .. } | Step::Punch { id, .. } => !lost(*index, id),
        _ => true,
    };
    done.iter().enumerate().filter(keep).map(|(_, step)| step.clone()).collect()
}

fn redo(volume: &CrashVolume, files: &mut HashMap<u64, Arc<dyn VolumeFile>>, step: &Step) -> io::Result<()> {
    let missing = || io::Error::other("change of a file that was never made");
    let file = |id: &u64| files.get(id).ok_or_else(missing);
    match step {
        Step::MakeDir { name } => volume.make_dir(name),
        Step::Rename { from, to } => volume.rename(from, to),
        Step::Remove { name } => volume.remove(name),
        Step::Write { id, offset, bytes } => write_all_at(&**file(id)?, &[IoSlice::new(bytes)], *offset),
        Step::SetLen { id, len } => file(id)?.set_len(*len),
        Step::Allocate { id, range } => file(id)?.allocate(range.clone()),
        Step::Grow { id, len } => file(id)?.grow(*len),
        Step::Punch { id, range } => file(id)?.punch(range.clone()),
        Step::Sync { id } => file(id)?.sync(),
        Step::Create { name, id } => {
            files.insert(*id, volume.open(name, OpenMode::CreateNew)?);
            Ok(())
        }
    }
}

impl Volume for CrashVolume {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn kind(&self) -> VolumeKind {
        VolumeKind::Disk
    }

    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>> {
        let mut state = self.history.state.lock();
        let inner = self.inner.open(name, mode)?;
        let id = match state.ids.get(name) {
            Some(id) => *id,
            None => state.created(name),
        };
        Ok(Arc::new(CrashFile { inner, id, history: self.history.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.rename(from, to)?;
        if let Some(id) = state.ids.remove(from) {
            state.ids.insert(to.to_owned(), id);
        }
        state.steps.push(Step::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.remove(name)?;
        state.ids.remove(name);
        state.steps.push(Step::Remove { name: name.to_owned() });
        Ok(())
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.make_dir(name)?;
        state.steps.push(Step::MakeDir { name: name.to_owned() });
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
}

impl State {
    fn created(&mut self, name: &str) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.ids.insert(name.to_owned(), id);
        self.steps.push(Step::Create { name: name.to_owned(), id });
        id
    }
}

#[derive(Debug)]
struct CrashFile {
    inner: Arc<dyn VolumeFile>,
    id: u64,
    history: Arc<History>,
}

impl VolumeFile for CrashFile {
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.inner.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut state = self.history.state.lock();
        let count = self.inner.write_vectored_at(bufs, offset)?;
        let bytes = bufs.iter().flat_map(|buf| buf.iter().copied()).take(count).collect();
        state.steps.push(Step::Write { id: self.id, offset, bytes });
        Ok(count)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.set_len(len)?;
        state.steps.push(Step::SetLen { id: self.id, len });
        Ok(())
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.inner.stat()
    }

    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.inner.next_data(from)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.allocate(range.clone())?;
        state.steps.push(Step::Allocate { id: self.id, range });
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.grow(len)?;
        state.steps.push(Step::Grow { id: self.id, len });
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.punch(range.clone())?;
        state.steps.push(Step::Punch { id: self.id, range });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.history.state.lock().steps.push(Step::Sync { id: self.id });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::transfer::read_all;

    #[test]
    fn it_is_a_volume() {
        crate::conformance::volume(|| Arc::new(CrashVolume::default()));
    }

    #[test]
    fn the_state_after_each_step_is_there_again() {
        let volume = CrashVolume::default();
        let file = volume.open("a", OpenMode::Create).unwrap();
        file.write_vectored_at(&[IoSlice::new(b"one")], 0).unwrap();
        file.sync().unwrap();
        file.write_vectored_at(&[IoSlice::new(b"two")], 3).unwrap();
        volume.rename("a", "b").unwrap();
        file.set_len(1).unwrap();
        let content = |steps, loss, name: &str| {
            let crashed = volume.after(steps, loss).unwrap();
            crashed.open(name, OpenMode::Existing).ok().map(|file| read_all(&*file).unwrap())
        };
        assert_eq!(volume.steps(), 6);
        assert_eq!(content(0, Loss::Nothing, "a"), None);
        assert_eq!(content(1, Loss::Torn(2), "a"), Some(b"on".to_vec()));
        assert_eq!(content(4, Loss::Nothing, "a"), Some(b"onetwo".to_vec()));
        assert_eq!(content(4, Loss::Unsynced, "a"), Some(b"one".to_vec()));
        assert_eq!(content(5, Loss::Nothing, "a"), None);
        assert_eq!(content(5, Loss::Nothing, "b"), Some(b"onetwo".to_vec()));
        assert_eq!(content(6, Loss::Nothing, "b"), Some(b"o".to_vec()));
    }
}
