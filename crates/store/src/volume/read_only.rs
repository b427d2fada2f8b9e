//! A volume that is only looked at: what would be tidied up at a daemon's start stays, and nothing is made.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bivouac_types::Errno;

use super::{Entry, FileStat, OpenMode, Space, Volume, VolumeFile, VolumeKind, system_error};

/// Passes on what looks, refuses what makes or writes (`EROFS`), and takes removals and cuts for done without
/// doing them: whoever recovers from a kill reads on as if the rests were gone.
#[derive(Debug)]
pub struct ReadOnlyVolume {
    inner: Arc<dyn Volume>,
}

impl ReadOnlyVolume {
    /// Protects a volume.
    #[must_use]
    pub fn new(inner: Arc<dyn Volume>) -> ReadOnlyVolume {
        ReadOnlyVolume { inner }
    }
}

fn refuse<T>() -> io::Result<T> {
    Err(system_error(Errno::EROFS))
}

impl Volume for ReadOnlyVolume {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn kind(&self) -> VolumeKind {
        self.inner.kind()
    }

    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn VolumeFile>> {
        match mode {
            OpenMode::Existing => {
                let inner = self.inner.open(name, mode)?;
                Ok(Arc::new(ReadOnlyFile { inner }))
            }
            OpenMode::Create | OpenMode::CreateNew => refuse(),
        }
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        refuse()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        let there = self.inner.list("")?.iter().any(|entry| entry.is_dir && entry.name == name);
        if there { Err(system_error(Errno::EEXIST)) } else { refuse() }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(dir)
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct ReadOnlyFile {
    inner: Arc<dyn VolumeFile>,
}

impl VolumeFile for ReadOnlyFile {
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.inner.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        refuse()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.inner.stat()
    }

    fn next_data(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.inner.next_data(from)
    }

    fn allocate(&self, _: Range<u64>) -> io::Result<()> {
        refuse()
    }

    fn grow(&self, _: u64) -> io::Result<()> {
        refuse()
    }

    fn punch(&self, _: Range<u64>) -> io::Result<()> {
        refuse()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::transfer::{read_all, write_all_at};
    use crate::{MemVolume, Records, RecordsOptions};
    use bivouac_types::{FormationId, NodeId, Slot};

    const LOG: &str = "records/log-0000000000000001";

    fn open(volume: &Arc<dyn Volume>) -> crate::StoreResult<Records> {
        let options = RecordsOptions { slots: 2, ..RecordsOptions::default() };
        Records::open(volume.clone(), FormationId([3; 16]), NodeId(0), options).map(|(records, _)| records)
    }

    #[test]
    fn records_are_read_behind_the_rest_of_a_kill_which_stays() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let records = open(&volume).unwrap();
        let mut txn = records.txn(&[Slot(1)]);
        txn.put(Slot(1), b"key", b"value");
        txn.commit().unwrap();
        drop(records);
        let log = volume.open(LOG, OpenMode::Existing).unwrap();
        let end = log.stat().unwrap().len;
        write_all_at(&*log, &[IoSlice::new(&[9; 7])], end).unwrap();
        volume.open("records/snapshot.tmp", OpenMode::Create).unwrap();
        let looked: Arc<dyn Volume> = Arc::new(ReadOnlyVolume::new(volume.clone()));
        let records = open(&looked).unwrap();
        assert_eq!(records.read(Slot(1), b"key", |v| v.map(<[u8]>::to_vec)), Some(b"value".to_vec()));
        let mut txn = records.txn(&[Slot(1)]);
        txn.put(Slot(1), b"key", b"other");
        assert!(txn.commit().is_err());
        assert_eq!(read_all(&*log).unwrap().len() as u64, end + 7);
        assert!(volume.open("records/snapshot.tmp", OpenMode::Existing).is_ok());
    }

    #[test]
    fn where_there_are_no_records_none_are_made() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let looked: Arc<dyn Volume> = Arc::new(ReadOnlyVolume::new(volume.clone()));
        assert!(open(&looked).is_err());
        assert!(volume.list("").unwrap().is_empty());
    }
}
