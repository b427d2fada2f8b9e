//! Directories that spread over all nodes while they are used.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::formation::{Formation, Switchboard, op, wait_until};
use bivouac_client::{Client, NewInode, OpCtx};
use bivouac_node::{PeerRequest, Peers};
use bivouac_types::limits::SPREAD_ATTR_MS;
use bivouac_types::{Attr, ClientId, Errno, Ino, NodeId, OpId, SetAttr, SetTime, Timestamp, mode};
use bivouac_wire::{Encode, InoOnly, Op, Operation, RemoveDirRequest, SealRequest, op};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

fn make(client: &Client, dir: Ino, name: &str, new: &NewInode<'_>) -> Attr {
    client.mknod(&op(client), dir, name.as_bytes(), new).unwrap()
}

/// Files with numbers for names.
fn fill(client: &Client, dir: Ino, numbers: std::ops::Range<u32>) {
    for number in numbers {
        make(client, dir, &number.to_string(), &FILE);
    }
}

fn errno<T>(outcome: bivouac_types::FsResult<T>) -> Option<Errno> {
    outcome.err().map(|error| error.errno())
}

/// All names, by small pages.
fn list(client: &Client, dir: Ino) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = client.readdir(dir, cookie, 300, true).unwrap();
        let Some(last) = page.last() else { return names };
        assert!(last.cookie > cookie);
        cookie = last.cookie;
        names.extend(page.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

fn is_spread(client: &Client, dir: Ino) -> bool {
    client.getattr(dir).unwrap().is_spread()
}

/// The node of an entry of a spread directory.
fn shard_node(formation: &Formation, dir: Ino, name: &str) -> Option<NodeId> {
    let hash = bivouac_layout::entry_hash(dir, name.as_bytes());
    formation.map.slot_node(bivouac_layout::slot_of_hash(hash, formation.map.slot_count()))
}

/// A directory with entries `0` and `1` that has spread.
fn spread_dir(formation: &Formation) -> Ino {
    let client = &formation.clients[0];
    let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
    make(client, dir, "0", &FILE);
    make(client, dir, "1", &FILE);
    wait_until("the directory is spread", || is_spread(client, dir));
    dir
}

/// S37.
#[test]
fn one_clients_own_directory_spreads_later() {
    let formation = Formation::spreading_later(2, 40);
    let [mine, other] = [&formation.clients[0], &formation.clients[1]];
    let dirs = ["a", "b", "c", "d"].map(|name| make(mine, Ino::ROOT, name, &DIR).ino);
    for dir in &dirs {
        fill(mine, *dir, 0..39);
        assert_eq!(list(mine, *dir).len(), 39);
    }
    assert!(!dirs.iter().any(|dir| is_spread(mine, *dir)));
    // By its size; because another one looks for a name, lists it, or makes something there.
    fill(mine, dirs[0], 39..40);
    other.lookup(dirs[1], b"7").unwrap();
    assert_eq!(list(other, dirs[2]).len(), 39);
    (39..200).take_while(|_| !is_spread(other, dirs[3])).for_each(|n| fill(other, dirs[3], n..n + 1));
    for dir in &dirs {
        wait_until("the directory is spread", || is_spread(mine, *dir));
        assert!(mine.lookup(*dir, b"38").is_ok() && list(mine, *dir).len() >= 39);
    }
}

/// S37, S38.
#[test]
fn a_large_directory_is_everybodys() {
    let formation = Formation::spreading(4);
    let dir = spread_dir(&formation);
    let client = &formation.clients[1];
    let before: Vec<u64> = (0..4).map(|node| formation.served(node, Op::Make)).collect();
    fill(client, dir, 2..402);
    for (node, before) in before.iter().enumerate() {
        let served = formation.served(node, Op::Make) - before;
        assert!(served > 50, "node {node} made {served} of 400");
    }
    let all: BTreeSet<String> = (0..402).map(|i| i.to_string()).collect();
    for client in &formation.clients {
        let names = list(client, dir);
        assert_eq!(names.len(), 402);
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), all);
        assert_eq!(client.getattr(dir).unwrap().size, 402);
        assert_eq!(errno(client.lookup(dir, b"nothing")), Some(Errno::ENOENT));
    }
}

