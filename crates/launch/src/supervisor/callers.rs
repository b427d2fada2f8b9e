//! The commands that are connected to the supervisor, each with one request.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};

use crate::control::{Answer, Request};
use crate::packets;

/// Most commands connected at a time; further ones wait.
pub(super) const CALLERS_MAX: usize = 64;

/// Connected commands, by a number that is never used again.
#[derive(Debug, Default)]
pub struct Callers {
    connected: BTreeMap<u64, OwnedFd>,
    last: u64,
}

impl Callers {
    /// Returns their numbers, and what becomes readable when one of them asks.
    pub fn iter(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        self.connected.iter().map(|(token, socket)| (*token, socket.as_fd()))
    }

    /// Hears them no more. Their numbers are not used again all the same.
    pub fn let_go(&mut self) {
        self.connected.clear();
    }

    /// Returns whether further commands wait until one of these was answered.
    pub fn is_full(&self) -> bool {
        self.connected.len() >= CALLERS_MAX
    }

    /// Takes the next command that connects; only this user's and the administrator's are heard.
    pub fn accept(&mut self, listener: &OwnedFd) {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(error) => return log::warn!(why:% = error; "a command could not connect"),
        };
        let ours = rustix::process::geteuid();
        let allowed = socket_peercred(&socket).is_ok_and(|peer| peer.uid == ours || peer.uid.is_root());
        if !allowed || self.is_full() {
            return log::warn!("a command was refused: it is another user's, or one too many");
        }
        self.last += 1;
        self.connected.insert(self.last, socket);
        assert!(self.connected.len() <= CALLERS_MAX, "{} commands are connected", self.connected.len());
    }

    /// Receives the request of a command. One that says nothing sensible, or ended, is forgotten.
    pub fn receive(&mut self, token: u64) -> Option<(Request, Vec<OwnedFd>)> {
        match packets::receive(self.connected.get(&token)?) {
            Ok(Some(request)) => return Some(request),
            Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => return None,
            Ok(None) => {}
            Err(error) => log::warn!(why:% = error; "a command said nothing sensible"),
        }
        self.connected.remove(&token);
        None
    }

    /// Answers a command; that it ended meanwhile is its own affair.
    pub fn answer(&mut self, token: u64, answer: &Answer) {
        if let Some(socket) = self.connected.remove(&token)
            && let Err(error) = packets::send(&socket, answer, &[])
        {
            log::info!(why:% = error; "a command did not wait for its answer");
        }
    }
}
