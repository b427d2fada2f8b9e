//! Slots at a simulated site, small: S435. `cargo xtask site` has the large one.

use bivouac_schedule::site::{SharingPolicy, jobs, site};

/// S435: at a load of 0.8 and below, slots meet at least 95 % of deadlines, and more than first come, first served; what they
/// promise they keep.
#[test]
fn slots_meet_deadlines() {
    for load in [0.5, 0.8] {
        let [(slots, met), (_, first), _] = site(1, 1500, load);
        assert_eq!(slots, SharingPolicy::Slots);
        assert!(met.part >= 0.95, "{load}: {met:?}");
        assert!(met.part >= first.part && met.kept >= Some(0.98), "{load}: {met:?} {first:?}");
    }
}

/// The model's own figures: arrivals half as often at night as by day; nobody starts before it came.
#[test]
fn jobs_are_as_published() {
    let jobs = jobs(7, 5000);
    assert!(
        jobs.windows(2)
            .all(|pair| pair[0].arrival_s <= pair[1].arrival_s && pair[0].start_s <= pair[1].start_s)
    );
    let at = |hours: std::ops::Range<i64>| {
        jobs.iter().filter(|job| hours.contains(&(job.arrival_s % 86_400 / 3600))).count()
    };
    assert!(at(11..17) > 2 * at(2..8), "{} {}", at(11..17), at(2..8));
    assert!(jobs.iter().all(|job| job.start_s >= job.arrival_s && job.work > 0));
}
