//! Programs that are run for what they say: on this machine, and this program on all hosts, once.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::environment::Environment;
use crate::hex::to_hex;
use crate::hosts::{HostArg, Launcher, inquiry_calls};
use crate::random::random_bytes;
use crate::{LaunchError, LaunchResult};

/// Most bytes that are heard of one program.
const HEARD_MAX: usize = 256 << 20;
/// Launchers that run at the same time, where there is one for each host.
const AT_ONCE: usize = 64;
/// What a line begins with that is part of an answer, behind whatever a launcher puts in front of it.
const MARK: &str = "bivouac-says ";
/// Bytes of an answer in one line: launchers that put lines of several hosts together keep short ones whole.
const LINE_MAX: usize = 900;
/// Where programs are that only administrators have in their search path.
const MORE_PLACES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// What is to be asked of every host.
#[derive(Clone, Debug)]
pub struct Inquiry<'a> {
    /// The hosts.
    pub hosts: &'a [HostArg],
    /// What starts processes there.
    pub launcher: &'a Launcher,
    /// Path of this program there, if not the one here.
    pub program: Option<&'a str>,
    /// What it is to be started with; it answers by [`answer_lines`].
    pub arguments: &'a [String],
    /// How long all of it may take.
    pub bound: Duration,
}

/// What hosts answered: each with its name as it was called, if the launcher starts one process per host. And what there is to be
/// said of those that did not.
#[derive(Debug, Default)]
pub struct Answers {
    /// Answers, whole.
    pub texts: Vec<(Option<String>, String)>,
    /// Why others are missing.
    pub trouble: Vec<String>,
}

/// What a program of this machine says on standard output; nothing if it is not there, fails, or takes too long.
#[must_use]
pub fn output_of(here: &Environment, program: &[&str], bound: Duration) -> Option<String> {
    let (name, arguments) = program.split_first()?;
    let beside = || MORE_PLACES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file());
    let path = here.find_program(name).or_else(beside)?;
    let mut command = Command::new(path);
    // What is read by programs is in no language.
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
    let (text, how) = hear(&mut command, Instant::now() + bound, false)?;
    how.is_none().then_some(text)
}

/// An answer as lines for [`ask_hosts`], from the host of that name. It must have no line breaks.
#[must_use]
pub fn answer_lines(host: &str, answer: &str) -> String {
    let host: String = host.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
    let mut parts = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let end = (1..=LINE_MAX.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at));
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(part);
        rest = behind;
    }
    let (count, mut text) = (parts.len(), String::new());
    for (number, part) in parts.iter().enumerate() {
        // A launcher may take blanks from the ends of lines.
        text.push_str(&format!("{MARK}{host} {number} {count} {part}.\n"));
    }
    text
}

