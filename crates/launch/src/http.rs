//! The server for HTTP that a formation may have on each of its hosts: where it is to listen, and how it is.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::handover::{FromNode, take_stdin};
use crate::packets;
use crate::process::ProcessId;
use crate::state::NodeLife;
use crate::{Kind, LaunchError, LaunchResult};

/// An address to listen at: this host alone can reach it, unless one is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpAddress(pub SocketAddr);

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<HttpAddress, String> {
        let port = text.parse().map(|port: u16| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let address = port.or_else(|_| text.parse::<SocketAddr>());
        address
            .map(HttpAddress)
            .map_err(|_| "write a port, as 8443, or an address and a port, as 10.0.0.1:8443".into())
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The server that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpWish {
    /// Where it listens; port 0 is any that is free.
    pub address: HttpAddress,
    /// Whether it does without TLS.
    pub plain: bool,
    /// Where each host has the certificate, those that vouch for it, and its private key, as PEM; without it, one is made.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// The domain whose names have a bucket of S3 in front, if there is one.
    #[serde(default)]
    pub domain: Option<HttpDomain>,
}

/// A domain that names buckets of S3: letters, digits and dashes between dots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HttpDomain(pub String);

impl FromStr for HttpDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<HttpDomain, String> {
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let is_name = text.len() <= 190 && text.split('.').all(is_label) && text.parse::<IpAddr>().is_err();
        match is_name {
            true => Ok(HttpDomain(text.to_ascii_lowercase())),
            false => {
                Err("write a name without a port whose subdomains lead to the hosts, as s3.camp.example"
                    .into())
            }
        }
    }
}

impl HttpWish {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// That keys would be sent over a network for all to read.
    pub fn check(&self) -> LaunchResult<()> {
        if !self.plain || self.address.0.ip().is_loopback() {
            return Ok(());
        }
        let cause = format!("without TLS, keys and files can be read on the way to {}", self.address);
        Err(LaunchError::usage(
            "--http-plain",
            cause,
            "leave it out, or listen on this host alone: --http PORT",
        ))
    }
}

/// The server of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpState {
    /// What was asked for.
    pub wish: HttpWish,
    /// Where it listens, once that is known.
    pub address: Option<SocketAddr>,
    /// Its process.
    pub process: Option<ProcessId>,
    /// How it is.
    pub life: NodeLife,
    /// How the last process ended, if one did.
    pub message: Option<String>,
    /// Processes that died.
    pub deaths: u64,
}

impl From<HttpWish> for HttpState {
    fn from(wish: HttpWish) -> HttpState {
        HttpState { wish, address: None, process: None, life: NodeLife::Starting, message: None, deaths: 0 }
    }
}

/// Opens the server's port.
///
/// # Errors
/// What the system refused.
pub(crate) fn listen(state: &mut HttpState) -> LaunchResult<TcpListener> {
    // After a restart of everything it is found where it was.
    let wanted = state.address.unwrap_or(state.wish.address.0);
    let refused = |error: io::Error| {
        let remedy = "choose another port: --http PORT";
        LaunchError::new(Kind::Refused, format_args!("--http {wanted}"), error.to_string(), remedy)
    };
    let listener = TcpListener::bind(wanted).map_err(refused)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|error| refused(error.into()))?;
    state.address = Some(listener.local_addr().map_err(refused)?);
    Ok(listener)
}

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// From the supervisor to the server: the only packet. Descriptors: the port, the lock.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    /// The nodes of this host. The state on disk may not have them yet.
    pub nodes: Vec<u16>,
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
                "bivouac serve",
                "is what a supervisor starts, not a command of its own",
                remedy,
            )
        };
        let socket = take_stdin()?;
        let received = packets::receive::<Serve>(&socket).map_err(|_| not_supervised())?;
        let (Serve { nodes }, descriptors) = received.ok_or_else(not_supervised)?;
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

    /// Waits until the supervisor is gone.
    pub fn wait(&self) {
        while let Ok(Some(_)) = packets::receive::<Serve>(&self.socket) {}
    }
}

impl AsFd for HttpHandover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_this_host_alone_unless_said() {
        for (text, address) in [
            ("8443", "127.0.0.1:8443"),
            ("0", "127.0.0.1:0"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::]:80", "[::]:80"),
        ] {
            assert_eq!(text.parse::<HttpAddress>().unwrap().to_string(), address);
        }
        for wrong in ["", "x", "65536", ":80", "10.0.0.1", "host:80", "-1"] {
            assert!(wrong.parse::<HttpAddress>().unwrap_err().contains("8443"), "{wrong}");
        }
    }

    #[test]
    fn domains_are_names() {
        for right in ["s3.camp.example", "localhost", "a-1.b"] {
            assert_eq!(right.parse::<HttpDomain>().unwrap().0, right);
        }
        assert_eq!("S3.Camp".parse::<HttpDomain>().unwrap().0, "s3.camp");
        let long = "a.".repeat(100);
        for wrong in
            ["", ".", "a.", ".a", "a..b", "a:80", "-a", "a-", "a_b", "10.0.0.1", "::1", "a/b", "*.a", &long]
        {
            assert!(wrong.parse::<HttpDomain>().unwrap_err().contains("s3.camp.example"), "{wrong}");
        }
    }

    #[test]
    fn without_tls_nobody_else_is_served() {
        let wish = |text: &str, plain| HttpWish {
            address: text.parse().unwrap(),
            plain,
            certificate: None,
            domain: None,
        };
        for fine in [wish("1", true), wish("[::1]:1", true), wish("0.0.0.0:1", false)] {
            assert_eq!(fine.check(), Ok(()));
        }
        let refusal = wish("0.0.0.0:1", true).check().unwrap_err();
        assert!(refusal.to_string().starts_with("--http-plain: without TLS, keys"), "{refusal}");
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let holder = TcpListener::bind(taken).unwrap();
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
