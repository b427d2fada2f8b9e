//! The user's command under `bivouac run`: in the same process group, with the terminal as it is.
//!
//! What the terminal sends (Ctrl-C) reaches the command by itself; what is sent to this process alone
//! (`kill`, a batch system) is forwarded. A further request to end, some time after the first, kills it. So does
//! the end of its time, after it had some to end by itself; and it is told to end when this process is killed.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use bivouac_types::{code_of_signal, format_signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::retry_on_intr;
use rustix::process::Signal;

use crate::polling::timespec;
use crate::process::pidfd;
use crate::signals::{ReceivedSignal, Signals, end_with_us, unblock_in};
use crate::{Environment, LaunchError, LaunchResult};

/// Exit code for a command that was found but cannot be executed.
pub const CODE_NOT_EXECUTABLE: u8 = 126;
/// Exit code for a command that was not found.
pub const CODE_NOT_FOUND: u8 = 127;
/// A signal so soon after the first is the same request twice: some programs signal both the process and its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Time that a command may take to end when its time is over.
const OVERTIME: Duration = Duration::from_secs(10);

/// Signals that `run` catches: requests to end, and those that batch systems warn with.
pub const CAUGHT: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Signals that ask a process to end.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// End of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// Exit code as a shell shows it: 128 + signal for a command that a signal ended.
    pub code: u8,
    /// The same in words: `exit code 3`, `killed by signal 11 (SIGSEGV)`.
    pub how: String,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The first request to end that arrived meanwhile.
    pub asked_to_end: Option<i32>,
    /// True if it was told to end because its time was over.
    pub overtime: bool,
    /// Reason why the command did not run at all.
    pub trouble: Option<String>,
}

/// Returns whether a signal asks this process to end.
#[must_use]
pub fn asks_to_end(arrived: ReceivedSignal) -> bool {
    ENDING.iter().any(|signal| signal.as_raw() == arrived.number)
}

/// Replaces this process by a command, with these variables set or, without a value, taken away, and beginning in
/// `dir`. Returns only if that fails: the exit code, and why.
#[must_use]
pub fn become_command(
    command: &[OsString],
    environment: &[(&str, Option<&OsStr>)],
    dir: Option<&Path>,
) -> (u8, String) {
    let (program, arguments) = command
        .split_first()
        .map_or((OsStr::new(""), &[][..]), |(program, rest)| (program.as_os_str(), rest));
    let mut prepared = Command::new(program);
    prepared.args(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => prepared.env(name, value),
            None => prepared.env_remove(name),
        };
    }
    if let Some(dir) = dir {
        prepared.current_dir(dir);
    }
    not_executed(program, &prepared.exec())
}

/// Returns the exit code and message for a command that the system refuses to execute.
fn not_executed(program: &OsStr, error: &std::io::Error) -> (u8, String) {
    let name = program.to_string_lossy();
    if error.kind() == std::io::ErrorKind::NotFound {
        return (CODE_NOT_FOUND, format!("command '{name}' was not found; check its spelling and PATH"));
    }
    let advice = "check its mode (chmod +x) and format";
    (CODE_NOT_EXECUTABLE, format!("command '{name}' cannot be executed: {error}; {advice}"))
}

/// Looks whether a command can be executed, before anything is done for it. What may be in the formation, at one of the
/// `mounts` that are to be made or at the places where mounts are usually made, passes.
///
/// # Errors
/// The exit code that its execution would have, and why.
pub fn check_command(here: &Environment, command: &[OsString], mounts: &[&Path]) -> Result<(), (u8, String)> {
    let Some(program) = command.first() else { return Ok(()) };
    let path = Path::new(program);
    let is_inside = |path: &Path| {
        let below = |dir: &Path| std::path::absolute(path).is_ok_and(|path| path.starts_with(dir));
        mounts.iter().any(|mount| below(mount)) || here.mount_bases().iter().any(|base| below(base))
    };
    let execute = |path: &Path| {
        std::fs::metadata(path).and_then(|_| Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?))
    };
    let checked = if program.as_bytes().contains(&b'/') {
        if is_inside(path) { Ok(()) } else { execute(path) }
    } else {
        search(here, |dir| if is_inside(dir) { Ok(()) } else { execute(&dir.join(path)) })
    };
    checked.map_err(|error| not_executed(program, &error))
}

