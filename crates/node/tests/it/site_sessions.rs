//! The session contract in front of a source: what is written behind is dirty when it arrives, and at the source when its
//! policy says so.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::at_site::{Camp, FILE, STRIPE, bind_with, bytes, tree, with_settings};
use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, CopyJob, Dirty, FenceRequest, PoolStatus};
use bivouac_node::PagePool;
use bivouac_types::{ClientId, Errno, FsResult, Ino, SetAttr};
use tempfile::TempDir;

fn camp(more: &str) -> Camp {
    with_settings(&format!("contract=session\n{more}"), tree)
}

fn create(camp: &Camp, node: usize, name: &str) -> Ino {
    let client = camp.client(node);
    client.create(&op(client), camp.partition.dir, name.as_bytes(), &FILE, false, false).unwrap().attr.ino
}

/// Small writes, one behind the other.
fn write(client: &Client, ino: Ino, offset: usize, data: &[u8]) {
    for (turn, piece) in data.chunks(5000).enumerate() {
        let at = (offset + turn * 5000) as u64;
        assert_eq!(client.write(&op(client), ino, at, piece, false).unwrap(), piece.len());
    }
}

/// What a `close` does.
fn close(client: &Client, ino: Ino) -> FsResult<()> {
    let closed = client.sessions.send_unsent(ino).and_then(|()| client.site.save_at_close(ino));
    client.close(ino);
    closed
}

/// S256, S172.
#[test]
fn what_was_written_behind_is_at_the_source_when_it_is_closed() {
    let camp = camp("write=on-close\nfsync=source");
    let client = camp.client(1);
    let (ino, content) = (create(&camp, 1, "new"), bytes(3 * STRIPE + 9, 1));
    write(client, ino, 0, &content);
    assert!(camp.is_saved() || !camp.at("new").exists());
    assert_eq!(camp.read(2, "new").unwrap(), b"", "nobody else sees it yet");
    client.fsync(ino, false).unwrap();
    assert!(fs::read(camp.at("new")).unwrap() == content, "as fsync=source says");
    write(client, ino, STRIPE, b"more");
    close(client, ino).unwrap();
    assert_eq!(&fs::read(camp.at("new")).unwrap()[STRIPE..STRIPE + 4], b"more");
    camp.check_same_at(3, "new");
    // One that was there: what is not written comes from the source.
    let large = camp.ino(0, "a/large").unwrap();
    client.open(&op(client), large, 0).unwrap();
    write(client, large, 100, b"ours");
    close(client, large).unwrap();
    let mut expected = bytes(10 * STRIPE + 77, 2);
    expected[100..104].copy_from_slice(b"ours");
    assert!(fs::read(camp.at("a/large")).unwrap() == expected);
    assert!(camp.is_saved());
}

