//! `bivouac status`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals, StateDir, asks_to_end};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
use crate::options::StatusArgs;
use crate::status::{Report, look};

/// Moves to the first line and removes what is there and below.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Shows a formation, once or again and again.
pub fn run(here: &Environment, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name.as_ref())?;
    let Some(every) = args.watch else {
        let report = look(&dir)?;
        out!("{}", shown(&report, args, false)?);
        return Ok(ExitCode::from(report.exit_code()));
    };
    watch(&dir, args, Duration::from_millis(every.0))
}

fn watch(dir: &StateDir, args: &StatusArgs, every: Duration) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let is_dumb = crate::environment::is_dumb_terminal();
    let clears = !args.json && std::io::stdout().is_terminal() && !is_dumb;
    let mut is_first = true;
    loop {
        if dir.read()?.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
        let report = look(dir)?;
        let text = shown(&report, args, true)?;
        let between = if args.json || is_first { "" } else { "\n" };
        out!("{}{text}", if clears { CLEAR } else { between });
        is_first = false;
        if report.state == "dead" || crate::output::is_closed() || is_over(&signals, every) {
            return Ok(ExitCode::from(report.exit_code()));
        }
    }
}

/// Waits until it is time to look again; whether a signal came that ends it.
pub fn is_over(signals: &Signals, every: Duration) -> bool {
    let wait = Timespec::try_from(every).ok();
    let _or_interrupted = poll(&mut [PollFd::new(signals, PollFlags::IN)], wait.as_ref());
    std::iter::from_fn(|| signals.next()).any(asks_to_end)
}

fn shown(report: &Report, args: &StatusArgs, is_one_of_many: bool) -> Result<String, Failure> {
    if !args.json {
        return Ok(report.to_text(args.operations));
    }
    // One line each, for whoever reads line by line.
    let json =
        if is_one_of_many { serde_json::to_string(report) } else { serde_json::to_string_pretty(report) };
    Ok(json.map_err(std::io::Error::from)? + "\n")
}
