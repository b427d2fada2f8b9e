//! Names of signals.

/// Names of signals of Linux from 1 on, on the supported machines.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// Returns a signal for people: `signal 9 (SIGKILL)`; one for programs' own use has only a number.
#[must_use]
pub fn format_signal(number: i32) -> String {
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match at.and_then(|at| NAMES.get(at)) {
        Some(name) => format!("signal {number} ({name})"),
        None => format!("signal {number}"),
    }
}

/// Returns the exit code of what a signal ended, as a shell shows it.
#[must_use]
pub fn code_of_signal(number: i32) -> u8 {
    128 + number as u8 % 128
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_names() {
        let named = [(1, "SIGHUP"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (31, "SIGSYS")];
        for (number, name) in named {
            assert_eq!(format_signal(number), format!("signal {number} ({name})"));
        }
        for number in [i32::MIN, -1, 0, 32, 64, i32::MAX] {
            assert_eq!(format_signal(number), format!("signal {number}"));
        }
    }
}
