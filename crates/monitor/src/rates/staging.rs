//! Jobs of staging that are under way, and how fast they copy.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::interval::grown;

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobRates {
    /// The host that it copies on, in a formation over several.
    pub host: Option<String>,
    /// Its number there.
    pub job: u64,
    /// `in` or `out`.
    pub way: String,
    /// Files that are copied, and that were found so far.
    pub files: u64,
    /// See there.
    pub files_found: u64,
    /// Bytes that are copied, and that were found so far.
    pub bytes: u64,
    /// See there.
    pub bytes_found: u64,
    /// Bytes that were copied, per second.
    pub pace: f64,
}

/// Bytes that each job has copied at a look, by host and number.
#[derive(Default)]
pub struct StagedBytes(HashMap<(Option<String>, u64), u64>);

impl StagedBytes {
    /// Returns the jobs under way with their rates since the last look, `seconds` ago.
    pub fn next(&mut self, jobs: &[Value], seconds: f64) -> Vec<JobRates> {
        assert!(seconds > 0.0, "rates over {seconds} s");
        let running = jobs.iter().filter(|job| job["state"] == "running");
        let mut rates: Vec<JobRates> = running.map(job).collect();
        let key = |job: &JobRates| (job.host.clone(), job.job);
        let now = rates.iter().map(|job| (key(job), job.bytes)).collect();
        for job in &mut rates {
            // One that was resumed looks first at what is there.
            let before = self.0.get(&key(job)).copied().unwrap_or(job.bytes);
            job.pace = grown(job.bytes, before) as f64 / seconds;
        }
        self.0 = now;
        rates
    }
}

fn job(told: &Value) -> JobRates {
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    JobRates {
        host: told["host"].as_str().map(str::to_owned),
        job: number("job"),
        way: told["way"].as_str().unwrap_or_default().to_owned(),
        files: number("files"),
        files_found: number("files_found"),
        bytes: number("bytes"),
        bytes_found: number("bytes_found"),
        pace: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn jobs_under_way_have_a_pace_from_the_second_look_on() {
        let told = |host: &str, state: &str, bytes: u64| {
            json!({"host": host, "job": 1, "way": "in", "state": state, "files": 1, "files_found": 4,
                "bytes": bytes, "bytes_found": 9000})
        };
        let mut copied = StagedBytes::default();
        let first = copied.next(&[told("a", "running", 1000), told("b", "done", 9)], 2.0);
        assert_eq!((first.len(), first[0].pace, first[0].files_found), (1, 0.0, 4));
        let next = copied.next(&[told("a", "running", 5000), told("b", "running", 9)], 2.0);
        let said: Vec<_> = next.iter().map(|job| (job.host.as_deref().unwrap(), job.pace)).collect();
        assert_eq!(said, [("a", 2000.0), ("b", 0.0)]);
    }
}
