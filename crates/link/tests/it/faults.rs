//! Cuts, and what is sent again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bivouac_link::{ConnectionLimits, KeyTable, LinkSource, LinkTarget, OWN_KEY_ID};
use bivouac_source::{Attrs, Cause, Precondition, Source};

use crate::conformance::put_whole;
use crate::far_side::{FAR, Far, KEY};
use crate::relay::Relay;

fn through(relay: &Relay, far: &Far) -> LinkSource {
    let address = relay.address().to_string();
    LinkSource::open(LinkTarget { address, ..far.target() }).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// S827: connections that break cost time, and nothing else.
#[test]
fn nothing_is_lost_or_done_twice_while_connections_break() {
    let far = Far::new("");
    let relay = Relay::to(far.address).delayed(Duration::from_millis(1));
    let link = through(&relay, &far);
    let (begun, done, is_over) = (Instant::now(), AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = None;
            // Not for ever where the test fails.
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(300) {
                std::thread::sleep(Duration::from_millis(60));
                // On a busy machine a connection may not last for one request: none breaks before something was done.
                let now = Some(done.load(Ordering::Relaxed));
                if seen != now {
                    seen = now;
                    relay.reset();
                }
            }
        });
        let mut last = None;
        let mut round = 0;
        while begun.elapsed() < Duration::from_secs(4) || round <= 10 {
            round += 1;
            let content = bytes(round * 977 % 40_000 + 1);
            let expect = last.take().map_or(Precondition::Absent, Precondition::Version);
            // Each replaces what the one before has put: a lost reply must not look like somebody else's change.
            let kept = if round % 2 == 0 {
                put_whole(&link, b"f", &content, &expect).unwrap()
            } else {
                let attrs = Attrs { perm: 0o600, ..Attrs::default() };
                let upload = link.begin(b"f", content.len() as u64, &attrs).unwrap();
                let piece = link.put(&upload, 0, &content).unwrap();
                link.verify(&upload, std::slice::from_ref(&piece)).unwrap();
                link.commit(&upload, &[piece], &attrs, &expect).unwrap()
            };
            done.fetch_add(1, Ordering::Relaxed);
            assert!(fs::read(far.path("f")).unwrap() == content, "round {round}");
            let mut back = vec![0; content.len()];
            assert_eq!(link.read(b"f", &kept.version, 0, &mut back).unwrap(), content.len());
            assert!(back == content, "round {round} came back differently");
            done.fetch_add(1, Ordering::Relaxed);
            link.put_dir(b"d", &Attrs { perm: 0o700, ..Attrs::default() }).unwrap();
            let small = put_whole(&link, b"d/x", b"x", &Precondition::Absent).unwrap();
            link.remove(b"d/x", Some(&small.version)).unwrap();
            done.fetch_add(1, Ordering::Relaxed);
            last = Some(kept.version);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let names: Vec<_> = fs::read_dir(far.dir.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// S828: without a connection work waits, and questions fail soon.
#[test]
fn work_waits_for_a_cut_link_and_questions_do_not() {
    let far = Far::new("");
    fs::write(far.path("f"), bytes(1 << 20)).unwrap();
    let relay = Relay::to(far.address);
    let link = through(&relay, &far);
    let version = link.stat(b"f").unwrap().version;
    relay.cut();
    let lost = link.stat(b"f").unwrap_err();
    assert_eq!(lost.cause(), Cause::Lost, "{lost}");
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut content = vec![0; 1 << 20];
            link.read(b"f", &version, 0, &mut content).map(|len| (len, content))
        });
        let written = scope.spawn(|| put_whole(&link, b"g", b"content", &Precondition::Absent));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!read.is_finished() && !written.is_finished());
        relay.heal();
        let (len, content) = read.join().unwrap().unwrap();
        assert!(len == 1 << 20 && content == bytes(1 << 20), "other content came");
        written.join().unwrap().unwrap();
    });
    assert_eq!(fs::read(far.path("g")).unwrap(), b"content");
    assert_eq!(link.stat(b"f").unwrap().version, version);
}

