//! Site storage of partitions, opened when it is first needed.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use bivouac_source::{
    Cause, Environment, PosixSource, ReadOnlySource, S3Location, S3Source, Source, SourceError, Version,
};
use bivouac_types::{Errno, FsError, FsResult, Ino, PartitionId, Site as Place, WritePolicy};
use bivouac_wire::{Partition, PartitionState, SiteVersion};

use crate::node::Node;
use crate::proxy_state::{LinkAccess, Site};
use crate::record::root_key;

impl Node {
    /// Returns the source of a partition that stands in front of site storage, and whether it is only read.
    fn source_of(&self, partition: PartitionId) -> Option<(bivouac_types::Source, bool)> {
        let settings = &self.partitions.get(partition)?.settings;
        Some((settings.source.clone()?, settings.write == WritePolicy::Never))
    }

    /// Returns the site storage of a partition, if it stands in front of any.
    ///
    /// # Errors
    /// `EIO` when it is not to be reached, or not what it was.
    pub(super) fn site(&self, partition: PartitionId) -> FsResult<Option<Arc<Site>>> {
        let Some((source, is_unchanged)) = self.source_of(partition) else { return Ok(None) };
        // By the policy, too: one that is only read is wrapped, and the policy may be changed.
        if let Some(site) = self.proxy.sites.open.lock().get(&(partition, is_unchanged)) {
            return Ok(Some(Arc::clone(site)));
        }
        // Nothing is to be had of a link that was removed.
        if source.is_detached() {
            return Ok(None);
        }
        let mut source = open(source.site(), &self.objects, &self.links)?;
        if let Some(around) = &self.around {
            source = around(source);
        }
        self.check_root(partition, &*source)?;
        let source = if is_unchanged { Box::new(ReadOnlySource(source)) } else { source };
        let site = Arc::new(Site { source });
        self.proxy.sites.open.lock().insert((partition, is_unchanged), Arc::clone(&site));
        // Nobody closes again what was closed for good while this was on its way.
        if self.partitions.get(partition).is_some_and(|known| known.state == PartitionState::Removed) {
            self.proxy.sites.open.lock().remove(&(partition, is_unchanged));
        }
        Ok(Some(site))
    }

    /// Returns the site storage of a partition that stands in front of some.
    pub(super) fn site_of(&self, partition: PartitionId) -> FsResult<Arc<Site>> {
        let unbound = || FsError::with(Errno::EINVAL, format!("{partition} has no source"));
        self.site(partition)?.ok_or_else(unbound)
    }

    /// Closes the source of a partition that is gone, and links that no partition has any more.
    pub(crate) fn close_sources(&self, partition: PartitionId) {
        let is_gone = |partition: &Partition| partition.state == PartitionState::Removed;
        if !self.partitions.get(partition).is_some_and(|partition| is_gone(&partition)) {
            return;
        }
        self.proxy.sites.open.lock().retain(|(of, _), _| *of != partition);
        let mut used = HashSet::new();
        for known in self.partitions.all().iter().filter(|known| !is_gone(known)) {
            if let Some(Place::Formation { address, key, .. }) =
                known.settings.source.as_ref().map(bivouac_types::Source::site)
            {
                used.insert((address.clone(), key.clone()));
            }
        }
        self.links.close_others(&used);
    }

    /// Checks that the root is what this node saw when it saw it first: not an empty directory where something was
    /// mounted.
    fn check_root(&self, partition: PartitionId, source: &dyn Source) -> FsResult<()> {
        source.check()?;
        let tag = source.stat(b"")?.version.tag;
        let (slot, key) = (self.part_slot(Ino::ROOT), root_key(partition));
        let mut txn = self.records.txn(&[slot]);
        match txn.get(slot, &key) {
            Some(known) if known == tag.as_bytes() => return Ok(()),
            Some(_) => {
                let text =
                    format!("the source of {partition} is not the directory that it was: is it mounted?");
                return Err(SourceError::new(Cause::Lost, text).into());
            }
            None => txn.put(slot, &key, tag.as_bytes()),
        }
        self.commit_note(txn)
    }
}

/// Opens site storage.
///
/// # Errors
/// Why it cannot be opened.
pub fn open(place: &Place, objects: &Environment, links: &LinkAccess) -> FsResult<Box<dyn Source>> {
    match place {
        Place::Directory { path } => Ok(Box::new(PosixSource::open(Path::new(path))?)),
        Place::S3 { bucket, prefix, endpoint, region } => {
            let (bucket, prefix) = (bucket.clone(), prefix.clone());
            let place = S3Location { bucket, prefix, endpoint: endpoint.clone(), region: region.clone() };
            Ok(Box::new(S3Source::open(&place, objects)?))
        }
        Place::Formation { address, name, key, .. } => Ok(Box::new(links.open(address, name, key)?)),
    }
}

/// Checks that stripes of these sizes can be uploaded to the source as pieces.
///
/// # Errors
/// `EINVAL` for one that is too small.
pub fn check_stripes(source: &dyn Source, stripes: impl Iterator<Item = u32>) -> FsResult<()> {
    let Some(least) = source.piece_size(0) else { return Ok(()) };
    match stripes.min().filter(|stripe| u64::from(*stripe) < least) {
        Some(stripe) => {
            let text = format!(
                "the source takes files in pieces of {least} bytes at least, and nodes bring it their stripes, of \
                 {stripe} bytes: say --stripe 8m"
            );
            Err(FsError::with(Errno::EINVAL, text))
        }
        None => Ok(()),
    }
}

/// Converts a version to its form on the wire.
pub fn to_wire(version: Version) -> SiteVersion {
    SiteVersion { size: version.size, mtime: version.mtime, tag: version.tag }
}

/// Converts a version to the form of sources.
pub fn from_wire(version: SiteVersion) -> Version {
    Version { size: version.size, mtime: version.mtime, tag: version.tag }
}
