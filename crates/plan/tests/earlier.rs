//! What a job will do, by what it did before: S537.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bivouac_plan::{
    Advice, FormerRun, JobWork, PartitionAdvice, UsedFile, UsedProcess, formation_file, middle, predict,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn read(size: u64, times: u64) -> UsedFile {
    UsedFile { size: Some(size), read: size * times, ..UsedFile::default() }
}

fn process(bytes: u64, first_ms: u64, last_ms: u64) -> UsedProcess {
    UsedProcess { bytes, used_ms: (first_ms, last_ms) }
}

fn written(size: u64, used_ms: (u64, u64)) -> UsedFile {
    UsedFile { size: Some(size), written: size, used_ms, ..UsedFile::default() }
}

/// A job that reads 100 MiB of input three times, writes four checkpoints of 64 MiB in two files each, every 10 s, a
/// file of 8 MiB that it reads again, and results of 20 MiB.
fn job() -> FormerRun {
    let mut line = vec![0; 60];
    let mut files = vec![read(60 * MIB, 3), read(40 * MIB, 3)];
    for checkpoint in 0..4 {
        let at = 5 + 10 * checkpoint;
        line[at] = 40 * MIB;
        line[at + 1] = 24 * MIB;
        let used = (at as u64 * 1000, at as u64 * 1000 + 1900);
        files.extend([written(32 * MIB, used); 2]);
    }
    line[50] = 4 * MIB;
    line[51] = 20 * MIB + 4 * MIB;
    files.push(UsedFile { read: 8 * MIB, ..written(8 * MIB, (50_000, 51_000)) });
    files.push(written(20 * MIB, (51_000, 51_500)));
    FormerRun {
        nodes: 4,
        span_ms: 60_000,
        staged_in: (100 * MIB, 2),
        staged_out: (20 * MIB, 1),
        read_bytes: 308 * MIB,
        written_bytes: 284 * MIB,
        files,
        more_files: 0,
        interval_ms: 1000,
        written: line,
        // One after another, two are there at the same time; two do little.
        processes: vec![
            process(200 * MIB, 0, 30_000),
            process(190 * MIB, 0, 60_000),
            process(200 * MIB, 31_000, 60_000),
            process(2 * MIB, 0, 60_000),
            process(0, 0, 60_000),
        ],
    }
}

/// S537.
#[test]
fn a_report_is_a_job() {
    let work = job().work();
    assert_eq!((work.in_bytes, work.in_files, work.reads), (100 * MIB, 2, 3.0));
    assert_eq!((work.out_bytes, work.out_files), (20 * MIB, 1));
    assert_eq!((work.checkpoints, work.checkpoint_bytes, work.checkpoint_files), (4, 64 * MIB, 2));
    assert_eq!((work.scratch_bytes, work.scratch_read_bytes), (8 * MIB, 8 * MIB));
    assert_eq!((work.nodes, work.processes, work.run_seconds), (4, 2, 60.0));
    assert_eq!(job().bursts().unwrap().every_ms, 10_000);
    // All that was read and written is in one of the sums, once.
    let moved = work.in_bytes as f64 * work.reads
        + (work.out_bytes
            + work.checkpoint_bytes * work.checkpoints
            + work.scratch_bytes
            + work.scratch_read_bytes) as f64;
    assert_eq!(moved, (308 + 284) as f64 * MIB as f64);
}

/// S537: what is no rhythm is no checkpoint, and counts as written for the job itself.
#[test]
fn what_is_no_rhythm_is_no_checkpoint() {
    let steady = FormerRun { written: vec![4 * MIB; 60], ..job() };
    let two = FormerRun { written: vec![9 * MIB, 0, 0, 9 * MIB, 0], ..job() };
    let growing = FormerRun {
        written: (0..60).map(|i| if i % 15 == 0 { MIB * 5_u64.pow(i / 15) } else { 0 }).collect(),
        ..job()
    };
    let uneven = FormerRun {
        written: (0..60).map(|i| if [0, 1, 2, 30, 59].contains(&i) { 50 * MIB } else { 0 }).collect(),
        ..job()
    };
    let little = FormerRun { written: (0..60).map(|i| if i % 10 == 0 { MIB } else { 0 }).collect(), ..job() };
    for (name, earlier) in
        [("steady", steady), ("two", two), ("growing", growing), ("uneven", uneven), ("little", little)]
    {
        assert_eq!(earlier.bursts(), None, "{name}");
        let work = earlier.work();
        assert_eq!((work.checkpoints, work.checkpoint_bytes), (0, 0), "{name}");
        assert_eq!(work.scratch_bytes, 264 * MIB, "{name}");
    }
}

