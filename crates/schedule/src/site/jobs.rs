//! Generator of jobs: arrival, size, run time, data.

use super::FILE_BYTES;
use super::random::Random;

/// A job whose data must be present when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// User id.
    pub user: u32,
    /// Submission time.
    pub arrival_s: i64,
    /// Start time in the queue.
    pub start_s: i64,
    /// Cost of its transfer, in bytes.
    pub work: u64,
}

/// Nodes of the largest job, as in the model, and of the machine; with 160 nodes jobs wait for hours instead of weeks.
const NODES: usize = 128;
const MACHINE: usize = 160;
const NODE_BYTES: f64 = (64_u64 << 30) as f64;
const USERS: u32 = 50;

/// Lublin and Feitelson: fraction of single-node jobs and of power-of-two jobs; the binary logarithm of the other
/// sizes, from one of two uniform distributions.
const SERIAL: f64 = 0.244;
const POWER: f64 = 0.576;
const LOG_NODES: [f64; 3] = [0.8, 4.5, 7.0];
const LOWER: f64 = 0.86;
/// Logarithm of the run time: one of two gamma distributions, the first with a probability that falls with the nodes.
const SHORT: (f64, f64) = (4.2, 0.94);
const LONG: (f64, f64) = (312.0, 0.03);
const SHORT_PART: (f64, f64) = (-0.0054, 0.78);
const LOG_TIME_MAX: f64 = 12.0;
/// Logarithm of the interval between arrivals at rush hour, and the factor of the daily average.
const BETWEEN: (f64, f64) = (10.2303, 0.4871);
const ALL_HOURS: f64 = 1.0225;
const LOG_BETWEEN_MAX: f64 = 13.0;
/// Distribution of arrivals over the half hours of a day, and the half hour that the day begins with.
const DAILY: (f64, f64) = (8.1737, 3.9631);
const BUCKETS: usize = 48;
const BUCKET_S: f64 = 1800.0;
const DAY_BEGINS: usize = 11;

/// Agrawal and others: logarithm of file sizes, and the Pareto tail.
const LOG_SIZE: (f64, f64) = (9.48, 2.46);
const BODY: f64 = 0.99994;
const TAIL: (f64, f64) = (0.91, 512e6);
/// Number of files that the mean size of a job is drawn from, and the largest file.
const DRAWN: u32 = 200;
const SIZE_MAX: f64 = 1e12;

/// Returns jobs in order of arrival.
#[must_use]
pub fn jobs(seed: u64, count: usize) -> Vec<Job> {
    let mut random = Random::new(seed);
    let (mut arrivals, mut queue) = (Arrivals::new(), Queue::default());
    let of_user: Vec<f64> = (1..=USERS).map(|rank| 1.0 / f64::from(rank)).collect();
    let one = |_| {
        let arrival_s = arrivals.next(&mut random);
        let nodes = nodes(&mut random);
        let start_s = queue.start(arrival_s, nodes, run_time_s(&mut random, nodes));
        let part = 10_f64.powf(random.between(-3.0, 0.0));
        let bytes = nodes as f64 * NODE_BYTES * part;
        let files = (bytes / mean_size(&mut random)).max(1.0);
        let mut left = random.unit() * of_user.iter().sum::<f64>();
        let user =
            of_user.iter().take_while(|&&weight| (left > weight).then(|| left -= weight).is_some()).count();
        let work = (bytes + files * FILE_BYTES as f64) as u64;
        Job { user: u32::try_from(user).unwrap_or(0), arrival_s, start_s, work }
    };
    (0..count).map(one).collect()
}

fn nodes(random: &mut Random) -> usize {
    let kind = random.unit();
    if kind <= SERIAL {
        return 1;
    }
    let [low, middle, high] = LOG_NODES;
    let (from, to) = if random.unit() <= LOWER { (low, middle) } else { (middle, high) };
    let log = random.between(from, to);
    let log = if kind <= SERIAL + POWER { log.round() } else { log };
    (log.exp2().round() as usize).clamp(1, NODES)
}

