//! Slots in the database: S427 to S431.

use std::sync::atomic::{AtomicI64, Ordering};

use bivouac_pool::{
    Access, Announcement, Caller, ChangeOrigin, Direction, Grantee, JobForecast, NewPool, Pools, SlotState,
    StartAnswer, StorageLimits,
};

use crate::databases::Database;

const LIMITS: StorageLimits = StorageLimits { bandwidth: 1000, user_percent: 50, file_bytes: 100 };

struct Site {
    database: Database,
    pools: Pools,
}

fn user(uid: u32) -> Caller {
    Caller { uid, gids: Vec::new() }
}

fn at(who: &Caller, now_s: i64) -> ChangeOrigin<'_> {
    ChangeOrigin { who, now_s, request: None }
}

fn site() -> Site {
    let database = super::database();
    let mut pools = database.open();
    pools.set_storage(&at(&user(0), 0), &LIMITS).unwrap();
    Site { database, pools }
}

/// A stage of 48,000 bytes, so 96 s and a cushion of 16 s.
fn stage(deadline_s: i64) -> Announcement {
    Announcement {
        pool: None,
        way: Direction::In,
        title: "mesh".into(),
        bytes: 38_000,
        files: 100,
        earliest_s: 0,
        deadline_s,
        rate_max: None,
        or_later: false,
        job: None,
        restarts: 0,
    }
}

/// S427, S428: what is announced has a slot over kills of whoever announced it; a refusal leaves nothing.
#[test]
fn slots_are_kept() {
    let mut site = site();
    let me = user(1000);
    let first = site.pools.announce(&at(&me, 0), &stage(120)).unwrap();
    assert_eq!((first.begin_s, first.end_s, first.rate, first.state), (0, 112, 500, SlotState::Waiting));
    let refused = site.pools.announce(&at(&me, 0), &stage(200)).unwrap_err().to_string();
    assert!(
        refused.contains("but 1 minute later, at 500 B/s") && refused.contains("--or-later"),
        "{refused}"
    );
    assert!(
        site.pools.announce(&at(&me, 0), &stage(0)).unwrap_err().to_string().contains("before it can begin")
    );
    let once = ChangeOrigin { request: Some("r"), ..at(&me, 0) };
    let second = site.pools.announce(&once, &stage(299)).unwrap();
    assert_eq!(site.pools.announce(&once, &stage(299)).unwrap(), second);
    let mut again = site.database.open();
    let all = again.slots(&me, 0, false).unwrap();
    assert_eq!(
        all.iter().map(|slot| (slot.id, slot.begin_s)).collect::<Vec<_>>(),
        [(1, 0), (second.id, 112)]
    );
    // Nobody else's, but by its time.
    let seen = again.slots(&user(2000), 0, false).unwrap();
    assert_eq!((seen[0].title.as_str(), seen[0].rate), ("", 500));
    let others = again.withdraw(&at(&user(2000), 0), 1).unwrap_err().to_string();
    assert!(others.contains("none of that number of yours"), "{others}");
    assert_eq!(again.withdraw(&at(&me, 0), 1).unwrap().state, SlotState::Withdrawn);
    assert_eq!(again.withdraw(&at(&me, 0), 1).unwrap().state, SlotState::Withdrawn);
    assert_eq!(again.slots(&me, 0, false).unwrap()[0].begin_s, 0);
}

/// S429: a stage begins in its slot and is done, each once; what was given up can still be done.
#[test]
fn a_stage_begins_and_is_done() {
    let mut site = site();
    let me = user(1000);
    for deadline_s in [300, 400] {
        site.pools.announce(&at(&me, 0), &stage(deadline_s)).unwrap();
    }
    assert!(
        matches!(site.pools.begin(&at(&me, 1), 2).unwrap(), StartAnswer::NotYet(slot) if slot.begin_s == 113)
    );
    assert!(site.pools.done(&at(&me, 1), 1).unwrap_err().to_string().contains("has not begun"));
    let StartAnswer::Now(begun) = site.pools.begin(&at(&me, 1), 1).unwrap() else { panic!("it is its time") };
    let again = site.pools.begin(&at(&me, 50), 1).unwrap();
    assert!(matches!(again, StartAnswer::Now(slot) if (slot.begin_s, slot.rate) == (begun.begin_s, 500)));
    assert_eq!(site.pools.done(&at(&me, 60), 1).unwrap().state, SlotState::Done);
    assert_eq!(site.pools.done(&at(&me, 70), 1).unwrap().end_s, 60);
    assert!(
        site.pools.begin(&at(&me, 70), 1).unwrap_err().to_string().contains("is done; announce it again")
    );
    assert!(matches!(site.pools.begin(&at(&me, 61), 2).unwrap(), StartAnswer::Now(slot) if slot.rate == 500));
    // It takes longer and longer, while somebody looks.
    let looks = (200..9000).step_by(100).find(|&later_s| {
        let look = Announcement { or_later: true, bytes: 1, files: 0, ..stage(later_s + 99) };
        let slot = site.pools.announce(&at(&me, later_s), &look).unwrap();
        site.pools.withdraw(&at(&me, later_s), slot.id).unwrap();
        let all = site.pools.slots(&me, later_s, true).unwrap();
        all.iter().any(|slot| slot.id == 2 && slot.state == SlotState::GivenUp)
    });
    assert!(looks.is_some_and(|later_s| later_s > 800), "{looks:?}");
    assert_eq!(site.pools.done(&at(&me, 9003), 2).unwrap().state, SlotState::Done);
}

