//! A killed supervisor is followed by a copy of itself, which has the daemons' mounts, ports and sockets: they notice nothing.

use super::Supervisor;
use crate::process::ProcessId;
use crate::purpose::Guard;
use crate::standby::{Succession, give_up};
use crate::state::{Stage, State};

/// At least as many as commands can be connected.
const MOUNTS_SKIPPED: u32 = 64;

impl Supervisor {
    /// Sees to it that a copy of this process waits that is as this one. In the copy this comes back when its turn has come.
    pub(super) fn renew_standby(&mut self) {
        let is_used = self.state.stage == Stage::Running && self.phases.is_none() && !self.finished;
        let is_well = self.is_copied && self.standby.is_there();
        if !is_used || is_well || !self.standby.may_be() {
            return;
        }
        match self.standby.renew(&self.dir) {
            Ok(None) => self.is_copied = self.standby.is_there(),
            Ok(Some(waiting)) => {
                // Those who wait there see its end, not this one's.
                self.callers.let_go();
                match waiting.wait(&self.dir, &self.signals) {
                    Ok(succession) => self.succeed(succession),
                    Err(error) => give_up(&error),
                }
            }
            Err(error) => log::warn!("nobody takes this process's place if it is killed: {error}"),
        }
    }

    /// Who has killed the supervisor and the one that holds the part has meant the whole: its data stays, as if this process had
    /// been killed as well.
    pub(super) fn leave_what_was_killed(&mut self) {
        if self.standby.is_new() {
            self.state.part.iter_mut().for_each(|part| part.leaves_volumes = true);
        }
    }

    /// Is the supervisor from now on. What the former one has promised since the copy was made is in its state; a daemon that it
    /// has started since ends by itself.
    fn succeed(&mut self, succession: Succession) {
        log::error!(
            "the supervisor, process {}, was killed: this one takes its place",
            succession.former.pid
        );
        self.standby.has_succeeded(succession);
        let promised = self.dir.read().unwrap_or_else(|error| {
            log::error!("{error}");
            None
        });
        self.state = State {
            supervisor: Some(ProcessId::current()),
            ..promised.unwrap_or_else(|| self.state.clone())
        };
        // Mounts of which nobody knows have numbers of their own: as many as can have been made in one turn.
        self.mounts_made = self.mounts_made.saturating_add(MOUNTS_SKIPPED);
        self.guard = Guard::in_supervisor(&self.state);
        self.places.open();
        self.try_write_state();
    }
}
