//! What keeps a file without names alive, whatever happens to the messages that say so.

use std::sync::Arc;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_net::{InProcess, LaneKind, Transport, call};
use bivouac_types::limits::CLIENT_CHANNELS_MAX;
use bivouac_types::{ClientId, Errno, FsResult, Ino, NodeId, OpId, OpenId, SetAttr, mode};
use bivouac_wire::{CloseRequest, Frame, OpenRequest, Operation, ReassertRequest, op};

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };

/// A client whose messages the test makes itself; node 0 is the home of what it has open.
struct Raw(Arc<dyn Transport>);

impl Raw {
    fn new(formation: &Formation) -> Raw {
        Raw(Arc::new(InProcess::new(formation.nodes[0].clone(), LaneKind::Client)))
    }

    fn say<O: Operation>(&self, request: &O::Request<'_>) -> FsResult<O::Reply> {
        call::<O>(&*self.0, Frame::request(0, OpId(1), ClientId(77), 0), request, &[])
    }

    fn open(&self, ino: Ino, id: u64, floor: u64) -> FsResult<()> {
        let request = OpenRequest { ino, truncate: false, id: OpenId(id), floor: OpenId(floor) };
        self.say::<op::Open>(&request).map(drop)
    }

    fn close(&self, ino: Ino, id: u64, floor: u64) {
        let request = CloseRequest { floor: OpenId(floor), opens: vec![(ino, OpenId(id))], uses: Vec::new() };
        self.say::<op::Close>(&request).unwrap();
    }

    fn reassert(&self, floor: u64, opens: &[(Ino, u64)]) -> FsResult<()> {
        let opens = opens.iter().map(|(ino, id)| (*ino, OpenId(*id))).collect();
        self.say::<op::Reassert>(&ReassertRequest {
            first: true,
            last: true,
            floor: OpenId(floor),
            under_way: Vec::new(),
            next: OpenId(floor),
            opens,
        })
    }
}

fn file(client: &Client, name: &[u8]) -> Ino {
    let ino = client.create(&op(client), Ino::ROOT, name, &FILE, true, false).unwrap().attr.ino;
    client.write(&op(client), ino, 0, &[5; 5000], false).unwrap();
    client.close(ino);
    ino
}

fn is_whole(client: &Client, ino: Ino) -> bool {
    let mut back = vec![0; 5000];
    client.read(ino, 0, &mut back) == Ok(5000) && back == [5; 5000]
}

fn is_gone(client: &Client, ino: Ino) -> bool {
    client.getattr(ino).is_err_and(|error| error.errno() == Errno::ENOENT)
}

#[test]
fn an_open_that_is_under_way_outlives_the_list_of_those_that_are_not() {
    let formation = Formation::new(1, 4096);
    let (client, raw) = (&formation.clients[0], Raw::new(&formation));
    let [ino, other] = [&b"f"[..], b"g"].map(|name| file(client, name));
    raw.open(other, 1, 1).unwrap();
    raw.open(ino, 2, 1).unwrap();
    // Another connection broke before the answers to both came; meanwhile `other` was closed.
    raw.reassert(2, &[]).unwrap();
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.unlink(&op(client), Ino::ROOT, b"g").unwrap();
    assert!(is_whole(client, ino) && is_gone(client, other));
    raw.close(ino, 2, 3);
    assert!(is_gone(client, ino));
}

#[test]
fn a_close_that_comes_twice_takes_no_other_open_away() {
    let formation = Formation::new(1, 4096);
    let (client, raw) = (&formation.clients[0], Raw::new(&formation));
    let ino = file(client, b"f");
    raw.open(ino, 1, 1).unwrap();
    raw.open(ino, 2, 2).unwrap();
    raw.close(ino, 1, 3);
    raw.reassert(3, &[(ino, 2)]).unwrap();
    raw.close(ino, 1, 3);
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    assert!(is_whole(client, ino));
    raw.close(ino, 2, 3);
    assert!(is_gone(client, ino));
}

#[test]
fn what_arrives_late_changes_nothing() {
    let formation = Formation::new(1, 4096);
    let (client, raw) = (&formation.clients[0], Raw::new(&formation));
    let [ino, closed] = [&b"f"[..], b"g"].map(|name| file(client, name));
    raw.open(ino, 5, 5).unwrap();
    raw.close(closed, 4, 6);
    assert_eq!(raw.open(closed, 4, 4).unwrap_err().errno(), Errno::EIO, "its repetition was closed already");
    assert_eq!(raw.reassert(4, &[(closed, 4)]).unwrap_err().errno(), Errno::EIO, "a later list was taken in");
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.unlink(&op(client), Ino::ROOT, b"g").unwrap();
    assert!(is_whole(client, ino) && is_gone(client, closed));
}