/// S257, S171.
#[test]
fn what_goes_through_is_at_the_source_when_it_is_synced_or_closed() {
    let camp = camp("rule=*.log: write=through");
    let client = camp.client(2);
    let ino = create(&camp, 2, "x.log");
    write(client, ino, 0, b"first");
    client.sessions.send_unsent(ino).unwrap();
    assert_eq!(fs::read(camp.at("x.log")).unwrap(), b"", "what is sent is not said to be there");
    client.fsync(ino, false).unwrap();
    assert_eq!(fs::read(camp.at("x.log")).unwrap(), b"first");
    client.write(&op(client), ino, 0, b" and second", true).unwrap();
    write(client, ino, 0, b"F");
    assert_eq!(fs::read(camp.at("x.log")).unwrap(), b"first");
    let (sent, saved) = (client.sessions.send_unsent(ino), client.site.save_at_close(ino));
    sent.and(saved).unwrap();
    assert_eq!(fs::read(camp.at("x.log")).unwrap(), b"First and second");
    client.setattr(&op(client), ino, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(fs::read(camp.at("x.log")).unwrap(), b"First", "a cut is there at once");
    // Theirs is not overwritten, and who syncs or closes hears of it.
    fs::write(camp.at("x.log"), "theirs").unwrap();
    write(client, ino, 0, b"ours");
    assert_eq!(client.fsync(ino, false).unwrap_err().errno(), Errno::ESTALE);
    assert_eq!(close(client, ino).unwrap_err().errno(), Errno::ESTALE);
    assert_eq!(fs::read(camp.at("x.log")).unwrap(), b"theirs");
    assert_eq!(camp.read(1, "x.log").unwrap(), b"ourst", "and the change is here all the same");
    // Others wait for a flush.
    let other = create(&camp, 0, "other");
    write(camp.client(0), other, 0, b"x");
    close(camp.client(0), other).unwrap();
    assert!(!camp.at("other").exists());
}

/// S171: what the targets copy by themselves is written, too.
#[test]
fn a_copy_goes_through() {
    let camp = with_settings("write=through", tree);
    let (client, from) = (camp.client(0), camp.ino(0, "a/large").unwrap());
    let to = create(&camp, 0, "copy");
    client.open(&op(client), from, 0).unwrap();
    let job = CopyJob { from, from_offset: 0, to, to_offset: 0, len: 1 << 30 };
    assert_eq!(client.copy(&op(client), &job).unwrap(), 10 * STRIPE as u64 + 77);
    assert!(fs::read(camp.at("copy")).unwrap() == bytes(10 * STRIPE + 77, 2));
    client.close(from);
    client.close(to);
}

/// S258, S170: an open finds what was written behind through its mount, and keeps both sides.
#[test]
fn what_was_written_behind_is_a_change_when_the_file_is_opened() {
    let camp = camp("");
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.open(&op(client), large, 0).unwrap();
    client.site.bring_file(large).unwrap();
    write(client, large, 2 * STRIPE, b"ours");
    fs::write(camp.at("a/large"), "theirs").unwrap();
    client.open(&op(client), large, 0).unwrap();
    let mut expected = bytes(10 * STRIPE + 77, 2);
    expected[2 * STRIPE..2 * STRIPE + 4].copy_from_slice(b"ours");
    assert!(camp.read(2, "a/large").unwrap() == expected);
    close(client, large).unwrap();
    close(client, large).unwrap();
    let failed = camp.flush(0, false);
    assert!(failed.iter().any(|(_, errno, _)| *errno == Errno::ESTALE), "{failed:?}");
    assert_eq!(fs::read(camp.at("a/large")).unwrap(), b"theirs");
}

/// S258: through another mount it is not seen yet, and goes onto what is there when it is sent.
#[test]
fn what_is_sent_after_a_change_at_the_source_goes_onto_that() {
    let camp = camp("");
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.open(&op(client), large, 0).unwrap();
    let mut seen = [0; 10];
    client.read(large, 0, &mut seen).unwrap();
    write(client, large, 3, b"ours");
    fs::write(camp.at("a/large"), "0123456789").unwrap();
    let other = camp.client(2);
    assert_eq!(other.open(&op(other), large, 0).unwrap().size, 10);
    assert_eq!(camp.read(2, "a/large").unwrap(), b"0123456789");
    close(client, large).unwrap();
    close(other, large).unwrap();
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("a/large")).unwrap(), b"012ours789");
    camp.check_same_at(3, "a/large");
}

