//! The volumes of a stopped formation, as they lie on this machine.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use bivouac_node::{record_page, subfile_facts};
use bivouac_store::{
    DirVolume, ReadOnlyVolume, Records, RecordsOptions, StoreError, SubfileId, Subfiles, Volume,
    VolumeIdentity,
};
use bivouac_types::{Errno, FormationId, FsError, FsResult, Ino, NodeId};
use bivouac_wire::{FormationMap, ListRecordsRequest, ListSubfilesRequest, RecordPage, SubfilePage};

use crate::derive::derive_map;
use crate::finding::{Finding, Kind, Outcome};
use crate::salvage::{LostName, salvage, slots_of, unreadable};
use crate::source::{Source, nodes, volumes};

/// What is to be opened.
#[derive(Clone, Debug)]
pub struct OfflineArgs {
    /// The volumes, of any nodes, in any order.
    pub volumes: Vec<PathBuf>,
    /// The formation's map, if its state is at hand; else it is worked out from the volumes.
    pub map: Option<FormationMap>,
    /// Whether anything may be changed.
    pub repair: bool,
    /// Whether content is compared with its checksums.
    pub compare: bool,
}

/// Volumes that no daemon has, held under their locks.
pub struct Stores {
    map: FormationMap,
    records: Vec<Option<Records>>,
    subfiles: HashMap<(NodeId, u16), Subfiles>,
    /// Records that could not be read back.
    pub(crate) damaged: Vec<Finding>,
    /// Names that inodes had by what is lost of records.
    pub(crate) lost_names: BTreeMap<Ino, LostName>,
    pub(crate) unchecked: Vec<String>,
}

pub(crate) struct Opened {
    pub identity: VolumeIdentity,
    pub volume: Arc<dyn Volume>,
}

/// Opens volumes, and sees that they are of one formation and each is there once.
pub(crate) fn open_volumes(paths: &[PathBuf], writable: bool) -> FsResult<(Vec<Opened>, Vec<Finding>)> {
    let (mut opened, mut damaged) = (Vec::<Opened>::new(), Vec::new());
    for path in paths {
        let (volume, identity) = DirVolume::open_existing(path)?;
        damaged.extend(without_table(&volume, &identity, writable));
        let volume: Arc<dyn Volume> = Arc::new(volume);
        let volume = if writable { volume } else { Arc::new(ReadOnlyVolume::new(volume)) };
        if let Some(first) = opened.first().filter(|first| first.identity.formation != identity.formation) {
            let (found, expected) = (identity.formation, first.identity.formation);
            return Err(StoreError::WrongFormation { path: path.clone(), found, expected }.into());
        }
        if let Some(twin) = opened.iter().find(|other| other.identity == identity) {
            let (node, index) = (identity.node, identity.index);
            let text = format!(
                "volumes {} and {} both say that they are volume {index} of {node}: name one of them",
                twin.volume.path().display(),
                path.display()
            );
            return Err(FsError::with(Errno::EINVAL, text));
        }
        opened.push(Opened { identity, volume });
    }
    Ok((opened, damaged))
}

/// What is said of a volume that does not say which subfiles it has to have.
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

impl Stores {
    /// Opens the volumes. Without `repair` nothing on them is changed, not even what a daemon would tidy up.
    ///
    /// # Errors
    /// A volume that is missing, in use, another formation's; no volume at all.
    pub fn open(args: &OfflineArgs) -> FsResult<Stores> {
        let (opened, without_table) = open_volumes(&args.volumes, args.repair)?;
        let first = opened.first().ok_or_else(|| FsError::with(Errno::EINVAL, "no volume is named"))?;
        let formation = first.identity.formation;
        let (records, mut damaged, lost_names) = open_records(&opened, formation, args);
        damaged.extend(without_table);
        let map = match &args.map {
            Some(map) if map.formation != formation => {
                let text =
                    format!("the state is of formation {}, the volumes are of {formation}", map.formation);
                return Err(FsError::with(Errno::EINVAL, text));
            }
            Some(map) => map.clone(),
            None => derive_map(&opened, &records, formation)?,
        };
        let mut by_node: Vec<Option<Records>> = map.nodes.iter().map(|_| None).collect();
        for (node, records) in records {
            if let Some(place) = by_node.get_mut(usize::from(node.0)) {
                *place = Some(records);
            }
        }
        let subfiles = opened.iter().map(|Opened { identity, volume }| {
            let VolumeIdentity { node, index, .. } = *identity;
            ((node, index), Subfiles::new(volume.clone(), index, formation))
        });
        let mut stores = Stores {
            map,
            records: by_node,
            subfiles: subfiles.collect(),
            damaged,
            lost_names,
            unchecked: Vec::new(),
        };
        stores.unchecked = stores.absent();
        Ok(stores)
    }

