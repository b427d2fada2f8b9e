//! `bivouac run`: the main job.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    CAUGHT, FormationName, LaunchError, MountWay, Signals, Surroundings, enter_namespaces, run_command,
    take_down,
};
use bivouac_mount::fusermount;

use crate::failure::{CODE_NOT_CLEAN, CODE_NOT_STAGED_IN, CODE_NOT_STAGED_OUT, CODE_NOT_STARTED, Failure};
use crate::forming::{Formed, form};
use crate::options::RunArgs;
use crate::staging::{NotCopied, Way, copy_all};

/// How long the supervisor may take to note that data is to be kept, in milliseconds.
const KEEP_WAIT_MS: u64 = 10_000;

/// Runs a command on a formation of its own.
pub fn run(here: &Surroundings, args: &RunArgs) -> Result<ExitCode, Failure> {
    check_inputs(args)?;
    let in_namespaces = MountWay::choose(here, &fusermount::PROGRAMS) == MountWay::Namespaces;
    if in_namespaces {
        // Before the first thread, and before anything is started that is to live there as well.
        enter_namespaces().map_err(not_started)?;
    }
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let name = name(args)?;
    let formed = form(here, name, &args.formation, Some(&args.place), &signals).map_err(|failure| {
        if failure.exit_code() == 2 { failure } else { failure.with_code(CODE_NOT_STARTED) }
    })?;
    Job { here, args, formed, signals, in_namespaces }.run()
}

/// A command on its formation.
struct Job<'a> {
    here: &'a Surroundings,
    args: &'a RunArgs,
    formed: Formed,
    signals: Signals,
    in_namespaces: bool,
}

impl Job<'_> {
    fn run(self) -> Result<ExitCode, Failure> {
        let mount = self.formed.mounts.first().map_or_else(|| self.formed.dir.default_mount(), Clone::clone);
        if let Err(not_copied) = self.copy(Way::In, &mount) {
            let code = not_copied.signal.map_or(CODE_NOT_STAGED_IN, code_of_signal);
            self.end()?;
            return Err(Failure::new(code, format_args!("inputs were not copied in:\n{}", not_copied.text)));
        }
        let name = self.formed.name.as_str();
        let dir = self.formed.dir.path().as_os_str();
        let environment =
            [("BIVOUAC", mount.as_os_str()), ("BIVOUAC_NAME", OsStr::new(name)), ("BIVOUAC_DIR", dir)];
        let ended = run_command(&self.args.command, &environment, &self.signals);
        let code = match ended {
            Ok(ended) => {
                ended.trouble.iter().for_each(|trouble| eprintln!("bivouac: {trouble}"));
                ended.code
            }
            Err(error) => {
                eprintln!("bivouac: {error}");
                CODE_NOT_STARTED
            }
        };
        match self.copy_out(&mount, code) {
            Ok(()) if self.args.keep => self.leave(&mount, code),
            Ok(()) => self.finish(code),
            Err(not_copied) => self.save(&mount, code, &not_copied),
        }
    }

    fn copy(&self, way: Way, mount: &Path) -> Result<(), NotCopied> {
        let transfers = if way == Way::In { &self.args.inputs } else { &self.args.outputs };
        copy_all(way, transfers, mount, !self.args.no_verify, &self.signals)
    }

    fn copy_out(&self, mount: &Path, code: u8) -> Result<(), NotCopied> {
        if code == 0 || self.args.out_always {
            return self.copy(Way::Out, mount);
        }
        if !self.args.outputs.is_empty() {
            eprintln!(
                "bivouac: the command failed (exit code {code}), so its outputs are not copied out (see --out-always)"
            );
        }
        Ok(())
    }

    /// Takes the formation down; the command's exit code is ours.
    fn finish(&self, code: u8) -> Result<ExitCode, Failure> {
        match self.end() {
            Err(failure) if code != 0 => Err(failure.with_code(code)),
            Err(failure) => Err(failure),
            Ok(()) => Ok(ExitCode::from(code)),
        }
    }

    fn end(&self) -> Result<(), Failure> {
        let down = take_down(self.here, &self.formed.dir, true, &mut |text| eprintln!("bivouac: {text}"));
        match down {
            Ok(remains) if remains.is_nothing() => Ok(()),
            Ok(remains) => Err(Failure::new(CODE_NOT_CLEAN, remains)),
            Err(error) => Err(Failure::new(CODE_NOT_CLEAN, error)),
        }
    }

    fn leave(&self, mount: &Path, code: u8) -> Result<ExitCode, Failure> {
        eprintln!("bivouac: formation {} is left running{}", self.formed.name, self.way_in(mount));
        Ok(ExitCode::from(code))
    }

    /// Something did not come out: the formation stays, marked so that nobody takes it down by accident.
    fn save(&self, mount: &Path, code: u8, not_copied: &NotCopied) -> Result<ExitCode, Failure> {
        let first = not_copied.text.lines().next().unwrap_or_default();
        let request = Request::Keep { reason: Some(format!("outputs were not copied out: {first}")) };
        if let Err(error) = ask(&self.formed.dir, &request, &[], KEEP_WAIT_MS) {
            eprintln!("bivouac: {error}");
        }
        let name = &self.formed.name;
        let text = format!(
            "outputs were not copied out:\n{}\nthe data is kept: formation {name} is left running{}; when you have saved it: \
             bivouac down --name {name} --discard",
            not_copied.text,
            self.way_in(mount),
        );
        Err(Failure::new(if code == 0 { CODE_NOT_STAGED_OUT } else { code }, text))
    }

    /// How to get at the data.
    fn way_in(&self, mount: &Path) -> String {
        let supervisor = self.formed.dir.read().ok().flatten().and_then(|state| state.supervisor);
        match supervisor {
            Some(process) if self.in_namespaces => format!(
                ", mounted at {} inside its namespaces (nsenter --user --mount --preserve-credentials --target {})",
                mount.display(),
                process.pid
            ),
            _ => format!(", mounted at {}", mount.display()),
        }
    }
}

/// Before anything is started: what is not there cannot be copied in.
fn check_inputs(args: &RunArgs) -> Result<(), Failure> {
    let missing =
        args.inputs.iter().find_map(|input| std::fs::metadata(&input.src).err().map(|error| (input, error)));
    missing.map_or(Ok(()), |(input, error)| {
        let text = format!("--in {}: {error}; check its path", input.src.display());
        Err(Failure::new(CODE_NOT_STAGED_IN, text))
    })
}

fn name(args: &RunArgs) -> Result<FormationName, Failure> {
    match &args.name {
        Some(name) => Ok(name.clone()),
        None => format!("run-{}", std::process::id()).parse().map_err(|text: String| Failure::new(1, text)),
    }
}

fn not_started(error: LaunchError) -> Failure {
    Failure::from(error).with_code(CODE_NOT_STARTED)
}

fn code_of_signal(signal: i32) -> u8 {
    128 + signal as u8 % 128
}
