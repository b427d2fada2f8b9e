//! `bivouac run`: the main job.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_hosts::HostArg;
use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    CAUGHT, Environment, FormationName, LaunchError, Launcher, MountWay, ProcessId, Signals, StateDir,
    enter_namespaces, run_command,
};
use bivouac_mount::fusermount;
use bivouac_plan::Step;
use bivouac_stage::Transfer;
use bivouac_stage::jobs::{Changed, Jobs, Order, Way};
use bivouac_types::code_of_signal;

use crate::environment::OF_COMMANDS;
use crate::failure::{CODE_NOT_CLEAN, CODE_NOT_STAGED_IN, CODE_NOT_STAGED_OUT, CODE_NOT_STARTED, Failure};
use crate::flushing::Manner;
use crate::forming::{Formed, form};
use crate::forming_hosts::{self, Ends};
use crate::options::{FormationArgs, RunArgs};
use crate::planning::{Amount, Watch};
use crate::preloading;
use crate::report::{Form, Target, gather};
use crate::staging::{self, NotCopied, copy_all, way_on};
use crate::unflushed::flush_all;
use crate::unsaved::{self, KEEP_WAIT_MS};
use crate::versions;

/// Files that are brought to sources at the same time.
const FLUSH_JOBS: usize = 8;

/// Runs a command on a formation of its own.
pub fn run(here: &Environment, args: &RunArgs) -> Result<ExitCode, Failure> {
    check_inputs(args)?;
    let target = |path: &PathBuf| Target::new(path, Form::of(path));
    let report = args.report.as_ref().map(target).transpose().map_err(|f| f.with_code(CODE_NOT_STARTED))?;
    let preload = preloading::value(&args.preload, std::env::var_os(preloading::VARIABLE).as_deref())?;
    if args.formation.hosts.meet.is_some() {
        let cause = "has each host run its command, and `run` has one";
        let remedy = "write on each host: bivouac up --meet; then on one of them what shall run";
        return Err(LaunchError::usage("--meet", cause, remedy).into());
    }
    if let Some(hosts) = forming_hosts::hosts(here, &args.formation)? {
        // What the command starts on other hosts has the same environment: only a library that was named is there too.
        return run_on_hosts(here, args, hosts, preload.filter(|_| args.preload.preload.is_some()), report);
    }
    let in_namespaces = MountWay::choose(here, &fusermount::PROGRAMS) == MountWay::Namespaces;
    if in_namespaces {
        // Before the first thread, and before anything is started that is to live there as well.
        enter_namespaces().map_err(not_started)?;
    }
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let name = name(args)?;
    let (formation, until) = own_time(args);
    let watch = watch(here, args, formation.nodes.unwrap_or(1).into())?;
    let begin = Instant::now();
    let owner = Some(ProcessId::current());
    let formed =
        form(here, name, &formation, &args.file, Some(&args.place), owner, &signals).map_err(|failure| {
            if failure.exit_code() == 2 { failure } else { failure.with_code(CODE_NOT_STARTED) }
        })?;
    let watch = started(watch, begin);
    Job { here, args, formed, signals, until, in_namespaces, preload, watch, report }.run()
}

/// What watches how long it takes, if that is wanted.
fn watch(here: &Environment, args: &RunArgs, nodes: u32) -> Result<Option<Watch>, Failure> {
    args.plan.then(|| Watch::new(here, &args.site, nodes)).transpose()
}

fn started(mut watch: Option<Watch>, begin: Instant) -> RefCell<Option<Watch>> {
    if let Some(watch) = &mut watch {
        watch.saw(Step::Start, Amount::default(), begin);
    }
    RefCell::new(watch)
}

/// A formation's time is ours to mind, as long as we live.
fn own_time(args: &RunArgs) -> (FormationArgs, Option<Instant>) {
    let until = args.formation.ttl.and_then(|ttl| Instant::now().checked_add(Duration::from_millis(ttl.0)));
    (FormationArgs { ttl: None, ..args.formation.clone() }, until)
}

/// The command runs here, and reaches the hosts by what it calls: `srun`, `mpiexec`, `ssh`.
fn run_on_hosts(
    here: &Environment,
    args: &RunArgs,
    hosts: (Launcher, Vec<HostArg>),
    preload: Option<OsString>,
    report: Option<Target>,
) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let (name, place) = (name(args)?, Some(&args.place));
    let (formation, until) = own_time(args);
    let nodes: u32 = hosts.1.iter().map(|host| u32::from(host.nodes)).sum();
    let watch = watch(here, args, nodes)?;
    let begin = Instant::now();
    let formed =
        forming_hosts::form(here, name, (&formation, &args.file), hosts, place, Ends::WithUs, &signals);
    let formed = formed.map_err(|failure| {
        if failure.exit_code() == 2 { failure } else { failure.with_code(CODE_NOT_STARTED) }
    })?;
    let job = Job {
        here,
        args,
        formed,
        signals,
        until,
        in_namespaces: false,
        preload,
        watch: started(watch, begin),
        report,
    };
    if job.formed.whole.as_ref() == Some(&job.formed.dir)
        && !(args.inputs.is_empty() && args.outputs.is_empty())
    {
        job.end()?;
        let cause = "this host is not one of the formation's, so nothing is mounted here";
        let remedy = "add it to --hosts, or copy in the command";
        return Err(LaunchError::usage("--in and --out", cause, remedy).into());
    }
    job.run()
}

