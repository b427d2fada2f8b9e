//! The supervisor's side and the server's side of the servers that a formation may have on each of its hosts beside its
//! nodes: the one for HTTP, and the gateway of links.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bivouac_types::NodeId;
use bivouac_wire::FormationMap;
use serde::{Deserialize, Serialize};

use crate::handover::{FromNode, map_in, take_stdin};
use crate::packets;
use crate::state::{GatewayState, HttpState};
use crate::{Kind, LaunchError, LaunchResult};

/// Opens the server's port.
///
/// # Errors
/// What the system refused.
pub(crate) fn listen(state: &mut HttpState) -> LaunchResult<TcpListener> {
    // After a restart of everything it is found where it was.
    let wanted = state.address.unwrap_or(state.wish.address.0);
    let listener = bind(wanted, "--http")?;
    state.address = listener.local_addr().ok();
    Ok(listener)
}

/// Opens the gateway's port.
///
/// # Errors
/// What the system refused.
pub(crate) fn listen_for_links(state: &mut GatewayState) -> LaunchResult<TcpListener> {
    let wanted = state.address.unwrap_or(state.wish);
    let listener = bind(wanted, "--link-listen")?;
    state.address = listener.local_addr().ok();
    Ok(listener)
}

fn bind(wanted: SocketAddr, option: &'static str) -> LaunchResult<TcpListener> {
    let refused = |error: io::Error| {
        let remedy = format!("choose another port: {option} PORT");
        LaunchError::new(Kind::Refused, format_args!("{option} {wanted}"), error.to_string(), &remedy)
    };
    let listener = TcpListener::bind(wanted).map_err(refused)?;
    // The standard library chooses the length of the queue itself; a second call changes it.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| refused(error.into()))?;
    Ok(listener)
}

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// Message from the supervisor to the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToHttp {
    /// The first packet. Descriptors: the port, the lock.
    Serve {
        /// Nodes of this host. The state on disk may lack them yet.
        nodes: Vec<u16>,
    },
    /// A newer map. Descriptors: its bytes, in memory.
    Map,
    /// A node is dead and will not be restarted, or one that was serves again.
    Dead {
        /// The node.
        node: u16,
        /// True if it is dead.
        dead: bool,
    },
}

/// The server's side of the socket between it and its supervisor.
#[derive(Debug)]
pub struct HttpHandover {
    socket: OwnedFd,
    /// Shows that the formation is in use.
    _lock: OwnedFd,
}

impl HttpHandover {
    /// Takes over what the supervisor hands to this process at its standard input: the port, and which nodes are here.
    ///
    /// # Errors
    /// When this process was not started by a supervisor.
    pub fn from_stdin() -> LaunchResult<(HttpHandover, TcpListener, Vec<u16>)> {
        let not_supervised = || {
            let remedy = "start a formation with: bivouac up --http PORT";
            LaunchError::usage(
                "bivouac serve or gateway",
                "is what a supervisor starts, not a command of its own",
                remedy,
            )
        };
        let socket = take_stdin()?;
        let received = packets::receive::<ToHttp>(&socket).map_err(|_| not_supervised())?;
        let (message, descriptors) = received.ok_or_else(not_supervised)?;
        let ToHttp::Serve { nodes } = message else { return Err(not_supervised()) };
        let [listener, lock]: [OwnedFd; 2] = descriptors.try_into().map_err(|_| not_supervised())?;
        Ok((HttpHandover { socket, _lock: lock }, listener.into(), nodes))
    }

    /// Tells the supervisor something.
    ///
    /// # Errors
    /// When it is gone.
    pub fn tell(&self, message: &FromNode) -> io::Result<()> {
        packets::send(&self.socket, message, &[])
    }

    /// Waits until the supervisor is gone. `hear` is called with what it says.
    pub fn wait(&self, mut hear: impl FnMut(HttpNews)) {
        while let Ok(Some((message, descriptors))) = packets::receive::<ToHttp>(&self.socket) {
            match message {
                ToHttp::Dead { node, dead } => hear(HttpNews::Dead { node: NodeId(node), dead }),
                ToHttp::Map => match map_in(descriptors) {
                    Some(map) => hear(HttpNews::Map(Box::new(map))),
                    None => log::error!("the supervisor hands over a map that is none"),
                },
                ToHttp::Serve { .. } => {}
            }
        }
    }
}

/// News of the supervisor.
#[derive(Debug)]
pub enum HttpNews {
    /// A node is dead from now on, or serves again.
    Dead {
        /// The node.
        node: NodeId,
        /// True if it is dead.
        dead: bool,
    },
    /// A newer map.
    Map(Box<FormationMap>),
}

impl AsFd for HttpHandover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_options::{HttpAddress, HttpWish};

    #[test]
    fn a_port_in_use_is_named() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap();
        let mut state = HttpState::from(HttpWish {
            address: HttpAddress(taken),
            plain: false,
            certificate: None,
            domain: None,
        });
        let error = listen(&mut state).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--http {taken}: ")) && error.contains("another port"), "{error}");
        drop(holder);
        state.wish.address.0.set_port(0);
        let listener = listen(&mut state).unwrap();
        assert_eq!(state.address, Some(listener.local_addr().unwrap()));
    }
}
