//! Lives of pools: S329 to S334.

use bivouac_pool::{
    Access, ArchiveCopy, AttachRequest, AttachingFormation, Caller, ChangeOrigin, Entry, ExpiryAction,
    Grantee, Listing, Location, NewPool, Origin, Pool, PoolRef, PoolResult, PoolState, Pools, Reminder,
};

use crate::databases::Database;

const DAY: i64 = 86_400;

struct Site {
    database: Database,
    pools: Pools,
    me: Caller,
}

fn site() -> Site {
    let database = super::database();
    Site { pools: database.open(), database, me: user(1000, &[1000]) }
}

fn user(uid: u32, gids: &[u32]) -> Caller {
    Caller { uid, gids: gids.to_vec() }
}

fn at(who: &Caller, now_s: i64) -> ChangeOrigin<'_> {
    ChangeOrigin { who, now_s, request: None }
}

fn name(text: &str) -> PoolRef {
    text.parse().unwrap()
}

fn new(text: &str, days: u32) -> NewPool {
    NewPool {
        name: text.parse().unwrap(),
        gid: 1000,
        title: String::new(),
        days: Some(days),
        source: None,
        bytes: None,
        files: None,
        reminder: None,
    }
}

fn former(formation: &str) -> AttachingFormation<'_> {
    AttachingFormation { formation, host: "n1", base: b"/run", view: "here", pid: 1 }
}

fn made(id: i64) -> PoolResult<(Vec<u8>, u64)> {
    Ok((format!("/made/{id}").into_bytes(), 7))
}

impl Site {
    fn make(&mut self, text: &str, now_s: i64) -> Pool {
        self.pools.create(&at(&self.me, now_s), &new(text, 10), made).unwrap()
    }

    /// One look at what is over; what was removed.
    fn look(&mut self, now_s: i64) -> (Vec<ExpiryAction>, Vec<String>) {
        let mut removed = Vec::new();
        let found = self.pools.expire(&at(&self.me, now_s), false, |pool| {
            removed.push(pool.name.clone());
            Ok(())
        });
        (found.unwrap().iter().map(|outcome| outcome.due).collect(), removed)
    }
}

#[test]
fn a_pool_lives_ends_is_restored_and_goes() {
    let mut site = site();
    let pool = site.make("mesh", 0);
    assert_eq!(
        (pool.expires_s, pool.state, pool.source.as_slice()),
        (10 * DAY, PoolState::Live, &b"/made/1"[..])
    );
    let again = site.pools.create(&at(&site.me, 1), &new("mesh", 10), made).unwrap_err().to_string();
    assert!(again.contains("there is one of that name"), "{again}");
    let me = site.me.clone();
    assert!(
        site.pools.extend(&at(&me, DAY), &name("mesh"), Some(3)).unwrap_err().to_string().contains("as much")
    );
    let longer = site.pools.extend(&at(&me, DAY), &name("mesh"), Some(20)).unwrap();
    assert_eq!((longer.expires_s, longer.extensions_left), (21 * DAY, 2));
    assert_eq!(longer.state_at(21 * DAY), PoolState::Expired);
    site.pools.release(&at(&me, 2 * DAY), &name("mesh")).unwrap();
    let twice = site.pools.release(&at(&me, 2 * DAY), &name("mesh")).unwrap_err().to_string();
    assert!(twice.contains("is released; get it back"), "{twice}");
    // Its name is free meanwhile, and then it cannot take it back.
    assert_eq!(site.pools.restore(&at(&me, 3 * DAY), &name("mesh"), Some(5)).unwrap().state, PoolState::Live);
    let what: Vec<String> = site.pools.history(&pool).unwrap().into_iter().map(|event| event.what).collect();
    assert_eq!(what, ["create", "extend", "release", "restore"]);
}

/// S331: extensions and days have an end; root is not bound.
#[test]
fn rules_bind_users_and_not_root() {
    let mut site = site();
    site.make("mesh", 0);
    let me = site.me.clone();
    for day in 1..=3 {
        site.pools.extend(&at(&me, day * DAY), &name("mesh"), Some(50)).unwrap();
    }
    let refused = site.pools.extend(&at(&me, 4 * DAY), &name("mesh"), Some(50)).unwrap_err().to_string();
    assert!(refused.contains("as often as is allowed"), "{refused}");
    let many = site.pools.create(&at(&me, 0), &new("more", 101), made).unwrap_err().to_string();
    assert!(many.contains("1 to 100"), "{many}");
    let root = user(0, &[0]);
    let longer = site.pools.extend(&at(&root, 4 * DAY), &name("1000/mesh"), Some(500)).unwrap();
    assert_eq!(longer.expires_s, 504 * DAY);
}

