//! A formation that is checked while it runs: no false finding under load, and every true one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::world::formation::{Formation, op};
use crate::world::{World, kinds, make_file, pattern};
use bivouac_client::{Client, ClientOptions, NewInode};
use bivouac_fsck::{Kind, check_online};
use bivouac_net::{Address, InProcess, LaneKind, NetError, PendingReply, Request, Transport};
use bivouac_node::record::Dentry;
use bivouac_types::limits::PAGE_POOL_DEFAULT;
use bivouac_types::{Attr, ClientId, Errno, FsResult, Ino, NodeId, SetAttr, Slot, mode};
use bivouac_wire::Op;

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const LINK: NewInode<'static> = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"somewhere" };
/// Changes that are made while the formation is checked again and again.
const CHANGES: usize = 12_000;

/// A little generator: which operation comes next need not be secret.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// As the kernel does: what is no file is not written to.
fn file(attr: Attr) -> FsResult<Attr> {
    if attr.is_file() { Ok(attr) } else { Err(Errno::EINVAL.into()) }
}

/// One change, of a kind and with names that others use too; being refused is part of it.
fn change(client: &Client, dice: &mut Dice, channel: u16, dirs: &[Ino]) {
    let ctx = client.new_op(channel, 0, 0);
    let (from, to) = (dirs[dice.next(6) as usize], dirs[dice.next(6) as usize]);
    let (name, other) = (format!("n{}", dice.next(12)), format!("n{}", dice.next(12)));
    let (name, other) = (name.as_bytes(), other.as_bytes());
    let refused = match dice.next(12) {
        0..3 => {
            let new = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
            client.create(&ctx, from, name, &new, false, false).map(|opened| {
                if !opened.attr.is_file() {
                    return;
                }
                let data = pattern(dice.next(30_000) as usize + 1, 3);
                let _ = client.write(
                    &client.new_op(channel, 0, 0),
                    opened.attr.ino,
                    dice.next(9000),
                    &data,
                    false,
                );
                client.close(opened.attr.ino);
            })
        }
        3 => client.mknod(&ctx, from, name, &DIR).map(drop),
        4 => client.mknod(&ctx, from, name, &LINK).map(drop),
        5 => client.unlink(&ctx, from, name),
        6 => client.rmdir(&ctx, from, name),
        7 | 8 => client.rename(&ctx, from, name, to, other, 0),
        9 => client.lookup(from, name).and_then(|attr| client.link(&ctx, attr.ino, to, other).map(drop)),
        10 => client.lookup(from, name).and_then(file).and_then(|attr| {
            client
                .setattr(&ctx, attr.ino, &SetAttr { size: Some(dice.next(20_000)), ..SetAttr::default() })
                .map(drop)
        }),
        _ => client.lookup(from, name).and_then(file).and_then(|attr| {
            client.open(&ctx, attr.ino, 0)?;
            let done = client.unlink(&client.new_op(channel, 0, 0), from, name);
            let _ = client.write(&client.new_op(channel, 0, 0), attr.ino, 0, b"late", false);
            client.close(attr.ino);
            done
        }),
    };
    let _ = refused;
}

#[test]
fn nothing_is_found_while_four_nodes_change_everything() {
    nothing_is_found_in(&Formation::new(4, 4096));
}

#[test]
fn nothing_is_found_while_directories_spread() {
    nothing_is_found_in(&Formation::spreading_at(4, 6));
}

