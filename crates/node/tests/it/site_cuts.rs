//! Files in front of site storage that are cut, also while they are brought or flushed: what was cut off does not come back, and
//! what is left goes when room is needed.

use std::fs;
use std::sync::{Arc, mpsc};

use crate::at_site::{Camp, STRIPE, bytes};
use crate::formation::{Formation, op};
use bivouac_types::{Contract, Ino, SetAttr};
use bivouac_wire::Op;

const LEN: usize = 8 * STRIPE;
/// Of each volume: the file fits, and not much more.
const CAPACITY: u64 = 6 * STRIPE as u64;

/// Two nodes, and two files at the source.
fn camp() -> (Arc<Camp>, Ino) {
    let fill = |site: &std::path::Path| {
        fs::write(site.join("f"), bytes(LEN, 1)).unwrap();
        fs::write(site.join("other"), bytes(LEN, 2)).unwrap();
    };
    let camp = Camp::of(Formation::with_capacity(2, 4096, CAPACITY), fill);
    let ino = camp.ino(0, "f").unwrap();
    (Arc::new(camp), ino)
}

fn resize(camp: &Camp, ino: Ino, len: usize) {
    let client = camp.client(1);
    let set = SetAttr { size: Some(len as u64), ..SetAttr::default() };
    client.setattr(&op(client), ino, &set).unwrap();
}

/// The file as it was made, cut to a stripe and made long again.
fn check_is_cut(camp: &Camp) {
    let read = camp.read(0, "f").unwrap();
    assert_eq!(read.len(), LEN);
    assert!(read[..STRIPE] == bytes(LEN, 1)[..STRIPE], "what was not cut off");
    let back = read[STRIPE..].iter().position(|byte| *byte != 0);
    assert_eq!(back.map(|at| at + STRIPE), None, "what was cut off has come back");
}

/// S7: targets are told whence the content comes, and the file is cut before they hear it.
#[test]
fn what_is_brought_while_the_file_is_cut_does_not_come_back() {
    let (camp, ino) = camp();
    let other = Arc::clone(&camp);
    let cut = move || {
        resize(&other, ino, STRIPE);
        resize(&other, ino, LEN);
    };
    *camp.formation.switchboard.before.lock() = Some((Op::MarkFlush as u16, Box::new(cut)));
    camp.client(0).site.bring_file(ino).unwrap();
    check_is_cut(&camp);
}

/// S734: of a file that is at the source only, and of one that is here in part and not flushed.
#[test]
fn a_change_of_contract_leaves_what_is_at_the_source_and_what_is_not_flushed() {
    let (camp, ino) = camp();
    let client = camp.client(1);
    let set = |contract| client.set_contract(&op(client), ino, contract).unwrap();
    set(Some(Contract::Strict));
    client.write(&op(client), ino, STRIPE as u64 + 5, b"ours", false).unwrap();
    set(Some(Contract::Session));
    let mut expected = bytes(LEN, 1);
    expected[STRIPE + 5..STRIPE + 9].copy_from_slice(b"ours");
    assert!(camp.read(0, "f").unwrap() == expected);
    set(None);
    assert_eq!(camp.flush(0, false), []);
    assert!(fs::read(camp.at("f")).unwrap() == expected);
    assert!(camp.read(1, "f").unwrap() == expected);
}

/// S7: the cut has begun when the flush reads what it puts, and is over after it.
#[test]
fn what_is_flushed_while_the_file_is_cut_does_not_come_back() {
    let (camp, ino) = camp();
    camp.client(0).write(&op(camp.client(0)), ino, 0, &bytes(LEN, 1)[..1], false).unwrap();
    let (say_flushed, flushed) = mpsc::channel();
    let (say_begun, begun) = mpsc::channel();
    let (say_cut, cut) = mpsc::channel();
    let wait = move || {
        say_begun.send(()).unwrap();
        flushed.recv().unwrap();
    };
    let other = Arc::clone(&camp);
    let begin = move || {
        *other.formation.switchboard.after.lock() = Some((Op::Trim as u16, Box::new(wait)));
        let cutting = Arc::clone(&other);
        std::thread::spawn(move || {
            resize(&cutting, ino, STRIPE);
            say_cut.send(()).unwrap();
        });
        begun.recv().unwrap();
    };
    *camp.formation.switchboard.before.lock() = Some((Op::FlushParts as u16, Box::new(begin)));
    assert_eq!(camp.flush(0, false), []);
    assert!(camp.formation.switchboard.before.lock().is_none(), "the cut has begun");
    say_flushed.send(()).unwrap();
    cut.recv().unwrap();
    resize(&camp, ino, LEN);
    check_is_cut(&camp);
}

/// S165: a target that has heard of the cut alone, and of nothing that came after it but the flush.
#[test]
fn what_was_cut_and_flushed_makes_room() {
    let (camp, ino) = camp();
    assert!(camp.read(0, "f").unwrap() == bytes(LEN, 1));
    resize(&camp, ino, LEN - 1);
    assert_eq!(camp.flush(0, false), []);
    assert!(camp.read(0, "other").unwrap() == bytes(LEN, 2), "there was room for it");
    assert!(camp.read(0, "f").unwrap() == bytes(LEN, 1)[..LEN - 1]);
}
