//! Contracts of single files and directories: how they are inherited, and that a change is ordered with all writes.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::formation::{Formation, op, read, wait_until, write};
use bivouac_client::{Client, CopyJob, NewInode, OpCtx};
use bivouac_net::{InProcess, LaneKind, call};
use bivouac_types::{
    Attr, ByteRange, CONTRACT_XATTR, ClientId, Contract, Errno, FsResult, Ino, NodeId, OpId, TargetIndex,
    TokenMode, mode,
};
use bivouac_wire::{
    CancelTokensRequest, ClientToken, Frame, InoOnly, Op, Operation, ReturnTokensRequest, TakeTokensRequest,
    WriteRequest, op as wire_op,
};

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };

const COHERENT: Option<Contract> = Some(Contract::Coherent);
const SESSION: Option<Contract> = Some(Contract::Session);
const STRICT: Option<Contract> = Some(Contract::Strict);

fn make(client: &Client, dir: Ino, name: &str, new: &NewInode<'_>) -> Attr {
    client.mknod(&op(client), dir, name.as_bytes(), new).unwrap()
}

fn create(client: &Client, dir: Ino, name: &str) -> Ino {
    client.create(&op(client), dir, name.as_bytes(), &FILE, true, false).unwrap().attr.ino
}

fn set(client: &Client, ino: Ino, contract: Option<Contract>) -> Attr {
    client.set_contract(&op(client), ino, contract).unwrap()
}

fn errno<T>(outcome: FsResult<T>) -> Option<Errno> {
    outcome.err().map(|error| error.errno())
}

fn shown(client: &Client, ino: Ino) -> String {
    String::from_utf8(client.getxattr(ino, CONTRACT_XATTR).unwrap()).unwrap()
}

/// S730, S731: also through the parts of a spread directory, which learn of a change before it is acknowledged.
#[test]
fn what_is_made_in_a_directory_gets_its_contract() {
    for (formation, spreads) in [(Formation::new(3, 4096), false), (Formation::spreading(3), true)] {
        let client = &formation.clients[0];
        let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
        let before = make(client, dir, "before", &FILE).ino;
        make(client, dir, "second", &FILE);
        if spreads {
            wait_until("the directory is spread", || client.getattr(dir).unwrap().is_spread());
        }
        for contract in [STRICT, SESSION, COHERENT, None] {
            let attr = set(client, dir, contract);
            assert_eq!((attr.contract, attr.is_dir()), (contract, true));
            for number in 0..40 {
                let who = &formation.clients[number % 3];
                let name = |kind: &str| format!("{kind} {number} {contract:?}");
                let file = make(who, dir, &name("file"), &FILE);
                let below = make(who, dir, &name("dir"), &DIR);
                assert_eq!([file.contract, below.contract], [contract; 2], "{number}");
                let pipe = NewInode { mode: mode::FIFO | 0o600, ..FILE };
                assert_eq!(make(who, dir, &name("pipe"), &pipe).contract, None, "a pipe has none");
                assert_eq!(make(who, below.ino, "deep", &FILE).contract, contract);
            }
            let unnamed = client.tmpfile(&op(client), dir, &FILE, false).unwrap();
            assert_eq!(unnamed.contract, contract);
            client.close(unnamed.ino);
        }
        assert_eq!(client.getattr(before).unwrap().contract, None, "what is there stays as it is");
    }
}

/// S732: renamed and linked files keep theirs.
#[test]
fn a_file_keeps_its_contract_wherever_it_goes() {
    let mut formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let [strict, plain] = ["strict", "plain"].map(|name| make(client, Ino::ROOT, name, &DIR).ino);
    set(client, strict, STRICT);
    let [a, b] = [make(client, strict, "a", &FILE).ino, make(client, plain, "b", &FILE).ino];
    client.rename(&op(client), strict, b"a", plain, b"a", 0).unwrap();
    client.rename(&op(client), plain, b"b", strict, b"b", 0).unwrap();
    client.link(&op(client), b, strict, b"also").unwrap();
    formation.restart();
    let client = &formation.clients[1];
    assert_eq!((shown(client, a), shown(client, b)), ("strict".to_owned(), "coherent partition".to_owned()));
}

