//! Laminated files: nothing changes their content on any way, lamination happens whole or not at all, and its end needs
//! them closed.

use std::io::IoSlice;

use bivouac_client::{Client, CopyJob, NewInode, OpCtx};
use bivouac_net::{InProcess, LaneKind, call};
use bivouac_types::{
    Attr, CONTRACT_XATTR, ClientId, Contract, DIGEST_XATTR, Errno, ExpectedFile, FsResult, Ino, NodeId, OpId,
    SetAttr, SetTime, TargetIndex, mode,
};
use bivouac_wire::{
    ContentDigest, ExtendRequest, Frame, InoOnly, Op, SetContractRequest, WriteRequest, op as wire_op,
};

use crate::at_site::Camp;
use crate::formation::{Formation, copy_all, op, read, wait_until, write};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const LAMINATED: Option<Contract> = Some(Contract::Laminated);
static CONTENT: [u8; 50_000] = [7; 50_000];
/// Digest of that content.
const SHA256: &str = "4b4117e2d0c4c4d3096f5c27a25bdeda86adf26adbee721feefd70d41808a4aa";
const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;

fn errno<T>(outcome: FsResult<T>) -> Option<Errno> {
    outcome.err().map(|error| error.errno())
}

/// A closed file with the content.
fn file(client: &Client, name: &str) -> Ino {
    file_in(client, Ino::ROOT, name)
}

/// A new directory whose home is this node of three.
fn directory_on(client: &Client, node: u16) -> Ino {
    let made = (0..100).map(|number| {
        let name = format!("dir{node}-{number}");
        client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).unwrap().ino
    });
    made.into_iter().find(|ino| ino.slot().0 % 3 == node).unwrap()
}

fn file_in(client: &Client, dir: Ino, name: &str) -> Ino {
    let ino = client.create(&op(client), dir, name.as_bytes(), &FILE, true, false).unwrap().attr.ino;
    write(client, ino, 0, &CONTENT);
    client.close(ino);
    ino
}

fn laminate(client: &Client, ino: Ino) -> Attr {
    client.set_contract(&op(client), ino, LAMINATED).unwrap()
}

fn digest(client: &Client, ino: Ino) -> FsResult<String> {
    client.getxattr(ino, DIGEST_XATTR).map(|bytes| String::from_utf8(bytes).unwrap())
}

/// Everything is as it was when the file was laminated.
fn assert_laminated(client: &Client, ino: Ino, before: &Attr) {
    let attr = client.getattr(ino).unwrap();
    let kept = |attr: &Attr| (attr.size, attr.mtime, attr.data_version, attr.layout);
    assert_eq!((attr.contract, kept(&attr)), (LAMINATED, kept(before)));
    assert!(read(client, ino, 0, 60_000) == CONTENT);
    assert_eq!(digest(client, ino).unwrap(), SHA256);
}

/// Asks a home something as a client would that checks nothing by itself.
fn ask<O: bivouac_wire::Operation>(
    formation: &Formation,
    node: usize,
    request: &O::Request<'_>,
) -> FsResult<O::Reply> {
    let transport = InProcess::new(formation.nodes[node].clone(), LaneKind::Client);
    call::<O>(&transport, Frame::request(0, OpId(1), ClientId(77), 0), request, &[])
}