/// A command on its formation.
struct Job<'a> {
    here: &'a Environment,
    args: &'a RunArgs,
    formed: Formed,
    signals: Signals,
    /// When the command is told to end.
    until: Option<Instant>,
    in_namespaces: bool,
    /// What the command is to preload.
    preload: Option<OsString>,
    /// What compares all that with what was predicted.
    watch: RefCell<Option<Watch>>,
    /// Where it is to be written what the job did.
    report: Option<Target>,
}

impl Job<'_> {
    fn run(self) -> Result<ExitCode, Failure> {
        let mount = self.formed.mounts.first().map_or_else(|| self.formed.dir.default_mount(), Clone::clone);
        if let Err(not_copied) = self.copy(Way::In) {
            let code = not_copied.signal.map_or(CODE_NOT_STAGED_IN, code_of_signal);
            self.report();
            self.end()?;
            return Err(Failure::new(code, format_args!("inputs were not copied in:\n{}", not_copied.text)));
        }
        let name = self.formed.name.as_str();
        let dir = self.formed.dir.path().as_os_str();
        let values = [mount.as_os_str(), OsStr::new(name), dir];
        let mut environment: Vec<_> = OF_COMMANDS.into_iter().zip(values).collect();
        environment.extend(self.preload.as_deref().map(|preload| (preloading::VARIABLE, preload)));
        if self.args.out_always {
            self.owe_outputs();
        }
        let ended = run_command(&self.args.command, &environment, &self.signals, self.until);
        let (code, how) = match ended {
            Ok(ended) => {
                ended.trouble.iter().for_each(|trouble| errln!("bivouac: {trouble}"));
                if ended.overtime {
                    errln!("bivouac: the life time (--ttl) was over, so the command was told to end");
                }
                // With outputs that do not come out for that, the reason says it.
                let is_said = ended.overtime || !self.args.outputs.is_empty() && !self.args.out_always;
                if ended.signal.is_some() && ended.asked_to_end.is_none() && !is_said {
                    errln!("bivouac: the command was {}", ended.how);
                }
                (ended.code, ended.how)
            }
            Err(error) => {
                errln!("bivouac: {error}");
                (CODE_NOT_STARTED, "it was not started".to_owned())
            }
        };
        let out = self.copy_out(code, &how);
        self.compare();
        self.report();
        match out {
            Ok(()) if self.args.keep => self.leave(&mount, code),
            Ok(()) => self.finish(code),
            Err(not_copied) => self.save(&mount, code, &not_copied),
        }
    }

    fn copy(&self, way: Way) -> Result<(), NotCopied> {
        let given = if way == Way::In { &self.args.inputs } else { &self.args.outputs };
        let transfers = given.iter().map(|transfer| absolute(way, transfer)).collect();
        let changed = if way == Way::In || self.args.out_all { Changed::All } else { Changed::SinceStaged };
        let mut order = Order::new(way, transfers);
        (order.changed, order.verify) = (changed, !self.args.no_verify);
        order.limit = self.args.limit.unwrap_or(0);
        let jobs = Jobs::at(self.formed.dir.stage_path());
        let is_plain =
            self.formed.dir.read().is_ok_and(|state| state.is_some_and(|state| state.sources.is_none()));
        let manner =
            staging::Manner { json: false, talk: self.args.talk, checks_room: way == Way::Out || is_plain };
        let begin = Instant::now();
        let copied = copy_all(&jobs, order, &self.formed.mounts, manner, &self.signals)?;
        if let Some(watch) = self.watch.borrow_mut().as_mut() {
            let step = if way == Way::In { Step::In } else { Step::Out };
            watch.saw(step, Amount { bytes: copied.bytes, files: copied.files }, begin);
        }
        Ok(())
    }

    /// What was predicted and what came of it, side by side. A run does not fail for that.
    fn compare(&self) {
        let Some(watch) = self.watch.borrow_mut().take() else { return };
        if let Some(path) = &self.args.plan_json
            && let Err(error) = std::fs::write(path, watch.json())
        {
            errln!("bivouac: {}: {error}; the comparison is not written there", path.display());
        }
        match watch.end() {
            Ok(text) => errln!("bivouac: predicted, and what it took:\n{}", text.trim_end()),
            Err(failure) => errln!("bivouac: nothing is learned of this run: {failure}"),
        }
    }

    /// What the job did. A run does not fail for that.
    fn report(&self) {
        let Some(target) = &self.report else { return };
        if let Err(failure) = gather(self.whole()).and_then(|report| target.write(&report, None)) {
            errln!("bivouac: what the job did is not told: {failure}");
        }
    }

    /// Brings what was written to the sources of partitions.
    fn flush(&self) -> Result<(), NotCopied> {
        let not_copied = |text| NotCopied { text, signal: None, job: None, is_stopped: false };
        let manner = Manner { force: false, jobs: FLUSH_JOBS };
        let dir = self.formed.whole.as_ref().unwrap_or(&self.formed.dir);
        let outcome = flush_all(dir, manner).map_err(|failure| not_copied(failure.to_string()))?;
        outcome.lost.iter().for_each(|lost| errln!("bivouac: {lost}"));
        let failed: Vec<String> =
            outcome.failed.iter().map(|(path, error)| format!("{}: {error}", path.display())).collect();
        if failed.is_empty() { Ok(()) } else { Err(not_copied(failed.join("\n"))) }
    }

    fn copy_out(&self, code: u8, how: &str) -> Result<(), NotCopied> {
        self.flush()?;
        if code == 0 || self.args.out_always {
            self.owe_outputs();
            return self.copy(Way::Out).inspect(|()| self.mark(None));
        }
        if !self.args.outputs.is_empty() {
            errln!(
                "bivouac: the command failed ({how}), so its outputs are not copied out (see --out-always)"
            );
        }
        Ok(())
    }

    /// From now on outputs are to come out: should this process be killed before they have, they are kept.
    fn owe_outputs(&self) {
        if !self.args.outputs.is_empty() {
            self.mark(Some("outputs were not yet copied out when `bivouac run` was killed".into()));
        }
    }

    /// Where it is written down what becomes of the formation.
    fn whole(&self) -> &StateDir {
        self.formed.whole.as_ref().unwrap_or(&self.formed.dir)
    }

    /// Marks the formation as one that holds data which is nowhere else, or takes the mark off.
    fn mark(&self, reason: Option<String>) {
        if !self.args.outputs.is_empty()
            && let Err(error) = unsaved::keep(self.whole(), reason)
        {
            errln!("bivouac: {error}");
        }
    }

    /// Takes the formation down; the command's exit code is ours.
    fn finish(&self, code: u8) -> Result<ExitCode, Failure> {
        match self.end() {
            Err(failure) if code != 0 => Err(failure.with_code(code)),
            Err(failure) => Err(failure),
            Ok(()) => {
                let attach = &self.args.file.attach;
                if !attach.pools.is_empty() {
                    versions::after(self.here, &attach.database, self.formed.name.as_str());
                }
                Ok(ExitCode::from(code))
            }
        }
    }

    fn end(&self) -> Result<(), Failure> {
        self.formed.take_down(self.here).map_err(|text| Failure::new(CODE_NOT_CLEAN, text))
    }

    fn leave(&self, mount: &Path, code: u8) -> Result<ExitCode, Failure> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let ttl_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        if let Err(error) = ask(self.whole(), &Request::Leave { ttl_ms }, &[], KEEP_WAIT_MS) {
            let failure = Failure::from(error);
            return Err(if code == 0 { failure } else { failure.with_code(code) });
        }
        errln!("bivouac: formation {} is left running{}", self.formed.name, self.way_in(mount));
        Ok(ExitCode::from(code))
    }

    /// Something did not come out: the formation stays, marked so that nobody takes it down by accident.
    fn save(&self, mount: &Path, code: u8, not_copied: &NotCopied) -> Result<ExitCode, Failure> {
        let name = &self.formed.name;
        let code = if code == 0 { CODE_NOT_STAGED_OUT } else { code };
        let reason = unsaved::reason(not_copied.job, &not_copied.text);
        if let Err(error) = unsaved::keep(self.whole(), Some(reason)) {
            let text = format!(
                "outputs were not copied out:\n{}\nwhat is not out is lost if formation {name} ends, and it cannot be kept: {error}",
                not_copied.text,
            );
            return Err(Failure::new(code, text));
        }
        let way_on = not_copied.job.map(|job| way_on(name, job) + "\n").unwrap_or_default();
        let text = format!(
            "outputs were not copied out:\n{}\n{way_on}the data is kept: formation {name} is left running{}; when you have saved it: \
             bivouac down --name {name} --discard",
            not_copied.text,
            self.way_in(mount),
        );
        Err(Failure::new(code, text))
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

/// The side that is on this machine, for whoever goes on with the copy from elsewhere.
fn absolute(way: Way, transfer: &Transfer) -> Transfer {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Transfer { src, dst } = transfer;
    match way {
        Way::In => Transfer { src: absolute(src), dst: dst.clone() },
        Way::Out => Transfer { src: src.clone(), dst: absolute(dst) },
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