/// S730, S732: a partition's root has none of its own when it becomes that.
#[test]
fn a_file_without_one_has_that_of_its_partition() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
    set(client, dir, SESSION);
    let settings = "contract=strict".parse().unwrap();
    client.partitions.make(&op(client), dir, vec![TargetIndex(1)], settings).unwrap();
    let file = make(client, dir, "file", &FILE).ino;
    assert_eq!(
        (shown(client, dir), shown(client, file)),
        ("strict partition".into(), "strict partition".into())
    );
    let epoch = client.getattr(file).unwrap().epoch;
    assert_eq!(
        (set(client, file, STRICT).epoch, shown(client, file)),
        (epoch, "strict".into()),
        "nothing else holds"
    );
    assert_eq!(set(client, file, COHERENT).epoch, epoch + 1);
    client.setxattr(&op(client), file, CONTRACT_XATTR, b"partition", 0).unwrap();
    assert_eq!(shown(client, file), "strict partition");
    client.setxattr(&op(client), file, CONTRACT_XATTR, b"session\0", 0).unwrap();
    assert_eq!(shown(client, file), "session");
    client.removexattr(&op(client), file, CONTRACT_XATTR).unwrap();
    assert_eq!(shown(client, file), "strict partition");
    assert!(client.listxattr(file).unwrap().is_empty(), "it is not listed");
}

/// S742: an append of several messages goes on where a new epoch has stopped it, and a copy begins again.
#[test]
fn long_appends_and_copies_go_on_over_changes_of_the_contract() {
    const LEN: usize = 9 << 20;
    let formation = Formation::new(2, 1 << 20);
    let [appender, changer] = &formation.clients[..] else { panic!() };
    let [ino, copy] = ["file", "copy"].map(|name| create(appender, Ino::ROOT, name));
    changer.open(&op(changer), ino, 0).unwrap();
    set(appender, copy, STRICT);
    let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut changes = 0;
            while !stop.load(Ordering::Relaxed) {
                // Some for each call: one that is stopped by all of them would not end.
                if changes == 4 * begun.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                set(changer, ino, if changes % 2 == 0 { STRICT } else { COHERENT });
                changes += 1;
            }
            set(changer, ino, STRICT);
        });
        for number in 0..6_u8 {
            let bytes = vec![number + 1; LEN];
            begun.fetch_add(1, Ordering::Relaxed);
            let appended = appender.write(&appender.new_op(1, 0, 0), ino, 0, &bytes, true);
            assert_eq!(appended.inspect_err(|_| stop.store(true, Ordering::Relaxed)), Ok(LEN));
            let job = CopyJob { from: ino, from_offset: 0, to: copy, to_offset: 0, len: LEN as u64 };
            begun.fetch_add(1, Ordering::Relaxed);
            let copied = appender.copy(&appender.new_op(1, 0, 0), &job);
            assert_eq!(copied.inspect_err(|_| stop.store(true, Ordering::Relaxed)), Ok(LEN as u64));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(changer.getattr(ino).unwrap().size, 6 * LEN as u64);
    for number in 0..6_u8 {
        let at = usize::from(number) * LEN;
        assert!(read(changer, ino, at, LEN) == vec![number + 1; LEN], "append {number}");
    }
    changer.open(&op(changer), copy, 0).unwrap();
    assert!(read(changer, copy, 0, LEN) == vec![1; LEN]);
}

/// S743: a call that does not wait any more keeps nobody from going on.
#[test]
fn who_does_not_wait_any_more_has_no_place_in_the_queue() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let ino = create(client, Ino::ROOT, "file");
    set(client, ino, STRICT);
    let home = formation.map.home(ino).unwrap();
    let [holder, gone, next] = [71, 72, 73].map(ClientId);
    let transport = InProcess::new(formation.nodes[usize::from(home.0)].clone(), LaneKind::Client);
    let take = |client, call, range: ByteRange| {
        let (mode, desired) = (TokenMode::Write, vec![range]);
        let request = TakeTokensRequest { ino, call, renews: false, mode, required: range, desired };
        call_of::<wire_op::TakeTokens>(&transport, client, &request).grant
    };
    let first = take(holder, 1, ByteRange::at(0, 8)).unwrap();
    let give_back = ReturnTokensRequest {
        ino,
        life: first.life,
        upto: first.serial,
        mode: TokenMode::Write,
        ranges: vec![ByteRange::from(8)],
        is_lost: false,
    };
    call_of::<wire_op::ReturnTokens>(&transport, holder, &give_back);
    assert_eq!(take(gone, 1, ByteRange::at(4, 12)), None, "others have some of it");
    let list = call_of::<wire_op::ListTokens>(&transport, next, &InoOnly { ino });
    let waiting = ClientToken { client: gone, mode: TokenMode::Write, range: ByteRange::at(4, 12) };
    assert_eq!((list.held_count, list.waiting_count, list.waiting), (1, 1, vec![waiting]));
    let cancel = CancelTokensRequest { ino, call: 1, ranges: Vec::new() };
    call_of::<wire_op::CancelTokens>(&transport, gone, &cancel);
    let granted = take(next, 1, ByteRange::at(8, 8)).expect("nobody has it, and nobody waits for it");
    assert!(granted.ranges.contains(&ByteRange::at(8, 8)), "{granted:?}");
    // What was granted to a call whose answer was lost is taken back as well.
    let cancel = CancelTokensRequest { ino, call: 1, ranges: vec![ByteRange::ALL] };
    call_of::<wire_op::CancelTokens>(&transport, next, &cancel);
    assert!(take(gone, 2, ByteRange::at(8, 8)).is_some());
}