/// S332: what is removed was over for the time of grace, for two looks; a jump of the clock removes nothing.
#[test]
fn nothing_is_removed_by_a_jump_of_the_clock() {
    let mut site = site();
    site.make("mesh", 0);
    assert_eq!(site.look(9 * DAY).0, []);
    // A year ahead, and back.
    assert_eq!(site.look(400 * DAY), (vec![ExpiryAction::Ends], vec![]));
    let me = site.me.clone();
    assert_eq!(site.pools.find(&me, &name("mesh")).unwrap().state, PoolState::Expired);
    // With the clock as it should be it has the rest of its time, and as many extensions as before.
    assert_eq!(site.look(9 * DAY), (vec![ExpiryAction::Revives], vec![]));
    let revived = site.pools.find(&me, &name("mesh")).unwrap();
    assert_eq!((revived.state, revived.ended_s, revived.extensions_left), (PoolState::Live, None, 3));
    assert_eq!(site.look(9 * DAY).0, []);
    site.pools.release(&at(&me, 10 * DAY), &name("mesh")).unwrap();
    // Ahead once more: the look before did not see it.
    assert_eq!(site.look(500 * DAY), (vec![ExpiryAction::Unsure], vec![]));
    assert_eq!(site.look(11 * DAY).0, []);
    assert_eq!(site.look(24 * DAY), (vec![ExpiryAction::Unsure], vec![]));
    assert_eq!(site.look(25 * DAY), (vec![ExpiryAction::Removal], vec!["mesh".to_owned()]));
    assert!(site.pools.find(&me, &name("mesh")).is_err());
    assert_eq!(site.pools.list(&me, true).unwrap()[0].state, PoolState::Removed);
}

/// S332: what is attached stays; so does what cannot be removed, until it can; a dry run changes nothing.
#[test]
fn what_is_attached_is_not_removed() {
    let mut site = site();
    let pool = site.make("mesh", 0);
    let me = site.me.clone();
    let wanted = [AttachRequest { pool: name("mesh"), access: Access::Rw, path: "/pools/mesh".into() }];
    site.pools.attach(&at(&me, DAY), &former("camp"), &wanted).unwrap();
    let refused = site.pools.release(&at(&me, DAY), &name("mesh")).unwrap_err().to_string();
    assert!(refused.contains("is attached to formation camp on n1"), "{refused}");
    site.look(11 * DAY);
    site.look(50 * DAY);
    assert_eq!(site.look(51 * DAY), (vec![ExpiryAction::Attached], vec![]));
    let attachment = site.pools.attachments(&pool).unwrap().remove(0);
    let stranger = user(2000, &[2000]);
    assert!(site.pools.detach(&at(&stranger, 0), &[attachment.id]).is_err());
    site.pools.detach(&at(&me, 51 * DAY), &[attachment.id, 99]).unwrap();
    let dry = site.pools.expire(&at(&me, 52 * DAY), true, |_| Err("called".into())).unwrap();
    assert_eq!((dry[0].due, dry[0].failed.clone()), (ExpiryAction::Removal, None));
    let stuck = site.pools.expire(&at(&me, 52 * DAY), false, |_| Err("busy".into())).unwrap();
    assert_eq!(stuck[0].failed.as_deref(), Some("busy"));
    // Half of it may be gone, so it cannot come back, and the next look goes on, whatever the clock says.
    let gone = site.pools.restore(&at(&me, 52 * DAY), &name("mesh"), None).unwrap_err().to_string();
    assert!(gone.contains("removing"), "{gone}");
    assert_eq!(site.look(0), (vec![ExpiryAction::Removal], vec!["mesh".to_owned()]));
}

