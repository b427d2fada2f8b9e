//! A killed keeper is followed by a copy of itself. No other process could take its place: it has the launchers' input, whose end is
//! the end of hosts' parts, and the port that hosts come back to.

use super::links::Links;
use super::{HostSeen, Keeper, Step};
use crate::hosts::contact::Tie;
use crate::process::ProcessId;
use crate::purpose::Guard;
use crate::standby::{Succession, Waiting, give_up};
use crate::state::HostLife;

impl Keeper {
    /// Sees to it that a copy of this process waits that is as this one. In the copy this comes back when its turn has come.
    pub(super) fn renew_standby(&mut self) {
        let is_well = self.standby.is_there() && !self.has_changed;
        if self.step != Step::Running || is_well || !self.standby.may_be() {
            return;
        }
        match self.standby.renew(&self.dir) {
            Ok(None) => self.has_changed = !self.standby.is_there(),
            Ok(Some(waiting)) => self.stand_by(waiting),
            Err(error) => log::warn!("nobody takes this process's place if it is killed: {error}"),
        }
    }

    /// Lets go of the connections, whose ends others are to see when the keeper closes them, and waits for its end.
    fn stand_by(&mut self, waiting: Waiting) {
        match Links::new() {
            Ok(none) => self.links = none,
            Err(error) => give_up(&error),
        }
        self.callers.let_go();
        self.looking.clear();
        self.stopping.clear();
        match waiting.wait(&self.dir, &self.signals) {
            Ok(succession) => self.succeed(succession),
            Err(error) => give_up(&error),
        }
    }

    /// Is the keeper from now on: hosts come back as after a cut, but for those of which the former one has written down that they
    /// are lost.
    fn succeed(&mut self, succession: Succession) {
        log::error!("the keeper, process {}, was killed: this one takes its place", succession.former.pid);
        match self.dir.read() {
            Ok(Some(promised)) => self.state = promised,
            Ok(None) => {}
            Err(error) => log::error!("{error}"),
        }
        self.state.supervisor = Some(ProcessId::current());
        let now = self.now_ms();
        let silence_ms = self.plan.ticket.silence_ms;
        for (seen, host) in self.hosts.iter_mut().zip(&self.state.hosts) {
            *seen = HostSeen::default();
            if host.life == HostLife::Up {
                seen.tie = Tie::new(now);
                seen.tie.broke(false, silence_ms, now);
            }
        }
        (self.step_due, self.look_due, self.live_due) = (None, None, Some(now));
        self.standby.has_succeeded(succession);
        self.guard = Guard::of(&self.state);
        self.write_state();
    }
}
