//! Launchers, which start processes on other hosts, and their command lines.

use bivouac_launch::{Batch, Environment, LaunchError, LaunchResult, Launcher};
use serde::{Deserialize, Serialize};

use crate::list::{HostArg, parse_hosts, read_nodefile};

/// Silence after which ssh asks whether the other side lives, in milliseconds.
const SSH_ALIVE_MS: u64 = 15_000;
/// Fewest questions without an answer after which it ends.
const SSH_ALIVE_MIN: u64 = 4;
/// Silence that is borne of who only says something, in milliseconds.
const INQUIRY_SILENCE_MS: u64 = 10_000;

/// Family of an `mpiexec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MpiFamily {
    /// Open MPI.
    OpenMpi,
    /// MPICH, and what has its Hydra unchanged.
    Mpich,
    /// Another one, which takes the options that Hydra and its relatives share.
    Other,
}

impl MpiFamily {
    /// Returns the family of the `mpiexec` in the search path.
    pub(crate) fn installed() -> MpiFamily {
        let output = std::process::Command::new("mpiexec").arg("--version").output();
        output.map_or(MpiFamily::Other, |output| {
            MpiFamily::of_version(&String::from_utf8_lossy(&output.stdout))
        })
    }

    /// Returns the family by what `mpiexec --version` says.
    pub(crate) fn of_version(said: &str) -> MpiFamily {
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        if has(&["Open MPI", "OpenRTE", "PRTE"]) {
            MpiFamily::OpenMpi
        } else if has(&["HYDRA build details"]) {
            MpiFamily::Mpich
        } else {
            MpiFamily::Other
        }
    }
}

/// Way in which a host's part gets its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketDelivery {
    /// Over standard input, which stays open: its end is the end of the host's part.
    Input,
    /// In the environment.
    Environment,
    /// In a file of the user's home, whose path is an argument.
    File,
}

/// The command line of one launcher process, and the hosts that it reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LauncherCall {
    /// Program and arguments.
    pub arguments: Vec<String>,
    /// The hosts that it reaches, by index.
    pub hosts: Vec<usize>,
}

/// The command that a launcher starts on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCommand {
    /// Program and arguments, each a word.
    words: Vec<String>,
    /// True if it stays, as a host's part does, or says something and ends.
    stays: bool,
}

/// Returns the command lines that start a program on hosts for what it says; each with its host, if it is for one.
pub(crate) fn inquiry_calls(
    launcher: &Launcher,
    hosts: &[HostArg],
    words: Vec<String>,
) -> Vec<(Vec<String>, Option<String>)> {
    let remote = RemoteCommand { words, stays: false };
    let mpi = if *launcher == Launcher::Mpi { MpiFamily::installed() } else { MpiFamily::Other };
    let calls = calls(launcher, hosts, &remote, mpi, INQUIRY_SILENCE_MS).into_iter();
    let named = |call: LauncherCall| {
        let first = call.hosts.first().and_then(|host| hosts.get(*host));
        (call.arguments, first.filter(|_| launcher.is_per_host()).map(|host| host.name.clone()))
    };
    calls.map(named).collect()
}

/// This program, as it is sent to hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentProgram {
    /// Its length, in bytes.
    pub len: usize,
    /// SHA-256 of its content, hexadecimal.
    pub digest: String,
}

/// Returns the launcher of the batch job that this process is in, with the job's hosts; `None` outside of one.
///
/// # Errors
/// That the list of hosts makes no sense.
pub fn hosts_of_job(
    here: &Environment,
    nodes_per_host: u16,
) -> LaunchResult<Option<(Launcher, Vec<HostArg>)>> {
    let Batch { slurm_nodes, nodefile, .. } = &here.batch;
    if let Some(nodes) = slurm_nodes
        && here.find_program("srun").is_some()
    {
        return Ok(Some((Launcher::Slurm, parse_hosts(nodes, nodes_per_host)?)));
    }
    if let Some(file) = nodefile
        && here.find_program("pbsdsh").is_some()
    {
        return Ok(Some((Launcher::Pbs, read_nodefile(file, nodes_per_host)?)));
    }
    Ok(None)
}

