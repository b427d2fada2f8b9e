//! `bivouac run`: the main job.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bivouac_client::FlushOptions;
use bivouac_hosts::HostArg;
use bivouac_launch::control::{Request, ask};
use bivouac_launch::{
    CAUGHT, Environment, FormationName, LaunchError, Launcher, MountWay, ProcessId, Signals, StateDir,
    check_command, enter_namespaces, run_command,
};
use bivouac_monitor::report::gather;
use bivouac_mount::fusermount;
use bivouac_plan::LearnedStep;
use bivouac_stage::jobs::{ChangeFilter, Direction, JobSpec, Jobs};
use bivouac_stage::periodic::PeriodicPlan;
use bivouac_stage::{Transfer, escape};
use bivouac_types::code_of_signal;
use rustix::fs::{Access, AtFlags};

use crate::environment::OF_COMMANDS;
use crate::failure::{CODE_NOT_CLEAN, CODE_NOT_STAGED_IN, CODE_NOT_STAGED_OUT, CODE_NOT_STARTED, Failure};
use crate::forming::{RunningFormation, form};
use crate::forming_hosts::{self, Lifetime};
use crate::options::{FormationArgs, RunArgs};
use crate::periodic_out::PeriodicOut;
use crate::planning::{Amount, Watch};
use crate::preloading;
use crate::race_list::RaceList;
use crate::report_file::{ReportFormat, ReportTarget};
use crate::staging::{self, CopyFailure, copy_all, living_mounts, way_on};
use crate::unflushed::flush_all;
use crate::unsaved::{self, KEEP_WAIT_MS};
use crate::versions;

/// Files that are brought to sources at the same time.
const FLUSH_JOBS: usize = 8;

/// Runs a command on a formation of its own.
pub fn run(here: &Environment, args: &RunArgs) -> Result<ExitCode, Failure> {
    check_inputs(args)?;
    check_outputs(args)?;
    check_rounds(args)?;
    let mounts: Vec<&Path> = args.place.dir.iter().chain(&args.place.each).map(PathBuf::as_path).collect();
    check_command(here, &args.command, &mounts).map_err(|(code, text)| Failure::new(code, text))?;
    let target = |path: &PathBuf| {
        let form = ReportFormat::of(path)
            .map_err(|why| Failure::new(2, format_args!("--report {}: {why}", path.display())))?;
        ReportTarget::new(path, form)
    };
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

/// Creates the measurement for a comparison with the prediction, if wanted.
fn watch(here: &Environment, args: &RunArgs, nodes: u32) -> Result<Option<Watch>, Failure> {
    args.plan.then(|| Watch::new(here, &args.site, nodes)).transpose()
}

fn started(mut watch: Option<Watch>, begin: Instant) -> RefCell<Option<Watch>> {
    if let Some(watch) = &mut watch {
        watch.saw(LearnedStep::Start, Amount::default(), begin);
    }
    RefCell::new(watch)
}

/// Takes the formation's time out of its arguments: it is ours to mind, as long as we live.
fn own_time(args: &RunArgs) -> (FormationArgs, Option<Instant>) {
    let until = args.formation.ttl.and_then(|ttl| Instant::now().checked_add(Duration::from_millis(ttl.0)));
    (FormationArgs { ttl: None, ..args.formation.clone() }, until)
}

/// Runs the command here, which reaches the hosts by what it calls: `srun`, `mpiexec`, `ssh`.
fn run_on_hosts(
    here: &Environment,
    args: &RunArgs,
    hosts: (Launcher, Vec<HostArg>),
    preload: Option<OsString>,
    report: Option<ReportTarget>,
) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let (name, place) = (name(args)?, Some(&args.place));
    let (formation, until) = own_time(args);
    let nodes: u32 = hosts.1.iter().map(|host| u32::from(host.nodes)).sum();
    let watch = watch(here, args, nodes)?;
    let begin = Instant::now();
    let formed =
        forming_hosts::form(here, name, (&formation, &args.file), hosts, place, Lifetime::WithUs, &signals);
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
    formed: RunningFormation,
    signals: Signals,
    /// When the command is told to end.
    until: Option<Instant>,
    in_namespaces: bool,
    /// Value of `LD_PRELOAD` for the command.
    preload: Option<OsString>,
    /// Measurement, for the comparison with the prediction.
    watch: RefCell<Option<Watch>>,
    /// File for the report of the job.
    report: Option<ReportTarget>,
}

