//! Work of a job, by options, by a file, by a scan of its input, and by earlier runs.

use bivouac_hosts::hosts_of_job;
use bivouac_launch::Environment;
use bivouac_plan::JobWork;
use serde::Deserialize;

use super::{Amount, scan};
use crate::failure::Failure;
use crate::options::PlanArgs;

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
    scratch: Option<String>,
    scratch_files: Option<u64>,
    scratch_reads: Option<u32>,
    run_time: Option<String>,
    memory: Option<String>,
}

/// Returns the work of a job: options override the file, and that overrides earlier runs.
pub fn work(here: &Environment, args: &PlanArgs, before: Option<&JobWork>) -> Result<JobWork, Failure> {
    let file = job_file(args)?;
    let of_job = hosts_of_job(here, 1)?.map(|(_, hosts)| u32::try_from(hosts.len()).unwrap_or(u32::MAX));
    let base = before.cloned().unwrap_or(JobWork { nodes: 1, reads: 1.0, ..JobWork::default() });
    let nodes = args.nodes.or(file.nodes).or(of_job).unwrap_or(base.nodes).max(1);
    let mut work = JobWork { nodes, ..base };
    if let Some(reads) = args.reads.or(file.reads) {
        work.reads = f64::from(reads);
    }
    if let Some(memory) = size(args.memory, "memory", &file.memory)? {
        work.memory_bytes = memory;
    }
    input(&mut work, args, &file)?;
    output(&mut work, args, &file)?;
    checkpoints(&mut work, args, &file)?;
    if work.in_bytes == 0
        && work.in_files == 0
        && work.out_bytes == 0
        && work.checkpoints == 0
        && work.scratch_bytes == 0
    {
        let cause = "the job reads and writes nothing, so there is nothing to plan";
        let remedy = "say what it does: --scan, --in-bytes, --out-bytes, --scratch, --checkpoint with --checkpoint-every and \
                      --run-time, --job, or --from-report";
        return Err(Failure::new(2, format_args!("{cause}; {remedy}")));
    }
    Ok(work)
}

fn input(work: &mut JobWork, args: &PlanArgs, file: &JobFile) -> Result<(), Failure> {
    let found = if args.scan.is_empty() { None } else { Some(scan(&args.scan)?) };
    let bytes = size(args.in_bytes, "in-bytes", &file.in_bytes)?;
    let files = args.in_files.or(file.in_files);
    let said = bytes.map(|bytes| Amount { bytes, files: files.unwrap_or(bytes.min(1)) });
    if let Some(amount) = found.or(said) {
        (work.in_bytes, work.in_files) = (amount.bytes, amount.files);
    } else if let Some(files) = files {
        work.in_files = files;
    }
    Ok(())
}

/// Results, and what it writes for itself.
fn output(work: &mut JobWork, args: &PlanArgs, file: &JobFile) -> Result<(), Failure> {
    if let Some(bytes) = size(args.out_bytes, "out-bytes", &file.out_bytes)? {
        (work.out_bytes, work.out_files) = (bytes, bytes.min(1));
    }
    if let Some(files) = args.out_files.or(file.out_files) {
        work.out_files = files;
    }
    let reads = args.scratch_reads.or(file.scratch_reads);
    if let Some(bytes) = size(args.scratch, "scratch", &file.scratch)? {
        (work.scratch_bytes, work.scratch_files) = (bytes, bytes.min(1));
        work.scratch_read_bytes = bytes.saturating_mul(reads.unwrap_or(1).into());
    } else if let Some(reads) = reads {
        work.scratch_read_bytes = work.scratch_bytes.saturating_mul(reads.into());
    }
    if let Some(files) = args.scratch_files.or(file.scratch_files) {
        work.scratch_files = files;
    }
    Ok(())
}

fn checkpoints(work: &mut JobWork, args: &PlanArgs, file: &JobFile) -> Result<(), Failure> {
    let every = time(args.checkpoint_every.map(|t| t.0), "checkpoint-every", &file.checkpoint_every)?;
    if let Some(run_ms) = time(args.run_time.map(|t| t.0), "run-time", &file.run_time)? {
        work.run_seconds = run_ms as f64 / 1000.0;
    }
    let Some(bytes) = size(args.checkpoint, "checkpoint", &file.checkpoint)? else { return Ok(()) };
    (work.checkpoint_bytes, work.checkpoint_files) = (bytes, u64::from(work.nodes));
    work.checkpoints = match (bytes, every) {
        (0, _) => 0,
        (_, None | Some(0)) => 1,
        (_, Some(every)) => (work.run_seconds * 1000.0) as u64 / every,
    };
    Ok(())
}

fn size(given: Option<u64>, key: &str, text: &Option<String>) -> Result<Option<u64>, Failure> {
    read(given, key, text, bivouac_types::units::parse_size)
}

fn time(given: Option<u64>, key: &str, text: &Option<String>) -> Result<Option<u64>, Failure> {
    read(given, key, text, bivouac_types::units::parse_duration_ms)
}

/// Returns a value of an option, or of the file.
fn read(
    given: Option<u64>,
    key: &str,
    text: &Option<String>,
    parse: impl Fn(&str) -> Result<u64, String>,
) -> Result<Option<u64>, Failure> {
    let wrong = |cause| Failure::new(2, format_args!("--job: {key}: {cause}"));
    match (given, text) {
        (None, Some(text)) => parse(text).map(Some).map_err(wrong),
        (given, _) => Ok(given),
    }
}

fn job_file(args: &PlanArgs) -> Result<JobFile, Failure> {
    let Some(path) = &args.job else { return Ok(JobFile::default()) };
    let failed = |code, cause: String| Failure::new(code, format_args!("{}: {cause}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| failed(1, format!("{e}; check its path")))?;
    toml::from_str(&text).map_err(|error| failed(2, error.to_string()))
}