pub(crate) fn ticket_delivery(launcher: &Launcher) -> TicketDelivery {
    match launcher {
        Launcher::Ssh | Launcher::Slurm | Launcher::Flux | Launcher::Meet | Launcher::Custom(_) => {
            TicketDelivery::Input
        }
        Launcher::Mpi => TicketDelivery::Environment,
        Launcher::Pbs => TicketDelivery::File,
    }
}

/// Returns the processes that start `remote` on all hosts, which bear so long a silence.
pub(crate) fn calls(
    launcher: &Launcher,
    hosts: &[HostArg],
    remote: &RemoteCommand,
    mpi: MpiFamily,
    silence_ms: u64,
) -> Vec<LauncherCall> {
    let all = |front: Vec<String>| {
        let arguments = front.into_iter().chain(remote.words.clone());
        // Where one process that ends badly, or one host that is lost, is the end of all that it started.
        let apart = (*launcher == Launcher::Mpi && remote.stays).then(|| "--apart".to_owned());
        let arguments = arguments.chain(apart).collect();
        vec![LauncherCall { arguments, hosts: (0..hosts.len()).collect() }]
    };
    match launcher {
        Launcher::Slurm => all(srun(hosts)),
        Launcher::Flux => all(words("flux exec --rank=all")),
        Launcher::Mpi => all(mpiexec(hosts, mpi)),
        Launcher::Meet => vec![LauncherCall { arguments: remote.words.clone(), hosts: vec![0] }],
        Launcher::Ssh | Launcher::Pbs | Launcher::Custom(_) => {
            let call = |(index, host): (usize, &HostArg)| LauncherCall {
                arguments: per_host(launcher, host, remote, silence_ms),
                hosts: vec![index],
            };
            hosts.iter().enumerate().map(call).collect()
        }
    }
}

fn per_host(launcher: &Launcher, host: &HostArg, remote: &RemoteCommand, silence_ms: u64) -> Vec<String> {
    let name = host.name.as_str();
    match launcher {
        Launcher::Custom(template) => {
            let command = template
                .replace("{host}", &quote(name))
                .replace("{args}", &remote.line())
                .replace("{command}", &quote(&remote.line()));
            vec!["sh".into(), "-c".into(), command]
        }
        Launcher::Pbs => {
            let front = ["pbsdsh".into(), "-n".into(), host.position.to_string(), "--".into()];
            front.into_iter().chain(remote.words.clone()).collect()
        }
        _ => {
            // No terminal, no forwarding, no question. A dead connection is noticed, but not before a cut that the
            // formation bears is over and TCP has repeated what waits, which takes about as long again.
            let alive = (silence_ms * 5 / 2).div_ceil(SSH_ALIVE_MS).max(SSH_ALIVE_MIN);
            let options = format!(
                "ssh -T -a -x -oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval={} -oServerAliveCountMax={alive}",
                SSH_ALIVE_MS / 1000
            );
            words(&options).into_iter().chain([name.to_owned(), remote.line()]).collect()
        }
    }
}

/// Returns the command line of a step beside those of the job: it takes no processor from them, as steps that overlap
/// share them all; it ends no step and is ended by none.
fn srun(hosts: &[HostArg]) -> Vec<String> {
    let count = hosts.len();
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let mut srun =
        words("srun --overlap --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --wait=0");
    srun.extend(words("--no-kill --unbuffered --label --job-name=bivouac --input=all"));
    srun.extend([
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        format!("--nodelist={}", names.join(",")),
    ]);
    srun
}

