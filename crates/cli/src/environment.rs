//! The environment, read once.

use std::path::PathBuf;

use bivouac_launch::Surroundings;

/// This program's own file, also after it was replaced by a newer one on the disk.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What the environment says.
pub fn read() -> Surroundings {
    Surroundings {
        runtime_dir: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        search_path: std::env::var_os("PATH"),
        log_level: std::env::var("BIVOUAC_LOG").ok(),
        uid: rustix::process::geteuid().as_raw(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        program: PathBuf::from(THIS_PROGRAM),
    }
}