/// S750, S751, S752.
#[test]
fn nothing_changes_the_content_of_a_laminated_file() {
    let formation = Formation::new(3, 4096);
    let [mine, other, third] = [0, 1, 2].map(|client| &formation.clients[client]);
    let ino = file(mine, "file");
    other.open(&op(other), ino, O_RDONLY).unwrap();
    assert!(read(other, ino, 0, 60_000) == CONTENT, "it knows the file as it was");
    let before = mine.getattr(ino).unwrap();
    let laminated = laminate(mine, ino);
    assert_eq!((laminated.contract, laminated.epoch), (LAMINATED, before.epoch + 1));
    assert_laminated(third, ino, &before);
    assert_eq!(mine.getxattr(ino, CONTRACT_XATTR).unwrap(), b"laminated");
    assert!(mine.listxattr(ino).unwrap().is_empty(), "copies do not take the digest along");
    let source = file(mine, "source");
    for client in [mine, other, third] {
        let ctx = || op(client);
        let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        let copy = CopyJob { from: source, from_offset: 0, to: ino, to_offset: 0, len: 5000 };
        let refused = [
            ("write", client.write(&ctx(), ino, 0, b"x", false).map(drop)),
            ("write behind the end", client.write(&ctx(), ino, 70_000, b"x", false).map(drop)),
            ("long write", client.write(&ctx(), ino, 0, &vec![1; 9 << 20], false).map(drop)),
            ("append", client.write(&ctx(), ino, 0, b"x", true).map(drop)),
            ("list", client.write_list(ino, &[(0, b"x"), (9000, b"y")])),
            ("cut", client.setattr(&ctx(), ino, &cut(5)).map(drop)),
            ("cut to nothing", client.setattr(&ctx(), ino, &cut(0)).map(drop)),
            ("lengthen", client.setattr(&ctx(), ino, &cut(60_000)).map(drop)),
            ("same size", client.setattr(&ctx(), ino, &cut(50_000)).map(drop)),
            ("reserve", client.fallocate(&ctx(), ino, 0, 0, 5000)),
            ("reserve behind the end", client.fallocate(&ctx(), ino, 1, 60_000, 5000)),
            ("punch", client.fallocate(&ctx(), ino, 3, 0, 5000)),
            ("zero", client.fallocate(&ctx(), ino, 16, 0, 5000)),
            ("copy into", client.copy(&ctx(), &copy).map(drop)),
            ("claim", client.claim(&ctx(), ino, 5).map(drop)),
            ("open to write", client.open(&ctx(), ino, O_RDWR).map(drop)),
            ("open to cut", client.open(&ctx(), ino, O_TRUNC).map(drop)),
            ("create over", client.create(&ctx(), Ino::ROOT, b"file", &FILE, false, true).map(drop)),
            ("layout", client.setxattr(&ctx(), ino, b"user.bivouac.layout", b"width=1", 0)),
        ];
        for (what, outcome) in refused {
            let error = outcome.expect_err(what);
            assert_eq!(error.errno(), Errno::EROFS, "{what}: {error}");
            assert!(error.to_string().contains("bivouac laminate --undo"), "{what}: {error}");
        }
        let set = client.setxattr(&ctx(), ino, DIGEST_XATTR, b"00", 0);
        assert_eq!(errno(set), Some(Errno::EPERM));
        assert_eq!(errno(client.removexattr(&ctx(), ino, DIGEST_XATTR)), Some(Errno::EPERM));
    }
    // Also to who asks nobody else first, and to who comes late.
    let home = usize::from(ino.slot().0 % 3);
    let extend = ExtendRequest { ino, end: 60_000, epoch: laminated.epoch };
    assert_eq!(errno(ask::<wire_op::Extend>(&formation, home, &extend)), Some(Errno::EROFS));
    assert_eq!(errno(ask::<wire_op::Touch>(&formation, home, &InoOnly { ino })), Some(Errno::EROFS));
    for target in 0..3_u32 {
        let (layout, target, epoch) = (before.layout, TargetIndex(target), before.epoch);
        let request = WriteRequest { ino, target, layout, epoch, offset: 0 };
        let transport = InProcess::new(formation.nodes[target.0 as usize].clone(), LaneKind::Client);
        let frame = Frame::request(0, OpId(1), ClientId(77), 0);
        let late = call::<wire_op::Write>(&transport, frame, &request, &[IoSlice::new(b"late")]).unwrap();
        assert!(!late.accepted, "target {}", target.0);
    }
    assert_laminated(other, ino, &before);
    assert_eq!(laminate(third, ino), third.getattr(ino).unwrap(), "there is nothing to change");
}

