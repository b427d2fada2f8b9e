//! Makes partitions as commands and formation files ask for them.

mod overlap;
mod seats;

use bivouac_client::{Client, NewInode, Partition};
use bivouac_launch::State;
use bivouac_types::{
    Attr, Errno, FsError, Ino, NodeId, PartitionSettings, SeatIndex, Site, VolumeKind, mode,
};

use crate::failure::Failure;

pub use overlap::{refuse_mounted, refuse_source};
pub use seats::{Candidate, Nodes, Sizing, choose, parse_fraction};

/// Permissions of a directory that is made for a partition, as `mkdir` with the usual umask gives them.
const DIR_MODE: u32 = 0o755;
/// Stripe of a partition in front of a bucket, of which nothing else is said: stores take no smaller parts than 5 MiB.
pub const BUCKET_STRIPE: u32 = 8 << 20;
/// Clients that share four volumes, by the name of the way of sharing.
const SHARINGS: [(&str, u16); 3] = [("dedicated", 1), ("semi-dedicated", 2), ("shared", 4)];
/// Volumes of each partition of a group.
const VOLUMES_PER_GROUP: usize = 4;

/// How many clients share the volumes of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Clients per partition.
    pub clients_per: u16,
    /// Clients altogether.
    pub clients: u16,
}

impl Sharing {
    /// The way of sharing with this name.
    pub fn named(name: &str) -> Option<u16> {
        SHARINGS.iter().find(|(known, _)| *known == name).map(|(_, clients)| *clients)
    }

    /// Number of partitions.
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
    /// How much it is for, if that is to decide on their number.
    pub sizing: Option<Sizing>,
    /// Whether it is to be several ones, below the directory.
    pub sharing: Option<Sharing>,
    /// What it is told.
    pub settings: PartitionSettings,
    /// Whether that says the stripe size; otherwise it is the formation's, or one that a bucket takes.
    pub says_stripe: bool,
}

/// A partition that was made.
#[derive(Debug)]
pub struct Made {
    /// Where.
    pub path: String,
    /// What.
    pub partition: Partition,
    /// How its seats were come to, if there is something to say.
    pub reason: Option<String>,
}

/// Who makes it.
#[derive(Clone, Copy)]
pub struct Maker<'a> {
    /// The way to the formation.
    pub client: &'a Client,
    /// Owner of directories that are made.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// The formation, whose mounts no source may overlap.
    pub state: &'a State,
}

