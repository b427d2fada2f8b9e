//! Valid inputs, damaged: a short run, the same every time, of what `cargo fuzz` does for as long as one likes (fuzz/).

#[path = "../../../../fuzz/decoders.rs"]
mod decoders;
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;

use std::sync::Arc;

use bivouac_record::Pattern;
use bivouac_store::{MemVolume, OpenMode, Volume};
use bivouac_types::{
    Attr, ClientId, Ino, Layout, Liveness, NodeId, OpId, OpenId, PartitionId, Placement, SetAttr, SetTime,
    Slot, TargetIndex, Timestamp,
};
use bivouac_wire::subfile::SubfileHeader;
use bivouac_wire::{
    CloseRequest, DamageStatus, DirEntry, DirPage, Encode, EntryName, FileUse, FileUseDelta, FormationMap,
    Frame, HostQuestion, LinkStatus, MakeRequest, NodeEntry, NodeStatus, Op, OpCount, PoolStatus, ProcessUse,
    Program, ReassertRequest, RenameRequest, SetAttrRequest, SetXattrRequest, TargetEntry, UnresponsiveNode,
    UseTable, VolumeStatus, WriteRequest, WrongBytes, rendezvous,
};
use decoders::{FORMATION, LOG};
use mutate::{Mutator, crc32c};

const LAYOUT: Layout = Layout { stripe: 1 << 20, width: 2, base: TargetIndex(1), targets: 2 };
const INO: Ino = Ino(0x0001_0000_0000_002f);

fn attr() -> Attr {
    let time = Timestamp { secs: 1_700_000_000, nanos: 5 };
    Attr { uid: 1000, gid: 100, size: 12_345, epoch: 3, ..Attr::new(INO, 0o100_644, LAYOUT, time) }
}

fn map() -> FormationMap {
    let node = |id: u16| NodeEntry {
        host: format!("host{id}"),
        client_address: format!("127.0.0.1:{}", 4000 + id),
        peer_address: format!("127.0.0.1:{}", 5000 + id),
        unix_path: format!("/run/n{id}"),
        epoch: 0,
    };
    FormationMap {
        version: 1,
        formation: FORMATION,
        name: "name".into(),
        slots: (0..16).map(|slot| NodeId(slot % 2)).collect(),
        nodes: vec![node(0), node(1)],
        targets: vec![TargetEntry { node: NodeId(0), volume: 0 }, TargetEntry { node: NodeId(1), volume: 0 }],
        stripe: 1 << 20,
        width: 0,
        is_secure: false,
        detects_races: false,
        mirrors: Vec::new(),
    }
}

fn status() -> NodeStatus {
    let volume = VolumeStatus {
        path: "/volume".into(),
        kind: "memory".into(),
        capacity_bytes: 1 << 30,
        used_bytes: 5,
        replica_bytes: 2,
        records_bytes: 6,
        subfiles: 1,
        checksum: true,
    };
    NodeStatus {
        id: 0,
        pid: 7,
        uptime_ms: 8,
        files: 9,
        open_files: 1,
        records: 2,
        record_bytes: 3,
        names_bytes: 4,
        names_max_bytes: 5,
        volumes: vec![volume],
        page_pool: PoolStatus { size_bytes: 1, used_bytes: 2, unsent_bytes: 3, ..PoolStatus::default() },
        operations: vec![OpCount { name: "Read".into(), client: 1, peer: 2, calls: 3, ..OpCount::default() }],
        epoch: 1,
        silent: vec![UnresponsiveNode { node: NodeId(1), liveness: Liveness::Dead, for_ms: 9 }],
        damage: DamageStatus {
            refused: 1,
            wrong_bytes: 4096,
            wrong: vec![WrongBytes {
                ino: INO,
                target: TargetIndex(1),
                from: 0,
                to: 4096,
                path: "/v/2f".into(),
            }],
            lost: 2,
        },
        links: vec![LinkStatus {
            name: "far".into(),
            address: "host:1".into(),
            is_up: true,
            round_trip_us: 1,
            rate: 2,
            breaks: 3,
            error_unix_ms: 4,
            last_error: "down".into(),
        }],
    }
}

fn used() -> FileUseDelta {
    let program = Program(b"solver".to_vec());
    FileUseDelta { ino: INO, pid: 7, program, first_ago_ms: 90, last_ago_ms: 9, pattern: Pattern::default() }
}

