//! Hosts that come by themselves: something else, such as the prolog of a batch system, runs the same command on each
//! of them.
//!
//! The first host gathers the others at a port that all know, so nothing has to be started from one host on another. A
//! secret that they share takes the place of the launcher's connection: who knows it can work out the ticket.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

use bivouac_launch::{Environment, Kind, LaunchError, LaunchResult};
use sha2::{Digest, Sha256};

use crate::list::{HostArg, same_host};

/// Fewest bytes of a secret: less can be guessed.
const SECRET_LEN_MIN: usize = 16;
/// Most bytes of a file with a secret.
const SECRET_LEN_MAX: u64 = 1 << 16;

/// The place where hosts meet: a port of the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousAddress {
    /// Name by which others reach the first host, if not that in the list of hosts.
    pub host: Option<String>,
    /// The port.
    pub port: u16,
}

/// A meeting: the place, and what proves that somebody is of it.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// Its place.
    pub place: RendezvousAddress,
    /// The formation's id.
    pub(crate) formation: [u8; 16],
    /// The one-time secret of its ticket.
    pub(crate) secret: [u8; 32],
}

impl FromStr for RendezvousAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<RendezvousAddress, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some(("", _)) => return Err(format!("'{text}' names no host; write PORT or HOST:PORT")),
            Some((host, port)) => (Some(host.to_owned()), port),
            None => (None, text),
        };
        let port = port.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| format!("'{text}' has no port; write PORT or HOST:PORT"))?;
        Ok(RendezvousAddress { host, port })
    }
}

impl Rendezvous {
    /// Creates the meeting of these hosts for a formation of this name, by the secret in a file.
    ///
    /// # Errors
    /// That the file cannot be read, can be read by others, or is too short to be a secret.
    pub fn new(
        place: RendezvousAddress,
        secret: &Path,
        name: &str,
        hosts: &[HostArg],
    ) -> LaunchResult<Rendezvous> {
        let refused = |e| LaunchError::path(secret, "read the secret of the meeting", e);
        let file = std::fs::File::open(secret).map_err(refused)?;
        refuse_shown(secret, &file.metadata().map_err(refused)?)?;
        let mut shared = Vec::new();
        file.take(SECRET_LEN_MAX).read_to_end(&mut shared).map_err(refused)?;
        if shared.len() < SECRET_LEN_MIN {
            let cause = format!("has {} bytes, so it can be guessed", shared.len());
            let remedy = format!("write {SECRET_LEN_MIN} random ones or more there, the same on all hosts");
            return Err(LaunchError::new(Kind::Usage, secret.display(), cause, &remedy));
        }
        let names: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, host.nodes)).collect();
        let what = format!("{name}\n{}\n{}", place.port, names.join(","));
        let formation = derive(&shared, "formation", &what);
        let formation = formation.first_chunk().copied().unwrap_or_default();
        Ok(Rendezvous { place, formation, secret: derive(&shared, "ticket", &what) })
    }
}

/// Refuses a file with a secret that others can read or write. A reader could join as a host, and would be told the
/// formation's own secret; a writer would choose it. The open file is checked, which is the one that is read.
fn refuse_shown(secret: &Path, file: &Metadata) -> LaunchResult<()> {
    let refused = |cause: String, remedy: &str| {
        Err(LaunchError::new(
            Kind::Usage,
            format_args!("the secret of the meeting {}", secret.display()),
            cause,
            remedy,
        ))
    };
    let mode = file.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let remedy = "write new random bytes to a file that only you can read: (umask 077; head -c 32 /dev/urandom >FILE)";
        return refused(format!("can be read or written by others (mode {mode:03o})"), remedy);
    }
    let me = rustix::process::geteuid().as_raw();
    if ![me, 0].contains(&file.uid()) {
        let remedy = "use one of your own";
        return refused(format!("belongs to somebody else (user {})", file.uid()), remedy);
    }
    Ok(())
}

/// HMAC's construction: the hash of the secret and a hash, so that nobody can go on from a hash that is known.
fn derive(shared: &[u8], label: &str, what: &str) -> [u8; 32] {
    let keyed = |text: &[u8]| {
        let mut hash = Sha256::new();
        hash.update((shared.len() as u64).to_le_bytes());
        hash.update(shared);
        hash.update(text);
        hash.finalize()
    };
    let inner = keyed(format!("bivouac meeting\n{label}\n{what}").as_bytes());
    keyed(&inner).into()
}

