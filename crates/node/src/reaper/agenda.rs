//! Jobs of the reaper, and when each is due.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bivouac_types::{ClientId, Ino, NodeId, Slot};

/// Something that needs peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// To remove what nobody needs any more.
    Garbage,
    /// To remove what nobody needs any more at a peer that was away.
    Pending(NodeId),
    /// To tell the home of a spread directory that its shard here has changed.
    Tell(Ino),
    /// To spread a directory that has grown large.
    Spread(Ino),
    /// To give the lock for moving directories back.
    Moves(u64),
    /// To find out whether a client that has locks and is gone from here is alive, and to forget it if not.
    Alive(ClientId),
    /// To tell a node of all partitions; of this node itself, to ask for them.
    Partitions(NodeId),
    /// To give checksums to what has none since a process wrote it itself, or was killed.
    Sums,
    /// To remove an inode without names that this client had open.
    Orphan(Ino, ClientId),
    /// To finish a change.
    Intent(Slot, u64),
}

/// A job, and for which peer it has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub job: Job,
    pub waited_for: Option<NodeId>,
}

/// Jobs that wait for a peer.
#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// When one of them is to be tried again; `None` while one is.
    until: Option<Instant>,
}

/// Jobs to be done.
#[derive(Default)]
pub struct Agenda {
    /// When garbage and the log are due to be looked after.
    tidying: Option<Instant>,
    /// There is garbage to be collected now.
    garbage: bool,
    /// A thread is collecting it.
    collecting: bool,
    ready: VecDeque<Task>,
    waiting: BTreeMap<NodeId, Waiting>,
    /// Changes that are not finished.
    pub unfinished: usize,
    /// Inodes without names with the time of their removal; in the order of time.
    pub delayed: VecDeque<(Instant, Ino)>,
    /// Number of threads for work that needs peers.
    pub runners: usize,
    pub stopping: bool,
}

impl Agenda {
    /// Schedules garbage collection and a check of the log for `moment`, unless they are due earlier. Returns true if
    /// they were not scheduled.
    pub fn tidy_at(&mut self, moment: Instant) -> bool {
        let is_news = self.tidying.is_none();
        self.tidying.get_or_insert(moment);
        is_news
    }

    /// Returns true if garbage and the log are due.
    pub fn take_tidying(&mut self, now: Instant) -> bool {
        let is_time = self.tidying.take_if(|moment| *moment <= now).is_some();
        self.garbage |= is_time;
        is_time
    }

    /// Adds a job.
    pub fn add(&mut self, job: Job) {
        self.unfinished += usize::from(matches!(job, Job::Intent(..)));
        self.ready.push_back(Task { job, waited_for: None });
    }

    /// Adds a job unless it is queued or waiting. Returns true if it was added.
    pub fn add_once(&mut self, job: Job) -> bool {
        let waits = self.waiting.values().any(|waiting| waiting.jobs.contains(&job));
        let is_news = !waits && !self.ready.iter().any(|task| task.job == job);
        if is_news {
            self.add(job);
        }
        is_news
    }

    /// Returns the number of jobs that can be done now.
    pub fn ready(&self) -> usize {
        let garbage =
            if self.collecting { self.ready.iter().filter(|task| is_garbage(task)).count() } else { 0 };
        self.ready.len() - garbage + usize::from(self.garbage && !self.collecting)
    }

    /// Takes a job.
    pub fn next_task(&mut self) -> Option<Task> {
        if self.garbage && !self.collecting {
            (self.garbage, self.collecting) = (false, true);
            return Some(Task { job: Job::Garbage, waited_for: None });
        }
        // Garbage that was put off may come back while other garbage is collected, and waits for the end of that.
        let at = self.ready.iter().position(|task| !(self.collecting && is_garbage(task)))?;
        let task = self.ready.remove(at)?;
        self.collecting |= is_garbage(&task);
        Some(task)
    }

    /// Ends a job that is done: what waited for the same peer need not wait any more.
    pub fn finish(&mut self, task: &Task) {
        match task.job {
            Job::Garbage => self.end_collecting(),
            Job::Intent(slot, tx) => {
                assert!(self.unfinished > 0, "change {tx} of slot {} is finished twice", slot.0);
                self.unfinished -= 1;
            }
            Job::Pending(_)
            | Job::Tell(_)
            | Job::Spread(_)
            | Job::Moves(_)
            | Job::Alive(_)
            | Job::Partitions(_)
            | Job::Sums
            | Job::Orphan(..) => {}
        }
        task.waited_for.map(|node| self.release(node));
    }

    fn end_collecting(&mut self) {
        assert!(self.collecting, "the end of a collection of garbage that has not begun");
        self.collecting = false;
    }

    /// Makes a job wait for a peer; one of those that do is tried again at `until`.
    pub fn put_off(&mut self, task: &Task, node: NodeId, until: Instant) {
        // What waits for one peer does not keep garbage of the others from being collected.
        if is_garbage(task) {
            self.end_collecting();
        }
        let waiting = self.waiting.entry(node).or_default();
        waiting.until = Some(until);
        // Each intent was counted as unfinished, and is counted off by the end of its own job.
        if !waiting.jobs.contains(&task.job) || matches!(task.job, Job::Intent(..)) {
            waiting.jobs.push_back(task.job);
        }
        // It turned out to wait for another one: the first may be back.
        if let Some(before) = task.waited_for.filter(|before| *before != node) {
            self.release(before);
        }
    }

