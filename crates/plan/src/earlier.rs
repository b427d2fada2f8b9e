//! Expected work of a job, by what it did before.

use std::ops::Range;

use crate::predict::JobWork;

/// A burst has intervals with at least this part of what the busiest one wrote.
const LOUD: u64 = 8;
/// Fewer bursts are no rhythm.
const BURSTS_MIN: usize = 3;
/// The part of processes' bytes that those have who count.
const MOST: f64 = 0.95;
/// Smaller parts of all that was written are not told apart.
const LITTLE: u64 = 100;

/// A former run, as its report tells it. Bytes are those of programs, without what was staged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FormerRun {
    /// Nodes that it had.
    pub nodes: u32,
    /// Time from the first use of a file to the last, in milliseconds.
    pub span_ms: u64,
    /// Bytes and files that were copied in.
    pub staged_in: (u64, u64),
    /// Bytes and files that were copied out.
    pub staged_out: (u64, u64),
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Files, as far as they are told one by one.
    pub files: Vec<UsedFile>,
    /// Files besides those.
    pub more_files: u64,
    /// Length of an interval of the timeline.
    pub interval_ms: u64,
    /// Bytes that were written in each interval.
    pub written: Vec<u64>,
    /// Its processes.
    pub processes: Vec<UsedProcess>,
}

/// A process that used files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedProcess {
    /// Bytes that it read and wrote.
    pub bytes: u64,
    /// Times when it did so first, and last.
    pub used_ms: (u64, u64),
}

/// A file that was used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsedFile {
    /// Its bytes, if they are known.
    pub size: Option<u64>,
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
    /// Times of its first and last use.
    pub used_ms: (u64, u64),
    /// True if it belongs to a directory that site storage is behind.
    pub has_source: bool,
}

/// Bursts of writes that follow each other like checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Number of them.
    pub count: u64,
    /// Bytes of one, the median.
    pub bytes: u64,
    /// Files of one, the median.
    pub files: u64,
    /// Median time from the beginning of one to that of the next.
    pub every_ms: u64,
}

/// Bytes and files of a job by role: what was read and never written is input; what was written is output, checkpoints
/// or scratch.
struct ByteRoles {
    inputs: u64,
    input_bytes: u64,
    input_read: u64,
    outputs: u64,
    /// Written files that go to a source, and their bytes.
    flushed: (u64, u64),
}

impl FormerRun {
    /// Returns the expected work of the same job. Memory that the application takes is not in a report.
    #[must_use]
    pub fn work(&self) -> JobWork {
        let sides = self.sides();
        // What was copied in and never read is input as well, and what comes from a source is read without a copy.
        let in_bytes = self.staged_in.0.max(sides.input_bytes);
        let (flushed_files, flushed) = sides.flushed;
        // A file of a source may also have been copied out at the end: no more leaves than was written.
        let out_bytes =
            self.staged_out.0.saturating_add(flushed).min(self.written_bytes.max(self.staged_out.0));
        // Bytes are in one file at least.
        let out_files = self.staged_out.1.saturating_add(flushed_files).max(out_bytes.min(1));
        let left = self.written_bytes.saturating_sub(out_bytes);
        let bursts = self.bursts().unwrap_or(Bursts { count: 0, bytes: 0, files: 0, every_ms: 0 });
        // What is copied out of the checkpoints is counted there.
        let checkpoints =
            left.saturating_add(bursts.bytes / 2).checked_div(bursts.bytes).unwrap_or(0).min(bursts.count);
        let scratch = left.saturating_sub(bursts.bytes.saturating_mul(checkpoints));
        let scratch = if scratch < self.written_bytes / LITTLE { 0 } else { scratch };
        let others = out_files.saturating_add(bursts.files.saturating_mul(checkpoints.min(1)));
        JobWork {
            nodes: self.nodes.max(1),
            in_bytes,
            in_files: self.staged_in.1.max(sides.inputs),
            reads: if in_bytes == 0 { 0.0 } else { sides.input_read as f64 / in_bytes as f64 },
            out_bytes,
            out_files,
            checkpoint_bytes: if checkpoints == 0 { 0 } else { bursts.bytes },
            checkpoint_files: if checkpoints == 0 { 0 } else { bursts.files },
            checkpoints,
            scratch_bytes: scratch,
            scratch_files: if scratch == 0 { 0 } else { sides.outputs.saturating_sub(others).max(1) },
            scratch_read_bytes: self.read_bytes.saturating_sub(sides.input_read),
            processes: self.busy(),
            memory_bytes: 0,
            run_seconds: self.span_ms as f64 / 1000.0,
        }
    }