#[test]
fn a_later_process_of_a_client_ends_the_opens_of_the_earlier() {
    let formation = Formation::new(1, 4096);
    let (client, raw) = (&formation.clients[0], Raw::new(&formation));
    let [ino, other] = [&b"f"[..], b"g"].map(|name| file(client, name));
    raw.open(ino, 1, 1).unwrap();
    let first = OpenId::first(1).0;
    raw.open(other, first, first).unwrap();
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.unlink(&op(client), Ino::ROOT, b"g").unwrap();
    assert!(is_gone(client, ino) && is_whole(client, other));
    raw.open(other, 2, 2).unwrap_err();
}

#[test]
fn a_client_that_leaves_is_forgotten_with_all_that_it_did() {
    let formation = Formation::new(2, 4096);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let dir = |client: &Client, name: &str| {
        client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap();
        client.rmdir(&op(client), Ino::ROOT, name.as_bytes()).unwrap();
    };
    let records = || {
        let of = |node: usize| other.nodes().status(NodeId(node as u16)).unwrap().records;
        (0..formation.nodes.len()).map(of).sum::<u64>()
    };
    // What nodes remember of each other's steps stays.
    (0..20).for_each(|i| dir(other, &format!("d{i}")));
    let ino = file(other, b"f");
    let before = records();
    (0..20).for_each(|i| dir(client, &format!("d{i}")));
    (1..20).for_each(|channel| {
        let attr = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        client.setattr(&client.new_op(channel, 0, 0), ino, &attr).unwrap();
    });
    client.open(&op(client), ino, 0).unwrap();
    assert!(records() >= before + 20);
    client.leave();
    assert_eq!(records(), before);
    other.unlink(&op(other), Ino::ROOT, b"f").unwrap();
    assert!(is_gone(other, ino), "it does not have it open any more");
}

#[test]
fn nobody_has_more_channels_than_can_be_remembered() {
    let formation = Formation::new(1, 4096);
    let client = &formation.clients[0];
    let ino = file(client, b"f");
    let attr = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let set = |channel| client.setattr(&client.new_op(channel, 0, 0), ino, &attr).map_err(|e| e.errno());
    assert!(set(CLIENT_CHANNELS_MAX - 1).is_ok());
    assert_eq!(set(CLIENT_CHANNELS_MAX).unwrap_err(), Errno::EPROTO);
}

#[test]
fn who_opened_a_file_without_names_is_remembered_over_a_restart() {
    let mut formation = Formation::new(1, 4096);
    let [ino, replaced] = [&b"f"[..], b"g"].map(|name| file(&formation.clients[0], name));
    {
        let client = &formation.clients[0];
        client.open(&op(client), ino, 0).unwrap();
        client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
        Raw::new(&formation).open(ino, 1, 1).unwrap();
        client.close(ino);
        file(client, b"new");
        client.rename(&op(client), Ino::ROOT, b"new", Ino::ROOT, b"g", 0).unwrap();
    }
    formation.restart_as_the_same_clients();
    let client = &formation.clients[0];
    client.reassert_opens(&[]).unwrap();
    // What a restarted home is about to remove goes at one time.
    wait_until("the replaced file is gone", || is_gone(client, replaced));
    assert!(is_whole(client, ino));
    let raw = Raw::new(&formation);
    raw.reassert(2, &[(ino, 1)]).unwrap();
    assert!(is_whole(client, ino));
    raw.close(ino, 1, 2);
    assert!(is_gone(client, ino));
}

/// An unlink looks, within its transaction, for clients that have not been heard since the restart; a first open writes
/// its client down. Each held what the other wanted, for ever.
#[test]
fn first_opens_and_unlinks_go_on_beside_a_client_that_is_not_heard() {
    const ROUNDS: u64 = 200;
    let mut formation = Formation::new(1, 4096);
    let raw = Raw::new(&formation);
    let kept = file(&formation.clients[0], b"kept");
    raw.open(kept, 1, 1).unwrap();
    drop(raw);
    formation.restart();
    std::thread::scope(|scope| {
        for lane in 0..2 {
            let client = formation.client_as(0, 500 + lane);
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    let name = format!("u{lane}-{number}");
                    file(&client, name.as_bytes());
                    client.unlink(&op(&client), Ino::ROOT, name.as_bytes()).unwrap();
                }
            });
            let formation = &formation;
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    let client = formation.client_as(0, 1000 + lane * ROUNDS + number);
                    client.open(&op(&client), kept, 0).unwrap();
                    client.close(kept);
                    client.leave();
                }
            });
        }
    });
    assert!(is_whole(&formation.clients[0], kept));
}
