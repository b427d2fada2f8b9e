//! Jobs as reported by Flux: `flux jobs --json`.

use serde_json::Value;

use super::{Batch, Job, Read, words};

pub const BATCH: Batch = Batch {
    name: "Flux",
    prefix: "flux:",
    program: "flux",
    question,
    read: Read::Own(jobs),
    see: "flux jobs",
};

/// More than any user has, so that no job is left out.
const COUNT: &str = "--count=1000000";
/// The note of a job (`flux job memo`) that names pools.
const NOTE: &str = "bivouac-announce";

fn question(uid: u32) -> Vec<String> {
    let words = ["flux", "jobs", "--json", "--filter=pending,running", COUNT];
    words.into_iter().map(str::to_owned).chain([format!("--user={uid}")]).collect()
}

fn jobs(text: &str) -> Option<Vec<Job>> {
    let said: Value = serde_json::from_str(text).ok()?;
    Some(said.get("jobs")?.as_array()?.iter().filter_map(job).collect())
}

fn job(said: &Value) -> Option<Job> {
    let seconds =
        |value: Option<&Value>| value.and_then(Value::as_f64).filter(|at| *at > 0.0).map(|at| at as i64);
    let notes = said.get("annotations");
    let expected = notes.and_then(|notes| notes.get("sched")?.get("t_estimate"));
    let pools = notes.and_then(|notes| notes.get("user")?.get(NOTE)?.as_str());
    Some(Job {
        id: said.get("id")?.as_u64()?.to_string(),
        also: said.get("jobid").and_then(Value::as_str).map(str::to_owned),
        start_s: seconds(said.get("t_run")).or(seconds(expected)),
        // A job of Flux runs once: it is not put back into the queue.
        restarts: 0,
        pools: words(pools),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form that flux-core 0.89 writes.
    const SAID: &str = r#"{"jobs": [
        {"t_depend": 1791485339.36, "t_run": 1791485339.38, "duration": 0.0, "expiration": 9223372036.0, "name": "sleep",
         "ntasks": 1, "id": 91088924704768, "t_submit": 1791485339.34, "state": "RUN", "username": "u", "userid": 1002,
         "jobid": "ƒiFkbMhFM", "annotations": {"sched": {"selection_type": "immediate"}, "user": {"bivouac-announce": "mesh 7/b"}},
         "exception": {"occurred": false}},
        {"t_depend": 1791485339.84, "name": "sh", "id": 91096977768448, "t_submit": 1791485339.82, "state": "SCHED",
         "jobid": "ƒiFxrykWs", "annotations": {"sched": {"t_estimate": 1791489000.5}}},
        {"name": "held", "id": 91096977768449, "jobid": "ƒiFxrykWt", "state": "PRIORITY", "annotations": {"sched": {"t_estimate": 0}}},
        {"name": "no id"}]}"#;

    #[test]
    fn what_flux_says_is_read() {
        let found = jobs(SAID).unwrap();
        let seen: Vec<(&str, Option<i64>)> = found.iter().map(|job| (job.id.as_str(), job.start_s)).collect();
        let expected = [
            ("91088924704768", Some(1_791_485_339)),
            ("91096977768448", Some(1_791_489_000)),
            ("91096977768449", None),
        ];
        assert_eq!(seen, expected);
        assert_eq!((found[0].also.as_deref(), found[0].pools.len()), (Some("ƒiFkbMhFM"), 2));
        assert!(found[1].pools.is_empty());
        for wrong in ["", "{}", "[]", "flux-jobs: ERROR: Unable to connect", "{\"jobs\": 1}"] {
            assert_eq!(jobs(wrong), None, "{wrong}");
        }
        assert_eq!(jobs("{\"jobs\": []}"), Some(Vec::new()));
    }
}
