//! Liveness of the formation's hosts, and the time for which the whole lives.

use bivouac_launch::purpose::Guard;
use bivouac_launch::{HostLife, NodeLife, ProcessId, Stage, unix_ms};
use bivouac_wire::rendezvous::{NodeReport, Order};

use super::{Keeper, KeeperState};
use crate::moves::MoveEvent;

impl Keeper {
    pub(super) fn note_lost(&mut self, host: usize, text: String) {
        if self.has_gone(host) {
            let text = format!("{text}; it did not say that nothing of its part is left there");
            return self.note_left(host, Some(text));
        }
        if self.state.hosts.get(host).is_none_or(|state| state.life != HostLife::Up) {
            // It was given up before.
            return;
        }
        if self.is_coming_up(host) {
            return self.not_joined(host, text);
        }
        if let Some(state) = self.state.hosts.get_mut(host) {
            (state.life, state.message) = (HostLife::Lost, Some(text));
            state.mount = None;
        }
        let nodes = self.state.hosts.get(host).map(|host| host.nodes.clone()).unwrap_or_default();
        self.set_nodes(host, NodeLife::Failed);
        // Also where nothing is mirrored now: nodes of a host that joined are withdrawn, and arrivals end.
        if !self.is_protected {
            self.lose(nodes);
        } else {
            // Which of them go on elsewhere is written down with the loss: a keeper that goes on from there must not
            // take them for dead.
            self.move_event(MoveEvent::HostLost { host, nodes });
        }
        self.choose_voters();
    }

    /// Writes down that nodes are dead for good, and tells all hosts.
    fn lose(&mut self, nodes: Vec<u16>) {
        if self.is_voted_on() {
            self.untold_lost.extend(nodes);
            self.record();
        } else {
            self.write_state();
            self.tell_lost(nodes);
        }
    }

    pub(super) fn set_nodes(&mut self, host: usize, life: NodeLife) {
        let Some(host) = self.state.hosts.get(host) else { return };
        for id in &host.nodes {
            if let Some(node) = self.state.nodes.get_mut(usize::from(*id)) {
                node.life = life;
            }
        }
    }

    pub(super) fn note_nodes(&mut self, host: usize, reports: &[NodeReport], trouble: Option<String>) {
        let Some(state) = self.state.hosts.get_mut(host) else { return };
        state.message = trouble;
        let mut lost = Vec::new();
        let mut serve = Vec::new();
        for report in reports.iter().filter(|report| state.nodes.contains(&report.node)) {
            let id = report.node;
            let Some(node) = self.state.nodes.get_mut(usize::from(id)) else { continue };
            node.process = (report.pid != 0).then_some(ProcessId { pid: report.pid, started_ticks: 0 });
            node.message.clone_from(&report.message);
            node.deaths = report.deaths;
            let life = NodeLife::named(&report.life);
            // Only the change counts: a report names all nodes of the host, those known as failed as well.
            if life == NodeLife::Failed && node.life != NodeLife::Failed {
                lost.push(id);
            }
            serve.extend((life == NodeLife::Ready && node.epoch > 0).then_some(id));
            node.life = life;
        }
        for node in serve {
            self.move_event(MoveEvent::Serves { host, node });
        }
        for node in &lost {
            self.move_event(MoveEvent::Failed { node: *node });
        }
        if !lost.is_empty() {
            self.lose(lost);
        }
    }

    /// Tells the nodes of all hosts that they need not wait any more for some that will not come back.
    pub(super) fn tell_lost(&mut self, nodes: Vec<u16>) {
        if self.step == KeeperState::Running && !nodes.is_empty() {
            log::warn!("all hosts are told that nodes {nodes:?} are dead");
            self.order_all(&Order::Lost { nodes });
        }
    }

    /// Takes the formation down when its purpose is over, unless it holds data that is nowhere else.
    pub(super) fn end_when_over(&mut self) {
        match self.step {
            _ if self.state.stage == Stage::Stopping => return,
            KeeperState::Ending => return,
            KeeperState::Running => {}
            KeeperState::Gathering | KeeperState::Starting | KeeperState::Mounting => {
                if let Some(why) = self.guard.due() {
                    self.give_up(format!("before it was usable, {why}"));
                }
                return;
            }
        }
        if let Some(why) = self.guard.attend(&self.here.program, &self.dir) {
            self.state.message = Some(format!("{why}, but its data is kept"));
            self.write_state();
        }
    }

    /// Lets go of the formation for the process that it was made for.
    pub(super) fn leave(&mut self, ttl_ms: Option<u64>) {
        (self.plan.tied, self.report) = (false, None);
        self.state.owner = None;
        self.state.ends_unix_ms = ttl_ms.map(|ttl| unix_ms().saturating_add(ttl));
        self.guard = Guard::of(&self.state);
        self.write_state();
    }
}
