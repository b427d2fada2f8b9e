//! The subfiles of a volume that no daemon has: for checking, repairing and re-assembling.

use std::io::IoSlice;
use std::sync::Arc;

use bivouac_types::FormationId;
use bivouac_types::limits::SUBFILE_HEADER_LEN;
use bivouac_wire::subfile::SubfileHeader;

use super::damage::Scrubbed;
use super::scan::{self, ListedSubfile};
use super::subfile::{AccessError, OpenSubfile, read_header};
use super::summed::{begin_sums, has_sums};
use super::table::Table;
use super::{SubfileId, names};
use crate::volume::transfer::write_all_at;
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

/// The subfiles of one volume.
#[derive(Clone, Debug)]
pub struct Subfiles {
    volume: Arc<dyn Volume>,
    index: u16,
    formation: FormationId,
    /// The table of subfiles, if it can be read.
    table: Option<Arc<Table>>,
}

impl Subfiles {
    /// Creates the list of a volume's subfiles, which is its node's number `index`.
    #[must_use]
    pub fn new(volume: Arc<dyn Volume>, index: u16, formation: FormationId) -> Subfiles {
        let table = Table::open(&*volume, index, OpenMode::Existing);
        let table = table.inspect_err(|error| log::warn!(error:%; "{error}")).ok().map(Arc::new);
        Subfiles { volume, index, formation, table }
    }

    /// Like [`crate::DataStore::list_page`].
    ///
    /// # Errors
    /// `Io`.
    pub fn page(&self, after: Option<SubfileId>, max: usize) -> StoreResult<(Vec<ListedSubfile>, bool)> {
        let table = self.table.as_ref().map(|table| (&**table, &(|_| true) as &dyn Fn(SubfileId) -> bool));
        scan::page((&*self.volume, self.index, self.formation), table, after, max)
    }

    /// Returns the file of a subfile; its data begins behind the header.
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
        let mut bytes = header.to_bytes();
        let mut own_len = header.own_len();
        if header.sums {
            own_len = begin_sums(&mut bytes);
        }
        let own = bytes.get(..own_len).unwrap_or(&bytes);
        let written = write_all_at(&*file, &[IoSlice::new(own)], 0);
        written.and_then(|()| file.sync()).map_err(StoreError::io(self.what("write header", id)))
    }

    /// Returns whether the blocks of a subfile have checksums, also when its header is damaged.
    #[must_use]
    pub fn has_sums(&self, id: SubfileId) -> bool {
        self.open(id).is_ok_and(|file| has_sums(&*file))
    }

    /// Compares all of a subfile with its checksums; nothing is changed. Those without any are sound.
    ///
    /// # Errors
    /// `Corrupt` and the like for its header, `Io`.
    pub fn scrub(&self, id: SubfileId, mut progress: impl FnMut(u64)) -> StoreResult<Scrubbed> {
        let file = self.open(id)?;
        let failed = |error| StoreError::io(self.what("compare", id))(error);
        let header = read_header(&*file).map_err(failed)?;
        let header = scan::check_header(header, &*self.volume, id, self.formation)?;
        let mut all = Scrubbed::default();
        if !header.sums {
            return Ok(all);
        }
        let mut open = OpenSubfile::existing(file, &header).map_err(failed)?;
        if let Err(AccessError::Cut { len }) = open.check_len() {
            let cause = "it was cut here, and not by bivouac: what was behind is lost".into();
            return Err(StoreError::Corrupt { path: self.path_of(id).into(), offset: len, cause });
        }
        open.find_sums(None).map_err(failed)?;
        let mut next = Some(0);
        while let Some(from) = next {
            let found = open.scrub(from, false).map_err(failed)?;
            next = found.next;
            all.add(found);
            progress(all.compared);
        }
        all.next = None;
        Ok(all)
    }

    /// Removes a subfile and its data.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove(&self, id: SubfileId) -> StoreResult<()> {
        let noted = self.table.as_ref().map_or(Ok(false), |table| table.remove(id));
        let removed = noted.and_then(|_| self.volume.remove(&names::name_of(id)));
        removed.map_err(StoreError::io(self.what("remove", id)))
    }

    /// Returns the path of a subfile, for messages.
    #[must_use]
    pub fn path_of(&self, id: SubfileId) -> String {
        self.volume.path().join(names::name_of(id)).display().to_string()
    }

    fn what(&self, what: &str, id: SubfileId) -> String {
        format!("{}: {what}", self.path_of(id))
    }
}

impl ListedSubfile {
    /// Returns whether its header was ever complete.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.file_len >= SUBFILE_HEADER_LEN
    }
}