fn run_time_s(random: &mut Random, nodes: usize) -> i64 {
    let (slope, most) = SHORT_PART;
    let part = (slope * nodes as f64 + most).clamp(0.0, 1.0);
    loop {
        let (shape, scale) = if random.unit() <= part { SHORT } else { LONG };
        let log = random.gamma(shape, scale);
        // Drawn again beyond the limit, as in the authors' program: cutting off would pile jobs up at the limit.
        if log <= LOG_TIME_MAX {
            return log.exp() as i64;
        }
    }
}

fn mean_size(random: &mut Random) -> f64 {
    let size = |_| {
        let (shape, least) = TAIL;
        let size = match random.unit() <= BODY {
            true => (LOG_SIZE.0 + LOG_SIZE.1 * random.normal()).exp(),
            false => least / random.unit().powf(1.0 / shape),
        };
        size.min(SIZE_MAX)
    };
    (0..DRAWN).map(size).sum::<f64>() / f64::from(DRAWN)
}

/// Arrival process with a daily cycle: intervals are paid in points, and each half hour has some.
struct Arrivals {
    weights: Vec<f64>,
    bucket: usize,
    points: f64,
    begun_s: f64,
}

impl Arrivals {
    fn new() -> Arrivals {
        // The density of the gamma distribution without its constant factor, which the division by the mean cancels.
        let (shape, scale) = DAILY;
        let density = |at: f64| at.powf(shape - 1.0) * (-at / scale).exp();
        let mut weights = vec![0.0; BUCKETS];
        for at in DAY_BEGINS..BUCKETS + DAY_BEGINS {
            if let Some(weight) = weights.get_mut((at - 1) % BUCKETS) {
                // The model gives a half hour the probability of the interval around its number: here in ten steps.
                let steps = (0..10).map(|step| density(at as f64 - 0.45 + f64::from(step) / 10.0));
                *weight = steps.sum();
            }
        }
        let mean = weights.iter().sum::<f64>() / BUCKETS as f64;
        weights.iter_mut().for_each(|weight| *weight /= mean);
        Arrivals { weights, bucket: 0, points: 0.0, begun_s: 0.0 }
    }

    fn next(&mut self, random: &mut Random) -> i64 {
        let log = std::iter::repeat_with(|| random.gamma(BETWEEN.0 * ALL_HOURS, BETWEEN.1));
        let log = log.into_iter().find(|&log| log <= LOG_BETWEEN_MAX).unwrap_or(0.0);
        self.points += log.exp() / BUCKET_S;
        loop {
            let weight = self.weights.get(self.bucket).copied().unwrap_or(1.0);
            if self.points <= weight {
                return (self.begun_s + BUCKET_S * self.points / weight) as i64;
            }
            self.points -= weight;
            self.bucket = (self.bucket + 1) % BUCKETS;
            self.begun_s += BUCKET_S;
        }
    }
}

/// First-come, first-served queue of the machine.
#[derive(Default)]
struct Queue {
    /// Time at which each node becomes free.
    free_s: Vec<i64>,
    last_s: i64,
}

impl Queue {
    fn start(&mut self, arrival_s: i64, nodes: usize, run_time_s: i64) -> i64 {
        assert!(nodes <= MACHINE, "a job of {nodes} nodes on a machine of {MACHINE}");
        self.free_s.resize(MACHINE, 0);
        self.free_s.sort_unstable();
        let free_s = nodes.checked_sub(1).and_then(|last| self.free_s.get(last)).copied().unwrap_or(0);
        // Not before an earlier job, even where nodes are free: first come, first served, without backfilling.
        self.last_s = free_s.max(arrival_s).max(self.last_s);
        // The nodes that are free first; the list is sorted.
        self.free_s.iter_mut().take(nodes).for_each(|node| *node = self.last_s + run_time_s);
        self.last_s
    }
}
