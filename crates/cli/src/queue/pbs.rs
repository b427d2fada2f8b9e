//! Jobs as reported by PBS: `qstat -f -F json`.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::{Batch, Job, Read, words};

pub const BATCH: Batch = Batch {
    name: "PBS",
    prefix: "pbs:",
    program: "qstat",
    question: |_| question(),
    read: Read::All(jobs),
    see: "qstat",
};

/// The variable of a job's environment that names pools.
const VARIABLE: &str = "BIVOUAC_ANNOUNCE";

/// Returns the command that asks for the jobs of all users: in this form it cannot be asked for those of one. Times are
/// written in the time zone of who asks.
fn question() -> Vec<String> {
    ["env", "TZ=UTC", "qstat", "-f", "-F", "json"].into_iter().map(str::to_owned).collect()
}

fn jobs(text: &str, user: &str) -> Option<Vec<Job>> {
    let said: Value = serde_json::from_str(text).ok()?;
    // Without a job there is no such field.
    let Some(all) = said.get("Jobs") else { return said.get("pbs_version").map(|_| Vec::new()) };
    Some(
        all.as_object()?.iter().filter(|(_, job)| is_of(job, user)).map(|(id, said)| job(id, said)).collect(),
    )
}

/// Returns true if a job is the user's. PBS writes owners as `user@host`.
fn is_of(said: &Value, user: &str) -> bool {
    let owner = said.get("Job_Owner").and_then(Value::as_str);
    owner.is_some_and(|owner| owner.split('@').next() == Some(user))
}

fn job(id: &str, said: &Value) -> Job {
    let text = |key: &str| said.get(key).and_then(Value::as_str);
    let runs = matches!(text("job_state"), Some("R" | "E" | "S" | "U" | "B"));
    let began = said.get("stime").filter(|_| runs).and_then(seconds);
    let expected = said.get("estimated").and_then(|estimated| seconds(estimated.get("start_time")?));
    let count = said.get("run_count").and_then(Value::as_u64).unwrap_or(0);
    // PBS counts the run that is under way as well.
    let restarts = count.saturating_sub(u64::from(runs));
    Job {
        id: id.to_owned(),
        also: id.split_once('.').map(|(number, _)| number.to_owned()),
        start_s: began.or(expected),
        restarts: u32::try_from(restarts).unwrap_or(u32::MAX),
        pools: words(said.get("Variable_List").and_then(|list| list.get(VARIABLE)?.as_str())),
    }
}

/// Reads `Wed Nov 25 16:00:00 2026`, or seconds since 1970.
fn seconds(value: &Value) -> Option<i64> {
    if let Some(seconds) = value.as_i64() {
        return Some(seconds).filter(|seconds| *seconds > 0);
    }
    let text = value.as_str()?;
    let at = DateTime::strptime("%a %b %d %H:%M:%S %Y", text).ok()?;
    at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form that OpenPBS 23 writes.
    const SAID: &str = r#"{"timestamp":1795622400,"pbs_version":"23.06.06","pbs_server":"head","Jobs":{
        "11.head":{"Job_Name":"mesh","Job_Owner":"ann@login1","job_state":"R","queue":"workq","stime":"Wed Nov 25 16:00:00 2026",
            "run_count":2,"Variable_List":{"PBS_O_HOME":"/home/ann","BIVOUAC_ANNOUNCE":"mesh 7/b"},
            "estimated":{"exec_vnode":"(n1:ncpus=1)","start_time":"Wed Nov 25 15:00:00 2026"}},
        "12.head":{"Job_Name":"a","Job_Owner":"ann@login1","job_state":"Q","run_count":1,"stime":"Wed Nov 25 16:00:00 2026",
            "estimated":{"start_time":"Thu Nov 26 00:00:01 2026"}},
        "13[].head":{"Job_Owner":"ann@login1","job_state":"H","estimated":{"start_time":1795622401}},
        "14.head":{"Job_Owner":"anna@login1","job_state":"Q"}}}"#;

    #[test]
    fn what_pbs_says_is_read() {
        let found = jobs(SAID, "ann").unwrap();
        let seen: Vec<(&str, Option<i64>, u32)> =
            found.iter().map(|job| (job.id.as_str(), job.start_s, job.restarts)).collect();
        // The second one was put back into the queue: when it began before says nothing.
        let expected = [
            ("11.head", Some(1_795_622_400), 1),
            ("12.head", Some(1_795_651_201), 1),
            ("13[].head", Some(1_795_622_401), 0),
        ];
        assert_eq!(seen, expected);
        assert_eq!(
            (found[0].also.as_deref(), &found[0].pools[..]),
            (Some("11"), &["mesh".to_owned(), "7/b".into()][..])
        );
        for wrong in ["", "{}", "[]", "qstat: cannot connect to server", "{\"Jobs\": 1}"] {
            assert_eq!(jobs(wrong, "ann"), None, "{wrong}");
        }
        let none = r#"{"timestamp":1,"pbs_version":"23.06.06","pbs_server":"head"}"#;
        assert_eq!(jobs(none, "ann"), Some(Vec::new()));
    }
}
