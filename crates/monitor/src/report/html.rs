//! A report as a page: one file, nothing from elsewhere, no script.

use std::fmt::Write;

use bivouac_record::{Bin, Finding, Timeline};
use bivouac_types::escape_markup;
use bivouac_types::units::{format_duration, format_size};

use super::tables::{self, Table};
use super::{Comparison, JobReport};

/// Files and processes that are shown.
const SHOWN: usize = 200;
/// Rows of a table that are shown before the reader unfolds the rest.
const UNFOLDED: usize = 20;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2024;--paper:#fff;--soft:#f1f3f5;--line:#c8cdd2;--read:#1565c0;--written:#b3541e;--good:#e6f4ea}\n\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#14171a;--soft:#1f2428;--line:#454c53;--read:#7ab8ff;--written:#f0a070;--good:#16331f}}\n\
*{box-sizing:border-box}body{margin:0 auto;max-width:70rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\n\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}\n\
.advice{background:var(--good);border-left:.3rem solid var(--read);padding:.5rem 1rem}.advice h2{margin-top:.25rem}\n\
.setting{font-weight:bold}dt{font-weight:bold}dd{margin:0 0 .4rem}\n\
.wide{overflow-x:auto}.wide:focus-visible,summary:focus-visible,a:focus-visible{outline:.2rem solid var(--read)}\n\
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}\n\
caption{text-align:left;position:absolute;left:-99rem}th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\n\
th{background:var(--soft);white-space:nowrap}.n{text-align:right;white-space:nowrap}td:first-child{overflow-wrap:anywhere;min-width:8rem}\n\
svg{display:block;width:100%;height:9rem;background:var(--soft)}.read{fill:var(--read)}.written{fill:var(--written)}.key{display:inline-block;width:.8em;height:.8em;margin-right:.3em}\n\
.key.read{background:var(--read)}.key.written{background:var(--written)}footer{margin-top:2rem;font-size:.85rem}\n";

pub fn page(report: &JobReport, comparison: Option<&Comparison>) -> String {
    let title = escape_markup(&tables::headline(report));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    let paragraphs = [Some(tables::summary(report)), tables::spared(report)];
    paragraphs
        .iter()
        .flatten()
        .for_each(|text| add(&mut page, format_args!("<p>{}</p>\n", escape_markup(text))));
    for note in &report.notes {
        add(&mut page, format_args!("<p><strong>Note:</strong> {}</p>\n", escape_markup(note)));
    }
    advice(&mut page, &report.findings);
    if let Some(comparison) = comparison {
        page.push_str("<section><h2>Compared</h2>\n");
        comparison
            .lines()
            .iter()
            .for_each(|line| add(&mut page, format_args!("<p>{}</p>\n", escape_markup(line))));
        page.push_str("</section>\n");
    }
    if report.total.both().ops > 0 {
        timeline(&mut page, &report.timeline);
        tables::uses(report, SHOWN).iter().for_each(|one| table(&mut page, one));
    }
    table(&mut page, &tables::operations(report, SHOWN));
    add(
        &mut page,
        format_args!(
            "</main>\n<footer>bivouac {}</footer>\n</body>\n</html>\n",
            escape_markup(&report.release)
        ),
    );
    page
}

fn add(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Memory does not fail to be written.
    let _ = page.write_fmt(text);
}

fn advice(page: &mut String, findings: &[Finding]) {
    let Some(first) = findings.first() else {
        page.push_str("<p>No rule found a setting to change.</p>\n");
        return;
    };
    page.push_str("<section class=\"advice\"><h2>Change one setting</h2>\n");
    finding(page, first);
    if let Some(others) = findings.get(1..).filter(|others| !others.is_empty()) {
        add(page, format_args!("<details><summary>{} more of less gain</summary>\n", others.len()));
        others.iter().for_each(|other| finding(page, other));
        page.push_str("</details>\n");
    }
    page.push_str("</section>\n");
}

