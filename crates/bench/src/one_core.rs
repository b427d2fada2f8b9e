//! Everything on one processor, for what would otherwise measure where the scheduler happens to put things: waking a
//! process on another processor that sleeps costs more than a whole small request.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{BenchError, BenchResult};

/// This thread, and every process that it starts, on one processor as long as this lives.
#[derive(Debug)]
pub struct OneCore {
    before: CpuSet,
}

impl OneCore {
    /// Chooses the first processor that this thread may use.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn enter() -> BenchResult<OneCore> {
        let refused = || BenchError::system::<rustix::io::Errno>("processors");
        let before = sched_getaffinity(None).map_err(refused())?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap_or(0);
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).map_err(refused())?;
        Ok(OneCore { before })
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.before) {
            log::error!(why:% = error; "this thread stays on one processor");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_inherit_the_processor_until_the_end() {
        let before = sched_getaffinity(None).unwrap().count();
        let allowed = || {
            let status = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap().stdout;
            let text = String::from_utf8(status).unwrap();
            text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
        };
        let one = OneCore::enter().unwrap();
        assert!(allowed().parse::<u32>().is_ok(), "a single number");
        drop(one);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before);
    }
}
