use super::*;
use crate::digest::piece_len;
use crate::web::Web;
use bivouac_source::Environment;
use parking_lot::{Condvar, Mutex};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Notes what it hears.
#[derive(Default)]
struct Heard {
    already: AtomicU64,
    out: Mutex<Vec<String>>,
}

impl FetchObserver for Heard {
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

fn item(name: &str, bytes: &[u8]) -> DataSetFile {
    let size = bytes.len() as u64;
    let len = usize::try_from(piece_len(size)).unwrap();
    let pieces = bytes.chunks(len).map(Digest::of).collect();
    let digest = Some(Digest::of(bytes));
    DataSetFile { name: name.to_owned(), size, digest, piece_len: len as u64, pieces, urls: Vec::new() }
}

/// An order for one file that several directories have.
fn order(dir: &Path, item: DataSetFile, holders: &[&str]) -> FetchRequest {
    let url = |holder: &&str| format!("file://{}/{holder}/{}", dir.display(), item.name);
    let places = holders.iter().map(url).enumerate().collect();
    let holders = holders.iter().map(|holder| (*holder).to_owned()).collect();
    FetchRequest {
        files: vec![WantedFile { item, places }],
        holders,
        into: dir.join("dst"),
        force: false,
        jobs: 3,
    }
}

fn run(order: &FetchRequest, heard: &Heard) -> PublishResult<FetchResult> {
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
    assert_eq!(fetched.parts, [("good".to_owned(), 6)]);
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
    let item = DataSetFile { digest: Some(Digest::of(b"other")), ..item("f", b"abc") };
    let refusal = run(&order(dir.path(), item, &["a"]), &Heard::default()).unwrap_err();
    assert!(refusal.to_string().contains("contradicts itself"), "{refusal}");
    assert!(!dir.path().join("dst/f").exists());
    let empty =
        DataSetFile { size: 0, pieces: Vec::new(), digest: Some(Digest::of(b"abc")), ..self::item("f", b"") };
    assert!(run(&order(dir.path(), empty, &["a"]), &Heard::default()).is_err());
    let none = order(dir.path(), self::item("f", b""), &[]);
    run(&none, &Heard::default()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("dst/f")).unwrap(), b"");
}

/// What a server was asked to send, by offset.
#[derive(Default)]
struct Asked {
    offsets: Mutex<Vec<usize>>,
    more: Condvar,
}

impl Asked {
    /// In MiB, sorted.
    fn mib(&self) -> Vec<usize> {
        let mut all: Vec<_> = self.offsets.lock().iter().map(|at| at >> 20).collect();
        all.sort_unstable();
        all
    }
}

/// A server that has one file, and says who has which parts of it, or nothing.
fn serve(
    listener: TcpListener,
    bytes: Vec<u8>,
    says: impl Fn() -> Option<String> + Send + 'static,
) -> Arc<Asked> {
    let asked = Arc::<Asked>::default();
    let notes = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut unanswered = Vec::new();
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
                    notes.offsets.lock().push(from);
                    notes.more.notify_all();
                    let head = format!("206 Part\r\nContent-Range: bytes {from}-{to}/{}", bytes.len());
                    (head, &bytes[from..=to])
                }
                _ => match says() {
                    Some(says) => (format!("200 OK\r\n{says}"), &[][..]),
                    None => {
                        unanswered.push(stream);
                        continue;
                    }
                },
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
    let asked = listeners.map(|listener| {
        let says = says.clone();
        serve(listener, bytes.clone(), move || Some(says.clone()))
    });
    let mut order = order(dir.path(), item("f", &bytes), &["first", "second"]);
    order.files[0].places = urls.into_iter().enumerate().collect();
    order.jobs = 1;
    run(&order, &Heard::default()).unwrap();
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
    assert_eq!(asked.map(|asked| asked.mib()), [[2, 3, 6, 7], [0, 1, 4, 5]]);
    // The other one says nothing any more.
    std::fs::remove_file(dir.path().join("dst/f")).unwrap();
    order.files[0].places[1].1 = "http://127.0.0.1:1/f".into();
    run(&order, &Heard::default()).unwrap();
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
}

