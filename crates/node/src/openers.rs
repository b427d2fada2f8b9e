//! Clients that may have files open here, remembered over restarts: which files those are is in memory only.
//! Until each of them has said again what it has open, a file that loses its last name may be open.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_store::Records;
use bivouac_types::limits::CLIENTS_MAX;
use bivouac_types::{ClientId, Errno, FsError, FsResult, Slot};
use parking_lot::Mutex;

use crate::record::{number_of_key, opener_key, table};

/// The clients that ever had a file open here and were not forgotten since.
pub struct Openers {
    /// Slot of their records.
    slot: Slot,
    /// Whether anybody is unheard; for a look without the lock.
    waits: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashSet<ClientId>,
    /// Those that have not said yet, since the start, what they have open.
    unheard: HashSet<ClientId>,
}

impl Openers {
    /// Those that an earlier daemon knew have to be heard again.
    pub fn open(records: &Records, slot: Slot) -> Openers {
        let mut known = HashSet::new();
        records.scan(slot, &table(b'C'), &table(b'C'), |key, _| {
            known.extend(number_of_key(key).map(ClientId));
            ControlFlow::Continue(())
        });
        let waits = AtomicBool::new(!known.is_empty());
        Openers { slot, waits, state: Mutex::new(State { unheard: known.clone(), known }) }
    }

    /// A client is about to open a file. The caller must not be inside a transaction.
    ///
    /// # Errors
    /// When the record of a new client cannot be written.
    pub fn note(&self, records: &Records, client: ClientId) -> FsResult<()> {
        let mut state = self.state.lock();
        if !state.known.contains(&client) {
            if state.known.len() >= CLIENTS_MAX {
                let text = format!("{CLIENTS_MAX} clients have files open whose home is here");
                return Err(FsError::with(Errno::EMFILE, text));
            }
            let mut txn = records.txn(&[self.slot]);
            txn.put(self.slot, &opener_key(client), &[]);
            txn.commit()?;
            state.known.insert(client);
        }
        Ok(())
    }

    /// A client has said what it has open. Whether that was news.
    pub fn heard(&self, client: ClientId) -> bool {
        self.waits.load(Ordering::Acquire) && self.state.lock().hear(client, &self.waits)
    }

    /// A client will not come back.
    ///
    /// # Errors
    /// When its record cannot be removed.
    pub fn forget(&self, records: &Records, client: ClientId) -> FsResult<()> {
        let mut state = self.state.lock();
        state.hear(client, &self.waits);
        if state.known.remove(&client) {
            let mut txn = records.txn(&[self.slot]);
            txn.delete(self.slot, &opener_key(client));
            txn.commit()?;
        }
        Ok(())
    }

    /// All of them.
    pub fn known(&self) -> Vec<ClientId> {
        self.state.lock().known.iter().copied().collect()
    }

    /// Clients that may have any file open.
    pub fn unheard(&self) -> Vec<ClientId> {
        match self.waits.load(Ordering::Acquire) {
            true => self.state.lock().unheard.iter().copied().collect(),
            false => Vec::new(),
        }
    }
}

impl State {
    fn hear(&mut self, client: ClientId, waits: &AtomicBool) -> bool {
        let news = self.unheard.remove(&client);
        waits.store(!self.unheard.is_empty(), Ordering::Release);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_store::{MemVolume, RecordsOptions, Volume};
    use bivouac_types::{FormationId, NodeId};
    use std::sync::Arc;

    fn records(volume: &Arc<dyn Volume>) -> Records {
        let options = RecordsOptions { slots: 1, ..RecordsOptions::default() };
        Records::open(volume.clone(), FormationId([7; 16]), NodeId(0), options).unwrap().0
    }

    #[test]
    fn those_who_had_files_open_are_waited_for_after_a_restart() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let open = || records(&volume);
        let (a, b, c) = (ClientId(1), ClientId(2), ClientId(3));
        let records = open();
        let openers = Openers::open(&records, Slot(0));
        [a, b, c, a].into_iter().for_each(|client| openers.note(&records, client).unwrap());
        openers.forget(&records, c).unwrap();
        assert_eq!((openers.unheard(), openers.heard(a)), (vec![], false));
        drop(records);
        let records = open();
        let openers = Openers::open(&records, Slot(0));
        let mut unheard = openers.unheard();
        unheard.sort_unstable();
        assert_eq!(unheard, [a, b]);
        assert!(openers.heard(a) && !openers.heard(a) && !openers.heard(c));
        openers.forget(&records, b).unwrap();
        assert!(openers.unheard().is_empty());
    }
}
