//! A formation behind a gateway as a source.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bivouac_link::{LinkKey, LinkSource, LinkTarget, OutgoingLink};
use bivouac_source::{Attrs, Cause, Precondition, PutOutcome, Source, SourceResult, conformance};
use bivouac_types::FormationId;
use tempfile::TempDir;

use crate::far_side::{FAR, Far, KEY, NEAR, grant, owner};
use crate::relay::Relay;

#[test]
fn a_link_conforms() {
    conformance::source(|| {
        let far = Far::new("exported");
        (far.link(), far)
    });
}

#[test]
fn a_link_of_a_whole_tree_conforms() {
    conformance::source(|| {
        let far = Far::new("");
        (far.link(), far)
    });
}

#[test]
fn a_link_over_a_long_way_conforms() {
    conformance::source(|| {
        let far = Far::new("exported");
        let relay = Relay::to(far.address).delayed(Duration::from_millis(2));
        (
            LinkSource::open(LinkTarget { address: relay.address().to_string(), ..far.target() }).unwrap(),
            (far, relay),
        )
    });
}

fn attrs(perm: u32) -> Attrs {
    Attrs { perm, uid: owner().0, gid: owner().1, ..Attrs::default() }
}

pub fn put_whole(
    source: &dyn Source,
    path: &[u8],
    content: &[u8],
    expect: &Precondition,
) -> SourceResult<PutOutcome> {
    let plan = source.plan_whole(path, content)?;
    source.put_whole(&plan, content, &attrs(0o640), expect)
}

/// S820: what is far away is what it is there.
#[test]
fn the_far_side_is_what_its_gateway_says() {
    let far = Far::new("a/b");
    fs::write(far.path("a/outside"), "x").unwrap();
    fs::write(far.path("a/b/f"), "content").unwrap();
    let link = far.link();
    let side = link.far_side().unwrap();
    assert_eq!((side.formation, &side.name[..], &side.path[..]), (FAR, "far", &b"a/b"[..]));
    assert_eq!((side.read_only, side.expires), (false, None));
    let names: Vec<_> = link.list(b"").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [b"f"]);
    assert!(link.round_trip() > Duration::ZERO);
    assert!(link.usage().unwrap().requests > 0);
}

#[test]
fn a_whole_file_is_put_once_and_known_again() {
    let far = Far::new("");
    let link = far.link();
    let kept = put_whole(&link, b"f", b"content", &Precondition::Absent).unwrap();
    assert_eq!(fs::read(far.path("f")).unwrap(), b"content");
    let again = put_whole(&link, b"f", b"other", &Precondition::Absent).unwrap_err();
    assert_eq!(again.cause(), Cause::Changed, "{again}");
    // After a kill what was planned is recognised by its content, however often it is asked.
    let plan = link.plan_whole(b"f", b"content").unwrap();
    for _ in 0..2 {
        assert_eq!(link.resume(&plan, &Precondition::Absent).unwrap().as_ref(), Some(&kept.version));
    }
    let other = link.plan_whole(b"f", b"another").unwrap();
    assert_eq!(link.resume(&other, &Precondition::Absent).unwrap(), None);
    let replaced = put_whole(&link, b"f", b"newer", &Precondition::Version(kept.version)).unwrap();
    assert_eq!(link.stat(b"f").unwrap().version, replaced.version);
    assert_eq!(fs::read_dir(far.dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_tree_comes_with_its_top_and_changes_are_seen() {
    let far = Far::new("");
    for dir in 0..20 {
        let path = far.path(&format!("d{dir}/e"));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("f"), format!("{dir}")).unwrap();
    }
    // What comes with a listing counts for two seconds. Where they are over, on a busy machine, another link lists it.
    let (link, top) = loop {
        let (begun, link) = (Instant::now(), far.link());
        let top = link.list_changed(b"", None).unwrap().unwrap();
        assert_eq!(top.entries.len(), 20);
        let before = link.usage().unwrap().requests;
        for dir in 0..20 {
            let below = link.list_changed(format!("d{dir}/e").as_bytes(), None).unwrap().unwrap();
            assert_eq!(below.entries[0].name, b"f");
        }
        let asked = link.usage().unwrap().requests - before;
        if begun.elapsed() < Duration::from_secs(2) {
            assert_eq!(asked, 1, "all of it came with the first listing");
            break (link, top);
        }
    };
    assert_eq!(link.list_changed(b"", Some(top.digest)).unwrap(), None);
    fs::write(far.path("new"), "x").unwrap();
    // What was seen a moment ago counts for two seconds.
    let seen = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        link.list_changed(b"", Some(top.digest)).unwrap()
    });
    assert!(seen.unwrap().entries.iter().any(|entry| entry.name == b"new"));
}

#[test]
fn small_files_come_with_their_attributes() {
    let far = Far::new("");
    fs::write(far.path("f"), "small").unwrap();
    let link = far.link();
    let meta = link.stat(b"f").unwrap();
    let before = link.usage().unwrap().requests;
    let mut content = [0; 10];
    assert_eq!(link.read(b"f", &meta.version, 0, &mut content).unwrap(), 5);
    assert_eq!(&content[..5], b"small");
    assert_eq!(link.usage().unwrap().requests, before + 1, "its content came with its attributes");
    fs::write(far.path("f"), "other").unwrap();
    assert_eq!(link.read(b"f", &meta.version, 0, &mut content).unwrap_err().cause(), Cause::Changed);
}