    /// Says what is not there.
    fn absent(&self) -> Vec<String> {
        let missing = volumes(&self.map).into_iter().filter(|place| !self.subfiles.contains_key(place));
        let mut absent: Vec<String> =
            missing.map(|(node, volume)| format!("volume {volume} of {node} was not given")).collect();
        let without = nodes(&self.map).filter(|node| !self.has_records(*node));
        absent.extend(without.map(|node| format!("the records of {node} are not there")));
        absent
    }

    /// A node's records.
    pub(crate) fn of(&self, node: NodeId) -> Option<&Records> {
        self.records.get(usize::from(node.0))?.as_ref()
    }

    /// The subfiles of a volume.
    pub(crate) fn volume(&self, node: NodeId, volume: u16) -> Option<&Subfiles> {
        self.subfiles.get(&(node, volume))
    }

    /// Makes all repairs outlive the host.
    pub(crate) fn sync(&self) -> FsResult<()> {
        self.records.iter().flatten().try_for_each(|records| Ok(records.sync()?))
    }
}

type OpenRecords = Vec<(NodeId, Records)>;

fn open_records(
    opened: &[Opened],
    formation: FormationId,
    args: &OfflineArgs,
) -> (OpenRecords, Vec<Finding>, BTreeMap<Ino, LostName>) {
    let (mut found, mut damaged, mut names) = (Vec::new(), Vec::new(), BTreeMap::new());
    let slots = slots_of(opened, args);
    for Opened { identity, volume } in opened.iter().filter(|opened| opened.identity.index == 0) {
        match open_one(volume, formation, identity.node) {
            Ok(Some(records)) => found.push((identity.node, records)),
            Ok(None) => {}
            Err(error) => {
                match salvage(volume, identity.node, &error, slots.filter(|_| args.repair), formation) {
                    Some(salvaged) => {
                        found.push((identity.node, salvaged.records));
                        damaged.push(salvaged.finding);
                        names.extend(salvaged.names);
                    }
                    None => damaged.push(unreadable(identity.node, &error)),
                }
            }
        }
    }
    (found, damaged, names)
}

pub(crate) fn open_one(
    volume: &Arc<dyn Volume>,
    formation: FormationId,
    node: NodeId,
) -> Result<Option<Records>, StoreError> {
    let Some((_, slots)) = Records::stored(&**volume)? else { return Ok(None) };
    let options = RecordsOptions { slots, ..RecordsOptions::default() };
    Ok(Some(Records::open(volume.clone(), formation, node, options)?.0))
}

impl Source for Stores {
    fn map(&self) -> &FormationMap {
        &self.map
    }

    fn has_records(&self, node: NodeId) -> bool {
        self.of(node).is_some()
    }

    fn has_volume(&self, node: NodeId, volume: u16) -> bool {
        self.subfiles.contains_key(&(node, volume))
    }

    fn records(&self, node: NodeId, request: &ListRecordsRequest) -> FsResult<RecordPage> {
        let records = self.of(node).ok_or(Errno::ENOENT)?;
        Ok(record_page(records, request))
    }

    fn subfiles(&self, node: NodeId, request: &ListSubfilesRequest) -> FsResult<SubfilePage> {
        let volume = request.volume;
        let subfiles = self.volume(node, volume).ok_or(Errno::ENOENT)?;
        let after = request.after.map(|(ino, seat)| SubfileId { volume, ino, seat });
        let (found, end) = subfiles.page(after, request.max as usize)?;
        Ok(SubfilePage { subfiles: found.into_iter().map(subfile_facts).collect(), end })
    }
}
