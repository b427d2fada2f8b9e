//! Who goes when.

use bivouac_schedule::{Event, Limits, Phase, Request, Schedule, ScheduleError, Slot};

/// 100 bytes per second, of which one user may have half. A request of `work` 4,800 is given 5,600 bytes: 112 s of one user.
const LIMITS: Limits = Limits { bandwidth: 100, user_percent: 50, file_bytes: 10 };
const WORK: u64 = 4800;

fn empty() -> Schedule {
    Schedule::new(LIMITS, Vec::new(), 0)
}

fn request(id: i64, user: u32, deadline_s: i64) -> Request {
    Request { id, user, work: WORK, earliest_s: 0, deadline_s, rate_max: None, or_later: false }
}

fn announce(schedule: &mut Schedule, request: Request) -> Slot {
    schedule.apply(0, Event::Announce(request)).unwrap().slot.unwrap()
}

/// Begin, end and rate of each.
fn slots(schedule: &Schedule) -> Vec<(i64, i64, u64)> {
    schedule.entries().iter().map(|entry| (entry.slot.begin_s, entry.slot.end_s, entry.slot.rate)).collect()
}

fn phases(schedule: &Schedule) -> Vec<Phase> {
    schedule.entries().iter().map(|entry| entry.phase).collect()
}

/// S427: bandwidth and one user's share are limits; files count besides bytes.
#[test]
fn a_user_has_no_more_than_a_share() {
    let mut schedule = empty();
    assert_eq!(LIMITS.work(3800, 100), WORK);
    assert_eq!(announce(&mut schedule, request(1, 7, 1000)), Slot { begin_s: 0, end_s: 112, rate: 50 });
    assert_eq!(announce(&mut schedule, request(2, 7, 1001)).begin_s, 112);
    assert_eq!(announce(&mut schedule, request(3, 8, 1000)).begin_s, 0);
    // Nothing is free before, and then all that it can take.
    let slow = Request { rate_max: Some(10), work: 160, ..request(4, 9, 1002) };
    assert_eq!(announce(&mut schedule, slow), Slot { begin_s: 112, end_s: 139, rate: 10 });
}

/// S427: the earliest deadline goes first, though it came last; what runs makes room, and goes on.
#[test]
fn the_earliest_deadline_goes_first() {
    let mut schedule = empty();
    announce(&mut schedule, request(1, 7, 1000));
    announce(&mut schedule, request(2, 7, 900));
    assert_eq!(slots(&schedule), [(112, 224, 50), (0, 112, 50)]);
    schedule.apply(0, Event::Begin(2)).unwrap();
    schedule.apply(50, Event::Announce(request(3, 7, 200))).unwrap();
    // 62 s are left of the one that runs.
    assert_eq!(slots(&schedule), [(224, 336, 50), (0, 224, 0), (50, 162, 50)]);
    schedule.apply(50, Event::Begin(3)).unwrap();
    schedule.apply(150, Event::End(3)).unwrap();
    assert_eq!(slots(&schedule), [(212, 324, 50), (0, 212, 50)]);
    schedule.apply(150, Event::Withdraw(2)).unwrap();
    assert_eq!(slots(&schedule), [(150, 262, 50)]);
}

/// S428: what cannot be met is refused, with what could be had, and changes nothing; with `or_later` it gets that.
#[test]
fn what_cannot_be_met_is_refused() {
    let mut schedule = empty();
    announce(&mut schedule, request(1, 7, 120));
    let before = schedule.clone();
    let refused = schedule.apply(0, Event::Announce(request(2, 7, 200))).unwrap_err();
    let could = Slot { begin_s: 112, end_s: 224, rate: 50 };
    assert_eq!((refused, schedule.entries()), (ScheduleError::TooLate(could), before.entries()));
    assert_eq!(announce(&mut schedule, Request { or_later: true, ..request(2, 7, 200) }), could);
    // It was promised nothing, so it makes room.
    assert_eq!(announce(&mut schedule, request(3, 7, 240)).end_s, 224);
    assert_eq!(slots(&schedule), [(0, 112, 50), (224, 336, 50), (112, 224, 50)]);
    // Nor can anybody be made late.
    assert!(schedule.apply(0, Event::Announce(request(4, 7, 119))).is_err());
}