#[test]
fn attributes_follow_every_change_at_once() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let mut last = formation.clients[0].getattr(dir).unwrap();
    for turn in 0..60_u64 {
        let (who, other) =
            (&formation.clients[turn as usize % 3], &formation.clients[(turn as usize + 1) % 3]);
        let name = format!("entry {turn}");
        make(who, dir, &name, if turn % 3 == 0 { &DIR } else { &FILE });
        let attr = other.getattr(dir).unwrap();
        assert_eq!((attr.size, attr.nlink), (turn + 3, last.nlink + u32::from(turn % 3 == 0)));
        assert!(attr.mtime > last.mtime, "turn {turn}");
        assert_eq!(other.getattr(dir).unwrap(), attr, "nothing has changed since");
        last = attr;
    }
}

#[test]
fn cached_attrs_show_own_changes_and_soon_those_of_others() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let client = &formation.clients[0];
    let before: u64 = (0..3).map(|node| formation.served(node, Op::GetAttr)).sum();
    let begun = std::time::Instant::now();
    for i in 0..200_u64 {
        make(client, dir, &format!("own {i}"), &FILE);
        assert_eq!(client.getattr_cached(dir).unwrap().size, 3 + i);
        if i % 2 == 0 {
            client.rename(&op(client), dir, format!("own {i}").as_bytes(), dir, b"moved", 0).unwrap();
            client.rename(&op(client), dir, b"moved", dir, format!("own {i}").as_bytes(), 0).unwrap();
            assert_eq!(client.getattr_cached(dir).unwrap().size, 3 + i);
        }
    }
    let asked = (0..3).map(|node| formation.served(node, Op::GetAttr)).sum::<u64>() - before;
    // On a busy machine what was asked may be too old at each look.
    let are_far_apart = begun.elapsed() >= std::time::Duration::from_millis(300 * SPREAD_ATTR_MS);
    assert!(asked < 300 || are_far_apart, "{asked} questions for 300 looks");
    make(&formation.clients[1], dir, "of another", &FILE);
    wait_until("the other's entry is counted", || client.getattr_cached(dir).unwrap().size == 203);
}

#[test]
fn times_that_were_set_stay_until_the_next_change() {
    let mut formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    fill(&formation.clients[1], dir, 100..130);
    let past = Timestamp { secs: 1_000, nanos: 7 };
    let set = SetAttr { mtime: Some(SetTime::At(past)), ..SetAttr::default() };
    let client = &formation.clients[2];
    assert_eq!(client.setattr(&op(client), dir, &set).unwrap().mtime, past);
    assert!(formation.clients.iter().all(|client| client.getattr(dir).unwrap().mtime == past));
    formation.restart();
    assert!(formation.clients.iter().all(|client| client.getattr(dir).unwrap().mtime == past));
    make(&formation.clients[0], dir, "later", &FILE);
    assert!(formation.clients.iter().all(|client| client.getattr(dir).unwrap().mtime > past));
    assert_eq!(formation.clients[1].getattr(dir).unwrap().size, 33);
}

#[test]
fn new_entries_get_what_the_directory_says_now() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let client = &formation.clients[0];
    let set = SetAttr { mode: Some(0o2775), gid: Some(77), ..SetAttr::default() };
    client.setattr(&op(client), dir, &set).unwrap();
    client.setxattr(&op(client), dir, b"user.bivouac.layout", b"stripe=8k width=1", 0).unwrap();
    for i in 0..30 {
        let attr = make(client, dir, &format!("f{i}"), &FILE);
        assert_eq!((attr.gid, attr.layout.stripe, attr.layout.width), (77, 8192, 1));
        let attr = make(client, dir, &format!("d{i}"), &DIR);
        assert_eq!((attr.gid, attr.mode & mode::SETGID), (77, mode::SETGID));
    }
}

