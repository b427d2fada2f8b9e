//! Slots for staging at a simulated site: a table, and the picture of the docs.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use bivouac_schedule::site::{DeadlineStats, SharingPolicy, site};

const LOADS: [f64; 9] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
const COLOURS: [&str; 3] = ["#1a6fb0", "#c25b12", "#7a7a7a"];
const PICTURE: &str = "docs/performance/slots.svg";
/// The picture, and its room for words.
const SIZE: (f64, f64) = (640.0, 320.0);
const MARGIN: (f64, f64) = (60.0, 30.0);

/// Runs all loads.
pub fn run(root: &Path, arguments: &[String]) -> ExitCode {
    let number = |place: usize, default: u64| match arguments.get(place) {
        Some(text) => text.parse().ok(),
        None => Some(default),
    };
    let (Some(seed), Some(jobs)) = (number(0, 1), number(1, 5000)) else {
        eprintln!("site: seed and jobs are numbers");
        return ExitCode::from(2);
    };
    let jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    println!(
        "seed {seed}, {jobs} jobs: deadlines met in per cent (the others late on average by; promises kept)"
    );
    for load in LOADS {
        let ways = site(seed, jobs, load);
        let shown: Vec<String> = ways.iter().map(|(way, met)| said(*way, met)).collect();
        println!("load {load:.1}  {}", shown.join("  "));
        all.push((load, ways.map(|(_, met)| met.part)));
    }
    match std::fs::write(root.join(PICTURE), picture(&all, jobs)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{PICTURE}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn said(way: SharingPolicy, met: &DeadlineStats) -> String {
    let kept = met.kept.map_or_else(String::new, |kept| format!("; {:.2} %", kept * 100.0));
    format!("{}: {:.1} ({:.0} min{kept})", way.word(), met.part * 100.0, met.late_s / 60.0)
}

fn picture(all: &[(f64, [f64; 3])], jobs: usize) -> String {
    let ((width, height), (left, top)) = (SIZE, MARGIN);
    let x = |load: f64| left + load * (width - 2.0 * left);
    let y = |part: f64| top + (1.0 - part) * (height - 3.0 * top);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for tenth in (0..=10).step_by(2) {
        let part = f64::from(tenth) / 10.0;
        let (at, below) = (y(part), y(0.0));
        let _ = writeln!(
            text,
            "<path d=\"M{left} {at:.0}H{:.0}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{} %</text>\n\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{part}</text>",
            x(1.0),
            left - 6.0,
            at + 4.0,
            tenth * 10,
            x(part),
            below + 16.0
        );
    }
    for ((way, colour), place) in SharingPolicy::ALL.iter().zip(COLOURS).zip(0_u8..) {
        let at = |(load, parts): &(f64, [f64; 3])| {
            let part = parts.get(usize::from(place)).copied().unwrap_or(0.0);
            format!("{:.1},{:.1}", x(*load), y(part))
        };
        let points: Vec<String> = all.iter().map(at).collect();
        let (label, row) = (x(0.05), y(0.45) + 16.0 * f64::from(place));
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{label:.0}\" y=\"{row:.0}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            way.word()
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{left}\" y=\"18\">data there when the job starts, {jobs} jobs</text>\n\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">load of site storage</text>\n</svg>",
        x(0.5),
        height - 14.0
    );
    text
}
