//! The lease without which a primary serves nothing, as either side counts it.
//!
//! The primary counts from the moment it sent a request, its backup from the moment it answered, which is later. Each
//! uses its own monotonic clock, so the clocks need not agree, only run about equally fast: the backup counts an eighth
//! more.

use std::time::Duration;

/// The lease as the primary counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryLease {
    until: Option<Duration>,
}

impl PrimaryLease {
    /// Renews the lease: the backup answered a request that was sent at `sent`.
    pub fn renew(&mut self, sent: Duration, length: Duration) {
        self.until = self.until.max(Some(sent.saturating_add(length)));
    }

    /// Ends it, whatever the backup grants.
    pub fn end(&mut self) {
        self.until = None;
    }

    /// Returns whether the primary may serve.
    #[must_use]
    pub fn is_valid(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns the time that it has left.
    #[must_use]
    pub fn left(&self, now: Duration) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_sub(now))
    }
}

/// The lease as the backup counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupLease {
    until: Duration,
}

impl BackupLease {
    /// Grants a lease: the primary is answered at `now`; or the backup's daemon begins then, and an earlier one may
    /// have answered.
    pub fn grant(&mut self, now: Duration, length: Duration) {
        self.until = self.until.max(now.saturating_add(length).saturating_add(length / 8));
    }

    /// Returns the time for which the primary may serve at most.
    #[must_use]
    pub fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_primary_has_no_lease_before_an_answer_and_loses_it_in_time() {
        let mut lease = PrimaryLease::default();
        assert!(!lease.is_valid(Duration::ZERO));
        lease.renew(10 * MS, 100 * MS);
        assert!(lease.is_valid(109 * MS) && !lease.is_valid(110 * MS));
        lease.renew(5 * MS, 100 * MS);
        assert_eq!(lease.left(100 * MS), 10 * MS);
        lease.end();
        assert!(!lease.is_valid(11 * MS));
    }

    proptest! {
        /// Whatever the delays of requests and answers, and with clocks that differ by an offset and a ninth in speed,
        /// the backup waits at least as long as the primary serves.
        #[test]
        fn a_backup_outwaits_its_primary(
            exchanges in proptest::collection::vec((0u64..500, 0u64..500, 0u64..500), 1..20),
            length in 1u64..2_000,
            offset in 0u64..10_000,
            speed in 89u64..=100,
        ) {
            // Real time in milliseconds; the primary's clock runs at `speed` percent of it: slower is the dangerous
            // way.
            let primary_clock = |real: u64| Duration::from_millis(offset + real * speed / 100);
            let backup_clock = Duration::from_millis;
            let (mut primary, mut backup) = (PrimaryLease::default(), BackupLease::default());
            let mut now = 0;
            for (pause, there, back) in exchanges {
                let sent = now + pause;
                let answered = sent + there;
                now = answered + back;
                backup.grant(backup_clock(answered), Duration::from_millis(length));
                primary.renew(primary_clock(sent), Duration::from_millis(length));
                // From here on nothing more comes through: once the backup has waited, the primary is over.
                let over = answered + backup.left(backup_clock(answered)).as_millis() as u64 + 1;
                prop_assert!(!primary.is_valid(primary_clock(over.max(sent)) + Duration::from_millis(1)));
            }
        }
    }
}
