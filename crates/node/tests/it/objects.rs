//! Partitions that stand in front of an object store, with real nodes and volumes and a server that is real.

use crate::formation::{Formation, op};
use bivouac_client::{Client, NewInode, Partition, TreeEntry};
use bivouac_objects::{ACCESS_KEY, Fault, SECRET_KEY, Server, What};
use bivouac_source::Environment;
use bivouac_types::{Errno, FsResult, Ino, TargetIndex, mode};

const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o640, rdev: 0, target: b"" };
const LINK: NewInode<'static> = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"../there" };
/// The smallest stripes that a store takes.
const STRIPE: usize = 5 << 20;

/// A formation of three nodes with a partition in front of a store.
struct Camp {
    formation: Formation,
    partition: Partition,
    server: Server,
}

impl Camp {
    fn new(fill: impl FnOnce(&Server)) -> Camp {
        let server = Server::start();
        fill(&server);
        let mut formation = Formation::new(3, 4096);
        formation.objects = Environment::read(|name| match name {
            "AWS_ACCESS_KEY_ID" => Some(ACCESS_KEY.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(SECRET_KEY.to_owned()),
            _ => None,
        });
        formation.restart();
        let partition = bind(&formation, &server, "stripe=5m").unwrap();
        Camp { formation, partition, server }
    }

    fn client(&self, node: usize) -> &Client {
        &self.formation.clients[node]
    }

    fn ino(&self, node: usize, path: &str) -> FsResult<Ino> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(self.partition.dir, |dir, name| {
            self.client(node).lookup(dir, name.as_bytes()).map(|attr| attr.ino)
        })
    }

    fn read(&self, node: usize, path: &str) -> FsResult<Vec<u8>> {
        let (client, ino) = (self.client(node), self.ino(node, path)?);
        let mut bytes = vec![0xee; client.getattr(ino)?.size as usize + 10];
        let len = client.read(ino, 0, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn make(&self, path: &str, what: &NewInode<'_>) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (client, dir) = (self.client(0), self.ino(0, dir).unwrap());
        client.mknod(&op(client), dir, name.as_bytes(), what).unwrap();
    }

    fn write(&self, node: usize, path: &str, bytes: &[u8]) {
        let (client, (dir, name)) = (self.client(node), path.rsplit_once('/').unwrap_or(("", path)));
        let dir = self.ino(node, dir).unwrap();
        let made = client.create(&op(client), dir, name.as_bytes(), &FILE, false, true).unwrap();
        client.write(&op(client), made.attr.ino, 0, bytes, false).unwrap();
        client.close(made.attr.ino);
    }

    /// Flushes all; the failures.
    fn flush(&self, force: bool) -> Vec<(Errno, String)> {
        let (client, dir) = (self.client(1), self.partition.dir);
        let top = TreeEntry { attr: client.getattr(dir).unwrap(), dir, path: Vec::new() };
        let plan = client.plan_flush(&client.site.unsaved().unwrap(), &[], &top).unwrap();
        let mut outcomes: Vec<_> = plan.dirs.iter().map(|dir| client.site.flush_open(dir)).collect();
        outcomes.extend(plan.files.iter().map(|file| {
            let name = file.path.rsplit(|byte| *byte == b'/').next().unwrap();
            client.site.flush(file, client.site.seen_names(file.dir).unwrap().get(name).cloned(), force)
        }));
        outcomes.extend(plan.dirs.iter().rev().map(|dir| client.site.flush(dir, None, force)));
        outcomes.into_iter().filter_map(Result::err).map(|e| (e.errno(), e.to_string())).collect()
    }

    fn is_saved(&self) -> bool {
        self.client(0).site.unsaved().unwrap().is_empty()
    }

    fn content(&self, key: &str) -> Vec<u8> {
        self.server.object(key).unwrap().bytes.to_vec()
    }
}

fn bind(formation: &Formation, server: &Server, settings: &str) -> FsResult<Partition> {
    let client = &formation.clients[0];
    let dir = client.mknod(&op(client), Ino::ROOT, b"part", &DIR)?.ino;
    let targets = (0..formation.map().target_count()).map(|target| TargetIndex(u32::from(target))).collect();
    let settings = format!("{settings}\nsource=s3://bucket/p?endpoint={}", server.endpoint());
    let made = client.partitions.make(&op(client), dir, targets, settings.parse().unwrap());
    if made.is_err() {
        client.rmdir(&op(client), Ino::ROOT, b"part")?;
    }
    made
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 255) as u8 ^ at as u8 ^ seed).collect()
}

