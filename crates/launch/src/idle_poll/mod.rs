//! Idle polling: while small requests come one behind the other, processors are kept from going idle between them.
//!
//! Who waits for an answer leaves its processor idle, and so does the daemon that waits for the next request. To wake an idle
//! processor takes many times as long as to serve a small request, on a virtual machine above all. So a [process](serve) of
//! its own polls on both processors meanwhile, of a class that everybody else goes before. Which requests are worth that,
//! [`Pace`] says; the process is the daemon's [`IdlePolling`]. Why it is so: docs/decisions/0048-idle-polling.md.

mod keeper;
mod pace;
mod poller;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use keeper::IdlePolling;
pub use poller::serve;

/// Whether there is idle polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdlePoll {
    /// On virtual machines.
    Auto,
    /// Everywhere.
    On,
    /// Nowhere.
    #[default]
    Off,
}

impl IdlePoll {
    /// Whether there is any on this machine.
    #[must_use]
    pub fn is_on(self) -> bool {
        match self {
            IdlePoll::Auto => std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| is_virtual(&text)),
            IdlePoll::On => true,
            IdlePoll::Off => false,
        }
    }
}

impl fmt::Display for IdlePoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            IdlePoll::Auto => "auto",
            IdlePoll::On => "on",
            IdlePoll::Off => "off",
        })
    }
}

impl FromStr for IdlePoll {
    type Err = String;

    fn from_str(text: &str) -> Result<IdlePoll, String> {
        [IdlePoll::Auto, IdlePoll::On, IdlePoll::Off]
            .into_iter()
            .find(|choice| choice.to_string() == text)
            .ok_or_else(|| format!("'{text}' is none of auto, on and off"))
    }
}

/// Whether processors described so are a hypervisor's.
fn is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_written_as_they_are_read() {
        for choice in [IdlePoll::Auto, IdlePoll::On, IdlePoll::Off] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("yes".parse::<IdlePoll>(), Err("'yes' is none of auto, on and off".into()));
        assert!(IdlePoll::On.is_on() && !IdlePoll::Off.is_on());
    }

    #[test]
    fn virtual_machines_are_told_by_their_processors() {
        assert!(is_virtual("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"));
        assert!(!is_virtual("processor\t: 0\nflags\t\t: fpu vme lahf_lm\nbugs\t: hypervisor\n"));
        assert!(!is_virtual("processor : 0\nFeatures : fp asimd\n"));
    }
}
