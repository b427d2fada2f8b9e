//! Way in which the hosts of a formation over several are reached, as its state says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use bivouac_sysmap::Address;
use serde::{Deserialize, Serialize};

/// Way in which the hosts of a formation were reached, to be reached again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAccess {
    /// The launcher that started processes there.
    pub launcher: Launcher,
    /// Path of the program there.
    pub program: String,
    /// The program that was sent there, if one was.
    pub send: Option<PathBuf>,
    /// The network that was used.
    pub network: Option<Network>,
    /// Silence after which a host takes its part down, in milliseconds.
    pub silence_ms: u64,
    /// Failure domains, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<Domains>,
}

/// Failure domains of hosts: those of one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domains {
    /// Source of the domains.
    pub source: String,
    /// The switch of each host of which it is known, by the name by which the host was called.
    pub of: BTreeMap<String, String>,
}

impl Domains {
    /// Returns the switch of a host, if it is known.
    #[must_use]
    pub fn switch_of(&self, host: &str) -> Option<&str> {
        self.of.get(host).map(String::as_str)
    }

    /// Returns the switches.
    #[must_use]
    pub fn switches(&self) -> BTreeSet<&str> {
        self.of.values().map(String::as_str).collect()
    }
}

/// Launcher of processes on hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// `ssh`, once per host.
    Ssh,
    /// `srun`, once, beside the steps of the job.
    Slurm,
    /// `pbsdsh`, once per host.
    Pbs,
    /// `flux exec`, once.
    Flux,
    /// `mpiexec`, once.
    Mpi,
    /// None: the others come by themselves; started is only the part of the first host, which is this one.
    Meet,
    /// A shell command of the user's, with `{host}`, and `{args}` or `{command}` in it; once per host.
    Custom(String),
}

impl Launcher {
    /// Returns whether it starts a process per host, so that each can have a ticket of its own.
    #[must_use]
    pub fn is_per_host(&self) -> bool {
        matches!(self, Launcher::Ssh | Launcher::Pbs | Launcher::Meet | Launcher::Custom(_))
    }
}

impl FromStr for Launcher {
    type Err = String;

    fn from_str(text: &str) -> Result<Launcher, String> {
        match text {
            "ssh" => Ok(Launcher::Ssh),
            "slurm" | "srun" => Ok(Launcher::Slurm),
            "pbs" | "pbsdsh" => Ok(Launcher::Pbs),
            "flux" => Ok(Launcher::Flux),
            "mpi" | "mpiexec" => Ok(Launcher::Mpi),
            command if !command.contains("{args}") && !command.contains("{command}") => Err(format!(
                "'{command}' is no launcher; write ssh, slurm, pbs, flux, mpi, or a command with {{host}} and {{args}} in it"
            )),
            command if !command.contains("{host}") => {
                Err(format!("'{command}' does not say where: {{host}} is missing"))
            }
            command => Ok(Launcher::Custom(command.into())),
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Ssh => "ssh",
            Launcher::Slurm => "srun",
            Launcher::Pbs => "pbsdsh",
            Launcher::Flux => "flux exec",
            Launcher::Mpi => "mpiexec",
            Launcher::Meet => "this host's part",
            Launcher::Custom(_) => "the launcher",
        })
    }
}

/// The network that a formation is to use: `10.0.0.0/16`, or the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Addresses with these leading bits.
    Prefix(IpAddr, u8),
    /// Addresses of the interface with this name.
    Interface(String),
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let Some((address, bits)) = text.split_once('/') else {
            let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@');
            return match text.parse() {
                // An address alone is the network that has only it.
                Ok(ip) => Ok(Network::Prefix(ip, width(ip))),
                Err(_) if !text.is_empty() && text.chars().all(name) => Ok(Network::Interface(text.into())),
                Err(_) => {
                    Err(format!("'{text}' is no network; write 10.1.0.0/16 or the name of an interface"))
                }
            };
        };
        let bad = || format!("'{text}' is no network; write for instance 10.1.0.0/16");
        let ip: IpAddr = address.parse().map_err(|_| bad())?;
        let bits = bits.parse().ok().filter(|bits| *bits <= width(ip)).ok_or_else(bad)?;
        Ok(Network::Prefix(ip, bits))
    }
}

impl Network {
    /// Returns whether an address of this host is of it.
    #[must_use]
    pub fn has(&self, local: &Address) -> bool {
        match self {
            Network::Interface(name) => *name == local.interface,
            Network::Prefix(ip, bits) => {
                // A prefix of 0 bits shifts by all 128, which is no shift.
                let mask = u128::MAX.checked_shl(u32::from(width(*ip).saturating_sub(*bits))).unwrap_or(0);
                ip.is_ipv4() == local.ip.is_ipv4() && number(*ip) & mask == number(local.ip) & mask
            }
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Network::Prefix(ip, bits) => write!(f, "{ip}/{bits}"),
            Network::Interface(name) => f.write_str(name),
        }
    }
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { Ipv4Addr::BITS as u8 } else { Ipv6Addr::BITS as u8 }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_read() {
        assert_eq!("slurm".parse(), Ok(Launcher::Slurm));
        assert!("sssh".parse::<Launcher>().unwrap_err().contains("'sssh' is no launcher"));
        assert!("go {args}".parse::<Launcher>().unwrap_err().contains("{host} is missing"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "a b", "x/8", "::/129"] {
            assert!(text.parse::<Network>().unwrap_err().contains("is no network"), "{text}");
        }
    }
}