/// S828: the wait is bounded.
#[test]
fn work_does_not_wait_for_ever() {
    let far = Far::new("");
    let relay = Relay::to(far.address);
    let target =
        LinkTarget { address: relay.address().to_string(), wait: Duration::from_secs(1), ..far.target() };
    let link = LinkSource::open(target).unwrap();
    relay.cut();
    let lost = put_whole(&link, b"g", b"content", &Precondition::Absent).unwrap_err();
    assert!(lost.cause() == Cause::Lost && lost.to_string().contains("is down"), "{lost}");
    // Nor do many that come one after the other, each for as long as the first one.
    let begun = Instant::now();
    for number in 0..120 {
        let path = format!("g{number}");
        put_whole(&link, path.as_bytes(), b"content", &Precondition::Absent).unwrap_err();
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    relay.heal();
    // The connection comes back by what is asked meanwhile.
    while let Err(lost) = put_whole(&link, b"h", b"content", &Precondition::Absent) {
        assert!(lost.cause() == Cause::Lost && begun.elapsed() < Duration::from_secs(120), "{lost}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!far.path("g").exists() && !far.path("g0").exists() && far.path("h").exists());
}

/// S828: whether the far side is there is asked, unless it has just answered something.
#[test]
fn a_gateway_that_is_silent_is_not_taken_for_one_that_answers() {
    let far = Far::new("");
    let relay = Relay::to(far.address);
    let link = through(&relay, &far);
    link.check().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    relay.freeze();
    std::thread::scope(|scope| {
        let check = scope.spawn(|| link.check());
        std::thread::sleep(Duration::from_millis(500));
        assert!(!check.is_finished(), "nobody was asked");
        relay.thaw();
        check.join().unwrap().unwrap();
    });
}

/// Many pieces are under way at the same time.
#[test]
fn a_long_way_is_filled() {
    let far = Far::new("");
    fs::write(far.path("f"), bytes(16 << 20)).unwrap();
    let relay = Relay::to(far.address).delayed(Duration::from_millis(20)).limited(100 << 20);
    let link = through(&relay, &far);
    let version = link.stat(b"f").unwrap().version;
    let read = |at: u64| {
        let mut content = vec![0; 1 << 20];
        link.read(b"f", &version, at << 20, &mut content).unwrap();
        content
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|at| scope.spawn(move || read(at))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<u8>>()
    });
    assert!(all == bytes(16 << 20), "other content came");
    assert!(link.usage().unwrap().streams > 1);
    let (figures, pieces) = (link.figures(), link.pieces_under_way(1 << 20).unwrap());
    assert!(
        figures.is_up && figures.rate > 0 && figures.round_trip >= Duration::from_millis(40),
        "{figures:?}"
    );
    assert!((4..=64).contains(&pieces), "{pieces}");
}

/// S827: a connection breaks, which the gateway does not see; what had been asked for over it is not done later.
#[test]
fn a_request_is_not_carried_out_behind_its_repetition() {
    let far = Far::new("");
    fs::write(far.path("f"), "x").unwrap();
    let relay = Relay::to(far.address);
    let link = through(&relay, &far);
    let was = link.stat(b"f").unwrap();
    let set = |perm: u32| {
        let attrs = Attrs { perm, mtime: was.version.mtime, ..was.attrs.clone() };
        link.set_attrs(b"f", &was.version, &attrs).map(drop)
    };
    let perm = || fs::metadata(far.path("f")).unwrap().permissions().mode() & 0o7777;
    relay.freeze();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| set(0o711));
        // What was sent is in the relay.
        relay.wait_for_frozen();
        relay.reset_near();
        first.join().unwrap().unwrap();
    });
    assert_eq!(perm(), 0o711);
    set(0o640).unwrap();
    relay.thaw();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(perm(), 0o640, "the first transmission was carried out behind a later change");
    }
    assert_eq!(link.figures().breaks, 1);
}

/// S828: a cut that outlasts all waits costs errors, and nothing that was acknowledged.
#[test]
fn a_long_cut_costs_errors_and_no_content() {
    let far = Far::new("");
    let relay = Relay::to(far.address);
    let target =
        LinkTarget { address: relay.address().to_string(), wait: Duration::from_secs(1), ..far.target() };
    // What is to succeed has all the time that it takes, by a link that is not cut.
    let (link, steady) = (LinkSource::open(target).unwrap(), far.link());
    let content = bytes(3 << 20);
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let upload = steady.begin(b"large", content.len() as u64, &attrs).unwrap();
    let mut pieces = vec![steady.put(&upload, 0, &content[..1 << 20]).unwrap()];
    relay.cut();
    for _ in 0..3 {
        let lost = link.put(&upload, 1 << 20, &content[1 << 20..2 << 20]).unwrap_err();
        assert_eq!(lost.cause(), Cause::Lost, "{lost}");
    }
    assert!(link.figures().last_error.is_some() && !link.figures().is_up);
    relay.heal();
    let put = |at: usize| {
        (0..200).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            link.put(&upload, (at << 20) as u64, &content[at << 20..(at + 1) << 20]).ok()
        })
    };
    pieces.extend([put(1).unwrap(), put(2).unwrap()]);
    // All of them are verified by the commit.
    steady.commit(&upload, &pieces, &attrs, &Precondition::Absent).unwrap();
    assert!(fs::read(far.path("large")).unwrap() == content, "other content is there");
}

