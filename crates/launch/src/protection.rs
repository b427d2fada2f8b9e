//! Protection of volumes, and the choice of backups.

use std::fmt;
use std::str::FromStr;

use bivouac_types::NodeId;
use bivouac_wire::MirrorEntry;

use crate::{LaunchError, LaunchResult};

/// The epoch that mirrors begin with.
const FIRST_EPOCH: u32 = 1;

/// Protection of a formation's files against the loss of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// None: what only one host had goes with it.
    #[default]
    None,
    /// The volumes of each node are mirrored to a node on another host.
    Replicas,
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protection::None => "none",
            Protection::Replicas => "replicas=2",
        })
    }
}

impl FromStr for Protection {
    type Err = String;

    fn from_str(text: &str) -> Result<Protection, String> {
        match text {
            "none" => Ok(Protection::None),
            "replicas=2" => Ok(Protection::Replicas),
            _ => Err("write none or replicas=2".into()),
        }
    }
}

impl Protection {
    /// Checks that so many nodes on so many hosts can have it.
    ///
    /// # Errors
    /// A sentence that names what is missing, and what to write.
    pub fn check(self, nodes: usize, hosts: usize) -> LaunchResult<()> {
        if self == Protection::None {
            return Ok(());
        }
        let object = format!("--protect {self}");
        if nodes < 2 {
            let cause = "there is no other node that could keep replicas";
            let remedy = "use another host (--hosts), or for a test --nodes 2 on this one";
            return Err(LaunchError::usage(object, cause, remedy));
        }
        // Not refused: this is how protection is tried out on one machine.
        if hosts < 2 {
            log::warn!(
                "{object}: all nodes are on one host, so the loss of a volume is survived, and not that of the host"
            );
        }
        Ok(())
    }

    /// Returns the mirrors of nodes that are on these hosts: of each the next node on another host, or, where there is
    /// one host only, the next node. None are mirrored without protection.
    #[must_use]
    pub fn mirrors(self, hosts: &[&str]) -> Vec<MirrorEntry> {
        if self == Protection::None {
            return Vec::new();
        }
        let backup_of = |node: usize| {
            let others = || (1..hosts.len()).map(move |step| (node + step) % hosts.len());
            let elsewhere = others().find(|other| hosts[*other] != hosts[node]);
            elsewhere.or_else(|| others().next()).and_then(|node| u16::try_from(node).ok()).map(NodeId)
        };
        (0..hosts.len()).map(|node| MirrorEntry { backup: backup_of(node), epoch: FIRST_EPOCH }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backups(hosts: &[&str]) -> Vec<Option<u16>> {
        Protection::Replicas.mirrors(hosts).iter().map(|mirror| mirror.backup.map(|node| node.0)).collect()
    }

    /// S808.
    #[test]
    fn a_backup_is_the_next_node_on_another_host() {
        assert_eq!(backups(&["a", "b", "c"]), [Some(1), Some(2), Some(0)]);
        assert_eq!(backups(&["a", "a", "b"]), [Some(2), Some(2), Some(0)]);
        assert_eq!(backups(&["a", "a"]), [Some(1), Some(0)]);
        assert_eq!(backups(&["a"]), [None]);
        assert!(Protection::None.mirrors(&["a", "b"]).is_empty());
    }

    #[test]
    fn one_node_has_nobody_to_mirror_it() {
        let error = Protection::Replicas.check(1, 1).unwrap_err().to_string();
        assert!(error.contains("--protect replicas=2") && error.contains("--nodes 2"), "{error}");
        assert!(Protection::Replicas.check(2, 1).is_ok() && Protection::None.check(1, 1).is_ok());
        for text in ["none", "replicas=2"] {
            assert_eq!(text.parse::<Protection>().unwrap().to_string(), text);
        }
        assert!("replicas=3".parse::<Protection>().is_err());
    }
}