#[test]
fn what_a_store_has_is_brought_once() {
    let content = bytes(2 * STRIPE + 77, 1);
    let mut camp = Camp::new(|server| {
        server.put("p/d/large", &content, &[("mode", "33152"), ("mtime", "1234567890.5")]);
        server.put("p/d/link", b"large", &[("mode", "41471")]);
        server.put("p/d/x//y", b"has a name of nothing", &[]);
        server.put("elsewhere", b"x", &[]);
    });
    std::thread::scope(|scope| {
        for node in 0..3 {
            let (camp, content) = (&camp, &content);
            scope.spawn(move || assert!(camp.read(node, "d/large").unwrap() == *content));
        }
    });
    assert_eq!(camp.server.count("GET", "/p/d/large?"), 3, "each stripe once, for whoever asks");
    let attr = camp.client(1).getattr(camp.ino(1, "d/large").unwrap()).unwrap();
    assert_eq!(
        (attr.mode, attr.mtime.secs, attr.mtime.nanos),
        (mode::FILE | 0o600, 1_234_567_890, 500_000_000)
    );
    let link = camp.ino(2, "d/link").unwrap();
    assert_eq!(camp.client(2).readlink(link).unwrap(), b"large");
    assert!(camp.ino(0, "elsewhere").is_err());
    camp.formation.restart();
    assert!(camp.read(1, "d/large").unwrap() == content);
    assert_eq!(camp.server.count("GET", "/p/d/large?"), 3, "and not again after a restart");
}

/// S166: nodes bring their own stripes as parts of one upload, and nothing else is ever seen under the name.
#[test]
fn what_was_written_becomes_objects() {
    let camp = Camp::new(|_| {});
    let (large, small) = (bytes(2 * STRIPE + 5, 2), bytes(999, 3));
    camp.make("d", &DIR);
    camp.make("d/empty", &DIR);
    camp.make("d/link", &LINK);
    camp.write(0, "d/large", &large);
    camp.write(1, "d/small", &small);
    camp.write(2, "d/nothing", b"");
    assert_eq!(camp.flush(false), []);
    assert!(camp.is_saved());
    assert!(camp.content("p/d/large") == large);
    assert_eq!((camp.content("p/d/small"), camp.content("p/d/nothing")), (small, Vec::new()));
    assert_eq!(camp.content("p/d/link"), b"../there");
    assert_eq!(camp.server.object("p/d/empty/").unwrap().metadata["mode"], 0o040_755.to_string());
    assert_eq!(camp.server.object("p/d/small").unwrap().metadata["mode"], 0o100_640.to_string());
    assert_eq!(camp.server.count("PUT", "partNumber"), 4, "three stripes, and one small file");
    assert!(camp.server.contents().uploads.is_empty());
    let new = bytes(STRIPE + 1, 4);
    camp.write(2, "d/large", &new);
    assert_eq!(camp.flush(false), []);
    assert!(camp.content("p/d/large") == new);
}

/// S167: an object that somebody else has put there is not overwritten unasked.
#[test]
fn both_sides_of_a_conflict_are_kept() {
    let camp = Camp::new(|server| server.put("p/f", b"as it was", &[]));
    assert_eq!(camp.read(0, "f").unwrap(), b"as it was");
    camp.write(1, "f", b"written here");
    camp.server.put("p/f", b"written there", &[]);
    let refused = camp.flush(false);
    assert_eq!(refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(), [Errno::ESTALE]);
    assert!(refused[0].1.contains("--force"), "{refused:?}");
    assert_eq!(camp.content("p/f"), b"written there");
    assert_eq!(camp.read(2, "f").unwrap(), b"written here");
    assert!(camp.server.contents().uploads.is_empty(), "what was to take its place is thrown away");
    assert_eq!(camp.flush(true), []);
    assert_eq!(camp.content("p/f"), b"written here");
}

