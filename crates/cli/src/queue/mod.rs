//! Jobs as reported by batch systems: when they will start, which have ended, and which were requeued. One file per
//! system.

mod flux;
mod pbs;
mod slurm;

use std::time::Duration;

use bivouac_launch::{Environment, output_of};
use bivouac_pool::{
    Announcement, Caller, ChangeOrigin, Direction, JobForecast, PoolRef, Pools, ScheduledStage,
};

use crate::failure::Failure;
use crate::options::DatabaseArgs;
use crate::pools::{now_s, open};

/// Longest wait for a batch system's answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Supported batch systems.
const BATCHES: [Batch; 3] = [slurm::BATCH, flux::BATCH, pbs::BATCH];

/// A batch system.
struct Batch {
    /// Its name, for people.
    name: &'static str,
    /// Prefix of a job's number in the name of a slot's job.
    prefix: &'static str,
    /// Program that is needed to ask it.
    program: &'static str,
    /// The command line that asks for the jobs of a user.
    question: fn(u32) -> Vec<String>,
    /// The jobs of a user in what it answers; nothing if that makes no sense.
    read: Read,
    /// Command with which people would look.
    see: &'static str,
}

/// Parser of an answer.
enum Read {
    /// For one with the user's jobs alone.
    Own(fn(&str) -> Option<Vec<Job>>),
    /// For one with all users' jobs, of which those of this user are taken.
    All(fn(&str, &str) -> Option<Vec<Job>>),
}

/// A job that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number, as the batch system has it.
    id: String,
    /// Another form of its id.
    also: Option<String>,
    /// Its start, past or expected, if known.
    pub start_s: Option<i64>,
    /// Number of times that it was put back into the queue.
    pub restarts: u32,
    /// Pools that it names.
    pools: Vec<String>,
}

