//! A file that several processes make longer at once, each knowing only of its own writes: blocks in turn, holes that
//! are left and filled, cuts in between, and kills.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::library::{create, cut, library, messages, open, read, write};
use crate::harness::random::Random;
use crate::harness::{Camp, wait_until};
use bivouac_client::Client;
use bivouac_types::Ino;

const BLOCK: usize = 4096;
const WRITERS: usize = 4;
/// What a write may cost in messages.
const MESSAGES: [&str; 5] = ["Write", "Extend", "ExtendOver", "LendSize", "GrantDirect"];

fn camp(nodes: usize) -> Option<Camp> {
    let nodes = nodes.to_string();
    Camp::start(&["--nodes", &nodes, "--stripe", "64k", "--deaths-max", "99/1ms"])
}

/// Several that have the same new file open.
fn writers(camp: &Camp) -> (Vec<Client>, Ino) {
    let clients: Vec<Client> = (0..WRITERS).map(|_| library(&camp.dir())).collect();
    let ino = create(&clients[0], "file");
    clients[1..].iter().for_each(|client| open(client, ino));
    (clients, ino)
}

fn block(number: usize) -> [u8; BLOCK] {
    let mut block = [number as u8; BLOCK];
    block[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
    block
}

fn put(client: &Client, ino: Ino, number: usize) {
    write(client, ino, number * BLOCK, &block(number));
}

/// All write in turn until none of them sends a message any more; how many blocks there are.
fn warmed_up(clients: &[Client], ino: Ino) -> usize {
    let mut blocks = 0;
    wait_until("nobody sends messages", || {
        let before = messages(&clients[0], &MESSAGES);
        for _ in 0..10 * WRITERS {
            put(&clients[blocks % WRITERS], ino, blocks);
            blocks += 1;
        }
        messages(&clients[0], &MESSAGES) == before
    });
    blocks
}

fn assert_content(content: &[u8], blocks: usize) {
    assert_eq!(content.len(), blocks * BLOCK);
    for (number, bytes) in content.chunks(BLOCK).enumerate() {
        assert!(bytes == block(number), "block {number}");
    }
}

/// S1, S2, S20, S27.
#[test]
fn several_that_write_in_turn_send_no_messages() {
    for nodes in [1, 3] {
        let Some(camp) = camp(nodes) else { return };
        let (clients, ino) = writers(&camp);
        let first = warmed_up(&clients, ino);
        let path = camp.mount().join("file");
        let (mut random, mut blocks) = (Random::new(5), first);
        let before = messages(&clients[0], &MESSAGES);
        for _ in 0..100 {
            // Whoever comes first leaves a hole for the others.
            let turn = random.below(WRITERS);
            (0..WRITERS).for_each(|at| {
                let number = blocks + (turn + at) % WRITERS;
                put(&clients[number % WRITERS], ino, number);
            });
            blocks += WRITERS;
            let seen = fs::metadata(&path).unwrap();
            assert_eq!((seen.len(), seen.blocks() * 512), ((blocks * BLOCK) as u64, (blocks * BLOCK) as u64));
        }
        assert_eq!(
            messages(&clients[0], &MESSAGES),
            before,
            "for {} writes on {nodes} nodes",
            blocks - first
        );
        clients.iter().for_each(|client| client.close(ino));
        assert_content(&fs::read(&path).unwrap(), blocks);
        assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, (blocks * BLOCK) as u64);
        drop(clients);
        camp.down();
    }
}

