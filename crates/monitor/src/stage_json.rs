//! Jobs of staging for scripts.

use std::path::Path;

use bivouac_launch::StateDir;
use bivouac_stage::jobs::{JobStatus, Jobs};
use serde_json::{Value, json};

/// Returns a job as `stage status --json` has it.
#[must_use]
pub fn job_json(job: &JobStatus) -> Value {
    let lossy = |path: &Path| path.to_string_lossy().into_owned();
    let ends = job.order.transfers.iter().map(|transfer| job.order.way.absolute(transfer));
    let transfers: Vec<_> = ends.map(|(src, dst)| json!({"src": src, "dst": dst})).collect();
    json!({
        "job": job.number, "way": job.order.way.word(), "state": job.stage.word(), "begun_unix_s": job.begun_secs,
        "files": job.done.files, "files_found": job.found.files, "bytes": job.done.bytes,
        "bytes_found": job.found.bytes, "transfers": transfers, "manifest": job.manifest.as_deref().map(lossy),
    })
}

/// Returns the jobs of a formation that are written down on this host.
pub(crate) fn jobs_json(dir: &StateDir) -> Value {
    Jobs::at(dir.stage_path()).list().iter().map(job_json).collect()
}
