//! What every formation must do, seen by clients through different nodes.

use crate::formation::{Formation, op, read, wait_until, write};
use bivouac_client::{NewInode, OpCtx, TreeEntry};
use bivouac_types::{Attr, Errno, Ino, SetAttr, mode};

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 7 + i / 251) % 256) as u8).collect()
}

/// S1.
#[test]
fn what_one_client_writes_the_other_reads() {
    let formation = Formation::new(4, 4096);
    let (a, b) = (&formation.clients[0], &formation.clients[3]);
    let opened = a.create(&op(a), Ino::ROOT, b"file", &FILE, true, false).unwrap();
    let data = pattern(100_000, 1);
    a.write(&op(a), opened.attr.ino, 0, &data, false).unwrap();
    let attr = b.lookup(Ino::ROOT, b"file").unwrap();
    assert_eq!(attr.size, 100_000);
    let mut back = vec![0; 120_000];
    assert_eq!(b.read(attr.ino, 0, &mut back).unwrap(), 100_000);
    assert_eq!(back[..100_000], data);
    assert_eq!(b.read(attr.ino, 99_000, &mut back).unwrap(), 1000);
    assert_eq!(back[..1000], data[99_000..]);
    assert_eq!(b.read(attr.ino, 100_000, &mut back).unwrap(), 0);
}

