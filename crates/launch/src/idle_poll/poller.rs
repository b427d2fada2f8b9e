//! The process that polls: two threads of the class that everybody else goes before, in a session of their own, so that they have
//! no share in the time of anybody's group either (`autogroup`). It has no descriptor but the page, and ends with its daemon.
#![allow(unsafe_code, reason = "classes of scheduling have no safe interface")]

use std::hint;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bivouac_direct::{PollPage, Whose};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::pace::{Verdict, Watch, patience_after};
use crate::forked::close_all_but_standard;
use crate::handover::take_stdin;
use crate::{LaunchError, LaunchResult};

/// Instructions of rest between two looks.
const RESTS: usize = 32;
/// Weight of the session beside others: the least.
const SESSION_NICE: &str = "19";

/// Polls whenever the daemon `parent`, which started this process, says so; returns when it is to end.
///
/// # Errors
/// When this is none of that daemon's processes, or the system refuses to go behind everybody.
pub fn serve(parent: u32) -> LaunchResult<()> {
    let refused = |e: io::Error| LaunchError::system("idle polling", e);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| refused(e.into()))?;
    if getppid().map(Pid::as_raw_pid) != i32::try_from(parent).ok() {
        // The daemon is gone already, and with it who would be told.
        return Ok(());
    }
    // What whoever started the formation had open is none of this process's business.
    close_all_but_standard().map_err(refused)?;
    let page = Arc::new(PollPage::open(take_stdin()?).map_err(refused)?);
    setsid().map_err(|e| refused(e.into()))?;
    go_behind_everybody().map_err(refused)?;
    // Where there are no such groups there is nothing to say.
    let _no_groups = std::fs::write("/proc/self/autogroup", SESSION_NICE);
    let allowed = sched_getaffinity(None).map_err(|e| refused(e.into()))?;
    let theirs = Arc::clone(&page);
    let other = thread::Builder::new().name("poll-requester".into());
    let other = other.spawn(move || poll(&theirs, Whose::Requester, &allowed)).map_err(refused)?;
    poll(&page, Whose::Server, &allowed);
    // It has ended, too, or panicked and said so.
    drop(other.join());
    Ok(())
}

/// Whatever else wants to run runs instead of this process.
fn go_behind_everybody() -> io::Result<()> {
    // SAFETY: all of it is numbers, and zero is one.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the structure, which lives until it returns.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What one thread does until the page is closed.
fn poll(page: &PollPage, whose: Whose, allowed: &CpuSet) {
    let start = Instant::now();
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut at = None;
    while page.sleep() {
        let mut watch = Watch::begin(now_ns(), page.requests());
        while page.is_awake() {
            if !keep_to(page.processor(whose), allowed, &mut at) {
                match whose {
                    Whose::Server => end(page, Verdict::Quiet),
                    Whose::Requester => page.sit_out(),
                }
                break;
            }
            (0..RESTS).for_each(|_| hint::spin_loop());
            let verdict = watch.look(now_ns(), page.requests());
            if verdict != Verdict::Goes {
                end(page, verdict);
            }
        }
    }
}

fn end(page: &PollPage, verdict: Verdict) {
    let served = page.requests_polled();
    if page.rest() {
        page.set_patience(patience_after(page.patience(), verdict, served));
    }
}

/// Goes to the processor that is to be kept from going idle; `false` if there is none, or it is not this process's.
fn keep_to(processor: Option<usize>, allowed: &CpuSet, at: &mut Option<usize>) -> bool {
    let Some(cpu) = processor.filter(|cpu| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu)) else {
        return false;
    };
    if *at == Some(cpu) {
        return true;
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    let moved = sched_setaffinity(None, &only).is_ok();
    *at = moved.then_some(cpu);
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_than_its_daemon_gets_nothing() {
        // Not the parent of this test, which would have its standard input taken.
        assert!(serve(u32::MAX).is_ok());
        set_parent_process_death_signal(None).unwrap();
    }

    #[test]
    fn a_thread_keeps_to_the_processors_that_it_may_use() {
        thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
            let mut at = None;
            assert!(!keep_to(None, &allowed, &mut at) && !keep_to(Some(usize::MAX), &allowed, &mut at));
            assert!(!keep_to(Some(first), &CpuSet::new(), &mut at));
            assert!(keep_to(Some(first), &allowed, &mut at) && at == Some(first));
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        })
        .join()
        .unwrap();
    }
}
