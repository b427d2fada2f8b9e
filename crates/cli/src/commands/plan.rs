//! `bivouac plan`: whether a formation is worth it for a job, and how to form it.

use std::process::ExitCode;

use bivouac_launch::Environment;
use bivouac_plan::{
    Advice, JobWork, LearnedRatios, LearnedStep, Prediction, Seconds, Site, Verdict, formation_file, predict,
};
use bivouac_types::printable;
use bivouac_types::units::{format_count, format_size};
use serde_json::json;

use crate::failure::Failure;
use crate::formation_file;
use crate::options::{PlanAction, PlanArgs};
use crate::planning::{EarlierRuns, SiteFiles, calibrate, earlier, work};

/// Plans a job, measures a site, or forgets what was learned of it.
pub fn run(here: &Environment, args: &PlanArgs) -> Result<ExitCode, Failure> {
    match &args.action {
        Some(PlanAction::Calibrate(calibration)) => {
            let kept = SiteFiles::of(here, &calibration.site)?;
            let site = calibrate(here, calibration)?;
            kept.write(&toml_of(&site, &calibration.dir.display().to_string()))?;
            out!("{}", of_site(&site));
            outln!("written to {}; what it says can be changed there", kept.model.display());
        }
        Some(PlanAction::Reset(reset)) => {
            let kept = SiteFiles::of(here, &reset.site)?;
            let was = if kept.forget()? { "is forgotten" } else { "was nothing" };
            outln!("what runs have taught about {} {was}", kept.model.display());
        }
        None => plan(here, args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(here: &Environment, args: &PlanArgs) -> Result<(), Failure> {
    let kept = SiteFiles::of(here, &args.site)?;
    let (site, learned) = (kept.site()?, kept.learned());
    let before = args.from_report.as_deref().map(earlier).transpose()?;
    let work = work(here, args, before.as_ref().map(|before| &before.work))?;
    let prediction = predict(&site, &learned, &work);
    let mut advice = Advice::of(&work, &prediction);
    if let Some(before) = &before {
        before.advise(&mut advice);
    }
    let verdict = sentence(&work, &prediction);
    let text = formation_file(&advice, &format!("{verdict}\nWritten by bivouac plan."));
    if let Some(path) = &args.write {
        let failed = |e| Failure::new(1, format_args!("{}: {e}; choose another path", path.display()));
        std::fs::write(path, &text).map_err(failed)?;
        // Read as `up` would: a file that it refuses is found here, and not when the job starts.
        formation_file::read(path)?;
    }
    if args.json {
        let all = json!({
            "verdict": verdict,
            "work": work,
            "prediction": prediction,
            "learned": learned,
            "formation": text,
            "reports": before.as_ref().map_or(0, |before| before.reports),
        });
        outln!("{}", crate::output::json(&all, true)?);
    } else {
        outln!("{verdict}");
        out!("{}", said(&work, &prediction, &learned, before.as_ref()));
        match &args.write {
            Some(path) => {
                outln!("formation file: {}; bivouac up --config {}", path.display(), path.display())
            }
            None => out!("\n{text}"),
        }
    }
    Ok(())
}

/// Returns the verdict, with its reason.
fn sentence(work: &JobWork, prediction: &Prediction) -> String {
    let Prediction { with, without, nodes_for_room, .. } = prediction;
    let times = format!("{} with a formation, {} without", time(with.likely), time(without.likely));
    match prediction.verdict {
        Verdict::Use => format!("use it: {times}"),
        Verdict::With { nodes } => {
            let room = nodes_for_room.is_none_or(|least| least >= u64::from(nodes));
            let why = if room { "no room on fewer" } else { "not surely worth it on fewer" };
            format!("only with {nodes} nodes or more ({why}): on {} {times}", work.nodes)
        }
        Verdict::Not => match nodes_for_room {
            None => "do not: the application leaves no memory for it".to_owned(),
            Some(_) => format!("do not: {times}"),
        },
    }
}

fn said(
    work: &JobWork,
    prediction: &Prediction,
    learned: &LearnedRatios,
    before: Option<&EarlierRuns>,
) -> String {
    let between = |seconds: &Seconds| {
        format!("{} ({} to {})", time(seconds.likely), time(seconds.low), time(seconds.high))
    };
    let copy = |seconds: &Seconds, bytes: u64, files: u64| {
        format!("{}, {} in {}", between(seconds), format_size(bytes), format_count(files, "file"))
    };
    let known = |value: Option<String>| value.unwrap_or_else(|| "never".into());
    let mut rows = vec![
        ("start", between(&prediction.start)),
        ("copy in", copy(&prediction.stage_in, work.in_bytes, work.in_files)),
        ("read and write inside", between(&prediction.inside)),
        ("copy out", copy(&prediction.stage_out, work.out_bytes, work.out_files)),
        ("all of it", between(&prediction.with)),
        ("on site storage", between(&prediction.without)),
        (
            "break-even",
            format!(
                "by bandwidth {}; by reads of the input {}",
                known(prediction.break_even_nodes.map(|n| format!("on {n} nodes"))),
                known(prediction.break_even_reads.map(|n| format!("after {n:.1}")))
            ),
        ),
        (
            "memory",
            format!(
                "{} of each node; room {}",
                format_size(prediction.volume_bytes),
                known(prediction.nodes_for_room.map(|n| format!("from {} on", format_count(n, "node"))))
            ),
        ),
        // Adding 0 makes 0 of -0, which would be shown with its sign.
        ("node-hours won", format!("{:.2}", prediction.node_hours_won + 0.0)),
    ];
    rows.extend(before.map(EarlierRuns::rows).unwrap_or_default());
    if work.checkpoints > 0 {
        rows.push(("checkpoints", format!("{} of {}", work.checkpoints, format_size(work.checkpoint_bytes))));
    }
    for (step, name, runs) in [
        (LearnedStep::Start, "start", learned.start.len()),
        (LearnedStep::In, "copies in", learned.input.len()),
        (LearnedStep::Out, "copies out", learned.output.len()),
    ] {
        if let Some([low, middle, high]) = learned.factors(step) {
            rows.push((
                "learned",
                format!(
                    "{name} took {middle:.2} ({low:.2} to {high:.2}) times what was measured, in {runs} runs"
                ),
            ));
        }
    }
    rows.iter().map(|(name, text)| format!("  {name:<22} {text}\n")).collect()
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn of_site(site: &Site) -> String {
    let mut text = String::new();
    for (name, curve) in [("read", &site.storage.read), ("write", &site.storage.write)] {
        for point in curve {
            text.push_str(&format!(
                "{name}, {}: {}/s\n",
                format_count(point.streams.into(), "stream"),
                format_size(point.bytes_per_second as u64)
            ));
        }
    }
    text + &format!(
        "each file: {:.2} ms to read, {:.2} ms to write\nthis node: {}/s, {} of memory\n",
        site.storage.file_read_ms,
        site.storage.file_write_ms,
        format_size(site.node.bytes_per_second as u64),
        format_size(site.node.memory_bytes)
    )
}

/// Returns the model as it is written down, with what each value is. It is written by hand: the crate that reads TOML
/// here writes none.
fn toml_of(site: &Site, dir: &str) -> String {
    let points = |curve: &[bivouac_plan::CurvePoint]| {
        let point = |point: &bivouac_plan::CurvePoint| {
            format!(
                "  {{ streams = {}, bytes_per_second = {:.1} }},\n",
                point.streams, point.bytes_per_second
            )
        };
        curve.iter().map(point).collect::<String>()
    };
    // A line break would end the comment that it is in.
    let dir = printable(dir);
    let Site { storage, node } = site;
    format!(
        "# Measured in {dir}. Rates are bytes per second of all streams together.\n\
         [storage]\nread = [\n{}]\nwrite = [\n{}]\n\
         # Besides its bytes, of one stream.\nfile_read_ms = {:.4}\nfile_write_ms = {:.4}\n\
         # By how much measurements differed, 0 to 1.\nspread = {:.3}\n\n\
         [node]\nbytes_per_second = {:.1}\nmemory_bytes = {}\nstreams = {}\nstart_ms = {:.1}\n",
        points(&storage.read),
        points(&storage.write),
        storage.file_read_ms,
        storage.file_write_ms,
        storage.spread,
        node.bytes_per_second,
        node.memory_bytes,
        node.streams,
        node.start_ms
    )
}
