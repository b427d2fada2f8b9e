//! Each rule on a workload that has its fault, and on some that have not.

use super::*;
use crate::tracker::{Access, AccessPosition, Tracker};

/// A workload of one directory.
struct Work {
    writes: bool,
    ops: u64,
    len: u64,
    /// From one call to the next; 0 is to random places.
    step: u64,
    /// Time that a call takes, in microseconds.
    us: u64,
    stripe: u64,
}

const MIB: u64 = 1 << 20;

/// Small calls to another node, one after the other.
const REMOTE: Work = Work { writes: true, ops: 200_000, len: 4096, step: 4096, us: 30, stripe: MIB };

impl Work {
    /// As its accesses are counted. The programs do little else.
    fn group(&self) -> Group {
        let mut tracker = Tracker::new(self.stripe);
        for i in 0..self.ops {
            let at = if self.step == 0 { (i * 2_654_435_761) % (1 << 32) * 64 } else { i * self.step };
            let (writes, len, spent_ns) = (self.writes, self.len, self.us * 1000);
            tracker.note(&Access { writes, place: AccessPosition::At(at), len, spent_ns });
        }
        Group {
            place: "/out".into(),
            stripe: self.stripe,
            files: 12,
            shared: 12,
            processes: 8,
            // 92 of 100 parts are spent in the calls.
            span_ms: self.ops * self.us * 100 / 92 / 1000 / 8,
            held_ms: u64::MAX,
            pattern: tracker.take(),
            ..Group::default()
        }
    }
}

/// The rules that fire.
fn said(group: Group) -> Vec<String> {
    findings(&Facts { groups: vec![group] }).into_iter().map(|finding| finding.rule).collect()
}

#[test]
fn small_writes_that_are_messages_want_the_session_contract() {
    let found = findings(&Facts { groups: vec![REMOTE.group()] });
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!((finding.rule.as_str(), finding.place.as_str()), ("small-writes", "/out"));
    assert!(finding.setting.starts_with("--contract session on /out"), "{}", finding.setting);
    assert_eq!(
        finding.evidence,
        "200000 writes of up to 4 KiB to 12 shared files from 8 processes, 92 % of their time, 30 µs each"
    );
    // 30 µs become 7.8 or 2.5, and 8 of 100 parts stay.
    let (least, most) = finding.gain;
    assert!((3.0..3.2).contains(&least) && (6.2..6.5).contains(&most), "{least} {most}");
}

#[test]
fn writes_without_that_fault_are_left_alone() {
    assert_eq!(said(Work { len: 4 * MIB, step: 4 * MIB, us: 5000, ..REMOTE }.group()), [""; 0], "large");
    assert_eq!(said(Work { us: 2, ..REMOTE }.group()), [""; 0], "here");
    assert_eq!(said(Work { ops: 900, ..REMOTE }.group()), [""; 0], "few");
    assert_eq!(said(Work { step: 0, ..REMOTE }.group()), [""; 0], "random");
    assert_eq!(said(Group { is_session: true, ..REMOTE.group() }), [""; 0], "gathered already");
    assert_eq!(said(Group { mixed: 6, ..REMOTE.group() }), [""; 0], "others read them meanwhile");
    let group = REMOTE.group();
    assert_eq!(said(Group { span_ms: group.span_ms * 4, ..group }), [""; 0], "programs do other things");
}

#[test]
fn small_reads_in_order_want_the_session_contract() {
    let reads = Work { writes: false, ..REMOTE };
    assert_eq!(said(reads.group()), ["small-reads"]);
    assert_eq!(said(Work { writes: false, step: 65_536, ..REMOTE }.group()), ["small-reads"], "strided");
}

#[test]
fn reads_without_that_fault_are_left_alone() {
    let reads = |work: Work| said(Work { writes: false, ..work }.group());
    assert_eq!(reads(Work { step: 0, ..REMOTE }), [""; 0], "random");
    assert_eq!(reads(Work { len: MIB, step: MIB, us: 1200, ..REMOTE }), [""; 0], "large");
    assert_eq!(reads(Work { us: 1, ..REMOTE }), [""; 0], "here");
}

