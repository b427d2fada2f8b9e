//! Hosts whose connection has ended, or does not carry anything: they come back on another one, or are lost.

use bivouac_launch::{HostLife, Launcher};
use bivouac_net::NetError;
use bivouac_wire::rendezvous::{Order, Resume};

use super::departures::host_of_part;
use super::node_moves::SentOrders;
use super::{HostSeen, Keeper, KeeperState};

impl Keeper {
    /// Handles the end of a host's connection. As long as nobody knows better it may come back, once it is of the
    /// formation.
    pub(super) fn left(&mut self, host: usize, error: &NetError) {
        let now = self.now_ms();
        let silence_ms = self.silence_of(host);
        let starts =
            matches!(self.step, KeeperState::Gathering | KeeperState::Starting | KeeperState::Mounting);
        let ended = self.last_words(host).is_some() && self.ends_with_launcher();
        // While hosts gather it has no part to come back with, and where the launcher's end is the part's end there is
        // nobody who would. During the start a connection that was closed, and not cut, is the end of the part, too.
        if self.step == KeeperState::Gathering || ended || (error.is_closed() && starts) {
            return self.lost(host, error.to_string());
        }
        log::warn!("{}: {error}; it may come back", self.name(Some(host)));
        if let Some(seen) = self.hosts.get_mut(host) {
            (seen.link, seen.asked, seen.sent) = (None, false, SentOrders::default());
            // The daemons there may end meanwhile.
            seen.replicas.clear();
            seen.tie.broke(error.is_closed(), silence_ms, now);
        }
    }

    /// Handles the end of the launcher of a host without a connection: nothing of it runs there any more.
    pub(super) fn launcher_of_away_ended(&mut self, host: usize, said: String) {
        if self.ends_with_launcher() {
            self.lost(host, said);
        }
    }

    /// Returns whether a part is gone when the process that started it is. Under MPI it is apart from that; in a
    /// meeting it may be; and where keepers are elected it goes on without who has started it.
    fn ends_with_launcher(&self) -> bool {
        let is_elected = self.state.keepers.as_ref().is_some_and(|group| group.version > 0);
        !is_elected && !matches!(self.plan.launcher, Launcher::Mpi | Launcher::Meet)
    }

    /// Returns the time when the first of those without a connection is given up, in milliseconds.
    pub(super) fn return_due(&self) -> Option<u64> {
        let away = self.hosts.iter().enumerate().filter(|(_, seen)| seen.is_away());
        away.map(|(host, seen)| seen.tie.due_ms(self.silence_of(host))).min()
    }

    /// Gives up those of these hosts of which nothing was heard for so long that they have taken their parts down.
    pub(super) fn give_up_silent(&mut self, which: impl Fn(&HostSeen) -> bool, now: u64) {
        let silent =
            |host: usize, seen: &HostSeen| which(seen) && now >= seen.tie.due_ms(self.silence_of(host));
        let gone: Vec<(usize, u64)> = (self.hosts.iter().enumerate())
            .filter(|(host, seen)| silent(*host, seen))
            .map(|(host, _)| (host, self.silence_of(host)))
            .collect();
        for (host, silence_ms) in gone {
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

    /// Takes in a host that has connected anew. What it was told over the former connection may not have been heard.
    pub(super) fn take_resume(&mut self, id: u64, resume: Resume) {
        let now = self.now_ms();
        let host = host_of_part(&self.state, resume.first_node);
        let seen = host.and_then(|host| self.hosts.get_mut(host)).filter(|seen| seen.is_tied());
        let (Some(host), Some(seen)) = (host, seen) else {
            log::warn!("the host of node {} comes back too late", resume.first_node);
            // Another keeper may have another view of it, and its part ends for what is said here.
            if !self.is_agreed() {
                return self.links.drop(id);
            }
            let moved = self.moved_from(resume.first_node);
            return self
                .links
                .refuse(id, moved.unwrap_or("it was given up by the formation's keeper".into()));
        };
        // Attempts may arrive in another order than they were made; only the latest is the one that the host
        // listens to.
        if !seen.tie.resume(resume.turn, now) {
            // An attempt that was overtaken by a later one.
            return self.links.drop(id);
        }
        // The former connection may look open here for long: what is sent over it goes nowhere.
        let former = seen.link.replace(id);
        seen.sent = SentOrders::default();
        let asked = seen.asked;
        let unmounted = self.step == KeeperState::Mounting && !seen.done;
        former.into_iter().for_each(|former| self.links.drop(former));
        self.links.belongs(id, host);
        log::info!("host {} is connected anew", self.inventory.host(host));
        if let Some(order) = self.keepers_order() {
            self.order(id, &order);
        }
        self.order(id, &Order::Live);
        if self.was_usable && self.plan.ticket.recovers {
            self.order(id, &Order::Recovered);
        }
        if self.step == KeeperState::Ending {
            return self.order(id, &Order::Down);
        }
        if unmounted {
            self.order(id, &Order::Mount);
        }
        if asked {
            self.order(id, &Order::Look);
        }
        u16::try_from(host).into_iter().for_each(|host| self.send_record(host));
        self.drive_moves(false);
        let nodes = self.dead_nodes();
        // Told only once voters have accepted it: another keeper may know better.
        if !self.is_agreed() {
            self.untold_lost.extend(nodes);
        } else if matches!(self.step, KeeperState::Mounting | KeeperState::Running) && !nodes.is_empty() {
            self.order(id, &Order::Lost { nodes });
        }
    }

    /// Returns the nodes that will not come back.
    pub(super) fn dead_nodes(&self) -> Vec<u16> {
        let started = self.state.hosts.iter().filter(|host| host.life != HostLife::Missing);
        let started =
            started.flat_map(|host| host.nodes.iter().copied()).filter(|node| self.state.is_given_up(*node));
        started.chain(self.absent.iter().copied()).collect()
    }
}
