//! Hosts whose connection has ended, or does not carry anything: they come back on another one, or are lost.

use bivouac_launch::{HostLife, Launcher, NodeLife};
use bivouac_net::NetError;
use bivouac_wire::rendezvous::{Order, Resume};

use super::{HostSeen, Keeper, Step};

impl Keeper {
    /// A host's connection has ended. As long as nobody knows better it may come back, once it is of the formation.
    pub(super) fn left(&mut self, host: usize, error: &NetError) {
        let now = self.now_ms();
        let silence_ms = self.plan.ticket.silence_ms;
        let starts = matches!(self.step, Step::Gathering | Step::Starting | Step::Mounting);
        let ended = self.last_words(host).is_some() && self.ends_with_launcher();
        if self.step == Step::Gathering || ended || (error.is_closed() && starts) {
            return self.lost(host, error.to_string());
        }
        log::warn!("{}: {error}; it may come back", self.name(Some(host)));
        if let Some(seen) = self.hosts.get_mut(host) {
            (seen.link, seen.asked) = (None, false);
            seen.tie.broke(error.is_closed(), silence_ms, now);
        }
    }

    /// The launcher of a host without a connection has ended: nothing of it runs there any more.
    pub(super) fn launcher_of_away_ended(&mut self, host: usize, said: String) {
        if self.ends_with_launcher() {
            self.lost(host, said);
        }
    }

    /// Whether a part is gone when the process that started it is. Under MPI it is apart from that; in a meeting it may be.
    fn ends_with_launcher(&self) -> bool {
        !matches!(self.plan.launcher, Launcher::Mpi | Launcher::Meet)
    }

    /// When the first of those without a connection is given up, in milliseconds.
    pub(super) fn return_due(&self) -> Option<u64> {
        let silence_ms = self.plan.ticket.silence_ms;
        self.hosts.iter().filter(|seen| seen.is_away()).map(|seen| seen.tie.due_ms(silence_ms)).min()
    }

    /// Gives up those of these hosts of which nothing was heard for so long that they have taken their parts down.
    pub(super) fn give_up_silent(&mut self, which: impl Fn(&HostSeen) -> bool, now: u64) {
        let silence_ms = self.plan.ticket.silence_ms;
        let silent = |seen: &HostSeen| which(seen) && now >= seen.tie.due_ms(silence_ms);
        let gone: Vec<usize> =
            self.hosts.iter().enumerate().filter(|(_, seen)| silent(seen)).map(|(host, _)| host).collect();
        for host in gone {
            let link = self.hosts.get(host).and_then(|seen| seen.link);
            let why = if link.is_some() {
                format!("nothing was heard of it for {} s", 2 * silence_ms / 1000)
            } else {
                "its connection has ended, and it did not come back".into()
            };
            link.into_iter().for_each(|id| self.links.drop(id));
            self.lost(host, why);
        }
    }

    /// A host has connected anew. What it was told over the former connection may not have been heard.
    pub(super) fn take_resume(&mut self, id: u64, resume: Resume) {
        let now = self.now_ms();
        let host = self.state.hosts.iter().position(|host| host.nodes.first() == Some(&resume.first_node));
        let seen = host.and_then(|host| self.hosts.get_mut(host)).filter(|seen| seen.is_tied());
        let (Some(host), Some(seen)) = (host, seen) else {
            log::warn!("the host of node {} comes back too late", resume.first_node);
            return self.links.refuse(id, "it was given up by the formation's keeper".into());
        };
        if !seen.tie.resume(resume.turn, now) {
            // An attempt that was overtaken by a later one.
            return self.links.drop(id);
        }
        let former = seen.link.replace(id);
        let asked = seen.asked;
        let unmounted = self.step == Step::Mounting && !seen.done;
        former.into_iter().for_each(|former| self.links.drop(former));
        self.links.belongs(id, host);
        log::info!("host {} is connected anew", self.inventory.host(host));
        self.order(id, &Order::Live);
        if self.was_usable && self.plan.ticket.recovers {
            self.order(id, &Order::Recovered);
        }
        if self.step == Step::Ending {
            return self.order(id, &Order::Down);
        }
        if unmounted {
            self.order(id, &Order::Mount);
        }
        if asked {
            self.order(id, &Order::Look);
        }
        let nodes = self.dead_nodes();
        if matches!(self.step, Step::Mounting | Step::Running) && !nodes.is_empty() {
            self.order(id, &Order::Lost { nodes });
        }
    }

    /// Nodes that will not come back.
    fn dead_nodes(&self) -> Vec<u16> {
        let lost =
            |node: &u16| self.state.nodes.get(usize::from(*node)).is_some_and(|n| n.life == NodeLife::Failed);
        let started = self.state.hosts.iter().filter(|host| host.life != HostLife::Missing);
        let started = started.flat_map(|host| host.nodes.iter().copied()).filter(lost);
        started.chain(self.absent.iter().copied()).collect()
    }
}