/// S753: attributes and names are no content; but nothing takes its place.
#[test]
fn names_and_attributes_of_a_laminated_file_change() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    // Where the names are on one node, and where they are on several.
    let dirs: Vec<Ino> = (0..3).map(|node| directory_on(client, node)).collect();
    for (from, to) in
        [(0, 0), (0, 1), (1, 2), (2, 0)].map(|(from, to): (usize, usize)| (dirs[from], dirs[to]))
    {
        let ino = file_in(client, from, "file");
        laminate(client, ino);
        let set =
            SetAttr { mode: Some(0o600), mtime: Some(SetTime::Now), uid: Some(5), ..SetAttr::default() };
        let attr = client.setattr(&op(client), ino, &set).unwrap();
        assert_eq!((attr.mode & 0o777, attr.uid), (0o600, 5));
        client.setxattr(&op(client), ino, b"user.note", b"x", 0).unwrap();
        client.link(&op(client), ino, from, b"link").unwrap();
        client.rename(&op(client), from, b"file", to, b"moved", 0).unwrap();
        let new = file_in(client, from, "new");
        let over = client.rename(&op(client), from, b"new", to, b"moved", 0);
        assert_eq!(errno(over), Some(Errno::EROFS));
        let expected = ExpectedFile { ino, data_version: None };
        let over = client.rename_over(&op(client), (from, b"new"), (to, b"moved"), expected);
        assert_eq!(errno(over), Some(Errno::EROFS));
        // What changes places is still there.
        client.rename(&op(client), from, b"new", to, b"moved", 2).unwrap();
        assert_eq!(client.lookup(from, b"new").unwrap().ino, ino);
        assert_eq!(client.lookup(to, b"moved").unwrap().ino, new);
        assert_eq!(digest(client, ino).unwrap(), SHA256);
        client.unlink(&op(client), from, b"new").unwrap();
        client.rename(&op(client), to, b"moved", from, b"new", 0).unwrap();
        client.unlink(&op(client), from, b"new").unwrap();
        client.unlink(&op(client), from, b"link").unwrap();
        wait_until("it is gone", || errno(client.getattr(ino)) == Some(Errno::ENOENT));
    }
}

/// S754.
#[test]
fn what_is_open_for_writing_is_not_laminated() {
    let formation = Formation::new(2, 4096);
    let [mine, other] = [&formation.clients[0], &formation.clients[1]];
    let ino = file(mine, "file");
    let before = mine.getattr(ino).unwrap();
    let refused = |client: &Client| {
        let error = client.set_contract(&op(client), ino, LAMINATED).unwrap_err();
        assert!(
            error.errno() == Errno::EBUSY && error.to_string().contains("is open for writing"),
            "{error}"
        );
        let now = mine.getattr(ino).unwrap();
        assert_eq!((now.contract, now.epoch, now.data_version), (None, before.epoch, before.data_version));
        assert_eq!(errno(digest(mine, ino)), Some(Errno::ENODATA));
    };
    for client in [mine, other] {
        client.open(&op(client), ino, O_RDONLY).unwrap();
        client.open(&op(client), ino, O_RDWR).unwrap();
        [mine, other].into_iter().for_each(refused);
        client.close_open(ino, O_RDWR);
    }
    let made = other.create(&op(other), Ino::ROOT, b"made", &FILE, true, false).unwrap().attr.ino;
    assert_eq!(
        errno(mine.set_contract(&op(mine), made, LAMINATED)),
        Some(Errno::EBUSY),
        "it was made to be written"
    );
    // Closes that are on their way are waited for, and who reads goes on.
    laminate(other, ino);
    assert_laminated(mine, ino, &before);
    // What is not a file is not.
    let dir = mine.mknod(&op(mine), Ino::ROOT, b"dir", &DIR).unwrap().ino;
    let error = mine.set_contract(&op(mine), dir, LAMINATED).unwrap_err();
    assert!(
        error.errno() == Errno::EINVAL && error.to_string().contains("the files in it can be"),
        "{error}"
    );
    let fifo =
        mine.mknod(&op(mine), Ino::ROOT, b"fifo", &NewInode { mode: mode::FIFO | 0o600, ..FILE }).unwrap();
    assert_eq!(errno(mine.set_contract(&op(mine), fifo.ino, LAMINATED)), Some(Errno::EINVAL));
    let stranger = OpCtx { uid: 1001, ..op(mine) };
    assert_eq!(errno(mine.set_contract(&stranger, file(mine, "other"), LAMINATED)), Some(Errno::EPERM));
    assert_eq!(errno(mine.set_contract(&stranger, ino, None)), Some(Errno::EPERM));
}

/// S754: after a restart of its home it is not known who has the file open, until its clients have said so.
#[test]
fn who_has_not_reclaimed_may_be_writing() {
    let mut formation = Formation::new(2, 4096);
    let ino = file(&formation.clients[0], "file");
    formation.clients[1].open(&op(&formation.clients[1]), ino, O_RDWR).unwrap();
    formation.restart();
    let client = &formation.clients[0];
    let error = client.set_contract(&op(client), ino, LAMINATED).unwrap_err();
    assert!(
        error.errno() == Errno::EBUSY && error.to_string().contains("since a daemon restarted"),
        "{error}"
    );
    assert_eq!(client.getattr(ino).unwrap().contract, None);
}

