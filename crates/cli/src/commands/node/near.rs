//! Processors of a daemon: those near its volumes, if a host has several parts and several daemons.

use bivouac_launch::Environment;
use bivouac_launch::handover::DaemonConfig;
use bivouac_survey::near_to;
use bivouac_sysmap::{NumaPlacement, listed};
use bivouac_wire::FormationMap;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this daemon there, and all threads that it will have; it goes on anywhere if that cannot be.
pub fn settle(here: &Environment, config: &DaemonConfig, map: &FormationMap) {
    let [share] = config.nodes.as_slice() else { return };
    if !config.numa {
        return;
    }
    let volumes: Vec<String> = share.volumes.iter().map(|volume| volume.path.display().to_string()).collect();
    let Some(near) = near_to(map, share.node, &volumes) else { return };
    match keep_on(&near) {
        Ok(true) => log::info!("on {} it runs on processors {}", here.host, near.processors),
        // What started this job gave it other ones.
        Ok(false) => log::info!("processors {} are not this daemon's to use", near.processors),
        Err(error) => log::warn!(why:% = error; "processors {} could not be chosen", near.processors),
    }
}

/// Keeps this process on those processors near to its volumes that it may use; returns `false` if it may use none of
/// them.
fn keep_on(near: &NumaPlacement) -> rustix::io::Result<bool> {
    let allowed = sched_getaffinity(None)?;
    let Some(wanted) = among(&allowed, near) else { return Ok(false) };
    sched_setaffinity(None, &wanted).map(|()| true)
}

fn among(allowed: &CpuSet, near: &NumaPlacement) -> Option<CpuSet> {
    let mut wanted = CpuSet::new();
    for processor in listed(&near.processors, CpuSet::MAX_CPU).into_iter().filter(|one| allowed.is_set(*one))
    {
        wanted.set(processor);
    }
    (wanted.count() > 0).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S541.
    #[test]
    fn a_daemon_is_kept_on_processors_that_it_may_use() {
        let allowed = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|one| allowed.is_set(*one)).unwrap();
        let near =
            |processors: &str| NumaPlacement { parts: vec![1], processors: processors.into(), disk: None };
        let kept = std::thread::spawn(move || {
            assert_eq!(keep_on(&near(&format!("{first},5000-6000"))), Ok(true));
            let kept = sched_getaffinity(None).unwrap();
            assert_eq!((kept.count(), kept.is_set(first)), (1, true));
            // Nothing that it may use: it stays as it is.
            assert_eq!(keep_on(&near("1000-1023")), Ok(false));
            assert_eq!(keep_on(&near("x")), Ok(false));
            sched_getaffinity(None).unwrap().count()
        });
        assert_eq!(kept.join().unwrap(), 1);
        assert_eq!(
            sched_getaffinity(None).unwrap().count(),
            allowed.count(),
            "other threads are not touched"
        );
    }
}
