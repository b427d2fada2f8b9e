//! Lists of small pieces that processes write into subfiles themselves, many by one mapping, against everything that must
//! not meet them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::Camp;
use crate::harness::library::{create, cut, library, open, read, served, write};
use crate::harness::random::Random;
use bivouac_client::Client;
use bivouac_types::{Errno, Ino};

/// Pieces of a few bytes from `start` on, with gaps of a few bytes, and in some places of more than a page.
fn pieces(random: &mut Random, start: usize, count: usize) -> Vec<(u64, Vec<u8>)> {
    let mut at = start;
    let mut pieces = Vec::new();
    for _ in 0..count {
        let (long, wide) = (random.below(50) == 0, random.below(50) == 0);
        let len = 1 + random.below(if long { 5000 } else { 90 });
        pieces.push((at as u64, random.bytes(len)));
        at += len + random.below(if wide { 9000 } else { 100 });
    }
    pieces
}

fn write_pieces(client: &Client, ino: Ino, pieces: &[(u64, Vec<u8>)]) -> Result<(), Errno> {
    let places: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    client.write_list(ino, &places).map_err(|error| error.errno())
}

fn put(model: &mut Vec<u8>, pieces: &[(u64, Vec<u8>)]) {
    for (at, bytes) in pieces {
        let end = *at as usize + bytes.len();
        model.resize(model.len().max(end), 0);
        model[*at as usize..end].copy_from_slice(bytes);
    }
}

/// S121 and S468, over killed daemons.
#[test]
fn small_pieces_are_where_they_belong_and_survive_kills() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k", "--deaths-max", "99/1ms"]) else {
        return;
    };
    let (mut random, mut model) = (Random::new(Random::seed()), Vec::new());
    let clients = [library(&camp.dir()), library(&camp.dir())];
    let ino = create(&clients[0], "file");
    open(&clients[1], ino);
    for round in 0..24 {
        let client = &clients[round % 2];
        let start = random.below(20 * 65_536);
        let pieces = pieces(&mut random, start, 2000);
        write_pieces(client, ino, &pieces).unwrap();
        put(&mut model, &pieces);
        if round % 6 == 5 {
            assert!(round > 5 || served(client, "GrantDirect") > 0);
            camp.kill_node(round / 6 % 2);
        }
        let reader = &clients[random.below(2)];
        let mut buffers: Vec<Vec<u8>> = pieces.iter().map(|(_, bytes)| vec![0xee; bytes.len()]).collect();
        let mut wanted: Vec<(u64, &mut [u8])> =
            pieces.iter().zip(&mut buffers).map(|((at, _), buffer)| (*at, &mut buffer[..])).collect();
        reader.read_list(ino, &mut wanted).unwrap();
        assert!(pieces.iter().zip(&buffers).all(|((_, bytes), buffer)| bytes == buffer), "round {round}");
        assert!(read(reader, ino, 0, model.len() + 10) == model, "round {round}");
    }
    assert!(fs::read(camp.mount().join("file")).unwrap() == model);
    clients.iter().for_each(|client| client.close(ino));
    drop(clients);
    camp.down();
}

#[test]
fn processes_that_write_between_each_other_s_pieces_lose_none() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let clients: Vec<Client> = (0..3).map(|_| library(&camp.dir())).collect();
    let ino = create(&clients[0], "file");
    clients[1..].iter().for_each(|client| open(client, ino));
    std::thread::scope(|scope| {
        for (rank, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..20usize {
                    let own = |piece: usize| {
                        (((round * 3000 + piece * 3 + rank) * 8) as u64, vec![1 + rank as u8; 8])
                    };
                    let pieces: Vec<(u64, Vec<u8>)> = (0..1000).map(own).collect();
                    write_pieces(client, ino, &pieces).unwrap();
                }
            });
        }
    });
    let content = fs::read(camp.mount().join("file")).unwrap();
    assert_eq!(content.len(), 20 * 3000 * 8);
    assert!(content.chunks(8).enumerate().all(|(piece, bytes)| bytes == [1 + (piece % 3) as u8; 8]));
    clients.iter().for_each(|client| client.close(ino));
}

/// A page that is cut off under a mapping would end the process.
#[test]
fn a_cut_waits_for_pieces_that_are_being_written() {
    let Some(camp) = Camp::start(&["--nodes", "1"]) else { return };
    let (writer, cutter) = (library(&camp.dir()), library(&camp.dir()));
    let ino = create(&writer, "file");
    open(&cutter, ino);
    let all: Vec<(u64, Vec<u8>)> = (0..8000).map(|piece| (piece * 32, vec![7; 16])).collect();
    write_pieces(&writer, ino, &all).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200 {
                cut(&cutter, ino, round * 1000 % 7001);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            write_pieces(&writer, ino, &all).unwrap();
        }
    });
    cut(&cutter, ino, 100);
    write_pieces(&writer, ino, &all[1000..]).unwrap();
    let mut expected = vec![0; 7999 * 32 + 16];
    (0..100).for_each(|at| expected[at] = if at % 32 < 16 { 7 } else { 0 });
    (1000..8000).for_each(|piece| expected[piece * 32..][..16].fill(7));
    assert!(read(&cutter, ino, 0, expected.len() + 1) == expected);
    [writer, cutter].iter().for_each(|client| client.close(ino));
}

/// A page that there is no space for would end the process, too.
#[test]
fn pieces_that_do_not_fit_are_refused() {
    let memory = tempfile::Builder::new().prefix("bvk").tempdir_in("/dev/shm").unwrap();
    let volume = format!("{}:8m", memory.path().display());
    let Some(camp) = Camp::start(&["--volume", &volume, "--stripe", "64k"]) else { return };
    let client = library(&camp.dir());
    let ino = create(&client, "file");
    write(&client, ino, 0, &[1; 100]);
    let list = |turn: usize| -> Vec<(u64, Vec<u8>)> {
        (0..1000)
            .map(|piece| (((turn * 1000 + piece) * 64) as u64, vec![1 + (turn % 250) as u8; 32]))
            .collect()
    };
    let fitted = (0..1000).take_while(|turn| write_pieces(&client, ino, &list(*turn)).is_ok()).count();
    assert_eq!(write_pieces(&client, ino, &list(fitted)).unwrap_err(), Errno::ENOSPC);
    assert!((80..132).contains(&fitted), "{fitted} lists of 64 kB fitted into 8 MiB");
    let content = read(&client, ino, 0, 1 << 30);
    for turn in 0..fitted {
        for (at, bytes) in list(turn) {
            assert!(content[at as usize..].starts_with(&bytes), "list {turn}");
        }
    }
    client.close(ino);
    drop(client);
    camp.down();
}