/// S754: content that changes while the digest is taken has another one.
#[test]
fn a_digest_of_another_content_is_not_taken() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let ino = file(client, "file");
    let before = client.getattr(ino).unwrap();
    client.open(&op(client), ino, O_RDWR).unwrap();
    write(client, ino, 0, b"other");
    client.close_open(ino, O_RDWR);
    wait_until("its home has heard of the close", || !client.getattr(ino).unwrap().is_being_written());
    let sha256 = [1; 32];
    let late = ContentDigest { data_version: before.data_version, sha256 };
    let request = SetContractRequest { ino, contract: LAMINATED, digest: Some(late), flags: 0 };
    let home = usize::from(ino.slot().0 % 2);
    assert_eq!(errno(ask::<wire_op::SetContract>(&formation, home, &request)), Some(Errno::ECANCELED));
    assert_eq!(
        (client.getattr(ino).unwrap().contract, errno(digest(client, ino))),
        (None, Some(Errno::ENODATA))
    );
    laminate(client, ino);
    assert_ne!(digest(client, ino).unwrap(), SHA256);
}

/// S756: a kill of all at any step leaves it whole, once it has begun.
#[test]
fn lamination_that_was_begun_is_finished() {
    for after in [false, true] {
        let mut formation = Formation::new(3, 4096);
        let client = &formation.clients[0];
        let ino = file(client, "file");
        let before = client.getattr(ino).unwrap();
        let (copy, volumes) = (tempfile::tempdir().unwrap(), formation.volumes());
        let to = copy.path().to_owned();
        let killed: (u16, Box<dyn FnOnce() + Send>) =
            (Op::Trim as u16, Box::new(move || copy_all(&volumes, &to)));
        let at = if after { &formation.switchboard.after } else { &formation.switchboard.before };
        *at.lock() = Some(killed);
        laminate(client, ino);
        formation.go_on_from(copy.path());
        let client = &formation.clients[1];
        assert_eq!(client.getattr(ino).unwrap().contract, LAMINATED, "who asks at once sees it");
        wait_until("it is finished", || client.getattr(ino).unwrap().epoch == before.epoch + 1);
        assert_laminated(client, ino, &before);
        assert_eq!(errno(client.open(&op(client), ino, O_RDWR)), Some(Errno::EROFS));
        formation.restart();
        assert_laminated(&formation.clients[2], ino, &before);
    }
}

/// S756, S757: over the absence of a node, to laminated and back.
#[test]
fn lamination_and_its_end_are_finished_when_a_node_is_back() {
    for is_undone in [false, true] {
        let mut formation = Formation::new(3, 4096);
        let client = &formation.clients[0];
        let ino = file(client, "file");
        let before = client.getattr(ino).unwrap();
        if is_undone {
            laminate(client, ino);
        }
        let away = NodeId((ino.slot().0 % 3 + 1) % 3);
        let wanted = if is_undone { None } else { LAMINATED };
        let begun = if is_undone {
            let node = formation.switchboard.unplug(away);
            let begun = client.set_contract(&op(client), ino, None);
            formation.switchboard.plug(away, node);
            begun
        } else {
            // The digest is taken first.
            formation
                .switchboard
                .lose_request
                .store(u32::from(Op::Trim as u16), std::sync::atomic::Ordering::SeqCst);
            client.set_contract(&op(client), ino, wanted)
        };
        assert_eq!(errno(begun), Some(Errno::EIO), "its outcome is unknown");
        formation.restart();
        let client = &formation.clients[1];
        let epoch = before.epoch + if is_undone { 2 } else { 1 };
        wait_until("it is finished", || client.getattr(ino).unwrap().epoch == epoch);
        assert_eq!(client.getattr(ino).unwrap().contract, wanted);
        if is_undone {
            assert_eq!(errno(digest(client, ino)), Some(Errno::ENODATA));
            write(client, ino, 0, b"new");
            assert_eq!(read(&formation.clients[2], ino, 0, 3), b"new");
        } else {
            assert_laminated(client, ino, &before);
        }
    }
}