/// S333: data that was there before its pool is never given to `remove`; root removes nobody's.
#[test]
fn only_what_was_made_by_its_owner_is_removed() {
    let mut site = site();
    let me = site.me.clone();
    let there = NewPool { source: Some(b"/project/\xff odd \n".to_vec()), ..new("brought", 1) };
    let brought = site.pools.create(&at(&me, 0), &there, |_| panic!("it is there")).unwrap();
    assert_eq!(brought.source, b"/project/\xff odd \n");
    site.pools.release(&at(&me, 0), &name("brought")).unwrap();
    site.make("made", 0);
    site.pools.release(&at(&me, 0), &name("made")).unwrap();
    let root = user(0, &[0]);
    for day in [20, 21] {
        let found = site.pools.expire(&at(&root, day * DAY), false, |_| Err("called".into())).unwrap();
        assert!(found.iter().all(|outcome| outcome.failed.is_none()));
    }
    let states: Vec<PoolState> = site.pools.list(&me, true).unwrap().iter().map(|pool| pool.state).collect();
    assert_eq!(states, [PoolState::Removed, PoolState::Released]);
}

/// S330: others see what is shared with them, and do what they may.
#[test]
fn others_do_what_they_may() {
    let mut site = site();
    site.make("mesh", 0);
    let (me, other, member) = (site.me.clone(), user(2000, &[2000]), user(3000, &[3000, 50]));
    let meant = name("1000/mesh");
    assert!(site.pools.find(&other, &meant).unwrap_err().to_string().contains("none of that name"));
    assert!(site.pools.list(&other, true).unwrap().is_empty());
    site.pools.share(&at(&me, 1), &name("mesh"), Grantee::Group(50), Some(Access::Ro)).unwrap();
    site.pools.share(&at(&me, 1), &name("mesh"), Grantee::User(3000), Some(Access::Rw)).unwrap();
    assert!(site.pools.find(&other, &meant).is_err());
    assert_eq!(site.pools.find(&member, &meant).unwrap().access(&member), Some(Access::Rw));
    site.pools.share(&at(&me, 1), &name("mesh"), Grantee::User(3000), None).unwrap();
    let wanted = |access| [AttachRequest { pool: meant.clone(), access, path: "/p".into() }];
    let refused = site.pools.attach(&at(&member, 2), &former("x"), &wanted(Access::Rw)).unwrap_err();
    assert!(refused.to_string().contains("you may not use it rw"), "{refused}");
    site.pools.attach(&at(&member, 2), &former("x"), &wanted(Access::Ro)).unwrap();
    for refused in [
        site.pools.release(&at(&member, 3), &meant),
        site.pools.extend(&at(&member, 3), &meant, Some(90)),
        site.pools.share(&at(&member, 3), &meant, Grantee::All, Some(Access::Rw)),
    ] {
        assert!(refused.unwrap_err().to_string().contains("only they and root"));
    }
    // The same name is free for others.
    assert_eq!(site.pools.create(&at(&other, 3), &new("mesh", 1), made).unwrap().owner, 2000);
}

/// S334: asked for again under the same request, a change is done once; one user's requests are not another's.
#[test]
fn a_request_is_carried_out_once() {
    let mut site = site();
    let (me, other) = (site.me.clone(), user(2000, &[2000]));
    let asked = |who| ChangeOrigin { who, now_s: 0, request: Some("r1") };
    let first = site.pools.create(&asked(&me), &new("mesh", 10), made).unwrap();
    assert_eq!(site.pools.create(&asked(&me), &new("mesh", 10), made).unwrap().id, first.id);
    assert_ne!(site.pools.create(&asked(&other), &new("mesh", 10), made).unwrap().id, first.id);
    let extend = ChangeOrigin { who: &me, now_s: DAY, request: Some("r2") };
    site.pools.extend(&extend, &name("mesh"), Some(20)).unwrap();
    assert_eq!(site.pools.extend(&extend, &name("mesh"), Some(20)).unwrap().extensions_left, 2);
}

#[test]
fn words_find_pools() {
    let mut site = site();
    let me = site.me.clone();
    let titled = NewPool { title: "Wing, FINE".into(), ..new("mesh", 10) };
    site.pools.create(&at(&me, 0), &titled, made).unwrap();
    site.make("other", 0);
    let found = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        site.pools.search(&me, &words).unwrap().len()
    };
    assert_eq!((found(&["fine", "MESH"]), found(&["made"]), found(&["fine", "other"])), (1, 2, 0));
}

