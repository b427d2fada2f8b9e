//! Stages that wait for their slot, and keep to it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals, asks_to_end};
use bivouac_pool::{Caller, ChangeOrigin, Direction, PoolError, Pools, ScheduledStage, StartAnswer};
use bivouac_stage::Limiter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::failure::Failure;
use crate::options::SlotArgs;
use crate::pools::{now_s, open, who};

/// Pause between two looks of who waits whether its slot has moved, in seconds.
const LOOK_S: i64 = 5;

/// Time after which a stage without a rate gives up a database that does not answer, in seconds.
const UNANSWERED_MAX_S: i64 = 300;

/// A slot that has begun.
#[derive(Debug)]
pub struct BegunSlot {
    pools: Pools,
    who: Caller,
    /// The slot.
    pub slot: ScheduledStage,
}

impl BegunSlot {
    /// Says that what it was for is copied.
    pub fn done(mut self) -> Result<(), Failure> {
        self.pools.done(&change(&self.who), self.slot.id)?;
        Ok(())
    }

    /// Does something at the rate that the slot has, which changes while it is done, and is at most `limit`, if that is
    /// not 0.
    pub fn paced<T>(&mut self, limit: u64, work: impl FnOnce(Arc<Limiter>) -> T) -> T {
        let least = |rate: u64| if limit == 0 { rate } else { limit.min(rate) };
        let limiter = Arc::new(Limiter::new(1));
        limiter.set(least(self.slot.rate));
        let (working, done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let follows = Arc::clone(&limiter);
            scope.spawn(move || {
                let look = Duration::from_secs(LOOK_S.unsigned_abs());
                let mut answered_s = now_s();
                let mut rate = self.slot.rate;
                while done.recv_timeout(look) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let answer = self.pools.begin(&change(&self.who), self.slot.id);
                    if answer.is_ok() {
                        answered_s = now_s();
                    }
                    match answer {
                        Ok(StartAnswer::Now(slot)) => rate = slot.rate,
                        // Its job was put back into the queue, or its clock went back.
                        Ok(StartAnswer::NotYet(_)) => rate = 0,
                        Err(error @ PoolError::Staging { .. }) => follows.end(error.to_string()),
                        // Who cannot ask goes on as before; who waits for a rate does not wait for ever.
                        Err(error) if rate == 0 && now_s().saturating_sub(answered_s) > UNANSWERED_MAX_S => {
                            follows.end(format!(
                                "slot {}: it cannot be asked for a rate: {error}",
                                self.slot.id
                            ));
                        }
                        Err(_) => {}
                    }
                    follows.set(least(rate));
                }
            });
            let result = work(limiter);
            drop(working);
            result
        })
    }
}

fn change(who: &Caller) -> ChangeOrigin<'_> {
    ChangeOrigin { who, now_s: now_s(), request: None }
}

/// Waits for the slot that is named, if one is.
///
/// # Errors
/// That it is over or for the other way, or a signal that ended the waiting.
pub fn awaited(
    here: &Environment,
    args: &SlotArgs,
    way: Direction,
    quiet: bool,
) -> Result<Option<BegunSlot>, Failure> {
    let Some(id) = args.slot else { return Ok(None) };
    let pools = open(here, &args.database)?;
    let who = who(here)?;
    // One that is not found is refused when it is to begin, which has the reason.
    let meant = pools.slots(&who, now_s(), true)?.into_iter().find(|slot| slot.id == id);
    if let Some(slot) = meant.filter(|slot| slot.way != way) {
        let text =
            format_args!("slot {id}: is for stage {}; name another: bivouac pool slots", slot.way.word())
                .to_string();
        return Err(Failure::new(2, text));
    }
    wait(pools, who, id, quiet).map(Some)
}

/// Waits for a slot.
///
/// # Errors
/// That it is over, or a signal that ended the waiting.
pub fn wait(mut pools: Pools, who: Caller, id: i64, quiet: bool) -> Result<BegunSlot, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let mut said = None;
    loop {
        match pools.begin(&change(&who), id)? {
            StartAnswer::Now(slot) => return Ok(BegunSlot { pools, who, slot }),
            StartAnswer::NotYet(slot) => {
                let left_s = slot.begin_s.saturating_sub(now_s()).max(1);
                if !quiet && said != Some(slot.begin_s) {
                    errln!("slot {id}: begins in {left_s} s");
                    said = Some(slot.begin_s);
                }
                if let Some(signal) = pause(&signals, left_s.min(LOOK_S))? {
                    let text = "interrupted before it began; nothing was copied, and the slot stays";
                    let code = bivouac_types::code_of_signal(signal);
                    return Err(Failure::new(code, format_args!("slot {id}: {text}")));
                }
            }
        }
    }
}

/// Waits so many seconds, or for a signal that asks to end, which it answers.
fn pause(signals: &Signals, seconds: i64) -> Result<Option<i32>, Failure> {
    let mut polled = [PollFd::new(signals, PollFlags::IN)];
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    retry_on_intr(|| poll(&mut polled, Some(&time))).map_err(std::io::Error::from)?;
    let mut arrived = std::iter::from_fn(|| signals.next());
    Ok(arrived.find(|signal| asks_to_end(*signal)).map(|signal| signal.number))
}