impl Maker<'_> {
    /// Makes a partition, and its directory if there is none; or, if it is to be shared out, one for each group of
    /// clients, in directories `0`, `1` and so on.
    ///
    /// # Errors
    /// What cannot be, in the user's words.
    pub fn make(&self, plan: &Plan) -> Result<Vec<Made>, Failure> {
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
            let partition = self.make_at(&plan.path, chosen.seats, &settings)?;
            return Ok(vec![Made { path: shown, partition, reason: chosen.reason }]);
        };
        let needed = sharing.groups() * VOLUMES_PER_GROUP;
        if chosen.seats.len() < needed {
            let cause = format!(
                "{} clients, {} to {VOLUMES_PER_GROUP} volumes, need {needed} volumes, and there are {}",
                sharing.clients,
                sharing.clients_per,
                chosen.seats.len()
            );
            return Err(says(cause));
        }
        self.directory(&plan.path)?;
        let mut made = Vec::new();
        for (group, seats) in chosen.seats.chunks(VOLUMES_PER_GROUP).take(sharing.groups()).enumerate() {
            let path = [&plan.path, format!("/{group}").as_bytes()].concat();
            let partition = self.make_at(&path, seats.to_vec(), &settings)?;
            made.push(Made { path: format!("{shown}/{group}"), partition, reason: None });
        }
        Ok(made)
    }

    fn make_at(
        &self,
        path: &[u8],
        seats: Vec<SeatIndex>,
        settings: &PartitionSettings,
    ) -> Result<Partition, Failure> {
        let named = |error: FsError| {
            Failure::new(1, format_args!("partition {}: {error}", String::from_utf8_lossy(path)))
        };
        let (dir, is_new) = self.directory(path)?;
        let ctx = self.client.new_op(0, self.uid, self.gid);
        let made = self.client.partitions.make(&ctx, dir.ino, seats, settings.clone());
        made.map_err(|error| {
            // A partition that may still come to be keeps its directory.
            if is_new && error.errno() != Errno::EIO {
                let _what_counts_is_the_refusal = self.remove_directory(path);
            }
            named(error)
        })
    }

    /// The directory at a path, made if there is none; and whether it was.
    /// The directory at a path, made if there is none; answers also whether it was made.
    ///
    /// # Errors
    /// When it can neither be found nor made.
    pub fn directory(&self, path: &[u8]) -> Result<(Attr, bool), Failure> {
        let named =
            |error: FsError| Failure::new(1, format_args!("{}: {error}", String::from_utf8_lossy(path)));
        let place = self.client.place(path, true).map_err(named)?;
        if place.name.is_empty() {
            return Ok((self.client.getattr(place.parent).map_err(named)?, false));
        }
        let ctx = self.client.new_op(0, self.uid, self.gid);
        let new = NewInode { mode: mode::DIR | DIR_MODE, rdev: 0, target: b"" };
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

    /// The volumes of the nodes that answer, by seats; with their switches only if they are to take turns by them.
    fn candidates(&self, in_turns: bool) -> Vec<Candidate> {
        let map = self.client.map();
        let nodes = (0..map.nodes.len()).map(|node| NodeId(node as u16));
        let states: Vec<_> = nodes.map(|node| self.client.nodes().status(node).ok()).collect();
        let known = self.state.domains().filter(|_| in_turns);
        let candidate = |(seat, place): (u32, &bivouac_client::SeatEntry)| {
            let state = states.get(usize::from(place.node.0))?.as_ref()?;
            let volume = state.volumes.get(usize::from(place.volume))?;
            let host = map.nodes.get(usize::from(place.node.0)).map(|entry| &entry.host);
            let held = volume.used_bytes.saturating_add(volume.records_bytes);
            Some(Candidate {
                seat: SeatIndex(seat),
                node: place.node,
                kind: if volume.kind == "memory" { VolumeKind::Memory } else { VolumeKind::Disk },
                capacity: volume.capacity_bytes,
                free: volume.capacity_bytes.saturating_sub(held),
                switch: known.zip(host).and_then(|(known, host)| known.switch_of(host).map(str::to_owned)),
            })
        };
        (0..).zip(&map.seats).filter_map(candidate).collect()
    }
}

/// The path of a directory from the formation's own on, found by going up from it; `None` if it is gone.
///
/// # Errors
/// `EIO` when a node on the way does not answer.
pub fn path_of(client: &Client, dir: Ino) -> Result<Option<String>, FsError> {
    let (mut ino, mut names) = (dir, Vec::new());
    while ino != Ino::ROOT {
        let parent = match client.parent(ino) {
            Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
            parent => parent?,
        };
        let Some(name) = name_in(client, parent, ino)? else { return Ok(None) };
        names.push(name);
        ino = parent;
    }
    names.reverse();
    Ok(Some(names.iter().map(|name| format!("/{name}")).collect()))
}

/// The name that leads to an inode in a directory.
fn name_in(client: &Client, dir: Ino, ino: Ino) -> Result<Option<String>, FsError> {
    let mut cookie = 0;
    loop {
        let page = client.readdir(dir, cookie, bivouac_types::limits::READDIR_BYTES_MAX, false)?;
        let Some(last) = page.last() else { return Ok(None) };
        cookie = last.cookie;
        if let Some(found) = page.iter().find(|entry| entry.ino == ino) {
            return Ok(Some(String::from_utf8_lossy(&found.name).into_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_clients_have_four_two_or_one_partition() {
        let groups = |name: &str| {
            let clients_per = Sharing::named(name).unwrap();
            [1, 2, 4, 5].map(|clients| Sharing { clients_per, clients }.groups())
        };
        assert_eq!(groups("dedicated"), [1, 2, 4, 5]);
        assert_eq!(groups("semi-dedicated"), [1, 1, 2, 3]);
        assert_eq!(groups("shared"), [1, 1, 1, 2]);
        assert_eq!(Sharing::named("private"), None);
    }
}
