//! Volumes of a stopped formation, opened under their locks.

use std::path::PathBuf;
use std::sync::Arc;

use bivouac_store::{DirVolume, ReadOnlyVolume, Records, RecordsOptions, StoreError, Volume, VolumeIdentity};
use bivouac_types::{Errno, FormationId, FsError, FsResult, NodeId};

use crate::finding::{Finding, Kind, Outcome};

/// A volume that is open, with its identity.
pub(crate) struct OpenVolume {
    pub identity: VolumeIdentity,
    pub volume: Arc<dyn Volume>,
}

/// Opens volumes of one formation, each once.
pub(crate) fn open_volumes(paths: &[PathBuf], writable: bool) -> FsResult<(Vec<OpenVolume>, Vec<Finding>)> {
    let (mut opened, mut damaged) = (Vec::<OpenVolume>::new(), Vec::new());
    for path in paths {
        let (volume, identity) = DirVolume::open_existing(path)?;
        damaged.extend(without_table(&volume, &identity, writable));
        let volume: Arc<dyn Volume> = Arc::new(volume);
        // Opening records replays the log, which must not write during a check.
        let volume = if writable { volume } else { Arc::new(ReadOnlyVolume::new(volume)) };
        if let Some(first) = opened.first().filter(|first| first.identity.formation != identity.formation) {
            let (found, expected) = (identity.formation, first.identity.formation);
            return Err(StoreError::WrongFormation { path: path.clone(), found, expected }.into());
        }
        // A copied volume has the identity of its original; records of both would be mixed.
        if let Some(twin) = opened.iter().find(|other| other.identity == identity) {
            let (node, index) = (identity.node, identity.index);
            let text = format!(
                "volumes {} and {} both say that they are volume {index} of {node}: name one of them",
                twin.volume.path().display(),
                path.display()
            );
            return Err(FsError::with(Errno::EINVAL, text));
        }
        opened.push(OpenVolume { identity, volume });
    }
    Ok((opened, damaged))
}

/// Returns the finding of a volume without a table of its subfiles.
fn without_table(volume: &DirVolume, identity: &VolumeIdentity, writable: bool) -> Option<Finding> {
    let error = volume.check_table().err()?;
    let object = format!("volume {} of {} ({})", identity.index, identity.node, volume.path().display());
    let cause =
        "it is not known which subfiles it has to have: bivouac-subfiles is missing, or cannot be used";
    let finding = Finding::new(Kind::MissingTable, object, format!("{cause} ({error})"));
    let renewed = writable.then(|| volume.renew_table());
    let outcome = match &renewed {
        Some(Ok(())) => Outcome::Repaired,
        Some(Err(_)) => Outcome::Left,
        None => Outcome::Repairable,
    };
    let remedy =
        "copy the volume again if it was not copied whole; --repair goes on with those that are there";
    Some(Finding { outcome, ..finding.remedy(remedy) })
}

/// Opens the records on a volume; `None` if it has none.
pub(crate) fn open_records_on(
    volume: &Arc<dyn Volume>,
    formation: FormationId,
    node: NodeId,
) -> Result<Option<Records>, StoreError> {
    let Some((_, slots)) = Records::stored(&**volume)? else { return Ok(None) };
    let options = RecordsOptions { slots, ..RecordsOptions::default() };
    Ok(Some(Records::open(volume.clone(), formation, node, options)?.0))
}
