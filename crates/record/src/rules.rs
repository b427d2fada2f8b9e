//! Table of rules for settings. Each looks at a directory and says what it sees, and what would be gained.

use serde::{Deserialize, Serialize};

use crate::counts::{Counts, SIZE_BOUNDS};
use crate::facts::{Facts, Group};

/// Fewer calls than these show no habit.
const OPS_MIN: u64 = 1000;
/// Smallest part of the time of its processes for which a change is worth it.
const SHARE_MIN: f64 = 0.3;
/// The last range of sizes that is small: up to 64 KiB.
const SMALL: usize = 4;
/// The part of the calls that has to be so.
const MOST: f64 = 0.8;
/// Duration in nanoseconds from which a small call is a message rather than a copy: docs/performance/figures.md,
/// library-local (4 KiB write, 99 of 100: 4 µs) and remote-4k (27 µs at best).
const MESSAGE_NS: u64 = 10_000;
/// Cost of a call that only goes to pages, in nanoseconds: figures.md, library-local, 4 KiB write.
const PAGE_NS: f64 = 2_500.0;
/// Cost of each byte that is sent in large messages, in nanoseconds: figures.md, remote (0.77 to 0.91 GB/s).
const SENT_BYTE_NS: f64 = 1.0 / 0.77;
/// Least cost of a call on its way through a mount, in nanoseconds: figures.md, mount-4k-one-core, bare FUSE.
const MOUNT_NS: f64 = 13_000.0;
/// The same where the program and the mount have processors of their own: figures.md, mount-4k, bare FUSE.
const MOUNT_AWAY_NS: f64 = 90_000.0;
/// Cost of a call of the preload where the content is on its own machine, in nanoseconds.
const DIRECT_NS: f64 = 2_500.0;
/// The part of calls that reach into a second stripe from which on that is worth a change.
const CROSSING_MIN: f64 = 0.3;
/// Number of calls that a stripe should have room for.
const CALLS_PER_STRIPE: u64 = 16;
/// The largest stripe there is.
const STRIPE_MAX: u64 = 1 << 30;

/// Finding of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: String,
    /// The directory.
    pub place: String,
    /// The setting to change.
    pub setting: String,
    /// Evidence for it.
    pub evidence: String,
    /// Condition under which it helps.
    pub condition: String,
    /// Speed-up of its programs: at least and at most.
    pub gain: (f64, f64),
    /// Source of the numbers.
    pub source: String,
}

/// A rule.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// Condition, besides what it looks at.
    pub condition: &'static str,
    /// Measurements and decisions that thresholds and gains come from.
    pub source: &'static str,
    look: fn(&Group) -> Option<RuleMatch>,
}

struct RuleMatch {
    setting: String,
    evidence: String,
    gain: (f64, f64),
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "small-writes",
        condition: "who reads these files opens them after their writers have closed or synced them",
        source: "docs/decisions/0021-session-contract.md; docs/performance/figures.md, remote",
        look: small_writes,
    },
    Rule {
        name: "small-reads",
        condition: "who reads these files opens them after their writers have closed or synced them",
        source: "docs/decisions/0021-session-contract.md; docs/performance/figures.md, remote",
        look: small_reads,
    },
    Rule {
        name: "through-the-mount",
        condition: "the programs are dynamically linked, and run on hosts that have the content",
        source: "docs/decisions/0017-local-direct-access.md; docs/performance/figures.md, mount-4k-one-core, library-4k-one-core",
        look: through_the_mount,
    },
    Rule {
        name: "crossed-stripes",
        condition: "it holds for files that are made afterwards",
        source: "docs/performance/messages.md: a message per target that a call reaches",
        look: crossed_stripes,
    },
];

/// Findings of the rules, what gains most first.
#[must_use]
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let looked = facts.groups.iter().flat_map(|group| RULES.iter().map(move |rule| (group, rule)));
    let found = looked.filter_map(|(group, rule)| {
        let seen = (rule.look)(group)?;
        let finding = Finding {
            rule: rule.name.into(),
            place: group.place.clone(),
            setting: seen.setting,
            evidence: seen.evidence,
            condition: rule.condition.into(),
            gain: seen.gain,
            source: rule.source.into(),
        };
        // What is gained in a directory that is hardly used is little for the job.
        Some((saved_ns(group, seen.gain), finding))
    });
    let mut found: Vec<(f64, Finding)> = found.collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Returns the time that a gain saves, at a middle one.
fn saved_ns(group: &Group, (least, most): (f64, f64)) -> f64 {
    group.time_ns() * (1.0 - 1.0 / (least * most).sqrt().max(1.0))
}

/// Returns the speed-up of everything when a part of it is faster: Amdahl, 1967.
fn amdahl(share: f64, factor: f64) -> f64 {
    let share = share.clamp(0.0, 0.99);
    1.0 / (1.0 - share + share / factor.max(1.0))
}