fn nothing_is_found_in(formation: &Formation) {
    let dirs: Vec<Ino> = (0..6)
        .map(|i| {
            let client = &formation.clients[0];
            client.mknod(&op(client), Ino::ROOT, format!("d{i}").as_bytes(), &DIR).unwrap().ino
        })
        .collect();
    let (over, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    // Clients of their own: the check's client is none of those who change.
    let checker = formation.client_as(0, 5000);
    std::thread::scope(|scope| {
        scopeguard::defer! { over.store(true, Ordering::Relaxed) }
        for (i, client) in formation.clients.iter().enumerate() {
            let (dirs, over, changes) = (&dirs, &over, &changes);
            scope.spawn(move || {
                let mut dice = Dice(i as u64 + 1);
                while !over.load(Ordering::Relaxed) {
                    change(client, &mut dice, i as u16 + 1, dirs);
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while changes.load(Ordering::Relaxed) < CHANGES {
            let report = check_online(&checker, false, &()).unwrap();
            assert!(report.findings.is_empty(), "{report:#?}");
            assert!(report.totals.inodes > 6, "{report:?}");
        }
    });
    let report = check_online(&checker, false, &()).unwrap();
    assert_eq!(report.exit_code(), 0, "{report:#?}");
}

/// The way to a node on which something happens before records are listed.
struct Interrupted {
    inner: InProcess,
    before: Box<dyn Fn() + Send + Sync>,
}

impl Transport for Interrupted {
    fn start(&self, request: &Request<'_>) -> PendingReply<'_> {
        if request.frame.op == Op::ListRecords as u16 {
            (self.before)();
        }
        self.inner.start(request)
    }

    fn connect(&self, wait: Duration) -> Result<(), NetError> {
        self.inner.connect(wait)
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

/// A file that is always in the directory that is not being read: no look ever sees a name of it.
#[test]
fn a_file_that_never_rests_is_not_found_lost() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let dirs: Vec<Ino> = (0..8)
        .map(|i| client.mknod(&op(client), Ino::ROOT, format!("d{i}").as_bytes(), &DIR).unwrap().ino)
        .collect();
    let at = |node: u16| *dirs.iter().find(|dir| formation.map().home(**dir) == Some(NodeId(node))).unwrap();
    let places = [at(0), at(1)];
    let ino = make_file(client, places[0], "f", b"x");
    let way = |node: usize| -> Arc<dyn Transport> {
        let mover = formation.client_as(node, 6000 + node as u64);
        let (from, to) = (places[node], places[1 - node]);
        let before = move || drop(mover.rename(&op(&mover), from, b"f", to, b"f", 0));
        let inner = InProcess::new(formation.nodes[node].clone(), LaneKind::Client);
        Arc::new(Interrupted { inner, before: Box::new(before) })
    };
    let options = ClientOptions {
        id: ClientId(5000),
        wait: Duration::from_secs(60),
        near: None,
        incarnation: 0,
        page_pool: PAGE_POOL_DEFAULT,
    };
    let checker = Client::over(formation.map().clone(), vec![way(0), way(1)], None, &options);
    let report = check_online(&checker, false, &()).unwrap();
    assert!(report.findings.is_empty(), "{report:#?}");
    let note = format!("inode {ino} was changed whenever it was looked at");
    assert!(report.notes.contains(&note), "{report:#?}");
}

#[test]
fn true_findings_are_found_under_load_too() {
    let mut world = World::new();
    let ghost = Ino::new(Slot(5), NodeId(1), 20);
    world.put_entry(world.dir("/a"), "ghost", Dentry { ino: ghost, kind: mode::FILE });
    world.edit_inode(world.dir("/a"), |inode| inode.attr.size += 1);
    world.edit_inode(world.file("/b/f1"), |inode| inode.attr.nlink = 4);
    world.formation.start();
    let over = AtomicBool::new(false);
    let checker = world.formation.client_as(0, 5000);
    let report = std::thread::scope(|scope| {
        scopeguard::defer! { over.store(true, Ordering::Relaxed) }
        let client = &world.formation.clients[1];
        let over = &over;
        scope.spawn(move || {
            for i in 0.. {
                let name = format!("busy{i}");
                make_file(client, Ino::ROOT, &name, b"x");
                client.unlink(&op(client), Ino::ROOT, name.as_bytes()).unwrap();
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        check_online(&checker, false, &()).unwrap()
    });
    assert_eq!(kinds(&report), [Kind::MissingInode, Kind::LinkCount], "{report:#?}");
    let texts: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let says = |text: &str| texts.iter().any(|found| found.contains(text));
    assert!(
        says("/a/ghost: leads to inode") && says("file /b/f1: has a link count of 4, but 1 names"),
        "{texts:?}"
    );
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn an_unfinished_change_is_said_and_explains_what_looks_half_done() {
    let formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    // Step 64 makes the inode of a directory at another node; its answer never comes.
    formation.switchboard.lose_every.store(1, Ordering::Relaxed);
    let unknown = (0..20).find(|i| {
        let name = format!("d{i}");
        client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR).is_err()
    });
    assert!(unknown.is_some(), "some directory is on another node");
    let checker = formation.client_as(0, 5000);
    let report = check_online(&checker, false, &()).unwrap();
    assert!(report.findings.is_empty(), "{report:#?}");
    let waits =
        |note: &String| note.contains("mkdir of 'd") && note.contains("is unfinished and waits for node");
    assert!(report.notes.iter().any(waits), "{report:#?}");
    formation.switchboard.lose_every.store(0, Ordering::Relaxed);
    crate::world::formation::wait_until("the change is finished", || {
        check_online(&checker, false, &()).unwrap().notes.is_empty()
    });
}
