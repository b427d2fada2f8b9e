//! Memory that a formation may take on this machine: what the kernel has, what control groups leave of it, and what the
//! batch system says where those say nothing.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bivouac_store::Headroom;
use bivouac_types::units::format_size;

use crate::memory_groups::{Group, groups, kills};

/// Directory of memory volumes and grant tables.
pub(crate) const MEMORY_DIR: &str = "/dev/shm";
/// Margin for the daemons themselves, and for whoever is quicker than a look at what is left: this part of a limit,
const MARGIN_SHARE: u64 = 8;
/// and no more than so many bytes.
const MARGIN_MAX: u64 = 64 << 20;
/// Time for which a measurement is fresh where little is left, in milliseconds,
const FRESH_MS_MIN: u64 = 10;
/// where much is,
const FRESH_MS_MAX: u64 = 200;
/// and what much is, in bytes.
const MUCH: u64 = 4 << 30;
/// Deaths so soon after the kernel has killed something are its doing, too.
const SAME_KILL: Duration = Duration::from_secs(1);

/// Returns the number of bytes of memory that are free for programs: as the kernel estimates it, as the control groups
/// of this process leave it (of both versions, those around it too), and, where no group has a limit, as `job` says,
/// the limit of a batch job.
#[must_use]
pub fn available_memory(job: Option<u64>) -> u64 {
    let limited = groups(read).into_iter().map(|group| group.left()).min();
    machine_available().min(limited.or(job).unwrap_or(u64::MAX))
}

/// Returns the number of bytes of memory that one of so many nodes of this machine may use, for its volumes in memory
/// and all that it remembers: an equal share of half of what is available now.
#[must_use]
pub fn memory_share(job: Option<u64>, nodes: usize) -> u64 {
    available_memory(job) / 2 / (nodes.max(1) as u64)
}

/// Returns the control group that leaves this process least memory, and its limit, in words; nothing where none has a
/// limit.
#[must_use]
pub fn tightest_memory() -> Option<String> {
    let group = groups(read).into_iter().min_by_key(Group::left)?;
    Some(format!("control group {} may use {}", group.dir.display(), format_size(group.limit)))
}

/// Tells deaths for want of memory from others.
#[derive(Debug)]
pub(crate) struct Killer {
    seen: u64,
    at: Option<Instant>,
}

impl Killer {
    /// Begins to watch now.
    pub(crate) fn watch() -> Killer {
        Killer { seen: kills(read), at: None }
    }

    /// Returns the reason why a process of ours that was killed just now was killed, if that was for want of memory: it
    /// has happened in this process's group since the last look, or a moment ago, where one kill takes several.
    pub(crate) fn explains(&mut self) -> Option<String> {
        let now = kills(read);
        if now > std::mem::replace(&mut self.seen, now) {
            self.at = Some(Instant::now());
        }
        self.at.filter(|at| at.elapsed() < SAME_KILL)?;
        let limit = tightest_memory().unwrap_or_else(|| "this machine has no more".into());
        Some(format!(
            "killed for want of memory ({limit}); give the job more memory, or volumes a smaller capacity"
        ))
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn machine_available() -> u64 {
    read(Path::new("/proc/meminfo")).and_then(|text| meminfo(&text, "MemAvailable:")).unwrap_or(0)
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the number of bytes that volumes may take now, a margin kept.
fn left_now() -> u64 {
    let text = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let of = |name| meminfo(&text, name).unwrap_or(u64::MAX);
    let machine = of("MemAvailable:").saturating_sub(margin(of("MemTotal:")));
    let group = |group: Group| group.left().saturating_sub(margin(group.limit));
    groups(read).into_iter().map(group).min().map_or(machine, |groups| groups.min(machine))
}

fn margin(limit: u64) -> u64 {
    (limit / MARGIN_SHARE).min(MARGIN_MAX)
}

/// Rest of the memory that this process shares with the rest of its job, looked at as often as it matters.
#[derive(Debug)]
pub struct MemoryGauge {
    look: fn() -> u64,
    since: Instant,
    /// Bytes that may still be taken until the next look.
    left: AtomicU64,
    /// Time when that was looked at, in milliseconds since the beginning.
    looked_ms: AtomicU64,
    looking: Mutex<()>,
}

impl Default for MemoryGauge {
    fn default() -> MemoryGauge {
        MemoryGauge::new(left_now)
    }
}

impl MemoryGauge {
    fn new(look: fn() -> u64) -> MemoryGauge {
        let left = AtomicU64::new(look());
        let (since, looked_ms) = (Instant::now(), AtomicU64::new(0));
        MemoryGauge { look, since, left, looked_ms, looking: Mutex::new(()) }
    }

    fn take_known(&self, bytes: u64) -> Result<(), u64> {
        let less = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop)
    }

    fn is_fresh(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        // Others take memory without asking: the less there is, the sooner what was seen is wrong.
        let fresh_ms = if left >= MUCH { FRESH_MS_MAX } else { FRESH_MS_MIN };
        self.now_ms().saturating_sub(self.looked_ms.load(Ordering::Relaxed)) < fresh_ms
    }

    fn look(&self) {
        let _one_at_a_time = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        self.left.store((self.look)(), Ordering::Relaxed);
        self.looked_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Headroom for MemoryGauge {
    fn left(&self) -> u64 {
        if !self.is_fresh() {
            self.look();
        }
        self.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<(), u64> {
        if self.is_fresh() && self.take_known(bytes).is_ok() {
            return Ok(());
        }
        // Before anybody is refused: what was taken may have been given back.
        self.look();
        self.take_known(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_estimate_is_read() {
        let text = "MemTotal: 9 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(
            (meminfo(text, "MemAvailable:"), meminfo(text, "MemTotal:")),
            (Some(2 << 20), Some(9 << 10))
        );
        assert_eq!(meminfo("MemTotal: 9 kB\n", "MemAvailable:"), None);
        assert!(available_memory(None) > 1 << 20);
        assert!(memory_share(None, 4) <= available_memory(None));
    }

    #[test]
    fn what_a_job_may_use_counts_where_no_group_has_a_limit() {
        let has_limit = !groups(read).is_empty();
        assert_eq!(available_memory(Some(5)) == 5, !has_limit);
    }

    #[test]
    fn a_gauge_looks_before_it_refuses() {
        static LEFT: AtomicU64 = AtomicU64::new(100);
        let gauge = MemoryGauge::new(|| LEFT.load(Ordering::Relaxed));
        assert_eq!((gauge.take(60), gauge.take(101)), (Ok(()), Err(100)));
        LEFT.store(30, Ordering::Relaxed);
        gauge.look();
        assert_eq!((gauge.left(), gauge.take(31), gauge.take(30)), (30, Err(30), Ok(())));
        LEFT.store(500, Ordering::Relaxed);
        assert_eq!(gauge.take(400), Ok(()), "somebody has given memory back");
    }

    #[test]
    fn a_part_of_each_limit_is_kept() {
        assert_eq!((margin(400 << 20), margin(64 << 30)), (50 << 20, 64 << 20));
    }
}