/// Starts this program on every host, once, and hears what it answers.
///
/// # Errors
/// That there is no program to start, or no directory for answers.
pub fn ask_hosts(here: &Environment, inquiry: &Inquiry<'_>) -> LaunchResult<Answers> {
    let program = match inquiry.program {
        Some(program) => program.to_owned(),
        None => std::fs::canonicalize(&here.program)
            .map_err(|e| LaunchError::path(&here.program, "look for this program", e))?
            .to_string_lossy()
            .into_owned(),
    };
    let shared = (*inquiry.launcher == Launcher::Pbs).then(|| Shared::make(here)).transpose()?;
    let mut words = vec![program];
    words.extend(inquiry.arguments.iter().cloned());
    if let Some(shared) = &shared {
        words.extend(["--into".to_owned(), shared.0.to_string_lossy().into_owned()]);
    }
    let deadline = Instant::now() + inquiry.bound;
    let calls = Mutex::new(inquiry_calls(inquiry.launcher, inquiry.hosts, words).into_iter());
    let answers = Mutex::new(Answers::default());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(inquiry.hosts.len()) {
            scope.spawn(|| {
                loop {
                    let next = calls.lock().ok().and_then(|mut calls| calls.next());
                    let Some((arguments, host)) = next else { return };
                    let answer = call(inquiry.launcher, &arguments, host.as_deref(), deadline);
                    if let Ok(mut all) = answers.lock() {
                        all.texts.extend(answer.texts);
                        all.trouble.extend(answer.trouble);
                    }
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(shared) = shared {
        answers.texts.extend(shared.read().into_iter().map(|text| (None, text)));
    }
    answers.trouble.sort();
    answers.trouble.dedup();
    Ok(answers)
}

fn call(launcher: &Launcher, arguments: &[String], host: Option<&str>, deadline: Instant) -> Answers {
    let whom = host.map_or_else(|| launcher.to_string(), |host| format!("host {host}"));
    let trouble = |text: String| Answers { texts: Vec::new(), trouble: vec![format!("{whom}: {text}")] };
    let Some((program, arguments)) = arguments.split_first() else { return Answers::default() };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let Some((said, how)) = hear(&mut command, deadline, true) else {
        return trouble(format!("{program} could not be started; choose another way: --launch"));
    };
    let (texts, words) = whole_answers(&said);
    let texts: Vec<(Option<String>, String)> =
        texts.into_iter().map(|text| (host.map(str::to_owned), text)).collect();
    match how {
        _ if texts.is_empty() => trouble(words.or(how).unwrap_or_else(|| "it said nothing".into())),
        Some(how) => Answers { texts, trouble: vec![format!("{whom}: {}", words.unwrap_or(how))] },
        None => Answers { texts, trouble: Vec::new() },
    }
}

/// The answers among what several hosts said at the same time, and the last of what else was said.
fn whole_answers(said: &str) -> (Vec<String>, Option<String>) {
    let mut parts: BTreeMap<&str, BTreeMap<usize, &str>> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut last = None;
    for line in said.lines() {
        let Some((_, answer)) = line.split_once(MARK) else {
            last = Some(line.trim()).filter(|line| !line.is_empty()).or(last);
            continue;
        };
        let mut words = answer.splitn(4, ' ');
        let (Some(host), Some(at), Some(count), Some(text)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        if let (Ok(at), Ok(count), Some(text)) =
            (at.parse(), count.parse(), text.trim_end().strip_suffix('.'))
        {
            parts.entry(host).or_default().insert(at, text);
            counts.insert(host, count);
        }
    }
    let is_whole = |host: &str, parts: &BTreeMap<usize, &str>| counts.get(host) == Some(&parts.len());
    let texts = parts.iter().filter(|(host, parts)| is_whole(host, parts));
    let texts = texts.map(|(_, parts)| parts.values().copied().collect::<String>()).collect();
    (texts, last.map(|line| line.strip_prefix("bivouac: ").unwrap_or(line).to_owned()))
}

/// Runs a program and hears all that it says; and why that may not be all.
fn hear(command: &mut Command, deadline: Instant, with_errors: bool) -> Option<(String, Option<String>)> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    if with_errors {
        command.stderr(theirs.try_clone().ok()?);
    }
    command.stdout(theirs);
    let mut child = command.spawn().ok()?;
    // Its own ends of the pipe are closed with this, so that ours ends with it.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut said, mut buffer) = (Vec::new(), [0; 65_536]);
    let how = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(left).ok()?;
        let mut descriptors = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
        match poll(&mut descriptors, Some(&wait)) {
            Ok(0) => break Some("took too long, and was ended".to_owned()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => break Some(error.to_string()),
        }
        if descriptors.iter().all(|descriptor| descriptor.revents().is_empty()) {
            continue;
        }
        match rustix::io::read(&ours, &mut buffer) {
            Ok(0) => break None,
            Ok(len) if said.len() < HEARD_MAX => {
                said.extend_from_slice(buffer.get(..len).unwrap_or_default())
            }
            Ok(_) => break Some("said too much, and was ended".to_owned()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => break Some(error.to_string()),
        }
    };
    if how.is_some() {
        let _ended_meanwhile = child.kill();
    }
    let status = child.wait().ok()?;
    let how = how.or_else(|| (!status.success()).then(|| status.to_string()));
    Some((String::from_utf8_lossy(&said).into_owned(), how))
}

/// A directory that all hosts see, for launchers that bring nothing back.
#[derive(Debug)]
struct Shared(PathBuf);

impl Shared {
    fn make(here: &Environment) -> LaunchResult<Shared> {
        let home = here.batch.home.clone().unwrap_or_else(|| PathBuf::from("."));
        let path = home.join(format!(".bivouac-answers-{}", to_hex(&random_bytes::<8>()?)));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| LaunchError::path(&path, "make a directory for answers", e))?;
        Ok(Shared(path))
    }

    fn read(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            log::warn!("{}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::hosts::parse_hosts;

    #[test]
    fn answers_are_put_together_whatever_is_in_front_and_between() {
        let long = "ä ".repeat(2000);
        let mut lines: Vec<String> =
            answer_lines("n 1", &long).lines().map(|line| format!("0: {line}")).collect();
        lines.extend(answer_lines("n2", "short ").lines().map(|line| format!("1: {line}")));
        lines.reverse();
        lines.push("warning: something".into());
        let (texts, last) = whole_answers(&lines.join("\n"));
        assert_eq!(texts, ["short ", long.as_str()]);
        assert_eq!(last.as_deref(), Some("warning: something"));
        lines.remove(1);
        assert_eq!(whole_answers(&lines.join("\n")).0, ["short "], "half an answer is none");
    }

    #[test]
    fn programs_are_heard_and_slow_ones_are_not_waited_for() {
        let here = Environment { search_path: std::env::var_os("PATH"), ..environment(None) };
        let said = |program: &[&str], ms| output_of(&here, program, Duration::from_millis(ms));
        assert_eq!(said(&["sh", "-c", "echo a; echo b >&2"], 60_000).as_deref(), Some("a\n"));
        assert_eq!(said(&["sh", "-c", "echo a; exit 1"], 60_000), None);
        assert_eq!(said(&["bivouac-no-such-program"], 60_000), None);
        assert_eq!(said(&["sleep", "1000"], 10), None);
    }

    #[test]
    fn hosts_that_do_not_answer_are_named() {
        let here = Environment { search_path: std::env::var_os("PATH"), ..environment(None) };
        let hosts = parse_hosts("a,b,c", 1).unwrap();
        let script = "case {host} in c) echo no such host >&2; exit 3;; *) {args};; esac";
        let launcher: Launcher = script.parse().unwrap();
        let said = answer_lines("x", "{\"a\": 1}");
        let inquiry = Inquiry {
            hosts: &hosts,
            launcher: &launcher,
            program: Some("printf"),
            arguments: &["%s".to_owned(), said],
            bound: Duration::from_secs(60),
        };
        let mut answers = ask_hosts(&here, &inquiry).unwrap();
        answers.texts.sort();
        let expected = ["a", "b"].map(|host| (Some(host.to_owned()), "{\"a\": 1}".to_owned()));
        assert_eq!(answers.texts, expected);
        assert_eq!(answers.trouble, ["host c: no such host"]);
    }
}
