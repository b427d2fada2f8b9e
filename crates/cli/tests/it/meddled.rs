//! Programs over a network that changes bytes: what they read and write is right, or an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::library::{create, ctx, cut, far_library, far_library_over, open, read, write};
use crate::harness::{Camp, wait_until};
use bivouac_client::Client;
use bivouac_net::TamperingProxy;
use bivouac_types::{Errno, NodeId};
use bivouac_wire::Frame;

/// Of so many frames one is changed. Which is drawn: at equal distances it could be the same step of each attempt.
const EVERY: u64 = 10;

fn drawn(turn: u64) -> bool {
    turn.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
        & 0xffff
        < 0x1_0000 / EVERY
}

/// A formation of two nodes, and a client for which something stands before each of them.
struct Bad {
    camp: Camp,
    client: Client,
    changes: Arc<AtomicU64>,
    /// Whether all that has a payload is changed.
    hopeless: Arc<AtomicBool>,
    _between: Vec<TamperingProxy>,
}

impl Bad {
    fn network() -> Option<Bad> {
        let camp = Camp::start(&["--nodes", "2", "--stripe", "64k"])?;
        let (changes, hopeless) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut between = Vec::new();
        let client = far_library_over(&camp.dir(), |map| {
            for node in &mut map.nodes {
                let (changes, hopeless, seen) =
                    (Arc::clone(&changes), Arc::clone(&hopeless), AtomicU64::new(0));
                let meddle = move |frame: &Frame, rest: &mut [u8]| {
                    let turn = seen.fetch_add(1, Ordering::Relaxed);
                    let is_meant = drawn(turn);
                    let is_hopeless = frame.payload_len > 0 && hopeless.load(Ordering::Relaxed);
                    let at = usize::try_from(turn.wrapping_mul(7919)).unwrap() % rest.len().max(1);
                    if let Some(byte) = rest.get_mut(at)
                        && (is_meant || is_hopeless)
                    {
                        *byte ^= 1 << (turn % 8);
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                };
                let meddler = TamperingProxy::before(node.client_address.clone(), meddle).unwrap();
                node.client_address = meddler.address().to_string();
                between.push(meddler);
            }
        });
        Some(Bad { camp, client, changes, hopeless, _between: between })
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn counted(&self) -> u64 {
        let nodes = [0, 1].map(|node| self.client.nodes().status(NodeId(node)).unwrap().operations);
        let of = |count: &bivouac_wire::OpCount| {
            if count.name == "Damaged" { count.client + count.peer } else { 0 }
        };
        nodes.iter().flatten().map(of).sum()
    }
}

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 509 + seed * 17) as u8).collect()
}

/// S340, S341, S345.
#[test]
fn no_wrong_byte_is_stored_or_read() {
    let Some(bad) = Bad::network() else { return };
    let clean = far_library(&bad.camp.dir());
    for (number, len) in [1, 300, 5_000, 65_536, 200_000, 1_000_000, 3_000_001].into_iter().enumerate() {
        let (name, data) = (format!("f{number}"), content(len, number));
        let file = create(&bad.client, &name);
        write(&bad.client, file, 0, &data);
        // Parts over what is there, at the end, and in lists.
        let part = content(len / 3 + 1, number + 50);
        write(&bad.client, file, len / 4, &part);
        let appended = bad.client.write(&ctx(&bad.client), file, 0, b"the end", true).unwrap();
        let lists: Vec<(u64, &[u8])> = (0..len as u64 / 7000).map(|at| (at * 7000, &b"listed"[..])).collect();
        bad.client.write_list(file, &lists).unwrap();
        let mut expected = data;
        expected.splice(len / 4..(len / 4 + part.len()).min(len), part.iter().copied());
        expected.extend_from_slice(&b"the end"[..appended]);
        lists.iter().for_each(|(at, bytes)| expected[*at as usize..][..6].copy_from_slice(bytes));
        open(&clean, file);
        assert!(read(&clean, file, 0, len + 100) == expected, "stored: {name}");
        assert!(read(&bad.client, file, 0, len + 100) == expected, "read: {name}");
        cut(&bad.client, file, 5);
        assert!(read(&clean, file, 0, 100) == expected[..5.min(expected.len())]);
    }
    let (changes, counted) = (bad.changes(), bad.counted());
    assert!(changes > 20 && counted > 10, "{changes} changes, {counted} noticed");
    let says = "changed on the way and sent again";
    wait_until("status shows it", || bad.camp.run("status", &[]).out.contains(says));
    drop(clean);
    let Bad { camp, client, .. } = bad;
    drop(client);
    camp.down();
}

/// S342.
#[test]
fn where_every_byte_is_changed_there_is_an_error() {
    let Some(bad) = Bad::network() else { return };
    let clean = far_library(&bad.camp.dir());
    let file = create(&bad.client, "f");
    let before = content(100_000, 1);
    write(&bad.client, file, 0, &before);
    bad.hopeless.store(true, Ordering::Relaxed);
    let failed = bad.client.write(&ctx(&bad.client), file, 0, &content(100_000, 2), false).unwrap_err();
    assert_eq!(failed.errno(), Errno::EIO);
    assert!(failed.to_string().contains("was damaged on the way"), "{failed}");
    let failed = bad.client.read(file, 0, &mut [0; 100_000]).unwrap_err();
    assert_eq!(failed.errno(), Errno::EIO);
    open(&clean, file);
    assert!(read(&clean, file, 0, 200_000) == before, "nothing of it was stored");
    bad.hopeless.store(false, Ordering::Relaxed);
    assert!(read(&bad.client, file, 0, 200_000) == before, "and it goes on");
}