/// S168: a store that cannot be reached loses nothing: what is here is served and stays to be flushed.
#[test]
fn a_store_that_dies_loses_nothing() {
    let content = bytes(STRIPE + 5, 7);
    let mut camp = Camp::new(|server| server.put("p/old", b"was there", &[]));
    camp.make("d", &DIR);
    camp.write(0, "d/f", &content);
    camp.server.stop();
    let refused = camp.flush(false);
    assert!(!refused.is_empty() && refused.iter().all(|refusal| refusal.0 == Errno::EIO), "{refused:?}");
    assert!(refused[0].1.contains("is the store running?"), "{refused:?}");
    assert!(!camp.is_saved());
    assert!(camp.read(1, "d/f").unwrap() == content);
    camp.formation.restart();
    camp.server.serve();
    assert_eq!(camp.flush(false), []);
    assert!(camp.is_saved() && camp.content("p/d/f") == content);
    assert_eq!(camp.read(2, "old").unwrap(), b"was there");
}

#[test]
fn an_object_that_took_its_place_without_an_answer_is_known_again() {
    let camp = Camp::new(|_| {});
    camp.write(0, "f", b"content");
    // Looked at once before it is completed, and never after.
    let what = What::Refuse(503, "SlowDown");
    camp.server.fail_after(Fault { method: "HEAD", within: "/p/f?", after: 1, times: usize::MAX, what });
    let refused = camp.flush(false);
    assert_eq!(refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(), [Errno::EIO], "{refused:?}");
    assert_eq!(camp.content("p/f"), b"content");
    camp.server.heal();
    assert_eq!(camp.flush(false), []);
    assert!(camp.is_saved());
}

/// What a store does not let us do: who reads and who flushes is told, and nothing that is here goes.
#[test]
fn a_store_that_denies_is_named_and_loses_nothing() {
    let content = bytes(STRIPE + 9, 8);
    let camp = Camp::new(|server| {
        server.put("p/secret", b"not for us", &[]);
        server.put("p/old", b"as it was", &[]);
    });
    let denied = || What::Refuse(403, "AccessDenied");
    camp.server.fail("GET", "/p/secret?", usize::MAX, denied());
    let refused = camp.read(1, "secret").unwrap_err();
    assert_eq!(refused.errno(), Errno::EACCES);
    assert!(refused.to_string().contains("secret"), "{refused}");
    camp.write(0, "new", &content);
    camp.write(1, "old", b"changed");
    for method in ["PUT", "POST"] {
        camp.server.fail(method, "/p/", usize::MAX, denied());
    }
    let refused = camp.flush(false);
    assert_eq!(
        refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(),
        [Errno::EACCES; 2],
        "{refused:?}"
    );
    for name in ["p/new", "p/old"] {
        assert!(refused.iter().any(|(_, text)| text.contains(name)), "{name}: {refused:?}");
    }
    assert!(camp.server.object("p/new").is_none() && camp.content("p/old") == b"as it was");
    assert!(camp.read(2, "new").unwrap() == content && camp.read(0, "old").unwrap() == b"changed");
    assert!(!camp.is_saved());
    camp.server.heal();
    assert_eq!(camp.flush(false), []);
    assert!(camp.is_saved() && camp.content("p/new") == content && camp.content("p/old") == b"changed");
    assert_eq!(camp.read(1, "secret").unwrap(), b"not for us");
}