    fn sides(&self) -> ByteRoles {
        let sum = |of: &dyn Fn(&UsedFile) -> u64| self.files.iter().map(of).fold(0, u64::saturating_add);
        let is_input = |file: &UsedFile| file.written == 0 && file.read > 0;
        let bytes = |file: &UsedFile| file.size.unwrap_or_else(|| file.read.max(file.written));
        let if_input = |file: &UsedFile, number: u64| if is_input(file) { number } else { 0 };
        let goes_back = |file: &UsedFile| file.has_source && file.written > 0;
        let (read, written) = (sum(&|file| file.read), sum(&|file| file.written));
        // Of the rest only sums are known: it is taken for what it did more of.
        let rest = (self.read_bytes.saturating_sub(read), self.written_bytes.saturating_sub(written));
        let (rest_in, rest_out) = if rest.0 > rest.1 { (self.more_files, 0) } else { (0, self.more_files) };
        let rest_read = if rest_in > 0 { rest.0 } else { 0 };
        let input_read = sum(&|file| if_input(file, file.read)).saturating_add(rest_read);
        let known = sum(&|file| if_input(file, bytes(file)));
        let written_files = self.files.iter().filter(|file| file.written > 0).count() as u64;
        ByteRoles {
            inputs: (self.files.iter().filter(|file| is_input(file)).count() as u64).saturating_add(rest_in),
            // Sizes of the rest are not known: what was copied in says more, else each is read once.
            input_bytes: if self.staged_in.0 > 0 { known } else { known.saturating_add(rest_read) },
            input_read,
            outputs: written_files.saturating_add(rest_out),
            flushed: (
                self.files.iter().filter(|file| goes_back(file)).count() as u64,
                sum(&|file| if goes_back(file) { bytes(file) } else { 0 }),
            ),
        }
    }

    /// Returns the bursts of its timeline, if there are several that are alike and have most of what was written.
    #[must_use]
    pub fn bursts(&self) -> Option<Bursts> {
        let all = self.runs();
        let median = middle_of(all.iter().map(|(_, bytes)| *bytes).collect())?;
        let is_alike = |number: u64, median: u64| number >= median / 2 && number <= median.saturating_mul(2);
        let alike: Vec<&(Range<u64>, u64)> =
            all.iter().filter(|(_, bytes)| is_alike(*bytes, median)).collect();
        let gaps: Vec<u64> = alike
            .windows(2)
            .filter_map(|two| two.last()?.0.start.checked_sub(two.first()?.0.start))
            .collect();
        assert_eq!(gaps.len() + 1, alike.len(), "bursts of a timeline are not in its order");
        let every = middle_of(gaps.clone())?;
        let in_time = gaps.iter().filter(|gap| is_alike(**gap, every)).count();
        let written = alike.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let most = |part: usize, whole: usize| part * 4 >= whole * 3;
        let is_rhythm =
            alike.len() >= BURSTS_MIN && most(alike.len(), all.len()) && most(in_time, gaps.len());
        if !is_rhythm || written < self.written_bytes / 2 {
            return None;
        }
        // A division by them tells how many checkpoints there were.
        assert!(alike.iter().all(|(_, bytes)| *bytes > 0), "a burst in which nothing was written");
        let files = alike.iter().map(|(when, _)| self.files_written_in(when)).collect();
        Some(Bursts {
            count: alike.len() as u64,
            bytes: middle_of(alike.iter().map(|(_, bytes)| *bytes).collect())?,
            files: middle_of(files)?.max(1),
            every_ms: every,
        })
    }