#[test]
fn an_empty_one_goes_without_a_trace_and_another_does_not_go() {
    let mut formation = Formation::spreading(3);
    let before = left(formation.census());
    let dir = spread_dir(&formation);
    let client = &formation.clients[1];
    fill(client, dir, 2..40);
    for i in 0..40 {
        assert_eq!(errno(client.rmdir(&op(client), Ino::ROOT, b"dir")), Some(Errno::ENOTEMPTY), "{i}");
        // A refused attempt leaves the directory open.
        make(client, dir, "more", &FILE);
        client.unlink(&op(client), dir, b"more").unwrap();
        client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap();
    }
    assert_eq!(client.getattr(dir).unwrap().size, 0);
    client.rmdir(&op(client), Ino::ROOT, b"dir").unwrap();
    assert_eq!(errno(client.lookup(Ino::ROOT, b"dir")), Some(Errno::ENOENT));
    assert_eq!(errno(client.mknod(&op(client), dir, b"late", &FILE)), Some(Errno::ENOENT));
    // Files that lost their names stay for a moment.
    wait_until("the files are gone", || formation.files() == 1);
    assert_eq!(left(formation.census()), before);
}

/// Without the marks of what clients and nodes have done, and of who they are.
fn left(mut census: std::collections::BTreeMap<char, usize>) -> Vec<(char, usize)> {
    census.retain(|letter, _| !['R', 'A', 'C', 'M'].contains(letter));
    census.into_iter().collect()
}

#[test]
fn a_spread_directory_is_replaced_moved_and_exchanged() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let client = &formation.clients[2];
    let other = make(client, Ino::ROOT, "other", &DIR).ino;
    let rename =
        |from: &[u8], to: &[u8], flags| client.rename(&op(client), Ino::ROOT, from, Ino::ROOT, to, flags);
    assert_eq!(errno(rename(b"other", b"dir", 0)), Some(Errno::ENOTEMPTY));
    rename(b"dir", b"other", 2).unwrap();
    assert_eq!(client.lookup(Ino::ROOT, b"other").unwrap().ino, dir);
    rename(b"dir", b"other", 2).unwrap();
    assert_eq!(client.lookup(Ino::ROOT, b"dir").unwrap().ino, dir);
    assert_eq!(sorted(list(client, dir)), ["0", "1"]);
    for i in 0..20 {
        make(client, dir, &format!("from {i}"), &FILE);
        make(client, dir, &format!("to {i}"), &FILE);
        client
            .rename(&op(client), dir, format!("from {i}").as_bytes(), dir, format!("to {i}").as_bytes(), 0)
            .unwrap();
        client
            .rename(&op(client), dir, format!("to {i}").as_bytes(), other, format!("out {i}").as_bytes(), 0)
            .unwrap();
    }
    assert_eq!((list(client, dir).len(), list(client, other).len()), (2, 20));
    assert_eq!(formation.clients[0].getattr(dir).unwrap().size, 2);
    assert_eq!(formation.clients[0].getattr(other).unwrap().size, 20);
    client.unlink(&op(client), dir, b"0").unwrap();
    client.unlink(&op(client), dir, b"1").unwrap();
    rename(b"other", b"dir", 0).unwrap();
    assert_eq!(client.lookup(Ino::ROOT, b"dir").unwrap().ino, other);
    assert_eq!(list(client, other).len(), 20);
    assert_eq!(errno(client.getattr(dir)), Some(Errno::ENOENT));
}