    /// Makes all jobs ready that wait for a peer; whether there are any.
    pub fn release(&mut self, node: NodeId) -> bool {
        let jobs = self.waiting.remove(&node).unwrap_or_default().jobs;
        let any = !jobs.is_empty();
        self.ready.extend(jobs.into_iter().map(|job| Task { job, waited_for: None }));
        any
    }

    /// Makes one job ready for each peer that was left alone for long enough.
    pub fn recall(&mut self, now: Instant) {
        for (node, waiting) in &mut self.waiting {
            if waiting.until.is_some_and(|until| until <= now) {
                waiting.until = None;
                // One only: it finds out whether the peer is back, and releases the others then.
                let job = waiting.jobs.pop_front();
                self.ready.extend(job.map(|job| Task { job, waited_for: Some(*node) }));
            }
        }
        self.waiting.retain(|_, waiting| waiting.until.is_some() || !waiting.jobs.is_empty());
    }

    /// Takes the inodes that have stayed for long enough.
    pub fn take_delayed(&mut self, now: Instant) -> Vec<Ino> {
        let over = self.delayed.partition_point(|(until, _)| *until <= now);
        self.delayed.drain(..over).map(|(_, ino)| ino).collect()
    }

    /// Returns when something is due next.
    pub fn next_moment(&self) -> Option<Instant> {
        let waiting = self.waiting.values().filter_map(|waiting| waiting.until);
        let delayed = self.delayed.front().map(|(until, _)| *until);
        waiting.chain(delayed).chain(self.tidying).min()
    }
}

fn is_garbage(task: &Task) -> bool {
    task.job == Job::Garbage
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const AWAY: NodeId = NodeId(3);

    fn intent(tx: u64) -> Job {
        Job::Intent(Slot(0), tx)
    }

    #[test]
    fn what_waits_for_a_peer_does_not_hold_up_the_rest() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        (1..=3).for_each(|tx| agenda.add(intent(tx)));
        for _ in 0..2 {
            let task = agenda.next_task().unwrap();
            agenda.put_off(&task, AWAY, now + Duration::from_secs(1));
        }
        assert_eq!(agenda.next_task().map(|task| task.job), Some(intent(3)));
        assert_eq!((agenda.ready(), agenda.next_task()), (0, None));
        agenda.recall(now);
        assert_eq!((agenda.ready(), agenda.next_moment()), (0, Some(now + Duration::from_secs(1))));
        agenda.recall(now + Duration::from_secs(1));
        assert_eq!((agenda.ready(), agenda.next_moment()), (1, None), "one finds out whether it is back");
        let task = agenda.next_task().unwrap();
        assert_eq!(task, Task { job: intent(1), waited_for: Some(AWAY) });
        agenda.finish(&task);
        assert_eq!(agenda.next_task(), Some(Task { job: intent(2), waited_for: None }));
    }

    #[test]
    fn a_job_that_comes_to_wait_for_another_peer_lets_the_others_go_on() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        for tx in 1..=2 {
            agenda.put_off(&Task { job: intent(tx), waited_for: None }, AWAY, now);
        }
        agenda.recall(now);
        let task = agenda.next_task().unwrap();
        agenda.put_off(&task, NodeId(4), now + Duration::from_secs(1));
        assert_eq!(agenda.next_task().map(|task| task.job), Some(intent(2)));
    }

    #[test]
    fn garbage_is_collected_by_one_at_a_time() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let soon = now + Duration::from_millis(20);
        assert!(agenda.tidy_at(soon) && !agenda.tidy_at(soon));
        assert!(!agenda.take_tidying(now) && agenda.next_task().is_none());
        assert_eq!(agenda.next_moment(), Some(soon));
        assert!(agenda.take_tidying(soon));
        let task = agenda.next_task().unwrap();
        assert!(agenda.tidy_at(now) && agenda.take_tidying(now));
        assert_eq!((agenda.ready(), agenda.next_task()), (0, None));
        agenda.finish(&task);
        assert_eq!(agenda.next_task(), Some(task));
        agenda.put_off(&task, AWAY, now);
        // While there is more to be collected the peer comes back.
        assert!(agenda.tidy_at(now) && agenda.take_tidying(now));
        assert_eq!(agenda.next_task(), Some(task));
        agenda.recall(now);
        agenda.add(intent(1));
        assert_eq!(agenda.ready(), 1);
        assert_eq!(agenda.next_task().map(|task| task.job), Some(intent(1)));
        assert_eq!((agenda.ready(), agenda.next_task()), (0, None));
        agenda.put_off(&task, AWAY, now);
        assert_eq!((agenda.waiting[&AWAY].jobs.len(), agenda.ready()), (1, 1));
        let again = agenda.next_task().unwrap();
        assert_eq!(again, Task { job: Job::Garbage, waited_for: Some(AWAY) });
        agenda.put_off(&again, AWAY, now);
        assert_eq!(agenda.waiting[&AWAY].jobs.len(), 1);
    }
}