    /// Intervals one behind the other in which much was written: when, in milliseconds, and how much.
    fn runs(&self) -> Vec<(Range<u64>, u64)> {
        let peak = self.written.iter().copied().max().unwrap_or(0);
        let mut runs: Vec<(Range<u64>, u64)> = Vec::new();
        for (index, bytes) in (0_u64..).zip(&self.written) {
            if *bytes == 0 || *bytes < peak / LOUD {
                continue;
            }
            let begin = index.saturating_mul(self.interval_ms);
            let end = begin.saturating_add(self.interval_ms);
            match runs.last_mut().filter(|(when, _)| when.end == begin) {
                Some((when, sum)) => (when.end, *sum) = (end, sum.saturating_add(*bytes)),
                None => runs.push((begin..end, *bytes)),
            }
        }
        runs
    }

    fn files_written_in(&self, when: &Range<u64>) -> u64 {
        let is_in =
            |file: &&UsedFile| file.written > 0 && file.used_ms.0 < when.end && file.used_ms.1 >= when.start;
        self.files.iter().filter(is_in).count() as u64
    }

    /// Returns how many of the processes that did most of it were there at the same time.
    fn busy(&self) -> u32 {
        let mut all = self.processes.clone();
        all.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        let enough = all.iter().map(|process| process.bytes as f64).sum::<f64>() * MOST;
        let mut seen = 0.0;
        all.retain(|process| {
            let is_needed = process.bytes > 0 && seen < enough;
            seen += process.bytes as f64;
            is_needed
        });
        let mut events: Vec<(u64, i64)> = all
            .iter()
            .flat_map(|process| [(process.used_ms.0, 1), (process.used_ms.1.saturating_add(1), -1)])
            .collect();
        // Who ends in the millisecond in which another begins was not there with it, unless both are told of it.
        events.sort_unstable();
        let mut now = 0;
        let at_once = events.iter().map(|(_, step)| {
            now += step;
            now
        });
        u32::try_from(at_once.max().unwrap_or(0)).unwrap_or(u32::MAX)
    }
}

/// Returns the work of several runs of a job: of each figure the median, the lower one of two.
#[must_use]
pub fn middle(all: &[JobWork]) -> Option<JobWork> {
    let number = |of: fn(&JobWork) -> u64| middle_of(all.iter().map(of).collect());
    let small = |of: fn(&JobWork) -> u32| middle_of(all.iter().map(of).collect());
    let fraction = |of: fn(&JobWork) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len().checked_sub(1)? / 2).copied()
    };
    Some(JobWork {
        nodes: small(|work| work.nodes)?,
        in_bytes: number(|work| work.in_bytes)?,
        in_files: number(|work| work.in_files)?,
        reads: fraction(|work| work.reads)?,
        out_bytes: number(|work| work.out_bytes)?,
        out_files: number(|work| work.out_files)?,
        checkpoint_bytes: number(|work| work.checkpoint_bytes)?,
        checkpoint_files: number(|work| work.checkpoint_files)?,
        checkpoints: number(|work| work.checkpoints)?,
        scratch_bytes: number(|work| work.scratch_bytes)?,
        scratch_files: number(|work| work.scratch_files)?,
        scratch_read_bytes: number(|work| work.scratch_read_bytes)?,
        processes: small(|work| work.processes)?,
        memory_bytes: number(|work| work.memory_bytes)?,
        run_seconds: fraction(|work| work.run_seconds)?,
    })
}

fn middle_of<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}
