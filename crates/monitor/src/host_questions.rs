//! Questions to the hosts of a formation: for their logs and their jobs of staging. Any node of a host answers for it.

use std::collections::BTreeMap;
use std::time::Duration;

use bivouac_client::Client;
use bivouac_launch::{FormationState, LaunchResult, LogFile, StateDir, parallel_map};
use bivouac_types::{Errno, FsError, FsResult, NodeId};
use bivouac_wire::HostQuestion;
use serde::Deserialize;
use serde_json::Value;

use crate::connection::connect;
use crate::stage_json::jobs_json;

/// Time that a host may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// The request.
const LOGS: &str = "logs";
const LOG: &str = "log/";
const STAGES: &str = "stages";
/// Most answers that are put together for one list: no host has so much to say.
const ANSWERS_MAX: usize = 4096;

/// Answers what somebody of the formation asks of this host.
///
/// # Errors
/// `EOPNOTSUPP` of what is not known; what the system says.
pub fn answer_question(dir: &StateDir, question: &HostQuestion<'_>) -> FsResult<Vec<u8>> {
    let most = usize::try_from(question.most).unwrap_or(0);
    match std::str::from_utf8(question.what).unwrap_or_default() {
        LOGS => Ok(serde_json::to_vec(&dir.log_files()?).unwrap_or_default()),
        STAGES => Ok(stages(&jobs_json(dir), question.offset, most)),
        what => match what.strip_prefix(LOG).filter(|name| LogFile::is_name(name)) {
            Some(name) => dir.read_log(name, question.offset, most),
            None => Err(Errno::EOPNOTSUPP.into()),
        },
    }
}

/// Jobs whose numbers are behind one, as many as there is room for. Of one with very many transfers these are left out.
fn stages(jobs: &Value, behind: u64, most: usize) -> Vec<u8> {
    let mut all: Vec<Value> = Vec::new();
    // An empty list takes two bytes, its brackets.
    let mut room = most.saturating_sub(2);
    for job in jobs.as_array().into_iter().flatten() {
        if job.get("job").and_then(Value::as_u64).unwrap_or(0) <= behind {
            continue;
        }
        let mut job = job.clone();
        if job.to_string().len() > most / 2 {
            job["transfers"] = Value::Array(Vec::new());
        }
        // One byte for the comma; what has no room comes with the next question, behind the last number.
        let Some(left) = room.checked_sub(job.to_string().len() + 1) else { break };
        room = left;
        all.push(job);
    }
    Value::Array(all).to_string().into_bytes()
}

/// Returns the formation's directory on a node's host, by the node's socket in it. Hosts of one name, as a test or
/// containers have them on one machine, have directories of their own.
pub(crate) fn host_dir(socket: &str) -> &str {
    socket.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Hosts of a formation over several, each with its nodes.
pub struct Hosts(Vec<(String, Vec<NodeId>)>);

impl Hosts {
    /// Returns the hosts of a formation, without the one that has the nodes `but`; `None` for a formation on one host,
    /// or one that does not run.
    pub fn of(dir: &StateDir, state: &FormationState, but: &[u16]) -> Option<Hosts> {
        // A part says nothing of other hosts, but the map that it was given names all nodes.
        let is_over_hosts = state.is_over_hosts() || state.part.is_some();
        let map = (is_over_hosts && dir.is_held()).then(|| state.map()).flatten()?;
        let mut hosts: BTreeMap<(String, String), Vec<NodeId>> = BTreeMap::new();
        for (node, entry) in map.nodes.iter().enumerate().filter(|(_, entry)| !entry.is_withdrawn()) {
            let known = hosts.entry((entry.host.clone(), host_dir(&entry.unix_path).to_owned())).or_default();
            known.push(NodeId(u16::try_from(node).unwrap_or(u16::MAX)));
        }
        hosts.retain(|_, nodes| !nodes.iter().any(|node| but.contains(&node.0)));
        let hosts = hosts.into_iter().map(|((host, _), nodes)| (host, nodes));
        Some(Hosts(hosts.collect())).filter(|hosts| !hosts.0.is_empty())
    }

    /// Returns a client for asking them, if no other is at hand.
    ///
    /// # Errors
    /// When secret or map cannot be used.
    pub fn client(dir: &StateDir, state: &FormationState) -> LaunchResult<Client> {
        connect(dir, state, ANSWER_WAIT)
    }

    /// Asks every host at the same time: its name, and what came of it.
    pub fn each<T: Send>(
        &self,
        client: &Client,
        ask: impl Fn(&Host<'_>) -> FsResult<T> + Sync,
    ) -> Vec<(&str, FsResult<T>)> {
        let answers = parallel_map(&self.0, |(_, nodes)| ask(&Host { client, nodes }));
        assert_eq!(answers.len(), self.0.len(), "answers are told by the position of their hosts");
        let names = self.0.iter().map(|(name, _)| name.as_str());
        names
            .zip(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(Errno::EIO.into()))))
            .collect()
    }

    /// Jobs of staging of all of them, each with the name of its host; and the hosts that do not answer, with why.
    pub fn stages(&self, client: &Client) -> (Vec<Value>, Vec<(String, String)>) {
        let (mut jobs, mut silent) = (Vec::new(), Vec::new());
        for (host, answer) in self.each(client, |host| host.stages()) {
            match answer {
                Ok(list) => jobs.extend(list.into_iter().map(|job| on_host(job, host))),
                Err(error) => silent.push((host.to_owned(), error.to_string())),
            }
        }
        (jobs, silent)
    }
}