/// S430: what the batch system says moves slots; what it put back into the queue is needed again.
#[test]
fn the_batch_system_is_believed() {
    let mut site = site();
    let me = user(1000);
    for deadline_s in [300, 400] {
        let for_job = Announcement { job: Some(format!("slurm:{deadline_s}")), ..stage(deadline_s) };
        site.pools.announce(&at(&me, 0), &for_job).unwrap();
    }
    let moved = site.pools.expect(&at(&me, 0), 2, JobForecast::Start { at_s: 150, restarts: 0 }).unwrap();
    assert_eq!((moved.begin_s, moved.deadline_s), (0, 150));
    site.pools.begin(&at(&me, 0), 2).unwrap();
    site.pools.done(&at(&me, 100), 2).unwrap();
    let again = site.pools.expect(&at(&me, 110), 2, JobForecast::Start { at_s: 900, restarts: 1 }).unwrap();
    assert_eq!((again.state, again.begin_s, again.deadline_s), (SlotState::Waiting, 222, 900));
    assert_eq!(site.pools.expect(&at(&me, 110), 1, JobForecast::Gone).unwrap().state, SlotState::Withdrawn);
    assert_eq!(site.pools.slots(&me, 110, false).unwrap()[0].begin_s, 110);
    // However long ago it was done, or given up; what is being copied goes on, what was taken back stays so.
    site.pools.begin(&at(&me, 110), 2).unwrap();
    let running = site.pools.expect(&at(&me, 111), 2, JobForecast::Start { at_s: 950, restarts: 2 }).unwrap();
    assert_eq!((running.state, running.deadline_s), (SlotState::Running, 950));
    site.pools.done(&at(&me, 120), 2).unwrap();
    for (now_s, restarts) in [(50_000, 3), (90_000, 4)] {
        let start = JobForecast::Start { at_s: now_s + 1000, restarts };
        let again = site.pools.expect(&at(&me, now_s), 2, start).unwrap();
        assert_eq!(
            (again.state, again.begin_s, again.deadline_s, again.promised),
            (SlotState::Waiting, now_s, now_s + 1000, true)
        );
        // Nobody comes; looked at twice, it is given up.
        for later_s in [1100, 1101, 1102] {
            site.pools.set_storage(&at(&user(0), now_s + later_s), &LIMITS).unwrap();
        }
        assert_eq!(site.pools.slots(&me, now_s + 1102, true).unwrap()[1].state, SlotState::GivenUp);
    }
    site.pools.expect(&at(&me, 94_000), 2, JobForecast::Start { at_s: 96_000, restarts: 5 }).unwrap();
    site.pools.withdraw(&at(&me, 94_000), 2).unwrap();
    let gone =
        site.pools.expect(&at(&me, 95_000), 2, JobForecast::Start { at_s: 96_000, restarts: 6 }).unwrap();
    assert_eq!(gone.state, SlotState::Withdrawn);
}

/// S428: without limits, nothing is announced; a pool is for who may use it, and its history has its stages.
#[test]
fn pools_and_limits_count() {
    let mut site = site();
    let (me, other) = (user(1000), user(2000));
    let new = NewPool {
        name: "mesh".parse().unwrap(),
        gid: 1,
        title: String::new(),
        days: None,
        source: Some(b"/data".to_vec()),
        bytes: None,
        files: None,
        reminder: None,
    };
    let pool = site.pools.create(&at(&me, 0), &new, |_| panic!("it is there")).unwrap();
    let of_pool = |way| Announcement { pool: Some(pool.id), way, ..stage(400) };
    site.pools.announce(&at(&me, 0), &of_pool(Direction::Out)).unwrap();
    let refused = site.pools.announce(&at(&other, 0), &of_pool(Direction::In)).unwrap_err().to_string();
    assert!(refused.contains("you may not use it ro"), "{refused}");
    assert_eq!(site.pools.slots(&other, 0, false).unwrap()[0].pool_name, None);
    let meant = "mesh".parse().unwrap();
    site.pools.share(&at(&me, 0), &meant, Grantee::All, Some(Access::Ro)).unwrap();
    site.pools.announce(&at(&other, 0), &of_pool(Direction::In)).unwrap();
    assert!(site.pools.announce(&at(&other, 0), &of_pool(Direction::Out)).is_err());
    assert_eq!(site.pools.slots(&other, 0, false).unwrap()[0].pool_name.as_deref(), Some("1000/mesh"));
    let history = site.pools.history(&pool).unwrap();
    assert_eq!(history.iter().filter(|event| event.what == "announce").count(), 2);
    let other = super::database();
    let mut unset = other.open();
    let refused = unset.announce(&at(&me, 0), &stage(400)).unwrap_err().to_string();
    assert!(refused.contains("bivouac pool storage --bandwidth"), "{refused}");
}

/// S431: several announce at the same time: all get slots, and never more than there is.
#[test]
fn several_announce_at_once() {
    let site = site();
    let next = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..4_u32 {
            let (database, next) = (&site.database, &next);
            scope.spawn(move || {
                let mut pools = database.open();
                let me = user(1000 + worker);
                for _ in 0..5 {
                    let now_s = next.fetch_add(1, Ordering::Relaxed);
                    pools.announce(&at(&me, now_s), &stage(100_000)).unwrap();
                }
            });
        }
    });
    let all = site.pools.slots(&user(0), 20, false).unwrap();
    assert_eq!(all.len(), 20);
    for slot in &all {
        let beside = all.iter().filter(|one| one.begin_s <= slot.begin_s && slot.begin_s < one.end_s);
        assert!(beside.map(|one| one.rate).sum::<u64>() <= LIMITS.bandwidth);
    }
}
