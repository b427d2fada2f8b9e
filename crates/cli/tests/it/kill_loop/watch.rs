//! What every worker is doing, and since when; and the journal of what it did.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// The bounded wait of the formation, and what a restart under load may take besides.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// Lines that a journal remembers.
const LINES_MAX: usize = 100_000;

/// Watches over the workers.
pub struct Watch {
    /// Set when there is enough.
    pub stop: AtomicBool,
    /// Operations so far.
    pub operations: AtomicU64,
    /// How often Linux could not follow the move of a directory.
    pub moved: AtomicU64,
    under_way: Vec<Mutex<Option<(Instant, String)>>>,
}

/// What one worker did, in order.
#[derive(Default)]
pub struct Journal {
    lines: VecDeque<String>,
    count: usize,
}

impl Watch {
    /// Over so many workers.
    pub fn new(workers: usize) -> Watch {
        let under_way = (0..workers).map(|_| Mutex::new(None)).collect();
        Watch {
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            under_way,
        }
    }

    /// A worker begins something.
    pub fn begin(&self, worker: usize, what: &str) {
        *self.under_way[worker].lock().unwrap() = Some((Instant::now(), what.into()));
    }

    /// A worker is done with it.
    pub fn idle(&self, worker: usize) {
        *self.under_way[worker].lock().unwrap() = None;
    }

    /// An operation that takes longer than any may.
    pub fn hanging(&self) -> Option<String> {
        self.under_way.iter().find_map(|under_way| {
            let under_way = under_way.lock().unwrap();
            under_way
                .as_ref()
                .filter(|(since, _)| since.elapsed() > HANGS_AFTER)
                .map(|(_, what)| what.clone())
        })
    }
}

impl Journal {
    /// One more operation, and how it ended.
    pub fn note(&mut self, line: String) {
        self.count += 1;
        self.lines.push_back(format!("{:>6} {line}", self.count));
        if self.lines.len() > LINES_MAX {
            self.lines.pop_front();
        }
    }

    /// The lines that name something, and those about the same files.
    pub fn about(&self, name: &str) -> Vec<String> {
        let words = |line: &'_ str| line.split(' ').map(String::from).collect::<Vec<_>>();
        let named = |line: &String| words(line).iter().any(|word| word.rsplit('/').next() == Some(name));
        let numbers: BTreeSet<String> = (self.lines.iter().filter(|line| named(line)))
            .flat_map(|line| words(line))
            .filter(|word| word.starts_with('#'))
            .collect();
        let about = |line: &&String| named(line) || words(line).iter().any(|word| numbers.contains(word));
        self.lines.iter().filter(about).cloned().collect()
    }

    /// The last lines.
    pub fn last(&self, count: usize) -> Vec<String> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).cloned().collect()
    }
}
