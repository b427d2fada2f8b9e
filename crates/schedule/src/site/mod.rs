//! A simulated site: jobs of a published model with data to stage before they start, and three policies of sharing
//! bandwidth.
//!
//! Arrivals, nodes and run times: U. Lublin, D. Feitelson, "The workload on parallel supercomputers: modeling the
//! characteristics of rigid jobs", J. Parallel and Distributed Computing 63(11), 2003; their parameters for all jobs
//! together, on 128 nodes. A queue starts them first come, first served. Sizes of files: N. Agrawal, A. Arpaci-Dusseau,
//! R. Arpaci-Dusseau, "Generating realistic Impressions for file-system benchmarking", FAST 2009: log-normal with a
//! Pareto tail. Not published, and so assumed: bytes are a part of the memory of the job's nodes, 64 GiB each,
//! log-uniform from 0.1 % to 100 %; users are 50, Zipf-distributed, and have at most 75 %; a job that the queue would
//! start at once waits for its data at most four times what that takes alone; a stage takes 0.8 to 1.2 of the time that
//! its rate says.

mod jobs;
mod random;
mod share;

pub use jobs::{Job, jobs};
pub use share::{DeadlineStats, SharingPolicy, simulate};

/// Largest share of one user, in percent.
const USER_PERCENT: u32 = 75;
/// Cost of a file, in bytes.
const FILE_BYTES: u64 = 64 << 10;

/// Simulates the jobs of a seed under each policy. The load is the fraction of the bandwidth that their data needs from
/// the first arrival to the last start.
#[must_use]
pub fn site(seed: u64, count: usize, load: f64) -> [(SharingPolicy, DeadlineStats); 3] {
    let jobs = jobs(seed, count);
    let work: u64 = jobs.iter().map(|job| job.work).sum();
    let begin_s = jobs.iter().map(|job| job.arrival_s).min().unwrap_or(0);
    let end_s = jobs.iter().map(|job| job.start_s).max().unwrap_or(1);
    let bandwidth = work as f64 / ((end_s - begin_s).max(1) as f64 * load);
    let limits = crate::Limits { bandwidth: bandwidth as u64, user_percent: USER_PERCENT, file_bytes: 0 };
    SharingPolicy::ALL.map(|way| (way, simulate(seed, &jobs, limits, way)))
}
