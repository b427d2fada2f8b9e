use super::*;
use crate::digest::piece_len;
use crate::web::Web;
use bivouac_source::Environment;
use parking_lot::Mutex;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Notes what it hears.
#[derive(Default)]
struct Heard {
    already: AtomicU64,
    out: Mutex<Vec<String>>,
}

impl Watch for Heard {
    fn already(&self, bytes: u64) {
        self.already.fetch_add(bytes, Ordering::Relaxed);
    }

    fn left_out(&self, holder: &str, why: &str) {
        self.out.lock().push(format!("{holder}: {why}"));
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251) as u8 ^ (at % 251) as u8).collect()
}

fn item(name: &str, bytes: &[u8]) -> Item {
    let size = bytes.len() as u64;
    let len = usize::try_from(piece_len(size)).unwrap();
    let pieces = bytes.chunks(len).map(Digest::of).collect();
    let digest = Some(Digest::of(bytes));
    Item { name: name.to_owned(), size, digest, piece_len: len as u64, pieces, urls: Vec::new() }
}

/// An order for one file that several directories have.
fn order(dir: &Path, item: Item, holders: &[&str]) -> Order {
    let url = |holder: &&str| format!("file://{}/{holder}/{}", dir.display(), item.name);
    let places = holders.iter().map(url).enumerate().collect();
    let holders = holders.iter().map(|holder| (*holder).to_owned()).collect();
    Order { files: vec![Wanted { item, places }], holders, into: dir.join("dst"), force: false, jobs: 3 }
}

fn run(order: &Order, heard: &Heard) -> PublishResult<Fetched> {
    let (here, web) = (Environment::default(), Web::new(&Environment::default()));
    fetch(order, &Readers::new(&here, &web), heard, &AtomicBool::new(false))
}

fn at(dir: &Path, holder: &str, bytes: &[u8]) {
    std::fs::create_dir_all(dir.join(holder)).unwrap();
    std::fs::write(dir.join(holder).join("f"), bytes).unwrap();
}

/// S563.
#[test]
fn who_has_wrong_bytes_is_named_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content((5 << 20) + 7);
    let mut wrong = bytes.clone();
    wrong.iter_mut().for_each(|byte| *byte ^= 1);
    at(dir.path(), "good", &bytes);
    at(dir.path(), "bad", &wrong);
    at(dir.path(), "short", &bytes[1..]);
    let order = order(dir.path(), item("f", &bytes), &["bad", "short", "none", "good"]);
    let heard = Heard::default();
    let fetched = run(&order, &heard).unwrap();
    assert_eq!(fetched.pieces, [("good".to_owned(), 6)]);
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
    let out = heard.out.into_inner();
    assert!(out.len() == 1 && out[0].starts_with("bad: wrong bytes of f"), "{out:?}");
    assert_eq!(std::fs::read_dir(dir.path().join("dst")).unwrap().count(), 1);
}

/// S563: nothing gets a name that is not what was said, and what was right is not fetched again.
#[test]
fn what_came_before_is_kept_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content((5 << 20) + 7);
    let mut wrong = bytes.clone();
    wrong[3 << 20] ^= 1;
    at(dir.path(), "a", &wrong);
    let mut order = order(dir.path(), item("f", &bytes), &["a"]);
    order.jobs = 1;
    let refusal = run(&order, &Heard::default()).unwrap_err();
    assert!(refusal.to_string().contains("dst/f: nobody has it any more: a: wrong bytes of f"), "{refusal}");
    assert!(!dir.path().join("dst/f").exists());
    at(dir.path(), "a", &bytes);
    let heard = Heard::default();
    let fetched = run(&order, &heard).unwrap();
    assert_eq!((fetched.moved, heard.already.into_inner()), ((2 << 20) + 7, 3 << 20));
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
    // Once more there is nothing to do.
    let again = run(&order, &Heard::default()).unwrap();
    assert_eq!((again.already, again.moved), (1, 0));
}

