//! Count of the files and bytes on the volumes of a formation of which no process lives.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bivouac_store::{DirVolume, ReadOnlyVolume, Records, RecordsOptions, StoreResult, Subfiles, Volume};
use bivouac_types::limits::SUBFILE_HEADER_LEN;
use bivouac_types::units::{format_count, format_size, format_utc};
use bivouac_types::{FormationId, Ino, Slot};

use crate::state::{FormationState, Stage};
use crate::volumes::MEMORY_KIND;

/// First letter of the keys of inodes; docs/format.md has all.
const INODES: &[u8] = b"I";
/// Subfiles that are looked at with one call.
const PAGE: usize = 4096;

/// Content of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Files and directories, the root aside.
    pub files: u64,
    /// Bytes of their content, holes aside.
    pub bytes: u64,
    /// Volumes that were looked at.
    pub volumes: u64,
    /// Time of the last change of any name, attribute or size, in milliseconds since 1970; 0 if there was none.
    pub changed_unix_ms: u64,
    /// Volumes that could not be read, with the reasons.
    pub unreadable: Vec<String>,
    /// Volumes on disks that were made and are not there, for instance because their file system is not mounted.
    pub missing: Vec<PathBuf>,
}

impl Amount {
    /// Reads the content of a formation's volumes, as far as they are there. Nothing on them is changed.
    #[must_use]
    pub fn of(state: &FormationState) -> Amount {
        let mut amount = Amount::default();
        let Some(formation) = state.formation_id() else {
            amount.unreadable.push("the state names no formation".into());
            return amount;
        };
        // The first start makes the volumes: one that was killed meanwhile may have none.
        let has_volumes = state.stage != Stage::Starting || state.recoveries > 0;
        for volume in state.nodes.iter().flat_map(|node| &node.volumes) {
            if !is_of(&volume.path, formation) {
                // Memory that is gone does not come back; a disk may be mounted again.
                if has_volumes && volume.kind != MEMORY_KIND {
                    amount.missing.push(volume.path.clone());
                }
                continue;
            }
            if let Err(error) = amount.add(&volume.path) {
                amount.unreadable.push(error.to_string());
            }
        }
        amount
    }

    /// Returns the missing volumes as a clause that follows the amount; empty if there are none.
    #[must_use]
    pub fn missing_clause(&self) -> String {
        let paths: Vec<String> = self.missing.iter().map(|path| path.display().to_string()).collect();
        if paths.is_empty() { String::new() } else { format!("; missing: {}", paths.join(", ")) }
    }