/// S666. The first parts, too: they wait until it is known who has them.
#[test]
fn nothing_is_asked_of_anybody_before_it_is_known_who_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, part) = (content(8 << 20), 1 << 20);
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = listeners.each_ref().map(|listener| format!("http://{}/f", listener.local_addr().unwrap()));
    let [of_first, of_second] = listeners;
    let second = serve(of_second, bytes.clone(), || None);
    let link = urls[1].clone();
    let asked_second = Arc::clone(&second);
    let first = serve(of_first, bytes.clone(), move || {
        // Long enough for whoever does not wait.
        let mut offsets = asked_second.offsets.lock();
        asked_second.more.wait_while_for(&mut offsets, |asked| asked.len() < 3, Duration::from_millis(300));
        Some(format!("Bivouac-Layout: stripe={part}; nodes=3,5; here=3\r\nLink: <{link}>; nodes=\"5\""))
    });
    let mut order = order(dir.path(), item("f", &bytes), &["first", "second"]);
    order.files[0].places = urls.into_iter().enumerate().collect();
    order.jobs = 2;
    run(&order, &Heard::default()).unwrap();
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
    assert_eq!([first, second].map(|asked| asked.mib()), [[0, 2, 4, 6], [1, 3, 5, 7]]);
}

/// S666. A piece of which several have parts comes from all of them. Wrong bytes of one of them are in no file, and
/// nobody else is left out for them.
#[test]
fn parts_of_pieces_come_from_those_who_have_them() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, part) = (content((4 << 20) + 7), 512 << 10);
    let mut wrong = bytes.clone();
    wrong.iter_mut().for_each(|byte| *byte ^= 1);
    let fetch = |second: Vec<u8>, place: &str, jobs| {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let urls =
            listeners.each_ref().map(|listener| format!("http://{}/f", listener.local_addr().unwrap()));
        let [of_first, of_second] = listeners;
        let says =
            format!("Bivouac-Layout: stripe={part}; nodes=3,5; here=3\r\nLink: <{}>; nodes=\"5\"", urls[1]);
        let asked =
            [serve(of_first, bytes.clone(), move || Some(says.clone())), serve(of_second, second, || None)];
        let mut order = order(&dir.path().join(place), item("f", &bytes), &["first", "second"]);
        order.files[0].places = urls.into_iter().enumerate().collect();
        order.jobs = jobs;
        let heard = Heard::default();
        let fetched = run(&order, &heard).unwrap();
        assert!(std::fs::read(dir.path().join(place).join("dst/f")).unwrap() == bytes);
        (fetched, asked.map(|asked| asked.offsets.lock().clone()), heard.out.into_inner())
    };
    std::fs::create_dir(dir.path().join("right")).unwrap();
    let (fetched, asked, out) = fetch(bytes.clone(), "right", 1);
    let numbers = asked.map(|mut offsets| {
        offsets.sort_unstable();
        offsets.into_iter().map(|offset| offset / part).collect::<Vec<_>>()
    });
    assert_eq!(numbers, [[0, 2, 4, 6, 8].to_vec(), [1, 3, 5, 7].to_vec()]);
    assert_eq!(fetched.parts, [("first".to_owned(), 5), ("second".to_owned(), 4)]);
    assert_eq!((fetched.moved, out.len()), (bytes.len() as u64, 0));
    std::fs::create_dir(dir.path().join("wrong")).unwrap();
    let (fetched, _, out) = fetch(wrong, "wrong", 4);
    assert!(fetched.moved > bytes.len() as u64, "wrong parts were moved in vain");
    assert!(out.iter().all(|line| line.starts_with("second: wrong bytes of f")), "{out:?}");
}

/// More pieces than are cut into parts at a time, of which some are there.
#[test]
fn what_is_not_cut_yet_comes_too() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(3000);
    let pieces = bytes.chunks(5).map(Digest::of).collect();
    let item = DataSetFile { piece_len: 5, pieces, ..item("f", &bytes) };
    at(dir.path(), "short", &bytes[..2000]);
    at(dir.path(), "all", &bytes);
    let order = order(dir.path(), item, &["short", "all"]);
    let fetched = run(&order, &Heard::default()).unwrap();
    assert_eq!(fetched.parts.iter().map(|(_, parts)| parts).sum::<u64>(), 600);
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
}

/// S666. Who does not say who has what is not waited for much longer than an answer takes.
#[test]
fn what_is_never_said_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(4 << 20);
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = listeners.each_ref().map(|listener| format!("http://{}/f", listener.local_addr().unwrap()));
    let asked = listeners.map(|listener| serve(listener, bytes.clone(), || None));
    let mut order = order(dir.path(), item("f", &bytes), &["first", "second"]);
    order.files[0].places = urls.into_iter().enumerate().collect();
    run(&order, &Heard::default()).unwrap();
    assert!(std::fs::read(dir.path().join("dst/f")).unwrap() == bytes);
    assert_eq!(asked.iter().map(|asked| asked.offsets.lock().len()).sum::<usize>(), 4);
}
