//! Test of hosts before a formation needs them: each is told to start something.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bivouac_launch::{Environment, hear};

/// Time a host may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
/// The question: it ends well on every host that lets this user in.
const QUESTION: &str = "command -v bivouac >/dev/null && echo has-bivouac || echo lacks-bivouac";

/// Asks a host by ssh whether `bivouac` is in its `PATH`. Nobody is asked for a password.
///
/// # Errors
/// Why the host cannot be reached, in the words of ssh.
pub fn has_program(here: &Environment, host: &str) -> Result<bool, String> {
    let ssh = here.find_program("ssh").ok_or("ssh is not installed")?;
    let mut command = Command::new(ssh);
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, QUESTION]);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    let heard = hear(&mut command, Instant::now() + ANSWER_WAIT, true, &mut |_| false);
    let (text, how) = heard.ok_or("ssh cannot be run")?;
    answer(&text, how)
}

/// Evaluates the output of a host, and the end of ssh if that was not well.
fn answer(text: &str, how: Option<String>) -> Result<bool, String> {
    let says = |word: &str| text.lines().any(|line| line.trim() == word);
    if how.is_none() && (says("has-bivouac") || says("lacks-bivouac")) {
        return Ok(says("has-bivouac"));
    }
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned);
    Err(last.or(how).unwrap_or_else(|| "it says nothing".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_say_whether_they_have_it_and_ssh_why_not() {
        assert_eq!(answer("Welcome!\nhas-bivouac\n", None), Ok(true));
        assert_eq!(answer("lacks-bivouac\n", None), Ok(false));
        let refused =
            answer("Warning: x\nn3: Permission denied (publickey).\n", Some("exit code 255".into()));
        assert_eq!(refused, Err("n3: Permission denied (publickey).".into()));
        assert_eq!(answer("", Some("no answer in time".into())), Err("no answer in time".into()));
    }
}