/// S6, S7.
#[test]
fn holes_read_as_zeros_and_cuts_leave_no_ghosts() {
    let formation = Formation::new(3, 4096);
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    let ino = a.create(&op(a), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    b.open(&op(b), ino, 0).unwrap();
    a.write(&op(a), ino, 50_000, &pattern(10, 2), false).unwrap();
    let mut back = vec![9; 60_000];
    assert_eq!(b.read(ino, 0, &mut back).unwrap(), 50_010);
    assert!(back[..50_000].iter().all(|byte| *byte == 0));
    a.write(&op(a), ino, 0, &[7; 50_000], false).unwrap();
    b.setattr(&op(b), ino, &SetAttr { size: Some(10_001), ..SetAttr::default() }).unwrap();
    b.setattr(&op(b), ino, &SetAttr { size: Some(40_000), ..SetAttr::default() }).unwrap();
    assert_eq!(a.read(ino, 0, &mut back).unwrap(), 40_000);
    assert!(back[..10_001].iter().all(|byte| *byte == 7));
    assert!(back[10_001..40_000].iter().all(|byte| *byte == 0));
    a.write(&op(a), ino, 39_000, &[5; 2000], false).unwrap();
    assert_eq!(b.read(ino, 38_999, &mut back).unwrap(), 2001);
    assert_eq!((back[0], back[1], back[2000]), (0, 5, 5));
}

/// S25, S44.
#[test]
fn directories_live_on_several_nodes_and_move() {
    let formation = Formation::new(4, 4096);
    let (a, b) = (&formation.clients[1], &formation.clients[2]);
    let mut dirs = Vec::new();
    for i in 0..20 {
        dirs.push(a.mknod(&op(a), Ino::ROOT, format!("d{i}").as_bytes(), &DIR).unwrap().ino);
    }
    let homes: std::collections::HashSet<_> = dirs.iter().map(|ino| ino.slot().0 % 4).collect();
    assert_eq!(homes.len(), 4, "directories spread over all nodes");
    assert_eq!(a.getattr(Ino::ROOT).unwrap().nlink, 22);
    for (i, dir) in dirs.iter().enumerate() {
        let made = b.create(&op(b), *dir, b"file", &FILE, true, false).unwrap();
        b.write(&op(b), made.attr.ino, 0, &pattern(5000, i), false).unwrap();
        b.close(made.attr.ino);
    }
    for i in 0..19 {
        a.rename(&op(a), dirs[i], b"file", dirs[i + 1], format!("from{i}").as_bytes(), 0).unwrap();
    }
    for (i, dir) in dirs[1..].iter().enumerate() {
        let attr = b.lookup(*dir, format!("from{i}").as_bytes()).unwrap();
        let mut back = vec![0; 5000];
        assert_eq!(b.read(attr.ino, 0, &mut back).unwrap(), 5000);
        assert_eq!(back, pattern(5000, i));
    }
    assert_eq!(b.lookup(dirs[3], b"file").unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(a.rmdir(&op(a), Ino::ROOT, b"d5").unwrap_err().errno(), Errno::ENOTEMPTY);
    b.unlink(&op(b), dirs[5], b"from4").unwrap();
    a.rmdir(&op(a), Ino::ROOT, b"d5").unwrap();
    assert_eq!(b.lookup(Ino::ROOT, b"d5").unwrap_err().errno(), Errno::ENOENT);
    a.rename(&op(a), Ino::ROOT, b"d6", dirs[7], b"inner", 0).unwrap();
    assert_eq!(b.parent(dirs[6]).unwrap(), dirs[7]);
    let refused = a.rename(&op(a), Ino::ROOT, b"d7", dirs[6], b"loop", 0).unwrap_err();
    assert_eq!(refused.errno(), Errno::EINVAL);
    assert_eq!(a.getattr(Ino::ROOT).unwrap().nlink, 20);
}

/// S23.
#[test]
fn an_unlinked_file_lives_until_it_is_closed_everywhere() {
    let formation = Formation::new(2, 4096);
    let (a, b) = (&formation.clients[0], &formation.clients[1]);
    let ino = a.create(&op(a), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    a.write(&op(a), ino, 0, &pattern(9000, 3), false).unwrap();
    b.open(&op(b), ino, 0).unwrap();
    a.unlink(&op(a), Ino::ROOT, b"f").unwrap();
    a.close(ino);
    let mut back = vec![0; 9000];
    assert_eq!(b.read(ino, 0, &mut back).unwrap(), 9000);
    assert_eq!(back, pattern(9000, 3));
    assert_eq!(b.getattr(ino).unwrap().nlink, 0);
    b.close(ino);
    assert_eq!(b.getattr(ino).unwrap_err().errno(), Errno::ENOENT);
    wait_until("subfiles are gone", || formation.nodes.iter().all(|node| node.usage() == 0));
}

/// S5.
#[test]
fn appends_of_many_clients_do_not_mix() {
    let formation = Formation::new(3, 4096);
    let ino = {
        let a = &formation.clients[0];
        a.create(&op(a), Ino::ROOT, b"log", &FILE, true, false).unwrap().attr.ino
    };
    std::thread::scope(|scope| {
        for (i, client) in formation.clients.iter().enumerate() {
            scope.spawn(move || {
                for line in 0..100 {
                    let text = format!("{i:03}:{line:03}:{}\n", "x".repeat(100 + i));
                    client.write(&client.new_op(i as u16, 0, 0), ino, 0, text.as_bytes(), true).unwrap();
                }
            });
        }
    });
    let client = &formation.clients[2];
    let mut back = vec![0; 100_000];
    let len = client.read(ino, 0, &mut back).unwrap();
    let text = String::from_utf8(back[..len].to_vec()).unwrap();
    let mut seen = vec![0; 3];
    for line in text.lines() {
        let (writer, number): (usize, usize) = (line[..3].parse().unwrap(), line[4..7].parse().unwrap());
        assert_eq!(number, seen[writer], "lines of one writer keep their order");
        assert_eq!(line.len(), 8 + 100 + writer);
        seen[writer] += 1;
    }
    assert_eq!(seen, [100; 3]);
}

/// S460.
#[test]
fn bytes_are_claimed_once_each() {
    let mut formation = Formation::new(3, 4096);
    let client = &formation.clients[0];
    let ino = client.create(&op(client), Ino::ROOT, b"claims", &FILE, true, false).unwrap().attr.ino;
    let mut claimed: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let claim = |(i, client): (usize, &bivouac_client::Client)| {
            let len = i as u64 + 1;
            let once = || (client.claim(&client.new_op(i as u16, 0, 0), ino, len).unwrap(), len);
            (0..100).map(|_| once()).collect::<Vec<_>>()
        };
        let claims: Vec<_> =
            formation.clients.iter().enumerate().map(|each| scope.spawn(move || claim(each))).collect();
        claims.into_iter().flat_map(|claim| claim.join().unwrap()).collect()
    });
    claimed.sort_unstable();
    let end = claimed.iter().fold(0, |end, (start, len)| {
        assert_eq!(*start, end, "neither a gap nor twice");
        end + len
    });
    assert_eq!(end, 100 + 200 + 300);
    let asked = client.new_op(9, 0, 0);
    assert_eq!(client.claim(&asked, ino, 7).unwrap(), end);
    let again = bivouac_client::OpCtx { retry: true, ..asked };
    assert_eq!(client.claim(&again, ino, 7).unwrap(), end, "asked again by who did not hear the answer");
    formation.restart();
    let client = &formation.clients[0];
    assert_eq!(client.claim(&op(client), ino, 0).unwrap(), end + 7);
    assert_eq!(client.claim(&op(client), ino, u64::MAX).unwrap_err().errno(), Errno::EFBIG);
    assert_eq!(client.claim(&op(client), Ino::ROOT, 1).unwrap_err().errno(), Errno::EISDIR);
    let mut back = vec![1; 700];
    assert_eq!(client.read(ino, 0, &mut back).unwrap(), 607);
    assert!(back[..607].iter().all(|byte| *byte == 0));
}

#[test]
fn everything_acknowledged_survives_a_restart() {
    let mut formation = Formation::new(3, 4096);
    let mut files = Vec::new();
    for i in 0..60usize {
        let client = &formation.clients[i % 3];
        let name = format!("file{i}");
        let ino =
            client.create(&op(client), Ino::ROOT, name.as_bytes(), &FILE, true, false).unwrap().attr.ino;
        client.write(&op(client), ino, 0, &pattern(i * 321, i), false).unwrap();
        files.push((name, i));
    }
    formation.restart();
    for (name, i) in files {
        let client = &formation.clients[(i + 1) % 3];
        let attr = client.lookup(Ino::ROOT, name.as_bytes()).unwrap();
        let mut back = vec![0; i * 321 + 1];
        assert_eq!(client.read(attr.ino, 0, &mut back).unwrap(), i * 321);
        assert_eq!(back[..i * 321], pattern(i * 321, i));
    }
    assert_eq!(formation.clients[0].homes.statfs(bivouac_types::Ino::ROOT).unwrap().files, 61);
}

#[test]
fn a_full_volume_refuses_the_write_that_does_not_fit() {
    let formation = Formation::with_capacity(1, 4096, 1 << 20);
    let client = &formation.clients[0];
    let ino = client.create(&op(client), Ino::ROOT, b"f", &FILE, true, false).unwrap().attr.ino;
    let block = pattern(64 << 10, 1);
    let mut written = 0;
    let error = loop {
        match client.write(&op(client), ino, written, &block, false) {
            Ok(len) => written += len as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert!((512 << 10..1 << 20).contains(&written), "{written}");
    assert_eq!(client.getattr(ino).unwrap().size, written);
    let mut back = vec![0; written as usize];
    client.read(ino, 0, &mut back).unwrap();
    assert!(back.chunks(64 << 10).all(|chunk| chunk == block));
    client.unlink(&op(client), Ino::ROOT, b"f").unwrap();
    client.close(ino);
    let again = client.create(&op(client), Ino::ROOT, b"g", &FILE, true, false).unwrap().attr.ino;
    assert_eq!(client.write(&op(client), again, 0, &block, false).unwrap(), block.len());
}

/// S51, S52, S53.
#[test]
fn layouts_are_shown_and_set_while_a_file_is_empty() {
    let formation = Formation::new(4, 4096);
    let client = &formation.clients[0];
    let dir = client.mknod(&op(client), Ino::ROOT, b"dir", &DIR).unwrap().ino;
    client.setxattr(&op(client), dir, b"user.bivouac.layout", b"stripe=64k width=2", 0).unwrap();
    let attr = client.create(&op(client), dir, b"f", &FILE, true, false).unwrap().attr;
    assert_eq!((attr.layout.stripe, attr.layout.width), (65_536, 2));
    client.setxattr(&op(client), attr.ino, b"user.bivouac.layout", b"width=1", 0).unwrap();
    let shown = client.getxattr(attr.ino, b"user.bivouac.layout").unwrap();
    assert!(shown.starts_with(b"stripe=65536 width=1 base="), "{}", shown.escape_ascii());
    client.write(&op(client), attr.ino, 0, &pattern(300_000, 1), false).unwrap();
    let refused = client.setxattr(&op(client), attr.ino, b"user.bivouac.layout", b"width=3", 0).unwrap_err();
    assert_eq!(refused.errno(), Errno::EBUSY);
    let targets = client.content.targets(&client.getattr(attr.ino).unwrap()).unwrap();
    assert_eq!(targets.iter().map(|target| target.subfile.len).collect::<Vec<_>>(), [300_000]);
}

#[test]
fn a_retried_operation_happens_once() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let made = op(client);
    let first = client.mknod(&made, Ino::ROOT, b"d", &DIR).unwrap();
    let again = client.mknod(&bivouac_client::OpCtx { retry: true, ..made }, Ino::ROOT, b"d", &DIR).unwrap();
    assert_eq!(first.ino, again.ino);
    let removed = op(client);
    client.rmdir(&removed, Ino::ROOT, b"d").unwrap();
    client.rmdir(&bivouac_client::OpCtx { retry: true, ..removed }, Ino::ROOT, b"d").unwrap();
    assert_eq!(client.rmdir(&op(client), Ino::ROOT, b"d").unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(client.getattr(Ino::ROOT).unwrap().nlink, 2);
}

/// The record of the truncation was taken for that of the making, and its value for an inode's number.
#[test]
fn a_create_that_emptied_a_file_of_another_client_is_repeated() {
    let formation = Formation::new(2, 4096);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    for number in 0..8 {
        let name = format!("f{number}");
        let made = other.create(&op(other), Ino::ROOT, name.as_bytes(), &FILE, true, false).unwrap();
        write(other, made.attr.ino, 0, b"content");
        let ctx = op(client);
        let create =
            |ctx: &OpCtx| client.create(ctx, Ino::ROOT, name.as_bytes(), &FILE, false, true).unwrap();
        let first = create(&ctx);
        write(other, made.attr.ino, 0, b"newer");
        // The client was killed before its program had the answer.
        let again = create(&OpCtx { retry: true, ..ctx });
        for opened in [first, again] {
            assert_eq!((opened.attr.ino, opened.existed), (made.attr.ino, true));
        }
        assert_eq!(read(other, made.attr.ino, 0, 99), b"newer", "it is emptied once");
    }
}

#[test]
fn a_walk_goes_on_past_directories_that_are_removed() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    for name in [b"a", b"b"] {
        let ino = client.mknod(&op(client), Ino::ROOT, name, &DIR).unwrap().ino;
        client.mknod(&op(client), ino, b"below", &FILE).unwrap();
    }
    let attr = client.getattr(Ino::ROOT).unwrap();
    let top = TreeEntry { attr, dir: Ino::ROOT, path: Vec::new() };
    let mut seen = Vec::new();
    let visit = &mut |found: &TreeEntry| {
        seen.push(String::from_utf8(found.path.clone()).unwrap());
        if found.path == b"b" {
            client.unlink(&op(client), found.attr.ino, b"below").unwrap();
            client.rmdir(&op(client), Ino::ROOT, b"b").unwrap();
        }
        true
    };
    client.walk(&top, visit).unwrap();
    seen.sort();
    assert_eq!(seen, ["a", "a/below", "b"]);
    let gone = TreeEntry { attr: Attr { ino: Ino(0x1234), ..attr }, ..top };
    assert_eq!(client.walk(&gone, &mut |_| true).unwrap_err().errno(), Errno::ENOENT);
}

/// The answer to a request that is sent again is that to the first one, whatever others have done since.
#[test]
fn what_was_made_and_removed_since_was_made() {
    let formation = Formation::new(2, 4096);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let link = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"x" };
    for number in 0..8 {
        let name = format!("d{number}");
        let new = if number < 6 { &DIR } else { &link };
        let made = op(client);
        let first = client.mknod(&made, Ino::ROOT, name.as_bytes(), new).unwrap();
        match number {
            ..6 => other.rmdir(&op(other), Ino::ROOT, name.as_bytes()).unwrap(),
            _ => other.unlink(&op(other), Ino::ROOT, name.as_bytes()).unwrap(),
        }
        let again = bivouac_client::OpCtx { retry: true, ..made };
        let again = client.mknod(&again, Ino::ROOT, name.as_bytes(), new).unwrap();
        assert_eq!((first.ino, first.mode), (again.ino, again.mode));
        assert_eq!(client.lookup(Ino::ROOT, name.as_bytes()).unwrap_err().errno(), Errno::ENOENT);
    }
}

/// S10. An append of which some targets have taken their part, and others have not.
#[test]
fn what_a_failed_append_left_does_not_come_up() {
    let formation = Formation::new(2, 4096);
    let client = &formation.clients[0];
    let lose = |op: u32| formation.switchboard.lose_request.store(op, std::sync::atomic::Ordering::SeqCst);
    let mut failed = 0;
    for number in 0..8 {
        let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
        let name = format!("f{number}");
        let ino = client.create(&op(client), Ino::ROOT, name.as_bytes(), &new, true, false).unwrap().attr.ino;
        lose(bivouac_wire::Op::Write as u32);
        failed += usize::from(client.write(&op(client), ino, 0, &[7; 16_384], true).is_err());
        lose(0);
        let before = client.getattr(ino).unwrap().size as usize;
        let set = SetAttr { size: Some(65_536), ..SetAttr::default() };
        client.setattr(&op(client), ino, &set).unwrap();
        assert!(crate::formation::read(client, ino, before, 65_536 - before).iter().all(|byte| *byte == 0));
    }
    assert!(failed > 0);
}