/// Returns the command for one process per host, bound to no processor, since what it starts serves all of them.
fn mpiexec(hosts: &[HostArg], mpi: MpiFamily) -> Vec<String> {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let (names, count) = (names.join(","), hosts.len().to_string());
    let front = words(match mpi {
        MpiFamily::OpenMpi => "mpiexec --map-by node --bind-to none -x BIVOUAC_TICKET --host",
        MpiFamily::Mpich => "mpiexec -bind-to none -ppn 1 -hosts",
        MpiFamily::Other => "mpiexec -ppn 1 -hosts",
    });
    front.into_iter().chain([names, "-n".into(), count]).collect()
}

impl RemoteCommand {
    /// Returns the binary that is there already. `ticket` is the path of the ticket's file, if there is one.
    pub fn installed(program: &str, ticket: Option<&str>) -> RemoteCommand {
        let mut words = vec![program.to_owned(), "join".into()];
        words.extend(ticket.into_iter().flat_map(|path| ["--ticket".to_owned(), path.to_owned()]));
        RemoteCommand { words, stays: true }
    }

    /// Returns the binary that comes over standard input in front of the ticket: put where programs may run, compared,
    /// started, and removed by itself as soon as it runs.
    pub fn sent(sent: &SentProgram) -> RemoteCommand {
        let SentProgram { len, digest } = sent;
        let script = format!(
            r#"umask 077
fail() {{ echo "bivouac: $*" >&2; exit 126; }}
for d in "${{TMPDIR:-/tmp}}" /tmp /var/tmp "$HOME" /dev/shm; do
d=$(mktemp -d "$d/bivouac-sent.XXXXXX" 2>/dev/null) || continue
if printf '#!/bin/sh\n' >"$d/bivouac" && chmod 700 "$d/bivouac" && "$d/bivouac" 2>/dev/null; then break; fi
rm -rf "$d"
done
[ -x "$d/bivouac" ] || fail "no directory to put the program into: neither TMPDIR, /tmp, /var/tmp nor HOME lets programs run"
trap 'rm -rf "$d"' EXIT
head -c {len} >"$d/bivouac" || fail "the program could not be written to $d"
[ "$(sha256sum <"$d/bivouac")" = "{digest}  -" ] || fail "the program did not arrive as it was sent"
trap - EXIT
exec "$d/bivouac" join --sent "$d""#
        );
        RemoteCommand { words: vec!["sh".into(), "-c".into(), script], stays: true }
    }

    /// Returns the command as a line for a shell.
    fn line(&self) -> String {
        self.words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
    }
}

/// Refuses a launcher that does not carry standard input to all hosts: the job's own environment does not reach where
/// only a list of names does.
pub(crate) fn needs_input(launcher: &Launcher) -> LaunchResult<()> {
    if ticket_delivery(launcher) == TicketDelivery::Input {
        return Ok(());
    }
    let cause = format!("{launcher} does not carry standard input to all hosts");
    Err(LaunchError::usage("--send", cause, "install bivouac on the hosts, or use ssh"))
}