/// S259: dirty is what has arrived, also over kills of everything; what had not arrived does.
#[test]
fn a_kill_of_everything_loses_neither_bytes_nor_marks() {
    let mut camp = camp("");
    let memory = tempfile::tempfile().unwrap();
    let mut mount = camp.formation.client_as(0, 700);
    mount.sessions.keep(memory.try_clone().unwrap(), 4096).unwrap();
    let large = camp.ino(0, "a/large").unwrap();
    mount.open(&op(&mount), large, 0).unwrap();
    let mut expected = bytes(10 * STRIPE + 77, 2);
    for turn in 0..4 {
        let (at, piece) = (turn * 2 * STRIPE + 55, bytes(9000, 40 + turn as u8));
        write(&mount, large, at, &piece);
        expected[at..at + 9000].copy_from_slice(&piece);
        if turn == 1 {
            mount.sessions.send_unsent(large).unwrap();
        }
        // A kill: of the mount's pages some have been sent, and marked; the others are still in its memory.
        drop(mount);
        camp.formation.restart();
        mount = camp.formation.client_as(0, 700);
        mount.sessions.keep(memory.try_clone().unwrap(), 4096).unwrap();
        mount.reassert_opens(&[(large, 2, 1)]).unwrap();
    }
    assert!(!camp.is_saved(), "what has arrived is known to be dirty");
    close(&mount, large).unwrap();
    drop(mount);
    assert_eq!(camp.flush(1, false), []);
    assert!(fs::read(camp.at("a/large")).unwrap() == expected);
    assert!(camp.is_saved());
    camp.check_same_at(2, "a/large");
}

/// S259, S172: closed while its daemon was away, it is at the source as if that had been there.
#[test]
fn what_nobody_has_open_any_more_goes_where_its_policy_says() {
    let mut camp = camp("write=on-close");
    let memory = tempfile::tempfile().unwrap();
    let mount = camp.formation.client_as(0, 700);
    mount.sessions.keep(memory.try_clone().unwrap(), 4096).unwrap();
    let ino = mount.create(&op(&mount), camp.partition.dir, b"new", &FILE, false, false).unwrap().attr.ino;
    write(&mount, ino, 0, &bytes(2 * STRIPE, 5));
    drop(mount);
    camp.formation.restart();
    let mount = camp.formation.client_as(0, 700);
    mount.sessions.keep(memory.try_clone().unwrap(), 4096).unwrap();
    mount.reassert_opens(&[]).unwrap();
    assert!(fs::read(camp.at("new")).unwrap() == bytes(2 * STRIPE, 5));
}

/// S165: more than there is room for goes through small volumes.
#[test]
fn what_is_written_behind_makes_room_for_itself() {
    let fill = |site: &Path| fs::write(site.join("old"), bytes(8 << 20, 1)).unwrap();
    let formation = Formation::with_capacity(2, 4096, 6 << 20);
    let site = TempDir::new().unwrap();
    fill(site.path());
    let partition = bind_with(&formation, "part", site.path(), "contract=session").unwrap();
    let camp = Camp { formation, partition, site };
    assert!(camp.read(1, "old").unwrap() == bytes(8 << 20, 1));
    let (client, ino) = (camp.client(0), create(&camp, 0, "more"));
    let content = bytes(20 << 20, 3);
    for (turn, piece) in content.chunks(50_000).enumerate() {
        client.write(&op(client), ino, turn as u64 * 50_000, piece, false).unwrap();
    }
    close(client, ino).unwrap();
    assert!(camp.read(1, "more").unwrap() == content);
    assert_eq!(camp.flush(1, false), []);
    assert!(fs::read(camp.at("more")).unwrap() == content);
    assert!(camp.read(0, "old").unwrap() == bytes(8 << 20, 1));
    camp.check_same(1);
}

/// S161, S204: what is read ahead and cannot be had is nobody's error before it is asked for.
#[test]
fn what_has_changed_there_is_told_to_who_reads_it_and_not_before() {
    let camp = camp("");
    let (client, large) = (camp.client(0), camp.ino(0, "a/large").unwrap());
    client.open(&op(client), large, 0).unwrap();
    // The first stripe is here, the others are not, and never will be.
    let mut one = vec![0; 10];
    camp.client(1).read(large, 0, &mut one).unwrap();
    fs::write(camp.at("a/large"), "theirs").unwrap();
    let content = bytes(10 * STRIPE + 77, 2);
    let mut piece = vec![0; 4096];
    for at in (0..STRIPE).step_by(4096) {
        assert_eq!(client.read(large, at as u64, &mut piece).unwrap(), 4096);
        assert!(piece == content[at..at + 4096], "{at}");
    }
    assert_eq!(client.read(large, STRIPE as u64, &mut piece).unwrap_err().errno(), Errno::ESTALE);
    client.close(large);
}

