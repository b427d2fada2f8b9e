//! Epochs, sessions and seals of one primary's replicas: they decide whose changes a backup takes.

/// State of replicas that outlives daemons of their backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaEpoch {
    /// The mirror epoch of the primary; all below are refused.
    pub epoch: u32,
    /// The last session.
    pub session: u64,
    /// True if the replicas have all that was acknowledged to somebody.
    pub is_complete: bool,
    /// True if a daemon may take over: no primary is answered any more.
    pub is_sealed: bool,
}

/// Reason why a primary is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryRefusal {
    /// Its session has ended.
    NoSession,
    /// Its epoch has ended: the primary must not serve.
    Superseded {
        /// The epoch below which everything is refused.
        epoch: u32,
    },
}

/// Reason why replicas are not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSealed {
    /// The replicas lack acknowledged changes.
    Incomplete,
    /// The epoch is not the next one after that of the primary, or of a seal: whoever decides had others in mind.
    OldEpoch {
        /// The epoch that they have.
        epoch: u32,
    },
}

/// Beginning of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStart {
    /// The replicas stay as they are.
    Continued,
    /// Begin with empty replicas.
    Anew,
}

impl ReplicaEpoch {
    /// Begins a session of a primary. `knows_changes`: this daemon of the backup saw all changes of the last session.
    /// `continues`: the session of which the primary knows what was under way.
    ///
    /// # Errors
    /// The primary's epoch is over.
    pub fn begin(
        &mut self,
        epoch: u32,
        knows_changes: bool,
        continues: Option<u64>,
        anew: bool,
    ) -> Result<SessionStart, PrimaryRefusal> {
        self.check_epoch(epoch)?;
        let is_known = knows_changes || continues == Some(self.session);
        // At another epoch the primary had another backup or none: it has changed since.
        let goes_on = self.is_complete && !self.is_sealed && !anew && is_known && epoch == self.epoch;
        // Nobody but the daemon that took over, or a later one, has the epoch of a seal.
        (self.epoch, self.is_sealed) = (epoch, false);
        self.session = self.session.saturating_add(1);
        self.is_complete = goes_on;
        Ok(if goes_on { SessionStart::Continued } else { SessionStart::Anew })
    }

    /// Checks that a request is of the current session.
    ///
    /// # Errors
    /// The epoch or the session is over.
    pub fn check(&self, epoch: u32, session: u64) -> Result<(), PrimaryRefusal> {
        self.check_epoch(epoch)?;
        let is_current = (epoch, session) == (self.epoch, self.session) && !self.is_sealed;
        if is_current { Ok(()) } else { Err(PrimaryRefusal::NoSession) }
    }

    /// Notes that the primary says that the replicas have all that it has.
    pub fn complete(&mut self) {
        assert!(!self.is_sealed, "a sealed replica is not changed");
        self.is_complete = true;
    }

    /// Refuses all epochs below `epoch` from now on. The same seal may come again.
    ///
    /// # Errors
    /// Nothing is changed.
    pub fn seal(&mut self, epoch: u32) -> Result<(), NotSealed> {
        if self.is_sealed && self.epoch == epoch {
            return Ok(());
        }
        if self.epoch.checked_add(1) != Some(epoch) {
            return Err(NotSealed::OldEpoch { epoch: self.epoch });
        }
        if !self.is_complete {
            return Err(NotSealed::Incomplete);
        }
        (self.epoch, self.is_sealed) = (epoch, true);
        Ok(())
    }

    fn check_epoch(&self, epoch: u32) -> Result<(), PrimaryRefusal> {
        if epoch < self.epoch { Err(PrimaryRefusal::Superseded { epoch: self.epoch }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_replica_that_is_not_complete_is_never_sealed() {
        let mut replica = ReplicaEpoch::default();
        assert_eq!(replica.begin(1, true, None, false), Ok(SessionStart::Anew));
        assert_eq!(replica.seal(2), Err(NotSealed::Incomplete));
        replica.complete();
        assert_eq!(replica.seal(1), Err(NotSealed::OldEpoch { epoch: 1 }));
        assert_eq!(
            replica.seal(3),
            Err(NotSealed::OldEpoch { epoch: 1 }),
            "another backup has had the changes of 2"
        );
        assert_eq!((replica.seal(2), replica.seal(2)), (Ok(()), Ok(())));
        assert_eq!(replica.check(1, 1), Err(PrimaryRefusal::Superseded { epoch: 2 }));
        assert_eq!(replica.begin(1, true, None, false), Err(PrimaryRefusal::Superseded { epoch: 2 }));
        assert_eq!(replica.check(2, 1), Err(PrimaryRefusal::NoSession));
        assert_eq!(replica.seal(3), Ok(()), "whoever took over first did not come up");
        assert_eq!(replica.begin(3, true, Some(1), false), Ok(SessionStart::Anew));
        assert!(!replica.is_sealed && !replica.is_complete);
    }

    #[test]
    fn a_session_goes_on_only_where_somebody_knows_what_was_under_way() {
        let complete = ReplicaEpoch { epoch: 4, session: 7, is_complete: true, is_sealed: false };
        let begin = |epoch, knows, continues, anew| {
            let mut replica = complete;
            let begun = replica.begin(epoch, knows, continues, anew);
            assert_eq!(replica.is_complete, begun == Ok(SessionStart::Continued));
            begun
        };
        assert_eq!(begin(4, true, None, false), Ok(SessionStart::Continued));
        assert_eq!(begin(4, false, Some(7), false), Ok(SessionStart::Continued));
        assert_eq!(begin(4, false, Some(6), false), Ok(SessionStart::Anew));
        assert_eq!(begin(4, false, None, false), Ok(SessionStart::Anew));
        assert_eq!(begin(4, true, Some(7), true), Ok(SessionStart::Anew));
        assert_eq!(begin(5, true, Some(7), false), Ok(SessionStart::Anew));
        let mut replica = complete;
        assert_eq!(replica.begin(3, true, Some(7), false), Err(PrimaryRefusal::Superseded { epoch: 4 }));
        assert_eq!(replica, complete);
    }

    proptest! {
        /// Whatever happens: epochs and sessions never fall, a sealed replica answers nobody, and only a complete
        /// one is sealed.
        #[test]
        fn rules_hold_in_any_order(steps in proptest::collection::vec((0u8..4, 0u32..5, 0u64..4, any::<bool>()), 0..60)) {
            let mut replica = ReplicaEpoch::default();
            for (what, epoch, session, flag) in steps {
                let before = replica;
                match what {
                    0 => { let _ = replica.begin(epoch, flag, Some(session), false); }
                    1 if replica.check(epoch, session).is_ok() => {
                        prop_assert!(!replica.is_sealed);
                        replica.complete();
                    }
                    2 if replica.seal(epoch).is_ok() => prop_assert!(before.is_complete),
                    _ => {}
                }
                prop_assert!(replica.epoch >= before.epoch && replica.session >= before.session);
                prop_assert!(replica.is_sealed || !before.is_sealed || replica.session > before.session && epoch >= before.epoch);
                if replica.is_sealed {
                    prop_assert!(replica.is_complete);
                    prop_assert!(replica.check(epoch, replica.session).is_err());
                }
            }
        }
    }
}
