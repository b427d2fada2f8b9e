//! A killed supervisor is followed by a copy of itself, which has the daemons' mounts, ports and sockets: they notice nothing.

use super::Supervisor;
use super::callers::Callers;
use crate::process::ProcessId;
use crate::purpose::Guard;
use crate::standby::Succession;
use crate::state::Stage;

impl Supervisor {
    /// Sees to it that a copy of this process waits. In the copy this comes back when its turn has come.
    pub(super) fn renew_standby(&mut self) {
        let is_used = self.state.stage == Stage::Running && self.phases.is_none() && !self.finished;
        if !is_used || self.standby.is_there() || !self.standby.may_be() {
            return;
        }
        match self.standby.renew(&self.dir) {
            Ok(None) => {}
            Ok(Some(waiting)) => {
                // Those who wait there see its end, not this one's.
                self.callers = Callers::default();
                let succession = waiting.wait();
                self.succeed(&succession);
            }
            Err(error) => log::warn!("nobody takes this process's place if it is killed: {error}"),
        }
    }

    /// Who has killed the supervisor and the one that holds the part has meant the whole: its data stays, as if this process had
    /// been killed as well.
    pub(super) fn leave_what_was_killed(&mut self) {
        if !self.standby.may_be() {
            self.state.part.iter_mut().for_each(|part| part.leaves_volumes = true);
        }
    }

    fn succeed(&mut self, succession: &Succession) {
        log::error!(
            "the supervisor, process {}, was killed: this one takes its place",
            succession.former.pid
        );
        self.standby.has_succeeded();
        self.guard = Guard::in_supervisor(&self.state);
        self.places.open();
        self.state.supervisor = Some(ProcessId::current());
        self.try_write_state();
    }
}
