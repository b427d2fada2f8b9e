//! Programs that are run to their end, and asked to end if somebody asks us.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::{BenchError, BenchResult, Host};

/// Longest output of a command that is read, in bytes.
const OUTPUT_LEN_MAX: u64 = 16 << 20;

/// End of a command, with its standard output and error.
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output, up to 16 MiB.
    pub out: String,
    /// Standard error, likewise.
    errors: String,
}

impl Output {
    /// Standard output of one that ended well.
    ///
    /// # Errors
    /// The last line that it said, after its name.
    pub fn succeeded(self, what: &str) -> BenchResult<String> {
        if self.status.success() { Ok(self.out) } else { Err(self.failure(what)) }
    }

    /// The error for a failed command, with the last line of its output.
    #[must_use]
    pub fn failure(&self, what: &str) -> BenchError {
        let last = self.errors.lines().last().unwrap_or("it said nothing");
        BenchError::refused(what, format_args!("ended with {}: {last}", self.status))
    }
}

/// Runs a command, without input, to its end.
///
/// # Errors
/// That it cannot be started; that somebody asked to end, behind the command's own end.
pub fn run(host: &Host<'_>, what: &str, command: &mut Command) -> BenchResult<Output> {
    let refused = || BenchError::system::<std::io::Error>(what.to_owned());
    // Files, not pipes, which would have to be emptied meanwhile.
    let (mut out, mut errors) = (memory_file()?, memory_file()?);
    command.stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(refused())?).stderr(errors.try_clone().map_err(refused())?);
    // One that is named, and not a path.
    let is_looked_for = !command.get_program().as_encoded_bytes().contains(&b'/');
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if is_looked_for => {
            BenchError::usage(what, "is not on this machine", "install it")
        }
        _ => refused()(error),
    })?;
    let status = wait(host, &mut child)?;
    Ok(Output { status, out: text_of(&mut out)?, errors: text_of(&mut errors)? })
}

fn wait(host: &Host<'_>, child: &mut Child) -> BenchResult<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let end: OwnedFd = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(end)) => end,
        // Without a descriptor its end is waited for all the same, only deaf to requests to end.
        _ => return child.wait().map_err(BenchError::system("a command")),
    };
    let interrupted = host.interrupts.wait(end.as_fd(), None).err();
    if let (Some(_), Some(pid)) = (&interrupted, pid) {
        let _gone_already = kill_process(pid, Signal::TERM);
    }
    // It takes down what it began, so its own end is awaited, however long that takes.
    let ended = child.wait().map_err(BenchError::system("a command"))?;
    interrupted.map_or(Ok(ended), Err)
}

fn memory_file() -> BenchResult<File> {
    let made = rustix::fs::memfd_create("bivouac-bench", MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(BenchError::system("a file in memory"))
}

fn text_of(file: &mut File) -> BenchResult<String> {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.take(OUTPUT_LEN_MAX).read_to_end(&mut bytes));
    read.map_err(BenchError::system("a file in memory"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
