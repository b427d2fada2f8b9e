//! This program, run once on all hosts for its output.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use bivouac_launch::hex::to_hex;
use bivouac_launch::{Environment, LaunchError, LaunchResult, Launcher, hear, random_bytes};

use crate::launcher::inquiry_calls;
use crate::list::HostArg;

/// Launchers that run at the same time, where there is one for each host.
const AT_ONCE: usize = 64;
/// Time between two looks for answers that hosts have written down.
const LOOK: Duration = Duration::from_millis(100);
/// Beginning of a line that is part of an answer, behind whatever a launcher puts in front of it.
const MARK: &str = "bivouac-says ";
/// Bytes of an answer in one line: launchers that put lines of several hosts together keep short ones whole.
const LINE_MAX: usize = 900;
/// Suffix of the name of an answer that is not whole yet.
const PART: &str = "part";
/// A question to every host.
#[derive(Clone, Debug)]
pub struct Inquiry<'a> {
    /// The hosts.
    pub hosts: &'a [HostArg],
    /// The launcher that starts processes there.
    pub launcher: &'a Launcher,
    /// Path of this program there, if not the one here.
    pub program: Option<&'a str>,
    /// Arguments of the command, which answers by [`answer_lines`].
    pub arguments: &'a [String],
    /// Time all of it may take.
    pub bound: Duration,
    /// Of hosts that stay when they have answered: who is told of it at once.
    pub live: Option<AnswerStream<'a>>,
}

/// Hears of hosts while their programs still run; all of them do so at the same time.
#[derive(Clone, Copy)]
pub struct AnswerStream<'a> {
    /// Called with each answer.
    pub hear: &'a (dyn Fn(HostAnswer) + Sync),
    /// Set when the programs are to be waited for no longer.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for AnswerStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerStream").field("stop", self.stop).finish_non_exhaustive()
    }
}

/// News of a host, or of all if one launcher starts them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAnswer {
    /// An answer, whole; from the host of that name, if the launcher starts one process per host.
    Answer(Option<String>, String),
    /// The launcher has ended: no more is heard of this host, or of any. With what there is to be said of it.
    Ended(Option<String>, Vec<String>),
}

/// Answers of hosts: each with its name as it was called, if the launcher starts one process per host. And what there
/// is to be said of those that did not.
#[derive(Debug, Default)]
pub struct Answers {
    /// Answers, whole.
    pub texts: Vec<(Option<String>, String)>,
    /// Reasons why others are missing.
    pub trouble: Vec<String>,
}

/// Returns an answer as lines for [`ask_hosts`], from the host of that name. It must have no line breaks.
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

/// Writes an answer for launchers that bring nothing back: whole or not at all, for who reads it does not know when it
/// is done.
///
/// # Errors
/// What the system says.
pub fn write_answer(dir: &Path, host: &str, answer: &str) -> std::io::Result<()> {
    let name: String = host.chars().map(|c| if c == '/' { '_' } else { c }).collect();
    let whole = dir.join(format!("{name}-{}.answer", std::process::id()));
    let part = whole.with_extension(PART);
    std::fs::write(&part, answer)?;
    std::fs::rename(&part, &whole)
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
    let at_once = if inquiry.live.is_some() { inquiry.hosts.len() } else { AT_ONCE.min(inquiry.hosts.len()) };
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        if let (Some(shared), Some(live)) = (&shared, inquiry.live) {
            scope.spawn(move || shared.tell(live, &is_over));
        }
        let callers: Vec<_> = (0..at_once)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let next = calls.lock().ok().and_then(|mut calls| calls.next());
                        let Some((arguments, host)) = next else { return };
                        let answer = call(inquiry, &arguments, host.as_deref(), deadline);
                        if let Some(live) = inquiry.live {
                            (live.hear)(HostAnswer::Ended(host, answer.trouble.clone()));
                        }
                        if let Ok(mut all) = answers.lock() {
                            all.texts.extend(answer.texts);
                            all.trouble.extend(answer.trouble);
                        }
                    }
                })
            })
            .collect();
        for caller in callers {
            let _panicked = caller.join();
        }
        drop(over);
    });
    let mut answers = answers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(shared) = shared {
        answers.texts.extend(shared.read().into_iter().map(|text| (None, text)));
    }
    answers.trouble.sort();
    answers.trouble.dedup();
    Ok(answers)
}

fn call(inquiry: &Inquiry<'_>, arguments: &[String], host: Option<&str>, deadline: Instant) -> Answers {
    let whom = host.map_or_else(|| inquiry.launcher.to_string(), |host| format!("host {host}"));
    let trouble = |text: String| Answers { texts: Vec::new(), trouble: vec![format!("{whom}: {text}")] };
    let Some((program, arguments)) = arguments.split_first() else { return Answers::default() };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let (mut told, mut read) = (BTreeSet::new(), 0);
    let mut tell = |said: &[u8]| {
        let Some(live) = inquiry.live else { return false };
        // What comes behind the last end of a line may be half a line.
        let new = said.get(read..).unwrap_or_default().iter().rposition(|byte| *byte == b'\n');
        if let Some(end) = new.map(|at| read + at + 1) {
            read = end;
            let said = String::from_utf8_lossy(said.get(..end).unwrap_or_default());
            for (key, text) in whole_answers(&said).0 {
                if told.insert(key) {
                    (live.hear)(HostAnswer::Answer(host.map(str::to_owned), text));
                }
            }
        }
        live.stop.load(Ordering::Relaxed)
    };
    let Some((said, how)) = hear(&mut command, deadline, true, &mut tell) else {
        return trouble(format!("{program} could not be started; choose another way: --launch"));
    };
    let (texts, words) = whole_answers(&said);
    let texts: Vec<(Option<String>, String)> =
        texts.into_iter().map(|(_, text)| (host.map(str::to_owned), text)).collect();
    match how {
        _ if texts.is_empty() => trouble(words.or(how).unwrap_or_else(|| "it said nothing".into())),
        Some(how) => Answers { texts, trouble: vec![format!("{whom}: {}", words.unwrap_or(how))] },
        None => Answers { texts, trouble: Vec::new() },
    }
}

