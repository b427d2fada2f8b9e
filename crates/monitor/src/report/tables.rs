//! The rows of a report's tables, for the terminal and for the page.

use std::ffi::OsStr;

use bivouac_record::{Counts, Pattern, SIZE_BOUNDS, SIZE_RANGES};
use bivouac_types::units::{format_count, format_duration, format_micros, format_size, format_utc};

use super::{FileRow, JobReport, ProcessRow, share_of};

/// A table: a caption, a head, which columns are numbers, and rows.
pub struct Table {
    pub caption: &'static str,
    pub head: &'static [&'static str],
    pub right: &'static [usize],
    pub rows: Vec<Vec<String>>,
}

/// Returns a name as it may be shown anywhere: nothing in it moves a cursor.
pub fn shown(name: &OsStr) -> String {
    bivouac_types::printable(&name.to_string_lossy()).into_owned()
}

/// Returns the first line.
pub fn headline(report: &JobReport) -> String {
    let nodes = format_count(report.nodes, "node");
    let until = format_utc(report.unix_ms / 1000);
    format!("formation {}, {nodes}, until {until}Z", shown(report.name.as_ref()))
}

/// Returns the job in one sentence.
pub fn summary(report: &JobReport) -> String {
    let both = report.total.both();
    if both.ops == 0 {
        return "No file was read or written.".into();
    }
    let (reads, writes) = (&report.total.reads, &report.total.writes);
    format!(
        "{} read in {}, {} written in {}, from the first to the last in {}.",
        format_size(reads.bytes),
        format_count(reads.ops, "call"),
        format_size(writes.bytes),
        format_count(writes.ops, "call"),
        format_duration(report.span_ms),
    )
}

/// Returns the bytes that site storage was spared, if that is known.
pub fn spared(report: &JobReport) -> Option<String> {
    let site = &report.site;
    (site.here > 0).then(|| {
        format!(
            "Site storage was spared {}: programs read and wrote {} here, and {} were copied in, {} out.",
            format_size(site.spared()),
            format_size(site.here),
            format_size(site.staged_in),
            format_size(site.staged_out),
        )
    })
}

/// Returns a speed-up in words.
pub fn gain((least, most): (f64, f64)) -> String {
    match (format!("{least:.1}"), format!("{most:.1}")) {
        (_, most) if least < 1.05 => format!("up to {most} times"),
        (least, most) if least == most => format!("about {most} times"),
        (least, most) => format!("{least} to {most} times"),
    }
}

/// The part of calls that is taken for all.
const MOST_OF_THEM: f64 = 0.95;

/// Returns in what order calls came, in words.
fn order(counts: &Counts) -> String {
    let parts = [(counts.sequential, "sequential"), (counts.strided, "strided"), (counts.random(), "random")];
    match parts.iter().max_by_key(|(count, _)| *count) {
        Some((count, what)) if counts.ops > 0 => match counts.part(*count) {
            MOST_OF_THEM.. => (*what).to_owned(),
            part => format!("{what} {}", per_cent(part)),
        },
        _ => "-".into(),
    }
}

fn per_cent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Returns the share of a time span that calls took. Calls of several threads overlap: from one on it is how many ran
/// at once.
fn concurrency(share: f64) -> String {
    if share > 1.005 { format!("{share:.1} at once") } else { per_cent(share) }
}

fn mean_time(counts: &Counts) -> String {
    match counts.mean_ns() {
        _ if counts.ops == 0 => "-".into(),
        ns @ 0..10_000 => format!("{:.1} µs", ns as f64 / 1e3),
        ns => format_micros(ns / 1000),
    }
}

/// Returns the tables of how files were used, with so many files and processes.
pub fn uses(report: &JobReport, most: usize) -> [Table; 5] {
    [
        pattern(&report.total),
        sizes(&report.total),
        places(report),
        files(report, most),
        processes(report, most),
    ]
}

/// Returns the pattern of all calls, in the manner of Darshan.
fn pattern(total: &Pattern) -> Table {
    let row = |what: &str, of: &dyn Fn(&Counts) -> String| {
        vec![what.to_owned(), of(&total.reads), of(&total.writes)]
    };
    let part = |of: fn(&Counts) -> u64| move |counts: &Counts| per_cent(counts.part(of(counts)));
    let rows = vec![
        row("calls", &|counts| counts.ops.to_string()),
        row("bytes", &|counts| format_size(counts.bytes)),
        row("mean size", &|counts| format_size(counts.mean_bytes())),
        row("time in them", &|counts| format_micros(counts.spent_ns / 1000)),
        row("mean time", &mean_time),
        row("sequential", &part(|counts| counts.sequential)),
        row("strided", &part(|counts| counts.strided)),
        row("random", &part(Counts::random)),
        row("not at a page of 4 KiB", &part(|counts| counts.off_page)),
        row("over the end of a stripe", &part(|counts| counts.crossing)),
    ];
    Table { caption: "Pattern", head: &["", "READS", "WRITES"], right: &[1, 2], rows }
}