fn call_of<O: Operation>(transport: &InProcess, client: ClientId, request: &O::Request<'_>) -> O::Reply {
    call::<O>(transport, Frame::request(0, OpId(1), client, 0), request, &[]).unwrap()
}

/// What a target makes of a write of an epoch.
fn is_accepted(formation: &Formation, attr: &Attr, target: u32, epoch: u32) -> bool {
    let (ino, layout, target) = (attr.ino, attr.layout, TargetIndex(target));
    let request = WriteRequest { ino, target, layout, epoch, offset: 0 };
    let service = formation.nodes[usize::from(target.position())].clone();
    let frame = Frame::request(0, OpId(1), ClientId(77), 0);
    let transport = InProcess::new(service, LaneKind::Client);
    call::<wire_op::Write>(&transport, frame, &request, &[IoSlice::new(b"late")]).unwrap().accepted
}

/// S733: no write is lost to a change, and none that begins later is of the old epoch.
#[test]
fn a_change_is_ordered_with_concurrent_writes() {
    const LEN: usize = 20_000;
    let formation = Formation::new(3, 4096);
    let [changer, writers @ ..] = &formation.clients[..] else { panic!() };
    let ino = create(changer, Ino::ROOT, "file");
    let before = changer.getattr(ino).unwrap();
    let stop = AtomicBool::new(false);
    let rounds = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let mut changes = 0;
    std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        for ((index, client), round) in writers.iter().enumerate().zip(&rounds) {
            let stop = &stop;
            scope.spawn(move || {
                client.open(&op(client), ino, 0).unwrap();
                let at = index * LEN;
                while !stop.load(Ordering::Relaxed) {
                    let bytes = vec![(round.load(Ordering::Relaxed) + 1) as u8; LEN];
                    let ctx = client.new_op(index as u16 + 1, 0, 0);
                    assert_eq!(client.write(&ctx, ino, at as u64, &bytes, false).unwrap(), LEN);
                    let now = round.fetch_add(1, Ordering::Relaxed) + 1;
                    assert!(read(client, ino, at, LEN) == bytes, "writer {index} reads its write {now}");
                }
            });
        }
        wait_until("both have written often, over many changes", || {
            let contract = if changes % 2 == 0 { STRICT } else { COHERENT };
            let attr = set(changer, ino, contract);
            changes += 1;
            assert_eq!((attr.contract, attr.epoch), (contract, before.epoch + changes));
            changes >= 40 && rounds.iter().all(|round| round.load(Ordering::Relaxed) >= 200)
        });
    });
    let rounds = rounds.map(AtomicUsize::into_inner);
    for client in &formation.clients {
        for (index, round) in rounds.iter().enumerate() {
            assert!(read(client, ino, index * LEN, LEN) == vec![*round as u8; LEN], "writer {index}");
        }
    }
    let attr = changer.getattr(ino).unwrap();
    assert_eq!((attr.size, attr.epoch), (2 * LEN as u64, before.epoch + changes));
    for target in 0..3 {
        assert!(
            !is_accepted(&formation, &attr, target, attr.epoch - 1),
            "target {target} takes what is late"
        );
        assert!(is_accepted(&formation, &attr, target, attr.epoch));
    }
}

/// S734: content, size and times of content stay; once only, however often it is sent.
#[test]
fn a_change_happens_once_and_leaves_the_content() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ino = create(client, Ino::ROOT, "file");
    write(client, ino, 0, &[7; 50_000]);
    client.fsync(ino, false).unwrap();
    let before = client.getattr(ino).unwrap();
    let ctx = client.new_op(3, 0, 0);
    let after = client.set_contract(&ctx, ino, STRICT).unwrap();
    let kept = |attr: &Attr| (attr.size, attr.mtime, attr.atime, attr.mode, attr.holes, attr.data_version);
    assert_eq!((kept(&after), after.epoch, after.contract), (kept(&before), before.epoch + 1, STRICT));
    assert!(after.ctime > before.ctime);
    set(client, ino, COHERENT);
    let again = client.set_contract(&OpCtx { retry: true, ..ctx }, ino, STRICT).unwrap();
    assert_eq!((again.contract, again.epoch), (COHERENT, before.epoch + 2), "it was done before");
    assert_eq!(set(client, ino, COHERENT), again, "there is nothing to change");
    let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
    let ctx = client.new_op(3, 0, 0);
    client.set_contract(&ctx, dir, STRICT).unwrap();
    set(client, dir, SESSION);
    let again = client.set_contract(&OpCtx { retry: true, ..ctx }, dir, STRICT).unwrap();
    assert_eq!(again.contract, SESSION, "it was done before");
    formation.restart();
    let client = &formation.clients[2];
    assert!(read(client, ino, 0, 60_000) == [7; 50_000]);
    assert_eq!((shown(client, ino), shown(client, dir)), ("coherent".into(), "session".into()));
}

