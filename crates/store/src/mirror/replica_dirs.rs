//! Replicas as directories beside the files of the backup's own volumes.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bivouac_mirror::ReplicaEpoch;
use bivouac_ranks::Mutex;
use bivouac_types::{Errno, FormationId, NodeId};

use super::note::{MirrorNote, MirrorRole, read_mirror_note, write_mirror_note};
use super::replica::ReplicaVolumes;
use super::tree::VolumeTree;
use crate::data::ReplicaRoom;
use crate::volume::{REPLICA_DIR_PREFIX, system_error};
use crate::{DirVolume, StoreError, StoreResult, Volume, VolumeIdentity};

/// Returns the name of the directory of the replica of a node's volume, in a volume of its backup.
#[must_use]
pub fn replica_dir_name(node: NodeId, volume: u16) -> String {
    format!("{REPLICA_DIR_PREFIX}{:05}-{volume:05}", node.0)
}

/// The replicas of one node in the volumes of its backup, by turns.
#[derive(Debug)]
pub struct ReplicaDirs {
    formation: FormationId,
    node: NodeId,
    /// The backup's own volumes, with their space.
    volumes: Vec<(PathBuf, ReplicaRoom)>,
    /// Bytes of each replica that are counted as taken.
    counted: Mutex<HashMap<u16, u64>>,
}

impl ReplicaDirs {
    /// Replicas of a node in these volumes, of which there is at least one.
    #[must_use]
    pub fn new(formation: FormationId, node: NodeId, volumes: Vec<(PathBuf, ReplicaRoom)>) -> ReplicaDirs {
        assert!(!volumes.is_empty(), "a backup without volumes");
        ReplicaDirs { formation, node, volumes, counted: Mutex::default() }
    }

    fn place(&self, volume: u16) -> &(PathBuf, ReplicaRoom) {
        &self.volumes[usize::from(volume) % self.volumes.len()]
    }

    /// Returns the noted state of the replicas, their number of volumes and the length of a lease; all zero if there is
    /// no note.
    ///
    /// # Errors
    /// The system's, and those of a damaged note.
    pub fn load(&self) -> io::Result<(ReplicaEpoch, u16, Duration)> {
        let nothing = (ReplicaEpoch::default(), 0, Duration::ZERO);
        let Some(note) = read_mirror_note(&self.path(0))? else { return Ok(nothing) };
        // What is not synced does not outlive the host, and nobody knows what that was.
        let is_lost = note.is_of_earlier_boot();
        match note.role {
            MirrorRole::Replica { mut epoch, volumes, lease_ms } => {
                epoch.is_complete &= !is_lost || epoch.is_sealed;
                Ok((epoch, volumes, Duration::from_millis(u64::from(lease_ms))))
            }
            // A daemon has taken over from it.
            MirrorRole::Primary { epoch, .. } => {
                let epoch = ReplicaEpoch { epoch, session: 0, is_complete: true, is_sealed: true };
                Ok((epoch, 0, Duration::ZERO))
            }
        }
    }
}

impl ReplicaDirs {
    fn open_dir(&self, volume: u16, identity: VolumeIdentity) -> StoreResult<DirVolume> {
        let path = self.path(volume);
        let opened = DirVolume::open(&path, identity, true);
        let has_no_table = matches!(opened, Err(StoreError::NoTable { .. } | StoreError::Corrupt { .. }));
        // One that a daemon was killed in the middle of emptying or copying: it is copied again.
        if has_no_table && !self.load().is_ok_and(|(epoch, ..)| epoch.is_complete) {
            let (incomplete, of) = DirVolume::open_existing(&path)?;
            if of == identity {
                return Ok(incomplete);
            }
        }
        opened
    }
}

impl ReplicaVolumes for ReplicaDirs {
    fn open(&self, volume: u16) -> io::Result<Arc<dyn Volume>> {
        let identity = VolumeIdentity { formation: self.formation, node: self.node, index: volume };
        let opened: Arc<dyn Volume> = Arc::new(self.open_dir(volume, identity).map_err(io::Error::other)?);
        let counted = self.counted.lock().get(&volume).copied().unwrap_or(0);
        // Opened again, as after a seal that was given up: what was counted for it before is replaced, not added to.
        self.correct_space(volume, counted, allocated_in(&*opened)?);
        Ok(opened)
    }

    fn path(&self, volume: u16) -> PathBuf {
        self.place(volume).0.join(replica_dir_name(self.node, volume))
    }

    fn note(&self, epoch: &ReplicaEpoch, volumes: u16, lease: Duration) -> io::Result<()> {
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let role = MirrorRole::Replica { epoch: *epoch, volumes, lease_ms };
        write_mirror_note(&self.path(0), &MirrorNote::new(role))
    }

    fn take_space(&self, volume: u16, bytes: u64) -> io::Result<()> {
        self.place(volume).1.reserve(bytes).map_err(|_free| system_error(Errno::ENOSPC))?;
        *self.counted.lock().entry(volume).or_default() += bytes;
        Ok(())
    }

    fn correct_space(&self, volume: u16, taken: u64, real: u64) {
        self.place(volume).1.correct(taken, real);
        let mut counted = self.counted.lock();
        let counted = counted.entry(volume).or_default();
        *counted = counted.saturating_add(real).saturating_sub(taken);
    }
}

/// Returns the number of bytes that the files of a volume occupy.
fn allocated_in(volume: &dyn Volume) -> io::Result<u64> {
    Ok(VolumeTree::of(volume)?.files.iter().map(|(_, stat)| stat.allocated).sum())
}
