//! Claims of requests on uploads in several requests.

use std::collections::HashMap;
use std::sync::Arc;

use bivouac_types::{Errno, FsResult, Ino};
use parking_lot::{Mutex, MutexGuard};

/// Ownership of uploads: the latest request for an upload owns it. An earlier one, which may wait on a dead connection,
/// writes no more.
#[derive(Clone, Default)]
pub struct UploadClaims(Arc<Mutex<HashMap<PartName, Arc<Mutex<u64>>>>>);

/// Directory and name of what there is of an upload.
type PartName = (Ino, Vec<u8>);

/// The claim of one request.
pub struct UploadClaim {
    all: UploadClaims,
    key: PartName,
    last: Arc<Mutex<u64>>,
    number: u64,
}

impl UploadClaims {
    /// Claims an upload for a request; no request that came before has it any more.
    pub fn claim(&self, parent: Ino, part: &[u8]) -> UploadClaim {
        let key = (parent, part.to_vec());
        // Under the lock of the table, where a claim that ends counts the references.
        let last = Arc::clone(self.0.lock().entry(key.clone()).or_default());
        let number = {
            let mut last = last.lock();
            *last += 1;
            *last
        };
        UploadClaim { all: self.clone(), key, last, number }
    }
}

impl UploadClaim {
    /// Excludes other requests from the upload as long as the guard is held.
    ///
    /// # Errors
    /// `EBUSY` if another request has it by now.
    pub fn hold(&self) -> FsResult<MutexGuard<'_, u64>> {
        let last = self.last.lock();
        assert!(*last >= self.number, "claim {} comes after the last one, {last}", self.number);
        if *last == self.number { Ok(last) } else { Err(Errno::EBUSY.into()) }
    }
}

impl Drop for UploadClaim {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        // Two references: that of the table, and this one.
        if Arc::strong_count(&self.last) == 2 {
            all.remove(&self.key);
        }
    }
}
