//! Looks for circles of processes that wait for each other's ranges.
//!
//! Nobody keeps a graph of waits: it is followed from the wait in question, by asking the homes of the files who is
//! in the way, and the nodes of those what they wait for. So there is nothing to be cleared when a wait ends or
//! somebody dies, and a wait that ends soon costs nothing. A circle counts when it is found twice with the same
//! waits: who waits unlocks nothing, so between the two it was closed. The youngest wait of it is refused, which
//! is the one that closed it, as far as clocks tell.

use std::collections::HashMap;

use bivouac_types::limits::LOCK_OWNERS_FOLLOWED_MAX;
use bivouac_types::{ClientId, NodeId};
use bivouac_wire::{LockKind, LockOf, LockOwners, LockTicket, LockWait, op};

use super::{LockDesk, SHORT_WAIT_MS};

/// Difference of ages, in milliseconds, below which two waits count as equally old: messages take time.
const SAME_AGE_MS: u64 = 20;
/// Times that a deadlock is found until the wait that finds it is refused, whatever its age.
const SPARED_MAX: u32 = 3;

/// An owner of locks.
type Owner = (ClientId, u64);

/// The decision about a wait for a lock.
pub enum Verdict {
    /// Nothing.
    Waits,
    /// Refuse it.
    Refuse,
    /// Have this other one refused, by its own client.
    Elsewhere(LockWait),
}

impl LockDesk {
    /// Looks whether a wait is part of a circle.
    pub(super) fn look(&self, ticket: u64) -> Verdict {
        let Some(circle) = self.circle(ticket) else { return Verdict::Waits };
        if !self.circle(ticket).is_some_and(|again| same(&circle, &again)) {
            return Verdict::Waits;
        }
        let Some(youngest) = youngest(&circle) else { return Verdict::Waits };
        if (youngest.of.client, youngest.ticket) == (self.connections.id, ticket) {
            return Verdict::Refuse;
        }
        let mut state = self.state.lock();
        let Some(found) = state.tickets.get_mut(&ticket) else { return Verdict::Waits };
        // The other client may be gone, or not see the circle: then this wait has to end it.
        found.spared += 1;
        if found.spared > SPARED_MAX { Verdict::Refuse } else { Verdict::Elsewhere(*youngest) }
    }

    /// Asks another client to check its wait for a deadlock.
    pub(super) fn ask_to_look(&self, wait: &LockWait) {
        let request = LockTicket { client: wait.of.client, ino: wait.of.ino, ticket: wait.ticket };
        if wait.of.client == self.connections.id {
            self.look_again(wait.ticket);
        } else if let Some(node) = wait.of.node
            && let Err(error) = self.connections.try_asking::<op::LookAgain>(node, &request, SHORT_WAIT_MS)
        {
            log::debug!(why:% = error; "{node} does not look at a wait");
        }
    }

    /// Returns the waits of a circle that this wait is part of, this one first.
    fn circle(&self, ticket: u64) -> Option<Vec<LockWait>> {
        let own = {
            let state = self.state.lock();
            let found = state.tickets.get(&ticket).filter(|found| state.may_be_in_a_circle(found))?;
            self.wait(ticket, found)
        };
        let start = (self.connections.id, own.of.lock.owner);
        // Each owner that was come upon, with the wait that led there.
        let mut led_by: HashMap<Owner, LockWait> = HashMap::new();
        let mut waits = vec![own];
        while !waits.is_empty() {
            let mut found: HashMap<NodeId, Vec<Owner>> = HashMap::new();
            for wait in waits {
                for holder in self.holders(&wait) {
                    let owner = (holder.client, holder.lock.owner);
                    if owner == start {
                        return Some(path(&led_by, wait, own));
                    }
                    // Owners whose clients nobody can ask are left out: those have no waits.
                    if led_by.insert(owner, wait).is_none()
                        && let Some(node) = holder.node
                    {
                        found.entry(node).or_default().push(owner);
                    }
                }
            }
            // A bound on messages: a circle of so many is not looked for.
            if led_by.len() > LOCK_OWNERS_FOLLOWED_MAX {
                return None;
            }
            waits = found.into_iter().flat_map(|(node, owners)| self.waits_at(node, owners)).collect();
        }
        None
    }

    fn holders(&self, wait: &LockWait) -> Vec<LockOf> {
        let asked = self
            .connections
            .home(wait.of.ino)
            .and_then(|home| self.connections.try_asking::<op::LockHolders>(home, &wait.of, SHORT_WAIT_MS));
        let holders = asked.map_or(Vec::new(), |list| list.holders);
        holders.into_iter().filter(|holder| holder.lock.kind == LockKind::Range).collect()
    }

    fn waits_at(&self, node: NodeId, owners: Vec<Owner>) -> Vec<LockWait> {
        if Some(node) == self.connections.local {
            let (own, others): (Vec<Owner>, Vec<Owner>) =
                owners.into_iter().partition(|(client, _)| *client == self.connections.id);
            let own: Vec<u64> = own.into_iter().map(|(_, owner)| owner).collect();
            return [self.waits(&own), self.ask_waits(node, others)].concat();
        }
        self.ask_waits(node, owners)
    }

    fn ask_waits(&self, node: NodeId, owners: Vec<Owner>) -> Vec<LockWait> {
        if owners.is_empty() {
            return Vec::new();
        }
        let asked = self.connections.try_asking::<op::LockWaits>(node, &LockOwners { owners }, SHORT_WAIT_MS);
        asked.map_or(Vec::new(), |list| list.waits)
    }
}

/// Returns the waits from `own` to `last`, whose holder is the owner of `own`.
fn path(led_by: &HashMap<Owner, LockWait>, last: LockWait, own: LockWait) -> Vec<LockWait> {
    let mut waits = vec![last];
    let mut at = last;
    while (at.of.client, at.ticket) != (own.of.client, own.ticket) && waits.len() <= led_by.len() {
        let Some(before) = led_by.get(&(at.of.client, at.of.lock.owner)) else { break };
        at = *before;
        waits.push(at);
    }
    waits.reverse();
    waits
}

fn same(a: &[LockWait], b: &[LockWait]) -> bool {
    let name = |wait: &LockWait| (wait.of.client, wait.ticket);
    a.iter().map(name).eq(b.iter().map(name))
}

/// Returns the wait to be refused: all that look at the circle choose the same.
fn youngest(circle: &[LockWait]) -> Option<&LockWait> {
    let least = circle.iter().map(|wait| wait.waited_ms).min()?;
    let young = circle.iter().filter(|wait| wait.waited_ms <= least.saturating_add(SAME_AGE_MS));
    young.max_by_key(|wait| (wait.of.client, wait.ticket))
}