/// S175, S176 for objects: what is deleted here goes, and what somebody else has put there since does not.
#[test]
fn deletions_go_to_a_store_where_it_is_said() {
    let camp = Camp::new(|server| {
        server.put("p/d/one", b"1", &[]);
        server.put("p/d/two", b"2", &[]);
        server.put("p/changed", b"as it was", &[]);
    });
    let client = camp.client(0);
    let partition = client.partitions.now(camp.partition.id).unwrap();
    let mut settings = partition.settings.clone();
    settings.assign("mirror-deletes", "yes").unwrap();
    client.partitions.set(&op(client), partition.id, partition.version, settings).unwrap();
    let dir = camp.ino(0, "d").unwrap();
    for name in ["one", "two"] {
        client.lookup(dir, name.as_bytes()).unwrap();
        client.unlink(&op(client), dir, name.as_bytes()).unwrap();
    }
    client.rmdir(&op(client), camp.partition.dir, b"d").unwrap();
    camp.ino(0, "changed").unwrap();
    client.unlink(&op(client), camp.partition.dir, b"changed").unwrap();
    camp.server.put("p/changed", b"theirs", &[]);
    assert!(camp.server.object("p/d/one").is_some(), "nobody has flushed");
    let removals = client.site.mirror(camp.partition.id, b"").unwrap();
    assert_eq!((removals.done, removals.left), (3, vec![]));
    assert_eq!(removals.kept.iter().map(|kept| &kept.path[..]).collect::<Vec<_>>(), [b"changed"]);
    assert!(camp.server.object("p/d/one").is_none() && camp.server.object("p/d/two").is_none());
    assert_eq!(camp.content("p/changed"), b"theirs");
    assert_eq!(camp.flush(false), []);
}

/// A name that the store does not take, since keys are short: named, kept, and no hindrance to others.
#[test]
fn a_name_that_is_too_long_for_a_store_stays_here() {
    let camp = Camp::new(|_| {});
    let part = "n".repeat(240);
    let mut path = String::new();
    for _ in 0..4 {
        path = if path.is_empty() { part.clone() } else { format!("{path}/{part}") };
        camp.make(&path, &DIR);
    }
    camp.write(1, &format!("{path}/{part}"), b"deep");
    camp.write(2, "short", b"not deep");
    let refused = camp.flush(false);
    assert_eq!(
        refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(),
        [Errno::ENAMETOOLONG],
        "{refused:?}"
    );
    assert!(refused[0].1.contains(&part), "{refused:?}");
    assert_eq!(camp.content("p/short"), b"not deep");
    assert_eq!(camp.read(0, &format!("{path}/{part}")).unwrap(), b"deep");
    assert!(!camp.is_saved());
}

/// S169: what cannot work is refused when the partition is made.
#[test]
fn what_a_store_does_not_take_is_refused_when_the_partition_is_made() {
    let camp = Camp::new(|_| {});
    let refusal = |settings: &str| {
        let client = camp.client(0);
        let dir = client.mknod(&op(client), Ino::ROOT, b"other", &DIR).unwrap().ino;
        let made = client.partitions.make(&op(client), dir, vec![TargetIndex(0)], settings.parse().unwrap());
        client.rmdir(&op(client), Ino::ROOT, b"other").unwrap();
        made.unwrap_err()
    };
    let source = format!("source=s3://bucket/p?endpoint={}", camp.server.endpoint());
    let small = refusal(&format!("stripe=1m\n{source}"));
    assert_eq!(small.errno(), Errno::EINVAL);
    assert!(small.to_string().contains("say --stripe 8m"), "{small}");
    assert_eq!(refusal(&format!("stripe=8m\nrule=*.log: stripe=64k\n{source}")).errno(), Errno::EINVAL);
    let missing = refusal(&format!("stripe=8m\n{}", source.replace("//bucket/", "//nobodys/")));
    assert_eq!(missing.errno(), Errno::EIO);
    assert!(missing.to_string().contains("no such bucket"), "{missing}");
    camp.server.fail("GET", "list-type", 1, What::Refuse(403, "AccessDenied"));
    assert_eq!(refusal(&format!("stripe=8m\n{source}")).errno(), Errno::EACCES);
}
