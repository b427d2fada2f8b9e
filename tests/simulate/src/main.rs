//! Nodes and clients of the real code in one process, under one schedule that follows from a seed.
//!
//! `simulate --seed N`, `--seeds A..B`, `--case FILE`: `cargo xtask simulate` builds this and passes its arguments on. Each run
//! is a process of its own, so that nothing of one is left for the next.
#![allow(unsafe_code, reason = "a system call without a safe form")]

mod history;
mod keeper;
mod mounts;
mod oracles;
mod scenario;
mod ways;
mod world;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bivouac_sim_kernel as sim;
use scenario::Scenario;

const USAGE: &str = "usage: cargo xtask simulate [OPTIONS]
  --seed N           one run; its log is printed
  --seeds A..B       the runs of these seeds, B not among them
  --seconds S        of these seeds, as many as are begun within so many seconds
  --case FILE        the run that a file describes; may be given several times
  --strict           of these seeds, those whose runs have strict files
  --mirrored         of these seeds, those whose runs have mirrored volumes
  --steps N          about how many operations a run has (40)
  --repeat           each run twice: both must have the same log
  --no-shrink        a run that fails is not made shorter
  --jobs N           runs at a time (2)
  --quiet            logs of runs that pass are not printed
  --plant LIE        the simulated system has a fault: lost-writes, lost-wakeups, hidden-ends; or, where volumes are
                     mirrored, a backup does not have what it says it has: lost-changes; runs should fail
  --print            says what the seed's run consists of, and does not run it";

struct Options {
    seeds: std::ops::Range<u64>,
    seconds: Option<u64>,
    cases: Vec<PathBuf>,
    strict: bool,
    mirrored: bool,
    steps: u64,
    repeat: bool,
    shrink: bool,
    jobs: usize,
    print: bool,
    verbose: bool,
    quiet: bool,
    plant: Option<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, case, root] = arguments.as_slice()
        && first == "--run"
    {
        return run(Path::new(case), Path::new(root));
    }
    match parse(&arguments) {
        Some(options) => drive(&options),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        seeds: 0..0,
        seconds: None,
        cases: Vec::new(),
        steps: 40,
        repeat: false,
        shrink: true,
        strict: false,
        mirrored: false,
        jobs: 2,
        print: false,
        verbose: false,
        quiet: false,
        plant: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next()?.parse::<u64>().ok();
        match argument.as_str() {
            "--seed" => {
                let seed = number()?;
                (options.seeds, options.verbose) = (seed..seed + 1, true);
            }
            "--seeds" => {
                let (from, to) = arguments.next()?.split_once("..")?;
                options.seeds = from.parse().ok()?..to.parse().ok()?;
            }
            "--seconds" => options.seconds = Some(number()?),
            "--case" => options.cases.push(arguments.next()?.into()),
            "--steps" => options.steps = number()?,
            "--strict" => options.strict = true,
            "--mirrored" => options.mirrored = true,
            "--repeat" => options.repeat = true,
            "--no-shrink" => options.shrink = false,
            "--jobs" => options.jobs = number()? as usize,
            "--quiet" => options.quiet = true,
            "--plant" => options.plant = Some(arguments.next().filter(|name| lie(name).is_some())?.clone()),
            "--print" => options.print = true,
            _ => return None,
        }
    }
    (!options.seeds.is_empty() || !options.cases.is_empty()).then_some(options)
}

/// What the system lies about in all runs.
static PLANT: std::sync::OnceLock<String> = std::sync::OnceLock::new();

