//! Addresses of listeners.

use std::fmt;
use std::path::{Path, PathBuf};

/// Address of a listener. Written as `host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`; the host may be a name.
    Tcp(String),
    /// Path of a socket.
    Unix(PathBuf),
    /// The same process.
    InProcess,
}

impl Address {
    /// Returns a TCP address, `host:port`.
    #[must_use]
    pub fn tcp(host_port: impl Into<String>) -> Address {
        Address::Tcp(host_port.into())
    }

    /// Returns the path of a Unix socket.
    #[must_use]
    pub fn unix(path: impl AsRef<Path>) -> Address {
        Address::Unix(path.as_ref().to_owned())
    }

    /// Returns whether it is the path of a socket that exists, whether or not a process listens there.
    #[must_use]
    pub fn is_on_this_machine(&self) -> bool {
        matches!(self, Address::Unix(path) if rustix::fs::stat(path).is_ok())
    }

    /// Returns whether what is sent there leaves this machine, so that others may change it on the way: frames are
    /// sealed then.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Address::Tcp(_))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host_port) => f.write_str(host_port),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::InProcess => f.write_str("this process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_users_know_them() {
        assert_eq!(Address::tcp("10.0.0.1:7000").to_string(), "10.0.0.1:7000");
        assert_eq!(Address::unix("/run/a.sock").to_string(), "unix:/run/a.sock");
    }
}