/// S757.
#[test]
fn the_end_of_lamination_needs_the_file_closed() {
    let formation = Formation::new(2, 4096);
    let [mine, other] = [&formation.clients[0], &formation.clients[1]];
    let ino = file(mine, "file");
    laminate(mine, ino);
    for reader in [mine, other] {
        reader.open(&op(reader), ino, O_RDONLY).unwrap();
        for contract in [None, Some(Contract::Strict), Some(Contract::Session)] {
            let error = mine.set_contract(&op(mine), ino, contract).unwrap_err();
            assert!(error.errno() == Errno::EBUSY && error.to_string().contains("from laminated"), "{error}");
        }
        assert_eq!(
            (mine.getattr(ino).unwrap().contract, digest(mine, ino).unwrap()),
            (LAMINATED, SHA256.into())
        );
        reader.close_open(ino, O_RDONLY);
    }
    assert_eq!(
        mine.set_contract(&op(mine), ino, Some(Contract::Strict)).unwrap().contract,
        Some(Contract::Strict)
    );
    assert_eq!(errno(digest(other, ino)), Some(Errno::ENODATA));
    other.open(&op(other), ino, O_RDWR).unwrap();
    write(other, ino, 0, b"new");
    assert_eq!(read(mine, ino, 0, 4), b"new\x07");
}

/// S758: reading to the end asks its home nothing.
#[test]
fn a_laminated_file_is_read_to_its_end_without_its_home() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ino = file_in(client, directory_on(client, 1), "file");
    assert_eq!(ino.slot().0 % 3, 1, "another node is its home");
    laminate(client, ino);
    client.open(&op(client), ino, O_RDONLY).unwrap();
    let asked = || (0..3).map(|node| formation.served(node, Op::GetAttr)).sum::<u64>();
    let before = asked();
    for _ in 0..3 {
        assert!(read(client, ino, 0, 60_000) == CONTENT);
    }
    assert_eq!(asked(), before);
}

/// S759.
#[test]
fn taking_the_last_permission_to_write_laminates_where_the_partition_says_so() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dir = client.mknod(&op(client), Ino::ROOT, b"dir", &DIR).unwrap().ino;
    let settings = "laminate=on-chmod".parse().unwrap();
    client.partitions.make(&op(client), dir, vec![TargetIndex(0), TargetIndex(1)], settings).unwrap();
    let chmod = |ino: Ino, mode: u32| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        client.setattr(&op(client), ino, &set).unwrap()
    };
    let make = |name: &[u8]| {
        let ino = client.create(&op(client), dir, name, &FILE, true, false).unwrap().attr.ino;
        write(client, ino, 0, &CONTENT);
        ino
    };
    let ino = make(b"file");
    let open = chmod(ino, 0o444);
    assert_eq!((open.mode & 0o777, open.contract), (0o444, None), "it is open for writing");
    client.close_open(ino, O_RDWR);
    assert_eq!(chmod(ino, 0o464).contract, None, "somebody may write");
    let laminated = chmod(ino, 0o444);
    assert_eq!((laminated.mode & 0o777, laminated.contract), (0o444, LAMINATED));
    assert_eq!(digest(client, ino).unwrap(), SHA256);
    assert_eq!(chmod(ino, 0o644).contract, LAMINATED, "that does not end it");
    assert_eq!(chmod(dir, 0o555).contract, None, "a directory is not");
    assert_eq!(chmod(file(client, "elsewhere"), 0o444).contract, None, "nor a file of another partition");
}

/// S750: in front of a source.
#[test]
fn a_laminated_file_is_not_renewed_from_its_source() {
    let camp = Camp::new(|site| std::fs::write(site.join("file"), CONTENT).unwrap());
    let ino = camp.ino(0, "file").unwrap();
    laminate(camp.client(1), ino);
    assert_eq!(digest(camp.client(2), ino).unwrap(), SHA256);
    assert_eq!(camp.flush(0, false), []);
    std::fs::write(camp.at("file"), "other").unwrap();
    for node in 0..3 {
        let client = camp.client(node);
        assert_eq!(client.open(&op(client), ino, O_RDONLY).unwrap().size, CONTENT.len() as u64);
        assert!(camp.read(node, "file").unwrap() == CONTENT);
        client.close(ino);
    }
    let made = camp.write(0, "made", &CONTENT);
    laminate(camp.client(0), made);
    assert_eq!(camp.flush(1, false), []);
    assert!(std::fs::read(camp.at("made")).unwrap() == CONTENT);
    assert_eq!(digest(camp.client(2), made).unwrap(), SHA256);
    assert!(camp.read(3, "file").unwrap() == CONTENT && std::fs::read(camp.at("file")).unwrap() == b"other");
}