/// S429: a slot begins in its time, once; who does not come gets what others leave, and is given up after the deadline.
#[test]
fn a_slot_is_for_who_comes() {
    let mut schedule = empty();
    announce(&mut schedule, request(1, 7, 400));
    announce(&mut schedule, request(2, 7, 401));
    let early = schedule.apply(5, Event::Begin(2)).unwrap_err();
    assert!(matches!(early, ScheduleError::NotYet(Slot { begin_s: 117, .. })), "{early:?}");
    let begun = schedule.apply(5, Event::Begin(1)).unwrap();
    assert_eq!(schedule.apply(5, Event::Begin(1)).unwrap(), begun);
    // Done early: the next one may come at once. It does not, and another takes the time.
    schedule.apply(30, Event::End(1)).unwrap();
    assert_eq!(slots(&schedule), [(30, 142, 50)]);
    assert_eq!(schedule.apply(30, Event::End(1)).unwrap_err(), ScheduleError::Unknown);
    schedule.apply(90, Event::Tick).unwrap();
    assert_eq!((phases(&schedule), slots(&schedule)), (vec![Phase::Waiting], vec![(30, 202, 50)]));
    schedule.apply(91, Event::Announce(request(3, 7, 450))).unwrap();
    assert_eq!(slots(&schedule), [(203, 315, 50), (91, 203, 50)]);
    assert!(schedule.apply(92, Event::Begin(2)).is_err());
    schedule.apply(93, Event::Withdraw(3)).unwrap();
    schedule.apply(94, Event::Begin(2)).unwrap();
    assert_eq!(phases(&schedule), [Phase::Running]);
    // Announced again, it never comes.
    schedule.apply(95, Event::Withdraw(2)).unwrap();
    let again = schedule.apply(95, Event::Announce(request(2, 7, 600))).unwrap().slot.unwrap();
    assert_eq!((phases(&schedule), again.begin_s, again.end_s), (vec![Phase::Waiting], 95, 207));
    assert_eq!(schedule.apply(600, Event::Tick).unwrap().given_up, Vec::<i64>::new());
    // Two looks have to agree.
    assert_eq!(schedule.apply(601, Event::Tick).unwrap().given_up, Vec::<i64>::new());
    assert_eq!(schedule.apply(602, Event::Tick).unwrap().given_up, [2]);
    assert_eq!(schedule.entries(), []);
}

/// S429: a stage that takes longer moves the others; at last it is given up.
#[test]
fn a_stage_that_takes_longer_moves_the_others() {
    let mut schedule = empty();
    announce(&mut schedule, request(1, 7, 1000));
    announce(&mut schedule, request(2, 7, 2000));
    schedule.apply(0, Event::Begin(1)).unwrap();
    schedule.apply(112, Event::Tick).unwrap();
    assert_eq!(slots(&schedule), [(0, 172, 50), (172, 284, 50)]);
    let given_up = (113..5000).find(|&now_s| schedule.apply(now_s, Event::Tick).unwrap().given_up == [1]);
    assert!(given_up.is_some_and(|now_s| now_s > 800), "{given_up:?}");
}

/// S429: a clock that jumps gives nobody up, and when it is right again nobody has lost more than its place.
#[test]
fn a_jump_of_the_clock_gives_nobody_up() {
    const YEAR: i64 = 31_536_000;
    let mut schedule = empty();
    for id in 1..=3 {
        announce(&mut schedule, request(id, 7, 1000));
    }
    schedule.apply(0, Event::Begin(1)).unwrap();
    assert_eq!(schedule.apply(YEAR, Event::Tick).unwrap().given_up, Vec::<i64>::new());
    for later_s in [20, -YEAR, 21] {
        assert_eq!(schedule.apply(later_s, Event::Tick).unwrap().given_up, Vec::<i64>::new());
    }
    assert_eq!(phases(&schedule)[0], Phase::Running);
    assert!(schedule.entries().iter().all(|entry| entry.slot.end_s < 400), "{schedule:?}");
}

/// S430: another expected start, or less bandwidth: late ones are known.
#[test]
fn what_changes_is_taken_notice_of() {
    let mut schedule = empty();
    announce(&mut schedule, request(1, 7, 300));
    announce(&mut schedule, request(2, 7, 301));
    schedule.apply(0, Event::Reschedule { id: 2, earliest_s: 0, deadline_s: 120 }).unwrap();
    assert_eq!(slots(&schedule), [(112, 224, 50), (0, 112, 50)]);
    let less = Limits { bandwidth: 50, ..LIMITS };
    schedule.apply(0, Event::Limit(less)).unwrap();
    let late: Vec<bool> = schedule.entries().iter().map(|entry| entry.is_late()).collect();
    assert_eq!((late, schedule.entries()[1].slot.rate), (vec![true, true], 25));
    schedule.apply(0, Event::Limit(LIMITS)).unwrap();
    assert!(schedule.entries().iter().all(|entry| !entry.is_late()));
}
