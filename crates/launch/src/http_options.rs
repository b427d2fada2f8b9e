//! Options of the server for HTTP.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{LaunchError, LaunchResult};

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
    /// Listening address; port 0 for any free port.
    pub address: HttpAddress,
    /// Plain HTTP, without TLS.
    pub plain: bool,
    /// Path on each host of the certificate, those that vouch for it, and its private key, as PEM; without it, one is
    /// made.
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
        // A name has at most 253 bytes, and a bucket of 63 and a dot come in front of this one.
        let is_name = text.len() <= 189 && text.split('.').all(is_label) && text.parse::<IpAddr>().is_err();
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
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// Keys would be sent over a network in plain text.
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
}