/// Returns a word as a shell takes it for one.
fn quote(word: &str) -> String {
    let plain = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '@' | ':' | '=' | '+' | ',')
    };
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::environment;

    fn hosts() -> Vec<HostArg> {
        parse_hosts("n1,n2:3", 1).unwrap()
    }

    fn lines(launcher: &Launcher, remote: &RemoteCommand) -> Vec<String> {
        calls(launcher, &hosts(), remote, MpiFamily::Other, 60_000)
            .iter()
            .map(|call| call.arguments.join(" "))
            .collect()
    }

    #[test]
    fn each_launcher_is_called_in_its_way() {
        let remote = RemoteCommand::installed("/opt/bivouac", None);
        let ssh = lines(&Launcher::Ssh, &remote);
        assert!(ssh.len() == 2 && ssh[1].ends_with(" n2 /opt/bivouac join"), "{ssh:?}");
        assert!(ssh[0].contains("BatchMode=yes"), "{ssh:?}");
        // 150 s: as long as a cut of nearly 60 s and what TCP waits behind it.
        assert!(ssh[0].contains("ServerAliveInterval=15 -oServerAliveCountMax=10 "), "{ssh:?}");
        let srun = lines(&Launcher::Slurm, &remote);
        assert!(
            srun.len() == 1 && srun[0].ends_with("--nodes=2 --ntasks=2 --nodelist=n1,n2 /opt/bivouac join"),
            "{srun:?}"
        );
        assert!(srun[0].starts_with("srun --overlap "), "{srun:?}");
        assert_eq!(lines(&Launcher::Flux, &remote), ["flux exec --rank=all /opt/bivouac join"]);
        assert_eq!(
            lines(&Launcher::Mpi, &remote),
            ["mpiexec -ppn 1 -hosts n1,n2 -n 2 /opt/bivouac join --apart"]
        );
        let of = |mpi| calls(&Launcher::Mpi, &hosts(), &remote, mpi, 60_000)[0].arguments.join(" ");
        assert_eq!(
            of(MpiFamily::OpenMpi),
            "mpiexec --map-by node --bind-to none -x BIVOUAC_TICKET --host n1,n2 -n 2 /opt/bivouac join --apart"
        );
        assert_eq!(
            of(MpiFamily::Mpich),
            "mpiexec -bind-to none -ppn 1 -hosts n1,n2 -n 2 /opt/bivouac join --apart"
        );
        let remote = RemoteCommand::installed("bivouac", Some("/home/u/t"));
        assert_eq!(lines(&Launcher::Pbs, &remote)[1], "pbsdsh -n 0 -- bivouac join --ticket /home/u/t");
        let custom: Launcher = "go {host} {args}".parse().unwrap();
        assert_eq!(lines(&custom, &remote)[0], "sh -c go n1 bivouac join --ticket /home/u/t");
        let custom: Launcher = "ssh {host} {command}".parse().unwrap();
        assert_eq!(lines(&custom, &remote)[0], "sh -c ssh n1 'bivouac join --ticket /home/u/t'");
    }

    #[test]
    fn families_of_mpi_are_known_by_what_they_say() {
        let cases = [
            ("mpiexec (OpenRTE) 4.1.4\n", MpiFamily::OpenMpi),
            ("mpiexec (Open MPI) 5.0.3\n", MpiFamily::OpenMpi),
            ("prterun (PRTE) 3.0.5\n", MpiFamily::OpenMpi),
            ("HYDRA build details:\n    Version:    4.0.2\n", MpiFamily::Mpich),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.12\n", MpiFamily::Other),
            ("", MpiFamily::Other),
        ];
        for (said, family) in cases {
            assert_eq!(MpiFamily::of_version(said), family, "{said}");
        }
    }

    #[test]
    fn what_is_sent_needs_input() {
        assert!(needs_input(&Launcher::Mpi).unwrap_err().to_string().contains("mpiexec does not carry"));
        assert_eq!(needs_input(&Launcher::Ssh), Ok(()));
    }

    #[test]
    fn a_job_is_found_by_its_environment() {
        let mut here = environment();
        assert_eq!(hosts_of_job(&here, 1), Ok(None));
        here.batch.slurm_nodes = Some("n[1-2]".into());
        let dir = tempfile::tempdir().unwrap();
        here.search_path = Some(dir.path().into());
        assert_eq!(hosts_of_job(&here, 1), Ok(None));
        let srun = dir.path().join("srun");
        std::fs::write(&srun, "").unwrap();
        std::fs::set_permissions(&srun, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (launcher, hosts) = hosts_of_job(&here, 2).unwrap().unwrap();
        assert_eq!((launcher, hosts.len(), hosts[1].nodes), (Launcher::Slurm, 2, 2));
    }

    #[test]
    fn words_stay_words() {
        for word in ["a b", "it's", "$HOME", "", "a;b", "\n"] {
            let line = format!("printf %s {}", quote(word));
            let output = std::process::Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        assert_eq!(quote("/opt/bivouac-0.1/bin"), "/opt/bivouac-0.1/bin");
    }
}
