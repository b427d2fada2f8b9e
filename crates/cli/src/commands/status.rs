//! `bivouac status`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals, StateDir, asks_to_end};
use bivouac_monitor::status::{StatusReport, look};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
use crate::options::StatusArgs;
use crate::output;

/// Shows a formation, once or again and again.
pub fn run(here: &Environment, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name())?;
    let Some(every) = args.watch else {
        let report = look(&dir)?;
        if args.lost {
            let lost = &report.lost;
            out!("{}", if args.json { output::json(lost, true)? + "\n" } else { lost.to_text() });
            return Ok(ExitCode::from(lost.exit_code()));
        }
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
        let report = match look(dir) {
            // It was taken down between the two looks.
            Err(_) if dir.read()?.is_none() => return Ok(ExitCode::SUCCESS),
            looked => looked?,
        };
        let text = shown(&report, args, true)?;
        let between = if args.json || is_first { "" } else { "\n" };
        if clears {
            output::clear_screen();
        }
        out!("{}{text}", if clears { "" } else { between });
        is_first = false;
        if report.state == "dead" || output::is_closed() || is_over(&signals, every) {
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

fn shown(report: &StatusReport, args: &StatusArgs, is_one_of_many: bool) -> Result<String, Failure> {
    if !args.json {
        return Ok(report.to_text(args.operations, output::columns()));
    }
    // One line each, for whoever reads line by line.
    Ok(output::json(report, !is_one_of_many)? + "\n")
}

#[cfg(test)]
mod tests {
    use bivouac_monitor::status::LIST_COMMAND;

    use crate::options::Cli;

    #[test]
    fn the_command_for_dead_formations_is_one() {
        assert!(Cli::read(LIST_COMMAND.split(' ').map(Into::into).collect()).is_ok());
    }
}
