//! Site storage that is open.

use std::collections::HashMap;
use std::sync::Arc;

use bivouac_ranks::Mutex;
use bivouac_source::Source;
use bivouac_types::PartitionId;

/// Puts something around each source, as tests do.
pub type SourceDecorator = Arc<dyn Fn(Box<dyn Source>) -> Box<dyn Source> + Send + Sync>;

/// Site storage of one partition.
pub struct Site {
    /// Its source.
    pub source: Box<dyn Source>,
}

/// Open sources of partitions, for writing or only for reading.
#[derive(Default)]
pub struct Sites {
    pub open: Mutex<HashMap<(PartitionId, bool), Arc<Site>>>,
}
