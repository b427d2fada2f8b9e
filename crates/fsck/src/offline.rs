//! Volumes of a stopped formation on this machine.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use bivouac_node::{record_page, subfile_facts};
use bivouac_store::{Records, SubfileId, Subfiles, VolumeIdentity};
use bivouac_types::{Errno, FormationId, FsError, FsResult, Ino, NodeId};
use bivouac_wire::{FormationMap, ListRecordsRequest, ListSubfilesRequest, RecordPage, SubfilePage};

use crate::derive::derive_map;
use crate::facts::LostName;
use crate::finding::Finding;
use crate::salvage::{salvage, slots_of, unreadable};
use crate::source::{Source, nodes, volumes};
use crate::volumes::{OpenVolume, open_records_on, open_volumes};

/// Arguments of an offline check.
#[derive(Clone, Debug)]
pub struct OfflineArgs {
    /// Paths of the volumes, of any nodes, in any order.
    pub volumes: Vec<PathBuf>,
    /// The formation's map from its state; otherwise it is derived from the volumes.
    pub map: Option<FormationMap>,
    /// True to repair.
    pub repair: bool,
    /// True to compare content with its checksums.
    pub compare: bool,
}

/// Volumes that are locked by this process.
pub struct Stores {
    map: FormationMap,
    records: Vec<Option<Records>>,
    subfiles: HashMap<(NodeId, u16), Subfiles>,
    /// Findings of records that could not be opened.
    pub(crate) damaged: Vec<Finding>,
    /// Names of inodes in damaged records.
    pub(crate) lost_names: BTreeMap<Ino, LostName>,
    pub(crate) unchecked: Vec<String>,
}

impl Stores {
    /// Opens the volumes. Without `repair` nothing on them is changed, not even by recovery.
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
            // With the map of another formation every record would look misplaced, and a repair would move it.
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
        let subfiles = opened.iter().map(|OpenVolume { identity, volume }| {
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

    /// Returns messages for missing volumes and records.
    fn absent(&self) -> Vec<String> {
        let missing = volumes(&self.map).into_iter().filter(|place| !self.subfiles.contains_key(place));
        let mut absent: Vec<String> =
            missing.map(|(node, volume)| format!("volume {volume} of {node} was not given")).collect();
        let without = nodes(&self.map).filter(|node| !self.has_records(*node));
        absent.extend(without.map(|node| format!("the records of {node} are not there")));
        absent
    }

    /// Returns a node's records.
    pub(crate) fn of(&self, node: NodeId) -> Option<&Records> {
        self.records.get(usize::from(node.0))?.as_ref()
    }

    /// Returns the subfiles of a volume.
    pub(crate) fn volume(&self, node: NodeId, volume: u16) -> Option<&Subfiles> {
        self.subfiles.get(&(node, volume))
    }

    /// Syncs all repairs.
    pub(crate) fn sync(&self) -> FsResult<()> {
        self.records.iter().flatten().try_for_each(|records| Ok(records.sync()?))
    }
}

type OpenRecords = Vec<(NodeId, Records)>;

fn open_records(
    opened: &[OpenVolume],
    formation: FormationId,
    args: &OfflineArgs,
) -> (OpenRecords, Vec<Finding>, BTreeMap<Ino, LostName>) {
    let (mut found, mut damaged, mut names) = (Vec::new(), Vec::new(), BTreeMap::new());
    let slots = slots_of(opened, args.map.as_ref());
    // A node has its records on its first volume.
    for OpenVolume { identity, volume } in opened.iter().filter(|opened| opened.identity.index == 0) {
        match open_records_on(volume, formation, identity.node) {
            Ok(Some(records)) => found.push((identity.node, records)),
            Ok(None) => {}
            Err(error) => {
                // Salvage writes files anew; without permission to repair it is given no slots, and does nothing.
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
        let after = request.after.map(|(ino, target)| SubfileId { volume, ino, target });
        let (found, end) = subfiles.page(after, request.max as usize)?;
        Ok(SubfilePage { subfiles: found.into_iter().map(subfile_facts).collect(), end })
    }
}