/// S824: a key ends in the middle of an upload.
#[test]
fn a_key_that_ends_ends_a_transfer() {
    let far = Far::new("");
    fs::write(far.path("f"), "before").unwrap();
    let link = far.link();
    let was = link.stat(b"f").unwrap();
    let content = bytes(2 << 20);
    let upload = link.begin(b"f", content.len() as u64, &was.attrs).unwrap();
    let piece = link.put(&upload, 0, &content[..1 << 20]).unwrap();
    far.keys.grants.lock().get_mut(KEY).unwrap().expires = Some(5);
    far.keys.now.store(5, Ordering::Relaxed);
    let expect = Precondition::Version(was.version.clone());
    let refused = [
        link.put(&upload, 1 << 20, &content[1 << 20..]).map(drop),
        link.commit(&upload, &[piece], &was.attrs, &expect).map(drop),
        link.stat(b"f").map(drop),
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert!(refused.cause() == Cause::Denied && refused.to_string().contains("has expired"), "{refused}");
    }
    far.keys.grants.lock().clear();
    let refused = link.put(&upload, 1 << 20, &content[1 << 20..]).unwrap_err();
    assert!(refused.cause() == Cause::Denied && refused.to_string().contains("was revoked"), "{refused}");
    assert_eq!(fs::read(far.path("f")).unwrap(), b"before");
}

/// A piece that is not what was sent is found by the commit, which then does nothing.
#[test]
fn a_commit_compares_what_was_not_verified() {
    let far = Far::new("");
    let link = far.link();
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    let upload = link.begin(b"f", 4, &attrs).unwrap();
    let piece = link.put(&upload, 0, b"ours").unwrap();
    fs::write(far.path(&upload.token), "hers").unwrap();
    let refused = link.commit(&upload, &[piece], &attrs, &Precondition::Absent).unwrap_err();
    assert!(refused.to_string().contains("read back differently"), "{refused}");
    assert!(!far.path("f").exists());
}

/// The gateway tells its own formation who uses it, and nobody else.
#[test]
fn a_gateway_tells_its_formation_of_keys() {
    let far = Far::new("");
    fs::write(far.path("f"), "x").unwrap();
    let link = far.link();
    assert_eq!(link.stat(b"missing").unwrap_err().cause(), Cause::NotFound);
    let own = LinkSource::later(LinkTarget { formation: FAR, key: far.keys.key(OWN_KEY_ID), ..far.target() })
        .unwrap();
    let keys = own.key_figures().unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!((&keys[0].id[..], keys[0].usage.streams, keys[0].usage.errors), (KEY, 1, 1));
    assert_eq!(own.stat(b"f").unwrap_err().cause(), Cause::Denied);
    assert_eq!(link.key_figures().unwrap_err().cause(), Cause::Unsupported);
}

/// S829: more processes share a key than would find room with as many connections as one of them takes.
#[test]
fn processes_share_the_connections_of_a_key() {
    const MAX: usize = 8;
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let content = bytes(8 << 20);
    std::fs::write(dir.path().join("data/f"), &content).unwrap();
    let limits = ConnectionLimits { all: 64, per_key: MAX };
    let far = Far::limited((FAR, dir), "data", limits);
    let links: Vec<LinkSource> = (0..MAX as u64)
        .map(|asker| LinkSource::later(LinkTarget { asker: Some(asker), ..far.target() }).unwrap())
        .collect();
    let read_all = |link: &LinkSource| {
        let version = link.stat(b"f").unwrap().version;
        std::thread::scope(|scope| {
            for part in 0..8 {
                let (version, content) = (&version, &content);
                scope.spawn(move || {
                    let (at, mut read) = (part << 20, vec![0; 1 << 20]);
                    assert_eq!(link.read(b"f", version, at as u64, &mut read).unwrap(), read.len());
                    assert!(read == content[at..at + read.len()], "part {part}");
                });
            }
        });
    };
    // One by one, each takes room from those before; then all at the same time.
    links.iter().for_each(read_all);
    std::thread::scope(|scope| links.iter().for_each(|link| drop(scope.spawn(|| read_all(link)))));
    // Those that made room may not have ended yet.
    let deadline = Instant::now() + Duration::from_secs(60);
    while links[0].usage().unwrap().streams as usize > MAX {
        assert!(Instant::now() < deadline, "there are more than {MAX} connections");
        std::thread::yield_now();
    }
    assert!(links.iter().all(|link| link.figures().is_up));
}
