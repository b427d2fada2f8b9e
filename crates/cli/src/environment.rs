//! The environment, read once.

use std::ffi::OsString;
use std::path::PathBuf;

use bivouac_launch::{Batch, Surroundings};

/// This program's own file, also after it was replaced by a newer one on the disk.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Names of the directory for formations, the one that counts first: whoever forms for a user in another session sets ours.
const RUNTIME_DIRS: [&str; 2] = ["BIVOUAC_RUNTIME_DIR", "XDG_RUNTIME_DIR"];

/// What commands on a formation find in theirs: mount point, name, and the formation's directory.
pub const OF_COMMANDS: [&str; 3] = ["BIVOUAC", "BIVOUAC_NAME", "BIVOUAC_DIR"];

/// The same of the command that we are called by: the formation's name and directory.
pub fn around() -> (Option<OsString>, Option<PathBuf>) {
    let [_, name, dir] = OF_COMMANDS.map(std::env::var_os);
    (name, dir.map(PathBuf::from))
}

/// What the environment says.
pub fn read() -> Surroundings {
    Surroundings {
        runtime_dir: RUNTIME_DIRS.iter().find_map(std::env::var_os).map(PathBuf::from),
        search_path: std::env::var_os("PATH"),
        log_level: std::env::var("BIVOUAC_LOG").ok(),
        uid: rustix::process::geteuid().as_raw(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        program: PathBuf::from(THIS_PROGRAM),
        batch: Batch {
            ticket: std::env::var("BIVOUAC_TICKET").ok(),
            slurm_nodes: std::env::var("SLURM_JOB_NODELIST").ok(),
            slurm_node: std::env::var("SLURMD_NODENAME").ok(),
            nodefile: std::env::var_os("PBS_NODEFILE").map(PathBuf::from),
            home: std::env::var_os("HOME").map(PathBuf::from),
        },
    }
}

/// What it says of object stores, for whoever uses them: the daemons.
pub fn objects() -> bivouac_source::Surroundings {
    bivouac_source::Surroundings::read(|name| std::env::var(name).ok())
}