#[test]
fn quick_small_calls_through_a_mount_want_the_preload() {
    let local = Work { us: 2, ..REMOTE };
    // The programs do nothing but call, and each call takes 20 µs with its way.
    let group = Group { mounted: local.ops, span_ms: local.ops * 20 / 1000 / 8, ..local.group() };
    let found = findings(&Facts { groups: vec![group.clone()] });
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!(finding.rule, "through-the-mount");
    assert!(finding.setting.contains("bivouac exec"));
    let (least, most) = finding.gain;
    assert!(1.5 < least && least < most && most < 40.0, "{least} {most}");
    assert_eq!(said(Group { mounted: 0, ..group.clone() }), [""; 0], "by the preload already");
    assert_eq!(said(Group { has_source: true, ..group.clone() }), [""; 0], "the preload leaves these alone");
    assert_eq!(said(Group { is_session: true, ..group.clone() }), [""; 0], "and these");
    assert_eq!(said(Group { span_ms: group.span_ms * 20, ..group }), [""; 0], "programs do other things");
    let large = Work { len: MIB, step: MIB, us: 2, ..REMOTE }.group();
    assert_eq!(said(Group { mounted: 200_000, ..large }), [""; 0], "large ones cost what they copy");
}

#[test]
fn calls_over_the_ends_of_stripes_want_larger_ones() {
    let records = Work { len: 47_008, step: 47_008, us: 60, stripe: 65_536, ..REMOTE };
    // Those would be gathered as well; where that is done already, the stripes are what is left.
    let found = findings(&Facts { groups: vec![Group { is_session: true, ..records.group() }] });
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (finding.rule.as_str(), finding.setting.as_str()),
        ("crossed-stripes", "--stripe 1m for /out")
    );
    assert!(finding.evidence.starts_with("72 % of 200000 calls"), "{}", finding.evidence);
    let aligned = Work { len: 65_536, step: 65_536, us: 60, stripe: 65_536, ..REMOTE };
    assert_eq!(said(Group { is_session: true, ..aligned.group() }), [""; 0]);
    let wide = Work { stripe: 4 * MIB, ..records };
    assert_eq!(said(Group { is_session: true, ..wide.group() }), [""; 0]);
}

#[test]
fn processes_that_were_there_only_for_a_while_do_not_hide_those_that_waited() {
    let group = REMOTE.group();
    let held_ms = group.span_ms * 8;
    // As many others have looked at something for a moment.
    let crowded = Group { processes: 80, held_ms, ..group.clone() };
    assert_eq!(crowded.time_ns().round(), group.time_ns().round());
    assert_eq!(said(crowded), ["small-writes"]);
}

#[test]
fn what_saves_most_comes_first() {
    let (much, little) = (REMOTE.group(), Work { writes: false, ops: 2000, ..REMOTE }.group());
    let facts = Facts { groups: vec![Group { place: "/in".into(), ..little }, much] };
    let places: Vec<_> = findings(&facts).into_iter().map(|finding| finding.place).collect();
    assert_eq!(places, ["/out", "/in"]);
}

#[test]
fn no_numbers_are_too_large() {
    let all = u64::MAX;
    let counts = Counts {
        ops: all,
        bytes: all,
        sequential: all,
        strided: all,
        off_page: all,
        crossing: all,
        spent_ns: all,
        sizes: [all; 9],
    };
    let pattern = crate::Pattern { reads: counts, writes: counts };
    let (files, span_ms, stripe) = (all, all, all);
    let group = Group {
        files,
        shared: 1,
        mixed: 1,
        processes: all,
        span_ms,
        held_ms: all,
        stripe,
        pattern,
        ..Group::default()
    };
    said(Group { mounted: all, ..group });
}

#[test]
fn nothing_is_said_of_nothing() {
    assert_eq!(findings(&Facts::default()), []);
    assert_eq!(said(Group::default()), [""; 0]);
    assert!(RULES.iter().all(|rule| rule.source.starts_with("docs/")));
}