/// The client of a mount, as its node knows it.
struct Mount(Arc<Client>);

impl PagePool for Mount {
    fn status(&self) -> PoolStatus {
        self.0.sessions.status()
    }

    fn tell_unsent(&self, request: &FenceRequest) -> Vec<Dirty> {
        self.0.sessions.tell_unsent(request)
    }

    fn tell_uses(&self) {
        self.0.tell_uses();
    }

    fn report_accesses(&self) {
        self.0.report_accesses();
    }
}

/// S260: what mounts have acknowledged is seen by who flushes.
#[test]
fn a_flush_has_mounts_send_what_they_have_written_behind() {
    let camp = camp("");
    let mount = Arc::new(camp.formation.client_as(1, 700));
    camp.formation.nodes[1]
        .serve(ClientId(700), |served| served.pages = Some(Arc::new(Mount(Arc::clone(&mount)))));
    let ino = mount.create(&op(&mount), camp.partition.dir, b"new", &FILE, false, false).unwrap().attr.ino;
    assert_eq!(camp.flush(0, false), []);
    // Without threads of its own it sends nothing by itself.
    write(&mount, ino, 0, b"behind");
    let client = camp.client(0);
    let unsaved = client.site.unsaved().unwrap();
    assert!(unsaved.has(ino) && unsaved.bytes_of(ino) == 6, "{unsaved:?}");
    mount.sessions.write_back();
    write(&mount, ino, 6, b" as well");
    assert_eq!(client.site.send_behind().unwrap(), []);
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("new")).unwrap(), b"behind as well");
    assert!(camp.is_saved());
    // While somebody takes the formation down, nothing is acknowledged that was not sent.
    assert_eq!(client.site.hold_behind(5, 60_000).unwrap(), []);
    write(&mount, ino, 0, b"B");
    assert_eq!(client.site.ask_unsent(0, 0).unwrap(), []);
    assert_eq!(camp.read(2, "new").unwrap(), b"Behind as well");
    client.site.ask_unsent(5, 0).unwrap();
    write(&mount, ino, 1, b"E");
    wait_until("it goes on behind", || camp.read(2, "new").unwrap() == b"BEhind as well");
    close(&mount, ino).unwrap();
    camp.formation.nodes[1].serve(ClientId(700), |served| served.pages = None);
}

/// S260: what cannot be sent is named, with why.
#[test]
fn what_mounts_cannot_send_is_not_forgotten_by_who_flushes() {
    let camp = camp("");
    let mount = Arc::new(camp.formation.client_as(0, 700));
    mount.sessions.write_back();
    camp.formation.nodes[0]
        .serve(ClientId(700), |served| served.pages = Some(Arc::new(Mount(Arc::clone(&mount)))));
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    mount.open(&op(&mount), large, 0).unwrap();
    // The rest of a stripe that is partly written is not to be had any more.
    fs::write(camp.at("a/large"), "theirs").unwrap();
    write(&mount, large, 2, b"ours");
    let left = client.site.send_behind().unwrap();
    assert!(left.len() == 1 && left[0].ino == large && left[0].bytes == 4, "{left:?}");
    let unsaved = client.site.unsaved().unwrap();
    assert!(unsaved.has(large) && unsaved.failing().any(|why| *why == left[0].why), "{unsaved:?}");
    assert_eq!(mount.fsync(large, false).unwrap_err().errno(), Errno::ESTALE);
    assert_eq!(mount.write(&op(&mount), large, 2, b"more", false).unwrap_err().errno(), Errno::ESTALE);
    // Whoever opens it has it as it is there, and then what was written goes onto that.
    client.open(&op(client), large, 0).unwrap();
    assert_eq!(client.site.send_behind().unwrap(), []);
    assert_eq!(camp.flush(1, false), []);
    assert_eq!(fs::read(camp.at("a/large")).unwrap(), b"thours");
    client.close(large);
    close(&mount, large).unwrap();
    camp.formation.nodes[0].serve(ClientId(700), |served| served.pages = None);
}
