//! Times of elections, and the options of a formation that leave enough of it for one.

use bivouac_launch::{LaunchError, LaunchResult, Protection};
use bivouac_types::limits::DEAD_AFTER_MS_DEFAULT;
use bivouac_types::units::exact_duration;

use crate::consensus::VOTERS_MIN;

/// Times of elections, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElectionTimes {
    /// Silence of the keeper after which another one may be elected.
    pub silence_ms: u64,
    /// Silence before which a voter follows no other one.
    pub follow_ms: u64,
    /// Time that an attempt may take, and between those of two hosts.
    pub attempt_ms: u64,
}

impl ElectionTimes {
    /// Returns the times of elections: half of the time in which the loss of a host is noticed; the other half is the
    /// new keeper's.
    pub fn of(dead_after_ms: u64) -> ElectionTimes {
        ElectionTimes {
            silence_ms: dead_after_ms.saturating_mul(3) / 2,
            follow_ms: dead_after_ms,
            attempt_ms: (dead_after_ms / 4).max(1),
        }
    }
}

/// Shortest `--silence-max`, as a multiple of `--dead-after`, with which another keeper can be elected before the hosts
/// take their parts down: the last of five voters stands after two and a half, has an attempt behind it after three,
/// and the hosts connect to its keeper within the fourth.
const SILENCE_FACTOR_MIN: u64 = 4;

/// Refuses times with which no keeper could be elected, where one is to be.
///
/// # Errors
/// For times that do not go together, as `Usage`.
pub(crate) fn check_times(
    protect: Protection,
    hosts: usize,
    dead_after_ms: Option<u64>,
    silence_ms: u64,
) -> LaunchResult<()> {
    let dead_after_ms = dead_after_ms.unwrap_or(DEAD_AFTER_MS_DEFAULT);
    let least_ms = dead_after_ms.saturating_mul(SILENCE_FACTOR_MIN);
    if protect == Protection::None || hosts < VOTERS_MIN || silence_ms >= least_ms {
        return Ok(());
    }
    let (dead_after, least) = (exact_duration(dead_after_ms), exact_duration(least_ms));
    Err(LaunchError::usage(
        format_args!("--silence-max {}", exact_duration(silence_ms)),
        format_args!(
            "is less than {SILENCE_FACTOR_MIN} times --dead-after ({dead_after}): hosts that lose their keeper would end \
             before they have elected another one"
        ),
        &format!("use {least} or more, or a shorter --dead-after"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_leave_none_for_an_election_are_refused() {
        let check = |hosts, dead_after_ms, silence_ms| {
            check_times(Protection::Replicas, hosts, dead_after_ms, silence_ms).map_err(|e| e.to_string())
        };
        let error = check(3, Some(15_001), 60_000).unwrap_err();
        assert!(error.contains("--silence-max 1m") && error.contains("use 60004ms or more"), "{error}");
        assert!(check(3, None, 19_999).is_err());
        assert_eq!((check(3, Some(15_000), 60_000), check(5, None, 20_000)), (Ok(()), Ok(())));
        assert_eq!(check(2, Some(60_000), 60_000), Ok(()), "no keeper is elected of two hosts");
        assert!(check_times(Protection::None, 3, Some(60_000), 60_000).is_ok());
    }
}
