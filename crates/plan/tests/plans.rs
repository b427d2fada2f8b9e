//! The published table, and what holds for any site and job.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bivouac_plan::{
    Advice, CurvePoint, JobWork, KEPT_MAX, LearnedRatios, LearnedStep, Node, Site, Storage, Verdict,
    break_even, formation_file, nodes_for, predict, staging,
};
use proptest::prelude::*;

const GB: f64 = 1e9;

fn site(storage: f64, node: f64) -> Site {
    let point = |streams, part: f64| CurvePoint { streams, bytes_per_second: storage * part };
    Site {
        storage: Storage {
            read: vec![point(1, 0.25), point(4, 0.75), point(16, 1.0)],
            write: vec![point(1, 0.25), point(16, 0.8)],
            file_read_ms: 2.0,
            file_write_ms: 4.0,
            spread: 0.2,
        },
        node: Node { bytes_per_second: node, memory_bytes: 64 << 30, streams: 4, start_ms: 1000.0 },
    }
}

/// S530. The table counts 1 TB/s as 1024 GB/s.
#[test]
fn the_published_break_even_holds() {
    for (storage, node, nodes) in [(80.0, 0.5, 160), (50.0, 0.5, 100), (240.0, 0.5, 480), (1024.0, 1.6, 640)]
    {
        assert_eq!(break_even(storage * GB, node * GB), Some(nodes));
    }
    assert_eq!(break_even(1000.0 * GB, 1.6 * GB), Some(625));
    assert_eq!((break_even(1.0, 0.0), break_even(-1.0, 1.0), break_even(f64::NAN, 1.0)), (None, None, None));
}

/// S530.
#[test]
fn nodes_are_counted_by_room() {
    // 1 TB with half of disks of 100 GB.
    assert_eq!(nodes_for(1_000_000_000_000, 2.0, 100_000_000_000), Some(20));
    assert_eq!(nodes_for(0, 2.0, 1), Some(1));
    assert_eq!(nodes_for(1, 2.0, 0), None);
}

/// S531.
#[test]
fn the_verdict_follows_from_what_the_job_does() {
    let site = site(2.0 * GB, 1.0 * GB);
    let reads = |nodes, reads| JobWork {
        nodes,
        in_bytes: 100_000_000_000,
        in_files: 100,
        reads,
        ..JobWork::default()
    };
    let once = predict(&site, &LearnedRatios::default(), &reads(8, 1.0));
    assert_eq!(once.verdict, Verdict::Not, "what is read once is only copied twice: {once:?}");
    let often = predict(&site, &LearnedRatios::default(), &reads(8, 20.0));
    assert_eq!(often.verdict, Verdict::Use, "{often:?}");
    assert!(often.break_even_reads.unwrap() > 1.0 && often.break_even_reads.unwrap() < 20.0);
    assert!(often.node_hours_won > 0.0 && once.node_hours_won < 0.0);
    // Room for 100 GB in half of 64 GiB each: at least 3 nodes.
    assert_eq!(often.nodes_for_room, Some(3));
    let few = predict(&site, &LearnedRatios::default(), &reads(1, 20.0));
    assert!(matches!(few.verdict, Verdict::With { nodes } if nodes >= 3), "{few:?}");
    // An application that takes all memory leaves no room on any number of nodes.
    let greedy = JobWork { memory_bytes: 64 << 30, ..reads(8, 20.0) };
    assert_eq!(predict(&site, &LearnedRatios::default(), &greedy).verdict, Verdict::Not);
    // Checkpoints are worth it: only the last ones stay.
    let checkpoints = JobWork {
        nodes: 8,
        checkpoint_bytes: 50_000_000_000,
        checkpoint_files: 8,
        checkpoints: 20,
        ..JobWork::default()
    };
    assert_eq!(predict(&site, &LearnedRatios::default(), &checkpoints).verdict, Verdict::Use);
}

/// S531: many small files take as long as their number says, however few bytes they have.
#[test]
fn small_files_cost_by_their_number() {
    let site = site(2.0 * GB, 1.0 * GB);
    let of =
        |files| staging(&site, &LearnedRatios::default(), LearnedStep::In, (1_000_000, files), 1).0.likely;
    assert!(of(1_000_000) > 100.0 * of(1000), "{} {}", of(1_000_000), of(1000));
    assert!((of(1_000_000) - (1_000_000.0 * 0.002 / 4.0 + 1e6 / (2.0 * GB * 0.75))).abs() < 1e-6);
}