/// Returns the answers among what several hosts said at the same time, each with what its host calls itself, and the
/// last of what else was said.
fn whole_answers(said: &str) -> (Vec<(String, String)>, Option<String>) {
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
    // Several hosts' lines may be mixed, and a host that was ended may have said only some of them.
    let is_whole = |host: &str, parts: &BTreeMap<usize, &str>| counts.get(host) == Some(&parts.len());
    let texts = parts.iter().filter(|(host, parts)| is_whole(host, parts));
    let text = |parts: &BTreeMap<usize, &str>| parts.values().copied().collect::<String>();
    let texts = texts.map(|(host, parts)| ((*host).to_owned(), text(parts))).collect();
    (texts, last.map(|line| line.strip_prefix("bivouac: ").unwrap_or(line).to_owned()))
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
        self.files().iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
    }

    /// Returns the answers that are whole.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let is_whole = |path: &PathBuf| path.extension().is_none_or(|extension| extension != PART);
        entries.map(|entry| entry.path()).filter(is_whole).collect()
    }

    /// Tells of what is written down until it is over.
    fn tell(&self, live: AnswerStream<'_>, is_over: &mpsc::Receiver<()>) {
        let mut told = BTreeSet::new();
        while is_over.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
            for path in self.files() {
                if !told.contains(&path)
                    && let Ok(text) = std::fs::read_to_string(&path)
                {
                    told.insert(path);
                    (live.hear)(HostAnswer::Answer(None, text));
                }
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            log::warn!(why:% = error; "{}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::parse_hosts;
    use crate::tests::environment;

    #[test]
    fn answers_are_put_together_whatever_is_in_front_and_between() {
        let long = "ä ".repeat(2000);
        let mut lines: Vec<String> =
            answer_lines("n 1", &long).lines().map(|line| format!("0: {line}")).collect();
        lines.extend(answer_lines("n2", "short ").lines().map(|line| format!("1: {line}")));
        lines.reverse();
        lines.push("warning: something".into());
        let texts_of = |lines: &[String]| -> Vec<String> {
            whole_answers(&lines.join("\n")).0.into_iter().map(|(_, text)| text).collect()
        };
        let (_, last) = whole_answers(&lines.join("\n"));
        assert_eq!(texts_of(&lines), ["short ", long.as_str()]);
        assert_eq!(last.as_deref(), Some("warning: something"));
        lines.remove(1);
        assert_eq!(texts_of(&lines), ["short "], "half an answer is none");
    }

    #[test]
    fn hosts_that_do_not_answer_are_named() {
        let here = Environment { search_path: std::env::var_os("PATH"), ..environment() };
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
            live: None,
        };
        let mut answers = ask_hosts(&here, &inquiry).unwrap();
        answers.texts.sort();
        let expected = ["a", "b"].map(|host| (Some(host.to_owned()), "{\"a\": 1}".to_owned()));
        assert_eq!(answers.texts, expected);
        assert_eq!(answers.trouble, ["host c: no such host"]);
    }

    #[test]
    fn hosts_that_stay_are_heard_at_once_and_let_go() {
        let here = Environment { search_path: std::env::var_os("PATH"), ..environment() };
        let hosts = parse_hosts("a,b,c", 1).unwrap();
        // Two answer and stay for ever; one goes away without an answer.
        let script = "case {host} in c) echo no such host >&2; exit 3;; esac; {args}; exec sleep 100000";
        let launcher: Launcher = script.parse().unwrap();
        let stop = AtomicBool::new(false);
        let heard = Mutex::new(Vec::new());
        let hear = |what: HostAnswer| {
            let mut heard = heard.lock().unwrap();
            heard.push(what);
            stop.store(heard.len() >= 3, Ordering::Relaxed);
        };
        let inquiry = Inquiry {
            hosts: &hosts,
            launcher: &launcher,
            program: Some("printf"),
            arguments: &["%s".to_owned(), answer_lines("x", "it. is")],
            bound: Duration::from_secs(60),
            live: Some(AnswerStream { hear: &hear, stop: &stop }),
        };
        ask_hosts(&here, &inquiry).unwrap();
        let heard = heard.into_inner().unwrap();
        let answer = |host: &str| HostAnswer::Answer(Some(host.into()), "it. is".into());
        assert!([answer("a"), answer("b")].iter().all(|one| heard[..3].contains(one)), "{heard:?}");
        let ended = HostAnswer::Ended(Some("c".into()), vec!["host c: no such host".into()]);
        assert!(heard[..3].contains(&ended), "{heard:?}");
    }
}
