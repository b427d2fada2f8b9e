//! A killed keeper is followed by a copy of itself. No other process could take its place: it has the launchers' input,
//! whose end is the end of hosts' parts, and the port that hosts come back to.

use bivouac_launch::purpose::Guard;
use bivouac_launch::standby::{TurnToSucceed, Waiting, give_up};
use bivouac_launch::{FormationState, ProcessId};

use super::links::Links;
use super::{Keeper, KeeperState};

impl Keeper {
    /// Sees to it that a copy of this process waits that is as this one. In the copy this comes back when its turn has
    /// come.
    pub(super) fn renew_standby(&mut self) {
        let is_used = self.step == KeeperState::Running;
        if let Some(waiting) = is_used.then(|| self.standby.keep_up(&self.dir)).flatten() {
            self.stand_by(waiting);
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
        self.promised.clear();
        self.pending.clear();
        let (promised, succession) = waiting.wait(&self.dir, &self.signals);
        self.succeed(promised, succession);
    }

    /// Takes over as keeper: hosts reconnect as after a broken connection, except those that the former keeper recorded
    /// as lost.
    fn succeed(&mut self, promised: FormationState, succession: TurnToSucceed) {
        log::error!("the keeper, process {}, was killed: this one takes its place", succession.former.pid);
        self.state = FormationState { supervisor: Some(ProcessId::current()), ..promised };
        let now = self.now_ms();
        self.know_hosts();
        self.await_hosts(now);
        (self.step_due, self.look_due, self.live_due) = (None, None, Some(now));
        (self.move_due, self.is_move_unrecorded) = (None, false);
        self.hasten_departures();
        self.call_anew();
        self.note_mirrors();
        self.reckon_absence(now, 1);
        self.standby.begin_succession(succession);
        self.guard = Guard::of(&self.state);
        self.write_state();
        // The last record of the former keeper may have reached no voter.
        if self.is_voted_on() {
            self.record();
        }
    }
}