/// S532.
#[test]
fn a_throttled_site_is_learned_within_five_runs() {
    let site = site(2.0 * GB, 10.0 * GB);
    // Seven times as slow as it was measured, and never twice the same.
    let truth = |run: usize, bytes: u64| {
        bytes as f64 / (2.0 * GB * 0.75 / 7.0) * [0.9, 1.1, 1.0, 1.15, 0.95][run % 5]
    };
    let (mut learned, mut errors) = (LearnedRatios::default(), Vec::new());
    for run in 0..12 {
        let bytes = 1_000_000_000 * (1 + run as u64 % 4);
        let (alone, corrected) = staging(&site, &learned, LearnedStep::In, (bytes, 1), 1);
        let outcome = truth(run, bytes);
        errors.push((corrected.likely / outcome - 1.0).abs());
        learned.learn(LearnedStep::In, alone.likely, outcome);
    }
    assert!(errors[0] > 0.5);
    let mut later = errors[5..].to_vec();
    later.sort_by(f64::total_cmp);
    assert!(later[later.len() / 2] <= 0.25, "{errors:?}");
    assert!(learned.input.len() <= KEPT_MAX && learned.start.is_empty());
}

proptest! {
    /// S532: bounded, whatever comes.
    #[test]
    fn what_is_learned_is_bounded(outcomes in proptest::collection::vec(proptest::num::f64::ANY, 0..40)) {
        let mut learned = LearnedRatios::default();
        outcomes.iter().for_each(|outcome| learned.learn(LearnedStep::Out, 1.0, *outcome));
        learned.learn(LearnedStep::Out, 0.0, 1.0);
        prop_assert!(learned.output.len() <= KEPT_MAX);
        if let Some([low, middle, high]) = learned.factors(LearnedStep::Out) {
            prop_assert!(1.0 / 64.0 <= low && low <= middle && middle <= high && high <= 64.0);
        }
        let odd = LearnedRatios { input: outcomes, ..LearnedRatios::default() };
        if let Some(factors) = odd.factors(LearnedStep::In) {
            prop_assert!(factors.iter().all(|factor| factor.is_finite()));
        }
    }

    /// S531: more bytes and more files never take less, more nodes never take more; intervals are in order.
    #[test]
    fn predictions_are_in_order(
        bytes in 0_u64..1 << 50, files in 0_u64..1 << 30, nodes in 1_u32..4096, more in 0_u64..1 << 40, reads in 0_u32..50,
    ) {
        let site = site(5.0 * GB, 1.0 * GB);
        let of = |bytes, files, nodes| staging(&site, &LearnedRatios::default(), LearnedStep::In, (bytes, files), nodes).0;
        let base = of(bytes, files, nodes);
        prop_assert!(base.low <= base.likely && base.likely <= base.high && base.high.is_finite());
        prop_assert!(of(bytes + more, files, nodes).likely >= base.likely * (1.0 - 1e-9));
        prop_assert!(of(bytes, files + more, nodes).likely >= base.likely * (1.0 - 1e-9) || files == 0);
        prop_assert!(of(bytes, files, nodes + 1).likely <= base.likely * (1.0 + 1e-9));
        let work = JobWork { nodes, in_bytes: bytes, in_files: files, reads: f64::from(reads), ..JobWork::default() };
        let found = predict(&site, &LearnedRatios::default(), &work);
        prop_assert!(found.with.likely.is_finite() && found.without.likely.is_finite());
        if found.verdict == Verdict::Use {
            prop_assert!(found.with.likely < found.without.likely);
        }
    }

    /// S530: between two points of a curve, rates are between theirs.
    #[test]
    fn rates_are_between_those_that_were_measured(streams in 0_u32..100) {
        let site = site(8.0, 1.0);
        let rate = Storage::rate(&site.storage.read, streams);
        prop_assert!((2.0..=8.0).contains(&rate));
    }
}

/// S533.
#[test]
fn advice_is_a_formation_file() {
    let work =
        JobWork { nodes: 4, checkpoints: 2, in_bytes: 1 << 30, in_files: 1 << 20, ..JobWork::default() };
    let prediction = predict(&site(2.0 * GB, 1.0 * GB), &LearnedRatios::default(), &work);
    let advice = Advice::of(&work, &prediction);
    assert_eq!((advice.stripe, advice.checkpoints), (256 << 10, true));
    let text = formation_file(&advice, "why\nand how");
    assert!(text.starts_with("# why\n# and how\n[formation]\n"), "{text}");
    assert!(
        text.contains("contract = \"session\"") && text.contains(" hosts: inside a job of that size"),
        "{text}"
    );
    assert!(!text.contains("nodes ="), "that would be nodes of one machine");
}

#[test]
fn sites_that_make_no_sense_are_refused() {
    let good = site(2.0 * GB, 1.0 * GB);
    assert_eq!(good.check(), Ok(()));
    let mut bad = good.clone();
    bad.storage.read.clear();
    assert!(bad.check().unwrap_err().starts_with("storage.read: "));
    let mut bad = good.clone();
    bad.storage.write.reverse();
    assert!(bad.check().unwrap_err().contains("few streams to many"));
    let mut bad = good.clone();
    bad.storage.file_read_ms = f64::NAN;
    assert!(bad.check().is_err());
    let mut bad = good;
    bad.node.bytes_per_second = 0.0;
    assert!(bad.check().unwrap_err().starts_with("node: "));
}