/// S27: a hole that is left by who only tells the size in memory.
#[test]
fn a_hole_is_seen_at_once_until_it_is_filled() {
    let Some(camp) = camp(1) else { return };
    let (clients, ino) = writers(&camp);
    let blocks = warmed_up(&clients, ino);
    let seen = |holes: usize, size: usize| {
        let seen = fs::metadata(camp.mount().join("file")).unwrap();
        assert_eq!(
            (seen.len(), seen.blocks() * 512),
            ((size * BLOCK) as u64, ((size - holes) * BLOCK) as u64)
        );
    };
    let before = messages(&clients[0], &MESSAGES);
    put(&clients[0], ino, blocks + 5);
    seen(5, blocks + 6);
    (blocks..blocks + 2).for_each(|number| put(&clients[1], ino, number));
    seen(3, blocks + 6);
    assert_eq!(messages(&clients[0], &MESSAGES), before);
    // What was told and what is written down go together.
    clients[2].fsync(ino, false).unwrap();
    seen(3, blocks + 6);
    clients[0].close(ino);
    seen(3, blocks + 6);
    assert_eq!(read(&clients[1], ino, (blocks + 2) * BLOCK, 3 * BLOCK), [0; 3 * BLOCK]);
    (blocks + 2..blocks + 5).for_each(|number| put(&clients[1], ino, number));
    clients[1..].iter().for_each(|client| client.close(ino));
    seen(0, blocks + 6);
    assert_content(&fs::read(camp.mount().join("file")).unwrap(), blocks + 6);
    drop(clients);
    camp.down();
}

/// Bytes behind the end, as a client leaves them that dies between its data and its size.
fn leave_behind_the_end(client: &Client, ino: Ino, blocks: std::ops::Range<usize>) {
    let subfile = client.content.targets(&client.getattr(ino).unwrap()).unwrap()[0].subfile.clone();
    let file = fs::OpenOptions::new().write(true).open(&subfile.path).unwrap();
    file.write_all_at(&vec![0xdd; blocks.len() * BLOCK], subfile.data_at + (blocks.start * BLOCK) as u64)
        .unwrap();
}

/// S6.
#[test]
fn holes_are_zeros_where_a_client_died() {
    let Some(camp) = camp(1) else { return };
    let (mut clients, ino) = writers(&camp);
    let mut last = warmed_up(&clients, ino);
    put(&clients[0], ino, last);
    leave_behind_the_end(&clients[0], ino, last + 1..last + 4000);
    let before = messages(&clients[0], &["ExtendOver"]);
    drop(clients.pop());
    // Until its home knows that it is gone, what it left may show up (G5).
    wait_until("a hole is asked for", || {
        last += 3;
        put(&clients[0], ino, last);
        messages(&clients[0], &["ExtendOver"]) > before
    });
    for _ in 0..20 {
        assert_eq!(
            read(&clients[1], ino, (last - 2) * BLOCK, 3 * BLOCK),
            [&[0; 2 * BLOCK][..], &block(last)].concat()
        );
        last += 3;
        put(&clients[0], ino, last);
    }
    clients.iter().for_each(|client| client.close(ino));
    drop(clients);
    camp.down();
}

/// S6: the next daemon does not know who died.
#[test]
fn holes_are_zeros_where_a_daemon_died() {
    let Some(camp) = camp(1) else { return };
    let (clients, ino) = writers(&camp);
    let mut last = warmed_up(&clients, ino);
    leave_behind_the_end(&clients[0], ino, last + 40..last + 4000);
    let count = |operation| messages(&clients[0], &[operation]);
    let before = ["LendSize", "ExtendOver"].map(count);
    camp.kill_node(0);
    wait_until("its size is lent again", || {
        put(&clients[0], ino, last);
        last += 1;
        count("LendSize") > before[0]
    });
    assert_eq!(count("ExtendOver"), before[1]);
    last += 50;
    put(&clients[0], ino, last);
    // Refused for the cut, and made again.
    assert!(count("ExtendOver") > before[1], "a hole is told by a message");
    assert_eq!(read(&clients[1], ino, (last - 50) * BLOCK, 50 * BLOCK), [0; 50 * BLOCK]);
    for _ in 0..20 {
        last += 3;
        put(&clients[0], ino, last);
        assert_eq!(read(&clients[1], ino, (last - 2) * BLOCK, 2 * BLOCK), [0; 2 * BLOCK]);
    }
    clients.iter().for_each(|client| client.close(ino));
    drop(clients);
    camp.down();
}