fn lie(name: &str) -> Option<sim::Lie> {
    match name {
        "lost-writes" => Some(sim::Lie::LostWrites),
        "lost-wakeups" => Some(sim::Lie::LostWakeups),
        "hidden-ends" => Some(sim::Lie::HiddenEnds),
        "lost-changes" => Some(sim::Lie::LostChanges),
        _ => None,
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    passed: bool,
    log: String,
}

impl Report {
    /// What failed, in one line, so that a shorter run is known to fail in the same way.
    fn kind(&self) -> String {
        let line = self
            .log
            .lines()
            .find(|line| line.contains("FAILED"))
            .unwrap_or("FAILED: it ended without a word");
        let at = line.find("FAILED").unwrap_or(0);
        let words = line[at..].split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
        words.take(5).collect::<Vec<_>>().join(" ")
    }
}

/// Longest processor time of a run; ten times as long may pass meanwhile.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Runs a scenario in a process of its own.
fn run_apart(scenario: &Scenario, place: &Path, verbose: bool) -> Report {
    let failed = |what: String| Report { passed: false, log: format!("FAILED: {what}\n") };
    let _may_not_be_there = std::fs::remove_dir_all(place);
    let case = place.join("case");
    let written = std::fs::create_dir_all(place).and_then(|()| std::fs::write(&case, scenario.to_string()));
    if let Err(error) = written {
        return failed(format!("{}: {error}", place.display()));
    }
    let log = place.join("log");
    let child = std::env::current_exe().and_then(|program| {
        let out = std::fs::File::create(&log)?;
        let errors = out.try_clone()?;
        let mut command = Command::new(program);
        command.arg("--run").arg(&case).arg(place).stdin(Stdio::null()).stdout(out).stderr(errors);
        if verbose {
            command.env("SIM_LOG", "1");
        }
        if let Some(plant) = PLANT.get() {
            command.env("SIM_PLANT", plant);
        }
        command.spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return failed(format!("a run cannot be started: {error}")),
    };
    let begun = Instant::now();
    let passed = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if processor_time(child.id()) > RUN_MAX || begun.elapsed() > RUN_MAX * 10 => {
                let _it_may_have_ended = child.kill();
                let _known = child.wait();
                return failed(format!(
                    "it did not end within {RUN_MAX:?} of processor time, or ten times as long"
                ));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return failed(format!("{error}")),
        }
    };
    let log = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    Report { passed, log }
}

/// Processor time that a process has had; none for one that has ended. Beside other work a run may wait long for it.
fn processor_time(pid: u32) -> Duration {
    // In hundredths of a second on Linux, behind the name, which may have spaces.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn drive(options: &Options) -> ExitCode {
    let base = PathBuf::from(format!("/dev/shm/bivouac-simulate-{}", std::process::id()));
    let mut scenarios: Vec<Scenario> = Vec::new();
    for case in &options.cases {
        match std::fs::read_to_string(case).map_err(|e| e.to_string()).and_then(|text| Scenario::parse(&text))
        {
            Ok(scenario) => scenarios.push(scenario),
            Err(error) => {
                eprintln!("{}: {error}", case.display());
                return ExitCode::from(2);
            }
        }
    }
    if options.print {
        options.seeds.clone().for_each(|seed| print!("{}", Scenario::drawn(seed, options.steps)));
        return ExitCode::SUCCESS;
    }
    let verbose = !options.quiet && (options.verbose || !options.cases.is_empty());
    if let Some(plant) = &options.plant {
        PLANT.get_or_init(|| plant.clone());
    }
    let begun = Instant::now();
    let todo = std::sync::Mutex::new(
        scenarios
            .into_iter()
            .chain(options.seeds.clone().map(|seed| Scenario::drawn(seed, options.steps)))
            .filter(|scenario| scenario.strict || !options.strict)
            .filter(|scenario| scenario.mirrored || !options.mirrored),
    );
    let counts = std::sync::Mutex::new((0u64, 0u64));
    std::thread::scope(|scope| {
        for job in 0..options.jobs.max(1) {
            let (todo, counts, base) = (&todo, &counts, &base);
            scope.spawn(move || {
                let place = base.join(job.to_string());
                loop {
                    let is_time = options.seconds.is_none_or(|seconds| begun.elapsed().as_secs() < seconds);
                    let next = todo.lock().ok().filter(|_| is_time).and_then(|mut todo| todo.next());
                    let Some(scenario) = next else { break };
                    let passed = one(options, &scenario, &place, verbose);
                    if let Ok(mut counts) = counts.lock() {
                        if passed { counts.0 += 1 } else { counts.1 += 1 }
                    }
                }
            });
        }
    });
    let _temporary = std::fs::remove_dir_all(&base);
    let (passed, failed) = counts.into_inner().unwrap_or((0, 1));
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One scenario; whether it passed.
fn one(options: &Options, scenario: &Scenario, place: &Path, verbose: bool) -> bool {
    let report = run_apart(scenario, place, verbose);
    let mut out = std::io::stdout().lock();
    if verbose && report.passed {
        let _ = out.write_all(report.log.as_bytes());
    }
    if report.passed && options.repeat {
        let again = run_apart(scenario, place, verbose);
        if again.log != report.log {
            let differs = report.log.lines().zip(again.log.lines()).find(|(a, b)| a != b);
            let _ = writeln!(out, "seed {}: the same run is not the same: {differs:#?}", scenario.seed);
            return false;
        }
    }
    if report.passed {
        return true;
    }
    drop(out);
    let shortest = if options.shrink { shrink(scenario, &report.kind(), place) } else { scenario.clone() };
    let report = run_apart(&shortest, place, true);
    let mut out = std::io::stdout().lock();
    let log = if verbose { report.log.as_str() } else { tail(&report.log) };
    let _ =
        writeln!(out, "---- seed {} fails; the shortest run found that does, as a case file:", scenario.seed);
    let _ = writeln!(out, "{shortest}---- and how\n{log}----");
    false
}

/// The end of a log.
fn tail(log: &str) -> &str {
    let from = log.char_indices().rev().filter(|(_, c)| *c == '\n').nth(120).map_or(0, |(at, _)| at);
    &log[from..]
}

/// Takes away what is not needed for a run to fail in the same way.
fn shrink(scenario: &Scenario, kind: &str, place: &Path) -> Scenario {
    let fails = |candidate: &Scenario| {
        let report = run_apart(candidate, place, false);
        !report.passed && report.kind() == kind
    };
    let mut best = scenario.clone();
    let mut attempts = 0;
    for _ in 0..3 {
        let before = best.clone();
        let mut size = best.deeds.len().max(best.faults.len()).div_ceil(2);
        while size > 0 && attempts < 400 {
            for faults in [true, false] {
                let mut at = 0;
                while at < if faults { best.faults.len() } else { best.deeds.len() } {
                    let mut candidate = best.clone();
                    let end = |len: usize| (at + size).min(len);
                    if faults {
                        candidate.faults.drain(at..end(best.faults.len()));
                    } else {
                        candidate.deeds.drain(at..end(best.deeds.len()));
                        for fault in &mut candidate.faults {
                            let before = fault.deeds.saturating_sub(at as u16).min(size as u16);
                            fault.deeds -= before;
                        }
                    }
                    attempts += 1;
                    if fails(&candidate) { best = candidate } else { at += size }
                }
            }
            size /= 2;
        }
        if best == before {
            break;
        }
    }
    best
}

struct Log;

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Debug
    }

    fn log(&self, record: &log::Record<'_>) {
        let why = record.key_values().get("why".into()).map(|why| format!(": {why}")).unwrap_or_default();
        sim::log_line(&format!("{} {}{why}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// The run that a file describes.
fn run(case: &Path, root: &Path) -> ExitCode {
    let scenario =
        std::fs::read_to_string(case).map_err(|e| e.to_string()).and_then(|text| Scenario::parse(&text));
    let scenario = match scenario {
        Ok(scenario) => scenario,
        Err(error) => {
            eprintln!("{}: {error}", case.display());
            return ExitCode::from(2);
        }
    };
    on_one_processor();
    let logged = log::set_boxed_logger(Box::new(Log));
    if logged.is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.payload_as_str().unwrap_or("something");
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        sim::fail(&format!(
            "a thread panicked at {at}: {what}\n{}",
            std::backtrace::Backtrace::force_capture()
        ));
    }));
    let limits = sim::Limits {
        switch_one_in: 64,
        step_ns: 2000,
        steps_max: 6_000_000,
        time_max: Duration::from_secs(3600),
        latency_us: (20, 60),
        socket_bytes: 1 << 18,
        verbose: std::env::var_os("SIM_LOG").is_some(),
        root: root.to_string_lossy().into_owned(),
        lie: std::env::var("SIM_PLANT").ok().and_then(|name| lie(&name)),
    };
    sim::begin(scenario.seed, limits);
    let world = world::World::new(&scenario, root);
    let history = world.run();
    let mut wrong = oracles::judge(&history);
    wrong.extend(oracles::check_volumes(
        (0..scenario.nodes).map(|node| world.volume(node)).collect(),
        &world.map(),
    ));
    if !wrong.is_empty() {
        sim::fail(&wrong.join("\n"));
    }
    let digest = sim::log_line("done");
    let line = format!("{} steps, {:?}, digest {digest:016x}\n", sim::steps(), sim::now());
    let _ = std::io::stdout().write_all(line.as_bytes());
    // Other threads are not waited for: they never run again.
    std::process::exit(0);
}

/// Only one thread runs at a time: handing over is quicker where no other processor has to be woken.
fn on_one_processor() {
    // SAFETY: the set is a plain value, of the length that is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let current = libc::sched_getcpu().max(0) as usize;
        libc::CPU_SET(current, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