/// Tries the directories of the search path until one succeeds. As in the system's own search, a program that may not
/// be executed is the error if no other is found.
fn search(here: &Environment, execute: impl Fn(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut failure = std::io::Error::from(std::io::ErrorKind::NotFound);
    for dir in here.search_dirs() {
        match execute(&dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// Runs a command to its end, which comes at `until` at the latest. Not to be called by a thread that ends before its
/// process does.
///
/// # Errors
/// When it cannot be waited for. That it cannot be started is an exit code, and said on standard error.
pub fn run_command(
    command: &[OsString],
    environment: &[(&str, &OsStr)],
    signals: &Signals,
    until: Option<Instant>,
) -> LaunchResult<CommandEnd> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(LaunchError::usage(
            "the command",
            "is missing",
            "write: bivouac run [OPTIONS] -- COMMAND [ARG]...",
        ));
    };
    let mut prepared = Command::new(program);
    prepared.args(arguments).envs(environment.iter().copied());
    // Signals that this process reads from a descriptor are blocked in it, and a command would inherit that.
    unblock_in(&mut prepared);
    // Killed, this process could not end the command any more, and the formation would go under its feet.
    end_with_us(&mut prepared);
    match prepared.spawn() {
        Ok(child) => wait(child, signals, until),
        Err(error) => {
            let (code, trouble) = not_executed(program, &error);
            let how = format!("exit code {code}");
            Ok(CommandEnd {
                code,
                how,
                signal: None,
                asked_to_end: None,
                overtime: false,
                trouble: Some(trouble),
            })
        }
    }
}

fn wait(mut child: Child, signals: &Signals, until: Option<Instant>) -> LaunchResult<CommandEnd> {
    let refused = |e: std::io::Error| LaunchError::system("the command's process", e);
    let end = pidfd(child.id()).map_err(|e| refused(e.into()))?;
    let send = |signal| {
        let _gone_meanwhile = rustix::process::pidfd_send_signal(end.as_fd(), signal);
    };
    let (mut requests, mut limit) = (Requests::default(), Limit::new(until));
    loop {
        let mut polled = [PollFd::new(&end, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        let timeout = limit.wait_ms(Instant::now()).map(timespec);
        retry_on_intr(|| poll(&mut polled, timeout.as_ref())).map_err(|e| refused(e.into()))?;
        // Read before the signals are passed on: one that arrives after the end is nobody’s.
        let ended = !polled[0].revents().is_empty();
        while let Some(arrived) = signals.next() {
            requests.pass_on(arrived, Instant::now()).into_iter().for_each(send);
        }
        if ended {
            let status = child.wait().map_err(refused)?;
            return Ok(CommandEnd {
                code: exit_code(status),
                how: describe(status),
                signal: status.signal(),
                asked_to_end: requests.first.map(|(signal, _)| signal),
                overtime: limit.reached,
                trouble: None,
            });
        }
        limit.pass(Instant::now()).into_iter().for_each(send);
    }
}

/// The command's time.
#[derive(Debug)]
struct Limit {
    /// Time of the next action.
    next: Option<Instant>,
    /// True if it was reached.
    reached: bool,
}

impl Limit {
    fn new(until: Option<Instant>) -> Limit {
        Limit { next: until, reached: false }
    }

    /// Returns the time until the next action, in milliseconds, rounded up; for ever if there is none.
    fn wait_ms(&self, now: Instant) -> Option<u64> {
        const LONGEST: u128 = 1 << 30;
        self.next.map(|next| next.saturating_duration_since(now).as_millis().min(LONGEST) as u64 + 1)
    }

    /// Returns the signal that is due for the command: first a request to end, later the end.
    fn pass(&mut self, now: Instant) -> Option<Signal> {
        self.next.filter(|next| *next <= now)?;
        let again = std::mem::replace(&mut self.reached, true);
        self.next = (!again).then(|| now + OVERTIME);
        Some(if again { Signal::KILL } else { Signal::TERM })
    }
}

/// The requests to end that have arrived.
#[derive(Debug, Default)]
struct Requests {
    first: Option<(i32, Instant)>,
}

impl Requests {
    /// Returns the signal that the command gets for one that arrived here.
    fn pass_on(&mut self, arrived: ReceivedSignal, now: Instant) -> Option<Signal> {
        let signal = CAUGHT.into_iter().find(|signal| signal.as_raw() == arrived.number)?;
        if asks_to_end(arrived) {
            match self.first {
                None => self.first = Some((arrived.number, now)),
                // A batch system sends one request to each process of the job at once; only a second one after a
                // while is a second request.
                Some((_, first)) if now.duration_since(first) >= SAME_REQUEST => return Some(Signal::KILL),
                Some(_) => {}
            }
        }
        // The terminal has sent it to the command as well, which is in the same group; twice would look like
        // impatience.
        (!arrived.from_terminal).then_some(signal)
    }
}

/// Returns the end of a process, in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by {}", format_signal(signal)),
        (None, None) => "ended".into(),
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a thread of its own, so that masks of signals do not reach other tests.
    fn run(command: &'static [&'static str]) -> CommandEnd {
        let thread = std::thread::spawn(|| {
            let signals = Signals::catch(&[]).unwrap();
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            run_command(&command, &[("BIVOUAC", OsStr::new("/m"))], &signals, None).unwrap()
        });
        thread.join().unwrap()
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let code = |command| run(command).code;
        assert_eq!(code(&["true"]), 0);
        assert_eq!(code(&["sh", "-c", "exit 42"]), 42);
        assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), 143);
        assert_eq!(code(&["/nonexistent/program"]), 127);
        assert_eq!(code(&["/etc/passwd"]), 126);
    }

    #[test]
    fn the_environment_has_the_mount_point() {
        assert_eq!(run(&["sh", "-c", "test \"$BIVOUAC\" = /m"]).code, 0);
    }

    #[test]
    fn a_signal_to_this_process_alone_is_forwarded() {
        let thread = std::thread::spawn(|| {
            let signals = Signals::catch(&[Signal::USR1]).unwrap();
            crate::signals::tests::signal_this_thread(Signal::USR1);
            run_command(&["sleep".into(), "1000".into()], &[], &signals, None).unwrap()
        });
        let (number, how) = (Signal::USR1.as_raw(), "killed by signal 10 (SIGUSR1)".to_owned());
        let (code, signal) = (128 + number as u8, Some(number));
        assert_eq!(
            thread.join().unwrap(),
            CommandEnd { code, how, signal, asked_to_end: None, overtime: false, trouble: None }
        );
    }

    #[test]
    fn a_command_whose_time_is_over_is_told_to_end() {
        let thread = std::thread::spawn(|| {
            let signals = Signals::catch(&[]).unwrap();
            run_command(&["sleep".into(), "1000".into()], &[], &signals, Some(Instant::now())).unwrap()
        });
        let ended = thread.join().unwrap();
        assert_eq!((ended.code, ended.overtime), (128 + Signal::TERM.as_raw() as u8, true));
    }

    #[test]
    fn a_command_that_does_not_end_in_time_is_killed_in_the_end() {
        let start = Instant::now();
        let mut limit = Limit::new(Some(start + OVERTIME));
        assert_eq!((limit.pass(start), limit.reached), (None, false));
        assert_eq!(limit.wait_ms(start), Some(OVERTIME.as_millis() as u64 + 1));
        assert_eq!((limit.pass(start + OVERTIME), limit.reached), (Some(Signal::TERM), true));
        assert_eq!(limit.pass(start + OVERTIME), None);
        assert_eq!(limit.pass(start + 2 * OVERTIME), Some(Signal::KILL));
        assert_eq!((limit.pass(start + 3 * OVERTIME), limit.wait_ms(start)), (None, None));
        assert_eq!(Limit::new(None).wait_ms(start), None);
    }

    #[test]
    fn the_terminal_reaches_the_command_by_itself_and_impatience_kills() {
        let start = Instant::now();
        let mut requests = Requests::default();
        let signal =
            |signal: Signal, from_terminal| ReceivedSignal { number: signal.as_raw(), from_terminal };
        assert_eq!(requests.pass_on(signal(Signal::USR1, false), start), Some(Signal::USR1));
        assert_eq!(requests.pass_on(signal(Signal::INT, true), start), None);
        assert_eq!(requests.first, Some((2, start)));
        assert_eq!(requests.pass_on(signal(Signal::TERM, false), start), Some(Signal::TERM));
        let later = start + SAME_REQUEST;
        assert_eq!(requests.pass_on(signal(Signal::USR2, false), later), Some(Signal::USR2));
        assert_eq!(requests.pass_on(signal(Signal::INT, true), later), Some(Signal::KILL));
        assert_eq!(requests.pass_on(signal(Signal::WINCH, false), later), None);
    }
}
