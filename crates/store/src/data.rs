//! The subfiles of one node over its volumes.  (SIGNATURES; bodies follow)
use bivouac_types::{FormationId, Ino, Layout, NodeId, Placement, SeatIndex};
use bivouac_wire::SeatEntry;
use bivouac_wire::subfile::SubfileHeader;

#[derive(Clone, Debug)]
pub struct VolumeConfig { pub path: PathBuf, /** bytes; 0 is what the file system below has */ pub capacity: u64, /** make the directory if it does not exist */ pub create: bool }
#[derive(Clone, Debug)]
pub struct DataOptions { /** most open files kept */ pub handles_max: usize }

/// Which subfile: what one seat holds of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubfileId { /** position of the volume on the node */ pub volume: u16, pub ino: Ino, pub seat: SeatIndex }

/// What the header of a new subfile says about its file.
#[derive(Clone, Copy, Debug)]
pub struct SubfileSpec<'a> { pub partition: u32, pub layout: Layout, pub placement: Placement, /** all seats of the partition, in order (the map's) */ pub seats: &'a [SeatEntry] }

pub struct SubfileStat { /** bytes of data, holes included */ pub len: u64, /** on the volume, header included */ pub allocated: u64, pub epoch: u32, pub path: PathBuf }
pub struct VolumeUsage { pub path: PathBuf, pub kind: VolumeKind, pub capacity: u64, pub used: u64, pub files: u64 }
pub struct ListedSubfile { pub id: SubfileId, pub len: u64, pub allocated: u64, pub header: StoreResult<SubfileHeader> }

impl DataStore {
    pub fn open(volumes: &[VolumeConfig], formation: FormationId, node: NodeId, options: DataOptions) -> StoreResult<DataStore>;
    pub fn with_volumes(volumes: Vec<(Arc<dyn Volume>, u64 /*capacity*/)>, formation: FormationId, options: DataOptions) -> StoreResult<DataStore>;
    pub fn volume(&self, index: u16) -> StoreResult<Arc<dyn Volume>>;            // for Records::open
    pub fn read(&self, id: SubfileId, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> StoreResult<usize>;
    pub fn write(&self, id: SubfileId, spec: &SubfileSpec<'_>, epoch: u32, offset: u64, bufs: &[IoSlice<'_>]) -> StoreResult<u32 /*subfile's epoch*/>; // Err(StaleEpoch{current})
    pub fn trim(&self, id: SubfileId, spec: &SubfileSpec<'_>, epoch: u32, len_max: u64) -> StoreResult<()>; // acts when epoch > the subfile's epoch
    pub fn remove(&self, id: SubfileId) -> StoreResult<bool /*there was one*/>;
    pub fn stat(&self, id: SubfileId) -> StoreResult<Option<SubfileStat>>;
    pub fn sync(&self, id: SubfileId) -> StoreResult<()>;
    pub fn list(&self, volume: u16) -> StoreResult<impl Iterator<Item = ListedSubfile>>;
    pub fn usage(&self) -> Vec<VolumeUsage>;
    pub fn local_file(&self, id: SubfileId) -> StoreResult<Option<LocalFile>>;   // LocalFile: as_fd() -> Option<BorrowedFd>, data_offset() -> u64; Clone
}