/// S537: without stages, what came from site storage and went there is told by the directories that it is behind.
#[test]
fn a_partition_with_a_source_brings_and_gets_data() {
    let mut earlier = FormerRun { staged_in: (0, 0), staged_out: (0, 0), ..job() };
    earlier.files.iter_mut().filter(|file| file.written == 20 * MIB).for_each(|file| file.has_source = true);
    let work = earlier.work();
    assert_eq!((work.in_bytes, work.in_files, work.reads), (100 * MIB, 2, 3.0));
    assert_eq!((work.out_bytes, work.out_files, work.checkpoints), (20 * MIB, 1, 4));
}

/// S537: of several reports each figure is the median.
#[test]
fn of_several_runs_the_median_counts() {
    let of = |in_bytes, reads| JobWork { nodes: 2, in_bytes, reads, ..JobWork::default() };
    let work = middle(&[of(10, 1.0), of(1000, 9.0), of(12, 2.0)]).unwrap();
    assert_eq!((work.nodes, work.in_bytes, work.reads), (2, 12, 2.0));
    assert_eq!(middle(&[of(10, 1.0), of(20, 3.0)]).unwrap().in_bytes, 10);
    assert_eq!(middle(&[]), None);
}

/// S533: whatever a directory is called, the formation file is TOML and names it.
#[test]
fn names_of_directories_are_strings_of_toml() {
    let part = PartitionAdvice {
        path: "/a\"b\\c\nd\u{7f}é".into(),
        is_session: true,
        stripe: Some(4 << 20),
        reasons: vec!["why\n[formation]\nnodes = 4096".into()],
    };
    let remarks = vec!["a remark\u{1b}[31m".to_owned()];
    let advice = Advice { nodes: 1, stripe: 1 << 20, checkpoints: false, parts: vec![part], remarks };
    let text = formation_file(&advice, "comment");
    let expected = "[[partition]]\npath = \"/a\\\"b\\\\c\\u000Ad\\u007Fé\"\ncontract = \"session\"\nstripe = \"4096k\"\n";
    assert!(text.contains(expected), "{text}");
    assert!(
        text.lines().filter(|line| line.starts_with("nodes")).count() == 0 && !text.contains('\u{1b}'),
        "{text}"
    );
}

proptest! {
    /// S537: any report gives a job that can be planned.
    #[test]
    fn any_report_can_be_planned(
        numbers in proptest::collection::vec(any::<u64>(), 8),
        files in proptest::collection::vec((any::<Option<u64>>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..20),
        written in proptest::collection::vec(prop_oneof![any::<u64>(), 0_u64..3, Just(1 << 30)], 0..70),
        processes in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..10),
    ) {
        let file = |(size, read, written, first, last, has_source): &(Option<u64>, u64, u64, u64, u64, bool)| UsedFile {
            size: *size, read: *read, written: *written, used_ms: (*first, *last), has_source: *has_source,
        };
        let earlier = FormerRun {
            nodes: numbers[0] as u32, span_ms: numbers[1], staged_in: (numbers[2], numbers[3]), staged_out: (numbers[4], 7),
            read_bytes: numbers[5], written_bytes: numbers[6], files: files.iter().map(file).collect(), more_files: numbers[7],
            interval_ms: numbers[1], written,
            processes: processes.into_iter().map(|(bytes, first, last)| process(bytes, first, last)).collect(),
        };
        let work = earlier.work();
        prop_assert!(work.reads.is_finite() && work.reads >= 0.0 && work.nodes > 0, "{work:?}");
        let site: bivouac_plan::Site = bivouac_plan::Site {
            storage: bivouac_plan::Storage {
                read: vec![bivouac_plan::CurvePoint { streams: 1, bytes_per_second: 1e9 }],
                write: vec![bivouac_plan::CurvePoint { streams: 1, bytes_per_second: 1e9 }],
                file_read_ms: 1.0, file_write_ms: 1.0, spread: 0.1,
            },
            node: bivouac_plan::Node { bytes_per_second: 1e9, memory_bytes: 1 << 36, streams: 4, start_ms: 100.0 },
        };
        let found = predict(&site, &bivouac_plan::LearnedRatios::default(), &work);
        prop_assert!(found.with.likely.is_finite() && found.without.likely.is_finite(), "{found:?}");
    }
}
