//! Jobs as reported by Slurm: `squeue`.

use super::{Batch, Job, Read};

pub const BATCH: Batch = Batch {
    name: "Slurm",
    prefix: "slurm:",
    program: "squeue",
    question,
    read: Read::Own(|text| Some(text.lines().filter_map(job).collect())),
    see: "squeue --me",
};

/// The word of a job's comment that names a pool.
const WORD: &str = "bivouac-announce=";

fn question(uid: u32) -> Vec<String> {
    // Unasked, squeue lists what is pending, running or completing alone, and slots of the others would count as gone.
    let states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING,REQUEUED,REQUEUE_HOLD,REQUEUE_FED,RESIZING,SIGNALING,STAGE_OUT,STOPPED,SPECIAL_EXIT";
    let format = "--Format=JobID:20,StartTime:24,RestartCnt:12,Comment:1024";
    // In seconds since 1970, so that no time zone matters.
    let words = ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", states, format];
    words.into_iter().map(str::to_owned).chain([format!("--user={uid}")]).collect()
}

fn job(line: &str) -> Option<Job> {
    let mut words = line.split_whitespace();
    let (number, start, restarts) = (words.next()?, words.next()?, words.next()?);
    number.parse::<u32>().ok()?;
    let pools = words.flat_map(|word| word.split(';')).filter_map(|word| word.strip_prefix(WORD));
    Some(Job {
        id: number.to_owned(),
        also: None,
        // Slurm writes N/A until it has planned the job.
        start_s: start.parse().ok(),
        restarts: restarts.parse().unwrap_or(0),
        pools: pools.map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_says_is_read() {
        let line = "17                  1700000000              2           mine; bivouac-announce=mesh bivouac-announce=7/b   ";
        let found = job(line).unwrap();
        assert_eq!((found.id.as_str(), found.start_s, found.restarts), ("17", Some(1_700_000_000), 2));
        assert_eq!(found.pools, ["mesh", "7/b"]);
        assert_eq!(job("18 N/A 0 (null)").unwrap().start_s, None);
        assert_eq!(job("slurm_load_jobs error"), None);
    }
}