/// Finds a job of the caller; returns the name for the job of a slot as well.
pub fn expected(here: &Environment, who: &Caller, wanted: &str) -> Result<(String, Job), Failure> {
    let mut failures = Vec::new();
    let mut asked = Vec::new();
    for batch in BATCHES.iter().filter(|batch| batch.is_here(here)) {
        // `slurm:17` is a job of Slurm; `17` of whichever system has it.
        let id = wanted.strip_prefix(batch.prefix).unwrap_or(wanted);
        let is_it = |job: &Job| job.id == id || job.also.as_deref() == Some(id);
        match batch.jobs(here, who) {
            Ok(jobs) => match jobs.into_iter().find(is_it) {
                Some(job) => return Ok((batch.name_of(&job), job)),
                None => asked.push(batch.see),
            },
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    if asked.is_empty() {
        return Err(nobody(&failures));
    }
    let see = asked.join(", ");
    Err(Failure::new(1, format_args!("job {wanted}: is not in your queue; see: {see}")))
}

/// Moves the slots of the caller's jobs to where the batch systems expect them, and says what has changed.
pub fn follow(here: &Environment, who: &Caller, database: &DatabaseArgs) -> Result<(), Failure> {
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for batch in BATCHES.iter().filter(|batch| batch.is_here(here)) {
        match batch.jobs(here, who) {
            Ok(jobs) => answers.push((batch, jobs)),
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    if answers.is_empty() {
        return Err(nobody(&failures));
    }
    let mut pools = open(here, database)?;
    for (batch, jobs) in &answers {
        for job in jobs {
            if let Err(failure) = announced(&mut pools, who, batch, job) {
                failures.push(format!("job {}: {failure}", job.id));
            }
        }
        moved(&mut pools, who, (batch, jobs), &mut failures)?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::new(1, failures.join("\n"))) }
}

fn nobody(failures: &[String]) -> Failure {
    let cause = if failures.is_empty() {
        "neither squeue, flux nor qstat is here".to_owned()
    } else {
        failures.join("; ")
    };
    Failure::new(
        1,
        format_args!("{cause}; without a batch system, say by when: bivouac pool announce --by TIME"),
    )
}

impl Batch {
    fn is_here(&self, here: &Environment) -> bool {
        here.find_program(self.program).is_some()
    }

    fn name_of(&self, job: &Job) -> String {
        format!("{}{}", self.prefix, job.id)
    }

    /// Returns the caller's jobs that wait or run.
    fn jobs(&self, here: &Environment, who: &Caller) -> Result<Vec<Job>, Failure> {
        let silent = |what: &str| Failure::new(1, format_args!("{} of {} {what}", self.program, self.name));
        let question = (self.question)(who.uid);
        let words: Vec<&str> = question.iter().map(String::as_str).collect();
        let text = output_of(here, &words, ANSWER).ok_or_else(|| silent("does not answer"))?;
        let jobs = match self.read {
            Read::Own(read) => read(&text),
            Read::All(read) => {
                let user = output_of(here, &["id", "-un"], ANSWER).unwrap_or_default();
                if user.trim().is_empty() {
                    return Err(silent("tells of all users, and id does not say which of them you are"));
                }
                read(&text, user.trim())
            }
        };
        jobs.ok_or_else(|| silent("says what is not understood"))
    }
}

/// Moves the slots of one batch system's jobs.
fn moved(
    pools: &mut Pools,
    who: &Caller,
    (batch, jobs): (&Batch, &[Job]),
    failures: &mut Vec<String>,
) -> Result<(), Failure> {
    // Only this user's jobs were asked for: those of others would all seem to be gone.
    let own = |slot: &ScheduledStage| slot.uid == who.uid;
    for slot in pools.slots(who, now_s(), true)?.into_iter().filter(own) {
        let id = slot.job.as_deref().and_then(|job| job.strip_prefix(batch.prefix)).map(str::to_owned);
        let Some(id) = id else { continue };
        let expected = match jobs.iter().find(|job| job.id == id) {
            None => JobForecast::Gone,
            // Nobody knows when: what was announced stays.
            Some(job) => {
                JobForecast::Start { at_s: job.start_s.unwrap_or(slot.deadline_s), restarts: job.restarts }
            }
        };
        let change = ChangeOrigin { who, now_s: now_s(), request: None };
        let after = match pools.expect(&change, slot.id, expected) {
            Ok(after) => after,
            Err(error) => {
                failures.push(error.to_string());
                continue;
            }
        };
        if after.state != slot.state {
            outln!("slot {}: {}, job {id}", after.id, after.state.word());
        }
        if !after.state.is_over() && (after.deadline_s, after.state) != (slot.deadline_s, slot.state) {
            outln!("{after}");
        }
    }
    Ok(())
}

/// Announces the pools that a job names, once.
fn announced(pools: &mut Pools, who: &Caller, batch: &Batch, job: &Job) -> Result<(), Failure> {
    for name in &job.pools {
        // The same at each call, by which the database knows that this was announced.
        let request = format!("{} {name}", batch.name_of(job));
        let meant: PoolRef =
            name.parse().map_err(|error| Failure::new(1, format_args!("pool {name}: {error}")))?;
        let pool = pools.find(who, &meant)?;
        let Some(deadline_s) = job.start_s else { continue };
        let no_size = format_args!(
            "pool {name}: its size is not known; count it: bivouac pool count {name}, or announce --job {}",
            job.id
        )
        .to_string();
        let what = Announcement {
            pool: Some(pool.id),
            way: Direction::In,
            title: String::new(),
            bytes: pool.bytes.ok_or_else(|| Failure::new(1, no_size))?,
            files: pool.files.unwrap_or(1),
            earliest_s: now_s(),
            // A job that has begun still lacks its data, and its start is no time to finish by.
            deadline_s: deadline_s.max(now_s().saturating_add(1)),
            rate_max: None,
            // The job starts when it starts: late is better than never.
            or_later: true,
            job: Some(batch.name_of(job)),
            restarts: job.restarts,
        };
        let known = pools.slots(who, now_s(), true)?;
        let is_known = known.iter().any(|slot| slot.job == what.job && slot.pool == what.pool);
        let slot = pools.announce(&ChangeOrigin { who, now_s: now_s(), request: Some(&request) }, &what)?;
        if !is_known {
            outln!("{slot}");
        }
    }
    Ok(())
}

/// Returns the names of pools, as a job may have several of them.
fn words(text: Option<&str>) -> Vec<String> {
    let words = text.unwrap_or_default().split([' ', ';']);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}