/// S37.
#[test]
fn it_spreads_while_it_is_used() {
    let formation = Formation::spreading_at(3, 300);
    let client = &formation.clients[0];
    let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
    let each = 700;
    std::thread::scope(|scope| {
        for (me, client) in formation.clients.iter().enumerate() {
            scope.spawn(move || {
                for i in 0..each {
                    let ctx = OpCtx { channel: me as u16, ..op(client) };
                    let name = format!("{me}.{i}");
                    client.mknod(&ctx, dir, name.as_bytes(), &FILE).unwrap();
                    assert_eq!(client.lookup(dir, name.as_bytes()).unwrap().nlink, 1);
                    if i % 7 == 0 {
                        let ctx = OpCtx { id: op(client).id, ..ctx };
                        client
                            .rename(&ctx, dir, name.as_bytes(), dir, format!("moved {name}").as_bytes(), 0)
                            .unwrap();
                    }
                    if i % 11 == 5 && i % 7 != 0 {
                        let ctx = OpCtx { id: op(client).id, ..ctx };
                        client.unlink(&ctx, dir, name.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    wait_until("the directory is spread", || is_spread(client, dir));
    let mut expected = Vec::new();
    for me in 0..3 {
        for i in 0..each {
            match i {
                _ if i % 7 == 0 => expected.push(format!("moved {me}.{i}")),
                _ if i % 11 == 5 => {}
                _ => expected.push(format!("{me}.{i}")),
            }
        }
    }
    assert_eq!(sorted(list(&formation.clients[1], dir)), sorted(expected.clone()));
    assert_eq!(client.getattr(dir).unwrap().size, expected.len() as u64);
}

#[test]
fn with_a_node_away_it_stays_whole_and_spreads_later() {
    let formation = Formation::spreading(3);
    let client = &formation.clients[0];
    let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
    let home = usize::from(formation.map.home(dir).unwrap().0);
    let away = NodeId((home as u16 + 1) % 3);
    let gone = formation.switchboard.unplug(away);
    fill(client, dir, 0..50);
    assert!(!is_spread(client, dir));
    assert_eq!(list(client, dir).len(), 50);
    formation.switchboard.plug(away, gone);
    // Tried again when it has grown.
    fill(client, dir, 50..200);
    let mut next = 200;
    wait_until("the directory is spread", || {
        make(client, dir, &next.to_string(), &FILE);
        next += 1;
        is_spread(client, dir)
    });
    assert_eq!(list(client, dir).len(), next);
    (0..next).for_each(|i| assert!(client.lookup(dir, i.to_string().as_bytes()).is_ok()));
}

#[test]
fn what_was_done_before_it_spread_is_remembered() {
    let formation = Formation::spreading(3);
    let client = &formation.clients[0];
    let dir = make(client, Ino::ROOT, "dir", &DIR).ino;
    make(client, dir, "victim", &FILE);
    let ctx = OpCtx { id: OpId(1 << 40), ..op(client) };
    let made = client.create(&ctx, dir, b"once", &FILE, true, false).unwrap();
    let other = OpCtx { id: OpId((1 << 40) + 1), channel: 1, ..ctx };
    client.unlink(&other, dir, b"victim").unwrap();
    let mut more = 0;
    wait_until("the directory is spread", || {
        let ctx = OpCtx { channel: 2, ..op(client) };
        client.mknod(&ctx, dir, format!("more {more}").as_bytes(), &FILE).unwrap();
        more += 1;
        is_spread(client, dir)
    });
    // The answers were lost, and the client knows by now that the directory is spread.
    let again = client.create(&OpCtx { retry: true, ..ctx }, dir, b"once", &FILE, true, false).unwrap();
    assert_eq!((again.attr.ino, again.existed), (made.attr.ino, false));
    client.unlink(&OpCtx { retry: true, ..other }, dir, b"victim").unwrap();
}

#[test]
fn a_lost_answer_in_the_middle_leaves_nothing_behind() {
    let mut formation = Formation::spreading(3);
    let dir = make(&formation.clients[0], Ino::ROOT, "dir", &DIR).ino;
    formation.switchboard.lose_reply.store(Op::InstallShard as u32, Ordering::SeqCst);
    fill(&formation.clients[0], dir, 0..4);
    wait_until("the answer is lost", || formation.switchboard.lose_reply.load(Ordering::SeqCst) == 0);
    formation.restart();
    let client = &formation.clients[1];
    assert_eq!(sorted(list(client, dir)), ["0", "1", "2", "3"]);
    for i in 0..4 {
        client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap();
    }
    client.rmdir(&op(client), Ino::ROOT, b"dir").unwrap();
    wait_until("the files are gone", || formation.files() == 1);
    wait_until("the attempt is given up", || formation.nodes.iter().all(|node| node.unfinished() == 0));
    assert_eq!(left(formation.census()), [('I', 1)]);
}

/// A step may be under way for long, and arrive behind its own repetition.
#[test]
fn late_steps_bring_nothing_back_and_take_nothing_away() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let client = &formation.clients[0];
    fill(client, dir, 2..40);
    (0..20).for_each(|i| client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap());
    let names = sorted(list(client, dir));
    formation.switchboard.come_late(formation.switchboard.sent(Op::InstallShard));
    assert_eq!(sorted(list(client, dir)), names);
    assert_eq!(errno(client.rmdir(&op(client), Ino::ROOT, b"dir")), Some(Errno::ENOTEMPTY));
    let gids = [77, 78].map(|gid| SetAttr { mode: Some(0o2775), gid: Some(gid), ..SetAttr::default() });
    client.setattr(&op(client), dir, &gids[0]).unwrap();
    let late = formation.switchboard.sent(Op::UpdateShard);
    client.setattr(&op(client), dir, &gids[1]).unwrap();
    formation.switchboard.come_late(late);
    (0..30).for_each(|i| assert_eq!(make(client, dir, &format!("f{i}"), &FILE).gid, 78));
    (0..30).for_each(|i| client.unlink(&op(client), dir, format!("f{i}").as_bytes()).unwrap());
    (20..40).for_each(|i| client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap());
    make(client, dir, "last", &FILE);
    assert_eq!(errno(client.rmdir(&op(client), Ino::ROOT, b"dir")), Some(Errno::ENOTEMPTY));
    client.unlink(&op(client), dir, b"last").unwrap();
    formation.switchboard.come_late(formation.switchboard.sent(Op::SealShard));
    fill(client, dir, 0..30);
    assert_eq!(client.getattr(dir).unwrap().size, 30);
}

#[test]
fn a_removal_whose_answer_was_lost_takes_the_shards_with_it() {
    let mut formation = Formation::spreading(3);
    let before = left(formation.census());
    // The removal is a step to another node if its parent's home, which is compact, is not its own.
    let client = &formation.clients[0];
    let mut number = 0;
    let (parent, name, dir) = loop {
        let name = format!("parent {number}");
        let parent = make(client, Ino::ROOT, &name, &DIR).ino;
        let dir = make(client, parent, "dir", &DIR).ino;
        if formation.map.home(dir) != formation.map.home(parent) {
            break (parent, name, dir);
        }
        client.rmdir(&op(client), parent, b"dir").unwrap();
        client.rmdir(&op(client), Ino::ROOT, name.as_bytes()).unwrap();
        number += 1;
    };
    fill(client, dir, 0..2);
    wait_until("the directory is spread", || is_spread(client, dir));
    (0..2).for_each(|i| client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap());
    // The first one is refused: the shards are to be closed before.
    *formation.switchboard.before.lock() = Some((
        Op::SealShard as u16,
        Box::new({
            let switchboard = formation.switchboard.clone();
            move || switchboard.repeat.store(Op::RemoveDir as u32, Ordering::SeqCst)
        }),
    ));
    client.rmdir(&op(client), parent, b"dir").unwrap();
    client.rmdir(&op(client), Ino::ROOT, name.as_bytes()).unwrap();
    assert_eq!(formation.switchboard.repeat.load(Ordering::SeqCst), 0);
    wait_until("the files are gone", || formation.files() == 1);
    assert_eq!(left(formation.census()), before);
}

#[test]
fn what_is_set_while_it_spreads_is_what_new_entries_get() {
    let formation = Formation::spreading(3);
    let dir = make(&formation.clients[0], Ino::ROOT, "dir", &DIR).ino;
    let client = formation.client(0);
    let (done, other) = (std::sync::Arc::new(std::sync::Mutex::new(None)), formation.client(1));
    // Begun in the middle; it may have to wait for the end.
    let slot = done.clone();
    *formation.switchboard.before.lock() = Some((
        Op::InstallShard as u16,
        Box::new(move || {
            let (started, starts) = std::sync::mpsc::channel();
            let setter = std::thread::spawn(move || {
                started.send(()).unwrap();
                let set = SetAttr { mode: Some(0o2775), gid: Some(77), ..SetAttr::default() };
                other.setattr(&op(&other), dir, &set).unwrap();
                other.setxattr(&op(&other), dir, b"user.bivouac.layout", b"stripe=8k", 0).unwrap();
            });
            starts.recv().unwrap();
            // Either it is done by then, or it waits for the end of this.
            let deadline = std::time::Instant::now() + std::time::Duration::from_millis(300);
            while !setter.is_finished() && std::time::Instant::now() < deadline {
                std::thread::yield_now();
            }
            *slot.lock().unwrap() = Some(setter);
        }),
    ));
    fill(&client, dir, 0..2);
    wait_until("the directory is spread", || is_spread(&client, dir));
    wait_until("it was set", || done.lock().unwrap().is_some());
    done.lock().unwrap().take().unwrap().join().unwrap();
    for i in 0..30 {
        let attr = make(&client, dir, &format!("f{i}"), &FILE);
        assert_eq!((attr.gid, attr.layout.stripe), (77, 8192));
    }
}

/// A shard's last change before the directory is set aside is told while it is.
#[test]
fn what_is_told_of_a_directory_that_was_set_aside_is_not_forgotten() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let client = &formation.clients[0];
    let home = formation.map.home(dir).unwrap();
    let name =
        (0..).map(|i| format!("last {i}")).find(|name| shard_node(&formation, dir, name) != Some(home));
    let name = name.unwrap();
    make(client, dir, &name, &FILE);
    (0..2).for_each(|i| client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap());
    assert_eq!(client.getattr(dir).unwrap().size, 1);
    let peer = ClientId(1 << 63 | 2);
    let aside = {
        let switchboard = formation.switchboard.clone();
        move || {
            let seal = SealRequest { dir, by: peer, tx: 1 << 30 };
            (0..3).for_each(|node| step::<op::SealShard>(&switchboard, NodeId(node), 0, &seal));
            let remove = RemoveDirRequest { ino: dir, sealed: true, aside: true };
            step::<op::RemoveDir>(&switchboard, home, 0, &remove);
        }
    };
    *formation.switchboard.before.lock() = Some((Op::DirChanged as u16, Box::new(aside)));
    client.unlink(&op(client), dir, name.as_bytes()).unwrap();
    assert_eq!(errno(client.getattr(dir)), Some(Errno::ENOENT));
    step::<op::RestoreDir>(&formation.switchboard, home, 5, &InoOnly { ino: dir });
    let seal = SealRequest { dir, by: peer, tx: 1 << 30 };
    (0..3).for_each(|node| step::<op::UnsealShard>(&formation.switchboard, NodeId(node), 0, &seal));
    assert_eq!(client.getattr(dir).unwrap().size, 0);
}

/// A step of node 2, as part of a change that it drives.
fn step<O: Operation>(switchboard: &Switchboard, node: NodeId, number: u64, request: &O::Request<'_>) {
    let (id, client, origin) = (OpId((16 << 30) + number), ClientId(1 << 63 | 2), ClientId(1));
    let body = request.to_bytes();
    let request =
        PeerRequest { op: O::OP, id, client, channel: 900, retry: false, origin, body: &body, payload: &[] };
    switchboard.call(node, &request, &mut Vec::new()).unwrap();
}

/// What a rename has put into a spread directory may be gone again, and the directory with it, before the rename
/// is finished.
#[test]
fn a_rename_that_is_finished_late_does_not_come_back() {
    let formation = Formation::spreading(3);
    let dir = spread_dir(&formation);
    let client = &formation.clients[0];
    let home = formation.map.home(dir).unwrap();
    // Nothing is here or there by chance: driver, home and shard are three nodes.
    let from = (0..)
        .map(|i| make(client, Ino::ROOT, &format!("from {i}"), &DIR).ino)
        .find(|from| formation.map.home(*from) != Some(home))
        .unwrap();
    let driver = formation.map.home(from);
    let name = (0..)
        .map(|i| format!("to {i}"))
        .find(|name| ![Some(home), driver].contains(&shard_node(&formation, dir, name)));
    let name = name.unwrap();
    make(client, from, "file", &FILE);
    formation.switchboard.hold(home);
    formation.switchboard.lose_reply.store(Op::InstallEntry as u32, Ordering::SeqCst);
    let outcome = client.rename(&op(client), from, b"file", dir, name.as_bytes(), 0);
    assert_eq!(errno(outcome), Some(Errno::EIO));
    let other = &formation.clients[1];
    assert!(other.lookup(dir, name.as_bytes()).is_ok());
    other.unlink(&op(other), dir, name.as_bytes()).unwrap();
    (0..2).for_each(|i| other.unlink(&op(other), dir, i.to_string().as_bytes()).unwrap());
    other.rmdir(&op(other), Ino::ROOT, b"dir").unwrap();
    formation.switchboard.release();
    wait_until("the rename is finished", || formation.nodes.iter().all(|node| node.unfinished() == 0));
    assert_eq!(list(other, from), Vec::<String>::new());
}

/// What refuses a link may be over by the time that the link is undone.
#[test]
fn a_link_that_was_refused_stays_refused() {
    let formation = Formation::spreading(3);
    let client = &formation.clients[0];
    let dir = spread_dir(&formation);
    (0..2).for_each(|i| client.unlink(&op(client), dir, i.to_string().as_bytes()).unwrap());
    let from = make(client, Ino::ROOT, "from", &DIR).ino;
    let file = make(client, from, "file", &FILE).ino;
    let home = formation.map.home(file);
    let name = (0..).map(|i| format!("link {i}")).find(|name| shard_node(&formation, dir, name) != home);
    let (name, switchboard) = (name.unwrap(), formation.switchboard.clone());
    let seal = SealRequest { dir, by: ClientId(1 << 63 | 2), tx: 1 << 30 };
    let close = {
        let (switchboard, seal) = (switchboard.clone(), seal.clone());
        move || {
            (0..3).for_each(|node| step::<op::SealShard>(&switchboard, NodeId(node), 0, &seal));
            // The link is undone, and nobody hears of it.
            let next = switchboard.clone();
            *switchboard.after.lock() = Some((
                Op::AdjustLinks as u16,
                Box::new(move || next.lose_reply.store(Op::AdjustLinks as u32, Ordering::SeqCst)),
            ));
            switchboard.hold(home.unwrap());
        }
    };
    *switchboard.before.lock() = Some((Op::AdjustLinks as u16, Box::new(close)));
    let outcome = client.link(&op(client), file, dir, name.as_bytes());
    assert_eq!(errno(outcome), Some(Errno::EIO));
    (0..3).for_each(|node| step::<op::UnsealShard>(&switchboard, NodeId(node), 0, &seal));
    switchboard.release();
    wait_until("the link is finished", || formation.nodes.iter().all(|node| node.unfinished() == 0));
    let names = list(client, dir).len() as u32;
    assert_eq!((names, client.getattr(file).unwrap().nlink), (0, 1));
}