/// S1, S2, S27.
#[test]
fn several_that_write_in_turn_survive_kills_of_daemons() {
    const EACH: usize = 3000;
    for nodes in [1, 3] {
        let Some(camp) = camp(nodes) else { return };
        let (clients, ino) = writers(&camp);
        let done: Vec<AtomicUsize> = clients.iter().map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|threads| {
            for (turn, client) in clients.iter().enumerate() {
                let done = &done[turn];
                threads.spawn(move || {
                    for at in 0..EACH {
                        put(client, ino, at * WRITERS + turn);
                        done.store(at + 1, Ordering::Release);
                    }
                });
            }
            for kill in 0..6 {
                let all = || done.iter().map(|done| done.load(Ordering::Acquire)).sum::<usize>();
                wait_until("more is written", || all() > (kill + 1) * EACH * WRITERS / 8);
                let before: Vec<usize> = done.iter().map(|done| done.load(Ordering::Acquire)).collect();
                camp.kill_node(kill % nodes);
                // Each block that was written before is there, and the size that goes with it.
                // One of them may not have come to write yet.
                let last = |turn: usize| before[turn].checked_sub(1).map(|at| at * WRITERS + turn);
                let far = (0..WRITERS).filter_map(last).max().unwrap();
                let seen = fs::metadata(camp.mount().join("file")).unwrap();
                assert!(
                    seen.len() >= ((far + 1) * BLOCK) as u64,
                    "kill {kill}: {} of {far} blocks",
                    seen.len()
                );
                let content = fs::read(camp.mount().join("file")).unwrap();
                for number in
                    (0..WRITERS).flat_map(|turn| (0..before[turn]).map(move |at| at * WRITERS + turn))
                {
                    assert!(
                        content[number * BLOCK..][..BLOCK] == block(number),
                        "kill {kill}: block {number}"
                    );
                }
            }
        });
        clients.iter().for_each(|client| client.close(ino));
        let path = camp.mount().join("file");
        assert_content(&fs::read(&path).unwrap(), EACH * WRITERS);
        assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, (EACH * WRITERS * BLOCK) as u64);
        drop(clients);
        camp.down();
    }
}

/// S7, S9.
#[test]
fn a_cut_is_between_growths_over_holes() {
    const PLACES: usize = 64;
    let Some(camp) = camp(1) else { return };
    let (clients, ino) = writers(&camp);
    let (cutter, writers) = clients.split_first().unwrap();
    let begun: Vec<AtomicUsize> = writers.iter().map(|_| AtomicUsize::new(0)).collect();
    let all = || begun.iter().map(|begun| begun.load(Ordering::Acquire)).collect::<Vec<usize>>();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for (turn, writer) in writers.iter().enumerate() {
            let (begun, stop, count) = (&begun[turn], &stop, writers.len());
            threads.spawn(move || {
                for number in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    begun.store(number, Ordering::Release);
                    write(writer, ino, (number % PLACES * count + turn) * BLOCK, &block(number));
                }
            });
        }
        for _ in 0..40 {
            let before = all();
            wait_until("more is written", || all().iter().zip(&before).all(|(now, then)| *now > then + 20));
            let before = all();
            cut(cutter, ino, 0);
            let content = read(cutter, ino, 0, PLACES * writers.len() * BLOCK);
            let after = all();
            // What there is, is zeros or of writes that were not finished before the cut.
            for (place, bytes) in content.chunks(BLOCK).enumerate() {
                let (turn, place) = (place % writers.len(), place / writers.len());
                let mut later = (before[turn]..=after[turn]).filter(|number| number % PLACES == place);
                let is_zeros = bytes.iter().all(|byte| *byte == 0);
                assert!(
                    is_zeros || later.any(|number| bytes == &block(number)[..bytes.len()]),
                    "{place} came back"
                );
            }
        }
        let before = all();
        wait_until("more is written", || all().iter().zip(&before).all(|(now, then)| *now > then + 1));
        stop.store(true, Ordering::Relaxed);
    });
    // The last writes of each are behind all cuts.
    let content = read(cutter, ino, 0, PLACES * writers.len() * BLOCK);
    for (turn, last) in all().into_iter().enumerate() {
        let place = last % PLACES * writers.len() + turn;
        assert!(content[place * BLOCK..][..BLOCK] == block(last), "the last write of {turn} is lost");
    }
    clients.iter().for_each(|client| client.close(ino));
    drop(clients);
    camp.down();
}
