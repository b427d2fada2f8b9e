//! Sockets that a server accepts connections on.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::{Address, NetError};

/// A bound socket. It outlives the server that uses it if it was passed on with [`Listener::try_clone`].
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: Address,
}

impl Listener {
    /// Binds to `host:port`; port 0 takes a free one, see [`Listener::address`].
    ///
    /// # Errors
    /// [`NetError::Listen`] with the remedy, for instance when the port is in use.
    pub fn bind_tcp(host_port: &str) -> Result<Listener, NetError> {
        let failed = |cause: io::Error| listen_error(Address::tcp(host_port), cause);
        let listener = TcpListener::bind(host_port).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Listener { socket: listener.into(), address: Address::tcp(address.to_string()) })
    }

    /// Binds to a path with mode 0600. A socket that is there already is replaced if nobody answers on it.
    ///
    /// # Errors
    /// [`NetError::Listen`] with the remedy.
    pub fn bind_unix(path: impl AsRef<Path>) -> Result<Listener, NetError> {
        let path = path.as_ref();
        let failed = |cause: io::Error| listen_error(Address::unix(path), cause);
        remove_stale(path).map_err(failed)?;
        let listener = bind_private(path).map_err(failed)?;
        Ok(Listener { socket: listener.into(), address: Address::unix(path) })
    }

    /// Takes over a listening socket that another process made.
    ///
    /// # Errors
    /// [`NetError::System`] when the descriptor is not a listening stream socket.
    pub fn from_fd(socket: OwnedFd) -> Result<Listener, NetError> {
        let address = inherited_address(&socket)
            .map_err(|cause| NetError::System { what: "use the inherited socket", cause })?;
        Ok(Listener { socket, address })
    }

    /// Returns its address, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns a second handle of the same socket, to keep the address while a daemon restarts.
    ///
    /// # Errors
    /// [`NetError::System`] when descriptors have run out.
    pub fn try_clone(&self) -> Result<Listener, NetError> {
        let socket = self
            .socket
            .try_clone()
            .map_err(|cause| NetError::System { what: "duplicate a listening socket", cause })?;
        Ok(Listener { socket, address: self.address.clone() })
    }

    /// Returns the socket, to be passed on.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.address, Address::Unix(_))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn inherited_address(socket: &OwnedFd) -> io::Result<Address> {
    if sockopt::socket_type(socket)? != SocketType::STREAM || !sockopt::socket_acceptconn(socket)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a listening stream socket"));
    }
    if sockopt::socket_domain(socket)? == AddressFamily::UNIX {
        let listener = UnixListener::from(socket.try_clone()?);
        return Ok(Address::unix(listener.local_addr()?.as_pathname().unwrap_or(Path::new("(unnamed)"))));
    }
    Ok(Address::tcp(TcpListener::from(socket.try_clone()?).local_addr()?.to_string()))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.file_type().is_socket() => Err(io::ErrorKind::AlreadyExists.into()),
        // A socket without a listener is what a killed process leaves; only the kernel knows whether one listens.
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
    }
}

/// Binds a socket for this user alone. Nobody else can connect between `bind` and `chmod`: until then the directory's
/// permissions apply, and the server checks the credentials of each peer.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn listen_error(address: Address, cause: io::Error) -> NetError {
    let remedy = match cause.kind() {
        io::ErrorKind::AddrInUse => "another process listens there; stop it or choose another address",
        io::ErrorKind::AddrNotAvailable => "no interface of this host has that address; choose another one",
        io::ErrorKind::PermissionDenied => "choose a port above 1023, or a directory of your own",
        io::ErrorKind::AlreadyExists => "something that is not a socket is in the way; choose another path",
        io::ErrorKind::NotFound => "create the directory, or correct the name of the host",
        io::ErrorKind::InvalidInput => "use host:port, or a path of less than 108 bytes",
        _ => "choose another address",
    };
    NetError::Listen { address, cause, remedy }
}
