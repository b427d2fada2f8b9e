//! The environment, read once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bivouac_launch::{Batch, EnclosingFormation, Environment};
use bivouac_pool::ServerEnvironment;

/// This program's file, also after it was replaced on disk by a newer one.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Names of the directory for formations, the one that counts first: whoever forms for a user in another session sets
/// ours.
const RUNTIME_DIRS: [&str; 2] = ["BIVOUAC_RUNTIME_DIR", "XDG_RUNTIME_DIR"];

/// Variables that commands in a formation get: mount point, name, and the formation's directory.
pub const OF_COMMANDS: [&str; 3] = ["BIVOUAC", "BIVOUAC_NAME", "BIVOUAC_DIR"];

/// Returns the name and the directory of the formation of the command that we are called by.
pub fn around() -> (Option<OsString>, Option<PathBuf>) {
    let [_, name, dir] = OF_COMMANDS.map(std::env::var_os);
    (name, dir.map(PathBuf::from))
}

/// Reads the environment.
pub fn read() -> Environment {
    Environment {
        runtime_dir: RUNTIME_DIRS.iter().find_map(std::env::var_os).map(PathBuf::from),
        search_path: std::env::var_os("PATH"),
        log_level: std::env::var("BIVOUAC_LOG").ok(),
        state_home: state_home(),
        uid: rustix::process::geteuid().as_raw(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        program: PathBuf::from(THIS_PROGRAM),
        batch: Batch {
            ticket: std::env::var("BIVOUAC_TICKET").ok(),
            slurm_nodes: std::env::var("SLURM_JOB_NODELIST").ok(),
            slurm_node: std::env::var("SLURMD_NODENAME").ok(),
            nodefile: std::env::var_os("PBS_NODEFILE").map(PathBuf::from),
            memory: job_memory(|name| std::env::var(name).ok()?.parse().ok()),
            home: std::env::var_os("HOME").map(PathBuf::from),
            job: job_of_batch_system().map(|(_, number)| number),
        },
        around: of_job(),
    }
}

fn of_job() -> EnclosingFormation {
    let (name, dir) = around();
    EnclosingFormation { name: name.and_then(|name| name.to_str()?.parse().ok()), dir }
}

/// Returns how much of this host's memory a Slurm job may use, in bytes. Slurm counts in MiB, and 0 means all.
fn job_memory(number: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let by_processor = || number("SLURM_MEM_PER_CPU")?.checked_mul(number("SLURM_CPUS_ON_NODE")?);
    let mib = number("SLURM_MEM_PER_NODE").or_else(by_processor).filter(|mib| *mib > 0)?;
    mib.checked_mul(1 << 20)
}

/// Returns the user's directory for state that outlives a reboot, by the XDG Base Directory Specification.
fn state_home() -> Option<PathBuf> {
    // The specification says that relative paths are invalid, and to be ignored.
    let chosen = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    chosen.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")))
}

/// Returns the user's directory for caches, by the same specification.
pub fn cache_home() -> Option<PathBuf> {
    let chosen = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    chosen.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
}

/// Returns settings for servers of PostgreSQL, from the variables of PostgreSQL's own programs.
pub fn of_servers(home: Option<&Path>) -> ServerEnvironment {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    ServerEnvironment {
        home: home.map(Path::to_owned),
        pass_file: set("PGPASSFILE").map(PathBuf::from),
        ssl_mode: set("PGSSLMODE").map(|word| word.to_string_lossy().into_owned()),
        root_cert: set("PGSSLROOTCERT").map(PathBuf::from),
    }
}

/// Returns the database of pools that it names.
pub fn database() -> Option<String> {
    std::env::var("BIVOUAC_DB").ok().filter(|url| !url.is_empty())
}

/// Returns the job of a batch system that this runs in, as pools name it.
pub fn job() -> Option<String> {
    job_of_batch_system().map(|(system, number)| format!("{system}:{number}"))
}

fn job_of_batch_system() -> Option<(&'static str, String)> {
    let of = |(system, name)| Some((system, std::env::var(name).ok().filter(|number| !number.is_empty())?));
    [("slurm", "SLURM_JOB_ID"), ("flux", "FLUX_JOB_ID"), ("pbs", "PBS_JOBID")].into_iter().find_map(of)
}

/// Returns the user's name.
pub fn user() -> Option<String> {
    let names = ["USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok());
    names.into_iter().find(|name| !name.is_empty() && !name.contains(char::is_control))
}

/// Returns whether the terminal understands nothing but text.
pub fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_none_or(|terminal| terminal.is_empty() || terminal == "dumb")
}

/// Returns whether a terminal is to have colours (<https://no-color.org>).
pub fn has_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|wish| wish.is_empty())
}

/// Returns whether the terminal understands more than ASCII, by the locale as POSIX orders its variables.
pub fn has_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = set.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Returns settings of object stores, for the daemons that use them.
pub fn objects() -> bivouac_source::Environment {
    bivouac_source::Environment::read(|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_job_is_read() {
        let says = |all: &[(&str, u64)]| {
            job_memory(|name| all.iter().find(|(known, _)| *known == name).map(|(_, number)| *number))
        };
        assert_eq!(says(&[("SLURM_MEM_PER_NODE", 400)]), Some(400 << 20));
        assert_eq!(says(&[("SLURM_MEM_PER_CPU", 100), ("SLURM_CPUS_ON_NODE", 3)]), Some(300 << 20));
        assert_eq!((says(&[]), says(&[("SLURM_MEM_PER_NODE", 0)])), (None, None));
    }
}
