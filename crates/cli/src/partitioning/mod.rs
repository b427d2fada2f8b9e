//! Makes partitions as commands and formation files ask for them.

mod overlap;
mod targets;

use bivouac_client::{Client, NewInode, Partition};
use bivouac_launch::FormationState;
use bivouac_types::{Attr, Errno, FsError, NodeId, PartitionSettings, Site, TargetIndex, VolumeKind, mode};

use crate::failure::Failure;

pub use overlap::{refuse_mounted, refuse_source};
pub use targets::{Candidate, Nodes, Sizing, choose, parse_fraction};

/// Permissions of a directory that is made for a partition, as `mkdir` with the usual umask gives them.
const DIR_MODE: u32 = 0o755;
/// Stripe of a partition in front of a bucket, of which nothing else is said: stores take no smaller parts than 5 MiB.
pub const BUCKET_STRIPE: u32 = 8 << 20;
/// Clients that share four volumes, by the name of the way of sharing.
const SHARINGS: [(&str, u16); 3] = [("dedicated", 1), ("semi-dedicated", 2), ("shared", 4)];
/// Volumes of each partition of a group.
const VOLUMES_PER_GROUP: usize = 4;

/// Number of clients that share the volumes of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSharing {
    /// Clients per partition.
    pub clients_per: u16,
    /// Clients altogether.
    pub clients: u16,
}

impl ClientSharing {
    /// Returns the way of sharing with this name.
    pub fn named(name: &str) -> Option<u16> {
        SHARINGS.iter().find(|(known, _)| *known == name).map(|(_, clients)| *clients)
    }

    /// Returns the number of partitions.
    fn groups(self) -> usize {
        usize::from(self.clients.max(1).div_ceil(self.clients_per.max(1)))
    }
}

/// A partition that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its directory, from the formation's own on.
    pub path: Vec<u8>,
    /// Its nodes, if they are said.
    pub nodes: Option<Nodes>,
    /// Amount of data, if that decides on the number of nodes.
    pub sizing: Option<Sizing>,
    /// The sharing, if there are to be several partitions below the directory.
    pub sharing: Option<ClientSharing>,
    /// Its settings.
    pub settings: PartitionSettings,
    /// True if that says the stripe size; otherwise it is the formation's, or one that a bucket takes.
    pub says_stripe: bool,
}

/// A partition that was made.
#[derive(Debug)]
pub struct MadePartition {
    /// Its directory.
    pub path: String,
    /// The partition.
    pub partition: Partition,
    /// How its targets were chosen, if there is something to report.
    pub reason: Option<String>,
}

/// Context in which partitions are made.
#[derive(Clone, Copy)]
pub struct PartitionMaker<'a> {
    /// Access to the formation.
    pub client: &'a Client,
    /// Owner of directories that are made.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// The formation, whose mounts no source may overlap.
    pub state: &'a FormationState,
}