fn use_table() -> UseTable {
    let FileUseDelta { ino, pid, program, pattern, .. } = used();
    let file = FileUse {
        ino,
        parent: Ino::ROOT,
        partition: PartitionId::ROOT,
        stripe: 4096,
        users: vec![1, 2],
        first_ms: 1,
        last_ms: 2,
        read_from_ms: None,
        written_until_ms: Some(2),
        held_ms: 1,
        mounted: 3,
        pattern,
    };
    let process = ProcessUse { client: ClientId(9), pid, program, first_ms: 1, last_ms: 2, pattern };
    UseTable { uptime_ms: 5, files: vec![file], processes: vec![process], ..UseTable::default() }
}

/// A message behind the number of its operation.
fn numbered(op: Op, message: &dyn Encode) -> Vec<u8> {
    let mut bytes = vec![op as u8];
    message.encode(&mut bytes);
    bytes
}

fn messages() -> Vec<Vec<u8>> {
    let (name, parent) = (&b"name"[..], Ino::ROOT);
    let make = MakeRequest {
        parent,
        name,
        mode: 0o120_777,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: b"where/to",
        open: Some(OpenId(7)),
        exclusive: false,
        near: Some(TargetIndex(1)),
    };
    let set = SetAttr { mode: Some(0o600), size: Some(7), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let entry = |cookie, attr| DirEntry { ino: INO, kind: 0o100_000, cookie, name: name.into(), attr };
    let page = DirPage { entries: vec![entry(1, Some(attr())), entry(2, None)], end: true, lease_ms: 75 };
    vec![
        numbered(Op::Lookup, &EntryName { parent, name }),
        numbered(Op::Make, &make),
        numbered(
            Op::Rename,
            &RenameRequest { parent, name, new_parent: INO, new_name: b"new", flags: 1, expect: None },
        ),
        numbered(Op::SetAttr, &SetAttrRequest { ino: INO, set }),
        numbered(Op::SetXattr, &SetXattrRequest { ino: INO, name: b"user.x", value: &[7; 50], flags: 0 }),
        numbered(
            Op::Close,
            &CloseRequest {
                floor: OpenId(9),
                opens: vec![(INO, OpenId(1)), (parent, OpenId(2))],
                uses: vec![used()],
            },
        ),
        numbered(
            Op::Reassert,
            &ReassertRequest {
                first: true,
                last: true,
                floor: OpenId(9),
                under_way: vec![OpenId(11)],
                next: OpenId(13),
                opens: vec![(INO, OpenId(1))],
            },
        ),
        numbered(
            Op::Write,
            &WriteRequest { ino: INO, target: TargetIndex(1), layout: LAYOUT, epoch: 3, offset: 99 },
        ),
        numbered(Op::ReadDir, &page),
        numbered(Op::AdjustLinks, &attr()),
        numbered(Op::Status, &status()),
        numbered(Op::GetMap, &map()),
        numbered(Op::ListUses, &use_table()),
        numbered(Op::AskHost, &HostQuestion { what: b"log/n0", offset: 4096, most: 1 << 17 }),
    ]
}

/// What supervisors of hosts say, behind the number of the message.
fn rendezvous_messages() -> Vec<Vec<u8>> {
    let volume = rendezvous::JoinVolume { path: "/local".into(), kind: "disk".into(), capacity_bytes: 7 };
    let node = rendezvous::JoinNode {
        client_address: "10.0.0.1:1".into(),
        peer_address: "10.0.0.1:2".into(),
        volumes: vec![volume],
    };
    let join = rendezvous::Join {
        release: "0.1.0".into(),
        host: "n1".into(),
        machine: "n1.example".into(),
        now_unix_ms: 1,
        directory: "/run/x".into(),
        trouble: Some("no space".into()),
        nodes: vec![node.clone(), node],
    };
    let begin = rendezvous::FormationStart {
        first_node: 1,
        sealed_secret: [7; 32],
        reach: vec!["10.0.0.2:1".into()],
        keepers: vec!["10.0.0.1:7".into()],
    };
    let node = rendezvous::NodeReport { node: 1, pid: 7, life: "ready".into(), message: None, deaths: 1 };
    let reports = [
        rendezvous::Report::Ready { steps: vec![("records".into(), 1)] },
        rendezvous::Report::NotAdopted { node: 1, epoch: 2, text: "x".into() },
        rendezvous::Report::HasMap { version: 2 },
        rendezvous::Report::Nodes { nodes: vec![node], replicas: vec![(2, 3)], trouble: None },
        rendezvous::Report::Down { left: [1, 2, 3, 4], trouble: Some("x".into()) },
    ];
    let message = |number: u16, body: Vec<u8>| [vec![number as u8], body].concat();
    let mut messages =
        vec![message(rendezvous::JOIN, join.to_bytes()), message(rendezvous::BEGIN, begin.to_bytes())];
    messages.extend(reports.map(|report| message(rendezvous::REPORT, report.to_bytes())));
    messages.push(message(rendezvous::MAP, rendezvous::NewMap { version: 7 }.to_bytes()));
    messages.push(message(rendezvous::RESUME, rendezvous::Resume { first_node: 1, turn: 7 }.to_bytes()));
    messages
}

/// A log with some commits.
fn log() -> Vec<u8> {
    let volume: Arc<dyn Volume> = Arc::new(MemVolume::default());
    let records = decoders::open(&volume).unwrap();
    for turn in 0..6u8 {
        let mut txn = records.txn(&[Slot(0), Slot(3)]);
        txn.put(Slot(0), &[b'k', turn % 4], &vec![turn; usize::from(turn) * 9]);
        txn.put(Slot(3), b"other", &[turn]);
        if turn == 4 {
            txn.delete(Slot(0), b"k\x01");
        }
        txn.commit().unwrap();
    }
    let file = volume.open(LOG, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    file.read_vectored_at(&mut [std::io::IoSliceMut::new(&mut bytes)], 0).unwrap();
    bytes
}

#[test]
fn frames() {
    let request = Frame::request(Op::Write as u16, OpId(5), ClientId(6), 7);
    let reply = request.reply(28, 10, 20);
    let seeds = vec![request.to_bytes().to_vec(), reply.to_bytes().to_vec()];
    Mutator::new(seeds).each(200_000, |bytes| decoders::frame(bytes, crc32c));
}

#[test]
fn requests_and_replies() {
    Mutator::new(messages()).each(300_000, decoders::message);
    Mutator::new(rendezvous_messages()).each(100_000, decoders::message);
}

#[test]
fn maps() {
    Mutator::new(vec![map().to_bytes()]).each(100_000, decoders::map);
}

#[test]
fn subfile_headers() {
    let header = |layout: Layout, placement| SubfileHeader {
        sums: placement == Placement::Hashed,
        formation: FORMATION,
        ino: INO,
        target: TargetIndex(1),
        layout,
        placement,
        trim_epoch: 3,
        places: (0..layout.width).map(|node| TargetEntry { node: NodeId(node), volume: 0 }).collect(),
    };
    let narrow = Layout { width: 1, ..LAYOUT };
    let headers = [header(LAYOUT, Placement::Striped), header(narrow, Placement::Hashed)];
    // What is behind the places is zeros; damage is to hit the rest.
    let seeds = headers.iter().map(|header| header.to_bytes()[..72].to_vec()).collect();
    Mutator::new(seeds).each(3_000, |bytes| decoders::subfile(bytes, crc32c));
}

#[test]
fn record_logs() {
    Mutator::new(vec![log()]).each(6_000, |bytes| decoders::log(bytes, crc32c));
}

#[test]
fn texts() {
    let state = br#"{"version":1,"release":"0.1.0","name":"x","formation":"07070707070707070707070707070707",
        "created_unix_ms":1,"stage":"running","supervisor":{"pid":4,"started_ticks":8},"keep":null,"message":null,
        "wait_ms":30000,"port":0,"tolerance":{"deaths_max":5,"window_ms":60000},"stripe":1048576,"width":0,"map":"00",
        "nodes":[],"own_dirs":["/a"],"mounts":[{"id":1,"dir":"/m","node":0}]}"#;
    let seeds: [&[u8]; 11] = [
        b"1.5GiB",
        b"4096",
        b"30s",
        b"500ms",
        b"/data/in:put/it",
        b"a\\:b:c",
        b"results:/site/results",
        b"/mnt/volume:10g",
        b"name-1.x",
        b"5/60s",
        state,
    ];
    assert!(
        bivouac_launch::FormationState::parse(state, std::path::Path::new("s")).is_ok(),
        "the seed is valid"
    );
    Mutator::new(seeds.map(<[u8]>::to_vec).to_vec()).each(150_000, decoders::text);
}
