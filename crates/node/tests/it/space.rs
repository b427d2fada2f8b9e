//! Space of files over several targets: reserved, given back, looked for, copied, and left over.

use std::io::IoSlice;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, CopyJob, NewInode, SeekKind};
use bivouac_net::{InProcess, LaneKind, Service};
use bivouac_types::{Attr, ClientId, Errno, FsResult, Ino, OpId, SetAttr, mode};
use bivouac_wire::{Frame, Op, WriteRequest, op};
use proptest::prelude::*;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const PAGE: u64 = 4096;
const KEEP: u32 = 1;
const PUNCH: u32 = 3;
const ZERO: u32 = 16;

fn make(client: &Client, name: &[u8]) -> Ino {
    client.create(&op(client), Ino::ROOT, name, &FILE, true, false).unwrap().attr.ino
}

fn change(client: &Client, ino: Ino, mode: u32, offset: u64, len: u64) -> FsResult<()> {
    client.fallocate(&op(client), ino, mode, offset, len)
}

fn write(client: &Client, ino: Ino, offset: u64, bytes: &[u8]) -> FsResult<usize> {
    client.write(&op(client), ino, offset, bytes, false)
}

fn resize(client: &Client, ino: Ino, size: u64) {
    client.setattr(&op(client), ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

fn content(client: &Client, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; client.getattr(ino).unwrap().size as usize];
    assert_eq!(client.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn used(formation: &Formation) -> u64 {
    formation.nodes.iter().map(|node| node.usage()).sum()
}

#[test]
fn what_is_reserved_on_all_targets_can_be_written() {
    let formation = Formation::with_capacity(3, 4096, 40 * PAGE);
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    let (ino, other) = (make(a, b"f"), make(b, b"other"));
    change(a, ino, 0, 1000, 90 * PAGE).unwrap();
    assert_eq!(b.getattr(ino).unwrap().size, 1000 + 90 * PAGE);
    let mut at = 0;
    while write(b, other, at, &[7; 4096]).is_ok() {
        at += PAGE;
    }
    let bytes: Vec<u8> = (0..90 * PAGE).map(|i| (i % 251) as u8).collect();
    write(b, ino, 1000, &bytes).unwrap();
    assert_eq!(content(a, ino), [vec![0; 1000], bytes].concat());
}

#[test]
fn what_does_not_fit_on_one_target_is_reserved_on_none() {
    let formation = Formation::with_capacity(3, 4096, 40 * PAGE);
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    let (ino, full) = (make(a, b"f"), make(b, b"full"));
    b.setxattr(&op(b), full, b"user.bivouac.layout", b"width=1", 0).unwrap();
    write(b, full, 0, &[7; 30 * 4096]).unwrap();
    write(a, ino, 0, &[1; 3 * 4096]).unwrap();
    let before = used(&formation);
    for (mode, offset) in [(0, 0), (KEEP, 0), (ZERO, 0), (0, 5 * PAGE), (KEEP, 1 << 30)] {
        let error = change(a, ino, mode, offset, 60 * PAGE).unwrap_err();
        assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
        assert_eq!(used(&formation), before, "mode {mode} at {offset}");
        assert_eq!(content(b, ino), [1; 3 * 4096]);
    }
}

#[test]
fn reservations_that_keep_the_size_go_with_the_file() {
    let formation = Formation::new(3, 4096);
    let a = &formation.clients[0];
    let ino = make(a, b"f");
    change(a, ino, KEEP, 0, 50 * PAGE).unwrap();
    assert_eq!(a.getattr(ino).unwrap().size, 0);
    assert!(used(&formation) >= 50 * PAGE);
    a.unlink(&op(a), Ino::ROOT, b"f").unwrap();
    a.close(ino);
    wait_until("its space is free", || used(&formation) == 0);
}

#[test]
fn modes_that_move_content_are_refused() {
    let formation = Formation::new(2, 4096);
    let a = &formation.clients[0];
    let ino = make(a, b"f");
    for mode in [2, 4, 8, 0x20, 0x40, 8 | KEEP, ZERO | 2, 1 << 31] {
        assert_eq!(change(a, ino, mode, 0, PAGE).unwrap_err().errno(), Errno::EOPNOTSUPP, "{mode}");
    }
    assert_eq!(change(a, ino, 0, i64::MAX as u64, 1).unwrap_err().errno(), Errno::EFBIG);
    assert_eq!(change(a, ino, 0, u64::MAX, 2).unwrap_err().errno(), Errno::EFBIG);
    assert_eq!(change(a, ino, 0, 0, 0).unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn data_and_holes_are_found_over_all_targets() {
    let formation = Formation::new(3, 4096);
    let (a, b) = (&formation.clients[0], &formation.clients[2]);
    let ino = make(a, b"f");
    let seek = |offset, kind| b.seek(ino, offset, kind).map_err(|error| error.errno());
    assert_eq!(seek(0, SeekKind::Data), Err(Errno::ENXIO));
    write(a, ino, 10 * PAGE, &[1; 3 * 4096]).unwrap();
    write(a, ino, 20 * PAGE, &[1; 4096]).unwrap();
    resize(a, ino, 40 * PAGE);
    assert_eq!(seek(0, SeekKind::Hole), Ok(0));
    assert_eq!(seek(0, SeekKind::Data), Ok(10 * PAGE));
    assert_eq!(seek(11 * PAGE + 5, SeekKind::Data), Ok(11 * PAGE + 5));
    assert_eq!(seek(10 * PAGE, SeekKind::Hole), Ok(13 * PAGE));
    assert_eq!(seek(13 * PAGE, SeekKind::Data), Ok(20 * PAGE));
    assert_eq!(seek(20 * PAGE, SeekKind::Hole), Ok(21 * PAGE));
    assert_eq!(seek(21 * PAGE, SeekKind::Data), Err(Errno::ENXIO));
    assert_eq!(seek(30 * PAGE, SeekKind::Hole), Ok(30 * PAGE));
    assert_eq!(seek(40 * PAGE, SeekKind::Hole), Err(Errno::ENXIO));
    change(a, ino, PUNCH, 11 * PAGE, PAGE).unwrap();
    assert_eq!(
        (seek(10 * PAGE, SeekKind::Hole), seek(11 * PAGE, SeekKind::Data)),
        (Ok(11 * PAGE), Ok(12 * PAGE))
    );
    write(a, ino, 0, &[2; 40 * 4096]).unwrap();
    assert_eq!(seek(7, SeekKind::Hole), Ok(40 * PAGE), "the end is a hole");
}

#[test]
fn files_without_names_live_as_long_as_they_are_open() {
    let mut formation = Formation::new(3, 4096);
    let make = |client: &Client| client.tmpfile(&op(client), Ino::ROOT, &FILE, true).unwrap();
    let (kept, given_up, bare) = {
        let a = &formation.clients[1];
        let attrs: [Attr; 3] = std::array::from_fn(|_| make(a));
        assert!(attrs.iter().all(|attr| attr.nlink == 0));
        for attr in &attrs {
            write(a, attr.ino, 0, &[5; 20_000]).unwrap();
        }
        (attrs[0].ino, attrs[1].ino, attrs[2].ino)
    };
    formation.restart_as_the_same_clients();
    let (a, b) = (&formation.clients[1], &formation.clients[2]);
    a.reassert_opens(&[(kept, 2, 1), (given_up, 2, 1), (bare, 2, 1)]).unwrap();
    assert_eq!(content(a, kept), [5; 20_000]);
    a.create(&op(a), Ino::ROOT, b"taken", &FILE, true, false).unwrap();
    let link = |name: &[u8]| a.link(&op(a), kept, Ino::ROOT, name);
    assert_eq!(link(b"taken").unwrap_err().errno(), Errno::EEXIST);
    assert_eq!(link(b"named").unwrap().nlink, 1);
    a.close(kept);
    a.close(given_up);
    assert_eq!(b.lookup(Ino::ROOT, b"named").unwrap().ino, kept);
    assert_eq!(content(b, kept), [5; 20_000]);
    assert_eq!(b.getattr(given_up).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(b.getattr(bare).unwrap().nlink, 0);
    b.unlink(&op(b), Ino::ROOT, b"named").unwrap();
    a.close(bare);
    wait_until("all space is free", || used(&formation) == 0);
}

#[test]
fn a_file_that_may_not_get_a_name_gets_none_nor_one_that_lost_it() {
    let formation = Formation::new(2, 4096);
    let a = &formation.clients[0];
    let bare = a.tmpfile(&op(a), Ino::ROOT, &FILE, false).unwrap().ino;
    assert_eq!(a.link(&op(a), bare, Ino::ROOT, b"x").unwrap_err().errno(), Errno::ENOENT);
    let lost = make(a, b"lost");
    a.unlink(&op(a), Ino::ROOT, b"lost").unwrap();
    assert_eq!(a.link(&op(a), lost, Ino::ROOT, b"x").unwrap_err().errno(), Errno::ENOENT);
    let error = a.tmpfile(&op(a), bare, &FILE, true).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOTDIR);
}

#[test]
fn copies_keep_bytes_and_holes() {
    for (nodes, width) in [(1, "width=1"), (3, "width=3 base=1")] {
        let formation = Formation::new(nodes, 4096);
        let a = &formation.clients[0];
        let names: [&[u8]; 3] = [b"from", b"same", b"shifted"];
        let [from, same, shifted] = names.map(|name| make(a, name));
        for ino in [from, same] {
            a.setxattr(&op(a), ino, b"user.bivouac.layout", width.as_bytes(), 0).unwrap();
        }
        let bytes: Vec<u8> = (0..50_000).map(|i| (i % 251) as u8).collect();
        write(a, from, 7, &bytes).unwrap();
        write(a, from, 100 * PAGE, &bytes).unwrap();
        resize(a, from, 200 * PAGE);
        let all = content(a, from);
        for (to, to_offset) in [(same, 0u64), (same, 12 * PAGE), (shifted, 5)] {
            write(a, to, 0, &[9; 90_000]).unwrap();
            let mut expected = content(a, to);
            let mut copy = CopyJob { from, from_offset: 0, to, to_offset, len: u64::MAX >> 1 };
            while copy.from_offset < all.len() as u64 {
                let copied = a.copy(&op(a), &copy).unwrap();
                assert!(copied > 0);
                (copy.from_offset, copy.to_offset) = (copy.from_offset + copied, copy.to_offset + copied);
            }
            assert_eq!(a.copy(&op(a), &copy).unwrap(), 0);
            expected.resize(expected.len().max(to_offset as usize + all.len()), 0);
            expected[to_offset as usize..to_offset as usize + all.len()].copy_from_slice(&all);
            assert!(content(a, to) == expected, "{nodes} nodes, to {to_offset}");
        }
        assert!(used(&formation) < 250 * PAGE, "holes stay holes: {} pages", used(&formation) / PAGE);
    }
}

/// Writes to a target as a client does that dies before it tells the home.
fn write_untold(formation: &Formation, attr: &Attr, offset: u64, bytes: &[u8]) {
    for range in bivouac_layout::split(&attr.layout, offset, bytes.len() as u64) {
        let node = formation.nodes[range.target.0 as usize].clone();
        let transport = InProcess::new(node, LaneKind::Client);
        let (target, layout, epoch) = (range.target, attr.layout, attr.epoch);
        let request = WriteRequest { ino: attr.ino, target, layout, epoch, offset: range.subfile_offset };
        let pieces: Vec<IoSlice<'_>> =
            range.pieces().map(|piece| IoSlice::new(&bytes[piece.range()])).collect();
        let frame = Frame::request(0, OpId(1), ClientId(77), 0);
        assert!(bivouac_net::call::<op::Write>(&transport, frame, &request, &pieces).unwrap().accepted);
    }
}

#[test]
fn what_a_dead_client_wrote_behind_the_end_never_shows() {
    let grow: [fn(&Client, Ino); 3] = [
        |b, ino| assert_eq!(write(b, ino, 90_000, &[2; 10_000]).unwrap(), 10_000),
        |b, ino| resize(b, ino, 100_000),
        |b, ino| change(b, ino, 0, 0, 100_000).unwrap(),
    ];
    for (index, grow) in grow.into_iter().enumerate() {
        for restart in [false, true] {
            let mut formation = Formation::new(3, 4096);
            let ino = make(&formation.clients[0], b"f");
            write(&formation.clients[0], ino, 0, &[1; 1000]).unwrap();
            let attr = formation.clients[0].getattr(ino).unwrap();
            write_untold(&formation, &attr, 1000, &[9; 70_000]);
            if restart {
                formation.restart();
            } else {
                let gone = ClientId(1);
                formation.nodes.iter().for_each(|node| node.client_gone(gone));
            }
            let b = &formation.clients[1];
            b.open(&op(b), ino, 0).unwrap();
            grow(b, ino);
            let bytes = content(b, ino);
            assert_eq!((bytes.len(), &bytes[..1000]), (100_000, &[1; 1000][..]));
            assert!(bytes[1000..90_000].iter().all(|byte| *byte == 0), "way {index}, restart {restart}");
            let epoch = b.getattr(ino).unwrap().epoch;
            write(b, ino, 200_000, b"x").unwrap();
            assert_eq!(b.getattr(ino).unwrap().epoch, epoch, "once is enough");
        }
    }
}

#[test]
fn subfiles_of_files_that_are_gone_are_found() {
    let mut formation = Formation::new(3, 4096);
    let a = &formation.clients[0];
    let (kept, gone) = (make(a, b"kept"), make(a, b"gone"));
    write(a, kept, 0, &[1; 50_000]).unwrap();
    let attr = a.getattr(gone).unwrap();
    write_untold(&formation, &attr, 0, &[9; 50_000]);
    a.unlink(&op(a), Ino::ROOT, b"gone").unwrap();
    a.close(gone);
    assert_eq!(a.getattr(gone).unwrap_err().errno(), Errno::ENOENT);
    let full = used(&formation);
    formation.restart();
    wait_until("what is left over is removed", || used(&formation) < full - 50_000 + PAGE);
    let a = &formation.clients[0];
    assert_eq!(content(a, kept), [1; 50_000]);
    // A client that dies in between: its file goes with what it wrote.
    let untold = make(a, b"untold");
    let left = used(&formation);
    write_untold(&formation, &a.getattr(untold).unwrap(), 0, &[9; 50_000]);
    let client = ClientId(101);
    formation.nodes.iter().for_each(|node| node.client_gone(client));
    a.close(untold);
    a.unlink(&op(a), Ino::ROOT, b"untold").unwrap();
    wait_until("this too", || used(&formation) == left);
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: u64 },
    Append { len: u64 },
    Change { mode: u32, offset: u64, len: u64 },
    Resize { size: u64 },
    Copy { from: u64, to: u64, len: u64 },
    Seek { offset: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0u64..100_000, (0u64..25).prop_map(|page| page * PAGE)];
    let len = || prop_oneof![1u64..40_000, (1u64..9).prop_map(|page| page * PAGE)];
    let mode = prop_oneof![Just(0), Just(KEEP), Just(PUNCH), Just(PUNCH), Just(ZERO), Just(ZERO | KEEP)];
    prop_oneof![
        3 => (at(), len()).prop_map(|(offset, len)| Step::Write { offset, len }),
        1 => len().prop_map(|len| Step::Append { len }),
        5 => (mode, at(), len()).prop_map(|(mode, offset, len)| Step::Change { mode, offset, len }),
        2 => at().prop_map(|size| Step::Resize { size }),
        2 => (at(), at(), len()).prop_map(|(from, to, len)| Step::Copy { from, to, len }),
        2 => at().prop_map(|offset| Step::Seek { offset }),
    ]
}

fn put(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    model.resize(model.len().max(end), 0);
    model[start..end].copy_from_slice(bytes);
}

fn carry_out(client: &Client, ino: Ino, model: &mut Vec<u8>, step: &Step, byte: u8) {
    match *step {
        Step::Write { offset, len } => {
            write(client, ino, offset, &vec![byte; len as usize]).unwrap();
            put(model, offset, &vec![byte; len as usize]);
        }
        Step::Append { len } => {
            client.write(&op(client), ino, 0, &vec![byte; len as usize], true).unwrap();
            model.extend(vec![byte; len as usize]);
        }
        Step::Change { mode, offset, len } => {
            change(client, ino, mode, offset, len).unwrap();
            let end = model.len().min((offset + len) as usize);
            if mode == PUNCH || mode & ZERO != 0 {
                model.get_mut(offset as usize..end).unwrap_or_default().fill(0);
            }
            if mode == 0 || mode == ZERO {
                model.resize(model.len().max((offset + len) as usize), 0);
            }
        }
        Step::Resize { size } => {
            resize(client, ino, size);
            model.resize(size as usize, 0);
        }
        Step::Copy { from, to, len } if from + len <= to || to + len <= from => {
            let copy = CopyJob { from: ino, from_offset: from, to: ino, to_offset: to, len };
            let end = model.len().min((from + len) as usize);
            let bytes = model.get(from as usize..end).unwrap_or_default().to_vec();
            assert_eq!(client.copy(&op(client), &copy).unwrap(), bytes.len() as u64);
            if !bytes.is_empty() {
                put(model, to, &bytes);
            }
        }
        Step::Copy { .. } => {}
        Step::Seek { offset } => check_seek(client, ino, model, offset as usize),
    }
}

fn check_seek(client: &Client, ino: Ino, model: &[u8], offset: usize) {
    let seek = |kind| client.seek(ino, offset as u64, kind).map_err(|error| error.errno());
    let (data, hole) = (seek(SeekKind::Data), seek(SeekKind::Hole));
    if offset >= model.len() {
        assert_eq!((data, hole), (Err(Errno::ENXIO), Err(Errno::ENXIO)));
        return;
    }
    let before = data.map_or(model.len(), |data| data as usize);
    assert!(model[offset..before].iter().all(|byte| *byte == 0), "no data is missed");
    let hole = hole.unwrap() as usize;
    assert!((offset..=model.len()).contains(&hole) && (before > offset) == (hole == offset));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn two_clients_see_one_file(
        nodes in 1u16..4,
        stripe in prop_oneof![Just(4096u32), Just(12_288)],
        steps in proptest::collection::vec(step(), 1..25),
    ) {
        let formation = Formation::new(nodes, stripe);
        let clients = [&formation.clients[0], &formation.clients[usize::from(nodes) - 1]];
        let ino = make(clients[0], b"f");
        clients[1].open(&op(clients[1]), ino, 0).unwrap();
        let mut model = Vec::new();
        for (turn, step) in steps.iter().enumerate() {
            carry_out(clients[turn % 2], ino, &mut model, step, turn as u8 | 1);
            prop_assert!(content(clients[(turn + 1) % 2], ino) == model, "after {:?}", step);
        }
        clients.iter().for_each(|client| client.close(ino));
        clients[0].unlink(&op(clients[0]), Ino::ROOT, b"f").unwrap();
        wait_until("all space is free", || used(&formation) == 0);
    }
}

#[test]
fn holes_and_cuts_at_the_same_time_leave_no_ghosts() {
    let formation = Formation::new(3, 4096);
    let clients = &formation.clients;
    let ino = make(&clients[0], b"f");
    for client in &clients[1..] {
        client.open(&op(client), ino, 0).unwrap();
    }
    write(&clients[0], ino, 0, &[1; 30 * 4096]).unwrap();
    std::thread::scope(|scope| {
        let cut = || (0..60).for_each(|turn| resize(&clients[0], ino, (turn % 5 + 1) * 3 * PAGE));
        scope.spawn(cut);
        scope.spawn(|| {
            for turn in 0..60u64 {
                let mode = [PUNCH, 0, ZERO | KEEP, KEEP][turn as usize % 4];
                change(&clients[1], ino, mode, turn % 7 * PAGE, 9 * PAGE).unwrap();
            }
        });
    });
    resize(&clients[2], ino, 2 * PAGE);
    resize(&clients[2], ino, 40 * PAGE);
    let bytes = content(&clients[1], ino);
    assert!(bytes[2 * PAGE as usize..].iter().all(|byte| *byte == 0));
    let pages = bytes.chunks(PAGE as usize);
    assert!(pages.into_iter().all(|page| page.iter().all(|byte| *byte == page[0])), "stripes are whole");
}

#[test]
fn names_fill_a_volume_and_can_always_be_removed() {
    let formation = Formation::with_capacity(1, 4096, 128 * PAGE);
    let a = &formation.clients[0];
    let kept = make(a, b"kept");
    write(a, kept, 0, &[1; 9000]).unwrap();
    let name =
        |count: usize| format!("a rather long name, so that it does not take long {count}").into_bytes();
    let create = |count: usize| a.mknod(&op(a), Ino::ROOT, &name(count), &FILE).map(drop);
    let refusal = |count: usize| create(count).err().map(|error| (count, error.errno()));
    let (full, errno) = (0..20_000).find_map(refusal).unwrap();
    assert!(errno == Errno::ENOSPC && full > 500, "{full} names, {errno}");
    resize(a, kept, 5000);
    assert_eq!(content(a, kept), [1; 5000]);
    (0..full).for_each(|count| a.unlink(&op(a), Ino::ROOT, &name(count)).unwrap());
    wait_until("there is room for names again", || create(0).is_ok());
    wait_until("the log is compacted", || write(a, kept, 0, &[3; 200_000]).is_ok());
    assert_eq!(content(a, kept), [3; 200_000]);
}

/// S363: a cut that finds no space on a node for what notes it there is finished later. Until then whoever needs the
/// file's size hears that there is no space, and does not wait for it.
#[test]
fn nobody_waits_for_a_cut_that_waits_for_space() {
    let formation = Formation::new(4, 4096);
    let client = &formation.clients[0];
    let made = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    client.write(&op(client), made, 0, &[7; 20_000], false).unwrap();
    *formation.switchboard.refuse.lock() = Some((Op::Trim as u16, Errno::ENOSPC));
    let cut = |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        client.setattr(&op(client), made, &set).map(|attr| attr.size).map_err(|error| error.errno())
    };
    let tries = || formation.switchboard.asked(Op::Trim);
    assert!(cut(100).is_err());
    for _ in 0..3 {
        assert_eq!(cut(50), Err(Errno::ENOSPC));
        assert_eq!(client.write(&op(client), made, 30_000, b"x", false).unwrap_err().errno(), Errno::ENOSPC);
    }
    let mut first = [0; 200];
    assert_eq!(client.read(made, 0, &mut first).unwrap(), 100, "it is as long as it is to be");
    let before = tries();
    *formation.switchboard.refuse.lock() = None;
    wait_until("there is space", || cut(60) == Ok(60));
    assert!(tries() > before);
    assert_eq!(client.read(made, 0, &mut first).unwrap(), 60);
    client.close(made);
}
