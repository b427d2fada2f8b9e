//! `bivouac plan`: whether a formation is worth it for a job, and how to form it.

use std::process::ExitCode;

use bivouac_launch::Environment;
use bivouac_launch::hosts::Launcher;
use bivouac_plan::{
    Advice, Learned, Prediction, Seconds, Site, Step, Verdict, Work, formation_file, predict,
};
use bivouac_types::units::{format_count, format_size};
use serde::Deserialize;
use serde_json::json;

use crate::failure::Failure;
use crate::formation_file;
use crate::options::{PlanAction, PlanArgs};
use crate::planning::{Amount, Kept, calibrate, scan};

/// Plans a job, measures a site, or forgets what was learned of it.
pub fn run(here: &Environment, args: &PlanArgs) -> Result<ExitCode, Failure> {
    match &args.action {
        Some(PlanAction::Calibrate(calibration)) => {
            let kept = Kept::of(here, &calibration.site)?;
            let site = calibrate(here, calibration)?;
            kept.write(&toml_of(&site, &calibration.dir.display().to_string()))?;
            out!("{}", of_site(&site));
            outln!("written to {}; what it says can be changed there", kept.model.display());
        }
        Some(PlanAction::Reset(reset)) => {
            let kept = Kept::of(here, &reset.site)?;
            let was = if kept.forget()? { "is forgotten" } else { "was nothing" };
            outln!("what runs have taught about {} {was}", kept.model.display());
        }
        None => plan(here, args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(here: &Environment, args: &PlanArgs) -> Result<(), Failure> {
    let kept = Kept::of(here, &args.site)?;
    let (site, learned) = (kept.site()?, kept.learned());
    let work = work(here, args)?;
    let prediction = predict(&site, &learned, &work);
    let advice = Advice::of(&work, &prediction);
    let verdict = sentence(&work, &prediction);
    let text = formation_file(&advice, &format!("{verdict}\nWritten by bivouac plan."));
    if let Some(path) = &args.write {
        let failed = |e| Failure::new(1, format_args!("{}: {e}; choose another path", path.display()));
        std::fs::write(path, &text).map_err(failed)?;
        formation_file::read(path)?;
    }
    if args.json {
        let all = json!({
            "verdict": verdict,
            "work": work,
            "prediction": prediction,
            "learned": learned,
            "formation": text,
        });
        outln!("{}", serde_json::to_string_pretty(&all).map_err(std::io::Error::from)?);
    } else {
        outln!("{verdict}");
        out!("{}", said(&work, &prediction, &learned));
        match &args.write {
            Some(path) => {
                outln!("formation file: {}; bivouac up --config {}", path.display(), path.display())
            }
            None => out!("\n{text}"),
        }
    }
    Ok(())
}

/// A job as TOML.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct JobFile {
    nodes: Option<u32>,
    in_bytes: Option<String>,
    in_files: Option<u64>,
    reads: Option<u32>,
    out_bytes: Option<String>,
    out_files: Option<u64>,
    checkpoint: Option<String>,
    checkpoint_every: Option<String>,
    run_time: Option<String>,
    memory: Option<String>,
}

fn work(here: &Environment, args: &PlanArgs) -> Result<Work, Failure> {
    let file = job_file(args)?;
    let size = |given: Option<u64>, key: &str, text: &Option<String>| match (given, text) {
        (Some(bytes), _) => Ok(bytes),
        (None, Some(text)) => bivouac_types::units::parse_size(text)
            .map_err(|cause| Failure::new(2, format_args!("--job: {key}: {cause}"))),
        (None, None) => Ok(0),
    };
    let time = |given: Option<u64>, key: &str, text: &Option<String>| match (given, text) {
        (Some(ms), _) => Ok(ms),
        (None, Some(text)) => bivouac_types::units::parse_duration_ms(text)
            .map_err(|cause| Failure::new(2, format_args!("--job: {key}: {cause}"))),
        (None, None) => Ok(0),
    };
    let scanned = if args.scan.is_empty() { None } else { Some(scan(&args.scan)?) };
    let in_bytes = size(args.in_bytes, "in-bytes", &file.in_bytes)?;
    let given = Amount { bytes: in_bytes, files: args.in_files.or(file.in_files).unwrap_or(in_bytes.min(1)) };
    let input = scanned.unwrap_or(given);
    let out_bytes = size(args.out_bytes, "out-bytes", &file.out_bytes)?;
    let checkpoint_bytes = size(args.checkpoint, "checkpoint", &file.checkpoint)?;
    let every = time(args.checkpoint_every.map(|t| t.0), "checkpoint-every", &file.checkpoint_every)?;
    let run_ms = time(args.run_time.map(|t| t.0), "run-time", &file.run_time)?;
    let of_job = Launcher::of_job(here, 1)?.map(|(_, hosts)| u32::try_from(hosts.len()).unwrap_or(u32::MAX));
    let nodes = args.nodes.or(file.nodes).or(of_job).unwrap_or(1).max(1);
    let checkpoints = match (checkpoint_bytes, every) {
        (0, _) => 0,
        (_, 0) => 1,
        (_, every) => run_ms / every,
    };
    let work = Work {
        nodes,
        in_bytes: input.bytes,
        in_files: input.files,
        reads: f64::from(args.reads.or(file.reads).unwrap_or(1)),
        out_bytes,
        out_files: args.out_files.or(file.out_files).unwrap_or(out_bytes.min(1)),
        checkpoint_bytes,
        checkpoint_files: u64::from(nodes),
        checkpoints,
        memory_bytes: size(args.memory, "memory", &file.memory)?,
        run_seconds: run_ms as f64 / 1000.0,
    };
    if work.in_bytes == 0 && work.in_files == 0 && work.out_bytes == 0 && work.checkpoints == 0 {
        let cause = "the job reads and writes nothing, so there is nothing to plan";
        let remedy = "say what it does: --scan, --in-bytes, --out-bytes, --checkpoint with --checkpoint-every and --run-time, or --job";
        return Err(Failure::new(2, format_args!("{cause}; {remedy}")));
    }
    Ok(work)
}

fn job_file(args: &PlanArgs) -> Result<JobFile, Failure> {
    let Some(path) = &args.job else { return Ok(JobFile::default()) };
    let failed = |code, cause: String| Failure::new(code, format_args!("{}: {cause}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| failed(1, format!("{e}; check its path")))?;
    toml::from_str(&text).map_err(|error| failed(2, error.to_string()))
}

/// The verdict, with its reason.
fn sentence(work: &Work, prediction: &Prediction) -> String {
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

fn said(work: &Work, prediction: &Prediction, learned: &Learned) -> String {
    let between = |seconds: &Seconds| {
        format!("{} ({} to {})", time(seconds.likely), time(seconds.low), time(seconds.high))
    };
    let known = |value: Option<String>| value.unwrap_or_else(|| "never".into());
    let mut rows = vec![
        ("start", between(&prediction.start)),
        (
            "copy in",
            format!(
                "{}, {} in {}",
                between(&prediction.stage_in),
                format_size(work.in_bytes),
                format_count(work.in_files, "file")
            ),
        ),
        ("read and write inside", between(&prediction.inside)),
        (
            "copy out",
            format!(
                "{}, {} in {}",
                between(&prediction.stage_out),
                format_size(work.out_bytes),
                format_count(work.out_files, "file")
            ),
        ),
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
        ("node-hours won", format!("{:.2}", prediction.node_hours_won + 0.0)),
    ];
    if work.checkpoints > 0 {
        rows.push(("checkpoints", format!("{} of {}", work.checkpoints, format_size(work.checkpoint_bytes))));
    }
    for (step, name, runs) in [
        (Step::Start, "start", learned.start.len()),
        (Step::In, "copies in", learned.input.len()),
        (Step::Out, "copies out", learned.output.len()),
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

/// The model as it is written down, with what each value is. It is written by hand: the crate that reads TOML here writes none.
fn toml_of(site: &Site, dir: &str) -> String {
    let points = |curve: &[bivouac_plan::Point]| {
        let point = |point: &bivouac_plan::Point| {
            format!(
                "  {{ streams = {}, bytes_per_second = {:.1} }},\n",
                point.streams, point.bytes_per_second
            )
        };
        curve.iter().map(point).collect::<String>()
    };
    let dir: String = dir.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
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