/// S823: a key that permits no changes.
#[test]
fn a_read_only_key_reads_and_changes_nothing() {
    let far = Far::new("");
    far.keys.grants.lock().insert(KEY.to_owned(), grant("", true));
    fs::write(far.path("f"), "content").unwrap();
    let link = far.link();
    assert!(link.far_side().unwrap().read_only);
    let meta = link.stat(b"f").unwrap();
    let plan = link.plan(b"g", 1).unwrap();
    let refused = [
        link.start(plan.clone(), &attrs(0o600)).map(drop),
        put_whole(&link, b"g", b"x", &Precondition::Absent).map(drop),
        link.put_dir(b"d", &attrs(0o700)).map(drop),
        link.set_attrs(b"f", &meta.version, &attrs(0o600)).map(drop),
        link.remove(b"f", None),
        link.start_link(plan, b"x").map(drop),
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert_eq!(refused.cause(), Cause::ReadOnly);
        assert!(refused.to_string().contains("permits no changes"), "{refused}");
    }
    assert_eq!(fs::read_dir(far.dir.path()).unwrap().count(), 1);
}

/// S824: revoked and expired keys end at the next request.
#[test]
fn a_key_ends_in_the_middle() {
    let far = Far::new("");
    fs::write(far.path("f"), vec![1; 1 << 20]).unwrap();
    let link = far.link();
    let meta = link.stat(b"f").unwrap();
    let read = |at: u64| link.read(b"f", &meta.version, at, &mut [0; 4096]);
    assert_eq!(read(0).unwrap(), 4096);
    let mut limited = grant("", false);
    limited.expires = Some(100);
    far.keys.grants.lock().insert(KEY.to_owned(), limited);
    far.keys.now.store(99, Ordering::Relaxed);
    assert_eq!(read(4096).unwrap(), 4096);
    far.keys.now.store(100, Ordering::Relaxed);
    let expired = read(8192).unwrap_err();
    assert!(expired.cause() == Cause::Denied && expired.to_string().contains("has expired"), "{expired}");
    far.keys.now.store(1, Ordering::Relaxed);
    assert_eq!(read(8192).unwrap(), 4096);
    far.keys.grants.lock().clear();
    let revoked = read(0).unwrap_err();
    assert!(revoked.cause() == Cause::Denied && revoked.to_string().contains("was revoked"), "{revoked}");
    let again = LinkSource::open(far.target()).map(drop).unwrap_err();
    assert!(again.to_string().contains("was revoked"), "{again}");
}

/// S825: what cannot be is said at once.
#[test]
fn what_cannot_be_linked_is_refused_by_name() {
    let far = Far::new("d");
    let refusal = |target: LinkTarget| {
        let refused = LinkSource::open(target).map(drop).unwrap_err();
        (refused.cause(), refused.to_string())
    };
    let wrong = refusal(LinkTarget { key: LinkKey::derive(&[9; 32], KEY), ..far.target() });
    assert!(wrong.0 == Cause::Denied && wrong.1.contains("does not know key"), "{wrong:?}");
    let itself = refusal(LinkTarget { formation: FAR, ..far.target() });
    assert!(itself.0 == Cause::Exists && itself.1.contains("that it is in"), "{itself:?}");
    fs::remove_dir(far.path("d")).unwrap();
    let gone = refusal(far.target());
    assert!(gone.0 == Cause::NotFound && gone.1.contains("cannot be exported"), "{gone:?}");
    let nobody = refusal(LinkTarget { address: "127.0.0.1:1".to_owned(), ..far.target() });
    assert!(nobody.0 == Cause::Lost && nobody.1.contains("cannot connect"), "{nobody:?}");
}

/// S826: links in a circle are found.
#[test]
fn links_in_a_circle_are_found() {
    let (one, other) = (FormationId([11; 16]), FormationId([12; 16]));
    let [one_far, other_far] = [one, other].map(|formation| Far::of(formation, TempDir::new().unwrap(), ""));
    let leads = |to: &Far, from: FormationId, path: &str| OutgoingLink {
        path: path.as_bytes().to_vec(),
        target: LinkTarget { formation: from, ..to.target() },
    };
    one_far.keys.links.lock().push(leads(&other_far, one, "other"));
    let link = one_far.link();
    link.reaches(vec![NEAR]).unwrap();
    other_far.keys.links.lock().push(leads(&one_far, other, "one"));
    let circle = link.reaches(vec![NEAR]).unwrap_err();
    assert!(circle.cause() == Cause::Exists && circle.to_string().contains("in a circle"), "{circle}");
    assert_eq!(link.reaches(vec![one]).unwrap_err().cause(), Cause::Exists);
    let many = (100..116).map(|number| FormationId([number; 16])).collect();
    let far_away = link.reaches(many).unwrap_err();
    assert!(far_away.to_string().contains("more than 16"), "{far_away}");
    // A link that the key does not show counts for nothing.
    fs::create_dir(one_far.path("mine")).unwrap();
    one_far.keys.grants.lock().insert(KEY.to_owned(), grant("mine", false));
    link.reaches(vec![NEAR]).unwrap();
}
