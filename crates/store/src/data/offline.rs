//! The subfiles of a volume that no daemon has: for checking, repairing and re-assembling.

use std::io::IoSlice;
use std::sync::Arc;

use bivouac_types::FormationId;
use bivouac_types::limits::SUBFILE_HEADER_LEN;
use bivouac_wire::subfile::SubfileHeader;

use super::scan::{self, ListedSubfile};
use super::{SubfileId, names};
use crate::volume::transfer::write_all_at;
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

/// The subfiles of one volume.
#[derive(Clone, Debug)]
pub struct Subfiles {
    volume: Arc<dyn Volume>,
    index: u16,
    formation: FormationId,
}

impl Subfiles {
    /// Those of this volume, which is its node's number `index`.
    #[must_use]
    pub fn new(volume: Arc<dyn Volume>, index: u16, formation: FormationId) -> Subfiles {
        Subfiles { volume, index, formation }
    }

    /// As [`crate::DataStore::list_page`].
    ///
    /// # Errors
    /// `Io`.
    pub fn page(&self, after: Option<SubfileId>, max: usize) -> StoreResult<(Vec<ListedSubfile>, bool)> {
        scan::page(&*self.volume, self.index, self.formation, after, max)
    }

    /// The file of a subfile; its data begins behind the header.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(&self, id: SubfileId) -> StoreResult<Arc<dyn VolumeFile>> {
        let name = names::name_of(id);
        self.volume.open(&name, OpenMode::Existing).map_err(StoreError::io(self.what("open", id)))
    }

    /// Writes a new header over the old one, by one write.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_header(&self, id: SubfileId, header: &SubfileHeader) -> StoreResult<()> {
        let file = self.open(id)?;
        let written = write_all_at(&*file, &[IoSlice::new(&header.to_bytes())], 0);
        written.and_then(|()| file.sync()).map_err(StoreError::io(self.what("write header", id)))
    }

    /// Removes a subfile and its data.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove(&self, id: SubfileId) -> StoreResult<()> {
        self.volume.remove(&names::name_of(id)).map_err(StoreError::io(self.what("remove", id)))
    }

    /// Where a subfile is, for messages.
    #[must_use]
    pub fn path_of(&self, id: SubfileId) -> String {
        self.volume.path().join(names::name_of(id)).display().to_string()
    }

    fn what(&self, what: &str, id: SubfileId) -> String {
        format!("{}: {what}", self.path_of(id))
    }
}

impl ListedSubfile {
    /// Whether its header was ever complete.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.file_len >= SUBFILE_HEADER_LEN
    }
}
