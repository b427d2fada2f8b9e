//! Attempts of a host's part to reconnect to the keeper, without blocking.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bivouac_net::{Identity, Link, Message, NetError};
use bivouac_wire::Encode;
use bivouac_wire::rendezvous::{self, Resume};

use crate::ticket::Ticket;

/// Most attempts at each address at a time; the oldest is dropped for a new one. More than one, since a busy keeper may
/// take longer to answer than the interval of attempts.
const PER_ADDRESS_MAX: usize = 4;

/// Connection attempts under way, with the credentials for them.
#[derive(Default)]
pub(crate) struct ResumeAttempts {
    addresses: Vec<SocketAddr>,
    credentials: Option<(Identity, u16)>,
    under_way: VecDeque<Attempt>,
}

struct Attempt {
    link: Link,
    turn: u32,
    /// True if it leads where the keeper was reached before.
    is_main: bool,
    /// True if the keeper was told who this is.
    asked: bool,
}

/// The outcome of all attempts so far.
pub(crate) enum ResumeOutcome {
    /// No answer yet.
    Pending,
    /// At the address where the keeper was reached before, nobody listens, or another program does.
    Refused,
    /// An answer, over the connection to use from now on. All other attempts are given up.
    Answer(Link, Vec<Message>),
}

impl ResumeAttempts {
    /// Creates the attempts, none made yet: to where the keeper was reached, and to its other addresses, as the way
    /// there may be another one now.
    pub fn to(ticket: &Ticket, reached: Option<SocketAddr>) -> ResumeAttempts {
        let mut addresses: Vec<SocketAddr> = reached.into_iter().collect();
        for address in ticket.addresses.iter().filter_map(|address| address.parse().ok()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        ResumeAttempts { addresses, ..ResumeAttempts::default() }
    }

    /// Replaces all addresses by those of the keeper. Its port at the address where it was reached comes first.
    pub fn replace(&mut self, addresses: &[String], reached: Option<SocketAddr>) {
        let known: Vec<SocketAddr> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        // Without any the former ones are better than none.
        let Some(first) = known.first() else { return };
        let main = reached.map_or(*first, |reached| SocketAddr::new(reached.ip(), first.port()));
        self.addresses = vec![main];
        self.addresses.extend(known.into_iter().filter(|address| *address != main));
    }

    /// Addresses of the keeper and of those that can succeed it. Where a keeper was reached comes first.
    pub fn know(&mut self, addresses: &[String]) {
        self.addresses.truncate(1);
        for address in addresses.iter().filter_map(|address| address.parse().ok()) {
            if !self.addresses.contains(&address) {
                self.addresses.push(address);
            }
        }
    }

    /// Permits attempts, under this identity; `first_node` is the first node of this host.
    pub fn allow(&mut self, identity: Identity, first_node: u16) {
        self.credentials = Some((identity, first_node));
    }

    /// Begins one at each address.
    pub fn add(&mut self, turn: u32) {
        let Some((identity, _)) = &self.credentials else { return };
        for (position, address) in self.addresses.iter().enumerate() {
            match Link::reach(*address, identity) {
                Ok(link) => {
                    let is_main = position == 0;
                    self.under_way.push_back(Attempt { link, turn, is_main, asked: false });
                }
                // The next one comes in time.
                Err(error) => log::debug!(error:%; "{error}"),
            }
        }
        while self.under_way.len() > PER_ADDRESS_MAX * self.addresses.len() {
            self.under_way.pop_front();
        }
    }

    /// Returns their connections, to be polled.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.under_way.iter().map(|attempt| &attempt.link)
    }

    /// Goes on with all of them as far as that goes without waiting.
    pub fn attend(&mut self) -> ResumeOutcome {
        let Some((_, first_node)) = self.credentials else { return ResumeOutcome::Pending };
        let mut refused = false;
        for mut attempt in std::mem::take(&mut self.under_way) {
            match attempt.go_on(first_node) {
                Ok(messages) if messages.is_empty() => self.under_way.push_back(attempt),
                Ok(messages) => {
                    self.under_way.clear();
                    if let Some(reached) = attempt.link.peer() {
                        self.addresses.retain(|address| *address != reached);
                        self.addresses.insert(0, reached);
                    }
                    return ResumeOutcome::Answer(attempt.link, messages);
                }
                Err(error) => {
                    log::debug!(error:%; "{error}");
                    refused |= attempt.is_main && error.is_refused();
                }
            }
        }
        if refused { ResumeOutcome::Refused } else { ResumeOutcome::Pending }
    }
}

impl Attempt {
    fn go_on(&mut self, first_node: u16) -> Result<Vec<Message>, NetError> {
        self.link.flush()?;
        let messages = self.link.receive()?;
        if self.link.is_proven() && !self.asked {
            self.asked = true;
            let body = Resume { first_node, turn: self.turn }.to_bytes();
            self.link.send(&Message { op: rendezvous::RESUME, body, payload: Vec::new() })?;
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_arrivals_is_replaced_by_that_of_the_keeper() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut attempts =
            ResumeAttempts { addresses: vec![address("10.0.0.1:99")], ..ResumeAttempts::default() };
        attempts.replace(&[], Some(address("10.0.0.1:99")));
        assert_eq!(attempts.addresses, [address("10.0.0.1:99")]);
        attempts.replace(&["10.1.0.1:7".into(), "10.0.0.1:7".into()], Some(address("10.0.0.1:99")));
        assert_eq!(attempts.addresses, ["10.0.0.1:7", "10.1.0.1:7"].map(address));
        attempts.know(&["10.0.0.2:8".into()]);
        assert_eq!(attempts.addresses, ["10.0.0.1:7", "10.0.0.2:8"].map(address));
    }
}
