//! Cost of a daemon while nobody wants anything: memory, and how often it wakes up.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use clap::Args;

use crate::formation::Formation;
use crate::measure::in_range;
use crate::output::{OutputArgs, show};
use crate::report::{Collector, Figure, Report, Unit};
use crate::scratch::kib_of;
use crate::{BenchError, BenchResult, Host};

/// Time that a daemon may take to become quiet, in seconds.
const QUIET_S_MAX: u32 = 10;
const DAEMON: &str = "daemon";
/// Memory that is resident.
pub const RESIDENT: &str = "resident";
/// Wake-ups of all threads.
pub const WAKE_UPS: &str = "wake-ups";

/// Watch a daemon that nobody asks anything
#[derive(Args, Clone, Debug)]
pub struct IdleArgs {
    /// Watch the daemon with this process number; without it, a formation of one node is started
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// How long to watch
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub seconds: u32,
    /// Start it without a mount
    #[arg(long)]
    pub no_mount: bool,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs `bench idle`.
///
/// # Errors
/// Arguments that make no sense; what `up` and `down` say; a daemon that ends meanwhile.
pub fn run(host: &Host<'_>, args: &IdleArgs) -> BenchResult<()> {
    show(host, &measure(host, args)?, &args.output)
}

/// Starts a formation and watches its daemon.
pub fn measure(host: &Host<'_>, args: &IdleArgs) -> BenchResult<Report> {
    in_range("--seconds", u64::from(args.seconds), 1, 3600)?;
    if let Some(pid) = args.pid {
        return watch(host, pid, args.seconds);
    }
    let options: &[&str] = if args.no_mount { &["--no-mount"] } else { &[] };
    let formation = Formation::up(host, options)?;
    let pid = formation.daemons()?.first().copied().unwrap_or_default();
    let report = watch(host, pid, args.seconds)?;
    formation.down(host)?;
    Ok(report)
}

fn watch(host: &Host<'_>, pid: u32, seconds: u32) -> BenchResult<Report> {
    let quiet = become_quiet(host, pid)?;
    let before = Sample::of(pid)?;
    pass(host, seconds)?;
    let after = Sample::of(pid)?;
    let mut collector = Collector::new(&[DAEMON.to_owned()]);
    let per_second = after.wake_ups.saturating_sub(before.wake_ups) as f64 / f64::from(seconds);
    let megabytes = |what: &str, bytes: u64| Figure::new(what, Unit::Megabytes, bytes as f64 / 1e6);
    collector.add(
        0,
        vec![
            megabytes(RESIDENT, after.resident),
            megabytes("of it its own", after.own),
            Figure::new(WAKE_UPS, Unit::EventsPerSecond, per_second),
        ],
    );
    let mut notes =
        vec![format!("{} threads; wake-ups are voluntary context switches of all of them", after.threads)];
    if !quiet {
        notes.push(format!("it was not quiet within {QUIET_S_MAX} s after its start"));
    }
    Ok(Report { title: format!("an idle daemon, watched for {seconds} s"), notes, rows: collector.rows() })
}

/// Waits for a second without wake-ups. Whether there was one.
fn become_quiet(host: &Host<'_>, pid: u32) -> BenchResult<bool> {
    let mut last = Sample::of(pid)?.wake_ups;
    for _ in 0..QUIET_S_MAX {
        pass(host, 1)?;
        let now = Sample::of(pid)?.wake_ups;
        if now == last {
            return Ok(true);
        }
        last = now;
    }
    Ok(false)
}

/// Lets time pass that is itself what is measured; ends early when somebody asks to.
fn pass(host: &Host<'_>, seconds: u32) -> BenchResult<()> {
    // A socket on which nothing comes: the wait is for the time, or for a request to end.
    let (silent, _open) = UnixStream::pair().map_err(BenchError::system("a socket"))?;
    host.interrupts.wait(silent.as_fd(), Some(u64::from(seconds) * 1000)).map(|_| ())
}

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    resident: u64,
    own: u64,
    threads: usize,
    wake_ups: u64,
}

impl Sample {
    fn of(pid: u32) -> BenchResult<Sample> {
        let gone = |error: std::io::Error| BenchError::refused(format_args!("daemon {pid}"), error);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(gone)?;
        let of_status = |name: &str| kib_of(&status, name).unwrap_or(0);
        let (mut threads, mut wake_ups) = (0, 0);
        for thread in fs::read_dir(format!("/proc/{pid}/task")).map_err(gone)? {
            let path = thread.map_err(gone)?.path().join("status");
            // A thread that has just ended counts no more.
            let text = fs::read_to_string(path).unwrap_or_default();
            wake_ups += switches(&text);
            threads += 1;
        }
        Ok(Sample { resident: of_status("VmRSS:"), own: of_status("RssAnon:"), threads, wake_ups })
    }
}

/// Memory that is a process's own, in bytes.
///
/// # Errors
/// When there is no such process.
pub fn own_memory(pid: u32) -> BenchResult<u64> {
    Ok(Sample::of(pid)?.own)
}

fn switches(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;

    #[test]
    fn a_process_is_sampled() {
        let sample = Sample::of(std::process::id()).unwrap();
        assert!(
            sample.resident > 1 << 20 && sample.own <= sample.resident && sample.threads >= 1,
            "{sample:?}"
        );
        assert_eq!(switches("voluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n"), 42);
        assert_eq!(switches("nonvoluntary_ctxt_switches:\t7\n"), 0);
        assert!(Sample::of(u32::MAX).is_err());
    }

    #[test]
    fn a_sleeping_process_wakes_nobody() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // Within clock_nanosleep: on its way there it gives its processor away.
        let call = format!("/proc/{}/syscall", sleeper.id());
        while !std::fs::read_to_string(&call).unwrap().starts_with("230 ") {
            std::thread::yield_now();
        }
        let report = watch(&host(), sleeper.id(), 1);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let report = report.unwrap();
        let of = |what: &str| report.row(what).unwrap().of(DAEMON).unwrap().summary.median;
        assert!(of(RESIDENT) > 0.0 && of(RESIDENT) < 20.0);
        assert_eq!(of(WAKE_UPS), 0.0);
        assert!(report.notes[0].starts_with("1 threads"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let args = IdleArgs { pid: None, seconds: 0, no_mount: true, output: OutputArgs::default() };
        assert!(run(&host(), &args).unwrap_err().to_string().starts_with("--seconds 0: "));
    }
}