impl Job<'_> {
    fn run(self) -> Result<ExitCode, Failure> {
        let mount = self.formed.mounts.first().map_or_else(|| self.formed.dir.default_mount(), Clone::clone);
        if let Err(not_copied) = self.copy(Direction::In, Vec::new()) {
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
        // Before the command runs: if this process is killed meanwhile, the formation is kept for them.
        if self.args.out_always {
            self.owe_outputs();
        }
        let periodic = self.periodic();
        let work = || run_command(&self.args.command, &environment, &self.signals, self.until);
        let (ended, stopped) = match &periodic {
            Some(periodic) => periodic.beside(&self.signals, work),
            None => (work(), None),
        };
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
        let out = match stopped.filter(|_| code == 0 || self.args.out_always) {
            Some(signal) => Err(CopyFailure::interrupted(signal)),
            None => self.copy_out(code, &how, periodic.as_ref()),
        };
        periodic.iter().for_each(PeriodicOut::summarize);
        self.compare();
        // While it runs: what nodes know of it goes with them.
        self.report();
        self.races();
        match out {
            Ok(()) if self.args.keep => self.leave(&mount, code),
            Ok(()) => self.finish(code),
            Err(not_copied) => self.save(&mount, code, &not_copied),
        }
    }

    /// Returns the periodic copy of outputs, if `--out-every` asks for one.
    fn periodic(&self) -> Option<PeriodicOut> {
        let every = Duration::from_millis(self.args.out_every?.0);
        let plan = PeriodicPlan {
            every,
            transfers: self.args.outputs.iter().map(|output| absolute(Direction::Out, output)).collect(),
            verify: !self.args.no_verify,
            limit: self.args.limit.unwrap_or(0),
        };
        let RunningFormation { name, dir, mounts, .. } = &self.formed;
        Some(PeriodicOut::new(name.clone(), dir.clone(), mounts.clone(), plan, self.args.talk.quiet))
    }

    /// Copies the inputs in, or the outputs out but for these paths.
    fn copy(&self, way: Direction, except: Vec<PathBuf>) -> Result<(), CopyFailure> {
        let given = if way == Direction::In { &self.args.inputs } else { &self.args.outputs };
        let transfers = given.iter().map(|transfer| absolute(way, transfer)).collect();
        let changed = if way == Direction::In || self.args.out_all {
            ChangeFilter::All
        } else {
            ChangeFilter::SinceStaged
        };
        let mut order = JobSpec::new(way, transfers);
        (order.changed, order.verify, order.except) = (changed, !self.args.no_verify, except);
        order.limit = self.args.limit.unwrap_or(0);
        let jobs = Jobs::at(self.formed.dir.stage_path());
        let is_plain =
            self.formed.dir.read().is_ok_and(|state| state.is_some_and(|state| state.sources.is_none()));
        let manner = staging::CopySettings {
            json: false,
            talk: self.args.talk,
            checks_room: way == Direction::Out || is_plain,
        };
        let begin = Instant::now();
        // Asked again: a node may have failed while the command ran.
        let mounts = living_mounts(&self.formed.dir, &self.formed.mounts);
        let copied = copy_all(&jobs, order.clone(), &mounts, manner, &self.signals)?;
        staging::save_incoming(&self.formed.dir, &order).map_err(|failure| CopyFailure {
            text: failure.to_string(),
            signal: None,
            job: None,
            is_stopped: false,
        })?;
        if let Some(watch) = self.watch.borrow_mut().as_mut() {
            let step = if way == Direction::In { LearnedStep::In } else { LearnedStep::Out };
            watch.saw(step, Amount { bytes: copied.bytes, files: copied.files }, begin);
        }
        Ok(())
    }

    /// Prints prediction and outcome side by side. An error does not fail the run.
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

    /// Writes the report of the job. An error does not fail the run.
    fn report(&self) {
        let Some(target) = &self.report else { return };
        if let Err(failure) =
            gather(self.whole()).map_err(Failure::from).and_then(|report| target.write(&report, None))
        {
            errln!("bivouac: what the job did is not told: {failure}");
        }
    }

    /// Lists the races that were found. A run does not fail for them.
    fn races(&self) {
        if !self.args.formation.detect_races {
            return;
        }
        match RaceList::of_formation(self.whole()) {
            Ok(list) => errln!("bivouac: races:\n{}", list.to_text(false).trim_end()),
            Err(failure) => errln!("bivouac: races are not listed: {failure}"),
        }
    }

    /// Brings what was written to the sources of partitions.
    fn flush(&self) -> Result<(), CopyFailure> {
        let not_copied = |text| CopyFailure { text, signal: None, job: None, is_stopped: false };
        let options = FlushOptions { force: false, jobs: FLUSH_JOBS };
        let dir = self.formed.whole.as_ref().unwrap_or(&self.formed.dir);
        let outcome = flush_all(dir, options).map_err(|failure| not_copied(failure.to_string()))?;
        outcome.lost.iter().for_each(|lost| errln!("bivouac: {lost}"));
        let failed: Vec<String> =
            outcome.failed.iter().map(|(path, error)| format!("{}: {error}", path.display())).collect();
        if failed.is_empty() { Ok(()) } else { Err(not_copied(failed.join("\n"))) }
    }

    fn copy_out(&self, code: u8, how: &str, periodic: Option<&PeriodicOut>) -> Result<(), CopyFailure> {
        // Whatever the command's end was: what a source lacks is lost with the formation.
        self.flush()?;
        if code == 0 || self.args.out_always {
            self.owe_outputs();
            let rest = |periodic: &PeriodicOut| periodic.copy_rest(code == 0, &self.signals);
            let except = periodic.map_or(Ok(Vec::new()), rest)?;
            for path in &except {
                let text =
                    "was changed since it was copied out, and the command failed: the target keeps the copy";
                errln!("bivouac: /{}: {text}", escape(path));
            }
            return self.copy(Direction::Out, except).inspect(|()| self.mark(None));
        }
        if !self.args.outputs.is_empty() {
            errln!(
                "bivouac: the command failed ({how}), so its outputs are not copied out (see --out-always)"
            );
        }
        Ok(())
    }

    /// Records that outputs have to be copied out, so that they are kept if this process is killed before.
    fn owe_outputs(&self) {
        if !self.args.outputs.is_empty() {
            self.mark(Some("outputs were not yet copied out when `bivouac run` was killed".into()));
        }
    }

    /// Returns where the fate of the formation is recorded.
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
            // The command's own failure is what a script asks for; what is left of the formation is said besides.
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

    /// Keeps the formation, since something did not come out, and marks it so that nobody takes it down by accident.
    fn save(&self, mount: &Path, code: u8, not_copied: &CopyFailure) -> Result<ExitCode, Failure> {
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

    /// Returns how to reach the data, as text.
    fn way_in(&self, mount: &Path) -> String {
        let (mount, name) = (mount.display(), &self.formed.name);
        if self.in_namespaces {
            return format!(
                ", mounted at {mount} inside its namespaces, which bivouac exec --name {name} -- COMMAND and bivouac stage enter"
            );
        }
        format!(", mounted at {mount}")
    }
}

/// Returns the side that is on this machine, for whoever goes on with the copy from elsewhere.
fn absolute(way: Direction, transfer: &Transfer) -> Transfer {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Transfer { src, dst } = transfer;
    match way {
        Direction::In => Transfer { src: absolute(src), dst: dst.clone() },
        Direction::Out => Transfer { src: src.clone(), dst: absolute(dst) },
    }
}

/// Checks the inputs before anything is started: what is not there cannot be copied in.
fn check_inputs(args: &RunArgs) -> Result<(), Failure> {
    Direction::In
        .check_targets(&args.inputs)
        .map_err(|why| Failure::new(CODE_NOT_STAGED_IN, format!("--in: {why}")))?;
    let missing =
        args.inputs.iter().find_map(|input| std::fs::metadata(&input.src).err().map(|error| (input, error)));
    missing.map_or(Ok(()), |(input, error)| {
        let text = format!("--in {}: {error}; check its path", input.src.display());
        Err(Failure::new(CODE_NOT_STAGED_IN, text))
    })
}

/// Checks the outputs before anything is started: where nothing can be made nothing comes out in the end.
fn check_outputs(args: &RunArgs) -> Result<(), Failure> {
    Direction::Out
        .check_targets(&args.outputs)
        .map_err(|why| Failure::new(CODE_NOT_STARTED, format!("--out: {why}")))?;
    for output in &args.outputs {
        let refused = |at: &Path, why: &dyn std::fmt::Display| {
            let text = format!(
                "--out {}: {}: {why}; the command was not started, name another target",
                output.dst.display(),
                at.display()
            );
            Failure::new(CODE_NOT_STARTED, text)
        };
        let dst = std::path::absolute(&output.dst)?;
        let seen = |dir: &Path| match std::fs::metadata(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            seen => Some((dir.to_owned(), seen)),
        };
        // A directory that is there is merged; whatever else is there is replaced, which is a change of the one around
        // it.
        let begin = if dst.is_dir() { 0 } else { 1 };
        let Some((dir, seen)) = dst.ancestors().skip(begin).find_map(seen) else { continue };
        match seen {
            Ok(there) if there.is_dir() => {}
            Ok(_) => return Err(refused(&dir, &"is not a directory")),
            Err(error) => return Err(refused(&dir, &error)),
        }
        rustix::fs::accessat(rustix::fs::CWD, &dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(|error| refused(&dir, &std::io::Error::from(error)))?;
    }
    Ok(())
}

/// Refuses, before anything is started, rounds that would never begin.
fn check_rounds(args: &RunArgs) -> Result<(), Failure> {
    match (args.out_every, args.formation.ttl) {
        (Some(every), Some(ttl)) if every.0 >= ttl.0 => {
            let cause = format!(
                "is not less than the life time (--ttl {ttl}), so nothing would come out before the end"
            );
            let remedy = "write a shorter one, for instance a tenth of it";
            Err(LaunchError::usage(format_args!("--out-every {every}"), cause, remedy).into())
        }
        _ => Ok(()),
    }
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
