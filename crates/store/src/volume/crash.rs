//! A volume that remembers every change, so that a test can stop the world after each of them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::transfer::write_all_at;
use super::{Entry, FileStat, MemVolume, OpenMode, Space, Volume, VolumeFile, VolumeKind};

/// Extent of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashLoss {
    /// Nothing: the process was killed.
    Nothing,
    /// Nothing, but the next change, if it is a write, is made for so many bytes only.
    Torn(usize),
    /// Content of files that was not synced: the host went down. Names stay.
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
    state: Mutex<RecordedChanges>,
}

#[derive(Debug, Default)]
struct RecordedChanges {
    steps: Vec<VolumeChange>,
    ids: BTreeMap<String, u64>,
    next_id: u64,
}

/// One change. Files are known by a number, since names change.
#[derive(Clone, Debug)]
enum VolumeChange {
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

    /// Returns the volume as a crash after the first `steps` changes leaves it, ready to be used and to crash again.
    ///
    /// # Errors
    /// None, unless the volume was used beside this type.
    pub fn after(&self, steps: usize, loss: CrashLoss) -> io::Result<CrashVolume> {
        let kept = self.kept(steps, loss);
        let crashed = CrashVolume::default();
        let mut files: HashMap<u64, Arc<dyn VolumeFile>> = HashMap::new();
        for step in &kept {
            redo(&crashed, &mut files, step)?;
        }
        Ok(crashed)
    }

    fn kept(&self, steps: usize, loss: CrashLoss) -> Vec<VolumeChange> {
        let state = self.history.state.lock();
        let done = state.steps.get(..steps).unwrap_or(&state.steps);
        let mut kept = match loss {
            CrashLoss::Nothing | CrashLoss::Torn(_) => done.to_vec(),
            CrashLoss::Unsynced => without_unsynced(done),
        };
        if let (CrashLoss::Torn(max), Some(VolumeChange::Write { id, offset, bytes })) =
            (loss, state.steps.get(steps))
        {
            let bytes = bytes.get(..max).unwrap_or(bytes).to_vec();
            kept.push(VolumeChange::Write { id: *id, offset: *offset, bytes });
        }
        kept
    }
}

fn without_unsynced(done: &[VolumeChange]) -> Vec<VolumeChange> {
    let mut synced: HashMap<u64, usize> = HashMap::new();
    for (index, step) in done.iter().enumerate() {
        if let VolumeChange::Sync { id } = step {
            synced.insert(*id, index);
        }
    }
    let lost = |index: usize, id: &u64| synced.get(id).is_none_or(|last| *last < index);
    let keep = |(index, step): &(usize, &VolumeChange)| match step {
        VolumeChange::Write { id, .. } | VolumeChange::SetLen { id, .. } => !lost(*index, id),
        VolumeChange::Allocate { id, .. }
        | VolumeChange::Grow { id, .. }
        | VolumeChange::Punch { id, .. } => !lost(*index, id),
        _ => true,
    };
    done.iter().enumerate().filter(keep).map(|(_, step)| step.clone()).collect()
}

fn redo(
    volume: &CrashVolume,
    files: &mut HashMap<u64, Arc<dyn VolumeFile>>,
    step: &VolumeChange,
) -> io::Result<()> {
    let missing = || io::Error::other("change of a file that was never made");
    let file = |id: &u64| files.get(id).ok_or_else(missing);
    match step {
        VolumeChange::MakeDir { name } => volume.make_dir(name),
        VolumeChange::Rename { from, to } => volume.rename(from, to),
        VolumeChange::Remove { name } => volume.remove(name),
        VolumeChange::Write { id, offset, bytes } => {
            write_all_at(&**file(id)?, &[IoSlice::new(bytes)], *offset)
        }
        VolumeChange::SetLen { id, len } => file(id)?.set_len(*len),
        VolumeChange::Allocate { id, range } => file(id)?.allocate(range.clone()),
        VolumeChange::Grow { id, len } => file(id)?.grow(*len),
        VolumeChange::Punch { id, range } => file(id)?.punch(range.clone()),
        VolumeChange::Sync { id } => file(id)?.sync(),
        VolumeChange::Create { name, id } => {
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
        state.steps.push(VolumeChange::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.remove(name)?;
        state.ids.remove(name);
        state.steps.push(VolumeChange::Remove { name: name.to_owned() });
        Ok(())
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.make_dir(name)?;
        state.steps.push(VolumeChange::MakeDir { name: name.to_owned() });
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
}

impl RecordedChanges {
    fn created(&mut self, name: &str) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.ids.insert(name.to_owned(), id);
        self.steps.push(VolumeChange::Create { name: name.to_owned(), id });
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
        state.steps.push(VolumeChange::Write { id: self.id, offset, bytes });
        Ok(count)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.set_len(len)?;
        state.steps.push(VolumeChange::SetLen { id: self.id, len });
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
        state.steps.push(VolumeChange::Allocate { id: self.id, range });
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.grow(len)?;
        state.steps.push(VolumeChange::Grow { id: self.id, len });
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.history.state.lock();
        self.inner.punch(range.clone())?;
        state.steps.push(VolumeChange::Punch { id: self.id, range });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.history.state.lock().steps.push(VolumeChange::Sync { id: self.id });
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
        assert_eq!(content(0, CrashLoss::Nothing, "a"), None);
        assert_eq!(content(1, CrashLoss::Torn(2), "a"), Some(b"on".to_vec()));
        assert_eq!(content(4, CrashLoss::Nothing, "a"), Some(b"onetwo".to_vec()));
        assert_eq!(content(4, CrashLoss::Unsynced, "a"), Some(b"one".to_vec()));
        assert_eq!(content(5, CrashLoss::Nothing, "a"), None);
        assert_eq!(content(5, CrashLoss::Nothing, "b"), Some(b"onetwo".to_vec()));
        assert_eq!(content(6, CrashLoss::Nothing, "b"), Some(b"o".to_vec()));
    }
}