/// Returns a job with the name of the host that has it.
pub fn on_host(mut job: Value, host: &str) -> Value {
    if let Some(job) = job.as_object_mut() {
        job.insert("host".to_owned(), host.into());
    }
    job
}

/// A host of a formation.
pub struct Host<'a> {
    client: &'a Client,
    /// Its nodes, of which any answers.
    pub nodes: &'a [NodeId],
}

impl Host<'_> {
    fn ask(&self, what: &str, offset: u64) -> FsResult<Vec<u8>> {
        let mut last = FsError::new(Errno::EIO);
        for node in self.nodes {
            match self.client.nodes().ask_host(*node, what, offset) {
                Ok(bytes) => return Ok(bytes),
                // It answers, and so would the others.
                Err(error) if !matches!(error.errno(), Errno::EIO | Errno::ETIMEDOUT) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the logs that it has.
    pub fn logs(&self) -> FsResult<Vec<LogFile>> {
        let found: Vec<LogFile> = decoded(&self.ask(LOGS, 0)?)?;
        Ok(found.into_iter().filter(|log| LogFile::is_name(&log.name)).collect())
    }

    /// Returns a piece of a log.
    pub fn log(&self, name: &str, offset: u64) -> FsResult<Vec<u8>> {
        self.ask(&format!("{LOG}{name}"), offset)
    }

    fn stages(&self) -> FsResult<Vec<Value>> {
        let mut all: Vec<Value> = Vec::new();
        for _ in 0..ANSWERS_MAX {
            let last = all.last().and_then(|job| job.get("job")?.as_u64()).unwrap_or(0);
            let some: Vec<Value> = decoded(&self.ask(STAGES, last)?)?;
            // A host that repeats itself, or counts backwards, would be asked for ever.
            let goes_on =
                some.last().and_then(|job| job.get("job")?.as_u64()).is_some_and(|next| next > last);
            if !goes_on {
                break;
            }
            all.extend(some);
        }
        Ok(all)
    }
}

fn decoded<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> FsResult<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| FsError::with(Errno::EIO, format!("its answer makes no sense: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn asked(dir: &Path, what: &str, offset: u64, most: u32) -> FsResult<Vec<u8>> {
        answer_question(&StateDir::at(dir.to_owned()), &HostQuestion { what: what.as_bytes(), offset, most })
    }

    #[test]
    fn logs_are_told_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in
            [("n0.log", "one\ntwo\n"), ("secret", "s"), ("state.json", "{}"), ("a.b.log", "x")]
        {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        std::fs::write(dir.path().join("secret.log.txt"), "s").unwrap();
        let listed = String::from_utf8(asked(dir.path(), LOGS, 0, 1000).unwrap()).unwrap();
        assert_eq!(listed, r#"[{"name":"n0","len":8}]"#);
        assert_eq!(asked(dir.path(), "log/n0", 4, 1000).unwrap(), b"two\n");
        assert_eq!(asked(dir.path(), "log/n0", 0, 3).unwrap(), b"one");
        assert_eq!(asked(dir.path(), "log/n0", u64::MAX, 3).unwrap(), b"");
        assert_eq!(asked(dir.path(), "log/n1", 0, 3).unwrap_err().errno(), Errno::ENOENT);
        for wrong in ["", "log/", "log/../secret", "log/a.b", "log//etc/x", "log/secret\0", "secret", "log"] {
            assert_eq!(asked(dir.path(), wrong, 0, 9).unwrap_err().errno(), Errno::EOPNOTSUPP, "{wrong:?}");
        }
        assert_eq!(
            answer_question(
                &StateDir::at(dir.path().to_owned()),
                &HostQuestion { what: &[0xff], offset: 0, most: 9 }
            )
            .unwrap_err()
            .errno(),
            Errno::EOPNOTSUPP
        );
    }

    #[test]
    fn jobs_come_in_answers_that_fit() {
        let many: Vec<Value> = (0..9).map(|at| json!({"src": format!("/{at}"), "dst": "/"})).collect();
        let jobs = json!([
            {"job": 1, "bytes": 5, "transfers": []}, {"job": 2, "transfers": many}, {"job": 3, "transfers": []},
        ]);
        let numbers = |behind, most| {
            let list: Vec<Value> = serde_json::from_slice(&stages(&jobs, behind, most)).unwrap();
            list.iter().map(|job| job["job"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0, 4096), [1, 2, 3]);
        assert_eq!((numbers(0, 80), numbers(2, 80), numbers(3, 80)), (vec![1, 2], vec![3], vec![]));
        assert!(stages(&jobs, 0, 80).len() <= 80);
        assert_eq!(numbers(0, 0), [0_u64; 0]);
    }
}