/// S318: each of several pools of one name can be had back, while none of them lives.
#[test]
fn an_earlier_pool_of_a_name_is_restored_by_its_number() {
    let mut site = site();
    let me = site.me.clone();
    let first = site.make("mesh", 0);
    site.pools.release(&at(&me, 0), &name("mesh")).unwrap();
    let second = site.make("mesh", 1);
    let earlier: PoolRef = name(&format!("mesh#{}", first.id));
    assert_eq!(site.pools.find(&me, &name("mesh")).unwrap().id, second.id);
    assert_eq!(site.pools.find(&me, &earlier).unwrap().id, first.id);
    let taken = site.pools.restore(&at(&me, 2), &earlier, None).unwrap_err().to_string();
    assert!(taken.contains("mesh#1: another one has its name now; release that one first"), "{taken}");
    let lives = site.pools.restore(&at(&me, 2), &name("mesh"), None).unwrap_err().to_string();
    assert!(lives.contains("by its number"), "{lives}");
    site.pools.release(&at(&me, 2), &name("mesh")).unwrap();
    let back = site.pools.restore(&at(&me, 3), &earlier, None).unwrap();
    assert_eq!((back.id, back.state, back.source.as_slice()), (first.id, PoolState::Live, &b"/made/1"[..]));
    // Numbers are of their name and owner.
    for wrong in ["other#1", "2000/mesh#1", "mesh#99"] {
        assert!(site.pools.find(&me, &name(wrong)).is_err(), "{wrong}");
    }
    assert!(site.pools.find(&user(2000, &[2000]), &name("1000/mesh#1")).is_err());
}

/// S319: that a database says "removing" of a pool in use, or of another user's, removes nothing.
#[test]
fn what_is_said_to_be_removing_is_still_looked_at() {
    let mut site = site();
    let me = site.me.clone();
    let pool = site.make("mesh", 0);
    let wanted = [AttachRequest { pool: name("mesh"), access: Access::Rw, path: "/pools/mesh".into() }];
    site.pools.attach(&at(&me, 1), &former("camp"), &wanted).unwrap();
    site.database.forge("UPDATE pool SET state = 'removing'");
    assert_eq!(site.look(50 * DAY), (vec![ExpiryAction::Attached], vec![]));
    let attachment = site.pools.attachments(&pool).unwrap().remove(0);
    site.pools.detach(&at(&me, 50 * DAY), &[attachment.id]).unwrap();
    for who in [user(0, &[0]), user(2000, &[2000])] {
        let found = site.pools.expire(&at(&who, 51 * DAY), false, |_| Err("called".into())).unwrap();
        assert!(found.iter().all(|outcome| outcome.due == ExpiryAction::Owner && outcome.failed.is_none()));
    }
    assert_eq!(site.look(52 * DAY), (vec![ExpiryAction::Removal], vec!["mesh".to_owned()]));
}

/// S438: what is counted is noted once, by whoever may write.
#[test]
fn what_a_pool_holds_is_counted() {
    let mut site = site();
    let me = site.me.clone();
    let pool = site.make("mesh", 0);
    assert_eq!((pool.bytes, pool.files), (None, None));
    let asked = ChangeOrigin { who: &me, now_s: 1, request: Some("c") };
    let held = listing(&[("a", 1 << 40, 1), ("b/c", 7, 1)]);
    for _ in 0..2 {
        let counted = site.pools.count(&asked, &name("mesh"), &held, &origin("count")).unwrap();
        assert_eq!((counted.bytes, counted.files), (Some((1 << 40) + 7), Some(2)));
    }
    let events = site.pools.history(&pool).unwrap();
    let what: Vec<&str> = events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(what, ["create", "version", "count"]);
    assert_eq!(events[2].detail, "2 files, 1099511627783 bytes");
    let reader = user(2000, &[2000]);
    site.pools.share(&at(&me, 2), &name("mesh"), Grantee::User(2000), Some(Access::Ro)).unwrap();
    let refused = site.pools.count(&at(&reader, 3), &name("1000/mesh"), &held, &origin("count"));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("you may not use it rw"), "{refused}");
    site.pools.release(&at(&me, 4), &name("mesh")).unwrap();
    assert!(site.pools.count(&at(&me, 5), &name("mesh"), &held, &origin("count")).is_err());
    assert_eq!(site.pools.find(&me, &name("mesh")).unwrap().files, Some(2));
}

fn listing(entries: &[(&str, u64, i64)]) -> Listing {
    let mut listing = Listing::default();
    for (path, size, secs) in entries {
        listing.add(path.as_bytes(), Entry { is_file: true, size: *size, changed: (*secs, 0) });
    }
    listing
}

fn origin(what: &str) -> Origin {
    Origin { what: what.into(), job: "slurm:7".into() }
}