/// S564.
#[test]
fn what_is_there_is_replaced_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    at(dir.path(), "a", b"new");
    at(dir.path(), "dst", b"old");
    let mut order = order(dir.path(), item("f", b"new"), &["a"]);
    let refusal = run(&order, &Heard::default()).unwrap_err();
    assert!(refusal.cause() == Cause::Exists && refusal.to_string().contains("--force"), "{refusal}");
    assert_eq!(std::fs::read(dir.path().join("dst/f")).unwrap(), b"old");
    order.force = true;
    run(&order, &Heard::default()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("dst/f")).unwrap(), b"new");
}

/// S565: pieces that are right one by one, of a file that is not what the entry says of the whole.
#[test]
fn entries_that_contradict_themselves_make_no_file() {
    let dir = tempfile::tempdir().unwrap();
    at(dir.path(), "a", b"abc");
    let item = Item { digest: Some(Digest::of(b"other")), ..item("f", b"abc") };
    let refusal = run(&order(dir.path(), item, &["a"]), &Heard::default()).unwrap_err();
    assert!(refusal.to_string().contains("contradicts itself"), "{refusal}");
    assert!(!dir.path().join("dst/f").exists());
    let empty =
        Item { size: 0, pieces: Vec::new(), digest: Some(Digest::of(b"abc")), ..self::item("f", b"") };
    assert!(run(&order(dir.path(), empty, &["a"]), &Heard::default()).is_err());
    let none = order(dir.path(), self::item("f", b""), &[]);
    run(&none, &Heard::default()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("dst/f")).unwrap(), b"");
}

/// A server that has one file, and says who has which parts of it: what it was asked to send, by offset.
fn serve(listener: TcpListener, bytes: Vec<u8>, says: String) -> Arc<Mutex<Vec<usize>>> {
    let asked = Arc::<Mutex<Vec<usize>>>::default();
    let notes = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines =
                BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let method = lines.next().unwrap_or_default();
            let range =
                lines.find_map(|line| Some(line.to_lowercase().strip_prefix("range: bytes=")?.to_owned()));
            lines.for_each(drop);
            let (head, body) = match range.as_deref().and_then(|range| range.split_once('-')) {
                Some((from, to)) if method.starts_with("GET") => {
                    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                    notes.lock().push(from);
                    let head = format!("206 Part\r\nContent-Range: bytes {from}-{to}/{}", bytes.len());
                    (head, &bytes[from..=to])
                }
                _ => (format!("200 OK\r\n{says}"), &[][..]),
            };
            let head =
                format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _gone = (&stream).write_all(head.as_bytes()).and_then(|()| (&stream).write_all(body));
        }
    });
    asked
}

/// S666. Each part comes from who has it; and from others where that one is gone.
#[test]
fn parts_are_asked_of_those_who_have_them() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, part) = (content(8 << 20), 2 << 20);
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = listeners.each_ref().map(|listener| format!("http://{}/f", listener.local_addr().unwrap()));
    let says =
        format!("Bivouac-Layout: stripe={part}; nodes=3,5; here=5\r\nLink: <{}>; nodes=\"3\"", urls[1]);
    let asked = listeners.map(|listener| serve(listener, bytes.clone(), says.clone()));
    let mut order = order(dir.path(), item("f", &bytes), &["first", "second"]);
    order.files[0].places = urls.into_iter().enumerate().collect();
    order.jobs = 1;
    run(&order, &Heard::default()).unwrap();
    let [first, second] = asked.map(|asked| std::mem::take(&mut *asked.lock()));
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
    let mib = |all: &[usize]| all.iter().map(|at| at >> 20).collect::<Vec<_>>();
    assert_eq!((mib(&first), mib(&second)), (vec![2, 3, 6, 7], vec![0, 1, 4, 5]));
    // The other one says nothing any more.
    std::fs::remove_file(dir.path().join("dst/f")).unwrap();
    order.files[0].places[1].1 = "http://127.0.0.1:1/f".into();
    run(&order, &Heard::default()).unwrap();
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
}