    /// Returns whether nothing would be lost with it. Volumes that are missing or unreadable may hold something.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        (self.files, self.bytes) == (0, 0) && self.unreadable.is_empty() && self.missing.is_empty()
    }

    fn add(&mut self, path: &Path) -> StoreResult<()> {
        let (volume, identity) = DirVolume::open_existing(path)?;
        let volume: Arc<dyn Volume> = Arc::new(ReadOnlyVolume::new(Arc::new(volume)));
        self.volumes += 1;
        // Each change is appended to a log, so the newest log is as old as the last change.
        let changed = std::fs::read_dir(path.join("records")).into_iter().flatten().flatten();
        let changed = changed.filter_map(|entry| entry.metadata().ok()?.modified().ok());
        self.changed_unix_ms = changed.map(unix_ms_of).fold(self.changed_unix_ms, u64::max);
        if let Some((node, slots)) = Records::stored(&*volume)? {
            let options = RecordsOptions { slots, ..RecordsOptions::default() };
            let records = Records::open(Arc::clone(&volume), identity.formation, node, options)?.0;
            self.files += (0..slots).map(|slot| inodes(&records, Slot(slot))).sum::<u64>();
        }
        let subfiles = Subfiles::new(volume, identity.index, identity.formation);
        let mut after = None;
        loop {
            let (page, is_end) = subfiles.page(after, PAGE)?;
            self.bytes +=
                page.iter().map(|one| one.allocated.saturating_sub(SUBFILE_HEADER_LEN)).sum::<u64>();
            after = page.last().map(|one| one.id);
            if is_end || page.is_empty() {
                return Ok(());
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = if self.files == 1 { "1 file or directory" } else { "files and directories" };
        if self.files != 1 {
            write!(f, "{} ", self.files)?;
        }
        write!(f, "{files} with {}", format_size(self.bytes))?;
        write!(f, " on {}", format_count(self.volumes, "volume"))?;
        if !self.unreadable.is_empty() {
            write!(f, ", and what cannot be read ({})", self.unreadable.join("; "))?;
        }
        if self.changed_unix_ms > 0 {
            write!(f, ", last changed {}Z", format_utc(self.changed_unix_ms / 1000))?;
        }
        Ok(())
    }
}

/// Inodes with a home in a slot, the root aside.
fn inodes(records: &Records, slot: Slot) -> u64 {
    let mut count = 0;
    records.scan(slot, INODES, INODES, |key, _| {
        count += u64::from(key.get(1..) != Some(&Ino::ROOT.0.to_be_bytes()[..]));
        ControlFlow::Continue(())
    });
    count
}

/// Returns whether a directory is a volume of the formation, or may be: what cannot be told is looked at.
fn is_of(path: &Path, formation: FormationId) -> bool {
    match bivouac_store::identity_of(path) {
        Ok(identity) => identity.is_some_and(|identity| identity.formation == formation),
        Err(_) => true,
    }
}

fn unix_ms_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;
    use bivouac_store::VolumeIdentity;
    use bivouac_types::NodeId;

    /// The content of a volume that was closed. A process that another test was forking then holds its lock until it
    /// executes a program or ends.
    fn of_closed(state: &FormationState) -> Amount {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let amount = Amount::of(state);
            if !amount.to_string().contains("in use") || std::time::Instant::now() > deadline {
                return amount;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_volumes_hold_is_counted_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = sample();
        state.nodes[0].volumes[0].path = dir.path().join("v");
        assert!(Amount::of(&state).is_nothing(), "there is no volume");
        let (formation, node) = (FormationId([7; 16]), NodeId(0));
        let identity = VolumeIdentity { formation, node, index: 0 };
        let volume = Arc::new(DirVolume::open(&dir.path().join("v"), identity, true).unwrap());
        let options = || RecordsOptions { slots: 4, ..RecordsOptions::default() };
        let records = Records::open(volume.clone(), formation, node, options()).unwrap().0;
        let mut txn = records.txn(&[Slot(1)]);
        txn.put(Slot(1), &[INODES, &Ino::ROOT.0.to_be_bytes()].concat(), b"root");
        txn.commit().unwrap();
        let busy = Amount::of(&state);
        assert!(!busy.is_nothing() && busy.to_string().contains("in use"), "{busy}");
        drop((records, volume));
        assert!(of_closed(&state).is_nothing(), "the root alone is nothing");
        let volume = Arc::new(DirVolume::open(&dir.path().join("v"), identity, true).unwrap());
        let records = Records::open(volume.clone(), formation, node, options()).unwrap().0;
        let mut txn = records.txn(&[Slot(1)]);
        txn.put(Slot(1), &[INODES, &77_u64.to_be_bytes()].concat(), b"file");
        txn.commit().unwrap();
        drop((records, volume));
        let amount = of_closed(&state);
        assert_eq!((amount.files, amount.volumes, amount.is_nothing()), (1, 1, false));
        assert!(
            amount.to_string().starts_with("1 file or directory with 0 B on 1 volume, last changed 2"),
            "{amount}"
        );
        let other = FormationState { formation: "08".repeat(16), ..state.clone() };
        assert!(Amount::of(&other).is_nothing(), "it is another formation's");
        let on_disk = |stage| {
            let mut state = other.clone();
            state.nodes[0].volumes[0].kind = "disk".into();
            FormationState { stage, ..state }
        };
        let missing = Amount::of(&on_disk(Stage::Running));
        assert!(!missing.is_nothing(), "its disk may be mounted again");
        assert_eq!(missing.missing_clause(), format!("; missing: {}", dir.path().join("v").display()));
        assert!(Amount::of(&on_disk(Stage::Starting)).is_nothing(), "it was not made yet");
        let recovered = FormationState { recoveries: 1, ..on_disk(Stage::Starting) };
        assert!(!Amount::of(&recovered).is_nothing(), "it was made in an earlier life");
        std::fs::write(dir.path().join("v/records/log-0000000000000001"), "garbage").unwrap();
        assert!(!Amount::of(&state).is_nothing());
    }
}