/// S734: what was begun is finished, over the absence of a node and a kill of all.
#[test]
fn a_change_that_was_begun_is_finished() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ino = create(client, Ino::ROOT, "file");
    write(client, ino, 0, &[7; 50_000]);
    let (before, home) = (client.getattr(ino).unwrap(), ino.slot().0 % 3);
    let away = NodeId((home + 1) % 3);
    let node = formation.switchboard.unplug(away);
    assert_eq!(errno(client.set_contract(&op(client), ino, STRICT)), Some(Errno::EIO));
    formation.switchboard.plug(away, node);
    formation.restart();
    let client = &formation.clients[1];
    wait_until("it is finished", || client.getattr(ino).unwrap().contract == STRICT);
    let attr = client.getattr(ino).unwrap();
    assert_eq!((attr.epoch, attr.size, attr.mtime), (before.epoch + 1, before.size, before.mtime));
    assert!(read(client, ino, 0, 60_000) == [7; 50_000]);
    assert_eq!(formation.served(usize::from(home), Op::SetContract), 0, "nobody asked again");
}

/// S735.
#[test]
fn a_change_to_or_from_session_needs_the_file_closed() {
    let formation = Formation::new(2, 4096);
    let [mine, other] = [&formation.clients[0], &formation.clients[1]];
    let ino = create(mine, Ino::ROOT, "file");
    let refused = |client: &Client, contract| {
        let before = client.getattr(ino).unwrap();
        let refused = client.set_contract(&op(client), ino, contract).unwrap_err();
        assert!(
            refused.errno() == Errno::EBUSY && refused.to_string().contains("the file is open"),
            "{refused}"
        );
        assert_eq!(client.getattr(ino).unwrap(), before, "nothing has changed");
    };
    refused(mine, SESSION);
    other.open(&op(other), ino, 0).unwrap();
    mine.close(ino);
    refused(mine, SESSION);
    for contract in [STRICT, COHERENT] {
        assert_eq!(set(mine, ino, contract).contract, contract, "these two at any time");
    }
    other.close(ino);
    assert_eq!(set(mine, ino, SESSION).contract, SESSION, "closes that are on their way are waited for");
    mine.open(&op(mine), ino, 0).unwrap();
    assert!(mine.sessions.writes_behind(ino));
    write(mine, ino, 0, &[7; 9000]);
    assert_eq!(other.getattr(ino).unwrap().size, 0, "it is written behind");
    refused(other, STRICT);
    set(mine, ino, STRICT);
    assert!(!mine.sessions.writes_behind(ino));
    assert!(read(other, ino, 0, 9001) == [7; 9000], "what was written behind was sent first");
    write(mine, ino, 9000, &[8; 100]);
    assert!(read(other, ino, 0, 10_000)[9000..] == [8; 100], "and now at once");
    mine.close(ino);
    set(other, ino, SESSION);
}

/// S736, S737.
#[test]
fn who_may_not_and_what_cannot_be_is_refused() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let user = |uid| OpCtx { uid, ..op(client) };
    let theirs = client.create(&user(1000), Ino::ROOT, b"theirs", &FILE, true, false).unwrap().attr.ino;
    assert_eq!(errno(client.set_contract(&user(1001), theirs, STRICT)), Some(Errno::EPERM));
    assert_eq!(errno(client.removexattr(&user(1001), theirs, CONTRACT_XATTR)), Some(Errno::EPERM));
    client.set_contract(&user(1000), theirs, STRICT).unwrap();
    client.set_contract(&user(0), theirs, COHERENT).unwrap();
    let link = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"theirs" };
    let link = make(client, Ino::ROOT, "link", &link).ino;
    assert_eq!(errno(client.set_contract(&op(client), link, STRICT)), Some(Errno::EINVAL));
    assert_eq!(errno(client.getxattr(link, CONTRACT_XATTR)), Some(Errno::ENODATA));
    let refused = client.setxattr(&op(client), theirs, CONTRACT_XATTR, b"loose", 0).unwrap_err();
    assert_eq!(refused.errno(), Errno::EINVAL);
    assert!(
        refused.to_string().contains("'loose' is none of coherent, session, strict, laminated, partition"),
        "{refused}"
    );
    client.close(theirs);
    client.unlink(&op(client), Ino::ROOT, b"theirs").unwrap();
    wait_until("it is gone", || {
        errno(client.set_contract(&op(client), theirs, STRICT)) == Some(Errno::ENOENT)
    });
}
