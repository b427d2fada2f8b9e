//! What the batch system says of jobs: when they will start, which are no more, which were put back into the queue.

use std::time::Duration;

use bivouac_launch::{Environment, output_of};
use bivouac_pool::{Announcement, Change, Expected, PoolRef, Pools, Slotted, Way, Who};

use crate::commands::slots::said;
use crate::failure::Failure;
use crate::options::DatabaseArgs;
use crate::pools::{now_s, open};

/// How long Slurm may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// The word of a job's comment that names a pool.
const WORD: &str = "bivouac-announce=";
/// Who is asked, in front of a job's number.
const SLURM: &str = "slurm:";

/// A job that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub number: u32,
    /// When it starts or did, if that is known.
    pub start_s: Option<i64>,
    /// How often it was put back into the queue.
    pub restarts: u32,
    comment: String,
}

/// How the job of a slot is named.
pub fn name_of(number: u32) -> String {
    format!("{SLURM}{number}")
}

/// One job of the caller.
///
/// # Errors
/// That it is not in the queue, or that nobody says.
pub fn expected(here: &Environment, who: &Who, number: u32) -> Result<Job, Failure> {
    let found = jobs(here, who)?.into_iter().find(|job| job.number == number);
    found.ok_or_else(|| Failure::new(1, format_args!("job {number}: is not in your queue; see: squeue --me")))
}

/// Moves the slots of the caller's jobs to where the batch system expects them, and says what has changed.
///
/// # Errors
/// That nobody says, or that the database cannot be changed.
pub fn follow(here: &Environment, who: &Who, database: &DatabaseArgs) -> Result<(), Failure> {
    let jobs = jobs(here, who)?;
    let mut pools = open(here, database)?;
    let mut failures = Vec::new();
    for job in &jobs {
        if let Err(failure) = announced(&mut pools, who, job) {
            failures.push(format!("job {}: {failure}", job.number));
        }
    }
    let own = |slot: &Slotted| slot.uid == who.uid;
    for slot in pools.slots(who, now_s(), true)?.into_iter().filter(own) {
        let number = slot.job.as_deref().and_then(|job| job.strip_prefix(SLURM)?.parse::<u32>().ok());
        let Some(number) = number else { continue };
        let expected = match jobs.iter().find(|job| job.number == number) {
            None => Expected::Gone,
            // Nobody knows when: what was announced stays.
            Some(job) => {
                Expected::Start { at_s: job.start_s.unwrap_or(slot.deadline_s), restarts: job.restarts }
            }
        };
        let change = Change { who, now_s: now_s(), request: None };
        let after = match pools.expect(&change, slot.id, expected) {
            Ok(after) => after,
            Err(error) => {
                failures.push(error.to_string());
                continue;
            }
        };
        if after.state != slot.state {
            outln!("slot {}: {}, job {number}", after.id, after.state.word());
        }
        if !after.state.is_over() && (after.deadline_s, after.state) != (slot.deadline_s, slot.state) {
            outln!("{}", said(&after));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::new(1, failures.join("\n"))) }
}

/// Announces the pools that a job's comment names, once.
fn announced(pools: &mut Pools, who: &Who, job: &Job) -> Result<(), Failure> {
    let words = job.comment.split([' ', ';']);
    for name in words.filter_map(|word| word.strip_prefix(WORD)) {
        let request = format!("{}{} {name}", SLURM, job.number);
        let meant: PoolRef =
            name.parse().map_err(|error| Failure::new(1, format_args!("{WORD}{name}: {error}")))?;
        let pool = pools.find(who, &meant)?;
        let Some(deadline_s) = job.start_s else { continue };
        let no_size = format_args!(
            "pool {name}: its size is not known; count it: bivouac pool count {name}, or announce --job {}",
            job.number
        )
        .to_string();
        let what = Announcement {
            pool: Some(pool.id),
            way: Way::In,
            title: String::new(),
            bytes: pool.bytes.ok_or_else(|| Failure::new(1, no_size))?,
            files: pool.files.unwrap_or(1),
            earliest_s: now_s(),
            deadline_s: deadline_s.max(now_s().saturating_add(1)),
            rate_max: None,
            // The job starts when it starts: late is better than never.
            or_later: true,
            job: Some(name_of(job.number)),
            restarts: job.restarts,
        };
        let known = pools.slots(who, now_s(), true)?;
        let is_known = known.iter().any(|slot| slot.job == what.job && slot.pool == what.pool);
        let slot = pools.announce(&Change { who, now_s: now_s(), request: Some(&request) }, &what)?;
        if !is_known {
            outln!("{}", said(&slot));
        }
    }
    Ok(())
}

/// The caller's jobs that wait or run.
fn jobs(here: &Environment, who: &Who) -> Result<Vec<Job>, Failure> {
    let user = format!("--user={}", who.uid);
    let format = "--Format=JobID:20,StartTime:24,RestartCnt:12,Comment:1024";
    let states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING,REQUEUED,REQUEUE_HOLD,REQUEUE_FED,RESIZING,SIGNALING,STAGE_OUT,STOPPED,SPECIAL_EXIT";
    // In seconds since 1970, so that no time zone matters.
    let program = ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", states, &user, format];
    let answer = output_of(here, &program, ANSWER);
    let text = answer.ok_or_else(|| {
        Failure::new(1, "squeue does not answer; without Slurm, say by when: bivouac pool announce --by TIME")
    })?;
    Ok(text.lines().filter_map(job).collect())
}

fn job(line: &str) -> Option<Job> {
    let mut words = line.split_whitespace();
    let (number, start, restarts) = (words.next()?, words.next()?, words.next()?);
    let comment = words.collect::<Vec<_>>().join(" ");
    Some(Job {
        number: number.parse().ok()?,
        start_s: start.parse().ok(),
        restarts: restarts.parse().unwrap_or(0),
        comment,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_says_is_read() {
        let line = "17                  1700000000              2           mine; bivouac-announce=mesh bivouac-announce=7/b   ";
        let found = job(line).unwrap();
        assert_eq!((found.number, found.start_s, found.restarts), (17, Some(1_700_000_000), 2));
        assert_eq!(found.comment, "mine; bivouac-announce=mesh bivouac-announce=7/b");
        assert_eq!(job("18 N/A 0 (null)").unwrap().start_s, None);
        assert_eq!(job("slurm_load_jobs error"), None);
    }
}
