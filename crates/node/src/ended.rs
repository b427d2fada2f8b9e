//! All clients of a formation are dead: it was killed as a whole, and is recovered from its volumes. What was kept for
//! them ends before anything is served, so that nobody waits for clients that cannot come back.

use std::ops::ControlFlow;

use bivouac_store::Records;
use bivouac_types::{ClientId, FsResult, Slot};
use bivouac_wire::Encode;

use crate::identity::is_peer;
use crate::record::{lock_of_key, number_of_key, table};

/// Ends what clients had: their locks, their claim to files without names, and what says which of their operations were
/// done. What nodes know of each other stays: they take unfinished changes up again. To do so once more does no harm.
///
/// # Errors
/// When the log refuses.
pub fn end_clients(records: &Records, slots: impl Iterator<Item = Slot>) -> FsResult<()> {
    let nobody = Vec::<ClientId>::new().to_bytes();
    for slot in slots {
        let mut gone: Vec<Vec<u8>> = Vec::new();
        for letter in [b'C', b'F', b'R'] {
            gone.extend(keys(records, slot, letter).into_iter().filter(|key| is_of_client(key)));
        }
        let nameless = keys(records, slot, b'O');
        if gone.is_empty() && nameless.is_empty() {
            continue;
        }
        let mut txn = records.txn(&[slot]);
        gone.iter().for_each(|key| txn.delete(slot, key));
        // Kept without holders, and not deleted: by this record the reaper finds the inode, and erases it.
        nameless.iter().for_each(|key| txn.put(slot, key, &nobody));
        txn.commit()?;
    }
    Ok(())
}

fn keys(records: &Records, slot: Slot, letter: u8) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    records.scan(slot, &table(letter), &table(letter), |key, _| {
        found.push(key.to_vec());
        ControlFlow::Continue(())
    });
    found
}

/// Returns true if a key is of a record kept for a client that is no node.
fn is_of_client(key: &[u8]) -> bool {
    let client = match key.first() {
        Some(b'F') => lock_of_key(key).map(|(_, (_, client, _), _)| client),
        // Client, then perhaps channel and step.
        _ => key.get(..9).and_then(number_of_key).map(ClientId),
    };
    client.is_some_and(|client| !is_peer(client))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{done_key, lock_key, orphan_key, session_key};
    use bivouac_store::{MemVolume, RecordsOptions, Volume};
    use bivouac_types::{FormationId, Ino, NodeId};
    use bivouac_wire::{Decode, LockKind};
    use std::sync::Arc;

    #[test]
    fn what_is_kept_for_clients_ends_and_what_nodes_know_stays() {
        let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
        let options = RecordsOptions { slots: 2, ..RecordsOptions::default() };
        let records = Records::open(volume, FormationId([7; 16]), NodeId(0), options).unwrap().0;
        let (client, peer, slot) = (ClientId(9), ClientId(ClientId::PEER_BIT | 1), Slot(1));
        let lock = lock_key(Ino(5), (LockKind::Range, client, 3), 0);
        let mut txn = records.txn(&[slot]);
        for key in [&session_key(client)[..], &lock, &done_key(client, 1, 0), &done_key(peer, 1, 0)] {
            txn.put(slot, key, b"x");
        }
        txn.put(slot, &orphan_key(Ino(7)), &vec![client].to_bytes());
        txn.commit().unwrap();
        for _ in 0..2 {
            end_clients(&records, [Slot(0), slot].into_iter()).unwrap();
            let letters = [b'C', b'F', b'R', b'O'].map(|letter| keys(&records, slot, letter).len());
            assert_eq!(letters, [0, 0, 1, 1]);
            assert_eq!(keys(&records, slot, b'R')[0], done_key(peer, 1, 0));
            let held = records.read(slot, &orphan_key(Ino(7)), |value| {
                Vec::<ClientId>::from_bytes(value.unwrap()).unwrap()
            });
            assert_eq!(held, []);
        }
    }
}
