//! Programs that are run for what they say.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::environment::Environment;

/// Most bytes read of one program's output.
const HEARD_MAX: usize = 256 << 20;
/// Time between two looks at the output so far.
const LOOK: Duration = Duration::from_millis(100);
/// Directories of programs that only administrators have in their search path.
const MORE_PLACES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Returns the standard output of a program of this machine; nothing if it is not there, fails, or takes too long.
#[must_use]
pub fn output_of(here: &Environment, program: &[&str], bound: Duration) -> Option<String> {
    let (name, arguments) = program.split_first()?;
    let beside = || MORE_PLACES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file());
    let path = here.find_program(name).or_else(beside)?;
    let mut command = Command::new(path);
    // What is read by programs is in no language.
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
    let (text, how) = hear(&mut command, Instant::now() + bound, false, &mut |_| false)?;
    how.is_none().then_some(text)
}

/// Runs a program and hears all that it says, on standard error too if that is wanted; and why that may not be all.
/// `tell` is shown what was said so far, also from time to time, and answers whether that is enough. `None` if it
/// cannot be run.
pub fn hear(
    command: &mut Command,
    deadline: Instant,
    with_errors: bool,
    tell: &mut dyn FnMut(&[u8]) -> bool,
) -> Option<(String, Option<String>)> {
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
        if tell(&said) {
            break Some("was ended".to_owned());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(left.min(LOOK)).ok()?;
        let mut descriptors = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
        match poll(&mut descriptors, Some(&wait)) {
            Ok(0) if left.is_zero() => break Some("took too long, and was ended".to_owned()),
            Ok(0) => continue,
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
    // It might wait for ever for somebody to read what it says.
    if how.is_some() {
        let _ended_meanwhile = child.kill();
    }
    let status = child.wait().ok()?;
    let how = how.or_else(|| (!status.success()).then(|| status.to_string()));
    Some((String::from_utf8_lossy(&said).into_owned(), how))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;

    #[test]
    fn programs_are_heard_and_slow_ones_are_not_waited_for() {
        let here = Environment { search_path: std::env::var_os("PATH"), ..environment(None) };
        let said = |program: &[&str], ms| output_of(&here, program, Duration::from_millis(ms));
        assert_eq!(said(&["sh", "-c", "echo a; echo b >&2"], 60_000).as_deref(), Some("a\n"));
        assert_eq!(said(&["sh", "-c", "echo a; exit 1"], 60_000), None);
        assert_eq!(said(&["bivouac-no-such-program"], 60_000), None);
        assert_eq!(said(&["sleep", "1000"], 10), None);
    }
}