/// S447: what differs from the version before is a version, once, with who, when, by what, in which job, and how much
/// of it.
#[test]
fn what_changed_a_pool_is_a_version() {
    let mut site = site();
    let me = site.me.clone();
    let pool = site.make("mesh", 0);
    let mut note = |now_s, what: &str, entries: &[(&str, u64, i64)]| {
        let held = site.pools.drained(&at(&me, now_s), pool.id, &listing(entries), &origin(what)).unwrap();
        assert_eq!(held.files, Some(entries.len() as u64));
        site.pools.versions(&pool).unwrap()
    };
    assert_eq!(note(1, "create", &[]), [], "an empty directory is no version");
    let first = [("a", 1, 1), ("odd name é", 2, 1), ("c", 3, 1)];
    note(2, "stage out", &first);
    assert_eq!(note(3, "count", &first).len(), 1, "nothing has changed");
    let all = note(4, "drain of camp", &[("a", 1, 1), ("c", 4, 1), ("d", 1, 4), ("e", 1, 4)]);
    let said: Vec<_> = all
        .iter()
        .map(|v| (v.number, v.at_s, v.uid, v.what.as_str(), v.added, v.changed, v.removed))
        .collect();
    assert_eq!(
        said,
        [
            (1, 2, 1000, "stage out", Some(3), Some(0), Some(0)),
            (2, 4, 1000, "drain of camp", Some(2), Some(1), Some(1))
        ]
    );
    assert_eq!((all[0].bytes, all[0].files, all[1].bytes, all[1].job.as_str()), (6, 3, 7, "slurm:7"));
    assert!(all[0].digest.len() == 64 && all[0].digest != all[1].digest);
    // Also of one whose time is over; not for who may only read it.
    site.pools.release(&at(&me, 5), &name("mesh")).unwrap();
    let mut note = |who: &Caller, entries: &[(&str, u64, i64)]| {
        site.pools.drained(&at(who, 6), pool.id, &listing(entries), &origin("drain of camp")).map(|_| ())
    };
    assert!(note(&me, &[("a", 2, 6)]).is_ok() && note(&user(2000, &[2000]), &[("a", 3, 6)]).is_err());
    assert_eq!(site.pools.versions(&pool).unwrap().len(), 3);
    // What was damaged is compared with nothing, and the version is there all the same.
    site.database.forge("UPDATE pool_version SET entries = 5 WHERE number = 3");
    site.pools.drained(&at(&me, 7), pool.id, &listing(&first), &origin("count")).unwrap();
    let last = site.pools.versions(&pool).unwrap().pop().unwrap();
    assert_eq!((last.number, last.added, last.files), (4, None, 3));
}

/// S448: a reminder is due some days before the end, is taken on by one command at a time, and sent once for each end.
#[test]
fn a_reminder_is_sent_once_for_each_end() {
    let mut site = site();
    let me = site.me.clone();
    let reminder = Reminder { days: 3, mail: "me@site.example".parse().unwrap() };
    let new = NewPool { reminder: Some(reminder.clone()), ..new("mesh", 10) };
    let pool = site.pools.create(&at(&me, 0), &new, made).unwrap();
    assert_eq!((pool.remind_days, pool.mail.as_deref()), (Some(3), Some("me@site.example")));
    let due = |site: &Site, now_s| site.pools.to_remind(&at(&me, now_s)).unwrap().len();
    assert_eq!((due(&site, 7 * DAY - 1), due(&site, 7 * DAY)), (0, 1));
    assert_eq!(
        site.pools.to_remind(&at(&user(2000, &[]), 8 * DAY)).unwrap(),
        [],
        "others have no part in it"
    );
    let mut other = site.database.open();
    let taken = site.pools.begin_reminder(&at(&me, 8 * DAY), &pool).unwrap().unwrap();
    assert!(other.begin_reminder(&at(&me, 8 * DAY + 1), &pool).unwrap().is_none());
    // It could not be sent.
    site.pools.end_reminder(&at(&me, 8 * DAY + 2), &taken, false).unwrap();
    let taken = other.begin_reminder(&at(&me, 8 * DAY + 3), &pool).unwrap().unwrap();
    // Killed while it sent: after an hour somebody else does.
    assert_eq!((due(&site, 8 * DAY + 4), due(&site, 8 * DAY + 4000)), (0, 1));
    let taken = site.pools.begin_reminder(&at(&me, 8 * DAY + 4000), &taken).unwrap().unwrap();
    site.pools.end_reminder(&at(&me, 8 * DAY + 4001), &taken, true).unwrap();
    assert_eq!((due(&site, 9 * DAY), due(&site, 20 * DAY)), (0, 0));
    let events = site.pools.history(&pool).unwrap();
    assert_eq!(events.iter().filter(|event| event.what == "remind").count(), 1);
    // Another end, another reminder; one that was missed is sent late.
    let longer = site.pools.extend(&at(&me, 9 * DAY), &name("mesh"), Some(20)).unwrap();
    assert!(site.pools.begin_reminder(&at(&me, 28 * DAY), &pool).unwrap().is_none(), "that end has moved");
    assert_eq!(
        (longer.expires_s, due(&site, 25 * DAY), due(&site, 26 * DAY), due(&site, 40 * DAY)),
        (29 * DAY, 0, 1, 1)
    );
    site.pools.set_reminder(&at(&me, 10 * DAY), &name("mesh"), None).unwrap();
    assert_eq!(due(&site, 28 * DAY), 0);
    site.pools.set_reminder(&at(&me, 10 * DAY), &name("mesh"), Some(&reminder)).unwrap();
    assert_eq!(due(&site, 28 * DAY), 1);
    site.pools.release(&at(&me, 11 * DAY), &name("mesh")).unwrap();
    assert_eq!(due(&site, 28 * DAY), 0);
    assert!(site.pools.set_reminder(&at(&me, 12 * DAY), &name("mesh"), None).is_err());
}

