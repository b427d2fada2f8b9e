//! A part's attempts to connect to the keeper anew. None of them is waited for.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bivouac_net::{Identity, Link, Message, NetError};
use bivouac_wire::rendezvous::{self, Resume};

use crate::agent::send;
use crate::ticket::Ticket;

/// Most attempts at each address at a time; the oldest goes for a new one. More than one, as a busy keeper may take
/// longer to answer than it takes until the next attempt.
const PER_ADDRESS_MAX: usize = 4;

/// Attempts that are under way, and what they are made with.
#[derive(Default)]
pub(crate) struct Attempts {
    addresses: Vec<SocketAddr>,
    credentials: Option<(Identity, u16)>,
    under_way: VecDeque<Attempt>,
}

struct Attempt {
    link: Link,
    turn: u32,
    /// Whether it leads where the keeper was reached before.
    is_main: bool,
    /// Whether the keeper was told who this is.
    asked: bool,
}

/// What came of attempts.
pub(crate) enum Came {
    /// Nothing yet.
    Nothing,
    /// Where the keeper was reached before, nobody listens, or somebody else does.
    Refusal,
    /// An answer, over the connection that is to be used from now on. There are no other attempts any more.
    Answer(Link, Vec<Message>),
}

impl Attempts {
    /// None yet: to where the keeper was reached, and to its other addresses, as the way there may be another one now.
    pub fn to(ticket: &Ticket, reached: Option<SocketAddr>) -> Attempts {
        let mut addresses: Vec<SocketAddr> = reached.into_iter().collect();
        for address in ticket.addresses.iter().filter_map(|address| address.parse().ok()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Attempts { addresses, ..Attempts::default() }
    }

    /// From now on they can be made: who this is, and the first node here.
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

    /// Their connections, to be polled.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.under_way.iter().map(|attempt| &attempt.link)
    }

    /// Goes on with all of them as far as that goes without waiting.
    pub fn attend(&mut self) -> Came {
        let Some((_, first_node)) = self.credentials else { return Came::Nothing };
        let mut refused = false;
        for mut attempt in std::mem::take(&mut self.under_way) {
            match attempt.go_on(first_node) {
                Ok(messages) if messages.is_empty() => self.under_way.push_back(attempt),
                Ok(messages) => {
                    self.under_way.clear();
                    return Came::Answer(attempt.link, messages);
                }
                Err(error) => {
                    log::debug!(error:%; "{error}");
                    refused |= attempt.is_main && error.is_refused();
                }
            }
        }
        if refused { Came::Refusal } else { Came::Nothing }
    }
}

impl Attempt {
    fn go_on(&mut self, first_node: u16) -> Result<Vec<Message>, NetError> {
        self.link.flush()?;
        let messages = self.link.receive()?;
        if self.link.is_proven() && !self.asked {
            self.asked = true;
            send(&mut self.link, rendezvous::RESUME, &Resume { first_node, turn: self.turn })?;
        }
        Ok(messages)
    }
}