fn finding(page: &mut String, finding: &Finding) {
    let gain = format!("{} for the programs that use {}", tables::gain(finding.gain), finding.place);
    add(page, format_args!("<p class=\"setting\">{}</p>\n<dl>\n", escape_markup(&finding.setting)));
    for (what, text) in [
        ("Why", &finding.evidence),
        ("Expected gain", &gain),
        ("If", &finding.condition),
        ("From", &finding.source),
    ] {
        add(page, format_args!("<dt>{what}</dt><dd>{}</dd>\n", escape_markup(text)));
    }
    page.push_str("</dl>\n");
}

fn table(page: &mut String, table: &Table) {
    let Table { caption, rows, .. } = table;
    if rows.is_empty() {
        return;
    }
    let (first, rest) = rows.split_at(rows.len().min(UNFOLDED));
    add(page, format_args!("<section><h2>{caption}</h2>\n"));
    table_part(page, table, first);
    if !rest.is_empty() {
        add(page, format_args!("<details><summary>{} more</summary>\n", rest.len()));
        table_part(page, table, rest);
        page.push_str("</details>\n");
    }
    page.push_str("</section>\n");
}

fn table_part(page: &mut String, table: &Table, rows: &[Vec<String>]) {
    let Table { caption, head, right, .. } = table;
    assert!(
        rows.iter().all(|row| row.len() == head.len()),
        "{caption}: a row has not as many cells as the head"
    );
    // The region takes the focus, so that the keyboard scrolls a table that is wider than the screen.
    add(page, format_args!("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n"));
    add(page, format_args!("<table><caption>{caption}</caption>\n<thead><tr>"));
    let class = |column: usize| if right.contains(&column) { " class=\"n\"" } else { "" };
    for (column, name) in head.iter().enumerate() {
        let cell = if name.is_empty() { "td" } else { "th" };
        let scope = if name.is_empty() { "" } else { " scope=\"col\"" };
        add(page, format_args!("<{cell}{}{scope}>{}</{cell}>", class(column), escape_markup(name)));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            add(page, format_args!("<td{}>{}</td>", class(column), escape_markup(cell)));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

/// Appends the timeline as bars: what was read upwards, what was written downwards.
fn timeline(page: &mut String, timeline: &Timeline) {
    // A timeline has a fixed number of bins: those behind the last work have not been yet.
    let last = timeline.bins.iter().rposition(|bin| *bin != Bin::default()).map_or(0, |last| last + 1);
    let bins = timeline.bins.get(..last).unwrap_or_default();
    let most = bins.iter().map(|bin| bin.read.max(bin.written)).max().unwrap_or(0).max(1);
    let width = format_duration(timeline.width_ms);
    let peak = format_size((most as f64 * 1000.0 / timeline.width_ms.max(1) as f64) as u64);
    add(
        page,
        format_args!(
            "<section><h2>Timeline</h2>\n<p><span class=\"key read\"></span>read, up; <span class=\"key written\"></span>written, down; {width} for each bar, at most {peak}/s. It began when the first daemon was started.</p>\n"
        ),
    );
    add(
        page,
        format_args!(
            "<svg viewBox=\"0 0 {} 82\" role=\"img\" aria-label=\"Bytes read and written, {width} for each bar\" preserveAspectRatio=\"none\">\n",
            // A job of a few moments has bars of the usual width, not a few that fill the page.
            bins.len().max(20) * 10
        ),
    );
    for (index, bin) in bins.iter().enumerate() {
        // Half a unit at least: what was little is to be seen beside what was much.
        let high = |value: u64| (value as f64 / most as f64 * 40.0).max(if value > 0 { 0.5 } else { 0.0 });
        let (read, written, x) = (high(bin.read), high(bin.written), index * 10);
        let says = format!("{} read, {} written", format_size(bin.read), format_size(bin.written));
        add(
            page,
            format_args!(
                "<g><title>{says}</title><rect class=\"read\" x=\"{x}\" y=\"{:.1}\" width=\"9\" height=\"{read:.1}\"/><rect class=\"written\" x=\"{x}\" y=\"41\" width=\"9\" height=\"{written:.1}\"/></g>\n",
                40.0 - read
            ),
        );
    }
    page.push_str("</svg></section>\n");
}

#[cfg(test)]
pub mod tests {
    use bivouac_record::{Counts, Group, Pattern};

    use super::super::{FileRow, OperationRow, ProcessRow, SiteRow, VERSION};
    use super::*;

    /// Of a job with a fault, and with hostile names.
    pub fn sample() -> JobReport {
        let writes = Counts {
            ops: 200_000,
            bytes: 800 << 20,
            sequential: 200_000,
            spent_ns: 6_000_000_000,
            sizes: [0, 0, 200_000, 0, 0, 0, 0, 0, 0],
            ..Counts::default()
        };
        let pattern = Pattern { writes, ..Pattern::default() };
        let group = Group {
            place: "/out".into(),
            files: 12,
            processes: 8,
            span_ms: 815,
            held_ms: 6520,
            pattern,
            ..Group::default()
        };
        let mut timeline = Timeline::default();
        timeline.add(1000..4000, Bin { written: 800 << 20, ops: 200_000, ..Bin::default() });
        timeline.add(5000..5000, Bin { read: 1 << 20, ops: 1, ..Bin::default() });
        let file = FileRow {
            path: "/out/<script>alert(1)</script>\" onload='x'&".into(),
            pattern,
            ..FileRow::default()
        };
        let process = ProcessRow { program: "</table><b>".into(), pid: 7, pattern, ..ProcessRow::default() };
        let operation = OperationRow { name: "Write".into(), count: 5, total_us: 90, p50_us: 8, p99_us: 64 };
        let finding = Finding {
            rule: "small-writes".into(),
            place: "/out".into(),
            setting: "--contract session on /out: bivouac partition create, before it is filled".into(),
            evidence: "200000 writes of up to 4 KiB to 12 shared files from 8 processes, 92 % of their time"
                .into(),
            condition: "who reads these files opens them after their writers have closed or synced them"
                .into(),
            gain: (3.1, 6.4),
            source: "docs/decisions/0021-session-contract.md".into(),
        };
        JobReport {
            report: VERSION,
            release: "0".into(),
            name: "camp".into(),
            nodes: 4,
            span_ms: 815,
            findings: vec![finding],
            notes: vec!["node 3 does not say what it knows: <i>".into()],
            total: pattern,
            timeline,
            places: vec![group],
            files: vec![file],
            processes: vec![process],
            operations: vec![operation],
            site: SiteRow { staged_in: 1 << 20, files_in: 1, here: 800 << 20, ..SiteRow::default() },
            ..JobReport::default()
        }
    }

    #[test]
    fn a_page_is_one_file_without_anything_from_elsewhere() {
        let page = page(&sample(), None);
        for outside in ["src=", "href=", "url(", "@import", "http://", "https://"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for said in [
            "Change one setting",
            "3.1 to 6.4 times",
            "tabindex=\"0\"",
            "prefers-color-scheme:dark",
            "width=device-width",
        ] {
            assert!(page.contains(said), "{said}");
        }
    }

    #[test]
    fn names_are_no_markup() {
        let page = page(&sample(), None);
        assert!(
            page.contains("/out/&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39;&amp;"),
            "{page}"
        );
        for markup in ["<script", "</table><b>", "<i>", "onload='"] {
            assert!(!page.contains(markup), "{markup}");
        }
        // It is well formed, so nothing in it was opened that is not closed.
        let body = &page[page.find("<main>").unwrap()..page.find("<footer>").unwrap()];
        assert!(roxmltree::Document::parse(body).is_ok(), "{:?}", roxmltree::Document::parse(body));
    }

    #[test]
    fn it_comes_back_from_json() {
        let report = sample();
        let json = report.to_json(None).unwrap();
        assert_eq!(serde_json::from_str::<JobReport>(&json).unwrap(), report);
    }
}