/// Returns the host among these that this one is.
///
/// # Errors
/// That it is none of them.
pub fn which_host<'a>(here: &Environment, hosts: &'a [HostArg]) -> LaunchResult<(usize, &'a HostArg)> {
    let names: Vec<&str> = here.batch.slurm_node.as_deref().into_iter().chain([here.host.as_str()]).collect();
    let mine = |host: &HostArg| names.iter().any(|name| same_host(&host.name, name));
    hosts.iter().enumerate().find(|(_, host)| mine(host)).ok_or_else(|| {
        let cause = format!("this host, {}, is none of those named", names.join(" or "));
        LaunchError::usage("--meet", cause, "name the hosts as they call themselves: --hosts")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::environment;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn set_mode(file: &Path, mode: u32) {
        std::fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }

    fn hosts(names: &[&str]) -> Vec<HostArg> {
        let host = |(position, name): (usize, &&str)| HostArg { name: (*name).into(), nodes: 1, position };
        names.iter().enumerate().map(host).collect()
    }

    fn place(text: &str) -> RendezvousAddress {
        text.parse().unwrap()
    }

    #[test]
    fn a_place_is_a_port_or_a_host_with_one() {
        assert_eq!(place("7000"), RendezvousAddress { host: None, port: 7000 });
        assert_eq!(place("n1-ib:7000"), RendezvousAddress { host: Some("n1-ib".into()), port: 7000 });
        assert_eq!(place("[fe80::1]:7000").host.as_deref(), Some("[fe80::1]"));
        for (text, says) in
            [("", "no port"), ("n1", "no port"), ("0", "no port"), (":1", "no host"), ("70000", "no port")]
        {
            assert!(text.parse::<RendezvousAddress>().unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn all_who_share_a_secret_work_out_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let meeting = |secret: &str, name: &str, names: &[&str]| {
            std::fs::write(&file, secret).unwrap();
            set_mode(&file, 0o600);
            Rendezvous::new(place("7"), &file, name, &hosts(names))
                .map(|meeting| (meeting.formation, meeting.secret))
        };
        let one = meeting("0123456789abcdef", "job-1", &["n1", "n2"]).unwrap();
        assert_eq!(one, meeting("0123456789abcdef", "job-1", &["n1", "n2"]).unwrap());
        for other in [
            meeting("0123456789abcdeF", "job-1", &["n1", "n2"]),
            meeting("0123456789abcdef", "job-2", &["n1", "n2"]),
            meeting("0123456789abcdef", "job-1", &["n1", "n3"]),
        ] {
            let other = other.unwrap();
            assert!(other.0 != one.0 && other.1 != one.1);
        }
        let refusal = meeting("short", "x", &["n1"]).unwrap_err().to_string();
        assert!(refusal.contains("has 5 bytes, so it can be guessed"), "{refusal}");
    }

    /// S283.
    #[test]
    fn a_secret_that_others_can_read_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        let meeting = || Rendezvous::new(place("7"), &file, "x", &hosts(&["n1"]));
        for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o666] {
            set_mode(&file, mode);
            let refusal = meeting().unwrap_err();
            let says = format!("can be read or written by others (mode {mode:03o})");
            assert!(refusal.to_string().contains(&says), "{refusal}");
            assert!(refusal.to_string().contains("umask 077"), "{refusal}");
        }
        for mode in [0o600, 0o400] {
            set_mode(&file, mode);
            assert!(meeting().is_ok(), "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            set_mode(&file, 0o600);
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            assert!(meeting().unwrap_err().to_string().contains("belongs to somebody else (user 12345)"));
        }
    }

    #[test]
    fn hosts_know_themselves_by_the_batch_systems_name_first() {
        let mut here = environment();
        here.host = "n2.cluster".into();
        let list = hosts(&["n1", "n2", "node7"]);
        assert_eq!(which_host(&here, &list).unwrap().0, 1);
        here.batch.slurm_node = Some("node7".into());
        here.host = "elsewhere".into();
        assert_eq!(which_host(&here, &list).unwrap().0, 2);
        here.batch.slurm_node = None;
        assert!(which_host(&here, &list).unwrap_err().to_string().contains("this host, elsewhere, is none"));
    }
}