fn small_writes(group: &Group) -> Option<RuleMatch> {
    let counts = &group.pattern.writes;
    // Writes behind need not be in order: what is contiguous in the end is sent as one.
    gathered(group, counts, "writes", counts.in_order() >= counts.random())
}

fn small_reads(group: &Group) -> Option<RuleMatch> {
    let counts = &group.pattern.reads;
    gathered(group, counts, "reads", counts.part(counts.in_order()) >= MOST)
}

/// Matches small calls that each are a message, where pages may be.
fn gathered(group: &Group, counts: &Counts, what: &str, is_ordered: bool) -> Option<RuleMatch> {
    let share = group.share(counts);
    let small = counts.median_range().filter(|range| *range <= SMALL)?;
    let is_mixed = group.mixed.saturating_mul(10) > group.files;
    if group.is_session || is_mixed || !is_ordered {
        return None;
    }
    if counts.ops < OPS_MIN || share < SHARE_MIN || counts.mean_ns() < MESSAGE_NS {
        return None;
    }
    let mean = counts.mean_ns() as f64;
    let sent = PAGE_NS + counts.mean_bytes() as f64 * SENT_BYTE_NS;
    let gain = (amdahl(share, mean / sent), amdahl(share, mean / PAGE_NS));
    let evidence = format!(
        "{} {what} of up to {} to {}, {:.0} % of their time, {:.0} µs each",
        counts.ops,
        size(SIZE_BOUNDS.get(small).copied()?),
        group.said(),
        share * 100.0,
        mean / 1e3,
    );
    let setting = match (group.is_partition, group.place.as_str()) {
        (true, place) => format!("--contract session for {place}, which is chosen when a partition is made"),
        (false, "/") => {
            "a directory of their own: bivouac partition create DIR --contract session".to_owned()
        }
        (false, place) => {
            format!("--contract session on {place}: bivouac partition create, before it is filled")
        }
    };
    Some(RuleMatch { setting, evidence, gain })
}

/// Matches small calls that cost little besides their way through a mount.
fn through_the_mount(group: &Group) -> Option<RuleMatch> {
    let counts = group.pattern.both();
    let small = counts.median_range().filter(|range| *range <= SMALL)?;
    let mean = counts.mean_ns() as f64;
    let time = |way: f64| (counts.ops as f64 * (way + mean) / group.time_ns()).min(1.0);
    if group.is_session || group.has_source || counts.part(group.mounted) < MOST {
        return None;
    }
    if counts.ops < OPS_MIN || time(MOUNT_NS) < SHARE_MIN || counts.mean_ns() >= MESSAGE_NS {
        return None;
    }
    let gain = |way: f64| amdahl(time(way), (way + mean) / DIRECT_NS);
    let evidence = format!(
        "{} calls of up to {} to {} through the mount, at least {:.0} % of their time",
        counts.ops,
        size(SIZE_BOUNDS.get(small).copied()?),
        group.said(),
        time(MOUNT_NS) * 100.0,
    );
    let setting =
        "the preload: run the programs with `bivouac exec -- COMMAND` (see `bivouac explain --pid`)";
    Some(RuleMatch { setting: setting.into(), evidence, gain: (gain(MOUNT_NS), gain(MOUNT_AWAY_NS)) })
}

/// Returns the stripe in which most calls to a directory would fit, in bytes.
#[must_use]
pub fn wider_stripe(group: &Group) -> u64 {
    let mean = group.pattern.both().mean_bytes();
    let stripe = mean.min(STRIPE_MAX / CALLS_PER_STRIPE) * CALLS_PER_STRIPE;
    stripe.next_power_of_two().clamp(group.stripe.saturating_mul(2).min(STRIPE_MAX), STRIPE_MAX)
}

/// Calls that reach into a second stripe, and so to a second target.
fn crossed_stripes(group: &Group) -> Option<RuleMatch> {
    let counts = group.pattern.both();
    let (crossing, share) = (counts.part(counts.crossing), group.share(&counts));
    if counts.ops < OPS_MIN || crossing < CROSSING_MIN || share < SHARE_MIN {
        return None;
    }
    let stripe = wider_stripe(group);
    let left = (counts.mean_bytes() as f64 / stripe as f64).min(crossing);
    let evidence = format!(
        "{:.0} % of {} calls to {} reach over the end of a stripe of {}: {:.2} messages each instead of {:.2}",
        crossing * 100.0,
        counts.ops,
        group.said(),
        size(group.stripe),
        1.0 + crossing,
        1.0 + left,
    );
    let most = amdahl(share, (1.0 + crossing) / (1.0 + left));
    let setting = format!("--stripe {} for {}", size_word(stripe), group.place);
    // Both messages are under way together, so it may be that nothing is gained.
    Some(RuleMatch { setting, evidence, gain: (1.0, most) })
}

fn size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

/// Formats a size as options take it.
fn size_word(bytes: u64) -> String {
    let units = [(1_u64 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")];
    let unit = units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests;
