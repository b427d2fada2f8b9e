//! Three policies of sharing site storage's bandwidth among the jobs of a site.

use std::collections::BTreeMap;

use super::jobs::Job;
use super::random::Random;
use crate::{Entry, Event, Limits, Request, Schedule};

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingPolicy {
    /// Slots, earliest deadline first.
    Slots,
    /// First come, first served, with the same limits.
    FirstCome,
    /// No scheduler: all transfers start at submission and share the bandwidth equally without loss. An upper bound for
    /// sharing without user limits and without announcements.
    Unmanaged,
}

impl SharingPolicy {
    /// All policies.
    pub const ALL: [SharingPolicy; 3] =
        [SharingPolicy::Slots, SharingPolicy::FirstCome, SharingPolicy::Unmanaged];

    /// Returns the policy's name.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SharingPolicy::Slots => "slots",
            SharingPolicy::FirstCome => "first come, first served",
            SharingPolicy::Unmanaged => "no manager",
        }
    }
}

/// Deadline statistics of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeadlineStats {
    /// Fraction of jobs whose data was present in time.
    pub part: f64,
    /// Mean delay of the others, in seconds.
    pub late_s: f64,
    /// Fraction of promised deadlines that were met. Only slots make promises.
    pub kept: Option<f64>,
}

/// Returns the requests of jobs. The deadline is the job's start, or four times the duration of the transfer alone if
/// that is later.
fn requests(jobs: &[Job], limits: Limits) -> Vec<Request> {
    let request = |(id, job): (i64, &Job)| {
        let mut request = Request {
            id,
            user: job.user,
            work: job.work,
            earliest_s: job.arrival_s,
            deadline_s: job.start_s,
            rate_max: None,
            or_later: true,
        };
        let alone_s = limits.given(&request).div_ceil(limits.user_share());
        let alone_s = i64::try_from(alone_s).unwrap_or(i64::MAX);
        request.deadline_s = job.start_s.max(job.arrival_s.saturating_add(alone_s.saturating_mul(4)));
        request
    };
    (0..).zip(jobs).map(request).collect()
}

/// Simulates jobs under a policy.
#[must_use]
pub fn simulate(seed: u64, jobs: &[Job], limits: Limits, way: SharingPolicy) -> DeadlineStats {
    let requests = requests(jobs, limits);
    let mut promised = Vec::new();
    let done_s = match way {
        SharingPolicy::Slots => by_slots(seed, &requests, limits, &mut promised),
        SharingPolicy::FirstCome => first_come(seed, &requests, limits),
        SharingPolicy::Unmanaged => all_at_once(&requests, limits),
    };
    let late_of =
        |request: &Request| done_s.get(&request.id).copied().unwrap_or(i64::MAX) - request.deadline_s;
    let late: Vec<i64> = requests.iter().map(late_of).filter(|&late_s| late_s > 0).collect();
    let kept =
        promised.iter().filter(|&&id| requests.iter().any(|one| one.id == id && late_of(one) <= 0)).count();
    DeadlineStats {
        kept: (!promised.is_empty()).then(|| kept as f64 / promised.len() as f64),
        part: 1.0 - late.len() as f64 / requests.len().max(1) as f64,
        late_s: late.iter().map(|&late_s| late_s as f64).sum::<f64>() / late.len().max(1) as f64,
    }
}

/// Completion time of each request.
type CompletionTimes = BTreeMap<i64, i64>;

fn by_slots(seed: u64, requests: &[Request], limits: Limits, promised: &mut Vec<i64>) -> CompletionTimes {
    let mut random = Random::new(seed);
    let mut schedule = Schedule::new(limits, Vec::new(), i64::MIN);
    // Actual remainders of running transfers; the scheduler only has estimates.
    let (mut left, mut done) = (BTreeMap::<i64, f64>::new(), CompletionTimes::new());
    let (mut arriving, mut now_s) = (requests.iter().peekable(), 0);
    loop {
        let arrival = arriving.peek().map(|request| (request.earliest_s, 2, Event::Announce(**request)));
        let event = |entry: &Entry| {
            let id = entry.request.id;
            match left.get(&id) {
                None => Some((entry.slot.begin_s.max(now_s), 1, Event::Begin(id))),
                // Paused: the end of another transfer gives it bandwidth, and is an event of its own.
                Some(_) if entry.slot.rate == 0 => None,
                Some(left) => {
                    let more_s = (left / entry.slot.rate as f64).ceil() as i64;
                    Some((now_s.saturating_add(more_s), 0, Event::End(id)))
                }
            }
        };
        // At equal times transfers end first, then start, then new ones are announced, so that bandwidth is free when
        // it is needed.
        let next = schedule.entries().iter().filter_map(event).chain(arrival);
        let Some((at_s, _, event)) = next.min_by_key(|(at_s, order, _)| (*at_s, *order)) else { return done };
        for entry in schedule.entries() {
            if let Some(left) = left.get_mut(&entry.request.id) {
                *left -= entry.slot.rate as f64 * (at_s - now_s) as f64;
            }
        }
        now_s = at_s;
        let answer = schedule.apply(at_s, event);
        match (event, answer) {
            (Event::Announce(request), answer) => {
                arriving.next();
                let slot = answer.ok().and_then(|answer| answer.slot);
                promised.extend(slot.filter(|slot| slot.end_s <= request.deadline_s).map(|_| request.id));
            }
            (Event::Begin(id), Ok(_)) => {
                let request = usize::try_from(id).ok().and_then(|place| requests.get(place));
                let work = request.map_or(0.0, |request| request.work as f64);
                left.insert(id, work * random.between(0.8, 1.2));
            }
            (Event::End(id), _) => {
                left.remove(&id);
                done.insert(id, at_s);
            }
            // The slot has moved since the event was chosen: it is chosen again.
            _ => {}
        }
    }
}

/// Simulates first come, first served on the same scheduler, by deadlines in the order of arrival that none can miss.
fn first_come(seed: u64, requests: &[Request], limits: Limits) -> CompletionTimes {
    const LATE_S: i64 = 1 << 40;
    let in_turn = |request: &Request| Request { deadline_s: LATE_S + request.id, ..*request };
    let requests: Vec<Request> = requests.iter().map(in_turn).collect();
    by_slots(seed, &requests, limits, &mut Vec::new())
}

fn all_at_once(requests: &[Request], limits: Limits) -> CompletionTimes {
    let (mut open, mut done) = (Vec::<(i64, f64)>::new(), CompletionTimes::new());
    let (mut now_s, mut arriving) = (0.0_f64, requests.iter().peekable());
    loop {
        let rate = limits.bandwidth as f64 / open.len().max(1) as f64;
        let least = open.iter().map(|(_, left)| *left).min_by(f64::total_cmp);
        let end_s = least.map(|left| now_s + left / rate);
        let arrival = arriving.peek().map(|request| request.earliest_s as f64);
        let until_s = match (end_s, arrival) {
            (None, None) => return done,
            (Some(end_s), Some(arrival_s)) => end_s.min(arrival_s),
            (Some(at_s), None) | (None, Some(at_s)) => at_s.max(now_s),
        };
        open.iter_mut().for_each(|(_, left)| *left -= (until_s - now_s) * rate);
        now_s = until_s;
        open.retain(|(id, left)| {
            // Less than a byte is rounding error.
            let is_open = *left >= 1.0;
            if !is_open {
                done.insert(*id, now_s.ceil() as i64);
            }
            is_open
        });
        while let Some(request) = arriving.next_if(|request| request.earliest_s as f64 <= now_s) {
            open.push((request.id, request.work as f64));
        }
    }
}
