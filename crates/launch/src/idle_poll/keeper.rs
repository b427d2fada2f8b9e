//! The daemon's side: counts requests, and has a process that polls.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bivouac_direct::{PollPage, Whose};
use rustix::thread::sched_getcpu;

use super::pace::Pace;

/// Of so many requests one is asked which processor its program runs on.
const ASKED_EVERY: u32 = 64;
/// Processes after whose death there are no more.
const DEATHS_MAX: u32 = 5;
/// How long the process may take to end with the daemon.
const END: Duration = Duration::from_secs(1);

/// Idle polling for the requests of one daemon. The process is started when it is worth it for the first time, and again after its
/// death when it is worth it again.
#[derive(Debug)]
pub struct IdlePolling {
    page: PollPage,
    pace: Pace,
    began: Instant,
    /// Whether the process is there, or on its way.
    asked: AtomicBool,
    wish: Mutex<Wish>,
    changed: Condvar,
}

/// What the thread is to do that looks after the process, and whether it does.
#[derive(Debug, Default)]
struct Wish {
    process: bool,
    closing: bool,
    ended: bool,
}

impl IdlePolling {
    /// Begins; `program` is this program. Nothing runs yet but a thread that waits.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(program: PathBuf) -> io::Result<Arc<IdlePolling>> {
        let polling = Arc::new(IdlePolling {
            page: PollPage::make()?,
            pace: Pace::default(),
            began: Instant::now(),
            asked: AtomicBool::new(false),
            wish: Mutex::default(),
            changed: Condvar::new(),
        });
        let keeper = Arc::clone(&polling);
        std::thread::Builder::new().name("idle-poll".into()).spawn(move || keeper.keep(&program))?;
        Ok(polling)
    }

    /// A small request of this thread was served by the calling one; 0 is none that is known, and counts for nothing. Costs next to
    /// nothing, and never waits.
    pub fn note(&self, requester: u32) {
        if requester != 0 {
            self.note_of(sched_getcpu(), || processor_of(requester));
        }
    }

    /// As [`IdlePolling::note`], of a request that was served on the processor `ours`; `theirs` finds that of the program.
    fn note_of(&self, ours: usize, theirs: impl FnOnce() -> Option<usize>) {
        let number = self.page.count();
        if self.page.is_awake() {
            self.page.set_processor(Whose::Server, Some(ours));
            if number.is_multiple_of(ASKED_EVERY) {
                self.page.set_processor(Whose::Requester, theirs());
            }
            return;
        }
        let now = || u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if !self.pace.begins(number, self.page.patience(), now) {
            return;
        }
        // On one processor they are quickest as they are.
        let Some(theirs) = theirs().filter(|theirs| *theirs != ours) else { return };
        self.page.set_processor(Whose::Server, Some(ours));
        self.page.set_processor(Whose::Requester, Some(theirs));
        self.page.wake();
        if !self.asked.swap(true, Ordering::Relaxed) {
            self.wish().process = true;
            self.changed.notify_all();
        }
    }

    /// Ends the process.
    pub fn end(&self) {
        self.wish().closing = true;
        self.page.close();
        self.changed.notify_all();
        // If it does not end by itself, the kernel ends it with this process.
        let ended = self.changed.wait_timeout_while(self.wish(), END, |wish| !wish.ended);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }

    /// What a thread does that outlives all that it starts: the kernel ends them with it.
    fn keep(&self, program: &Path) {
        let mut deaths = 0;
        while self.wait_for_wish() {
            let ended = self.start(program).and_then(|mut process| process.wait());
            match ended {
                Ok(status) if !self.wish().closing => log::warn!("idle polling ended: {status}"),
                Ok(_) => {}
                Err(error) => log::warn!("there is no process for idle polling: {error}"),
            }
            // One that was killed has not said that it polls no more.
            self.page.rest();
            // What it has learned ends with it.
            self.page.set_patience(0);
            deaths += 1;
            if deaths >= DEATHS_MAX {
                log::warn!("there is no idle polling any more: its process ended {deaths} times");
                break;
            }
            self.asked.store(false, Ordering::Relaxed);
        }
        self.wish().ended = true;
        self.changed.notify_all();
    }

    /// Waits until there is to be a process; `false` when there is to be none any more.
    fn wait_for_wish(&self) -> bool {
        let idle = |wish: &mut Wish| !wish.process && !wish.closing;
        let mut wish = self.changed.wait_while(self.wish(), idle).unwrap_or_else(PoisonError::into_inner);
        wish.process = false;
        !wish.closing
    }

    fn start(&self, program: &Path) -> io::Result<Child> {
        let page: OwnedFd = self.page.file().try_clone_to_owned()?;
        let mut command = Command::new(program);
        command.arg0("bivouac").arg("poll").arg(std::process::id().to_string()).current_dir("/");
        // The log is a file of the formation's, which is to be removed.
        command.stdin(page).stdout(Stdio::null()).stderr(Stdio::null()).env_clear();
        command.spawn()
    }

    fn wish(&self) -> MutexGuard<'_, Wish> {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The processor that a thread runs on, or ran on last; `None` if that cannot be told.
fn processor_of(thread: u32) -> Option<usize> {
    processor_in(&std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?)
}

/// The processor in a line as of proc(5): the 39th field, of which the second may contain anything.
fn processor_in(stat: &str) -> Option<usize> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_of_a_thread_is_found() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        assert_eq!(processor_in(&format!("1 (a) b) c) {}", fields.join(" "))), Some(39));
        assert_eq!(processor_in("1 (a) S 1"), None);
        assert_eq!(processor_in(""), None);
        assert!(processor_of(std::process::id()).is_some());
        assert_eq!(processor_of(u32::MAX), None);
    }

    #[test]
    fn a_program_that_cannot_be_started_is_given_up() {
        let polling = IdlePolling::begin("/nonexistent/program".into()).unwrap();
        // As fast as it pays, for as long as it is tried.
        while !polling.wish().ended {
            polling.note_of(0, || Some(1));
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(60) {
                std::hint::spin_loop();
            }
        }
        polling.end();
        assert!(!polling.page.is_awake());
    }

    #[test]
    fn what_is_not_asked_for_is_not_started() {
        let polling = IdlePolling::begin("/nonexistent/program".into()).unwrap();
        polling.note(std::process::id());
        // However many: nobody waits on another processor.
        (0..1000).for_each(|_| polling.note_of(0, || Some(0)));
        (0..1000).for_each(|_| polling.note(0));
        assert!(!polling.asked.load(Ordering::Relaxed) && !polling.wish().process);
        polling.end();
        assert!(polling.wish().ended);
    }
}