/// Returns the number of calls of each range of sizes.
fn sizes(total: &Pattern) -> Table {
    let name = |range: usize| match SIZE_BOUNDS.get(range) {
        Some(bound) => format!("up to {}", format_size(*bound)),
        None => "larger".into(),
    };
    let row = |range: usize| {
        let of = |counts: &Counts| counts.sizes.get(range).copied().unwrap_or(0);
        (of(&total.reads).max(of(&total.writes)) > 0)
            .then(|| vec![name(range), of(&total.reads).to_string(), of(&total.writes).to_string()])
    };
    let rows = (0..SIZE_RANGES).filter_map(row).collect();
    Table { caption: "Sizes", head: &["SIZE", "READS", "WRITES"], right: &[1, 2], rows }
}

/// Returns the directories.
fn places(report: &JobReport) -> Table {
    let row = |place: &bivouac_record::Group| {
        let both = place.pattern.both();
        vec![
            shown(place.place.as_ref()),
            place.files.to_string(),
            place.processes.to_string(),
            format_size(place.pattern.reads.bytes),
            format_size(place.pattern.writes.bytes),
            both.ops.to_string(),
            mean_time(&both),
            concurrency(place.share(&both)),
        ]
    };
    let head = &["DIRECTORY", "FILES", "PROCESSES", "READ", "WRITTEN", "CALLS", "EACH", "OF TIME"];
    let rows = report.places.iter().map(row).collect();
    Table { caption: "Directories", head, right: &[1, 2, 3, 4, 5, 6, 7], rows }
}

/// Returns the files that were used most.
fn files(report: &JobReport, most: usize) -> Table {
    let row = |file: &FileRow| {
        let both = file.pattern.both();
        let gone = if file.gone { " (gone)" } else { "" };
        let more = if file.or_more { "+" } else { "" };
        vec![
            format!("{}{gone}", file.path),
            format_size(file.pattern.reads.bytes),
            format_size(file.pattern.writes.bytes),
            both.ops.to_string(),
            order(&both),
            format!("{}{more}", file.processes),
            format_duration(file.first_ms),
            format_duration(file.last_ms),
        ]
    };
    let head = &["FILE", "READ", "WRITTEN", "CALLS", "ORDER", "BY", "FIRST", "LAST"];
    let rows = report.files.iter().take(most).map(row).collect();
    Table { caption: "Files", head, right: &[1, 2, 3, 5, 6, 7], rows }
}

/// Returns the processes that did most.
fn processes(report: &JobReport, most: usize) -> Table {
    let row = |process: &ProcessRow| {
        let both = process.pattern.both();
        let name = match (process.program.as_str(), process.pid) {
            (_, 0) => "(not seen)".to_owned(),
            ("", pid) => pid.to_string(),
            (program, pid) => format!("{program} {pid}"),
        };
        vec![
            name,
            process.host.clone().unwrap_or_else(|| "(direct)".into()),
            format_size(process.pattern.reads.bytes),
            format_size(process.pattern.writes.bytes),
            both.ops.to_string(),
            format_micros(both.spent_ns / 1000),
            concurrency(share_of(&both, process.last_ms.saturating_sub(process.first_ms))),
        ]
    };
    let head = &["PROCESS", "HOST", "READ", "WRITTEN", "CALLS", "WAITED", "OF TIME"];
    let rows = report.processes.iter().take(most).map(row).collect();
    Table { caption: "Processes", head, right: &[2, 3, 4, 5, 6], rows }
}

/// Operations by the time that nodes spent on them.
pub fn operations(report: &JobReport, most: usize) -> Table {
    let row = |one: &super::OperationRow| {
        vec![
            one.name.clone(),
            one.count.to_string(),
            format_micros(one.total_us),
            format_micros(one.p50_us),
            format_micros(one.p99_us),
        ]
    };
    let rows = report.operations.iter().take(most).map(row).collect();
    let head = &["REQUEST", "COUNT", "TIME", "P50", "P99"];
    Table { caption: "What nodes served", head, right: &[1, 2, 3, 4], rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_calls_are_no_percentage() {
        assert_eq!([0.0, 0.42, 1.0, 1.8].map(concurrency), ["0 %", "42 %", "100 %", "1.8 at once"]);
    }

    #[test]
    fn names_move_no_cursor() {
        assert_eq!(shown(OsStr::new("a\u{1b}[2J\nb\tü")), "a\u{fffd}[2J\u{fffd}b\u{fffd}ü");
    }

    #[test]
    fn gains_are_said_in_words() {
        assert_eq!(gain((3.12, 6.4)), "3.1 to 6.4 times");
        assert_eq!(gain((1.0, 1.8)), "up to 1.8 times");
        assert_eq!(gain((2.81, 2.83)), "about 2.8 times");
    }
}
