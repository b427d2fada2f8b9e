//! Whatever is announced and withdrawn, in any order: limits hold, promises are kept, room is used.

use std::collections::{BTreeMap, BTreeSet};

use bivouac_schedule::{Entry, Event, Limits, Phase, Request, Schedule, ScheduleError};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Announce(Request),
    /// The n-th of those that are there.
    Withdraw(usize),
    /// So much time passes, in which all do what they were told to.
    Wait(i64),
}

fn request() -> impl Strategy<Value = Request> {
    let amounts = (0_u32..4, 1_u64..100_000, prop_oneof![Just(None), (1_u64..2000).prop_map(Some)]);
    (amounts, 0_i64..500, 1_i64..3000, any::<bool>()).prop_map(
        |((user, work, rate_max), earliest_s, more_s, or_later)| Request {
            id: 0,
            user,
            work,
            earliest_s,
            deadline_s: earliest_s + more_s,
            rate_max,
            or_later,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => request().prop_map(Step::Announce),
        1 => (0_usize..20).prop_map(Step::Withdraw),
        2 => (1_i64..400).prop_map(Step::Wait),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    (1_u64..5000, 1_u32..=100).prop_map(|(bandwidth, user_percent)| Limits {
        bandwidth,
        user_percent,
        file_bytes: 0,
    })
}

/// What each that runs has still to copy.
type Left = BTreeMap<i64, u64>;

/// All do what they were told to: begin when their slot begins, copy at its rate, and are done when their bytes are.
fn pass(schedule: &mut Schedule, left: &mut Left, now_s: i64, until_s: i64) {
    let mut at_s = now_s;
    loop {
        let event = |entry: &Entry| {
            let id = entry.request.id;
            match (entry.phase, left.get(&id).zip(std::num::NonZeroU64::new(entry.slot.rate))) {
                (Phase::Running, None) => None,
                (Phase::Running, Some((left, rate))) => {
                    Some((at_s + i64::try_from(left.div_ceil(rate.get())).unwrap(), Event::End(id)))
                }
                _ => Some((entry.slot.begin_s.max(at_s), Event::Begin(id))),
            }
        };
        let order = |(at_s, event): &(i64, Event)| (*at_s, matches!(event, Event::Begin(_)));
        let next = schedule.entries().iter().filter_map(event).min_by_key(order);
        let (to_s, event) = next
            .filter(|(to_s, _)| *to_s < until_s)
            .map_or((until_s, None), |(to_s, event)| (to_s, Some(event)));
        for entry in schedule.entries().iter().filter(|entry| entry.phase == Phase::Running) {
            let copied = entry.slot.rate * u64::try_from(to_s - at_s).unwrap();
            left.entry(entry.request.id).and_modify(|left| *left = left.saturating_sub(copied));
        }
        at_s = to_s;
        let Some(event) = event else { return };
        if let Event::Begin(id) = event {
            let entry = schedule.entries().iter().find(|entry| entry.request.id == id).unwrap();
            left.insert(id, entry.request.work);
        }
        let given_up = schedule.apply(at_s, event).unwrap().given_up;
        assert_eq!(given_up, Vec::<i64>::new(), "who comes in time is not given up");
        check(schedule, at_s);
    }
}

/// The sums of rates never exceed what there is, and nothing is kept back that somebody could use.
fn check(schedule: &Schedule, now_s: i64) {
    let limits = schedule.limits();
    let can_now = |entry: &&Entry| entry.phase == Phase::Running || entry.slot.begin_s <= now_s;
    let now: Vec<&Entry> = schedule.entries().iter().filter(can_now).collect();
    let used: u64 = now.iter().map(|entry| entry.slot.rate).sum();
    assert!(used <= limits.bandwidth, "{schedule:?}");
    for entry in schedule.entries() {
        let Entry { request, slot, .. } = entry;
        assert!(slot.rate <= request.rate_max.unwrap_or(u64::MAX), "{entry:?}");
        assert!(
            entry.phase == Phase::Running || slot.begin_s >= request.earliest_s && slot.rate > 0,
            "{entry:?}"
        );
        let own = now.iter().filter(|other| other.request.user == request.user);
        let own: u64 = own.map(|entry| entry.slot.rate).sum();
        assert!(own <= limits.user_share(), "{schedule:?}");
        let has = if can_now(&entry) { slot.rate } else { 0 };
        let can_more = has < request.rate_max.unwrap_or(u64::MAX) && request.earliest_s <= now_s;
        assert!(
            !can_more || used == limits.bandwidth || own == limits.user_share(),
            "{entry:?} in {schedule:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// S427, S428: limits, promises, back-filling, and refusals that name what could be had.
    #[test]
    fn limits_hold_and_promises_are_kept(limits in limits(), steps in prop::collection::vec(step(), 1..40)) {
        let mut schedule = Schedule::new(limits, Vec::new(), 0);
        let (mut now_s, mut promised, mut left) = (0, BTreeSet::new(), Left::new());
        for (id, step) in (1..).zip(steps) {
            let before = schedule.clone();
            match step {
                Step::Announce(request) => {
                    let request = Request { id, deadline_s: request.deadline_s + now_s, ..request };
                    match schedule.apply(now_s, Event::Announce(request)) {
                        Ok(answer) if answer.slot.unwrap().end_s <= request.deadline_s => _ = promised.insert(id),
                        Ok(_) => assert!(request.or_later),
                        Err(ScheduleError::TooLate(slot)) => {
                            prop_assert!(!request.or_later && slot.end_s > request.deadline_s);
                            prop_assert_eq!(schedule.entries(), before.entries());
                            let later = Request { deadline_s: slot.end_s, or_later: true, ..request };
                            let could = schedule.clone().apply(now_s, Event::Announce(later)).unwrap().slot.unwrap();
                            prop_assert!(could.end_s <= slot.end_s, "{could:?} {slot:?}");
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
                Step::Withdraw(which) => {
                    let ids: Vec<i64> = schedule.entries().iter().map(|entry| entry.request.id).collect();
                    if let Some(&id) = ids.get(which) {
                        schedule.apply(now_s, Event::Withdraw(id)).unwrap();
                    }
                }
                Step::Wait(seconds) => {
                    pass(&mut schedule, &mut left, now_s, now_s + seconds);
                    now_s += seconds;
                }
            }
            schedule.apply(now_s, Event::Tick).unwrap();
            check(&schedule, now_s);
            for entry in schedule.entries().iter().filter(|entry| promised.contains(&entry.request.id)) {
                prop_assert!(!entry.is_late(), "a promise is broken: {entry:?}");
            }
        }
    }
}
