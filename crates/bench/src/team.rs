//! The members of a measurement, as the process that leads them starts and hears them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::member_protocol::{GO, MemberMessage, MemberTask};
use crate::{BenchError, BenchResult, Host};

/// A member process. Dropping this kills it.
pub struct Member {
    child: Child,
    socket: BufReader<UnixStream>,
}

impl Member {
    /// Starts a process with a task.
    ///
    /// # Errors
    /// When the system refuses another one.
    pub fn start<T: MemberTask>(host: &Host<'_>, task: &T) -> BenchResult<Member> {
        let refused = || BenchError::system::<std::io::Error>("a process of the measurement");
        let (own, theirs) = UnixStream::pair().map_err(refused())?;
        let mut command = Command::new(&host.own);
        command.args(&host.worker).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn().map_err(refused())?;
        // Dropping it kills: a member whose task could not be sent is not left behind.
        let member = Member { child, socket: BufReader::new(own) };
        // In the form that serde has for the variant of an enum, which is what the worker reads.
        let message = BTreeMap::from([(T::KIND, task)]);
        let mut text =
            serde_json::to_vec(&message).map_err(|error| BenchError::refused("the task", error))?;
        text.push(b'\n');
        member.socket.get_ref().write_all(&text).map_err(refused())?;
        Ok(member)
    }

    /// Its next message.
    ///
    /// # Errors
    /// What failed there, that it ended and said nothing, or that somebody asked to end.
    pub fn hear(&mut self, host: &Host<'_>) -> BenchResult<MemberMessage> {
        // What has been read already makes no socket readable.
        if self.socket.buffer().is_empty() {
            host.interrupts.wait(self.socket.get_ref().as_fd(), None)?;
        }
        let mut text = String::new();
        let heard = self.socket.read_line(&mut text);
        // Ctrl-C reaches the processes before it is seen here.
        host.interrupts.check()?;
        let ended = |why: &dyn std::fmt::Display| BenchError::refused("a process of the measurement", why);
        match heard.map(|_| serde_json::from_str(&text)) {
            Ok(Ok(MemberMessage::Failed(message))) => {
                Err(BenchError::refused("a process of the measurement", message))
            }
            Ok(Ok(said)) => Ok(said),
            Ok(Err(error)) if text.is_empty() => Err(ended(&format_args!("ended early ({error})"))),
            Ok(Err(error)) => Err(ended(&error)),
            Err(error) => Err(ended(&error)),
        }
    }

    fn go(&self) -> BenchResult<()> {
        self.socket.get_ref().write_all(GO).map_err(BenchError::system("a process of the measurement"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs processes with a task each, from barrier to barrier, and returns their outcomes in order.
///
/// # Errors
/// The first failure; then all processes are ended.
pub fn run<T: DeserializeOwned>(host: &Host<'_>, tasks: &[impl MemberTask]) -> BenchResult<Vec<T>> {
    let mut members: Vec<Member> =
        tasks.iter().map(|task| Member::start(host, task)).collect::<BenchResult<_>>()?;
    loop {
        // In order: whoever fails says so, and whoever is killed closes its socket, so none is waited for in vain.
        let heard: Vec<MemberMessage> =
            members.iter_mut().map(|member| member.hear(host)).collect::<BenchResult<_>>()?;
        match step(heard)? {
            None => members.iter().try_for_each(Member::go)?,
            Some(outcomes) => return outcomes.into_iter().map(read).collect(),
        }
    }
}

/// The outcomes, if all have ended; nothing, if all are at a barrier.
fn step(heard: Vec<MemberMessage>) -> BenchResult<Option<Vec<Value>>> {
    let waiting = heard.iter().filter(|said| matches!(said, MemberMessage::Barrier)).count();
    if waiting == heard.len() && waiting > 0 {
        return Ok(None);
    }
    let all = heard.len();
    let outcomes: Vec<Value> = heard
        .into_iter()
        .filter_map(|said| if let MemberMessage::Done(value) = said { Some(value) } else { None })
        .collect();
    if outcomes.len() == all {
        return Ok(Some(outcomes));
    }
    Err(BenchError::refused("the processes of the measurement", "are not at the same barrier"))
}

fn read<T: DeserializeOwned>(value: Value) -> BenchResult<T> {
    serde_json::from_value(value).map_err(|error| BenchError::refused("the outcome of a process", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;
    use serde_json::json;

    #[test]
    fn all_wait_or_all_have_ended() {
        assert_eq!(step(vec![MemberMessage::Barrier, MemberMessage::Barrier]), Ok(None));
        let done = vec![MemberMessage::Done(json!(1)), MemberMessage::Done(json!(2))];
        assert_eq!(step(done), Ok(Some(vec![json!(1), json!(2)])));
        assert_eq!(step(Vec::new()), Ok(Some(Vec::new())));
        let mixed =
            step(vec![MemberMessage::Barrier, MemberMessage::Done(json!(1))]).unwrap_err().to_string();
        assert!(mixed.ends_with("are not at the same barrier"), "{mixed}");
        assert!(step(vec![MemberMessage::Port(1)]).is_err());
    }

    /// A task that nobody reads.
    #[derive(serde::Serialize)]
    struct TestTask;

    impl MemberTask for TestTask {
        const KIND: &'static str = "Test";
    }

    /// A host whose processes are shells that run this.
    fn shell(script: &str) -> Host<'static> {
        Host { own: "/bin/sh".into(), worker: ["-c", script].map(Into::into).into(), ..host() }
    }

    fn tasks(count: usize) -> Vec<TestTask> {
        (0..count).map(|_| TestTask).collect()
    }

    fn failure(script: &str) -> String {
        run::<u64>(&shell(script), &tasks(2)).unwrap_err().to_string()
    }

    #[test]
    fn processes_go_from_barrier_to_barrier_and_return_what_they_found() {
        let script = r#"read task; echo '"Barrier"' >&0; read go; echo "{\"Done\": ${#go}}" >&0"#;
        assert_eq!(run::<u64>(&shell(script), &tasks(3)), Ok(vec![2, 2, 2]));
    }

    #[test]
    fn a_process_that_ends_or_babbles_is_a_failure() {
        assert!(failure("read task").contains("ended early"));
        assert!(failure("echo garbage >&0; read task").contains("expected value"));
        assert!(failure(r#"echo '{"Failed": "disk full"}' >&0; read task"#).ends_with(": disk full"));
        assert!(failure("exec /nonexistent 2>/dev/null").starts_with("a process of the measurement: "));
    }

    #[test]
    fn a_request_to_end_ends_the_processes() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("echo $$ > {}; echo '\"Barrier\"' >&0; exec sleep 1000", pid.display());
        let caught = crate::Interrupts::of(&[signal_hook::consts::SIGURG]).unwrap();
        let host = Host { interrupts: caught, ..shell(&script) };
        let mut member = Member::start(&host, &tasks(1)[0]).unwrap();
        assert!(matches!(member.hear(&host), Ok(MemberMessage::Barrier)));
        signal_hook::low_level::raise(signal_hook::consts::SIGURG).unwrap();
        assert_eq!(member.hear(&host).unwrap_err().kind(), crate::Kind::Interrupted);
        drop(member);
        let pid = std::fs::read_to_string(pid).unwrap();
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn an_outcome_of_another_kind_is_refused() {
        assert_eq!(read::<Vec<u64>>(json!([1, 2])), Ok(vec![1, 2]));
        assert!(read::<Vec<u64>>(json!("x")).is_err());
    }
}
