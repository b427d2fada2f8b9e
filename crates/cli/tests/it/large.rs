//! Large calls over TCP, to daemons that are processes: what they write is what everybody reads, also while daemons are killed.

use std::fs;

use crate::harness::Camp;
use crate::harness::library::{create, far_library, open, read, write};
use bivouac_client::Client;
use bivouac_types::NodeId;

const NODES: u16 = 3;
const LEN: usize = (20 << 20) + 777;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 7 % 253) as u8 ^ (at >> 13) as u8).collect()
}

/// How often all nodes served an operation; `None` while one of them cannot say.
fn served(client: &Client, operation: &str) -> Option<u64> {
    let of = |node| {
        let operations = client.nodes().status(NodeId(node)).ok()?.operations;
        Some(operations.iter().find(|count| count.name == operation).map_or(0, |count| count.client))
    };
    (0..NODES).map(of).sum()
}

/// S274.
#[test]
fn a_large_call_over_tcp_is_what_everybody_sees() {
    // Stripes shorter and longer than a message.
    for stripe in ["64k", "4m"] {
        let Some(camp) = Camp::start(&["--nodes", "3", "--stripe", stripe]) else { return };
        let (writer, reader) = (far_library(&camp.dir()), far_library(&camp.dir()));
        let ino = create(&writer, "file");
        let mut model = vec![0; 12_345];
        model.extend(bytes(LEN, 1));
        write(&writer, ino, 12_345, &model[12_345..]);
        // Again, within the size and beyond it.
        let again = bytes(LEN, 2);
        write(&writer, ino, 5 << 20, &again);
        model.truncate(5 << 20);
        model.extend(&again);
        assert!(fs::read(camp.mount().join("file")).unwrap() == model, "stripes of {stripe}");
        open(&reader, ino);
        let asked = served(&reader, "Read").unwrap();
        assert!(read(&reader, ino, 0, 2 * LEN) == model, "stripes of {stripe}");
        let messages = served(&reader, "Read").unwrap() - asked;
        // Messages of 1 MiB, of which the first and the last of each target may be shorter.
        assert!((26..=30).contains(&messages), "{messages} messages with stripes of {stripe}");
        drop((writer, reader));
        camp.down();
    }
}

#[test]
fn large_calls_are_whole_while_daemons_are_killed() {
    const ROUNDS: usize = 4;
    let Some(camp) = Camp::start(&["--nodes", "3", "--stripe", "256k", "--deaths-max", "99/1ms"]) else {
        return;
    };
    let client = far_library(&camp.dir());
    let ino = create(&client, "file");
    // One is killed while a call goes on: those that live shorter than a call are no use to it.
    let killed = |node: usize, call: &mut dyn FnMut()| {
        std::thread::scope(|scope| {
            scope.spawn(|| camp.kill_node(node % usize::from(NODES)));
            call();
        });
    };
    for round in 0..ROUNDS {
        let data = bytes(LEN, round);
        killed(round, &mut || write(&client, ino, round * 1000, &data));
        killed(round + 1, &mut || {
            assert!(read(&client, ino, round * 1000, LEN + 1) == data, "round {round}");
        });
    }
    let size = client.getattr(ino).unwrap().size;
    assert_eq!(size as usize, (ROUNDS - 1) * 1000 + LEN);
    client.close(ino);
    drop(client);
    camp.down();
}
