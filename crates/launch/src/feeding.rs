//! Programs that are given something to read, such as mail.

use std::ffi::OsString;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Kind, LaunchError, LaunchResult};
use crate::polling::wait_readable;
use crate::process::pidfd;
use crate::signals::{end_with_us, unblock_in};

/// Limit of what is kept of a program's messages about its failure, in bytes.
const SAID_MAX: u64 = 1000;

/// Runs a program to its end with this as its standard input. There is no shell in between: arguments are what they
/// are.
///
/// # Errors
/// That it cannot be started, takes longer than `bound`, or fails, with what it said.
pub fn feed(program: &Path, arguments: &[OsString], input: &[u8], bound: Duration) -> LaunchResult<()> {
    let failed = |error: std::io::Error| LaunchError::path(program, "run it", error);
    // Files in memory: with pipes this process would have to read and write at once, or both could wait for each other.
    let (mut given, mut said) = (memory().map_err(failed)?, memory().map_err(failed)?);
    given.write_all(input).and_then(|()| given.rewind()).map_err(failed)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(given).stdout(Stdio::null());
    command.stderr(said.try_clone().map_err(failed)?);
    unblock_in(&mut command);
    end_with_us(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    let refused = |cause: String| {
        LaunchError::new(Kind::Refused, program.display(), cause, "look at its configuration and log")
    };
    if !has_ended(&child, bound).map_err(failed)? {
        let killed = child.kill();
        killed.and_then(|()| child.wait()).map_err(failed)?;
        return Err(refused(format!("did not end within {} s", bound.as_secs())));
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    said.rewind().and_then(|()| (&said).take(SAID_MAX).read_to_end(&mut text)).map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    // The text becomes part of a message on one line of a terminal.
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Err(refused(format!("{status}: {text}")))
}

fn memory() -> std::io::Result<std::fs::File> {
    Ok(memfd_create("bivouac", MemfdFlags::CLOEXEC)?.into())
}

fn has_ended(child: &Child, bound: Duration) -> std::io::Result<bool> {
    let end = pidfd(child.id())?;
    Ok(wait_readable(end.as_fd(), u64::try_from(bound.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, argument: &str) -> Vec<OsString> {
        ["-c", script, "sh", argument].map(OsString::from).to_vec()
    }

    #[test]
    fn a_program_reads_what_it_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let input = "line\n$(touch /nowhere) `id` \0 é".repeat(100_000);
        let script = shell("cat > \"$1\"", out.to_str().unwrap());
        feed(Path::new("/bin/sh"), &script, input.as_bytes(), LONG).unwrap();
        assert_eq!(std::fs::read(&out).unwrap(), input.as_bytes());
    }

    #[test]
    fn what_fails_says_why_and_what_hangs_is_ended() {
        let run = |script: &str, bound| {
            feed(Path::new("/bin/sh"), &shell(script, ""), b"", bound).unwrap_err().to_string()
        };
        let said = run("echo 'no such\nuser' >&2; exit 3", LONG);
        assert!(said.contains("/bin/sh") && said.contains('3') && said.contains("no such user"), "{said}");
        let said = run("exec sleep 600", Duration::from_millis(50));
        assert!(said.contains("did not end"), "{said}");
        let said = feed(Path::new("/does/not/exist"), &[], b"", LONG).unwrap_err().to_string();
        assert!(said.contains("/does/not/exist"), "{said}");
    }
}
