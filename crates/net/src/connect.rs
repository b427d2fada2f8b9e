//! Sockets that reach a listener.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::{Address, retransmission};

impl Address {
    /// Returns whether a process listens there, of this formation or not.
    #[must_use]
    pub fn answers(&self, wait: Duration) -> bool {
        connect(self, wait).is_ok()
    }
}

/// Connects a blocking socket.
///
/// # Errors
/// The kernel's; timed out when the other side did not react within `wait`.
pub(crate) fn connect(address: &Address, wait: Duration) -> io::Result<OwnedFd> {
    match address {
        Address::Tcp(host_port) => connect_tcp(host_port, wait),
        Address::Unix(path) => connect_unix(path, wait),
        Address::InProcess => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn connect_tcp(host_port: &str, wait: Duration) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "host has no address");
    for target in host_port.to_socket_addrs()? {
        match connect_to(target, wait) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_to(target: SocketAddr, wait: Duration) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    retransmission::bound_retransmission(&socket);
    retransmission::enable_keepalive(&socket);
    connect_within(&socket, &target, wait)?;
    // Asking a dead port of this host can connect a socket to itself, which then takes the port.
    if is_own_end(&socket)? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(socket)
}

/// Begins to connect a socket that does not block. It can be written to once it is connected.
///
/// # Errors
/// The kernel's, if it knows at once.
pub(crate) fn begin_to_connect(target: SocketAddr) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &target) {
        Ok(()) if is_own_end(&socket)? => Err(io::ErrorKind::ConnectionRefused.into()),
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Like [`begin_to_connect`], for sending requests. Afterwards the socket blocks as those of [`connect`] do.
///
/// # Errors
/// As [`begin_to_connect`].
pub(crate) fn begin_to_ask(target: SocketAddr) -> io::Result<OwnedFd> {
    let socket = begin_to_connect(target)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    retransmission::bound_retransmission(&socket);
    retransmission::enable_keepalive(&socket);
    // Connecting goes on in the background; only calls that find it unfinished would wait, and the steps ask without
    // waiting.
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Returns whether a socket is connected to itself.
pub(crate) fn is_own_end(socket: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::net::getpeername(socket)? == Some(rustix::net::getsockname(socket)?))
}

fn connect_unix(path: &Path, wait: Duration) -> io::Result<OwnedFd> {
    let family = AddressFamily::UNIX;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect_within(&socket, &SocketAddrUnix::new(path)?, wait)?;
    Ok(socket)
}

/// Connects within a time. On Linux the timeout for sending limits `connect` too.
fn connect_within(
    socket: &OwnedFd,
    target: &impl rustix::net::addr::SocketAddrArg,
    wait: Duration,
) -> io::Result<()> {
    sockopt::set_socket_timeout(socket, Timeout::Send, Some(wait.max(Duration::from_millis(1))))?;
    rustix::net::connect(socket, target).map_err(|error| match error {
        Errno::INPROGRESS | Errno::AGAIN => io::ErrorKind::TimedOut.into(),
        error => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn every_address_of_a_host_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = connect(&Address::tcp(format!("localhost:{port}")), WAIT).unwrap();
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
    }

    #[test]
    fn a_socket_is_never_connected_to_itself() {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let own = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        // Bound to the port that it asks: the kernel connects it to itself.
        assert!(connect_within(&socket, &own, WAIT).is_ok() && is_own_end(&socket).unwrap());
    }

    #[test]
    fn what_cannot_be_reached_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Address::unix(directory.path().join("s"));
        assert_eq!(connect(&missing, WAIT).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(connect(&Address::tcp("no port"), WAIT).is_err());
        assert_eq!(connect(&Address::InProcess, WAIT).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