/// S452: only its owner's pool that has a copy in an archive is there alone, and then nobody attaches it.
#[test]
fn a_pool_is_in_an_archive_alone_when_it_has_a_copy_there() {
    let mut site = site();
    let me = site.me.clone();
    let other = user(2000, &[2000]);
    let (pool, mesh) = (site.make("mesh", 0), name("mesh"));
    assert_eq!(pool.location, Location::Site);
    let alone = |site: &mut Site, who: &Caller, now_s| {
        let meant = name("1000/mesh");
        site.pools
            .set_location(&at(who, now_s), &meant, Location::Archive, None)
            .map_err(|error| error.to_string())
    };
    assert!(alone(&mut site, &me, 1).unwrap_err().contains("has no copy in an archive"));
    let copy = ArchiveCopy { path: b"/archive/odd \xff", digest: "00ff" };
    let both = site.pools.archived(&at(&me, 2), &mesh, &copy).unwrap();
    assert_eq!(
        (both.location, both.archived_s, both.archive_digest.as_deref()),
        (Location::Both, Some(2), Some("00ff"))
    );
    assert_eq!(both.archive.as_deref(), Some(copy.path));
    site.pools.share(&at(&me, 3), &mesh, Grantee::All, Some(Access::Rw)).unwrap();
    assert!(alone(&mut site, &other, 4).unwrap_err().contains("is user 1000's"));
    let wanted = [AttachRequest { pool: mesh.clone(), access: Access::Ro, path: "/mesh".into() }];
    site.pools.attach(&at(&me, 5), &former("camp"), &wanted).unwrap();
    assert!(alone(&mut site, &me, 6).unwrap_err().contains("is attached to formation camp"));
    let attached = site.pools.attachments(&pool).unwrap();
    site.pools.detach(&at(&me, 7), &[attached[0].id]).unwrap();
    assert_eq!(alone(&mut site, &me, 8).unwrap().location, Location::Archive);
    let refused = [
        site.pools.attach(&at(&me, 9), &former("camp"), &wanted).map(|_| ()),
        site.pools.usable(&me, &mesh, Access::Ro, 9).map(|_| ()),
        site.pools.archivable(&at(&me, 9), &mesh).map(|_| ()),
        site.pools.archived(&at(&me, 9), &mesh, &copy).map(|_| ()),
    ];
    for refused in refused {
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("/archive/odd") && said.contains("bivouac pool restore mesh"), "{said}");
    }
    let back = site.pools.set_location(&at(&me, 10), &mesh, Location::Both, Some(99)).unwrap();
    assert_eq!((back.location, back.inode), (Location::Both, 99));
    // Data that was there before its pool is not given up.
    let there = NewPool { source: Some(b"/data".to_vec()), ..new("theirs", 10) };
    site.pools.create(&at(&me, 11), &there, made).unwrap();
    site.pools.archived(&at(&me, 12), &name("theirs"), &copy).unwrap();
    let kept = site
        .pools
        .set_location(&at(&me, 13), &name("theirs"), Location::Archive, None)
        .unwrap_err()
        .to_string();
    assert!(kept.contains("was there before the pool"), "{kept}");
}
