//! A killed supervisor is followed by a copy of itself, which has the daemons' mounts, ports and sockets: they notice
//! nothing.

use std::os::fd::AsFd;

use super::Supervisor;
use super::callers::CALLERS_MAX;
use crate::polling::wait_readable;
use crate::process::ProcessId;
use crate::purpose::Guard;
use crate::standby::TurnToSucceed;
use crate::state::{FormationState, Stage};

/// Each connected command can have had one made.
const MOUNTS_SKIPPED: u32 = CALLERS_MAX as u32;

impl Supervisor {
    /// Sees to it that a copy of this process waits that is as this one. In the copy this comes back when its turn has
    /// come.
    pub(super) fn renew_standby(&mut self) {
        let is_used = self.state.stage == Stage::Running && self.phases.is_none() && !self.finished;
        let Some(waiting) = is_used.then(|| self.standby.keep_up(&self.dir)).flatten() else { return };
        // Those who wait there see its end, not this one's.
        self.callers.let_go();
        let (promised, succession) = waiting.wait(&self.dir, &self.signals);
        self.succeed(promised, succession);
    }

    /// Keeps the data: who has killed the supervisor and the one that holds the part has meant the whole, as if this
    /// process had been killed as well.
    pub(super) fn leave_what_was_killed(&mut self) {
        self.state.part.iter_mut().for_each(|part| part.leaves_volumes = true);
    }

    /// Takes over as supervisor. A daemon that the former one has started since the copy was made ends by itself.
    fn succeed(&mut self, promised: FormationState, succession: TurnToSucceed) {
        log::error!(
            "the supervisor, process {}, was killed: this one takes its place",
            succession.former.pid
        );
        self.standby.begin_succession(succession);
        self.state = FormationState { supervisor: Some(ProcessId::current()), ..promised };
        // Mounts made since the copy have numbers that are skipped: those that the state tells of, and as many as can
        // have been made in one turn after it was written.
        let known = self.state.mounts.iter().map(|mount| mount.id).max().unwrap_or_default();
        self.mounts_made = self.mounts_made.max(known).saturating_add(MOUNTS_SKIPPED);
        // However late this process comes to hear of it.
        if self.report.as_ref().is_some_and(|report| wait_readable(report.as_fd(), 0)) {
            self.leave_what_was_killed();
        }
        self.guard = Guard::in_supervisor(&self.state);
        self.places.open();
        // What changed before the table was opened wakes nobody.
        self.look_at_places();
        // The former supervisor may have recorded a map and done nothing more about it.
        // Without mirrors no node moves, and there is but the first map.
        if let Some(map) = self.state.map().filter(|map| !map.mirrors.is_empty()) {
            self.follow_map(&map);
        }
        self.try_write_state();
    }
}