impl PartitionMaker<'_> {
    /// Makes a partition, and its directory if there is none; or, if it is to be shared out, one for each group of
    /// clients, in directories `0`, `1` and so on.
    pub fn make(&self, plan: &Plan) -> Result<Vec<MadePartition>, Failure> {
        let shown = String::from_utf8_lossy(&plan.path).into_owned();
        let says = |cause: String| Failure::new(1, format_args!("partition {shown}: {cause}"));
        refuse_mounted(self.state, plan.settings.source.as_ref()).map_err(says)?;
        let mut settings = plan.settings.clone();
        if !plan.says_stripe {
            let is_bucket =
                settings.source.as_ref().is_some_and(|source| matches!(source.site(), Site::S3 { .. }));
            settings.stripe = self.client.map().stripe.max(if is_bucket { BUCKET_STRIPE } else { 0 });
        }
        // What is shared out is for locality: groups stay as nodes are numbered.
        let candidates = self.candidates(plan.sharing.is_none());
        let chosen =
            choose(&candidates, plan.settings.volumes, plan.nodes.as_ref(), plan.sizing).map_err(says)?;
        let Some(sharing) = plan.sharing else {
            let partition = self.make_at(&plan.path, chosen.targets, &settings)?;
            return Ok(vec![MadePartition { path: shown, partition, reason: chosen.reason }]);
        };
        let needed = sharing.groups() * VOLUMES_PER_GROUP;
        if chosen.targets.len() < needed {
            let cause = format!(
                "{} clients, {} to {VOLUMES_PER_GROUP} volumes, need {needed} volumes, and there are {}",
                sharing.clients,
                sharing.clients_per,
                chosen.targets.len()
            );
            return Err(says(cause));
        }
        self.directory(&plan.path)?;
        let mut made = Vec::new();
        for (group, targets) in chosen.targets.chunks(VOLUMES_PER_GROUP).take(sharing.groups()).enumerate() {
            assert_eq!(targets.len(), VOLUMES_PER_GROUP, "group {group} is short of volumes");
            let path = [&plan.path, format!("/{group}").as_bytes()].concat();
            let partition = self.make_at(&path, targets.to_vec(), &settings)?;
            made.push(MadePartition { path: format!("{shown}/{group}"), partition, reason: None });
        }
        assert_eq!(made.len(), sharing.groups(), "a group of clients has no partition");
        Ok(made)
    }

    fn make_at(
        &self,
        path: &[u8],
        targets: Vec<TargetIndex>,
        settings: &PartitionSettings,
    ) -> Result<Partition, Failure> {
        let named = |error: FsError| {
            Failure::new(1, format_args!("partition {}: {error}", String::from_utf8_lossy(path)))
        };
        let (dir, is_new) = self.directory(path)?;
        let ctx = self.client.new_op(0, self.uid, self.gid);
        let made = self.client.partitions.make(&ctx, dir.ino, targets, settings.clone());
        made.map_err(|error| {
            // A partition that may still come to be keeps its directory.
            if is_new && error.errno() != Errno::EIO {
                let _what_counts_is_the_refusal = self.remove_directory(path);
            }
            named(error)
        })
    }

    /// Returns the directory at a path, made if there is none; answers also whether it was made.
    pub fn directory(&self, path: &[u8]) -> Result<(Attr, bool), Failure> {
        let named =
            |error: FsError| Failure::new(1, format_args!("{}: {error}", String::from_utf8_lossy(path)));
        let place = self.client.place(path, true).map_err(named)?;
        if place.name.is_empty() {
            return Ok((self.client.getattr(place.parent).map_err(named)?, false));
        }
        let ctx = self.client.new_op(0, self.uid, self.gid);
        let new = NewInode { mode: mode::DIR | DIR_MODE, rdev: 0, target: b"" };
        // Made first and looked up then: the other way round somebody else can make it in between.
        match self.client.mknod(&ctx, place.parent, &place.name, &new) {
            Ok(attr) => Ok((attr, true)),
            Err(error) if error.errno() == Errno::EEXIST => {
                Ok((self.client.lookup(place.parent, &place.name).map_err(named)?, false))
            }
            Err(error) => Err(named(error)),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `EIO`.
    pub fn remove_directory(&self, path: &[u8]) -> Result<(), FsError> {
        let place = self.client.place(path, false)?;
        let ctx = self.client.new_op(0, self.uid, self.gid);
        self.client.rmdir(&ctx, place.parent, &place.name)
    }

    /// Returns the volumes of the nodes that answer, by targets; with their switches only if they are to take turns by
    /// them.
    fn candidates(&self, in_turns: bool) -> Vec<Candidate> {
        let map = self.client.map();
        let nodes = (0..map.nodes.len()).map(|node| NodeId(node as u16));
        // One that does not answer gets no part: whoever uses the partition would wait for it.
        let states: Vec<_> = nodes.map(|node| self.client.nodes().status(node).ok()).collect();
        let known = self.state.domains().filter(|_| in_turns);
        let candidate = |(target, place): (u32, &bivouac_client::TargetEntry)| {
            let state = states.get(usize::from(place.node.0))?.as_ref()?;
            let volume = state.volumes.get(usize::from(place.volume))?;
            let host = map.nodes.get(usize::from(place.node.0)).map(|entry| &entry.host);
            let held = volume.used_bytes.saturating_add(volume.records_bytes);
            Some(Candidate {
                target: TargetIndex(target),
                node: place.node,
                kind: if volume.kind == "memory" { VolumeKind::Memory } else { VolumeKind::Disk },
                capacity: volume.capacity_bytes,
                free: volume.capacity_bytes.saturating_sub(held),
                switch: known.zip(host).and_then(|(known, host)| known.switch_of(host).map(str::to_owned)),
            })
        };
        (0..).zip(&map.targets).filter_map(candidate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_clients_have_four_two_or_one_partition() {
        let groups = |name: &str| {
            let clients_per = ClientSharing::named(name).unwrap();
            [1, 2, 4, 5].map(|clients| ClientSharing { clients_per, clients }.groups())
        };
        assert_eq!(groups("dedicated"), [1, 2, 4, 5]);
        assert_eq!(groups("semi-dedicated"), [1, 1, 2, 3]);
        assert_eq!(groups("shared"), [1, 1, 1, 2]);
        assert_eq!(ClientSharing::named("private"), None);
    }
}
